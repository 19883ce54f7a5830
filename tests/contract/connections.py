"""Connections of each kind, both ends in this process, for the suite that runs over all of them."""

import asyncio
import os
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.contract.asgi import asgi_server
from tests.contract.upgrade import UpgradingServer, upgrading_server
from tests.limits import PATIENCE

from trunkline import Settings
from trunkline.clock import LoopClock
from trunkline.transports.addresses import parse_address
from trunkline.transports.channel import Accept, Channel, ChannelClosed, ChannelInfo, Connector, Listener, MessageOrigin
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.memory import memory_pair
from trunkline.transports.stdio.client import Command
from trunkline.transports.stdio.fd_stream import open_reader, open_writer
from trunkline.transports.stream import FramingName, StreamChannel
from trunkline.transports.tcp import TcpConnector, listen_tcp
from trunkline.transports.unix import UnixConnector, listen_unix
from trunkline.transports.websocket.client import WebSocketConnector
from trunkline.transports.websocket.server import WebSocketEndpoint
from trunkline.wire.messages import Incoming, Notification, RequestId

CERTIFICATE = Path(__file__).parent / "localhost.pem"


class Recorder:
    """A receiver that records its calls."""

    def __init__(self) -> None:
        self.messages: list[Incoming] = []
        self.origins: list[MessageOrigin] = []
        self.ends: list[ChannelClosed] = []
        self.questions: list[tuple[RequestId, bool]] = []
        self.questions: list[tuple[RequestId, bool]] = []
        self.without_answer: list[tuple[RequestId, ChannelClosed]] = []

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        assert messages
        assert not self.ends
        self.messages += messages
        self.origins.append(origin)

    def unanswered(self, request: RequestId, closed: ChannelClosed) -> None:
        self.without_answer.append((request, closed))

    def authorizing(self, request: RequestId, *, begun: bool) -> None:
        self.questions.append((request, begun))

    def closed(self, closed: ChannelClosed) -> None:
        self.ends.append(closed)

    @property
    def methods(self) -> list[str]:
        return [message.method for message in self.messages]  # type: ignore[union-attr]

    @property
    def ids(self) -> list[Any]:
        return [message.id for message in self.messages]  # type: ignore[union-attr]


@dataclass
class ConnectionPair:
    """Two ends of a connection, and the receiver of each."""

    ours: Channel
    theirs: Channel
    at_ours: Recorder = field(default_factory=Recorder)
    at_theirs: Recorder = field(default_factory=Recorder)
    principal: Any = None  # the principal at our end

    async def settle(self) -> None:
        """Wait until our messages must have arrived: they send one back, and we receive it."""
        before = len(self.at_ours.messages)
        self.theirs.send(Notification("settle"))
        await until(lambda: len(self.at_ours.messages) > before)
        await turns()


def listener_limits(accept: Accept, settings: Settings | None = None) -> ListenerGuard:
    """The limits of a listener."""
    return ListenerGuard(accept, settings or Settings(), LoopClock(asyncio.get_running_loop()))


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def until(truth: Callable[[], Any]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not truth():
        assert time.monotonic() < deadline, f"not true within {PATIENCE} s"
        await asyncio.sleep(0.001)


# --- within the process ----------------------------------------------------------------------------------


@asynccontextmanager
async def memory(settings: Settings) -> AsyncIterator[ConnectionPair]:
    ours, theirs = memory_pair("somebody")
    line = ConnectionPair(ours, theirs, principal="somebody")
    ours.open(line.at_ours)
    theirs.open(line.at_theirs)
    yield line


class Pipe:
    """A byte stream from one `StreamChannel` into another, which can be paused."""

    def __init__(self) -> None:
        self.unsent = 0
        self._queue: list[bytes] = []
        self._flowing = True
        self._ended = False
        self._from: StreamChannel
        self._into: StreamChannel

    def join(self, from_: StreamChannel, into: StreamChannel) -> None:
        self._from, self._into = from_, into

    def write(self, data: bytes) -> None:
        self._queue.append(bytes(data))
        self.unsent += len(data)
        self._flow()

    def _flow(self) -> None:
        while self._queue and self._flowing:
            data = self._queue.pop(0)
            self.unsent -= len(data)
            self._into.feed(data)
        self._from.update_flow()
        if self._ended and not self._queue:
            self._into.receive_eof(ChannelClosed("end of stream"))

    def pause(self) -> None:
        self._flowing = False

    def resume(self) -> None:
        self._flowing = True
        asyncio.get_running_loop().call_soon(self._flow)

    def close(self) -> None:
        self._flowing = False
        self._queue.clear()
        self.unsent = 0

    async def finish(self) -> None:
        while self.unsent and self._flowing:
            await asyncio.sleep(0)
        self._ended = True
        asyncio.get_running_loop().call_soon(self._flow)

    async def wait_closed(self) -> None: ...


def _channels(settings: Settings, framing: FramingName) -> tuple[StreamChannel, StreamChannel]:
    options: dict[str, Any] = {"max_frame": settings.stdio_message_size_limit, "settings": settings}
    return (
        StreamChannel(ChannelInfo("stream", "them"), **options, framing=framing, read_while_blocked=True),
        StreamChannel(ChannelInfo("stream", "us"), **options, origin=MessageOrigin(principal="somebody")),
    )


@asynccontextmanager
async def stream(settings: Settings, framing: FramingName = "lines") -> AsyncIterator[ConnectionPair]:
    there, back = Pipe(), Pipe()
    ours, theirs = _channels(settings, framing)
    line = ConnectionPair(ours, theirs, principal="somebody")
    there.join(ours, theirs)
    back.join(theirs, ours)
    ours.open(line.at_ours, back, there)
    theirs.open(line.at_theirs, there, back)
    yield line


@asynccontextmanager
async def pipes(settings: Settings, framing: FramingName = "lines") -> AsyncIterator[ConnectionPair]:
    """The pipes of stdio, without a process: closing a channel closes its output."""
    loop, there, back = asyncio.get_running_loop(), os.pipe(), os.pipe()
    ours, theirs = _channels(settings, framing)
    line = ConnectionPair(ours, theirs, principal="somebody")

    def open_(channel: StreamChannel, recorder: Recorder, reading: int, writing: int) -> None:
        def broke(error: OSError) -> None:
            channel.abort(ChannelClosed("broke", error))

        class Source:
            def close(self) -> None:
                source.close()
                sink.close()
                os.close(writing)
                os.close(reading)

            def __getattr__(self, name: str) -> Any:
                return getattr(source, name)

        source = open_reader(loop, reading, channel.feed, lambda: channel.receive_eof(ChannelClosed("end of stream")))
        sink = open_writer(loop, writing, channel.update_flow, broke)
        channel.open(recorder, Source(), sink)  # type: ignore[arg-type]
        source.resume()

    open_(ours, line.at_ours, back[0], there[1])
    open_(theirs, line.at_theirs, there[0], back[1])
    yield line


# --- over sockets ----------------------------------------------------------------------------------------

Listen = Callable[[Accept], Any]


async def _accepted(listen: Listen, connector: Callable[[Listener], Connector]) -> tuple[ConnectionPair, Listener]:
    """A connection to a listener of our own."""
    there: list[Channel] = []
    at_theirs, at_ours = Recorder(), Recorder()

    def accept(channel: Channel) -> Recorder:
        there.append(channel)
        return at_theirs

    listener = await listen(accept)
    ours = await connector(listener).connect(lambda _: at_ours)
    await until(lambda: there)
    return ConnectionPair(ours, there[0], at_ours, at_theirs), listener


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def client_tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


@asynccontextmanager
async def tcp(
    settings: Settings, framing: FramingName = "lines", *, host: str = "127.0.0.1", tls: bool = False
) -> AsyncIterator[ConnectionPair]:
    def connector(listener: Listener) -> Connector:
        where = parse_address(listener.address)
        context = client_tls() if tls else False
        return TcpConnector(where.host, where.port, tls=context, framing=framing, settings=settings)

    def listen(accept: Accept) -> Any:
        return listen_tcp(listener_limits(accept, settings), host=host, tls=server_tls() if tls else None)

    line, listener = await _accepted(listen, connector)
    yield line
    await listener.close()


@asynccontextmanager
async def unix(settings: Settings, framing: FramingName = "lines") -> AsyncIterator[ConnectionPair]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        line, listener = await _accepted(
            lambda accept: listen_unix(listener_limits(accept, settings), path),
            lambda _: UnixConnector(path, framing=framing, settings=settings),
        )
        yield line
        await listener.close()


# --- over HTTP -------------------------------------------------------------------------------------------


@asynccontextmanager
async def ws(settings: Settings, *, tls: bool = False, asgi: bool = False) -> AsyncIterator[ConnectionPair]:
    """A WebSocket: at their end on the transport, or under uvicorn."""
    there: list[Channel] = []
    line = ConnectionPair(None, None, principal="somebody")  # type: ignore[arg-type]

    def accept(channel: Channel) -> Recorder:
        there.append(channel)
        return line.at_theirs

    endpoint = WebSocketEndpoint(listener_limits(accept, settings), settings)
    context = server_tls() if tls else None
    async with AsyncExitStack() as stack:
        if asgi:
            serving = asgi_server(partial(endpoint.handle, principal="somebody"), tls=context)
            _, port = await stack.enter_async_context(serving)
        else:
            server = UpgradingServer(endpoint, principal="somebody")
            port = await stack.enter_async_context(upgrading_server(server, tls=context))
        url = f"{'wss' if tls else 'ws'}://127.0.0.1:{port}"
        connector = WebSocketConnector(url, tls=client_tls() if tls else None, settings=settings)
        line.ours = await connector.connect(lambda _: line.at_ours)
        await until(lambda: there)
        line.theirs = there[0]
        yield line


# --- with a process in between ---------------------------------------------------------------------------

RELAY = """
import os, socket, sys, threading
there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
there.connect(sys.argv[1])

def forward():
    while data := os.read(0, 1 << 16):
        there.sendall(data)
    there.shutdown(socket.SHUT_WR)

threading.Thread(target=forward, daemon=True).start()
while data := there.recv(1 << 16):
    while data:
        data = data[os.write(1, data):]
"""


@asynccontextmanager
async def process(settings: Settings, framing: FramingName = "lines") -> AsyncIterator[ConnectionPair]:
    """Our end is a child process; it relays its input and output through a socket to the other end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        command = [sys.executable, "-S", "-E", "-c", RELAY, str(path)]
        line, listener = await _accepted(
            lambda accept: listen_unix(listener_limits(accept, settings), path),
            lambda _: Command(command, framing=framing, settings=settings),
        )
        yield line
        await listener.close()


Open = Callable[[Settings], AbstractAsyncContextManager[ConnectionPair]]

STREAMS: dict[str, Open] = {
    "stream": stream,
    "stream, headers": partial(stream, framing="headers"),
    "pipes": pipes,
    "process": process,
    "process, headers": partial(process, framing="headers"),
    "tcp": tcp,
    "tcp, headers": partial(tcp, framing="headers"),
    "tcp, IPv6": partial(tcp, host="::1"),
    "tls": partial(tcp, tls=True),
    "unix": unix,
}
OVER_BYTES: dict[str, Open] = {
    **STREAMS,
    "ws": ws,
    "wss": partial(ws, tls=True),
    "ws, ASGI": partial(ws, asgi=True),
    "wss, ASGI": partial(ws, tls=True, asgi=True),
}
CONNECTIONS: dict[str, Open] = {"memory": memory, **OVER_BYTES}
