"""Events of a `Session`: the result of receiving a message, one event per message."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from trunkline.protocol.inflight import IncomingRequest, OutgoingRequest
from trunkline.protocol.methods import Method
from trunkline.wire.messages import ErrorObject, ErrorResponse

if TYPE_CHECKING:
    from trunkline.protocol.types import ProgressParams

__all__ = [
    "CallCancelled",
    "HandshakeCompleted",
    "MessageIgnored",
    "MessageRefused",
    "NotificationReceived",
    "ProgressReceived",
    "RequestCancelled",
    "ResponseReceived",
    "ResponseUnusable",
    "SessionEvent",
]


class NotificationReceived(Struct):
    """A valid notification for a handler."""

    method: Method
    params: Any  # Raw, or UNSET


class HandshakeCompleted(Struct):
    """The handshake is complete."""


class ResponseReceived(Struct):
    """A request of ours was answered, with a result (Raw) or an error."""

    request: OutgoingRequest
    result: Any = None
    error: ErrorObject | None = None


class ResponseUnusable(Struct):
    """The response to a request of ours is invalid."""

    request: OutgoingRequest
    why: str
    too_large: bool = False  # it exceeds the size limit of its transport


class CallCancelled(Struct):
    """The peer cancelled one of its requests."""

    call: IncomingRequest
    reason: str | None


class RequestCancelled(Struct):
    """The server cancelled a request of ours, which only a profile allows."""

    request: OutgoingRequest
    reason: str | None


class ProgressReceived(Struct):
    """The peer reported progress of a request of ours."""

    request: OutgoingRequest
    progress: "ProgressParams"


class MessageRefused(Struct):
    """A message that gets an error response and no further handling."""

    reply: ErrorResponse
    excerpt: bytes = b""  # of an unreadable message
    method: str = ""  # of a request that could be read


class MessageIgnored(Struct):
    """A message that is ignored without a response."""

    why: str
    kind: str
    unassigned: bool = False  # a response that matches no request
    excerpt: bytes = b""


SessionEvent = (
    IncomingRequest  # a valid request for a handler
    | NotificationReceived
    | HandshakeCompleted
    | ResponseReceived
    | ResponseUnusable
    | CallCancelled
    | RequestCancelled
    | ProgressReceived
    | MessageRefused
    | MessageIgnored
)
