"""Properties of the wire formats of model providers: independence of chunks, and robustness against any input."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.sampling.model_server import DIALECTS, Dialect, Turn, Use, asked
from tests.unit.sampling.test_formats import FORMATS

from trunkline import ImageContent, SamplingMessage, TextContent
from trunkline.errors import InvalidParams
from trunkline.protocol.types import CreateMessageParams, Tool, ToolResultContent, ToolUseContent
from trunkline.sampling.http_provider import _make_splitter  # pyright: ignore[reportPrivateUsage]
from trunkline.sampling.message_builder import InvalidReply
from trunkline.sampling.problems import problem_of_event, problem_of_status, read_retry_after
from trunkline.sampling.translation import ToolNames

EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS, ids=[each.name for each in DIALECTS])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
USES = st.builds(Use, st.sampled_from(["add", "get_note"]), st.dictionaries(TEXT, JSON, max_size=3))
TURNS = st.builds(Turn, st.lists(TEXT, max_size=4), st.lists(USES, max_size=3), st.just("endTurn"))


def read(dialect: Dialect, chunks: list[bytes]) -> Any:
    wire = FORMATS[dialect.name]
    reader, split = wire.reader(asked(), "m"), _make_splitter(1 << 20, lines=wire.streams_lines)
    for chunk in chunks:
        for event in split(chunk):
            assert reader.feed(event) is None
    return reader.finish()


@EVERY_DIALECT
@given(turn=TURNS, data=st.data())
def test_message_does_not_depend_on_chunks(dialect: Dialect, turn: Turn, data: st.DataObject) -> None:
    whole = b"".join(dialect.events(turn, "m"))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    chunks = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    found = read(dialect, chunks)
    assert found == read(dialect, [whole])
    assert found.text == "".join(turn.text)
    assert [(use.name, use.input) for use in found.tool_uses] == [(use.name, use.input) for use in turn.uses]
    assert len({use.id for use in found.tool_uses}) == len(turn.uses)
    assert found.stop_reason == ("toolUse" if turn.uses else "endTurn")


@EVERY_DIALECT
@given(turn=TURNS, data=st.data())
def test_truncated_message_is_never_complete(dialect: Dialect, turn: Turn, data: st.DataObject) -> None:
    events = dialect.events(turn, "m")
    last = {"OpenAI": 3, "LM Studio": 3}.get(dialect.name, 1)  # a completion may end without usage and end marker
    assert read(dialect, events[: data.draw(st.integers(0, len(events) - last))]) is None


@EVERY_DIALECT
@given(events=st.lists(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()), max_size=4))
def test_any_event_is_read_or_reported(dialect: Dialect, events: list[bytes]) -> None:
    reader = FORMATS[dialect.name].reader(asked(), "m")
    try:
        for event in events:
            reader.feed(event)
        reader.finish()
    except InvalidReply:
        pass


@EVERY_DIALECT
@given(turn=TURNS, data=st.data())
def test_altered_event_is_read_or_reported(dialect: Dialect, turn: Turn, data: st.DataObject) -> None:
    """Replace a value within a proper event by any JSON."""
    wire = FORMATS[dialect.name]
    split = _make_splitter(1 << 20, lines=wire.streams_lines)
    events = split(b"".join(dialect.events(turn, "m")))
    number = data.draw(st.integers(0, len(events) - 1))
    if events[number] != b"[DONE]":
        altered = json.loads(events[number])
        inner: Any = altered
        while isinstance(inner, dict | list) and inner:
            key = data.draw(st.sampled_from(list(inner) if isinstance(inner, dict) else list(range(len(inner)))))
            if not isinstance(inner[key], dict | list) or not inner[key] or data.draw(st.booleans()):
                inner[key] = data.draw(JSON)
                break
            inner = inner[key]
        events[number] = json.dumps(altered).encode()
    reader = wire.reader(asked(), "m")
    try:
        for event in events:
            reader.feed(event)
        reader.finish()
    except InvalidReply:
        pass


@given(
    body=st.binary(max_size=100) | JSON.map(lambda value: json.dumps({"error": value}).encode()),
    status=st.integers(300, 599),
)
def test_any_error_has_a_cause(body: bytes, status: int) -> None:
    assert problem_of_status(status, {}, body, 0.0).summary
    assert problem_of_event(body).summary


@given(value=st.text(max_size=30))
def test_any_retry_after_is_bounded(value: str) -> None:
    seconds = read_retry_after({"retry-after": value}, 0.0)
    assert seconds is None or 0 <= seconds <= 86_400


@given(names=st.lists(st.text(max_size=80), max_size=8, unique=True))
def test_tool_names_are_valid_and_return(names: list[str]) -> None:
    translated = ToolNames(names)
    sent = [translated.to_provider(name) for name in names]
    assert len(set(sent)) == len(names)
    assert all(0 < len(name) <= 64 and name.isascii() and " " not in name for name in sent)
    assert [translated.to_mcp(name) for name in sent] == names


BLOCKS = st.builds(TextContent, TEXT) | st.just(ImageContent("AAEC", "image/png"))


@st.composite
def conversations(draw: st.DrawFn) -> CreateMessageParams:
    """Any proper conversation."""
    messages: list[SamplingMessage] = []
    for number in range(draw(st.integers(1, 4))):
        messages.append(SamplingMessage("user", draw(st.lists(BLOCKS, min_size=1, max_size=3))))
        uses = [
            ToolUseContent(f"u{number}-{i}", use.name, use.input)
            for i, use in enumerate(draw(st.lists(USES, max_size=2)))
        ]
        said = draw(st.lists(st.builds(TextContent, TEXT), max_size=2))
        if uses:
            messages.append(SamplingMessage("assistant", [*said, *uses]))
            content = draw(st.lists(BLOCKS, max_size=2))
            messages.append(SamplingMessage("user", [ToolResultContent(use.id, content) for use in uses]))
    tools = draw(st.none() | st.just([Tool(name="add", input_schema={"type": "object"})]))
    return CreateMessageParams(messages=messages, max_tokens=5, tools=tools, system_prompt=draw(st.none() | TEXT))


@EVERY_DIALECT
@given(params=conversations())
def test_any_conversation_follows_the_format(dialect: Dialect, params: CreateMessageParams) -> None:
    class Sent:
        """A request, as the check of the dialect reads it."""

        headers = {"anthropic-version": "2023-06-01"}
        body: Any = None

    try:
        Sent.body = json.loads(json.dumps(FORMATS[dialect.name].request(params, "m")))
    except InvalidParams as error:
        pytest.fail(f"refused: {error}")
    dialect.check(Sent())  # pyright: ignore[reportArgumentType]
