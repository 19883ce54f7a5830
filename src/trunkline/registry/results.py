"""Conversion of handlers' return values to content of the specification.

Every kind of handler uses the same conversion: text stays text, content blocks stay unchanged, any other value becomes
JSON. If a tool declares its return type, the value is also sent as structured content.
"""

import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, assert_never, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw

from trunkline.config import Settings
from trunkline.errors import ContentTooLarge, InternalError, RegistrationError
from trunkline.protocol.types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from trunkline.protocol.types.tools import ToolResult
from trunkline.registry import type_adapters as kinds
from trunkline.registry.class_layout import UNIONS, ValueDirection, is_plain
from trunkline.registry.media import Media
from trunkline.registry.unencodable import explain_missing_await, to_json
from trunkline.wire import codec

__all__ = [
    "BadResult",
    "Output",
    "Pieces",
    "as_block",
    "check_contents",
    "check_mime",
    "resource_contents",
    "tool_output",
    "without_raw_text",
]

_RESULTS: Final = (CallToolResult, ToolResult)
_BLOCKS: Final = (TextContent, ImageContent, AudioContent, EmbeddedResource, ResourceLink)
_builtins: Final = codec.decoder(object)
_as_text: Final = codec.decoder(str)
_MIME: Final = r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(\s*;.*)?"


class BadResult(InternalError):
    """A handler returned an invalid value; logged for the operator, never sent to the peer."""

    kind = "invalid_content"

    def __init__(self, why: str, *, kind: str = "invalid_content") -> None:
        super().__init__(why, data={"kind": kind})


class Pieces(list[Any]):
    """The values that a generator yielded, in order; each is a piece of content."""


class Output(msgspec.Struct, frozen=True):
    """The conversion of one tool's values to results."""

    returns: Any  # the declared return type, or UNSET
    wraps: bool  # in the handshake era the value is sent as {"result": value}, since only objects are legal
    convert: Callable[[Any, Any], CallToolResult]  # converts a value; the second argument is unused
    custom_schema: Mapping[str, Any] | None = None  # of an object, in place of that of the type

    def schema(self) -> dict[str, Any] | None:
        """Build the schema of the value itself."""
        if self.custom_schema is not None:
            return dict(self.custom_schema)
        return None if self.returns is UNSET else _result_schema(self.returns)

    def wrapped_schema(self) -> dict[str, Any] | None:
        """Build the schema of the structured content in the handshake era."""
        own = self.schema()
        if own is None or not self.wraps:
            return own
        definitions = own.pop("$defs", None)
        outer: dict[str, Any] = {"type": "object", "properties": {"result": own}, "required": ["result"]}
        return outer if definitions is None else {**outer, "$defs": definitions}


# --- tools -----------------------------------------------------------------------------------------


def tool_output(returns: Any, name: str, settings: Settings, *, structured: bool = True) -> Output:
    """Return the conversion for a return annotation. Raise `RegistrationError` for a type without a JSON form."""
    returns = _declared_type(returns)
    if not structured or _is_unstructured(returns):
        return Output(UNSET, False, _unstructured_converter(name, settings))
    try:
        described = None if is_plain(returns) else _result_schema(returns)
        read_as = kinds.adapt(returns, ValueDirection.RESULT)
        check = _checker(returns, described, name)
    except (TypeError, RuntimeError) as error:
        why = f"{name}: its return type has no schema: {error}; annotate another type, or use structured=False"
        raise RegistrationError(why, kind="tool_schema_invalid") from None
    wraps = (get_origin(returns) or returns) is not dict if described is None else described.get("type") != "object"
    convert = _structured_converter(name, read_as, check, settings, wraps=wraps)
    return Output(returns, wraps, _text_converter(convert) if returns is str and settings.max_text is None else convert)


def _result_schema(returns: Any) -> dict[str, Any]:
    from trunkline.registry.json_schema import schema_of_type

    return schema_of_type(returns, ValueDirection.RESULT)


def _declared_type(returns: Any) -> Any:
    """Return the declared type of the structured content: `T` for `Annotated[CallToolResult, T]`."""
    if get_origin(returns) is Annotated and get_args(returns)[0] in _RESULTS:
        promised = [note for note in returns.__metadata__ if isinstance(note, type) or get_origin(note) is not None]
        return promised[0] if promised else CallToolResult
    return returns


def _checker(returns: Any, described: Mapping[str, Any] | None, name: str) -> Callable[[bytes], Any]:
    """Return a function that raises for JSON that violates the declared type: by decoding it, or by the schema if
    decoding is not equivalent, as with computed fields."""
    if described is None or kinds.is_native(returns):
        return kinds.decoder(returns)
    from trunkline.registry.validators import Validator  # imported here: few types need a schema

    validator = Validator(described, f"tool {name!r}")

    def check(encoded: bytes) -> None:
        if faults := validator.faults(_builtins(encoded)):
            raise ValueError("; ".join(f"{fault.path}: {fault.message}" for fault in faults))

    return check


def _is_unstructured(returns: Any) -> bool:
    """Return whether an annotation declares no value: missing, None, Any, or content blocks."""
    if returns in (UNSET, None, type(None), Any, object):
        return True
    if get_origin(returns) in (list, tuple, Sequence, Iterable):
        return any(map(_is_content, get_args(returns)))
    return _is_content(returns)


def _is_content(annotation: Any) -> bool:
    """Return whether an annotation is a content block or a whole result, or a union with one."""
    if get_origin(annotation) is Annotated:
        return _is_content(get_args(annotation)[0])
    if get_origin(annotation) in UNIONS:
        return any(map(_is_content, get_args(annotation)))
    return annotation in (*_BLOCKS, *_RESULTS) or (isinstance(annotation, type) and issubclass(annotation, Media))


def without_raw_text(result: CallToolResult) -> CallToolResult:
    """Return a result for readers, in which a long text that was encoded in advance is a string again."""
    block = result.content[0] if result.content else None
    written: Any = block.text if isinstance(block, TextContent) else None
    if not isinstance(written, Raw):
        return result
    text = _as_text(written)
    return CallToolResult([TextContent(text)], {"result": text}, False)


def _text_converter(general: Callable[[Any, Any], CallToolResult]) -> Callable[[Any, Any], CallToolResult]:
    """Return the fast path for a tool that returns text, the common case."""

    def convert(value: Any, _: Any) -> CallToolResult:
        if type(value) is str:
            text: Any = value if len(value) < codec.LONG_THRESHOLD else codec.text_to_raw(value)
            return CallToolResult([TextContent(text)], {"result": text}, False)
        return general(value, _)

    return convert


def _structured_converter(
    name: str, read_as: Any, check: Callable[[bytes], Any], settings: Settings, *, wraps: bool
) -> Callable[[Any, Any], CallToolResult]:
    def checked(value: Any) -> bytes:
        encoded = to_json(value)  # encoded once, for text and structured content
        check(encoded)  # instances of classes were not checked, and NaN becomes null
        return encoded

    def encode(value: Any) -> bytes:
        try:
            return checked(msgspec.convert(value, read_as, dec_hook=kinds.decode_hook))
        except (TypeError, ValueError, codec.DecodeError) as error:
            forgotten = explain_missing_await(value)
            raise (
                _mismatch_error(name, error) if forgotten is None else BadResult(f"tool {name!r}: {forgotten}")
            ) from None

    def convert(value: Any, _: Any) -> CallToolResult:
        if isinstance(value, ToolResult):
            value = _passed_on(cast("ToolResult[Any]", value), wraps=wraps)
        if isinstance(value, CallToolResult):
            if not value.is_error:
                try:
                    checked(_unwrapped(value.structured_content) if wraps else value.structured_content)
                except (TypeError, ValueError, codec.DecodeError) as error:
                    raise _mismatch_error(name, error) from None
            return _checked_result(value, settings)
        encoded = encode(value)
        text = value if type(value) is str else encoded.decode()
        _check_text(text, settings)
        body = Raw(encoded)
        return CallToolResult([TextContent(text)], {"result": body} if wraps else body)

    return convert


def _mismatch_error(name: str, error: Exception) -> BadResult:
    return BadResult(f"tool {name!r}: the value does not match the declared return type: {error}")


def _passed_on(result: ToolResult, *, wraps: bool) -> CallToolResult:
    """Convert the result of a client call; if the tool's values are wrapped, wrap one of the modern era too."""
    sent = result.as_sent()
    value: Any = sent.structured_content
    if not wraps or value is UNSET or (isinstance(value, dict) and "result" in value):
        return sent
    return msgspec.structs.replace(sent, structured_content={"result": value})


def _unwrapped(structured: Any) -> Any:
    if not isinstance(structured, dict) or "result" not in structured:
        raise BadResult("structured content must be {'result': value}")
    return cast("dict[str, Any]", structured)["result"]


def _checked_result(result: CallToolResult, settings: Settings) -> CallToolResult:
    return msgspec.structs.replace(result, content=[as_block(block, settings) for block in result.content])


def _unstructured_converter(name: str, settings: Settings) -> Callable[[Any, Any], CallToolResult]:
    def convert(value: Any, _: Any) -> CallToolResult:
        try:
            return _to_unstructured(value, settings)
        except BadResult as error:
            error.add_note(f"returned by tool {name!r}")
            raise

    return convert


def _to_unstructured(value: Any, settings: Settings) -> CallToolResult:
    if isinstance(value, ToolResult):
        value = value.as_sent()
    if isinstance(value, CallToolResult):
        return _checked_result(value, settings)
    if value is None:
        return CallToolResult([])
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        if isinstance(value, Pieces) or any(isinstance(item, (*_BLOCKS, Media)) for item in items):
            return CallToolResult([as_block(item, settings) for item in items])
    return CallToolResult([as_block(value, settings)])


# --- content ---------------------------------------------------------------------------------------


def as_block(value: Any, settings: Settings) -> ContentBlock:
    """Convert any value to one content block."""
    if isinstance(value, Media):
        _check_binary(len(value.data), settings)  # before encoding
        value = value.block()
    if isinstance(value, _BLOCKS):
        _check_block(value, settings)
        return value
    text = value if isinstance(value, str) else _json(value)
    _check_text(text, settings)
    return TextContent(text)


def _json(value: Any) -> str:
    try:
        return to_json(value).decode()
    except TypeError as error:
        raise BadResult(str(error)) from None


def resource_contents(value: Any, uri: str, mime_type: str | None, settings: Settings) -> list[ResourceContents]:
    """Convert any value to the contents of a resource."""
    if isinstance(value, ResourceContents):
        value = [value]
    items = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()
    if items and all(isinstance(item, ResourceContents) for item in items):
        for item in items:
            check_contents(item, settings)
        return list(items)
    return [_one_content(cast("Any", value), uri, mime_type, settings)]


def _one_content(value: Any, uri: str, mime_type: str | None, settings: Settings) -> ResourceContents:
    if isinstance(value, bytes | bytearray):
        _check_binary(len(value), settings)
        blob = binascii.b2a_base64(value, newline=False).decode()
        return ResourceContents(uri, mime_type or "application/octet-stream", blob=blob)
    is_text = isinstance(value, str)
    text: str = value if is_text else _json(value)
    _check_text(text, settings)
    return ResourceContents(uri, mime_type or ("text/plain" if is_text else "application/json"), text=text)


def check_mime(mime_type: str | None) -> str | None:
    """Return a valid MIME type; raise `RegistrationError` for any other."""
    if mime_type is not None and not re.fullmatch(_MIME, mime_type):
        raise RegistrationError(f"{mime_type!r} is not a MIME type, such as text/markdown", kind="invalid_mime_type")
    return mime_type


def _check_block(block: ContentBlock, settings: Settings) -> None:
    match block:
        case TextContent(text=text):
            _check_text(text, settings)
        case ImageContent(data=data, mime_type=mime_type) | AudioContent(data=data, mime_type=mime_type):
            _check_base64(data, settings)
            _check_mime_of(mime_type)
        case EmbeddedResource(resource=contents):
            check_contents(contents, settings)
        case ResourceLink():
            pass
        case _:
            assert_never(block)


def check_contents(contents: ResourceContents, settings: Settings) -> None:
    """Raise `BadResult` for invalid contents, and `ContentTooLarge` for contents over a limit."""
    if (contents.text is None) == (contents.blob is None):
        raise BadResult("the contents of a resource are either text or a blob")
    if contents.text is not None:
        _check_text(contents.text, settings)
    if contents.blob is not None:
        _check_base64(contents.blob, settings)
    if contents.mime_type is not None:
        _check_mime_of(contents.mime_type)


def _check_mime_of(mime_type: str) -> None:
    if not re.fullmatch(_MIME, mime_type):
        raise BadResult(f"{mime_type!r} is not a MIME type", kind="invalid_mime_type")


def _check_text(text: str, settings: Settings) -> None:
    if settings.max_text is not None and len(text) > settings.max_text:
        raise ContentTooLarge(len(text), settings.max_text, setting="max_text", unit="characters", kind="text_too_long")


def _check_binary(size: int, settings: Settings) -> None:
    if settings.max_binary is not None and size > settings.max_binary:
        raise ContentTooLarge(size, settings.max_binary, setting="max_binary", kind="binary_data_too_large")


def _check_base64(data: str, settings: Settings) -> None:
    try:
        size = len(binascii.a2b_base64(data.encode(), strict_mode=True))
    except (binascii.Error, ValueError):
        raise BadResult("binary content must be base64", kind="invalid_encoding") from None
    _check_binary(size, settings)
