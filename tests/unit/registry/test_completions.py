"""Completers: their arguments and proposals."""

from typing import Any

import msgspec
import pytest

from trunkline.errors import RegistrationError
from trunkline.protocol.types import CompleteResult, Completion
from trunkline.registry.completions import (
    CompletionEntry,
    completion_key,
    empty_completion,
    make_completion,
    matching,
)
from trunkline.registry.handlers import read_handler
from trunkline.registry.results import BadResult

HUNDRED = [str(number) for number in range(100)]


class Context:
    """Stands for the context of a call."""


def completer(function: Any) -> CompletionEntry:
    return make_completion("prompt", "review", "language", read_handler(function, Context, thread=False))


def complete(function: Any, value: str = "", context: dict[str, str] | None = None, *, labelled: bool = False) -> Any:
    entry = completer(function)
    return msgspec.to_builtins(entry.run(entry.arguments(value, context or {}), None, labelled))


def test_completer_key_names_its_target() -> None:
    assert completer(list).key == completion_key("prompt", "review", "language")
    assert completion_key("prompt", "a", "b") != completion_key("tool", "a", "b")


def test_completer_gets_text_and_optional_arguments() -> None:
    assert complete(lambda: ["a"]) == {"completion": {"values": ["a"], "total": 1, "hasMore": False}}
    assert complete(lambda value: [value + "!"], "a")["completion"]["values"] == ["a!"]
    assert complete(lambda value, filled: [value, *filled], "a", {"b": "c"})["completion"]["values"] == ["a", "b"]


def test_completion_is_limited_to_100_with_total() -> None:
    assert complete(lambda: HUNDRED)["completion"] == {"values": HUNDRED, "total": 100, "hasMore": False}
    more = [*HUNDRED, "x"]
    for propose in (lambda: more, lambda: Completion(more)):
        assert complete(propose)["completion"] == {"values": HUNDRED, "total": 101, "hasMore": True}


def test_completer_may_set_total() -> None:
    assert complete(lambda: Completion(["a"], 500, True))["completion"] == {
        "values": ["a"],
        "total": 500,
        "hasMore": True,
    }


def test_values_become_text() -> None:
    assert complete(lambda: (1, 2))["completion"]["values"] == ["1", "2"]


@pytest.mark.row("X15")
def test_labels_are_added_on_request() -> None:
    assert complete(lambda: ["a"], labelled=True) == {
        "completion": {"values": ["a"], "total": 1, "hasMore": False},
        "completions": [{"value": "a", "label": "a"}],
        "hasMore": False,
        "total": 1,
    }


def test_no_proposals_give_empty_result() -> None:
    assert empty_completion(False) == CompleteResult(Completion([], 0, False))
    assert msgspec.to_builtins(empty_completion(True))["completions"] == []


@pytest.mark.row("C03")
def test_proposals_may_have_labels() -> None:
    proposals = [("uk", "United Kingdom"), "fr", (1, "one")]
    assert complete(lambda: proposals)["completion"] == {"values": ["uk", "fr", "1"], "total": 3, "hasMore": False}
    for propose in (lambda: proposals, lambda: Completion(proposals, 3, False)):
        assert complete(propose, labelled=True)["completions"] == [
            {"value": "uk", "label": "United Kingdom"},
            {"value": "fr", "label": "fr"},
            {"value": "1", "label": "one"},
        ]


@pytest.mark.parametrize("value", ["abc", b"abc", None, 5, {"a": 1}])
def test_non_list_is_bad_result_that_names_the_completer(value: Any) -> None:
    def languages() -> Any:
        return value

    with pytest.raises(BadResult, match="completer 'languages' of argument 'language' in prompt 'review' must return "):
        complete(languages)


@pytest.mark.parametrize("value", [None, True, ["a"], ("a",), ("a", 1), ("a", "b", "c"), (None, "b"), {"value": "a"}])
def test_wrong_item_is_bad_result_that_names_the_completer(value: Any) -> None:
    def languages() -> Any:
        return ["good", value]

    with pytest.raises(BadResult, match=r"completer 'languages' .* pairs of a value and a label, in its list, not "):
        complete(languages)


def test_labelled_candidate_matches_by_value_or_label() -> None:
    known = [("gb", "United Kingdom"), ("us", "United States"), ("fr", "France")]
    assert matching("uni", known) == known[:2]
    assert matching("gb", known) == known[:1]
    assert matching("UNI", known) == known[:2]
    assert matching("dom", known) == known[:1]


def test_completer_with_three_parameters_is_refused() -> None:
    with pytest.raises(RegistrationError, match="must take the text so far and maybe a dict of arguments"):
        completer(lambda a, b, c=1: [])
