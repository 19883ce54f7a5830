"""The ledger of idempotency keys: calls with a key run once, however often the client sends them.

A client that lost the response to a call sends the call again with the same key and gets the outcome of the first one.
Every write to an entry names the version that it replaces. Of two processes that start a run, one succeeds, and an
evicted process cannot overwrite the entry of its successor.

A run belongs to its key, not to its connection: a client that reconnects finds it in progress or finished. A run is
stopped when the client cancels it, when its deadline passes, or when the server shuts down. The effects of such a run,
and of a run whose process died, are unknown. The ledger runs the call again if the tool is marked as idempotent.
Otherwise the response is `outcome_unknown`. The ledger stores that outcome before it responds, over the version that
says the run is in progress, so it is final: a run that was only paused can no longer store its result.

An entry "in progress" names its owner, the process that runs the call, and is not renewed: the cluster decides whether
the owner is alive. A process that was evicted and has joined again writes its new name into the entries of its runs,
and stops those that another process has decided about.

The ledger stores every outcome, also a failure: a tool that raises may have done half of its work. While the store is
unavailable the ledger retries, and responds only after the write. It stores no entry for a tool that never started:
invalid arguments, a tool that is busy, a question to the user that comes first.

When a call becomes a task, one commit stores the task and its id under the key. From then on the task has the outcome,
even if its process dies.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import (
    Conflict,
    MisuseError,
    NotNow,
    ProtocolError,
    StoreError,
    StoreUnavailable,
    UrlElicitationRequired,
)
from trunkline.protocol.error_codes import code_of
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import CallToolResult
from trunkline.rpc.failures import build_failure
from trunkline.rpc.run_handler import Work, run_work
from trunkline.server.idempotency.key import (
    BecameTask,
    Failed,
    IdempotencyKeyReused,
    InProgress,
    KeyedCall,
    KeyEntry,
    RunOutcomeUnknown,
    StartTool,
    Succeeded,
    TaskClaim,
    decode_entry,
)
from trunkline.server.input.multi_round import to_modern_outcome
from trunkline.stores.store import ABSENT, Delete, Item, Put, Store
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster

__all__ = ["FindTask", "Ledger"]

FindTask = Callable[[str, str], Awaitable[TaskRecord | None]]
"""Return the task of an owner with an id; None if it does not exist."""


T = TypeVar("T")
_RUN_DIED: Final = "its process was stopped, or died"
_TASK_GONE: Final = "it became a task, which is no longer stored"
_RETRY_DELAY: Final = 0.1  # seconds between attempts while the store is unavailable
_CHECKS_PER_LEASE: Final = 3  # of the owner of an awaited run; the cluster reports most departures before that
_LONGEST_RUN: Final = 24 * 3600.0  # seconds for which an entry "in progress" is stored, or longer for a longer `ttl`


def _unavailable() -> NotNow:
    return NotNow("the store of idempotency keys is unavailable; try again later with the same key")


async def _await_store(operation: Awaitable[T]) -> T:
    """Await a store operation. Raises `NotNow` if the store is unavailable: then no run starts."""
    try:
        return await operation
    except StoreUnavailable as error:
        raise _unavailable() from error


def _failed_entry(keyed_call: KeyedCall, error: ProtocolError) -> Failed:
    """Return the ledger entry for an error."""
    revision = keyed_call.connection.session.revision_of(keyed_call.call)
    return Failed(keyed_call.fingerprint, code_of(error, revision), error.message, error.data)


class _Run:
    """One run of a call in this process."""

    task: asyncio.Task[Any]

    def __init__(self, keyed_call: KeyedCall, start: StartTool, version: int) -> None:
        self.keyed_call = keyed_call
        self._start_tool = start
        self.run_id = secrets.token_hex(8)
        self.tool_started = False  # the tool itself, not only the checks before it
        self.version = version  # of the entry in the store
        self.write_lock = asyncio.Lock()  # one write at a time, each over the version of the last
        self.owner = ""  # in the last entry "in progress"
        self.recorded = False  # the store has the entry "in progress"
        self.stop_requested = False
        self.finished = False  # the work; the outcome may not be stored yet
        self.superseded_by: Conflict | None = None  # another process has written the entry

    def start(self) -> Work:
        """Return the work of the call."""
        return self._start_tool(self._mark_tool_started)

    def _mark_tool_started(self) -> None:
        self.tool_started = True

    def stop(self) -> None:
        """Cancel the work, before it starts or where it awaits. A write of the outcome continues."""
        self.stop_requested = True
        if self.recorded and not self.finished:
            self.task.cancel()


class Ledger:
    """Runs calls with idempotency keys, and stores their outcomes."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        wall_clock: Clock,
        clock: Clock,
        find_task: FindTask,
        *,
        cluster: "Cluster | None",
    ) -> None:
        """`wall_clock` is the time of the store, `clock` that of the deadlines of calls."""
        self._find_task = find_task
        self._store = store
        self._ttl = settings.idempotency_ttl
        self._lease = settings.idempotency_lease
        self._check_interval = settings.process_lease / _CHECKS_PER_LEASE
        self._wall_clock = wall_clock
        self._clock = clock
        self._cluster = cluster
        self._runs: dict[str, _Run] = {}
        self._late_writes: dict[str, asyncio.Task[None]] = {}  # by key, for runs that have ended
        self._waiting: set[Callable[[], None]] = set()  # for runs of other processes
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        if cluster is not None:
            cluster.on_lost(lambda _: self._wake_waiting())
            cluster.on_missed(lambda: self._reclaim_runs(cluster.name))

    async def run_once(
        self, keyed_call: KeyedCall, start: StartTool, of_task: Callable[[TaskRecord], Awaitable[Any]]
    ) -> Any:
        """Return the outcome of a call: of the first call with the key, or of a new run. If the call became a task,
        return what `of_task` returns. Raises the error of the call, `IdempotencyKeyReused` or `RunOutcomeUnknown`."""
        version = ABSENT  # most keys are new: the entry is read only if the first write finds one
        while True:
            if keyed_call.store_key not in self._runs and keyed_call.store_key not in self._late_writes:
                run = self._start_run(_Run(keyed_call, start, version))
                try:
                    return await self._await_run(run)
                except Conflict:  # there is an entry, or another process was faster
                    pass
                except NotNow:  # a store that refuses writes, because it is full, may have the outcome
                    if run.recorded or (await _await_store(self._read_outcome(keyed_call)))[0] is None:
                        raise
            found, version = await _await_store(self._find_outcome(keyed_call))
            if isinstance(found, TaskRecord):
                return await of_task(found)
            if found is not None:
                return found.unwrap()

    async def create_task_once(
        self, keyed_call: KeyedCall, make: Callable[[TaskClaim], Awaitable[TaskRecord]]
    ) -> TaskRecord | CallToolResult:
        """Return the task of the first call with the key, or else the task that `make` stores with a claim. If that
        first call was not a task, return its result."""
        while True:
            found, version = await _await_store(self._find_outcome(keyed_call))
            if isinstance(found, TaskRecord):
                return found
            if found is not None:
                return found.unwrap()
            with contextlib.suppress(Conflict):
                return await _await_store(make(self._new_claim(keyed_call, version)))

    async def convert_to_task(
        self, keyed_call: KeyedCall, make: Callable[[TaskClaim], Awaitable[TaskRecord]]
    ) -> TaskRecord:
        """Continue a run as a task, which `make` stores. Raises `CancelledError` if another process has taken over."""
        run = self._runs[keyed_call.store_key]
        async with run.write_lock:
            try:
                return await _await_store(make(self._new_claim(keyed_call, run.version)))
            except Conflict as taken:
                run.superseded_by = taken
                raise asyncio.CancelledError from None
            except ProtocolError:  # the store is unavailable, or the owner has too many tasks
                run.tool_started = False  # the handler repeats its work as a task
                raise

    def _new_claim(self, keyed_call: KeyedCall, version: int) -> TaskClaim:
        return TaskClaim(keyed_call, version, self._wall_clock.now() + self._ttl)

    async def _find_outcome(self, keyed_call: KeyedCall) -> tuple[Succeeded | Failed | TaskRecord | None, int]:
        """Return the outcome of a call or its task, and the version of the entry; None as outcome if a run may start.
        Wait while a run is in progress. Raises `IdempotencyKeyReused` or `RunOutcomeUnknown`."""
        while True:
            outcome, item, entry = await self._read_outcome(keyed_call)
            version = ABSENT if item is None else item.version
            if outcome is not None:
                return outcome, version
            if (run := self._runs.get(keyed_call.store_key)) is not None:
                await asyncio.wait([run.task])
            elif (write := self._late_writes.get(keyed_call.store_key)) is not None:
                await asyncio.wait([write])
            elif item is not None and isinstance(entry, InProgress) and not await self._has_ended(entry):
                await self._wait_for_change(item, entry)
            elif isinstance(entry, InProgress) and not keyed_call.idempotent:
                with contextlib.suppress(Conflict):  # the run has stored its outcome just now
                    await self._record_unknown_outcome(keyed_call, version)
            elif entry is not None and not keyed_call.idempotent:
                raise RunOutcomeUnknown(_TASK_GONE)
            else:
                return None, version

    async def _read_outcome(
        self, keyed_call: KeyedCall
    ) -> tuple[Succeeded | Failed | TaskRecord | None, Item | None, KeyEntry | None]:
        """Return the stored outcome of a call or its task, if any, and the entry of its key. Raises
        `IdempotencyKeyReused`."""
        item = await self._store.get(keyed_call.store_key)
        entry = None if item is None else decode_entry(item.value)
        if entry is not None and entry.asked != keyed_call.fingerprint:
            raise IdempotencyKeyReused
        if isinstance(entry, BecameTask):
            return await self._find_task(keyed_call.owner, entry.task_id), item, entry
        return entry if isinstance(entry, Succeeded | Failed) else None, item, entry

    async def _record_unknown_outcome(self, keyed_call: KeyedCall, version: int) -> None:
        """Store that the outcome is unknown, and raise `RunOutcomeUnknown`. Raises `Conflict` if the run has changed
        the entry first."""
        unknown = RunOutcomeUnknown(_RUN_DIED)
        entry = codec.to_json(_failed_entry(keyed_call, unknown))
        await self._store.commit([Put(keyed_call.store_key, entry, self._wall_clock.now() + self._ttl, version)])
        raise unknown

    async def _has_ended(self, entry: InProgress) -> bool:
        """Return whether a run that is not in progress here has ended: its process has departed."""
        cluster = self._cluster
        if cluster is None or not entry.owner:
            return entry.until <= self._wall_clock.now()
        return entry.owner == cluster.name or await cluster.evict_if_dead(entry.owner)

    async def _wait_for_change(self, item: Item, entry: InProgress) -> None:
        """Wait until the entry changes, or its run may have ended."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        owned = self._cluster is not None and entry.owner
        until = self._wall_clock.now() + self._check_interval if owned else entry.until

        def wake(*_: object) -> None:
            if not changed.done():
                changed.set_result(None)

        watch, timer = self._store.watch(item.key, wake), self._wall_clock.call_at(until, wake)
        self._waiting.add(wake)
        try:
            found = await self._store.get(item.key)
            if found is not None and found.version == item.version:
                await changed
        finally:
            self._waiting.discard(wake)
            timer.cancel()
            watch.close()

    def _wake_waiting(self) -> None:
        """Look at the awaited runs again: a process may have departed."""
        for wake in self._waiting:
            wake()

    async def drain(self) -> None:
        """Wait until no run is in progress."""
        while self._runs:
            await asyncio.wait([run.task for run in self._runs.values()])

    async def close(self) -> None:
        """Stop all runs and store that they were started. Writes that fail now are not retried."""
        self._closed = True
        for run in list(self._runs.values()):
            run.stop()
        await self.drain()
        if self._background:
            await asyncio.wait(self._background)

    # --- running ---------------------------------------------------------------------------------

    def _start_run(self, run: _Run) -> _Run:
        self._runs[run.keyed_call.store_key] = run
        run.task = asyncio.create_task(self._execute(run))
        run.task.add_done_callback(lambda _: self._remove_run(run))
        return run

    def _remove_run(self, run: _Run) -> None:
        del self._runs[run.keyed_call.store_key]
        if not run.task.cancelled():
            run.task.exception()  # retrieve it: the waiting caller has received it

    async def _await_run(self, run: _Run) -> CallToolResult:
        """Return the outcome of a run. If the caller has lost the connection, the run continues until its deadline."""
        task = run.task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            deadline = run.keyed_call.call.deadline
            if not run.keyed_call.disconnected:
                run.stop()
            elif deadline is not None and not task.done():
                timer = self._clock.call_at(deadline, run.stop)
                task.add_done_callback(lambda _: timer.cancel())
            raise

    async def _execute(self, run: _Run) -> CallToolResult:
        keyed = run.keyed_call
        try:
            await self._write(run, self._in_progress_entry(run))
        except StoreUnavailable as error:
            run.finished = True
            self._write_later(run, None)  # the failed write may have succeeded
            raise _unavailable() from error
        run.recorded = True
        try:
            if run.stop_requested:
                raise asyncio.CancelledError
            result: CallToolResult = await run_work(run.start(), keyed.connection.threads)
            outcome = Succeeded(keyed.fingerprint, codec.to_raw(result))
        except asyncio.CancelledError:
            run.finished = True
            await self._handle_cancelled(run)
            raise run.superseded_by or asyncio.CancelledError from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - stored as the outcome
            run.finished = True
            return await self._handle_error(run, error)
        run.finished = True
        await self._store_outcome(run, outcome)
        return result

    async def _handle_cancelled(self, run: _Run) -> None:
        """Release the key of a cancelled run. A run that ended with a question may start again; otherwise its effects
        are unknown, and its entry stays, without an owner."""
        call = run.keyed_call.call
        asks = call.input_round is not None and call.input_round.has_asked
        ended = InProgress(run.keyed_call.fingerprint, run.run_id, until=0.0)
        await self._release(run, None if asks or not run.tool_started else ended)

    async def _handle_error(self, run: _Run, error: BaseException) -> CallToolResult:
        """Store the error of a run as its outcome, unless the tool has not started or needs a URL elicitation first."""
        call, connection = run.keyed_call.call, run.keyed_call.connection
        if not run.tool_started or isinstance(error, UrlElicitationRequired):
            await self._release(run, None)
            raise error
        raised = error if call.envelope is None else to_modern_outcome(call, error)
        revision = connection.session.revision_of(call)
        failure = build_failure(
            cast("BaseException", raised),
            call,
            revision,
            connection.settings,
            expose=connection.replies.exposes_errors,
        )
        if failure.reference is not None:
            connection.facts.report_failure(call, failure.reference, error)
        if isinstance(failure.reply, CallToolResult):
            await self._store_outcome(run, Succeeded(run.keyed_call.fingerprint, codec.to_raw(failure.reply)))
            return failure.reply
        await self._store_outcome(run, _failed_entry(run.keyed_call, failure.reply))
        raise failure.reply

    # --- writing entries ---------------------------------------------------------------------------

    def _in_progress_entry(self, run: _Run) -> InProgress:
        """Return the entry for a run of this process. Without a cluster no other process shares the store, so a run
        that a process finds in a store that outlives processes has ended."""
        if self._cluster is not None:
            run.owner, until = self._cluster.name, self._wall_clock.now() + self._lease
        else:
            run.owner, until = "", 0.0 if self._store.lasting else self._expiry_of_run
        return InProgress(run.keyed_call.fingerprint, run.run_id, until, run.owner)

    @property
    def _expiry_of_run(self) -> float:
        return self._wall_clock.now() + max(self._ttl, _LONGEST_RUN)

    async def _write(self, run: _Run, entry: KeyEntry | None, *, unless_over: bool = False) -> None:
        """Write the entry of a run, or delete it (None). Raises `Conflict` if another process has changed it."""
        async with run.write_lock:
            if unless_over and run.finished:
                return
            try:
                await self._commit(run, entry)
            except Conflict:
                if not await self._adopt_own_write(run):
                    raise
                await self._commit(run, entry)

    async def _commit(self, run: _Run, entry: KeyEntry | None) -> None:
        where = run.keyed_call.store_key
        expires = self._expiry_of_run if isinstance(entry, InProgress) else self._wall_clock.now() + self._ttl
        value = None if entry is None else codec.to_json(entry)
        write = Delete(where, run.version) if value is None else Put(where, value, expires, run.version)
        run.version = await self._store.commit([write])

    async def _adopt_own_write(self, run: _Run) -> bool:
        """Adopt the version in the store if this run wrote it: a write succeeded although the store reported an error.
        Return False if another process wrote it."""
        item = await self._store.get(run.keyed_call.store_key)
        entry = None if item is None else decode_entry(item.value)
        if item is None or not isinstance(entry, InProgress) or entry.by != run.run_id:
            return False
        run.version = item.version
        return True

    async def _store_outcome(self, run: _Run, ended: Succeeded | Failed) -> None:
        """Store the outcome of a run; if the store refuses it, store that it is unknown. Raises `Conflict` if another
        process has taken over: its entry has the outcome."""
        try:
            await self._write_until_stored(run, ended)
        except MisuseError as error:  # larger than the store allows
            unknown = RunOutcomeUnknown("its outcome could not be stored")
            await self._write_until_stored(run, _failed_entry(run.keyed_call, unknown))
            raise unknown from error

    async def _write_until_stored(self, run: _Run, entry: KeyEntry | None) -> None:
        """Write an entry, and retry until the store is available."""
        while True:
            try:
                return await self._write(run, entry)
            except StoreUnavailable as error:
                if self._closed:
                    raise _unavailable() from error
                await asyncio.sleep(_RETRY_DELAY)

    def _write_later(self, run: _Run, entry: InProgress | None) -> None:
        """Write the entry of a run that has ended, or delete it, once the store is available again."""

        async def write() -> None:
            with contextlib.suppress(StoreError, NotNow):  # another process has decided; or this one shuts down
                await self._write_until_stored(run, entry)

        key = run.keyed_call.store_key
        self._late_writes[key] = self._spawn(write())
        self._late_writes[key].add_done_callback(lambda _: self._late_writes.pop(key))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _release(self, run: _Run, record: InProgress | None) -> None:
        """Release the key, now or when the store is available."""
        try:
            await self._write(run, record)
        except StoreUnavailable:
            self._write_later(run, record)
        except StoreError:
            pass  # another process has decided

    def _reclaim_runs(self, owner: str) -> None:
        """Reclaim the runs that this process began under a previous name."""
        for run in self._runs.values():
            if run.owner != owner and not run.finished:
                self._spawn(self._reclaim(run))

    async def _reclaim(self, run: _Run) -> None:
        """Write the current owner into the entry of a run, or stop the run if another process has decided about it."""
        while not (run.finished or self._closed):
            try:
                await self._write(run, self._in_progress_entry(run), unless_over=True)
            except Conflict as taken:
                run.superseded_by = taken
                run.stop()
            except StoreError:
                await asyncio.sleep(_RETRY_DELAY)
                continue
            return
