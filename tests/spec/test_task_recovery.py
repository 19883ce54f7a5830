"""Tasks outlive the process that runs them, however it ends."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.founding import FEATURES
from tests.http_peer import HttpPeer
from tests.interop.server_processes import ServerProcess
from tests.limits import PATIENCE
from tests.processes import StdioPeer, pause_between_writes

import trunkline
from trunkline import Client, PeerError, Server, Settings, TaskPolicy
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Item
from trunkline.testing import RawPeer

SOURCE = str(Path(trunkline.__file__).parents[1])  # servers are started without our environment
SERVER = """
import asyncio, os, sys
from pathlib import Path
from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.stores.sqlite.store import SqliteStore

folder = Path(sys.argv[1])
settings = Settings(process_lease=1.5, task_poll_interval=0.05)
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
    """The pid of a process, once it has written it to a file."""
    async with asyncio.timeout(PATIENCE):
        while not (file.exists() and file.read_text()):
            await asyncio.sleep(0.01)
    return int(file.read_text())


@pytest.mark.row("J16")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    ("name", "outcome"), [("resumes", "went on from {'page': 3}"), ("restarts", "was begun anew"), ("fails", None)]
)
async def test_task_of_a_killed_process_is_not_lost(
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
                await task.result(timeout=PATIENCE)
        else:
            assert (await task.result(timeout=PATIENCE)).data == outcome


PAUSES = """
import asyncio, sys, time
from pathlib import Path
from trunkline import Server, Settings, TaskPolicy
from trunkline.stores.sqlite.store import SqliteStore

folder = Path(sys.argv[1])

class Pausing(SqliteStore):
    def acquire(self, *asked, writes=(), **more):
        return asyncio.ensure_future(self._acquire(*asked, writes=writes, **more))

    async def _acquire(self, *asked, writes, **more):
        if writes and "/tasks/" in writes[0].key:
            while not await self.scan("working/"):
                await asyncio.sleep(0.01)
            (folder / "paused").write_text("x")  # the task is marked, and its record is not written
            while not (folder / "go on").exists():
                time.sleep(0.01)  # nothing else of this process runs, except that a commit that was begun ends
        return await super().acquire(*asked, writes=writes, **more)

server = Server("maker", store=Pausing(folder / "store"), settings=Settings(task_lease=0.2))

@server.tool(task=TaskPolicy(recovery="restart"))
async def work() -> str:
    await asyncio.Event().wait()

server.run()
"""


class CountingStore(SqliteStore):
    """A store that counts how often its process scans for lost tasks."""

    looks = 0

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> list[Item]:
        self.looks += prefix == "working/"
        return list(await super().scan(prefix, after=after, limit=limit))


async def test_task_of_a_paused_and_killed_creator_is_finished(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    other = Server("other", store=store, observers=[], settings=Settings(task_lease=0.2))

    @other.tool(task=TaskPolicy(recovery="restart"))
    async def work() -> str:
        return "recovered"

    with StdioPeer(PAUSES, str(tmp_path)) as maker:
        maker.initialize()
        asked = maker.call("tools/call", {"name": "work", "task": {}})
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "paused").exists():
                await asyncio.sleep(0.01)
        async with RawPeer(other) as peer, asyncio.timeout(PATIENCE):
            await peer.initialize()
            while store.looks < 6:  # more than a lease
                await asyncio.sleep(0.01)
            (tmp_path / "go on").write_text("x")
            made = (await asyncio.to_thread(maker.answer_to, asked))["result"]["task"]["taskId"]
            maker.kill(signal.SIGKILL)
            result = await peer.result("tasks/result", {"taskId": made})
            assert result["structuredContent"] == {"result": "recovered"}
    await other.aclose()


# --- notifications of the client ---------------------------------------------------------------------

OVER_HTTP = """
import asyncio, sys
from pathlib import Path
from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.stores.sqlite.store import SqliteStore

_, folder, port = sys.argv
settings = Settings(process_lease=1.5, stream_retry=0.05)
server = Server("survivor", compat="erlmcp", store=SqliteStore(Path(folder) / "store"), settings=settings)

@server.tool(task=TaskPolicy(recovery="resume"))
async def counts(ctx: Context) -> str:
    if ctx.resumed_from is None:
        ctx.progress(1, 3)
        await ctx.checkpoint("half")
        await asyncio.Event().wait()
    while not (Path(folder) / "heard").exists():  # by whoever listens
        await asyncio.sleep(0.01)
    ctx.progress(2, 3)
    ctx.progress(3, 3)
    return ctx.resumed_from

server.run("http", port=int(port))
"""
ASKED = {
    "tasks/create": {"action": {"type": "counts", "parameters": {}}, "metadata": {"progressToken": "founding"}},
    "tools/call": {"name": "counts", "task": {}, "_meta": {"progressToken": "2025"}},
}


@pytest.mark.row("TSK-23", "J10", "J11")
async def test_new_runner_notifies_the_session_that_created_the_task(tmp_path: Path) -> None:
    """It takes a second: two processes start."""
    script = tmp_path / "server.py"
    script.write_text(f"import sys\nsys.path.insert(0, {SOURCE!r})\n{OVER_HTTP}")
    first = ServerProcess([sys.executable, script, tmp_path, "0"])
    place = first.place()
    second: ServerProcess | None = None
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
            peer = HttpPeer(http, f"http://{place}/mcp")
            await peer.open(FEATURES)
            async with peer.listening() as said:
                made = [await peer.result(method, params) for method, params in ASKED.items()]
                began = [await anext(said) for _ in range(3)]
            first.close()
            second = ServerProcess([sys.executable, script, tmp_path, place.rpartition(":")[2]])
            assert second.place() == place
            async with peer.listening() as said:
                (tmp_path / "heard").touch()
                ended = [await anext(said) for _ in range(6)]
    finally:
        first.close()
        if second is not None:
            second.close()
    assert progress_in(began) == {"founding": [1], "2025": [1]}
    assert progress_in(ended) == {"founding": [2, 3], "2025": [2, 3]}
    status = {told["params"]["taskId"]: told["params"] for told in ended if "status" in told["params"]}
    founding, augmented = made[0]["taskId"], made[1]["task"]["taskId"]
    assert (status[founding]["status"], status[augmented]["status"]) == ("completed", "completed")
    assert status[founding]["result"]["structuredContent"] == {"result": "half"}
    assert "result" not in status[augmented]


def progress_in(said: list[Any]) -> dict[str, list[float]]:
    """The progress notifications, by token."""
    found: dict[str, list[float]] = {}
    for message in said:
        if message["method"] == "notifications/progress":
            found.setdefault(message["params"]["progressToken"], []).append(message["params"]["progress"])
    return found


# --- a suspended lease holder ------------------------------------------------------------------------

SUSPENDED = """
import asyncio, json, sys, time
from pathlib import Path
from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.stores.sqlite.store import SqliteStore

folder = Path(sys.argv[1])
server = Server("still", store=SqliteStore(folder / "store"), settings=Settings(process_lease=1.5))
FORM = {"type": "object", "properties": {}}

async def tried(work):
    try:
        await work
    except BaseException as error:
        return type(error).__name__
    return "kept"

@server.tool(task=TaskPolicy(recovery="restart"))
async def work(ctx: Context) -> str:
    ctx.progress(1)
    await ctx.checkpoint("before")
    (folder / "begun").touch()
    while not (folder / "resumed").exists():  # the loop stands still, as in a process that is stopped
        time.sleep(0.01)
    ctx.progress(2)
    found = {
        "checkpoint": await tried(ctx.checkpoint("after")),
        "question": await tried(ctx.elicit("?", FORM)),
        "effect": await tried(ctx.once("paid", lambda: 1)),
        "wait": await tried(asyncio.sleep(60)),
    }
    (folder / "found.new").write_text(json.dumps(found))
    (folder / "found.new").rename(folder / "found")
    return "too late"

server.run()
"""


async def test_paused_runner_is_cancelled_and_has_no_effect(tmp_path: Path) -> None:
    """It takes a second: a process is suspended until it is evicted."""
    with StdioPeer(SUSPENDED, str(tmp_path)) as still:
        await asyncio.to_thread(still.initialize, capabilities={"elicitation": {}})
        asked = {"name": "work", "task": {}, "_meta": {"progressToken": "t"}}
        task = (await asyncio.to_thread(still.result, "tools/call", asked))["task"]
        await appeared(tmp_path / "begun")
        await pause_between_writes(still.process.pid, tmp_path / "store")
        (tmp_path / "resumed").touch()
        other = Server(
            "other", store=SqliteStore(tmp_path / "store"), settings=Settings(process_lease=1.5), observers=[]
        )
        other.add_tool(lambda: "by another", name="work", task=TaskPolicy(recovery="restart"))
        async with RawPeer(other) as peer:
            await peer.initialize()
            result = await peer.result("tasks/result", {"taskId": task["taskId"]})
            assert result["content"][0]["text"] == "by another"
            still.process.send_signal(signal.SIGCONT)
            found = json.loads(await appeared(tmp_path / "found"))
            again = await peer.result("tasks/result", {"taskId": task["taskId"]})
        await other.aclose()
        assert again == result
        assert found.pop("wait") == "CancelledError"
        assert set(found.values()) <= {"Fenced", "CancelledError"}
        await asyncio.to_thread(still.result, "ping")
        said = [json.loads(frame) for sender, frame in still.transcript.frames if sender == "server"]
        told = [message["params"] for message in said if "method" in message]
        assert [params["progress"] for params in told if "progress" in params] == [1]
        assert {params["status"] for params in told if "status" in params} <= {"completed"}


async def appeared(file: Path) -> str:
    """The content of a file, once it exists."""
    async with asyncio.timeout(PATIENCE):
        while not file.exists():
            await asyncio.sleep(0.01)
    return file.read_text()
