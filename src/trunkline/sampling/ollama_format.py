"""Ollama's chat API: requests, and the lines of responses."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Raw, Struct

from trunkline.errors import InvalidParams
from trunkline.protocol.types import (
    CreateMessageParams,
    CreateMessageResult,
    ImageContent,
    SamplingMessage,
    TextContent,
    ToolResultContent,
    ToolUseContent,
)
from trunkline.sampling.message_builder import InvalidReply, MessageBuilder
from trunkline.sampling.problems import Problem, problem_of_event
from trunkline.sampling.translation import ToolNames, flatten_result, refuse_block, tool_uses_in
from trunkline.wire import codec

__all__ = ["OllamaChat"]

_NO_ERROR: Final = Raw(b"null")
_STOP_REASONS: Final = {"stop": "endTurn", "length": "maxTokens"}


class OllamaChat:
    """The wire format."""

    path = "/api/chat"
    streams_lines = True

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that authenticate a request; `key` is empty if there is none."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def request(self, params: CreateMessageParams, model: str) -> dict[str, Any]:
        """Return the body of a request. Raise `InvalidParams` for content that the provider does not accept."""
        messages = [{"role": "system", "content": params.system_prompt}] if params.system_prompt else []
        used = {use.id: use.name for use in tool_uses_in(params)}
        for message in params.messages:
            messages += self._messages(message, used)
        options: dict[str, Any] = {"num_predict": params.max_tokens}
        if params.temperature is not None:
            options["temperature"] = params.temperature
        if params.stop_sequences:
            options["stop"] = params.stop_sequences
        body: dict[str, Any] = {"model": model, "messages": messages, "stream": True, "options": options}
        mode = None if params.tool_choice is None else params.tool_choice.mode
        if mode == "required":
            raise InvalidParams(f"{self._provider} cannot require that the model uses a tool; use the mode auto")
        if params.tools and mode != "none":
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description or "",
                        "parameters": tool.input_schema,
                    },
                }
                for tool in params.tools
            ]
        return body

    def _messages(self, message: SamplingMessage, used: dict[str, str]) -> Iterator[dict[str, Any]]:
        texts, images, calls = list[str](), list[str](), list[dict[str, Any]]()
        result_images: list[str] = []
        has_results = False
        for block in message.blocks:
            if isinstance(block, TextContent):
                texts.append(block.text)
            elif isinstance(block, ImageContent):
                images.append(block.data)
            elif isinstance(block, ToolUseContent):
                calls.append({"function": {"name": block.name, "arguments": block.input}})
            elif isinstance(block, ToolResultContent):
                has_results = True
                flat = flatten_result(block, self._provider)
                name = used.get(block.tool_use_id, block.tool_use_id)
                text = f"Error: {flat.text}" if block.is_error else flat.text
                yield {"role": "tool", "tool_name": name, "content": text}
                result_images += [image.data for image in flat.images]
            else:
                raise refuse_block(block, self._provider, f"a message of the {message.role}")
        if has_results:
            if result_images:
                yield {"role": "user", "content": "Images in the results:", "images": result_images}
            return
        sent: dict[str, Any] = {"role": message.role, "content": "\n".join(texts)}
        if images:
            sent["images"] = images
        if calls:
            sent["tool_calls"] = calls
        yield sent

    def reader(self, params: CreateMessageParams, model: str) -> "ChatLineReader":
        """Return a reader for the response to a request."""
        return ChatLineReader(MessageBuilder(model, ToolNames(), sum(1 for _ in tool_uses_in(params))))


# --- responses ----------------------------------------------------------------------------------


class _Function(Struct):
    name: str
    arguments: dict[str, Any] | None = None


class _Call(Struct):
    function: _Function
    id: str | None = None


class _Message(Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Line(Struct):
    model: str | None = None
    message: _Message | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: Raw = _NO_ERROR


_read_line: Final = codec.json_decoder(_Line)


class ChatLineReader:
    """Reads the lines of one response."""

    def __init__(self, message: MessageBuilder) -> None:
        self.message = message
        self.done = False
        self._calls = 0

    def feed(self, event: bytes) -> Problem | None:
        """Accept a line; return the problem that it reports. Raise `InvalidReply`."""
        try:
            line = _read_line(event)
        except (codec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidReply(f"a line is not a part of a chat: {error}") from None
        if line.error != _NO_ERROR:
            return problem_of_event(event)
        if line.model:
            self.message.model = line.model
        if line.message is not None:
            self.message.add_text(line.message.content or "")
            for call in line.message.tool_calls or ():
                self._read_call(call)
        if line.done:
            self.done = True
            reason = line.done_reason or "stop"
            self.message.stop_reason = _STOP_REASONS.get(reason, reason)
            self.message.input_tokens, self.message.output_tokens = line.prompt_eval_count, line.eval_count
        return None

    def _read_call(self, call: _Call) -> None:
        key = self._calls = self._calls + 1
        self.message.begin_call(key, call.function.name, call.id)
        self.message.add_arguments(key, call.function.arguments or {})

    def finish(self) -> CreateMessageResult | None:
        """Return the message; None if the response ended early. Raise `InvalidReply`."""
        return self.message.build() if self.done else None
