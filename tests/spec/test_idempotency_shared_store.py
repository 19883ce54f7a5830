"""Calls with an idempotency key where several processes share a store, concurrently or one after another."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import until
from tests.limits import PATIENCE
from tests.processes import StdioPeer, eventually
from tests.spec.bank import Bank, Params, call, paid

import trunkline
from trunkline import Client, Settings
from trunkline.errors import OutcomeUnknown
from trunkline.server.cluster.cluster import Cluster
from trunkline.server.cluster.membership import evict_process
from trunkline.server.cluster.messages import EVICTED
from trunkline.server.idempotency.key import InProgress, KeyEntry, decode_entry
from trunkline.stores.shared_values import load_identity
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Item, Put, Store
from trunkline.testing import FaultyStore, ManualClock, RawPeer

# --- several servers, one store -----------------------------------------------------------------

LEASE = 10 * PATIENCE  # of a process: no test waits that long for an owner


class LateStore(SqliteStore):
    """A store that, on request, runs a callback between reading an entry and returning it."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str) -> Item | None:
        found = await super().get(key)
        if self.meanwhile is not None and key.startswith("owner/"):  # the cluster reads keys of its own at any time
            happens, self.meanwhile = self.meanwhile, None
            await happens()
        return found


class ServerPair:
    """Two servers, like two processes, with one store. Calls of the first one wait until `one.go` is set."""

    def __init__(self, folder: Path, clock: ManualClock | None = None) -> None:
        settings = Settings(process_lease=LEASE, work_timeout=None)
        self._older = SqliteStore(folder / "store", clock=clock)
        self.faults = FaultyStore(SqliteStore(folder / "store", clock=clock))
        self.store = LateStore(folder / "store", clock=clock)
        self.one = Bank(store=self.faults, clock=clock, settings=settings)
        self.two = Bank(store=self.store, clock=clock, settings=settings)
        self.one.go.clear()

    async def __aenter__(self) -> tuple[RawPeer, RawPeer]:
        await self._older.open()
        await load_identity(self._older, 0.0)  # of a deployment that is older than a lease
        self.peers = RawPeer(self.one.server), RawPeer(self.two.server)
        for peer in self.peers:
            await peer.__aenter__()
            await peer.initialize()
        self.clusters = [cluster_of(peer) for peer in self.peers]
        return self.peers

    async def __aexit__(self, *_: object) -> None:
        self.one.go.set()
        for peer in self.peers:
            await peer.close()
        for bank in (self.one, self.two):
            await bank.server.aclose()
        await self._older.close()

    async def pause_one(self) -> None:
        """Silence the first process: it looks dead to the other one, which evicts it, and its calls still run."""
        await self.clusters[0].close()

    async def evict_one(self) -> None:
        """Evict the first process. Once it can reach the store, it joins again under another name."""
        one, two = self.clusters
        name = one.name
        await evict_process(self.store, name, two.name, PATIENCE, known_dead=True)
        one.send(two.name, EVICTED, name.encode())
        await until(lambda: name not in two.peers)


def cluster_of(peer: RawPeer) -> Cluster:
    cluster = peer.connection.shared.cluster
    assert cluster is not None
    return cluster


async def entry_in(store: Store) -> KeyEntry:
    [item] = await store.scan("owner/")
    return decode_entry(item.value)


async def test_other_process_waits_while_the_owner_lives(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (pair := ServerPair(tmp_path, clock)) as (one, two):
        first = asyncio.create_task(paid(one, "k", 5))
        await pair.one.begun.wait()
        second = two.call("tools/call", call("pay", "k", amount=5))
        for _ in range(20):  # the owner is checked meanwhile
            clock.advance(LEASE / 30)
            assert await two.quiet() == []
        pair.one.go.set()
        assert await first == 1
        assert (await two.answer_to(second))["result"]["structuredContent"]["result"] == 1
    assert (pair.one.runs, pair.two.runs) == ([5], [])


async def test_other_process_does_not_miss_an_early_outcome(tmp_path: Path) -> None:
    async with (pair := ServerPair(tmp_path)) as (one, two):
        first = asyncio.create_task(paid(one, "k", 5))
        await pair.one.begun.wait()

        async def end() -> None:
            pair.one.go.set()
            await first

        pair.store.meanwhile = end
        assert await paid(two, "k", 5) == 1
    assert (pair.one.runs, pair.two.runs) == ([5], [])


async def test_takeover_of_evicted_process_has_one_result(tmp_path: Path) -> None:
    async with (pair := ServerPair(tmp_path)) as (one, two):
        first = asyncio.create_task(paid(one, "k", 5, "put"))
        await pair.one.begun.wait()
        pair.one.runs += [0, 0]  # so that its own result would differ
        waiting = two.call("tools/call", call("put", "k", amount=5))
        await two.quiet()
        await pair.pause_one()
        assert (await two.answer_to(waiting))["result"]["structuredContent"] == {"result": 1}
        pair.one.go.set()
        assert await first == 1
    assert pair.two.runs == [5]


async def test_unknown_outcome_is_final(tmp_path: Path) -> None:
    """The process looked dead, and was only slow."""
    async with (pair := ServerPair(tmp_path)) as (one, two):
        first = one.call("tools/call", call("pay", "k", amount=5))
        await pair.one.begun.wait()
        await pair.pause_one()
        told = await two.error("tools/call", call("pay", "k", amount=5))
        assert told["data"]["kind"] == "outcome_unknown"
        pair.one.go.set()
        assert (await one.answer_to(first))["error"] == told
        for peer in (one, two):
            assert await peer.error("tools/call", call("pay", "k", amount=5)) == told
    assert (pair.one.runs, pair.two.runs) == ([5], [])


async def test_last_moment_result_beats_unknown_outcome(tmp_path: Path) -> None:
    async with (pair := ServerPair(tmp_path)) as (one, two):
        first = asyncio.create_task(paid(one, "k", 5))
        await pair.one.begun.wait()
        await pair.pause_one()

        async def end() -> None:
            pair.one.go.set()
            await first

        pair.store.meanwhile = end  # after the other has read that the run was begun, and before it takes it over
        assert await paid(two, "k", 5) == await first == 1
    assert (pair.one.runs, pair.two.runs) == ([5], [])


@pytest.mark.parametrize("done", [False, True])
async def test_superseded_run_is_stopped_when_its_process_joins_again(tmp_path: Path, done: bool) -> None:
    async with (pair := ServerPair(tmp_path)) as (one, two):
        first = asyncio.create_task(paid(one, "k", 5, "put"))
        await pair.one.begun.wait()
        fault = pair.faults.hold("renew")
        await pair.evict_one()
        if not done:
            pair.two.go.clear()
        second = asyncio.create_task(paid(two, "k", 5, "put"))
        await (second if done else pair.two.begun.wait())
        fault.lift()
        async with asyncio.timeout(PATIENCE):
            await pair.one.stopped.wait()
        pair.two.go.set()
        assert await first == await second == 1


async def test_process_that_joins_again_reclaims_its_runs(tmp_path: Path) -> None:
    async with (pair := ServerPair(tmp_path)) as (one, two):
        first = asyncio.create_task(paid(one, "k", 5))
        await pair.one.begun.wait()
        former = await entry_in(pair.store)
        await pair.evict_one()
        while (entry := await entry_in(pair.store)) == former:
            await asyncio.sleep(0.001)
        assert isinstance(entry, InProgress)
        assert entry.owner == pair.clusters[0].name
        second = two.call("tools/call", call("pay", "k", amount=5))
        assert await two.quiet() == []
        pair.one.go.set()
        assert await first == 1
        assert (await two.answer_to(second))["result"]["structuredContent"]["result"] == 1
    assert (pair.one.runs, pair.two.runs) == ([5], [])


async def test_entry_of_an_older_release_is_decided_when_it_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (pair := ServerPair(tmp_path, clock)) as (one, two):
        pair.one.go.set()
        await paid(one, "k", 5)
        [item] = await pair.store.scan("owner/")
        older = {"type": "begun", "asked": decode_entry(item.value).asked, "by": "a run", "until": clock.now() + 10}
        await pair.store.commit([Put(item.key, json.dumps(older).encode(), clock.now() + 100)])
        asked = two.call("tools/call", call("pay", "k", amount=5))
        clock.advance(9)
        assert await two.quiet() == []
        clock.advance(2)
        assert (await two.answer_to(asked))["error"]["data"]["kind"] == "outcome_unknown"


# --- processes ----------------------------------------------------------------------------------

SCRIPT = (
    f"LEASE = {LEASE}"
    """
import asyncio, os, sys, time
from pathlib import Path
from trunkline import Server, Settings
from trunkline.protocol.types import ToolAnnotations
from trunkline.stores.sqlite.store import SqliteStore

folder, dies = Path(sys.argv[1]), sys.argv[2]
settings = Settings(task_lease=1.5, process_lease=LEASE)
server = Server("bank", store=SqliteStore(folder / "store"), settings=settings)

def work(amount: int) -> str:
    with open(folder / "runs", "a") as file:
        file.write("x")
    if dies == "inside":
        time.sleep(60)
    if dies == "by itself":
        os._exit(9)
    return f"{amount} by {os.getpid()}"

harmless = ToolAnnotations(idempotent_hint=True)
server.tool(work, name="pay")
server.tool(work, name="put", annotations=harmless)
server.tool(work, name="order", task=True)
server.tool(work, name="book", task="required", annotations=harmless)

if dies in ("after", "after that"):
    @server.middleware
    async def lose(call, next):
        await next(call)
        (folder / "done").write_text("x")
        await asyncio.sleep(60) if dies == "after" else os._exit(9)

server.run()
"""
)


def begun_and_killed(folder: Path, params: Params, when: str, *, without_bus: bool = False) -> Any:
    """Kill a process inside the tool, or after it and before the response. Return the response if there is one."""
    program = SCRIPT.replace("server = ", "SqliteStore.bus = lambda self: None\nserver = ", int(without_bus))
    with StdioPeer(program, str(folder), when) as peer:
        peer.initialize()
        ident = peer.call("tools/call", params)
        answer = peer.answer_to(ident)["result"] if "task" in params else None
        written = folder / ("runs" if when == "inside" else "done")
        eventually(lambda: written.exists() and written.read_text())
        peer.kill(signal.SIGKILL)
        assert peer.exit_code() == -signal.SIGKILL
    return answer


@contextlib.asynccontextmanager
async def next_process(folder: Path) -> AsyncIterator[Bank]:
    """A second server with the same store, for one call."""
    bank = Bank(store=SqliteStore(folder / "store"), settings=Settings(task_lease=1.5, process_lease=LEASE))
    yield bank
    await bank.server.aclose()


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


@pytest.mark.row("PROMISE-17")
async def test_call_whose_response_was_lost_in_a_crash_runs_once(
    tmp_path: Path,
) -> None:
    begun_and_killed(tmp_path, call("pay", "k", amount=5), "after")
    async with next_process(tmp_path) as bank, RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await peer.result("tools/call", call("pay", "k", amount=5))
        assert first["content"][0]["text"].startswith("5 by ")
        assert await peer.result("tools/call", call("pay", "k", amount=5)) == first
        error = await peer.error("tools/call", call("pay", "k", amount=6))
        assert (error["code"], error["data"]["kind"]) == (-32602, "idempotency_key_reused")
        assert (runs(tmp_path), bank.runs) == (1, [])
        async with RawPeer(bank.server, principal="alice") as alice:
            await alice.initialize()
            assert await paid(alice, "k", 6) == 1
    assert bank.runs == [6]


@pytest.mark.row("PROMISE-17")
@pytest.mark.parametrize(("name", "again"), [("pay", False), ("put", True)])
async def test_run_of_dead_process_is_repeated_only_if_idempotent(tmp_path: Path, name: str, again: bool) -> None:
    begun_and_killed(tmp_path, call(name, "k", amount=5), "inside")
    async with next_process(tmp_path) as bank, RawPeer(bank.server) as peer:
        await peer.initialize()
        for _ in range(2):
            answer = await peer.request("tools/call", call(name, "k", amount=5))
            if again:
                assert answer["result"]["structuredContent"] == {"result": 1}
            else:
                assert answer["error"]["data"]["kind"] == "outcome_unknown"
    assert (runs(tmp_path), bank.runs) == (1, [5] if again else [])


class UnsharedStore(SqliteStore):
    """A store that no other process can share."""

    def bus(self) -> None: ...


async def test_run_of_earlier_process_has_ended_if_no_process_shares_the_store(tmp_path: Path) -> None:
    begun_and_killed(tmp_path, call("pay", "k", amount=5), "inside", without_bus=True)
    bank = Bank(store=UnsharedStore(tmp_path / "store"))
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        error = await peer.error("tools/call", call("pay", "k", amount=5))
        assert error["data"]["kind"] == "outcome_unknown"
    await bank.server.aclose()
    assert (runs(tmp_path), bank.runs) == (1, [])


@pytest.mark.row("PROMISE-17")
@pytest.mark.parametrize(("name", "again"), [("order", False), ("book", True)])
async def test_key_names_its_task_after_a_crash(tmp_path: Path, name: str, again: bool) -> None:
    """One fails, since its tool is not declared as restartable; the other runs again."""
    asked = {**call(name, "k", amount=5), "task": {}}
    made = begun_and_killed(tmp_path, asked, "inside")["task"]["taskId"]
    async with next_process(tmp_path) as bank, RawPeer(bank.server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", asked))["task"]["taskId"] == made
        ended = await peer.request("tasks/result", {"taskId": made})
        if again:
            assert ended["result"]["structuredContent"] == {"result": 1}
        else:
            error = await peer.error("tools/call", call(name, "k", amount=5))
            assert error["data"]["kind"] == ended["error"]["data"]["kind"] == "task_failed"
    assert (runs(tmp_path), bank.runs) == (1, [5] if again else [])


# --- clients ------------------------------------------------------------------------------------


def script(folder: Path, dies: str, program: str = SCRIPT) -> str:
    """A server that crashes on its first call, or on each call."""
    ran = folder / "runs"
    file = folder / "server.py"
    source = Path(trunkline.__file__).parents[1]  # a client passes on little of its environment
    file.write_text(f"""
import os, sys
sys.path.insert(0, {str(source)!r})
sys.argv[1:] = [{str(folder)!r}, "never" if os.path.exists({str(ran)!r}) else {dies!r}]
{program}""")
    return str(file)


async def test_client_repeats_keyed_call_after_server_crash(tmp_path: Path) -> None:
    """The first process loses its response; the second returns it."""
    async with Client(script(tmp_path, "after that")) as client:
        result = await client.call_tool("pay", {"amount": 5}, idempotency_key="k")
        assert result.data.startswith("5 by ")
    assert runs(tmp_path) == 1


async def test_client_raises_outcome_unknown(tmp_path: Path) -> None:
    async with Client(script(tmp_path, "by itself")) as client:
        with pytest.raises(OutcomeUnknown, match="may or may not have been done"):
            await client.call_tool("pay", {"amount": 5}, idempotency_key="k")
        await client.ping()
    assert runs(tmp_path) == 1


async def test_client_does_not_repeat_without_server_support(tmp_path: Path) -> None:
    """A third-party server that does not declare support for keys would run the call again."""
    unaware = f"""
import trunkline.server.features.tools as tools, trunkline.server.server as server
tools.IDEMPOTENCY_KEY = server.IDEMPOTENCY = "unknown"
{SCRIPT}"""
    async with Client(script(tmp_path, "by itself", unaware)) as client:
        with pytest.raises(OutcomeUnknown, match="was not answered"):
            await client.call_tool("pay", {"amount": 5}, idempotency_key="k")
    assert runs(tmp_path) == 1
