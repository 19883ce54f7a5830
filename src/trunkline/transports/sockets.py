"""Connections over stream sockets, shared by TCP, Unix sockets and the WebSocket client.

All connections of a listener share one read buffer, since each read is copied out of it at once. A connection closes
both directions: it sends the pending bytes, closes its own direction, and discards incoming bytes for `LINGER` seconds.
Closing a socket with unread bytes would make the kernel discard data that the peer has not read yet.

`dial` opens connections to a server; `guarded_factory` creates those of a listener.
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
from trunkline.transports.stream import DrainSignal, FramingName, StreamChannel

__all__ = [
    "LINGER",
    "AdmitConnection",
    "SocketConnection",
    "SocketConnectionFactory",
    "describe_connect_error",
    "dial",
    "guarded_factory",
]

LINGER: Final = 1.0  # seconds for the peer to read the last bytes and to close its direction
READ_SIZE: Final = 256 * 1024
PEER_CLOSED: Final = "the peer closed the connection"


class SocketConnectionFactory:
    """Settings and buffer that the connections of one listener, or to one peer, share."""

    def __init__(
        self,
        transport: str,
        settings: Settings,
        *,
        peer: str = "",
        framing: FramingName | None = None,
        report: "ReportFailure | None" = None,
    ) -> None:
        """A client sets `framing`; a server adopts the framing of its peer. `report` receives internal errors, each
        of which closes its connection; without it they go to the loop's exception handler."""
        self.settings = settings
        self.read_buffer = memoryview(bytearray(READ_SIZE))
        self._transport = transport
        self._peer = peer
        self._framing: FramingName | None = framing
        self._report = report

    def report_failure(self, peer: str, error: Exception) -> None:
        """Report an internal error of one connection."""
        if self._report is None:
            raise error
        self._report(self._transport, peer, error)

    def new_connection(self, admit: "AdmitConnection") -> "SocketConnection":
        """Create a protocol. It calls `admit` once it is connected, which returns the receiver, or None to refuse
        the connection."""
        return SocketConnection(self, admit)

    def new_channel(self, transport: asyncio.Transport) -> StreamChannel:
        """Create the channel of a new connection."""
        return StreamChannel(
            ChannelInfo(
                self._transport, self._peer or _peer_address(transport), needs_keepalive=self._transport == "tcp"
            ),
            max_frame=self.settings.tcp_message_size_limit,
            settings=self.settings,
            framing=self._framing,
            strict=True,
            read_while_blocked=self._framing is not None,
            write_first=self._framing is not None,
        )


def _peer_address(transport: asyncio.Transport) -> str:
    address: Any = transport.get_extra_info("peername")
    return format_host_port(address[0], address[1]) if address else ""


class SocketConnection(asyncio.BufferedProtocol):
    """asyncio protocol of one socket, and the source and sink of its channel."""

    def __init__(self, factory: SocketConnectionFactory, admit: "AdmitConnection") -> None:
        self._factory = factory
        self._admit = admit
        self._read_buffer = factory.read_buffer
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._peer_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._drain = DrainSignal()
        self._disconnected: asyncio.Future[None] = self._loop.create_future()
        self.channel: StreamChannel
        self._transport: asyncio.Transport

    # --- callbacks of asyncio ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Create the channel and have the connection admitted."""
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        high = self._factory.settings.unsent_high
        self._transport.set_write_buffer_limits(high=high, low=high // 2)
        self.channel = self._new_channel()
        self.channel.on_error = self._abort_with_error
        self._feed = self.channel.feed
        try:
            receiver = self._admit(self)
        except Exception as error:  # noqa: BLE001 - ends this connection only
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
        """Abort the connection because of an internal error, and report it."""
        self._closing = True
        self._transport.abort()
        self._factory.report_failure(_peer_address(self._transport), error)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the buffer is shared
        """Return the shared read buffer."""
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Feed the bytes of one read to the channel."""
        if not self._closing:
            try:
                self._feed(self._read_buffer[:nbytes].tobytes())
            except Exception as error:  # noqa: BLE001 - ends this connection only
                self._abort_with_error(error)

    def eof_received(self) -> None:
        """The peer has closed its direction."""
        self._peer_closed = True
        try:
            self.channel.receive_eof(ChannelClosed(PEER_CLOSED))
        except Exception as error:  # noqa: BLE001 - ends this connection only
            self._abort_with_error(error)

    def resume_writing(self) -> None:
        """The write buffer is below its low-water mark."""
        try:
            self.channel.update_flow()
        except Exception as error:  # noqa: BLE001 - ends this connection only
            self._abort_with_error(error)
        self._notify_if_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            self.channel.receive_eof(ChannelClosed(PEER_CLOSED if exc is None else f"the connection broke: {exc}", exc))
        except Exception as error:  # noqa: BLE001 - ends this connection only
            self._abort_with_error(error)
        finally:
            self._disconnected.set_result(None)
            self._notify_if_drained()

    # --- source and sink of the channel -----------------------------------------------------------

    @property
    def unsent(self) -> int:
        """Bytes in the write buffer."""
        return self._transport.get_write_buffer_size()

    async def finish(self) -> None:
        """Wait until the write buffer is empty or the connection is lost."""
        if self.unsent and not self._disconnected.done():
            self._transport.set_write_buffer_limits(high=0)
            await self._drain.wait()

    def _notify_if_drained(self) -> None:
        if self._disconnected.done() or not self.unsent:
            self._drain.notify()

    def pause(self) -> None:
        """Stop reading."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Begin to close the connection."""
        if self._closing:
            return
        self._closing = True
        self._timer = self._loop.call_later(LINGER, self._transport.abort)
        if self._peer_closed:
            self._transport.close()
        elif self.unsent:
            self._transport.abort()  # `finish` has timed out, or the peer does not read
        elif self._transport.can_write_eof():
            self.resume()
            self._transport.write_eof()
        else:
            self._transport.close()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._disconnected)


AdmitConnection = Callable[[SocketConnection], Receiver | None]
ReportFailure = Callable[[str, str, BaseException], object]


OpenConnection = Callable[[Callable[[], SocketConnection]], Awaitable[tuple[Any, SocketConnection]]]


async def dial(name: str, factory: SocketConnectionFactory, accept: Accept, open_: OpenConnection) -> Channel:
    """Open a connection. Raise `TransportError` if that fails."""
    failures: list[Exception] = []

    def admit(connection: SocketConnection) -> Any:
        try:
            return accept(connection.channel)
        except Exception as error:  # noqa: BLE001 - raised below, to the caller
            failures.append(error)
            return None

    limit = factory.settings.connect_timeout
    try:
        async with asyncio.timeout(limit):
            _, connection = await open_(lambda: factory.new_connection(admit))
    except TransportError:
        raise
    except TimeoutError as error:
        raise TransportError(f"cannot reach {name}: no answer within {limit:g} s") from error
    except OSError as error:
        raise TransportError(f"cannot reach {name}: {describe_connect_error(error)}") from error
    if failures:
        await connection.wait_closed()
        raise failures[0]
    return connection.channel


def describe_connect_error(error: OSError) -> str:
    """Describe a connection error in words that a person can act on."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"the TLS handshake failed: {error.reason or error}"
        case ConnectionRefusedError() | FileNotFoundError():
            return "no server is listening there; is it running?"
        case _:
            return str(error.strerror or error)


def guarded_factory(factory: SocketConnectionFactory, guard: ListenerGuard) -> Callable[[], SocketConnection]:
    """Return a factory for the connections of a listener, each of which the guard admits or refuses."""

    def admit(connection: SocketConnection) -> Any:
        return None if guard.full else guard.admit(connection.channel, connection.channel.abort)

    return lambda: factory.new_connection(admit)
