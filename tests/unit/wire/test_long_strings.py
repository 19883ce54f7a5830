"""Long strings are taken out of a JSON text, and put back into the values that are decoded from the rest."""

from typing import Any

import msgspec
import pytest

from trunkline.wire.long_strings import LONG_STRING, ShortenedJson, shorten

LONG = b"x" * LONG_STRING


def take_out(text: bytes) -> ShortenedJson | None:
    return shorten(text, msgspec.json.Decoder(str).decode)


def restored(text: bytes) -> Any:
    """The values of a text whose long strings were taken out and put back."""
    shortened = take_out(text)
    assert shortened is not None
    assert len(shortened.text) < LONG_STRING
    values: Any = msgspec.json.decode(shortened.text)
    assert shortened.restore(values)
    return values


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"%b"}' % LONG,
        b' { "a" : [ { "b" : "%b" } , "c" ] , "d" : 1 } ' % LONG,
        b'{"a":"%b","b":"short","c":"%b"}' % (LONG, LONG.replace(b"x", b"y")),
        b'{"a":"","b":["%b","",null]}' % LONG,
        b'{"a":"%b"}' % ("ä€\U0001f600".encode() * LONG_STRING),
        b'{"a":"%b/\x7f"}' % LONG,
        b'{"a":"a line\\nand \\u00e4 %b"}' % LONG,
        b'{"a":"%b and a line\\n"}' % LONG,
        b'{"a":"%b\\"%b"}' % (LONG, LONG),
        b'{"a":"\\"%b"}' % LONG,
        b'{"a":"\\"","b\\"":"\\"b","c":"%b"}' % LONG,
    ],
)
def test_long_strings_are_taken_out_and_put_back(text: bytes) -> None:
    assert restored(text) == msgspec.json.decode(text)


def test_names_of_members_remain() -> None:
    shortened = take_out(b'{"a":"%b","a":"%b"}' % (LONG, LONG))

    assert shortened is not None
    assert shortened.text == rb'{"a":"\u00000","a":"\u00001"}'


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"a":"b"}',
        b'{"a":"%b"}' % LONG[1:],
        b'{"a":"%b"}' % (b'\\"x' * LONG_STRING),
        b'{"a":"%b"}' % ((b"x" * 100 + b'\\"') * LONG_STRING),
        b"[%b]" % b",".join([b'"x"'] * LONG_STRING),
        b"[%b]" % b",".join([b'"%b"' % LONG[: LONG_STRING // 8]] * 100),
        b'{"a":[%b],"b":"%b"}' % (b",".join([b'"x"'] * 50), LONG),
        b'{"a":"%b","b":[%b]}' % (LONG, b",".join([b"1"] * LONG_STRING)),
        b'{"a":"\\\\","b":"%b"}' % LONG,
        b'{"a":"%b","b":"\\u0000"}' % LONG,
        b'{"a":"%b' % LONG,
        b'{"a":"b","%b' % LONG,
    ],
    ids=[
        "nothing",
        "an empty array",
        "short",
        "not quite long",
        "many escaped quotes",
        "many escaped quotes far from each other",
        "many strings",
        "many strings of some length",
        "many strings before a long one",
        "a long rest",
        "an escaped backslash before a quote",
        "an escaped NUL",
        "an open string",
        "an open name",
    ],
)
def test_other_text_is_left_to_the_parser(text: bytes) -> None:
    assert take_out(text) is None


def test_strings_after_many_others_remain() -> None:
    others = b",".join([b'"%b"' % (b"x" * 100)] * 100)

    assert restored(b'{"a":"%b","b":[%b]}' % (LONG, others)) == {"a": LONG.decode(), "b": ["x" * 100] * 100}
    assert take_out(b'{"a":"%b","b":[%b],"c":"%b"}' % (LONG, others, LONG)) is None


@pytest.mark.parametrize("string", [b"\xff", b"\n", b"\\x", b"\\ud800"])
@pytest.mark.parametrize("text", [b'["%b%b"]', b'["%b %b"]'])
def test_invalid_string_raises_value_error(text: bytes, string: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        take_out(text % (LONG, string))
    with pytest.raises(ValueError, match=r"."):
        take_out(text % (string, LONG))


@pytest.mark.parametrize(
    "text", [b'{"%b":1}' % LONG, b'{"a":{"%b":"b"}}' % LONG, b'{"a":"%b","a":"b"}' % LONG, b'{"a":["%b"],"a":1}' % LONG]
)
def test_string_that_is_no_value_cannot_be_put_back(text: bytes) -> None:
    shortened = take_out(text)

    assert shortened is not None
    assert not shortened.restore(msgspec.json.decode(shortened.text))


def test_string_outside_the_decoded_values_cannot_be_put_back() -> None:
    assert not ShortenedJson(b"", ["a string"]).restore({"a": 1})
