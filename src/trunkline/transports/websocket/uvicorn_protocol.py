"""uvicorn's WebSocket protocol with additional limits.

A message may have at most `MAX_FRAMES` frames, since each costs more than its bytes. A peer that sends pings and reads
no pongs is disconnected.

An internal error is reported as one incident and closes its own connection.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from trunkline.transports.websocket.close_codes import CloseCode

__all__ = ["WebSocketConnection"]

MAX_FRAMES: Final = 1024  # per message
MAX_PINGS: Final = 1000  # while the peer does not read


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One connection."""

    _pings = 0  # pongs the peer has not read
    report: Callable[[BaseException], object]  # reports an internal error

    def data_received(self, data: bytes) -> None:
        """Process the bytes of one read."""
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 - ends this connection only
            self._on_error(error)

    async def run_asgi(self) -> None:
        """Run the application; an exception ends here."""
        try:
            await cast("Any", self).app(self.scope, self.receive, self.send)
            if not self.handshake_complete:
                raise RuntimeError("the application returned before the handshake was complete")
        except ClientDisconnected:
            pass
        except Exception as error:  # noqa: BLE001 - ends this connection only
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
        """Process a continuation frame."""
        if len(self.frames) < MAX_FRAMES:
            super().handle_cont(event)
        elif not self.close_sent:
            self._fail(CloseCode.TOO_BIG, f"a message may have {MAX_FRAMES} frames")

    def send_receive_event_to_app(self) -> None:
        """Pass a complete message to the application."""
        if self.curr_msg_data_type == "text" and not _is_text(b"".join(self.frames)):
            self._fail(CloseCode.INVALID_DATA, "a message has to be UTF-8")
        else:
            super().send_receive_event_to_app()

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.frames = []
        self.conn.fail(int(code), reason)
        self.handle_parser_exception()

    async def send(self, message: Any) -> None:
        """Send an event of the application. An HTTP response to the handshake completes it."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True

    def handle_ping(self) -> None:
        """Answer a ping."""
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
