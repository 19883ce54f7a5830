"""Metadata: its location, and its validation."""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from trunkline.auth.metadata import (
    AssumedMetadata,
    ResourceMetadata,
    ServerMetadata,
    canonical_resource,
    covers,
    fallback_metadata,
    read_resource_metadata,
    read_self_issued_metadata,
    read_server_metadata,
    require_pkce,
    resource_metadata_urls,
    root_metadata_url,
    server_metadata_urls,
)
from trunkline.auth.server.resource_url import metadata_paths
from trunkline.errors import AuthorizationFailed
from trunkline.wire import codec

URL = "https://notes.example/mcp"
ISSUER = "https://login.example"


def resource(**changes: Any) -> bytes:
    return json.dumps({"resource": URL, "authorization_servers": [ISSUER], **changes}).encode()


def server(**changes: Any) -> bytes:
    return json.dumps({"issuer": ISSUER, "token_endpoint": f"{ISSUER}/token", **changes}).encode()


# --- location --------------------------------------------------------------------------------------


@pytest.mark.row("AUT-06")
@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("https://a.example/mcp", ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"]),
        ("https://a.example/x/mcp/", ["/.well-known/oauth-protected-resource/x/mcp", "/.well-known/oauth-protected-resource"]),
        ("https://a.example/", ["/.well-known/oauth-protected-resource"]),
        ("https://a.example", ["/.well-known/oauth-protected-resource"]),
        ("https://a.example/mcp?tenant=1", ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"]),
    ],
)  # fmt: skip
def test_resource_urls_with_path_then_without(url: str, places: list[str]) -> None:
    assert list(resource_metadata_urls(url)) == [f"https://a.example{place}" for place in places]


@pytest.mark.row("AUT-05")
@pytest.mark.parametrize("path", ["/mcp", "/", "/x/mcp"])
def test_server_publishes_at_all_client_urls(path: str) -> None:
    looked_at = {urlsplit(url).path for url in resource_metadata_urls(f"https://a.example{path}")}
    assert looked_at <= metadata_paths(path, None)


@pytest.mark.row("AUT-09")
@pytest.mark.parametrize(
    ("issuer", "places"),
    [
        ("https://a.example", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]),
        ("https://a.example/", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]),
        (
            "https://a.example/tenant/1/",
            [
                "/.well-known/oauth-authorization-server/tenant/1",
                "/.well-known/openid-configuration/tenant/1",
                "/tenant/1/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_server_metadata_urls_follow_the_specification(issuer: str, places: list[str]) -> None:
    assert list(server_metadata_urls(issuer)) == [f"https://a.example{place}" for place in places]


@pytest.mark.row("AUT-02")
def test_2025_03_26_defaults_are_at_the_root() -> None:
    found = fallback_metadata("https://a.example:8443/deep/mcp")
    assert found.issuer == "https://a.example:8443"
    ends = (found.authorization_endpoint, found.token_endpoint, found.registration_endpoint)
    assert ends == tuple(f"https://a.example:8443/{name}" for name in ("authorize", "token", "register"))
    assert root_metadata_url("https://a.example/mcp") == "https://a.example/.well-known/oauth-authorization-server"


# --- validation ------------------------------------------------------------------------------------


@pytest.mark.row("AUT-07")
@pytest.mark.parametrize(
    "named", [URL, "https://NOTES.example:443/mcp", f"{URL}/", "https://notes.example", "https://notes.example/"]
)
def test_covering_resource_is_accepted_as_published(named: str) -> None:
    assert read_resource_metadata(resource(resource=named), URL).resource == named


@pytest.mark.row("AUT-07")
@pytest.mark.parametrize(
    "named",
    ["https://evil.example/mcp", "http://notes.example/mcp", "https://notes.example:8443/mcp", "https://notes.example/mc",
     "https://notes.example/mcp/more", "https://notes.example/other", f"{URL}#x", "notes", "https://notes.example@evil.example/mcp"],
)  # fmt: skip
def test_resource_of_another_server_is_refused(named: str) -> None:
    with pytest.raises(AuthorizationFailed, match="is for") as failed:
        read_resource_metadata(resource(resource=named), URL)
    assert failed.value.hop == "resource-metadata"
    assert failed.value.clause.startswith("RFC 9728, section 3.3")


@pytest.mark.row("AUT-03")
@pytest.mark.parametrize("named", [[], None])
def test_resource_without_issuer_is_refused(named: Any) -> None:
    with pytest.raises(AuthorizationFailed, match="names no authorization server"):
        read_resource_metadata(resource(authorization_servers=named), URL)


@pytest.mark.row("AUT-24")
@pytest.mark.parametrize(
    "issuer", ["http://login.example", "file:///etc/passwd", "javascript:alert(1)", "https://a.example/#b"]
)
def test_insecure_authorization_server_is_refused(issuer: str) -> None:
    with pytest.raises(AuthorizationFailed, match="an authorization server") as failed:
        read_resource_metadata(resource(authorization_servers=[issuer]), URL)
    assert failed.value.hop == "resource-metadata"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"resource": 1}', b"[" * 100_000])
def test_malformed_metadata_is_refused(body: bytes) -> None:
    for read, hop in (
        (read_resource_metadata, "resource-metadata"),
        (read_server_metadata, "authorization-server-metadata"),
    ):
        with pytest.raises(AuthorizationFailed, match="cannot be read") as failed:
            read(body, URL)
        assert failed.value.hop == hop


@pytest.mark.row("AUT-10")
@pytest.mark.parametrize(
    "issuer", [f"{ISSUER}/", "https://LOGIN.example", "https://login.example:443", "https://honest.example"]
)
def test_issuers_compare_as_strings(issuer: str) -> None:
    with pytest.raises(AuthorizationFailed, match="and not of") as failed:
        read_server_metadata(server(issuer=issuer), ISSUER)
    assert (failed.value.hop, failed.value.clause) == ("authorization-server-metadata", "RFC 8414, section 3.3")
    assert read_server_metadata(server(), ISSUER).issuer == ISSUER


@pytest.mark.row("AUT-02")
@pytest.mark.parametrize("issuer", ["https://notes.example", "https://notes.example/", "https://notes.example/oauth"])
def test_self_issued_issuer_may_differ_in_spelling(issuer: str) -> None:
    assert read_self_issued_metadata(server(issuer=issuer), URL).issuer == issuer


@pytest.mark.row("AUT-02")
def test_self_issued_metadata_of_another_origin_is_refused() -> None:
    with pytest.raises(AuthorizationFailed, match="and not of"):
        read_self_issued_metadata(server(), URL)


@pytest.mark.row("AUT-24")
@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "registration_endpoint"])
def test_endpoints_must_be_https(name: str) -> None:
    with pytest.raises(AuthorizationFailed, match=f"{name} must be https") as failed:
        read_server_metadata(server(**{name: "http://login.example/x"}), ISSUER)
    assert failed.value.hop == "authorization-server-metadata"


@pytest.mark.row("AUT-16")
@pytest.mark.parametrize("methods", [None, [], ["plain"], ["s256"]])
def test_missing_s256_is_refused(methods: Any) -> None:
    with pytest.raises(AuthorizationFailed, match="PKCE") as failed:
        require_pkce(read_server_metadata(server(code_challenge_methods_supported=methods), ISSUER))
    assert failed.value.hop == "authorization-server-metadata"


@pytest.mark.row("AUT-16")
def test_s256_suffices_and_assumption_cannot_be_published() -> None:
    require_pkce(ServerMetadata(issuer=ISSUER, code_challenge_methods_supported=("plain", "S256")))
    require_pkce(fallback_metadata(URL))
    assert not isinstance(read_server_metadata(server(assumed=True), ISSUER), AssumedMetadata)


def test_null_and_unknown_members_are_ignored() -> None:
    found = read_server_metadata(server(scopes_supported=None, jwks_uri=None, mtls_endpoint_aliases={}), ISSUER)
    assert found.scopes_supported is None


def test_published_metadata_omits_defaults() -> None:
    said = ResourceMetadata(resource=URL, authorization_servers=(ISSUER,))
    assert json.loads(codec.to_json(said)) == {"resource": URL, "authorization_servers": [ISSUER]}


@pytest.mark.row("AUT-17")
@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("HTTPS://A.Example/Mcp/", "https://a.example/Mcp"),
        ("https://a.example:8443", "https://a.example:8443"),
        ("https://a.example/m?x=1#y", "https://a.example/m?x=1"),
    ],
)
def test_canonical_resource_is_unique(url: str, name: str) -> None:
    assert canonical_resource(url) == name


def test_path_prefix_must_end_at_a_segment() -> None:
    assert not covers("https://a.example/mc", "https://a.example/mcp")
    assert covers("https://a.example/x", "https://a.example/x/mcp")
