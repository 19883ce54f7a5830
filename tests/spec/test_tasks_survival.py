"""Tasks outlive the process that works on them, however it ends."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

import trunkline
from trunkline import Client, PeerError, Settings

SOURCE = str(Path(trunkline.__file__).parents[1])  # servers are started without our environment
SERVER = """
import asyncio, os, sys
from pathlib import Path
from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.stores.sqlite import SqliteStore

folder = Path(sys.argv[1])
settings = Settings(task_lease=0.5, task_poll_interval=0.05)
server = Server("survivor", store=SqliteStore(folder / "store"), settings=settings)

async def begun(name: str) -> None:
    (folder / name).write_text(str(os.getpid()))
    await asyncio.Event().wait()

@server.tool(task=TaskPolicy(support="required", recovery="resume"))
async def resumes(ctx: Context) -> str:
    if ctx.resumed_from is not None:
        return f"went on from {ctx.resumed_from}"
    await ctx.checkpoint({"page": 3})
    await begun("resumes")

@server.tool(task=TaskPolicy(support="required", recovery="restart"))
async def restarts() -> str:
    if not (folder / "restarts").exists():
        await begun("restarts")
    return "was begun anew"

@server.tool(task="required")
async def fails() -> str:
    await begun("fails")

server.run()
"""


async def written(file: Path) -> int:
    """The number of a process, once it has written it down."""
    async with asyncio.timeout(20):
        while not (file.exists() and file.read_text()):
            await asyncio.sleep(0.01)
    return int(file.read_text())


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    ("name", "outcome"), [("resumes", "went on from {'page': 3}"), ("restarts", "was begun anew"), ("fails", None)]
)
async def test_j16_a_task_of_a_process_that_was_killed_is_not_lost(
    tmp_path: Path, revision: str, name: str, outcome: str | None
) -> None:
    script = tmp_path / "server.py"
    script.write_text(f"import sys\nsys.path.insert(0, {SOURCE!r})\n{SERVER}")
    settings = Settings(backoff_first=0.05)
    async with Client([sys.executable, str(script), str(tmp_path)], revision=revision, settings=settings) as client:
        task = await client.start_tool(name)
        process = await written(tmp_path / name)
        os.kill(process, signal.SIGKILL)
        if outcome is None:
            with pytest.raises(PeerError, match="has died"):
                await task.result(timeout=20)
        else:
            assert (await task.result(timeout=20)).data == outcome
