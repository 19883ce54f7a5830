"""WebSocket connections as uvicorn has them, with limits that it does not have.

A message comes in so many frames at most, since each of them costs more than its bytes. Whoever sends pings without end
and reads none of the answers is cut off.

An error of our own is reported as one incident, and closes its own connection.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from trunkline.transports.websocket.close_codes import CloseCode

__all__ = ["WebSocketConnection"]

MAX_FRAMES: Final = 1024  # of one message
MAX_PINGS: Final = 1000  # while the peer does not read


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One connection."""

    _pings = 0  # whose answers lie here
    report: Callable[[BaseException], object]  # of an error of our own

    def data_received(self, data: bytes) -> None:
        """Takes what was read."""
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self._on_error(error)

    async def run_asgi(self) -> None:
        """Have the application keep up the connection; whatever it raises ends here."""
        try:
            await cast("Any", self).app(self.scope, self.receive, self.send)
            if not self.handshake_complete:
                raise RuntimeError("the application returned before the handshake was complete")
        except ClientDisconnected:
            pass
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            self._on_error(error)
        if self.close_timer is None:
            self.transport.close()

    def _on_error(self, error: Exception) -> None:
        self.report(error)
        if self.handshake_complete or self.transport.is_closing():
            self.transport.abort()
        else:
            self.send_500_response()
            self.transport.close()

    def handle_cont(self, event: Any) -> None:
        """One more frame of a message."""
        if len(self.frames) < MAX_FRAMES:
            super().handle_cont(event)
        elif not self.close_sent:
            self._fail(CloseCode.TOO_BIG, f"a message may have {MAX_FRAMES} frames")

    def send_receive_event_to_app(self) -> None:
        """A message is whole."""
        if self.curr_msg_data_type == "text" and not _is_text(b"".join(self.frames)):
            self._fail(CloseCode.INVALID_DATA, "a message has to be UTF-8")
        else:
            super().send_receive_event_to_app()

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.frames = []
        self.conn.fail(int(code), reason)
        self.handle_parser_exception()

    async def send(self, message: Any) -> None:
        """Takes what the application says. A refusal that is an answer of HTTP ends the handshake, too."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def handle_ping(self) -> None:
        """Answers a ping."""
        super().handle_ping()
        if not self.writable.is_set():
            self._pings += 1
            if self._pings > MAX_PINGS:
                self.transport.abort()

    def resume_writing(self) -> None:
        """The peer has read."""
        self._pings = 0
        super().resume_writing()


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
