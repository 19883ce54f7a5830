"""Methods outside of the specification: requests and notifications in both directions, in both eras."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.modern import enveloped
from tests.unit.transports.http.asgi import hosted

from trunkline import Call, Client, Context, ProtocolError, Server, Settings
from trunkline.auth import Principal
from trunkline.client.blocking import BlockingClient
from trunkline.client.host_callbacks import CallbackContext
from trunkline.errors import (
    BadAnswer,
    DuplicateEntry,
    MisuseError,
    PeerError,
    RegistrationError,
    RequestTimeout,
    ToolFailed,
    WrongPhase,
)
from trunkline.facts import Dropped, HandlerFailed
from trunkline.server.input.ask import ClientLacksCapability
from trunkline.testing import RawPeer, RecordingObserver, ScriptedServer

ERAS = ["2024-11-05", "2025-11-25", "2026-07-28"]
RESERVED = ["tools/dance", "notifications/changed", "notifications/tools/danced"]
every_era = pytest.mark.parametrize("revision", ERAS)


@dataclass
class Point:
    x: int
    y: int = 0


def make_server(**options: Any) -> Server:
    server = Server("t", observers=options.pop("observers", []), **options)

    @server.method("acme/move")
    async def move(point: Point, by: int = 1) -> Point:
        return Point(point.x + by, point.y)

    @server.method("acme/where")
    def where(ctx: Context) -> dict[str, Any]:
        return {"method": ctx.method, "thread": threading.current_thread() is not threading.main_thread()}

    return server


@asynccontextmanager
async def connected(server: Server, transport: str, revision: str, **options: Any) -> AsyncIterator[Client]:
    if transport == "memory":
        async with Client(server, revision=revision, **options) as client:
            yield client
        return
    listener = await server.listen("http://127.0.0.1:0/mcp")
    try:
        async with Client(listener.address, revision=revision, **options) as client:
            yield client
    finally:
        await server.aclose()


every_transport = pytest.mark.parametrize("transport", ["memory", "http"])


# --- requests to a server --------------------------------------------------------------------------


@pytest.mark.row("B07")
@every_era
@every_transport
async def test_request_is_answered_with_typed_params_and_result(revision: str, transport: str) -> None:
    async with connected(make_server(), transport, revision) as client:
        assert client.revision == revision
        moved = await client.request("acme/move", {"point": {"x": 1}, "by": 2, "unknown": 5}, returns=Point)
        assert moved == Point(3)
        assert await client.request("acme/move", {"point": {"x": 1}}) == {"x": 2, "y": 0}
        assert await client.request("acme/where") == {"method": "acme/where", "thread": True}


@every_era
async def test_faulty_request_is_refused_with_a_reason(revision: str) -> None:
    async with Client(make_server(), revision=revision) as client:
        with pytest.raises(PeerError, match=r"params of acme/move: .*point") as refused:
            await client.request("acme/move", {"by": 2})
        assert refused.value.code == -32602
        with pytest.raises(PeerError) as refused:
            await client.request("acme/nothing")
        assert refused.value.code == -32601
        with pytest.raises(BadAnswer, match="acme/where"):
            await client.request("acme/where", returns=Point)
        with pytest.raises(MisuseError, match="expected a mapping"):
            await client.request("acme/where", [1])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [5, "text", [1], object()])
async def test_result_must_be_an_object(value: Any) -> None:
    observer = RecordingObserver()
    server = make_server(observers=[observer])
    server.method("acme/odd")(lambda: value)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.error("acme/odd"))["code"] == -32603
    assert "method 'acme/odd'" in str(observer.of(HandlerFailed)[0].error)


async def test_result_may_have_metadata() -> None:
    server = make_server()
    server.method("acme/meta")(lambda: {"a": 1, "_meta": {"mine": 2}})
    server.method("acme/none")(lambda: None)
    async with RawPeer(server) as peer:
        modern = await peer.result("acme/meta", enveloped())
        assert (modern["resultType"], modern["a"], modern["_meta"]["mine"]) == ("complete", 1, 2)
        await peer.initialize()
        assert await peer.result("acme/meta") == {"a": 1, "_meta": {"mine": 2}}
        assert await peer.result("acme/none") == {}
    for revision in ERAS[1:]:
        async with Client(server, revision=revision) as client:
            assert await client.request("acme/meta") == {"a": 1, "_meta": {"mine": 2}}


async def test_extra_params_go_to_a_function_that_takes_them() -> None:
    server = make_server()
    server.method("acme/all")(lambda **members: members)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert await peer.result("acme/all", {"a": 1, "_meta": {"progressToken": 1}}) == {"a": 1}


@every_era
async def test_request_reports_progress_and_times_out(revision: str) -> None:
    server, seen, asked = make_server(), list[float](), asyncio.Event()

    @server.method("acme/slow", timeout=0.05)
    async def slow(ctx: Context) -> None:
        await ctx.progress(0.5)
        await asked.wait()

    async with Client(server, revision=revision) as client:
        with pytest.raises(PeerError, match="was not done after") as late:
            await client.request("acme/slow", on_progress=lambda told: seen.append(told.progress))
        assert late.value.data["kind"] == "request_timeout"
        with pytest.raises(RequestTimeout):
            await client.request("acme/slow", timeout=0.001)
    assert seen == [0.5]


async def test_requests_count_against_the_call_limit() -> None:
    server, running, most = make_server(settings=Settings(max_calls=1)), 0, 0

    @server.method("acme/turn")
    async def turn() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async with RawPeer(server) as peer:
        await peer.initialize()
        idents = [peer.call("acme/turn") for _ in range(3)]
        for ident in idents:
            assert (await peer.answer_to(ident))["result"] == {}
    assert most == 1


async def test_request_before_the_handshake_is_refused() -> None:
    async with RawPeer(make_server()) as peer:
        assert (await peer.error("acme/where"))["data"]["kind"] == "server_not_initialized"
        assert (await peer.result("acme/where", enveloped()))["method"] == "acme/where"


async def test_notification_method_is_no_request_and_the_reverse() -> None:
    observer = RecordingObserver()
    server = make_server(observers=[observer])
    server.notification("acme/told")(lambda: None)
    async with RawPeer(server) as peer:
        assert (await peer.error("acme/told", enveloped()))["code"] == -32601
        await peer.initialize()
        assert (await peer.error("acme/told"))["code"] == -32601
        peer.notify("acme/where")
        await peer.result("ping")
    assert [fact.kind for fact in observer.of(Dropped)][-1:] == ["unknown_notification"]


# --- access, middleware and registration --------------------------------------------------------------


async def test_access_rules_apply_before_middleware() -> None:
    server, seen = make_server(), list[str]()
    server.method("acme/secret", scopes=["admin"])(lambda: {"a": 1})
    server.method("acme/odd", allow=lambda ctx: False)(lambda: None)

    @server.middleware
    async def look(call: Call, following: Callable[[Call], Awaitable[Any]]) -> Any:
        seen.append(call.method)
        return {**await following(call), "seen": True}

    def principal(scope: dict[str, Any]) -> Principal:
        return Principal("p", scopes=frozenset(dict(scope["headers"]).get(b"scopes", b"").decode().split()))

    assert server.scoped() == ["method 'acme/secret'"]
    assert server.undeclared() == ["method 'acme/move'", "method 'acme/where'"]
    async with hosted(server) as host:
        host.app = server.asgi(identify=principal)
        session = await host.session()
        for scopes, name, code in (
            ("", "acme/secret", -32600),
            ("admin", "acme/secret", None),
            ("", "acme/odd", -32600),
        ):
            body = {"jsonrpc": "2.0", "id": 1, "method": name}
            answer = (await host.ask("POST", body, mcp_session_id=session, scopes=scopes)).json
            assert answer.get("error", {}).get("code") == code
    assert answer["error"]["message"]
    assert seen == ["acme/secret"]


async def test_middleware_must_return_an_object() -> None:
    server = make_server(expose_errors=True)

    @server.middleware
    async def spoil(call: Call, following: Any) -> Any:
        await following(call)
        return 5

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert "middleware answered acme/where with int" in (await peer.error("acme/where"))["message"]


@pytest.mark.parametrize(
    "name", ["tools/call", "sampling/createMessage", "notifications/message", "message", *RESERVED, "", 5, "rpc.x"]
)
def test_names_of_the_specification_are_refused(name: Any) -> None:
    server, client = make_server(), Client(make_server())
    for register in (server.method, server.notification):
        with pytest.raises(RegistrationError, match=r"method|reserved"):
            register(name)(lambda: None)
    with pytest.raises(MisuseError):
        client.method(name)(lambda: None)


def test_method_can_be_removed_and_has_one_handler() -> None:
    server, client = make_server(), Client(make_server())
    with pytest.raises(DuplicateEntry):
        server.method("acme/where")(lambda: None)
    assert repr(server.methods.get("acme/where")) == "MethodEntry('acme/where')"
    server.methods.remove("acme/where")
    assert server._catalog.find_custom_row("acme/where") is None
    with pytest.raises(RegistrationError, match="no option 'tmeout'"):
        server.method("acme/x", tmeout=1)(lambda: None)  # type: ignore[call-arg]
    client.method("acme/ask")(lambda: None)
    with pytest.raises(MisuseError, match="a handler of 'acme/ask' already"):
        client.method("acme/ask")(lambda: None)


# --- notifications to a server --------------------------------------------------------------------------


@every_era
@every_transport
async def test_client_notifies_a_server(revision: str, transport: str) -> None:
    server, seen = make_server(), asyncio.Queue[Any]()

    @server.notification("acme/changed")
    async def changed(ctx: Context, point: Point) -> None:
        seen.put_nowait((ctx.method, point))

    async with connected(server, transport, revision) as client, asyncio.timeout(PATIENCE):
        await client.notify("acme/changed", {"point": {"x": 1}})
        await client.notify("acme/nobody")
        assert await seen.get() == ("acme/changed", Point(1))
        await client.request("acme/where")


async def test_faults_of_a_notification_are_reported() -> None:
    observer = RecordingObserver()
    server = make_server(observers=[observer])
    server.notification("acme/changed", thread=False)(lambda point: 1 / 0)
    server.notification("acme/secret", scopes=["admin"], allow=lambda ctx: False)(lambda: None)
    async with RawPeer(server) as peer:
        await peer.initialize()
        peer.notify("acme/changed", {"point": 1})
        peer.notify("acme/changed", {})
        peer.notify("acme/secret")
        async with asyncio.timeout(PATIENCE):
            while len(observer.of(HandlerFailed)) < 3:
                await asyncio.sleep(0)
    kinds = {type(fact.error).__name__ for fact in observer.of(HandlerFailed)}
    assert kinds == {"ZeroDivisionError", "InvalidParams", "NotPermitted"}


async def test_hanging_notification_handler_is_stopped_at_its_deadline() -> None:
    observer, stopped = RecordingObserver(), asyncio.Event()
    server = make_server(observers=[observer])

    @server.notification("acme/slow", timeout=0.01)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @server.notification("acme/usual")
    async def usual() -> None:
        await asyncio.sleep(0)

    async with RawPeer(server) as peer:
        await peer.initialize()
        peer.notify("acme/usual")
        peer.notify("acme/slow")
        async with asyncio.timeout(PATIENCE):
            await stopped.wait()
        await peer.result("ping")
    assert [type(fact.error) for fact in observer.of(HandlerFailed)] == [RequestTimeout]


async def test_notifications_wait_for_their_turn() -> None:
    server, running, most, done = make_server(settings=Settings(max_calls=2)), 0, 0, asyncio.Queue[int]()

    @server.notification("acme/turn")
    async def turn(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.put_nowait(number)

    async with RawPeer(server) as peer, asyncio.timeout(PATIENCE):
        await peer.initialize()
        for number in range(10):
            peer.notify("acme/turn", {"number": number})
        assert [await done.get() for _ in range(10)] == list(range(10))
    assert most == 2


async def test_notifications_over_independent_requests_are_bounded() -> None:
    observer, go, ended = RecordingObserver(), asyncio.Event(), list[int]()
    server = make_server(observers=[observer], settings=Settings(max_connections=1, max_waiting=2))

    @server.notification("acme/turn")
    async def turn(number: int) -> None:
        await go.wait()
        ended.append(number)

    async with hosted(server) as host:
        for number in range(5):
            body = {"jsonrpc": "2.0", "method": "acme/turn", "params": {"number": number}}
            answer = await host.ask("POST", body, mcp_protocol_version="2026-07-28")
            assert answer.status == 202
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        assert (await host.ask("POST", cancelled, mcp_protocol_version="2026-07-28")).status == 202
        go.set()
        await server.aclose()
    assert ended == [0, 1, 2]
    assert [fact.kind for fact in observer.of(Dropped)] == ["notification_queue_full"] * 2


async def test_notification_without_handshake_needs_an_envelope() -> None:
    server, seen = make_server(), list[int]()
    server.notification("acme/told", thread=False)(seen.append)
    async with RawPeer(server) as peer:
        peer.notify("acme/told", {"object": 1})
        peer.notify("acme/told", {"object": 2} | enveloped())
        await peer.result("ping")
    assert seen == [2]


@every_era
async def test_client_refuses_notifications_that_cannot_be_sent(revision: str) -> None:
    client = Client(make_server(), revision=revision)
    with pytest.raises(MisuseError, match="not open"):
        await client.notify("acme/changed")
    async with client:
        for name in ("notifications/roots/list_changed", "tools/call", "rpc.x"):
            with pytest.raises(MisuseError):
                await client.notify(name)
        with pytest.raises(MisuseError, match="params of acme/changed"):
            await client.notify("acme/changed", {"a": object()})
        with pytest.raises(MisuseError, match="expected a mapping"):
            await client.notify("acme/changed", [1])  # type: ignore[arg-type]


def test_blocking_client_sends_requests_and_notifications() -> None:
    server, seen = make_server(), list[int]()
    server.notification("acme/told", thread=False)(seen.append)
    with BlockingClient(server) as client:
        client.notify("acme/told", {"object": 1})
        assert client.request("acme/move", {"point": {"x": 1}}, returns=Point) == Point(2)
    assert seen == [1]


# --- to a client ----------------------------------------------------------------------------------------


def telling_server() -> Server:
    server = make_server()

    @server.tool
    async def tell(ctx: Context) -> None:
        await ctx.notify("acme/changed", {"x": 1})
        await ctx.notify("acme/nobody")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str((await ctx.send_request("acme/ask", {"point": {"x": 1}}))["x"])

    return server


@pytest.mark.row("N07")
@every_era
@every_transport
async def test_client_handles_notifications_of_any_name(revision: str, transport: str) -> None:
    seen: list[Any] = []

    def with_name(method: str, params: dict[str, Any]) -> None:
        seen.append((method, params))

    async def typed(point: Point) -> None:
        seen.append(point)

    async with connected(telling_server(), transport, revision) as client:
        reader, every = client.notifications("acme/changed"), client.notifications()
        client.on("acme/changed", lambda params: seen.append(params["x"]))
        off = client.on("acme/changed", with_name)
        client.on("acme/changed", typed)
        assert len(client.notification_handlers["acme/changed"]) == 3
        await client.call_tool("tell")
        async with asyncio.timeout(PATIENCE):
            told = await anext(reader)
            assert (told.method, told.params["x"]) == ("acme/changed", 1)
            assert [(await anext(every)).method for _ in range(2)] == ["acme/changed", "acme/nobody"]
        off()
        await client.call_tool("tell")
        async with asyncio.timeout(PATIENCE):
            await anext(reader)
    assert sorted(map(str, seen)) == sorted(["1", "1", "('acme/changed', {'x': 1})", *["Point(x=1, y=0)"] * 2])


@pytest.mark.row("N07")
async def test_handler_of_two_parameters_gets_the_method_of_known_notifications() -> None:
    server, seen = make_server(tools=True, prompts=True), list[str]()
    async with Client(server, revision="2025-11-25") as client:
        for name in ("notifications/tools/list_changed", "notifications/prompts/list_changed"):
            client.on(name, lambda method, params: seen.append(method))
        client.on("notifications/tools/list_changed", print)  # without a usable signature
        server.add_tool(lambda: 1, name="one")
        server.add_prompt("text", name="p")
        await client.ping()
    assert seen == ["notifications/tools/list_changed", "notifications/prompts/list_changed"]


async def test_params_that_do_not_fit_are_reported_as_a_failure() -> None:
    observer, server = RecordingObserver(), ScriptedServer()

    def typed(point: Point) -> None: ...

    async with Client(server, observers=[observer]) as client:
        client.on("acme/changed", typed)
        server.line.notify("acme/changed", {"x": "a"})
        await client.ping()
    assert observer.of(HandlerFailed)[0].method == "acme/changed"


@pytest.mark.row("N08")
async def test_notification_without_a_handler_is_ignored() -> None:
    observer, server = RecordingObserver(), ScriptedServer()
    async with Client(server, observers=[observer]) as client:
        server.line.notify("acme/changed")
        await client.ping()
        with pytest.raises(MisuseError, match="servers send no notification 'notifications/initialized'"):
            client.on("notifications/initialized", print)
    assert "unknown_notification" in [fact.kind for fact in observer.of(Dropped)]


@pytest.mark.parametrize("revision", ERAS[:2])
@every_transport
async def test_client_answers_requests_of_a_server(revision: str, transport: str) -> None:
    client_methods: list[bool] = []
    async with connected(telling_server(), transport, revision) as client:
        with pytest.raises(ToolFailed):
            await client.call_tool("ask")

        @client.method("acme/ask")
        def ask(point: Point, context: CallbackContext) -> Point:
            client_methods.append(context.cancelled)
            return Point(point.x + 1)

        assert (await client.call_tool("ask")).text == "2"
    assert client_methods == [False]


async def test_client_reports_progress_of_a_request_under_its_token() -> None:
    server = ScriptedServer()
    async with Client(server) as client:

        @client.method("acme/ask")
        async def ask(context: CallbackContext) -> dict[str, str]:
            context.progress(0.5, total=1, message="half")
            return {}

        for params, heard in (({"_meta": {"progressToken": "p"}}, True), ({}, False)):
            server.line.send({"jsonrpc": "2.0", "id": f"s{heard}", "method": "acme/ask", "params": params})
            messages = [await server.line.receive() for _ in range(1 + heard)]
            told = [message["params"] for message in messages if message.get("method") == "notifications/progress"]
            assert told == [{"progressToken": "p", "progress": 0.5, "total": 1, "message": "half"}] * heard


async def test_modern_server_sends_no_requests() -> None:
    raised: list[BaseException] = []
    server = make_server()

    @server.tool
    async def ask(ctx: Context) -> None:
        for name in ("acme/ask", "tools/list"):
            try:
                await ctx.send_request(name)
            except (ClientLacksCapability, MisuseError) as error:
                raised.append(error)

    async with Client(server, revision="2026-07-28") as client:
        await client.call_tool("ask")
    assert [type(error).__name__ for error in raised] == ["ClientLacksCapability", "MisuseError"]


async def test_request_of_a_server_before_the_handshake_is_refused() -> None:
    async with RawPeer(make_server()) as peer:
        with pytest.raises(WrongPhase):
            peer.connection.session.call("acme/ask", {}, 0.0)
        assert peer.connection.notify("acme/told") is False
        with pytest.raises(ProtocolError, match="message"):
            peer.connection.session.call("message", {}, 0.0)
