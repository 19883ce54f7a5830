"""Edits of TOML."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli.config_file import InvalidDocument
from trunkline.cli.toml_edit import format_table, parse, remove_table, set_table

TABLE = {"command": "python", "args": ["-m", "x"], "env": {"KEY": 'a "b" ü\x7f'}}
PATH = ("mcp_servers", "ours")
BLOCKS = [
    "# comment\n",
    "\n",
    'theme = "dark" # now\n',
    'list = [\n  "a", # ]\n  "[mcp_servers.ours]",\n]\n',
    'text = """\n[mcp_servers.ours]\ncommand = "x"\n"""\n',
    "line = 'a\u2028b \u0085'\n",
    '"quoted = key" = 1\n',
    "[mcp_servers.other]\ncommand = 'x'\nargs = []\n",
    "[mcp_servers.other.env]\nA = '1'\n\n",
    '[mcp_servers."ours too"]\nurl = "https://example.org"\n',
    "[[rules]]\na.b = 1\n",
    "  [indented]\n  x = { y = 1, z = [1, 2] }\n",
]


@st.composite
def documents(draw: st.DrawFn) -> str:
    keys = draw(st.lists(st.sampled_from(BLOCKS[:7]), max_size=4, unique=True))
    tables = draw(st.lists(st.sampled_from(BLOCKS), max_size=5, unique=True))
    text = "".join([*keys, *draw(st.permutations([block for block in tables if block not in keys[2:]]))])
    if draw(st.booleans()):
        text = text.removesuffix("\n")
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return draw(st.sampled_from(["", "\ufeff"])) + text


def valid(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError:
        return None


@given(documents())
def test_removing_an_added_table_restores_the_text(text: str) -> None:
    before = valid(text)
    if before is None:
        return
    after = set_table(text, PATH, TABLE)

    assert after.startswith(text)
    assert valid(after) == {**before, "mcp_servers": {**before.get("mcp_servers", {}), "ours": TABLE}}
    assert remove_table(after, PATH) == text


@given(documents())
def test_any_table_can_be_removed(text: str) -> None:
    before = valid(text)
    if before is None or "other" not in before.get("mcp_servers", {}):
        return
    del before["mcp_servers"]["other"]
    after = valid(remove_table(text, ("mcp_servers", "other")))
    assert after is not None
    assert {"mcp_servers": {}, **after} == before


def test_changed_keys_keep_comments_and_unknown_keys() -> None:
    before = (
        "[mcp_servers.ours]\n# about\ncommand = 'old' # pinned\nargs = [\n  'a',\n]\ntimeout = 2.5\n\n"
        "[mcp_servers.ours.env]\nA = '1' # one\n\n# next\n[tui]\nx = 1\n"
    )
    wanted = {"command": "new", "args": ["a"], "timeout": 2.5, "env": {"A": "1", "B": "2"}}

    after = set_table(before, PATH, wanted)

    assert after == (
        '[mcp_servers.ours]\nenv = { A = "1", B = "2" }\n# about\ncommand = "new" # pinned\nargs = [\n  \'a\',\n]\n'
        "timeout = 2.5\n\n\n# next\n[tui]\nx = 1\n"
    )
    assert tomllib.loads(after)["mcp_servers"]["ours"] == wanted


def test_hash_in_a_string_is_no_comment() -> None:
    after = set_table('[s.n]\nurl = "a#b" # why # twice\r\n', ("s", "n"), {"url": "c#d"})
    assert after == '[s.n]\nurl = "c#d" # why # twice\r\n'


def test_header_at_the_end_gets_a_line_end() -> None:
    assert set_table("[s.n]", ("s", "n"), {"a": 1}) == "[s.n]\na = 1\n"


def test_tables_written_with_keys_are_removed() -> None:
    text = "[mcp_servers]\nours = { command = 'x' }\nother.command = 'y'\n"
    assert remove_table(text, PATH) == "[mcp_servers]\nother.command = 'y'\n"


def test_comments_of_the_next_table_stay() -> None:
    text = "[a]\nx = 1\n\n[mcp_servers.ours]\n# ours\ncommand = 'x'\n\n# about b\n[b]\n"
    assert remove_table(text, PATH) == "[a]\nx = 1\n\n# about b\n[b]\n"


def test_fault_has_a_position() -> None:
    with pytest.raises(InvalidDocument, match="at line 2, column"):
        parse("a = 1\n[b\n")


def test_unusual_names_are_quoted() -> None:
    text = format_table(("s", "a b"), {"": True, "k.v": {}})
    assert text == '[s."a b"]\n"" = true\n"k.v" = {}\n'
    assert tomllib.loads(text) == {"s": {"a b": {"": True, "k.v": {}}}}
