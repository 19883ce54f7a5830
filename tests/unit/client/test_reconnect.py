"""The line to a server: opened, lost, made again, given up, closed; by a clock that is moved by hand."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Settings
from trunkline.errors import (
    ConnectionClosed,
    ConnectionTimeout,
    Degraded,
    HandshakeFailed,
    MisuseError,
    OutcomeUnknown,
    PeerError,
    RequestTimeout,
    RetriesExhausted,
    TimeoutReconnecting,
    TransportError,
    TrunklineError,
    WrongPhase,
)
from trunkline.facts import OpeningStep, PhaseChanged, ReconnectStep
from trunkline.protocol.lifecycle import FOUNDING, Phase
from trunkline.testing import Faults, ManualClock, RecordingObserver, ScriptedServer

READ_ONLY = {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
IDEMPOTENT = {"name": "put", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": True}}
OTHER = {"name": "pay", "inputSchema": {"type": "object"}}
HANDSHAKE = pytest.mark.parametrize("revision", ["2025-11-25"])  # for what only this era has
DONE = {"content": [{"type": "text", "text": "done"}]}
SOON = {"kind": "temporarily_unavailable", "retryAfterMs": 1000}


class Scene:
    """A client, a server played by hand, and a clock moved by hand."""

    def __init__(self, *, modern: bool = False, **settings: Any) -> None:
        self.clock = ManualClock()
        self.server = ScriptedServer(tools=[READ_ONLY, IDEMPOTENT, OTHER], modern=modern)
        self.observer = RecordingObserver()
        self.failures: list[TrunklineError] = []
        self.client = Client(
            self.server,
            settings=Settings(backoff_jitter=0, **settings),
            clock=self.clock,
            observers=[self.observer],
            on_failed=self.failures.append,
        )

    def call(self, name: str, **options: Any) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.client.call_tool(name, **options))

    async def known(self) -> None:
        """Has the catalog read, by a call that is answered."""
        call = self.call("look")
        self.server.line.reply(await self.server.line.request("tools/call"), DONE)
        await call
        await settle()

    def phases(self) -> list[str]:
        return [fact.after for fact in self.observer.of(PhaseChanged)]

    def steps(self) -> list[str]:
        return [fact.step for fact in self.observer.of(ReconnectStep)]


async def settle() -> None:
    """Lets everything happen that can happen without the clock."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def scene(revision: str) -> AsyncIterator[Scene]:
    """One of either era."""
    one = Scene(modern=revision == "2026-07-28")
    async with one.client:
        assert one.client.revision == revision
        yield one


# --- opening -----------------------------------------------------------------------------------------


@pytest.mark.row("F17")
async def test_phases_follow_the_founding_documents() -> None:
    scene = Scene()
    assert FOUNDING[scene.client.phase].state == "disconnected"
    async with scene.client:
        assert scene.client.initialized
    names = [FOUNDING[Phase[name]].state for name in scene.phases()]
    assert names == ["connecting", "connected", "ready", "ready", "disconnected"]
    assert scene.phases() == ["CONNECTING", "INITIALIZING", "READY", "DRAINING", "CLOSED"]


@pytest.mark.row("F18")
async def test_opening_steps_are_reported_in_order(scene: Scene) -> None:
    assert [fact.step for fact in scene.observer.of(OpeningStep)] == [
        "LoadConfig",
        "InitTransport",
        "EstablishConnection",
        "SendInitialize",
        "WaitForInitialized",
    ]


@pytest.mark.row("F13", "F18")
async def test_failed_open_names_its_step() -> None:
    scene = Scene()
    scene.server.refusals.append(TransportError("no server is listening there"))
    with pytest.raises(TransportError, match="no server is listening there") as raised:
        await scene.client.open()
    assert raised.value.step == "EstablishConnection"
    assert scene.client.phase is Phase.FAILED
    assert scene.failures == []  # whoever opens it is told already
    await scene.client.close()
    assert scene.client.phase is Phase.CLOSED


@pytest.mark.row("F14", "L26", "PH14")
async def test_initialize_times_out_after_thirty_seconds() -> None:
    scene = Scene()
    scene.server.answered.discard("initialize")
    opening = asyncio.create_task(scene.client.open())
    await settle()
    scene.clock.advance(29.9)
    await settle()
    assert not opening.done()
    scene.clock.advance(0.2)
    with pytest.raises(HandshakeFailed, match="within 30 s") as raised:
        await opening
    assert raised.value.step == "WaitForInitialized"
    assert scene.client.phase is Phase.FAILED
    assert scene.server.line.closed is not None


@pytest.mark.row("F08", "K17")
async def test_completed_handshake_is_not_timed_out_later() -> None:
    scene = Scene()
    scene.server.answered.discard("initialize")
    opening = asyncio.create_task(scene.client.open())
    await settle()
    scene.clock.advance(9)
    request = await scene.server.line.request("initialize")
    scene.server.line.reply(
        request,
        {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "late", "version": "1"}},
    )
    await opening
    scene.clock.advance(3600)
    await settle()
    assert scene.client.phase is Phase.READY
    assert scene.clock.waiting == 0
    await scene.client.close()


@pytest.mark.row("L26")
async def test_unsupported_revision_fails_the_handshake() -> None:
    scene = Scene()
    scene.server.revision = "2099-01-01"
    with pytest.raises(HandshakeFailed, match="chose the unsupported revision '2099-01-01'"):
        await scene.client.open()
    assert scene.client.phase is Phase.FAILED


@pytest.mark.row("L26")
@pytest.mark.off_the_record
@pytest.mark.parametrize("result", [{}, {"protocolVersion": 5}, []])
async def test_malformed_initialize_result_fails_the_handshake(result: Any) -> None:
    scene = Scene()
    scene.server.answered.discard("initialize")
    opening = asyncio.create_task(scene.client.open())
    line = await scene.server.connected(1)
    line.reply(await line.request("initialize"), result)
    with pytest.raises(HandshakeFailed, match="malformed"):
        await opening
    assert scene.client.phase is Phase.FAILED


@pytest.mark.row("L26")
async def test_refused_initialize_fails_the_handshake() -> None:
    scene = Scene()
    scene.server.answered.discard("initialize")
    opening = asyncio.create_task(scene.client.open())
    line = await scene.server.connected(1)
    line.error(await line.request("initialize"), -32602, "no")
    with pytest.raises(HandshakeFailed, match=r"refused initialize: no \(-32602\)"):
        await opening


async def test_exit_during_handshake_reports_last_words() -> None:
    scene = Scene()
    scene.server.answered.discard("initialize")
    opening = asyncio.create_task(scene.client.open())
    line = await scene.server.connected(1)
    line.die("the server process exited with status 3", status=3, last_words="no such module")
    with pytest.raises(ConnectionClosed, match="no such module") as raised:
        await opening
    assert (raised.value.status, raised.value.last_words) == (3, "no such module")
    assert scene.client.phase is Phase.FAILED


@pytest.mark.row("F03")
async def test_call_during_handshake_fails_at_once() -> None:
    scene = Scene()
    scene.server.answered.discard("initialize")
    opening = asyncio.create_task(scene.client.open())
    await scene.server.connected(1)
    await settle()
    with pytest.raises(WrongPhase, match="tools/list is not allowed while the session is initializing"):
        await scene.client.list_tools()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await scene.client.close()


async def test_cancelled_open_leaves_nothing_behind() -> None:
    scene = Scene()
    scene.server.answered.discard("initialize")
    opening = asyncio.create_task(scene.client.open())
    line = await scene.server.connected(1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await settle()
    assert line.closed is not None
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_one_of_two_openers_keeps_the_other() -> None:
    scene = Scene()
    scene.server.answered.discard("initialize")
    first, second = (asyncio.create_task(scene.client.open()) for _ in range(2))
    line = await scene.server.connected(1)
    await settle()
    first.cancel()
    request = await line.request("initialize")
    line.reply(
        request, {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    )
    assert await second is scene.client
    assert len(scene.server.lines) == 1
    await scene.client.close()


async def test_unopened_client_raises_misuse() -> None:
    with pytest.raises(MisuseError, match="not open"):
        await Scene().client.ping()


# --- loss --------------------------------------------------------------------------------------------


@pytest.mark.row("F11", "F22", "F24")
async def test_lost_connection_is_replaced_at_once(scene: Scene) -> None:
    await scene.client.ping()
    scene.server.line.die()
    await scene.server.connected(2)
    await scene.client.ping()
    assert scene.client.phase is Phase.READY
    assert scene.client.losses == 1
    assert scene.client.request_id == 2  # initialize and ping: counted anew
    assert scene.phases()[3:] == ["RECONNECTING", "CONNECTING", "INITIALIZING", "READY"]


@pytest.mark.row("F11")
async def test_only_read_only_and_idempotent_tools_are_repeated(scene: Scene) -> None:
    await scene.known()
    calls = {name: scene.call(name) for name in ("look", "put", "pay")}
    await settle()
    assert len(scene.client.pending()) == 3
    scene.server.line.die("killed by SIGKILL", status=-9, last_words="ouch")
    with pytest.raises(OutcomeUnknown, match=r"may or may not have been done: .*SIGKILL") as raised:
        await calls["pay"]
    assert (raised.value.status, raised.value.last_words) == (-9, "ouch")
    line = await scene.server.connected(2)
    for _ in range(2):
        line.reply(await line.request("tools/call"), DONE)
    assert [(await calls[name]).data for name in ("look", "put")] == ["done", "done"]
    await settle()
    assert not [m for m in line.waiting() if m.get("method") == "tools/call"]


async def test_retry_after_is_followed_a_bounded_number_of_times(scene: Scene) -> None:
    await scene.known()
    call, line = scene.call("pay", timeout=60), scene.server.line
    for pause in (1.0, 1.0, 1.0, 1.0, 2.0, 2.0):
        line.error(await line.request("tools/call"), 1008, "away", SOON)
        await settle()
        scene.clock.advance(pause - 0.01)
        await settle()
        assert not line.waiting()
        scene.clock.advance(0.02)
    line.error(await line.request("tools/call"), 1008, "away", SOON)
    with pytest.raises(PeerError, match="away"):
        await call


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "temporarily_unavailable"},
        {"kind": "temporarily_unavailable", "retryAfterMs": 30_000},
        {"kind": "something else", "retryAfterMs": 10},
        "nothing",
    ],
)
async def test_long_retry_after_is_not_followed(scene: Scene, data: Any) -> None:
    await scene.known()
    call, line = scene.call("look", timeout=60), scene.server.line
    line.error(await line.request("tools/call"), 1008, "away", data)
    with pytest.raises(PeerError, match="away"):
        await call


async def test_retry_without_time_left_raises_the_server_error(scene: Scene) -> None:
    await scene.known()
    call, line = scene.call("look", timeout=0.5), scene.server.line
    line.error(await line.request("tools/call"), 1008, "away", SOON)
    with pytest.raises(PeerError, match="away"):
        await call


async def test_unknown_tool_is_not_repeated() -> None:
    scene = Scene()
    scene.server.answered.discard("tools/list")
    async with scene.client:
        call = scene.call("look")
        await scene.server.line.request("tools/call")
        scene.server.line.die()
        with pytest.raises(OutcomeUnknown):
            await call


async def test_reads_lists_prompts_and_completions_are_repeated(scene: Scene) -> None:
    client = scene.client
    asked = [
        asyncio.create_task(client.read_resource("a:b")),
        asyncio.create_task(client.list_prompts()),
        asyncio.create_task(client.get_prompt("p")),
        asyncio.create_task(client.complete("prompt", "p", "a", "x")),
    ]
    await settle()
    scene.server.line.die()
    line = await scene.server.connected(2)
    results = {
        "resources/read": {"contents": []},
        "prompts/list": {"prompts": []},
        "prompts/get": {"messages": []},
        "completion/complete": {"completion": {"values": ["x1"]}},
    }
    for _ in asked:
        message = await line.receive()
        while message.get("method") not in results:
            message = await line.receive()
        line.reply(message, results[message["method"]])
    await asyncio.gather(*asked)


@HANDSHAKE
async def test_repeated_call_keeps_its_deadline(scene: Scene) -> None:
    await scene.known()
    scene.server.answered.discard("ping")
    call = scene.call("look", timeout=10)
    await settle()
    scene.clock.advance(7)
    scene.server.line.die()
    line = await scene.server.connected(2)
    await line.request("tools/call")
    scene.clock.advance(3.1)
    line.reply(await line.request("ping"), {})
    with pytest.raises(RequestTimeout):
        await call


async def test_call_without_reconnect_in_time_raises(scene: Scene) -> None:
    await scene.known()
    scene.server.refusals = [TransportError("down")] * 50
    call = scene.call("look", timeout=5)
    await settle()
    scene.server.line.die()
    for _ in range(6):
        await settle()
        scene.clock.advance(1)
    with pytest.raises(ConnectionClosed, match="not reconnected within 5 s"):
        await call


async def test_new_calls_wait_for_the_reconnect(scene: Scene) -> None:
    scene.server.refusals = [TransportError("down")]
    scene.server.line.die()
    await settle()
    assert scene.client.phase is Phase.RECONNECTING
    call = scene.call("pay")
    await settle()
    assert not call.done()
    scene.clock.advance(1)
    line = await scene.server.connected(2)
    line.reply(await line.request("tools/call"), DONE)
    assert (await call).data == "done"


@pytest.mark.row("F23", "X36")
async def test_reconnect_steps_are_reported(scene: Scene) -> None:
    scene.server.refusals = [TransportError("down")] * 3
    scene.server.line.die()
    for seconds in (1, 2, 4):
        await settle()
        scene.clock.advance(seconds)
    await scene.server.connected(2)
    await settle()
    failed = ["Failure", "IncrementRetryCount", "CheckMaxRetries"]
    assert scene.steps() == [
        "Attempt",
        *failed,
        *(["Backoff", "Attempt", *failed] * 2),
        "Backoff",
        "Attempt",
        "Success",
    ]
    waits = [fact.detail for fact in scene.observer.of(ReconnectStep) if fact.step == "Backoff"]
    assert waits == ["1 s", "2 s", "4 s"]


@pytest.mark.row("F12", "F25", "K13")
async def test_client_fails_after_the_last_attempt() -> None:
    scene = Scene(max_retries=2)
    async with scene.client:
        scene.server.refusals = [TransportError("down")] * 2
        scene.server.line.die()
        await settle()
        scene.clock.advance(1)
        await settle()
        assert scene.client.phase is Phase.FAILED
        [told] = scene.failures
        assert isinstance(told, RetriesExhausted)
        with pytest.raises(RetriesExhausted, match="2 consecutive attempts failed; down"):
            await scene.client.ping()
    assert scene.client.phase is Phase.CLOSED


@pytest.mark.row("F05")
async def test_failed_client_can_be_opened_again() -> None:
    scene = Scene(max_retries=1)
    await scene.client.open()
    scene.server.refusals = [TransportError("down")]
    scene.server.line.die()
    await settle()
    with pytest.raises(RetriesExhausted):
        await scene.client.ping()
    await scene.client.open()
    await scene.client.ping()
    await scene.client.close()


async def test_too_many_losses_in_a_period_degrade_the_client() -> None:
    scene = Scene()
    async with scene.client:
        await scene.known()
        for times in range(2, 7):
            scene.server.line.die()
            await scene.server.connected(times)
            await scene.client.ping()
        scene.server.line.die("gone again", last_words="Segmentation fault")
        with pytest.raises(Degraded, match=r"(?s)lost 6 times within 60 s; the limit is 5.*Segmentation fault"):
            await scene.client.call_tool("look")
        assert scene.client.phase is Phase.FAILED
        assert isinstance(scene.failures[0], Degraded)
        assert len(scene.server.lines) == 6


@pytest.mark.parametrize("renewing", [False, True])
async def test_server_that_exits_after_every_handshake_degrades_the_client(renewing: bool) -> None:
    scene = Scene()
    async with scene.client:
        if renewing:  # then it falls over before anybody else may use the line
            scene.server.answered.add("resources/subscribe")
            await scene.client.subscribe("a:1")
            scene.server.answered.discard("resources/subscribe")
        scene.server.line.die()
        for times in range(2, 7):
            await settle()
            scene.clock.advance(1 if renewing else 0)
            line = await scene.server.connected(times)
            await line.request("resources/subscribe" if renewing else "notifications/initialized")
            line.die()
        await settle()
        assert scene.client.phase is Phase.FAILED
        assert [type(failure) for failure in scene.failures] == [Degraded]


@pytest.mark.row("F10", "W23")
async def test_without_auto_reconnect_a_loss_fails_the_client() -> None:
    scene = Scene(auto_reconnect=False)
    async with scene.client:
        await scene.known()
        looking, paying = scene.call("look"), scene.call("pay")
        await settle()
        scene.server.line.die("gone", status=1)
        for call, kind in ((looking, ConnectionClosed), (paying, OutcomeUnknown)):
            with pytest.raises(ConnectionClosed, match="gone") as raised:
                await call
            assert type(raised.value) is kind
            assert raised.value.status == 1
        await settle()
        assert scene.client.phase is Phase.FAILED
        with pytest.raises(RetriesExhausted, match="retries are disabled; the connection closed: gone"):
            await scene.client.ping()
    assert len(scene.server.lines) == 1


@HANDSHAKE
async def test_subscriptions_log_level_and_tools_are_renewed(scene: Scene) -> None:
    scene.server.answered |= {"resources/subscribe", "resources/unsubscribe", "logging/setLevel"}
    await scene.known()
    await scene.client.subscribe("a:1")
    await scene.client.subscribe("a:2")
    await scene.client.unsubscribe("a:2")
    await scene.client.set_log_level("warning")
    scene.server.line.die()
    line = await scene.server.connected(2)
    await scene.client.ping()
    said = [(m.get("method"), m.get("params")) for m in line.transcript.said_by("client")]
    assert ("resources/subscribe", {"uri": "a:1"}) in said
    assert ("resources/subscribe", {"uri": "a:2"}) not in said
    assert ("logging/setLevel", {"level": "warning"}) in said
    assert "tools/list" in dict(said)
    assert scene.client.subscriptions == ("a:1",)


@HANDSHAKE
async def test_failed_renewal_of_a_subscription_does_not_block(scene: Scene) -> None:
    scene.server.answered.add("resources/subscribe")
    await scene.client.subscribe("a:1")
    scene.server.answered.discard("resources/subscribe")
    scene.server.line.die()
    line = await scene.server.connected(2)
    line.error(await line.request("resources/subscribe"), -32002, "gone")
    await scene.client.ping()


@HANDSHAKE
async def test_failed_handshake_of_a_reconnect_counts_as_an_attempt(scene: Scene) -> None:
    scene.server.revision = "2099-01-01"
    scene.server.line.die()
    await scene.server.connected(2)
    await settle()
    assert scene.client.phase is Phase.RECONNECTING
    assert scene.failures == []
    scene.server.revision = None
    scene.clock.advance(1)
    await scene.server.connected(3)
    await scene.client.ping()
    back = ["RECONNECTING", "CONNECTING", "INITIALIZING"]
    assert scene.phases()[3:] == [*back, *back, "READY"]


@pytest.mark.parametrize("last", ["initialize", "notifications/initialized"])
async def test_loss_during_handshake_reports_every_phase(last: str) -> None:
    scene = Scene()
    client = Client(Faults().kill(sent=last).on(scene.server), observers=[scene.observer])
    with pytest.raises(ConnectionClosed, match="killed by a fault"):
        await client.open()
    way = ["CONNECTING", "INITIALIZING", "READY", "FAILED"]
    assert scene.phases() == [phase for phase in way if last != "initialize" or phase != "READY"]
    await client.close()


# --- silence -----------------------------------------------------------------------------------------


@pytest.mark.row("K10")
@HANDSHAKE
async def test_answered_ping_after_timeout_keeps_the_connection(scene: Scene) -> None:
    scene.server.answered.discard("ping")
    call = scene.call("pay", timeout=2)
    await scene.server.line.request("tools/call")
    scene.clock.advance(2)
    ping = await scene.server.line.request("ping")
    assert not call.done()
    scene.server.line.reply(ping, {})
    with pytest.raises(RequestTimeout, match="tools/call was not done after 2 s") as raised:
        await call
    assert type(raised.value) is RequestTimeout
    assert scene.client.phase is Phase.READY


@pytest.mark.row("K10")
@HANDSHAKE
async def test_concurrent_timeouts_share_one_ping(scene: Scene) -> None:
    scene.server.answered.discard("ping")
    calls = [scene.call("pay", timeout=2) for _ in range(3)]
    await settle()
    scene.clock.advance(2)
    await settle()
    pings = [m for m in scene.server.line.waiting() if m.get("method") == "ping"]
    assert len(pings) == 1
    scene.server.line.reply(pings[0], {})
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert type(outcome) is RequestTimeout


INTERRUPTED = {"kind": "outcome_unknown", "interrupted": True}


async def test_interrupted_repeatable_call_is_repeated(scene: Scene) -> None:
    await scene.known()
    looking, paying = scene.call("look"), scene.call("pay")
    for _ in range(2):
        scene.server.line.error(await scene.server.line.request("tools/call"), -32603, "cut off", INTERRUPTED)
    scene.server.line.reply(await scene.server.line.request("tools/call"), DONE)
    assert (await looking).data == "done"
    with pytest.raises(OutcomeUnknown, match="tools/call of 'pay': cut off"):
        await paying
    assert len(scene.server.lines) == 1


async def test_final_unknown_outcome_is_not_repeated(scene: Scene) -> None:
    await scene.known()
    looking = scene.call("look")
    scene.server.line.error(await scene.server.line.request("tools/call"), -32603, "lost", {"kind": "outcome_unknown"})
    with pytest.raises(OutcomeUnknown, match="tools/call of 'look': lost"):
        await looking


@pytest.mark.row("K11")
@HANDSHAKE
async def test_unanswered_ping_after_timeout_reconnects(scene: Scene) -> None:
    scene.server.answered.discard("ping")
    call, other = scene.call("pay", timeout=2), scene.call("pay")
    await settle()
    scene.clock.advance(2)
    await settle()
    scene.clock.advance(5)
    with pytest.raises(TimeoutReconnecting) as raised:
        await call
    assert raised.value.kind == "timeout_reconnecting"
    with pytest.raises(OutcomeUnknown, match="does not respond to a ping"):
        await other
    await scene.server.connected(2)
    assert scene.server.lines[0].closed is not None


@pytest.mark.row("K11")
async def test_unanswered_ping_without_reconnect_is_a_connection_timeout() -> None:
    scene = Scene(auto_reconnect=False)
    async with scene.client:
        scene.server.answered.discard("ping")
        call = scene.call("pay", timeout=2)
        await settle()
        scene.clock.advance(2)
        await settle()
        scene.clock.advance(5)
        with pytest.raises(ConnectionTimeout) as raised:
            await call
        assert type(raised.value) is ConnectionTimeout
        await settle()
        assert scene.client.phase is Phase.FAILED


@pytest.mark.row("K04")
@HANDSHAKE
async def test_unanswered_ping_request_only_times_out(scene: Scene) -> None:
    scene.server.answered.discard("ping")
    ping = asyncio.create_task(scene.client.ping())
    await settle()
    scene.clock.advance(5)
    with pytest.raises(RequestTimeout, match="ping was not done after 5 s"):
        await ping
    assert scene.client.phase is Phase.READY


@pytest.mark.row("K18")
async def test_late_response_is_ignored(scene: Scene) -> None:
    late = scene.call("pay", timeout=2)
    request = await scene.server.line.request("tools/call")
    scene.clock.advance(2)
    with pytest.raises(RequestTimeout):
        await late
    next_call = scene.call("pay")
    second = await scene.server.line.request("tools/call")
    scene.server.line.reply(request, {"content": [{"type": "text", "text": "late"}]})
    await settle()
    assert not next_call.done()
    scene.server.line.reply(second, DONE)
    assert (await next_call).data == "done"


async def test_progress_renews_the_deadline_up_to_an_hour(scene: Scene) -> None:
    heard: list[float] = []
    call = scene.call("pay", timeout=10, on_progress=lambda told: heard.append(told.progress))
    request = await scene.server.line.request("tools/call")
    token = request["params"]["_meta"]["progressToken"]
    for step in range(1, 400):
        scene.clock.advance(9.5)
        await settle()
        if call.done():
            break
        scene.server.line.notify("notifications/progress", {"progressToken": token, "progress": step})
        await settle()
    assert heard == list(range(1, len(heard) + 1))
    assert 3590 <= len(heard) * 9.5 <= 3610
    with pytest.raises(RequestTimeout):
        await call


# --- a person on our side who is asked ---------------------------------------------------------------


def asked_on(scene: Scene, request: Any, *, begun: bool) -> None:
    """What a channel tells that waits until somebody has logged in."""
    last = scene.client._runtime.supervisor.latest  # type: ignore[union-attr]
    last.authorizing(request["id"], begun=begun)  # type: ignore[union-attr]


async def test_deadline_is_suspended_during_authorization(scene: Scene) -> None:
    call = scene.call("pay", timeout=10)
    request = await scene.server.line.request("tools/call")
    asked_on(scene, request, begun=True)
    scene.clock.advance(600)
    await settle()
    assert not call.done()
    asked_on(scene, request, begun=False)
    asked_on(scene, {"id": "long gone"}, begun=True)
    scene.clock.advance(9)
    await settle()
    assert not call.done()
    scene.clock.advance(2)
    with pytest.raises(RequestTimeout):
        await call


async def test_open_timeout_is_suspended_during_authorization() -> None:
    for questions, opened in ((1, True), (0, False)):
        scene = Scene(modern=True, probe_timeout=None, initialize_timeout=30)
        scene.server.answered.discard("server/discover")
        opening = asyncio.create_task(scene.client.open())
        line = await scene.server.connected(1)
        request = await line.request("server/discover")
        if questions:
            asked_on(scene, request, begun=True)
        for _ in range(4):
            scene.clock.advance(31)
            await settle()
        assert opening.done() is not opened
        if questions:
            asked_on(scene, request, begun=False)
        scene.clock.advance(31)
        with pytest.raises(HandshakeFailed, match="not ready within 30 s"):
            await opening
        await scene.client.close()


# --- closing -----------------------------------------------------------------------------------------


@pytest.mark.row("F06")
async def test_closed_client_refuses_calls(scene: Scene) -> None:
    await scene.client.close()
    assert scene.client.phase is Phase.CLOSED
    with pytest.raises(ConnectionClosed, match="was closed"):
        await scene.client.ping()


async def test_close_fails_pending_calls_by_what_is_known(scene: Scene) -> None:
    await scene.known()
    looking, paying = scene.call("look"), scene.call("pay")
    await settle()
    await scene.client.close()
    with pytest.raises(ConnectionClosed, match="the client was closed"):
        await looking
    with pytest.raises(OutcomeUnknown):
        await paying


async def test_client_can_be_closed_while_reconnecting(scene: Scene) -> None:
    scene.server.refusals = [TransportError("down")] * 9
    scene.server.line.die()
    await settle()
    waiting = asyncio.create_task(scene.client.ping())
    await settle()
    await scene.client.close()
    with pytest.raises(ConnectionClosed, match="was closed"):
        await waiting
    assert scene.client.phase is Phase.CLOSED
    assert scene.clock.waiting == 0


async def test_client_can_be_opened_and_closed_repeatedly(scene: Scene) -> None:
    for times in range(2, 5):
        await scene.client.close()
        await scene.client.close()
        await scene.client.open()
        await scene.client.open()
        await scene.client.ping()
        assert len(scene.server.lines) == times


async def test_cancelled_close_still_closes(scene: Scene) -> None:
    closing = asyncio.create_task(scene.client.close())
    await asyncio.sleep(0)
    closing.cancel()
    await settle()
    assert scene.client.phase is Phase.CLOSED
    assert scene.server.line.closed is not None


async def test_loss_and_reconnect_are_reported_to_on_phase() -> None:
    server, phases, news = ScriptedServer(), list[Phase](), asyncio.Event()

    def report(phase: Phase) -> None:
        phases.append(phase)
        news.set()
        raise ValueError  # of the callback: it changes nothing

    async with Client(server, on_phase=report) as client:
        assert phases == []
        server.line.die()
        await server.connected(2)
        while Phase.READY not in phases:
            news.clear()
            await asyncio.wait_for(news.wait(), PATIENCE)
        await client.ping()
    assert phases == [Phase.RECONNECTING, Phase.READY]
