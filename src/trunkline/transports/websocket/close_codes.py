"""Close codes of RFC 6455 and the texts that describe them."""

from enum import IntEnum
from typing import Final

__all__ = ["SUBPROTOCOL", "CloseCode", "describe_close", "truncate_reason"]

SUBPROTOCOL: Final = "mcp"
_MAX_REASON_SIZE: Final = 123  # bytes; the limit of a control frame


class CloseCode(IntEnum):
    """Close codes that this package sends or interprets."""

    NORMAL = 1000
    GOING_AWAY = 1001
    UNSUPPORTED = 1003  # a binary frame
    NO_STATUS = 1005  # the close frame had no code
    ABNORMAL = 1006  # the connection ended without a close frame
    INVALID_DATA = 1007  # a text frame that is not UTF-8
    POLICY = 1008
    TOO_BIG = 1009
    TRY_AGAIN_LATER = 1013


def describe_close(code: int, reason: str) -> str:
    """Describe how the peer closed a connection."""
    if code == CloseCode.ABNORMAL:
        return "the connection broke"
    summary = "the peer closed the connection"
    details = f"{code} {reason}".strip() if code != CloseCode.NO_STATUS else reason
    return f"{summary}: {details}" if details else summary


def truncate_reason(reason: str) -> str:
    """Truncate a reason to the size of a close frame."""
    return reason.encode()[:_MAX_REASON_SIZE].decode(errors="ignore")
