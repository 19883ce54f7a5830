"""Token endpoints: client authentication, and responses."""

from base64 import b64decode
from typing import Any

import pytest
from tests.unit.auth.auth_servers import AuthServers, servers
from tests.unit.auth.auth_setup import TOKEN, Page, RecordedRequest

from trunkline.auth import SigningKey
from trunkline.auth.client.dpop import Prover, generate_key
from trunkline.auth.client.token_endpoint import ClientIdentity, OAuthErrorResponse, TokenEndpoint, choose_auth_method
from trunkline.auth.fetch import Egress
from trunkline.auth.jose import decode_unverified, thumbprint, verify_with_key
from trunkline.auth.metadata import ServerMetadata
from trunkline.auth.ssrf import EgressPolicy
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed


def endpoint(there: AuthServers, prover: Prover | None = None) -> TokenEndpoint:
    egress = Egress(EgressPolicy.for_url(there.url, Settings()))
    metadata = ServerMetadata(issuer=there.issuer, token_endpoint=there.world.at(TOKEN))
    return TokenEndpoint(egress, metadata, prover, lambda: there.now)


FIELDS = {"grant_type": "client_credentials", "scope": None}


@pytest.mark.row("AUT-29")
@pytest.mark.parametrize(
    ("supported", "secret", "key", "method"),
    [
        (None, False, False, "none"),
        (None, True, False, "client_secret_basic"),
        (["client_secret_post", "client_secret_basic"], True, False, "client_secret_basic"),
        (["client_secret_post"], True, False, "client_secret_post"),
        (["none"], True, False, "none"),
        (["private_key_jwt"], True, False, "client_secret_basic"),
        (["none"], True, True, "private_key_jwt"),
    ],
)
def test_auth_method_follows_metadata(supported: Any, secret: bool, key: bool, method: str) -> None:
    metadata = ServerMetadata(issuer="i", token_endpoint_auth_methods_supported=supported)
    assert choose_auth_method(metadata, secret=secret, key=key) == method


@pytest.mark.row("AUT-29")
async def test_secret_is_sent_as_the_method_requires() -> None:
    async with servers() as there:
        for method in ("client_secret_basic", "client_secret_post", "none"):
            await endpoint(there).request_token(ClientIdentity("a:b c", method, "s%é&"), FIELDS)
        basic, post, none = there.exchanges

    assert b64decode((there.proofs[0] or "").removeprefix("Basic ")).decode() == "a%3Ab+c:s%25%C3%A9%26"
    assert "client_secret" not in basic
    assert (post["client_id"], post["client_secret"], there.proofs[1]) == ("a:b c", "s%é&", None)
    assert (none["client_id"], "client_secret" in none, there.proofs[2]) == ("a:b c", False, None)


async def test_key_signs_short_assertion_for_issuer() -> None:
    key = SigningKey.generate()
    async with servers() as there:
        for _ in range(2):
            await endpoint(there).request_token(ClientIdentity("me", "private_key_jwt", key=key), FIELDS)
        first, second = (verify_with_key(key.public, form["client_assertion"]).claims for form in there.exchanges)

    assert (first["iss"], first["sub"], first["aud"]) == ("me", "me", there.issuer)
    assert (first["iat"], first["exp"]) == (there.now, there.now + 300)
    assert first["jti"] != second["jti"]


@pytest.mark.parametrize(
    ("page", "error", "words"),
    [
        (Page(400, {"error": "invalid_grant", "error_description": "too\x1blate"}), "invalid_grant", r"refused: invalid_grant: too\\x1blate"),
        (Page(401, {"error": "invalid_client"}), "invalid_client", "refused: invalid_client"),
        (Page(200, {"error": "bad_verification_code"}), "bad_verification_code", "bad_verification_code"),
        (Page(404, "<h1>nothing</h1>"), "", "refused with HTTP 404"),
    ],
)  # fmt: skip
async def test_error_response_states_the_reason(page: Page, error: str, words: str) -> None:
    async with servers() as there:
        there.world.pages[TOKEN] = page
        with pytest.raises(OAuthErrorResponse, match=words) as failed:
            await endpoint(there).request_token(ClientIdentity("me"), FIELDS)
        assert (failed.value.error, failed.value.hop, failed.value.passing) == (error, "token", False)


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_server_error_may_pass(status: int) -> None:
    async with servers() as there:
        there.world.pages[TOKEN] = Page(status, {"error": "invalid_grant"})
        with pytest.raises(AuthorizationFailed) as failed:
            await endpoint(there).request_token(ClientIdentity("me"), FIELDS, hop="refresh")
        assert not isinstance(failed.value, OAuthErrorResponse)
        assert (failed.value.hop, failed.value.passing) == ("refresh", True)


async def test_secret_follows_no_redirect() -> None:
    async with servers() as there:
        there.world.pages[TOKEN] = Page(307, None, {"Location": "/elsewhere"})
        with pytest.raises(AuthorizationFailed):
            await endpoint(there).request_token(ClientIdentity("me", "client_secret_post", "s"), FIELDS)
        assert [asked.what for asked in there.world.asked] == [TOKEN]


async def test_missing_endpoint_is_reported() -> None:
    async with servers() as there:
        nowhere = TokenEndpoint(Egress(), ServerMetadata(issuer=there.issuer), None, lambda: 0.0)
        with pytest.raises(AuthorizationFailed, match="no token endpoint"):
            await nowhere.request_token(ClientIdentity("me"), FIELDS)


# --- DPoP ------------------------------------------------------------------------------------------


def test_proof_has_method_url_time_and_token() -> None:
    prover = Prover(SigningKey.generate(kid="k"), lambda: 1234.5)
    one, other = (prover.create_proof("POST", "https://a.example:8443/mcp?secret=1#x", "token") for _ in range(2))
    proof = verify_with_key(decode_unverified(one).header["jwk"], one)
    assert (proof.header["typ"], proof.header["alg"]) == ("dpop+jwt", "ES256")
    assert thumbprint(proof.header["jwk"]) == prover.key.thumbprint
    assert "d" not in proof.header["jwk"]
    jti = proof.claims.pop("jti")
    assert proof.claims == {
        "htm": "POST",
        "htu": "https://a.example:8443/mcp",
        "iat": 1234,
        "ath": "PEaenWxYddN6Q_NT1PiOYfz4EsZu7jRXRlpAsNpBU-A",
    }
    assert decode_unverified(other).claims["jti"] != jti
    assert "ath" not in decode_unverified(prover.create_proof("POST", "https://a.example")).claims


def test_latest_nonce_of_each_server_counts() -> None:
    prover = Prover(SigningKey.generate(), lambda: 0.0)
    first = prover.create_proof("GET", "https://a.example/x")
    assert not prover.has_newer_nonce(first, "https://a.example/x")
    prover.record_nonce("https://a.example/x", {"DPoP-Nonce": "1"})
    prover.record_nonce("https://b.example/x", {"DPoP-Nonce": "2"})
    prover.record_nonce("https://a.example/x", {"DPoP-Nonce": "x" * 5000})
    prover.record_nonce("https://a.example/x", {})
    second = prover.create_proof("GET", "https://a.example/y")
    assert [
        decode_unverified(prover.create_proof("GET", f"https://{name}.example")).claims.get("nonce") for name in "abc"
    ] == [
        "1",
        "2",
        None,
    ]
    assert [prover.has_newer_nonce(proof, "https://a.example/x") for proof in (first, second, None)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("known", "algorithm"), [(None, "ES256"), (["RS256", "ES256"], "ES256"), (["RS256", "PS256"], "PS256")]
)
def test_key_uses_supported_algorithm(known: Any, algorithm: str) -> None:
    assert generate_key(known).algorithm == algorithm


def test_unsupported_algorithms_are_reported() -> None:
    with pytest.raises(AuthorizationFailed, match="no DPoP algorithm"):
        generate_key(["none", "HS256"])


async def test_demanded_nonce_is_sent_in_new_proof() -> None:
    proofs: list[dict[str, Any]] = []

    def wants_nonce(asked: RecordedRequest) -> Page:
        proofs.append(decode_unverified(asked.headers["dpop"]).claims)
        if proofs[-1].get("nonce") != "n":
            return Page(400, {"error": "use_dpop_nonce"}, {"DPoP-Nonce": "n"})
        return Page(200, {"ok": 1})

    async with servers() as there:
        there.world.pages[TOKEN] = wants_nonce
        prover = Prover(SigningKey.generate(), lambda: there.now)
        await endpoint(there, prover).request_token(ClientIdentity("me"), FIELDS)
        await endpoint(there, prover).request_token(ClientIdentity("me"), FIELDS)
        assert [proof.get("nonce") for proof in proofs] == [None, "n", "n"]
        assert len({proof["jti"] for proof in proofs}) == 3


async def test_repeated_nonce_demand_fails() -> None:
    async with servers() as there:
        there.world.pages[TOKEN] = Page(400, {"error": "use_dpop_nonce"}, {"DPoP-Nonce": "n"})
        with pytest.raises(OAuthErrorResponse, match="use_dpop_nonce"):
            await endpoint(there, Prover(SigningKey.generate(), lambda: 0.0)).request_token(
                ClientIdentity("me"), FIELDS
            )
        assert len(there.world.asked) == 2
