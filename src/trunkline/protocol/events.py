"""What a `Session` reports of a message that it was given: one event for one message."""

from typing import Any

from msgspec import Struct

from trunkline.protocol.inflight import IncomingRequest, OutgoingRequest
from trunkline.protocol.methods import Method
from trunkline.protocol.types import ProgressParams
from trunkline.wire.messages import ErrorObject, ErrorResponse

__all__ = [
    "CallCancelled",
    "CallReceived",
    "HandshakeCompleted",
    "MessageIgnored",
    "MessageRefused",
    "NotificationReceived",
    "ProgressReceived",
    "ResponseReceived",
    "ResponseUnusable",
    "SessionEvent",
]


class CallReceived(Struct):
    """A request that may be worked on."""

    call: IncomingRequest
    params: Any  # Raw, or UNSET


class NotificationReceived(Struct):
    """A notification for whoever handles its method."""

    method: Method
    params: Any  # Raw, or UNSET


class HandshakeCompleted(Struct):
    """The handshake is complete."""


class ResponseReceived(Struct):
    """A request of ours was answered: with a result (Raw) or with an error."""

    request: OutgoingRequest
    result: Any = None
    error: ErrorObject | None = None


class ResponseUnusable(Struct):
    """A request of ours was answered by something that cannot be used, and why."""

    request: OutgoingRequest
    why: str
    too_large: bool = False  # for the limit of its transport


class CallCancelled(Struct):
    """The peer no longer wants the answer to a request of its own."""

    call: IncomingRequest
    reason: str | None


class ProgressReceived(Struct):
    """The peer reports progress of a request of ours."""

    request: OutgoingRequest
    progress: ProgressParams


class MessageRefused(Struct):
    """A message that is answered with an error and goes no further."""

    reply: ErrorResponse
    excerpt: bytes = b""  # of something that could not be read at all


class MessageIgnored(Struct):
    """A message that goes nowhere and is not answered, and why."""

    why: str
    kind: str
    unassigned: bool = False  # it is an answer, and it cannot be told to which request
    excerpt: bytes = b""


SessionEvent = (
    CallReceived
    | NotificationReceived
    | HandshakeCompleted
    | ResponseReceived
    | ResponseUnusable
    | CallCancelled
    | ProgressReceived
    | MessageRefused
    | MessageIgnored
)
