"""Answering what was posted: by plain JSON if the answer is the first thing that is sent, otherwise by events.

Writing goes at the pace of whoever reads. What it has not read yet is kept for it, up to `unsent_limit`; a peer that
lets more than that pile up has its session ended.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import Interrupted, InvalidRequest
from trunkline.protocol.error_codes import error_object
from trunkline.protocol.revisions import Revision
from trunkline.transports.http.request import JSON, Visit, cancel
from trunkline.transports.http.session.channel import Exchange
from trunkline.transports.http.session.event_store import position
from trunkline.transports.http.session.streams import Stream
from trunkline.wire import codec, sse
from trunkline.wire.messages import ErrorResponse, RequestId

__all__ = ["VERSION", "Answering", "answer_interrupted", "refuse_kinds"]

VERSION: Final = b"mcp-protocol-version"
_PRIMED: Final = Revision.V2025_11_25.value.encode()  # since when a stream begins with an event that has no data
_BOTH: Final = "Accept must have application/json and text/event-stream"


class Answering:
    """Writes out what comes of exchanges, and streams."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._retry = round(settings.stream_retry * 1000)
        self._keepalive = settings.stream_keepalive
        self._undecided = Undecided(settings.stream_keepalive)

    async def decide(self, exchange: Exchange) -> None:
        """Waits until it is known how an exchange is answered; by events, if that takes so long that proxies ask."""
        if exchange.ids and not exchange.decided:
            self._undecided.add(exchange)
            try:
                await exchange.changed()
            except BaseException:
                exchange.leave()
                raise
            finally:
                self._undecided.discard(exchange)

    async def answer(self, visit: Visit, exchange: Exchange) -> None:
        """Answers one POST, about which it is decided how."""
        if exchange.stream is not None:
            await self.flow(visit, exchange.stream)
        elif exchange.answer is not None:
            await self._answer_plainly(visit, exchange, exchange.answer)
        elif exchange.ids and not exchange.dropped:
            await answer_interrupted(visit, exchange.ids, "the session has ended")
        elif exchange.faults and not exchange.ids:
            await visit.refuse(400, "the message could not be read", kind=InvalidRequest.kind)
        else:
            await visit.respond(202)

    async def _answer_plainly(self, visit: Visit, exchange: Exchange, answer: bytes) -> None:
        if exchange.lacks is not None:
            await visit.respond(403, answer, JSON, visit.challenge(exchange.lacks))
        else:
            await visit.respond(exchange.status if exchange.ids else 400, answer, JSON)

    async def flow(self, visit: Visit, stream: Stream, after: int | None = None) -> None:
        """Writes a stream out until it ends, the peer goes, somebody else reads it, or what proved who it is for has
        run out: with a new proof it can be read on."""
        reader = stream.attach(after)
        try:
            await visit.begin_stream()
            primed = stream.ids and after is None and visit.headers.get(VERSION, _PRIMED) >= _PRIMED
            if primed and await stream.begun(reader):
                await visit.go_on(sse.encode(b"", id=position(stream.number, stream.read), retry=self._retry))
        except BaseException:
            stream.leave(reader)
            raise
        gone = asyncio.ensure_future(visit.hung_up())
        gone.add_done_callback(lambda _: stream.rouse())
        silence = Silence(self._keepalive, stream.rouse)
        expiry = None if visit.until is None else self._clock.call_at(visit.until, lambda: stream.leave(reader))
        if (more := visit.more) is not None and stream.reads(reader):
            stream.push = silence.breaking(more)
        try:
            while stream.reads(reader) and not gone.done():
                if data := stream.take():
                    await visit.go_on(data)
                    stream.written()
                    silence.broken()
                elif stream.over:
                    break
                elif silence.too_long:
                    await visit.go_on(sse.COMMENT)
                    silence.broken()
                else:
                    await stream.wake()
            if not gone.done():
                await visit.end_stream()
        finally:
            silence.end()
            if expiry is not None:
                expiry.cancel()
            stream.give_back(reader, visit.unconfirmed)
            stream.leave(reader)
            await cancel(gone)


class Undecided:
    """Exchanges that somebody works on. Those that take too long are answered by events; one timer watches all."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[Exchange, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: Exchange) -> None:
        """Its time runs from now on."""
        loop = asyncio.get_running_loop()
        self._since[exchange] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look)

    def discard(self, exchange: Exchange) -> None:
        """It is decided, or nobody waits for it any more."""
        self._since.pop(exchange, None)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for exchange, since in list(self._since.items()):
            if (left := since + self._seconds - loop.time()) > 0:
                self._timer = loop.call_later(left, self._look)  # they stand in the order of time
                return
            del self._since[exchange]
            exchange.open_stream()


class Silence:
    """How long a stream has said nothing. Its timer is set anew when it goes off, not with everything that is said."""

    __slots__ = ("_loop", "_rouse", "_seconds", "_since", "_timer", "too_long")

    def __init__(self, seconds: float, rouse: Callable[[], None]) -> None:
        self.too_long = False
        self._loop = asyncio.get_running_loop()
        self._rouse = rouse
        self._seconds = seconds
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def broken(self) -> None:
        """Something was said."""
        self.too_long = False
        self._since = self._loop.time()

    def breaking(self, more: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        """The same way to write, which breaks the silence."""

        def write(data: bytes) -> bool:
            written = more(data)
            if written:
                self.broken()
            return written

        return write

    def _look(self) -> None:
        left = self._since + self._seconds - self._loop.time()
        if left <= 0:
            self.too_long = True
            self._rouse()
        self._timer = self._loop.call_later(left if left > 0 else self._seconds, self._look)

    def end(self) -> None:
        """Nothing more is said."""
        self._timer.cancel()


async def answer_interrupted(visit: Visit, ids: Sequence[RequestId], why: str, *, batch: bool = False) -> None:
    """Answer requests that may have been begun, and whose own answers will not come.

    The status is 200, as of any JSON-RPC error: some proxies repeat a POST that came to 502, 503 or 504, and clients of
    MCP repeat one that came to 404 in a new session.
    """
    error = error_object(Interrupted(why), Revision.V2026_07_28)
    answers = [ErrorResponse(ident, error) for ident in ids]
    body = codec.encode(answers if batch or len(answers) > 1 else answers[0])
    await visit.respond(200, body, JSON)


async def refuse_kinds(visit: Visit) -> None:
    """Tells a peer that it has to take both kinds of answers."""
    await visit.refuse(406, _BOTH, kind="media_type_not_acceptable")
