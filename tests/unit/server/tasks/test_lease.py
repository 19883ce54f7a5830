"""Task leases of processes that share a file: held under the name of the process, and free when it is dead."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.connections import turns, until
from tests.contract.valkey import valkey
from tests.limits import PATIENCE

from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.errors import Fenced
from trunkline.protocol.tasks import TaskRecord, TaskState
from trunkline.server.cluster.cluster import Cluster
from trunkline.server.tasks.recovery import _next_attempt
from trunkline.server.tasks.repository import TaskRepository, key_of_task
from trunkline.server.tasks.service import TaskService
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.shared_values import IDENTITY, load_identity
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Delete, Held, Lease, Store
from trunkline.testing import FaultyStore, ManualClock, RawPeer
from trunkline.testing.faulty_store import StoreFault

LEASE = 60.0  # seconds; time passes much faster here than stores answer
NEVER = 1e6  # seconds between periodic scans, so that only events cause one
OLD_HOLDER = "process 0123456789abcdef"  # as earlier versions named the holders of task leases


class LateAnswers(SqliteStore):
    """A store whose answer to a creation of a task waits for the test, after it took effect."""

    late: asyncio.Event | None = None

    def acquire(self, name: str, *rest: Any, **more: Any) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._acquire(name, super().acquire(name, *rest, **more)))

    async def _acquire(self, name: str, granting: Awaitable[Any]) -> Any:
        granted = await granting
        if self.late is not None and "/tasks/" in name:
            await self.late.wait()
        return granted


class Process:
    """One of several servers on a file, with a tool that runs as a task."""

    def __init__(self, path: Path, clock: ManualClock, *, tools: bool = True) -> None:
        self.file = LateAnswers(path, clock=clock)
        self.store = FaultyStore(self.file)
        unlimited = dict.fromkeys(("work_timeout", "quick_timeout", "person_timeout", "initialize_timeout"))
        settings = Settings(task_lease=NEVER, process_lease=LEASE, max_tasks=3, task_ttl=86400, **unlimited)
        self.server = Server("s", store=self.store, clock=clock, observers=[], settings=settings)
        self.clock = clock
        self.begun: list[asyncio.Event] = []  # of each run: set when the run may end
        self.late_write: BaseException | None = None  # what a cancelled run got when it wrote
        self.peer: RawPeer
        if tools:
            self.server.add_tool(self._work, name="work", task=TaskPolicy(recovery="restart", attempts=9))

    async def _work(self, ctx: Context) -> str:
        go_on = asyncio.Event()
        self.begun.append(go_on)
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            try:
                await ctx.checkpoint("too late")
            except BaseException as error:
                self.late_write = error
            raise
        ctx.progress(1)
        return f"by run {len(self.begun)}"

    async def start(self) -> None:
        await self.store.open()
        await load_identity(self.store, self.clock.now() - LEASE)  # as in a deployment that is older than a lease
        await self.server.start()
        self.peer = RawPeer(self.server)
        await self.peer.__aenter__()
        await self.peer.initialize()

    async def close(self) -> None:
        await self.peer.__aexit__(None, None, None)
        await self.server.aclose()

    @property
    def cluster(self) -> Cluster:
        found = self.server._runtime.get_services().cluster
        assert found is not None
        return found

    @property
    def tasks(self) -> TaskService:
        return self.server._runtime.get_services().tasks

    async def create(self) -> str:
        """Create a task, and wait until it runs."""
        made = await self.peer.result("tools/call", {"name": "work", "task": {}, "_meta": {"progressToken": "t"}})
        await until(lambda: self.begun)
        return made["task"]["taskId"]

    async def record(self, task: str) -> TaskRecord:
        stored = await TaskRepository(self.store, self.clock).find("nobody", task)
        assert stored is not None
        return stored.record

    async def holder(self, task: str) -> Held:
        found = await self.store.acquire(key_of_task("nobody", task), "a test", 1)
        assert isinstance(found, Held)
        return found

    async def die(self) -> str:
        """End like a killed process, as seen by others: its runs cannot write any more."""
        name = self.cluster.name
        self.store.fail()
        await self.cluster.close()
        return name

    def scan(self) -> None:
        """Scan now."""
        recovery = self.tasks._recovery
        assert recovery is not None
        recovery.schedule_scan(self.clock.now())
        self.clock.advance(0.1)


class Deployment:
    """Processes that share a file and a clock."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(start=1_000_000.0)
        self._path = path
        self._all: list[Process] = []

    async def start(self, **options: Any) -> Process:
        process = Process(self._path, self.clock, **options)
        self._all.append(process)
        await process.start()
        await self.passes(lambda: all(len(each.cluster.peers) == len(self._all) - 1 for each in self._all))
        return process

    async def passes(self, truth: Callable[[], object], step: float = 0.02) -> None:
        """Let time pass in small steps until a condition is true."""
        async with asyncio.timeout(PATIENCE):
            while not truth():
                await self._advance(step)

    async def _advance(self, step: float) -> None:
        """Let time pass, and wait for the writes that are due: otherwise a lease could expire while it is renewed, each
        time again. Reads would not do, since they overtake writes."""
        self.clock.advance(step)
        await turns()
        for each in self._all:
            await each.file.acquire("nothing/here", "this test", 1)
        await turns()

    async def evict(self, process: Process, by: Process) -> str:
        """Have a live process evicted, which then finds out."""
        name = process.cluster.name
        (await self.evict_unnoticed(process, by)).lift()
        return name

    async def evict_unnoticed(self, process: Process, by: Process) -> StoreFault:
        """Have a live process evicted. It cannot renew its lease, and so does not know, until the fault is lifted."""
        name = process.cluster.name
        fault = process.store.fail("renew", "acquire", key="process/")
        async with asyncio.timeout(PATIENCE):
            while not await by.cluster.evict_if_dead(name):
                await self._advance(1)
        return fault

    async def end(self, process: Process) -> None:
        self._all.remove(process)
        await process.close()

    async def forget(self, process: Process) -> None:
        """Close the remains of a process that died."""
        process.store._faults.clear()
        await self.end(process)

    async def close(self) -> None:
        for process in list(self._all):
            await self.forget(process)


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    made = Deployment(tmp_path / "store")
    yield made
    await made.close()


# --- holding ------------------------------------------------------------------------------------------


async def test_lease_is_held_by_the_process_name_for_the_life_of_the_record(deployment: Deployment) -> None:
    process = await deployment.start()
    renewals = process.store.hold("renew", key="/tasks/")
    task = await process.create()
    record, held = await process.record(task), await process.holder(task)
    assert held.holder == process.cluster.name
    assert record.expires_at is not None
    assert held.expires >= record.expires_at
    for _ in range(100):
        deployment.clock.advance(LEASE / 10)
        await turns()
    assert renewals.calls == 0
    process.begun[0].set()
    result = await process.peer.result("tasks/result", {"taskId": task})
    assert result["structuredContent"] == {"result": "by run 1"}


async def test_lease_of_a_record_without_expiry_lasts_for_years(deployment: Deployment) -> None:
    process = await deployment.start()
    record = await process.record(await process.create())
    assert process.tasks.leases.ttl_of(replace(record, expires_at=None)) > 365 * 86400


async def test_recovery_leaves_own_tasks_alone(deployment: Deployment) -> None:
    process = await deployment.start()
    task = await process.create()
    token = (await process.holder(task)).token
    for _ in range(5):
        process.scan()
        await process.peer.quiet()
    assert ((await process.holder(task)).token, len(process.begun)) == (token, 1)


async def test_recovery_leaves_a_task_alone_while_it_is_created(deployment: Deployment) -> None:
    process = await deployment.start()
    process.file.late = asyncio.Event()
    asked = process.peer.call("tools/call", {"name": "work", "task": {}})
    async with asyncio.timeout(PATIENCE):
        while not await process.store.scan("owner/"):
            await turns()
    [mark] = await process.store.scan("working/")
    task = mark.key.removeprefix("working/")
    for _ in range(5):
        process.scan()
        await process.peer.quiet()
    assert process.begun == []
    process.file.late.set()
    assert (await process.peer.answer_to(asked))["result"]["task"]["taskId"] == task
    await until(lambda: process.begun)
    assert (await process.record(task)).attempt == 1


async def test_recovery_leaves_unconfirmed_tasks_alone(deployment: Deployment) -> None:
    process = await deployment.start()
    fault = process.store.fail("acquire", key="/tasks/", done=True)
    told = await process.peer.error("tools/call", {"name": "work", "task": {}})
    assert told["data"]["kind"] == "outcome_unknown"
    [mark] = await process.store.scan("working/")
    for _ in range(5):
        process.scan()
        await process.peer.quiet()
    assert process.begun == []
    fault.lift()
    task = mark.key.removeprefix("working/")
    async with asyncio.timeout(PATIENCE):
        while (await process.record(task)).state is not TaskState.CANCELLED:
            await turns()


async def test_released_lease_of_a_live_process_is_found_by_its_own_scan(deployment: Deployment) -> None:
    """The store fails when the run ends, so the lease stays."""
    process = await deployment.start()
    task = await process.create()
    process.store.fail("release", key="/tasks/", times=1)
    process.tasks._runners[task].stop()
    await deployment.passes(lambda: len(process.begun) == 2)
    assert (await process.record(task)).attempt == 2


# --- takeover -------------------------------------------------------------------------------------------


async def test_tasks_of_a_killed_process_are_taken_over_at_once(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start()
    task = await first.create()
    began = deployment.clock.now()
    await first.die()
    await deployment.passes(lambda: second.begun, step=1e-4)
    assert deployment.clock.now() - began < second.server.settings.process_lease
    assert (await second.holder(task)).holder == second.cluster.name
    second.begun[0].set()
    result = await second.peer.result("tasks/result", {"taskId": task})
    assert result["structuredContent"] == {"result": "by run 1"}


async def test_tasks_of_a_killed_deployment_are_taken_over_at_start(deployment: Deployment) -> None:
    """The new process has never known the old ones, but their sockets are closed."""
    first, second = await deployment.start(), await deployment.start()
    tasks = [await first.create(), await second.create()]
    for process in (first, second):
        process.store.fail()
    await asyncio.gather(first.cluster.close(), second.cluster.close())
    deployment._all.clear()
    third = await deployment.start()
    await deployment.passes(lambda: len(third.begun) == 2, step=1e-4)
    assert {(await third.holder(task)).holder for task in tasks} == {third.cluster.name}
    for process in (first, second):
        process.store._faults.clear()
        await process.close()


async def test_tasks_of_a_killed_deployment_on_redis_wait_for_the_process_lease() -> None:
    """A Redis cannot tell that a process was killed."""

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    begun, servers = asyncio.Event(), list[Server]()
    for _ in range(2):
        settings = Settings(process_lease=0.5, task_lease=NEVER)
        servers.append(Server("s", store=RedisStore(valkey().url, prefix="killed"), settings=settings, observers=[]))
        servers[-1].add_tool(work, name="work", task=TaskPolicy(recovery="restart"))
    async with asyncio.timeout(PATIENCE):
        async with RawPeer(servers[0]) as peer:
            await peer.initialize()
            await peer.result("tools/call", {"name": "work", "task": {}})
            await begun.wait()
            cluster = servers[0]._runtime.get_services().cluster
            assert cluster is not None
            await cluster.close()
            begun.clear()
            await servers[1].start()
            await begun.wait()
            await servers[1].aclose()
        await servers[0].aclose()


@pytest.mark.parametrize(
    ("holder", "expected"), [("0123456789abcdef", None), ("fedcba9876543210", 102.0), (OLD_HOLDER, 1000.0)]
)
def test_next_attempt_depends_on_the_holder(holder: str, expected: float | None) -> None:
    assert _next_attempt(Held(holder, 1000.0, 1), {"0123456789abcdef"}, 100.0, 6.0) == expected


async def test_holder_of_an_earlier_version_is_taken_over_after_expiry_only(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start()
    task = await first.create()
    key, held = key_of_task("nobody", task), await first.holder(task)
    old = await first.store.acquire(key, OLD_HOLDER, 10.0, over=held.token)
    assert isinstance(old, Lease)
    await first.die()
    asked = second.store.hold("acquire", key="process/process")
    for _ in range(3):
        second.scan()
        await second.peer.quiet()
    assert (second.begun, asked.calls) == ([], 0)
    await deployment.passes(lambda: second.begun)
    assert deployment.clock.now() >= old.expires


async def test_failed_scan_is_repeated(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start()
    await first.create()
    fault = second.store.fail("scan", key="working/")
    await first.die()
    await deployment.passes(lambda: fault.calls > 5)
    fault.lift()
    await deployment.passes(lambda: second.begun)


async def test_task_that_is_fenced_off_does_not_end_the_scan(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start()
    stolen, left = await first.create(), await first.create()
    pause = second.store.hold("commit", key=stolen)
    await first.die()
    await deployment.passes(pause.reached.is_set)
    held = await second.holder(stolen)
    await second.store.acquire(key_of_task("nobody", stolen), OLD_HOLDER, 1000, over=held.token)
    pause.lift()
    await deployment.passes(lambda: second.begun)
    assert (await second.holder(left)).holder == second.cluster.name
    assert (await second.record(stolen)).attempt == 1


async def test_process_scans_after_a_pause(deployment: Deployment) -> None:
    """A process that it does not know may have left tasks meanwhile."""
    process = await deployment.start()
    task = await process.create()
    left = replace(await process.record(task), task_id="left")
    await TaskRepository(process.store, deployment.clock).create(left, "0123456789abcdef", NEVER)
    deployment.clock.advance(2 * LEASE)
    await deployment.passes(lambda: len(process.begun) == 2)
    assert (await process.holder("left")).holder == process.cluster.name


async def test_departure_during_a_scan_causes_another(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start()
    await first.create()
    later = await first.create()
    pause = second.store.hold("get", key=later, times=1)
    second.scan()
    await asyncio.wait_for(pause.reached.wait(), PATIENCE)
    name = await first.die()
    await deployment.passes(lambda: name not in second.cluster.peers, step=1e-3)
    deployment.clock.advance(0.1)
    await turns()
    pause.lift()
    began = deployment.clock.now()
    await deployment.passes(lambda: len(second.begun) == 2, step=1e-3)
    assert deployment.clock.now() - began < LEASE / 3


async def test_shutdown_releases_leases_at_once(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start()
    task = await first.create()
    await deployment.end(first)
    await deployment.passes(lambda: second.begun)
    record = await second.record(task)
    assert (record.attempt, record.tries) == (2, 1)


# --- eviction of a live process -----------------------------------------------------------------------


async def test_evicted_process_stops_its_runs_and_writes_nothing(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start(tools=False)
    task = await first.create()
    before = await first.record(task)
    releases = first.store.hold("release", key="/tasks/")
    first.store.hold("scan", key="working/")  # it does not take the task over
    name = await deployment.evict(first, second)
    await deployment.passes(lambda: first.late_write is not None)
    assert isinstance(first.late_write, Fenced)
    assert releases.calls == 0
    assert (await first.holder(task)).holder == name
    assert await first.record(task) == before


async def test_evicted_process_takes_its_tasks_over_under_its_new_name(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start(tools=False)
    task = await first.create()
    name = await deployment.evict(first, second)
    await deployment.passes(lambda: len(first.begun) == 2)
    assert (await first.holder(task)).holder == first.cluster.name != name
    first.begun[1].set()
    result = await first.peer.result("tasks/result", {"taskId": task})
    assert result["structuredContent"] == {"result": "by run 2"}


async def test_peer_takes_over_the_tasks_of_an_evicted_process(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start()
    task = await first.create()
    unnoticed = await deployment.evict_unnoticed(first, second)
    await deployment.passes(lambda: second.begun)
    held = await second.holder(task)
    assert held.holder == second.cluster.name
    unnoticed.lift()
    await deployment.passes(lambda: first.late_write is not None)
    assert isinstance(first.late_write, Fenced)
    await deployment.passes(lambda: not first.tasks.runners)
    assert ((await second.holder(task)).token, len(first.begun), len(second.begun)) == (held.token, 1, 1)


async def test_task_created_under_an_evicted_name_is_taken_over(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start(tools=False)
    first.file.late = asyncio.Event()
    asked = first.peer.call("tools/call", {"name": "work", "task": {}})
    async with asyncio.timeout(PATIENCE):
        while not await first.store.scan("owner/"):
            await turns()
    name = await deployment.evict(first, second)
    await deployment.passes(lambda: first.cluster.name != name)
    first.file.late.set()
    task = (await first.peer.answer_to(asked))["result"]["task"]["taskId"]
    await deployment.passes(lambda: first.begun)
    assert (await first.holder(task)).holder == first.cluster.name
    assert (await first.record(task)).attempt == 2


async def test_lease_acquired_under_an_evicted_name_is_acquired_again(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start(tools=False)
    task = await first.create()
    record = await first.record(task)
    first.tasks._runners[task].lose_lease()
    first.file.late = asyncio.Event()
    acquiring = asyncio.ensure_future(first.tasks.leases.acquire(record))
    await turns(100)
    name = await deployment.evict(first, second)
    await deployment.passes(lambda: first.cluster.name != name)
    first.file.late.set()
    lease = await asyncio.wait_for(acquiring, PATIENCE)
    assert isinstance(lease, Lease)
    assert lease.holder == first.cluster.name


async def test_unconfirmed_task_of_an_evicted_process_is_cancelled(deployment: Deployment) -> None:
    first, second = await deployment.start(), await deployment.start(tools=False)
    fault = first.store.fail("acquire", key="/tasks/", done=True)
    await first.peer.error("tools/call", {"name": "work", "task": {}})
    [mark] = await first.store.scan("working/")
    name = await deployment.evict(first, second)
    await deployment.passes(lambda: first.cluster.name != name)
    fault.lift()
    task = mark.key.removeprefix("working/")
    async with asyncio.timeout(PATIENCE):
        while (await first.record(task)).state is not TaskState.CANCELLED:
            await turns()
    assert first.begun == []


async def test_process_that_may_be_evicted_creates_no_task(deployment: Deployment) -> None:
    process = await deployment.start()
    fault = process.store.fail("renew", "acquire", key="process/")
    deployment.clock.advance(2 * LEASE)
    told = await process.peer.error("tools/call", {"name": "work", "task": {}})
    assert told["data"]["kind"] == "temporarily_unavailable"
    assert await process.store.scan("working/") == []
    fault.lift()
    await process.create()


# --- pauses and outages ---------------------------------------------------------------------------------


async def test_run_continues_after_a_pause_without_eviction(deployment: Deployment) -> None:
    process = await deployment.start()
    task, name = await process.create(), process.cluster.name
    fault = process.store.hold("renew", key="process/")
    deployment.clock.advance(2 * LEASE)  # no timer fires in between
    process.begun[0].set()
    result = process.peer.call("tasks/result", {"taskId": task})
    await process.peer.quiet()
    fault.lift()
    said = await process.peer.answer_to(result)
    assert said["result"]["structuredContent"] == {"result": "by run 1"}
    assert (process.cluster.name, len(process.begun)) == (name, 1)


async def test_no_progress_is_sent_while_the_process_may_be_evicted(deployment: Deployment) -> None:
    process = await deployment.start()
    await process.create()
    runner = next(iter(process.tasks._runners.values()))
    fault = process.store.fail("renew", "acquire", key="process/")
    deployment.clock.advance(2 * LEASE)
    await process.peer.quiet()
    runner.report_progress(0.5, None, None)
    fault.lift()
    await process.cluster.confirm_name()
    runner.report_progress(0.75, None, None)
    while (said := await process.peer.receive())["method"] != "notifications/progress":
        pass
    assert said["params"]["progress"] == 0.75


async def test_run_survives_a_long_outage_of_the_store(deployment: Deployment) -> None:
    process = await deployment.start()
    task, name = await process.create(), process.cluster.name
    fault = process.store.fail()
    process.begun[0].set()
    for _ in range(10):
        deployment.clock.advance(LEASE / 3)
        await turns()
    fault.lift()
    result = await process.peer.result("tasks/result", {"taskId": task})
    assert result["structuredContent"] == {"result": "by run 1"}
    await process.cluster.confirm_name()
    assert process.cluster.name == name


async def test_loss_of_the_data_stops_the_runs(deployment: Deployment) -> None:
    process = await deployment.start()
    task, name = await process.create(), process.cluster.name
    await lose_data(process.store, name, task)
    await deployment.passes(lambda: process.cluster.name != name, step=0.1)
    await until(lambda: not process.tasks.runners)
    assert (await process.peer.error("tasks/get", {"taskId": task}))["code"] == -32602
    assert len(process.begun) == 1
    await process.create()


async def lose_data(store: Store, name: str, task: str) -> None:
    """Delete the data of a process and its task, as if the store had lost all."""
    await store.commit([Delete(IDENTITY)])
    await store.commit([Delete(f"working/{task}")])
    await store.commit([Delete(key_of_task("nobody", task))])
    for key in (f"process/{name}", key_of_task("nobody", task)):
        held = await store.acquire(key, "a test", 1)
        assert isinstance(held, Held)
        lease = await store.acquire(key, "a test", 1, over=held.token)
        assert isinstance(lease, Lease)
        await store.release(lease)
