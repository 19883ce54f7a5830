"""Responding to a POST: plain JSON if the reply is the first message sent, an event stream otherwise.

Streams are written at the reader's pace. The channel buffers up to `unsent_limit` bytes for a slow reader; beyond that
it ends the session.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from trunkline.clock import Clock
from trunkline.errors import Interrupted, InvalidRequest, UnsupportedVersion
from trunkline.protocol.error_codes import error_object
from trunkline.protocol.revisions import SUPPORTED_VERSIONS, Revision
from trunkline.transports.http.request import JSON_CONTENT_TYPE, VERSION_HEADER, Handling, HttpRequest
from trunkline.transports.http.session.channel import Exchange
from trunkline.transports.http.session.event_store import format_event_id
from trunkline.transports.http.session.streams import Stream
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.wire import codec, sse
from trunkline.wire.messages import ErrorResponse, Incoming, Malformed, Request, RequestId

__all__ = [
    "Responder",
    "SseKeepalive",
    "check_version",
    "refuse_malformed",
    "refuse_not_acceptable",
    "respond_interrupted",
    "respond_json",
]

_PRIMED_SINCE: Final = Revision.V2025_11_25.value.encode()  # from here on a stream begins with an event without data
_KIND_BY_CODE: Final = {-32700: "parse_error", -32602: "invalid_params"}
_ACCEPT_BOTH_REQUIRED: Final = "Accept must include application/json and text/event-stream"


class Responder:
    """Writes the outcome of exchanges, and streams, to HTTP responses."""

    def __init__(self, guard: ListenerGuard) -> None:
        settings = guard.settings
        self._guard = guard
        self._clock = guard.clock
        self._retry_ms = round(settings.stream_retry * 1000)
        self._keepalive_interval = settings.stream_keepalive
        self._decision_timeouts = DecisionTimeouts(settings.stream_keepalive)

    def when_decided(self, exchange: Exchange, callback: Callable[[], None]) -> None:
        """Call a callback once it is decided how an exchange is answered. After `stream_keepalive` seconds it becomes
        an event stream, so that proxies see bytes before their own timeouts."""

        def on_decided() -> None:
            self._decision_timeouts.discard(exchange)
            callback()

        exchange.on_decided = on_decided
        self._decision_timeouts.add(exchange)

    def forget(self, exchange: Exchange) -> None:
        """Do not call the callback of an exchange any more: no client waits for the response."""
        exchange.on_decided = None
        self._decision_timeouts.discard(exchange)

    def respond(self, request: HttpRequest, exchange: Exchange) -> Handling:
        """Answer the POST of an exchange that is decided."""
        if exchange.stream is not None:
            return self.write_stream(request, exchange.stream)
        if exchange.response is not None:
            respond_json(request, exchange, exchange.response)
        elif exchange.request_ids and not exchange.cancelled_ids:
            respond_interrupted(request, exchange.request_ids, "the session has ended")
        elif exchange.malformed_ids and not exchange.request_ids:
            request.refuse(400, "the message could not be parsed", kind=InvalidRequest.kind)
        else:
            request.respond(202)
        return None

    async def write_stream(self, request: HttpRequest, stream: Stream, after: int | None = None) -> None:
        """Write a stream until it ends, the peer disconnects, another reader takes over, or the credentials expire.

        After an expiry the client can resume the stream with new credentials.
        """
        with self._guard.observe_stream():
            await self._write_stream(request, stream, after)

    async def _write_stream(self, request: HttpRequest, stream: Stream, after: int | None) -> None:
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
        request.when_disconnected(stream.wake_reader)
        keepalive = SseKeepalive(self._keepalive_interval, stream, self._clock)
        expiry = (
            None
            if request.auth_expires_at is None
            else self._clock.call_at(request.auth_expires_at, lambda: stream.detach_reader(reader))
        )
        if stream.is_current_reader(reader):
            stream.push = request.write_nowait
        try:
            while stream.is_current_reader(reader) and not request.disconnected:
                if data := stream.take():
                    await request.write(data)
                    stream.confirm_written()
                elif stream.exhausted:
                    break
                elif keepalive.due:
                    await request.write(sse.COMMENT)
                    keepalive.reset()
                else:
                    await stream.wait_for_change()
            if not request.disconnected:
                await request.end_stream()
        finally:
            keepalive.stop()
            if expiry is not None:
                expiry.cancel()
            stream.rewind(reader, request.unacknowledged_bytes)
            stream.detach_reader(reader)
            request.on_disconnect = None


class DecisionTimeouts:
    """Deadlines of undecided exchanges; overdue ones switch to an event stream. One timer serves all of them."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._started_at: dict[Exchange, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, exchange: Exchange) -> None:
        """Start an exchange's deadline."""
        loop = asyncio.get_running_loop()
        self._started_at[exchange] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._open_overdue_streams)

    def discard(self, exchange: Exchange) -> None:
        """Remove an exchange that is decided or abandoned."""
        self._started_at.pop(exchange, None)

    def _open_overdue_streams(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for exchange, since in list(self._started_at.items()):
            if (left := since + self._timeout - loop.time()) > 0:
                self._timer = loop.call_later(left, self._open_overdue_streams)  # the dict is in order of time
                return
            del self._started_at[exchange]
            exchange.open_stream()


class SseKeepalive:
    """Keep-alive state of one stream: due before it has been silent for longer than `interval` seconds.

    Events are not timed, since one notification may go to many streams. Instead, a timer checks twice in an interval
    whether the reader has moved on. After a comment, whose time is known, the next one is due after two checks; after
    an event, which may be as old as the time between two checks, it is due after one.
    """

    __slots__ = ("_checks_left", "_clock", "_delay", "_position", "_stream", "_timer")

    def __init__(self, interval: float, stream: Stream, clock: Clock) -> None:
        self._clock = clock
        self._stream = stream
        self._position = stream.last_read
        self._checks_left = 2
        self._delay = interval / 2
        self._timer = clock.call_at(clock.now() + self._delay, self._check)

    @property
    def due(self) -> bool:
        """Whether a comment is to be sent now."""
        return self._checks_left == 0

    def reset(self) -> None:
        """Start a new interval after a comment."""
        self._checks_left = 2

    def _check(self) -> None:
        self._timer = self._clock.call_at(self._clock.now() + self._delay, self._check)
        if self._position != self._stream.last_read:
            self._position = self._stream.last_read
            self._checks_left = 1
        elif self._checks_left:
            self._checks_left -= 1
        if self.due:
            self._stream.wake_reader()

    def stop(self) -> None:
        """Stop the timer."""
        self._timer.cancel()


def respond_json(request: HttpRequest, exchange: Exchange, response: bytes) -> None:
    """Answer the POST of an exchange with its reply."""
    if exchange.missing_scopes is not None:
        request.respond(403, response, JSON_CONTENT_TYPE, request.scope_challenge(exchange.missing_scopes))
    else:
        request.respond(exchange.status if exchange.request_ids else 400, response, JSON_CONTENT_TYPE)


def respond_interrupted(request: HttpRequest, ids: Sequence[RequestId], reason: str, *, batch: bool = False) -> None:
    """Answer requests whose handlers may have started but whose results will not arrive.

    The status is 200, as for any JSON-RPC error: some proxies repeat a POST that got 502, 503 or 504, and MCP clients
    repeat one that got 404 in a new session.
    """
    error = error_object(Interrupted(reason), Revision.V2026_07_28)
    replies = [ErrorResponse(ident, error) for ident in ids]
    body = codec.encode(replies if batch or len(replies) > 1 else replies[0])
    request.respond(200, body, JSON_CONTENT_TYPE)


def refuse_not_acceptable(request: HttpRequest) -> None:
    """Respond 406: a client must accept both JSON and event streams."""
    request.refuse(406, _ACCEPT_BOTH_REQUIRED, kind="media_type_not_acceptable")


def check_version(request: HttpRequest, message: Incoming | None = None) -> bool:
    """Return whether the version header is absent or names a revision of the handshake era; refuse the request
    otherwise."""
    if request.head.handshake:
        return True
    version = request.headers[VERSION_HEADER].decode("latin-1")
    about = message.id if isinstance(message, Request | Malformed) else None
    request.refuse_with_error(400, UnsupportedVersion(version, SUPPORTED_VERSIONS), request_id=about)
    return False


def refuse_malformed(request: HttpRequest, message: Malformed) -> None:
    """Respond 400 to a body that is no valid message."""
    kind = _KIND_BY_CODE.get(message.code, "invalid_request")
    request.refuse(400, message.why, code=message.code, kind=kind, request_id=message.id)
