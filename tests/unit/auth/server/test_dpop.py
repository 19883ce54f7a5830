"""Verification of DPoP proofs."""

import base64
import hashlib
from functools import partial
from itertools import count
from typing import Any

import pytest

from trunkline.auth.jose import SigningKey
from trunkline.auth.server import dpop
from trunkline.auth.server.dpop import BadProof, NonceRequired, ProofVerifier
from trunkline.auth.server.dpop_replay import ReplayMemory, TooManyProofs

NOW = 1_000_000.0
URL = "https://notes.example.com/mcp"
TOKEN = "a-token"
KEY = SigningKey.generate()
_ids = count()


def made_for(
    key: SigningKey,
    token: str,
    method: str,
    url: str,
    *,
    now: float,
    header: dict[str, Any] | None = None,
    **claims: Any,
) -> str:
    """A proof for one request; None omits a claim."""
    ath = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()
    usual = {"htm": method, "htu": url, "iat": now, "jti": f"id-{next(_ids)}", "ath": ath}
    said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return key.sign(said, {"typ": "dpop+jwt", "jwk": key.public, **(header or {})})


def made(key: SigningKey = KEY, header: dict[str, Any] | None = None, **claims: Any) -> str:
    return made_for(key, TOKEN, "POST", URL, now=NOW, header=header, **claims)


def check(known: ProofVerifier, proof: str, *, now: float = NOW, url: str = URL) -> None:
    known.check(proof, key=KEY.thumbprint, method="POST", url=url, token=TOKEN, now=now)


def test_proof_is_accepted_once() -> None:
    known, proof = ProofVerifier(), made()
    check(known, proof)
    with pytest.raises(BadProof, match="used before"):
        check(known, proof)
    check(known, made())


@pytest.mark.parametrize(
    "htu", [f"{URL}/", f"{URL}?x=1#y", "https://NOTES.example.com:443/mcp", "wss://notes.example.com/mcp"]
)
def test_equivalent_urls_are_accepted(htu: str) -> None:
    check(ProofVerifier(), made(htu=htu))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"htm": "GET"}, "another method"),
        ({"htu": "https://other.example.com/mcp"}, "another address"),
        ({"htu": "http://notes.example.com/mcp"}, "another address"),
        ({"htu": "https://notes.example.com/mcp/deeper"}, "another address"),
        ({"htu": "https://[::1/"}, "another address"),
        ({"htu": None}, "another address"),
        ({"ath": "x"}, "another token"),
        ({"ath": None}, "another token"),
        ({"iat": NOW - 301}, "too long ago"),
        ({"iat": NOW + 31}, "the future"),
        ({"iat": True}, "too long ago"),
        ({"iat": None}, "too long ago"),
        ({"jti": None}, "no jti"),
        ({"jti": ""}, "no jti"),
        ({"jti": "x" * 513}, "no jti"),
    ],
    ids=str,
)
def test_proof_is_for_one_request(claims: dict[str, Any], why: str) -> None:
    with pytest.raises(BadProof, match=why):
        check(ProofVerifier(), made(**claims))


def test_proof_key_must_match_token() -> None:
    other = SigningKey.generate()
    with pytest.raises(BadProof, match="another key"):
        check(ProofVerifier(), made(other))
    with pytest.raises(BadProof, match="cannot be verified"):
        check(ProofVerifier(), made(other, {"jwk": KEY.public}))


@pytest.mark.parametrize(
    "proof",
    ["nonsense", made(header={"typ": "JWT"}), made(header={"jwk": {"kty": "oct", "k": "c2VjcmV0"}}), KEY.sign({})],
    ids=["nonsense", "another kind", "a shared key", "no key"],
)
def test_malformed_proof_is_refused(proof: str) -> None:
    with pytest.raises(BadProof, match=r"no DPoP proof|cannot be verified"):
        check(ProofVerifier(), proof)


def test_shared_secret_gives_shared_nonces_despite_skew() -> None:
    one, ahead = ProofVerifier(nonces=True, secret=b"s" * 32), ProofVerifier(nonces=True, secret=b"s" * 32)
    check(one, made(nonce=ahead.nonce(NOW)))
    check(one, made(nonce=ahead.nonce(NOW + 250)))
    with pytest.raises(NonceRequired):
        check(one, made(nonce=ProofVerifier(nonces=True).nonce(NOW)))


def test_nonce_must_be_present_and_fresh() -> None:
    known = ProofVerifier(nonces=True)
    with pytest.raises(NonceRequired):
        check(known, made())
    nonce = known.nonce(NOW)
    check(known, made(nonce=nonce))
    check(known, made(nonce=nonce, iat=NOW + 301), now=NOW + 301)  # the previous one is valid for as long again
    with pytest.raises(NonceRequired):
        check(known, made(nonce=nonce, iat=NOW + 602), now=NOW + 602)
    assert ProofVerifier().nonce(NOW) is None


def test_busy_key_does_not_affect_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpop, "ReplayMemory", partial(ReplayMemory, max_per_key=2))
    known, other = ProofVerifier(), SigningKey.generate()
    check(known, made())
    check(known, made())
    with pytest.raises(TooManyProofs):
        check(known, made())
    known.check(made(other), key=other.thumbprint, method="POST", url=URL, token=TOKEN, now=NOW)
    check(known, made(iat=NOW + 301), now=NOW + 301)
