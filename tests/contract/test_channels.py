"""What every channel promises, whatever it runs over. A new transport is one more line in `LINES`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol

import pytest

from trunkline import Settings
from trunkline.transports.channel import Channel, ChannelInfo, Closed, Origin
from trunkline.transports.memory import memory_pair
from trunkline.transports.stream import StreamChannel
from trunkline.wire.messages import Encoded, Incoming, Malformed, Notification, Request, Response


class Recorder:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[Incoming] = []
        self.origins: list[Origin] = []
        self.ends: list[Closed] = []

    def received(self, messages: Sequence[Incoming], origin: Origin) -> None:
        assert messages
        self.messages += messages
        self.origins.append(origin)

    def closed(self, closed: Closed) -> None:
        self.ends.append(closed)


class Line(Protocol):
    """Two ends of a line, and who is told at each."""

    ours: Channel
    theirs: Channel
    at_ours: Recorder
    at_theirs: Recorder


class MemoryLine:
    """Within the process."""

    def __init__(self) -> None:
        ours, theirs = memory_pair("somebody")
        self.at_ours, self.at_theirs = Recorder(), Recorder()
        ours.open(self.at_ours)
        theirs.open(self.at_theirs)
        self.ours, self.theirs = ours, theirs


class Pipe:
    """A byte stream from one `StreamChannel` into another, which can be stopped."""

    def __init__(self) -> None:
        self.unsent = 0
        self._queue: list[bytes] = []
        self._flowing = True
        self._ended = False
        self.into: StreamChannel | None = None

    def write(self, data: bytes) -> None:
        self._queue.append(bytes(data))
        self._flow()

    def _flow(self) -> None:
        while self._queue and self._flowing and self.into is not None:
            self.into.feed(self._queue.pop(0))
        if self._ended and not self._queue and self.into is not None:
            self.into.lost(Closed("end of stream"))

    def pause(self) -> None:
        self._flowing = False

    def resume(self) -> None:
        self._flowing = True
        asyncio.get_running_loop().call_soon(self._flow)

    def close(self) -> None:
        self._flowing = False

    async def finish(self) -> None:
        self._ended = True
        asyncio.get_running_loop().call_soon(self._flow)


class StreamLine:
    """Over bytes."""

    def __init__(self) -> None:
        there, back = Pipe(), Pipe()
        options: dict[str, Any] = {"max_frame": 1 << 20, "settings": Settings()}
        ours = StreamChannel(ChannelInfo("stream", "them"), **options)
        theirs = StreamChannel(ChannelInfo("stream", "us"), **options, origin=Origin(principal="somebody"))
        self.at_ours, self.at_theirs = Recorder(), Recorder()
        there.into, back.into = theirs, ours
        ours.open(self.at_ours, back, there)
        theirs.open(self.at_theirs, there, back)
        self.ours, self.theirs = ours, theirs


LINES: dict[str, Callable[[], Line]] = {"memory": MemoryLine, "stream": StreamLine}


@pytest.fixture(params=LINES)
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    made = LINES[request.param]()
    yield made
    await made.ours.close()
    await made.theirs.close()


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_w01_w08_a_channel_says_what_kind_of_line_it_is(line: Line) -> None:
    assert line.ours.info.transport in LINES
    assert line.ours.info.peer


async def test_w01_w12_messages_arrive_whole_and_in_order_in_both_directions(line: Line) -> None:
    for number in range(100):
        line.ours.send(Request(number, "ask"))
        line.theirs.send(Response(number, {"n": number}))
    await turns()
    assert [message.id for message in line.at_theirs.messages] == list(range(100))  # type: ignore[union-attr]
    assert [message.id for message in line.at_ours.messages] == list(range(100))  # type: ignore[union-attr]


async def test_a_message_never_arrives_inside_of_send(line: Line) -> None:
    line.ours.send(Notification("n"))
    assert line.at_theirs.messages == []
    await turns()
    assert len(line.at_theirs.messages) == 1


async def test_a_message_encoded_once_arrives_like_any_other_and_in_its_place(line: Line) -> None:
    line.ours.send(Notification("first"))
    line.ours.send(Encoded(b'{"jsonrpc":"2.0","method":"second"}'))
    line.ours.send(Notification("third"))
    await turns()
    assert [message.method for message in line.at_theirs.messages] == ["first", "second", "third"]  # type: ignore[union-attr]


async def test_a_batch_arrives_as_one(line: Line) -> None:
    line.ours.send([Response(1, {}), Response(2, {})])
    await turns()
    (batch,) = line.at_theirs.messages
    assert [message.id for message in batch.messages] == [1, 2]  # type: ignore[union-attr]


async def test_what_a_message_is_about_makes_no_difference_on_a_line_of_its_own(line: Line) -> None:
    line.ours.send(Notification("n"), about="whatever")
    line.ours.send(Notification("n"), about=7)
    await turns()
    assert len(line.at_theirs.messages) == 2


async def test_the_origin_tells_who_sent_the_bytes(line: Line) -> None:
    line.ours.send(Notification("n"))
    await turns()
    assert [origin.principal for origin in line.at_theirs.origins] == ["somebody"]


async def test_what_has_no_json_is_refused_and_nothing_of_it_is_sent(line: Line) -> None:
    line.ours.send(Notification("before"))
    with pytest.raises(TypeError):
        line.ours.send(Response(1, {"fine": 1, "not": object()}))
    line.ours.send(Notification("after"))
    await turns()
    assert [message.method for message in line.at_theirs.messages] == ["before", "after"]  # type: ignore[union-attr]


async def test_what_cannot_be_read_is_handed_up_as_such(line: Line) -> None:
    line.ours.send(Encoded(b"nonsense"))
    line.ours.send(Notification("n"))
    await turns()
    assert [type(message) for message in line.at_theirs.messages] == [Malformed, Notification]


async def test_w01_pause_holds_messages_back_and_resume_lets_them_come_in_order(line: Line) -> None:
    line.theirs.pause()
    for number in range(3):
        line.ours.send(Request(number, "ask"))
        await turns()
    assert line.at_theirs.messages == []
    line.theirs.resume()
    await turns()
    assert [message.id for message in line.at_theirs.messages] == [0, 1, 2]  # type: ignore[union-attr]


async def test_pausing_one_direction_does_not_stop_the_other(line: Line) -> None:
    line.ours.pause()
    line.ours.send(Notification("n"))
    await turns()
    assert len(line.at_theirs.messages) == 1


@pytest.mark.parametrize("closer", ["ours", "theirs"])
async def test_w01_both_ends_are_told_of_the_end_once_whoever_began_it(line: Line, closer: str) -> None:
    await getattr(line, closer).close()
    await getattr(line, closer).close()
    await turns()
    assert len(line.at_ours.ends) == len(line.at_theirs.ends) == 1
    await line.ours.close()
    await line.theirs.close()
    assert len(line.at_ours.ends) == len(line.at_theirs.ends) == 1


async def test_what_was_sent_before_the_end_still_arrives(line: Line) -> None:
    line.ours.send(Notification("last words"))
    await line.ours.close()
    await turns()
    assert [message.method for message in line.at_theirs.messages] == ["last words"]  # type: ignore[union-attr]
    assert len(line.at_theirs.ends) == 1


async def test_w01_sending_after_the_end_does_nothing(line: Line) -> None:
    await line.ours.close()
    await turns()
    line.ours.send(Notification("n"))
    line.theirs.send(Notification("n"))
    await turns()
    assert line.at_theirs.messages == line.at_ours.messages == []


async def test_nothing_arrives_after_the_end(line: Line) -> None:
    line.theirs.pause()
    line.ours.send(Notification("n"))
    await line.theirs.close()
    before = list(line.at_theirs.messages)
    line.theirs.resume()
    await turns()
    assert line.at_theirs.messages == before


@pytest.mark.parametrize("closed", [False, True])
async def test_drain_returns_at_once_when_the_peer_reads_or_is_gone(line: Line, *, closed: bool) -> None:
    if closed:
        await line.ours.close()
    draining: Coroutine[Any, Any, None] = line.ours.drain()
    async with asyncio.timeout(5):
        await draining
