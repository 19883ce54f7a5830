"""Frames to messages and back: the only JSON in the package.

`decode` never raises. A well-formed message takes one pass over the bytes, with params, result and error
left as `Raw` for whoever knows their type. Anything else is read again, slowly, to say what is wrong with
it and to whom the complaint should go.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from trunkline.wire.framing import BadFrame, TooLarge
from trunkline.wire.messages import (
    Batch,
    Encoded,
    ErrorObject,
    ErrorResponse,
    Incoming,
    Malformed,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
)

__all__ = [
    "DecodeError",
    "decode",
    "decode_response",
    "decoder",
    "encode",
    "encode_request",
    "encode_response",
    "encoder",
    "to_json",
    "to_raw",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602

DecodeError = msgspec.DecodeError
"""What a decoder raises for JSON that does not fit its type. JSON nested too deep is a RecursionError."""

MAX_BATCH: Final = 1000  # messages; each is answered, so a line of small change would be answered with a flood
T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder()
to_json: Final[Callable[[Any], bytes]] = _encoder.encode
"""Any value as JSON. Raises TypeError for one that has none."""


class _Envelope(Struct):
    """Everything that a message may have. A struct reads it in one pass and passes over members it does not know."""

    jsonrpc: str
    id: RequestId | None | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET


class _Older(Struct, tag_field="jsonrpc", tag="1.0"):
    """Stands beside `Request`, so that `jsonrpc` has to be there: a type that is read alone may go untagged."""


_read_request: Final = msgspec.json.Decoder(Request | _Older).decode  # most of what a server reads
_read_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_read_any: Final = msgspec.json.Decoder().decode
_read_array: Final = msgspec.json.Decoder(list[Raw]).decode
_OPENING_BRACE: Final = ord("{")


def decode(frame: bytes | TooLarge | BadFrame) -> Incoming:
    """The message in a frame, a batch of them, or a `Malformed` that says what it is instead."""
    if not isinstance(frame, bytes):
        limit = frame.limit if isinstance(frame, TooLarge) else None
        return Malformed(INVALID_REQUEST, frame.why, limit=limit)
    try:
        if not frame.isascii():
            frame.decode()  # all of it, now: what stays raw would be found unreadable much later
        try:
            request = _read_request(frame)
        except DecodeError:  # the rest goes the longer way
            return _classify(_read_envelope(frame))
        if isinstance(request, _Older):
            return _classify(_read_envelope(frame))
        if request.params is UNSET or memoryview(request.params)[0] == _OPENING_BRACE:
            return request
        return _params_of_no_use(request.params, request.id)
    except UnicodeDecodeError as error:
        return Malformed(PARSE_ERROR, f"not UTF-8: {error.reason} at byte {error.start}")
    except (DecodeError, RecursionError):
        return _diagnose(frame)


def _classify(envelope: _Envelope) -> Message | Malformed:
    ident, method, params = envelope.id, envelope.method, envelope.params
    if envelope.jsonrpc != "2.0":
        return _not_version_2(_readable_id(ident), method is UNSET and _has_outcome(envelope))
    if method is UNSET:
        return _classify_reply(envelope)
    if envelope.result is not UNSET or envelope.error is not UNSET:
        why = "a message has either a method or an outcome, not both"
        return Malformed(INVALID_REQUEST, why, _readable_id(ident), is_reply=ident is UNSET)
    if params is not UNSET and memoryview(params)[0] != _OPENING_BRACE:
        return _params_of_no_use(params, ident)
    if ident is UNSET:
        return Notification(method, params)
    if ident is None:
        return Malformed(INVALID_REQUEST, "the id of a request must be a string or an integer, not null")
    return Request(ident, method, params)


def _classify_reply(envelope: _Envelope) -> Message | Malformed:
    ident, result, error = envelope.id, envelope.result, envelope.error
    if result is not UNSET and error is not UNSET:
        return Malformed(INVALID_REQUEST, "a reply has a result or an error, not both", _readable_id(ident), True)
    if error is not UNSET:
        return ErrorResponse(ident, error)
    if result is UNSET:
        return Malformed(INVALID_REQUEST, "Missing 'method' field", _readable_id(ident), lacks_method=True)
    if ident is UNSET or ident is None:
        return Malformed(INVALID_REQUEST, "a reply must name the request that it answers", is_reply=True)
    return Response(ident, result)


def _params_of_no_use(params: Raw, ident: RequestId | None | UnsetType) -> Malformed:
    is_notification = ident is UNSET  # never answered, whatever is wrong with it
    if bytes(params).startswith(b"["):
        return Malformed(INVALID_PARAMS, "params must be an object, not an array", _readable_id(ident), is_notification)
    return Malformed(INVALID_REQUEST, "params must be an object", _readable_id(ident), is_notification)


def _readable_id(ident: RequestId | None | UnsetType) -> RequestId | None:
    return None if ident is UNSET else ident


def _has_outcome(envelope: _Envelope) -> bool:
    return envelope.result is not UNSET or envelope.error is not UNSET


def _not_version_2(ident: RequestId | None, is_reply: bool) -> Malformed:
    return Malformed(INVALID_REQUEST, "'jsonrpc' must be \"2.0\"", ident, is_reply)


def _diagnose(frame: bytes) -> Malformed | Batch:
    """What is wrong with a frame that is not one good message; or the batch that it is."""
    if frame.lstrip()[:1] == b"[":
        return _read_batch(frame)
    try:
        value = _read_any(frame)
    except (DecodeError, RecursionError) as error:
        return _unreadable(error)
    if not isinstance(value, dict):
        return Malformed(INVALID_REQUEST, "a message must be a JSON object")
    return _fault_of(cast("dict[str, Any]", value))


def _unreadable(error: Exception) -> Malformed:
    if isinstance(error, msgspec.ValidationError):
        return Malformed(INVALID_REQUEST, f"not readable: {error}")  # JSON, with a number that is out of all bounds
    return Malformed(PARSE_ERROR, f"not JSON: {error}")


def _fault_of(value: dict[str, Any]) -> Malformed:
    """Which member of a JSON object keeps it from being a message."""
    ident = value.get("id")
    has_good_id = isinstance(ident, int | str) and not isinstance(ident, bool)
    readable = cast("RequestId", ident) if has_good_id else None
    is_reply = "method" not in value and ("result" in value or "error" in value)
    if value.get("jsonrpc") != "2.0":
        return _not_version_2(readable, is_reply)
    if not has_good_id and ident is not None:
        return Malformed(INVALID_REQUEST, "an id must be a string or an integer", is_reply=is_reply)
    if isinstance(value.get("method", ""), str):  # so it is the error that could not be read
        return Malformed(INVALID_REQUEST, "an error needs an integer code and a string message", readable, is_reply)
    return Malformed(INVALID_REQUEST, "'method' must be a string", readable)


def _read_batch(frame: bytes) -> Malformed | Batch:
    try:
        items = _read_array(frame)
    except (DecodeError, RecursionError) as error:
        return _unreadable(error)
    if not items:
        return Malformed(INVALID_REQUEST, "a batch must not be empty")
    if len(items) > MAX_BATCH:
        return Malformed(INVALID_REQUEST, f"a batch must not have more than {MAX_BATCH} messages")
    return Batch(tuple(_read_item(bytes(item)) for item in items))


def _read_item(frame: bytes) -> Message | Malformed:
    if frame.startswith(b"["):
        return Malformed(INVALID_REQUEST, "a batch cannot stand inside a batch")
    return cast("Message | Malformed", decode(frame))  # only an array is a batch


def encode(message: Message | Encoded) -> bytes:
    """The frame of a message, without any framing around it."""
    return message.frame if isinstance(message, Encoded) else _encoder.encode(message)


def encode_request(ident: RequestId, method: str, params: Any = UNSET) -> bytes:
    """The frame of a request."""
    return _encoder.encode(Request(ident, method, params))


def encode_response(ident: RequestId, result: Any) -> bytes:
    """The frame of the answer to a request."""
    return _encoder.encode(Response(ident, result))


def decode_response(frame: bytes) -> Response | ErrorResponse:
    """The answer in a frame; raises ValueError for a frame that is anything else."""
    message = decode(frame)
    if isinstance(message, Response | ErrorResponse):
        return message
    raise ValueError(message.why if isinstance(message, Malformed) else "not an answer")


def decoder(kind: type[T], hook: Callable[[type, Any], Any] | None = None) -> Callable[[bytes | Raw], T]:
    """A function that reads JSON into `kind`, and raises `DecodeError` for JSON that does not fit.

    `hook` reads the types that are not known here."""
    return msgspec.json.Decoder(kind, dec_hook=hook).decode


def encoder(hook: Callable[[Any], Any]) -> Callable[[Any], bytes]:
    """A function that writes any value as JSON; `hook` puts what is not known here in other words."""
    return msgspec.json.Encoder(enc_hook=hook).encode


def to_raw(value: Any) -> Raw:
    """Any value as JSON that can stand inside a message, made once."""
    return Raw(_encoder.encode(value))
