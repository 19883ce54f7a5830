"""Names of the entries of a group."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.client.group.names import (
    MAX_NAME,
    alter_name,
    is_altered,
    join_name,
    join_uri,
    make_prefix,
    split_name,
    split_uri,
)

PROVIDERS = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAMES = st.text(min_size=1, max_size=80) | st.from_regex(r"[a-c_-]{1,6}", fullmatch=True)


def test_usual_names_stay_readable() -> None:
    assert join_name("weather", "forecast") == "weather__forecast"
    assert join_uri("my_weather", "file:///today") == "my.weather+file:///today"


@pytest.mark.parametrize("name", ["fs.read", "a b", "x" * 80, "größe", ""])
def test_name_that_providers_reject_is_altered(name: str) -> None:
    altered = join_name("files", name)
    assert PROVIDERS.fullmatch(altered)
    assert is_altered(altered)


def test_altered_name_begins_like_the_original() -> None:
    assert join_name("files", "fs.read").startswith("files__fs_read-")


@given(NAMES, NAMES)
def test_every_name_in_a_group_is_accepted_by_providers(member: str, name: str) -> None:
    assert PROVIDERS.fullmatch(join_name(make_prefix(member), name))


@given(NAMES, NAMES)
def test_name_is_split_at_the_end_of_its_prefix(member: str, name: str) -> None:
    prefix = make_prefix(member)
    assert split_name(join_name(prefix, name)) == (prefix, alter_name(name, MAX_NAME - len(prefix) - 2))


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_names_of_different_entries_differ(one: tuple[str, str], other: tuple[str, str]) -> None:
    joined = {join_name(make_prefix(member), name) for member, name in (one, other)}
    assert len(joined) == len({one, other})


def test_name_like_an_altered_one_is_altered_too() -> None:
    altered = alter_name("fs.read")
    assert alter_name(altered) not in {altered, "fs.read"}


@pytest.mark.parametrize("member", ["a__b", "a_", "_a", "a b", "x" * 30, "io.github.x/y", "ä"])
def test_prefix_has_no_separator(member: str) -> None:
    prefix = make_prefix(member)
    assert "__" not in f"{prefix}x"
    assert not prefix.endswith("_")
    assert len(prefix) <= 24
    assert is_altered(prefix)


def test_prefix_like_an_altered_one_is_altered_too() -> None:
    assert make_prefix(make_prefix("a b")) != make_prefix("a b")


@given(NAMES, st.sampled_from(["file:///a+b", "x:y", "http://h/?q=__"]))
def test_uri_is_split_at_the_end_of_its_prefix(member: str, uri: str) -> None:
    prefix = make_prefix(member)
    assert split_uri(join_uri(prefix, uri)) == (prefix.lower(), uri)


def test_name_and_uri_without_a_prefix() -> None:
    assert split_name("forecast") == ("", "forecast")
    assert split_uri("file:///a") == ("", "file:///a")
