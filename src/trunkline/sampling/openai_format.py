"""OpenAI's chat completions, which LM Studio and many other servers speak too: requests, and events of responses."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Raw, Struct

from trunkline.protocol.types import (
    AudioContent,
    CreateMessageParams,
    CreateMessageResult,
    ImageContent,
    SamplingBlock,
    SamplingMessage,
    TextContent,
    Tool,
    ToolResultContent,
    ToolUseContent,
)
from trunkline.sampling.message_builder import InvalidReply, MessageBuilder
from trunkline.sampling.problems import Problem, problem_of_event
from trunkline.sampling.translation import FlatResult, ToolNames, data_url, flatten_result, refuse_block, tool_uses_in
from trunkline.wire import codec

__all__ = ["ChatCompletions"]

_DONE: Final = b"[DONE]"
_NO_ERROR: Final = Raw(b"null")
_STOP_REASONS: Final = {"stop": "endTurn", "length": "maxTokens", "tool_calls": "toolUse", "function_call": "toolUse"}
_FILTERED: Final = "content_filter"
_AUDIO_FORMATS: Final = {
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/mp3": "mp3",
    "audio/mpeg": "mp3",
}


class ChatCompletions:
    """The wire format."""

    path = "/chat/completions"
    streams_lines = False  # server-sent events

    def __init__(self, provider: str, *, limit_member: str, audio: bool) -> None:
        """`limit_member` is the name of the member with the maximum number of tokens. `audio`: whether messages may
        contain audio."""
        self._provider = provider
        self._limit_member = limit_member
        self._audio = audio

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that authenticate a request; `key` is empty if there is none."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def request(self, params: CreateMessageParams, model: str) -> dict[str, Any]:
        """Return the body of a request. Raise `InvalidParams` for content that the provider does not accept."""
        names = ToolNames.of(params)
        messages = [{"role": "system", "content": params.system_prompt}] if params.system_prompt else []
        for message in params.messages:
            messages += self._messages(message, names)
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            self._limit_member: params.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if params.temperature is not None:
            body["temperature"] = params.temperature
        if params.stop_sequences:
            body["stop"] = params.stop_sequences
        if params.tools:
            body["tools"] = [_tool(tool, names) for tool in params.tools]
            if params.tool_choice is not None and params.tool_choice.mode is not None:
                body["tool_choice"] = params.tool_choice.mode
        return body

    def _messages(self, message: SamplingMessage, names: ToolNames) -> Iterator[dict[str, Any]]:
        results = [block for block in message.blocks if isinstance(block, ToolResultContent)]
        if results:
            yield from self._results(results)
            return
        if message.role == "user":
            yield {"role": "user", "content": _shortened([self._part(block) for block in message.blocks])}
            return
        texts, calls = list[str](), list[dict[str, Any]]()
        for block in message.blocks:
            if isinstance(block, TextContent):
                texts.append(block.text)
            elif isinstance(block, ToolUseContent):
                called = {"name": names.to_provider(block.name), "arguments": codec.to_json(block.input).decode()}
                calls.append({"id": block.id, "type": "function", "function": called})
            else:
                raise refuse_block(block, self._provider, "a message of the assistant")
        yield {
            "role": "assistant",
            "content": "\n".join(texts) if texts else None if calls else "",
            **({"tool_calls": calls} if calls else {}),
        }

    def _results(self, results: list[ToolResultContent]) -> Iterator[dict[str, Any]]:
        """Results are messages of text. Their images follow in a message of the user."""
        parts: list[dict[str, Any]] = []
        for result in results:
            flat = flatten_result(result, self._provider)
            yield {"role": "tool", "tool_call_id": result.tool_use_id, "content": _result_text(result, flat)}
            if flat.images:
                parts.append({"type": "text", "text": f"Images in the result of {result.tool_use_id}:"})
                parts += [_image(image) for image in flat.images]
        if parts:
            yield {"role": "user", "content": parts}

    def _part(self, block: SamplingBlock) -> dict[str, Any]:
        if isinstance(block, TextContent):
            return {"type": "text", "text": block.text}
        if isinstance(block, ImageContent):
            return _image(block)
        if isinstance(block, AudioContent) and self._audio and block.mime_type in _AUDIO_FORMATS:
            audio = {"data": block.data, "format": _AUDIO_FORMATS[block.mime_type]}
            return {"type": "input_audio", "input_audio": audio}
        raise refuse_block(block, self._provider, "a message of the user")

    def reader(self, params: CreateMessageParams, model: str) -> "ChatReader":
        """Return a reader for the response to a request."""
        return ChatReader(MessageBuilder(model, ToolNames.of(params), sum(1 for _ in tool_uses_in(params))))


def _image(image: ImageContent) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def _shortened(parts: list[dict[str, Any]]) -> Any:
    """A single text needs no list of parts, which some servers do not support."""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _result_text(result: ToolResultContent, flat: FlatResult) -> str:
    """The format has no mark for failed calls, so the text has one."""
    return f"Error: {flat.text}" if result.is_error else flat.text


def _tool(tool: Tool, names: ToolNames) -> dict[str, Any]:
    function: dict[str, Any] = {"name": names.to_provider(tool.name), "parameters": tool.input_schema}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


# --- responses ----------------------------------------------------------------------------------


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(Struct):
    model: str | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Raw = _NO_ERROR


_read_chunk: Final = codec.json_decoder(_Chunk)


class ChatReader:
    """Reads the events of one response."""

    def __init__(self, message: MessageBuilder) -> None:
        self.message = message
        self.done = False

    def feed(self, event: bytes) -> Problem | None:
        """Accept the data of an event; return the problem that it reports. Raise `InvalidReply`."""
        if event.strip() == _DONE:
            self.done = True
            return None
        try:
            chunk = _read_chunk(event)
        except (codec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidReply(f"an event is not a chunk of a chat completion: {error}") from None
        if chunk.error != _NO_ERROR:
            return problem_of_event(event)
        if chunk.model:
            self.message.model = chunk.model
        if chunk.usage is not None:
            self.message.input_tokens = chunk.usage.prompt_tokens
            self.message.output_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            if choice.index == 0:
                self._read_choice(choice)
        return None

    def _read_choice(self, choice: _Choice) -> None:
        delta, message = choice.delta, self.message
        if delta is not None:
            message.add_text(delta.content or "")
            if delta.refusal:
                message.add_text(delta.refusal)
                message.refused = True
            for call in delta.tool_calls or ():
                self._read_call(call)
        if choice.finish_reason:
            message.refused |= choice.finish_reason == _FILTERED
            message.stop_reason = _STOP_REASONS.get(choice.finish_reason, choice.finish_reason)

    def _read_call(self, call: _Call) -> None:
        function = call.function or _Function()
        if not self.message.has_call(call.index):
            if not function.name:
                raise InvalidReply("a tool call has no name")
            self.message.begin_call(call.index, function.name, call.id)
        if function.arguments:
            self.message.add_arguments(call.index, function.arguments)

    def finish(self) -> CreateMessageResult | None:
        """Return the message; None if the response ended early. Raise `InvalidReply`."""
        return self.message.build() if self.done or self.message.stop_reason is not None else None
