"""The WebSocket protocol of a client, as one more way to frame a byte stream. No I/O is done here.

Nothing is compressed: secrets next to what a stranger chose could be guessed from the size of both together, and it
costs more than it saves for messages of usual size.
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
_MAX_SHOWN_BODY: Final = 300  # characters of what a server says when it refuses


class HandshakeRefused(TransportError):
    """The server answered, and does not agree."""

    def __init__(self, message: str, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class ClientFraming:
    """One connection: the handshake, then frames."""

    def __init__(self, url: str, headers: Mapping[str, str], limit: int) -> None:
        self._url = url
        self._headers = headers
        self._limit = limit
        self._protocol = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=limit)
        self._early_events: list[Event] = []  # what came with the server's answer
        self._pieces: list[bytes] = []  # of a message in several frames

    # --- the handshake ---------------------------------------------------------------------------

    def handshake_request(self) -> bytes:
        """What a connection begins with."""
        request = self._protocol.connect()
        request.headers["User-Agent"] = f"trunkline/{__version__}"
        for name, value in self._headers.items():
            if name in request.headers:
                del request.headers[name]
            request.headers[name] = value
        self._protocol.send_request(request)
        return self.pending_output()

    def receive_handshake(self, data: bytes) -> bool:
        """Whether the server has agreed by now; no data is the end of them. Raises `TransportError` if it does not."""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        events = self._protocol.events_received()
        if (error := self._protocol.handshake_exc) is not None:
            raise self._handshake_error(events, error) from error
        self._early_events = events[1:]  # behind the answer
        return bool(events)

    def _handshake_error(self, events: list[Event], error: Exception) -> TransportError:
        answer = events[0] if events else None
        if not isinstance(answer, Response):
            return TransportError("it closed the connection, or does not speak HTTP")
        headers = Headers({name: ", ".join(answer.headers.get_all(name)) for name in answer.headers})
        return HandshakeRefused(self._explain_refusal(answer, error), answer.status_code, headers)

    def _explain_refusal(self, answer: Response, error: Exception) -> str:
        status = answer.status_code
        if status == HTTPStatus.SWITCHING_PROTOCOLS:
            return f"it does not speak WebSocket as we do: {error}"
        if (place := answer.headers.get("Location")) is not None:
            return f"it answered {status} and names another address, which is not followed: {urljoin(self._url, place)}"
        page = answer.headers.get("Content-Type", "").startswith("text/html")
        said = "" if page else (answer.body or b"").decode(errors="replace").strip()[:_MAX_SHOWN_BODY]
        answered = f"it answered {status} {answer.reason_phrase}".strip()
        if status == HTTPStatus.OK:
            return f"{answered}, and does not speak WebSocket; is this the address of an MCP server?"
        return ": ".join(filter(None, (answered, "; ".join(filter(None, (said, ADVICE.get(status)))))))

    # --- frames ----------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Frame]:
        """The messages that are whole."""
        if data:
            self._protocol.receive_data(data)
        events, self._early_events = self._early_events + self._protocol.events_received(), []
        found: list[Frame] = []
        for event in events:
            if isinstance(event, WebSocketFrame) and event.opcode in _DATA_OPCODES:
                self._add_frame(event, found)
        return found

    def _add_frame(self, frame: WebSocketFrame, found: list[Frame]) -> None:
        if frame.opcode is Opcode.BINARY:
            self._protocol.fail(CloseCode.UNSUPPORTED, "a message is a text frame, not a binary one")
        elif self._protocol.close_sent is not None and self._protocol.close_sent.code == CloseCode.UNSUPPORTED:
            return  # what follows a binary frame
        elif frame.fin and not self._pieces:
            found.append(bytes(frame.data))
        else:
            self._pieces.append(bytes(frame.data))
            if frame.fin:
                found.append(b"".join(self._pieces))
                self._pieces.clear()

    def wrap(self, frame: bytes) -> bytes:
        """A message in a frame; nothing once the connection is about to end."""
        if self._protocol.state is not State.OPEN:
            return b""
        self._protocol.send_text(frame)
        return self.pending_output()

    def pending_output(self) -> bytes:
        """What the protocol itself has to say: answers to pings, and to the end."""
        return b"".join(self._protocol.data_to_send())

    # --- the end ---------------------------------------------------------------------------------

    def close_frame(self) -> bytes:
        """What ends the connection in good order, unless that was said."""
        if self._protocol.state is not State.OPEN:
            return b""
        self._protocol.send_close(CloseCode.NORMAL)
        return self.pending_output()

    @property
    def closed_by_peer(self) -> str | None:
        """What the server said at the end, once it has."""
        said = self._protocol.close_rcvd
        return None if said is None else describe_close(said.code, said.reason)

    @property
    def too_large(self) -> bool:
        """Whether a message over the limit is the reason."""
        said = self._protocol.close_sent
        return said is not None and said.code == CloseCode.TOO_BIG

    @property
    def failure_reason(self) -> str | None:
        """Why the connection cannot go on, if it cannot."""
        said = self._protocol.close_sent
        if said is None or self._protocol.close_rcvd is not None:
            return None
        if self.too_large:
            return f"{TooLarge(self._limit).why} (ws_message_size_limit)"
        return f"{said.reason or 'closed'} ({said.code})"
