"""Parsing HTTP/1.1 responses: valid ones however their bytes arrive, and those of hostile servers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.transports.http.client.http1_response import MAX_HEAD_SIZE, Headers, InvalidResponse, ResponseParser

OK = b"HTTP/1.1 200 OK\r\n"


def parse(*pieces: bytes, method: str = "POST") -> ResponseParser:
    parser = ResponseParser()
    parser.begin(method)
    for piece in pieces:
        parser.feed(piece)
    return parser


def content(parser: ResponseParser) -> bytes:
    return b"".join(parser.chunks)


VALID = {
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\n\r\n", b"", True),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    "chunked": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: x\r\n\r\n",
        b"hello",
        True,
    ),
    "close": (OK + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello", b"hello", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
        + OK
        + b"Content-Length: 5\r\n\r\nhello",
        b"hello",
        True,
    ),
    "no reason": (b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\nhello", b"hello", True),
}


@pytest.mark.parametrize(("data", "body", "reusable"), VALID.values(), ids=VALID)
def test_response_is_parsed_however_its_bytes_arrive(data: bytes, body: bytes, reusable: bool) -> None:
    for cut in range(len(data) + 1):
        parser = parse(*filter(None, (data[:cut], data[cut:])))
        assert parser.complete
        assert (content(parser), parser.reusable) == (body, reusable)
        assert parser.headers is not None
        assert "link" not in parser.headers
        assert "trailer" not in parser.headers
    assert content(parse(*(data[at : at + 1] for at in range(len(data))))) == body


def test_one_parser_reads_one_response_after_the_other() -> None:
    parser = parse(OK + b"Content-Length: 2\r\nX: 1\r\n\r\nhi")
    first = parser.chunks
    parser.begin("POST")
    assert (parser.complete, parser.headers, parser.started) == (False, None, False)
    parser.feed(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno")
    assert (parser.status, parser.reason, content(parser), b"".join(first)) == (404, "Not Found", b"no", b"hi")
    assert parser.headers is not None
    assert "X" not in parser.headers


@pytest.mark.parametrize("data", [OK + b"\r\n", b"HTTP/1.0 200 OK\r\n\r\n", OK + b"Connection: close\r\n\r\n"])
def test_response_without_length_ends_with_the_connection(data: bytes) -> None:
    parser = parse(data + b"hel", b"lo")
    assert not parser.complete
    assert parser.receive_eof()
    assert (content(parser), parser.reusable) == (b"hello", False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        OK + b"Content-Length: 5\r\n",
        OK + b"Content-Length: 5\r\n\r\nhell",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_truncated_response_is_not_complete_at_the_end(data: bytes) -> None:
    assert not parse(data).receive_eof()


@pytest.mark.parametrize("headers", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b""])
def test_response_to_head_has_no_content(headers: bytes) -> None:
    parser = parse(OK + headers + b"\r\n", method="HEAD")
    assert (parser.complete, parser.chunks) == (True, [])
    assert not parser.reusable  # the parser expects content


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_announced_content_of_a_status_without_content_is_not_read(status: bytes) -> None:
    parser = parse(b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\nhello")
    assert (parser.complete, parser.chunks, parser.reusable) == (True, [], False)


INVALID = {
    "other protocol": b"SSH-2.0-OpenSSH\r\n\r\n",
    "request": b"GET / HTTP/1.1\r\n\r\n",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
    "status below 100": b"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "switching without upgrade": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "two lengths": OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "one length twice": OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "list of lengths": OK + b"Content-Length: 5, 5\r\n\r\nhello",
    "signed length": OK + b"Content-Length: +5\r\n\r\nhello",
    "negative length": OK + b"Content-Length: -5\r\n\r\nhello",
    "huge length": OK + b"Content-Length: 99999999999999999999999\r\n\r\nhello",
    "length and chunks": OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "gzip coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": OK + b"Transfer-Encoding: chunked, identity\r\n\r\nhello",
    "chunked twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size": OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "huge chunk size": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    "chunk without end": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhello",
    "NUL in a header": OK + b"X: a\0b\r\nContent-Length: 0\r\n\r\n",
    "escape in a header": OK + b"X: a\x1bb\r\nContent-Length: 0\r\n\r\n",
    "space in a name": OK + b"X Y: 1\r\nContent-Length: 0\r\n\r\n",
    "space before the colon": OK + b"Content-Length : 5\r\n\r\nhello",
    "header without a name": OK + b": 1\r\nContent-Length: 0\r\n\r\n",
    "header without a colon": OK + b"Content-Length\r\n\r\n",
    "bare CR": OK + b"X: 1\rContent-Length: 0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
def test_ambiguous_or_malformed_response_is_refused(data: bytes) -> None:
    for cut in range(len(data)):
        with pytest.raises(InvalidResponse, match="not valid HTTP"):
            parse(*filter(None, (data[:cut], data[cut:])), b"x")


def test_content_before_a_violation_is_kept() -> None:
    parser = parse(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(InvalidResponse):
        parser.feed(b"5\r\nhello\r\nxyz\r\n")
    assert content(parser) == b"hello"


FLOODS = {
    "one header": (OK + b"X: ", b"x" * 4096),
    "a name": (OK, b"x" * 4096),
    "headers": (OK, b"X: x\r\n" * 512),
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "reason": (b"HTTP/1.1 200 ", b"x" * 4096),
    "one trailer": (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ", b"x" * 4096),
    "trailers": (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"X: x\r\n" * 512),
    "chunk extension": (OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 4096),
}


@pytest.mark.parametrize(("start", "more"), FLOODS.values(), ids=FLOODS)
def test_endless_bytes_without_content_are_refused(start: bytes, more: bytes) -> None:
    pieces = [more] * (2 * MAX_HEAD_SIZE // len(more) + 2)
    with pytest.raises(InvalidResponse):
        parse(*filter(None, (start, *pieces)))


def test_oversized_headers_in_one_read_are_refused() -> None:
    for lines in (b"X: %b\r\n" % (b"x" * 2 * MAX_HEAD_SIZE), b"X: x\r\n" * 1000):
        with pytest.raises(InvalidResponse, match="too many headers"):
            parse(OK + lines + b"Content-Length: 0\r\n\r\n")


@pytest.mark.parametrize("more", [b"x", OK, OK + b"Content-Length: 0\r\n\r\n", b"\x00" * 100])
def test_bytes_after_a_response_end_the_use_of_its_connection(more: bytes) -> None:
    data = OK + b"Content-Length: 5\r\n\r\nhello"
    for parser in (parse(data + more), parse(data, more)):
        assert (parser.complete, content(parser), parser.status, parser.reusable) == (True, b"hello", 200, False)


def test_headers_are_case_insensitive_and_repeated_ones_are_joined() -> None:
    headers = Headers([(b"Content-TYPE", b"text/plain \t"), (b"X", b"1"), (b"x", "\u00fc".encode()), (b"Y", b"\xff")])
    assert headers["content-type"] == headers.get("Content-Type") == "text/plain"
    assert (headers["X"], headers.get("Z"), headers["y"]) == ("1, \u00fc", None, "\udcff")
    assert ("CONTENT-type" in headers, "z" in headers, 1 in headers) == (True, False, False)
    assert dict(headers) == {"content-type": "text/plain", "x": "1, \u00fc", "y": "\udcff"}
    assert len(headers) == 3


@given(
    st.lists(st.binary(max_size=60), max_size=8), st.sampled_from([b"", OK, OK + b"Transfer-Encoding: chunked\r\n\r\n"])
)
def test_parser_survives_any_bytes(pieces: list[bytes], start: bytes) -> None:
    parser = parse(start)
    try:
        for piece in pieces:
            parser.feed(piece)
    except InvalidResponse:
        assert not parser.complete
    parser.receive_eof()
