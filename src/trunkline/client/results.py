"""What a tool gave back, as a program wants it."""

from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec import UNSET

from trunkline.client.known_tools import KnownTool
from trunkline.client.rebuild import WRAPPED
from trunkline.errors import BadAnswer, ToolFailed
from trunkline.protocol import lenient
from trunkline.protocol.methods import find
from trunkline.protocol.types import CallToolResult, ContentBlock, TextContent
from trunkline.protocol.types.tools import T_co, ToolResult
from trunkline.registry import type_adapters
from trunkline.wire import codec

if TYPE_CHECKING:
    import typing_extensions

    T = typing_extensions.TypeVar("T", default=Any)
else:
    T = TypeVar("T")  # the default is for type checkers: Python has it from 3.13 on

__all__ = ["UNSPECIFIED", "T", "T_co", "ToolResult", "read", "tool_result"]

UNSPECIFIED: Final[Any] = UNSET  # the default of `returns`: the caller names no type


def _type_of(name: str) -> type[Any]:
    row = find(name)
    return object if row is None or row.result is None else row.result


@cache
def _decoder(name: str) -> Callable[[Any], Any]:
    return codec.json_decoder(_type_of(name))


def read(name: str, raw: Any, asked: Any = None) -> Any:
    """Decode the answer to a request with the params `asked` into its type. Raise `BadAnswer` if it does not fit."""
    try:
        return _decoder(name)(raw)
    except (codec.DecodeError, RecursionError) as error:
        found = lenient.read_rewritten(_type_of(name), raw, asked)
        if found is None:
            raise BadAnswer(name, codec.reason(error, raw)) from None
        return found


def tool_result(
    name: str, sent: CallToolResult, known: KnownTool | None, wanted: Any, *, raise_on_error: bool
) -> ToolResult:
    """What a caller gets of what was sent. Raises `ToolFailed`, and `BadAnswer` for what breaks the tool's own schema
    or does not fit the type that the caller named. A result that tells of a failure needs no structured content."""
    structured = sent.structured_content
    given = None if structured is UNSET else structured
    if sent.is_error:
        failed = ToolResult(sent.content, None, given, True, sent.meta)
        if raise_on_error:
            raise ToolFailed(name, failed.text, failed)
        return failed
    if structured is UNSET and known is not None and known.tool.output_schema is not None:
        raise BadAnswer(f"tool {name!r}", "it has an output schema, and its result has no structured content")
    if structured is not UNSET and known is not None and (faults := known.faults(structured)):
        told = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        raise BadAnswer(f"tool {name!r}", f"it breaks the tool's own output schema: {told}")
    return ToolResult(sent.content, _data(name, sent, known, wanted), given, False, sent.meta)


def _data(name: str, sent: CallToolResult, known: KnownTool | None, wanted: Any) -> Any:
    structured = sent.structured_content
    if wanted is not UNSPECIFIED:
        return _as(name, wanted, sent.content, structured)
    if structured is UNSET:
        return _text(sent.content) if any(isinstance(block, TextContent) for block in sent.content) else None
    return structured if known is None else known.rebuilt(structured)


def _text(content: list[ContentBlock]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextContent))


@lru_cache(maxsize=256)
def _reader(wanted: Any) -> Callable[[Any], Any]:
    return type_adapters.decoder(wanted)


def _as(name: str, wanted: Any, content: list[ContentBlock], structured: Any) -> Any:
    """The value in the type that the caller names: of the structured content, of what is wrapped in it, or of text."""
    read = _reader(wanted) if isinstance(wanted, Hashable) else type_adapters.decoder(wanted)
    tried: list[Any] = []
    if structured is not UNSET:
        members = cast("dict[str, Any]", structured if isinstance(structured, dict) else {})
        inner = [members[WRAPPED]] if list(members) == [WRAPPED] else []
        tried = [codec.to_json(value) for value in cast("list[Any]", [*inner, structured])]
    else:
        text = _text(content)
        tried = [text.encode(), codec.to_json(text)]
    why: Exception | None = None
    for json in tried:
        try:
            return read(json)
        except codec.DecodeError as error:
            why = why or error
    raise BadAnswer(f"tool {name!r}", f"it is no {wanted}: {why}")
