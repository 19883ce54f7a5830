"""Edits of JSON with comments."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli.config_file import InvalidDocument
from trunkline.cli.json_edit import format_json, parse, remove_member, set_member
from trunkline.jsonc import blank_comments

ENTRY = {"command": "python", "args": ["-m", "x"], "env": {"KEY": 'a "b" ü'}}
PATH = ("mcpServers", "ours")

# --- documents -----------------------------------------------------------------------------------

TRIVIA = st.lists(
    st.sampled_from(
        [" ", "\n", "\r\n", "\t", "  ", '// "a": {,}\n', "// end  \r\n", "//\n", '/* } , " */', "/**/", "/*\n * x\n */"]
    ),
    max_size=3,
).map("".join)
SCALARS = st.sampled_from(
    ["0", "-1.5e+3", "true", "null", '""', '"// no"', r'"\" , }"', '"/* x */"', r'"é\n"', '"ü😀"', "12"]
)
NAMES = st.sampled_from(["a", "b", "//", ",", "mcpServers", 'q"', "ü", "", "/*"])


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str], always: str | None = None) -> str:
    """The text of an object, with space and comments everywhere, and maybe a trailing comma."""
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    if always is not None and always not in names:
        names.insert(draw(st.integers(0, len(names))), always)
    parts = ["{"]
    for at, name in enumerate(names):
        value = draw(objects(VALUES)) if name == always else draw(values)
        parts += [draw(TRIVIA), json.dumps(name), draw(TRIVIA), ":", draw(TRIVIA), value, draw(TRIVIA)]
        if at < len(names) - 1 or draw(st.booleans()):
            parts.append(",")
    return "".join([*parts, draw(TRIVIA), "}"])


def _arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    items = st.lists(st.builds("{}{}{}".format, TRIVIA, values, TRIVIA), max_size=3)
    return st.builds(
        lambda parts, comma, end: f"[{','.join(parts)}{',' if comma and parts else ''}{end}]",
        items,
        st.booleans(),
        TRIVIA,
    )


VALUES = st.recursive(SCALARS, lambda inner: objects(inner) | _arrays(inner), max_leaves=6)
MARKS = st.sampled_from(["", "\ufeff"])
DOCUMENTS = st.builds("{}{}{}{}".format, MARKS, TRIVIA, objects(VALUES), TRIVIA)
WITH_SECTION = st.builds("{}{}{}{}".format, MARKS, TRIVIA, objects(VALUES, always="mcpServers"), TRIVIA)


def reference(text: str) -> Any:
    """The content of a document as the standard library reads it."""
    return json.loads(blank_comments(text))


def comments(text: str) -> list[str]:
    found = re.findall(r'"(?:\\.|[^"\\])*"|(//[^\n]*|/\*.*?\*/)', text, re.DOTALL)
    return [comment.rstrip() for comment in found if comment]


def contains_in_order(part: str, whole: str) -> bool:
    rest = iter(whole)
    return all(char in rest for char in part)


# --- properties ----------------------------------------------------------------------------------


@given(WITH_SECTION)
def test_only_the_inserted_member_changes(text: str) -> None:
    after = set_member(text, PATH, ENTRY)

    expected = reference(text)
    expected["mcpServers"]["ours"] = ENTRY
    assert reference(after) == expected
    assert contains_in_order(text, after)
    assert comments(after) == comments(text)


@given(WITH_SECTION)
def test_removing_an_inserted_member_restores_the_text(text: str) -> None:
    removed = remove_member(set_member(text, PATH, ENTRY), PATH)

    assert reference(removed) == reference(text)
    if reference(text)["mcpServers"]:
        assert removed == text


@given(DOCUMENTS)
def test_sections_are_created_where_they_are_missing(text: str) -> None:
    expected = reference(text)
    if not isinstance(expected.setdefault("mcpServers", {}), dict):
        with pytest.raises(InvalidDocument, match="is not an object"):
            set_member(text, PATH, ENTRY)
        return
    expected["mcpServers"]["ours"] = ENTRY
    after = set_member(text, PATH, ENTRY)
    assert reference(after) == expected
    assert contains_in_order(text, after)


@given(DOCUMENTS, st.data())
def test_any_member_can_be_removed(text: str, data: st.DataObject) -> None:
    expected = reference(text)
    if not expected:
        return
    name = data.draw(st.sampled_from(sorted(expected)))
    del expected[name]

    after = remove_member(text, [name])

    assert reference(after) == expected
    assert contains_in_order(after, text)


@given(WITH_SECTION, st.dictionaries(NAMES, st.integers() | st.text(max_size=3), max_size=3))
def test_replacing_changes_only_differing_members(text: str, value: dict[str, Any]) -> None:
    after = set_member(text, ["mcpServers"], value)
    assert reference(after) == {**reference(text), "mcpServers": value}
    assert set_member(after, ["mcpServers"], value) == after


@given(DOCUMENTS, st.data())
def test_broken_documents_are_refused_as_the_standard_library_does(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    broken = text[:at] + data.draw(st.sampled_from(["", ",", "}", '"', "x", "1", "\\", "[", ":"])) + text[at + 1 :]
    try:
        content = reference(broken)
    except ValueError:
        content = None
    if isinstance(content, dict):
        assert parse(broken) == content
    elif blank_comments(broken).strip():
        with pytest.raises(InvalidDocument, match=r"line \d+, column \d+: "):
            parse(broken)


# --- layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}", '{\n  "s": {\n    "n": 1\n  }\n}'),
        ("", '{\n  "s": {\n    "n": 1\n  }\n}\n'),
        ("// mine", '// mine\n{\n  "s": {\n    "n": 1\n  }\n}\n'),
        ('{"a":1}', '{"a":1,"s":{"n":1}}'),
        ('{"a": 1}', '{"a": 1, "s": {"n": 1}}'),
        ('{"s":{}}', '{"s":{"n":1}}'),
        ('{\n\t"a": 1\n}\n', '{\n\t"a": 1,\n\t"s": {\n\t\t"n": 1\n\t}\n}\n'),
        ('{\r\n    "s": {}\r\n}', '{\r\n    "s": {\r\n        "n": 1\r\n    }\r\n}'),
        ('{\n  "s": {\n    "a": 1 // one\n  }\n}', '{\n  "s": {\n    "a": 1, // one\n    "n": 1\n  }\n}'),
        ('{\n  "s": {\n    "a": 1, // one\n  },\n}', '{\n  "s": {\n    "a": 1, // one\n    "n": 1,\n  },\n}'),
        ('{\n  "s": {\n    // none\n  }\n}', '{\n  "s": {\n    // none\n    "n": 1\n  }\n}'),
        ('{"s": {"a": 1 // one\n}}', '{"s": {"a": 1, // one\n"n": 1\n}}'),
    ],
)
def test_inserted_text_follows_the_layout(before: str, after: str) -> None:
    assert set_member(before, ("s", "n"), 1) == after


def test_replaced_entry_keeps_unknown_members_and_comments() -> None:
    before = '{\n  "s": {\n    "n": {\n      "a": 1, // old\n      "x": true, // mine\n      "z": 0\n    }\n  }\n}'
    after = set_member(before, ("s", "n"), {"a": 2, "x": True, "b": [1]})
    assert (
        after
        == '{\n  "s": {\n    "n": {\n      "a": 2, // old\n      "x": true, // mine\n      "b": [1]\n    }\n  }\n}'
    )


def test_line_end_after_a_comment_stays() -> None:
    assert remove_member('{"a": 1, // one\n"n": 2}', ["n"]) == '{"a": 1 // one\n}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "line 1, column 1: expected an object, which begins with {"),
        ('{"a": 1} x', "line 1, column 10: expected the end of the document"),
        ('{\n  "a": 1\n  "b": 2\n}', "line 3, column 3: expected , or }"),
        ('{"a" 1}', "line 1, column 6: expected : after a name"),
        ("{a: 1}", "line 1, column 2: expected a name in quotation marks"),
        ('{"a": }', "line 1, column 7: expected a value"),
        ('{"a": 01}', "line 1, column 7: expected a value"),
        ('{"a": "x\n"}', "line 1, column 7: this string does not end on its line, or has an invalid escape"),
        ('{"a": [1 2]}', "line 1, column 10: expected , or ]"),
        ('{"a": 1', "line 1, column 8: expected , or }, but the document ends"),
        ('{"a": ' + "[" * 101, "line 1, column 106: more than 100 levels"),
    ],
)
def test_faults_have_a_position(text: str, message: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        parse(text)
    assert str(refused.value) == message


def test_duplicate_members_on_the_path_are_refused() -> None:
    text = '{"s": {},\n "s": {}}'
    for edit in (lambda: set_member(text, ("s", "n"), 1), lambda: remove_member(text, ("s", "n"))):
        with pytest.raises(InvalidDocument, match='line 2, column 2: "s" is here a second time'):
            edit()


def test_missing_members_are_removed_already() -> None:
    for text in ("", "{}", '{"s": {}}', '{"t": {"n": 1}}'):
        assert remove_member(text, ("s", "n")) == text


def test_format_has_one_member_on_each_line() -> None:
    assert format_json({"a": {"b": ["x", 1]}, "c": {}}) == '{\n  "a": {\n    "b": ["x", 1]\n  },\n  "c": {}\n}'
