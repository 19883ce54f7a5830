"""Byte streams over descriptors, over pipes and files of this process."""

import asyncio
import contextlib
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import Recorder, turns
from tests.limits import PATIENCE
from tests.processes import eventually

from trunkline import Settings
from trunkline.transports.channel import ChannelInfo
from trunkline.transports.stdio.fd_stream import (
    PIPE_SIZE,
    READ_SIZE,
    PolledReader,
    PolledWriter,
    ThreadReader,
    ThreadWriter,
)
from trunkline.transports.stream import StreamChannel


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(descriptor)


class ByteRecorder:
    """Records the bytes that were read."""

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
        await asyncio.wait_for(self.more.wait(), PATIENCE)
        self.more.clear()


class SilentSource:
    """A source that never returns data."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


def channel_for(writer: Any, broken: list[OSError], settings: Settings | None = None) -> tuple[StreamChannel, Any]:
    """A channel that writes with that kind of writer, to a pipe or a file."""
    kind, descriptor = writer
    channel = StreamChannel(ChannelInfo("stdio"), max_frame=1 << 20, settings=settings or Settings())
    made = kind(asyncio.get_running_loop(), descriptor, channel.update_flow, broken.append)
    channel.open(Recorder(), SilentSource(), made)
    return channel, made


READERS = [PolledReader, ThreadReader]


@pytest.mark.parametrize("kind", READERS)
async def test_reader_feeds_bytes_and_reports_eof_once(kind: Any, pipe: tuple[int, int]) -> None:
    fed = ByteRecorder()
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
async def test_paused_reader_reads_nothing(kind: Any, pipe: tuple[int, int]) -> None:
    fed = ByteRecorder()

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
async def test_closed_reader_reports_eof(kind: Any, pipe: tuple[int, int]) -> None:
    fed = ByteRecorder()
    reader = kind(asyncio.get_running_loop(), pipe[0], fed.feed, fed.at_end)
    reader.resume()
    reader.close()
    reader.close()
    assert fed.ends == 1
    os.write(pipe[1], b"too late")
    await turns(100)
    assert fed.data == b""


@pytest.mark.parametrize("kind", READERS)
async def test_read_error_is_reported_as_eof(kind: Any, tmp_path: Path) -> None:
    fed = ByteRecorder()
    writing = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    reader = kind(asyncio.get_running_loop(), writing, fed.feed, fed.at_end)
    if kind is PolledReader:
        reader._read()  # a file cannot be polled
    else:
        reader.resume()
    await fed.next()
    assert fed.ends == 1
    os.close(writing)


@pytest.mark.parametrize("kind", READERS)
async def test_discarded_bytes_are_read_until_the_end(kind: Any, pipe: tuple[int, int]) -> None:
    fed = ByteRecorder()
    reader = kind(asyncio.get_running_loop(), pipe[0], fed.feed, fed.at_end)
    reader.discard()
    reader.resume()
    os.write(pipe[1], b"x")
    os.close(pipe[1])
    await fed.next()
    assert (fed.data, fed.ends) == (b"", 1)


async def test_polled_reader_survives_spurious_wakeup(pipe: tuple[int, int]) -> None:
    fed = ByteRecorder()
    reader = PolledReader(asyncio.get_running_loop(), pipe[0], fed.feed, fed.at_end)
    reader._read()
    assert (fed.data, fed.ends) == (b"", 0)


async def test_thread_reader_waits_for_its_consumer(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * READ_SIZE * 20)
    fed, reading = ByteRecorder(), os.open(file, os.O_RDONLY)
    reader = ThreadReader(asyncio.get_running_loop(), reading, fed.feed, fed.at_end)
    reader.resume()
    eventually(lambda: os.lseek(reading, 0, os.SEEK_CUR) > 0)  # the loop is blocked meanwhile
    assert os.lseek(reading, 0, os.SEEK_CUR) == READ_SIZE
    await asyncio.wait_for(_until(lambda: fed.ends), PATIENCE)
    assert len(fed.data) == READ_SIZE * 20
    os.close(reading)


def test_thread_reader_outlives_its_loop_silently(pipe: tuple[int, int]) -> None:
    fed: list[ByteRecorder] = []

    async def begin() -> None:
        fed.append(ByteRecorder())
        ThreadReader(asyncio.get_running_loop(), pipe[0], fed[0].feed, fed[0].at_end).resume()

    asyncio.run(begin())
    os.write(pipe[1], b"nobody listens")
    eventually(lambda: not _has_bytes(pipe[0]))
    assert fed[0].data == b""


def _has_bytes(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


# --- writing -----------------------------------------------------------------------------------------------


async def test_polled_writer_writes_the_rest_when_writable(pipe: tuple[int, int]) -> None:
    _, writer = channel_for((PolledWriter, pipe[1]), [])
    data = bytes(range(256)) * 20_000
    writer.write(bytearray(data))
    writer.write(bytearray(b"and more"))
    assert 0 < writer.unsent < len(data) + 8
    finishing = asyncio.ensure_future(writer.finish())
    await turns()
    assert not finishing.done()
    read = await asyncio.to_thread(_read_exactly, pipe[0], len(data) + 8)
    assert read == data + b"and more"
    await asyncio.wait_for(finishing, PATIENCE)
    assert writer.unsent == 0
    writer.write(bytearray(b"x"))
    assert os.read(pipe[0], 10) == b"x"


def _read_exactly(descriptor: int, size: int) -> bytes:
    read = b""
    while len(read) < size:
        read += os.read(descriptor, size - len(read))
    return read


@pytest.mark.parametrize("queued", [False, True])
async def test_polled_writer_reports_a_broken_pipe_once(pipe: tuple[int, int], *, queued: bool) -> None:
    broken: list[OSError] = []
    _, writer = channel_for((PolledWriter, pipe[1]), broken)
    finishing = None
    if queued:
        writer.write(bytearray(1 << 21))
        finishing = asyncio.ensure_future(writer.finish())
        await turns()
    os.close(pipe[0])
    writer.write(bytearray(b"x"))
    await asyncio.wait_for(_until(lambda: broken), PATIENCE)
    assert writer.unsent == 0
    if finishing is not None:
        await asyncio.wait_for(finishing, PATIENCE)
    await writer.finish()
    writer.write(bytearray(b"nobody"))
    assert writer.unsent == 0
    assert [type(error) for error in broken] == [BrokenPipeError]


@pytest.mark.row("N14")
async def test_channel_resumes_after_a_slow_reader_has_read(pipe: tuple[int, int]) -> None:
    channel, writer = channel_for((PolledWriter, pipe[1]), [], Settings(unsent_high=1000))
    writer.write(bytearray(3 << 20))
    channel.update_flow()
    waiting = asyncio.ensure_future(channel.drain())
    await turns()
    assert not waiting.done()
    await asyncio.to_thread(_read_exactly, pipe[0], 3 << 20)
    await asyncio.wait_for(waiting, PATIENCE)


async def test_regular_file_is_written_synchronously(tmp_path: Path) -> None:
    writing = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    _, writer = channel_for((ThreadWriter, writing), [])
    writer.write(bytearray(b"one"))
    writer.write(bytearray(b"two"))
    await writer.finish()
    assert (tmp_path / "file").read_bytes() == b"onetwo"
    os.close(writing)


async def test_write_error_of_a_file_is_reported_once() -> None:
    full, broken = os.open("/dev/full", os.O_WRONLY), list[OSError]()
    _, writer = channel_for((ThreadWriter, full), broken)
    writer.write(bytearray(b"x"))
    writer.write(bytearray(b"y"))
    assert [error.strerror for error in broken] == ["No space left on device"]
    os.close(full)


async def test_closed_writer_discards_output_and_wakes_waiters(pipe: tuple[int, int]) -> None:
    _, writer = channel_for((PolledWriter, pipe[1]), [])
    writer.write(bytes(2 << 20))
    finishing = asyncio.gather(writer.finish(), writer.finish())
    await turns()
    writer.close()
    writer.close()
    await asyncio.wait_for(finishing, PATIENCE)
    assert writer.unsent == 0


async def test_finish_can_be_awaited_repeatedly(pipe: tuple[int, int]) -> None:
    _, writer = channel_for((PolledWriter, pipe[1]), [])
    for _ in range(2):
        writer.write(bytes(2 << 20))
        finishing = asyncio.ensure_future(writer.finish())
        await turns()
        assert not finishing.done()
        await asyncio.to_thread(_read_exactly, pipe[0], 2 << 20)
        await asyncio.wait_for(finishing, PATIENCE)


# --- output limits ---------------------------------------------------------------------------------------


async def test_read_available_works_while_paused(pipe: tuple[int, int]) -> None:
    fed = ByteRecorder()
    reader = PolledReader(asyncio.get_running_loop(), pipe[0], fed.feed, fed.at_end)
    os.write(pipe[1], b"x" * 60_000)
    reader.read_available()
    assert (len(fed.data), fed.ends) == (60_000, 0)
    os.write(pipe[1], b"y")
    os.close(pipe[1])
    reader.read_available()
    reader.read_available()
    assert (len(fed.data), fed.ends) == (60_001, 1)


async def test_read_available_is_bounded(pipe: tuple[int, int]) -> None:
    fed = ByteRecorder()

    def feed(data: bytes) -> None:
        fed.feed(data)
        os.write(pipe[1], b"x" * 1000)

    reader = PolledReader(asyncio.get_running_loop(), pipe[0], feed, fed.at_end)
    os.write(pipe[1], b"x" * 1000)
    reader.read_available()
    assert PIPE_SIZE <= len(fed.data) < PIPE_SIZE + 2000
    reader.close()


async def test_thread_reader_reads_to_eof_on_read_available(pipe: tuple[int, int]) -> None:
    fed = ByteRecorder()
    reader = ThreadReader(asyncio.get_running_loop(), pipe[0], fed.feed, fed.at_end)
    reader.resume()
    reader.pause()
    os.write(pipe[1], b"x")
    os.close(pipe[1])
    reader.read_available()
    await asyncio.wait_for(_until(lambda: fed.ends), PATIENCE)
    assert fed.data == b"x"
