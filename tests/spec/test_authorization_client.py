"""Authorization as the user of a client sees it: what `Client(url, auth=…)` does, and which errors it raises."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.auth.auth_servers import CALLBACK, AuthServers, servers
from tests.unit.auth.auth_setup import RESOURCE, TOKEN, Page, RecordedRequest

from trunkline import BlockingClient, Client, Context, Server, Settings
from trunkline.auth import MemoryTokens, OAuth, Principal, Redirected, ResourceServer
from trunkline.auth.server.static_tokens import StaticTokens
from trunkline.errors import AuthorizationFailed, ConfigError, MisuseError, PeerError, TransportError
from trunkline.protocol.lifecycle import Phase
from trunkline.testing import ManualClock
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.transports.http.client.credentials import HttpExchange, OnAuthorizing

ERAS = pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])


@asynccontextmanager
async def guarded(path: str = "/mcp") -> AsyncIterator[str]:
    """The address of a server that accepts one token."""
    server = Server("notes", auth=ResourceServer(StaticTokens({"good": Principal("ada")})))

    @server.tool
    def whoami(ctx: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        return ctx.principal.subject

    listener = await server.listen(f"http://127.0.0.1:0{path}")
    try:
        yield listener.address
    finally:
        await server.aclose()


class SlowUser:
    """A user who takes a long time to log in."""

    def __init__(self, there: AuthServers) -> None:
        self.there = there
        self.arrived = asyncio.Event()
        self.agrees = asyncio.Event()
        self.left = False

    async def __call__(self, page: str) -> str:
        self.arrived.set()
        try:
            await self.agrees.wait()
        except asyncio.CancelledError:
            self.left = True
            raise
        return await self.there.agree(page)

    def oauth(self, **options: Any) -> Any:
        return self.there.oauth(
            interaction=Redirected(CALLBACK, self, settings=Settings(person_timeout=None)), **options
        )


class DenyingUser:
    """A user who denies access."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, page: str) -> str:
        self.asked += 1
        raise AuthorizationFailed("the login was not completed", hop="authorization", clause="a rule")

    def oauth(self, there: AuthServers, **options: Any) -> Any:
        return there.oauth(interaction=Redirected(CALLBACK, self), **options)


# --- static tokens ---------------------------------------------------------------------------------


@pytest.mark.row("AUT-22")
@ERAS
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_string_is_a_bearer_token(revision: str, scheme: str) -> None:
    async with guarded() as url, Client(url.replace("http", scheme, 1), auth="good", revision=revision) as client:
        assert (await client.call_tool("whoami")).text == "ada"


@pytest.mark.row("AUT-22")
async def test_token_is_sent_over_http_sse() -> None:
    async with guarded() as url, Client(url.replace("/mcp", "/sse"), auth="good") as client:
        assert (await client.call_tool("whoami")).text == "ada"


@ERAS
@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_refused_token_is_reported_and_not_shown(revision: str, scheme: str) -> None:
    async with guarded() as url:
        with pytest.raises(AuthorizationFailed, match="rejected the token") as failed:
            await Client(url.replace("http", scheme, 1), auth="bad-SECRET", revision=revision).open()
    assert (failed.value.hop, failed.value.clause) == ("server", "RFC 6750, section 3.1")
    assert "SECRET" not in repr(failed.value)


async def test_refused_token_over_http_sse_is_reported() -> None:
    async with guarded() as url:
        with pytest.raises(AuthorizationFailed, match="rejected the token"):
            await Client(url.replace("/mcp", "/sse"), auth="bad").open()


class EndlessProvider:
    """A token provider that always offers another token, none of which is valid."""

    def __init__(self) -> None:
        self.attempts = 0

    def credentials(self, url: str, *, settings: Settings, tls: Any = None) -> "EndlessProvider":
        return self

    async def headers(self, method: str, url: str) -> dict[str, str]:
        self.attempts += 1
        return {}

    async def handle_response(self, heard: HttpExchange, asking: OnAuthorizing) -> bool:
        return True


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_authorization_retries_are_bounded(scheme: str) -> None:
    endless = EndlessProvider()
    async with guarded() as url:
        with pytest.raises(AuthorizationFailed, match="demands other credentials") as failed:
            await Client(url.replace("http", scheme, 1), auth=endless).open()
    assert (failed.value.hop, endless.attempts) == ("retry", 8)


async def test_missing_auth_is_reported() -> None:
    async with guarded() as url:
        with pytest.raises(TransportError, match="pass auth="):
            await Client(url).open()
        with pytest.raises(TransportError, match=r"authentication required.*; pass auth="):
            await Client(url, revision="2025-11-25").open()
        with pytest.raises(TransportError, match=r"401.*pass auth="):
            await Client(url.replace("http", "ws", 1)).open()


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "ü"])
def test_invalid_token_string_is_refused(token: str) -> None:
    with pytest.raises(ConfigError) as failed:
        Client("https://a.example/mcp", auth=token)
    assert not token or token not in str(failed.value)


@pytest.mark.parametrize(
    ("auth", "why"),
    [
        ("Bearer SECRET", 'leave out "Bearer", which is added'),
        ("bearer SECRET", 'leave out "Bearer", which is added'),
        ("", "auth= is empty"),
        (" ", "auth= is empty"),
        ("SECRET\n", "such as a space or a line end"),
        (b"SECRET", r"such as OAuth\(\), not bytes"),
        ({"Authorization": "Bearer SECRET"}, r"pass headers to HttpConnector\(url, headers=…\)"),
        (OAuth, r"not the class OAuth: write auth=OAuth\(…\)"),
    ],
)
@pytest.mark.parametrize("scheme", ["https", "wss"])
def test_invalid_auth_value_is_explained(scheme: str, auth: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as failed:
        Client(f"{scheme}://a.example/mcp", auth=auth)
    assert "SECRET" not in str(failed.value)


@pytest.mark.row("AUT-01")
@pytest.mark.parametrize(
    "target",
    ["python server.py", ["python", "server.py"], "tcp://127.0.0.1:1", "unix:///tmp/x", Server("here"), HttpConnector("https://a.example/mcp")],
    ids=["text", "list", "tcp", "unix", "server", "connector"],
)  # fmt: skip
def test_auth_is_refused_for_non_http_targets(target: Any) -> None:
    with pytest.raises(MisuseError, match="auth= is for addresses"):
        Client(target, auth="token")


def test_blocking_client_supports_auth() -> None:
    async def address() -> None:
        async with guarded() as url:
            told.append(url)
            await asyncio.to_thread(ask)

    def ask() -> None:
        with BlockingClient(told[0], auth="good") as client:
            said.append(client.call_tool("whoami").text)

    told: list[str] = []
    said: list[str] = []
    asyncio.run(address())
    assert said == ["ada"]


# --- errors for the caller -------------------------------------------------------------------------


@pytest.mark.parametrize("revision", ["2025-11-25", None])
async def test_failed_login_while_opening_is_raised_once(revision: str | None) -> None:
    person = DenyingUser()
    async with servers() as there:
        with pytest.raises(AuthorizationFailed, match="the login was not completed") as failed:
            await Client(there.url, auth=person.oauth(there), revision=revision).open()
    assert (failed.value.hop, failed.value.clause, person.asked) == ("authorization", "a rule", 1)
    assert failed.value.step is not None


@pytest.mark.parametrize("revision", ["2025-11-25", None])
async def test_invalid_metadata_is_reported_with_hop_and_clause(revision: str | None) -> None:
    async with servers() as there:
        there.world.resource["resource"] = "https://evil.example/mcp"
        with pytest.raises(AuthorizationFailed, match=r"is for 'https://evil\.example/mcp'") as failed:
            await Client(there.url, auth=there.oauth(), revision=revision).open()
        assert there.visits == []
    assert (failed.value.hop, failed.value.clause.partition(";")[0]) == ("resource-metadata", "RFC 9728, section 3.3")


@pytest.mark.row("AUT-21")
async def test_unauthorized_call_raises_and_connection_stays() -> None:
    async with servers() as there:
        there.needs = {"write": {"write"}}
        there.grants = lambda _: "notes"
        async with Client(there.url, auth=there.oauth(), revision="2025-11-25") as client:
            with pytest.raises(AuthorizationFailed) as failed:
                await client.call_tool("write")
            assert failed.value.hop == "retry"
            assert (await client.call_tool("read")).text == "read"
            assert client.phase is Phase.READY


async def test_permanent_403_is_a_peer_error() -> None:
    async with servers() as there:
        serve = there.serve
        there.world.pages["POST /mcp"] = lambda asked: Page(403) if b"tools/call" in asked.body else serve(asked)
        async with Client(there.url, auth=there.oauth(), revision="2025-11-25") as client:
            with pytest.raises(PeerError, match="403"):
                await client.call_tool("read")


async def test_concurrent_calls_share_login_and_step_up() -> None:
    async with servers() as there:
        there.needs = {"write": {"write"}}
        async with Client(there.url, auth=there.oauth(), revision="2025-11-25") as client:
            said = await asyncio.gather(*(client.call_tool("write") for _ in range(10)))
            assert [one.text for one in said] == ["read"] * 10
        assert [visit["scope"] for visit in there.visits] == ["notes", "notes write"]


async def test_errors_and_logs_have_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    async with servers() as there:
        async with Client(there.url, auth=there.oauth(), revision="2025-11-25") as client:
            await client.call_tool("read")
            there.now += 10_000
            there.world.pages[TOKEN] = Page(400, {"error": "server_error"})
            with pytest.raises(AuthorizationFailed) as failed:
                await client.call_tool("read")
        secrets = [
            *there.tokens,
            *(form["code"] for form in there.exchanges[:1]),
            *(form["code_verifier"] for form in there.exchanges[:1]),
        ]
        told = repr(failed.value) + caplog.text
    assert [one for one in secrets if one in told] == []


# --- deadlines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", ["2025-11-25", None])
async def test_login_pauses_timeout_while_connecting(revision: str | None) -> None:
    clock = ManualClock()
    async with servers() as there:
        person = SlowUser(there)
        opening = asyncio.create_task(Client(there.url, auth=person.oauth(), revision=revision, clock=clock).open())
        await person.arrived.wait()
        for _ in range(10):
            clock.advance(60)
            await asyncio.sleep(0)
        assert not opening.done()
        person.agrees.set()
        client = await opening
        assert client.initialized
        await client.close()
        assert len(there.visits) == 1


async def test_login_pauses_timeout_of_a_call() -> None:
    clock = ManualClock()
    async with servers() as there:
        there.needs = {"write": {"write"}}
        person = SlowUser(there)
        person.agrees.set()
        async with Client(there.url, auth=person.oauth(), revision="2025-11-25", clock=clock) as client:
            person.agrees.clear()
            person.arrived.clear()
            call = asyncio.create_task(client.call_tool("write", timeout=5))
            await person.arrived.wait()
            clock.advance(600)
            await asyncio.sleep(0)
            assert not call.done()
            person.agrees.set()
            assert (await call).text == "read"


async def test_closed_client_ends_the_login() -> None:
    async with servers() as there:
        person = SlowUser(there)
        client = Client(there.url, auth=person.oauth(), revision="2025-11-25")
        opening = asyncio.create_task(client.open())
        await person.arrived.wait()
        await client.close()
        assert person.left
        with pytest.raises(TransportError):
            await opening


# --- lost connections ------------------------------------------------------------------------------


async def test_reconnect_logs_in_once() -> None:
    person = DenyingUser()
    failures: list[Exception] = []
    async with servers() as there:
        store, serve, gone = MemoryTokens(), there.serve, False

        def with_session(asked: RecordedRequest) -> Page:
            if gone and asked.headers.get("mcp-session-id") == "s":
                return Page(404)
            page, method = serve(asked), json.loads(asked.body)["method"]
            return page._replace(headers={**page.headers, "Mcp-Session-Id": "s"}) if method == "initialize" else page

        there.world.pages["POST /mcp"] = with_session
        async with Client(there.url, auth=there.oauth(store=store), revision="2025-11-25"):
            pass  # the user has logged in once
        client = Client(
            there.url, auth=person.oauth(there, store=store), revision="2025-11-25", on_failed=failures.append
        )
        async with client:
            await client.call_tool("read")
            gone = True
            there.tokens.clear()
            there.forget_refresh_tokens()
            with pytest.raises(AuthorizationFailed, match="the login was not completed"):
                await client.call_tool("read")
            assert person.asked == 1
            with pytest.raises(AuthorizationFailed):
                await client.call_tool("read")
    assert [type(error) for error in failures] == [AuthorizationFailed]
    assert person.asked == 1


async def test_credentials_do_not_follow_cross_origin_redirect() -> None:
    async with servers() as there:
        serve, elsewhere = there.serve, there.world.url.replace("127.0.0.1", "localhost")

        def misleading(asked: RecordedRequest) -> Page:
            page = serve(asked)
            return (
                Page(307, None, {"Location": elsewhere}) if page.status == 200 and b"tools/call" in asked.body else page
            )

        there.world.pages["POST /mcp"] = misleading
        async with Client(there.url, auth=there.oauth(), revision="2025-11-25") as client:
            before = len(there.came)
            with pytest.raises(PeerError, match="another origin"):
                await client.call_tool("read")
            calls = [method for method, _ in there.came[before:] if method == "tools/call"]
        assert calls == ["tools/call"]


@pytest.mark.row("AUT-06")
async def test_challenge_of_a_call_names_metadata() -> None:
    async with servers() as there:
        there.world.pages["GET /meta"] = there.world.pages.pop(RESOURCE)
        there.world.challenge = f'Bearer resource_metadata="{there.world.origin}/meta"'
        async with Client(there.url, auth=there.oauth(), revision="2025-11-25") as client:
            assert (await client.call_tool("read")).text == "read"
