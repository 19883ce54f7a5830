"""h11 as a second reader of the same bytes."""

from typing import Final, NamedTuple

import h11

__all__ = ["ReadRequest", "Reading", "read"]

PER_CONNECTION: Final = {
    b"connection",
    b"content-length",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
MOST_HEAD_BYTES: Final = 1 << 20  # so that h11 has no limit of its own


class ReadRequest(NamedTuple):
    """One request as h11 reads it."""

    method: bytes
    target: bytes
    version: bytes
    headers: tuple[tuple[bytes, bytes], ...]  # names in lower case
    body: bytes = b""

    @property
    def framed(self) -> bool:
        """Whether the request says how long its body is."""
        return any(name in {b"content-length", b"transfer-encoding"} for name, _ in self.headers)

    def serialize(self) -> bytes:
        """Return the same request in its plainest form, on a connection of its own."""
        fields = [field for field in self.headers if field[0] not in PER_CONNECTION]
        fields += [(b"content-length", b"%d" % len(self.body))] * self.framed
        lines = b"".join(b"%b: %b\r\n" % field for field in (*fields, (b"connection", b"close")))
        return b"%b %b HTTP/%b\r\n%b\r\n%b" % (self.method, self.target, self.version, lines, self.body)


class Reading(NamedTuple):
    """What h11 reads in a sequence of bytes."""

    requests: list[ReadRequest]  # the complete ones
    unfinished: ReadRequest | None = None  # a request whose body is incomplete
    refused: bool = False  # what follows is not HTTP, to h11
    closed: bool = False  # the last request is the last one of its connection


def read(data: bytes) -> Reading:
    """Read a sequence of bytes as a server that answers every request."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
    connection.receive_data(data)
    requests: list[ReadRequest] = []
    current: ReadRequest | None = None
    body = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return Reading(requests, current, refused=True)
        if isinstance(event, h11.Request):
            headers = tuple((bytes(name), bytes(value)) for name, value in event.headers)
            current, body = ReadRequest(event.method, event.target, event.http_version, headers), b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert current is not None
            requests.append(current._replace(body=body))
            current = None
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return Reading(requests, closed=True)
            connection.start_next_cycle()
        else:  # more data is needed, or the connection was closed
            return Reading(requests, current)
