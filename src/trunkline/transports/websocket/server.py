"""WebSocket, the side that is called: one message in each text frame, under any ASGI server.

The channel is that of a byte stream. What it writes are lines, and each line goes out as a frame; what comes in is a
whole message already. The task that the ASGI server has started for a connection writes, and one more reads. A peer
that does not read holds up its own writer and, after a while, its own reader, and nobody else.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, cast

from trunkline.config import Settings
from trunkline.transports.addresses import spelt
from trunkline.transports.channel import ChannelInfo, Closed, Origin
from trunkline.transports.http.request import Headers, HeaderView, Receive, Scope, Send
from trunkline.transports.listener_limits import Guard
from trunkline.transports.sockets import LINGER
from trunkline.transports.stream import StreamChannel
from trunkline.transports.websocket.close_codes import SUBPROTOCOL, Code, sentence, shortened
from trunkline.wire.framing import Frame, TooLarge

__all__ = ["WebSocketEndpoint", "refuse_call"]

REFUSE: Final = "websocket.http.response"  # how an ASGI server says that a refusal may have a body


class WebSocketEndpoint:
    """Takes WebSocket connections. Host and Origin were looked at before, and who calls."""

    def __init__(self, guard: Guard, settings: Settings) -> None:
        self._guard = guard
        self._settings = settings
        self._lines: set[_Line] = set()

    def __len__(self) -> int:
        return len(self._lines)

    async def handle(
        self, scope: Scope, receive: Receive, send: Send, principal: Any = None, until: float | None = None
    ) -> None:
        """Keeps up one connection until it ends; by the guard's clock, not longer than it is proved whose it is."""
        await receive()  # websocket.connect
        offered = cast("Sequence[str]", scope.get("subprotocols") or ())
        if offered and SUBPROTOCOL not in offered:
            await refuse_call(scope, send, 400, f"none of the subprotocols is {SUBPROTOCOL!r}; offer that, or none")
        elif (busy := self._guard.refuse_more("connections")) is not None:
            await refuse_call(scope, send, 503, busy.why, (b"retry-after", busy.wait))
        else:
            line = _Line(scope, principal, self._settings)
            line.channel.open(self._guard.admit(line.channel, line.cut), line, line)
            expired = Closed("what proved who is on the line has run out")
            expiry = None if until is None else self._guard.clock.call_at(until, lambda: line.cut(expired))
            self._lines.add(line)
            try:
                await line.run(receive, send, SUBPROTOCOL if offered else None)
            finally:
                if expiry is not None:
                    expiry.cancel()
                self._lines.discard(line)

    def close(self, reason: str) -> None:
        """Ends every connection, after what is being sent."""
        for line in self._lines:
            line.stop(Closed(reason))


async def refuse_call(scope: Scope, send: Send, status: int, why: str, *headers: tuple[bytes, bytes]) -> None:
    """Says no before the connection stands. Where the ASGI server has no words for it, the peer sees status 403."""
    if REFUSE not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": Code.POLICY, "reason": shortened(why)})
        return
    told: Headers = [(b"content-type", b"text/plain; charset=utf-8"), *headers]
    await send({"type": f"{REFUSE}.start", "status": status, "headers": told})
    await send({"type": f"{REFUSE}.body", "body": why.encode()})


class _Frames:
    """What comes in is a message each time; what goes out are lines, since JSON needs no line ends of its own."""

    def feed(self, data: bytes) -> list[Frame]:
        return [data] if data else []

    def wrap(self, frame: bytes) -> bytes:
        return (frame.replace(b"\n", b" ") if b"\n" in frame else frame) + b"\n"


class _Line:
    """One connection: the source of its channel, and its sink."""

    def __init__(self, scope: Scope, principal: Any, settings: Settings) -> None:
        client = cast("Sequence[Any] | None", scope.get("client"))
        self.channel = StreamChannel(
            ChannelInfo("websocket", spelt(client[0], client[1]) if client else "", may_vanish=True),
            max_frame=settings.ws_message_size_limit,
            settings=settings,
            origin=Origin(principal, HeaderView(dict(scope["headers"]))),
            framing=_Frames(),
        )
        self.unsent = 0
        self._settings = settings
        self._limit = settings.ws_message_size_limit
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._emptied: asyncio.Future[None] | None = None
        self._time: asyncio.Timeout | None = None  # while there is something to be ended in time
        self._ending = False
        self._hung_up = False  # the peer
        self._last: tuple[Code, str] | None = None  # what the peer is told at the end
        self._gone: asyncio.Future[None] = self._loop.create_future()

    # --- the connection --------------------------------------------------------------------------

    async def run(self, receive: Receive, send: Send, subprotocol: str | None) -> None:
        """Takes the connection, and reads and writes until its end."""
        reading = self._loop.create_task(self._read(receive))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as self._time:
                    await self._write(send, reading, subprotocol)
        finally:
            self._time = None
            self.channel.ended(Closed("the connection was given up"))
            reading.cancel()
            self._empty()
            self._gone.set_result(None)
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _read(self, receive: Receive) -> None:
        try:
            while (event := await receive())["type"] == "websocket.receive":
                self._take(event.get("text"))
                await self._flowing.wait()
            self._end_by_peer(event.get("code") or Code.UNSPOKEN, event.get("reason") or "")
        finally:
            self._end_by_peer(Code.BROKEN, "")

    def _take(self, text: str | None) -> None:
        if self._ending:
            return
        if text is None:
            self._fail(Code.UNSUPPORTED, "a message is a text frame, not a binary one")
        elif len(text) > self._limit or len(data := text.encode()) > self._limit:
            self._fail(Code.TOO_BIG, TooLarge(self._limit).why)
        else:
            self.channel.feed(data)

    def _end_by_peer(self, code: int, reason: str) -> None:
        self._hung_up = True
        self.channel.ended(Closed(sentence(code, reason)))

    async def _write(self, send: Send, reading: "asyncio.Task[None]", subprotocol: str | None) -> None:
        try:
            await send({"type": "websocket.accept", "subprotocol": subprotocol})
            while not (self._ending and (self._hung_up or not self._outbox)):
                if self._outbox:
                    await self._send(send, self._outbox.popleft())
                else:
                    self._wake.clear()
                    await self._wake.wait()
            if self._last is not None and not self._hung_up:
                code, reason = self._last
                await send({"type": "websocket.close", "code": int(code), "reason": shortened(reason)})
        except OSError:  # the peer has gone; what it has said before is still to be read
            self._hurry()
            self._outbox.clear()
            self.unsent = 0
            self._empty()
            await reading

    def _hurry(self) -> None:
        """From now on there is not much time."""
        self._flowing.set()
        self._wake.set()
        if self._time is not None and not self._time.expired():
            self._time.reschedule(self._loop.time() + LINGER)

    async def _send(self, send: Send, line: bytes) -> None:
        await send({"type": "websocket.send", "text": line.decode(errors="replace")})
        self.unsent -= len(line)
        self.channel.sent()
        if not self.unsent:
            self._empty()

    def _empty(self) -> None:
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    # --- how it may end --------------------------------------------------------------------------

    def _fail(self, code: Code, reason: str) -> None:
        self._last = (code, reason)
        self.channel.ended(Closed(reason))

    def cut(self, closed: Closed) -> None:
        """Ends a line whose peer is not wanted any more."""
        self._last = (Code.POLICY, closed.reason)
        self.channel.lost(closed)

    def stop(self, closed: Closed) -> None:
        """Ends the line once what was said in this turn of the loop has been written."""
        self._last = self._last or (Code.GOING_AWAY, closed.reason)
        self._loop.call_soon(self.channel.lost, closed)

    # --- what the channel asks for ---------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Takes lines."""
        lines = data.split(b"\n")
        lines.pop()  # what is behind the last one
        self._outbox.extend(lines)
        self.unsent += len(data) - len(lines)
        self._wake.set()

    async def finish(self) -> None:
        """Waits until all is written."""
        if self.unsent and not self._gone.done():
            if self._emptied is None or self._emptied.done():
                self._emptied = self._loop.create_future()
            await asyncio.shield(self._emptied)

    def pause(self) -> None:
        """Leaves messages where they are."""
        self._flowing.clear()

    def resume(self) -> None:
        """Reads again."""
        self._flowing.set()

    def close(self) -> None:
        """Begins the end: what is unsent is written if the peer takes it soon."""
        self._ending = True
        if self.unsent > self._settings.unsent_limit:
            self._outbox.clear()
            self._last = (Code.TRY_LATER, "too much was left unread")
        self._last = self._last or (Code.GOING_AWAY, "")
        self._hurry()

    async def gone(self) -> None:
        """Waits until nothing is left."""
        await asyncio.shield(self._gone)
