"""The URL of a server, as its clients see it."""

from typing import Any

import pytest

from trunkline import Server, Settings
from trunkline.auth import ResourceServer, StaticTokens
from trunkline.auth.server.authorization_header import (
    MalformedAuthorization,
    PresentedToken,
    has_query_token,
    parse_authorization,
)
from trunkline.auth.server.resource_url import location_from_public_url, location_from_request, metadata_paths
from trunkline.transports.http.asgi import make_request
from trunkline.transports.http.request import HttpRequest

WELL_KNOWN = "/.well-known/oauth-protected-resource"


def asked(host: str, scope: dict[str, Any]) -> HttpRequest:
    """A request to a host, as an ASGI server passes it on."""
    return make_request(None, {"path": "/mcp", "headers": [(b"host", host.encode())], **scope}, method="POST")


def forwarded(host: str, scope: dict[str, Any], prefix: str | None = None) -> HttpRequest:
    """The same through a trusted proxy."""
    request = asked(host, scope)
    request.proxied, request.prefix = True, prefix or ""
    return request


def came(host: str = "notes.example.com", **scope: Any) -> tuple[str, str]:
    place = location_from_request(asked(host, {"scheme": "https", **scope}), "/mcp")
    return place.resource, place.metadata_url


@pytest.mark.parametrize(
    ("host", "scope", "base"),
    [
        ("notes.example.com", {}, "https://notes.example.com"),
        ("NOTES.example.com:443", {"server": ("10.0.0.1", 443)}, "https://notes.example.com"),
        ("notes.example.com:8443", {"server": ("10.0.0.1", 8443)}, "https://notes.example.com:8443"),
        ("localhost:80", {"scheme": "http", "server": ("127.0.0.1", 80)}, "http://localhost"),
        ("[::1]:8000", {"scheme": "http", "server": ("::1", 8000)}, "http://[::1]:8000"),
        ("[::1]", {"scheme": "ws"}, "http://[::1]"),
        ("notes.example.com", {"scheme": "wss"}, "https://notes.example.com"),
        ("notes.example.com", {"root_path": "/b/"}, "https://notes.example.com/b"),
        ("localhost:9", {"scheme": "http", "server": ("127.0.0.1", 8000)}, "http://localhost:8000"),
        ("localhost", {"scheme": "http", "server": ("127.0.0.1", 8000)}, "http://localhost:8000"),
        ("notes.example.com:9", {"server": ("/run/socket", None)}, "https://notes.example.com"),
        ("notes.example.com:9", {}, "https://notes.example.com"),
    ],
)
def test_location_is_derived_from_request(host: str, scope: dict[str, Any], base: str) -> None:
    assert came(host, **scope) == (f"{base}/mcp", f"{base}{WELL_KNOWN}/mcp")


@pytest.mark.parametrize("host", ["notes.example.com", "notes.example.com:8443", "NOTES.example.com:80"])
@pytest.mark.parametrize("scheme", ["http", "https", "ws"])
@pytest.mark.parametrize("prefix", [None, "/tenant"])
def test_forwarded_request_contributes_its_host_only(host: str, scheme: str, prefix: str | None) -> None:
    scope = {"scheme": scheme, "server": ("10.0.0.1", 8000), "root_path": "/b"}
    place = location_from_request(forwarded(host, scope, prefix), "/mcp")
    assert place.audiences == {"https://notes.example.com/b/mcp", "https://notes.example.com/b/mcp/"}


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1", "[::1]", "[::1]:443"])
def test_forwarded_loopback_name_accepts_no_token(host: str) -> None:
    place = location_from_request(forwarded(host, {"scheme": "https"}), "/mcp")
    assert place.audiences == frozenset()


@pytest.mark.parametrize(
    ("public", "main", "resource", "metadata"),
    [
        ("https://x.example/mcp", "/mcp", "https://x.example/mcp", f"https://x.example{WELL_KNOWN}/mcp"),
        ("https://X.example/mcp/", "/mcp", "https://x.example/mcp", f"https://x.example{WELL_KNOWN}/mcp"),
        ("https://x.example/api/mcp", "/mcp", "https://x.example/api/mcp", f"https://x.example/api{WELL_KNOWN}/mcp"),
        ("https://x.example/notes", "/", "https://x.example/notes", f"https://x.example/notes{WELL_KNOWN}"),
        ("https://x.example", "/", "https://x.example", f"https://x.example{WELL_KNOWN}"),
        ("https://x.example/notes", "/mcp", "https://x.example/notes", f"https://x.example{WELL_KNOWN}/notes"),
        ("https://mcp", "/mcp", "https://mcp", f"https://mcp{WELL_KNOWN}"),
    ],
)
def test_public_url_sets_location(public: str, main: str, resource: str, metadata: str) -> None:
    place = location_from_public_url(public, main, main)
    assert (place.resource, place.metadata_url) == (resource, metadata)
    assert place.audiences == {resource, f"{resource}/"}


def test_http_sse_location_is_beside_public_url() -> None:
    assert location_from_public_url("https://x.example/api/mcp", "/mcp", "/sse").resource == "https://x.example/api/sse"


def test_metadata_is_published_at_all_client_urls() -> None:
    assert metadata_paths("/mcp", "https://x.example/api/mcp") == {
        WELL_KNOWN,
        f"{WELL_KNOWN}/mcp",
        f"{WELL_KNOWN}/api/mcp",
    }
    assert metadata_paths("/", None) == {WELL_KNOWN}


@pytest.mark.parametrize(
    ("header", "given"),
    [
        (b"Bearer abc", PresentedToken("Bearer", "abc")),
        (b"bearer  a.b-c_d~e+f/g==", PresentedToken("Bearer", "a.b-c_d~e+f/g==")),
        (b"DPOP abc", PresentedToken("DPoP", "abc")),
        (b"Basic abc", None),
        (b"abc", None),
        (b"", None),
    ],
)
def test_authorization_header_is_parsed(header: bytes, given: PresentedToken | None) -> None:
    assert parse_authorization(header) == given


@pytest.mark.row("AUT-23")
@pytest.mark.parametrize(
    "header", [b"Bearer", b"Bearer ", b"Bearer a b", b"Bearer a,b", b"bearer \xe9", b"DPoP ", b'Bearer "a"']
)
def test_malformed_header_is_refused(header: bytes) -> None:
    with pytest.raises(MalformedAuthorization):
        parse_authorization(header)


@pytest.mark.row("AUT-22")
@pytest.mark.parametrize(
    ("query", "there"),
    [
        (b"access_token=x", True),
        (b"a=1&ACCESS_TOKEN=x", True),
        (b"%61ccess_token=x", True),
        (b"access_token", True),
        (b"session_id=x", False),
        (b"q=access_token", False),
        (b"a=%20b", False),
    ],
)
def test_token_in_query_is_detected(query: bytes, there: bool) -> None:
    assert has_query_token(query) is there


@pytest.mark.parametrize(
    ("options", "proxies", "told"),
    [
        ({"public_url": "https://mcp.example/mcp"}, ("10.0.0.7",), "must be for https://mcp.example/mcp (public_url)"),
        ({}, ("10.0.0.7",), "of requests through trusted_proxies, access tokens must be for https://<a name"),
        ({}, (), "must be for the URL of the request"),
    ],
)
async def test_startup_logs_required_audience(
    options: dict[str, Any], proxies: tuple[str, ...], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trunkline")
    settings = Settings(trusted_proxies=proxies)
    Server("s", settings=settings, auth=ResourceServer(StaticTokens({}), **options)).asgi(path="/mcp")
    assert [told in record.getMessage() for record in caplog.records] == [True]
