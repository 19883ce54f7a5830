"""Translation between MCP and the wire formats of providers, as pure functions."""

import json
from typing import Any

import pytest
from tests.unit.sampling.model_server import DIALECTS, PIXEL, Dialect, MessagesDialect, Turn, Use, asked, image

from trunkline import AudioContent, EmbeddedResource, ImageContent, ResourceContents, ResourceLink, TextContent
from trunkline.errors import InvalidParams
from trunkline.protocol.meta import USAGE
from trunkline.protocol.types import (
    CreateMessageParams,
    CreateMessageResult,
    SamplingMessage,
    Tool,
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
)
from trunkline.sampling.anthropic_format import Messages
from trunkline.sampling.message_builder import InvalidReply, MessageBuilder
from trunkline.sampling.ollama_format import OllamaChat
from trunkline.sampling.openai_format import ChatCompletions
from trunkline.sampling.translation import ToolNames
from trunkline.wire.sse import SseDecoder

OPENAI = ChatCompletions("OpenAI", limit_member="max_completion_tokens", audio=True)
LM_STUDIO = ChatCompletions("LM Studio", limit_member="max_tokens", audio=False)
ANTHROPIC = Messages("Anthropic")
OLLAMA = OllamaChat("Ollama")
FORMATS: dict[str, Any] = {"OpenAI": OPENAI, "Anthropic": ANTHROPIC, "Ollama": OLLAMA, "LM Studio": LM_STUDIO}
EVERY_FORMAT = pytest.mark.parametrize("wire", FORMATS.values(), ids=FORMATS)
EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS, ids=[each.name for each in DIALECTS])

TOOL = Tool(name="add", description="Adds.", input_schema={"type": "object", "properties": {"a": {}}})
USE = ToolUseContent("u1", "add", {"a": 1})
RESULT = ToolResultContent("u1", [TextContent("3")])


def conversation(*messages: SamplingMessage, **members: Any) -> CreateMessageParams:
    return CreateMessageParams(messages=list(messages), max_tokens=10, **members)


def with_result(result: ToolResultContent, **members: Any) -> CreateMessageParams:
    return conversation(SamplingMessage("assistant", [USE]), SamplingMessage("user", [result]), **members)


# --- requests -----------------------------------------------------------------------------------


def test_chat_completion_request() -> None:
    params = conversation(
        SamplingMessage("user", [TextContent("see"), image()]),
        SamplingMessage("assistant", [TextContent("calling"), USE]),
        SamplingMessage("user", [RESULT]),
        system_prompt="Be brief.",
        temperature=0.5,
        stop_sequences=["END", "."],
        tools=[TOOL],
        tool_choice=ToolChoice("required"),
    )
    assert OPENAI.request(params, "m") == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                ],
            },
            {
                "role": "assistant",
                "content": "calling",
                "tool_calls": [{"id": "u1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}],
            },
            {"role": "tool", "tool_call_id": "u1", "content": "3"},
        ],
        "max_completion_tokens": 10,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "stop": ["END", "."],
        "tools": [
            {
                "type": "function",
                "function": {"name": "add", "description": "Adds.", "parameters": TOOL.input_schema},
            }
        ],
        "tool_choice": "required",
    }


def test_anthropic_request() -> None:
    params = conversation(
        SamplingMessage("user", [TextContent("see"), image(), TextContent("")]),
        SamplingMessage("assistant", [USE]),
        SamplingMessage("user", [RESULT]),
        SamplingMessage("assistant", TextContent("")),
        system_prompt="Be brief.",
        temperature=1.5,
        stop_sequences=["END"],
        tools=[TOOL],
        tool_choice=ToolChoice("required"),
    )
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    assert ANTHROPIC.request(params, "m") == {
        "model": "m",
        "max_tokens": 10,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "see"}, picture]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "u1", "name": "add", "input": {"a": 1}}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "u1", "content": [{"type": "text", "text": "3"}]},
                ],
            },
        ],
        "stream": True,
        "system": "Be brief.",
        "temperature": 1.0,
        "stop_sequences": ["END"],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": TOOL.input_schema}],
        "tool_choice": {"type": "any"},
    }


def test_ollama_request() -> None:
    params = conversation(
        SamplingMessage("user", [TextContent("see"), image()]),
        SamplingMessage("assistant", [TextContent("calling"), USE]),
        SamplingMessage("user", [RESULT]),
        system_prompt="Be brief.",
        temperature=0.5,
        stop_sequences=["END"],
        tools=[TOOL],
    )
    assert OLLAMA.request(params, "m") == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "see", "images": [PIXEL]},
            {
                "role": "assistant",
                "content": "calling",
                "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "tool_name": "add", "content": "3"},
        ],
        "stream": True,
        "options": {"num_predict": 10, "temperature": 0.5, "stop": ["END"]},
        "tools": [
            {
                "type": "function",
                "function": {"name": "add", "description": "Adds.", "parameters": TOOL.input_schema},
            }
        ],
    }


def test_lm_studio_has_another_name_for_the_token_limit() -> None:
    body = LM_STUDIO.request(asked(), "m")
    assert body["max_tokens"] == 100
    assert "max_completion_tokens" not in body


@pytest.mark.parametrize(("mime_type", "name"), [("audio/wav", "wav"), ("audio/mpeg", "mp3")])
def test_openai_accepts_audio(mime_type: str, name: str) -> None:
    params = conversation(SamplingMessage("user", AudioContent("AAEC", mime_type)))
    (message,) = OPENAI.request(params, "m")["messages"]
    assert message["content"] == [{"type": "input_audio", "input_audio": {"data": "AAEC", "format": name}}]


AUDIO = AudioContent("AAEC", "audio/wav")


@pytest.mark.parametrize(
    ("wire", "params", "why"),
    [
        (OPENAI, conversation(SamplingMessage("user", AudioContent("AAEC", "audio/ogg"))), r"audio \(audio/ogg\)"),
        (OPENAI, conversation(SamplingMessage("assistant", image())), "image .* in a message of the assistant"),
        (OPENAI, with_result(ToolResultContent("u1", [AUDIO])), "audio .* in the result of a tool"),
        (LM_STUDIO, conversation(SamplingMessage("user", AUDIO)), "LM Studio does not accept audio"),
        (ANTHROPIC, conversation(SamplingMessage("user", AUDIO)), "Anthropic does not accept audio"),
        (ANTHROPIC, conversation(SamplingMessage("assistant", image())), "image .* of the assistant"),
        (ANTHROPIC, conversation(SamplingMessage("user", ImageContent("AA", "image/tiff"))), "image/tiff"),
        (OLLAMA, conversation(SamplingMessage("user", AUDIO)), "Ollama does not accept audio"),
        (OLLAMA, asked(tools=[TOOL], tool_choice=ToolChoice("required")), "cannot require"),
    ],
)
def test_content_that_a_provider_lacks_is_refused(wire: Any, params: CreateMessageParams, why: str) -> None:
    with pytest.raises(InvalidParams, match=why):
        wire.request(params, "m")


def _texts_and_images(body: Any) -> tuple[str, int]:
    written = json.dumps(body)
    return written, written.count(PIXEL)


@pytest.mark.parametrize(
    ("content", "text", "images"),
    [
        ([TextContent("one"), TextContent("two")], "one\\ntwo", 0),
        ([TextContent("one"), image()], "one", 1),
        ([ResourceLink("file:///a.txt", "a.txt")], "a.txt: file:///a.txt", 0),
        ([EmbeddedResource(ResourceContents("x://a", text="inner"))], "inner", 0),
        ([EmbeddedResource(ResourceContents("x://a", blob=PIXEL, mime_type="image/png"))], "", 1),
        ([EmbeddedResource(ResourceContents("x://a", blob="AA", mime_type="audio/wav"))], "x://a (audio/wav)", 0),
        ([EmbeddedResource(ResourceContents("x://a", blob="AA"))], "x://a (binary data)", 0),
    ],
)
@EVERY_FORMAT
def test_every_tool_result_is_expressed(wire: Any, content: list[Any], text: str, images: int) -> None:
    written, found = _texts_and_images(wire.request(with_result(ToolResultContent("u1", content)), "m"))
    assert text in written
    assert found == images


@EVERY_FORMAT
def test_structured_result_without_content_is_json(wire: Any) -> None:
    result = ToolResultContent("u1", [], structured_content={"sum": 3})
    assert json.dumps('{"sum":3}') in json.dumps(wire.request(with_result(result), "m"))


@EVERY_FORMAT
def test_failed_result_is_marked(wire: Any) -> None:
    written = json.dumps(wire.request(with_result(ToolResultContent("u1", [TextContent("no")], is_error=True)), "m"))
    assert ("Error: no" in written) != ('"is_error": true' in written)


@pytest.mark.parametrize(
    ("wire", "mode", "sent"),
    [
        (OPENAI, "auto", "auto"),
        (OPENAI, "none", "none"),
        (OPENAI, None, None),
        (ANTHROPIC, "auto", {"type": "auto"}),
        (ANTHROPIC, "none", {"type": "none"}),
        (ANTHROPIC, None, None),
        (OLLAMA, "auto", None),
        (OLLAMA, None, None),
    ],
)
def test_tool_choice_is_translated(wire: Any, mode: Any, sent: Any) -> None:
    body = wire.request(asked(tools=[TOOL], tool_choice=ToolChoice(mode)), "m")
    assert body.get("tool_choice") == sent
    assert len(body["tools"]) == 1


def test_ollama_offers_no_tools_if_none_may_be_used() -> None:
    assert "tools" not in OLLAMA.request(asked(tools=[TOOL], tool_choice=ToolChoice("none")), "m")


def test_anthropic_gets_definitions_of_tools_that_were_used_before() -> None:
    body = ANTHROPIC.request(with_result(RESULT), "m")
    assert body["tools"] == [{"name": "add", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}


# --- names of tools -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sent"),
    [("add", "add"), ("a.b", "a_b"), ("größe", "gr__e"), ("x" * 100, "x" * 64), ("", "_")],
)
def test_tool_name_fits_provider_and_returns(name: str, sent: str) -> None:
    names = ToolNames([name])
    assert names.to_provider(name) == sent
    assert names.to_mcp(sent) == name


def test_tool_names_stay_distinct() -> None:
    given = ["a.b", "a/b", "a_b", "y" * 80, "y" * 90]
    names = ToolNames(given)
    sent = [names.to_provider(name) for name in given]
    assert sent[2] == "a_b"
    assert len(set(sent)) == len(given)
    assert max(map(len, sent)) == 64
    assert [names.to_mcp(name) for name in sent] == given


def test_unknown_tool_name_stays() -> None:
    assert ToolNames().to_provider("x.y") == ToolNames().to_mcp("x.y") == "x.y"


# --- responses ----------------------------------------------------------------------------------


def read(wire: Any, data: bytes, params: CreateMessageParams | None = None) -> CreateMessageResult | None:
    reader = wire.reader(params or asked(), "requested")
    events = data.splitlines() if wire is OLLAMA else [event.data for event in SseDecoder(1 << 20).feed(data)]  # pyright: ignore[reportAttributeAccessIssue]
    for event in events:
        assert reader.feed(event) is None
    return reader.finish()


@pytest.mark.row("S08")
@pytest.mark.parametrize(
    ("dialect", "reason"),
    [pytest.param(each, reason, id=f"{each.name}-{reason}") for each in DIALECTS for reason in each.finish],
)
def test_stop_reason_is_mapped(dialect: Dialect, reason: str) -> None:
    uses = [Use("add", {"a": 1})] if reason == "toolUse" else []
    found = read(FORMATS[dialect.name], b"".join(dialect.events(Turn(["x"], uses, reason), "m")))
    assert found is not None
    assert found.stop_reason == (reason if dialect.has_refusals or reason != "refusal" else "endTurn")
    assert found.meta == {USAGE: {"inputTokens": 11, "outputTokens": 7}}
    assert found.model == "m"


@pytest.mark.parametrize(
    ("wire", "dialect", "old", "new", "reason"),
    [
        (OPENAI, DIALECTS[0], b'"stop"', b'"content_filter"', "refusal"),
        (OPENAI, DIALECTS[0], b'"stop"', b'"tool_budget"', "tool_budget"),
        (ANTHROPIC, DIALECTS[1], b"end_turn", b"pause_turn", "pause_turn"),
        (ANTHROPIC, DIALECTS[1], b"end_turn", b"model_context_window_exceeded", "maxTokens"),
        (OLLAMA, DIALECTS[2], b'"stop"', b'"load"', "load"),
    ],
)
def test_other_stop_reasons(wire: Any, dialect: Dialect, old: bytes, new: bytes, reason: str) -> None:
    found = read(wire, b"".join(dialect.events(Turn(["x"]), "m")).replace(old, new))
    assert found is not None
    assert found.stop_reason == reason


@EVERY_DIALECT
def test_reply_without_content_is_an_empty_text(dialect: Dialect) -> None:
    found = read(FORMATS[dialect.name], b"".join(dialect.events(Turn(), "m")))
    assert found is not None
    assert found.content == TextContent("")


@pytest.mark.parametrize("dialect", DIALECTS[:2], ids=["OpenAI", "Anthropic"])  # calls of Ollama arrive whole
def test_call_cut_off_by_the_token_limit_is_dropped(dialect: Dialect) -> None:
    turn = Turn(["x"], [Use("add", {"a": 1})], "maxTokens")
    found = read(
        FORMATS[dialect.name], b"".join(dialect.events(turn, "m")).replace(json.dumps('": 1}').encode(), b'""')
    )
    assert found is not None
    assert (found.content, found.stop_reason) == (TextContent("x"), "maxTokens")


def test_ids_of_calls_continue_those_of_the_conversation() -> None:
    data = b"".join(DIALECTS[2].events(Turn((), [Use("add", {}), Use("add", {})], "toolUse"), "m"))
    found = read(OLLAMA, data, with_result(RESULT))
    assert found is not None
    assert [use.id for use in found.tool_uses] == ["call-2", "call-3"]
    assert found.stop_reason == "toolUse"


def test_thinking_is_not_content() -> None:
    events = MessagesDialect().events(Turn(["x"]), "m")
    thought = [
        {"type": "content_block_start", "index": 9, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "input_json_delta", "partial_json": "{"}},
    ]
    data = b"".join([events[0], *(b"data: %b\n\n" % json.dumps(one).encode() for one in thought), *events[1:]])
    found = read(ANTHROPIC, data)
    assert found is not None
    assert found.content == TextContent("x")


def test_completion_without_end_marker_is_complete() -> None:
    data = b"".join(DIALECTS[0].events(Turn(["x"]), "m")[:-1])
    found = read(OPENAI, data)
    assert found is not None
    assert found.text == "x"


def test_other_choices_are_ignored() -> None:
    reader = OPENAI.reader(asked(), "m")
    assert reader.feed(b'{"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}') is None
    assert reader.finish() is None


@pytest.mark.parametrize(
    ("wire", "event"),
    [
        (OPENAI, b"{]"),
        (OPENAI, b'{"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}'),
        (OPENAI, b'{"choices": 5}'),
        (OPENAI, b"[" * 100_000),
        (ANTHROPIC, b'{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use"}}'),
        (ANTHROPIC, b"5"),
        (OLLAMA, b'{"message": {"tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}}'),
        (OLLAMA, b"\xff"),
    ],
)
def test_invalid_event_is_reported(wire: Any, event: bytes) -> None:
    with pytest.raises(InvalidReply):
        wire.reader(asked(), "m").feed(event)


def test_builder_refuses_blocks_that_contradict_each_other() -> None:
    builder = MessageBuilder("m", ToolNames())
    builder.begin_call(0, "add", None)
    with pytest.raises(InvalidReply, match="index 0"):
        builder.begin_call(0, "add", None)
    with pytest.raises(InvalidReply, match="text"):
        builder.add_text("x", 0)
    with pytest.raises(InvalidReply, match="not begun"):
        builder.add_arguments(1, "{}")
