"""Assemble a message from the pieces of a streamed response."""

from collections.abc import Hashable
from typing import Any, Final

from msgspec import Struct

from trunkline.protocol.meta import USAGE
from trunkline.protocol.types import CreateMessageResult, SamplingBlock, TextContent, ToolUseContent
from trunkline.sampling.translation import ToolNames
from trunkline.wire import codec

__all__ = ["InvalidReply", "MessageBuilder"]

_TEXT: Final = "text"
_read_arguments: Final = codec.json_decoder(dict[str, Any])


class InvalidReply(ValueError):
    """A response that does not follow the provider's format."""


class _ToolCall(Struct):
    """A tool call of the model; its arguments arrive as pieces of JSON, or as an object."""

    id: str
    name: str
    pieces: list[str]
    input: dict[str, Any] | None = None


class MessageBuilder:
    """A message under construction. Blocks have keys of the provider, such as an index, and stay in order of arrival.

    An invalid tool call raises `InvalidReply`, unless the token limit cut it off: an incomplete call is dropped.
    """

    def __init__(self, model: str, names: ToolNames, earlier_uses: int = 0) -> None:
        """`earlier_uses` counts the tool uses of the conversation, for ids of calls without one of the provider."""
        self.model = model
        self.stop_reason: str | None = None
        self.refused = False  # the model, or a filter of the provider, refused
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.size = 0  # characters so far, including the arguments of tools
        self._names = names
        self._blocks: dict[Hashable, list[str] | _ToolCall] = {}
        self._new_text: list[str] = []
        self._uses = earlier_uses

    def add_text(self, text: str, key: Hashable = _TEXT) -> None:
        """Add text to a block."""
        if not text:
            return
        block = self._blocks.setdefault(key, [])
        if not isinstance(block, list):
            raise InvalidReply("text was added to a tool call")
        block.append(text)
        self._new_text.append(text)
        self.size += len(text)

    def has_call(self, key: Hashable) -> bool:
        """Return whether a tool call has begun."""
        return isinstance(self._blocks.get(key), _ToolCall)

    def begin_call(self, key: Hashable, name: str, call_id: str | None) -> None:
        """Begin a tool call. A call without an id gets one."""
        if key in self._blocks:
            raise InvalidReply(f"two blocks have the index {key}")
        self._uses += 1
        self._blocks[key] = _ToolCall(call_id or f"call-{self._uses}", self._names.to_mcp(name), [])
        self.size += 1

    def add_arguments(self, key: Hashable, arguments: "str | dict[str, Any]") -> None:
        """Add arguments to a tool call: a piece of JSON, or all of them."""
        call = self._blocks.get(key)
        if not isinstance(call, _ToolCall):
            raise InvalidReply("arguments were added to a tool call that has not begun")
        if isinstance(arguments, dict):
            call.input = arguments
        else:
            call.pieces.append(arguments)
            self.size += len(arguments)

    def take_new_text(self) -> str:
        """Return the text that was added since the last call."""
        text = "".join(self._new_text)
        self._new_text.clear()
        return text

    def build(self) -> CreateMessageResult:
        """Return the message. Raise `InvalidReply` for a tool call whose arguments are not a JSON object."""
        blocks = [block for one in self._blocks.values() if (block := self._build_block(one)) is not None]
        stop_reason = self.stop_reason
        if self.refused:
            stop_reason = "refusal"
        elif stop_reason == "endTurn" and any(isinstance(block, ToolUseContent) for block in blocks):
            stop_reason = "toolUse"  # not every server names this reason
        content = blocks if len(blocks) > 1 else blocks[0] if blocks else TextContent("")
        counts = {"inputTokens": self.input_tokens, "outputTokens": self.output_tokens}
        usage = {name: count for name, count in counts.items() if count is not None}
        return CreateMessageResult(
            "assistant", content, self.model, stop_reason, meta={USAGE: usage} if usage else None
        )

    def _build_block(self, block: "list[str] | _ToolCall") -> SamplingBlock | None:
        if isinstance(block, list):
            return TextContent("".join(block))
        written = "".join(block.pieces)
        if block.input is not None or not written.strip():
            return ToolUseContent(block.id, block.name, block.input or {})
        try:
            return ToolUseContent(block.id, block.name, _read_arguments(written.encode()))
        except (codec.DecodeError, UnicodeError, RecursionError):
            if self.stop_reason == "maxTokens":
                return None
            raise InvalidReply(f"the model called {block.name!r} with arguments that are not a JSON object") from None
