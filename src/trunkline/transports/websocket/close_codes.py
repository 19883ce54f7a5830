"""Why a WebSocket is closed, in the numbers of RFC 6455 and in words."""

from enum import IntEnum
from typing import Final

__all__ = ["SUBPROTOCOL", "Code", "sentence", "shortened"]

SUBPROTOCOL: Final = "mcp"
_LONGEST_REASON: Final = 123  # bytes; a control frame has no room for more


class Code(IntEnum):
    """The codes that we give."""

    NORMAL = 1000
    GOING_AWAY = 1001
    UNSUPPORTED = 1003  # a binary frame
    UNSPOKEN = 1005  # there was a close frame, without a code
    BROKEN = 1006  # there was no close frame
    NOT_TEXT = 1007  # a text frame that is not UTF-8
    POLICY = 1008
    TOO_BIG = 1009
    TRY_LATER = 1013


def sentence(code: int, reason: str) -> str:
    """What is to be known about a line that the peer has closed."""
    if code == Code.BROKEN:
        return "the connection broke"
    what = "the peer closed the connection"
    said = f"{code} {reason}".strip() if code != Code.UNSPOKEN else reason
    return f"{what}: {said}" if said else what


def shortened(reason: str) -> str:
    """As much of a reason as a close frame has room for."""
    return reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
