"""Suggestions for names that do not exist."""

import pytest

from trunkline.errors.suggestions import did_you_mean, with_suggestion


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wether", ' Did you mean "weather"?'),
        ("Weather", ' Did you mean "weather"?'),
        ("sea-level", ' Did you mean "seaLevel"?'),
        ("weather", ""),  # the name itself is no suggestion
        ("", ""),
        ("completely different", ""),
        ("weather" * 1000, ""),
    ],
)
def test_most_similar_name_is_suggested(name: str, expected: str) -> None:
    assert did_you_mean(name, ["weather", "seaLevel", "news"]) == expected


def test_no_suggestion_without_known_names() -> None:
    assert did_you_mean("weather", ()) == ""


def test_suggestion_follows_the_message() -> None:
    assert with_suggestion("no such thing", "wether", ["weather"]) == 'no such thing. Did you mean "weather"?'
    assert with_suggestion("no such thing", "x", ["weather"]) == "no such thing"
