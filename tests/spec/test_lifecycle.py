"""Lifecycle: the handshake, its phases, the methods allowed in each, and timeouts."""

import asyncio
from importlib.metadata import version
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.modern import enveloped

from trunkline import Context, Server
from trunkline.config import Settings
from trunkline.errors import RequestTimeout
from trunkline.facts import CallEnded, CallStarted, Closed, Dropped, PhaseChanged
from trunkline.protocol.lifecycle import FOUNDING, Phase
from trunkline.protocol.methods import Side, methods_for
from trunkline.protocol.revisions import HANDSHAKE
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

REVISIONS = [revision.value for revision in HANDSHAKE]
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw peer", "version": "1"}}
REQUESTS = {
    "tools/list": {},
    "tools/call": {"name": "greet"},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "note://a"},
    "resources/subscribe": {"uri": "note://a"},
    "resources/unsubscribe": {"uri": "note://a"},
    "prompts/list": {},
    "prompts/get": {"name": "hello"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "hello"}, "argument": {"name": "whom", "value": ""}},
    "logging/setLevel": {"level": "info"},
    "ping": {},
}


def everything(**options: Any) -> Server:
    """A server with something of every kind."""
    server = Server("everything", **options)
    server.add_tool(lambda: "hello", name="greet")
    server.add_resource("note://a", "text")
    server.add_prompt("Greet {whom}.", name="hello", defaults={"whom": "everybody"})
    server.completion(prompt="hello", argument="whom")(lambda value: [value])
    return server


def phases(observer: RecordingObserver) -> list[str]:
    facts = observer.of(PhaseChanged)
    return [facts[0].before, *(fact.after for fact in facts)]


# --- initialize ----------------------------------------------------------------------------------


@pytest.mark.row("L01")
@pytest.mark.parametrize("missing", ["protocolVersion", "capabilities", "clientInfo"])
async def test_initialize_needs_all_its_params(missing: str) -> None:
    async with RawPeer(Server("t")) as peer:
        error = await peer.error("initialize", {name: value for name, value in HELLO.items() if name != missing})
        assert (error["code"], error["data"]["kind"]) == (-32602, "invalid_params")
        assert missing in error["message"]


@pytest.mark.row("L01")
@pytest.mark.parametrize("info", [{}, {"name": "n"}, {"version": "1"}, "client", {"name": 1, "version": "1"}])
async def test_client_info_needs_name_and_version(info: object) -> None:
    async with RawPeer(Server("t")) as peer:
        assert (await peer.error("initialize", {**HELLO, "clientInfo": info}))["code"] == -32602


@pytest.mark.row("L01")
async def test_initialize_can_be_repeated_after_a_failure() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.error("initialize", {})
        await peer.initialize()
        await peer.quiet()
        assert peer.connection.session.phase is Phase.READY


@pytest.mark.row("X01")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_supported_revision_is_accepted(revision: str) -> None:
    async with RawPeer(everything()) as peer:
        assert (await peer.initialize(revision))["protocolVersion"] == revision
        assert (await peer.result("tools/list"))["tools"][0]["name"] == "greet"


@pytest.mark.row("X01")
@pytest.mark.parametrize("revision", ["2026-07-28", "1999-12-31", "3000-01-01", "", "latest"])
async def test_unknown_revision_is_answered_with_2025_11_25(revision: str) -> None:
    async with RawPeer(Server("t")) as peer:
        assert (await peer.initialize(revision))["protocolVersion"] == "2025-11-25"


@pytest.mark.row("L03", "PH11")
@pytest.mark.parametrize("instructions", [None, "Be kind."])
async def test_initialize_result_describes_the_server(
    instructions: str | None,
) -> None:
    async with RawPeer(Server("t", version="7", instructions=instructions)) as peer:
        result = await peer.initialize()
        expected = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"logging": {}},
            "serverInfo": {"name": "t", "version": "7"},
        }
        assert result == (expected if instructions is None else {**expected, "instructions": instructions})


@pytest.mark.row("L04")
async def test_default_server_version_is_ours() -> None:
    async with RawPeer(Server("t")) as peer:
        assert (await peer.initialize())["serverInfo"] == {"name": "t", "version": version("trunkline")}


@pytest.mark.row("L03")
async def test_older_revisions_get_fewer_server_fields() -> None:
    server = Server("t", title="T", description="A server.", website_url="https://example.com")
    async with RawPeer(server) as peer:
        assert (await peer.initialize("2025-03-26"))["serverInfo"].keys() == {"name", "version"}
    async with RawPeer(server) as peer:
        assert (await peer.initialize("2025-06-18"))["serverInfo"].keys() == {"name", "version", "title"}


@pytest.mark.row("L06")
async def test_second_initialize_is_refused() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize("2025-06-18", confirm=False)
        early = await peer.error("initialize", HELLO)
        peer.notify("notifications/initialized")
        late = await peer.error("initialize", HELLO)
        assert [error["code"] for error in (early, late)] == [-32600, -32600]
        assert early["data"] == {"kind": "already_initialized", "phase": "initializing"}
        assert late["data"] == {"kind": "already_initialized", "phase": "ready"}
        assert peer.connection.session.effective_revision == "2025-06-18"


@pytest.mark.row("L05", "X03")
@pytest.mark.parametrize("name", ["notifications/initialized", "initialized"])
async def test_initialized_is_accepted_under_either_name(name: str) -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(confirm=False)
        peer.notify(name)
        assert await peer.quiet() == []
        assert peer.connection.session.phase is Phase.READY
        methods = [message.get("method") for message in peer.transcript.said_by("server")]
        assert set(methods) == {None}


@pytest.mark.row("L05")
async def test_server_requests_wait_for_initialized() -> None:
    server = Server("t")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("hello")).model

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}}, confirm=False)
        assert len((await peer.result("tools/list"))["tools"]) == 1
        call = peer.call("tools/call", {"name": "ask"})
        assert [await peer.quiet() for _ in range(2)] == [[], []]  # the tool runs by now
        peer.notify("notifications/initialized")
        asked = await peer.receive()
        assert asked["method"] == "sampling/createMessage"
        peer.reply(asked, {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"})
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "m"


# --- phases --------------------------------------------------------------------------------------


@pytest.mark.row("L02", "F02", "F15", "F16", "PH13")
@pytest.mark.parametrize(
    "method", [*(name for name in REQUESTS if name != "ping"), "foo/bar", "tasks/list", "roots/list"]
)
async def test_requests_before_initialize_are_refused(method: str) -> None:
    async with RawPeer(everything()) as peer:
        error = await peer.error(method, {"of": "no use"})
        assert error["code"] == -32600
        assert error["message"] == f"{method} is not allowed while the session is connecting"
        assert error["data"] == {"kind": "server_not_initialized", "phase": "connecting"}


@pytest.mark.row("F02")
async def test_notifications_before_initialize_are_ignored() -> None:
    observer = RecordingObserver()
    async with RawPeer(Server("t", observers=[observer])) as peer:
        for name in ("notifications/initialized", "notifications/cancelled", "notifications/roots/list_changed"):
            peer.notify(name)
        assert await peer.quiet() == []
        assert peer.connection.session.phase is Phase.CONNECTING
    assert [fact.kind for fact in observer.of(Dropped)] == ["unknown_notification"] * 3


@pytest.mark.row("F04")
def test_request_table_is_complete() -> None:
    names = {row.name for row in methods_for(HANDSHAKE[-1], Side.SERVER) if row.is_request}
    assert names == {*REQUESTS, "initialize", *(name for name in names if name.startswith("tasks/"))}


@pytest.mark.row("F04", "AD001")
@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("method", REQUESTS)
async def test_every_method_is_open_after_initialized(method: str, revision: str) -> None:
    async with RawPeer(everything()) as peer:
        await peer.initialize(revision)
        assert "result" in await peer.request(method, REQUESTS[method])


@pytest.mark.row("A04", "F01", "F17", "X05", "PH63")
async def test_session_passes_through_the_founding_phases() -> None:
    observer = RecordingObserver()
    async with RawPeer(Server("t", observers=[observer])) as peer:
        await peer.initialize()
        await peer.quiet()
    assert phases(observer) == ["NEW", "CONNECTING", "INITIALIZING", "READY", "CLOSED"]
    named = [FOUNDING[Phase[name]] for name in phases(observer)]
    assert [names.phase for names in named] == [
        "pre_initialization",
        "pre_initialization",
        "initializing",
        "initialized",
        "closed",
    ]
    assert [names.state for names in named] == ["disconnected", "connecting", "connected", "ready", "disconnected"]


@pytest.mark.row("F10")
async def test_disconnect_ends_running_calls() -> None:
    observer, started, ended = RecordingObserver(), asyncio.Event(), asyncio.Event()
    server = Server("t", observers=[observer])

    @server.tool
    async def endless() -> str:
        started.set()
        try:
            return await asyncio.Future()
        finally:
            ended.set()

    async with RawPeer(server) as peer:
        await peer.initialize()
        peer.call("tools/call", {"name": "endless"})
        await asyncio.wait_for(started.wait(), PATIENCE)
    await asyncio.wait_for(ended.wait(), PATIENCE)
    assert peer.connection.session.phase is Phase.CLOSED
    assert not peer.connection.session.incoming_requests
    assert server.connections == []
    assert len(observer.of(Closed)) == 1


@pytest.mark.row("F06", "F10", "X31")
async def test_closing_server_finishes_calls_and_refuses_new_ones() -> None:
    observer, go = RecordingObserver(), asyncio.Event()
    server = Server("t", observers=[observer])

    @server.tool
    async def slow() -> str:
        await go.wait()
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "slow"})
        await peer.quiet()
        ending = asyncio.create_task(server.aclose())
        assert await peer.quiet() == []
        error = await peer.error("tools/list")
        assert (error["code"], error["data"]["kind"]) == (1008, "temporarily_unavailable")
        go.set()
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "done"
        await ending
        assert peer.closed is not None
    assert phases(observer)[-3:] == ["READY", "DRAINING", "CLOSED"]


@pytest.mark.row("X31")
async def test_shutdown_is_not_a_specified_method() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize()
        assert (await peer.error("shutdown"))["code"] == -32601
        peer.notify("shutdown")
        assert await peer.quiet() == []


async def test_operations_of_every_family_return_to_idle() -> None:
    observer = RecordingObserver()
    async with RawPeer(everything(observers=[observer])) as peer:
        await peer.initialize()
        for method in ("tools/call", "resources/read", "prompts/get"):
            await peer.result(method, REQUESTS[method])
        await peer.error("resources/read", {"uri": "note://none"})
        assert not peer.connection.session.incoming_requests
    started = [(fact.request, fact.method) for fact in observer.of(CallStarted)]
    ended = [(fact.request, fact.method) for fact in observer.of(CallEnded)]
    assert started == ended
    assert {method.partition("/")[0] for _, method in started} == {"initialize", "tools", "resources", "prompts"}


# --- order of checks -----------------------------------------------------------------------------


@pytest.mark.row("F15")
async def test_phase_is_checked_before_capability_and_arguments() -> None:
    async with RawPeer(Server("t")) as peer:
        assert (await peer.error("prompts/get", {"name": 5}))["data"]["kind"] == "server_not_initialized"


@pytest.mark.row("F15")
async def test_capability_is_checked_before_arguments() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize()
        assert (await peer.error("prompts/get", {"name": 5}))["data"]["kind"] == "capability_not_supported"


@pytest.mark.row("F15")
async def test_arguments_are_checked_before_the_handler_runs() -> None:
    ran: list[str] = []
    server = Server("t", prompts=True)

    @server.prompt
    async def review(language: str) -> str:
        ran.append(language)
        return language

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.error("prompts/get", {"name": 5}))["data"]["kind"] == "invalid_params"
        assert (await peer.error("prompts/get", {"name": "review", "arguments": {}}))["code"] == -32602
        assert ran == []


# --- timeouts ------------------------------------------------------------------------------------


def asking(settings: Settings | None = None, **options: Any) -> tuple[Server, list[RequestTimeout]]:
    """A server with a tool that requests sampling, and the timeouts that it got."""
    server, late = Server("t", settings=settings, **options), []

    @server.tool
    async def ask(ctx: Context, timeout: float | None = None) -> str:
        try:
            return (await ctx.sample("hello", timeout=timeout)).model
        except RequestTimeout as error:
            late.append(error)
            return "late"

    return server, late


@pytest.mark.row("K14", "K16", "X07")
@pytest.mark.parametrize(
    ("settings", "arguments", "seconds"),
    [(None, {}, 60), (Settings(work_timeout=7), {}, 7), (Settings(work_timeout=7), {"timeout": 3}, 3)],
)
async def test_unanswered_request_times_out_and_is_cancelled(
    settings: Settings | None, arguments: dict[str, float], seconds: float
) -> None:
    clock = ManualClock()
    server, late = asking(settings, clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        call = peer.call("tools/call", {"name": "ask", "arguments": arguments})
        asked = await peer.receive()
        clock.advance(seconds - 0.1)
        assert await peer.quiet() == []
        clock.advance(0.1)
        cancelled = await peer.receive()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == asked["id"]
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "late"
    (error,) = late
    assert (error.method, error.elapsed) == ("sampling/createMessage", seconds)


@pytest.mark.row("K18")
async def test_late_response_is_dropped_and_counted() -> None:
    clock, observer = ManualClock(), RecordingObserver()
    server, late = asking(clock=clock, observers=[observer])
    answer = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "late model"}
    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        first = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        clock.advance(60)
        await peer.answer_to(first)
        second = peer.call("tools/call", {"name": "ask"})
        said = [await peer.receive(), await peer.receive()]
        assert [message["method"] for message in said] == ["notifications/cancelled", "sampling/createMessage"]
        peer.reply(asked, answer)
        assert [await peer.quiet() for _ in range(2)] == [[], []]
        assert list(peer.connection.session.incoming_requests) == [second]
        assert [fact.kind for fact in observer.of(Dropped)] == ["unexpected_reply"]
    assert len(late) == 1


@pytest.mark.row("F08", "K17")
async def test_handshake_timeout_ends_with_the_handshake() -> None:
    clock = ManualClock()
    async with RawPeer(Server("t", clock=clock)) as peer:
        clock.advance(9)
        await peer.initialize()
        clock.advance(3600)
        assert await peer.quiet() == []
        assert clock.waiting == 0
        assert peer.connection.session.phase is Phase.READY


@pytest.mark.row("X07")
async def test_call_with_repeated_requests_times_out_once() -> None:
    clock, observer = ManualClock(), RecordingObserver()
    server = Server("t", clock=clock, observers=[observer])

    @server.tool
    async def curious(ctx: Context) -> str:
        for _ in range(3):
            await ctx.ping()
        return await asyncio.Future()

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "curious"})
        for _ in range(3):
            peer.reply(await peer.receive(), {})
        await peer.quiet()
        clock.advance(60)
        assert (await peer.answer_to(call))["result"]["isError"]
        assert await peer.quiet() == []
    ended = [fact for fact in observer.of(CallEnded) if fact.method == "tools/call"]
    assert len(ended) == 1


# --- operations ----------------------------------------------------------------------------------


class Gate:
    """A server whose tool, resource and prompt run until they are let go."""

    def __init__(self, **settings: Any) -> None:
        self.begun = asyncio.Queue[str]()
        self.go = asyncio.Event()
        self.server = Server("gate", settings=Settings(**settings))
        self.server.add_tool(self.stop, name="tool")
        self.server.add_resource("note://slow", self.stop)
        self.server.add_prompt(self.stop, name="prompt")

    async def stop(self, ctx: Context) -> str:
        await self.begun.put(ctx.method)
        await self.go.wait()
        return "done"


OPERATIONS = {
    "tools": ("tools/call", {"name": "tool"}),
    "resources": ("resources/read", {"uri": "note://slow"}),
    "prompts": ("prompts/get", {"name": "prompt"}),
}


@pytest.mark.row("F19")
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])
async def test_operations_are_counted_by_family_until_they_return_to_active(modern: bool) -> None:
    gate = Gate()
    async with RawPeer(gate.server) as peer, RawPeer(gate.server) as other:
        await peer.initialize()
        await other.initialize()
        session = peer.connection.session_id
        for family, (method, params) in OPERATIONS.items():
            idents = [peer.call(method, enveloped(**params) if modern else params) for _ in range(2)]
            assert [await gate.begun.get() for _ in idents] == [method, method]
            assert gate.server.running_calls() == gate.server.running_calls(session) == {family: 2}
            assert gate.server.running_calls(other.connection.session_id) == {}
            assert peer.connection.session.phase is Phase.READY
            gate.go.set()
            for ident in idents:
                assert "result" in await peer.answer_to(ident)
            gate.go.clear()
            assert gate.server.running_calls(session)[family] == 0


@pytest.mark.row("F19")
async def test_queued_and_cancelled_operations_are_not_counted() -> None:
    gate = Gate(max_calls=1)
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        running, queued = (peer.call(*OPERATIONS[family]) for family in ("tools", "prompts"))
        await gate.begun.get()
        await peer.result("ping")
        assert gate.server.running_calls() == {"tools": 1}
        peer.notify("notifications/cancelled", {"requestId": running})
        assert await gate.begun.get() == "prompts/get"
        assert gate.server.running_calls() == {"prompts": 1}
        gate.go.set()
        await peer.answer_to(queued)
        assert gate.server.running_calls() == {}


@pytest.mark.row("F19", "F21")
async def test_operations_that_wait_for_the_end_of_a_pause_are_not_counted() -> None:
    gate = Gate()
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        gate.server.pause(wait=True)
        waiting = peer.call(*OPERATIONS["tools"])
        assert await peer.result("ping") == {}
        assert gate.server.running_calls() == {}
        gate.server.resume()
        await gate.begun.get()
        assert gate.server.running_calls() == {"tools": 1}
        gate.go.set()
        await peer.answer_to(waiting)
