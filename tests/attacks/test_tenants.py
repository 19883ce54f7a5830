"""Many principals on one server: nothing of one principal is visible to another, however much they share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.attacks import websocket_frames
from tests.attacks.attacked_server import EPOCH, AttackedServer, protected
from tests.attacks.fake_internet import OTHER_KEY, Issuer, issuer, page
from tests.attacks.raw import (
    INITIALIZED,
    Answer,
    Caller,
    ask,
    begin,
    call,
    initialize,
    request,
    text_of,
    tool,
    until,
)
from tests.modern import EVERYTHING, headers_of, meta

from trunkline import Context, Server
from trunkline.auth import Jwt, ResourceServer, StaticTokens
from trunkline.errors import ConfigError, MisuseError

US = "https://mcp.example/mcp"
NOW = EPOCH + 1000
NOT_FOUND = (404, "session_not_found")


@dataclass
class Sure:
    sure: bool


class TenantServer:
    """A server, and principals with tokens for it."""

    def __init__(self, place: AttackedServer, home: Issuer, abroad: Issuer) -> None:
        self.place = place
        self.port = place.port
        self.home = home
        self.ada = home.token(US, scope="notes secret")
        self.bob = home.token(US, sub="bob", scope="notes secret")
        self.ada_abroad = abroad.token(US, key=OTHER_KEY, scope="notes secret")
        self.ada_by_another = home.token(US, client_id="other", scope="notes secret")
        self.ada_with_less = home.token(US, scope="notes", jti="less")
        self.ada_later = home.token(US, scope="notes secret", jti="another token")

    async def modern(self, token: str, method: str, **params: Any) -> Answer:
        """A modern request without a session."""
        asked = {**params, "_meta": meta(EVERYTHING)}
        return await ask(self.port, "POST", "/mcp", call(method, asked), **headers_of(method, asked), **bearer(token))

    async def stolen(self, session: str, token: str) -> list[tuple[int, Any]]:
        """The responses to a stolen session id, for each way to use it."""
        found: list[tuple[int, Any]] = []
        for method, body, more in (
            ("POST", tool("effect", what="stolen"), {}),
            ("GET", None, {}),
            ("GET", None, {"last_event_id": "0-0"}),
            ("GET", None, {"last_event_id": "1-0"}),
            ("DELETE", None, {}),
        ):
            async with Caller(self.port) as caller:
                caller.say(request(method, "/mcp", body, mcp_session_id=session, **more, **bearer(token)))
                answer = await caller.head()
                assert answer.status >= 400, f"{method} was let in"
                answer.body = await caller.exactly(int(answer.headers["content-length"]))
                found.append((answer.status, answer.refusal["data"]["kind"]))
        return found


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def tenants(**settings: Any) -> AsyncIterator[TenantServer]:
    async with issuer() as home, issuer() as abroad:
        abroad.site.pages["/jwks"] = page({"keys": [OTHER_KEY.public]})
        verifiers = (Jwt(home.name, leeway=0), Jwt(abroad.name, leeway=0))
        async with protected(*verifiers, public_url=US, scopes=["notes"], settings=settings) as place:
            add_entries(place)
            yield TenantServer(place, home, abroad)


def add_entries(place: AttackedServer) -> None:
    server = place.server

    @server.tool
    async def pay(amount: int, ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", Sure, key="sure")
        return f"{ctx.principal.subject} paid {amount}: {answer.action}"

    @server.tool(scopes=["secret"])
    def secret() -> str:
        place.done.append("secret")
        return "secret"

    @server.tool(allow=lambda ctx: ctx.principal.subject == "bob")
    def for_bob() -> str:
        place.done.append("for_bob")
        return "for Bob"

    server.add_resource("x:secret", "secret", scopes=["secret"])
    server.add_resource("x:open", "open")

    @server.prompt(scopes=["secret"])
    def letter(to: str) -> str:
        return f"a letter to {to}"

    @server.completion(prompt="letter", argument="to")
    def to(value: str) -> list[str]:
        return [f"{value}nswer to all"]


# --- sessions ----------------------------------------------------------------------------------------


async def session_is_not_for(one: TenantServer, thief: str) -> None:
    """Ada has a session, and another principal has its id."""
    session = await begin(one.port, **bearer(one.ada))
    assert await one.stolen(session, thief) == [NOT_FOUND] * 5
    assert one.place.done == []
    for token in (one.ada, one.ada_later):
        mine = await ask(one.port, "POST", "/mcp", tool("effect", what="x"), mcp_session_id=session, **bearer(token))
        assert text_of(mine.json) == "x"


async def test_users_of_one_client_do_not_share_a_session() -> None:
    async with tenants() as one:
        await session_is_not_for(one, one.bob)


async def test_same_subject_at_another_issuer_is_another_principal() -> None:
    async with tenants() as one:
        await session_is_not_for(one, one.ada_abroad)


async def test_same_user_with_another_client_has_other_sessions() -> None:
    async with tenants() as one:
        await session_is_not_for(one, one.ada_by_another)


async def test_stream_url_is_useless_to_another_user() -> None:
    async with tenants() as one, Caller(one.port) as ada:
        ada.say(request("GET", "/sse", None, **bearer(one.home.token("https://mcp.example/sse", scope="notes"))))
        assert (await ada.head()).status == 200
        path = await anext(ada.messages())
        thief = one.home.token("https://mcp.example/sse", sub="bob", scope="notes")
        stolen = await ask(one.port, "POST", path, initialize(), **bearer(thief))
        assert (stolen.status, stolen.refusal["data"]["kind"]) == NOT_FOUND


async def test_session_id_is_no_authentication() -> None:
    async with tenants() as one:
        ending = one.home.token(US, scope="notes", exp=NOW + 10)
        session = await begin(one.port, **bearer(ending))
        for credentials in ({}, bearer("x.y.z"), {"authorization": "Basic YTpi"}, {"authorization": "Bearer"}):
            for method, body in (("POST", tool("effect", what="x")), ("GET", None), ("DELETE", None)):
                async with Caller(one.port) as caller:
                    caller.say(request(method, "/mcp", body, mcp_session_id=session, **credentials))
                    assert (await caller.head()).status in {400, 401}, (method, credentials)
        one.place.clock.advance(20)
        over = await ask(one.port, "POST", "/mcp", tool("effect", what="x"), mcp_session_id=session, **bearer(ending))
        assert (over.status, over.refusal["data"]["kind"]) == (401, "token_expired")
        assert one.place.done == []
        renewed = bearer(one.home.token(US, scope="notes", exp=NOW + 1000))
        mine = await ask(one.port, "POST", "/mcp", tool("effect", what="x"), mcp_session_id=session, **renewed)
        assert text_of(mine.json) == "x"


# --- stream connections ------------------------------------------------------------------------------


async def test_websocket_needs_a_token_for_its_audience() -> None:
    async with tenants() as one:
        foreign = one.home.token("https://other.example/mcp", scope="notes")
        unscoped = one.home.token(US)
        tries = [({}, 401), (bearer(foreign), 401), (bearer("x"), 401), (bearer(unscoped), 403), (bearer(one.ada), 101)]
        for headers, status in tries:
            async with Caller(one.port) as caller:
                caller.say(websocket_frames.upgrade("/mcp", **headers))
                assert (await caller.head()).status == status
        async with Caller(one.port) as caller:  # a page cannot set headers, and a token in the URL does not count
            caller.say(websocket_frames.upgrade(f"/mcp?access_token={one.ada}"))
            assert (await caller.head()).status == 400


async def test_open_streams_end_with_their_token() -> None:
    async with tenants() as one:
        token = one.home.token([US, "https://mcp.example/sse"], scope="notes", exp=NOW + 50)
        mine = bearer(token)
        session = await begin(one.port, **mine)
        listen = {"notifications": {"toolsListChanged": True}, "_meta": meta()}
        asked = headers_of("subscriptions/listen", listen)
        begun = call("tools/call", {"name": "begin", "arguments": {}, "_meta": {"progressToken": 1}})
        opening = {
            "the stream of a session": request("GET", "/mcp", None, mcp_session_id=session, **mine),
            "what is listened to": request("POST", "/mcp", call("subscriptions/listen", listen), **asked, **mine),
            "HTTP+SSE": request("GET", "/sse", None, **mine),
            "an answer by events": request("POST", "/mcp", begun, mcp_session_id=session, **mine),
            "a WebSocket": websocket_frames.upgrade("/mcp", **mine),
        }
        callers = {name: Caller(one.port) for name in opening}
        for name, caller in callers.items():
            await caller.__aenter__()
            caller.say(opening[name])
            assert (await caller.head()).status in {200, 101}, name
        websocket_frames.say(callers["a WebSocket"], initialize())
        assert "result" in await websocket_frames.message(callers["a WebSocket"])
        await until(lambda: "begin" in one.place.started, "the call")
        one.place.clock.advance(51)
        for name, caller in callers.items():
            if name == "a WebSocket":
                await websocket_frames.closed_with(caller)
            else:
                async for _ in caller.pieces():
                    pass
            await caller.__aexit__()


# --- handles -----------------------------------------------------------------------------------------


async def test_state_is_useless_to_another_user() -> None:
    async with tenants() as one:
        asked: dict[str, Any] = {"name": "pay", "arguments": {"amount": 1}}
        state = (await one.modern(one.ada, "tools/call", **asked)).json["result"]["requestState"]
        answers = {"sure": {"action": "accept", "content": {"sure": True}}}
        more = {**asked, "requestState": state, "inputResponses": answers}
        for thief in (one.bob, one.ada_abroad, one.ada_by_another):
            refused = (await one.modern(thief, "tools/call", **more)).refusal
            assert refused["data"]["kind"] == "invalid_request_state"
        assert text_of((await one.modern(one.ada_later, "tools/call", **more)).json) == "ada paid 1: accept"


async def test_cursor_is_useless_to_another_user() -> None:
    async with tenants(page_size=1) as one:
        for method in ("tools/list", "resources/list"):
            cursor = (await one.modern(one.ada, method)).json["result"]["nextCursor"]
            for thief in (one.bob, one.ada_abroad, one.ada_by_another):
                assert (await one.modern(thief, method, cursor=cursor)).refusal["code"] == -32602
            assert "result" in (await one.modern(one.ada_later, method, cursor=cursor)).json


# --- limits per principal ----------------------------------------------------------------------------


async def test_filtered_lists_are_not_cached_across_users() -> None:
    async with tenants() as one:
        for method in ("tools/list", "resources/list", "prompts/list"):
            seen = [(await one.modern(token, method)).json["result"] for token in (one.ada, one.ada_with_less, one.bob)]
            assert {result["cacheScope"] for result in seen} == {"private"}, method
            assert len({str(result) for result in seen}) > 1, method
        read = (await one.modern(one.ada, "resources/read", uri="x:secret")).json["result"]
        assert read["cacheScope"] == "private"


async def listed_by(one: TenantServer, token: str) -> set[str]:
    return {entry["name"] for entry in (await one.modern(token, "tools/list")).json["result"]["tools"]}


async def test_uncallable_tools_are_not_listed() -> None:
    async with tenants() as one:
        for token in (one.ada, one.ada_with_less, one.bob):
            callable_: set[str] = set()
            for name in ("secret", "for_bob"):
                answer = await one.modern(token, "tools/call", name=name)
                if answer.status == 200 and not answer.json["result"].get("isError"):
                    callable_.add(name)
            assert await listed_by(one, token) & {"secret", "for_bob"} == callable_
        assert await listed_by(one, one.ada_with_less) & {"secret", "for_bob"} == set()


async def test_session_grants_nothing_beyond_the_request_token() -> None:
    async with tenants() as one:
        session = await begin(one.port, **bearer(one.ada))
        mine = {"mcp_session_id": session, **bearer(one.ada_with_less)}
        reading = call("resources/read", {"uri": "x:secret"})
        writing = call("prompts/get", {"name": "letter", "arguments": {"to": "x"}})
        hearing = call("resources/subscribe", {"uri": "x:secret"})
        for body in (tool("secret"), reading, writing, hearing):
            answer = await ask(one.port, "POST", "/mcp", body, **mine)
            assert answer.status == 403, answer.body
            challenge = answer.headers["www-authenticate"]
            assert 'error="insufficient_scope"' in challenge
            assert 'scope="notes secret"' in challenge
        completing = {"ref": {"type": "ref/prompt", "name": "letter"}, "argument": {"name": "to", "value": "a"}}
        answers = [
            await ask(
                one.port,
                "POST",
                "/mcp",
                call("completion/complete", completing),
                mcp_session_id=session,
                **bearer(token),
            )
            for token in (one.ada, one.ada_with_less)
        ]
        assert ["answer to all" in answer.body.decode() for answer in answers] == [True, False]
        assert one.place.done == []


async def test_updates_of_unreadable_resources_are_not_sent() -> None:
    async with tenants() as one, Caller(one.port) as stream:
        wanted = {"notifications": {"resourceSubscriptions": ["x:secret", "x:open"]}, "_meta": meta()}
        asked = {**headers_of("subscriptions/listen", wanted), **bearer(one.ada_with_less)}
        stream.say(request("POST", "/mcp", call("subscriptions/listen", wanted), **asked))
        assert (await stream.head()).status == 200
        messages = stream.messages()
        await anext(messages)  # the server is listening
        one.place.server.notify_updated("x:secret")
        one.place.server.notify_updated("x:open")
        assert (await anext(messages))["params"]["uri"] == "x:open"


async def test_updates_stop_after_scopes_shrink() -> None:
    async with tenants() as one, Caller(one.port) as stream:
        opened = await ask(one.port, "POST", "/mcp", initialize(), **bearer(one.ada))
        full, less = ({"mcp_session_id": opened.session, **bearer(token)} for token in (one.ada, one.ada_with_less))
        await ask(one.port, "POST", "/mcp", INITIALIZED, **full)
        for uri in ("x:secret", "x:open"):
            assert (
                "result"
                in (await ask(one.port, "POST", "/mcp", call("resources/subscribe", {"uri": uri}), **full)).json
            )
        stream.say(request("GET", "/mcp", None, **less))
        assert (await stream.head()).status == 200
        await ask(one.port, "POST", "/mcp", call("ping"), **less)
        one.place.server.notify_updated("x:secret")
        one.place.server.notify_updated("x:open")
        heard = await anext(stream.messages())
        assert heard["params"]["uri"] == "x:open"


# --- secure defaults ---------------------------------------------------------------------------------


async def starts(server: Server, address: str = "http://127.0.0.1:0/mcp") -> bool:
    """Return whether a server starts without authentication."""
    try:
        await server.listen(address)
    except (ConfigError, MisuseError):
        return False
    finally:
        await server.aclose()
    return True


async def test_strict_server_rejects_entries_without_a_rule() -> None:
    offers: dict[str, Any] = {
        "a tool": lambda server, **rules: server.add_tool(lambda: "x", name="x", **rules),
        "a resource": lambda server, **rules: server.add_resource("x:y", "x", **rules),
        "a template": lambda server, **rules: server.add_resource("x:{y}", lambda y: y, **rules),
        "a prompt": lambda server, **rules: server.add_prompt("x", name="x", **rules),
    }
    for what, offer in offers.items():
        for rules, starting in (({}, False), ({"scopes": ()}, True), ({"scopes": ["a"]}, True)):
            server = Server("s", auth=ResourceServer(StaticTokens({}), strict=True))
            offer(server, **rules)
            assert await starts(server) is starting, (what, rules)


async def test_scoped_entries_need_an_authenticated_listener() -> None:
    for address in ("http://127.0.0.1:0/mcp", "tcp://127.0.0.1:0"):
        server = Server("s")
        server.add_tool(lambda: "x", name="x", scopes=["a"])
        assert not await starts(server, address), address
    server = Server("s", auth=ResourceServer(StaticTokens({})))
    assert not await starts(server, "tcp://127.0.0.1:0")  # no principal exists there
    assert await starts(server)
