"""Results of requests, decoded and converted for the caller."""

from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec import UNSET

from trunkline.client.known_tools import KnownTool
from trunkline.client.rebuild import WRAPPED
from trunkline.errors import BadAnswer, ToolFailed
from trunkline.protocol import lenient
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

__all__ = ["UNSPECIFIED", "T", "T_co", "ToolResult", "build_tool_result", "decode_result"]

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


def build_tool_result(
    name: str, result: CallToolResult, known: KnownTool | None, returns: Any, *, raise_on_error: bool
) -> ToolResult:
    """Convert the result of a tool for its caller. Raises `ToolFailed`, and `BadAnswer` for structured content that
    violates the tool's output schema or does not fit the caller's type. A failed result needs no structured content."""
    structured = result.structured_content
    content = None if structured is UNSET else structured
    if result.is_error:
        failed = ToolResult(result.content, None, content, True, result.meta)
        if raise_on_error:
            raise ToolFailed(name, failed.text, failed)
        return failed
    if structured is UNSET and known is not None and known.tool.output_schema is not None:
        raise BadAnswer(f"tool {name!r}", "the tool has an output schema, and its result has no structured content")
    if structured is not UNSET and known is not None and (faults := known.faults(structured)):
        details = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        raise BadAnswer(f"tool {name!r}", f"the result violates the tool's output schema: {details}")
    return ToolResult(result.content, _extract_data(name, result, known, returns), content, False, result.meta)


def _extract_data(name: str, result: CallToolResult, known: KnownTool | None, returns: Any) -> Any:
    structured = result.structured_content
    if returns is not UNSPECIFIED:
        return _decode_as(name, returns, result.content, structured)
    if structured is UNSET:
        return _join_text(result.content) if any(isinstance(block, TextContent) for block in result.content) else None
    return structured if known is None else known.rebuild(structured)


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
