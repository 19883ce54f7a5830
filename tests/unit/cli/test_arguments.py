"""Arguments of tools as words of a command line."""

from pathlib import Path
from typing import Any

import pytest

from trunkline.cli.arguments import parse_arguments
from trunkline.errors import MisuseError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "on": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "point": {"$ref": "#/$defs/Point"},
        "level": {"enum": ["low", 2, None]},
        "fixed": {"const": 7},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "several": {"type": ["integer", "string"]},
        "lists": {"oneOf": [{"type": "null"}, {"type": "array", "items": {"type": "number"}}]},
        "endless": {"anyOf": [{"$ref": "#/properties/endless"}]},
        "free": {},
    },
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["text=5", "count=5", "share=0.5", "on=yes"], {"text": "5", "count": 5, "share": 0.5, "on": True}),
        (["count=5.0", "share=2", "on=FALSE"], {"count": 5, "share": 2, "on": False}),
        (["text=a=b", "text:="], None),
        (["text="], {"text": ""}),
        (["tags=a", "tags=b"], {"tags": ["a", "b"]}),
        (["sizes=1", "sizes=2"], {"sizes": [1, 2]}),
        (['tags=["a", "b"]', "tags=c"], {"tags": ["a", "b", "c"]}),
        (['point={"x": 1}'], {"point": {"x": 1}}),
        (["level=low"], {"level": "low"}),
        (["level=2"], {"level": 2}),
        (["level=null"], {"level": None}),
        (["fixed=7"], {"fixed": 7}),
        (["maybe=3"], {"maybe": 3}),
        (["maybe=null"], {"maybe": None}),
        (["several=3"], {"several": 3}),
        (["several=three"], {"several": "three"}),
        (["lists=1.5"], {"lists": [1.5]}),
        (["endless=1"], {"endless": 1}),
        (["free=1"], {"free": 1}),
        (["free=one"], {"free": "one"}),
        (["text:=[1]"], {"text": [1]}),
        (['{"count": 1}', "text=x"], {"count": 1, "text": "x"}),
        ([], {}),
    ],
)
def test_words_have_the_types_of_the_schema(words: list[str], arguments: dict[str, Any] | None) -> None:
    if arguments is None:
        with pytest.raises(MisuseError, match="is not JSON"):
            parse_arguments(words, SCHEMA)
    else:
        assert parse_arguments(words, SCHEMA) == arguments


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["count=x"], "argument 'count' must be of type integer, not 'x'"),
        (["count=1.5"], "must be of type integer"),
        (["on=2"], "must be of type boolean"),
        (["level=4"], "argument 'level' must be one of low, 2, null, not '4'"),
        (["point=3"], "must be of type object"),
        (["colour=red"], "there is no argument 'colour'; there are text, count"),
        (["txt=x"], "did you mean 'text'?"),
        (["text"], "'text' is no argument; write key=value"),
        (["=x"], "is no argument"),
        (["text=a", "text=b"], "set twice"),
        (["{1}"], "is not JSON"),
        (["@list"], "list is not a JSON object"),
    ],
)
def test_wrong_word_is_explained(words: list[str], why: str) -> None:
    with pytest.raises(MisuseError) as raised:
        parse_arguments(words, SCHEMA, read=lambda _: "[]")
    assert why in str(raised.value)


def test_unknown_schema_guesses_types() -> None:
    assert parse_arguments(["a=1", "b=x", "c=null"]) == {"a": 1, "b": "x", "c": None}


def test_values_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("two\nlines")
    (tmp_path / "all.json").write_text('{"count": 3}')
    words = [f"text=@{tmp_path}/text", f"@{tmp_path}/all.json"]
    assert parse_arguments(words, SCHEMA) == {"text": "two\nlines", "count": 3}


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\xff", "not UTF-8")])
def test_unreadable_file_is_explained(tmp_path: Path, content: bytes | None, why: str) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(MisuseError, match=why):
        parse_arguments([f"text=@{tmp_path}/file"], SCHEMA)
