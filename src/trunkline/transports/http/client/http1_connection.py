"""One HTTP/1.1 connection of a client: bytes to responses.

A connection carries one request at a time. The response is reported as soon as its headers are complete, and content
arrives in it afterwards. The connection becomes idle when the response is complete and the server keeps it alive; that
does not depend on whether the response has been read. Any byte that arrives on an idle connection closes it: it cannot
belong to a later request.
"""

import asyncio
import select
import sys
from collections.abc import AsyncIterator, Callable
from typing import Final, cast

from trunkline.errors import TransportError
from trunkline.transports.http.client.http1_response import Headers, InvalidResponse, ResponseParser
from trunkline.transports.http.client.http_backend import OnOutcome

__all__ = ["Http1Connection", "Http1Reply", "NoResponse"]

_MAX_UNREAD: Final = 256 * 1024  # bytes of content that wait for their reader; reading pauses above


class NoResponse(TransportError):
    """The connection was lost before any byte of the response."""


class Http1Reply:
    """A response. Its content is kept until it is read; a server that sends faster than that is paused."""

    __slots__ = (
        "_chunks",
        "_complete",
        "_connection",
        "_error",
        "_read",
        "_waiter",
        "headers",
        "reason",
        "status",
        "unread",
    )

    def __init__(
        self, connection: "Http1Connection", status: int, reason: str, headers: Headers, chunks: list[bytes]
    ) -> None:
        """`chunks` is a list to which content is added as it arrives."""
        self.status = status
        self.reason = reason
        self.headers = headers
        self.unread = 0  # bytes, about: with the framing
        self._connection: Http1Connection | None = connection  # None once the response has ended
        self._chunks = chunks
        self._complete = False
        self._read = False  # some of the body was read
        self._error: TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def content(self) -> bytes | None:
        """The whole body if it has arrived and was not read yet; None otherwise."""
        chunks = self._chunks
        if not self._complete or self._read:
            return None
        if len(chunks) > 1:
            chunks[:] = [b"".join(chunks)]
        return chunks[0] if chunks else b""

    def chunks(self) -> AsyncIterator[bytes]:
        """Return an iterator over the content as it arrives."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunks = self._chunks
        while not chunks:
            if self._error is not None:
                raise self._error
            if self._complete:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._read = True
        self.unread = 0
        if self._connection is not None:
            self._connection.resume_reading()
        return data

    def close(self) -> None:
        """Discard the rest of the response. If it is not complete, close its connection."""
        if self._connection is not None:
            self._connection.abort()

    def end(self, error: TransportError | None) -> None:
        """All of the content has arrived, or none will any more."""
        self._connection = None
        self._complete = error is None
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Wake the reader."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Http1Connection(asyncio.BufferedProtocol):
    """asyncio protocol of one connection."""

    def __init__(
        self,
        buffer: memoryview,
        on_idle: "Callable[[Http1Connection], None]",
        on_lost: "Callable[[Http1Connection], None]",
    ) -> None:
        """`buffer` may be shared by all connections of a loop: it is only used during a read. `on_idle` is called when
        the connection can carry another request, `on_lost` once when it has closed."""
        self._buffer = buffer
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._parser = ResponseParser()
        self._transport: asyncio.Transport
        self._on_outcome: OnOutcome | None = None  # set while no response has been reported
        self._reply: Http1Reply | None = None  # the response that is arriving
        self._paused = False
        self._peer_closed = False
        self.closed = False
        self.idle_since = 0.0  # on the loop's clock

    # --- for the pool ---------------------------------------------------------------------------

    def start(self, method: str, request: bytes, on_outcome: OnOutcome) -> None:
        """Send a request on an idle connection."""
        self._parser.begin(method)
        self._on_outcome = on_outcome
        self._transport.write(request)

    def abort(self) -> None:
        """Close at once. The outcome of a request in progress is not reported; a response in progress breaks off."""
        self._on_outcome = None
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.end(TransportError("the response was closed"))
        if not self.closed:
            self.closed = True
            self._transport.abort()
            self._on_lost(self)

    def is_alive(self, *, check_socket: bool) -> bool:
        """Return whether an idle connection can carry a request. `check_socket` also looks for the end of the
        connection, or for bytes, that the loop has not read yet."""
        if self.closed or self._peer_closed or self._transport.is_closing():
            return False
        return not check_socket or not _is_readable(self._transport.get_extra_info("socket").fileno())

    def resume_reading(self) -> None:
        """Read again if the content had to wait for its reader."""
        if self._paused and not self.closed:
            self._paused = False
            self._transport.resume_reading()

    # --- callbacks of asyncio -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin in the idle state."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the buffer is shared
        """Return the shared read buffer."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes of one read, and report what they complete."""
        parser = self._parser
        if self.closed:
            return
        if parser.complete:  # idle: nothing was requested
            self.abort()
            return
        try:
            parser.feed(self._buffer[:nbytes])
        except InvalidResponse as error:
            self._report_head()
            self.fail(error)
            return
        self._report_head()
        if parser.complete:
            self._finish()
        elif self._reply is not None:
            self._reply.unread += nbytes
            self._reply.wake()
            if self._reply.unread > _MAX_UNREAD and not self._paused:
                self._paused = True
                self._transport.pause_reading()

    def eof_received(self) -> None:
        """The server has closed its direction, which ends a response without a length."""
        self._peer_closed = True
        self._receive_end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has closed."""
        self._receive_end(exc)
        if not self.closed:
            self.closed = True
            self._on_lost(self)

    # --- outcomes -------------------------------------------------------------------------------

    def _report_head(self) -> None:
        """Report the response once its headers are complete. It may already be complete as a whole."""
        parser, report = self._parser, self._on_outcome
        if report is None or parser.headers is None:
            return
        self._on_outcome = None
        reply = self._reply = Http1Reply(self, parser.status, parser.reason, parser.headers, parser.chunks)
        if parser.complete:
            self._finish()
        report(reply)

    def _finish(self) -> None:
        """The response is complete: become idle, or close."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        reusable = self._parser.reusable and not self._peer_closed and not self._transport.get_write_buffer_size()
        if self._paused:
            self.resume_reading()
        reply.end(None)
        if reusable:
            self._on_idle(self)
        else:
            self.abort()

    def fail(self, error: TransportError) -> None:
        """Close at once, and report the error to the request or the response in progress."""
        report, self._on_outcome = self._on_outcome, None
        reply, self._reply = self._reply, None
        self.abort()
        if report is not None:
            report(error)
        elif reply is not None:
            reply.end(error)

    def _receive_end(self, exc: Exception | None) -> None:
        parser = self._parser
        if parser.complete or self.closed:
            return
        if exc is None and parser.receive_eof():
            self._finish()
        elif not parser.started:
            self.fail(NoResponse(_describe_end(exc, "the server closed the connection without a response")))
        else:
            self.fail(TransportError(_describe_end(exc, "the response broke off")))


def _is_readable(descriptor: int) -> bool:
    if sys.platform == "win32":
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()  # not limited to small descriptors
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _describe_end(exc: Exception | None, otherwise: str) -> str:
    return otherwise if exc is None else f"the connection broke: {getattr(exc, 'strerror', None) or exc}"
