"""HTTP/1.1 connections of the built-in listener: bytes to requests, responses to bytes.

A connection reads one request at a time. Requests that a client pipelines stay in the buffer until the response before
them is complete, and reading pauses while the buffer is large. A request is handled as soon as its head has arrived
together with its whole body, without a task; the handling of a body that is still arriving waits for it in one.

Faults are contained: an exception in a callback of the loop, or in the handling of a request, is reported as one
incident and closes its own connection. A peer may send any bytes at any time, so a request can still be in progress
when its connection has closed; nothing is written for it then.
"""

import asyncio
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from http import HTTPStatus
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from trunkline.clock import WallClock
from trunkline.event_loop import EAGER_START
from trunkline.transports.addresses import format_host_port
from trunkline.transports.http.deadlines import DeadlineSet, IdleDeadline
from trunkline.transports.http.head import BadHead, HeadParser, KnownHead
from trunkline.transports.http.request import (
    UNIX_CLIENT,
    BodyTooLarge,
    DetachedTransport,
    Disconnected,
    Handling,
    Headers,
    HttpHead,
    HttpRequest,
)
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.wire import sse
from trunkline.wire.chunked import BadChunk, ChunkedDecoder, ChunkOverheadTooLong

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["HttpConnection", "HttpConnections", "HttpHandler"]

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CONNECTION_CLOSE: Final = (b"connection", b"close")
_CONNECTION_KEPT: Final = (b"connection", b"keep-alive")  # for HTTP/1.0, which closes it otherwise
_GOODBYE: Final = (
    b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"the server is about to stop",'
    b'"data":{"kind":"temporarily_unavailable","retryAfterMs":1000}}}'
)
_BODILESS: Final = frozenset({204, 304})  # statuses without a body and without a Content-Length
_LARGE_BODY: Final = 64 * 1024  # bytes from which copying a body costs more than passing it on separately
_BUFFER_LIMIT: Final = 64 * 1024  # unread bytes after which the connection stops reading
_KNOWN_HEADS: Final = 4  # request heads that a connection remembers: a client calls a few tools in turn
_CACHED_HEADS: Final = 256  # response heads, until the date changes
_LINGER: Final = 2.0  # seconds in which a peer can read a response that came before the end of its request
_PROBE_FIRST: Final = 0.05  # seconds after which a peer that has half-closed is probed again; then twice as long, …
_PROBE_LONGEST: Final = 1.0  # … up to this; later its stream's own keep-alive comments do the same


class HttpHandler(Protocol):
    """Application that answers requests."""

    def handle(self, request: HttpRequest) -> Handling:
        """Answer a request, now or later."""
        ...

    def handle_upgrade(self, request: HttpRequest) -> Handling:
        """Answer a request to upgrade to WebSocket, now or later."""
        ...

    def profile_of(self, request: HttpRequest) -> "Profile | None":
        """Return the compatibility profile of the client that sent a request, if it has one."""
        ...

    def on_refused(self, request: HttpRequest, status: int, kind: str) -> None:
        """Report the refusal of a request to observers."""
        ...


class HttpConnections:
    """All connections of one listener, and their deadlines."""

    def __init__(self, guard: ListenerGuard, handler: HttpHandler) -> None:
        self.guard = guard
        self.handler = handler
        self.open: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._heads: dict[tuple[int, Headers], bytes] = {}  # encoded response heads of the current second
        self._heads_until = -inf
        settings, clock = guard.settings, guard.clock
        self.now = clock.now
        self.header_limit = settings.max_header_bytes
        self.body_limit = settings.http_body_size_limit
        self.reading = DeadlineSet(clock, settings.header_timeout, HttpConnection.on_read_timeout)
        self.writing = DeadlineSet(clock, settings.write_timeout, HttpConnection.abort)
        self.idle = IdleDeadline(clock, settings.idle_timeout, self.open, HttpConnection.close_idle)

    def encode_head(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
        """Return the status line and headers of a response, with its date. Raise `ValueError` if a header contains a
        line break."""
        now = self.now()
        if now >= self._heads_until or len(self._heads) >= _CACHED_HEADS:
            self._heads_until = now + 1.0
            self._heads.clear()
        head = self._heads.get((status, headers))
        if head is None:
            date = (b"date", formatdate(WallClock().now(), usegmt=True).encode())
            head = self._heads[status, headers] = _encode_head(status, (*headers, date))
        return head

    def make(self) -> "HttpConnection":
        """Return the protocol of a new connection."""
        return HttpConnection(self)

    def forget_deadlines(self, connection: "HttpConnection") -> None:
        """Remove the deadlines of a connection that has closed or become a WebSocket."""
        connection.idle_since = None
        for deadlines in (self.reading, self.writing):
            deadlines.discard(connection)

    async def shut_down(self, grace: float) -> None:
        """Close all connections. Responses in progress get `grace` seconds to finish; idle connections none."""
        for connection in list(self.open):
            connection.close_after_response()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace
        while self.open and (left := until - loop.time()) > 0 and any(one.busy for one in self.open):
            waiter = loop.create_future()
            for connection in self.open:
                connection.closed_waiter = waiter
            await asyncio.wait([waiter], timeout=left)
        for connection in list(self.open):
            connection.abort()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        for deadlines in (self.reading, self.writing, self.idle):
            deadlines.close()


class _IncomingBody:
    """Body of the current request while it is arriving."""

    __slots__ = ("_chunks", "_decoder", "_length", "limit", "reader", "size", "unconfirmed")

    def __init__(self, length: int, decoder: ChunkedDecoder | None = None) -> None:
        """`decoder` is for a chunked body; otherwise the body has `length` bytes."""
        self._length = length
        self._decoder = decoder
        self._chunks: list[bytes] = [] if decoder is None else decoder.pieces
        self.size = 0
        self.limit: int | None = None  # set by the reader
        self.reader: asyncio.Future[None] | None = None  # of a coroutine that waits for the body
        self.unconfirmed = False  # the client waits for `100 Continue`

    def feed(self, data: bytes) -> bytes:
        """Add bytes; return what follows the body. Raise `BadChunk`."""
        self.unconfirmed = False
        if self._decoder is not None:
            rest = self._decoder.feed(data)
            self.size = self._decoder.size
            return rest
        part = data[: self._length - self.size]
        self._chunks.append(part)
        self.size += len(part)
        return data[len(part) :]

    def discard(self) -> None:
        """Drop what has arrived."""
        self._chunks.clear()

    @property
    def complete(self) -> bool:
        """Whether the whole body has arrived."""
        return self.size == self._length if self._decoder is None else self._decoder.complete

    @property
    def too_large(self) -> bool:
        """Whether the body exceeds the limit of its reader."""
        return self.limit is not None and self.size > self.limit

    def join(self) -> bytes:
        """Return the body so far."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def wake_reader(self) -> None:
        """Wake the coroutine that waits for the body."""
        if self.reader is not None and not self.reader.done():
            self.reader.set_result(None)


class HttpConnection(asyncio.Protocol):
    """One connection. It is the source of its requests."""

    def __init__(self, connections: HttpConnections) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast("Any", None)
        self._scheme = "http"
        self._client: tuple[str, int] | None = None
        self._server: tuple[str, int | None] | None = None
        self._buffer = b""  # received, not parsed yet
        self._head: HeadParser | None = None  # of a request whose head is incomplete
        self._known_heads: tuple[KnownHead, ...] = ()  # of requests before, the newest first
        self._used = False  # a request was received
        self._head_due = False  # whether the deadline of a head is running
        self._body: _IncomingBody | None = None  # of a request whose body is incomplete
        self._request: HttpRequest | None = None  # the request in progress
        self._version = b"1.1"  # of the request in progress
        self._keep_alive = True
        self._streaming = False  # the response to it has begun and is not complete
        self._chunked = False  # it is sent in chunks
        self._parsing = False
        self._read_paused = False
        self._drained: asyncio.Future[None] | None = None  # set while the peer reads too slowly
        self._half_closed = False  # the peer sends no more
        self._lingering = False  # the last response is written; what still arrives is dropped
        self._on_half_closed: Callable[[], object] | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._detached = False  # the connection has become a WebSocket
        self.closed_waiter: asyncio.Future[None] | None = None
        self.idle_since: float | None = None  # when it began to wait for the next request

    # --- callbacks of the loop --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection unless there are too many or the server is stopping."""
        self._transport = cast("asyncio.Transport", transport)
        connections = self._connections
        connections.open.add(self)
        try:
            self._server = _address(transport.get_extra_info("sockname"))
            self._client = UNIX_CLIENT if self._server is None else _address(transport.get_extra_info("peername"))
            if transport.get_extra_info("sslcontext") is not None:
                self._scheme = "https"
            guard = connections.guard
            if guard.closing:
                headers = ((b"retry-after", b"1"), (b"content-type", b"application/json"), _CONNECTION_CLOSE)
                self._write_whole(503, headers, _GOODBYE)
                self._close_after_refusal()
            elif len(connections.open) > guard.max_connections:
                self._write_whole(503, ((b"retry-after", b"30"), _CONNECTION_CLOSE), b"")
                transport.close()
            else:
                self._expect_head()
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self._fail(error)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and handle the requests in them."""
        if self._lingering:
            return
        try:
            self.idle_since = None
            if self._buffer:
                self._buffer += data
            else:
                self._buffer = data
            self._parse()
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self._fail(error)

    def eof_received(self) -> bool:
        """Handle the peer closing its sending side.

        The peer may still read: the requests that it has sent are answered, then the connection closes. A peer that
        has closed altogether looks the same until something is written to it, which it resets.
        """
        waiting = self._request is not None or self._buffer
        if self._scheme == "https" or self._body is not None or not waiting:
            return False  # TLS has no half-closed connections; an incomplete request is never answered
        self._half_closed = True
        if not self._buffer:
            self._keep_alive = False
        if self._on_half_closed is not None:
            self._on_half_closed()
        self._probe_peer(_PROBE_FIRST)
        return True

    def pause_writing(self) -> None:
        """Start the write timeout: the peer reads too slowly."""
        self._connections.writing.add(self)
        if self._drained is None:
            self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """Stop the write timeout, and continue with what waited for the peer."""
        self._connections.writing.discard(self)
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
        self._continue()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's
        """Note that the request in progress has no reader any more."""
        connections = self._connections
        connections.open.discard(self)
        connections.forget_deadlines(self)
        if self.closed_waiter is not None and not self.closed_waiter.done():
            self.closed_waiter.set_result(None)
        if self._probe is not None:
            self._probe.cancel()
        self._buffer, self._head = b"", None
        self._drop_request()
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # --- requests ---------------------------------------------------------------------------------

    def _parse(self) -> None:
        """Parse the buffer, and handle each request in it, while there is no request in progress."""
        if self._parsing:
            return
        self._parsing = True
        try:
            while self._buffer and not self._transport.is_closing():
                if self._body is not None:
                    self._receive_body(self._body)
                elif self._request is not None or self._drained is not None or not self._receive_head():
                    break
        except BadHead as bad:
            self._refuse(bad.status, bad.reason)
        except BadChunk as bad:
            self._refuse(431 if isinstance(bad, ChunkOverheadTooLong) else 400, f"invalid chunked body: {bad}")
        finally:
            self._parsing = False
        if len(self._buffer) > _BUFFER_LIMIT and not self._read_paused and not self._transport.is_closing():
            self._transport.pause_reading()
            self._read_paused = True

    def _continue(self) -> None:
        """Go on after a response, or after a pause: handle the next request in the buffer, or wait for one."""
        transport = self._transport
        if self._detached or transport.is_closing():
            return
        if self._buffer and not self._parsing:
            try:
                self._parse()
            except Exception as error:  # noqa: BLE001 - it is this connection's alone
                self._fail(error)
                return
        if self._read_paused and len(self._buffer) <= _BUFFER_LIMIT and not transport.is_closing():
            self._read_paused = False
            transport.resume_reading()
        if self._half_closed and (self._request is None or self._body is not None) and not self._parsing:
            transport.close()

    def _receive_head(self) -> bool:
        """Parse the head of a request, and handle the request; return False while the head is incomplete."""
        if self._head is None:
            for known in self._known_heads:
                if size := known.match(self._buffer):
                    self._start_request(known.parsed, known.head, known.content_length, self._buffer[size:])
                    return True
        parser = self._head or HeadParser(self._connections.header_limit)
        rest = parser.feed(self._buffer)
        if rest is None:
            self._buffer = b""
            self._head = parser if parser.begun else None
            self._expect_head()
            return False
        self._head = None
        head = parser.to_http_head()
        if self._used and (known := parser.remember(head)) is not None:
            self._known_heads = (known, *self._known_heads[: _KNOWN_HEADS - 1])
        self._start_request(parser, head, parser.content_length, rest)
        return True

    def _start_request(self, parsed: HeadParser, head: HttpHead, length: int, rest: bytes) -> None:
        """Handle a request whose head is complete. `rest` follows the head."""
        if self._head_due:
            self._head_received()
        self._used = True
        request = HttpRequest(self, head, self._scheme, self._client, self._server)
        self._version = parsed.version
        self._keep_alive = parsed.keep_alive
        if length == len(rest) and not parsed.chunked:  # most requests arrive whole
            request.body, self._buffer = rest, b""
        else:
            self._receive_rest(request, parsed, length, rest)
        if self._half_closed and not self._buffer:
            self._keep_alive = False
        self._request = request
        self._on_half_closed = None
        handler = self._connections.handler
        try:
            if (route := head.route) is not None:
                handling = route(request)
            else:
                handling = handler.handle_upgrade(request) if parsed.websocket else handler.handle(request)
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self._fail(error, request)
            return
        if handling is not None:
            self.run(request, cast("Any", handling))

    def _receive_rest(self, request: HttpRequest, parsed: HeadParser, length: int, rest: bytes) -> None:
        """Take the body from what follows the head, as far as it has arrived."""
        if parsed.chunked:
            decoder = ChunkedDecoder(self._connections.header_limit)
            self._begin_body(request, _IncomingBody(0, decoder), rest)
        elif length < len(rest):
            request.body, self._buffer = rest[:length], rest[length:]
        else:
            self._begin_body(request, _IncomingBody(length), rest)
        if self._body is not None and not rest and request.headers.get(b"expect", b"").lower() == b"100-continue":
            self._body.unconfirmed = parsed.version == b"1.1"

    def _begin_body(self, request: HttpRequest, body: _IncomingBody, data: bytes) -> None:
        self._buffer = body.feed(data) if data else b""
        if body.complete:
            request.body = body.join()
        else:
            self._body = body

    def run(self, request: HttpRequest, work: Coroutine[Any, Any, None]) -> None:
        """Run the rest of a request's handling in a task. From Python 3.12 on it begins at once: reading from the
        connection pauses soon if nothing reads a body that is arriving."""
        task = asyncio.Task(self._run(request, work), loop=self._loop, **EAGER_START)
        if not task.done():
            self._connections.tasks.add(task)
            task.add_done_callback(self._connections.tasks.discard)

    def profile_of(self, request: HttpRequest) -> "Profile | None":
        """Return the compatibility profile of the client that sent a request, if it has one."""
        return self._connections.handler.profile_of(request)

    def on_refused(self, request: HttpRequest, status: int, kind: str) -> None:
        """Report the refusal of a request to observers."""
        self._connections.handler.on_refused(request, status, kind)

    async def _run(self, request: HttpRequest, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self._fail(error, request)

    # --- bodies -----------------------------------------------------------------------------------

    def _receive_body(self, body: _IncomingBody) -> None:
        """Add the buffer to the body that is arriving, or drop it if the request has been answered."""
        self._buffer = body.feed(self._buffer)
        request = self._request
        if request is None:
            body.discard()
            if body.size > self._connections.body_limit:
                self._close_gently()
                return
        if body.complete or body.too_large:
            if body.complete:
                self._body = None
                if request is not None:
                    request.body = body.join()
                else:
                    self._head_received()
                    self._begin_idle()
            body.wake_reader()
        elif request is not None and body.limit is None and body.size > _BUFFER_LIMIT and not self._read_paused:
            self._transport.pause_reading()  # until the handler reads the body
            self._read_paused = True

    async def read_body(self, request: HttpRequest, limit: int) -> bytes:
        """Return the body of the request in progress; ask for it if the client waits to be asked."""
        body = self._body
        if request is not self._request or body is None:
            raise Disconnected
        body.limit = limit
        if body.unconfirmed:
            body.unconfirmed = False
            self._transport.write(_CONTINUE)
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()
        if not body.complete and not body.too_large:
            body.reader = self._loop.create_future()
            await body.reader
        if body.too_large:
            raise BodyTooLarge
        if not body.complete or request.body is None:
            raise Disconnected
        return request.body

    # --- responses --------------------------------------------------------------------------------

    def respond(self, request: HttpRequest, status: int, headers: Headers, body: bytes) -> None:
        """Write the whole response to the request in progress in one write."""
        transport = self._transport
        if request is not self._request or self._streaming or transport.is_closing():
            return
        try:
            if _CONNECTION_CLOSE in headers:
                self._keep_alive = False
            elif not self._keep_alive or (self._body is not None and not self._prepare_keep_alive()):
                headers = (*headers, _CONNECTION_CLOSE)
            elif self._version == b"1.0":
                headers = (*headers, _CONNECTION_KEPT)
            head = self._connections.encode_head(status, tuple(headers))
            if status in _BODILESS:
                transport.write(head + b"\r\n")
            elif request.head.method == "HEAD":
                transport.write(b"%bcontent-length: %d\r\n\r\n" % (head, len(body)))
            elif len(body) < _LARGE_BODY:
                transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
            else:
                transport.write(b"%bcontent-length: %d\r\n\r\n" % (head, len(body)))
                transport.write(body)  # not `writelines`: asyncio of Python 3.12 does not call `pause_writing` there
            self._finish_response()
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self._fail(error)

    def _prepare_keep_alive(self) -> bool:
        """Decide whether the connection is kept after the response in progress."""
        if self._body is not None and self._body.unconfirmed:
            self._keep_alive = False  # the client may or may not send the body now
        return self._keep_alive

    def _finish_response(self) -> None:
        """Close the connection after a response, or prepare for the next request."""
        self._request = None
        self._streaming = False
        if not self._keep_alive:
            self._close_gently()
            return
        if self._body is not None:
            self._body.discard()
            self._expect_head()  # the rest of the body counts against the next head
        elif not self._buffer:
            self._begin_idle()
        if (self._buffer or self._read_paused or self._half_closed) and not self._parsing:
            self._loop.call_soon(self._continue)

    def _close_gently(self) -> None:
        """Close the connection. If the peer is still sending, let it read the response first: bytes that arrive at a
        closed socket make the system reset the connection, and the peer may lose what it has not read."""
        transport = self._transport
        if self._body is None or not transport.can_write_eof():  # TLS has no half-closed connections
            transport.close()
        else:
            self._linger()

    def _linger(self) -> None:
        """Send no more, and drop what the peer sends, until it closes the connection or has had time to."""
        transport = self._transport
        self._body, self._buffer = None, b""
        self._lingering = True
        self._connections.forget_deadlines(self)
        if self._read_paused:
            self._read_paused = False
            transport.resume_reading()
        try:
            transport.write_eof()
        except OSError:  # the peer has reset the connection
            transport.abort()
        else:
            self._loop.call_later(_LINGER, transport.abort)

    async def begin(self, request: HttpRequest, status: int, headers: Headers) -> None:
        """Begin a response that is sent in chunks; to an HTTP/1.0 client, until the connection closes."""
        if request is not self._request or self._transport.is_closing():
            return
        self._chunked = self._version == b"1.1"
        keep_alive = self._prepare_keep_alive() and self._chunked
        self._keep_alive = keep_alive
        framing = ((b"transfer-encoding", b"chunked"),) if self._chunked else ()
        closing = () if keep_alive else (_CONNECTION_CLOSE,)
        self._streaming = True
        head = self._connections.encode_head(status, (*headers, *framing, *closing))
        self._transport.write(head + b"\r\n")

    def write_nowait(self, request: HttpRequest, data: bytes) -> bool:
        """Write a chunk of the response in progress at once; return False if that is not possible now."""
        if request is not self._request or not self._streaming or self._drained is not None:
            return False
        if self._transport.is_closing():
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return True

    async def write(self, request: HttpRequest, data: bytes) -> None:
        """Write a chunk of the response in progress when the peer is ready for it."""
        while (
            not self.write_nowait(request, data) and request is self._request and (drained := self._drained) is not None
        ):
            await asyncio.shield(drained)
        if self._drained is not None and request is self._request:
            await asyncio.shield(self._drained)

    async def end(self, request: HttpRequest) -> None:
        """End the response in progress."""
        if request is self._request and self._streaming and not self._transport.is_closing():
            if self._chunked:
                self._transport.write(b"0\r\n\r\n")
            self._finish_response()

    # --- the peer ---------------------------------------------------------------------------------

    def watch_disconnect(self, request: HttpRequest) -> None:
        """Do nothing: `connection_lost` notifies the request in progress."""

    def watch_half_close(self, request: HttpRequest, callback: Callable[[], object]) -> None:
        """Call a callback once the peer has closed its sending side, while the request is in progress."""
        if request is self._request:
            if self._half_closed:
                callback()
            else:
                self._on_half_closed = callback

    def _probe_peer(self, seconds: float) -> None:
        """Write a comment into the current event stream, if there is one, and again after a while: a peer that is gone
        resets the first, and the next write finds that out. A stream that answers a GET does not end by itself and must
        reach a peer that is certainly there, so it is closed instead."""
        self._probe = None
        request = self._request
        if self._transport.is_closing() or seconds > _PROBE_LONGEST or request is None:
            return
        if self._streaming and request.method == "GET":
            self._transport.close()
            return
        self.write_nowait(request, sse.COMMENT)
        self._probe = self._loop.call_later(seconds, self._probe_peer, seconds * 2)

    @property
    def peer(self) -> str:
        """The client's address and port."""
        return format_host_port(*self._client) if self._client else ""

    def is_open(self, request: HttpRequest) -> bool:
        """Return whether the request is in progress and the connection open."""
        return request is self._request and not self._transport.is_closing()

    def detach(self, request: HttpRequest) -> DetachedTransport:  # noqa: ARG002 - the one in progress
        """Give up the transport, for another protocol. The connection counts until that protocol reports the loss of
        the transport."""
        self._connections.forget_deadlines(self)
        self._detached = True
        self._request = None
        rest, self._buffer = self._buffer, b""
        return DetachedTransport(self._transport, rest, lambda: self.connection_lost(None))

    # --- closing ----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a request or a WebSocket is in progress, or a response is not written yet."""
        return self._request is not None or self._detached or self._transport.get_write_buffer_size() > 0

    def _expect_head(self) -> None:
        """Start the deadline of a request's head."""
        if not self._head_due:
            self._head_due = True
            self._connections.reading.add(self)

    def _head_received(self) -> None:
        """Stop the deadline of a request's head."""
        self._head_due = False
        self._connections.reading.discard(self)

    def _begin_idle(self) -> None:
        """Start the deadline of the next request."""
        connections = self._connections
        self.idle_since = now = connections.now()
        if not connections.idle.running:
            connections.idle.start(now)

    def on_read_timeout(self) -> None:
        """Refuse a request whose head did not arrive in time."""
        self._refuse(408, "the headers of the request did not arrive in time")

    def close_idle(self) -> None:
        """Close a connection that has been idle for too long."""
        if self._request is None:
            self._transport.close()

    def close_after_response(self) -> None:
        """Close the connection now, or after the response in progress."""
        if self._request is None and not self._detached:
            self._transport.close()
        else:
            self._keep_alive = False

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def _refuse(self, status: int, reason: str) -> None:
        """Close the connection with a refusal of what was being read, unless its response has begun."""
        if self._transport.is_closing():
            return
        if self._streaming:
            self._transport.close()  # the peer would take the refusal for a part of another response
            return
        headers = ((b"content-type", b"text/plain; charset=utf-8"), _CONNECTION_CLOSE)
        self._write_whole(status, headers, reason.encode())
        self._drop_request()
        self._close_after_refusal()

    def _close_after_refusal(self) -> None:
        """Close the connection of a peer that may still be sending."""
        if self._transport.can_write_eof():
            self._linger()
        else:
            self._transport.close()

    def _write_whole(self, status: int, headers: Headers, body: bytes) -> None:
        head = self._connections.encode_head(status, tuple(headers))
        self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))

    def _drop_request(self) -> None:
        """Tell the handling of the request in progress that its response would not reach the peer."""
        request, self._request = self._request, None
        body, self._body = self._body, None
        if request is not None:
            try:
                request.set_disconnected()
            except Exception as error:  # noqa: BLE001 - it is this connection's alone
                self._connections.guard.connection_failed("http", self.peer, error)
        if body is not None:
            body.wake_reader()

    def _fail(self, error: BaseException, request: HttpRequest | None = None) -> None:
        """Report an error of our own and close this connection; the request that it is about is answered with 500 if
        its response has not begun."""
        incident = self._connections.guard.connection_failed("http", self.peer, error)
        transport = self._transport
        if request is None or request is not self._request or self._streaming or transport.is_closing():
            if request is None or request is self._request:
                transport.abort()
            return
        self._refuse(500, f"the server failed; its log has the details under {incident}")


def _address(found: Any) -> tuple[str, int] | None:
    """Return the host and port of a socket address; None for a Unix socket."""
    return cast("tuple[str, int]", found[:2]) if isinstance(found, tuple) else None


def _encode_head(status: int, headers: Headers) -> bytes:
    """Return the status line and headers. Raise `ValueError` if a header contains a line break."""
    lines = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode()), *(b"%b: %b" % each for each in headers)]
    head = b"\r\n".join(lines) + b"\r\n"
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
        raise ValueError("a response header must not contain a line break")
    return head
