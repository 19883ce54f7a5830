"""URLs from peers."""

import pytest

from trunkline.auth.urls import is_loopback, origin_of, require_secure_url, safe_text
from trunkline.errors import AuthorizationFailed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a.example/mcp", "https://A.example:443/other?x#y"),
        ("http://a.example", "http://a.example:80/"),
        ("wss://a.example/mcp", "https://a.example/mcp"),
        ("http://[::1]:80/", "http://[::1]/"),
    ],
)
def test_origin_ignores_spelling(one: str, other: str) -> None:
    assert origin_of(one) == origin_of(other) is not None


@pytest.mark.parametrize("url", ["http://a.example", "https://b.example", "https://a.example:444"])
def test_origins_differ_by_scheme_host_or_port(url: str) -> None:
    assert origin_of(url) != origin_of("https://a.example")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mcp",
        "/mcp",
        "javascript:alert(1)",
        "https://",
        "https://a b/",
        "https://a\\@b/",
        "https://a:99999/",
        "https://[::1",
        "https://a:0/",
    ],
)
def test_malformed_url_has_no_origin_and_is_refused(text: str) -> None:
    assert origin_of(text) is None
    with pytest.raises(AuthorizationFailed):
        require_secure_url(text, "it", hop="token", clause="a rule")


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_loopback_names_are_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example", "128.0.0.1", "10.0.0.1", "0.0.0.0", "::", "localhos"])
def test_other_names_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.row("AUT-24")
@pytest.mark.parametrize("url", ["https://a.example/x?y=z", "http://127.0.0.1:8000/x", "http://localhost/x"])
def test_https_and_local_http_are_secure(url: str) -> None:
    assert require_secure_url(url, "it", hop="token", clause="a rule") == url


@pytest.mark.row("AUT-24")
@pytest.mark.parametrize(
    "url",
    ["http://a.example", "ws://a.example", "https://me@a.example", "https://me:pw@a.example", "https://a.example/#x"],
)
def test_insecure_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(AuthorizationFailed, match="the token endpoint") as failed:
        require_secure_url(url, "the token endpoint", hop="token", clause="a rule")
    assert (failed.value.hop, failed.value.clause) == ("token", "a rule")


def test_safe_text_escapes_control_characters() -> None:
    assert safe_text("no\x1b[2J\r\nway\u202e \x9b!") == r"no\x1b[2J\r\nway\u202e \x9b!"
    assert safe_text("x" * 5000) == f"{'x' * 300}… (5000 characters)"
