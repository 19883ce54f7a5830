"""Hidden characters, and names that look alike."""

import pytest

from trunkline.trust.hidden_text import find_hidden, find_hidden_in
from trunkline.trust.lookalikes import find_lookalikes, skeleton


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a\u202eb", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("a\u200bb", "U+200B ZERO WIDTH SPACE"),
        ("a\U000e0041", "U+E0041 TAG LATIN CAPITAL LETTER A"),
        ("a\U000e0101", "U+E0101 VARIATION SELECTOR-18"),
        ("a\u3164", "U+3164 HANGUL FILLER"),
        ("a\x1b[31m", "U+001B"),
        ("\u2066\u2067\u2068\u2069", "U+2068 FIRST STRONG ISOLATE and 1 more"),
    ],
)
def test_hidden_characters_are_named(text: str, named: str) -> None:
    found = find_hidden(text)
    assert found is not None
    assert found.endswith(named)


@pytest.mark.parametrize(
    "text", ["", "plain", "Größe\n\tzwei", "日本語", "❤\ufe0f", "👩\u200d🔬", "\u0645\u06cc\u200c\u062e"]
)
def test_texts_of_languages_have_no_hidden_characters(text: str) -> None:
    assert find_hidden(text) is None


def test_hidden_characters_are_found_in_schemas() -> None:
    assert find_hidden_in({"properties": {"a\u200b": {}}})
    assert find_hidden_in({"properties": {"a": {"enum": [1, None, "x\u202e"]}}})
    assert find_hidden_in({"properties": {"a": {"enum": [1, None, "x"]}}}) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("list", "Iist"),
        ("read_file", "read-file"),
        ("read_file", "reаd_file"),  # noqa: RUF001 - Cyrillic
        ("mail", "rnail"),
        ("view", "vievv"),
        ("tool", "t00l"),
        ("read", "ｒｅａｄ"),  # noqa: RUF001 - full width
        ("read", "re\u200bad"),
        ("cafe", "café"),
        ("sin", "ѕіn"),  # noqa: RUF001 - Cyrillic
    ],
)
def test_names_that_look_alike_share_a_skeleton(one: str, other: str) -> None:
    assert skeleton(one) == skeleton(other)


@pytest.mark.parametrize(("one", "other"), [("read", "write"), ("get_a", "get_b"), ("file", "files")])
def test_other_names_do_not(one: str, other: str) -> None:
    assert skeleton(one) != skeleton(other)


def test_lookalikes_are_grouped_with_their_owners() -> None:
    names = [("a", "list"), ("b", "list"), ("b", "Iist"), ("c", "read")]
    assert find_lookalikes(names) == [[("a", "list"), ("b", "Iist")]]
