"""HTTP servers that speak the published wire formats of model providers, on loopback sockets.

A server checks each request as its provider would, and answers with the next step of its script.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.limits import PATIENCE

from trunkline.protocol.types import CreateMessageParams, ImageContent, SamplingMessage, TextContent
from trunkline.sampling import Anthropic, LMStudio, Ollama, OpenAI

KEY = "sk-test-4a7f1c93b2e8d605"
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Use(NamedTuple):
    """A tool call of the model."""

    name: str
    input: dict[str, Any]


class Turn(NamedTuple):
    """A message of the model: pieces of text, tool calls, and the reason why it ends, in the words of MCP."""

    text: Sequence[str] = ()
    uses: Sequence[Use] = ()
    reason: str = "endTurn"


class Exchange:
    """One request, and the connection that it arrived on."""

    def __init__(
        self, server: "ModelServer", head: bytes, body: bytes, writer: asyncio.StreamWriter, ended: asyncio.Event
    ) -> None:
        """`ended` is set when the connection has closed."""
        first, *lines = head.decode("latin-1").split("\r\n")
        self.server = server
        self.method, self.path, _ = first.split(" ")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.body: Any = json.loads(body)
        self.ended = ended
        self._writer = writer

    def respond(self, status: int, body: Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        told = {"Content-Type": "application/json", **{name.replace("_", "-"): v for name, v in headers.items()}}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        self.write(f"HTTP/1.1 {status} Said\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def begin_stream(self, media_type: str | None = None) -> None:
        kind = media_type or self.server.dialect.media_type
        self.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

    def send_chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def events(self, turn: Turn) -> list[bytes]:
        return self.server.dialect.events(turn, self.body["model"])

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def hang_up(self) -> None:
        self._writer.transport.abort()


Step = Turn | Callable[[Exchange], None]
"""A step of a script: a turn of the model, or a function that answers a request in its own way."""


class Dialect:
    """The wire format of one provider."""

    name: str
    path: str
    base: str = ""
    provider: Any
    media_type = "text/event-stream"
    has_refusals = True
    finish: dict[str, str]  # the reasons that the format has, by their names in MCP

    def events(self, turn: Turn, model: str) -> list[bytes]:
        """Return the pieces of a streamed message."""
        raise NotImplementedError

    def check(self, exchange: Exchange) -> None:
        """Assert that a request follows the format."""
        raise NotImplementedError

    def error(self, code: str, message: str) -> Any:
        return {"error": {"message": message, "type": code, "code": code}}

    def error_event(self, code: str, message: str) -> bytes:
        return sse(self.error(code, message))

    def key_of(self, exchange: Exchange) -> str | None:
        return exchange.headers.get("authorization", "").removeprefix("Bearer ") or None


def sse(data: Any, event: str | None = None) -> bytes:
    head = b"" if event is None else f"event: {event}\n".encode()
    return head + b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


class ChatDialect(Dialect):
    """OpenAI's chat completions."""

    name = "OpenAI"
    path = "/v1/chat/completions"
    base = "/v1"
    provider = OpenAI
    limit = "max_completion_tokens"
    finish = {"endTurn": "stop", "maxTokens": "length", "toolUse": "tool_calls", "refusal": "stop"}

    def events(self, turn: Turn, model: str) -> list[bytes]:
        def chunk(delta: Any, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return sse(
                {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
            )

        member = "refusal" if turn.reason == "refusal" and self.has_refusals else "content"
        pieces = [chunk({"role": "assistant", "content": None if turn.uses else "", "refusal": None})]
        pieces += [chunk({member: text}) for text in turn.text]
        for index, use in enumerate(turn.uses):
            written = json.dumps(use.input)
            begun = {"index": index, "id": f"call_{index}", "type": "function"}
            pieces.append(chunk({"tool_calls": [{**begun, "function": {"name": use.name, "arguments": ""}}]}))
            for part in (written[:3], written[3:]):
                pieces.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]}))
        pieces.append(chunk({}, self.finish[turn.reason]))
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        pieces.append(sse({"id": "c1", "model": model, "choices": [], "usage": usage}))
        return [*pieces, sse(b"[DONE]")]

    def check(self, exchange: Exchange) -> None:
        body = exchange.body
        assert set(body) <= {
            *("model", "messages", "stream", "stream_options", "temperature", "stop", "tools", "tool_choice"),
            self.limit,
        }
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert isinstance(body[self.limit], int)
        for tool in body.get("tools", ()):
            assert tool["type"] == "function"
            assert NAME.fullmatch(tool["function"]["name"])
            assert tool["function"]["parameters"]["type"] == "object"
        open_calls: set[str] = set()
        for message in body["messages"]:
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
                assert isinstance(message["content"], str)
                continue
            assert not open_calls, "a message is missing its tool results"
            if message["role"] == "assistant":
                for call in message.get("tool_calls", ()):
                    assert NAME.fullmatch(call["function"]["name"])
                    assert isinstance(json.loads(call["function"]["arguments"]), dict)
                    open_calls.add(call["id"])
                assert isinstance(message["content"], str) or message["tool_calls"]
            elif isinstance(message["content"], list):
                for part in message["content"]:
                    self.check_part(part)
            else:
                assert isinstance(message["content"], str)
        assert not open_calls

    def check_part(self, part: Any) -> None:
        match part["type"]:
            case "text":
                assert isinstance(part["text"], str)
            case "image_url":
                assert part["image_url"]["url"].startswith("data:image/")
            case other:
                assert other == "input_audio"
                assert part["input_audio"]["format"] in {"wav", "mp3"}


class LMStudioDialect(ChatDialect):
    """The same, as LM Studio serves it."""

    name = "LM Studio"
    provider = LMStudio
    limit = "max_tokens"
    has_refusals = False


class MessagesDialect(Dialect):
    """Anthropic's Messages API."""

    name = "Anthropic"
    path = "/v1/messages"
    provider = Anthropic
    finish = {
        "endTurn": "end_turn",
        "maxTokens": "max_tokens",
        "stopSequence": "stop_sequence",
        "toolUse": "tool_use",
        "refusal": "refusal",
    }

    def events(self, turn: Turn, model: str) -> list[bytes]:
        def event(kind: str, **members: Any) -> bytes:
            return sse({"type": kind, **members}, kind)

        begun = {"id": "m1", "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None}
        usage = {"input_tokens": 4, "cache_read_input_tokens": 7, "output_tokens": 1}
        pieces = [event("message_start", message={**begun, "usage": usage}), event("ping")]
        index = 0
        if turn.text:
            pieces.append(event("content_block_start", index=index, content_block={"type": "text", "text": ""}))
            for text in turn.text:
                delta = {"type": "text_delta", "text": text}
                pieces.append(event("content_block_delta", index=index, delta=delta))
            pieces.append(event("content_block_stop", index=index))
            index += 1
        for number, use in enumerate(turn.uses):
            block = {"type": "tool_use", "id": f"toolu_{number}", "name": use.name, "input": {}}
            pieces.append(event("content_block_start", index=index, content_block=block))
            written = json.dumps(use.input)
            for part in ("", written[:3], written[3:]):
                delta = {"type": "input_json_delta", "partial_json": part}
                pieces.append(event("content_block_delta", index=index, delta=delta))
            pieces.append(event("content_block_stop", index=index))
            index += 1
        ended = {"stop_reason": self.finish[turn.reason], "stop_sequence": None}
        pieces.append(event("message_delta", delta=ended, usage={"output_tokens": 7}))
        return [*pieces, event("message_stop")]

    def check(self, exchange: Exchange) -> None:
        assert exchange.headers["anthropic-version"] == "2023-06-01"
        body = exchange.body
        assert set(body) <= {
            *("model", "max_tokens", "messages", "stream", "system", "temperature", "stop_sequences"),
            *("tools", "tool_choice"),
        }
        assert body["stream"] is True
        assert 0 <= body.get("temperature", 0) <= 1
        for tool in body.get("tools", ()):
            assert NAME.fullmatch(tool["name"])
            assert tool["input_schema"]["type"] == "object"
        assert body.get("tool_choice", {"type": "auto"})["type"] in {"auto", "any", "none"}
        open_uses: set[str] = set()
        for message in body["messages"]:
            blocks = message["content"]
            assert blocks
            results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
            assert results == open_uses
            open_uses = {block["id"] for block in blocks if block["type"] == "tool_use"}
            assert message["role"] == "assistant" or not open_uses
            assert body.get("tools") or not (open_uses or results), "tool blocks need tools"
            for block in blocks:
                self.check_block(block)

    def check_block(self, block: Any) -> None:
        match block["type"]:
            case "text":
                assert block["text"]
            case "image":
                assert block["source"]["type"] == "base64"
                assert block["source"]["media_type"] in {"image/png", "image/jpeg", "image/gif", "image/webp"}
            case "tool_use":
                assert isinstance(block["input"], dict)
            case other:
                assert other == "tool_result"
                for part in block.get("content", ()):
                    self.check_block(part)

    def error(self, code: str, message: str) -> Any:
        return {"type": "error", "error": {"type": code, "message": message}}

    def error_event(self, code: str, message: str) -> bytes:
        return sse(self.error(code, message), "error")

    def key_of(self, exchange: Exchange) -> str | None:
        return exchange.headers.get("x-api-key")


class OllamaDialect(Dialect):
    """Ollama's chat API."""

    name = "Ollama"
    path = "/api/chat"
    provider = Ollama
    media_type = "application/x-ndjson"
    has_refusals = False
    finish = {"endTurn": "stop", "maxTokens": "length", "toolUse": "stop", "refusal": "stop"}

    def events(self, turn: Turn, model: str) -> list[bytes]:
        def line(message: Any, **members: Any) -> bytes:
            named = {"model": model, "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", **message}}
            return json.dumps({**named, "done": False, **members}).encode() + b"\n"

        pieces = [line({"content": text}) for text in turn.text]
        for use in turn.uses:
            call = {"function": {"name": use.name, "arguments": use.input}}
            pieces.append(line({"content": "", "tool_calls": [call]}))
        ended = {"done": True, "done_reason": self.finish[turn.reason], "prompt_eval_count": 11, "eval_count": 7}
        return [*pieces, line({"content": ""}, **ended)]

    def check(self, exchange: Exchange) -> None:
        body = exchange.body
        assert set(body) <= {"model", "messages", "stream", "options", "tools"}
        assert set(body["options"]) <= {"num_predict", "temperature", "stop"}
        for message in body["messages"]:
            assert isinstance(message["content"], str)
            assert message["role"] in {"system", "user", "assistant", "tool"}
            assert all(isinstance(image, str) for image in message.get("images", ()))
            for call in message.get("tool_calls", ()):
                assert isinstance(call["function"]["arguments"], dict)
            if message["role"] == "tool":
                assert message["tool_name"]

    def error(self, code: str, message: str) -> Any:
        return {"error": message}

    def error_event(self, code: str, message: str) -> bytes:
        return json.dumps(self.error(code, message)).encode() + b"\n"


DIALECTS = [ChatDialect(), MessagesDialect(), OllamaDialect(), LMStudioDialect()]


class ModelServer:
    """A server of one dialect. It answers with the steps of its script in order; the last one repeats."""

    def __init__(self, dialect: Dialect, *steps: Step) -> None:
        self.dialect = dialect
        self.steps = list(steps)
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.failures: list[BaseException] = []
        self.arrived = asyncio.Event()  # a request has arrived
        self.url = ""
        self.loop = asyncio.get_running_loop()

    def provider(self, model: Any = "model-1", **options: Any) -> Any:
        """Return a provider that uses this server."""
        given = {"api_key": KEY, "retry_delay": 0.0, "timeout": PATIENCE, **options}
        return self.dialect.provider(model, base_url=self.url, **given)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        ended = asyncio.Event()
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
                length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
                exchange = Exchange(self, head, await reader.readexactly(length), writer, ended)
                self.exchanges.append(exchange)
                self.arrived.set()
                self._answer(exchange)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            ended.set()
            writer.close()

    def _answer(self, exchange: Exchange) -> None:
        try:
            assert (exchange.method, exchange.path) == ("POST", self.dialect.path)
            self.dialect.check(exchange)
        except AssertionError as error:
            self.failures.append(error)
            exchange.respond(400, self.dialect.error("invalid_request_error", "not the published format"))
            return
        step = self.steps[min(len(self.exchanges), len(self.steps)) - 1]
        if isinstance(step, Turn):
            exchange.begin_stream()
            exchange.send_chunk(b"".join(exchange.events(step)))
            exchange.send_chunk(b"")
        else:
            step(exchange)


@contextlib.asynccontextmanager
async def serving(dialect: Dialect, *steps: Step, path: Path | None = None) -> AsyncIterator[ModelServer]:
    """Run a server, on a Unix socket if there is a path, and check at the end that it received proper requests only."""
    model = ModelServer(dialect, *steps)
    if path is None:
        listener = await asyncio.start_server(model._serve, "127.0.0.1", 0)
        model.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}{dialect.base}"
    else:
        listener = await asyncio.start_unix_server(model._serve, path)
        model.url = f"http+unix://{path}:{dialect.base}"
    try:
        yield model
    finally:
        listener.close()
        for exchange in model.exchanges:
            exchange.hang_up()
        for exchange in model.exchanges:
            await asyncio.wait_for(exchange.ended.wait(), PATIENCE)
    if model.failures:
        raise model.failures[0]


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def asked(text: str = "Hello", **members: Any) -> CreateMessageParams:
    """A request with one message."""
    return CreateMessageParams(messages=[SamplingMessage("user", TextContent(text))], max_tokens=100, **members)


def image() -> ImageContent:
    return ImageContent(PIXEL, "image/png")
