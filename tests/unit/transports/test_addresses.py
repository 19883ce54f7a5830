"""Addresses of streams."""

import pytest

from trunkline.errors import ConfigError
from trunkline.transports.addresses import Address, format_host_port, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:4000", Address("tcp", "127.0.0.1", 4000)),
        ("tls://example.org:443", Address("tls", "example.org", 443)),
        ("tcp://[::1]:0", Address("tcp", "::1", 0)),
        ("unix:///run/a b.sock", Address("unix", path="/run/a b.sock")),
        ("http://127.0.0.1:0/mcp", Address("http", "127.0.0.1", 0, "/mcp")),
        ("https://Example.org", Address("https", "example.org", 443, "/")),
        ("HTTP://[::1]/a?b=c#d", Address("http", "::1", 80, "/a?b=c")),
    ],
)
def test_parse_address_returns_its_parts(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "tcp", "tcp://", "tcp://host", "tcp://:80", "tcp://h:x", "tcp://h:65536", "unix://x", "gopher://h:80", "h:80"],
)
def test_invalid_address_error_gives_examples(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tcp://127\.0\.0\.1:4000"):
        parse_address(text)


@pytest.mark.parametrize(
    "text", ["http://", "http://h:x/", "http://:80/", "http://h:99999", "http://[::1", "http://a\\b/", "http://u:p@h/"]
)
def test_invalid_http_url_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"https://example\.org|headers"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("localhost:8000", "it has no scheme"),
        ("gopher://h:80", "there is no scheme 'gopher'"),
        ("htps://h:80", "there is no scheme 'htps'. Did you mean \"https\"?"),
        ("unix://x", "the path of a socket begins with a slash"),
        ("tcp://host", "it has no host or no port"),
        ("tcp://host:65536", "a port is at most 65535"),
        ("http://host:80000/mcp", "a port is a number from 0 to 65535"),
        (8000, "an address is a string like"),
        (None, "an address is a string like"),
    ],
)
def test_invalid_address_error_gives_the_reason(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_address(text)
    assert why in str(raised.value)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:4000", "tcp://[fe80::1%eth0]:1"])
def test_format_host_port_brackets_ipv6(address: str) -> None:
    found = parse_address(address)
    assert f"tcp://{format_host_port(found.host, found.port)}" == address
