"""A request has the same values whether its frame is short, and decoded level by level, or long, and decoded at once."""

import enum
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Meta, Raw, Struct

from trunkline.protocol.types import CallToolParams
from trunkline.wire import codec, long_strings
from trunkline.wire.messages import Incoming, Request


class Colour(enum.Enum):
    RED = "red"


class Point(Struct):
    x: int
    y: float = 0.5


@dataclass
class Named:
    name: str
    at: datetime | None = None


class Everything(Struct, forbid_unknown_fields=True):
    """Members of types for which plain values may lose what JSON tells."""

    text: Annotated[str, Meta(min_length=1)] | None = None
    count: int | None = None
    ratio: float | None = None
    any: Any = None
    blob: bytes | None = None
    ident: UUID | None = None
    colour: Colour | None = None
    five: Literal[5, "five"] | None = None
    points: list[Point] | None = None
    unique: set[int] | None = None
    by_number: dict[int, str] | None = None
    named: Named | None = None
    pair: tuple[int, str] | None = None


class Exact(Struct):
    """Values that floats cannot hold."""

    ratio: Decimal | None = None
    raw: Raw | None = None


KINDS = (Everything, Exact, CallToolParams, dict[str, Any], dict[str, int | None])
NAMES = (*Everything.__struct_fields__, "raw", "arguments", "_meta", "x", "y", "name", "at", "1")

odd_numbers = st.sampled_from(["1.10", "1e3", "-0", "1e999", "0.1234567890123456789", "12345678901234567890123", "NaN"])
odd_texts = st.sampled_from(
    ['"2020-01-02T03:04:05Z"', '"aGk="', '"red"', '"five"', f'"{UUID(int=5)}"', r'"\ud800"', '"\t"']
)
scalars = st.one_of(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
).map(json.dumps)


def in_braces(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"


def objects_of(inner: st.SearchStrategy[str], *, twice: bool) -> st.SearchStrategy[str]:
    """Objects as JSON; `twice`: a name may occur in one more than once."""
    pairs = st.tuples(st.sampled_from(NAMES), inner)
    return st.lists(pairs, max_size=4, unique_by=None if twice else lambda pair: pair[0]).map(in_braces)


def values_of(*, twice: bool) -> st.SearchStrategy[str]:
    return st.recursive(
        scalars | odd_numbers | odd_texts,
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]") | objects_of(inner, twice=twice)
        ),
        max_leaves=6,
    )


def frame_of(params: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":7,"method":"m","params":{params}}}'.encode()


def seen(source: Any, kind: Any) -> Any:
    """The decoded value, for comparison: NaN and 1 have to be themselves."""
    try:
        found = codec.decoder(kind)(source)
    except (codec.DecodeError, RecursionError) as error:
        return type(error), str(error)
    if kind is CallToolParams:
        return (
            found.name,
            repr(found.meta),
            seen(found.arguments, Everything),
            bytes(codec.original_json(found.arguments)),
        )
    if kind is Exact and found.raw is not None:
        return repr(found.ratio), bytes(found.raw)
    return repr(found)


def read(frame: bytes, kind: Any) -> Any:
    message: Incoming = codec.decode(frame)
    if isinstance(message, Request) and message.params is not UNSET:
        return message.id, message.method, seen(message.params, kind)
    return message


def shorter(frame: bytes) -> bytes:
    """JSON in a short frame. The suffix keeps msgspec from mentioning the number of remaining bytes in some errors."""
    return frame + b" " * 16


def longer(frame: bytes) -> bytes:
    """The same JSON in a long frame."""
    return frame + b" " * codec.LONG_THRESHOLD


read_any = codec.json_decoder(Any)
DEEP = f"[{'[' * 600}{']' * 600}]"


@given(objects_of(values_of(twice=False), twice=False), st.sampled_from(KINDS))
@example(in_braces([("any", DEEP)]), Everything)
@example(in_braces([("any", "[" * 100_000 + "]" * 100_000)]), dict[str, Any])
@example(in_braces([("name", '"echo"'), ("arguments", "null")]), CallToolParams)
@example(in_braces([("name", '"echo"'), ("arguments", '{"text":""}')]), CallToolParams)
@example(in_braces([("ratio", "0.1234567890123456789")]), Exact)
def test_long_frame_decodes_like_short_one(params: str, kind: Any) -> None:
    assert read(longer(frame_of(params)), kind) == read(shorter(frame_of(params)), kind)


@given(objects_of(values_of(twice=True), twice=True), st.sampled_from((Everything, CallToolParams, dict[str, Any])))
@example(in_braces([("count", "1"), ("count", "2")]), Everything)
def test_last_duplicate_member_wins_in_both(params: str, kind: Any) -> None:
    """A short frame is rejected if any of them does not fit, a long one if the last does not."""
    short, long = read(shorter(frame_of(params)), kind), read(longer(frame_of(params)), kind)

    assert long == short or "DecodeError" in repr(short) or "ValidationError" in repr(short)


@given(objects_of(values_of(twice=False), twice=False), st.integers(0), st.binary(max_size=2))
def test_malformed_frame_is_malformed_in_both(params: str, at: int, other: bytes) -> None:
    """Replaces one byte of a frame by none, one or two."""
    frame = frame_of(params)
    at %= len(frame)
    frame = frame[:at] + other + frame[at + 1 :]

    assert read(longer(frame), dict[str, Any]) == read(shorter(frame), dict[str, Any])


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","method":"m","params":{"a":1}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":1}}',
        b'{"jsonrpc":"2.0","id":7,"method":"m"}',
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":[1]}',
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":null}',
        b'{"jsonrpc":"1.0","id":7,"method":"m","params":{}}',
        b'{"id":7,"method":"m","params":{}}',
        b'[{"jsonrpc":"2.0","id":7,"method":"m","params":{}}]',
        b"[]",
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":"\xff"}}',
    ],
)
def test_other_long_messages_decode_like_short_ones(frame: bytes) -> None:
    assert codec.decode(longer(frame)) == codec.decode(shorter(frame))


def test_long_frame_keeps_original_params() -> None:
    message = codec.decode(longer(frame_of('{"a": 1.10}')))

    assert isinstance(message, Request)
    assert isinstance(message.params, codec.DecodedJson)
    assert bytes(codec.original_json(message.params)) == b'{"a": 1.10}'
    assert codec.original_json(Raw(b"1")) == Raw(b"1")


@pytest.fixture(params=["orjson", "msgspec"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With orjson and without."""
    if request.param == "msgspec":
        monkeypatch.setitem(sys.modules, "orjson", None)
    codec._long_encoder.cache_clear()
    yield request.param
    codec._long_encoder.cache_clear()


@given(text=st.text(st.characters(codec="utf-8")))
@example(text='\x00\x1f\x7f\u2028"\\/\b\f\n\r\t\U0001f600')
@settings(suppress_health_check=list(HealthCheck))  # the fixture holds for all of them
def test_text_encoders_are_identical(writer: str, text: str) -> None:
    assert bytes(codec.text_to_raw(text)) == codec.to_json(text)


@pytest.mark.usefixtures("writer")
def test_text_encoders_raise_same_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        codec.text_to_raw("\ud800")


@pytest.fixture
def every_string_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_strings, "LONG_STRING", 2)


@pytest.mark.usefixtures("every_string_is_long", "writer")
@given(objects_of(values_of(twice=True), twice=True), st.integers(0), st.none() | st.binary(max_size=2))
@example(in_braces([("any", r'"\""'), ("at", '"after an escaped quote"')]), 0, None)
@example(in_braces([("any", r'"\\"'), ("at", '"after an escaped backslash"')]), 0, None)
@example(in_braces([("any", r'"\u00000"'), ("at", '"beside a placeholder"')]), 0, None)
@settings(suppress_health_check=list(HealthCheck))  # the fixtures hold for all of them
def test_text_without_its_long_strings_has_the_same_values(text: str, at: int, other: bytes | None) -> None:
    """Replaces one byte of half of the texts by none, one or two."""
    json_text = text.encode()
    if other is not None:
        at %= len(json_text)
        json_text = json_text[:at] + other + json_text[at + 1 :]
    try:
        shortened = long_strings.shorten(json_text, codec._decode_long_string)
        values = None if shortened is None else read_any(shortened.text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            read_any(json_text)
        return

    if shortened is not None and isinstance(values, dict) and shortened.restore(cast("Any", values)):
        assert repr(values) == repr(read_any(json_text))
