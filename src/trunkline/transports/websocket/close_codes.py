"""Why a WebSocket is closed, in the numbers of RFC 6455 and in words."""

from enum import IntEnum
from typing import Final

__all__ = ["SUBPROTOCOL", "CloseCode", "describe_close", "truncate_reason"]

SUBPROTOCOL: Final = "mcp"
_MAX_REASON_SIZE: Final = 123  # bytes; a control frame has no room for more


class CloseCode(IntEnum):
    """The codes that we give."""

    NORMAL = 1000
    GOING_AWAY = 1001
    UNSUPPORTED = 1003  # a binary frame
    NO_STATUS = 1005  # there was a close frame, without a code
    ABNORMAL = 1006  # there was no close frame
    INVALID_DATA = 1007  # a text frame that is not UTF-8
    POLICY = 1008
    TOO_BIG = 1009
    TRY_AGAIN_LATER = 1013


def describe_close(code: int, reason: str) -> str:
    """What is to be known about a line that the peer has closed."""
    if code == CloseCode.ABNORMAL:
        return "the connection broke"
    what = "the peer closed the connection"
    said = f"{code} {reason}".strip() if code != CloseCode.NO_STATUS else reason
    return f"{what}: {said}" if said else what


def truncate_reason(reason: str) -> str:
    """As much of a reason as a close frame has room for."""
    return reason.encode()[:_MAX_REASON_SIZE].decode(errors="ignore")
