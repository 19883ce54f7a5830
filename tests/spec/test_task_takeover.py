"""A task of a killed process runs again in another process at once: the end of the process frees all that it held."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.limits import PATIENCE
from tests.processes import StdioPeer

from trunkline import Server, Settings, TaskPolicy
from trunkline.clock import WallClock
from trunkline.stores.sqlite.store import SqliteStore

SCAN_INTERVAL = 2 * PATIENCE
FIRST = """
import asyncio, sys
from trunkline import Context, Server, TaskPolicy
from trunkline.stores.sqlite.store import SqliteStore

server = Server("first", store=SqliteStore(sys.argv[1]))

@server.tool(task=TaskPolicy(recovery="restart"))
async def work(ctx: Context) -> None:
    ctx.progress(1)
    await asyncio.Event().wait()

server.run()
"""


class Survivor:
    """The other process on the file. Without an event, it would find the task much later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = Server(
            "second", store=SqliteStore(path), settings=Settings(task_lease=SCAN_INTERVAL), observers=[]
        )
        self.server.add_tool(self._work, name="work", task=TaskPolicy(recovery="restart"))
        self._begun: asyncio.Queue[float] = asyncio.Queue()

    async def _work(self) -> None:
        self._begun.put_nowait(time.perf_counter())

    async def measure_takeover(self) -> float:
        """Kill a process that runs a task. Return the seconds until this process runs it."""
        with StdioPeer(FIRST, str(self.path)) as first:
            await asyncio.to_thread(_begin_task, first)
            killed = time.perf_counter()
            first.kill(signal.SIGKILL)
            async with asyncio.timeout(PATIENCE):
                return await self._begun.get() - killed


def _begin_task(peer: StdioPeer) -> None:
    """Create a task, and wait until it runs."""
    peer.initialize()
    peer.call("tools/call", {"name": "work", "task": {}, "_meta": {"progressToken": "t"}})
    while peer.receive().get("method") != "notifications/progress":
        pass


@pytest.fixture
async def survivor(tmp_path: Path) -> AsyncIterator[Survivor]:
    made = Survivor(tmp_path / "store")
    await made.server.start()
    yield made
    await made.server.aclose()


@pytest.mark.row("J16")
async def test_task_of_a_killed_process_runs_again_at_once(survivor: Survivor) -> None:
    seconds = await survivor.measure_takeover()
    print(f"takeover after {seconds * 1000:.1f} ms")
    assert seconds < PATIENCE


async def test_takeover_is_immediate_after_the_clock_was_set_forward(
    survivor: Survivor, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 2 * SCAN_INTERVAL)
    monkeypatch.setattr(WallClock, "now", staticmethod(time.time))
    assert await survivor.measure_takeover() < PATIENCE
