"""One stream socket, whoever opened it: the bytes between a transport of the loop and a channel.

The loop reads into one room that all lines of a listener share, since what was read is taken out of it at once. A line
that ends does so in both directions: what is unsent is sent, then ours is closed, and what the peer still says is read
and dropped for a moment, since closing on unread bytes would make the system throw away what the peer has yet to read.

What TCP and Unix sockets have in common: getting through to a server, and waiting for clients.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from trunkline.config import Settings
from trunkline.errors import TransportError
from trunkline.transports.addresses import format_host_port
from trunkline.transports.channel import Accept, Channel, ChannelClosed, ChannelInfo, Receiver
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.stream import FramingName, StreamChannel

__all__ = [
    "LINGER",
    "AdmitConnection",
    "SocketConnection",
    "SocketConnectionFactory",
    "describe_connect_error",
    "dial",
    "guarded_factory",
]

LINGER: Final = 1.0  # seconds that a peer has to take what was sent, and to close its side too
READ_SIZE: Final = 256 * 1024
PEER_CLOSED: Final = "the peer closed the connection"


class SocketConnectionFactory:
    """What the lines of one listener, or to one peer, have in common."""

    def __init__(
        self,
        transport: str,
        settings: Settings,
        *,
        peer: str = "",
        framing: FramingName | None = None,
        report: "ReportFailure | None" = None,
    ) -> None:
        """A client names its framing; a server speaks as it is spoken to. `report` is told of errors of our own, each
        of which closes its line; without it they are the loop's to report."""
        self.settings = settings
        self.read_buffer = memoryview(bytearray(READ_SIZE))
        self._transport = transport
        self._peer = peer
        self._framing: FramingName | None = framing
        self._report = report

    def report_failure(self, peer: str, error: Exception) -> None:
        """Report an error of our own on one line."""
        if self._report is None:
            raise error
        self._report(self._transport, peer, error)

    def new_connection(self, admit: "AdmitConnection") -> "SocketConnection":
        """A new line. `admit` is given it once it stands, and says who is told of what comes; None if it is not
        wanted."""
        return SocketConnection(self, admit)

    def new_channel(self, transport: asyncio.Transport) -> StreamChannel:
        """A channel for a new line."""
        return StreamChannel(
            ChannelInfo(
                self._transport, self._peer or _peer_address(transport), needs_keepalive=self._transport == "tcp"
            ),
            max_frame=self.settings.tcp_message_size_limit,
            settings=self.settings,
            framing=self._framing,
            strict=True,
            read_while_blocked=self._framing is not None,
        )


def _peer_address(transport: asyncio.Transport) -> str:
    address: Any = transport.get_extra_info("peername")
    return format_host_port(address[0], address[1]) if address else ""


class SocketConnection(asyncio.BufferedProtocol):
    """A line over a socket: the source of its channel, and its sink."""

    def __init__(self, lines: SocketConnectionFactory, admit: "AdmitConnection") -> None:
        self._factory = lines
        self._admit = admit
        self._read_buffer = lines.read_buffer
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._peer_closed = False  # the peer
        self._timer: asyncio.TimerHandle | None = None
        self._write_drained: asyncio.Future[None] | None = None
        self._disconnected: asyncio.Future[None] = self._loop.create_future()
        self.channel: StreamChannel
        self._transport: asyncio.Transport

    # --- what the loop tells ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line stands."""
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        high = self._factory.settings.unsent_high
        self._transport.set_write_buffer_limits(high=high, low=high // 2)
        self.channel = self._new_channel()
        self.channel.on_error = self._abort_with_error
        self._feed = self.channel.feed
        try:
            receiver = self._admit(self)
        except Exception as error:  # noqa: BLE001 - it is this line's alone
            self._abort_with_error(error)
            return
        if receiver is None:
            self._closing = True
            self._transport.abort()
        else:
            self.channel.open(receiver, self, self)

    def _new_channel(self) -> StreamChannel:
        return self._factory.new_channel(self._transport)

    def _abort_with_error(self, error: Exception) -> None:
        """Break the line off for an error of our own, and report it."""
        self._closing = True
        self._transport.abort()
        self._factory.report_failure(_peer_address(self._transport), error)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - there is one room
        """Where the loop puts what it reads."""
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Takes what was read."""
        if not self._closing:
            try:
                self._feed(self._read_buffer[:nbytes].tobytes())
            except Exception as error:  # noqa: BLE001 - it is this line's alone
                self._abort_with_error(error)

    def eof_received(self) -> None:
        """The peer says no more."""
        self._peer_closed = True
        try:
            self.channel.receive_eof(ChannelClosed(PEER_CLOSED))
        except Exception as error:  # noqa: BLE001 - it is this line's alone
            self._abort_with_error(error)

    def resume_writing(self) -> None:
        """Less is unsent than before."""
        try:
            self.channel.update_flow()
        except Exception as error:  # noqa: BLE001 - it is this line's alone
            self._abort_with_error(error)
        self._notify_if_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        """The line is gone."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            self.channel.receive_eof(ChannelClosed(PEER_CLOSED if exc is None else f"the connection broke: {exc}", exc))
        except Exception as error:  # noqa: BLE001 - it is this line's alone
            self._abort_with_error(error)
        finally:
            self._disconnected.set_result(None)
            self._notify_if_drained()

    # --- what the channel asks for ---------------------------------------------------------------

    @property
    def unsent(self) -> int:
        """How many bytes the peer has not taken yet."""
        return self._transport.get_write_buffer_size()

    async def finish(self) -> None:
        """Waits until all is sent, or until that makes no sense any more."""
        if self.unsent and not self._disconnected.done():
            self._transport.set_write_buffer_limits(high=0)
            if self._write_drained is None or self._write_drained.done():
                self._write_drained = self._loop.create_future()
            await asyncio.shield(self._write_drained)

    def _notify_if_drained(self) -> None:
        if (
            self._write_drained is not None
            and not self._write_drained.done()
            and (self._disconnected.done() or not self.unsent)
        ):
            self._write_drained.set_result(None)

    def pause(self) -> None:
        """Leaves bytes where they are."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Begins the end."""
        if self._closing:
            return
        self._closing = True
        self._timer = self._loop.call_later(LINGER, self._transport.abort)
        if self._peer_closed:
            self._transport.close()
        elif self.unsent:
            self._transport.abort()  # it was waited for long enough, or never will be taken
        elif self._transport.can_write_eof():
            self.resume()
            self._transport.write_eof()
        else:
            self._transport.close()

    async def wait_closed(self) -> None:
        """Waits until the socket is closed."""
        await asyncio.shield(self._disconnected)


AdmitConnection = Callable[[SocketConnection], Receiver | None]
ReportFailure = Callable[[str, str, BaseException], object]


OpenConnection = Callable[[Callable[[], SocketConnection]], Awaitable[tuple[Any, SocketConnection]]]


async def dial(name: str, lines: SocketConnectionFactory, accept: Accept, open_: OpenConnection) -> Channel:
    """Opens a line. Raises `TransportError` with a sentence if nobody answers."""
    failures: list[Exception] = []

    def admit(line: SocketConnection) -> Any:
        try:
            return accept(line.channel)
        except Exception as error:  # noqa: BLE001 - raised below, where somebody waits for it
            failures.append(error)
            return None

    limit = lines.settings.connect_timeout
    try:
        async with asyncio.timeout(limit):
            _, line = await open_(lambda: lines.new_connection(admit))
    except TransportError:
        raise
    except TimeoutError as error:
        raise TransportError(f"cannot reach {name}: no answer within {limit:g} s") from error
    except OSError as error:
        raise TransportError(f"cannot reach {name}: {describe_connect_error(error)}") from error
    if failures:
        await line.wait_closed()
        raise failures[0]
    return line.channel


def describe_connect_error(error: OSError) -> str:
    """Why nobody was reached, in words that somebody can act on."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not to be trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"it does not speak TLS as we do: {error.reason or error}"
        case ConnectionRefusedError() | FileNotFoundError():
            return "nobody listens there; is the server running?"
        case _:
            return str(error.strerror or error)


def guarded_factory(lines: SocketConnectionFactory, guard: ListenerGuard) -> Callable[[], SocketConnection]:
    """Makes the lines of a listener: each is asked for its channel's receiver, or turned away."""

    def admit(line: SocketConnection) -> Any:
        return None if guard.full else guard.admit(line.channel, line.channel.abort)

    return lambda: lines.new_connection(admit)
