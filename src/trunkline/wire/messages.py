"""JSON-RPC 2.0 messages as records. Nothing here has heard of MCP."""

from typing import Any, final

from msgspec import UNSET, Raw, Struct, UnsetType

__all__ = [
    "Batch",
    "Encoded",
    "ErrorObject",
    "ErrorResponse",
    "Incoming",
    "Malformed",
    "Message",
    "Notification",
    "Request",
    "RequestId",
    "Response",
]

RequestId = int | str


class Request(Struct, tag_field="jsonrpc", tag="2.0", forbid_unknown_fields=True):
    """Asks for an answer. `params` is what was read (`Raw`), or anything that is to be written."""

    id: RequestId
    method: str
    params: Raw | UnsetType = UNSET


class Notification(Struct, tag_field="jsonrpc", tag="2.0"):
    """Says something and expects no answer."""

    method: str
    params: Any = UNSET


class Response(Struct, tag_field="jsonrpc", tag="2.0"):
    """The answer to a request that went well. A `Raw` result is spliced in as it stands."""

    id: RequestId
    result: Any


class ErrorObject(Struct):
    """What went wrong."""

    code: int
    message: str
    data: Any = UNSET


class ErrorResponse(Struct, tag_field="jsonrpc", tag="2.0"):
    """The answer to a request that failed. Without a readable id, `id` is None (null) or UNSET (left out)."""

    id: RequestId | None | UnsetType
    error: ErrorObject


class Encoded(Struct, frozen=True):
    """A message that is bytes already, made once for many receivers."""

    frame: bytes


Message = Request | Notification | Response | ErrorResponse


class Malformed(Struct, frozen=True):
    """What could not be read as a message: a value, because one bad message does not end a conversation."""

    code: int  # the JSON-RPC code that says it: not JSON, not a message, or params of no use
    why: str
    id: RequestId | None = None  # of the request it would have been, where that could be read
    is_reply: bool = False  # shaped like an answer, so it must not be answered itself
    lacks_method: bool = False  # neither method nor outcome: an answer if its id is awaited, a request otherwise
    is_notification: bool = False  # with a method and no id, so it is no answer either
    limit: int | None = None  # the size limit that was crossed, where that is the fault
    excerpt: bytes = b""  # its first bytes, for a log, where they say more than `why`


@final
class Batch(Struct, frozen=True):
    """Several messages in one JSON array."""

    messages: "tuple[Message | Malformed, ...]"


Incoming = Message | Malformed | Batch
"""What a frame can turn out to be."""
