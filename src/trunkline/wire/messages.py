"""JSON-RPC 2.0 messages as records, independent of MCP.

The garbage collector does not track those that every call has: a message is never part of a cycle.
"""

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


@final
class Request(Struct, tag_field="jsonrpc", tag="2.0", forbid_unknown_fields=True, gc=False):
    """A request. `params` is `Raw` in a received request, and any value in one to be sent."""

    id: RequestId
    method: str
    params: Raw | UnsetType = UNSET


class Notification(Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    """A notification, which has no response."""

    method: str
    params: Any = UNSET


@final
class Response(Struct, tag_field="jsonrpc", tag="2.0", gc=False):
    """The successful response to a request. A `Raw` result is embedded unchanged."""

    id: RequestId
    result: Any


class ErrorObject(Struct):
    """The error of an error response."""

    code: int
    message: str
    data: Any = UNSET


class ErrorResponse(Struct, tag_field="jsonrpc", tag="2.0"):
    """The response to a failed request. Without a readable id, `id` is None (null) or UNSET (omitted)."""

    id: RequestId | None | UnsetType
    error: ErrorObject


class Encoded(Struct, frozen=True):
    """A message that was encoded once for many receivers."""

    frame: bytes


Message = Request | Notification | Response | ErrorResponse


class Malformed(Struct, frozen=True):
    """A frame that is not a valid message: a value, because one invalid message does not end a session."""

    code: int  # the JSON-RPC error code: parse error, invalid request or invalid params
    why: str
    id: RequestId | None = None  # the id of the request, if it could be read
    is_reply: bool = False  # shaped like a response, so it must not get a response
    lacks_method: bool = False  # neither method nor outcome: a response if its id is pending, else a request
    is_notification: bool = False  # with a method and without an id
    limit: int | None = None  # the exceeded size limit, if that is the error
    excerpt: bytes = b""  # its first bytes, for logs


@final
class Batch(Struct, frozen=True):
    """Several messages in one JSON array."""

    messages: "tuple[Message | Malformed, ...]"


Incoming = Message | Malformed | Batch
"""The possible results of decoding a frame."""
