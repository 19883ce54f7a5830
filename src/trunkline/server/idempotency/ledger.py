"""Calls that are done once, however often they are made: those that carry an idempotency key.

A client that lost the answer to a call makes it again with the same key, and gets what the first one came to. Every
change of what is kept of a key names the version that it was made for, so of two who begin, one does, and who was
thought dead cannot write over what its successor did.

A run belongs to its key and not to its connection: who has lost the line comes back and finds it under way, or done.
It ends when the client cancels it, or its time is up, or the server ends. Of such a run, and of one whose process died,
nobody knows what it has done. It is run again if the tool says that this does no harm; otherwise the answer is
`outcome_unknown`. That is written down before anybody is told, in place of the version that says that the run was
begun. So it is final: a run that was only paused cannot write its result any more.

What came of a run is kept, failed or not: a tool that raises may have done half of its work by then. While the store is
unavailable that is tried again, and nobody is answered before. Nothing is kept of what never began: arguments that do
not fit, a tool that is busy, a question to the user that comes first.

A call that becomes a task has its key name that task, from the moment that there is one: both are one commit. From
then on the task says what becomes of it, also if its process dies.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from trunkline.clock import Clock, Timer
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
from trunkline.rpc.dispatch import build_failure
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

__all__ = ["Ledger"]


T = TypeVar("T")
_RUN_DIED: Final = "whoever did it was stopped, or died"
_TASK_GONE: Final = "it became a task, which is not kept any more"
_RETRY_DELAY: Final = 0.1  # seconds until a store that is unavailable is asked again


def _unavailable() -> NotNow:
    return NotNow("what is kept of idempotency keys cannot be reached now; try again with the same key")


async def _await_store(operation: Awaitable[T]) -> T:
    """What the store says. While it is away, nothing is begun."""
    try:
        return await operation
    except StoreUnavailable as error:
        raise _unavailable() from error


def _failed_entry(keyed_call: KeyedCall, error: ProtocolError) -> Failed:
    """An error as what came of a call."""
    revision = keyed_call.connection.session.revision_of(keyed_call.call)
    return Failed(keyed_call.fingerprint, code_of(error, revision), error.message, error.data)


class _Run:
    """One run of a call, under way here."""

    task: asyncio.Task[Any]

    def __init__(self, keyed_call: KeyedCall, start: StartTool, version: int) -> None:
        self.keyed_call = keyed_call
        self._start_tool = start
        self.run_id = secrets.token_hex(8)
        self.tool_started = False  # the tool itself has
        self.version = version  # of what the store has
        self.write_lock = asyncio.Lock()  # one write at a time, each for the version of the last
        self.renewal_timer: Timer | None = None
        self.renewal: asyncio.Task[None] | None = None
        self.recorded = False  # that it is being done is kept
        self.stop_requested = False
        self.finished = False  # the work is: what is left is to keep what came of it
        self.superseded_by: Conflict | None = None  # somebody else does it by now

    def start(self) -> Work:
        """Its work."""
        return self._start_tool(self._mark_tool_started)

    def _mark_tool_started(self) -> None:
        self.tool_started = True

    def stop(self) -> None:
        """Ends the work: before it begins, or where it waits. What is being kept is kept."""
        self.stop_requested = True
        if self.recorded and not self.finished:
            self.task.cancel()


class Ledger:
    """Keeps what was asked under a key, and what came of it."""

    def __init__(self, store: Store, settings: Settings, wall_clock: Clock, clock: Clock) -> None:
        """`wall` is the time that the store goes by, `clock` that of the calls."""
        self._store = store
        self._ttl = settings.idempotency_ttl
        self._lease = settings.idempotency_lease
        self._wall_clock = wall_clock
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run_once(
        self, keyed_call: KeyedCall, start: StartTool, of_task: Callable[[TaskRecord], Awaitable[Any]]
    ) -> Any:
        """What came of a call: now, or when it was made first; what `of_task` gives if it became a task. Raises the
        error that it came to, `KeyReused`, or `RunLost`."""
        while True:
            found, version = await _await_store(self._find_outcome(keyed_call))
            if isinstance(found, TaskRecord):
                return await of_task(found)
            if found is not None:
                return found.unwrap()
            with contextlib.suppress(Conflict):  # somebody else was faster
                return await self._await_run(self._start_run(_Run(keyed_call, start, version)))

    async def create_task_once(
        self, keyed_call: KeyedCall, make: Callable[[TaskClaim], Awaitable[TaskRecord]]
    ) -> TaskRecord | CallToolResult:
        """The task that a call became when it was made first, or else the one that `make` keeps with its claim. If the
        call was none then, what it came to."""
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
        """What is being done goes on as a task, which `make` keeps. Raises `CancelledError` if somebody else does it by
        now."""
        run = self._runs[keyed_call.store_key]
        async with run.write_lock:
            try:
                return await _await_store(make(self._new_claim(keyed_call, run.version)))
            except Conflict as taken:
                run.superseded_by = taken
                raise asyncio.CancelledError from None
            except ProtocolError:  # the store is unavailable, or there are too many tasks
                run.tool_started = False  # all that it has done by now it would do again as a task
                raise

    def _new_claim(self, keyed_call: KeyedCall, version: int) -> TaskClaim:
        return TaskClaim(keyed_call, version, self._wall_clock.now() + self._ttl)

    async def _find_outcome(self, keyed_call: KeyedCall) -> tuple[Succeeded | Failed | TaskRecord | None, int]:
        """What a call came to, or the task that it became; None if it may be begun, for that version. Waits while it is
        being done. Raises `KeyReused`, or `RunLost`."""
        while True:
            item = await self._store.get(keyed_call.store_key)
            entry = None if item is None else decode_entry(item.value)
            if entry is not None and entry.asked != keyed_call.fingerprint:
                raise IdempotencyKeyReused
            version = ABSENT if item is None else item.version
            if isinstance(entry, Succeeded | Failed):
                return entry, version
            if isinstance(entry, BecameTask) and (task := await keyed_call.find_task(entry.task_id)) is not None:
                return task, version
            if (run := self._runs.get(keyed_call.store_key)) is not None:
                await asyncio.wait([run.task])
            elif item is not None and isinstance(entry, InProgress) and entry.until > self._wall_clock.now():
                await self._wait_for_change(item, entry.until)
            elif isinstance(entry, InProgress) and not keyed_call.idempotent:
                with contextlib.suppress(Conflict):  # it has come to something at the last moment
                    await self._record_unknown_outcome(keyed_call, version)
            elif entry is not None and not keyed_call.idempotent:
                raise RunOutcomeUnknown(_TASK_GONE)
            else:
                return None, version

    async def _record_unknown_outcome(self, keyed_call: KeyedCall, version: int) -> None:
        """Write down that the outcome of a run is unknown, unless the run changes what is kept before. Then raise
        `RunLost`."""
        unknown = RunOutcomeUnknown(_RUN_DIED)
        entry = codec.to_json(_failed_entry(keyed_call, unknown))
        await self._store.commit([Put(keyed_call.store_key, entry, self._wall_clock.now() + self._ttl, version)])
        raise unknown

    async def _wait_for_change(self, item: Item, until: float) -> None:
        """Waits until somebody changes what is kept, or is taken for dead."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(*_: object) -> None:
            if not changed.done():
                changed.set_result(None)

        watch, timer = self._store.watch(item.key, wake), self._wall_clock.call_at(until, wake)
        try:
            found = await self._store.get(item.key)
            if found is not None and found.version == item.version:
                await changed
        finally:
            timer.cancel()
            watch.close()

    async def drain(self) -> None:
        """Waits until nothing is being done."""
        while self._runs:
            await asyncio.wait([run.task for run in self._runs.values()])

    async def close(self) -> None:
        """Stops what is being done, and keeps that it was. What cannot be written now is not tried again."""
        self._closed = True
        for run in list(self._runs.values()):
            run.stop()
        await self.drain()
        if self._background:
            await asyncio.wait(self._background)

    # --- a run -----------------------------------------------------------------------------------

    def _start_run(self, run: _Run) -> _Run:
        self._runs[run.keyed_call.store_key] = run
        run.task = asyncio.create_task(self._execute(run))
        run.task.add_done_callback(lambda _: self._remove_run(run))
        return run

    def _remove_run(self, run: _Run) -> None:
        del self._runs[run.keyed_call.store_key]
        if not run.task.cancelled():
            run.task.exception()  # whoever still waits for it has been told

    async def _await_run(self, run: _Run) -> CallToolResult:
        """What a run comes to. If whoever waits for it has lost the line, it goes on until its time is up."""
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
            self._discard_start_later(run)
            raise _unavailable() from error
        run.recorded = True
        self._schedule_renewal(run)
        try:
            if run.stop_requested:
                raise asyncio.CancelledError
            result: CallToolResult = await run_work(run.start(), keyed.connection.threads)
            kept = Succeeded(keyed.fingerprint, codec.to_raw(result))
        except asyncio.CancelledError:
            run.finished = True
            await self._handle_cancelled(run)
            raise run.superseded_by or asyncio.CancelledError from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - kept, as what came of it
            run.finished = True
            return await self._handle_error(run, error)
        finally:
            if run.renewal_timer is not None:
                run.renewal_timer.cancel()
        run.finished = True
        await self._store_outcome(run, kept)
        return result

    async def _handle_cancelled(self, run: _Run) -> None:
        """It was stopped: to ask a question first, which is no end; or else nobody knows how far it came."""
        call = run.keyed_call.call
        asks = call.input_round is not None and call.input_round.has_asked
        await self._release(run, None if asks or not run.tool_started else self._in_progress_entry(run, lasts=False))

    async def _handle_error(self, run: _Run, error: BaseException) -> CallToolResult:
        """It raised something: before it began, to send the user elsewhere first, or else as what came of it."""
        call, connection = run.keyed_call.call, run.keyed_call.connection
        if not run.tool_started or isinstance(error, UrlElicitationRequired):
            await self._release(run, None)
            raise error
        raised = error if call.envelope is None else to_modern_outcome(call, error)
        revision = connection.session.revision_of(call)
        failure = build_failure(cast("BaseException", raised), call, revision, expose=connection.replies.exposes_errors)
        if failure.reference is not None:
            connection.facts.report_failure(call, failure.reference, error)
        if isinstance(failure.reply, CallToolResult):
            await self._store_outcome(run, Succeeded(run.keyed_call.fingerprint, codec.to_raw(failure.reply)))
            return failure.reply
        await self._store_outcome(run, _failed_entry(run.keyed_call, failure.reply))
        raise failure.reply

    # --- what is kept ------------------------------------------------------------------------------

    def _in_progress_entry(self, run: _Run, *, lasts: bool = True) -> InProgress:
        return InProgress(
            run.keyed_call.fingerprint, run.run_id, self._wall_clock.now() + self._lease if lasts else 0.0
        )

    async def _write(self, run: _Run, entry: KeyEntry | None, *, unless_over: bool = False) -> None:
        """Changes what is kept, for nobody else has; None: keeps nothing. Raises `Conflict` if somebody has."""
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
        where, expires = run.keyed_call.store_key, self._wall_clock.now() + self._ttl
        value = None if entry is None else codec.to_json(entry)
        write = Delete(where, run.version) if value is None else Put(where, value, expires, run.version)
        run.version = await self._store.commit([write])

    async def _adopt_own_write(self, run: _Run) -> bool:
        """Whether what is there was written by the run itself: it was told that the store is away, and it was kept."""
        item = await self._store.get(run.keyed_call.store_key)
        entry = None if item is None else decode_entry(item.value)
        if item is None or not isinstance(entry, InProgress) or entry.by != run.run_id:
            return False
        run.version = item.version
        return True

    async def _store_outcome(self, run: _Run, ended: Succeeded | Failed) -> None:
        """Keep what came of a run, or, if the store refuses that, that it is unknown. Raise `Conflict` if another
        process took this one for dead: what that has written is the answer."""
        try:
            await self._write_until_stored(run, ended)
        except MisuseError as error:  # it is larger than what a store keeps
            unknown = RunOutcomeUnknown("what came of it could not be kept")
            await self._write_until_stored(run, _failed_entry(run.keyed_call, unknown))
            raise unknown from error

    async def _write_until_stored(self, run: _Run, entry: KeyEntry | None) -> None:
        """Write as often as it takes until the store has answered."""
        while True:
            try:
                return await self._write(run, entry)
            except StoreUnavailable as error:
                if self._closed:
                    raise _unavailable() from error
                await asyncio.sleep(_RETRY_DELAY)

    def _discard_start_later(self, run: _Run) -> None:
        """Remove what the store may have kept of a run that is not begun, when it answers again."""

        async def unbegin() -> None:
            with contextlib.suppress(StoreError, NotNow):  # another process has begun it since; or this one ends
                await self._write_until_stored(run, None)

        task = asyncio.create_task(unbegin())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _release(self, run: _Run, record: InProgress | None) -> None:
        """Lets others have it, now if that can be written, or else when the time is up."""
        with contextlib.suppress(StoreError):
            await self._write(run, record)

    def _schedule_renewal(self, run: _Run) -> None:
        run.renewal_timer = self._wall_clock.call_at(
            self._wall_clock.now() + self._lease / 3, lambda: self._start_renewal(run)
        )

    def _start_renewal(self, run: _Run) -> None:
        async def renew() -> None:
            try:
                await self._write(run, self._in_progress_entry(run), unless_over=True)
            except Conflict as taken:
                run.superseded_by = taken
                run.stop()
            except StoreError:
                self._schedule_renewal(run)  # it may answer again in time
            else:
                self._schedule_renewal(run)

        if not run.finished:
            run.renewal = asyncio.create_task(renew())
