"""Errors of the server behind a proxy, as the client in front of the proxy gets them."""

import logging
from typing import Any, Final

from msgspec import UNSET

from trunkline.errors import (
    BadAnswer,
    ConnectionClosed,
    InternalError,
    Interrupted,
    InvalidParams,
    NotNow,
    OutcomeUnknown,
    PeerError,
    ProtocolError,
    SupervisionError,
    TransportError,
    TrunklineError,
)

__all__ = ["exact_error", "to_front_error", "to_handshake_error"]

_log: Final = logging.getLogger("trunkline")
_MODERN_CODES: Final = {-32002: -32602, -32042: -32603}
"""Codes that the modern era does not have, and those that it has for the same errors."""
_NOT_FOUND: Final = -32002  # of a resource, up to 2025-11-25


def exact_error(error: PeerError) -> ProtocolError:
    """Return an error that is sent with the code, message and data of a received one."""
    exact = ProtocolError(error.message)
    exact.code = error.code
    exact.data = UNSET if error.data is None else error.data
    return exact


def to_handshake_error(error: PeerError, method: str) -> PeerError:
    """Return an error response of the modern era in the form of the handshake era, which has a code of its own for a
    resource that does not exist."""
    if method == "resources/read" and error.code == InvalidParams.code and not isinstance(error, BadAnswer):
        return PeerError(_NOT_FOUND, error.message, error.data)
    return error


def to_front_error(error: TrunklineError, *, modern: bool = False) -> TrunklineError:
    """Return the error for the client in front: a response of the server behind passes unchanged, but for a code that
    the modern era does not have. A lost call has an unknown outcome, and a call that was not sent may be repeated."""
    match error:
        case BadAnswer():
            return InternalError(f"the server behind the proxy sent an invalid response: {error.message}")
        case PeerError():
            exact = exact_error(error)
            if modern:
                exact.code = _MODERN_CODES.get(exact.code, exact.code)
            return exact
        case OutcomeUnknown():
            return _as_error(Interrupted("the server behind the proxy did not answer"))
        case ConnectionClosed(reached=True, too_large=True):
            return InternalError("the response of the server behind the proxy is too large")
        case TransportError() | SupervisionError():
            _log.info("the server behind the proxy is unavailable: %s", error)  # it may name a command with secrets
            return NotNow("the server behind the proxy is unavailable")
        case _:
            return error


def _as_error(error: InternalError) -> ProtocolError:
    """Return an error that stays an error for a tool call, too: the client may repeat the call."""
    data: Any = error.data
    return ProtocolError.rebuilt(error.message, error.code, data)
