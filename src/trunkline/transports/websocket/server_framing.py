"""The server's WebSocket protocol as a framing of a byte stream. No I/O.

`Handshake` checks the request that opens a connection and makes its response; `ServerFraming` processes the frames
after it. A message may have at most `MAX_FRAMES` frames, since each costs more than its bytes.

A fault ends the connection after the messages before it: `feed` returns them, their responses are framed as usual, and
the close frame is the last output. Compression is off, as in the client.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidHeader, PayloadTooBig
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.http11 import Request
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from trunkline.transports.websocket.close_codes import CloseCode, describe_close, truncate_reason
from trunkline.wire.framing import Frame, TooLarge

__all__ = ["Handshake", "Refusal", "ServerFraming"]

MAX_FRAMES: Final = 1024  # per message

Refusal = tuple[int, str, Sequence[tuple[bytes, bytes]]]
"""Status, reason and headers of an HTTP response that refuses a handshake."""

_VERSION: Final = "Sec-WebSocket-Version"
_SUBPROTOCOLS: Final = "Sec-WebSocket-Protocol"
_HEADERS: Final = ("Connection", "Upgrade", "Sec-WebSocket-Key", _VERSION, _SUBPROTOCOLS)
_REFUSAL_HEADERS: Final = ("Allow", "Upgrade")  # those that belong to a status; the others describe the body
_SUPPORTED_VERSION: Final = ((b"upgrade", b"websocket"), (b"sec-websocket-version", b"13"))


class Handshake:
    """The request that opens a connection, checked according to RFC 6455, section 4.2.1."""

    def __init__(self, path: str, headers: Mapping[bytes, bytes], *, method: str = "GET") -> None:
        """Names of `headers` are lower-case, and the values of a repeated header are joined with commas."""
        self.refusal: Refusal | None = None
        """The refusal of an invalid request; None for a valid one."""
        self.subprotocols: list[str] = []
        """The subprotocols that the client offers."""
        self._protocol = ServerProtocol()
        if method != "GET":
            self.refusal = (HTTPStatus.METHOD_NOT_ALLOWED, "a WebSocket is opened with GET", [(b"allow", b"GET")])
            return
        try:
            request = Request(path, _select_headers(headers))
        except InvalidHandshake as error:
            self.refusal = (HTTPStatus.BAD_REQUEST, str(error), ())
            return
        self._response = self._protocol.accept(request)
        if self._response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            offered = request.headers.get(_SUBPROTOCOLS, "").split(",")
            self.subprotocols = [name for each in offered if (name := each.strip())]
        else:
            self.refusal = self._explain_refusal()

    def _explain_refusal(self) -> Refusal:
        error, response = self._protocol.handshake_exc, self._response
        reason = (response.body or b"").decode().strip()
        if isinstance(error, InvalidHeader) and error.name == _VERSION:
            return (HTTPStatus.UPGRADE_REQUIRED, reason, _SUPPORTED_VERSION)
        headers = [
            (name.lower().encode(), response.headers[name].encode())
            for name in _REFUSAL_HEADERS
            if name in response.headers
        ]
        return (response.status_code, reason, headers)

    def response(self, subprotocol: str | None) -> bytes:
        """Return the response that accepts the connection; call this once, and only without a refusal."""
        headers = self._response.headers
        del headers["Date"]
        if subprotocol is not None:
            headers[_SUBPROTOCOLS] = subprotocol
        self._protocol.send_response(self._response)
        return b"".join(self._protocol.data_to_send())


def _select_headers(headers: Mapping[bytes, bytes]) -> Headers:
    """Return the headers of the handshake itself; raise `InvalidHandshake` for characters that no header may have."""
    found = ((name, headers.get(name.lower().encode())) for name in _HEADERS)
    return Headers([(name, value.decode("latin-1")) for name, value in found if value is not None])


class ServerFraming:
    """The frames of one connection."""

    def __init__(self, limit: int) -> None:
        """`limit` is the maximum size of a message."""
        self._limit = limit
        self._protocol = ServerProtocol(state=State.OPEN, max_size=limit)
        self._pieces: list[bytes] = []  # fragments of an incomplete message
        self.failure: tuple[CloseCode, str] | None = None
        """The code and reason to close the connection with, after an unusable message."""
        self.ping_count = 0
        """Pings received; the shell may reset it."""

    # --- messages --------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Frame]:
        """Process bytes and return the complete messages."""
        messages: list[Frame] = []
        if data:
            self._protocol.receive_data(data)
            for event in self._protocol.events_received():
                if isinstance(event, WebSocketFrame):
                    self._process_frame(event, messages)
        return messages

    def _process_frame(self, frame: WebSocketFrame, messages: list[Frame]) -> None:
        opcode = frame.opcode
        if opcode is Opcode.PING:
            self.ping_count += 1
        elif opcode is Opcode.PONG or opcode is Opcode.CLOSE or self.failure is not None:
            return
        elif opcode is Opcode.BINARY:
            self._fail(CloseCode.UNSUPPORTED, "a message is a text frame, not a binary one")
        elif frame.fin and not self._pieces:
            self._add_message(bytes(frame.data), messages)
        elif len(self._pieces) == MAX_FRAMES:
            self._fail(CloseCode.TOO_BIG, f"a message may have {MAX_FRAMES} frames")
        else:
            self._pieces.append(bytes(frame.data))
            if frame.fin:
                message, self._pieces = b"".join(self._pieces), []
                self._add_message(message, messages)

    def _add_message(self, message: bytes, messages: list[Frame]) -> None:
        if not _is_text(message):
            self._fail(CloseCode.INVALID_DATA, "a message has to be UTF-8")
        elif message:
            messages.append(message)

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.failure = (code, reason)
        self._pieces = []

    def wrap(self, frame: bytes) -> bytes:
        """Return a message as a text frame; bytes that are not UTF-8 are replaced, because a peer would close the
        connection."""
        text = frame if _is_text(frame) else frame.decode(errors="replace").encode()
        return WebSocketFrame(Opcode.TEXT, text).serialize(mask=False)

    def take_output(self) -> tuple[bytes, bool]:
        """Return pongs and the close frame, and whether the stream ends with them."""
        output = self._protocol.data_to_send()
        return b"".join(output), SEND_EOF in output

    # --- closing ----------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether no close frame was sent or received, and nothing has failed."""
        return self._protocol.state is State.OPEN and self.failure is None

    @property
    def closed_by_peer(self) -> bool:
        """Whether the peer has sent a valid close frame."""
        return self._protocol.close_rcvd is not None and self._protocol.parser_exc is None

    @property
    def end_reason(self) -> str:
        """The reason why the connection is not open any more."""
        received, sent = self._protocol.close_rcvd, self._protocol.close_sent
        if isinstance(self._protocol.parser_exc, PayloadTooBig):
            return TooLarge(self._limit).why
        if received is not None and self.closed_by_peer:
            return describe_close(received.code, received.reason)
        return "closed" if sent is None else f"{sent.reason or 'closed'} ({sent.code})"

    def close(self, code: CloseCode, reason: str) -> None:
        """Send a close frame, unless one was sent. After a failure everything the peer sends is discarded, otherwise
        its close frame is due."""
        if self._protocol.state is State.OPEN:
            close = self._protocol.send_close if self.failure is None else self._protocol.fail
            close(int(code), truncate_reason(reason))


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
