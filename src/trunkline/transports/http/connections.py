"""Connections of HTTP as uvicorn and httptools have them, with limits that neither has.

A peer that connects has to send the headers of a request within a time, and no more of them than so many bytes. One
that does not read what it is sent is cut off after a while. Everything else is uvicorn's.
"""

from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from trunkline.clock import Timer
from trunkline.transports.guard import Guard

__all__ = ["Connections", "HttpConnection"]

_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 30\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connections:
    """All connections of one listener, and whom of them is being waited for."""

    def __init__(self, guard: Guard, config: Config) -> None:
        self.guard = guard
        self.config = config
        self.state = ServerState()
        settings = guard.settings
        self.most_header_bytes = settings.max_header_bytes
        self._reading = Waiting(guard, settings.header_timeout)
        self._writing = Waiting(guard, settings.write_timeout)
        self.starts_speaking = self._reading.add  # headers are waited for
        self.has_spoken = self._reading.discard
        self.stops_reading = self._writing.add
        self.reads_again = self._writing.discard

    def make(self) -> "HttpConnection":
        """A protocol for one more connection."""
        return HttpConnection(self)

    def left(self, connection: "HttpConnection") -> None:
        """A connection has ended, or become a WebSocket."""
        self._reading.discard(connection)
        self._writing.discard(connection)

    def close(self) -> None:
        """Waits for nobody any more."""
        self._reading.close()
        self._writing.close()


class Waiting:
    """Connections that have so much time for something; one timer for all of them."""

    def __init__(self, guard: Guard, seconds: float | None) -> None:
        self._clock = guard.clock
        self._seconds = seconds
        self._since: dict[HttpConnection, float] = {}
        self._timer: Timer | None = None

    def add(self, connection: "HttpConnection") -> None:
        """Its time runs from now on, or has been running already."""
        if self._seconds is not None and connection not in self._since:
            self._since[connection] = now = self._clock.now()
            if self._timer is None:
                self._timer = self._clock.call_at(now + self._seconds, self._look)

    def discard(self, connection: "HttpConnection") -> None:
        """It has done what it had to."""
        self._since.pop(connection, None)

    def _look(self) -> None:
        self._timer = None
        now, limit = self._clock.now(), self._seconds or 0.0
        for connection, since in list(self._since.items()):
            if now - since < limit:
                self._timer = self._clock.call_at(since + limit, self._look)  # they stand in the order of time
                return
            del self._since[connection]
            connection.out_of_time()

    def close(self) -> None:
        """Stops the clock."""
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HttpConnection(HttpToolsProtocol):
    """One connection."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections.config, connections.state, {})
        self._all = connections
        self._header_bytes = 0  # of a request whose headers are not complete
        self._stuck = False  # the peer does not read

    def connection_made(self, transport: Any) -> None:
        """The line stands, unless there are too many."""
        super().connection_made(transport)
        guard = self._all.guard
        if guard.closing or len(self.connections) > guard.settings.max_connections:
            transport.write(_BUSY)
            transport.close()
        else:
            self._all.starts_speaking(self)

    def data_received(self, data: bytes) -> None:
        """Takes what was read."""
        super().data_received(data)
        if self._header_bytes:
            self._header_bytes += len(data)
            if self._header_bytes > self._all.most_header_bytes:
                self._refuse(_TOO_LONG)
            else:
                self._all.starts_speaking(self)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._header_bytes = 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The headers of a request are there."""
        self._header_bytes = 0
        self._all.has_spoken(self)
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        """It becomes a WebSocket."""
        self._all.left(self)
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._stuck = True
        self._all.stops_reading(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The peer has read."""
        self._stuck = False
        self._all.reads_again(self)
        super().resume_writing()

    def out_of_time(self) -> None:
        """It was waited for long enough."""
        if self._stuck:
            self.transport.abort()
        else:
            self._refuse(_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The line is gone."""
        self._all.left(self)
        super().connection_lost(exc)
