"""The number of working tasks per owner, over all processes that share a store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from trunkline import Server, Settings
from trunkline.clock import WallClock
from trunkline.errors import Conflict
from trunkline.protocol.tasks import TaskRecord
from trunkline.server.limits.shared_semaphore import scan_all
from trunkline.server.tasks.errors import TooManyTasks
from trunkline.server.tasks.repository import StoredTask, TaskRepository
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import ABSENT, Put
from trunkline.testing import ManualClock, RawPeer

TWO = Settings(max_tasks_per_principal=2)


def record(name: str, owner: str = "ann", expires: float | None = None) -> TaskRecord:
    made = TaskRecord(
        task_id=name,
        client=owner,
        method="tools/call",
        params=Raw(b"{}"),
        created_at=0,
        updated_at=0,
        expires_at=expires,
    )
    return made.start(1.0)


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[list[SqliteStore]]:
    made = [SqliteStore(tmp_path / "shared.db", synchronous="NORMAL") for _ in range(2)]
    for store in made:
        await store.open()
    yield made
    for store in made:
        await store.close()


async def create(
    shelf: TaskRepository, made: TaskRecord, *, places: int = 3, beside: tuple[Put, ...] = ()
) -> StoredTask:
    return (await shelf.create(made, "process", 10, beside, slots=places))[0]


@pytest.mark.row("Q06")
async def test_concurrent_creations_never_exceed_the_slots(stores: list[SqliteStore]) -> None:
    shelves = [TaskRepository(store, WallClock()) for store in stores]
    asked = [create(shelves[number % 2], record(f"task-{number}")) for number in range(12)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    kept = [outcome for outcome in outcomes if isinstance(outcome, StoredTask)]
    assert sorted(each.record.place or 0 for each in kept) == [0, 1, 2]
    assert sum(isinstance(outcome, TooManyTasks) for outcome in outcomes) == 9
    tasks = {item.key.rpartition("/")[2] for item in await scan_all(stores[0], "owner/ann/tasks/")}
    marks = {item.key.rpartition("/")[2] for item in await scan_all(stores[0], "working/")}
    assert tasks == marks == {each.record.task_id for each in kept}


@pytest.mark.row("Q06")
async def test_slot_is_free_after_its_task_has_ended(stores: list[SqliteStore]) -> None:
    one, other = (TaskRepository(store, WallClock()) for store in stores)
    await create(one, record("first"), places=1)
    with pytest.raises(TooManyTasks):
        await create(other, record("second"), places=1)
    await create(other, record("third", owner="bob"), places=1)
    await one.change("ann", "first", lambda found, now: found.resume(now))
    with pytest.raises(TooManyTasks):
        await create(one, record("second"), places=1)
    await other.change("ann", "first", lambda found, now: found.cancel(now))
    await create(other, record("second"), places=1)


@pytest.mark.row("Q06")
async def test_slot_lasts_as_long_as_its_task_record(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "shared.db", clock=clock)
    await store.open()
    shelf = TaskRepository(store, clock)
    await create(shelf, record("forgotten", expires=clock.now() + 10), places=1)
    clock.advance(9)
    with pytest.raises(TooManyTasks):
        await create(shelf, record("next"), places=1)
    clock.advance(2)
    await create(shelf, record("next"), places=1)
    await store.close()


async def test_conflict_of_extra_writes_is_not_a_slot_conflict(stores: list[SqliteStore]) -> None:
    shelf = TaskRepository(stores[0], WallClock())
    beside = Put("owner/ann/once/key", b"", None, ABSENT)
    await create(shelf, record("first"), beside=(beside,))
    with pytest.raises(Conflict):
        await create(shelf, record("second"), beside=(beside,))
    assert len(await scan_all(stores[0], "owner/ann/places/")) == 1


@pytest.mark.row("J13", "Q06")
async def test_two_servers_count_the_tasks_of_a_principal_together(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    def made() -> Server:
        server = Server("tasks", observers=[], settings=TWO, store=SqliteStore(tmp_path / "shared.db"))

        @server.tool(task=True)
        async def work() -> str:
            await go_on.wait()
            return "done"

        return server

    async def call(peer: RawPeer) -> Any:
        return (await peer.result("tools/call", {"name": "work", "task": {}}))["task"]

    async def is_refused(peer: RawPeer) -> bool:
        error = await peer.error("tools/call", {"name": "work", "task": {}})
        return error["data"]["kind"] == "maximum_concurrent_tasks_exceeded"

    servers = made(), made()
    for server in servers:
        await server.start()
    one, other = (RawPeer(server, principal="ann") for server in servers)
    bob = RawPeer(servers[1], principal="bob")
    async with one, other, bob:
        for peer in (one, other, bob):
            await peer.initialize()
        tasks = [await call(one), await call(other)]
        assert await is_refused(one)
        assert await is_refused(other)
        await call(bob)
        await one.result("tasks/cancel", {"taskId": tasks[1]["taskId"]})
        tasks.append(await call(one))
        assert await is_refused(other)
        go_on.set()
        await one.result("tasks/result", {"taskId": tasks[0]["taskId"]})
        assert (await call(other))["status"] == "working"
    for server in servers:
        await server.aclose()
