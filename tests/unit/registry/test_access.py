"""Access rules of entries: evaluation, and invalid rules."""

from typing import Any

import pytest

from trunkline.errors import RegistrationError
from trunkline.registry.access import Access, is_scope, parse_access


def nobody(_: object) -> bool:
    return False


def test_empty_scopes_are_explicit_rule() -> None:
    assert parse_access("it", None, None) is None
    assert parse_access("it", (), None) == Access((), None)
    assert parse_access("it", None, nobody) == Access((), nobody)


def test_scopes_are_unique_and_ordered() -> None:
    assert parse_access("it", ["b", "a", "b"], None) == Access(("b", "a"), None)


@pytest.mark.parametrize(
    ("access", "is_open"), [(Access(), True), (Access(("a",)), False), (Access(allow=nobody), False)]
)
def test_rule_without_requirements_is_unrestricted(access: Access, is_open: bool) -> None:
    assert access.unrestricted is is_open


@pytest.mark.parametrize(
    ("held", "enough"), [(None, True), ({"a", "b", "c"}, True), ({"a", "b"}, True), ({"a"}, False), (set(), False)]
)
def test_all_scopes_are_needed(held: set[str] | None, enough: bool) -> None:
    assert Access(("a", "b")).is_covered_by(None if held is None else frozenset(held)) is enough


@pytest.mark.parametrize("scope", ["a", "notes:write", "https://example.com/a.b", "!", "~", "#[]"])
def test_scope_is_an_oauth_scope_token(scope: str) -> None:
    assert is_scope(scope)


@pytest.mark.parametrize("scope", ["", " ", "a b", 'a"', "a\\", "ä", "a\n", "\x7f", None, 1])
def test_illegal_characters_make_invalid_scope(scope: Any) -> None:
    assert not is_scope(scope)
    with pytest.raises(RegistrationError, match="is no scope, which is a text without spaces and quotes"):
        parse_access("tool 'x'", [scope], None)


def test_invalid_rule_is_refused_with_reason() -> None:
    with pytest.raises(RegistrationError, match=r"tool 'x': scopes is a list of scopes; write scopes=\['a'\]"):
        parse_access("tool 'x'", "a", None)
    with pytest.raises(RegistrationError, match="tool 'x': allow is a function of the context, not True"):
        parse_access("tool 'x'", None, True)  # type: ignore[arg-type]
