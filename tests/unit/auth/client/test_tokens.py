"""Tokens: what is read, what is kept, what is never shown."""

import json
from typing import Any

import pytest

from trunkline.auth.client.registration import Registration
from trunkline.auth.client.token_endpoint import ClientIdentity
from trunkline.auth.client.tokens import (
    StoredToken,
    TokenResponse,
    decode_stored_token,
    encode_stored_token,
    read_token_response,
)
from trunkline.errors import AuthorizationFailed


def issued(**changes: Any) -> bytes:
    return json.dumps({"access_token": "SECRET", "token_type": "bearer", **changes}).encode()


def test_a_token_is_read_with_all_that_is_said_of_it() -> None:
    body = issued(expires_in=3600, refresh_token="more", scope="a b", id_token="x")
    assert read_token_response(body, hop="token") == TokenResponse("SECRET", "Bearer", 3600.0, "more", ("a", "b"))


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(None, None), ("60", 60), (0, None), (-5, None), ("soon", None), ("nan", None), (1e300, 315_360_000)],
)
def test_a_lifetime_that_makes_no_sense_says_nothing(said: Any, seconds: float | None) -> None:
    assert read_token_response(issued(expires_in=said), hop="token").lifetime == seconds


@pytest.mark.parametrize("kind", ["Bearer", "BEARER", "DPoP", "dpop"])
def test_kinds_of_tokens_are_known_in_any_case(kind: str) -> None:
    assert read_token_response(issued(token_type=kind), hop="token").token_type.lower() == kind.lower()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", issued(access_token=""), issued(access_token=None), issued(access_token="a b"), issued(access_token="a\r\nX: y"),
     issued(access_token=7), issued(token_type=None), issued(token_type="mac"), issued(token_type="N_A")],
)  # fmt: skip
def test_what_is_no_usable_token_is_refused(body: bytes) -> None:
    with pytest.raises(AuthorizationFailed) as failed:
        read_token_response(body, hop="refresh")
    assert (failed.value.hop, failed.value.clause) == ("refresh", "RFC 6749, section 5.1")
    assert "SECRET" not in str(failed.value)


def test_what_is_kept_is_read_again_and_what_is_not_ours_is_none() -> None:
    kept = StoredToken(
        issuer="i", client_id="c", access="SECRET", refresh="SECRET", expires=5.0, granted=("a",), key={"d": "SECRET"}
    )
    assert decode_stored_token(encode_stored_token(kept)) == kept
    assert [decode_stored_token(data) for data in (None, b"", b"{}", b"\xff", b"[" * 100_000)] == [None] * 5


@pytest.mark.row("AUT-27")
def test_no_secret_is_in_what_is_shown() -> None:
    secretive = [
        StoredToken(issuer="i", client_id="c", access="SECRET", refresh="SECRET", key={"d": "SECRET"}),
        TokenResponse("SECRET", "Bearer", refresh_token="SECRET"),
        ClientIdentity("c", "client_secret_basic", "SECRET"),
        Registration(client_id="c", redirect_uri="r", secret="SECRET"),
    ]
    assert "SECRET" not in repr(secretive)
