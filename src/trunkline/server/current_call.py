"""The call that is being answered right now, for code that has no context at hand.

It is marked only where somebody needs it, since most calls are over sooner than a mark is made. Tasks and threads that
a handler starts with its own context variables know the call, too.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from trunkline.protocol.inflight import IncomingRequest
    from trunkline.server.connection import Connection

__all__ = ["CURRENT_CALL", "CurrentCall"]


class CurrentCall(NamedTuple):
    """A call, and the connection that it came on."""

    connection: "Connection"
    call: "IncomingRequest"


CURRENT_CALL: Final[ContextVar[CurrentCall | None]] = ContextVar("trunkline_current_call", default=None)
"""The call of whoever asks; None outside of calls, and where calls are not marked."""
