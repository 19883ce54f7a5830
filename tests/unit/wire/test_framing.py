"""A byte stream to frames."""

import tracemalloc

import pytest

from trunkline.wire.framing import (
    MAX_HEADER,
    BadFrame,
    ForeignProtocol,
    Frame,
    Framing,
    LengthFramer,
    LineFramer,
    TooLarge,
    detect,
)
from trunkline.wire.undecoded import EDGE

LIMIT = 100


def headed(body: bytes, *more: bytes) -> bytes:
    return b"\r\n".join((b"Content-Length: %d" % len(body), *more)) + b"\r\n\r\n" + body


def too_large(frame: bytes) -> TooLarge:
    return TooLarge(LIMIT, frame[:EDGE], frame[-EDGE:])


def fed(framer: Framing, *chunks: bytes) -> list[Frame]:
    return [frame for chunk in chunks for frame in framer.feed(chunk)]


# --- lines ---------------------------------------------------------------------------------------


@pytest.mark.row("W12")
def test_lines_of_one_read_are_returned_in_order() -> None:
    assert LineFramer(LIMIT).feed(b"one\ntwo\nthree\n") == [b"one", b"two", b"three"]


@pytest.mark.row("W13")
def test_partial_line_is_buffered() -> None:
    framer = LineFramer(LIMIT)
    assert framer.feed(b"on") == []
    assert framer.feed(b"e\ntw") == [b"one"]
    assert framer.feed(b"o\n") == [b"two"]


@pytest.mark.row("W11")
def test_line_may_arrive_byte_by_byte() -> None:
    assert fed(LineFramer(LIMIT), *(b"%c" % byte for byte in b'{"a":1}\n{}\n')) == [b'{"a":1}', b"{}"]


@pytest.mark.row("W15")
@pytest.mark.parametrize("text", ["é", "日本", "😀"])
def test_characters_split_across_reads_stay_whole(text: str) -> None:
    assert fed(LineFramer(LIMIT), *(b"%c" % byte for byte in text.encode() + b"\n")) == [text.encode()]


def test_blank_lines_are_skipped() -> None:
    assert LineFramer(LIMIT).feed(b"\n\r\n  \t\none\n \n") == [b"one"]


def test_blank_line_behind_a_partial_one_is_skipped() -> None:
    assert fed(LineFramer(LIMIT), b" ", b"\none\n", b" ", b" \n\ntwo\n") == [b"one", b"two"]


@pytest.mark.row("W16")
def test_line_limit_is_inclusive() -> None:
    framer = LineFramer(LIMIT)
    assert framer.feed(b"x" * LIMIT + b"\n") == [b"x" * LIMIT]
    assert framer.feed(b"x" * (LIMIT + 1) + b"\n") == [too_large(b"x" * (LIMIT + 1))]


@pytest.mark.row("W16")
def test_carriage_return_does_not_count_against_the_limit() -> None:
    whole, cut = LineFramer(LIMIT), LineFramer(LIMIT)
    line = b"x" * LIMIT
    assert whole.feed(line + b"\r\n") == [line]
    assert fed(cut, line, b"\r", b"\n") == [line]
    assert whole.feed(line + b"\r\r\n") == [too_large(line + b"\r\r")]
    assert fed(cut, line + b"\r", b"\r", b"\n") == [too_large(line + b"\r\r")]


@pytest.mark.row("W16")
def test_default_limit_is_exactly_16_mib() -> None:
    limit = 16 * 1024 * 1024
    framer = LineFramer(limit)
    assert [len(frame) for frame in framer.feed(b"x" * limit + b"\n") if isinstance(frame, bytes)] == [16_777_216]
    assert framer.feed(b"x" * (limit + 1) + b"\n") == [TooLarge(16_777_216, b"x" * EDGE, b"x" * EDGE)]


@pytest.mark.row("W14", "W16")
def test_oversized_line_is_not_buffered() -> None:
    framer = LineFramer(LIMIT)
    assert fed(framer, b"a" * 60, *[b"x" * 60] * 1000) == []
    ends = b"a" * 60 + b"x" * (EDGE - 60), b"x" * (EDGE - 1) + b"z"
    assert framer.feed(b"z\nnext\n") == [TooLarge(LIMIT, *ends), b"next"]


@pytest.mark.no_cover
@pytest.mark.row("W11")
@pytest.mark.parametrize("sizes", [[1], [2], [1, 2, 3], [300, 200, 100]])
def test_trickled_line_uses_little_memory(sizes: list[int]) -> None:
    framer, sent = LineFramer(1 << 20), 0
    tracemalloc.start()
    try:
        while sent < 1 << 17:
            for size in sizes:
                framer.feed(b"x" * size)
                sent += size
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * sent
    assert framer.feed(b"\n") == [b"x" * sent]


@pytest.mark.row("W16")
def test_line_after_oversized_one_is_unaffected() -> None:
    framer = LineFramer(LIMIT)
    assert fed(framer, b"x" * 150, b"x\n" + b"y" * 60, b"y" * 40 + b"\n") == [
        too_large(b"x" * 151),
        b"y" * LIMIT,
    ]


def test_wrap_appends_newline() -> None:
    assert LineFramer(LIMIT).wrap(b"{}") == b"{}\n"


# --- headers -------------------------------------------------------------------------------------


@pytest.mark.row("A01", "W10")
def test_frame_follows_a_header_with_its_length() -> None:
    assert LengthFramer(LIMIT).feed(b'Content-Length: 7\r\n\r\n{"a":1}') == [b'{"a":1}']


@pytest.mark.row("W12")
def test_frames_of_one_read_are_returned_in_order() -> None:
    assert LengthFramer(LIMIT).feed(headed(b"one") + headed(b"two") + headed(b"three")) == [b"one", b"two", b"three"]


@pytest.mark.row("W13")
def test_partial_frame_is_buffered() -> None:
    framer = LengthFramer(LIMIT)
    assert framer.feed(b"Content-Len") == []
    assert framer.feed(b"gth: 5\r\n\r\nhal") == []
    assert framer.feed(b"ves") == [b"halve"]


@pytest.mark.row("W11")
def test_frame_may_arrive_byte_by_byte() -> None:
    stream = headed(b'{"a":1}') + headed(b"{}")
    assert fed(LengthFramer(LIMIT), *(b"%c" % byte for byte in stream)) == [b'{"a":1}', b"{}"]


@pytest.mark.row("W15")
@pytest.mark.parametrize("text", ["é", "日本", "😀"])
def test_length_counts_bytes_not_characters(text: str) -> None:
    stream = headed(text.encode()) + headed(b"next")
    assert fed(LengthFramer(LIMIT), *(b"%c" % byte for byte in stream)) == [text.encode(), b"next"]


@pytest.mark.row("W14")
@pytest.mark.parametrize("name", [b"Content-Length", b"content-length", b"CONTENT-LENGTH", b" Content-Length "])
def test_header_names_ignore_case(name: bytes) -> None:
    assert LengthFramer(LIMIT).feed(name + b":2\r\n\r\n{}") == [b"{}"]


@pytest.mark.row("W14")
def test_other_headers_are_ignored() -> None:
    framer = LengthFramer(LIMIT)
    assert framer.feed(headed(b"{}", b"Content-Type: application/json")) == [b"{}"]
    assert framer.feed(b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}") == [b"{}"]


@pytest.mark.row("W14")
def test_header_lines_may_end_without_carriage_return() -> None:
    assert LengthFramer(LIMIT).feed(b"Content-Length: 2\n\n{}" + headed(b"next")) == [b"{}", b"next"]


def test_whitespace_between_frames_is_skipped() -> None:
    assert LengthFramer(LIMIT).feed(b"\r\n" + headed(b"{}") + b" \t\r\n\n" + headed(b"{}")) == [b"{}", b"{}"]


def test_empty_frame_is_a_frame() -> None:
    assert LengthFramer(LIMIT).feed(headed(b"") + headed(b"{}")) == [b"", b"{}"]


@pytest.mark.row("W14")
@pytest.mark.parametrize("length", [b"-5", b"five", b"", b"0x10", b"1.5", b"+5", b"9" * 19, b"\xff"])
def test_frame_after_a_bad_length_is_found(length: bytes) -> None:
    fault, *rest = LengthFramer(LIMIT).feed(b"Content-Length: %b\r\n\r\n{}" % length + headed(b"next"))
    assert isinstance(fault, BadFrame)
    assert fault.why.startswith("Content-Length must be a whole number of bytes")
    assert rest == [b"next"]


@pytest.mark.row("W14")
def test_frame_after_a_header_without_length_is_found() -> None:
    stream = b"Content-Type: text\r\n\r\n{}" + headed(b"next")
    expected = [BadFrame("the header block has no Content-Length"), b"next"]
    assert LengthFramer(LIMIT).feed(stream) == expected
    assert fed(LengthFramer(LIMIT), *(b"%c" % byte for byte in stream)) == expected


@pytest.mark.row("W14")
def test_endless_header_block_is_fault() -> None:
    framer = LengthFramer(LIMIT)
    assert fed(framer, *[b"C" * 1000] * 100) == [BadFrame("the header block is too long")]
    assert framer.feed(headed(b"next")) == [b"next"]


@pytest.mark.row("W14")
@pytest.mark.parametrize(("size", "accepted"), [(MAX_HEADER, True), (MAX_HEADER + 1, False)])
def test_header_limit_is_independent_of_reads(size: int, accepted: bool) -> None:
    block = b"Content-Length: 2\r\nX: ".ljust(size, b"x")
    stream = block + b"\r\n\r\n{}"
    expected = [b"{}"] if accepted else [BadFrame("the header block is too long")]
    assert LengthFramer(LIMIT).feed(stream) == expected
    assert fed(LengthFramer(LIMIT), *(b"%c" % byte for byte in stream)) == expected


@pytest.mark.row("W14", "W16")
def test_oversized_frame_is_dropped_as_it_arrives() -> None:
    framer = LengthFramer(LIMIT)
    assert fed(framer, b"Content-Length: 101\r\n\r\n", b"x" * 60) == []
    assert framer.feed(b"x" * 41 + headed(b"next")) == [too_large(b"x" * 101), b"next"]


@pytest.mark.row("W16")
def test_frame_at_the_limit_is_accepted() -> None:
    assert LengthFramer(LIMIT).feed(headed(b"x" * LIMIT)) == [b"x" * LIMIT]


@pytest.mark.row("W10")
def test_wrap_prepends_content_length() -> None:
    assert LengthFramer(LIMIT).wrap("é".encode()) == b"Content-Length: 2\r\n\r\n\xc3\xa9"


# --- detection -----------------------------------------------------------------------------------


@pytest.mark.row("X24")
@pytest.mark.parametrize("start", [b"Content-Length: 2\r\n\r\n{}", b"content-type: x", b"\r\n CONTENT-LENGTH"])
def test_initial_header_selects_length_framing(start: bytes) -> None:
    assert isinstance(detect(start, LIMIT), LengthFramer)


@pytest.mark.row("X24")
@pytest.mark.parametrize("start", [b"{", b"\n [", b'{"jsonrpc"'])
def test_initial_message_selects_line_framing(start: bytes) -> None:
    assert isinstance(detect(start, LIMIT), LineFramer)


@pytest.mark.row("X24")
@pytest.mark.parametrize("start", [b"", b" \r\n\t", b"C", b"\r\ncOn", b"Content-", b"Content-Lengt"])
def test_detection_waits_for_more_bytes(start: bytes) -> None:
    assert detect(start, LIMIT) is None


@pytest.mark.row("X24")
@pytest.mark.parametrize(
    "start",
    [b"POST / HTTP/1.1\r\n", b"CONNECT a:1", b"OPTIONS", b"Conn", b"\n oops", b"\xff", b"\x16\x03\x01", b"SSH-2.0"],
)
def test_other_first_bytes_are_foreign(start: bytes) -> None:
    assert detect(start, LIMIT) == ForeignProtocol(start.lstrip())


@pytest.mark.row("X24")
def test_foreign_excerpt_is_short() -> None:
    assert detect(b"GET /" + b"x" * 1000, LIMIT) == ForeignProtocol(b"GET /" + b"x" * 35)
    assert ForeignProtocol(b"GET \xff").why == "the peer speaks something else: it began with 'GET \ufffd'"


@pytest.mark.row("W16")
def test_fault_message_has_limit() -> None:
    assert TooLarge(LIMIT).why == "message is larger than the limit of 100 bytes"


@pytest.mark.parametrize("blank", [b"\n", b" \r\n", b"\t\n\n"])
def test_single_blank_line_is_skipped(blank: bytes) -> None:
    framer = LineFramer(100)

    assert framer.feed(blank) == []
    assert framer.feed(b"{}\n") == [b"{}"]
