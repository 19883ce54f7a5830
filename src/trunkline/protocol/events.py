"""What a `Session` reports of a message that it was given: one event for one message."""

from typing import Any

from msgspec import Struct

from trunkline.protocol.inflight import Awaited, Running
from trunkline.protocol.methods import Method
from trunkline.protocol.types import ProgressParams
from trunkline.wire.messages import ErrorObject, ErrorResponse

__all__ = [
    "AnswerUnusable",
    "Answered",
    "CallReceived",
    "Cancelled",
    "Event",
    "Ignored",
    "NoticeReceived",
    "Opened",
    "ProgressHeard",
    "Refused",
]


class CallReceived(Struct):
    """A request that may be worked on."""

    call: Running
    params: Any  # Raw, or UNSET


class NoticeReceived(Struct):
    """A notification for whoever handles its method."""

    method: Method
    params: Any  # Raw, or UNSET


class Opened(Struct):
    """The handshake is complete."""


class Answered(Struct):
    """A request of ours was answered: with a result (Raw) or with an error."""

    request: Awaited
    result: Any = None
    error: ErrorObject | None = None


class AnswerUnusable(Struct):
    """A request of ours was answered by something that cannot be used, and why."""

    request: Awaited
    why: str
    too_large: bool = False  # for the limit of its transport


class Cancelled(Struct):
    """The peer no longer wants the answer to a request of its own."""

    call: Running
    reason: str | None


class ProgressHeard(Struct):
    """The peer reports progress of a request of ours."""

    request: Awaited
    progress: ProgressParams


class Refused(Struct):
    """A message that is answered with an error and goes no further."""

    reply: ErrorResponse
    excerpt: bytes = b""  # of something that could not be read at all


class Ignored(Struct):
    """A message that goes nowhere and is not answered, and why."""

    why: str
    kind: str
    unassigned: bool = False  # it is an answer, and it cannot be told to which request
    excerpt: bytes = b""


Event = (
    CallReceived | NoticeReceived | Opened | Answered | AnswerUnusable | Cancelled | ProgressHeard | Refused | Ignored
)
