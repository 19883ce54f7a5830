"""Results of requests, decoded and converted for the caller."""

from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec import UNSET

from trunkline.client.known_tools import KnownTool
from trunkline.client.rebuild import WRAPPED
from trunkline.errors import BadAnswer, ToolFailed
from trunkline.protocol import lenient
from trunkline.protocol.meta import SERVER_INFO
from trunkline.protocol.methods import find_method
from trunkline.protocol.types import CallToolResult, ContentBlock, TextContent
from trunkline.protocol.types.tools import T_co, ToolResult
from trunkline.registry import type_adapters
from trunkline.wire import codec

if TYPE_CHECKING:
    import typing_extensions

    T = typing_extensions.TypeVar("T", default=Any)
else:
    T = TypeVar("T")  # the default is for type checkers: Python has it from 3.13 on

__all__ = [
    "UNSPECIFIED",
    "T",
    "T_co",
    "ToolResult",
    "build_tool_result",
    "decode_custom_result",
    "decode_result",
]

UNSPECIFIED: Final[Any] = UNSET  # the default of `returns`: the caller names no type


def _result_type(name: str) -> type[Any]:
    row = find_method(name)
    return object if row is None or row.result is None else row.result


@cache
def _result_decoder(name: str) -> Callable[[Any], Any]:
    return codec.json_decoder(_result_type(name))


def decode_result(name: str, raw: Any, params: Any = None) -> Any:
    """Decode the result of a request with these params into its type. Raises `BadAnswer` if it does not fit."""
    try:
        return _result_decoder(name)(raw)
    except (codec.DecodeError, RecursionError) as error:
        found = lenient.read_rewritten(_result_type(name), raw, params)
        if found is None:
            raise BadAnswer(name, codec.explain_decode_error(error, raw)) from None
        return found


def decode_custom_result(name: str, result: Any, returns: Any) -> Any:
    """Return the result of a method outside of the specification without the members that the modern era adds, as the
    caller's type. Raises `BadAnswer` if it does not fit."""
    if not isinstance(result, dict):
        raise BadAnswer(name, "the result is not an object")
    members = {key: value for key, value in cast("dict[str, Any]", result).items() if key != "resultType"}
    meta: Any = members.pop("_meta", None) or {}
    if kept := {key: value for key, value in meta.items() if key != SERVER_INFO}:
        members["_meta"] = kept
    if returns is UNSPECIFIED:
        return members
    try:
        return type_adapters.decoder(returns)(codec.to_json(members))
    except codec.DecodeError as error:
        raise BadAnswer(name, f"the result is no {returns}: {error}") from None


def build_tool_result(
    name: str,
    result: CallToolResult,
    known: KnownTool | None,
    returns: Any,
    *,
    raise_on_error: bool,
    json_size: int | None = None,
) -> ToolResult:
    """Convert the result of a tool for its caller. Raises `ToolFailed`, and `BadAnswer` for structured content that
    violates the tool's output schema or does not fit the caller's type. A failed result needs no structured content.
    `json_size` is the number of bytes of the result, if that is known."""
    structured = result.structured_content
    if result.is_error:
        given = structured is not UNSET
        failed = ToolResult(result.content, None, structured if given else None, True, result.meta, given)
        if raise_on_error:
            raise ToolFailed(name, failed.text, failed)
        return failed
    if structured is UNSET:
        if known is not None and known.tool.output_schema is not None:
            raise BadAnswer(f"tool {name!r}", "the tool has an output schema, and its result has no structured content")
        content = result.content
        if returns is not UNSPECIFIED:
            data = _decode_as(name, returns, content, UNSET)
        else:
            data = _join_text(content) if any(isinstance(block, TextContent) for block in content) else None
        return ToolResult(content, data, None, False, result.meta)
    if known is not None and (faults := known.faults(structured, json_size)):
        details = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        raise BadAnswer(f"tool {name!r}", f"the result violates the tool's output schema: {details}")
    if returns is not UNSPECIFIED:
        data = _decode_as(name, returns, result.content, structured)
    else:
        data = structured if known is None else known.rebuild(structured)
    return ToolResult(result.content, data, structured, False, result.meta, True)


def _join_text(content: list[ContentBlock]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextContent))


@lru_cache(maxsize=256)
def _type_decoder(returns: Any) -> Callable[[Any], Any]:
    return type_adapters.decoder(returns)


def _decode_as(name: str, returns: Any, content: list[ContentBlock], structured: Any) -> Any:
    """Decode the value into the caller's type: the structured content, the value wrapped in it, or the text."""
    decode_result = _type_decoder(returns) if isinstance(returns, Hashable) else type_adapters.decoder(returns)
    tried: list[Any] = []
    if structured is not UNSET:
        members = cast("dict[str, Any]", structured if isinstance(structured, dict) else {})
        inner = [members[WRAPPED]] if list(members) == [WRAPPED] else []
        tried = [codec.to_json(value) for value in cast("list[Any]", [*inner, structured])]
    else:
        text = _join_text(content)
        tried = [text.encode(), codec.to_json(text)]
    why: Exception | None = None
    for json in tried:
        try:
            return decode_result(json)
        except codec.DecodeError as error:
            why = why or error
    raise BadAnswer(f"tool {name!r}", f"the result is no {returns}: {why}")
