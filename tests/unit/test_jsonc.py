"""JSON with comments."""

import json
from typing import Any

import pytest

from trunkline.jsonc import blank_comments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1} // end', {"a": 1}),
        ('// first\n{"a": /* one */ 1}', {"a": 1}),
        ('{"a": "// no /* comment */"}', {"a": "// no /* comment */"}),
        (r'{"a": "\"// x"}', {"a": '"// x'}),
        ('{"a": [1, 2, /* three */ ], }', {"a": [1, 2]}),
        ('{"a": ",]"}', {"a": ",]"}),
        ('\ufeff{"a": 1}', {"a": 1}),
        ('{"a": 1} /* open', {"a": 1}),
    ],
)
def test_comments_and_trailing_commas_become_spaces(text: str, value: Any) -> None:
    blanked = blank_comments(text)
    assert json.loads(blanked) == value
    assert len(blanked) == len(text)


def test_line_ends_of_comments_stay() -> None:
    assert blank_comments("/* a\r\n b */\n1") == "    \r\n     \n1"


@pytest.mark.parametrize("text", ['{"a": 1,, }', "[,]", '{"a"', '"open'])
def test_invalid_json_stays_invalid(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(blank_comments(text))
