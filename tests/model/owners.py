"""What the processes of the model own: sessions, a task, and broadcasts. The code that decides is the server's own."""

import asyncio
from typing import Final

from msgspec import Raw
from tests.model.world import TICK, Process

from trunkline.errors import Fenced, StoreError, StoreUnavailable
from trunkline.protocol.tasks import TaskRecord, TaskState
from trunkline.server.sessions.lease import SessionLease
from trunkline.server.tasks.lease import OrphanedTask, TaskLeases, take_over_task
from trunkline.server.tasks.repository import StoredTask, TaskRepository, Transition
from trunkline.stores.store import Held, Lease, Put
from trunkline.wire import codec

SESSION_TTL: Final = 10_000.0
TASK_ID: Final = "t"
OWNER: Final = "o"
CHANGED: Final = b"\x20"  # message kind of the model's broadcasts

_decode_entries: Final = codec.json_decoder(list[str])


class HeldSession:
    """A session as the process that holds it sees it: its lease, and its entries in memory."""

    def __init__(self, lease: SessionLease, entries: list[str]) -> None:
        self.lease = lease
        self.entries = entries


class Owner:
    """One process with everything that it owns."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.cluster = process.cluster
        self.sessions: dict[str, HeldSession] = {}
        self.leases = TaskLeases(process.store, self.cluster, process.clock, TICK)
        self.repository = TaskRepository(process.store, process.clock)
        self.run_lease: Lease | None = None  # lease of the task that this process runs
        self._run: asyncio.Task[None] | None = None
        self._creating = False
        self._scanning = False
        self._rescan = False
        self.received: set[str] = set()  # broadcasts that this process has handled
        self.missed = 0  # times that this process has learned that it may have missed broadcasts
        self.cluster.on(CHANGED, self._on_changed)
        self.cluster.on_missed(self._on_missed)
        self.cluster.on_evicted(self._on_evicted)
        self.cluster.on_lost(self._on_lost)

    # --- sessions ----------------------------------------------------------------------------------

    async def append(self, key: str, entry: str) -> str | None:
        """Append an entry to a session. Return the name of the process that holds the session if it is another one,
        None when the entry is stored. Raise `StoreError` if it may or may not be stored."""
        while True:
            session = await self._get(key)
            if isinstance(session, str):
                return session
            session.entries.append(entry)
            try:
                await self._store(key, session)
            except Fenced:
                self.sessions.pop(key, None)
                continue
            return None

    async def _store(self, key: str, session: HeldSession) -> None:
        while True:  # like the write batcher: the latest state of a session is written until it is stored or refused
            try:
                await session.lease.commit([Put(f"{key}/record", codec.to_json(session.entries))])
            except StoreUnavailable:
                await self.sleep()
            else:
                return

    async def _get(self, key: str) -> HeldSession | str:
        session = self.sessions.get(key)
        if session is not None and (self.cluster.lease_valid or await session.lease.confirm()):
            return session
        self.sessions.pop(key, None)
        lease = await self.cluster.acquire(key, SESSION_TTL)
        if isinstance(lease, Held):
            return lease.holder
        item = await self.process.store.get(f"{key}/record")
        if not self.cluster.is_own_name(lease.holder):
            return await self._get(key)
        held = SessionLease(key, self.process.store, self.cluster, SESSION_TTL, lease)
        held.on_taken = lambda: self._drop(key, held)
        session = HeldSession(held, [] if item is None else _decode_entries(item.value))
        self.sessions[key] = session
        return session

    def _drop(self, key: str, lease: SessionLease) -> None:
        session = self.sessions.get(key)
        if session is not None and session.lease is lease:
            del self.sessions[key]

    # --- the task ----------------------------------------------------------------------------------

    async def create_task(self) -> None:
        """Create the task and run it. When this returns, its creation is acknowledged."""
        now = self.process.clock.now()
        record = TaskRecord(
            task_id=TASK_ID, client=OWNER, method="m", params=Raw(b"{}"), created_at=now, updated_at=now
        )
        self._creating = True
        try:
            holder = await self.leases.get_holder()
            self._start(*await self.repository.create(record, holder, self.leases.ttl_of(record)))
        finally:
            self._creating = False

    def _start(self, stored: StoredTask, lease: Lease) -> None:
        if self.leases.is_lost(lease):
            return
        self.run_lease = lease
        self._run = self.process.loop.create_task(self._work(stored.record, lease))
        self._run.add_done_callback(self._finish)

    def _finish(self, run: "asyncio.Task[None]") -> None:
        self.run_lease = self._run = None
        error = None if run.cancelled() else run.exception()
        assert error is None or isinstance(error, StoreError), error
        self._scan_soon()

    async def _work(self, record: TaskRecord, lease: Lease) -> None:
        """Run the task, which takes longer than one heartbeat."""
        if record.state is TaskState.PENDING:
            await self._change(_begin, lease)
        await self.sleep()
        await self._change(lambda found, now: found.complete(now, Raw(b"{}"), is_error=False), lease)
        await self.repository.delete_mark(record.task_id)

    async def _change(self, transition: Transition, lease: Lease) -> None:
        while True:  # like the runner: an outcome is written until it is stored or refused
            try:
                await self.repository.change(OWNER, TASK_ID, transition, lease)
            except StoreUnavailable:
                await self.sleep()
            else:
                return

    def _scan_soon(self) -> None:
        """Look for tasks of dead processes."""
        self._rescan = True
        if not self._scanning:
            self._scanning = True
            self.process.world.tasks.append(self.process.loop.create_task(self._scan()))

    async def _scan(self) -> None:
        try:
            while self._rescan and self._run is None:
                self._rescan = False
                for mark in await self.repository.list_marks():
                    if self._run is not None or self._creating:
                        break  # this process runs the task
                    orphan = await take_over_task(self.repository, self.leases, mark)
                    if isinstance(orphan, OrphanedTask):
                        self._start(orphan.stored, orphan.lease)
        except StoreError:
            self._rescan = True  # the next heartbeat tries again
        finally:
            self._scanning = False

    def heartbeat(self) -> None:
        """Scan periodically for what no event announces."""
        if self._run is None:
            self._scan_soon()

    # --- broadcasts --------------------------------------------------------------------------------

    async def announce(self, text: str) -> None:
        """Broadcast a change. When this returns, every peer has handled it, or has departed."""
        done = self.cluster.broadcast_reliably(CHANGED, text.encode())
        if done is not None:
            await done

    def _on_changed(self, _: str, body: bytes) -> None:
        self.received.add(body.decode())

    # --- membership --------------------------------------------------------------------------------

    def _on_missed(self) -> None:
        self.missed += 1
        for session in list(self.sessions.values()):
            session.lease.check_holder()
        self._scan_soon()

    def _on_evicted(self) -> None:
        for session in list(self.sessions.values()):
            session.lease.lose()
        if self._run is not None:
            self._run.cancel()

    def _on_lost(self, name: str | None) -> None:
        if name is not None:
            self._scan_soon()

    async def sleep(self) -> None:
        """Wait for the next heartbeat."""
        due = self.process.loop.create_future()
        self.process.clock.call_at(self.process.clock.now() + TICK, lambda: due.done() or due.set_result(None))
        await due


def _begin(record: TaskRecord, now: float) -> TaskRecord:
    """Start a task, or resume one whose start was stored although its reply was lost."""
    return record.start(now) if record.state is TaskState.PENDING else record.resume(now)
