"""The shell around standard input and output, over pipes and files of this process."""

import asyncio
import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_channels import Recorder, turns
from tests.processes import eventually

from trunkline import Server, Settings
from trunkline.transports import stdio
from trunkline.transports.channel import ChannelInfo
from trunkline.transports.stdio import PolledReader, PolledWriter, ThreadReader, ThreadWriter, serve_stdio
from trunkline.transports.stream import StreamChannel

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(descriptor)


class Fed:
    """Who is told what was read."""

    def __init__(self) -> None:
        self.data = b""
        self.more = asyncio.Event()
        self.ends = 0

    def feed(self, data: bytes) -> None:
        self.data += data
        self.more.set()

    def at_end(self) -> None:
        self.ends += 1
        self.more.set()

    async def next(self) -> None:
        await asyncio.wait_for(self.more.wait(), 10)
        self.more.clear()


class Silence:
    """A source that never says anything."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


def channel_for(writer: Any, recorder: Recorder, settings: Settings | None = None) -> tuple[StreamChannel, Any]:
    """A channel that writes with that kind of writer, to a pipe or a file."""
    kind, descriptor = writer
    channel = StreamChannel(ChannelInfo("stdio"), max_frame=1 << 20, settings=settings or Settings())
    made = kind(asyncio.get_running_loop(), descriptor, channel, recorder.ends.append)
    channel.open(recorder, Silence(), made)
    return channel, made


READERS = [PolledReader, ThreadReader]


@pytest.mark.parametrize("kind", READERS)
async def test_a_reader_feeds_what_it_reads_and_tells_the_end_once(kind: Any, pipe: tuple[int, int]) -> None:
    fed = Fed()
    reader = kind(asyncio.get_running_loop(), pipe[0], fed.feed, fed.at_end)
    reader.resume()
    reader.resume()
    os.write(pipe[1], b"one")
    await fed.next()
    assert fed.data == b"one"
    os.close(pipe[1])
    await fed.next()
    assert fed.ends == 1
    reader.close()
    reader.resume()
    await turns()
    assert (fed.data, fed.ends) == (b"one", 1)


@pytest.mark.parametrize("kind", READERS)
async def test_a_reader_that_is_paused_leaves_bytes_where_they_are(kind: Any, pipe: tuple[int, int]) -> None:
    fed = Fed()

    def feed_once(data: bytes) -> None:
        reader.pause()
        fed.feed(data)

    reader = kind(asyncio.get_running_loop(), pipe[0], feed_once, fed.at_end)
    os.write(pipe[1], b"one")
    reader.resume()
    await fed.next()
    os.write(pipe[1], b"two")
    await turns(100)
    assert _has_bytes(pipe[0])
    reader.pause()
    reader.resume()
    await fed.next()
    assert fed.data == b"onetwo"
    reader.close()


async def _until(truth: Any) -> None:
    while not truth():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", READERS)
async def test_closing_a_reader_is_an_end_too(kind: Any, pipe: tuple[int, int]) -> None:
    fed = Fed()
    reader = kind(asyncio.get_running_loop(), pipe[0], fed.feed, fed.at_end)
    reader.resume()
    reader.close()
    reader.close()
    assert fed.ends == 1
    os.write(pipe[1], b"too late")
    await turns(100)
    assert fed.data == b""


@pytest.mark.parametrize("kind", READERS)
async def test_a_descriptor_that_cannot_be_read_is_an_end(kind: Any, tmp_path: Path) -> None:
    fed = Fed()
    writing = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    reader = kind(asyncio.get_running_loop(), writing, fed.feed, fed.at_end)
    if kind is PolledReader:
        reader._readable()  # a file cannot be polled
    else:
        reader.resume()
    await fed.next()
    assert fed.ends == 1
    os.close(writing)


async def test_a_polled_reader_that_was_woken_for_nothing_waits_on(pipe: tuple[int, int]) -> None:
    fed = Fed()
    reader = PolledReader(asyncio.get_running_loop(), pipe[0], fed.feed, fed.at_end)
    reader._readable()
    assert (fed.data, fed.ends) == (b"", 0)


async def test_a_reader_on_a_thread_reads_no_faster_than_it_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * stdio.READ_SIZE * 20)
    fed, reading = Fed(), os.open(file, os.O_RDONLY)
    reader = ThreadReader(asyncio.get_running_loop(), reading, fed.feed, fed.at_end)
    reader.resume()
    eventually(lambda: os.lseek(reading, 0, os.SEEK_CUR) > 0)  # the loop stands still meanwhile
    assert os.lseek(reading, 0, os.SEEK_CUR) == stdio.READ_SIZE
    await asyncio.wait_for(_until(lambda: fed.ends), 10)
    assert len(fed.data) == stdio.READ_SIZE * 20
    os.close(reading)


def test_a_reader_on_a_thread_outlives_its_loop_without_a_word(pipe: tuple[int, int]) -> None:
    fed: list[Fed] = []

    async def begin() -> None:
        fed.append(Fed())
        ThreadReader(asyncio.get_running_loop(), pipe[0], fed[0].feed, fed[0].at_end).resume()

    asyncio.run(begin())
    os.write(pipe[1], b"nobody listens")
    eventually(lambda: not _has_bytes(pipe[0]))
    assert fed[0].data == b""


def _has_bytes(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


# --- writing -----------------------------------------------------------------------------------------------


async def test_a_polled_writer_writes_what_fits_at_once_and_the_rest_when_there_is_room(pipe: tuple[int, int]) -> None:
    recorder = Recorder()
    _, writer = channel_for((PolledWriter, pipe[1]), recorder)
    data = bytes(range(256)) * 20_000
    writer.write(bytearray(data))
    writer.write(bytearray(b"and more"))
    assert 0 < writer.unsent < len(data) + 8
    finishing = asyncio.ensure_future(writer.finish())
    await turns()
    assert not finishing.done()
    read = await asyncio.to_thread(_read_exactly, pipe[0], len(data) + 8)
    assert read == data + b"and more"
    await asyncio.wait_for(finishing, 10)
    assert writer.unsent == 0
    writer.write(bytearray(b"x"))
    assert os.read(pipe[0], 10) == b"x"


def _read_exactly(descriptor: int, size: int) -> bytes:
    read = b""
    while len(read) < size:
        read += os.read(descriptor, size - len(read))
    return read


@pytest.mark.parametrize("queued", [False, True])
async def test_a_polled_writer_whose_reader_is_gone_ends_the_channel(pipe: tuple[int, int], *, queued: bool) -> None:
    recorder = Recorder()
    _, writer = channel_for((PolledWriter, pipe[1]), recorder)
    finishing = None
    if queued:
        writer.write(bytearray(1 << 21))
        finishing = asyncio.ensure_future(writer.finish())
        await turns()
    os.close(pipe[0])
    writer.write(bytearray(b"x"))
    await asyncio.wait_for(_until(lambda: recorder.ends), 10)
    closed, reason = recorder.ends
    assert closed.reason == "output broke: Broken pipe"
    assert reason == "output broke"
    assert writer.unsent == 0
    if finishing is not None:
        await asyncio.wait_for(finishing, 10)
    await writer.finish()
    writer.write(bytearray(b"nobody"))
    assert writer.unsent == 0


async def test_n14_a_slow_reader_lets_the_channel_go_on_when_it_has_read(pipe: tuple[int, int]) -> None:
    recorder = Recorder()
    channel, writer = channel_for((PolledWriter, pipe[1]), recorder, Settings(unsent_high=1000))
    writer.write(bytearray(3 << 20))
    channel.sent()
    waiting = asyncio.ensure_future(channel.drain())
    await turns()
    assert not waiting.done()
    await asyncio.to_thread(_read_exactly, pipe[0], 3 << 20)
    await asyncio.wait_for(waiting, 10)


async def test_a_plain_file_is_written_where_it_stands(tmp_path: Path) -> None:
    writing = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    _, writer = channel_for((ThreadWriter, writing), Recorder())
    writer.write(bytearray(b"one"))
    writer.write(bytearray(b"two"))
    await writer.finish()
    assert (tmp_path / "file").read_bytes() == b"onetwo"
    os.close(writing)


async def test_a_file_that_cannot_be_written_ends_the_channel() -> None:
    full, recorder = os.open("/dev/full", os.O_WRONLY), Recorder()
    _, writer = channel_for((ThreadWriter, full), recorder)
    writer.write(bytearray(b"x"))
    assert [getattr(end, "reason", end) for end in recorder.ends] == [
        "output broke: No space left on device",
        "output broke",
    ]
    os.close(full)


# --- serving ------------------------------------------------------------------------------------------------


class Served:
    """A server on two pipes of this process."""

    def __init__(self, server: Server | None = None) -> None:
        self.server = server or Server("t")
        self.input, self.ours = os.pipe()
        self.theirs, self.output = os.pipe()

    def start(self) -> "asyncio.Task[str]":
        return asyncio.ensure_future(serve_stdio(self.server.connect, self.server.settings, self.input, self.output))

    async def answer(self) -> bytes:
        return await asyncio.to_thread(os.read, self.theirs, 1 << 16)

    def close(self) -> None:
        for descriptor in (self.input, self.ours, self.theirs, self.output):
            with contextlib.suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


async def test_w02_std_07_a_server_answers_and_the_end_of_input_is_its_end(served: Served) -> None:
    serving = served.start()
    await turns(1)
    os.write(served.ours, PING)
    assert await served.answer() == PONG
    os.close(served.ours)
    assert await asyncio.wait_for(serving, 10) == "end of input"
    await served.server.aclose()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_d13_a_signal_is_its_end_too(served: Served, number: signal.Signals) -> None:
    serving = served.start()
    await turns()
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(serving, 10) == number.name
    asyncio.get_running_loop().remove_signal_handler(number)
    await served.server.aclose()


async def test_a_server_whose_output_breaks_ends(served: Served) -> None:
    serving = served.start()
    await turns()
    os.close(served.theirs)
    os.write(served.ours, PING)
    assert await asyncio.wait_for(serving, 10) == "end of input"  # there is no more reason to read
    assert served.server.connections == []
    await served.server.aclose()


async def test_n14_a_peer_that_is_cut_off_is_the_end(served: Served) -> None:
    server = Server("t", settings=Settings(unsent_high=1000, unsent_limit=2000))
    served.server = server
    server.add_resource("r://big", "x" * (2 << 20))
    serving = served.start()
    await turns()
    params = b'{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}'
    os.write(served.ours, b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":%b}\n' % params)
    await served.answer()
    os.write(served.ours, b'{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"r://big"}}\n')
    await asyncio.wait_for(serving, 10)
    assert server.connections == []
    await server.aclose()


async def test_a_server_can_be_served_on_another_thread_where_there_are_no_signals(served: Served) -> None:
    ended: list[str] = []

    async def serve() -> None:
        ended.append(await served.start())
        await served.server.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    os.write(served.ours, PING)
    assert await served.answer() == PONG
    os.close(served.ours)
    await asyncio.to_thread(thread.join, 10)
    assert ended == ["end of input"]


async def test_a_parent_that_dies_is_noticed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([4711, 4711, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(stdio, "PARENT_CHECK", 0.001)
    assert await asyncio.wait_for(served.start(), 10) == "the parent process died"
    await served.server.aclose()


async def test_the_first_process_of_a_system_is_not_watched(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 1)
    serving = served.start()
    await turns()
    os.close(served.ours)
    assert await asyncio.wait_for(serving, 10) == "end of input"
    await served.server.aclose()


async def test_serving_on_an_event_loop_without_polling_falls_back_to_threads(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    serving = served.start()
    os.write(served.ours, PING)
    await turns(1)
    answer = asyncio.ensure_future(served.answer())
    assert await asyncio.wait_for(answer, 10) == PONG
    os.close(served.ours)
    assert await asyncio.wait_for(serving, 10) == "end of input"
    await served.server.aclose()
