"""One run of a task's work, from taking it to its end.

Whoever works on a task holds its lease and renews it. Whatever it writes names that lease: once the lease is lost,
nothing of it is kept any more, and the work is cancelled.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, UnsetType

from trunkline.clock import Timer
from trunkline.errors import Fenced, PeerError, ProtocolError, RequestTimeout, StoreError, StoreUnavailable
from trunkline.protocol import lenient
from trunkline.protocol.capabilities import declared
from trunkline.protocol.envelope import Envelope
from trunkline.protocol.error_codes import error_object
from trunkline.protocol.inflight import Running
from trunkline.protocol.methods import METHODS, find
from trunkline.protocol.modern import natural_result
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.tasks import TaskCaller, TaskRecord, TaskState
from trunkline.protocol.types import CallToolResult, InputRequest
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.dispatch import failure_of
from trunkline.rpc.run_handler import perform
from trunkline.server.context import Context
from trunkline.server.input.ask import ClientLacks, OnProgress, UnfitAnswer
from trunkline.server.input.multi_round import ASKABLE, Once, blamed
from trunkline.server.tasks.detached_peer import TaskLine
from trunkline.server.tasks.repository import Kept, Step
from trunkline.stores.store import Lease
from trunkline.transports.channel import Origin
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.connection import Shared
    from trunkline.server.tasks.notify import Teller
    from trunkline.server.tasks.service import Tasks

__all__ = ["Attempt"]

_CALL: Final = next(row for row in METHODS if row.name == "tools/call")
_PATIENCE: Final = 0.1  # seconds until a store that cannot be reached is tried again
_FLUSH_EVERY: Final = 0.5  # seconds between two reports of progress that are kept


def _started(record: TaskRecord, now: float) -> TaskRecord:
    return record.start(now) if record.state is TaskState.PENDING else record


class Attempt:
    """Works on one task."""

    def __init__(
        self,
        tasks: "Tasks",
        shared: "Shared",
        kept: Kept,
        lease: Lease,
        entry: ToolEntry,
        *,
        principal: Any,
        exposes_errors: bool,
    ) -> None:
        record = self.record = kept.record
        self.caller: TaskCaller = record.caller
        self.lease = lease
        self._tasks = tasks
        self._shared = shared
        self._entry = entry
        self._exposes_errors = exposes_errors
        self._line = TaskLine(shared, self)
        self._call = Running(record.task_id, _CALL, shared.clock.now(), origin=Origin(principal=principal))
        self._call.token = record.progress_token
        self._call.progress = record.progress  # it only grows, whoever works on it
        self._call.admitted = entry
        self._call.target = entry.name
        self._call.once = Once(dict(record.effects), self._did)
        if self.caller.modern:
            self._call.envelope = Envelope(self.caller.revision, self.caller.capabilities, self.caller.info)
        self._waiting: dict[str, asyncio.Future[Raw]] = {}  # for answers, by the names of questions
        self._counts: dict[str, int] = {}
        self._asked: set[str] = set()
        self._timers: list[Timer] = []
        self._renewal: Timer | None = None
        self._flushing: Timer | None = None
        self._progress: tuple[float, float | None, str | None] = (0, None, None)  # told last
        self._teller: Teller | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self.work: asyncio.Task[None]  # from when it is started
        self._over = False  # nothing of it is kept any more
        self._came_to = False  # the work is done, and what it came to is being written
        self._ending = False  # nothing runs any more, and the lease is being given back

    @property
    def checkpoint(self) -> Raw | UnsetType:
        """What an earlier run has kept, or this one."""
        return self.record.checkpoint

    @property
    def over(self) -> bool:
        """Whether nothing of it is kept any more."""
        return self._over

    @property
    def can_be_left(self) -> bool:
        """Whether nothing is lost if the process ends: others go on with it, or it waits for somebody itself."""
        policy, lasting = self._entry.task, self._shared.store.lasting
        return bool(self.record.questions) or (lasting and policy is not None and policy.goes_on(0, begun=True))

    # --- the work --------------------------------------------------------------------------------

    def start(self, begin: Callable[[Context | None], Any], teller: "Teller | None" = None) -> None:
        """Begins to work; `begin` gives the work of the tool. `teller` tells the client of its progress."""
        self._teller = teller
        wall = self._shared.wall
        self._renew_later()
        for due, late in ((self.record.deadline, self._time_is_up), (self.record.expires_at, self._is_forgotten)):
            if due is not None:
                self._timers.append(wall.call_at(due, late))
        self.work = self._shared.threads.loop.create_task(self._run(begin))

    async def _run(self, begin: Callable[[Context | None], Any]) -> None:
        try:
            if self.record.state is TaskState.PENDING:
                await self._insist(_started)
            step = await self._outcome(begin)
            if not self._over:
                await self._write_at_last(step)
        except (Fenced, asyncio.CancelledError):
            pass  # it is somebody else's now, or nobody's
        except StoreError as error:
            self._line.report_failure(self._call, "-", error)
        finally:
            await self._end()

    async def _outcome(self, begin: Callable[[Context | None], Any]) -> Step:
        """What the work comes to, as what happens to the task."""
        try:
            context = Context(self._line, self._call) if self._entry.handler.wants_context else None
            value = await perform(begin(context), self._shared.threads)
            result = self._written(value)
        except (Fenced, asyncio.CancelledError) as error:
            if self._over or isinstance(error, Fenced):
                raise
            return self._failure(error)  # the handler has cancelled itself
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - becomes the outcome
            return self._failure(error)
        return lambda record, now: record.complete(now, result, is_error=value.is_error)

    def _failure(self, error: BaseException) -> Step:
        revision = Revision(self.caller.revision)
        blame = blamed(error) if self.caller.modern else error
        failure = failure_of(blame, self._call, revision, expose=self._exposes_errors)
        if failure.reference is not None:
            self._line.report_failure(self._call, failure.reference, error)
        if isinstance(failure.answer, ProtocolError):
            fault = error_object(failure.answer, revision)
            return lambda record, now: record.fail(now, fault)
        result, said = self._written(failure.answer), _first_text(failure.answer)
        return lambda record, now: record.complete(now, result, is_error=True, message=said)

    def _written(self, result: CallToolResult) -> Raw:
        """A result as the revision says it that the task was asked for in."""
        if self.caller.modern and self._entry.output.wraps:
            result = natural_result(result)
        return codec.to_raw(project(result, Revision(self.caller.revision)))

    async def _end(self) -> None:
        self._ending = True
        self._over = self._call.done = True
        for timer in filter(None, (*self._timers, self._renewal, self._flushing)):
            timer.cancel()
        for task in list(self._beside):
            task.cancel()
        await self._tasks.ended(self)
        self._call.once = None  # which refers to this attempt, as the line does
        del self._line

    # --- what it writes --------------------------------------------------------------------------

    async def write(self, step: Step) -> None:
        """Has something happen to the task, as the one who works on it. Raises `Fenced` if it is not that any more, and
        `CancelledError` if the task has ended meanwhile."""

        def unless_ended(record: TaskRecord, now: float) -> TaskRecord:
            return record if record.ended else step(record, now)

        try:
            changed = await self._tasks.change(self.record.client, self.record.task_id, unless_ended, self.lease)
        except Fenced:
            self.stop()
            raise
        if changed is None or changed[0].ended:
            self.stop()
            raise asyncio.CancelledError

    async def _write_at_last(self, step: Step) -> None:
        """Writes what the work has come to, after progress that was told and not kept yet."""
        self._came_to = True
        if self._flushing is None:
            await self._insist(step)
        else:
            told = self._progress
            await self._insist(lambda record, now: step(record.advance(now, *told), now))

    async def _insist(self, step: Step) -> None:
        """Writes something as often as it takes: a store that is away for a moment is no failure of the work. Raises
        `Fenced` if the task cannot be ours any more."""
        while True:
            try:
                return await self.write(step)
            except StoreUnavailable:
                if self._has_lost():
                    raise Fenced(self.lease.name, self.lease.token) from None
                await asyncio.sleep(_PATIENCE)

    async def reach(self, checkpoint: Raw) -> None:
        """Keeps what the task needs to go on from here."""
        await self._insist(lambda record, now: record.reach(now, checkpoint))

    async def _did(self, name: str, effect: Raw) -> None:
        await self._insist(lambda record, now: record.do(now, name, effect))

    def advance(self, progress: float, total: float | None, message: str | None) -> None:
        """It has got somewhere: told at once, and kept a little later, together with what follows."""
        if self._has_lost():
            return
        if self._teller is not None:
            self._teller.progress(progress, total, message)
        self._progress = (progress, total, message)
        if self._flushing is None:
            wall = self._shared.wall
            self._flushing = wall.call_at(wall.now() + _FLUSH_EVERY, self._flush)

    async def drain(self) -> None:
        """Wait while the client that is told of its progress reads too slowly."""
        if self._teller is not None:
            await self._teller.drain()

    def _flush(self) -> None:
        self._flushing = None
        progress, total, message = self._progress
        self.beside(lambda: self.write(lambda record, now: record.advance(now, progress, total, message)))

    # --- holding it ------------------------------------------------------------------------------

    def _renew_later(self) -> None:
        wall, ttl = self._shared.wall, self._tasks.lease
        self._renewal = wall.call_at(wall.now() + ttl / 3, lambda: self.beside(self._renew))

    async def _renew(self) -> None:
        try:
            self.lease = await self._shared.store.renew(self.lease, self._tasks.lease)
        except Fenced:
            self.stop()
        except StoreError:
            self._has_lost()
        if not self._over:
            self._renew_later()

    def _has_lost(self) -> bool:
        """Whether nothing of it is kept any more, be it because the lease has run out. Then it is over."""
        if not self._over and self._shared.wall.now() >= self.lease.expires:
            self.stop()
        return self._over

    def _time_is_up(self) -> None:
        self.beside(self._give_up)

    async def _give_up(self) -> None:
        await self.write(lambda record, now: record.time_out(now))
        self.stop()

    def _is_forgotten(self) -> None:
        self.stop()

    def beside(self, work: Callable[[], Awaitable[object]]) -> None:
        """Does something while the work goes on."""

        async def done() -> None:
            with contextlib.suppress(StoreError, asyncio.CancelledError):  # who works on the task finds out by itself
                await work()

        task = self._shared.threads.loop.create_task(done())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def stop(self) -> None:
        """Nothing of this is wanted any more: the work is cancelled. What it has come to by now is written."""
        self._over = self._call.done = self._call.cancelled = True
        if self.work is asyncio.current_task():
            self._shared.threads.loop.call_soon(self._cancel)  # a handler may catch what is raised now, and go on
        else:
            self._cancel()
        for waiting in self._waiting.values():
            waiting.cancel()

    def _cancel(self) -> None:
        if not self._came_to and not self._ending:
            self.work.cancel()

    # --- asking ----------------------------------------------------------------------------------

    async def ask(
        self,
        name: str,
        params: Any,
        *,
        needs: str | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,  # noqa: ARG002 - there is none of what nobody works on
        key: str | None = None,
        task: bool = False,  # noqa: ARG002 - the question is kept anyhow
    ) -> Any:
        """Asks whoever wanted the task, and waits for the answer. Raises `ClientLacks`, `PeerError`, `UnfitAnswer` or
        `RequestTimeout`."""
        row = find(name)
        if row is None or row.result is None or row.needs not in ASKABLE:
            raise ClientLacks(name)
        for path in (row.needs, needs):
            if path is not None and not declared(self.caller.capabilities, path):
                raise ClientLacks(path)
        own = self._key(key, name)
        if own not in self.record.answers and own not in self.record.refusals:
            await self._put(own, InputRequest(name, self._params(params)), timeout)
        if own in self.record.refusals:
            error = self.record.refusals[own]
            raise PeerError(error.code, error.message, error.data)
        try:
            return lenient.read(row.result, self.record.answers[own])
        except codec.DecodeError as error:
            raise UnfitAnswer(-32602, f"the answer to question {own!r} is none to {name}: {error}") from None

    def _params(self, params: Any) -> Raw:
        return codec.to_raw(project(params, Revision(self.caller.revision)))

    def _key(self, given: str | None, method: str) -> str:
        """The name of a question, the same in every run; another one if it was withdrawn in an earlier."""
        if given is None or given in self._asked:
            base = given or method
            number = self._counts[base] = self._counts.get(base, 0) + 1
            given = f"{base}-{number}"
        self._asked.add(given)
        return f"{given} (again {self.record.attempt})" if given in self.record.withdrawn else given

    async def _put(self, key: str, question: InputRequest, timeout: float | None) -> None:
        """Keeps a question and waits until it is settled."""
        waiting = self._waiting[key] = self._shared.threads.loop.create_future()
        try:
            if key not in self.record.questions:  # an earlier run may have asked
                await self.write(lambda record, now: record.ask(now, {key: question}))
            self.heard(self.record)
            async with asyncio.timeout(timeout):
                await waiting
        except TimeoutError:
            await self.write(lambda record, now: record.withdraw(now, [key]))
            raise RequestTimeout(question.method, timeout or 0.0) from None
        finally:
            del self._waiting[key]

    def heard(self, record: TaskRecord) -> None:
        """Something has happened to the task: answers have come, or it has ended."""
        self.record = record
        if record.ended and not self._over:
            self.stop()
        for key, waiting in self._waiting.items():
            if (key in record.answers or key in record.refusals) and not waiting.done():
                waiting.set_result(Raw(b""))


def _first_text(result: CallToolResult) -> str | None:
    return next((text for block in result.content if (text := getattr(block, "text", None))), None)
