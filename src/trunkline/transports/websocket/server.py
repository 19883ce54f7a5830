"""WebSocket transport, server side: one message per text frame, on a transport or under any ASGI server.

`WebSocketProtocol` is the connection on a transport. Under an ASGI server the channel writes lines, and each line
becomes a frame; each incoming frame is a whole message. The task of the ASGI server writes, and a second task reads. A
peer that does not read blocks its own writer and later its own reader, but no other connection.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline.config import Settings
from trunkline.transports.addresses import format_host_port
from trunkline.transports.channel import ChannelClosed, RequestHead
from trunkline.transports.http.request import Headers, HeaderView, HttpRequest, Receive, Scope, Send
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.sockets import LINGER
from trunkline.transports.stream import DrainSignal
from trunkline.transports.websocket.close_codes import SUBPROTOCOL, CloseCode, describe_close, truncate_reason
from trunkline.transports.websocket.server_channel import ChannelCloser, new_server_channel
from trunkline.wire.framing import Frame, TooLarge

if TYPE_CHECKING:
    from trunkline.transports.websocket.protocol import WebSocketProtocol

__all__ = ["WebSocketEndpoint", "refuse_handshake"]

HTTP_RESPONSE_EXTENSION: Final = "websocket.http.response"  # ASGI extension for refusals with a body


class WebSocketEndpoint:
    """Serves WebSocket connections. The caller has checked Host and Origin and authenticated the client."""

    def __init__(self, guard: ListenerGuard, settings: Settings) -> None:
        self._guard = guard
        self._settings = settings
        self._closers: set[ChannelCloser] = set()  # of the open connections

    def __len__(self) -> int:
        return len(self._closers)

    async def handle(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        principal: Any = None,
        expires_at: float | None = None,
        *,
        request: RequestHead | None = None,
    ) -> None:
        """Serve one connection of an ASGI server until it ends, at the latest at `expires_at` by the guard's clock,
        when the credentials expire."""
        await receive()  # websocket.connect
        offered = cast("Sequence[str]", scope.get("subprotocols") or ())
        if (refusal := self._refusal(offered)) is not None:
            status, reason, headers = refusal
            await refuse_handshake(scope, send, status, reason, *headers)
            return
        connection = _AsgiConnection(scope, principal, self._settings, request)
        release = self._admit(connection, expires_at)
        try:
            await connection.run(receive, send, _select_subprotocol(offered))
        finally:
            release()

    def open(
        self,
        request: HttpRequest,
        principal: Any,
        expires_at: float | None,
        refuse: Callable[[int, str, Headers], None],
    ) -> None:
        """Serve one connection on the transport of the request that opens it.

        If the handshake is refused, call `refuse` with the status, reason and headers of an HTTP response instead, and
        leave the transport to the caller. Do nothing if the peer has disconnected.
        """
        from trunkline.transports.websocket.protocol import WebSocketProtocol  # ASGI servers need no `websockets`
        from trunkline.transports.websocket.server_framing import Handshake

        if not request.is_open:
            return
        handshake = Handshake(request.path, request.headers, method=request.method)
        refusal = handshake.refusal or self._refusal(handshake.subprotocols)
        if refusal is not None:
            refuse(*refusal)
            return
        report = partial(self._guard.connection_failed, "websocket", request.peer)
        connection = WebSocketProtocol(
            self._settings,
            peer=request.peer,
            headers=request.head.view,
            principal=principal,
            report=report,
            request=request,
        )
        try:
            release = self._admit(connection, expires_at)
        except Exception as error:  # noqa: BLE001 - ends this connection only
            refuse(500, f"the server failed; its log has the details under {report(error)}", ())
            return

        transport, rest, on_closed = request.detach()

        def closed() -> None:
            release()
            on_closed()

        connection.start(transport, handshake, _select_subprotocol(handshake.subprotocols), rest, closed)

    def _refusal(self, offered: Sequence[str]) -> tuple[int, str, Headers] | None:
        """Return the refusal of a connection for its subprotocols or for lack of capacity; None to accept it."""
        if offered and SUBPROTOCOL not in offered:
            return (400, f"none of the subprotocols is {SUBPROTOCOL!r}; offer that, or none", ())
        if (refusal := self._guard.check_capacity("connections")) is not None:
            return (503, refusal.reason, [(b"retry-after", refusal.retry_after)])
        return None

    def _admit(self, connection: "_AsgiConnection | WebSocketProtocol", expires_at: float | None) -> Callable[[], None]:
        """Open the channel of a connection; return a function for its end."""
        channel, closer, clock = connection.channel, connection.closer, self._guard.clock
        channel.open(self._guard.admit(channel, closer.disconnect), connection, connection)
        expired = ChannelClosed("the credentials of this connection have expired")
        expiry = None if expires_at is None else clock.call_at(expires_at, lambda: closer.disconnect(expired))
        self._closers.add(closer)

        def release() -> None:
            if expiry is not None:
                expiry.cancel()
            self._closers.discard(closer)

        return release

    def close(self, reason: str) -> None:
        """Close every connection after its pending writes."""
        for closer in self._closers:
            closer.close_soon(ChannelClosed(reason))


def _select_subprotocol(offered: Sequence[str]) -> str | None:
    return SUBPROTOCOL if offered else None


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


class _AsgiConnection:
    """One connection of an ASGI server; the source and sink of its channel."""

    def __init__(self, scope: Scope, principal: Any, settings: Settings, request: RequestHead | None = None) -> None:
        client = cast("Sequence[Any] | None", scope.get("client"))
        self.channel = new_server_channel(
            _MessageFraming(),
            settings,
            peer=format_host_port(client[0], client[1]) if client else "",
            headers=HeaderView(dict(scope["headers"])),
            principal=principal,
            request=request,
        )
        self.closer = ChannelCloser(self.channel, settings)
        self.unsent = 0
        self._unsent_limit = settings.unsent_limit
        self._limit = settings.ws_message_size_limit
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._reading_allowed = asyncio.Event()
        self._reading_allowed.set()
        self._drain = DrainSignal()
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
            self._drain.notify()
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
            self.closer.fail(CloseCode.UNSUPPORTED, "a message is a text frame, not a binary one")
        elif len(text) > self._limit or len(data := text.encode()) > self._limit:
            self.closer.fail(CloseCode.TOO_BIG, TooLarge(self._limit).why)
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
            self._drain.notify()
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
            self._drain.notify()

    # --- source and sink of the channel -----------------------------------------------------------

    def write(self, data: bytes | bytearray) -> None:
        """Queue lines."""
        lines = bytes(data).split(b"\n")
        lines.pop()  # empty, after the last newline
        self._outbox.extend(lines)
        self.unsent += len(data) - len(lines)
        self._wake.set()

    async def finish(self) -> None:
        """Wait until everything is written."""
        if self.unsent and not self._finished.done():
            await self._drain.wait()

    def pause(self) -> None:
        """Stop reading."""
        self._reading_allowed.clear()

    def resume(self) -> None:
        """Read again."""
        self._reading_allowed.set()

    def close(self) -> None:
        """Begin to close: write what is unsent if the peer reads it soon."""
        self._closing = True
        self._close_message = self.closer.close_message(self.unsent)
        if self.unsent > self._unsent_limit:
            self._outbox.clear()
        self._start_close_deadline()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await asyncio.shield(self._finished)
