"""Heads of requests: the same for every split of their bytes, and refused where RFC 9112 does not allow them."""

import pytest

from trunkline.transports.http.head import BadHead, HeadParser, KnownHead, split_target

LIMIT = 1000
BODY = b"\r\nPOST"


def head(line: bytes = b"POST /mcp HTTP/1.1", *headers: bytes) -> bytes:
    return b"\r\n".join((line, b"host: localhost", *headers, b"", b""))


def parse(*parts: bytes, limit: int = LIMIT) -> tuple[HeadParser, bytes | None]:
    """Feed parts; return the parser, and what follows the head."""
    parser, rest = HeadParser(limit), None
    for part in parts:
        rest = parser.feed(part) if rest is None else rest + part
    return parser, rest


def splits(data: bytes) -> list[list[bytes]]:
    """Every split into two parts that are not empty, the whole, and the split into single bytes."""
    cut = [[data[:at], data[at:]] for at in range(1, len(data))]
    return [[data], *cut, [data[i : i + 1] for i in range(len(data))]]


def refusal(data: bytes, limit: int = LIMIT) -> tuple[int, str]:
    """How a head is refused, whatever its split."""
    found = set()
    for parts in splits(data):
        with pytest.raises(BadHead) as caught:
            parse(*parts, limit=limit)
        found.add((caught.value.status, caught.value.reason))
        assert str(caught.value) == caught.value.reason
    statuses = {status for status, _ in found}
    assert len(statuses) == 1, found
    return statuses.pop(), " / ".join(sorted(reason for _, reason in found))


# --- what is read -----------------------------------------------------------------------------------


def test_head_is_the_same_for_every_split() -> None:
    data = head(b"POST /mcp?a=1 HTTP/1.1", b"Content-Length: 12", b"X-Empty:", b"X-Spaces: \t a b \t", b"x-b:\xe4")
    for parts in splits(data + BODY):
        parser, rest = parse(*parts)
        assert rest == BODY, parts
        assert (parser.method, parser.target, parser.version) == (b"POST", b"/mcp?a=1", b"1.1")
        assert parser.headers == {
            b"host": b"localhost",
            b"content-length": b"12",
            b"x-empty": b"",
            b"x-spaces": b"a b",
            b"x-b": b"\xe4",
        }
        assert (parser.repeated, parser.chunked, parser.content_length) == ((), False, 12)
        assert (parser.keep_alive, parser.upgrade) == (True, False)


def test_incomplete_head_waits_for_the_rest() -> None:
    data = head()
    for at in range(1, len(data)):
        parser, rest = parse(data[:at])
        assert (rest, parser.begun) == (None, True)


def test_empty_lines_before_a_head_are_ignored() -> None:
    parser = HeadParser(LIMIT)
    assert parser.feed(b"\r\n") is None
    assert parser.feed(b"\r\n\r\n") is None
    assert not parser.begun
    assert parser.feed(b"\r\n" + head()) == b""
    assert parser.target == b"/mcp"


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        (b"1.1", None, True),
        (b"1.1", b"close", False),
        (b"1.1", b"x, Close", False),
        (b"1.0", None, False),
        (b"1.0", b"keep-alive", True),
    ],
)
def test_connection_is_kept_as_version_and_header_say(version: bytes, connection: bytes | None, kept: bool) -> None:
    data = head(b"GET / HTTP/" + version, *([] if connection is None else [b"connection: " + connection]))
    for parts in splits(data):
        parser, rest = parse(*parts)
        assert (rest, parser.version, parser.keep_alive) == (b"", version, kept)


def test_upgrade_needs_both_headers() -> None:
    upgrade = (b"connection: keep-alive, Upgrade", b"upgrade: websocket")
    for parts in splits(head(b"GET /mcp HTTP/1.1", *upgrade) + b"\x81\x00"):
        parser, rest = parse(*parts)
        assert (rest, parser.upgrade) == (b"\x81\x00", True)
    assert not parse(head(b"GET /mcp HTTP/1.1", upgrade[1]))[0].upgrade
    assert parse(head(b"GET /mcp HTTP/1.1", *upgrade, b"content-length: 0"))[0].upgrade


def test_repeated_headers_are_joined_and_named() -> None:
    repeated = (b"x-a: 1", b"X-A: 2", b"x-b: 3", b"x-a:", b"x-b: 4")
    for parts in splits(head(b"GET / HTTP/1.1", *repeated)):
        parser, _ = parse(*parts)
        assert parser.headers == {b"host": b"localhost", b"x-a": b"1, 2, ", b"x-b": b"3, 4"}
        assert parser.repeated == (b"x-a", b"x-a", b"x-b")


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b" chunked "])
def test_chunked_coding_frames_the_body(coding: bytes) -> None:
    for parts in splits(head(b"POST /mcp HTTP/1.1", b"transfer-encoding:" + coding) + b"5\r\n"):
        parser, rest = parse(*parts)
        assert (rest, parser.chunked, parser.content_length) == (b"5\r\n", True, 0)


@pytest.mark.parametrize(
    ("target", "used", "host"),
    [
        (b"http://a.example/mcp", b"/mcp", b"a.example"),
        (b"HTTPS://A.example:443/mcp?x=1", b"/mcp?x=1", b"A.example:443"),
        (b"http://a.example", b"/", b"a.example"),
        (b"http://a.example?x=/1", b"/?x=/1", b"a.example"),
        (b"http://[::1]:80/x", b"/x", b"[::1]:80"),
    ],
)
def test_absolute_target_replaces_the_host(target: bytes, used: bytes, host: bytes) -> None:
    for parts in splits(head(b"GET " + target + b" HTTP/1.1")):
        parser, _ = parse(*parts)
        assert (parser.target, parser.headers) == (used, {b"host": host})
    parser, _ = parse(b"GET " + target + b" HTTP/1.0\r\n\r\n")
    assert (parser.target, parser.headers) == (used, {b"host": host})


# --- what is refused --------------------------------------------------------------------------------

LINES = {
    "two spaces before the target": b"POST  /mcp HTTP/1.1",
    "two spaces behind the target": b"POST /mcp  HTTP/1.1",
    "a tab": b"POST\t/mcp HTTP/1.1",
    "a space at the end": b"POST /mcp HTTP/1.1 ",
    "a space at the beginning": b" POST /mcp HTTP/1.1",
    "no version": b"POST /mcp",
    "no target": b"POST HTTP/1.1",
    "another protocol": b"POST /mcp FTP/1.1",
    "a longer version": b"POST /mcp HTTP/1.10",
    "NUL in the target": b"POST /m\x00cp HTTP/1.1",
    "no path": b"GET * HTTP/1.1",
    "user information": b"GET http://user@localhost/ HTTP/1.1",
    "a fragment": b"GET /mcp#here HTTP/1.1",
    "a fragment in an absolute target": b"GET http://localhost/mcp#here HTTP/1.1",
    "another scheme": b"GET ftp://localhost/ HTTP/1.1",
    "no authority": b"GET http:///mcp HTTP/1.1",
    "no authority and no path": b"GET http://?x HTTP/1.1",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_invalid_request_line_is_refused(line: bytes) -> None:
    assert refusal(head(line))[0] == 400


@pytest.mark.parametrize("method", [b"STEAL", b"post", b"CONNECT"])
def test_unknown_method_is_refused(method: bytes) -> None:
    assert refusal(head(method + b" /mcp HTTP/1.1")) == (501, "this method is not supported")


def test_asterisk_is_a_target_of_options() -> None:
    parser, _ = parse(head(b"OPTIONS * HTTP/1.1"))
    assert (parser.method, parser.target) == (b"OPTIONS", b"*")


@pytest.mark.parametrize("version", [b"0.9", b"2.0", b"1.2", b"9.9"])
def test_other_version_is_refused(version: bytes) -> None:
    status, reason = refusal(head(b"POST /mcp HTTP/" + version))
    assert status in {400, 505}
    if version in {b"0.9", b"2.0"}:
        assert (status, "send HTTP/1.1" in reason) == (505, True)


HEADERS = {
    "a space before the colon": b"x-a : 1",
    "no colon": b"x-a",
    "no name": b": 1",
    "a name that is no token": b"x(a): 1",
    "NUL in a value": b"x-a: \x00",
    "LF in a value": b"x-a: 1\nx-b: 2",
    "CR in a value": b"x-a: 1\rx-b: 2",
    "a folded value": b"x-a: 1\r\n 2",
    "no length": b"content-length:",
    "a signed length": b"content-length: +5",
    "a negative length": b"content-length: -5",
    "a length in hexadecimal": b"content-length: 0x5",
    "a list of lengths": b"content-length: 5, 5",
    "two lengths": b"content-length: 5\r\ncontent-length: 6",
    "the same length twice": b"content-length: 5\r\ncontent-length: 5",
    "a length beyond 64 bits": b"content-length: 99999999999999999999",
    "a length and a coding": b"content-length: 5\r\ntransfer-encoding: chunked",
    "a coding and a length": b"transfer-encoding: chunked\r\ncontent-length: 5",
    "an unknown coding": b"transfer-encoding: xchunked",
    "another coding": b"transfer-encoding: gzip",
    "chunked before another coding": b"transfer-encoding: chunked, gzip",
    "chunked twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked",
    "chunked twice in one header": b"transfer-encoding: chunked, chunked",
    "an empty coding": b"transfer-encoding:",
    "an empty coding before chunked": b"transfer-encoding: , chunked",
    "an upgrade with a body": b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 5",
    "an upgrade with a chunked body": b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: chunked",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_invalid_header_is_refused(header: bytes) -> None:
    assert refusal(head(b"POST /mcp HTTP/1.1", header))[0] == 400


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"GZip , Chunked", b"gzip\r\nTransfer-Encoding: chunked"])
def test_coding_before_chunked_is_not_implemented(coding: bytes) -> None:
    status, reason = refusal(head(b"POST /mcp HTTP/1.1", b"transfer-encoding: " + coding))
    assert (status, "send chunked alone" in reason) == (501, True)


def test_coding_in_http_1_0_is_refused() -> None:
    status, reason = refusal(head(b"POST /mcp HTTP/1.0", b"transfer-encoding: chunked"))
    assert (status, "HTTP/1.0 has no transfer codings" in reason) == (400, True)


def test_line_ends_without_cr_are_refused() -> None:
    plain = head(b"POST /mcp HTTP/1.1", b"x-a: 1")
    assert refusal(plain.replace(b"\r\n", b"\n") + b"\r\n\r\n")[0] == 400
    for at in (plain.index(b"\r\n"), plain.index(b"\r\nx-a")):
        assert refusal(plain[:at] + plain[at + 1 :])[0] == 400


def test_head_over_the_limit_is_refused() -> None:
    data = head(b"POST /mcp HTTP/1.1", b"x-a: " + b"1" * 100)
    for parts in splits(data + b"x" * 100):
        assert parse(*parts, limit=len(data))[1] == b"x" * 100
    assert refusal(data, limit=len(data) - 1)[0] == 431
    with pytest.raises(BadHead) as caught:
        parse(data[:-4], limit=len(data) - 5)
    assert caught.value.status == 431


def test_head_with_too_many_headers_is_refused() -> None:
    many = [b"x-%d: 1" % number for number in range(300)]
    assert len(parse(head(b"GET / HTTP/1.1", *many[:255]), limit=1 << 16)[0].headers) == 256
    for parts in ([head(b"GET / HTTP/1.1", *many)], [head(b"GET / HTTP/1.1", *many[:280])[:-2], b"x-more: 1\r\n"]):
        with pytest.raises(BadHead, match="more than 256 headers") as caught:
            parse(*parts, limit=1 << 16)
        assert caught.value.status == 431


# --- targets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/mcp", "/mcp", b""),
        (b"/mcp?a=%20&b?", "/mcp", b"a=%20&b?"),
        (b"/a%20b%2Fc", "/a b/c", b""),
        (b"/%C3%A4", "/ä", b""),
        (b"/" + b"a" * 300 + b"?x", "/" + "a" * 300, b"x"),
    ],
)
def test_target_is_split_and_decoded(target: bytes, path: str, query: bytes) -> None:
    assert split_target(target) == (path, query)


# --- heads that are sent again -------------------------------------------------------------------


def known(data: bytes) -> KnownHead:
    parser, _ = parse(data)
    found = parser.remember(parser.to_http_head())
    assert found is not None
    return found


def test_known_head_is_recognized_with_any_length() -> None:
    first = head(b"POST /mcp HTTP/1.1", b"Content-Length: 5", b"x: y")
    again = first.replace(b"Content-Length: 5", b"Content-Length: 12345")
    recognized = known(first)
    for data, length in ((first, b"5"), (again, b"12345"), (again, b"12345"), (first, b"5")):
        assert recognized.match(data + b"hello") == len(data)
        assert (recognized.content_length, recognized.head.headers[b"content-length"]) == (int(length), length)
        assert recognized.head.headers == {b"host": b"localhost", b"content-length": length, b"x": b"y"}


def test_route_of_known_head_is_kept_for_other_lengths() -> None:
    first = head(b"POST /mcp?a=1 HTTP/1.1", b"Content-Length: 5")
    recognized = known(first)
    recognized.head.route = route = print
    assert recognized.match(first.replace(b"Length: 5", b"Length: 15"))
    kept = recognized.head
    assert (kept.method, kept.path, kept.query, kept.route) == ("POST", "/mcp", b"a=1", route)


OTHERS = {
    "another method": (b"POST", b"PUT"),
    "another field before the length": (b"host: localhost", b"host: other"),
    "another field of the same size before the length": (b"host: localhost", b"host: elsewhere"),
    "another field behind the length": (b"x: y", b"x: z"),
    "one more field": (b"x: y", b"x: y\r\nx: y"),
    "a sign": (b"Length: 5", b"Length: +5"),
    "a space behind the length": (b"Length: 5", b"Length: 5 "),
    "no length": (b"Length: 5", b"Length: "),
    "a list": (b"Length: 5", b"Length: 5, 5"),
    "a length of many digits": (b"Length: 5", b"Length: 12345678901234567"),
    "another line end": (b"Length: 5\r\n", b"Length: 5\n"),
    "a part of it": (b"x: y\r\n\r\n", b"x: y\r\n"),
}


@pytest.mark.parametrize(("part", "other"), OTHERS.values(), ids=OTHERS)
def test_other_head_is_not_recognized(part: bytes, other: bytes) -> None:
    first = head(b"POST /mcp HTTP/1.1", b"Content-Length: 5", b"x: y")
    assert part in first
    assert known(first).match(first.replace(part, other)) == 0


UNKNOWN = {
    "no length": (),
    "chunks": (b"transfer-encoding: chunked",),
    "a repeated field": (b"content-length: 5", b"x: 1", b"x: 2"),
    "an upgrade": (b"content-length: 0", b"connection: upgrade", b"upgrade: h2c"),
}


@pytest.mark.parametrize("more", UNKNOWN.values(), ids=UNKNOWN)
def test_head_whose_validity_depends_on_more_is_not_remembered(more: tuple[bytes, ...]) -> None:
    parser, _ = parse(head(b"POST /mcp HTTP/1.1", *more))
    assert parser.remember(parser.to_http_head()) is None
