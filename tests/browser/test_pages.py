"""Pages in a real browser against our server: allowed origins get responses, and all others get nothing."""

import asyncio
import logging
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from tests.browser.chromium import Browser, PageError
from tests.official import check

from trunkline import Context, Server, Settings

REVISION = "2025-11-25"
Open = Callable[..., Awaitable[str]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def origin(browser: Browser) -> str:
    """The origin of a page with a foreign name."""
    return f"http://page.example:{browser.port}"


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[Open]:
    """Start a server that allows some origins; return its host and port."""
    servers: list[Server] = []

    async def open_(*origins: str) -> str:
        servers.append(library(Settings(allowed_origins=origins)))
        return urlsplit((await servers[-1].listen("http://127.0.0.1:0/mcp")).address).netloc

    yield open_
    for server in servers:
        await server.aclose()


def library(settings: Settings) -> Server:
    server = Server("library", settings=settings)

    @server.tool
    async def count(steps: int, ctx: Context) -> str:
        """Reports progress at every step."""
        for step in range(1, steps + 1):
            await ctx.progress(step, total=steps)
        return "done"

    @server.tool
    def change() -> str:
        """Change the list of prompts."""
        server.prompt(lambda: "new", name="new")
        return "changed"

    @server.prompt
    def old() -> str:
        return "old"

    return server


def progress_in(frames: list[dict[str, Any]]) -> list[float]:
    """The progress that was reported."""
    messages = [frame["message"] for frame in frames]
    return [one["params"]["progress"] for one in messages if one.get("method") == "notifications/progress"]


def check_server_messages(frames: list[dict[str, Any]]) -> None:
    """Raise AssertionError unless all messages of the server are valid."""
    asked = {frame["message"].get("id"): frame["message"]["method"] for frame in frames if frame["sender"] == "client"}
    said = [frame["message"] for frame in frames if frame["sender"] == "server"]
    assert said
    for message in said:
        check(message, revision=REVISION, sender="server", answers=asked)


# --- allowed pages -----------------------------------------------------------------------------


async def test_page_of_allowed_origin_can_use_everything(browser: Browser, origin: str, opened: Open) -> None:
    """It reads the session id through CORS, progress as it arrives, and the GET stream."""
    place = await opened(origin)
    seen = await browser.open_page(origin, "converse", f"http://{place}/mcp")
    assert seen["session"]
    assert (seen["accepted"], seen["ended"]) == (202, 204)
    assert seen["counted"]["result"]["content"][0]["text"] == "done"
    assert seen["notice"]["method"] == "notifications/prompts/list_changed"
    assert progress_in(seen["frames"]) == [1, 2, 3]
    check_server_messages(seen["frames"])


async def test_page_of_allowed_origin_can_open_websocket(browser: Browser, origin: str, opened: Open) -> None:
    place = await opened(origin)
    seen = await browser.open_page(origin, "callUp", f"ws://{place}/mcp")
    assert seen["frames"][1]["message"]["result"]["serverInfo"]["name"] == "library"
    check_server_messages(seen["frames"])


@pytest.mark.parametrize(
    ("kind", "address"), [("http", "http://{}/mcp"), ("sse", "http://{}/sse"), ("websocket", "ws://{}/mcp")]
)
async def test_official_typescript_client_works_in_a_page(
    browser: Browser, origin: str, opened: Open, kind: str, address: str
) -> None:
    place = await opened(origin)
    seen = await browser.open_page(origin, "useOfficial", kind, address.format(place))
    assert (seen["name"], seen["tools"], seen["text"]) == ("library", ["count", "change"], "done")
    assert progress_in(seen["frames"]) == [1, 2, 3]
    check_server_messages(seen["frames"])


# --- other pages -------------------------------------------------------------------------------


async def test_page_of_foreign_origin_gets_nothing_and_is_logged(
    browser: Browser, origin: str, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    place = await opened("http://other.example")
    with caplog.at_level(logging.WARNING, "trunkline"):
        with pytest.raises(PageError, match="Failed to fetch"):
            await browser.open_page(origin, "converse", f"http://{place}/mcp")
        with pytest.raises(PageError, match="no WebSocket"):
            await browser.open_page(origin, "callUp", f"ws://{place}/mcp")
        seen = await browser.open_page(origin, "knock", place)
    assert {name: status for name, (status, _) in seen.items()} == dict.fromkeys(seen)
    assert origin in caplog.text
    assert "add it to the setting allowed_origins" in caplog.text


async def test_refusal_of_foreign_origin_names_the_setting(origin: str, opened: Open) -> None:
    """The browser hides it from the page, but shows it in the developer tools."""
    place = await opened()
    asking = urllib.request.Request(f"http://{place}/mcp", method="OPTIONS", headers={"Origin": origin})
    with pytest.raises(urllib.error.HTTPError) as caught:
        await asyncio.to_thread(urllib.request.urlopen, asking, timeout=20)
    with caught.value as answer:
        assert answer.status == 403
        assert "allowed_origins" in answer.read().decode()


async def test_rebound_host_name_gets_nothing(browser: Browser, opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    """For the browser the request has the same origin, so only the server can reject it."""
    place = await opened("*")
    evil = f"evil.example:{place.rpartition(':')[2]}"
    with caplog.at_level(logging.WARNING, "trunkline"):
        seen = await browser.open_page(f"http://{evil}", "knock", evil, rebound=True)
    websocket, _ = seen.pop("websocket")
    assert websocket is None
    for status, body in seen.values():
        assert status == 403, body
        assert "allowed_hosts" in body
    assert f"host '{evil}' is not allowed" in caplog.text
