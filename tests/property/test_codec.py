"""Round trips of generated messages through frames; and frames that are not messages."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from msgspec.structs import replace

from trunkline.wire import codec
from trunkline.wire.messages import (
    Batch,
    ErrorObject,
    ErrorResponse,
    Incoming,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
)

texts = st.text(st.characters(codec="utf-8"), max_size=8)
ids = st.one_of(st.integers(), texts)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=3)
errors = st.builds(ErrorObject, st.integers(), texts, st.one_of(st.just(UNSET), values))
messages = st.one_of(
    st.builds(Request, ids, texts, st.one_of(st.just(UNSET), objects)),
    st.builds(Notification, texts, st.one_of(st.just(UNSET), objects)),
    st.builds(Response, ids, objects),
    st.builds(ErrorResponse, st.one_of(ids, st.none(), st.just(UNSET)), errors),
)
read_any = codec.decoder(object)

# Objects that are nearly messages: each member is missing, right or wrong.
nearly = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0", 2, None]),
        "id": st.one_of(ids, values),
        "method": st.one_of(texts, values),
        "params": st.one_of(objects, values),
        "result": values,
        "error": st.one_of(values, st.fixed_dictionaries({"code": values, "message": values})),
        "other": values,
    },
)


def opened(message: Incoming) -> Incoming:
    """A message with its raw parts decoded."""
    for member in ("params", "result"):
        if isinstance(raw := getattr(message, member, None), Raw):
            return replace(message, **{member: read_any(raw)})
    return message


@pytest.mark.row("P18")
@given(messages)
def test_message_round_trips(message: Message) -> None:
    assert opened(codec.decode(codec.encode(message))) == message


@pytest.mark.row("P05", "P18")
@given(st.lists(messages, min_size=1, max_size=4))
def test_batch_round_trips(batch: list[Message]) -> None:
    read = codec.decode(codec.to_json(batch))
    assert isinstance(read, Batch)
    assert [opened(message) for message in read.messages] == batch


@pytest.mark.row("P07")
@given(st.binary(max_size=64))
@example(b"[" * 50_000)
@example(b'{"a":' * 50_000)
@example(b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"\xff":1}}')
def test_decoding_never_raises(frame: bytes) -> None:
    assert isinstance(codec.decode(frame), Incoming)


@pytest.mark.row("P07", "X27")
@given(st.one_of(values, nearly, st.lists(nearly, max_size=3)))
def test_valid_json_is_never_parse_error(value: Any) -> None:
    message = codec.decode(json.dumps(value).encode())
    found = message.messages if isinstance(message, Batch) else [message]
    assert all(not isinstance(part, Malformed) or part.code in {-32600, -32602} for part in found)


escaped = b'{"jsonrpc":"2.0","id":1,"\\u006dethod":"a","params":{}}'


@pytest.mark.row("P07", "P18")
@given(st.one_of(st.binary(max_size=64), messages.map(codec.encode), nearly.map(codec.to_json)))
@example(b"[" * 50_000)
@example(escaped)
@example(b'{"jsonrpc":"2.0","id":1,"method":"a","params":[{}]}')
@example(b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"\xff":1}}')
@example(b'{"jsonrpc":"2.0","id":1,"params":[{}],"method":"a","x":{"y":{}}}')
@example(b'{"jsonrpc":"2.0","params":[],"id":1,"method":"a"}')
def test_decoder_for_requests_gives_the_same_messages(frame: bytes) -> None:
    assert codec.decode_request(frame) == codec.decode(frame)


frames = st.one_of(
    messages.map(codec.encode),
    nearly.map(codec.to_json),
    st.sampled_from(
        [
            b'{"jsonrpc":"2.0","id":1,"method":"a","params":{}}',
            b'{"jsonrpc":"1.0","id":1,"method":"a","params":{}}',
            b'{"jsonrpc":"2.0","id":1,"method":"a",\n"params":{}}',
            b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":{}}} ',
            b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"\xc3\xa4":{}}}',
            b'{"jsonrpc":"2.0","id":1,"method":"a","params":{}}' * 2,
            b'{"jsonrpc":"2.0","id":1,"params":[{}],"method":"a","x":{"y":{}}}',
            escaped,
            b" ",
            b"",
        ]
    ),
)


@pytest.mark.row("P07", "W11")
@given(st.lists(frames, max_size=4).map(b"\n".join), st.sampled_from([b"\n", b"", b"\r\n"]))
def test_decoder_for_lines_gives_the_same_messages_or_none(frames: bytes, end: bytes) -> None:
    lines = frames + end
    found = codec.decode_requests(lines)
    assert found is None or found == [codec.decode(line) for line in lines.split(b"\n")[:-1]]


@pytest.mark.row("P08", "P09", "P11", "P12")
@given(nearly)
def test_object_is_message_iff_it_follows_rules(value: dict[str, Any]) -> None:
    message = codec.decode(json.dumps(value).encode())
    assert isinstance(message, Malformed) is not is_message(value)


def is_message(value: dict[str, Any]) -> bool:
    """The rules of the base protocol, written a second time."""
    has_id = "id" in value and isinstance(value["id"], int | str) and not isinstance(value["id"], bool)
    error = value.get("error")
    good_error = (
        isinstance(error, dict)
        and isinstance(error.get("code"), int)
        and not isinstance(error.get("code"), bool)
        and isinstance(error.get("message"), str)
    )
    if value.get("jsonrpc") != "2.0":
        return False
    if "method" in value:
        fits = isinstance(value["method"], str) and isinstance(value.get("params", {}), dict)
        return fits and (has_id or "id" not in value) and "result" not in value and "error" not in value
    if "error" in value:
        return good_error and "result" not in value and (has_id or value.get("id") is None)
    return "result" in value and has_id


@pytest.mark.row("P07")
@given(st.binary(max_size=48))
def test_message_payload_is_decodable_unless_out_of_range(inside: bytes) -> None:
    message = codec.decode(b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":%b}}' % inside)
    if isinstance(message, Request):
        with contextlib.suppress(msgspec.ValidationError):
            read_any(message.params)


def spelled(draw: st.DrawFn, text: str) -> str:
    """Spell a text as JSON, with any of its characters escaped."""
    return (
        '"'
        + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 and draw(st.booleans()) else json.dumps(c)[1:-1] for c in text)
        + '"'
    )


@st.composite
def written(draw: st.DrawFn) -> tuple[str, bool]:
    """Draw JSON as text, and whether one of its objects has a member twice."""
    duplicated = False

    def write(depth: int) -> str:
        nonlocal duplicated
        kind = draw(st.integers(0, 3 if depth else 1))
        if kind == 0:
            return spelled(draw, draw(st.text('a":,\\{} ', max_size=4)))
        if kind == 1:
            return draw(st.sampled_from(["1", "-2.5e3", "null", "true"]))
        if kind == 2:
            return "[" + ",".join(write(depth - 1) for _ in range(draw(st.integers(0, 2)))) + "]"
        names = draw(st.lists(st.text('ab":', max_size=2), max_size=3))
        duplicated = duplicated or len(set(names)) < len(names)
        return (
            "{"
            + ",".join(f"{spelled(draw, name)}{draw(st.sampled_from(['', ' ']))}:{write(depth - 1)}" for name in names)
            + "}"
        )

    return write(3), duplicated


@given(written(), st.sampled_from(["", " " * codec.LONG_THRESHOLD]))
def test_strict_decoding_rejects_iff_duplicate_members(value: tuple[str, bool], padding: str) -> None:
    text, duplicated = value
    frame = f'{padding}{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"v":{text}}}}}'.encode()
    assert isinstance(codec.decode_strict(frame), Malformed) is duplicated
