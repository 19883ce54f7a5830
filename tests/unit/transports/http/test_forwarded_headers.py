"""What proxies say is believed only if they are trusted."""

from typing import Any

import pytest

from trunkline.errors import ConfigError
from trunkline.transports.http.forwarded_headers import TrustedProxies


def scope(client: str | None = "10.0.0.7", **headers: str) -> dict[str, Any]:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"client": None if client is None else (client, 5), "scheme": "http", "root_path": "", "headers": raw}


def test_headers_from_untrusted_peers_are_ignored() -> None:
    asked = scope("192.0.2.1", x_forwarded_for="1.2.3.4", x_forwarded_proto="https", x_forwarded_prefix="/evil")
    assert TrustedProxies(["10.0.0.0/8"]).resolve_scope(asked) is asked
    assert TrustedProxies([]).resolve_scope(asked) is asked


def test_caller_without_address_is_not_trusted() -> None:
    asked = scope("/run/a.sock", x_forwarded_for="1.2.3.4")
    assert TrustedProxies(["0.0.0.0/0", "unix"]).resolve_scope(asked) is asked


def test_peer_of_unix_socket_has_a_name() -> None:
    seen = TrustedProxies(["0.0.0.0/0"]).resolve_scope(
        scope(None, x_forwarded_for="1.2.3.4", x_forwarded_proto="https")
    )
    assert (seen["client"], seen["scheme"]) == (("unix", 0), "http")


def test_scope_that_names_no_client_is_unchanged() -> None:
    asked = {name: value for name, value in scope().items() if name != "client"}
    assert TrustedProxies(["0.0.0.0/0", "unix"]).resolve_scope(asked) is asked


def test_proxy_on_unix_socket_is_trusted_by_name() -> None:
    proxies = TrustedProxies(["unix", "10.0.0.9"])
    seen = proxies.resolve_scope(scope(None, x_forwarded_for="1.2.3.4, 10.0.0.9", x_forwarded_proto="https"))
    assert (seen["client"], seen["scheme"]) == (("1.2.3.4", 0), "https")
    assert proxies.resolve_scope(scope(None))["client"] == ("unix", 0)


def test_trusted_proxy_sets_client_scheme_and_prefix() -> None:
    seen = TrustedProxies(["10.0.0.7"]).resolve_scope(
        scope(x_forwarded_for="1.2.3.4", x_forwarded_proto="HTTPS", x_forwarded_prefix="/tools/")
    )
    assert (seen["client"], seen["scheme"], seen["prefix"]) == (("1.2.3.4", 0), "https", "/tools")


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
    assert TrustedProxies(["10.0.0.0/8"]).resolve_scope(scope(x_forwarded_for=passed))["client"] == (caller, 0)


def test_repeated_headers_are_joined() -> None:
    asked = scope(x_forwarded_for="1.2.3.4")
    asked["headers"].append((b"x-forwarded-for", b"10.0.0.9"))
    assert TrustedProxies(["10.0.0.0/8"]).resolve_scope(asked)["client"] == ("1.2.3.4", 0)


@pytest.mark.parametrize("prefix", ["//evil.example", "tools", "", "/a\rb"])
@pytest.mark.parametrize("scheme", ["ftp", ""])
def test_invalid_values_are_ignored(prefix: str, scheme: str) -> None:
    seen = TrustedProxies(["10.0.0.7"]).resolve_scope(scope(x_forwarded_proto=scheme, x_forwarded_prefix=prefix))
    assert ("prefix" in seen, seen["scheme"], seen["client"]) == (False, "http", ("10.0.0.7", 5))


def test_trusted_proxy_must_be_address_or_network() -> None:
    with pytest.raises(ConfigError, match="trusted_proxies must be addresses or networks"):
        TrustedProxies(["proxy.example.org"])
