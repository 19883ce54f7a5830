"""Frames, over generated streams that arrive in generated pieces."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.wire.framing import BadFrame, Frame, Framing, LengthFramer, LineFramer, TooLarge, detect
from trunkline.wire.undecoded import EDGE

LIMIT = 24

lines = st.binary(max_size=2 * LIMIT).filter(lambda line: b"\n" not in line and bool(line) and not line.isspace())
bodies = st.binary(max_size=2 * LIMIT)
framers = st.sampled_from([LineFramer, LengthFramer])
headers = st.sampled_from([b"Content-Length: 3", b"content-length:-1", b"content-length: 30", b"Content-", b"X: 1"])
ends = st.sampled_from([b"\r\n\r\n", b"\n\n", b"\r\n", b"\n", b"\r", b" "])
other = st.sampled_from([b"{}", b"abc", b"\xff", b"x" * 30])
noise = st.lists(st.one_of(headers, ends, other), max_size=12).map(b"".join)
streams = st.one_of(noise, st.binary(max_size=4 * LIMIT))


@st.composite
def cut(draw: Callable[..., bytes], stream: bytes) -> list[bytes]:
    """A stream in pieces of any size."""
    places = draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    return [stream[start:end] for start, end in pairwise([0, *places, len(stream)])]


def fed(framer: Framing, chunks: list[bytes]) -> list[Frame]:
    return [frame for chunk in chunks for frame in framer.feed(chunk)]


def shown(frame: bytes) -> Frame:
    return frame if len(frame) <= LIMIT else TooLarge(LIMIT, frame[:EDGE], frame[-EDGE:])


def shown_line(line: bytes) -> Frame:
    """A carriage return before the end of a line counts only if the line is too long with it and without it."""
    return line[:-1] if len(line) == LIMIT + 1 and line.endswith(b"\r") else shown(line)


@pytest.mark.row("W11", "W12", "W16")
@given(data=st.data(), sent=st.lists(lines, max_size=6))
def test_every_line_is_returned_or_rejected_for_any_chunks(data, sent: list[bytes]) -> None:
    chunks = data.draw(cut(b"".join(line + b"\n" for line in sent)))
    assert fed(LineFramer(LIMIT), chunks) == [shown_line(line) for line in sent]


@pytest.mark.row("W11", "W12", "W16")
@given(data=st.data(), sent=st.lists(bodies, max_size=6))
def test_every_headed_frame_is_returned_or_rejected_for_any_chunks(data, sent: list[bytes]) -> None:
    framer = LengthFramer(LIMIT)
    chunks = data.draw(cut(b"".join(map(framer.wrap, sent))))
    assert fed(framer, chunks) == [shown(body) for body in sent]


@pytest.mark.row("W11")
@given(data=st.data(), framer=framers, stream=streams)
def test_frames_are_independent_of_chunking(data, framer: type[Framing], stream: bytes) -> None:
    assert fed(framer(LIMIT), data.draw(cut(stream))) == framer(LIMIT).feed(stream)


@pytest.mark.row("W14")
@given(data=st.data(), stream=streams)
def test_line_framer_recovers_after_noise(data, stream: bytes) -> None:
    chunks = data.draw(cut(stream + b"\n" + b'{"next":1}\n'))
    assert fed(LineFramer(LIMIT), chunks)[-1] == b'{"next":1}'


@pytest.mark.row("W14")
@given(st.lists(st.sampled_from([b"Content-Length: x", b"X: 1", b"Content-Length:"]), min_size=1, max_size=4))
def test_length_framer_recovers_after_bad_headers(blocks: list[bytes]) -> None:
    framer = LengthFramer(LIMIT)
    *faults, found = framer.feed(b"".join(block + b"\r\n\r\n" for block in blocks) + framer.wrap(b'{"next":1}'))
    assert found == b'{"next":1}'
    assert faults
    assert all(isinstance(fault, BadFrame) for fault in faults)


@pytest.mark.row("X24")
@given(data=st.data(), framer=framers, sent=st.lists(lines.filter(lambda line: len(line) <= LIMIT), min_size=1))
def test_framing_is_detected_from_the_first_bytes(data, framer: type[Framing], sent: list[bytes]) -> None:
    sent = [b"{" + line.replace(b"\r", b"")[1:] for line in sent]
    wrap = framer(LIMIT).wrap
    start, *chunks = data.draw(cut(b"".join(map(wrap, sent))))
    while (found := detect(start, LIMIT)) is None:
        start += chunks.pop(0)
    assert isinstance(found, framer)
    assert fed(found, [start, *chunks]) == sent
