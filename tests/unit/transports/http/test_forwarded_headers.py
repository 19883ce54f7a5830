"""What proxies say is believed only if they are trusted."""

from typing import Any

import pytest

from trunkline.errors import ConfigError
from trunkline.transports.http.asgi import make_request
from trunkline.transports.http.forwarded_headers import TrustedProxies
from trunkline.transports.http.request import HttpRequest


def asked(client: str | None = "10.0.0.7", *more: tuple[bytes, bytes], **headers: str) -> HttpRequest:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"client": None if client is None else (client, 5), "scheme": "http", "path": "/", "headers": [*raw, *more]}
    return make_request(None, scope, method="POST")


def seen(proxies: list[str], request: HttpRequest) -> tuple[Any, ...]:
    """What counts of a request: who it came from, its scheme and prefix, and whether a proxy has forwarded it."""
    TrustedProxies(proxies).resolve(request)
    return request.client, request.scheme, request.prefix, request.proxied


def test_headers_from_untrusted_peers_are_ignored() -> None:
    request = asked("192.0.2.1", x_forwarded_for="1.2.3.4", x_forwarded_proto="https", x_forwarded_prefix="/evil")
    assert seen(["10.0.0.0/8"], request) == (("192.0.2.1", 5), "http", "", False)
    assert seen([], request) == (("192.0.2.1", 5), "http", "", False)


def test_caller_without_address_is_not_trusted() -> None:
    request = asked("/run/a.sock", x_forwarded_for="1.2.3.4")
    assert seen(["0.0.0.0/0", "unix"], request) == (("/run/a.sock", 5), "http", "", False)


def test_peer_of_unix_socket_has_a_name() -> None:
    request = asked(None, x_forwarded_for="1.2.3.4", x_forwarded_proto="https")
    assert seen(["0.0.0.0/0"], request) == (("unix", 0), "http", "", False)


def test_unknown_client_is_not_trusted() -> None:
    request = make_request(None, {"path": "/", "headers": [(b"x-forwarded-for", b"1.2.3.4")]}, method="POST")
    assert seen(["0.0.0.0/0", "unix"], request) == (None, "http", "", False)


def test_proxy_on_unix_socket_is_trusted_by_name() -> None:
    forwarded = asked(None, x_forwarded_for="1.2.3.4, 10.0.0.9", x_forwarded_proto="https")
    assert seen(["unix", "10.0.0.9"], forwarded) == (("1.2.3.4", 0), "https", "", True)
    assert seen(["unix", "10.0.0.9"], asked(None)) == (("unix", 0), "http", "", True)


def test_trusted_proxy_sets_client_scheme_and_prefix() -> None:
    request = asked(x_forwarded_for="1.2.3.4", x_forwarded_proto="HTTPS", x_forwarded_prefix="/tools/")
    assert seen(["10.0.0.7"], request) == (("1.2.3.4", 0), "https", "/tools", True)


@pytest.mark.parametrize(
    ("passed", "caller"),
    [
        ("1.2.3.4, 10.0.0.9", "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4, 10.0.0.9", "1.2.3.4"),  # the first was invented by the caller
        ("10.0.0.8, 10.0.0.9", "10.0.0.8"),
        ("not-an-address", "not-an-address"),
    ],
)
def test_client_is_the_last_untrusted_hop(passed: str, caller: str) -> None:
    assert seen(["10.0.0.0/8"], asked(x_forwarded_for=passed))[0] == (caller, 0)


def test_repeated_headers_are_joined() -> None:
    request = asked("10.0.0.7", (b"x-forwarded-for", b"10.0.0.9"), x_forwarded_for="1.2.3.4")
    assert seen(["10.0.0.0/8"], request)[0] == ("1.2.3.4", 0)


@pytest.mark.parametrize("prefix", ["//evil.example", "tools", "", "/a\rb"])
@pytest.mark.parametrize("scheme", ["ftp", ""])
def test_invalid_values_are_ignored(prefix: str, scheme: str) -> None:
    request = asked(x_forwarded_proto=scheme, x_forwarded_prefix=prefix)
    assert seen(["10.0.0.7"], request) == (("10.0.0.7", 5), "http", "", True)


def test_trusted_proxy_must_be_address_or_network() -> None:
    with pytest.raises(ConfigError, match="trusted_proxies must be addresses or networks"):
        TrustedProxies(["proxy.example.org"])
