"""JSON codec: frames to messages and back. The only module that parses or writes JSON-RPC.

`decode` never raises. A well-formed message takes one pass over the bytes; params, result and error stay `Raw` until a
decoder for their type reads them. Any other frame is read again, slowly, to find the error and the request id that the
error response needs.

Each level of `Raw` scans its bytes once more, so a long request is decoded to plain values in one pass instead
(`DecodedJson`), after its longest strings were taken out (`wire/long_strings.py`). Decoders accept both forms with the
same result: values that a decoder rejects, or whose type plain values cannot express, are decoded again from the
original bytes. One difference remains: of a duplicate member, only the last has to fit.

`decode_strict` also rejects objects with duplicate members, which two parsers may read differently (RFC 8259, section
4). It adds 1 to 2 µs to a small message: 4 % of a call over HTTP, an eighth of one over stdio. So transports that an
intermediary can sit on use it, and stdio and in-memory channels do not.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.inspect import RawType, StructType, type_info

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
from trunkline.wire.undecoded import EDGE, outline

__all__ = [
    "LONG_THRESHOLD",
    "DecodeError",
    "DecodedJson",
    "decode",
    "decode_request",
    "decode_requests",
    "decode_response",
    "decode_strict",
    "decoder",
    "encode",
    "encode_into",
    "encode_request",
    "encode_response",
    "encoder",
    "explain_decode_error",
    "has_unique_members",
    "json_decoder",
    "original_json",
    "text_to_raw",
    "to_canonical",
    "to_json",
    "to_raw",
    "to_readable_json",
    "untyped_decoder",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602

DecodeError = msgspec.DecodeError
"""Raised by a decoder for JSON that does not fit its type. JSON that is nested too deep raises RecursionError."""

EXCERPT_SIZE: Final = 80  # bytes of an unreadable message, for logs

MAX_BATCH: Final = 1000  # messages; each gets a response, so one frame could cause a flood of responses
T = TypeVar("T")

_ESCAPES_BEGIN: Final = 1024  # bytes in which most long strings with escapes have the first one
LONG_THRESHOLD: Final = 32 * 1024  # bytes or characters; above it, a second scan costs more than plain values


class DecodedJson:
    """JSON that was decoded to plain values, and a function that returns the original bytes."""

    __slots__ = ("raw", "shortened", "values")

    def __init__(self, values: Any, raw: Callable[[], Raw], shortened: bytes | None = None) -> None:
        """`shortened` is the whole message with placeholders for its long strings, if they were taken out."""
        self.values = values
        self.raw = raw
        self.shortened = shortened


_encoder: Final = msgspec.json.Encoder()
to_json: Final[Callable[[Any], bytes]] = _encoder.encode
"""Encode any value as JSON. Raise TypeError for a value without a JSON form."""


to_canonical: Final[Callable[[Any], bytes]] = msgspec.json.Encoder(order="sorted").encode
"""Encode a value as JSON with sorted members, so that equal values give equal bytes."""

encode_into: Final[Callable[[Any, bytearray, int], None]] = _encoder.encode_into
"""Encode any value as JSON into a buffer, from an offset on. After an error the buffer has any content there."""


class _Envelope(Struct):
    """All members of a message. One pass reads them and skips unknown members."""

    jsonrpc: str
    id: RequestId | None | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET


class _Never(Struct, tag_field="jsonrpc", tag="1.0"):
    """Second member of the unions below, which makes `jsonrpc` mandatory: a lone struct may omit its tag. No JSON fits
    it."""

    impossible: Annotated[int, msgspec.Meta(gt=0, lt=0)]


class _PlainResponse(Struct, tag_field="jsonrpc", tag="2.0", forbid_unknown_fields=True):
    """A response without any other member."""

    id: RequestId
    result: Raw


class _LongRequest(Struct, tag_field="jsonrpc", tag="2.0", forbid_unknown_fields=True):
    """A request whose params are decoded in the same pass."""

    id: RequestId
    method: str
    params: Any = UNSET


_request_decoder: Final = msgspec.json.Decoder(Request | _Never)
_read_request: Final = _request_decoder.decode  # most messages of a server
_read_requests: Final = _request_decoder.decode_lines
_read_response: Final = msgspec.json.Decoder(_PlainResponse | _Never).decode  # most messages of a client
_read_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_read_any: Final = msgspec.json.Decoder().decode
_read_long: Final = msgspec.json.Decoder(_LongRequest | _Never).decode
_read_string: Final = msgspec.json.Decoder(str).decode
_read_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_read_array: Final = msgspec.json.Decoder(list[Raw]).decode
_METHOD: Final = b'"method"'
_OPENING_BRACE: Final = ord("{")


def decode(frame: bytes | TooLarge | BadFrame) -> Incoming:
    """Decode a frame to a message, a batch, or a `Malformed` that describes the error."""
    if not isinstance(frame, bytes):
        return _too_large(frame) if isinstance(frame, TooLarge) else Malformed(INVALID_REQUEST, frame.why)
    if len(frame) >= LONG_THRESHOLD and (long := _decode_long(frame)) is not None:
        return long
    try:
        if not frame.isascii():
            frame.decode()  # check all bytes now: errors in raw parts would appear much later
        if frame.find(_METHOD) < 0:  # `in` takes four times as long for bytes
            try:
                response: Any = _read_response(frame)
            except DecodeError:
                return _classify(_read_envelope(frame))
            return Response(response.id, response.result)
        try:
            request: Any = _read_request(frame)
        except DecodeError:  # every other message takes the slow path
            return _classify(_read_envelope(frame))
        # A frame with this end has an object as its last member, and only `params` can be one.
        if frame.endswith(b"}}") or request.params is UNSET or memoryview(request.params)[0] == _OPENING_BRACE:
            return request
        return _malformed_params(request.params, request.id)
    except UnicodeDecodeError as error:
        return _malformed_frame(frame, f"not UTF-8: {error.reason} at byte {error.start}", whole=True)
    except (DecodeError, RecursionError):
        return _diagnose(frame)


def decode_request(frame: bytes | TooLarge | BadFrame) -> Incoming:
    """Decode a frame as `decode` does; faster for a request, and slower for anything else."""
    if type(frame) is bytes and len(frame) < LONG_THRESHOLD and frame.isascii():
        try:
            request: Any = _read_request(frame)
        except (DecodeError, RecursionError):
            return decode(frame)
        if frame.endswith(b"}}") or request.params is UNSET:
            return request
    return decode(frame)


def decode_requests(lines: bytes) -> list[Request] | None:
    """Decode newline-terminated frames that are all requests with params; return None for anything else. Takes two
    thirds of the time of `decode_request`."""
    size = len(lines) - len(lines.replace(b"\n", b""))  # quicker than `count` for one byte
    # msgspec does not look at the lines: between these characters there can only be the end of a message.
    if lines.count(b"}}\n{") != size - 1 or not lines.endswith(b"}}\n"):
        return None
    if len(lines) >= LONG_THRESHOLD or not lines.isascii():
        return None
    try:
        requests = _read_requests(lines)
    except (DecodeError, RecursionError):
        return None
    return cast("list[Request]", requests) if len(requests) == size else None


def decode_strict(frame: bytes | TooLarge | BadFrame) -> Incoming:
    """Decode a frame as `decode` does; a message with duplicate members in any of its objects is `Malformed`."""
    message = decode(frame)
    if type(message) is Malformed or not isinstance(frame, bytes):
        return message
    params: Any = message.params if type(message) is Request else None
    text, values = frame, cast("Any", UNSET)
    if type(message) is Request and type(params) is DecodedJson:
        if params.shortened is None:
            values = {"jsonrpc": "2.0", "id": message.id, "method": message.method, "params": params.values}
        else:
            text = params.shortened
    if has_unique_members(text, values):
        return message
    return _reject_duplicates(frame, cast("Message | Batch", message))


def has_unique_members(text: bytes, values: Any = UNSET) -> bool:
    """Return True for JSON in which no object has a member twice. False leaves the question open: the text may have
    duplicates, or values that cannot be decoded, or it is not JSON. `values` are those in the text, if they are known.

    Decoding keeps one of several members of a name. Most texts are written as we write them, so their values give the
    same bytes when they are encoded again. Otherwise a text with duplicates has more colons than its values have then:
    colons within strings count on both sides, unless an escape hides them in the text.
    """
    try:
        again = _encoder.encode(_read_any(text)) if values is UNSET else _encode_long(values)
    except (ValueError, RecursionError):  # a number out of bounds, a lone surrogate, or deep nesting
        return False
    if again == text:
        return True
    if text.find(b"\\u003") >= 0 and (b"\\u003a" in text or b"\\u003A" in text):
        return False
    return text.count(b":") == again.count(b":")


class _DuplicateMember(Exception):
    """Carries the message and the member's name out of the standard library's parser."""


def _reject_duplicates(frame: bytes, message: Message | Batch) -> Incoming:
    """Look for duplicate members one object at a time; return the message if there are none."""
    import json  # imported here: stdio does not look for duplicates

    try:
        json.loads(
            frame.decode(), object_pairs_hook=_raise_on_duplicates, parse_int=_skip_number, parse_float=_skip_number
        )
    except (_DuplicateMember, RecursionError) as error:
        why, *name = error.args
        ident: RequestId | None = None
        if isinstance(message, Response | ErrorResponse) or (isinstance(message, Request) and name != ["id"]):
            ident = _readable_id(message.id)
        is_reply = isinstance(message, Response | ErrorResponse | Notification)
        shown, is_notification = frame[:EXCERPT_SIZE].rstrip(), isinstance(message, Notification)
        return Malformed(INVALID_REQUEST, why, ident, is_reply, is_notification=is_notification, excerpt=shown)
    return message


def _skip_number(_: str) -> None:
    """Ignore a number: parsing one with many digits takes long."""


def _raise_on_duplicates(members: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in members:
        if name in names:
            raise _DuplicateMember(f"duplicate member {name!r}: each member of an object must be sent once", name)
        names.add(name)


def _decode_long(frame: bytes) -> Request | None:
    """Decode a request in one pass; return None for any other frame, which then takes the usual path."""
    from trunkline.wire.long_strings import shorten  # imported here: few messages are long

    try:
        shortened = shorten(frame, _decode_long_string)
        request: Any = _read_long(frame if shortened is None else shortened.text)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, not a request, or without params
        return None
    params = request.params
    if not isinstance(params, dict) or (shortened is not None and not shortened.restore(cast("Any", params))):
        return None
    text = None if shortened is None else shortened.text
    plain: Any = DecodedJson(cast("Any", params), lambda: _params_in(frame), text)
    return Request(request.id, request.method, plain)


def _decode_long_string(literal: memoryview) -> str:
    """Decode a string with its quotes, by copying it if nothing in it is escaped. Raise ValueError if it is not
    valid."""
    if (quick := _long_encoder()) is not None and b"\\" not in bytes(literal[:_ESCAPES_BEGIN]):
        string = str(literal[1:-1], "utf-8")
        if len(quick(string)) == len(literal):  # no character is or has to be escaped
            return string
    return _read_string(literal)


def _params_in(frame: bytes) -> Raw:
    request: Any = _read_request(frame)
    return request.params


def _classify(envelope: _Envelope) -> Message | Malformed:
    ident, method, params = envelope.id, envelope.method, envelope.params
    if envelope.jsonrpc != "2.0":
        return _not_version_2(_readable_id(ident), method is UNSET and _has_outcome(envelope))
    if method is UNSET:
        return _classify_reply(envelope)
    if envelope.result is not UNSET or envelope.error is not UNSET:
        why, bare = "a message has either a method or an outcome, not both", ident is UNSET
        return Malformed(INVALID_REQUEST, why, _readable_id(ident), is_reply=bare, is_notification=bare)
    if params is not UNSET and memoryview(params)[0] != _OPENING_BRACE:
        return _malformed_params(params, ident)
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


def _malformed_params(params: Raw, ident: RequestId | None | UnsetType) -> Malformed:
    is_notification = ident is UNSET  # never answered, whatever is wrong with it
    is_array = bytes(params).startswith(b"[")
    return Malformed(
        INVALID_PARAMS if is_array else INVALID_REQUEST,
        "params must be an object, not an array" if is_array else "params must be an object",
        _readable_id(ident),
        is_reply=is_notification,
        is_notification=is_notification,
    )


def _readable_id(ident: RequestId | None | UnsetType) -> RequestId | None:
    return None if ident is UNSET else ident


def _has_outcome(envelope: _Envelope) -> bool:
    return envelope.result is not UNSET or envelope.error is not UNSET


def _not_version_2(ident: RequestId | None, is_reply: bool) -> Malformed:
    return Malformed(INVALID_REQUEST, "'jsonrpc' must be \"2.0\"", ident, is_reply)


def _diagnose(frame: bytes) -> Malformed | Batch:
    """Return what is wrong with a frame that is not a valid message, or the batch that it holds."""
    if frame.lstrip()[:1] == b"[":
        return _read_batch(frame)
    try:
        value = _read_any(frame)
    except (DecodeError, RecursionError) as error:
        fault = _unreadable(error)
        return _malformed_frame(frame, fault.why, fault.code)
    if not isinstance(value, dict):
        return Malformed(INVALID_REQUEST, "a message must be a JSON object")
    return _diagnose_object(cast("dict[str, Any]", value))


def _too_large(frame: TooLarge) -> Malformed:
    found = outline(frame.head, frame.tail, whole=True)
    is_reply = found.has_outcome and not found.has_method
    unknown = not (found.has_outcome or found.has_method)
    shown = frame.head[:EXCERPT_SIZE].rstrip()
    return Malformed(
        INVALID_REQUEST, frame.why, found.id, is_reply, lacks_method=unknown, limit=frame.limit, excerpt=shown
    )


def _malformed_frame(frame: bytes, why: str, code: int = PARSE_ERROR, *, whole: bool = False) -> Malformed:
    """Describe a frame that is not JSON. Look for the id in a response only: a request that cannot be parsed is refused
    without one (JSON-RPC 2.0, section 5)."""
    found = outline(frame[:EDGE], frame[-EDGE:], whole=whole)
    if found.has_outcome and not found.has_method:
        return Malformed(code, why, found.id, is_reply=True, excerpt=frame[:EXCERPT_SIZE].rstrip())
    return Malformed(code, why, lacks_method=not found.has_method, excerpt=frame[:EXCERPT_SIZE].rstrip())


def _unreadable(error: Exception) -> Malformed:
    if isinstance(error, msgspec.ValidationError):
        return Malformed(INVALID_REQUEST, f"not readable: {error}")  # JSON with a number that is out of range
    return Malformed(PARSE_ERROR, f"not JSON: {error}")


def _diagnose_object(value: dict[str, Any]) -> Malformed:
    """Return which member makes a JSON object an invalid message."""
    ident = value.get("id")
    has_good_id = isinstance(ident, int | str) and not isinstance(ident, bool)
    readable = cast("RequestId", ident) if has_good_id else None
    is_reply = "method" not in value and ("result" in value or "error" in value)
    if is_reply and isinstance(ident, float) and ident.is_integer():
        readable = int(ident)  # 1.0 for 1: the response is invalid, but its request is known
    if value.get("jsonrpc") != "2.0":
        return _not_version_2(readable, is_reply)
    if not has_good_id and ident is not None:
        return Malformed(INVALID_REQUEST, "an id must be a string or an integer", readable, is_reply)
    if isinstance(value.get("method", ""), str):  # so the error member is invalid
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
    return cast("Message | Malformed", decode(frame))  # only an array gives a batch


def encode(message: Message | Encoded | Sequence[Message]) -> bytes:
    """Encode a message or a batch, without framing."""
    return message.frame if type(message) is Encoded else _encoder.encode(message)


def encode_request(ident: RequestId, method: str, params: Any = UNSET) -> bytes:
    """Encode a request."""
    return _encoder.encode(Request(ident, method, params))


def encode_response(ident: RequestId, result: Any) -> bytes:
    """Encode the response to a request."""
    return _encoder.encode(Response(ident, result))


def decode_response(frame: bytes) -> Response | ErrorResponse:
    """Decode a response; raise ValueError for any other frame."""
    message = decode(frame)
    if isinstance(message, Response | ErrorResponse):
        return message
    raise ValueError(message.why if isinstance(message, Malformed) else "not an answer")


def json_decoder(kind: type[T], hook: Callable[[type, Any], Any] | None = None) -> Callable[[bytes | Raw], T]:
    """Return a function that decodes JSON to `kind`, and raises `DecodeError` for JSON that does not fit. `hook`
    decodes types that msgspec does not support."""
    return msgspec.json.Decoder(kind, dec_hook=hook).decode


def untyped_decoder(float_hook: Callable[[str], Any]) -> Callable[[bytes | Raw], Any]:
    """Return a decoder to plain values that passes the text of each float to a function, and takes what it returns."""
    return msgspec.json.Decoder(float_hook=float_hook).decode


def decoder(kind: type[T], hook: Callable[[type, Any], Any] | None = None) -> Callable[[bytes | Raw | DecodedJson], T]:
    """Return a function like that of `json_decoder`, which accepts `DecodedJson` too."""
    decode, converter = json_decoder(kind, hook), _Converter(kind, hook)

    def read(source: bytes | Raw | DecodedJson) -> T:
        if not isinstance(source, DecodedJson):
            return decode(source)
        try:
            return converter.convert(source)
        except (ValueError, TypeError, RecursionError):
            return decode(source.raw())

    return read


class _Converter:
    """Converts plain values to a type; inspects the type on first use."""

    __slots__ = ("_found", "_hook", "_kind")

    def __init__(self, kind: Any, hook: Callable[[type, Any], Any] | None) -> None:
        self._kind = kind
        self._hook = hook
        self._found: tuple[bool, dict[str, str]] | None = None

    def convert(self, source: DecodedJson) -> Any:
        self._found = self._found or _inspected(self._kind)
        exact, raws = self._found
        values = source.values
        if not exact:
            raise TypeError("a float has lost digits that a Decimal would keep")
        if not raws:
            return msgspec.convert(values, self._kind, dec_hook=self._hook, str_keys=True)
        others = {name: value for name, value in values.items() if name not in raws}
        typed = msgspec.convert(others, self._kind, dec_hook=self._hook, str_keys=True)
        for name in raws.keys() & values.keys():
            setattr(typed, raws[name], DecodedJson(values[name], partial(_member, source, name)))
        return typed


def _inspected(kind: Any) -> tuple[bool, dict[str, str]]:
    """Return whether plain values suffice to build a type, and its raw members by their JSON names."""
    found = type_info(kind)
    fields = found.fields if isinstance(found, StructType) else ()
    raws = {field.encode_name: field.name for field in fields if isinstance(field.type, RawType)}
    return "DecimalType(" not in repr(found), raws


def _member(source: DecodedJson, name: str) -> Raw:
    return _read_members(source.raw())[name]


def original_json(source: Raw | DecodedJson) -> Raw:
    """Return the original bytes of JSON, decoded or not."""
    return source.raw() if type(source) is DecodedJson else cast("Raw", source)


def explain_decode_error(error: Exception, source: bytes | Raw | DecodedJson) -> str:
    """Return the message of a decode error; for a number out of range, add the number and its path."""
    if _OUT_OF_RANGE not in str(error):
        return str(error)
    import json  # imported here: few messages are out of range

    written = source if isinstance(source, bytes) else bytes(original_json(source))
    try:
        read = json.loads(written, parse_int=partial(_number, int), parse_float=partial(_number, float))
    except (ValueError, RecursionError):  # nested too deep for this parser
        return str(error)
    found = _find_out_of_range(read)
    return str(error) if found is None else f"{found[1]} is out of range - at `{found[0]}`"


_OUT_OF_RANGE: Final = "out of range"  # msgspec's message for a number


class _OutOfRange(str):
    """Description of a number that Python cannot parse, or parses as infinity."""

    __slots__ = ()


def _number(kind: Callable[[str], float], text: str) -> float | _OutOfRange:
    try:
        value = kind(text)
    except ValueError:
        return _OutOfRange(f"an integer of {len(text.lstrip('-'))} digits")
    return _OutOfRange(f"the number {text[:_SHOWN]}{'…' * (len(text) > _SHOWN)}") if value in _INFINITE else value


_SHOWN: Final = 30  # characters of a number
_INFINITE: Final = (float("inf"), float("-inf"))


def _find_out_of_range(value: Any) -> tuple[str, str] | None:
    """Return the path and the description of the first number out of range."""
    waiting: list[tuple[str, Any]] = [("$", value)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, _OutOfRange):
            return path, one
        if isinstance(one, dict):
            waiting += [(f"{path}.{name}", inner) for name, inner in reversed(cast("dict[str, Any]", one).items())]
        elif isinstance(one, list):
            items = cast("list[Any]", one)
            waiting += [(f"{path}[{index}]", items[index]) for index in reversed(range(len(items)))]
    return None


def encoder(hook: Callable[[Any], Any]) -> Callable[[Any], bytes]:
    """Return a function that encodes any value as JSON; `hook` converts types that msgspec does not support."""
    return msgspec.json.Encoder(enc_hook=hook).encode


def to_raw(value: Any) -> Raw:
    """Encode a value once, as `Raw` that can be embedded in messages."""
    return Raw(_encoder.encode(value))


def to_readable_json(value: Any) -> bytes:
    """Encode a value as JSON for people, indented by two spaces."""
    return msgspec.json.format(_encoder.encode(value), indent=2)


def text_to_raw(text: str) -> Raw:
    """Encode a long string once, quickly, as `Raw` that can be embedded in messages."""
    return Raw(_encode_long(text))


def _encode_long(value: Any) -> bytes:
    """Encode plain values, quickly if they contain long strings."""
    if (quick := _long_encoder()) is not None:
        try:
            return quick(value)
        except TypeError:  # a lone surrogate, deep nesting or a large integer
            pass
    return _encoder.encode(value)


@cache
def _long_encoder() -> Callable[[Any], bytes] | None:
    """Return orjson's encoder if it is installed; its output is identical for strings."""
    try:
        import orjson
    except ImportError:
        return None
    return orjson.dumps
