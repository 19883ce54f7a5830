"""Authorization, server side: real listeners and whole applications, in both eras."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests import modern
from tests.contract.asgi import asgi_server
from tests.limits import PATIENCE
from tests.unit.auth.server.issuer import Issuer, bearer, running_issuer
from tests.unit.transports.http.asgi import Answer, Host, call, hosted, request
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from trunkline import Context, Server, Settings
from trunkline.auth import Jwt, Principal, ResourceServer, StaticTokens
from trunkline.auth.challenge import Challenge, parse_challenges
from trunkline.auth.fetch import Egress
from trunkline.auth.ssrf import EgressPolicy
from trunkline.errors import ConfigError, InsufficientScope, MisuseError
from trunkline.testing import ManualClock

WELL_KNOWN = "/.well-known/oauth-protected-resource"
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
TOKENS = {"ada": Principal("ada", scopes=("notes",)), "eve": Principal("eve", scopes=("notes",))}


def notes(auth: ResourceServer | None = None, **options: Any) -> Server:
    server = Server("notes", auth=auth, **options)

    @server.tool
    async def whoami(context: Context) -> str:
        return context.principal.subject

    @server.tool
    async def write() -> str:
        raise InsufficientScope("tool 'write'", ["notes:write"])

    @server.tool
    async def tells(context: Context) -> str:
        context.progress(1)
        raise InsufficientScope("tool 'tells'", ["notes:write"])

    @server.tool
    async def waits(context: Context) -> str:
        context.progress(1)
        await asyncio.Event().wait()
        return "done"

    return server


def challenge(header: str) -> Challenge:
    found = parse_challenges(header)
    assert len(found) == 1
    return found[0]


@asynccontextmanager
async def guarded(issuer: Issuer, **options: Any) -> AsyncIterator[tuple[Host, ManualClock]]:
    """A server that accepts the tokens of an issuer, and its clock."""
    clock = ManualClock()
    gate = ResourceServer(Jwt(issuer.url), now=issuer.wall).within("/")
    async with hosted(notes(clock=clock, **options), clock=clock, gate=gate) as host:
        yield host, clock


async def session(host: Host, token: str) -> str:
    opened = await host.ask("POST", request("initialize", INITIALIZE), authorization=token)
    ident = opened.headers["mcp-session-id"]
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await host.ask("POST", told, authorization=token, mcp_session_id=ident)).status == 202
    return ident


# --- real listeners -----------------------------------------------------------------------------------------------


async def fetched(url: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
    """Send a request with a third-party HTTP library."""
    egress = Egress(EgressPolicy(loopback=True))
    if body is None:
        answer = await egress.get(url, hop="server", headers=headers)
    else:
        answer = await egress.post(url, json.dumps(body).encode(), hop="server", headers={**HEADERS, **headers})
    return answer.status, {name.lower(): value for name, value in answer.headers.items()}, json.loads(answer.body)


async def followed(url: str, token: str, audience: str) -> None:
    """Follow the challenge of a server to its metadata, and connect with a token for the resource that it names."""
    status, headers, _ = await fetched(url, request("initialize", INITIALIZE))
    assert status == 401
    status, _, metadata = await fetched(challenge(headers["www-authenticate"]).params["resource_metadata"])
    assert (status, metadata["resource"]) == (200, audience)
    status, _, answer = await fetched(url, request("initialize", INITIALIZE), authorization=bearer(token))
    assert (status, answer["result"]["serverInfo"]["name"]) == (200, "notes")


@pytest.mark.row("AUT-03", "AUT-04")
@pytest.mark.parametrize("path", ["", "/mcp", "/deep/mcp"])
async def test_listener_publishes_metadata_and_accepts_its_tokens(path: str) -> None:
    async with running_issuer() as issuer:
        server = notes(ResourceServer(Jwt(issuer.url), now=issuer.wall))
        place = (await server.listen(f"http://127.0.0.1:0{path}")).address
        resource = place.rstrip("/")
        await followed(place, issuer.token(aud=resource), resource)
        await server.aclose()


@pytest.mark.row("AUT-04")
async def test_mounted_application_publishes_metadata() -> None:
    async with running_issuer() as issuer:
        app: Any = notes(ResourceServer(Jwt(issuer.url), now=issuer.wall)).asgi()
        async with asgi_server(Starlette(routes=[Mount("/tools", app=app)])) as (host, port):
            place = f"http://{host}:{port}/tools"
            await followed(f"{place}/", issuer.token(aud=place), place)
            await app.aclose()


@pytest.mark.row("SEC-01")
async def test_token_for_another_port_is_refused() -> None:
    async with running_issuer() as issuer:
        server = notes(ResourceServer(Jwt(issuer.url), now=issuer.wall))
        place = (await server.listen("http://127.0.0.1:0/mcp")).address
        stolen = bearer(issuer.token(aud="http://127.0.0.1:9/mcp"))
        asked = request("initialize", INITIALIZE)
        assert (await fetched(place, asked, authorization=stolen, host="127.0.0.1:9"))[0] == 401
        await server.aclose()


# --- access denied, in both eras --------------------------------------------------------------------------------------


def refused(answer: Answer) -> None:
    assert answer.status == 403
    data = answer.json["error"]["data"]
    assert (data["kind"], data["scopes"]) == ("authorization_failed", ["notes:write"])
    asked = challenge(answer.headers["www-authenticate"])
    assert asked.scheme == "bearer"
    assert asked.params == {
        "error": "insufficient_scope",
        "scope": "base notes:write notes",
        "resource_metadata": f"http://localhost:1{WELL_KNOWN}",
    }


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    known = Principal("ada", scopes=("notes", "base", "offline_access"))
    gate = ResourceServer(StaticTokens({"ada": known}), scopes=["base"]).within("/")
    async with hosted(notes(), gate=gate) as made:
        yield made


@pytest.mark.row("AUT-20")
async def test_missing_scope_gets_403_in_a_session(host: Host) -> None:
    ident = await session(host, bearer("ada"))
    refused(await host.ask("POST", call("write"), authorization=bearer("ada"), mcp_session_id=ident))


@pytest.mark.row("AUT-20")
async def test_missing_scope_gets_403_in_the_modern_era(host: Host) -> None:
    params = modern.enveloped(name="write", arguments={})
    refused(await modern.ask(host, "tools/call", params, authorization=bearer("ada")))


@pytest.mark.row("AUT-20")
async def test_missing_scope_gets_403_without_sessions() -> None:
    gate = ResourceServer(StaticTokens({"ada": Principal("ada", scopes=("notes", "base"))}), scopes=["base"]).within(
        "/"
    )
    async with hosted(notes(settings=Settings(http_sessions=False)), gate=gate) as host:
        refused(await host.ask("POST", call("write"), authorization=bearer("ada")))


async def test_missing_scope_in_a_stream_is_an_error_event(host: Host) -> None:
    params = modern.enveloped(name="tells", arguments={}, _meta={"progressToken": "p"})
    answer = await modern.begin(host, "tools/call", params, authorization=bearer("ada")).finished()
    assert answer.status == 200
    assert (await answer.message())["method"] == "notifications/progress"
    assert (await answer.message())["error"]["data"]["kind"] == "authorization_failed"


async def test_missing_scope_is_reported_without_token_authentication() -> None:
    async with hosted(notes()) as host:
        host.principal = "ada"
        ident = await host.session()
        answer = await host.ask("POST", call("write"), mcp_session_id=ident)
        assert answer.status == 403
        assert challenge(answer.headers["www-authenticate"]).params["scope"] == "notes:write"


# --- expiry -----------------------------------------------------------------------------------------------------------


async def test_session_stream_ends_with_its_token_and_resumes() -> None:
    async with running_issuer() as issuer, guarded(issuer) as (host, clock):
        token = bearer(issuer.token(exp=issuer.wall() + 60))
        ident = await session(host, token)
        stream = host.begin("GET", authorization=token, mcp_session_id=ident)
        last = (await stream.event()).id
        clock.advance(89)
        assert not stream.ended
        clock.advance(1)
        assert (await stream.finished()).ended
        issuer.wall.advance(90)
        again = await host.ask("GET", authorization=token, mcp_session_id=ident, last_event_id=last)
        assert (again.status, again.json["error"]["data"]["kind"]) == (401, "token_expired")
        fresh = bearer(issuer.token())
        going_on = host.begin("GET", authorization=fresh, mcp_session_id=ident, last_event_id=last)
        host.server.add_tool(lambda: None, name="new")
        clock.advance(1)
        assert (await going_on.message())["method"] == "notifications/tools/list_changed"
        going_on.gone.set()
        await going_on.finished()


async def test_slow_response_resumes_with_another_token() -> None:
    async with running_issuer() as issuer, guarded(issuer) as (host, clock):
        token = bearer(issuer.token(exp=issuer.wall() + 60))
        ident = await session(host, token)
        answer = host.begin("POST", call("waits", token="p"), authorization=token, mcp_session_id=ident)
        assert (await answer.message())["method"] == "notifications/progress"
        clock.advance(90)
        assert (await answer.finished()).ended
        assert len(host.endpoint.sessions) == 1


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "waits", "arguments": {}, "_meta": {"progressToken": "p"}}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": True}}),
    ],
    ids=["a call", "a subscription"],
)
async def test_modern_stream_ends_with_its_token(method: str, params: dict[str, Any]) -> None:
    async with running_issuer() as issuer, guarded(issuer) as (host, clock):
        token = bearer(issuer.token(exp=issuer.wall() + 60))
        answer = modern.begin(host, method, modern.enveloped(**params), authorization=token)
        await answer.message()
        clock.advance(89)
        assert not answer.ended
        clock.advance(1)
        assert (await answer.finished()).ended


async def test_http_sse_ends_with_the_token_of_its_stream() -> None:
    patient = Settings(initialize_timeout=None)
    async with running_issuer() as issuer, guarded(issuer, settings=patient) as (host, clock):
        token = bearer(issuer.token(aud="http://localhost:1/sse", exp=issuer.wall() + 60))
        stream = host.begin("GET", path="/sse", authorization=token)
        assert (await stream.event()).kind == "endpoint"
        assert (await host.ask("GET", path="/sse", authorization=bearer(issuer.token()))).status == 401
        clock.advance(89)
        assert len(host.server.connections) == 1
        clock.advance(1)
        assert (await stream.finished()).ended
        assert host.server.connections == []


# --- WebSocket --------------------------------------------------------------------------------------------------------


async def test_websocket_without_token_gets_the_same_challenge(caplog: pytest.LogCaptureFixture) -> None:
    server = notes(ResourceServer(StaticTokens(TOKENS), scopes=["notes"]))
    place = (await server.listen("http://127.0.0.1:0/mcp")).address
    with pytest.raises(InvalidStatus) as caught:
        await connect(place.replace("http", "ws"))
    answer = caught.value.response
    assert answer.status_code == 401
    params = challenge(answer.headers["www-authenticate"]).params
    assert params == {"scope": "notes", "resource_metadata": place.replace("/mcp", f"{WELL_KNOWN}/mcp")}
    await server.aclose()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_websocket_belongs_to_its_principal_until_expiry() -> None:
    clock = ManualClock()
    async with running_issuer() as issuer:
        server = notes(ResourceServer(Jwt(issuer.url), now=issuer.wall), clock=clock)
        place = (await server.listen("http://127.0.0.1:0/mcp")).address
        token = bearer(issuer.token(aud=place, exp=issuer.wall() + 60))
        async with connect(place.replace("http", "ws"), additional_headers={"authorization": token}) as socket:
            await socket.send(json.dumps(request("initialize", INITIALIZE)))
            await socket.recv()
            await socket.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            await socket.send(json.dumps(call("whoami", id=2)))
            assert json.loads(await socket.recv())["result"]["content"][0]["text"] == "ada"
            clock.advance(90)
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(ConnectionClosed) as caught:
                    await socket.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1008
        await server.aclose()


# --- Server(auth=…) ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "unix:///tmp/never-made.sock"])
async def test_auth_needs_a_transport_with_tokens(address: str) -> None:
    server = notes(ResourceServer(StaticTokens(TOKENS)))
    with pytest.raises(ConfigError, match="has no authentication"):
        await server.listen(address)
    await server.aclose()


async def test_wildcard_listener_needs_public_url() -> None:
    server = notes(ResourceServer(StaticTokens(TOKENS)))
    with pytest.raises(ConfigError, match="public_url"):
        await server.listen("http://0.0.0.0:0/mcp")
    await server.aclose()


def test_identify_and_auth_exclude_each_other() -> None:
    with pytest.raises(MisuseError, match="identify= is for servers without"):
        notes(ResourceServer(StaticTokens(TOKENS))).asgi(identify=lambda _: "ada")


@pytest.mark.row("PROMISE-12")
async def test_strict_server_needs_access_rules() -> None:
    server = Server("strict", auth=ResourceServer(StaticTokens(TOKENS), strict=True))
    server.add_tool(lambda: None, name="said", scopes=["notes"])
    server.add_tool(lambda: None, name="open", scopes=())
    await server.start()
    server.add_tool(lambda: None, name="silent")
    with pytest.raises(MisuseError, match="tool 'silent'"):
        await server.start()
    await server.aclose()
