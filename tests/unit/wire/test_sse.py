"""Event streams: bytes and events."""

import pytest
from hypothesis import given
from hypothesis.strategies import binary, integers, lists

from trunkline.transports.http.session.event_store import format_event_id
from trunkline.wire.framing import TooLarge
from trunkline.wire.sse import (
    COMMENT,
    SseDecoder,
    SseEvent,
    encode_event,
    encode_message,
    encode_numbered_message,
    encode_unnumbered_message,
)
from trunkline.wire.undecoded import EDGE


def events(stream: bytes, limit: int = 1000) -> list[SseEvent | TooLarge]:
    return SseDecoder(limit).feed(stream)


def test_event_is_encoded_with_its_fields() -> None:
    assert encode_event(b"{}") == b"data: {}\n\n"
    assert encode_event(b"", kind="message", id="1-2", retry=500) == b"event: message\nid: 1-2\nretry: 500\ndata: \n\n"
    assert encode_message(b"{}") == encode_event(b"{}", kind="message")
    assert encode_unnumbered_message(b"{}", 1, 23) == encode_message(b"{}")
    assert encode_numbered_message(b"{}", 1, 23) == encode_event(b"{}", kind="message", id=format_event_id(1, 23))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_three_line_ends_are_supported(end: bytes) -> None:
    stream = end.join([b"event: x", b"id: 7", b"data: a", b"data:b", b": comment", b"", b"data: c", b"", b""])
    assert events(stream) == [SseEvent(b"a\nb", "x", "7"), SseEvent(b"c", "message", "7")]


def test_crlf_may_be_split_between_reads() -> None:
    decoder = SseDecoder(1000)
    assert decoder.feed(b"data: x\r") == []
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\n\r") == [SseEvent(b"x")]
    assert decoder.feed(b"\ndata: y\r\r") == [SseEvent(b"y")]


def test_event_without_data_updates_position() -> None:
    decoder = SseDecoder(1000)
    assert decoder.feed(b"id: 5\nretry: 300\n\n") == []
    assert (decoder.last_id, decoder.retry) == ("5", 300)
    assert decoder.feed(b"data\n\n") == [SseEvent(b"", "message", "5")]


def test_position_updates_with_complete_event() -> None:
    decoder = SseDecoder(1000)
    assert decoder.feed(b"id: 5\ndata: x\n") == []
    assert decoder.last_id is None  # a client that resumes here must get that event again
    assert decoder.feed(b"\n") == [SseEvent(b"x", "message", "5")]
    assert decoder.last_id == "5"


def test_comment_is_ignored() -> None:
    assert events(COMMENT + b"data: x\n\n") == [SseEvent(b"x")]


@pytest.mark.parametrize("field", [b"id: a\0b", b"retry: -1", b"retry: x", b"retry: 9999999999", b"unknown: 5", b"x"])
def test_unknown_fields_are_ignored(field: bytes) -> None:
    decoder = SseDecoder(1000)
    assert decoder.feed(field + b"\ndata: x\n\n") == [SseEvent(b"x")]
    assert (decoder.last_id, decoder.retry) == (None, None)


def test_byte_order_mark_is_skipped() -> None:
    assert events(b"\xef\xbb\xbfdata: x\n\n") == [SseEvent(b"x")]
    decoder = SseDecoder(1000)
    assert decoder.feed(b"\xef\xbb") == []
    assert decoder.feed(b"\xbfdata: x\n\n") == [SseEvent(b"x")]


@pytest.mark.row("W17")
@pytest.mark.parametrize("size", [1, 3, 5000])
def test_event_after_an_oversized_one_is_read(size: int) -> None:
    data = b"first" + b"a" * 3000 + b"last"
    stream = b"data: " + data + b"\n\n" + b"data: ok\n\n"
    decoder = SseDecoder(1024)
    seen = [event for at in range(0, len(stream), size) for event in decoder.feed(stream[at : at + size])]
    assert seen == [TooLarge(1024, data[:EDGE], data[-EDGE:]), SseEvent(b"ok")]


@pytest.mark.row("W17")
def test_event_at_the_limit_is_read() -> None:
    assert events(b"data: " + b"a" * 1000 + b"\n\n") == [SseEvent(b"a" * 1000)]
    assert events(b"data: " + b"a" * 1001 + b"\n\n") == [TooLarge(1000, b"a" * EDGE, b"a" * EDGE)]
    assert events(b"data: a\n" * 501 + b"\n") == [TooLarge(1000, b"a" * EDGE, b"a" * EDGE)]
    assert events(b"data: a\n" * 601 + b"\n") == [TooLarge(1000, b"a" * EDGE, b"a" * EDGE)]


@pytest.mark.row("W17")
def test_comments_over_the_limit_are_dropped() -> None:
    decoder = SseDecoder(1024)
    assert [event for _ in range(3) for event in decoder.feed(b":" + b"a" * 3000)] == []
    assert decoder.feed(b"\n\n") == [TooLarge(1024, b":" + b"a" * (EDGE - 1), b"a" * EDGE)]


@given(datas=lists(binary(max_size=20).map(lambda b: b.translate(None, b"\r\n"))), cuts=lists(integers(1, 9)))
def test_events_do_not_depend_on_how_the_bytes_arrive(datas: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(encode_event(data, id=str(number)) for number, data in enumerate(datas))
    decoder, seen = SseDecoder(1000), list[SseEvent | TooLarge]()
    for size in [*cuts, len(stream)]:
        seen += decoder.feed(stream[:size])
        stream = stream[size:]
    assert seen == [SseEvent(data, "message", str(number)) for number, data in enumerate(datas)]


@given(lists(binary(max_size=50)))
def test_decoder_accepts_any_bytes(pieces: list[bytes]) -> None:
    decoder = SseDecoder(20)
    for piece in pieces:
        decoder.feed(piece)
    decoder.feed(b"\n\n\n")
    assert decoder.feed(b"data: x\n\n")[-1:] == [SseEvent(b"x", "message", decoder.last_id)]
