"""Context variable with the call in progress, for code without a `Context`.

Connections set it only if a log handler or a subscription needs it, since setting it costs more than a short call.
Tasks and threads that a handler starts inherit it with its context variables.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from trunkline.protocol.inflight import IncomingRequest
    from trunkline.server.call_peer import CallPeer

__all__ = ["CURRENT_CALL", "CurrentCall"]


class CurrentCall(Struct, frozen=True):
    """A call and its connection."""

    connection: "CallPeer"
    call: "IncomingRequest"


CURRENT_CALL: Final[ContextVar[CurrentCall | None]] = ContextVar("trunkline_current_call", default=None)
"""The current call; None outside of calls, and while connections do not track calls."""
