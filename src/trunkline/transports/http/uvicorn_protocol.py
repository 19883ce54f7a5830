"""HTTP connections based on uvicorn and httptools, with limits that neither has.

A peer has to send the headers of a request within a time limit and a size limit. A peer that does not read its
responses is disconnected after `write_timeout`. Request lines and transfer codings that httptools accepts leniently are
refused (RFC 9112). Everything else is uvicorn's.

Faults are contained: an exception in a callback of the loop, or in a request's coroutine, is reported as one incident
and closes its own connection. A peer may send any bytes at any time, so a request can still be in progress when its
connection has closed; from `connection_lost` on, all of a connection's requests count as disconnected, and nothing is
written for them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from trunkline.clock import Timer
from trunkline.transports.addresses import format_host_port
from trunkline.transports.http.request import HALF_CLOSED_EXTENSION, RESPOND_EXTENSION, WRITE_EXTENSION, Headers
from trunkline.transports.http.session.channel import Decision
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.wire import sse

__all__ = ["Connections", "HttpConnection"]

_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 30\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_GOODBYE: Final = (
    b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"the server is about to stop",'
    b'"data":{"kind":"temporarily_unavailable","retryAfterMs":1000}}}'
)
_STOPPING: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_GOODBYE), _GOODBYE)
)
_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_UNREADABLE: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_PROBE_FIRST: Final = 0.05  # seconds after which a peer that has half-closed is probed again; then twice as long, …
_PROBE_LONGEST: Final = 1.0  # … up to this; later its stream's own keep-alive comments do the same


def _refusal(status: int, reason: str) -> bytes:
    """A whole response that refuses a request and ends the connection."""
    head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    body = reason.encode()
    return STATUS_LINE[status] + head % len(body) + body


_BAD_LINE: Final = _refusal(400, "invalid request line: send METHOD, target and HTTP/1.1 with one space between them")
_BAD_TARGET: Final = _refusal(400, "invalid request target: send a path, or an absolute http:// or https:// URL")
_BAD_VERSION: Final = _refusal(505, "this HTTP version is not supported: send HTTP/1.1")
_BAD_CODING: Final = _refusal(501, "this transfer coding is not supported: send chunked alone, or a Content-Length")
_OLD_CODING: Final = _refusal(400, "HTTP/1.0 has no transfer codings: send a Content-Length")


class Connections:
    """All connections of one listener, and their deadlines."""

    def __init__(self, guard: ListenerGuard, config: Config) -> None:
        self.guard = guard
        self.config = config
        self.state = ServerState()
        settings = guard.settings
        self.most_header_bytes = settings.max_header_bytes
        self._unanswered: list[tuple[HttpConnection, Coroutine[Any, Any, None]]] = []  # requests that are all there
        self._reading = DeadlineSet(guard, settings.header_timeout, HttpConnection.too_slow)
        self._writing = DeadlineSet(guard, settings.write_timeout, HttpConnection.stuck)
        self._idle = DeadlineSet(guard, settings.idle_timeout, HttpConnection.timeout_keep_alive_handler)
        self.awaits_headers = self._reading.add  # the headers of a request are due
        self.headers_received = self._reading.discard
        self.write_blocked = self._writing.add
        self.write_resumed = self._writing.discard
        self.idle_started = self._idle.add  # between two requests
        self.idle_ended = self._idle.discard

    def answer_soon(self, connection: "HttpConnection", work: "Coroutine[Any, Any, None]") -> None:
        """Answer a request in the next turn of the loop, together with all others read in this one, so that their
        responses are written together."""
        if not self._unanswered:
            asyncio.get_running_loop().call_soon(self._answer)
        self._unanswered.append((connection, work))

    def _answer(self) -> None:
        """Answer requests that need no waiting at once; the others continue when they can."""
        unanswered, self._unanswered = self._unanswered, []
        for connection, work in unanswered:
            self._advance(connection, work)

    def _advance(self, connection: "HttpConnection", work: "Coroutine[Any, Any, None]") -> None:
        """Run a request to its end or to its first wait. Waiting for a decision takes no task: afterwards the request
        only writes its response, unless the peer reads too slowly or the response is a stream."""
        try:
            waiting = work.send(None)
        except StopIteration:
            return
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is this connection's alone
            connection.failed(error)
            return
        if type(waiting) is Decision:
            waiting._asyncio_future_blocking = False  # as asyncio.Task does with each future that it awaits
            waiting.add_done_callback(partial(self._decided, connection, work))
            self.state.tasks.add(cast("Any", waiting))  # so that the end of the listener waits for it, too
        else:
            self._make_task(work, waiting)

    def _decided(self, connection: "HttpConnection", work: "Coroutine[Any, Any, None]", decision: Decision) -> None:
        self.state.tasks.discard(cast("Any", decision))
        self._advance(connection, work)

    def _make_task(self, work: "Coroutine[Any, Any, None]", waiting: Any) -> None:
        task = asyncio.get_running_loop().create_task(_resumed(work, waiting))
        task.add_done_callback(self.state.tasks.discard)
        self.state.tasks.add(task)

    def make(self) -> "HttpConnection":
        """Return the protocol of a new connection."""
        return HttpConnection(self)

    def forget(self, connection: "HttpConnection") -> None:
        """Remove the deadlines of a connection that has closed or become a WebSocket."""
        self._reading.discard(connection)
        self._writing.discard(connection)
        self._idle.discard(connection)

    def close(self) -> None:
        """Stop all deadlines."""
        self._reading.close()
        self._writing.close()
        self._idle.close()


class DeadlineSet:
    """Connections with a deadline of the same length; one timer serves all of them."""

    def __init__(
        self, guard: ListenerGuard, seconds: float | None, give_up: "Callable[[HttpConnection], None]"
    ) -> None:
        self._on_timeout = give_up
        self._clock = guard.clock
        self._seconds = seconds
        self._since: dict[HttpConnection, float] = {}
        self._timer: Timer | None = None

    def add(self, connection: "HttpConnection") -> None:
        """Start a connection's deadline, unless it is running."""
        if self._seconds is not None and connection not in self._since:
            self._since[connection] = now = self._clock.now()
            if self._timer is None:
                self._timer = self._clock.call_at(now + self._seconds, self._expire_overdue)

    def discard(self, connection: "HttpConnection") -> None:
        """Remove a connection that has met its deadline."""
        self._since.pop(connection, None)

    def _expire_overdue(self) -> None:
        self._timer = None
        now, limit = self._clock.now(), self._seconds or 0.0
        for connection, since in list(self._since.items()):
            if now - since < limit:
                self._timer = self._clock.call_at(since + limit, self._expire_overdue)  # the dict is in order of time
                return
            del self._since[connection]
            try:
                self._on_timeout(connection)
            except Exception as error:  # noqa: BLE001 - the others' time is over all the same
                connection.failed(error)

    def close(self) -> None:
        """Stop the timer."""
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Flow(FlowControl):
    """Flow control that leaves bytes unread while requests are queued: each answer would let in one more read."""

    def __init__(self, transport: Any, queued: "deque[Any]") -> None:
        super().__init__(transport)
        self._queued = queued

    def resume_reading(self) -> None:
        """Read on, unless requests that were read already wait for their turn."""
        if self.read_paused and not self._queued and not self._transport.is_closing():
            super().resume_reading()


class _Refused(Exception):
    """Stops the parser after a refusal was written."""


class HttpConnection(HttpToolsProtocol):
    """One connection."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections.config, connections.state, {})
        self._connections = connections
        self._header_bytes: int = 0  # of a request whose headers are not complete
        self._extensions: dict[str, Any] = {
            RESPOND_EXTENSION: self.answer,
            WRITE_EXTENSION: self.write_nowait,
            HALF_CLOSED_EXTENSION: self.when_half_closed,
        }
        self._answering: RequestResponseCycle | None = None
        self._unstarted: tuple[RequestResponseCycle, Any] | None = None  # a request whose body is being read
        self._aside_bytes = 0  # since the last piece of a body: what is between the pieces, and trailers
        self._read = b""  # the last read, with those before it that its head began in
        self._at: int = 0  # how much of it belongs to earlier requests …
        self._exactly = True  # … or at least that: httptools does not say where a chunked body ends
        self._codings: list[bytes] = []  # the Transfer-Encoding of the request that is being read
        self._upgraded = False  # it is a WebSocket, and no longer ours
        self._half_closed = False  # the peer sends no more
        self._on_half_closed: Callable[[], object] | None = None
        self._probe: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept the connection unless there are too many or the server is stopping."""
        try:
            super().connection_made(transport)
            self.flow = _Flow(transport, self.pipeline)
            guard = self._connections.guard
            if guard.closing or len(self.connections) > guard.max_connections:
                transport.write(_STOPPING if guard.closing else _BUSY)
                transport.close()
            else:
                self._connections.awaits_headers(self)
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self.failed(error)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        self._aside_bytes += len(data)
        if self._header_bytes:
            self._read = self._read[self._at :] + data
        else:
            self._read = data
            self._exactly = not self._codings
        self._at = 0
        try:
            self._connections.idle_ended(self)
            self._parse(data)
            self._look_at_rest()
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self.failed(error)

    def _look_at_rest(self) -> None:
        """Look at what the parser has not finished: a body, or a head, that is still to come."""
        if self.transport.is_closing() or self._upgraded:
            self._unstarted = None  # its body cannot be read any more
            return
        if self._unstarted is not None:  # the rest of the body is still to come
            unstarted, self._unstarted = self._unstarted, None
            self._start_task(*unstarted)
        if self._header_bytes:
            self._header_bytes = max(len(self._read) - self._at, 1)
            if self._header_bytes > self._connections.most_header_bytes:
                self._refuse(_TOO_LONG)
            else:
                self._connections.awaits_headers(self)
            return
        self._read = b""
        if self._aside_bytes > self._connections.most_header_bytes:
            self._refuse(_TOO_LONG)
        elif self.cycle and self.cycle.response_complete:
            self._connections.awaits_headers(self)  # these bytes belong to no request: one has to begin soon

    def _parse(self, data: bytes) -> None:
        parser: Any = self.parser
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:  # of a callback of ours
            if error.__context__ is None or isinstance(error.__context__, httptools.HttpParserError):
                self._refuse(_UNREADABLE)
            elif not isinstance(error.__context__, _Refused):
                raise error.__context__ from None
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            self._refuse(_UNREADABLE)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request: in one call once its whole body has arrived, if that is soon; in a task otherwise."""
        self._answering = cycle
        self._on_half_closed = None
        cycle.scope["extensions"] = self._extensions
        if cycle is self.cycle and self._header_bytes and cycle.more_body:  # its headers have just been read
            self._unstarted = (cycle, app)
        else:
            self._start_task(cycle, app)

    def _start_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        task = self.loop.create_task(self._respond(cycle, app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_message_complete(self) -> None:
        """Answer the request whose last byte was parsed."""
        self._codings = []
        super().on_message_complete()
        unstarted, self._unstarted = self._unstarted, None
        if unstarted is not None:
            self._connections.answer_soon(self, self._respond(*unstarted))

    async def _respond(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Have the application answer one request, and contain whatever it raises."""
        try:
            await app(cycle.scope, cycle.receive, cycle.send)
            if not cycle.response_complete and not cycle.disconnected:
                raise RuntimeError("the application returned before its response was complete")
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self.failed(error, cycle)
        finally:
            cycle.on_response = _nothing  # so that no cycle of references is left

    @property
    def _peer(self) -> str:
        return format_host_port(*self.client) if self.client else ""

    def failed(self, error: BaseException, cycle: RequestResponseCycle | None = None) -> None:
        """Report an error of our own and close this connection; the request that it is about is answered with 500 if
        its response has not begun."""
        incident = self._connections.guard.connection_failed("http", self._peer, error)
        if cycle is None or cycle.response_started or self.transport.is_closing():
            self.transport.abort()
        else:
            cycle.response_started = True
            self.transport.write(_refusal(500, f"the server failed; its log has the details under {incident}"))
            self.transport.close()

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write the whole response to the current request in one write; return False if that is not possible now."""
        cycle = self._answering
        if cycle is None or cycle.disconnected or self.flow.write_paused:
            return False
        if cycle.response_started or not cycle.keep_alive:
            return False
        head = b"".join([b"%b: %b\r\n" % header for header in headers])
        if head.count(b"\n") != len(headers) or cycle.scope["method"] == "HEAD":
            return False
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], head, body))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True

    def write_nowait(self, data: bytes) -> bool:
        """Write one more chunk of a stream at once; return False if that is not possible now."""
        cycle = self._answering
        if cycle is None or cycle.disconnected or self.flow.write_paused:
            return False
        if not cycle.chunked_encoding or cycle.response_complete:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def on_response_complete(self) -> None:
        """Start the next request, or the idle timeout."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self._connections.idle_started(self)
        if self.flow.read_paused:
            self.flow.resume_reading()

    def _unset_keepalive_if_required(self) -> None:
        self._connections.idle_ended(self)

    def on_message_begin(self) -> None:
        """Reset the state of the request being parsed."""
        self._header_bytes = 1
        self._codings = []
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers are dropped: no intermediary has checked them as headers."""
        if self._header_bytes:
            name = name.lower()
            if name == b"expect":
                self.expect_100_continue = value.lower() == b"100-continue"
            elif name == b"transfer-encoding":
                self._codings.append(value.lower())
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the size and syntax of a complete head."""
        if self._aside_bytes > self._connections.most_header_bytes and self._headers_too_long():
            self._refuse(_TOO_LONG)
            raise _Refused
        parser: Any = self.parser
        usual = b"%b %b HTTP/1.1\r\n" % (parser.get_method(), self.url)
        if not (self._read.startswith(usual, self._at) and self._exactly and self._is_usual()):
            self._check_head()
        upgrade = parser.should_upgrade()
        if upgrade and not self._should_upgrade() and self._has_body():
            self._refuse(_UNREADABLE)  # the parser would take its body for the next request
            raise _Refused
        self._aside_bytes = 0
        self._at = self._read.find(b"\r\n\r\n", self._at) + 4
        self._exactly = not self._codings
        self._connections.headers_received(self)
        super().on_headers_complete()
        self._header_bytes = 0

    def _is_usual(self) -> bool:
        """Whether the target is a path, and there is no transfer coding."""
        return not self._codings and self.url.startswith(b"/") and b"#" not in self.url

    def _check_head(self) -> None:
        """Refuse a request that httptools takes and RFC 9112 does not."""
        if (refusal := self._invalid_head()) is not None:
            self._refuse(refusal)
            raise _Refused

    def _invalid_head(self) -> bytes | None:
        """Return the refusal of a request that is not valid HTTP/1.x; None if it is."""
        parser: Any = self.parser
        version: str = parser.get_http_version()
        line = b"%b %b HTTP/%b\r\n" % (parser.get_method(), self.url, version.encode())
        if not (self._exactly and self._read.startswith(line, self._at)) and not self._finds(line):
            return _BAD_LINE
        if version not in _VERSIONS:
            return _BAD_VERSION
        if self._codings and self._codings != [b"chunked"]:
            *others, last = [each.strip() for each in b",".join(self._codings).split(b",")]
            if last == b"chunked" and others and b"chunked" not in others:
                return _BAD_CODING
            return _UNREADABLE  # RFC 9112, 6.3: the end of its body is undefined
        if self._codings and version == "1.0":
            return _OLD_CODING
        return None if self.url.startswith(b"/") and b"#" not in self.url else self._absolute_form()

    def _finds(self, line: bytes) -> bool:
        """Find where a request begins with its request line: behind empty lines, or anywhere after a chunked body."""
        rest = self._read[self._at :]
        found = len(rest) - len(rest.lstrip(b"\r\n")) if self._exactly else rest.find(line)
        self._at += max(found, 0)
        return self._read.startswith(line, self._at)

    def _absolute_form(self) -> bytes | None:
        """Resolve an absolute target: its path is the path, and its authority replaces the header Host (RFC 9112,
        3.2.2). Return the refusal of an invalid target."""
        scheme, colon, rest = self.url.partition(b"://")
        if not colon or scheme.lower() not in {b"http", b"https"} or b"#" in rest:
            return _BAD_TARGET
        size = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
        authority, target = rest[:size], rest[size:]
        if not authority:
            return _BAD_TARGET
        self.url = target if target.startswith(b"/") else b"/" + target
        self.headers[:] = [(name, authority if name == b"host" else value) for name, value in self.headers]
        return None

    def _headers_too_long(self) -> bool:
        """Return whether the headers of this request exceed the limit, where one read held more than them."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        return size > self._connections.most_header_bytes

    def _has_body(self) -> bool:
        return any(name in {b"content-length", b"transfer-encoding"} for name, _ in self.headers)

    def on_body(self, body: bytes) -> None:
        """Pass on a chunk of a body."""
        self._aside_bytes = 0
        self._at += len(body)
        super().on_body(body)

    def handle_websocket_upgrade(self) -> None:
        """Upgrade to a WebSocket, unless an earlier request on the connection is unanswered."""
        if self._answer_is_due():
            self.transport.close()
            return
        self._upgraded = True
        self._connections.forget(self)
        super().handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        protocol.report = partial(self._connections.guard.connection_failed, "websocket", self._peer)
        if not protocol.handshake_initiated:  # it cannot open a WebSocket, and nothing else would answer it
            self._refuse(_UNREADABLE)

    def pause_writing(self) -> None:
        """Start the write timeout: the peer reads too slowly."""
        self._connections.write_blocked(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Stop the write timeout."""
        self._connections.write_resumed(self)
        super().resume_writing()

    def stuck(self) -> None:
        """Abort a connection whose peer has not read for `write_timeout`."""
        self.transport.abort()

    def too_slow(self) -> None:
        """Refuse a request whose headers did not arrive in time."""
        self._refuse(_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        """Close the connection with a refusal of what is being parsed, unless an earlier request would take that for
        its response."""
        if not self.transport.is_closing():
            if not self._answer_is_due():
                self.transport.write(answer)
            self.transport.close()

    def _answer_is_due(self) -> bool:
        """Return whether an earlier request is unanswered, or a response has begun."""
        cycle = self._answering
        if cycle is None or cycle.response_complete:
            return False
        return cycle.response_started or cycle is not self.cycle or not cycle.more_body

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] - the loop asks for one
        """Handle the peer closing its sending side. It may still read: the current request is answered, then the
        connection closes. A peer that has closed altogether looks the same until something is written to it, which it
        resets."""
        cycle: Any = self.cycle
        if self.scheme == "https" or self._header_bytes or cycle is None or cycle.response_complete or cycle.more_body:
            return False  # TLS has no half-closed connections; a request that is incomplete is never answered
        cycle.keep_alive = False
        self._half_closed = True
        if self._on_half_closed is not None:
            self._on_half_closed()
        self._probe_peer(_PROBE_FIRST)
        return True

    def when_half_closed(self, callback: Callable[[], object]) -> None:
        """Call a callback once the peer has closed its sending side, while the current request is in progress."""
        if self._half_closed:
            callback()
        else:
            self._on_half_closed = callback

    def _probe_peer(self, seconds: float) -> None:
        """Write a comment into the current event stream, if there is one, and again after a while: a peer that is gone
        resets the first, and the next write finds that out. A stream that answers a GET does not end by itself and must
        reach a peer that is certainly there, so it is closed instead."""
        self._probe = None
        if self.transport.is_closing() or seconds > _PROBE_LONGEST:
            return
        cycle = self._answering
        if cycle is not None and cycle.chunked_encoding and cycle.scope["method"] == "GET":
            self.transport.close()
            return
        self.write_nowait(sse.COMMENT)
        self._probe = self.loop.call_later(seconds, self._probe_peer, seconds * 2)

    def _cycles(self) -> list[RequestResponseCycle]:
        """Return the unanswered requests, and perhaps the last answered one."""
        found = [cycle for cycle in (self._answering, self.cycle) if cycle is not None]
        return [*found, *(cycle for cycle, _ in self.pipeline)]

    def connection_lost(self, exc: Exception | None) -> None:
        """Mark all requests of the connection as disconnected."""
        self._connections.forget(self)
        if self._probe is not None:
            self._probe.cancel()
        for cycle in self._cycles():
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)


def _nothing() -> None:
    """Replace the callback of a complete response."""


async def _resumed(work: "Coroutine[Any, Any, None]", waiting: Any) -> None:
    """Continue a coroutine that has begun to wait."""
    await _begun(work, waiting)


@coroutine
def _begun(work: "Coroutine[Any, Any, None]", waiting: Any) -> "Generator[Any, Any, None]":
    while True:
        try:
            value = yield waiting
        except BaseException as error:  # noqa: BLE001 - it is raised inside the coroutine
            step: Callable[[Any], Any] = work.throw
            value = error
        else:
            step = work.send
        try:
            waiting = step(value)
        except StopIteration:
            return
