"""The shared memory budget of file reads."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import PATIENCE

from trunkline.rpc.threads import ThreadPool
from trunkline.server.files.reader import ByteBudget, FileReader, OpenFile, read_chunks


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(os.urandom(1000) * 1000)
    return made


@pytest.fixture
def descriptor(file: Path) -> Iterator[int]:
    opened = os.open(file, os.O_RDONLY)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 1_000_000, 2_000_000])
def test_file_is_read_up_to_a_size_or_its_end(file: Path, descriptor: int, size: int) -> None:
    assert read_chunks(descriptor, size) == file.read_bytes()[:size]


async def test_shares_are_granted_in_order() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(8)
    granted: list[int] = []

    async def take(size: int) -> None:
        lease = await budget.take(size)
        granted.append(size)
        lease.abandon()

    tasks = [asyncio.create_task(take(size)) for size in (9, 1, 2)]
    await asyncio.sleep(0)
    assert not budget.try_take(1)  # there is room, and other reads have been waiting for it
    budget.give_back(8)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks)
    assert granted == [9, 1, 2]
    assert budget.try_take(10)


async def test_available_share_is_granted_at_once() -> None:
    budget = ByteBudget(10)
    async with asyncio.timeout(PATIENCE):
        lease = await budget.take(4)
    assert lease.start()
    lease.abandon()  # which does nothing now
    assert not budget.try_take(7)
    lease.finish()
    assert budget.try_take(10)


async def test_oversized_share_is_the_whole_budget() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(100)
    assert not budget.try_take(1)
    budget.give_back(100)
    lease = await budget.take(100)
    assert not budget.try_take(1)
    lease.abandon()
    lease.abandon()
    assert not lease.start()
    assert budget.try_take(10)


@pytest.mark.parametrize("granted", [False, True])
async def test_cancelled_wait_returns_its_share(granted: bool) -> None:
    budget = ByteBudget(10)
    assert budget.try_take(10)
    first, second = (asyncio.create_task(budget.take(10)) for _ in range(2))
    await asyncio.sleep(0)
    if granted:
        budget.give_back(10)  # the first learns of it in the next turn
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    if not granted:
        budget.give_back(10)
    async with asyncio.timeout(PATIENCE):
        (await second).abandon()
    assert budget.try_take(10)


def test_share_survives_a_closed_event_loop() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(10)

    async def wait() -> None:
        task = asyncio.ensure_future(budget.take(10))
        await asyncio.sleep(0)
        task.get_loop().stop()

    loop = asyncio.new_event_loop()
    waiting = loop.create_task(wait())
    loop.run_forever()
    assert waiting.done()
    loop.close()
    budget.give_back(10)
    assert budget.try_take(10)


class Disk:
    """Files whose reads can be blocked, and a record of the open ones."""

    def __init__(self, file: Path, size: int) -> None:
        self.file = file
        self.size = size
        self.may_go_on = threading.Event()
        self.read = 0
        self.opened: list[int] = []

    def open(self) -> OpenFile:
        self.opened.append(os.open(self.file, os.O_RDONLY))
        return OpenFile(self.opened[-1], self.size, self._made)

    def _made(self, data: bytearray) -> int:
        self.read += 1
        assert self.may_go_on.wait(PATIENCE)
        return len(data)


async def test_cancelled_read_keeps_its_share_until_thread_ends(file: Path) -> None:
    threads = ThreadPool(asyncio.get_running_loop(), 4)
    reader, disk, slow = FileReader(1000, lambda: threads), Disk(file, 600), Disk(file, 600)
    first = asyncio.create_task(threads.run(lambda: reader.read(disk.open)))
    await until(lambda: disk.read == 1)
    second = asyncio.ensure_future(await threads.run(lambda: reader.read(slow.open)))
    await asyncio.sleep(0)
    disk.may_go_on.set()
    assert await first == 600
    await until(lambda: slow.read == 1)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not reader._budget.try_take(600)
    slow.may_go_on.set()
    await until(lambda: reader._budget.try_take(1000))
    threads.close()
    for descriptor in {*disk.opened, *slow.opened}:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


async def test_read_cancelled_before_its_thread_starts_is_skipped(file: Path) -> None:
    threads = ThreadPool(asyncio.get_running_loop(), 1)
    reader, disk = FileReader(1000, lambda: threads), Disk(file, 600)
    assert reader._budget.try_take(1000)
    later = asyncio.ensure_future(await threads.run(lambda: reader.read(disk.open)))
    await asyncio.sleep(0)
    hold = threading.Event()
    held = asyncio.create_task(threads.run(lambda: hold.wait(PATIENCE)))
    await asyncio.sleep(0)
    reader._budget.give_back(1000)
    await until(lambda: len(threads._jobs) == 1)
    later.cancel()
    with pytest.raises(asyncio.CancelledError):
        await later
    assert reader._budget.try_take(1000)
    hold.set()
    await held
    await threads.run(lambda: None)  # after all queued ones
    assert disk.read == 0
    assert len(disk.opened) == 1
    threads.close()


async def test_read_of_deleted_file_returns_its_share(file: Path) -> None:
    threads = ThreadPool(asyncio.get_running_loop(), 1)
    reader, disk = FileReader(1000, lambda: threads), Disk(file, 600)
    assert reader._budget.try_take(1000)
    later = asyncio.ensure_future(await threads.run(lambda: reader.read(disk.open)))
    await asyncio.sleep(0)
    file.unlink()
    reader._budget.give_back(1000)
    with pytest.raises(FileNotFoundError):
        await later
    assert reader._budget.try_take(1000)
    threads.close()


async def until(truth: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not truth():
            await asyncio.sleep(0.001)
