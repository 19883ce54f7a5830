"""WebSocket transport, server side: one message per text frame, under any ASGI server.

The channel is a byte-stream channel: it writes lines, and each line becomes a frame; each incoming frame is a whole
message. The task of the ASGI server writes, and a second task reads. A peer that does not read blocks its own writer
and later its own reader, but no other connection.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, cast

from trunkline.config import Settings
from trunkline.transports.addresses import format_host_port
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin
from trunkline.transports.http.request import Headers, HeaderView, Receive, Scope, Send
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.sockets import LINGER
from trunkline.transports.stream import StreamChannel
from trunkline.transports.websocket.close_codes import SUBPROTOCOL, CloseCode, describe_close, truncate_reason
from trunkline.wire.framing import Frame, TooLarge

__all__ = ["WebSocketEndpoint", "refuse_handshake"]

HTTP_RESPONSE_EXTENSION: Final = "websocket.http.response"  # ASGI extension for refusals with a body


class WebSocketEndpoint:
    """Serves WebSocket connections. The caller has checked Host and Origin and authenticated the client."""

    def __init__(self, guard: ListenerGuard, settings: Settings) -> None:
        self._guard = guard
        self._settings = settings
        self._connections: set[_WebSocketServerConnection] = set()

    def __len__(self) -> int:
        return len(self._connections)

    async def handle(
        self, scope: Scope, receive: Receive, send: Send, principal: Any = None, expires_at: float | None = None
    ) -> None:
        """Serve one connection until it ends, at the latest at `expires_at` by the guard's clock, when the
        credentials expire."""
        await receive()  # websocket.connect
        offered = cast("Sequence[str]", scope.get("subprotocols") or ())
        if offered and SUBPROTOCOL not in offered:
            await refuse_handshake(
                scope, send, 400, f"none of the subprotocols is {SUBPROTOCOL!r}; offer that, or none"
            )
        elif (refusal := self._guard.check_capacity("connections")) is not None:
            await refuse_handshake(scope, send, 503, refusal.reason, (b"retry-after", refusal.retry_after))
        else:
            connection = _WebSocketServerConnection(scope, principal, self._settings)
            connection.channel.open(
                self._guard.admit(connection.channel, connection.disconnect), connection, connection
            )
            expired = ChannelClosed("the credentials of this connection have expired")
            expiry = (
                None
                if expires_at is None
                else self._guard.clock.call_at(expires_at, lambda: connection.disconnect(expired))
            )
            self._connections.add(connection)
            try:
                await connection.run(receive, send, SUBPROTOCOL if offered else None)
            finally:
                if expiry is not None:
                    expiry.cancel()
                self._connections.discard(connection)

    def close(self, reason: str) -> None:
        """Close every connection after its pending writes."""
        for connection in self._connections:
            connection.close_soon(ChannelClosed(reason))


async def refuse_handshake(scope: Scope, send: Send, status: int, reason: str, *headers: tuple[bytes, bytes]) -> None:
    """Refuse a connection before the handshake. Without the ASGI extension for a response body, the peer sees status
    403."""
    if HTTP_RESPONSE_EXTENSION not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": CloseCode.POLICY, "reason": truncate_reason(reason)})
        return
    response_headers: Headers = [(b"content-type", b"text/plain; charset=utf-8"), *headers]
    await send({"type": f"{HTTP_RESPONSE_EXTENSION}.start", "status": status, "headers": response_headers})
    await send({"type": f"{HTTP_RESPONSE_EXTENSION}.body", "body": reason.encode()})


class _MessageFraming:
    """Incoming frames are whole messages; outgoing messages are lines, since JSON needs no newlines."""

    def feed(self, data: bytes) -> list[Frame]:
        return [data] if data else []

    def wrap(self, frame: bytes) -> bytes:
        return (frame.replace(b"\n", b" ") if b"\n" in frame else frame) + b"\n"


class _WebSocketServerConnection:
    """One connection; the source and sink of its channel."""

    def __init__(self, scope: Scope, principal: Any, settings: Settings) -> None:
        client = cast("Sequence[Any] | None", scope.get("client"))
        self.channel = StreamChannel(
            ChannelInfo("websocket", format_host_port(client[0], client[1]) if client else "", needs_keepalive=True),
            max_frame=settings.ws_message_size_limit,
            settings=settings,
            origin=MessageOrigin(principal, HeaderView(dict(scope["headers"]))),
            framing=_MessageFraming(),
        )
        self.unsent = 0
        self._settings = settings
        self._limit = settings.ws_message_size_limit
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._reading_allowed = asyncio.Event()
        self._reading_allowed.set()
        self._write_drained: asyncio.Future[None] | None = None
        self._deadline: asyncio.Timeout | None = None  # deadline of closing, once it has begun
        self._closing = False
        self._peer_closed = False
        self._close_message: tuple[CloseCode, str] | None = None  # code and reason of our close frame
        self._finished: asyncio.Future[None] = self._loop.create_future()

    # --- the connection --------------------------------------------------------------------------

    async def run(self, receive: Receive, send: Send, subprotocol: str | None) -> None:
        """Accept the connection, and read and write until its end."""
        reader = self._loop.create_task(self._read(receive))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as self._deadline:
                    await self._write(send, reader, subprotocol)
        finally:
            self._deadline = None
            self.channel.receive_eof(ChannelClosed("the connection was given up"))
            reader.cancel()
            self._notify_drained()
            self._finished.set_result(None)
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _read(self, receive: Receive) -> None:
        try:
            while (event := await receive())["type"] == "websocket.receive":
                self._on_message(event.get("text"))
                await self._reading_allowed.wait()
            self._on_peer_close(event.get("code") or CloseCode.NO_STATUS, event.get("reason") or "")
        finally:
            self._on_peer_close(CloseCode.ABNORMAL, "")

    def _on_message(self, text: str | None) -> None:
        if self._closing:
            return
        if text is None:
            self._fail(CloseCode.UNSUPPORTED, "a message is a text frame, not a binary one")
        elif len(text) > self._limit or len(data := text.encode()) > self._limit:
            self._fail(CloseCode.TOO_BIG, TooLarge(self._limit).why)
        else:
            self.channel.feed(data)

    def _on_peer_close(self, code: int, reason: str) -> None:
        self._peer_closed = True
        self.channel.receive_eof(ChannelClosed(describe_close(code, reason)))

    async def _write(self, send: Send, reader: "asyncio.Task[None]", subprotocol: str | None) -> None:
        try:
            await send({"type": "websocket.accept", "subprotocol": subprotocol})
            while not (self._closing and (self._peer_closed or not self._outbox)):
                if self._outbox:
                    await self._send(send, self._outbox.popleft())
                else:
                    self._wake.clear()
                    await self._wake.wait()
            if self._close_message is not None and not self._peer_closed:
                code, reason = self._close_message
                await send({"type": "websocket.close", "code": int(code), "reason": truncate_reason(reason)})
        except OSError:  # the peer has disconnected; its last messages are still to be read
            self._start_close_deadline()
            self._outbox.clear()
            self.unsent = 0
            self._notify_drained()
            await reader

    def _start_close_deadline(self) -> None:
        """Allow `LINGER` seconds for the rest."""
        self._reading_allowed.set()
        self._wake.set()
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(self._loop.time() + LINGER)

    async def _send(self, send: Send, connection: bytes) -> None:
        await send({"type": "websocket.send", "text": connection.decode(errors="replace")})
        self.unsent -= len(connection)
        self.channel.update_flow()
        if not self.unsent:
            self._notify_drained()

    def _notify_drained(self) -> None:
        if self._write_drained is not None and not self._write_drained.done():
            self._write_drained.set_result(None)

    # --- closing ----------------------------------------------------------------------------------

    def _fail(self, code: CloseCode, reason: str) -> None:
        self._close_message = (code, reason)
        self.channel.receive_eof(ChannelClosed(reason))

    def disconnect(self, closed: ChannelClosed) -> None:
        """Close the connection at once, with a policy violation."""
        self._close_message = (CloseCode.POLICY, closed.reason)
        self.channel.abort(closed)

    def close_soon(self, closed: ChannelClosed) -> None:
        """Close the connection after the messages of this turn of the loop are written."""
        self._close_message = self._close_message or (CloseCode.GOING_AWAY, closed.reason)
        self._loop.call_soon(self.channel.abort, closed)

    # --- source and sink of the channel -----------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Queue lines."""
        lines = data.split(b"\n")
        lines.pop()  # empty, after the last newline
        self._outbox.extend(lines)
        self.unsent += len(data) - len(lines)
        self._wake.set()

    async def finish(self) -> None:
        """Wait until everything is written."""
        if self.unsent and not self._finished.done():
            if self._write_drained is None or self._write_drained.done():
                self._write_drained = self._loop.create_future()
            await asyncio.shield(self._write_drained)

    def pause(self) -> None:
        """Stop reading."""
        self._reading_allowed.clear()

    def resume(self) -> None:
        """Read again."""
        self._reading_allowed.set()

    def close(self) -> None:
        """Begin to close: write what is unsent if the peer reads it soon."""
        self._closing = True
        if self.unsent > self._settings.unsent_limit:
            self._outbox.clear()
            self._close_message = (CloseCode.TRY_AGAIN_LATER, "too much was left unread")
        self._close_message = self._close_message or (CloseCode.GOING_AWAY, "")
        self._start_close_deadline()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await asyncio.shield(self._finished)
