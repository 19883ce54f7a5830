"""The client's WebSocket protocol as a framing of a byte stream. No I/O.

Compression is off: the size of a secret compressed together with a stranger's text reveals the secret, and for messages
of usual size it costs more than it saves.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urljoin

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.http11 import Response
from websockets.protocol import Event, State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from trunkline.errors import TransportError
from trunkline.transports.http.client.status import ADVICE
from trunkline.transports.websocket.close_codes import SUBPROTOCOL, CloseCode, describe_close
from trunkline.version import __version__
from trunkline.wire.framing import Frame, TooLarge

__all__ = ["ClientFraming", "HandshakeRefused"]

_DATA_OPCODES: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
_MAX_SHOWN_BODY: Final = 300  # characters of the body of a refusal


class HandshakeRefused(TransportError):
    """The server answered the handshake with an HTTP error."""

    def __init__(self, message: str, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class ClientFraming:
    """The handshake and the frames of one connection."""

    def __init__(self, url: str, headers: Mapping[str, str], limit: int) -> None:
        self._url = url
        self._headers = headers
        self._limit = limit
        self._protocol = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=limit)
        self._early_events: list[Event] = []  # events that arrived with the handshake response
        self._pieces: list[bytes] = []  # fragments of an incomplete message

    # --- the handshake ---------------------------------------------------------------------------

    def handshake_request(self) -> bytes:
        """Return the bytes of the handshake request."""
        request = self._protocol.connect()
        request.headers["User-Agent"] = f"trunkline/{__version__}"
        for name, value in self._headers.items():
            if name in request.headers:
                del request.headers[name]
            request.headers[name] = value
        self._protocol.send_request(request)
        return self.pending_output()

    def receive_handshake(self, data: bytes) -> bool:
        """Process handshake bytes, or the end of the stream if empty; return whether the handshake is complete.
        Raise `TransportError` if the server refuses."""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        events = self._protocol.events_received()
        if (error := self._protocol.handshake_exc) is not None:
            raise self._handshake_error(events, error) from error
        self._early_events = events[1:]  # events after the handshake response
        return bool(events)

    def _handshake_error(self, events: list[Event], error: Exception) -> TransportError:
        response = events[0] if events else None
        if not isinstance(response, Response):
            return TransportError("the server closed the connection, or does not speak HTTP")
        headers = Headers({name: ", ".join(response.headers.get_all(name)) for name in response.headers})
        return HandshakeRefused(self._explain_refusal(response, error), response.status_code, headers)

    def _explain_refusal(self, response: Response, error: Exception) -> str:
        status = response.status_code
        if status == HTTPStatus.SWITCHING_PROTOCOLS:
            return f"the WebSocket handshake failed: {error}"
        if (location := response.headers.get("Location")) is not None:
            return (
                f"it answered {status} and names another address, which is not followed: {urljoin(self._url, location)}"
            )
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        close = "" if is_page else (response.body or b"").decode(errors="replace").strip()[:_MAX_SHOWN_BODY]
        summary = f"it answered {status} {response.reason_phrase}".strip()
        if status == HTTPStatus.OK:
            return f"{summary}, and does not speak WebSocket; is this the address of an MCP server?"
        return ": ".join(filter(None, (summary, "; ".join(filter(None, (close, ADVICE.get(status)))))))

    # --- frames ----------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Frame]:
        """Process bytes and return the complete messages."""
        if data:
            self._protocol.receive_data(data)
        events, self._early_events = self._early_events + self._protocol.events_received(), []
        messages: list[Frame] = []
        for event in events:
            if isinstance(event, WebSocketFrame) and event.opcode in _DATA_OPCODES:
                self._add_frame(event, messages)
        return messages

    def _add_frame(self, frame: WebSocketFrame, messages: list[Frame]) -> None:
        if frame.opcode is Opcode.BINARY:
            self._protocol.fail(CloseCode.UNSUPPORTED, "a message is a text frame, not a binary one")
        elif self._protocol.close_sent is not None and self._protocol.close_sent.code == CloseCode.UNSUPPORTED:
            return  # the rest of a refused binary message
        elif frame.fin and not self._pieces:
            messages.append(bytes(frame.data))
        else:
            self._pieces.append(bytes(frame.data))
            if frame.fin:
                messages.append(b"".join(self._pieces))
                self._pieces.clear()

    def wrap(self, frame: bytes) -> bytes:
        """Return a message as a frame; nothing once the connection is closing."""
        if self._protocol.state is not State.OPEN:
            return b""
        self._protocol.send_text(frame)
        return self.pending_output()

    def pending_output(self) -> bytes:
        """Return the bytes that the protocol itself has to send, such as pongs and close frames."""
        return b"".join(self._protocol.data_to_send())

    # --- closing ----------------------------------------------------------------------------------

    def close_frame(self) -> bytes:
        """Return a close frame; nothing if one was sent."""
        if self._protocol.state is not State.OPEN:
            return b""
        self._protocol.send_close(CloseCode.NORMAL)
        return self.pending_output()

    @property
    def closed_by_peer(self) -> str | None:
        """A description of the server's close frame; None before it arrives."""
        close = self._protocol.close_rcvd
        return None if close is None else describe_close(close.code, close.reason)

    @property
    def too_large(self) -> bool:
        """Whether we closed because of a message over the limit."""
        close = self._protocol.close_sent
        return close is not None and close.code == CloseCode.TOO_BIG

    @property
    def failure_reason(self) -> str | None:
        """The reason why we closed the connection; None if we did not."""
        close = self._protocol.close_sent
        if close is None or self._protocol.close_rcvd is not None:
            return None
        if self.too_large:
            return f"{TooLarge(self._limit).why} (ws_message_size_limit)"
        return f"{close.reason or 'closed'} ({close.code})"
