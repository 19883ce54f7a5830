"""Anthropic's Messages API: requests, and events of responses."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from trunkline.protocol.types import (
    CreateMessageParams,
    CreateMessageResult,
    ImageContent,
    SamplingBlock,
    SamplingMessage,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)
from trunkline.sampling.message_builder import InvalidReply, MessageBuilder
from trunkline.sampling.problems import Problem, problem_of_event
from trunkline.sampling.translation import ToolNames, flatten_result, refuse_block, tool_uses_in
from trunkline.wire import codec

__all__ = ["Messages"]

_VERSION: Final = "2023-06-01"
_MAX_TEMPERATURE: Final = 1.0  # MCP allows 2
_IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_TOOL_CHOICES: Final = {"auto": "auto", "required": "any", "none": "none"}
_STOP_REASONS: Final = {
    "end_turn": "endTurn",
    "max_tokens": "maxTokens",
    "model_context_window_exceeded": "maxTokens",
    "stop_sequence": "stopSequence",
    "tool_use": "toolUse",
}
_REFUSAL: Final = "refusal"


class Messages:
    """The wire format."""

    path = "/v1/messages"
    streams_lines = False  # server-sent events

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that authenticate a request; `key` is empty if there is none."""
        return {"anthropic-version": _VERSION, **({"x-api-key": key} if key else {})}

    def request(self, params: CreateMessageParams, model: str) -> dict[str, Any]:
        """Return the body of a request. Raise `InvalidParams` for content that the provider does not accept."""
        names = ToolNames.of(params)
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": params.max_tokens,
            "messages": [
                {"role": message.role, "content": content}
                for message in params.messages
                if (content := list(self._content(message, names)))
            ],
            "stream": True,
        }
        if params.system_prompt:
            body["system"] = params.system_prompt
        if params.temperature is not None:
            body["temperature"] = min(params.temperature, _MAX_TEMPERATURE)
        if params.stop_sequences:
            body["stop_sequences"] = params.stop_sequences
        if tools := _tools(params, names):
            body["tools"] = tools
            mode = "none" if not params.tools else params.tool_choice.mode if params.tool_choice is not None else None
            if mode is not None:
                body["tool_choice"] = {"type": _TOOL_CHOICES[mode]}
        return body

    def _content(self, message: SamplingMessage, names: ToolNames) -> Iterator[dict[str, Any]]:
        for block in message.blocks:
            if isinstance(block, TextContent) and not block.text:
                continue  # the API refuses empty text
            yield self._block(block, message.role, names)

    def _block(self, block: SamplingBlock, role: str, names: ToolNames) -> dict[str, Any]:
        if isinstance(block, TextContent):
            return {"type": "text", "text": block.text}
        if isinstance(block, ToolUseContent):
            return {"type": "tool_use", "id": block.id, "name": names.to_provider(block.name), "input": block.input}
        if isinstance(block, ToolResultContent):
            return self._result(block)
        if isinstance(block, ImageContent) and role == "user":
            return self._image(block)
        raise refuse_block(block, self._provider, f"a message of the {role}")

    def _result(self, result: ToolResultContent) -> dict[str, Any]:
        flat = flatten_result(result, self._provider)
        content = [{"type": "text", "text": flat.text}] if flat.text else []
        content += [self._image(image) for image in flat.images]
        sent: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.tool_use_id}
        if content:
            sent["content"] = content
        if result.is_error:
            sent["is_error"] = True
        return sent

    def _image(self, image: ImageContent) -> dict[str, Any]:
        if image.mime_type not in _IMAGE_TYPES:
            raise refuse_block(image, self._provider, "a message")
        return {"type": "image", "source": {"type": "base64", "media_type": image.mime_type, "data": image.data}}

    def reader(self, params: CreateMessageParams, model: str) -> "MessagesReader":
        """Return a reader for the response to a request."""
        return MessagesReader(MessageBuilder(model, ToolNames.of(params)))


def _tools(params: CreateMessageParams, names: ToolNames) -> list[dict[str, Any]]:
    """Return the definitions of tools. The API requires some if a message contains tool uses."""
    if not params.tools:
        used = dict.fromkeys(use.name for use in tool_uses_in(params))
        return [{"name": names.to_provider(name), "input_schema": {"type": "object"}} for name in used]
    return [
        {
            "name": names.to_provider(tool.name),
            "input_schema": tool.input_schema,
            **({"description": tool.description} if tool.description else {}),
        }
        for tool in params.tools
    ]


# --- responses ----------------------------------------------------------------------------------


class _Usage(Struct):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class _Message(Struct):
    model: str | None = None
    usage: _Usage | None = None


class _Block(Struct):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None


class _Delta(Struct):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


_read_event: Final = codec.json_decoder(_Event)


class MessagesReader:
    """Reads the events of one response. Unknown events and blocks, such as thinking, are skipped."""

    def __init__(self, message: MessageBuilder) -> None:
        self.message = message
        self.done = False

    def feed(self, event: bytes) -> Problem | None:
        """Accept the data of an event; return the problem that it reports. Raise `InvalidReply`."""
        try:
            read = _read_event(event)
        except (codec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidReply(f"an event is not one of a message: {error}") from None
        match read.type:
            case "error":
                return problem_of_event(event)
            case "message_start":
                self._read_start(read.message or _Message())
            case "content_block_start":
                self._read_block(read.index, read.content_block or _Block())
            case "content_block_delta":
                self._read_delta(read.index, read.delta or _Delta())
            case "message_delta":
                self._read_end(read.delta or _Delta(), read.usage or _Usage())
            case "message_stop":
                self.done = True
            case _:
                pass
        return None

    def _read_start(self, started: _Message) -> None:
        self.message.model = started.model or self.message.model
        self._read_usage(started.usage or _Usage())

    def _read_block(self, index: int, block: _Block) -> None:
        if block.type == "tool_use":
            if not block.name:
                raise InvalidReply("a tool call has no name")
            self.message.begin_call(index, block.name, block.id)
        elif block.type == "text":
            self.message.add_text(block.text or "", index)

    def _read_delta(self, index: int, delta: _Delta) -> None:
        if delta.type == "text_delta":
            self.message.add_text(delta.text or "", index)
        elif delta.type == "input_json_delta" and self.message.has_call(index):  # or that of a tool of the provider
            self.message.add_arguments(index, delta.partial_json or "")

    def _read_end(self, delta: _Delta, usage: _Usage) -> None:
        if delta.stop_reason:
            self.message.refused |= delta.stop_reason == _REFUSAL
            self.message.stop_reason = _STOP_REASONS.get(delta.stop_reason, delta.stop_reason)
        self._read_usage(usage)

    def _read_usage(self, usage: _Usage) -> None:
        """Counts are cumulative; input that was read from a cache, or written to one, is counted apart."""
        if usage.input_tokens is not None:
            cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
            self.message.input_tokens = usage.input_tokens + cached
        if usage.output_tokens is not None:
            self.message.output_tokens = usage.output_tokens

    def finish(self) -> CreateMessageResult | None:
        """Return the message; None if the response ended early. Raise `InvalidReply`."""
        return self.message.build() if self.done else None
