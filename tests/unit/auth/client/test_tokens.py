"""Tokens: parsing, storage, and redaction."""

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


def test_token_response_is_decoded() -> None:
    body = issued(expires_in=3600, refresh_token="more", scope="a b", id_token="x")
    assert read_token_response(body, hop="token") == TokenResponse("SECRET", "Bearer", 3600.0, "more", ("a", "b"))


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(None, None), ("60", 60), (0, None), (-5, None), ("soon", None), ("nan", None), (1e300, 315_360_000)],
)
def test_invalid_lifetime_is_ignored(said: Any, seconds: float | None) -> None:
    assert read_token_response(issued(expires_in=said), hop="token").lifetime == seconds


@pytest.mark.parametrize("kind", ["Bearer", "BEARER", "DPoP", "dpop"])
def test_token_types_ignore_case(kind: str) -> None:
    assert read_token_response(issued(token_type=kind), hop="token").token_type.lower() == kind.lower()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", issued(access_token=""), issued(access_token=None), issued(access_token="a b"), issued(access_token="a\r\nX: y"),
     issued(access_token=7), issued(token_type=None), issued(token_type="mac"), issued(token_type="N_A")],
)  # fmt: skip
def test_unusable_token_is_refused(body: bytes) -> None:
    with pytest.raises(AuthorizationFailed) as failed:
        read_token_response(body, hop="refresh")
    assert (failed.value.hop, failed.value.clause) == ("refresh", "RFC 6749, section 5.1")
    assert "SECRET" not in str(failed.value)


def test_stored_token_round_trip() -> None:
    kept = StoredToken(
        issuer="i", client_id="c", access="SECRET", refresh="SECRET", expires=5.0, granted=("a",), key={"d": "SECRET"}
    )
    assert decode_stored_token(encode_stored_token(kept)) == kept
    assert [decode_stored_token(data) for data in (None, b"", b"{}", b"\xff", b"[" * 100_000)] == [None] * 5


@pytest.mark.row("AUT-27")
def test_repr_has_no_secrets() -> None:
    secretive = [
        StoredToken(issuer="i", client_id="c", access="SECRET", refresh="SECRET", key={"d": "SECRET"}),
        TokenResponse("SECRET", "Bearer", refresh_token="SECRET"),
        ClientIdentity("c", "client_secret_basic", "SECRET"),
        Registration(client_id="c", redirect_uri="r", secret="SECRET"),
    ]
    assert "SECRET" not in repr(secretive)
