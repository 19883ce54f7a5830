"""Parsing and formatting of WWW-Authenticate."""

import pytest
from hypothesis import given
from hypothesis.strategies import dictionaries, from_regex, text

from trunkline.auth.challenge import Challenge, find_challenge, format_challenge, parse_challenges


@pytest.mark.row("AUT-07")
@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Bearer", [("bearer", {}, "")]),
        ('Bearer realm="a"', [("bearer", {"realm": "a"}, "")]),
        ('Bearer realm="a, b=c", Scope="x y"', [("bearer", {"realm": "a, b=c", "scope": "x y"}, "")]),
        (r'Bearer realm="a \"quoted\" \\ b"', [("bearer", {"realm": r'a "quoted" \ b'}, "")]),
        ("Bearer scope=a , error = invalid_token", [("bearer", {"scope": "a", "error": "invalid_token"}, "")]),
        ("Bearer resource_metadata=https://a/b?c=d, x=1", [("bearer", {"resource_metadata": "https://a/b?c=d", "x": "1"}, "")]),
        ('Basic realm="x", Bearer scope="a"', [("basic", {"realm": "x"}, ""), ("bearer", {"scope": "a"}, "")]),
        ('Negotiate, DPoP algs="ES256"', [("negotiate", {}, ""), ("dpop", {"algs": "ES256"}, "")]),
        ('Negotiate YWJj==, Bearer a="b"', [("negotiate", {}, "YWJj=="), ("bearer", {"a": "b"}, "")]),
        (', ,Bearer a="1",, b="2" ,', [("bearer", {"a": "1", "b": "2"}, "")]),
        ('Bearer a="1", A="2"', [("bearer", {"a": "1"}, "")]),
        ('Bearer a="never ends', [("bearer", {"a": "never ends"}, "")]),
        ("", []),
        ('"what"', []),
    ],
)  # fmt: skip
def test_challenges_are_parsed(header: str, found: list[tuple[str, dict[str, str], str]]) -> None:
    assert [(one.scheme, dict(one.params), one.token) for one in parse_challenges(header)] == found


def test_missing_scope_is_none() -> None:
    assert Challenge("bearer", {}).scopes is None
    assert Challenge("bearer", {"scope": ""}).scopes == ()
    assert Challenge("bearer", {"scope": "a  b"}).scopes == ("a", "b")


def test_first_present_scheme_is_found() -> None:
    challenges = parse_challenges('Bearer a="1", DPoP b="2", Bearer c="3"')
    assert find_challenge(challenges, "dpop", "bearer") == challenges[1]
    assert find_challenge(challenges, "bearer") == challenges[0]
    assert find_challenge(challenges, "basic") is None


@given(dictionaries(from_regex(r"[a-z_]{1,12}", fullmatch=True), text(alphabet=[chr(n) for n in range(0x20, 0x7F)])))
def test_formatted_challenge_parses_back(params: dict[str, str]) -> None:
    assert [(one.scheme, dict(one.params)) for one in parse_challenges(format_challenge("Bearer", params))] == [
        ("bearer", params)
    ]


def test_unprintable_characters_are_replaced() -> None:
    assert (
        format_challenge("Bearer", {"error": "a\r\nSet-Cookie: b\x00ü", "scope": None})
        == 'Bearer error="a??Set-Cookie: b??"'
    )
    assert format_challenge("Bearer", {"scope": None}) == "Bearer"


@given(text())
def test_any_header_is_parsed_without_error(header: str) -> None:
    assert isinstance(parse_challenges(header), list)


@pytest.mark.parametrize("piece", ["a ", "a=", '"', "\\", "a,", 'a="', "a b=c,", " ", ","])
def test_endless_header_is_parsed_quickly(piece: str) -> None:
    assert isinstance(parse_challenges("Bearer " + piece * 200_000), list)
