"""Signing and verification keys; and invalid proofs."""

import base64
import hashlib
import hmac
import json
import subprocess
import sys
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline.auth.jose import (
    ALGORITHMS,
    BadSignature,
    KeySet,
    MalformedJws,
    SigningKey,
    UnknownKey,
    decode_unverified,
    thumbprint,
    verify_with_key,
)
from trunkline.errors import ConfigError

CLAIMS = {"sub": "ada", "n": 1}


def published(*keys: Any) -> KeySet:
    return KeySet(json.dumps({"keys": [key.public if isinstance(key, SigningKey) else key for key in keys]}).encode())


def packed(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def pem_of(key: SigningKey) -> bytes:
    from joserfc.jwk import JWKRegistry

    jwk = {name: value for name, value in key.to_jwk().items() if name not in {"alg", "kid"}}
    return JWKRegistry.import_key(jwk).as_pem(private=True)  # type: ignore[union-attr]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_public_key_verifies_signature(algorithm: str) -> None:
    key = SigningKey.generate(algorithm, kid="one")
    token = key.sign(CLAIMS, {"typ": "at+jwt"})
    signed = published(key).verify(token)
    assert signed.claims == CLAIMS
    assert signed.header == {"alg": algorithm, "kid": "one", "typ": "at+jwt"}
    assert verify_with_key(key.public, token) == signed == decode_unverified(token)


@pytest.mark.parametrize("algorithm", ["RS256", "ES384", "EdDSA"])
def test_key_is_exported_and_imported(algorithm: str) -> None:
    key = SigningKey.generate(algorithm, kid="one")
    again = SigningKey.from_jwk(key.to_jwk())
    read = SigningKey.from_pem(pem_of(key), algorithm, kid="one")
    assert again.public == read.public == key.public
    assert again.thumbprint == read.thumbprint == thumbprint(key.public)
    assert published(key).verify(again.sign(CLAIMS)).claims == CLAIMS


def test_thumbprint_follows_rfc_7638() -> None:
    modulus = (
        "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMs"
        "tn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajr"
        "n1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
    )
    jwk = {"kty": "RSA", "n": modulus, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"}
    assert thumbprint(jwk) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"


def test_repr_has_no_private_parts() -> None:
    key = SigningKey.generate()
    assert "d" not in key.public
    assert key.to_jwk()["d"] not in repr(key)


def test_signature_of_another_key_is_refused() -> None:
    ours, theirs = SigningKey.generate(kid="one"), SigningKey.generate(kid="one")
    with pytest.raises(BadSignature):
        published(ours).verify(theirs.sign(CLAIMS))
    with pytest.raises(BadSignature):
        verify_with_key(ours.public, theirs.sign(CLAIMS))


def test_changed_token_is_refused() -> None:
    key = SigningKey.generate(kid="one")
    header, _, signature = key.sign(CLAIMS).split(".")
    with pytest.raises(BadSignature):
        published(key).verify(f"{header}.{packed({'sub': 'eve'})}.{signature}")


def test_unknown_key_differs_from_wrong_signature() -> None:
    known, unknown = SigningKey.generate(kid="one"), SigningKey.generate(kid="two")
    with pytest.raises(UnknownKey):
        published(known).verify(unknown.sign(CLAIMS))


def test_keys_without_kid_are_tried() -> None:
    nameless, named = SigningKey.generate(), SigningKey.generate(kid="two")
    keys = published(named, nameless)
    assert keys.verify(nameless.sign(CLAIMS)).claims == CLAIMS
    assert keys.verify(nameless.sign(CLAIMS, {"kid": "made-up"})).claims == CLAIMS
    with pytest.raises(UnknownKey):
        keys.verify(SigningKey.generate().sign(CLAIMS))


def test_none_and_symmetric_algorithms_are_refused() -> None:
    key = SigningKey.generate("RS256", kid="one")
    keys = published(key)
    none = f"{packed({'alg': 'none', 'kid': 'one'})}.{packed(CLAIMS)}."
    with pytest.raises(MalformedJws):
        keys.verify(none)
    with pytest.raises(MalformedJws):
        verify_with_key(key.public, none)
    body = f"{packed({'alg': 'HS256', 'kid': 'one'})}.{packed(CLAIMS)}"
    for secret in (key.public["n"].encode(), pem_of(key)):  # a public value as a shared secret
        forged = f"{body}.{packed(hmac.new(secret, body.encode(), hashlib.sha256).digest())}"
        with pytest.raises(MalformedJws):
            keys.verify(forged, ["HS256", "RS256"])


def test_signing_with_alg_none_is_refused() -> None:
    from joserfc.errors import UnsupportedAlgorithmError

    with pytest.raises(UnsupportedAlgorithmError):
        SigningKey.generate().sign(CLAIMS, {"alg": "none"})


def test_missing_library_names_the_extra() -> None:
    program = """
import sys
sys.modules["joserfc"] = None
from trunkline.auth import ResourceServer, StaticTokens, Principal
ResourceServer(StaticTokens({"a": Principal("b")})).within("/")
try:
    from trunkline.auth import Jwt
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "pip install 'trunkline[auth]'" in done.stdout


def test_algorithm_must_be_allowed_and_fit_the_key() -> None:
    key = SigningKey.generate("RS256", kid="one")
    with pytest.raises(MalformedJws):
        published(key).verify(key.sign(CLAIMS), ["ES256"])
    for_another = {**key.public, "alg": "RS512"}
    with pytest.raises(BadSignature):
        published(for_another).verify(key.sign(CLAIMS))


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "..",
        f"{packed([])}.{packed({})}.",
        f"{packed({'kid': 'x'})}.{packed({})}.",
        "é.é.é",
    ],
)
def test_malformed_token_is_refused(token: str) -> None:
    keys = published(SigningKey.generate())
    for read in (keys.verify, decode_unverified, lambda text: verify_with_key(SigningKey.generate().public, text)):
        with pytest.raises(MalformedJws):
            read(token)


def test_payload_must_be_an_object() -> None:
    from joserfc import jws
    from joserfc.jwk import ECKey

    key = SigningKey.generate()
    token = jws.serialize_compact({"alg": "ES256"}, b"[1]", ECKey.import_key(key.to_jwk()))
    with pytest.raises(MalformedJws):
        published(key).verify(token)


def test_unknown_critical_header_is_refused() -> None:
    key = SigningKey.generate(kid="one")
    strange = f"{packed({'alg': 'ES256', 'kid': 'one', 'crit': ['strange'], 'strange': 1})}.{packed(CLAIMS)}.AAAA"
    with pytest.raises(MalformedJws):
        published(key).verify(strange)


def test_unusable_keys_are_skipped() -> None:
    good = SigningKey.generate(kid="good")
    weak = {"kty": "RSA", "kid": "weak", "n": "AQAB" * 32, "e": "AQAB"}
    bad = [
        weak,
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC"},
        {"kty": "new"},
        {**SigningKey.generate().public, "use": "enc"},
        SigningKey.generate().to_jwk(),  # a published private key
        "nonsense",
    ]
    keys = published(*bad, good)
    assert len(keys) == 1
    assert keys.verify(good.sign(CLAIMS)).claims == CLAIMS


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff"])
def test_malformed_key_set_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedJws):
        KeySet(body)


def test_private_or_symmetric_proof_key_is_refused() -> None:
    key = SigningKey.generate()
    for jwk in (key.to_jwk(), {"kty": "oct", "k": "c2VjcmV0"}):
        with pytest.raises(MalformedJws):
            verify_with_key(jwk, key.sign(CLAIMS))
    with pytest.raises(MalformedJws):
        thumbprint({"kty": "oct", "k": "c2VjcmV0"})


def test_unusable_signing_key_is_refused_and_not_shown() -> None:
    key = SigningKey.generate("ES256")
    with pytest.raises(ConfigError, match="no private key for ES384"):
        SigningKey.from_pem(pem_of(key), "ES384")
    with pytest.raises(ConfigError, match="no private key for RS256"):
        SigningKey.from_pem("-----BEGIN nothing-----", "RS256")
    with pytest.raises(ConfigError, match="not a private key"):
        SigningKey.from_jwk({**key.public, "alg": "ES256"})
    with pytest.raises(ConfigError, match="'HS256' is not an algorithm"):
        SigningKey.generate("HS256")
