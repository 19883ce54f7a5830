"""A server process is killed and restarted: keyed calls run once, and tasks continue."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ports import HeldPort
from tests.processes import PATIENCE

import trunkline
from trunkline import Client, Settings
from trunkline.errors import OutcomeUnknown
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Delete

SOURCE = str(Path(trunkline.__file__).parents[1])  # servers are started without our environment
SCRIPT = """
import asyncio, os, signal, sys
from pathlib import Path
from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.facts import CallStarted
from trunkline.protocol.types import ToolAnnotations
from trunkline.stores.sqlite.store import SqliteStore

folder, port = Path(sys.argv[1]), int(sys.argv[2])
settings = Settings(task_lease=1.5, task_poll_interval=0.05, stream_retry=0.05)

class TaskRequests:
    # leaves a file once the client asks about its task

    def on(self, fact):
        if isinstance(fact, CallStarted) and fact.method in ("tasks/get", "tasks/result"):
            (folder / "asked").touch()

server = Server("mortal", store=SqliteStore(folder / "store"), settings=settings, observers=[TaskRequests()])

def dies_once(name: str) -> None:
    if not (folder / name).exists():
        (folder / name).touch()
        os.kill(os.getpid(), signal.SIGKILL)

def effect(name: str) -> str:
    with (folder / "effects").open("a") as file:
        file.write(name + "\\n")
    return f"{name} {(folder / 'effects').read_text().split().count(name)}"

@server.middleware
async def before_the_answer(call, next):
    answer = await next(call)
    if getattr(call.params, "name", "") == "receipt":
        dies_once("receipt")
    return answer

@server.tool
async def receipt() -> str:
    return effect("receipt")

@server.tool
async def pay() -> str:
    done = effect("pay")
    dies_once("pay")
    return done

@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def put() -> str:
    done = effect("put")
    dies_once("put")
    return done

@server.tool(task=TaskPolicy(support="required", recovery="resume"))
async def report(ctx: Context) -> str:
    if ctx.resumed_from is not None:
        return f"went on from {ctx.resumed_from}"
    await ctx.checkpoint("page 3")
    (folder / "report").write_text(str(os.getpid()))
    await asyncio.Event().wait()

server.run(*(("http",) if port else ()), **({"port": port} if port else {}))
"""


def command(folder: Path, port: int = 0) -> list[str]:
    script = folder / "server.py"
    script.write_text(f"import sys\nsys.path.insert(0, {SOURCE!r})\n{SCRIPT}")
    return [sys.executable, str(script), str(folder), str(port)]


@pytest.mark.row("PROMISE-17")
async def test_keyed_handshake_era_call_is_repeated_after_a_server_crash(
    tmp_path: Path,
) -> None:
    settings = Settings(backoff_first=0.02)
    async with Client(command(tmp_path), revision="2025-11-25", settings=settings, observers=[]) as client:
        # it ran, and was stored; only the response was lost
        assert (await client.call_tool("receipt", idempotency_key="r")).data == "receipt 1"
        # it is idempotent
        assert (await client.call_tool("put", idempotency_key="p")).data == "put 2"
        # it may have run, and the outcome is unknown
        for _ in range(2):
            with pytest.raises(OutcomeUnknown, match="'pay'"):
                await client.call_tool("pay", idempotency_key="y")
        assert client.losses == 3
    assert (tmp_path / "effects").read_text().split() == ["receipt", "put", "put", "pay"]


async def test_call_with_a_key_in_its_meta_is_repeated_after_a_server_crash(tmp_path: Path) -> None:
    settings = Settings(backoff_first=0.02)
    async with Client(command(tmp_path), revision="2025-11-25", settings=settings, observers=[]) as client:
        assert (await client.call_tool("receipt", meta={IDEMPOTENCY_KEY: "r"})).data == "receipt 1"
        assert client.losses == 1


class Process:
    """A server process on HTTP; can be killed and restarted at the same address."""

    def __init__(self, folder: Path) -> None:
        self._held = HeldPort()
        self._command = command(folder, self._held.number)
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        assert " listens at " in line, line + self._process.stderr.read()
        self.url = line.split()[-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        assert self._process.stderr is not None
        self._process.stderr.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    made.kill()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def forget_sessions(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    page = await store.scan("session/", limit=100)
    for item in page:
        await store.commit([Delete(item.key)])
    await store.close()


@pytest.mark.parametrize(("revision", "restored"), [("2025-11-25", True), ("2025-11-25", False), ("2026-07-28", True)])
async def test_http_call_gets_its_result_from_the_process_that_takes_over(
    tmp_path: Path, process: Process, revision: str, restored: bool
) -> None:
    settings = Settings(backoff_first=0.05)
    async with Client(process.url, revision=revision, settings=settings, observers=[]) as client:
        calling = asyncio.create_task(client.call_tool("report", timeout=PATIENCE))
        await until((tmp_path / "report").exists)
        await until((tmp_path / "asked").exists)  # only then does the client know the task
        process.kill()
        if not restored:
            await forget_sessions(tmp_path / "store")
        process.start()
        assert (await calling).data == "went on from page 3"
