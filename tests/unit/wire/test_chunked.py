"""Chunked bodies: the same body however the bytes arrive, and nothing that another parser could read differently."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.wire.chunked import BadChunk, ChunkedDecoder

NEXT = b"POST / HTTP/1.1\r\n"


def decode(*parts: bytes, limit: int = 100) -> tuple[bytes, bytes, ChunkedDecoder]:
    """Feed parts until the body is complete; return the body and what follows it."""
    decoder, rest = ChunkedDecoder(limit), b""
    for part in parts:
        rest += part if decoder.complete else decoder.feed(part)
    assert decoder.size == sum(map(len, decoder.pieces))
    return b"".join(decoder.pieces), rest, decoder


def splits(data: bytes) -> list[list[bytes]]:
    """Every split into two parts, and the one into single bytes."""
    return [[data[:at], data[at:]] for at in range(len(data) + 1)] + [[data[i : i + 1] for i in range(len(data))]]


VALID = {
    "nothing": (b"0\r\n\r\n", b""),
    "one chunk": (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
    "two chunks": (b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", b"hello!"),
    "line breaks in a chunk": (b"6\r\n\r\n0\r\n\r\r\n0\r\n\r\n", b"\r\n0\r\n\r"),
    "digits of either case": (b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", b"0123456789" * 2),
    "leading zeros": (b"0000000000000005\r\nhello\r\n000\r\n\r\n", b"hello"),
    "an extension": (b"5;a\r\nhello\r\n0;b=c\r\n\r\n", b"hello"),
    "extensions with spaces": (b"5 ; a\t=\tb ;c\r\nhello\r\n0\r\n\r\n", b"hello"),
    "a quoted extension": (b'5;a="b;c=\\"d\\\\"\r\nhello\r\n0;e=""\r\n\r\n', b"hello"),
    "an extension beyond ASCII": (b'5;a="\xe4\\\xf6"\r\nhello\r\n0\r\n\r\n', b"hello"),
    "trailer fields": (b"5\r\nhello\r\n0\r\nx-a: 1\r\nx-b:\r\nx-c:\t\xe4 b\r\n\r\n", b"hello"),
}


@pytest.mark.parametrize(("data", "body"), VALID.values(), ids=VALID)
def test_body_is_the_same_for_every_split(data: bytes, body: bytes) -> None:
    for parts in splits(data + NEXT):
        found, rest, decoder = decode(*parts)
        assert (found, rest, decoder.complete) == (body, NEXT, True), parts


@pytest.mark.parametrize(("data", "body"), VALID.values(), ids=VALID)
def test_body_is_incomplete_until_its_last_byte(data: bytes, body: bytes) -> None:
    for at in range(len(data)):
        found, rest, decoder = decode(data[:at])
        assert (rest, decoder.complete) == (b"", False)
        assert body.startswith(found)


def test_nothing_after_the_body_is_read() -> None:
    decoder = ChunkedDecoder(0)
    assert decoder.feed(b"0\r\n\r\n\n") == b"\n"
    assert decoder.feed(b"5\r\n") == b"5\r\n"
    assert decoder.feed(b"") == b""


INVALID = {
    "no size": b"\r\nhello\r\n",
    "no digit": b"g\r\nhello\r\n",
    "a sign": b"+5\r\nhello\r\n",
    "a minus sign": b"-5\r\nhello\r\n",
    "a prefix": b"0x5\r\nhello\r\n",
    "an underscore": b"1_0\r\nhello\r\n",
    "a space before the size": b" 5\r\nhello\r\n",
    "a space behind the size": b"5 \r\nhello\r\n",
    "two sizes": b"5 5\r\nhello\r\n",
    "a size of 17 digits": b"00000000000000005\r\nhello\r\n",
    "a digit that is not ASCII": "\u0665\r\nhello\r\n".encode(),
    "a size without CR": b"5\nhello\r\n",
    "a size without LF": b"5\rhello\r\n0\r\n\r\n",
    "CR in an extension": b"5;a\rb\r\nhello\r\n",
    "an empty extension": b"5;\r\nhello\r\n",
    "an extension without a name": b"5;=a\r\nhello\r\n",
    "an extension without a value": b"5;a=\r\nhello\r\n",
    "an extension with a space in it": b"5;a b\r\nhello\r\n",
    "an unfinished quote": b'5;a="b\r\nhello\r\n',
    "text behind a quote": b'5;a="b"c\r\nhello\r\n',
    "a line break in a quote": b'5;a="b\r\n"\r\nhello\r\n',
    "NUL in a quote": b'5;a="\x00"\r\nhello\r\n',
    "a chunk that is longer than its size": b"4\r\nhello\r\n",
    "a chunk that is shorter than its size": b"6\r\nhello\r\n0\r\n\r\n",
    "a chunk without CR": b"5\r\nhello\n0\r\n\r\n",
    "a chunk without LF": b"5\r\nhello\r0\r\n\r\n",
    "a chunk with LF before CR": b"5\r\nhello\n\r0\r\n\r\n",
    "no line break behind a chunk": b"5\r\nhello0\r\n\r\n",
    "a trailer without a name": b"0\r\n: a\r\n\r\n",
    "a trailer without a colon": b"0\r\nx-a\r\n\r\n",
    "a trailer with a space before its colon": b"0\r\nx-a : 1\r\n\r\n",
    "a folded trailer": b"0\r\nx-a: 1\r\n 2\r\n\r\n",
    "a trailer with NUL": b"0\r\nx-a: \x00\r\n\r\n",
    "a trailer with CR": b"0\r\nx-a: \r1\r\n\r\n",
    "a trailer without CR": b"0\r\nx-a: 1\n\r\n",
    "an end without CR": b"0\r\n\n",
    "a chunk behind the last": b"0\r\n5\r\nhello\r\n",
}


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
def test_invalid_body_is_refused_in_every_split(data: bytes) -> None:
    for parts in splits(data):
        with pytest.raises(BadChunk):
            decode(*parts)


def test_extensions_and_trailers_share_a_limit() -> None:
    assert decode(b"1;abc\r\nx\r\n1;abc\r\ny\r\n0\r\na:\r\n\r\n", limit=10)[2].complete
    for data in (
        b"1;abcdefghij\r\nx\r\n",
        b"1;abc\r\nx\r\n1;abcdef\r\ny\r\n",
        b"1;abc\r\nx\r\n0;abc\r\nabc:\r\n",
        b"0\r\na:12345\r\nb:12\r\n",
    ):
        for parts in splits(data):
            with pytest.raises(BadChunk, match="too long"):
                decode(*parts, limit=10)


def test_line_without_an_end_is_refused_at_the_limit() -> None:
    decoder = ChunkedDecoder(100)
    decoder.feed(b"5;" + b"a" * 98)
    with pytest.raises(BadChunk, match="too long"):
        decoder.feed(b"a")


def test_limit_leaves_room_for_every_size() -> None:
    data = b"%016x\r\nhello\r\n%016x\r\n\r\n" % (5, 0)
    for parts in splits(data):
        assert decode(*parts, limit=0)[0] == b"hello"


def test_largest_size_is_counted_exactly() -> None:
    decoder = ChunkedDecoder(0)
    decoder.feed(b"ffffffffffffffff\r\n" + b"x" * 10)
    assert (decoder.size, decoder.complete) == (10, False)


def test_size_counts_pieces_that_were_taken_away() -> None:
    decoder = ChunkedDecoder(0)
    for number in range(1, 4):
        decoder.feed(b"2\r\nab\r\n")
        assert decoder.pieces == [b"ab"]
        decoder.pieces.clear()
        assert decoder.size == 2 * number


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=20), max_size=5),
    extension=st.sampled_from([b"", b";a", b' ; a="\\""']),
    trailer=st.sampled_from([b"", b"x: 1\r\n"]),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_decoded_body_equals_the_encoded_one(
    chunks: list[bytes], extension: bytes, trailer: bytes, cuts: list[int]
) -> None:
    data = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    data += b"0\r\n%b\r\n%b" % (trailer, NEXT)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found, rest, decoder = decode(*(data[start:end] for start, end in pairwise(edges)))
    assert (found, rest, decoder.complete) == (b"".join(chunks), NEXT, True)
