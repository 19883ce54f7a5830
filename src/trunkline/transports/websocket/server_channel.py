"""Channel of a server's WebSocket connection, and the ways to close it.

Both kinds of connection use them: that under an ASGI server, and that on a transport of asyncio.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from trunkline.config import Settings
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, RequestHead
from trunkline.transports.stream import StreamChannel
from trunkline.transports.websocket.close_codes import CloseCode
from trunkline.wire.framing import Framing

__all__ = ["ChannelCloser", "new_server_channel"]


def new_server_channel(
    framing: Framing,
    settings: Settings,
    *,
    peer: str,
    headers: Mapping[str, str],
    principal: Any,
    request: RequestHead | None,
) -> StreamChannel:
    """Create the channel of a connection; its messages have the principal and the request of the handshake."""
    return StreamChannel(
        ChannelInfo("websocket", peer, needs_keepalive=True),
        max_frame=settings.ws_message_size_limit,
        settings=settings,
        origin=MessageOrigin(principal, headers, request=request),
        framing=framing,
    )


class ChannelCloser:
    """Closes a channel, and decides the code and reason of the close frame."""

    def __init__(self, channel: StreamChannel, settings: Settings) -> None:
        self._channel = channel
        self._unsent_limit = settings.unsent_limit
        self._loop = asyncio.get_running_loop()
        self._message: tuple[CloseCode, str] | None = None

    def close_message(self, unsent: int) -> tuple[CloseCode, str]:
        """Return the code and reason of the close frame, given the number of unsent bytes."""
        if unsent > self._unsent_limit:
            return (CloseCode.TRY_AGAIN_LATER, "too much was left unread")
        return self._message or (CloseCode.GOING_AWAY, "")

    def fail(self, code: CloseCode, reason: str) -> None:
        """Close the connection because of a message that cannot be used, after those before it."""
        self._message = (code, reason)
        self._channel.receive_eof(ChannelClosed(reason))

    def disconnect(self, closed: ChannelClosed) -> None:
        """Close the connection at once, with a policy violation."""
        self._message = (CloseCode.POLICY, closed.reason)
        self._abort(closed)

    def close_soon(self, closed: ChannelClosed) -> None:
        """Close the connection after the messages of this turn of the loop are written."""
        self._message = self._message or (CloseCode.GOING_AWAY, closed.reason)
        self._loop.call_soon(self._abort, closed)

    def _abort(self, closed: ChannelClosed) -> None:
        try:
            self._channel.abort(closed)
        except Exception as error:
            if self._channel.on_error is None:
                raise
            self._channel.on_error(error)
