"""Addresses of streams."""

import pytest

from trunkline.errors import ConfigError
from trunkline.transports.addresses import Address, format_bound, format_host_port, parse_address


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
        ("http+unix:///run/s.sock:/mcp", Address("http+unix", path="/mcp", uds="/run/s.sock")),
        ("http+unix:///run/s.sock", Address("http+unix", path="/", uds="/run/s.sock")),
        ("http+unix:///run/a:b.sock:/a/b", Address("http+unix", path="/a/b", uds="/run/a:b.sock")),
        ("http+systemd://web/mcp", Address("http+systemd", "web", path="/mcp")),
        ("https+systemd://", Address("https+systemd", path="/")),
        ("tls+systemd://mcp", Address("tls+systemd", "mcp")),
        ("unix+systemd://", Address("unix+systemd")),
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
        ("http+unix://run/s.sock", "begins with a slash, and that of the endpoint follows a colon: http+unix:///run/s"),
        ("http+unix://%2Frun%2Fs.sock/mcp", "the path of a socket begins with a slash"),
        ("http+unx:///run/s.sock", "there is no scheme 'http+unx'. Did you mean \"http+unix\"?"),
        ("ws+systemd://web", "there is no scheme 'ws+systemd'"),
        ("http+systemd://web:80/mcp", "it has the name of a socket (FileDescriptorName=) or none, and no port"),
        ("tcp+systemd://web/mcp", "is not an address like http+systemd://name/mcp or tcp+systemd://name"),
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


@pytest.mark.parametrize(
    ("text", "transport", "secure", "inherited", "socket_path"),
    [
        ("http://h/", "http", False, False, ""),
        ("https://h/", "http", True, False, ""),
        ("tls://h:1", "tcp", True, False, ""),
        ("unix:///s", "unix", False, False, "/s"),
        ("http+unix:///s:/mcp", "http", False, False, "/s"),
        ("https+systemd://", "http", True, True, ""),
        ("unix+systemd://", "unix", False, True, ""),
        ("wss://h/", "wss", False, False, ""),
    ],
)
def test_scheme_names_transport_and_sockets(
    text: str, transport: str, secure: bool, inherited: bool, socket_path: str
) -> None:
    found = parse_address(text)
    assert (found.transport, found.secure, found.inherited) == (transport, secure, inherited)
    assert found.socket_path == socket_path


@pytest.mark.parametrize(
    ("text", "bound", "address"),
    [
        ("http://localhost:0/mcp", ("127.0.0.1", 5), "http://127.0.0.1:5/mcp"),
        ("tls+systemd://", ("::1", 5, 0, 0), "tls://[::1]:5"),
        ("https+systemd:///mcp", ("::1", 5, 0, 0), "https://[::1]:5/mcp"),
        ("http+systemd:///mcp", "/run/s", "http+unix:///run/s:/mcp"),
        ("unix+systemd://", "/run/s", "unix:///run/s"),
        ("unix+systemd://", b"\0name", "unix://@name"),
    ],
)
def test_bound_socket_has_the_address_of_clients(text: str, bound: object, address: str) -> None:
    assert format_bound(parse_address(text), bound) == address
