"""Claims of an access token: validation, and its principal."""

from typing import Any

import pytest

from trunkline.auth.server.claims import ClaimRules, scopes_of, validate_claims
from trunkline.auth.server.verifiers import BadToken

NOW = 1_000_000.0
US = "https://notes.example.com/mcp"
RULES = ClaimRules("https://login.example.com", frozenset({US, f"{US}/"}), leeway=30)
GOOD: dict[str, Any] = {"iss": RULES.issuer, "aud": US, "sub": "ada", "exp": NOW + 60, "iat": NOW}


def refused(claims: dict[str, Any], header: dict[str, Any] | None = None, rules: ClaimRules = RULES) -> BadToken:
    with pytest.raises(BadToken) as caught:
        validate_claims(header or {}, claims, rules, NOW)
    return caught.value


def test_valid_claims_give_principal() -> None:
    verified = validate_claims(
        {"typ": "at+jwt"}, {**GOOD, "client_id": "app", "scope": "a b", "tenant": "t"}, RULES, NOW
    )
    who = verified.principal
    assert (who.subject, who.issuer, who.client) == ("ada", RULES.issuer, "app")
    assert who.scopes == {"a", "b"}
    assert who.claims["tenant"] == "t"
    assert verified.expires == NOW + 90  # until it has expired by both clocks
    assert verified.key is None


@pytest.mark.row("AUT-23")
@pytest.mark.parametrize("name", ["iss", "aud", "sub", "exp"])
def test_issuer_audience_and_expiry_are_required(name: str) -> None:
    assert refused({key: value for key, value in GOOD.items() if key != name}).kind == "invalid_token"


@pytest.mark.row("AUT-23", "SEC-01")
@pytest.mark.parametrize(
    "changed",
    [
        {"iss": "https://login.example.com/"},
        {"aud": "https://other.example.com"},
        {"aud": ["https://other.example.com", 5]},
        {"aud": f"{US}/deeper"},
        {"sub": ""},
        {"sub": 5},
        {"exp": "soon"},
        {"exp": True},
        {"exp": float("inf")},
        {"nbf": NOW + 31},
        {"iat": NOW + 31},
        {"cnf": {"x5t#S256": "x"}},
        {"cnf": {"jwk": {}}},
        {"cnf": {"jkt": "x", "x5t#S256": "y"}},
        {"cnf": "x"},
    ],
    ids=str,
)
def test_token_of_other_audience_or_time_is_refused(changed: dict[str, Any]) -> None:
    assert refused({**GOOD, **changed}).kind == "invalid_token"


@pytest.mark.row("AUT-23")
def test_expired_token_is_refused_after_leeway() -> None:
    validate_claims({}, {**GOOD, "exp": NOW - 29}, RULES, NOW)
    assert refused({**GOOD, "exp": NOW - 30}).kind == "token_expired"


def test_one_matching_audience_suffices() -> None:
    validate_claims({}, {**GOOD, "aud": ["https://other.example.com", f"{US}/"]}, RULES, NOW)


@pytest.mark.parametrize(
    ("header", "more"),
    [
        ({"typ": "JWT"}, {"nonce": "n"}),
        ({}, {"at_hash": "h"}),
        ({}, {"token_use": "id"}),
        ({"typ": "JWT"}, {"typ": "ID"}),
        ({"typ": "JWT"}, {"typ": "Refresh"}),
        ({"typ": "dpop+jwt"}, {}),
        ({"typ": "logout+jwt"}, {}),
    ],
    ids=str,
)
def test_token_for_another_purpose_is_refused(header: dict[str, Any], more: dict[str, Any]) -> None:
    assert "token is" in refused({**GOOD, **more}, header).why


@pytest.mark.parametrize(
    ("header", "more"),
    [({"typ": "application/at+jwt"}, {"nonce": "n"}), ({"typ": "JWT"}, {"typ": "Bearer", "nonce": "n"})],
    ids=["by its header", "as Keycloak has it"],
)
def test_access_token_may_have_a_nonce(header: dict[str, Any], more: dict[str, Any]) -> None:
    assert validate_claims(header, {**GOOD, **more}, RULES, NOW).principal.subject == "ada"


@pytest.mark.parametrize(
    "claims",
    [
        {"scope": "a b"},
        {"scp": ["a", "b"]},
        {"scp": "a b"},
        {"scope": ["a", 5], "scp": "b"},
        {"scope": "a", "scp": "b"},
    ],
    ids=str,
)
def test_scopes_are_a_string_or_a_list(claims: dict[str, Any]) -> None:
    assert scopes_of(claims) == {"a", "b"}


@pytest.mark.parametrize("name", ["client_id", "azp", "cid", "appid"])
def test_client_claim_has_several_names(name: str) -> None:
    assert validate_claims({}, {**GOOD, name: "app"}, RULES, NOW).principal.client == "app"


def test_bound_key_is_read() -> None:
    assert validate_claims({}, {**GOOD, "cnf": {"jkt": "print"}}, RULES, NOW).key == "print"


def test_missing_audience_needs_listed_client() -> None:
    rules = ClaimRules(RULES.issuer, RULES.audiences, clients_without_audience={"app"})
    silent = {**GOOD, "aud": None, "client_id": "app"}
    assert validate_claims({}, silent, rules, NOW).principal.client == "app"
    refused({**silent, "client_id": "other"}, rules=rules)
    refused({**silent, "aud": "https://other.example.com"}, rules=rules)
