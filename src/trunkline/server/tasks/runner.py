"""Task runner: one run of a task's work, from its start to its end.

The runner holds the lease of the task. All its writes carry the lease as a fence: once the lease is lost, the store
refuses them, and the work is cancelled. While the process lease may have expired, because the process was paused or the
store is unavailable, the work goes on and its writes wait, but progress notifications are not sent.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import UNSET, Raw, Struct, UnsetType

from trunkline.clock import Clock, Timer
from trunkline.errors import Fenced, PeerError, ProtocolError, RequestTimeout, StoreError, StoreUnavailable
from trunkline.facts import TaskRunEnded
from trunkline.protocol import lenient
from trunkline.protocol.capabilities import is_declared
from trunkline.protocol.envelope import Envelope
from trunkline.protocol.error_codes import error_object
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import METHODS, find_method
from trunkline.protocol.modern import unwrap_result
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.protocol.tasks import TaskCaller, TaskRecord, TaskState
from trunkline.protocol.types import LOGGING_LEVELS, CallToolResult, InputRequest
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.fact_reporter import FactReporter
from trunkline.rpc.failures import build_failure
from trunkline.rpc.run_handler import run_work
from trunkline.server.call_peer import ClientFacts
from trunkline.server.context import Context
from trunkline.server.input.ask import Asker, ClientLacksCapability, InvalidInputResponse, OnProgress
from trunkline.server.input.multi_round import INPUT_CAPABILITIES, EffectLog, to_modern_error
from trunkline.server.tasks.errors import WorkCancelled
from trunkline.server.tasks.lease import TaskLeases
from trunkline.server.tasks.repository import StoredTask, TaskRepository, Transition
from trunkline.stores.store import Lease
from trunkline.transports.channel import MessageOrigin
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.resilience.circuit_breaker import CircuitBreakers
    from trunkline.server.runtime_services import RuntimeServices
    from trunkline.server.tasks.notify import TaskNotifier

__all__ = ["TaskRunner"]

_TOOLS_CALL: Final = next(row for row in METHODS if row.name == "tools/call")
_RETRY_DELAY: Final = 0.1  # seconds between two attempts while the store is unavailable
_FLUSH_INTERVAL: Final = 0.5  # seconds between two stored progress reports


_OUTCOMES: Final = {TaskState.COMPLETED: "ok", TaskState.FAILED: "error", TaskState.CANCELLED: "cancelled"}


class _ResultHead(Struct, rename="camel"):
    """The part of an encoded tool result that decides how its task has ended."""

    is_error: bool = False


_decode_head: Final = codec.json_decoder(_ResultHead)


def _start_if_pending(record: TaskRecord, now: float) -> TaskRecord:
    return record.start(now) if record.state is TaskState.PENDING else record


class RunnerHost(Protocol):
    """What a runner needs of the task service."""

    repository: TaskRepository
    leases: TaskLeases

    async def finish_run(self, runner: "TaskRunner") -> None:
        """Clean up after a run."""
        ...


class TaskRunner:
    """One run of a task."""

    def __init__(
        self,
        host: RunnerHost,
        shared: "RuntimeServices",
        stored: StoredTask,
        lease: Lease,
        entry: ToolEntry,
        *,
        principal: Any,
        exposes_errors: bool,
    ) -> None:
        self._stored = stored
        record = stored.record
        self.caller: TaskCaller = record.caller
        self.lease = lease
        self._host = host
        self._shared = shared
        self._entry = entry
        self._exposes_errors = exposes_errors
        self._peer = DetachedPeer(shared, self)
        self._call = IncomingRequest(
            record.task_id,
            _TOOLS_CALL,
            shared.clock.now(),
            origin=MessageOrigin(principal=principal, headers=record.trace or None),
        )
        self._call.token = record.progress_token
        self._call.progress = record.progress  # progress only grows, across runs too
        self._call.admitted_entry = entry
        self._call.target = entry.name
        self._call.once = EffectLog(dict(record.effects), self._record_effect)
        if self.caller.modern:
            self._call.envelope = Envelope.build(self.caller.revision, self.caller.capabilities, self.caller.info)
        self.tool_name = entry.name
        # by question key: resolved when the answer or an error arrives
        self._answer_waiters: dict[str, asyncio.Future[Raw]] = {}
        self._question_counts: dict[str, int] = {}
        self._used_keys: set[str] = set()
        self._timers: list[Timer] = []
        self._renewal_timer: Timer | None = None
        self._flush_timer: Timer | None = None
        self._progress: tuple[float, float | None, str | None] = (0, None, None)  # the last report
        self._notifier: TaskNotifier | None = None
        self._side_tasks: set[asyncio.Task[None]] = set()
        self.run_task: asyncio.Task[None]  # set by `start`
        self.lease_lost = False
        self.lease_released = False  # with the end of the task
        self._stopped = False  # its writes are not wanted or not possible any more
        # True while the work runs. A run that is cancelled earlier would not finish in good order; later its outcome is
        # being written, or its lease is being released.
        self._cancellable = False

    @property
    def record(self) -> TaskRecord:
        """The record of the task, as last seen."""
        return self._stored.record

    @property
    def can_be_abandoned(self) -> bool:
        """Whether nothing is lost if the process ends: another process resumes the task, or it waits for input."""
        policy, lasting = self._entry.task, self._shared.store.lasting
        return bool(self.record.questions) or (lasting and policy is not None and policy.goes_on(0, begun=True))

    @property
    def wall_clock(self) -> Clock:
        """The clock of the times in the record."""
        return self._shared.wall_clock

    @property
    def may_continue(self) -> bool:
        """Whether a later run may continue the task from its checkpoint, in this process or another one."""
        return self._shared.store.lasting and not self.record.ended

    # --- work ---------------------------------------------------------------------------------

    def start(self, make_work: Callable[[Context | None], Any], notifier: "TaskNotifier | None" = None) -> None:
        """Start the run. `make_work` creates the work of the tool; `notifier` sends progress to the client."""
        self._notifier = notifier
        wall = self._shared.wall_clock
        self._schedule_renewal()
        time_out = partial(self.spawn, self._time_out)
        for due, callback in ((self.record.deadline, time_out), (self.record.expires_at, self.stop)):
            if due is not None:
                self._timers.append(wall.call_at(due, callback))
        self.run_task = self._shared.threads.loop.create_task(self._run(make_work))

    async def _run(self, make_work: Callable[[Context | None], Any]) -> None:
        self._cancellable = True
        try:
            if self._stopped:
                return
            if self.record.state is TaskState.PENDING:
                await self._update_with_retry(_start_if_pending)
            if (tracer := self._peer.facts.tracer) is not None:
                self._call.span = tracer.start_task_run(self.tool_name, self.record.trace)
            step = await self._run_to_outcome(make_work)
            if not self._stopped:
                await self._write_outcome(step)
        except (Fenced, asyncio.CancelledError):
            pass  # another process runs it now, or it has ended
        except StoreError as error:
            self._peer.facts.report_failure(self._call, "-", error)
        finally:
            self._report_end()
            await self._finish()

    def _report_end(self) -> None:
        """Report how this run has ended."""
        facts, record, error = self._peer.facts, self.record, self.record.error
        if facts.want(TaskRunEnded):
            outcome = _OUTCOMES.get(record.state, "released")
            facts.emit(
                TaskRunEnded,
                task=record.task_id,
                tool=self.tool_name,
                attempt=record.attempt,
                outcome="failed" if record.result_is_error else outcome,
                code=None if error is None else error.code,
                message=None if error is None else error.message,
                seconds=self._shared.clock.now() - self._call.started,
                span=self._call.span,
            )

    async def _run_to_outcome(self, make_work: Callable[[Context | None], Any]) -> Transition:
        """Run the work and return the transition that records its outcome."""
        try:
            context = Context(self._peer, self._call) if self._entry.handler.wants_context else None
            value = await run_work(make_work(context), self._shared.threads)
            result, is_error = self._encode_result(value), _is_error(value)
        except WorkCancelled as error:
            reason = str(error)
            return lambda record, now: record.cancel(now, reason)
        except (Fenced, asyncio.CancelledError) as error:
            if self._stopped or isinstance(error, Fenced):
                raise
            return self._failure_transition(error)  # the handler has cancelled itself
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - becomes the outcome
            return self._failure_transition(error)
        return lambda record, now: record.complete(now, result, is_error=is_error)

    def _failure_transition(self, error: BaseException) -> Transition:
        revision = Revision(self.caller.revision)
        shown_error = to_modern_error(error) if self.caller.modern else error
        failure = build_failure(shown_error, self._call, revision, self._peer.settings, expose=self._exposes_errors)
        if failure.reference is not None:
            self._peer.facts.report_failure(self._call, failure.reference, error)
        if isinstance(failure.reply, ProtocolError):
            error_reply = error_object(failure.reply, revision)
            return lambda record, now: record.fail(now, error_reply)
        result, message_text = self._encode_result(failure.reply), _first_text(failure.reply)
        return lambda record, now: record.complete(now, result, is_error=True, message=message_text)

    def _encode_result(self, result: CallToolResult | Raw) -> Raw:
        """Encode a result for the revision of the caller. One of another server is encoded already."""
        if isinstance(result, Raw):
            return result
        if self.caller.modern and self._entry.output.wraps:
            result = unwrap_result(result)
        return codec.to_raw(project(result, Revision(self.caller.revision)))

    async def _finish(self) -> None:
        self._cancellable = False
        self._stopped = self._call.done = True
        for timer in filter(None, (*self._timers, self._renewal_timer, self._flush_timer)):
            timer.cancel()
        for task in list(self._side_tasks):
            task.cancel()
        await self._host.finish_run(self)
        self._call.once = None  # it refers to this runner, as the peer does
        del self._peer

    # --- updates ---------------------------------------------------------------------------------

    async def update(self, transition: Transition) -> None:
        """Apply a transition to the task, fenced by the lease. Raise `Fenced` if the lease is lost, and
        `CancelledError` if the task has ended."""
        try:
            if self.lease_lost:
                raise Fenced(self.lease.name, self.lease.token)
            record = self.record
            # Only answers change the record of a task that is run here, and the request that cancels the task.
            known = None if record.questions else self._stored
            changed = await self._host.repository.change(record.client, record.task_id, transition, self.lease, known)
        except Fenced:
            self.lose_lease()
            raise
        if changed is None or changed[0].record.ended:
            self.stop()
            raise asyncio.CancelledError
        self.lease_released = changed[1].record.ended

    async def _write_outcome(self, transition: Transition) -> None:
        """Write the outcome, after the last progress report if that is not stored yet."""
        self._cancellable = False
        if self._flush_timer is None:
            await self._update_with_retry(transition)
        else:
            progress = self._progress
            await self._update_with_retry(lambda record, now: transition(record.advance(now, *progress), now))

    async def _update_with_retry(self, transition: Transition) -> None:
        """Apply a transition, and retry while the store is unavailable: an outage does not fail the work. Raise
        `Fenced` if the lease is lost or the run was stopped."""
        while True:
            try:
                return await self.update(transition)
            except StoreUnavailable:
                if self._check_lease_lost():
                    raise Fenced(self.lease.name, self.lease.token) from None
                await asyncio.sleep(_RETRY_DELAY)

    async def save_checkpoint(self, checkpoint: Raw) -> None:
        """Store the state from which a later run can resume."""
        await self._update_with_retry(lambda record, now: record.save_checkpoint(now, checkpoint))

    async def _record_effect(self, name: str, effect: Raw) -> None:
        await self._update_with_retry(lambda record, now: record.record_effect(now, name, effect))

    def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Notify the client of progress at once, and store it a little later together with later reports."""
        if self._check_lease_lost():
            return
        if self._notifier is not None and not self._host.leases.may_be_lost(self.lease):
            self._notifier.send_progress(progress, total, message)
        self._progress = (progress, total, message)
        if self._flush_timer is None:
            wall = self._shared.wall_clock
            self._flush_timer = wall.call_at(wall.now() + _FLUSH_INTERVAL, self._flush_progress)

    def report_status(self, message: str) -> None:
        """Store a status message."""
        if message != self.record.message:
            self.spawn(lambda: self.update(lambda record, now: record.advance(now, None, message=message)))

    async def drain(self) -> None:
        """Wait while the client reads its progress notifications too slowly."""
        if self._notifier is not None:
            await self._notifier.drain()

    def _flush_progress(self) -> None:
        self._flush_timer = None
        progress, total, message = self._progress
        self.spawn(lambda: self.update(lambda record, now: record.advance(now, progress, total, message)))

    # --- lease ----------------------------------------------------------------------------------

    def _schedule_renewal(self) -> None:
        wall, interval = self._shared.wall_clock, self._host.leases.renewal_interval
        if interval is not None:
            self._renewal_timer = wall.call_at(wall.now() + interval, lambda: self.spawn(self._renew))

    async def _renew(self) -> None:
        try:
            self.lease = await self._host.leases.renew(self.lease)
        except Fenced:
            self.lose_lease()
        except StoreError:
            self._check_lease_lost()
        if not self._stopped:
            self._schedule_renewal()

    def _check_lease_lost(self) -> bool:
        """Return whether the run was stopped, and stop it if the lease is lost."""
        if not self._stopped and self._host.leases.is_lost(self.lease):
            self.lose_lease()
        return self._stopped

    def lose_lease(self) -> None:
        """Stop the run and write nothing more: another process runs the task, or may."""
        self.lease_lost = True
        self.stop()

    async def _time_out(self) -> None:
        await self.update(lambda record, now: record.time_out(now))
        self.stop()

    def spawn(self, action: Callable[[], Awaitable[object]]) -> None:
        """Run an action beside the work. Store errors are ignored."""

        async def done() -> None:
            with contextlib.suppress(StoreError, asyncio.CancelledError):
                await action()

        task = self._shared.threads.loop.create_task(done())
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    def stop(self) -> None:
        """Cancel the work, unless its outcome is being written."""
        self._stopped = self._call.done = self._call.cancelled = True
        if self.run_task is asyncio.current_task():
            # cancelled later: a handler could catch an error raised now and continue
            self._shared.threads.loop.call_soon(self._cancel)
        else:
            self._cancel()
        for waiting in self._answer_waiters.values():
            waiting.cancel()

    def _cancel(self) -> None:
        if self._cancellable:
            self.run_task.cancel()

    # --- questions -------------------------------------------------------------------------------

    async def ask(
        self,
        name: str,
        params: Any,
        *,
        needs: str | None = None,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,  # noqa: ARG002 - a stored question has no progress
        key: str | None = None,
        task: bool = False,  # noqa: ARG002 - the question is stored in any case
    ) -> Any:
        """Ask the client that created the task, and wait for the answer. Raise `ClientLacksCapability`, `PeerError`,
        `UnfitAnswer` or `RequestTimeout`."""
        answer, question_key = await self._ask(name, params, needs, timeout, key)
        row = find_method(name)
        try:
            return lenient.read(object if row is None or row.result is None else row.result, answer)
        except codec.DecodeError as error:
            raise InvalidInputResponse(
                -32602, f"the answer to question {question_key!r} is no valid {name} result: {error}"
            ) from None

    async def ask_encoded(self, name: str, params: Raw, key: str | None) -> Raw:
        """Ask a question of another server, and return the answer as it is. Raise `PeerError`."""
        return (await self._ask(name, params, None, None, key))[0]

    async def _ask(
        self, name: str, params: Any, needs: str | None, timeout: float | None, key: str | None
    ) -> tuple[Raw, str]:
        """Return the answer to a question, undecoded, and the key of the question."""
        row = find_method(name)
        if row is None or row.result is None or row.capability not in INPUT_CAPABILITIES:
            raise ClientLacksCapability(name)
        for path in (row.capability, needs):
            if path is not None and not is_declared(self.caller.capabilities, path):
                raise ClientLacksCapability(path)
        question_key = self._question_key(key, name)
        if question_key not in self.record.answers and question_key not in self.record.refusals:
            encoded = codec.to_raw(project(params, Revision(self.caller.revision)))
            await self._ask_and_wait(question_key, InputRequest(name, encoded), timeout)
        if question_key in self.record.refusals:
            error = self.record.refusals[question_key]
            raise PeerError(error.code, error.message, error.data)
        return self.record.answers[question_key], question_key

    def _question_key(self, requested: str | None, method: str) -> str:
        """Return the key of a question: the same in every run, unless an earlier run has withdrawn the question."""
        if requested is None or requested in self._used_keys:
            base = requested or method
            number = self._question_counts[base] = self._question_counts.get(base, 0) + 1
            requested = f"{base}-{number}"
        self._used_keys.add(requested)
        return f"{requested} (again {self.record.attempt})" if requested in self.record.withdrawn else requested

    async def _ask_and_wait(self, key: str, question: InputRequest, timeout: float | None) -> None:
        """Store a question and wait for its answer."""
        waiting = self._answer_waiters[key] = self._shared.threads.loop.create_future()
        try:
            if key not in self.record.questions:  # an earlier run may have asked it
                await self.update(lambda record, now: record.ask(now, {key: question}))
            self.on_change(self._stored)
            async with asyncio.timeout(timeout):
                await waiting
        except TimeoutError:
            await self.update(lambda record, now: record.withdraw(now, [key]))
            raise RequestTimeout(question.method, timeout or 0.0) from None
        finally:
            del self._answer_waiters[key]

    def on_change(self, stored: StoredTask) -> None:
        """Handle a new version of the record: answers have arrived, or the task has ended."""
        self._stored, record = stored, stored.record
        if record.ended and not self._stopped:
            self.stop()
        for key, waiting in self._answer_waiters.items():
            if (key in record.answers or key in record.refusals) and not waiting.done():
                waiting.set_result(Raw(b""))


class DetachedPeer:
    """`CallPeer` for the context of a task: a client that may have disconnected since it created the task.

    Notifications reach the client through the watchers of the task. Questions are stored until the client fetches them.
    """

    session_id = None  # a task belongs to no session
    transport = ""  # and to no connection

    def __init__(self, shared: "RuntimeServices", runner: "TaskRunner") -> None:
        self.facts = FactReporter(shared.clock, shared.observers)
        self.catalog = shared.catalog
        self.settings = shared.catalog.settings
        self.threads = shared.threads
        self.loop = shared.threads.loop
        self.local = runner.caller.local
        self.now = shared.clock.now
        self._shared = shared
        self._runner = runner

    @property
    def lifespan(self) -> Any:
        """Value of the server's lifespan."""
        return self._shared.get_lifespan_value()

    @property
    def breakers(self) -> "CircuitBreakers":
        """Circuit breakers of the server."""
        return self._shared.get_breakers()

    def post(self, action: Callable[[], object]) -> bool:
        """Run an action on the loop: now on the loop's thread, soon from another one. Return whether it has run."""
        return self.threads.run_on_loop(action)

    def notify(self, name: str, params: Any = UNSET, *, about: IncomingRequest | None = None) -> bool:  # noqa: ARG002
        """Send nothing: a task has only its status notifications."""
        return False

    def log_level_of(self, call: IncomingRequest) -> int:  # noqa: ARG002 - log messages have no receiver
        """Return a level above the highest, since log messages have no receiver."""
        return len(LOGGING_LEVELS)

    def revision_of(self, call: IncomingRequest) -> Revision:  # noqa: ARG002 - there is one call
        """Return the revision in which the task was created."""
        return Revision(self._runner.caller.revision)

    def client_of(self, call: IncomingRequest) -> ClientFacts:  # noqa: ARG002 - there is one call
        """Return the client that created the task."""
        return ClientFacts(self._runner.caller.info, self._runner.caller.capabilities)

    def asker_of(self, call: IncomingRequest) -> Asker:  # noqa: ARG002 - there is one call
        """Return the runner, which stores questions until the client fetches them."""
        return self._runner

    def drain_of(self, call: IncomingRequest) -> Callable[[], Coroutine[Any, Any, None]]:  # noqa: ARG002
        """Return a function that waits while the client reads its notifications too slowly."""
        return self._runner.drain

    def progress(self, call: IncomingRequest, progress: float, total: float | None, message: str | None) -> None:
        """Report progress, which must grow."""
        if call.record_progress(progress, self.now()):
            self._runner.report_progress(progress, total, message)
        else:
            self.facts.report_dropped(f"progress {progress:g} does not grow", "progress_value_invalid")

    def checkpoint_of(self, call: IncomingRequest) -> Raw | UnsetType:  # noqa: ARG002 - there is one call
        """Return the last checkpoint of the task."""
        return self._runner.record.checkpoint

    async def save_checkpoint(self, call: IncomingRequest, checkpoint: Raw) -> None:  # noqa: ARG002 - there is one call
        """Store a checkpoint."""
        await self._runner.save_checkpoint(checkpoint)

    async def begin_task(self, call: IncomingRequest) -> None:
        """Do nothing: the call is a task already."""


def _is_error(result: CallToolResult | Raw) -> bool:
    return _decode_head(result).is_error if isinstance(result, Raw) else result.is_error


def _first_text(result: CallToolResult) -> str | None:
    return next((text for block in result.content if (text := getattr(block, "text", None))), None)
