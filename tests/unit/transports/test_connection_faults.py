"""An internal error on one connection: reported as one incident, and the end of that connection alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.attacks import websocket_frames
from tests.attacks.raw import Caller, initialize, request, until
from tests.contract.connections import Recorder

from trunkline import Settings
from trunkline.clock import LoopClock
from trunkline.facts import ConnectionFailed, HandlerFailed, Observers
from trunkline.observers.logs import LogObserver
from trunkline.testing import ManualClock, RecordingObserver
from trunkline.transports.addresses import parse_address
from trunkline.transports.channel import Channel, ChannelClosed, Listener, MessageOrigin
from trunkline.transports.http.authenticator import CallbackAuthenticator
from trunkline.transports.http.listen import listen_http
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.tcp import listen_tcp
from trunkline.transports.unix import listen_unix
from trunkline.wire.messages import Incoming, Notification

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


class Faulty(Recorder):
    """A receiver that fails at a chosen call."""

    def __init__(self, place: "FaultyListener", channel: Channel) -> None:
        super().__init__()
        self._place = place
        self.channel = channel

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        super().received(messages, origin)
        self._place.fail_if("received")

    def closed(self, closed: ChannelClosed) -> None:
        super().closed(closed)
        self._place.fail_if("closed")


class FaultyListener:
    """A listener whose peers get faulty receivers."""

    def __init__(self, **settings: Any) -> None:
        self.faults: set[str] = set()
        self.seen = RecordingObserver()
        self.receivers: list[Faulty] = []
        self.leaked: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.leaked.append(context))
        observers = Observers([self.seen, LogObserver()])
        self.guard = ListenerGuard(self._accept, Settings(**settings), LoopClock(loop), observers=observers)

    def fail_if(self, fault: str) -> None:
        if fault in self.faults:
            self.faults.remove(fault)
            raise RuntimeError(f"{fault} fails")

    def _accept(self, channel: Channel) -> Faulty:
        self.fail_if("accept")
        self.receivers.append(Faulty(self, channel))
        return self.receivers[-1]

    def identify(self, _: Any) -> None:
        self.fail_if("identify")

    async def failed(self, transport: str, error: str) -> ConnectionFailed:
        """Return the one reported failure."""
        await until(lambda: self.seen.of(ConnectionFailed), "a report")
        [fact] = self.seen.of(ConnectionFailed)
        assert (fact.transport, str(fact.error)) == (transport, error)
        assert self.leaked == []
        return fact


Scenario = Callable[[], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Run a scenario on a new loop."""

    async def within(scenario: Scenario) -> None:
        async with asyncio.timeout(60):
            await scenario()

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(within(scenario))

    return run


def port_of(listener: Listener) -> int:
    return parse_address(listener.address).port


async def end(listener: Listener) -> None:
    await listener.close()
    await listener.wait_closed()


@pytest.fixture(params=["tcp", "unix"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


async def listening(place: FaultyListener, transport: str, folder: Path) -> tuple[Listener, int | str]:
    if transport == "tcp":
        listener = await listen_tcp(place.guard)
        return listener, port_of(listener)
    return await listen_unix(place.guard, folder / "s"), str(folder / "s")


@pytest.mark.parametrize("fault", ["accept", "received", "closed"])
def test_failing_connection_is_closed_and_reported_alone(
    run: Callable[[Scenario], None], transport: str, fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        place = FaultyListener()
        listener, at = await listening(place, transport, tmp_path)
        async with Caller(at) as other:
            other.say(PING + b"\n")
            await until(lambda: place.receivers and place.receivers[0].messages, "the first message")
            place.faults.add(fault)
            async with Caller(at) as caller:
                caller.say(PING + b"\n")
                if fault == "closed":
                    caller.writer.write_eof()
                assert await caller.rest() == b""
            fact = await place.failed(transport, f"{fault} fails")
            other.say(PING + b"\n")
            await until(lambda: len(place.receivers[0].messages) == 2, "the next message of another line")
            assert place.receivers[0].ends == []
        [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert fact.incident in record.getMessage()
        assert record.exc_info is not None
        await end(listener)

    run(scenario)


def test_failing_write_closes_and_reports_the_connection(
    run: Callable[[Scenario], None], transport: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        place = FaultyListener(unsent_high=1 << 16, unsent_limit=1 << 17)
        listener, at = await listening(place, transport, tmp_path)
        async with Caller(at) as caller:
            caller.say(PING + b"\n")
            await until(lambda: place.receivers and place.receivers[0].messages, "the first message")
            place.faults.add("closed")
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            notice = Notification("notifications/nothing", {"much": "x" * (1 << 15)})  # type: ignore[arg-type]
            while not place.receivers[0].ends:
                place.receivers[0].channel.send(notice)
                await asyncio.sleep(0)
            await place.failed(transport, "closed fails")
        await end(listener)

    run(scenario)


@pytest.mark.parametrize("fault", ["identify", "received"])
def test_failing_http_request_gets_its_incident_id(
    run: Callable[[Scenario], None], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        place = FaultyListener()
        listener = await listen_http(place.guard, path="/mcp", authenticator=CallbackAuthenticator(place.identify))
        port = port_of(listener)
        async with Caller(port) as other:
            other.say(request("GET", "/mcp"))
            assert (await other.answer("GET")).status == 400
            place.faults.add(fault)
            async with Caller(port) as caller:
                caller.say(request("POST", "/mcp", initialize()))
                answer = await caller.answer()
                assert await caller.rest() == b""
            fact = await place.failed("http", f"{fault} fails")
            assert (answer.status, answer.headers["connection"]) == (500, "close")
            assert fact.incident in answer.body.decode()
            assert fact.peer.startswith("127.0.0.1:")
            other.say(request("GET", "/mcp"))
            assert (await other.answer("GET")).status == 400
        [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert fact.incident in record.getMessage()
        assert record.exc_info is not None
        await end(listener)

    run(scenario)


@pytest.mark.parametrize("fault", ["identify", "received"])
def test_failing_websocket_is_closed_and_reported_alone(run: Callable[[Scenario], None], fault: str) -> None:
    async def scenario() -> None:
        place = FaultyListener()
        listener = await listen_http(place.guard, path="/mcp", authenticator=CallbackAuthenticator(place.identify))
        port = port_of(listener)
        async with Caller(port) as other:
            other.say(websocket_frames.upgrade())
            assert (await other.head()).status == 101
            place.faults.add(fault)
            async with Caller(port) as caller:
                caller.say(websocket_frames.upgrade())
                assert (await caller.head()).status == (500 if fault == "identify" else 101)
                if fault == "received":
                    caller.say(websocket_frames.frame(PING))
                await caller.rest()
            await place.failed("http" if fault == "identify" else "websocket", f"{fault} fails")
            other.say(websocket_frames.frame(PING))
            await until(lambda: place.receivers[0].messages, "a message of another connection")
        await end(listener)

    run(scenario)


def test_failure_observers_receive_connection_failed() -> None:
    class Failures(RecordingObserver):
        failures_only = True

    heard = Failures()
    observers = Observers([heard])
    assert not observers
    guard = ListenerGuard(lambda _: Recorder(), Settings(), ManualClock(), observers=observers)
    incident = guard.connection_failed("http", "somewhere", ValueError("x"))
    assert [fact.incident for fact in heard.of(ConnectionFailed)] == [incident]
    assert heard.of(HandlerFailed) == []
