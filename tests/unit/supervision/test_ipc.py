"""Messages between a supervisor and a worker."""

import os
import socket
from collections.abc import Iterator

import pytest
from tests.processes import no_descriptor_left

from trunkline.supervision.ipc import CONNECTION, STATE, IpcChannel, decode_ticket, encode_ticket


@pytest.fixture
def pair() -> Iterator[tuple[IpcChannel, IpcChannel]]:
    ours, theirs = map(IpcChannel, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_frames_arrive_in_order(pair: tuple[IpcChannel, IpcChannel]) -> None:
    ours, theirs = pair
    ours.send(STATE, b"ready")
    ours.send(STATE)
    assert list(theirs.receive()) == [(STATE, b"ready"), (STATE, b"")]
    assert list(theirs.receive()) == []
    assert not theirs.closed_by_peer


def test_fragmented_frame_is_reassembled(pair: tuple[IpcChannel, IpcChannel]) -> None:
    ours, theirs = pair
    heard = []
    for byte in b"\0\0\0\6Bready\0\0\0\1E":
        ours.socket.send(bytes([byte]))
        heard += theirs.receive()
    assert heard == [(b"B", b"ready"), (b"E", b"")]


def test_passed_descriptor_is_not_inheritable(pair: tuple[IpcChannel, IpcChannel]) -> None:
    ours, theirs = pair
    reader, writer = os.pipe()
    assert ours.send_descriptors(CONNECTION, encode_ticket(7, 1.5), [writer])
    os.close(writer)
    for kind, body in theirs.receive():
        assert (kind, decode_ticket(body)) == (CONNECTION, (7, 1.5))
        passed = theirs.take_descriptor()
        assert not os.get_inheritable(passed)
        os.write(passed, b"here")
        os.close(passed)
    assert (os.read(reader, 10), os.read(reader, 10)) == (b"here", b"")
    os.close(reader)


def test_unclaimed_descriptor_is_closed_with_the_channel(pair: tuple[IpcChannel, IpcChannel]) -> None:
    ours, theirs = pair
    reader, writer = os.pipe()
    ours.send_descriptors(CONNECTION, b"", [writer])
    os.close(writer)
    list(theirs.receive())
    theirs.close()
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_lost_descriptor_does_not_shift_the_next_one(pair: tuple[IpcChannel, IpcChannel]) -> None:
    ours, theirs = pair
    reader, writer = os.pipe()
    assert ours.send_descriptors(CONNECTION, encode_ticket(1), [reader])
    assert ours.send_descriptors(CONNECTION, encode_ticket(2), [writer])
    read: list[tuple[int, int | None]] = []
    with no_descriptor_left():
        theirs._read_socket()
        read += [(decode_ticket(body)[0], theirs.take_descriptor()) for _, body in theirs._decode_frames()]
    for _, body in theirs.receive():
        read.append((decode_ticket(body)[0], theirs.take_descriptor()))
    (_, lost), (second, passed) = read
    assert (lost, second) == (None, 2)
    assert passed is not None
    assert os.path.sameopenfile(passed, writer)
    for descriptor in (passed, reader, writer):
        os.close(descriptor)


def test_lost_descriptor_keeps_its_place_in_partial_frames(pair: tuple[IpcChannel, IpcChannel]) -> None:
    ours, theirs = pair
    reader, writer = os.pipe()
    frame = b"\0\0\0\x11C" + encode_ticket(1)
    with no_descriptor_left():
        socket.send_fds(ours.socket, [frame[:5]], [reader])
        assert list(theirs.receive()) == []
    ours.socket.send(frame[5:])
    ours.send_descriptors(CONNECTION, encode_ticket(2), [writer])
    read = [(decode_ticket(body)[0], theirs.take_descriptor()) for _, body in theirs.receive()]
    assert [ticket for ticket, _ in read] == [1, 2]
    assert read[0][1] is None
    assert read[1][1] is not None
    theirs.close()
    for descriptor in (read[1][1], reader, writer):
        os.close(descriptor)


def test_channel_with_a_lost_descriptor_can_be_closed(pair: tuple[IpcChannel, IpcChannel]) -> None:
    ours, theirs = pair
    with no_descriptor_left():
        ours.send_descriptors(CONNECTION, b"", [0])
        list(theirs.receive())
    theirs.close()


def test_no_descriptor_is_sent_while_frames_are_unsent(pair: tuple[IpcChannel, IpcChannel]) -> None:
    ours, theirs = pair
    said = 0
    while ours.flushed:
        ours.send(STATE, b"x" * 1000)
        said += 1
    assert not ours.send_descriptors(CONNECTION, b"", [0])
    heard = len(list(theirs.receive()))
    ours.flush()
    assert ours.flushed
    assert heard + len(list(theirs.receive())) == said


def test_no_descriptor_is_sent_to_a_closed_peer(pair: tuple[IpcChannel, IpcChannel]) -> None:
    ours, theirs = pair
    theirs.close()
    assert not ours.send_descriptors(CONNECTION, b"", [0])
    ours.send(STATE, b"ready")
    assert ours.flushed
    assert list(ours.receive()) == []
    assert ours.closed_by_peer
