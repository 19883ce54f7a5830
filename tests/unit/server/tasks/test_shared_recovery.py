"""Processes that share a store also share the scans for lost tasks: little more often than one would, and at once
when one of them has gone.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from tests.limits import PATIENCE

from trunkline import Server, Settings, TaskPolicy
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Item
from trunkline.testing import RawPeer

SCANS = 12


class CountingStore(SqliteStore):
    """A store that counts how often its process scans for lost tasks."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.looks = 0
        self.enough = asyncio.Event()

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> list[Item]:
        if prefix == "working/" and not after:
            self.looks += 1
            if self.looks >= SCANS:
                self.enough.set()
        return list(await super().scan(prefix, after=after, limit=limit))


class Process:
    """A server with a tool that runs as a task, one of several on a file."""

    def __init__(self, path: Path, lease: float) -> None:
        self.store = CountingStore(path)
        self.server = Server("s", store=self.store, observers=[], settings=Settings(task_lease=lease))
        self.server.add_tool(self._work, name="work", task=TaskPolicy(recovery="restart"))
        self.begun = asyncio.Event()

    async def _work(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.server.aclose()


async def test_processes_of_higher_rank_scan_less_often(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        processes = [await stack.enter_async_context(Process(tmp_path / "store", 0.05)) for _ in range(3)]
        enough = [asyncio.create_task(process.store.enough.wait()) for process in processes]
        for process in processes:
            process.store.looks = 0  # all have scanned at their start, and not all knew of each other
        await asyncio.wait(enough, return_when=asyncio.FIRST_COMPLETED)
        first, second, third = sorted((process.store.looks for process in processes), reverse=True)
        assert first >= SCANS
        assert 0 < third <= second < first
        assert third < first / 2
        for waiting in enough:
            waiting.cancel()


async def test_tasks_of_a_departed_process_are_taken_over_at_once(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        path = tmp_path / "store"
        async with Process(path, 1000) as other, Process(path, 1000) as another:
            async with Process(path, 1000) as going, RawPeer(going.server) as peer:
                await peer.initialize()
                await peer.result("tools/call", {"name": "work", "task": {}})
                await going.begun.wait()
            begun = [asyncio.create_task(process.begun.wait()) for process in (other, another)]
            await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
            for waiting in begun:
                waiting.cancel()
