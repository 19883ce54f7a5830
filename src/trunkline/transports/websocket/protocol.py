"""Server side of a WebSocket connection on a transport of asyncio.

The connection takes a transport over from HTTP, after the request that opens a WebSocket. It writes and reads without
tasks: the messages of one read are delivered together, and what is sent meanwhile leaves in one write.

A peer that sends pings and does not read the pongs is disconnected. Closing takes at most `LINGER` seconds: the peer
may read what is unsent and answer the close frame. After a failure only the end of its stream is awaited, because
closing a socket with unread bytes would make the kernel discard the close frame. An internal error is reported and
closes its own connection.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from trunkline.config import Settings
from trunkline.transports.channel import ChannelClosed, RequestHead
from trunkline.transports.sockets import LINGER
from trunkline.transports.stream import DrainSignal
from trunkline.transports.websocket.close_codes import CloseCode, describe_close
from trunkline.transports.websocket.server_channel import ChannelCloser, new_server_channel
from trunkline.transports.websocket.server_framing import Handshake, ServerFraming

__all__ = ["WebSocketProtocol"]

MAX_PINGS: Final = 1000  # while the peer does not read


class WebSocketProtocol(asyncio.Protocol):
    """One connection; the source and sink of its channel."""

    def __init__(
        self,
        settings: Settings,
        *,
        peer: str,
        headers: Mapping[str, str],
        principal: Any,
        report: Callable[[BaseException], object],
        request: RequestHead | None = None,
    ) -> None:
        """`headers` and `request` are those of the handshake; `report` receives internal errors."""
        self._framing = ServerFraming(settings.ws_message_size_limit)
        self.channel = new_server_channel(
            self._framing, settings, peer=peer, headers=headers, principal=principal, request=request
        )
        self.channel.on_error = self._abort_with_error
        self.closer = ChannelCloser(self.channel, settings)
        self._unsent_high = settings.unsent_high
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._write_paused = False
        self._drain = DrainSignal()
        self._closing = False
        self._peer_gone = False  # the stream has ended without a close frame
        self._timer: asyncio.TimerHandle | None = None  # limits the time of closing
        self._disconnected: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport
        self._on_closed: Callable[[], None]

    def start(
        self,
        transport: asyncio.Transport,
        handshake: Handshake,
        subprotocol: str | None,
        rest: bytes,
        on_closed: Callable[[], None],
    ) -> None:
        """Accept a handshake on an open transport, and take the transport over.

        The channel is open. `rest` are the bytes that followed the request. `on_closed` is called once, when the
        transport is lost.
        """
        self._transport, self._on_closed = transport, on_closed
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=self._unsent_high, low=self._unsent_high // 2)
        transport.write(handshake.response(subprotocol))
        self.resume()
        if rest:
            self.data_received(rest)

    # --- callbacks of asyncio ---------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Process the bytes of one read."""
        self._contain(self._receive, data)

    def _receive(self, data: bytes) -> None:
        if self._closing:
            self._framing.feed(data)  # the peer's close frame may be in it
        else:
            self.channel.feed(data)
        if self._transport.is_closing():
            return
        if self._write_paused and self._framing.ping_count > MAX_PINGS:
            self._transport.abort()
            self.channel.receive_eof(ChannelClosed("the peer sent pings and did not read the pongs"))
        elif self._framing.open or self._closing:
            self._write_output()
        elif self._framing.failure is not None:
            self.closer.fail(*self._framing.failure)
        else:
            self.channel.receive_eof(ChannelClosed(self._framing.end_reason))

    def eof_received(self) -> None:
        """The peer has closed its direction, or broken the connection off."""
        self._peer_gone = True
        self._contain(self.channel.receive_eof, ChannelClosed(describe_close(CloseCode.ABNORMAL, "")))

    def pause_writing(self) -> None:
        """The peer does not read as fast as we write."""
        self._write_paused = True
        self._framing.ping_count = 0

    def resume_writing(self) -> None:
        """The write buffer is below its low-water mark."""
        self._write_paused = False
        self._contain(self.channel.update_flow)
        if not self.unsent:
            self._drain.notify()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._disconnected.set_result(None)
        self._drain.notify()
        reason = describe_close(CloseCode.ABNORMAL, "")
        self._contain(self.channel.receive_eof, ChannelClosed(reason if exc is None else f"{reason}: {exc}", exc))
        self._contain(self._on_closed)

    def _contain(self, step: Callable[..., None], *arguments: Any) -> None:
        """Call a function; an exception ends this connection only."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - reported
            self._abort_with_error(error)

    def _abort_with_error(self, error: Exception) -> None:
        """Abort the connection because of an internal error, and report it."""
        self._closing = True
        if not self._disconnected.done():  # asyncio fails to abort some transports a second time
            self._transport.abort()
        self._report(error)

    def _write_output(self) -> None:
        """Write the frames of the protocol itself, and end the stream if they are the last ones."""
        output, last = self._framing.take_output()
        if output:
            self._transport.write(output)
        if not last:
            return
        if self._framing.closed_by_peer or not self._transport.can_write_eof():
            self._transport.close()
        else:
            try:
                self._transport.write_eof()
            except OSError:  # the peer has reset the connection
                self._transport.abort()

    # --- source and sink of the channel -----------------------------------------------------------

    @property
    def unsent(self) -> int:
        """Bytes in the write buffer."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes | bytearray) -> None:
        """Write frames."""
        self._transport.write(data)

    async def finish(self) -> None:
        """Wait until the write buffer is empty or the connection is lost."""
        if self.unsent and not self._disconnected.done():
            self._transport.set_write_buffer_limits(high=0)
            await self._drain.wait()

    def pause(self) -> None:
        """Stop reading."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Begin to close: send a close frame after what is unsent, and wait for that of the peer."""
        if self._closing:
            return
        self._closing = True
        if self._transport.is_closing():
            return
        self._timer = self._loop.call_later(LINGER, self._transport.abort)
        if self._peer_gone:
            self._transport.close()
        else:
            self._framing.close(*self.closer.close_message(self.unsent))
            self.resume()
            self._write_output()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._disconnected)
