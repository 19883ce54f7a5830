"""What a tool gave back, as a program wants it."""

from typing import Any, cast

from msgspec import UNSET, Struct

from trunkline.client.catalogue import KnownTool
from trunkline.client.rebuild import WRAPPED
from trunkline.errors import BadAnswer, ToolFailed
from trunkline.protocol.types import CallToolResult, ContentBlock, TextContent
from trunkline.registry import types
from trunkline.wire import codec

__all__ = ["ToolResult", "tool_result"]


class ToolResult(Struct, frozen=True):
    """The result of a call.

    `data` is the value itself: in the type that the caller named, or rebuilt from the tool's output schema; of a tool
    without structured content, its text. `structured` and `content` are what was sent.
    """

    content: list[ContentBlock]
    data: Any
    structured: Any = None
    is_error: bool = False
    meta: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """All text of the content, block by block."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))


def tool_result(
    name: str, sent: CallToolResult, known: KnownTool | None, wanted: Any, *, raise_on_error: bool
) -> ToolResult:
    """What a caller gets of what was sent. Raises `ToolFailed`, and `BadAnswer` for what breaks the tool's own schema
    or does not fit the type that the caller named."""
    structured = None if sent.structured_content is UNSET else sent.structured_content
    plain = ToolResult(sent.content, None, structured, sent.is_error, sent.meta)
    if sent.is_error:
        if raise_on_error:
            raise ToolFailed(name, plain.text, plain)
        return plain
    if sent.structured_content is not UNSET and known is not None and (faults := known.faults(structured)):
        told = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        raise BadAnswer(f"tool {name!r}", f"it breaks the tool's own output schema: {told}")
    return ToolResult(sent.content, _data(name, plain, sent, known, wanted), structured, False, sent.meta)


def _data(name: str, plain: ToolResult, sent: CallToolResult, known: KnownTool | None, wanted: Any) -> Any:
    if wanted is not UNSET:
        return _as(name, wanted, plain, sent.structured_content)
    if sent.structured_content is UNSET:
        return plain.text if any(isinstance(block, TextContent) for block in plain.content) else None
    return plain.structured if known is None else known.rebuild(plain.structured)


def _as(name: str, wanted: Any, plain: ToolResult, structured: Any) -> Any:
    """The value in the type that the caller names: of the structured content, of what is wrapped in it, or of text."""
    read = types.decoder(wanted)
    tried: list[Any] = []
    if structured is not UNSET:
        members = cast("dict[str, Any]", structured if isinstance(structured, dict) else {})
        inner = [members[WRAPPED]] if list(members) == [WRAPPED] else []
        tried = [codec.to_json(value) for value in cast("list[Any]", [*inner, structured])]
    else:
        tried = [plain.text.encode(), codec.to_json(plain.text)]
    why: Exception | None = None
    for json in tried:
        try:
            return read(json)
        except codec.DecodeError as error:
            why = why or error
    raise BadAnswer(f"tool {name!r}", f"it is no {wanted}: {why}")
