"""Encoding HTTP/1.1 requests."""

import pytest

from trunkline.transports.http.client.http1_request import Origin, encode_headers, encode_request, parse_target
from trunkline.version import __version__


@pytest.mark.parametrize(
    ("url", "origin", "authority", "path"),
    [
        ("http://h", (False, "h", 80), "h", "/"),
        ("https://h/", (True, "h", 443), "h", "/"),
        ("http://H:8000/a?b=c#d", (False, "h", 8000), "h:8000", "/a?b=c"),
        ("http://h?x", (False, "h", 80), "h", "/?x"),
        ("https://[::1]:443/m", (True, "::1", 443), "[::1]", "/m"),
        ("http://[::1]:8000/m", (False, "::1", 8000), "[::1]:8000", "/m"),
        (
            "http://b\u00fccher.example/\u00e4 b",
            (False, "xn--bcher-kva.example", 80),
            "xn--bcher-kva.example",
            "/%C3%A4%20b",
        ),
        ("http://h/%41%zz/{x}", (False, "h", 80), "h", "/%41%zz/%7Bx%7D"),
    ],
)
def test_url_becomes_origin_authority_and_path(
    url: str, origin: tuple[bool, str, int], authority: str, path: str
) -> None:
    target = parse_target(url)
    assert (target.origin, target.authority, target.path) == (Origin(*origin), authority, path)
    assert target.absolute == f"http{'s' if origin[0] else ''}://{authority}{path}"


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "ftp://h/",
        "h",
        "http://u:p@h/",
        "http://h:0/",
        "http://h:99999/",
        "http://[",
        "http://a b/",
        "http://" + "\u00fc" * 70,
    ],
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        parse_target(url)


def test_host_and_user_agent_are_added_unless_given() -> None:
    target = parse_target("http://h:81/")
    assert (
        encode_headers(target, {"A": "b"}) == f"Host: h:81\r\nUser-Agent: trunkline/{__version__}\r\nA: b\r\n".encode()
    )
    assert encode_headers(target, {"HOST": "x", "user-agent": "\u00fc"}) == "HOST: x\r\nuser-agent: \u00fc\r\n".encode()


def test_headers_that_follow_from_the_body_cannot_be_given() -> None:
    encoded = encode_headers(parse_target("http://h/"), {"Content-length": "5", "Transfer-Encoding": "chunked"})
    assert encoded.lower().count(b"\r\n") == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("A", "secret\r\nC: d"), ("A", "secret\nC"), ("A", "secret\0"), ("A", "\x7fsecret")]
    + [(name, "secret") for name in ("A b", "A:", "", "A\r\nB", "\u00fc")],
)
def test_header_injection_is_refused_without_quoting_the_value(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="must not contain") as raised:
        encode_headers(parse_target("http://h/"), {name: value})
    assert "secret" not in str(raised.value)


def test_request_has_a_length_if_its_method_has_a_body() -> None:
    assert encode_request("GET", "/", b"A: b\r\n", None) == b"GET / HTTP/1.1\r\nA: b\r\n\r\n"
    assert encode_request("POST", "/x", b"", b"{}") == b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    assert encode_request("POST", "/", b"", None) == b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    assert encode_request("DELETE", "/", b"", None) == b"DELETE / HTTP/1.1\r\n\r\n"
