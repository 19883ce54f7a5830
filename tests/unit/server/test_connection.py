"""One connection of a server: concurrent calls, order, and cleanup."""

import asyncio
import threading
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import CallToolResult, Context, GetPromptResult, Server, Settings, TextContent
from trunkline.errors import InvalidParams, MisuseError, RequestTimeout, WrongPhase
from trunkline.facts import (
    CallEnded,
    CallStarted,
    Closed,
    Connected,
    Dropped,
    Fact,
    HandlerFailed,
    PhaseChanged,
    Received,
)
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.rpc.dispatch import Feature
from trunkline.server.features import lifecycle, tools
from trunkline.testing import ManualClock, RawPeer, RecordingObserver
from trunkline.transports.memory import MemoryChannel


class BlockingServer:
    """A server whose tools wait for the test."""

    def __init__(self, **options: Any) -> None:
        self.observer = RecordingObserver()
        self.server = Server("t", observers=[self.observer], **options)
        self.go = asyncio.Event()
        self.running = 0
        self.most = 0
        self.began: list[int] = []

        @self.server.tool
        async def wait(number: int = 0) -> int:
            self.began.append(number)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.go.wait()
            finally:
                self.running -= 1
            return number

        @self.server.tool
        async def quick() -> str:
            return "quick"

    def call(self, peer: RawPeer, number: int = 0) -> int | str:
        return peer.call("tools/call", {"name": "wait", "arguments": {"number": number}})


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


# --- many calls -------------------------------------------------------------------------------------------------


@pytest.mark.row("A12")
async def test_blocking_plain_tool_does_not_stall_ping() -> None:
    server, began, go = Server("t"), threading.Event(), threading.Event()

    @server.tool
    def block() -> str:
        began.set()
        go.wait(PATIENCE)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "block"})
        assert await asyncio.to_thread(began.wait, 10)
        assert await peer.result("ping") == {}
        assert not go.is_set()
        go.set()
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_slow_calls_run_concurrently(kind: str) -> None:
    server, both, meeting = Server("t"), asyncio.Barrier(2), threading.Barrier(2)

    async def meet() -> str:
        await asyncio.wait_for(both.wait(), PATIENCE)
        return "met"

    def meet_on_thread() -> str:
        meeting.wait(PATIENCE)
        return "met"

    server.add_tool(meet if kind == "async" else meet_on_thread, name="meet")
    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(2):
            peer.call("tools/call", {"name": "meet"})
        answers = [await peer.receive() for _ in range(2)]
    assert [answer["result"]["content"][0]["text"] for answer in answers] == ["met", "met"]


async def test_call_limit_queues_further_calls_in_order() -> None:
    gate = BlockingServer(settings=Settings(max_calls=2))
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        for number in range(6):
            gate.call(peer, number)
        await turns()
        assert gate.began == [0, 1]
        gate.go.set()
        answers = [await peer.receive() for _ in range(6)]
    assert gate.most == 2
    assert gate.began == [0, 1, 2, 3, 4, 5]
    assert sorted(answer["result"]["structuredContent"]["result"] for answer in answers) == [0, 1, 2, 3, 4, 5]


@pytest.mark.no_cover
async def test_thousands_of_queued_calls_do_not_overflow_the_stack() -> None:
    gate = BlockingServer(settings=Settings(max_calls=1, max_waiting=5000))
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        for number in range(3000):
            gate.call(peer, number)
        await turns()
        gate.go.set()
        answers = [await peer.receive() for _ in range(3000)]
    assert gate.began == list(range(3000))
    assert not any("error" in answer for answer in answers)


async def test_full_queue_pauses_reading_until_half_empty() -> None:
    gate = BlockingServer(settings=Settings(max_calls=2, max_waiting=4))
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        for number in range(6):
            gate.call(peer, number)
        await turns()
        ping = peer.call("ping")
        last = gate.call(peer, 6)
        await turns()
        assert peer.waiting() == []  # the server reads nothing more, not even a ping
        assert len(peer.connection.session.incoming_requests) == 6
        gate.go.set()
        assert (await peer.answer_to(ping))["result"] == {}
        assert (await peer.answer_to(last))["result"]["structuredContent"] == {"result": 6}
        assert len(await peer.quiet()) == 6


async def test_waiting_call_does_not_keep_its_encoded_params() -> None:
    gate = BlockingServer()
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        ident = gate.call(peer)
        await turns()
        assert [call.params for call in peer.connection.session.incoming_requests.values()] == [None]
        gate.go.set()
        assert (await peer.answer_to(ident))["result"]["structuredContent"] == {"result": 0}


@pytest.mark.row("PNG-01", "K01")
async def test_ping_is_answered_while_calls_are_queued() -> None:
    gate = BlockingServer(settings=Settings(max_calls=1))
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        calls = [gate.call(peer, number) for number in range(3)]
        assert await peer.quiet() == []  # the ping has a response, the calls do not
        assert gate.began == [0]
        gate.go.set()
        for call in calls:
            assert "result" in await peer.answer_to(call)


# --- the server's own requests --------------------------------------------------------------------------------------


@pytest.mark.row("K03", "K04")
async def test_server_ping_times_out_after_five_seconds_by_default() -> None:
    clock, outcome = ManualClock(), []
    server = Server("t", clock=clock)

    @server.tool
    async def check(ctx: Context) -> str:
        for timeout in (None, None, 2.0):
            try:
                await ctx.ping(timeout=timeout)
                outcome.append("there")
            except RequestTimeout as error:
                outcome.append(f"{error.method} {error.elapsed:g}")
        return "checked"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "check"})
        peer.reply(await peer.receive(), {})
        for seconds in (5, 2):
            asked = await peer.receive()
            assert asked["method"] == "ping"
            clock.advance(seconds - 0.01)
            assert await peer.quiet() == []
            clock.advance(0.01)
            assert (await peer.receive())["params"]["requestId"] == asked["id"]
        await peer.answer_to(call)
    assert outcome == ["there", "ping 5", "ping 2"]


@pytest.mark.row("K03")
async def test_ping_is_answered_before_initialized() -> None:
    async with RawPeer(Server("t")) as peer:
        asking = asyncio.ensure_future(peer.connection.request("ping"))
        peer.reply(await peer.receive(), {})
        await asyncio.wait_for(asking, PATIENCE)


async def test_request_before_handshake_is_refused() -> None:
    async with RawPeer(Server("t")) as peer:
        with pytest.raises(WrongPhase):
            await peer.connection.request("roots/list")


@pytest.mark.row("P15")
async def test_unexpected_response_is_dropped_and_counted() -> None:
    gate = BlockingServer()
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        peer.send({"jsonrpc": "2.0", "id": 99, "result": {}})
        peer.send({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "x"}})
        assert await peer.quiet() == []
    assert [fact.kind for fact in gate.observer.of(Dropped)] == ["unexpected_reply"] * 2


async def test_response_racing_a_timeout_is_harmless() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize()
        asking = asyncio.ensure_future(peer.connection.request("ping"))
        asked = await peer.receive()
        peer.reply(asked, {})
        asking.cancel()  # in the very turn in which the response is sent
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await peer.quiet() == []  # there is nothing left to cancel
        assert peer.connection.session.outgoing_requests == {}


# --- messages that cannot be sent -------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", [False, True])
async def test_unencodable_result_is_reported_to_the_operator(*, thread: bool) -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])

    async def odd(x: str) -> Any:
        return object()

    def odd_on_thread(x: str) -> Any:
        return object()

    server.add_resource("r://{x}", odd_on_thread if thread else odd)
    server.add_tool(odd_on_thread if thread else odd, name="odd")
    async with RawPeer(server) as peer:
        await peer.initialize()
        error = await peer.error("resources/read", {"uri": "r://1"})
        assert error["code"] == -32603
        result = await peer.result("tools/call", {"name": "odd", "arguments": {"x": "1"}})
        assert result["isError"] is True
        assert await peer.quiet() == []
        assert peer.connection.session.incoming_requests == {}
    failures = observer.of(HandlerFailed)
    assert len(failures) == 2
    assert error["data"]["reference"] == failures[0].reference


async def test_unencodable_reply_is_replaced_by_an_error() -> None:
    gate = BlockingServer()

    @gate.server.tool
    async def odd() -> CallToolResult:
        return CallToolResult([TextContent("x")], meta={"odd": object()})

    @gate.server.prompt
    async def odd_prompt() -> GetPromptResult:
        return GetPromptResult([], meta={"odd": object()})

    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "odd"}))["isError"] is True
        assert (await peer.error("prompts/get", {"name": "odd_prompt"}))["code"] == -32603
        assert peer.connection.session.incoming_requests == {}
    assert len(gate.observer.of(HandlerFailed)) == 2
    assert [(fact.outcome, fact.code) for fact in gate.observer.of(CallEnded)[1:]] == [
        ("failed", None),
        ("error", -32603),
    ]


@pytest.mark.row("N09")
async def test_notification_with_invalid_params_is_reported() -> None:
    gate = BlockingServer()
    async with RawPeer(gate.server) as peer:
        await peer.initialize(capabilities={"roots": {"listChanged": True}})
        peer.notify("notifications/roots/list_changed", {"_meta": 5})
        assert await peer.quiet() == []
    assert [type(fact.error) for fact in gate.observer.of(HandlerFailed)] == [InvalidParams]


@pytest.mark.row("R16")
async def test_failure_of_a_cancelled_handler_is_reported() -> None:
    observer, began = RecordingObserver(), asyncio.Event()
    server = Server("t", observers=[observer])

    @server.tool
    async def clumsy() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while cleaning up")

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "clumsy"})
        await began.wait()
        peer.notify("notifications/cancelled", {"requestId": call})
        assert await peer.quiet() == []
        assert await peer.quiet() == []
    assert [str(fact.error) for fact in observer.of(HandlerFailed)] == ["while cleaning up"]


# --- batches, in the one revision that has them ------------------------------------------------------------------------


@pytest.mark.row("X25")
async def test_batch_is_answered_once_all_calls_have_ended() -> None:
    gate = BlockingServer()
    async with RawPeer(gate.server) as peer:
        await peer.initialize("2025-03-26")
        wait = {"jsonrpc": "2.0", "id": 10, "method": "tools/call", "params": {"name": "wait"}}
        ping = {"jsonrpc": "2.0", "id": 11, "method": "ping"}
        unknown = {"jsonrpc": "2.0", "id": 12, "method": "no/such"}
        notice = {"jsonrpc": "2.0", "method": "notifications/nobody"}
        peer.send([wait, ping, unknown, notice])
        assert await peer.quiet() == []
        gate.go.set()
        answers = await peer.receive()
        assert {answer["id"] for answer in answers} == {10, 11, 12}
        assert await peer.quiet() == []


@pytest.mark.row("X25")
async def test_cancelled_call_is_left_out_of_its_batch() -> None:
    gate = BlockingServer()
    async with RawPeer(gate.server) as peer:
        await peer.initialize("2025-03-26")
        wait = {"jsonrpc": "2.0", "id": 10, "method": "tools/call", "params": {"name": "wait"}}
        peer.send([wait, {"jsonrpc": "2.0", "id": 11, "method": "ping"}])
        await turns()
        peer.notify("notifications/cancelled", {"requestId": 10})
        (answer,) = await peer.receive()
        assert answer["id"] == 11


@pytest.mark.row("X25")
async def test_batch_without_results_is_not_answered() -> None:
    gate = BlockingServer()
    async with RawPeer(gate.server) as peer:
        await peer.initialize("2025-03-26")
        peer.send([{"jsonrpc": "2.0", "method": "notifications/nobody"}])
        peer.send([{"jsonrpc": "2.0", "id": 10, "method": "tools/call", "params": {"name": "wait"}}])
        await turns()
        peer.notify("notifications/cancelled", {"requestId": 10})
        assert await peer.quiet() == []


@pytest.mark.row("X25")
@pytest.mark.parametrize("revision", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_batch_is_refused_in_other_revisions(revision: str) -> None:
    async with RawPeer(BlockingServer().server) as peer:
        await peer.initialize(revision)
        peer.send([{"jsonrpc": "2.0", "id": 10, "method": "ping"}])
        (answer,) = await peer.quiet()
        assert answer["error"]["code"] == -32600
        assert answer.get("id") is None


# --- phases ------------------------------------------------------------------------------------------------------------


@pytest.mark.row("F21")
async def test_paused_session_refuses_new_requests_only() -> None:
    gate = BlockingServer()
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        running = gate.call(peer)
        await turns()
        peer.connection.step(Signal.PAUSE)
        error = await peer.error("tools/call", {"name": "quick"})
        assert (error["code"], error["data"]["name"]) == (1008, "temporarily_unavailable")
        assert await peer.result("ping") == {}
        gate.go.set()
        assert (await peer.answer_to(running))["result"]["isError"] is False
        peer.connection.step(Signal.RESUME)
        assert (await peer.result("tools/call", {"name": "quick"}))["isError"] is False


@pytest.mark.row("D12")
async def test_close_waits_for_running_calls_and_refuses_new_ones() -> None:
    gate = BlockingServer(settings=Settings(max_calls=1))
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        running, waiting = gate.call(peer, 1), gate.call(peer, 2)
        await turns()
        ending = asyncio.ensure_future(gate.server.aclose())
        await turns()
        assert peer.connection.session.phase is Phase.DRAINING
        assert (await peer.error("tools/list"))["code"] == 1008
        assert await peer.result("ping") == {}
        assert not ending.done()
        gate.go.set()
        for call in (running, waiting):
            assert (await peer.answer_to(call))["result"]["isError"] is False
        await asyncio.wait_for(ending, PATIENCE)
        assert peer.closed is not None
        assert gate.server.connections == []


@pytest.mark.row("D12")
async def test_hanging_call_is_stopped_at_the_deadline() -> None:
    gate = BlockingServer(settings=Settings(drain_timeout=0.01))
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        call = gate.call(peer)
        await turns()
        await asyncio.wait_for(gate.server.aclose(), PATIENCE)
        await turns()
        assert gate.running == 0
        assert (await peer.answer_to(call))["error"]["data"]["kind"] == "outcome_unknown"
        assert peer.waiting() == []
    assert [fact.outcome for fact in gate.observer.of(CallEnded) if fact.request == call] == ["closed"]


@pytest.mark.row("D12")
async def test_idle_server_closes_at_once_and_can_serve_again() -> None:
    gate = BlockingServer()
    await gate.server.aclose()
    for _ in range(2):
        async with RawPeer(gate.server) as peer:
            await peer.initialize()
            assert (await peer.result("tools/call", {"name": "quick"}))["isError"] is False
            await gate.server.aclose()
            assert peer.closed is not None


async def test_disconnect_ends_all_work_of_the_peer() -> None:
    clock = ManualClock()
    gate = BlockingServer(clock=clock, settings=Settings(max_calls=1))
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        for number in range(3):
            gate.call(peer, number)
        await turns()
        assert gate.running == 1
        assert clock.waiting == 1
    await turns()
    assert gate.running == 0
    assert gate.began == [0]
    assert clock.waiting == 0
    assert gate.server.connections == []
    assert peer.connection.close_reason == "closed"
    assert peer.connection.session.phase is Phase.CLOSED


async def test_disconnect_while_reading_is_paused_leaves_no_waiter() -> None:
    server, began, go = Server("t", settings=Settings(max_calls=1, max_waiting=1)), threading.Event(), threading.Event()

    @server.tool
    def block() -> str:
        began.set()
        go.wait(PATIENCE)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(3):
            peer.call("tools/call", {"name": "block"})
        assert await asyncio.to_thread(began.wait, 10)
    go.set()
    await server.aclose()
    assert server.connections == []


@pytest.mark.row("W09")
async def test_facts_of_a_connection_are_reported_in_order() -> None:
    gate = BlockingServer()
    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        await peer.result("ping")
    seen: list[type[Fact]] = [type(fact) for fact in gate.observer.facts]
    assert seen[:2] == [Connected, PhaseChanged]
    assert seen[2:6] == [Received, CallStarted, PhaseChanged, CallEnded]
    assert seen[-2:] == [PhaseChanged, Closed]
    assert [(fact.before, fact.after) for fact in gate.observer.of(PhaseChanged)] == [
        ("NEW", "CONNECTING"),
        ("CONNECTING", "INITIALIZING"),
        ("INITIALIZING", "READY"),
        ("READY", "CLOSED"),
    ]
    assert gate.observer.of(Connected)[0].transport == "memory"
    assert [fact.outcome for fact in gate.observer.of(CallEnded)] == ["ok", "ok"]
    assert len({fact.connection for fact in gate.observer.facts}) == 1


@pytest.mark.row("R16")
async def test_call_outcomes_are_reported() -> None:
    gate = BlockingServer()

    @gate.server.tool
    async def fails() -> str:
        raise ValueError

    async with RawPeer(gate.server) as peer:
        await peer.initialize()
        for name in ("quick", "fails", "nobody"):
            await peer.request("tools/call", {"name": name})
    ends = [(fact.outcome, fact.code) for fact in gate.observer.of(CallEnded) if fact.method == "tools/call"]
    assert ends == [("ok", None), ("failed", None), ("error", -32602)]


# --- assembly ------------------------------------------------------------------------------------------------------------


@pytest.mark.row("A21", "A22")
async def test_server_with_one_feature_serves_only_its_methods() -> None:
    server = Server("t", features=[lifecycle.FEATURE, tools.FEATURE], prompts=True)
    server.add_tool(lambda: "x", name="f")
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/list"))["tools"][0]["name"] == "f"
        assert (await peer.error("prompts/list"))["code"] == -32601


async def test_feature_can_be_replaced() -> None:
    fake = Feature("tools", {"tools/call": lambda connection, call, params: CallToolResult([TextContent("fake")])})
    async with RawPeer(Server("t", features=[lifecycle.FEATURE, fake], tools=True)) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "any"}))["content"][0]["text"] == "fake"


def test_server_serves_on_one_loop_at_a_time() -> None:
    server = Server("t")

    async def use() -> None:
        async with RawPeer(server) as peer:
            assert await peer.result("ping") == {}

    asyncio.run(use())
    asyncio.run(use())

    async def hold() -> None:
        async with RawPeer(server):
            with pytest.raises(MisuseError, match="one event loop at a time"):
                await asyncio.to_thread(asyncio.run, use())

    asyncio.run(hold())


@pytest.mark.row("W08")
async def test_custom_channel_is_served() -> None:
    server, sent = Server("t"), []

    class Mine(MemoryChannel):
        def send(self, message: Any, *, about: Any = None) -> None:
            sent.append(about)
            super().send(message)

    channel = Mine("me")
    channel.open(server.connect(channel))
    channel.put(b'{"jsonrpc":"2.0","id":"a","method":"ping"}')
    await turns()
    assert sent == ["a"]  # the response names its request
    await channel.close()


async def test_calls_waiting_for_the_peer_free_their_slot() -> None:
    server = Server("t", settings=Settings(max_calls=1, max_waiting=1))

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("x")).model

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        calls = [peer.call("tools/call", {"name": "ask"}) for _ in range(3)]
        for number in range(3):
            asked = await peer.receive()
            assert asked["method"] == "sampling/createMessage"
            answer = {"role": "assistant", "content": {"type": "text", "text": "y"}, "model": f"m{number}"}
            peer.reply(asked, answer)
        models = {(await peer.answer_to(call))["result"]["structuredContent"]["result"] for call in calls}
    assert models == {"m0", "m1", "m2"}


async def test_raising_progress_callback_is_harmless() -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])

    def raises(progress: Any) -> None:
        raise ValueError("no")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("x", on_progress=raises)).model

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        token = asked["params"]["_meta"]["progressToken"]
        peer.notify("notifications/progress", {"progressToken": token, "progress": 1})
        peer.reply(asked, {"role": "assistant", "content": {"type": "text", "text": "y"}, "model": "m"})
        assert (await peer.answer_to(call))["result"]["structuredContent"] == {"result": "m"}
    assert [str(fact.error) for fact in observer.of(HandlerFailed)] == ["no"]
