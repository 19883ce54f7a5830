"""Prefixes of names and URIs."""

from typing import Any

import pytest

from trunkline.errors import RegistrationError
from trunkline.registry.prefixes import Prefix, parse_prefix


@pytest.mark.parametrize(
    ("uri", "prefixed"),
    [
        ("notes://today", "notes://sky/today"),
        ("file:///etc/hosts", "file://sky//etc/hosts"),
        ("notes://", "notes://sky/"),
        ("urn:isbn:1", "urn:sky/isbn:1"),
        ("notes://{day}", "notes://sky/{day}"),
        ("a+b.c-d:x", "a+b.c-d:sky/x"),
    ],
)
def test_uri_prefix_can_be_stripped_again(uri: str, prefixed: str) -> None:
    assert Prefix("sky").add_to_uri(uri) == prefixed
    assert Prefix("sky").strip_uri(prefixed) == uri


@pytest.mark.parametrize("uri", ["notes://today", "notes://skyline/x", "sky/x", "notes://x/sky/y", ""])
def test_uri_of_another_server_has_no_prefix(uri: str) -> None:
    assert Prefix("sky").strip_uri(uri) is None


def test_name_prefix_ends_with_two_underscores() -> None:
    assert Prefix("sky").add_to_name("forecast") == "sky__forecast"


def test_empty_prefix_changes_nothing() -> None:
    empty = parse_prefix(None)

    assert not empty
    assert (empty.add_to_name("a"), empty.add_to_uri("{x}"), empty.strip_uri("b://c")) == ("a", "{x}", "b://c")


def test_template_without_a_scheme_cannot_have_a_prefix() -> None:
    with pytest.raises(RegistrationError, match=r"'\{scheme\}://x' cannot have the prefix 'sky'"):
        Prefix("sky").add_to_uri("{scheme}://x")


@pytest.mark.parametrize("prefix", ["", "a__b", "_a", "a_", "a/b", "a b", 1])
def test_invalid_prefix_is_refused(prefix: Any) -> None:
    with pytest.raises(RegistrationError, match="prefix= consists of letters"):
        parse_prefix(prefix)


@pytest.mark.parametrize("prefix", ["a", "my_server", "a.b-c", "2"])
def test_valid_prefix_is_accepted(prefix: str) -> None:
    assert parse_prefix(prefix) == Prefix(prefix)
