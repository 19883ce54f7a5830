"""The server's WebSocket connection on real sockets, on either loop."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from tests.attacks import websocket_frames as frames
from tests.attacks.raw import Caller, until
from tests.contract.connections import Recorder, client_tls, server_tls
from tests.contract.upgrade import UpgradingServer, upgrading_server
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from trunkline import Settings
from trunkline.facts import ConnectionFailed, Observers
from trunkline.testing import ManualClock, RecordingObserver
from trunkline.transports.channel import Channel, ChannelClosed, MessageOrigin
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.websocket.server import WebSocketEndpoint
from trunkline.wire.messages import Encoded, Incoming, Notification, Request, Response

NOTE = b'{"jsonrpc":"2.0","method":"n"}'
MUCH = 64 << 20  # bytes; more than all buffers between two sockets hold


def ping(ident: int = 1) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % ident


def close_frame(code: int, reason: str = "") -> bytes:
    return frames.frame(struct.pack("!H", code) + reason.encode(), frames.CLOSE)


class Echo(Recorder):
    """A receiver that answers requests with their methods, and fails where it is told to."""

    def __init__(self, place: "Place", channel: Channel) -> None:
        super().__init__()
        self._place = place
        self.channel = channel

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        super().received(messages, origin)
        self._place.fail_if("received")
        for message in messages:
            if isinstance(message, Request):
                self.channel.send(Response(message.id, {"method": message.method}))  # type: ignore[arg-type]

    def closed(self, closed: ChannelClosed) -> None:
        super().closed(closed)
        self._place.fail_if("closed")

    @property
    def reasons(self) -> list[str]:
        return [end.reason for end in self.ends]


class Place:
    """A server of WebSockets without HTTP."""

    def __init__(self, expires_at: float | None = None, **settings: Any) -> None:
        self.faults: set[str] = set()
        self.receivers: list[Echo] = []
        self.observer = RecordingObserver()
        self.clock = ManualClock()
        self.leaked: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.leaked.append(context))
        used = Settings(**settings)
        self.guard = ListenerGuard(self._accept, used, self.clock, observers=Observers([self.observer]))
        self.endpoint = WebSocketEndpoint(self.guard, used)
        self.server = UpgradingServer(self.endpoint, principal="somebody", expires_at=expires_at)
        self.port = 0

    def fail_if(self, fault: str) -> None:
        if fault in self.faults:
            self.faults.remove(fault)
            raise RuntimeError(f"{fault} fails")

    def _accept(self, channel: Channel) -> Echo:
        self.fail_if("accept")
        self.receivers.append(Echo(self, channel))
        return self.receivers[-1]

    async def receiver(self, index: int = 0) -> Echo:
        await until(lambda: len(self.receivers) > index, "a connection")
        return self.receivers[index]

    async def ended(self, index: int = 0) -> str:
        """Wait for the end of a connection; return its reason."""
        receiver = await self.receiver(index)
        await until(lambda: receiver.ends and not len(self.endpoint), "the end of the connection")
        assert len(receiver.ends) == 1
        assert self.server.lost == len(self.receivers)
        return receiver.reasons[0]


@asynccontextmanager
async def serving(*, tls: bool = False, expires_at: float | None = None, **settings: Any) -> AsyncIterator[Place]:
    place = Place(expires_at, **settings)
    async with upgrading_server(place.server, tls=server_tls() if tls else None) as place.port:
        yield place
    await until(lambda: not len(place.endpoint), "the end of all connections")
    assert place.leaked == []
    assert place.guard.peer_count == 0


@asynccontextmanager
async def client_of(place: Place, *, tls: bool = False, **options: Any) -> AsyncIterator[ClientConnection]:
    url = f"{'wss' if tls else 'ws'}://127.0.0.1:{place.port}/mcp"
    defaults: dict[str, Any] = {"subprotocols": ["mcp"], "ping_interval": None, "proxy": None, "max_size": None}
    if tls:
        defaults |= {"ssl": client_tls(), "server_hostname": "localhost"}
    async with connect(url, **{**defaults, **options}) as client:
        yield client


@asynccontextmanager
async def opened(place: Place, rest: bytes = b"") -> AsyncIterator[Caller]:
    """A connection by hand, after the handshake; `rest` is sent with the request."""
    async with Caller(place.port) as caller:
        caller.say(frames.upgrade() + rest)
        assert (await caller.head()).status == 101
        yield caller


async def end_of(client: ClientConnection) -> tuple[int | None, str | None]:
    """The code and reason of the server's close frame."""
    try:
        while True:
            await client.recv()
    except ConnectionClosed:
        return client.close_code, client.close_reason


Scenario = Callable[[], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on a loop of its own."""

    async def within(scenario: Scenario) -> None:
        async with asyncio.timeout(60):
            await scenario()

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(within(scenario))

    return run


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
def test_messages_pass_in_both_directions(run: Run, tls: bool) -> None:
    async def scenario() -> None:
        async with serving(tls=tls) as place, client_of(place, tls=tls) as client:
            assert client.subprotocol == "mcp"
            assert client.response is not None
            assert "permessage-deflate" not in str(client.response.headers)
            await client.send(ping(7).decode())
            assert json.loads(await client.recv())["id"] == 7
            receiver = await place.receiver()
            large = Notification("n", {"x": "é" * 300_000})  # type: ignore[arg-type]
            receiver.channel.send(large)
            assert len(json.loads(await client.recv())["params"]["x"]) == 300_000
            await client.send(['{"jsonrpc":"2.0",', '"id":8,', '"method":"ping"}'])
            assert json.loads(await client.recv())["id"] == 8
            await (await client.ping(b"there?"))
            origin = receiver.origins[0]
            assert origin.principal == "somebody"
            assert origin.headers is not None
            assert origin.headers["Sec-WebSocket-Protocol"] == "mcp"
            assert receiver.channel.info.peer == f"127.0.0.1:{client.local_address[1]}"

    run(scenario)


def test_bytes_after_the_request_are_processed(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, opened(place, frames.frame(ping(3))) as caller:
            assert (await frames.message(caller))["id"] == 3

    run(scenario)


def test_messages_of_one_read_are_delivered_and_answered_together(run: Run) -> None:
    async def scenario() -> None:
        rest = b"".join(frames.frame(ping(number)) for number in range(10))
        async with serving() as place, opened(place, rest) as caller:
            assert [(await frames.message(caller))["id"] for _ in range(10)] == list(range(10))
            assert len(place.receivers[0].origins) == 1

    run(scenario)


def test_ping_between_fragments_is_answered(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, opened(place) as caller:
            caller.say(frames.frame(ping()[:5], last=False) + frames.frame(b"x", frames.PING))
            assert await frames.heard(caller) == (0xA, b"x")
            caller.say(frames.frame(ping()[5:], frames.CONTINUED))
            assert (await frames.message(caller))["id"] == 1

    run(scenario)


def test_invalid_text_is_replaced_before_it_is_sent(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, client_of(place) as client:
            receiver = await place.receiver()
            receiver.channel.send(Encoded(b'{"a":\n"\xff"}'))
            assert await client.recv() == '{"a":\n"\ufffd"}'

    run(scenario)


def test_paused_channel_stops_reading_until_resumed(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, client_of(place) as client:
            receiver = await place.receiver()
            receiver.channel.pause()
            await client.send(NOTE.decode())
            receiver.channel.send(Notification("while_paused"))
            assert json.loads(await client.recv())["method"] == "while_paused"
            assert not place.server.transports[0].is_reading()
            assert receiver.messages == []
            receiver.channel.resume()
            await until(lambda: receiver.methods == ["n"], "the message")

    run(scenario)


# --- handshakes ----------------------------------------------------------------------------------


def test_client_without_subprotocol_is_accepted(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, client_of(place, subprotocols=None) as client:
            assert client.subprotocol is None

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "options", "status", "reason"),
    [
        ({}, {"subprotocols": ["other"]}, 400, "none of the subprotocols is 'mcp'"),
        ({"max_connections": 1}, {}, 503, "too many connections"),
    ],
    ids=["subprotocol", "capacity"],
)
def test_refused_client_gets_status_and_reason(
    run: Run, settings: dict[str, Any], options: dict[str, Any], status: int, reason: str
) -> None:
    async def scenario() -> None:
        async with serving(**settings) as place, client_of(place):
            with pytest.raises(InvalidStatus) as caught:
                async with client_of(place, **options):
                    pass
            response = caught.value.response
            assert response.status_code == status
            assert reason in (response.body or b"").decode()
            assert response.headers.get("Retry-After") == ("30" if status == 503 else None)
            assert len(place.receivers) == len(place.endpoint) == 1

    run(scenario)


def test_invalid_handshake_is_refused(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, Caller(place.port) as caller:
            caller.say(frames.upgrade(sec_websocket_version="8"))
            answer = await caller.answer()
            assert (answer.status, answer.headers["sec-websocket-version"]) == (426, "13")
            assert place.receivers == []

    run(scenario)


def test_connection_lost_before_the_handshake_ends_is_not_opened(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, Caller(place.port) as caller:
            place.server.close_first = True
            caller.say(frames.upgrade())
            assert await caller.rest() == b""
            assert len(place.endpoint) == place.server.lost == 0

    run(scenario)


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([frames.frame(b" " * 2049)], 1009),
        ([frames.frame(b" " * 1024, last=False), frames.frame(b" " * 1025, frames.CONTINUED)], 1009),
        ([b"\x81\xff" + (1 << 40).to_bytes(8, "big")], 1009),
        ([frames.frame(b"", last=False), frames.frame(b"", frames.CONTINUED, last=False) * 5000], 1009),
        ([frames.frame(b"{}", 0x2)], 1003),
        ([frames.frame(b"\xff")], 1007),
        ([frames.frame(b"{}", 0x3)], 1002),
        ([b"GET / HTTP/1.1\r\n\r\n"], 1002),
    ],
    ids=["size", "size of fragments", "claimed size", "frames", "binary", "UTF-8", "opcode", "HTTP"],
)
def test_unusable_frames_close_the_connection_after_earlier_answers(run: Run, said: list[bytes], code: int) -> None:
    async def scenario() -> None:
        rest = b"".join([frames.frame(ping()), *said])
        async with serving(ws_message_size_limit=2048) as place, opened(place, rest) as caller:
            caller.say(frames.frame(ping(2)) * 1000)  # discarded, without a reset of the connection
            assert (await frames.message(caller))["id"] == 1
            assert await frames.closed_with(caller) == code
            assert await caller.rest() == b""
            caller.writer.close()
            await place.ended()
            assert len(place.receivers[0].messages) == 1

    run(scenario)


@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
def test_client_reads_code_and_reason_of_a_failure(run: Run, tls: bool) -> None:
    async def scenario() -> None:
        async with serving(tls=tls) as place, client_of(place, tls=tls) as client:
            await client.send(b"{}")
            assert await end_of(client) == (1003, "a message is a text frame, not a binary one")
            assert await place.ended() == "a message is a text frame, not a binary one"

    run(scenario)


def test_pings_without_reading_pongs_are_disconnected(run: Run) -> None:
    async def scenario() -> None:
        pings = frames.frame(b"x" * 125, frames.PING) * 1000
        async with serving(unsent_high=1 << 16, unsent_limit=1 << 30) as place, opened(place) as caller:
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            sent = 0
            while not caller.writer.transport.is_closing() and not (await place.receiver()).ends:
                assert sent < MUCH
                caller.say(pings)
                sent += len(pings)
                await caller.all_said()
            assert await place.ended() == "the peer sent pings and did not read the pongs"

    run(scenario)


def test_pings_are_answered_while_pongs_are_read(run: Run) -> None:
    async def scenario() -> None:
        async with serving(unsent_high=1000) as place, opened(place) as caller:
            for _ in range(5):
                caller.say(frames.frame(b"x" * 125, frames.PING) * 1000)
                for _ in range(1000):
                    assert await frames.heard(caller) == (0xA, b"x" * 125)

    run(scenario)


# --- slow readers --------------------------------------------------------------------------------


def test_slow_reader_gets_every_message(run: Run) -> None:
    async def scenario() -> None:
        async with serving(unsent_high=1 << 16, unsent_limit=1 << 30) as place, client_of(place) as client:
            receiver = await place.receiver()
            client.transport.pause_reading()
            note = Notification("n", {"x": "x" * 100_000})  # type: ignore[arg-type]
            count = 0
            while place.server.transports[0].get_write_buffer_size() < 1 << 20:
                receiver.channel.send(note)
                count += 1
                await asyncio.sleep(0)
            await client.send(NOTE.decode())
            drained = asyncio.ensure_future(receiver.channel.drain())
            await asyncio.sleep(0)
            assert not drained.done()
            assert not place.server.transports[0].is_reading()
            client.transport.resume_reading()
            for _ in range(count):
                await client.recv()
            await drained
            await until(lambda: receiver.methods == ["n"], "the message")

    run(scenario)


def test_peer_that_never_reads_is_disconnected(run: Run) -> None:
    async def scenario() -> None:
        async with serving(unsent_high=1 << 16, unsent_limit=1 << 20) as place, opened(place) as caller:
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            receiver = await place.receiver()
            while not receiver.ends:
                receiver.channel.send(Notification("n", {"x": "x" * 100_000}))  # type: ignore[arg-type]
                await asyncio.sleep(0)
            assert "bytes unread" in await place.ended()

    run(scenario)


def test_reader_that_resumes_in_time_gets_everything_and_the_close_frame(run: Run) -> None:
    async def scenario() -> None:
        async with serving(unsent_high=1 << 16, unsent_limit=1 << 20) as place, client_of(place) as client:
            client.transport.pause_reading()
            receiver = await place.receiver()
            while not receiver.ends:
                receiver.channel.send(Notification("n", {"x": "x" * 100_000}))  # type: ignore[arg-type]
                await asyncio.sleep(0)
            client.transport.resume_reading()
            assert await end_of(client) == (1013, "too much was left unread")

    run(scenario)


def test_close_sends_pending_messages_first(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, client_of(place) as client:
            receiver = await place.receiver()
            client.transport.pause_reading()
            note = Notification("n", {"x": "x" * 1_000_000})  # type: ignore[arg-type]
            for _ in range(20):
                receiver.channel.send(note)
            closing = asyncio.ensure_future(receiver.channel.close())
            await asyncio.sleep(0)
            client.transport.resume_reading()
            for _ in range(20):
                assert len(await client.recv()) > 1_000_000
            assert await end_of(client) == (1001, "")
            await closing
            assert await place.ended() == "closed"

    run(scenario)


# --- closing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
def test_close_of_the_client_is_answered(run: Run, tls: bool) -> None:
    async def scenario() -> None:
        async with serving(tls=tls) as place, client_of(place, tls=tls) as client:
            await client.close(4000, "bye")
            assert (client.close_code, client.close_reason) == (4000, "bye")
            assert await place.ended() == "the peer closed the connection: 4000 bye"

    run(scenario)


def test_messages_before_the_close_frame_are_answered(run: Run) -> None:
    async def scenario() -> None:
        rest = frames.frame(ping()) + close_frame(1000) + frames.frame(ping(2))
        async with serving() as place, opened(place, rest) as caller:
            assert (await frames.message(caller))["id"] == 1
            assert await frames.heard(caller) == (frames.CLOSE, b"\x03\xe8")
            assert await caller.rest() == b""
            assert await place.ended() == "the peer closed the connection: 1000"

    run(scenario)


def test_messages_before_the_close_frame_are_delivered_while_paused(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, opened(place) as caller:
            receiver = await place.receiver()
            received, receiver.received = receiver.received, lambda *_: receiver.channel.pause()  # type: ignore[method-assign]
            caller.say(frames.frame(NOTE))
            await until(lambda: not place.server.transports[0].is_reading(), "the pause")
            receiver.received = received  # type: ignore[method-assign]
            caller.say(frames.frame(NOTE) * 3 + close_frame(1000))
            receiver.channel.resume()
            assert await place.ended() == "the peer closed the connection: 1000"
            assert receiver.methods == ["n"] * 3

    run(scenario)


@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
def test_endpoint_closes_connections_with_its_reason(run: Run, tls: bool) -> None:
    async def scenario() -> None:
        async with serving(tls=tls) as place, client_of(place, tls=tls) as client:
            receiver = await place.receiver()
            receiver.channel.send(Notification("last"))
            place.endpoint.close("the server has stopped")
            assert json.loads(await client.recv())["method"] == "last"
            assert await end_of(client) == (1001, "the server has stopped")
            assert await place.ended() == "the server has stopped"

    run(scenario)


@pytest.mark.parametrize(
    ("expires_at", "reason"),
    [
        (10.0, "the credentials of this connection have expired"),
        (None, "the peer sent no valid message within 30 s"),
    ],
    ids=["credentials", "first message"],
)
def test_disconnected_client_gets_a_policy_violation(run: Run, expires_at: float | None, reason: str) -> None:
    async def scenario() -> None:
        async with serving(expires_at=expires_at) as place, client_of(place) as client:
            place.clock.advance(30)
            assert await end_of(client) == (1008, reason)
            assert await place.ended() == reason

    run(scenario)


def test_client_that_does_not_answer_a_close_frame_is_disconnected(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, opened(place) as caller:
            receiver = await place.receiver()
            await receiver.channel.close()
            assert await frames.heard(caller) == (frames.CLOSE, b"\x03\xe9")
            assert await place.ended() == "closed"

    run(scenario)


def test_messages_after_our_close_frame_are_ignored(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, opened(place) as caller:
            receiver = await place.receiver()
            closing = asyncio.ensure_future(receiver.channel.close())
            assert await frames.heard(caller) == (frames.CLOSE, b"\x03\xe9")
            caller.say(frames.frame(NOTE) + frames.frame(b"{}", 0x2) + frames.frame(b"x", frames.PING))
            assert await frames.heard(caller) == (0xA, b"x")
            caller.say(close_frame(1001))
            assert await caller.rest() == b""
            await closing
            assert receiver.messages == []

    run(scenario)


@pytest.mark.parametrize("way", ["abort", "end of stream"])
def test_lost_connection_closes_the_channel(run: Run, way: str) -> None:
    async def scenario() -> None:
        async with serving() as place, opened(place) as caller:
            caller.say(frames.frame(NOTE))
            receiver = await place.receiver()
            await until(lambda: receiver.messages, "the message")
            if way == "abort":
                caller.writer.transport.abort()
            else:
                caller.writer.write_eof()
            assert (await place.ended()).startswith("the connection broke")
            await receiver.channel.close()  # returns at once

    run(scenario)


def test_lost_connection_ends_a_waiting_close(run: Run) -> None:
    async def scenario() -> None:
        async with serving(drain_timeout=None) as place, opened(place) as caller:
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            receiver = await place.receiver()
            while not place.server.transports[0].get_write_buffer_size():
                receiver.channel.send(Notification("n", {"x": "x" * 1_000_000}))  # type: ignore[arg-type]
                await asyncio.sleep(0)
            closing = asyncio.ensure_future(receiver.channel.close())
            await asyncio.sleep(0)
            assert not closing.done()
            caller.writer.transport.abort()
            await closing
            await place.ended()

    run(scenario)


# --- internal errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["received", "closed"])
def test_failing_connection_is_closed_and_reported_alone(run: Run, fault: str) -> None:
    async def scenario() -> None:
        async with serving() as place, opened(place) as other:
            await place.receiver()
            place.faults.add(fault)
            async with opened(place, frames.frame(ping())) as caller:
                if fault == "closed":
                    caller.say(close_frame(1000))
                await caller.rest()
            await until(lambda: place.observer.of(ConnectionFailed), "a report")
            [fact] = place.observer.of(ConnectionFailed)
            assert (fact.transport, str(fact.error)) == ("websocket", f"{fault} fails")
            assert fact.peer == place.receivers[1].channel.info.peer
            await until(lambda: place.server.lost == 1, "the end of the connection")
            assert len(place.receivers[1].ends) == len(place.endpoint) == 1
            other.say(frames.frame(ping()))
            assert (await frames.message(other))["id"] == 1

    run(scenario)


@pytest.mark.parametrize("cause", ["endpoint", "timer"])
def test_error_while_the_server_closes_is_reported(run: Run, cause: str) -> None:
    async def scenario() -> None:
        async with serving() as place, opened(place) as caller:
            await place.receiver()
            place.faults.add("closed")
            if cause == "endpoint":
                place.endpoint.close("the server has stopped")
            else:
                place.clock.advance(30)
            await caller.rest()
            await place.ended()
            [fact] = place.observer.of(ConnectionFailed)
            assert str(fact.error) == "closed fails"

    run(scenario)


def test_failing_admission_is_refused_with_its_incident(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as place, Caller(place.port) as caller:
            place.faults.add("accept")
            caller.say(frames.upgrade())
            answer = await caller.answer()
            [fact] = place.observer.of(ConnectionFailed)
            assert (answer.status, fact.transport) == (500, "websocket")
            assert fact.incident in answer.body.decode()
            assert len(place.endpoint) == place.server.lost == 0

    run(scenario)


def test_error_of_the_owner_of_the_transport_is_reported(run: Run) -> None:
    async def scenario() -> None:
        def fail() -> None:
            raise RuntimeError("on_closed fails")

        async with serving() as place:
            place.server.on_closed = fail  # type: ignore[method-assign]
            async with opened(place) as caller:
                receiver = await place.receiver()
                caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
                while place.server.transports[0].get_write_buffer_size() < 1 << 20:
                    receiver.channel.send(Notification("n", {"x": "x" * 100_000}))  # type: ignore[arg-type]
                    await asyncio.sleep(0)
                caller.say(close_frame(1000))
                await until(lambda: receiver.ends, "the close frame")
                caller.writer.transport.resume_reading()  # type: ignore[attr-defined]
                await caller.rest()
            await until(lambda: place.observer.of(ConnectionFailed), "a report")
            [fact] = place.observer.of(ConnectionFailed)
            assert str(fact.error) == "on_closed fails"

    run(scenario)


def test_failing_flow_control_is_reported(run: Run) -> None:
    async def scenario() -> None:
        async with serving(unsent_high=1 << 16, unsent_limit=1 << 17) as place, opened(place) as caller:
            receiver = await place.receiver()
            place.faults.add("closed")
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            while not receiver.ends:
                receiver.channel.send(Notification("n", {"x": "x" * 10_000}))  # type: ignore[arg-type]
                await asyncio.sleep(0)
            await place.ended()
            [fact] = place.observer.of(ConnectionFailed)
            assert str(fact.error) == "closed fails"

    run(scenario)
