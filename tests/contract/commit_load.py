"""Processes that commit to a store under load, and the check of their output."""

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.contract.commit_process import COUNTER

from trunkline.stores.store import Item, Store

ROOT = Path(__file__).parents[2]


class CommitProcess:
    """A process that commits, and its output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    @classmethod
    async def begin(cls, where: Path | str, who: str, *limit: int) -> "CommitProcess":
        command = [sys.executable, "-m", "tests.contract.commit_process", str(where), who, "20", *map(str, limit)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
        return cls(process)

    async def hear(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Read enough lines of output, or all."""
        assert self.process.stdout is not None
        while not enough() and (line := await self.process.stdout.readline()):
            self.said.append(line.decode().rstrip("\n"))

    async def kill(self) -> None:
        """Kill it, and read the rest of its output."""
        self.process.send_signal(signal.SIGKILL)
        await self.hear()
        assert await self.process.wait() == -signal.SIGKILL

    @property
    def kept(self) -> set[str]:
        return {line for line in self.said if line.startswith("storm/")}

    @property
    def counted(self) -> int:
        return sum(line.startswith("+ ") for line in self.said)


async def walk(store: Store) -> list[Item]:
    found: list[Item] = []
    while page := await store.scan("", after=found[-1].key if found else "", limit=1000):
        found += page
    return found


async def check_commits(store: Store, *storms: CommitProcess) -> None:
    """Check that all confirmed commits are there, and complete; of those in flight, all or nothing."""
    items = {item.key: item.value for item in await walk(store)}
    for name in set().union(*(storm.kept for storm in storms)):
        assert items[f"{name}/a"] == name.encode() * 20
    found = {key.rpartition("/")[0] for key in items if key != COUNTER}
    assert {key for key in items if key != COUNTER} == {f"{name}/{half}" for name in found for half in "ab"}
    total = int(items[COUNTER])
    counted = sum(storm.counted for storm in storms)
    assert counted <= total <= counted + len(storms)  # each may have had one in flight
