"""Shutdown, pauses and crashes of a server."""

import asyncio
import json
import select
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.founding import FEATURES
from tests.modern import enveloped
from tests.processes import PATIENCE, StdioPeer, eventually
from tests.spec import busy_server
from tests.unit.transports.http.asgi import hosted, request

from trunkline.errors import StoreUnavailable
from trunkline.facts import CallEnded, Closed, CrashStep, Fact, HandlerFailed, ShutdownOverran, ShutdownStep
from trunkline.server.shutdown import EXIT_CODES
from trunkline.stores.memory import MemoryStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Store
from trunkline.testing import RawPeer, RecordingObserver

STAGES = ["UnsubscribeResources", "DrainPendingRequests", "CloseTransport", "PersistSession", "Terminate"]


def steps(observer: RecordingObserver, kind: type[Fact] = ShutdownStep) -> list[str]:
    return [fact.step for fact in observer.facts if isinstance(fact, kind)]  # type: ignore[attr-defined]


class ShutdownLog(RecordingObserver):
    """A channel that reports when it drains, and logs the relevant calls."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.draining = asyncio.Event()

    def on(self, fact: Fact) -> None:
        super().on(fact)
        if isinstance(fact, ShutdownStep):
            self.log.append(fact.step)
            if fact.step == "DrainPendingRequests":
                self.draining.set()
        elif isinstance(fact, Closed) or (isinstance(fact, CallEnded) and fact.method == "tools/call"):
            self.log.append(type(fact).__name__)


class RunningServer(busy_server.BusyServer):
    """A server with a tool that blocks, and a log of its shutdown."""

    def __init__(self, store: Store | None = None, **settings: Any) -> None:
        self.observer = ShutdownLog()
        super().__init__(store, settings=settings, observers=[self.observer])


# --- in stages ----------------------------------------------------------------------------------


@pytest.mark.row("D11", "F27")
async def test_shutdown_runs_five_stages_in_order() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        assert await subject.server.shutdown() == ()
        assert peer.closed is not None
    assert steps(subject.observer) == STAGES == list(EXIT_CODES)


@pytest.mark.row("D11")
async def test_each_stage_does_its_work() -> None:
    subject = RunningServer()
    log = subject.observer.log
    subject.server.on_last_unsubscribed(lambda uri: log.append(f"unwatched {uri}"))
    subject.server.on_shutdown(lambda: log.append("cleanup"))
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "memo://one"})
        ident = peer.call("tools/call", {"name": "waits"})
        await subject.begun.wait()
        log.clear()
        ending = asyncio.create_task(subject.server.shutdown())
        await subject.observer.draining.wait()
        subject.go.set()
        assert (await peer.answer_to(ident))["result"]["content"][0]["text"] == "done"
        await ending
    assert log == [
        *STAGES[:1],
        "unwatched memo://one",
        *STAGES[1:2],
        "CallEnded",
        *STAGES[2:3],
        "Closed",
        *STAGES[3:],
        "cleanup",
    ]


@pytest.mark.row("D12")
async def test_drain_waits_for_running_requests_and_refuses_new_ones() -> None:
    subject = RunningServer(drain_timeout=30.0)
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        ident = peer.call("tools/call", {"name": "waits"})
        await subject.begun.wait()
        ending = asyncio.create_task(subject.server.shutdown())
        await subject.observer.draining.wait()
        refused = await peer.error("tools/call", {"name": "quick"})
        assert (refused["code"], refused["data"]["kind"]) == (1008, "temporarily_unavailable")
        refused = await peer.error("tools/call", enveloped(name="quick"))
        assert refused["code"] == 1008
        assert await peer.result("ping") == {}
        subject.go.set()
        assert (await peer.answer_to(ident))["result"]["content"][0]["text"] == "done"
        assert await ending == ()


@pytest.mark.row("D12")
async def test_hanging_call_is_cancelled_and_its_stage_reported() -> None:
    subject = RunningServer(drain_timeout=0.05)
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        peer.call("tools/call", {"name": "waits"})
        await subject.begun.wait()
        assert await subject.server.shutdown() == ("DrainPendingRequests",)
    assert steps(subject.observer) == STAGES
    assert steps(subject.observer, ShutdownOverran) == ["DrainPendingRequests"]


@pytest.mark.row("D11")
async def test_session_persisted_during_shutdown_keeps_subscriptions(tmp_path: Path) -> None:
    subject = RunningServer(SqliteStore(tmp_path / "store"))
    async with hosted(subject.server) as host:
        host.app = subject.server.asgi()  # which makes sessions durable
        session = await host.session()
        await host.ask("POST", request("resources/subscribe", {"uri": "memo://one"}), mcp_session_id=session)
        waiting = host.begin("POST", request("tools/call", {"name": "waits"}, id=2), mcp_session_id=session)
        await subject.begun.wait()
        ending = asyncio.create_task(subject.server.shutdown())
        await subject.observer.draining.wait()
        for connection in subject.server.connections:
            if connection.durable_session is not None:
                connection.durable_session.touch()
        subject.go.set()
        assert (await waiting.finished()).json["result"]["content"][0]["text"] == "done"
        await ending
    store = SqliteStore(tmp_path / "store")
    await store.open()
    [record] = [item for item in await store.scan("session/") if item.key.endswith("/record")]
    assert json.loads(record.value)["subscriptions"] == ["memo://one"]
    await store.close()


async def test_concurrent_shutdowns_share_one_sequence() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize()
        await asyncio.gather(subject.server.shutdown(), subject.server.aclose(), subject.server.shutdown())
    assert steps(subject.observer) == STAGES


async def test_server_can_serve_again_after_shutdown() -> None:
    subject = RunningServer()
    for _ in range(2):
        async with RawPeer(subject.server) as peer:
            await peer.initialize()
            await peer.result("tools/call", {"name": "quick"})
            await subject.server.shutdown()
    assert steps(subject.observer) == STAGES * 2


# --- cleanup ------------------------------------------------------------------------------------


@pytest.mark.row("D16")
async def test_callbacks_run_in_reverse_and_survive_errors() -> None:
    subject = RunningServer()
    log: list[str] = []

    @subject.server.on_shutdown
    async def first() -> None:
        log.append("first")

    @subject.server.on_shutdown
    def second() -> None:
        log.append("second")
        raise ZeroDivisionError

    subject.server.on_shutdown(lambda: log.append("third"))
    await subject.server.shutdown()
    assert log == ["third", "second", "first"]
    [failed] = [fact for fact in subject.observer.facts if isinstance(fact, HandlerFailed)]
    assert isinstance(failed.error, ZeroDivisionError)
    assert "second" in failed.method


async def test_slow_callback_is_cancelled_and_the_store_closed() -> None:
    store = MemoryStore()
    subject = RunningServer(store, stage_timeout=1.0)  # more than other stages need
    await subject.server.start()

    @subject.server.on_shutdown
    async def endless() -> None:
        await asyncio.Event().wait()

    assert await subject.server.shutdown() == ("Terminate",)
    with pytest.raises(StoreUnavailable):
        await store.get("a/b")


# --- processes ----------------------------------------------------------------------------------

SCRIPT = """
import asyncio, os, sys, threading
from trunkline import Context, Server, Settings, SqliteStore, TaskPolicy
from trunkline.facts import CrashStep, ShutdownStep

class Print:
    immediate = True

    def on(self, fact):
        if isinstance(fact, ShutdownStep | CrashStep):
            print(fact.step, file=sys.stderr, flush=True)

store = SqliteStore(os.environ["STORE"]) if "STORE" in os.environ else None
server = Server("t", observers=[Print()], settings=Settings.load(), compat="erlmcp", store=store)

@server.tool
async def forever(ctx: Context) -> str:
    await ctx.info("started")
    await asyncio.Event().wait()

@server.tool
async def stop() -> str:
    server.on_shutdown(lambda: print("cleanup", file=sys.stderr, flush=True))
    asyncio.ensure_future(server.shutdown())
    return "stopping"

async def endless(*_):
    await asyncio.Event().wait()

@server.tool
async def slow(stage: str) -> str:
    if stage == "UnsubscribeResources":
        server.on_last_unsubscribed(endless)
    else:
        server.on_shutdown(endless)
    return "ok"

@server.tool
async def much() -> str:
    return "x" * 1_000_000

@server.tool(task=TaskPolicy(recovery="restart"))
async def unwilling() -> str:
    try:
        await endless()
    except asyncio.CancelledError:
        await endless()

@server.tool
async def stubborn(ctx: Context) -> str:
    await ctx.info("started")
    while True:
        try:
            await endless()
        except asyncio.CancelledError:
            pass

@server.tool
async def leaves_a_thread() -> str:
    started, never = threading.Event(), threading.Event()
    asyncio.ensure_future(asyncio.to_thread(lambda: (started.set(), never.wait())))
    await asyncio.to_thread(started.wait)
    return "ok"

@server.tool
async def spins() -> str:
    print("spinning", file=sys.stderr, flush=True)
    while True:
        pass

@server.tool
async def misuses() -> str:
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: server.notify_list_changed("nonsense"))
    async def fails():
        server.tool(3)
    asyncio.ensure_future(fails())
    return "ok"

@server.resource("memo://one")
def one() -> str:
    return "1"

@server.tool
async def crash(how: str, secret: str) -> str:
    error = RuntimeError(f"no good: token={secret} for '{secret}' and {os.environ['SOME_SETTING']}")
    if how == "abort":
        server.abort(error)
    else:
        connection = server.connections[0]
        def broken(*_):
            raise error
        connection.channel._receiver = type("R", (), {"received": broken})()
    return "ok"

server.run()
"""


ENDINGS = [
    pytest.param(lambda peer: peer.close_input(), id="end of input"),
    pytest.param(lambda peer: peer.kill(signal.SIGINT), id="SIGINT"),
    pytest.param(lambda peer: peer.kill(signal.SIGTERM), id="SIGTERM"),
    pytest.param(lambda peer: peer.tool("stop"), id="shutdown()"),
]


@pytest.mark.row("D13")
@pytest.mark.parametrize("end", ENDINGS)
def test_every_trigger_runs_the_same_shutdown(end: Callable[[StdioPeer], None]) -> None:
    with StdioPeer(SCRIPT) as peer:
        peer.initialize(capabilities=FEATURES)
        end(peer)
        assert peer.exit_code() == 0
        assert [line for line in peer.stderr().split() if line != "cleanup"] == STAGES


def watched(peer: StdioPeer) -> None:
    peer.result("tools/call", {"name": "slow", "arguments": {"stage": "UnsubscribeResources"}})
    peer.result("resources/subscribe", {"uri": "memo://one"})


def unread(peer: StdioPeer) -> None:
    peer.tool("much")
    select.select([peer.output], [], [], PATIENCE)


def at_work(peer: StdioPeer) -> None:
    peer.result("tools/call", {"name": "unwilling", "task": {}})


def cleaned_up(peer: StdioPeer) -> None:
    peer.result("tools/call", {"name": "slow", "arguments": {"stage": "Terminate"}})


def busy(peer: StdioPeer) -> None:
    peer.tool("forever")
    peer.receive()


OVERRUNS = {
    "UnsubscribeResources": watched,
    "DrainPendingRequests": busy,
    "CloseTransport": unread,
    "PersistSession": at_work,
    "Terminate": cleaned_up,
}
HURRIED = {"TRUNKLINE_STAGE_TIMEOUT": "0.1", "TRUNKLINE_DRAIN_TIMEOUT": "0.1"}


@pytest.mark.row("D12")
@pytest.mark.parametrize("stage", OVERRUNS)
def test_exit_code_names_the_stage_that_overran(stage: str, tmp_path: Path) -> None:
    hurried = HURRIED if stage == "DrainPendingRequests" else {**HURRIED, "TRUNKLINE_DRAIN_TIMEOUT": "30"}
    hurried = {**hurried, "STORE": str(tmp_path / "store.db")}
    with StdioPeer(SCRIPT, env=hurried) as peer:
        peer.initialize(capabilities=FEATURES)
        OVERRUNS[stage](peer)
        peer.kill(signal.SIGTERM)
        assert peer.process.wait(PATIENCE) == EXIT_CODES[stage]
        assert peer.stderr().split() == STAGES
        peer.drop_output()


@pytest.mark.parametrize(("tool", "code"), [("stubborn", 82), ("leaves_a_thread", 85)])
def test_unstoppable_work_does_not_delay_the_exit(tool: str, code: int) -> None:
    with StdioPeer(SCRIPT, env=HURRIED) as peer:
        peer.initialize(capabilities=FEATURES)
        peer.tool(tool)
        peer.receive()
        peer.close_input()
        assert peer.exit_code() == code
        assert "did not stop in time" in peer.stderr()


@pytest.mark.row("D13")
def test_second_signal_exits_a_blocked_process() -> None:
    with StdioPeer(SCRIPT) as peer:
        peer.initialize(capabilities=FEATURES)
        peer.tool("spins")
        eventually(lambda: "spinning" in peer.stderr())
        eventually(
            lambda: peer.kill(signal.SIGTERM) or peer.process.poll() is not None
        )  # two concurrent calls are one shutdown
        assert peer.exit_code() == 128 + signal.SIGTERM


# --- crashes ------------------------------------------------------------------------------------

SECRET = "hunter2-0123456789abcdef"  # to be looked for


def crashed(folder: Path, how: str) -> tuple[int, str, dict[str, Any]]:
    """The exit code, standard error and dump of a process that crashed."""
    env = {"TRUNKLINE_CRASH_FOLDER": str(folder), "SOME_SETTING": "from the environment"}
    with StdioPeer(SCRIPT, env=env) as peer:
        peer.initialize(capabilities=FEATURES)
        peer.tool("forever")
        peer.receive()
        peer.result("tools/call", {"name": "crash", "arguments": {"how": how, "secret": SECRET}})
        if how != "abort":
            peer.call("ping")
        code, said = peer.exit_code(), peer.stderr()
    [file] = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return code, said, json.loads(file.read_text())


@pytest.mark.row("D14", "F28")
@pytest.mark.parametrize("how", ["abort", "a fault of our own"])
def test_crash_is_logged_dumped_and_ends_the_process(tmp_path: Path, how: str) -> None:
    code, said, dump = crashed(tmp_path, how)
    assert code == 1
    lines = said.split()
    assert [word for word in lines if word in {"LogError", "PersistCrashDump", "Terminate", *STAGES}] == [
        "LogError",
        "PersistCrashDump",
        "Terminate",
    ]
    assert "RuntimeError: no good" in said  # the traceback, for the operator
    assert dump["reason"].startswith("RuntimeError: no good")
    assert dump["traceback"][-1]["error"] == dump["reason"]
    assert dump["capabilities"]["tools"] == {"listChanged": True}
    [connection] = dump["connections"]
    assert connection["phase"] == "READY"
    assert "forever" not in str(connection)
    assert {"id": 2, "method": "tools/call"} in connection["pending"]


def test_leftover_callback_of_a_handler_is_no_crash() -> None:
    with StdioPeer(SCRIPT) as peer:
        peer.initialize(capabilities=FEATURES)
        peer.result("tools/call", {"name": "misuses"})
        eventually(lambda: peer.stderr().count("MisuseError: there is no list") == 1)
        assert peer.result("ping") == {}
        peer.close_input()
        assert peer.exit_code() == 0


@pytest.mark.row("D14")
def test_crash_dump_has_no_secrets(tmp_path: Path) -> None:
    _, _, dump = crashed(tmp_path, "abort")
    assert SECRET not in json.dumps(dump)
    assert "from the environment" not in json.dumps(dump)


@pytest.mark.row("D15")
def test_graceful_shutdown_leaves_no_dump(tmp_path: Path) -> None:
    with StdioPeer(SCRIPT, env={"TRUNKLINE_CRASH_FOLDER": str(tmp_path)}) as peer:
        peer.initialize(capabilities=FEATURES)
        peer.kill(signal.SIGTERM)
        assert peer.exit_code() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("D14")
async def test_crash_without_folder_is_reported_without_a_dump(tmp_path: Path) -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        subject.server.abort(ValueError("x"))
        subject.server.abort(KeyError("a second one is of no interest"))
        await subject.server.shutdown()
        assert peer.closed is not None
    assert steps(subject.observer, CrashStep) == ["LogError", "PersistCrashDump", "Terminate"]
    assert steps(subject.observer) == []
    assert [fact.file for fact in subject.observer.facts if isinstance(fact, CrashStep)] == [None] * 3
    assert isinstance(subject.server.crash, ValueError)


async def test_failing_handler_is_no_crash() -> None:
    subject = RunningServer()

    @subject.server.tool
    async def breaks() -> str:
        raise ZeroDivisionError

    async with RawPeer(subject.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        await peer.result("tools/call", {"name": "breaks"})
        assert subject.server.crash is None
        await subject.server.shutdown()
    assert steps(subject.observer, CrashStep) == []
