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
from trunkline.transports.http.request import JSON_CONTENT_TYPE, HttpRequest, cancel_and_wait
from trunkline.transports.http.session.channel import Exchange
from trunkline.transports.http.session.event_store import format_event_id
from trunkline.transports.http.session.streams import Stream
from trunkline.wire import codec, sse
from trunkline.wire.messages import ErrorResponse, RequestId

__all__ = ["VERSION_HEADER", "Responder", "refuse_not_acceptable", "respond_interrupted"]

VERSION_HEADER: Final = b"mcp-protocol-version"
_PRIMED_SINCE: Final = Revision.V2025_11_25.value.encode()  # since when a stream begins with an event that has no data
_ACCEPT_BOTH_REQUIRED: Final = "Accept must have application/json and text/event-stream"


class Responder:
    """Writes out what comes of exchanges, and streams."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._retry_ms = round(settings.stream_retry * 1000)
        self._keepalive_interval = settings.stream_keepalive
        self._decision_timeouts = DecisionTimeouts(settings.stream_keepalive)

    async def wait_decided(self, exchange: Exchange) -> None:
        """Waits until it is known how an exchange is answered; by events, if that takes so long that proxies ask."""
        if exchange.request_ids and not exchange.decided:
            self._decision_timeouts.add(exchange)
            try:
                await exchange.decision()
            except BaseException:
                exchange.detach()
                raise
            finally:
                self._decision_timeouts.discard(exchange)

    async def respond(self, request: HttpRequest, exchange: Exchange) -> None:
        """Answers one POST, about which it is decided how."""
        if exchange.stream is not None:
            await self.write_stream(request, exchange.stream)
        elif exchange.response is not None:
            await self._respond_json(request, exchange, exchange.response)
        elif exchange.request_ids and not exchange.cancelled_ids:
            await respond_interrupted(request, exchange.request_ids, "the session has ended")
        elif exchange.malformed_ids and not exchange.request_ids:
            await request.refuse(400, "the message could not be read", kind=InvalidRequest.kind)
        else:
            await request.respond(202)

    async def _respond_json(self, request: HttpRequest, exchange: Exchange, answer: bytes) -> None:
        if exchange.missing_scopes is not None:
            await request.respond(403, answer, JSON_CONTENT_TYPE, request.scope_challenge(exchange.missing_scopes))
        else:
            await request.respond(exchange.status if exchange.request_ids else 400, answer, JSON_CONTENT_TYPE)

    async def write_stream(self, request: HttpRequest, stream: Stream, after: int | None = None) -> None:
        """Writes a stream out until it ends, the peer goes, somebody else reads it, or what proved who it is for has
        run out: with a new proof it can be read on."""
        reader = stream.attach(after)
        try:
            await request.begin_stream()
            primed = (
                stream.has_event_ids
                and after is None
                and request.headers.get(VERSION_HEADER, _PRIMED_SINCE) >= _PRIMED_SINCE
            )
            if primed and await stream.wait_committed(reader):
                await request.write(
                    sse.encode_event(b"", id=format_event_id(stream.number, stream.last_read), retry=self._retry_ms)
                )
        except BaseException:
            stream.detach_reader(reader)
            raise
        gone = asyncio.ensure_future(request.wait_disconnected())
        gone.add_done_callback(lambda _: stream.wake_reader())
        silence = SseKeepalive(self._keepalive_interval, stream.wake_reader)
        expiry = (
            None
            if request.auth_expires_at is None
            else self._clock.call_at(request.auth_expires_at, lambda: stream.detach_reader(reader))
        )
        if (more := request.write_nowait) is not None and stream.is_current_reader(reader):
            stream.push = silence.wrap_write(more)
        try:
            while stream.is_current_reader(reader) and not gone.done():
                if data := stream.take():
                    await request.write(data)
                    stream.confirm_written()
                    silence.reset()
                elif stream.exhausted:
                    break
                elif silence.due:
                    await request.write(sse.COMMENT)
                    silence.reset()
                else:
                    await stream.wait_for_change()
            if not gone.done():
                await request.end_stream()
        finally:
            silence.stop()
            if expiry is not None:
                expiry.cancel()
            stream.rewind(reader, request.unacknowledged_bytes)
            stream.detach_reader(reader)
            await cancel_and_wait(gone)


class DecisionTimeouts:
    """Exchanges that somebody works on. Those that take too long are answered by events; one timer watches all."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._started_at: dict[Exchange, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: Exchange) -> None:
        """Its time runs from now on."""
        loop = asyncio.get_running_loop()
        self._started_at[exchange] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._open_overdue_streams)

    def discard(self, exchange: Exchange) -> None:
        """It is decided, or nobody waits for it any more."""
        self._started_at.pop(exchange, None)

    def _open_overdue_streams(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for exchange, since in list(self._started_at.items()):
            if (left := since + self._timeout - loop.time()) > 0:
                self._timer = loop.call_later(left, self._open_overdue_streams)  # they stand in the order of time
                return
            del self._started_at[exchange]
            exchange.open_stream()


class SseKeepalive:
    """How long a stream has said nothing. Its timer is set anew when it goes off, not with everything that is said."""

    __slots__ = (
        "_interval",
        "_last_write",
        "_loop",
        "_timer",
        "_wake",
        "due",
    )

    def __init__(self, interval: float, wake: Callable[[], None]) -> None:
        self.due = False
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._interval = interval
        self._last_write = self._loop.time()
        self._timer = self._loop.call_later(interval, self._check)

    def reset(self) -> None:
        """Something was said."""
        self.due = False
        self._last_write = self._loop.time()

    def wrap_write(self, write_nowait: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        """The same way to write, which breaks the silence."""

        def write(data: bytes) -> bool:
            written = write_nowait(data)
            if written:
                self.reset()
            return written

        return write

    def _check(self) -> None:
        left = self._last_write + self._interval - self._loop.time()
        if left <= 0:
            self.due = True
            self._wake()
        self._timer = self._loop.call_later(left if left > 0 else self._interval, self._check)

    def stop(self) -> None:
        """Nothing more is said."""
        self._timer.cancel()


async def respond_interrupted(
    request: HttpRequest, ids: Sequence[RequestId], reason: str, *, batch: bool = False
) -> None:
    """Answer requests that may have been begun, and whose own answers will not come.

    The status is 200, as of any JSON-RPC error: some proxies repeat a POST that came to 502, 503 or 504, and clients of
    MCP repeat one that came to 404 in a new session.
    """
    error = error_object(Interrupted(reason), Revision.V2026_07_28)
    answers = [ErrorResponse(ident, error) for ident in ids]
    body = codec.encode(answers if batch or len(answers) > 1 else answers[0])
    await request.respond(200, body, JSON_CONTENT_TYPE)


async def refuse_not_acceptable(request: HttpRequest) -> None:
    """Tells a peer that it has to take both kinds of answers."""
    await request.refuse(406, _ACCEPT_BOTH_REQUIRED, kind="media_type_not_acceptable")
