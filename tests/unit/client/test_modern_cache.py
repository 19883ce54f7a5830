"""Answers that are used again: as long as the server said, and not a moment after it says that something changed."""

import asyncio
from typing import Any

import pytest

from trunkline import Client, Server
from trunkline.client.cache import ResponseCache
from trunkline.errors import PeerError
from trunkline.protocol.client_envelope import read_result_header
from trunkline.protocol.types import PaginatedParams, ReadResourceParams
from trunkline.testing import ManualClock, ScriptedServer
from trunkline.wire import codec

PAGE = PaginatedParams()
NEXT = PaginatedParams(cursor="2")
READ = ReadResourceParams(uri="x://y")


def kept(*entries: tuple[str, Any]) -> ResponseCache:
    cache = ResponseCache()
    for method, params in entries:
        cache.store(method, params, method.encode(), 10.0, drop_count=0)
    return cache


@pytest.mark.row("CCH-04")
def test_entry_expires_at_its_time() -> None:
    cache = kept(("tools/list", PAGE))
    assert cache.get("tools/list", PAGE, 9.999) == b"tools/list"
    assert cache.get("tools/list", PAGE, 10.0) is None
    assert cache.get("tools/list", PAGE, 0.0) is None  # it is gone for good


@pytest.mark.row("CCH-03")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/list", NEXT),
        ("prompts/list", PAGE),
        ("tools/list", PaginatedParams(limit=5)),
        ("tools/list", PaginatedParams(meta={"a": 1})),
    ],
)
def test_only_the_same_request_hits_the_cache(method: str, params: Any) -> None:
    assert kept(("tools/list", PAGE)).get(method, params, 0.0) is None


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", PAGE),
        ("tools/list", PaginatedParams(limit=5)),
        ("resources/read", ReadResourceParams(uri="x://y", request_state="s")),
        ("resources/read", ReadResourceParams(uri="x://y", meta={"a": 1})),
    ],
)
def test_uncacheable_requests_are_not_stored(method: str, params: Any) -> None:
    assert kept((method, params)).get(method, params, 0.0) is None


@pytest.mark.row("CCH-04")
@pytest.mark.parametrize(
    ("told", "gone"),
    [
        ("notifications/tools/list_changed", {"tools/list"}),
        ("notifications/prompts/list_changed", {"prompts/list"}),
        ("notifications/resources/list_changed", {"resources/list", "resources/templates/list"}),
        ("notifications/resources/updated", {"resources/read"}),
    ],
)
def test_notification_drops_only_its_entries(told: str, gone: set[str]) -> None:
    lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
    cache = kept(*((name, PAGE) for name in lists), ("resources/read", READ))
    cache.notification_handlers()[told](READ)
    left = {name for name in lists if cache.get(name, PAGE, 0.0)}
    left |= {"resources/read"} if cache.get("resources/read", READ, 0.0) else set()
    assert left == {*lists, "resources/read"} - gone


@pytest.mark.row("A19")
@pytest.mark.parametrize(
    ("updated", "gone"), [("x://z", False), ("x://yy", False), ("x://y", True), ("x://y/part", True), ("x:/", False)]
)
def test_update_drops_the_resource_and_its_containers(updated: str, gone: bool) -> None:
    cache = kept(("resources/read", READ))
    cache.notification_handlers()["notifications/resources/updated"](ReadResourceParams(uri=updated))
    assert (cache.get("resources/read", READ, 0.0) is None) == gone


def test_response_requested_before_a_change_is_not_stored() -> None:
    cache, before = ResponseCache(), ResponseCache().drop_count
    cache.notification_handlers()["notifications/tools/list_changed"](None)
    cache.store("tools/list", PAGE, b"old", 10.0, drop_count=before)
    assert cache.get("tools/list", PAGE, 0.0) is None


def test_all_pages_of_a_list_are_dropped_together() -> None:
    cache = kept(("tools/list", PAGE), ("tools/list", NEXT), ("resources/read", READ))
    cache.drop("tools/list")
    assert cache.get("tools/list", PAGE, 0.0) is cache.get("tools/list", NEXT, 0.0) is None
    assert cache.get("resources/read", READ, 0.0) is not None
    cache.clear()
    assert cache.get("resources/read", READ, 0.0) is None


def number(which: int) -> ReadResourceParams:
    return ReadResourceParams(uri=str(which))


@pytest.mark.row("A19")
def test_least_recently_used_entry_is_dropped_first() -> None:
    cache = kept(*(("resources/read", number(which)) for which in range(1000)))
    assert cache.get("resources/read", number(0), 0.0) is not None
    cache.store("resources/read", number(1000), b"one more", 10.0, drop_count=0)
    assert len(cache) == 1000
    assert cache.get("resources/read", number(0), 0.0) is not None  # it was used
    assert cache.get("resources/read", number(1), 0.0) is None
    cache.store("resources/read", number(2), b"again", 10.0, drop_count=0)
    assert cache.get("resources/read", number(3), 0.0) is not None  # nobody had to go for that


@pytest.mark.row("A19")
def test_size_in_bytes_is_bounded() -> None:
    cache, large = ResponseCache(), bytes(12 * 1024 * 1024)
    for which in range(3):
        cache.store("resources/read", number(which), large, 10.0, drop_count=0)
    assert [cache.get("resources/read", number(which), 0.0) is None for which in range(3)] == [True, False, False]
    cache.drop("resources/read")
    for which in range(2):
        cache.store("resources/read", number(which), large, 10.0, drop_count=1)
    assert len(cache) == 2  # what was dropped takes no room


@pytest.mark.row("CCH-04")
@pytest.mark.parametrize(
    ("said", "seconds"), [(1500, 1.5), (0, 0), (-5, 0), ("x", 0), (True, 0), (1.5, 0), (None, 0), (2**80, 2**53 / 1000)]
)
def test_only_a_positive_integer_is_a_time_to_live(said: Any, seconds: float) -> None:
    head = read_result_header(codec.to_raw({"ttlMs": said, "resultType": "input_required"}))
    assert (head.fresh_for, head.result_type) == (seconds, "input_required")


def test_result_without_object_has_no_time_to_live() -> None:
    assert (read_result_header(codec.to_raw([1])).result_type, read_result_header(codec.to_raw({})).fresh_for) == (
        "complete",
        0,
    )


# --- through a client ------------------------------------------------------------------------------------


def page(ttl: int = 1000, **members: Any) -> dict[str, Any]:
    return {"resultType": "complete", "prompts": [], "ttlMs": ttl, "cacheScope": "private"} | members


async def test_client_requests_again_after_expiry_or_change() -> None:
    server, clock = ScriptedServer(modern=True), ManualClock()
    async with Client(server, clock=clock) as client:

        async def asked() -> bool:
            """Whether the server was asked."""
            listing = asyncio.create_task(client.list_prompts())
            await asyncio.sleep(0)
            requests = server.line.waiting()
            for request in requests:
                server.line.reply(request, page(prompts=[{"name": "p"}]))
            (await listing).prompts.clear()  # which changes it for nobody else
            return bool(requests)

        assert [await asked(), await asked()] == [True, False]
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["p"]
        clock.advance(1.0)
        assert await asked()
        server.line.notify("notifications/prompts/list_changed")
        assert [await asked(), await asked()] == [True, False]


async def test_client_does_not_store_an_outdated_response() -> None:
    server = ScriptedServer(modern=True)
    async with Client(server) as client:
        for _ in range(2):
            listing = asyncio.create_task(client.list_prompts())
            request = await server.line.request("prompts/list")
            server.line.notify("notifications/prompts/list_changed")
            server.line.reply(request, page())
            await listing


async def test_refused_page_drops_all_pages() -> None:
    server = ScriptedServer(modern=True)
    async with Client(server) as client:
        listing = asyncio.create_task(client.list_prompts(cursor=None))
        server.line.reply(await server.line.request("prompts/list"), page(nextCursor="2"))
        await listing
        listing = asyncio.create_task(client.list_prompts("2"))
        server.line.error(await server.line.request("prompts/list"), -32602, "no such cursor")
        with pytest.raises(PeerError):
            await listing
        listing = asyncio.create_task(client.list_prompts(cursor=None))
        server.line.reply(await server.line.request("prompts/list"), page())
        await listing


async def test_closed_client_does_not_answer_from_the_cache() -> None:
    server = ScriptedServer(modern=True, capabilities={"prompts": {}})
    async with Client(server) as client:
        listing = asyncio.create_task(client.list_prompts())
        server.line.reply(await server.line.request("prompts/list"), page(60_000))
        await listing
    with pytest.raises(Exception, match="closed"):
        await client.list_prompts()


@pytest.mark.row("A19")
async def test_handshake_era_responses_are_not_cached() -> None:
    server = ScriptedServer()
    async with Client(server) as client:
        for _ in range(2):
            listing = asyncio.create_task(client.list_prompts())
            server.line.reply(await server.line.request("prompts/list"), {"prompts": [], "ttlMs": 60_000})
            await listing


@pytest.mark.row("A19")
async def test_known_tools_end_with_a_list_change() -> None:
    server = ScriptedServer()
    async with Client(server) as client:
        for shown in ("1", "2"):
            server.tools[:] = [{"name": "t", "description": shown, "inputSchema": {"type": "object"}}]
            server.line.notify("notifications/tools/list_changed")
            calling = asyncio.create_task(client.call_tool("t"))
            reply = {"content": [], "structuredContent": {}}  # which is held against what is known of the tool
            server.line.reply(await server.line.request("tools/call"), reply)
            await calling
            known = client._runtime.known_tools.by_name.get("t")
            assert known is not None
            assert known.tool.description == shown


@pytest.mark.row("A19", "U07")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_read_after_an_update_is_fresh(revision: str) -> None:
    server, temperature = Server("weather", observers=[]), [20]

    @server.resource("weather://today", ttl=600)
    def today() -> str:
        return str(temperature[0])

    async with Client(server, revision=revision) as client:

        async def read() -> str | None:
            [contents] = await client.read_resource("weather://today")
            return contents.text

        await client.subscribe("weather://today")
        told = client.notifications("notifications/resources/updated")
        assert await read() == "20"
        temperature[0] = 21
        assert await read() == ("21" if revision == "2025-11-25" else "20")  # for as long as nobody says otherwise
        server.notify_updated("weather://today")
        await anext(told)
        assert await read() == "21"


@pytest.mark.row("A19")
async def test_new_authorization_clears_the_cache() -> None:
    server = ScriptedServer(modern=True)
    async with Client(server) as client:
        for _ in range(2):
            listing = asyncio.create_task(client.list_prompts())
            request = await server.line.request("prompts/list")
            server.line.reply(request, page(60_000))
            await listing
            line = client._runtime.supervisor
            assert line is not None
            assert line.connection is not None
            for begun in (True, False):
                line.connection.authorizing(request["id"], begun=begun)
