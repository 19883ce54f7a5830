"""Circuit breakers of a server: they refuse calls to a dependency that fails, until it has had time to recover.

`breaker_states.py` decides; a breaker here holds the record and runs calls. Without a shared store the record belongs
to this process, and admitting a call takes no await. With one, all processes on the store share the record: each
outcome that matters is applied to the stored record by a compare-and-set, and a probe passes only once the store has
it. A process reads the record again before a call if its copy is older than `_REFRESH` seconds, so that is how long it
may take until all processes refuse calls. While the store is unavailable, each process continues with its own copy.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from inspect import isawaitable
from itertools import count
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from trunkline.clock import Clock, WallClock
from trunkline.errors import (
    Conflict,
    InputFailed,
    InternalError,
    MisuseError,
    ProtocolError,
    Refusal,
    RefusalCode,
    RegistrationError,
    StoreError,
    ToolError,
)
from trunkline.errors.options import check_name, describe_value
from trunkline.facts import BreakerChanged, Observers
from trunkline.protocol.inflight import IncomingRequest
from trunkline.registry.handlers import PlannedCall, Run, ThreadCall
from trunkline.rpc.run_handler import CallbackWork, DeferredResult, Work, run_work
from trunkline.server.resilience.breaker_states import (
    Admission,
    BreakerPolicy,
    BreakerRecord,
    BreakerState,
    Outcome,
    Permit,
    admit,
    close_record,
    may_probe,
    open_record,
    settle,
)
from trunkline.stores.store import ABSENT, Put, key_of
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.rpc.threads import ThreadPool
    from trunkline.stores.store import Store

__all__ = ["BreakerGuard", "BreakerOpen", "CircuitBreaker", "CircuitBreakers", "counts_as_failure", "make_policy"]

T = TypeVar("T")

_REFRESH: Final = 0.1  # seconds that a copy of a shared record may be used
_RECORD_TTL: Final = 3600.0  # seconds that a record outlives its last change and its reset time
_HISTORY_LIMIT: Final = 1000  # calls

_decode_record: Final = codec.json_decoder(BreakerRecord)

Change = Callable[[BreakerRecord], BreakerRecord]


class BreakerOpen(Refusal):
    """A call refused by an open circuit breaker. It was not executed."""

    def __init__(self, name: str, retry_after: float) -> None:
        message = f"{name!r} is not available: its circuit breaker is open; try again in {retry_after:.3g} s"
        super().__init__(
            RefusalCode.DEPENDENCY_FAILED, message, details={"breaker": name}, retry_after=max(retry_after, 0.001)
        )


def counts_as_failure(error: Exception) -> bool:
    """Return whether an exception tells of a broken dependency: every one, except those about the caller and its
    request. The default test of a circuit breaker."""
    if isinstance(error, ProtocolError):
        return isinstance(error, InternalError)
    return not isinstance(error, ToolError | InputFailed | MisuseError)


class CircuitBreaker:
    """The circuit breaker of a dependency, for any number of concurrent calls: `async with breaker.guard():` around
    each, or `await breaker.call(function)`. `Server.breaker` creates it. All methods are called on the event loop of
    the server."""

    def __init__(
        self, owner: "CircuitBreakers", name: str, policy: BreakerPolicy, is_failure: Callable[[Exception], bool]
    ) -> None:
        self._owner = owner
        self.name = name
        self.policy = policy
        self._is_failure = is_failure
        self._record = BreakerRecord()
        self._permit = Permit(0)  # of all calls while the breaker is closed, one for each generation
        self._shared: _SharedRecord | None = None
        self._free_permit: Permit | None = self._permit  # the same while a call needs neither a decision nor a wait

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.name!r}: {self.state.value}>"

    @property
    def state(self) -> BreakerState:
        """The state, as far as this process knows it."""
        return self._record.state

    @property
    def retry_after(self) -> float | None:
        """Seconds until the first probe may pass; None unless the breaker is open."""
        if self._record.state is not BreakerState.OPEN:
            return None
        return max(0.0, self._record.until - self._owner.now())

    # --- calls ---------------------------------------------------------------------------------

    async def call(
        self, function: Callable[[], Awaitable[T] | T], *, fallback: Callable[[], Awaitable[T] | T] | None = None
    ) -> T:
        """Call a function, async or plain and quick, and return its value. Raise `BreakerOpen` instead while the
        breaker is open, or return the value of `fallback`."""
        guard = BreakerGuard(self)
        try:
            await guard.__aenter__()
        except BreakerOpen:
            if fallback is None:
                raise
            return await _value_of(fallback)
        try:
            value = await _value_of(function)
        except BaseException as error:
            guard.leave(error)
            raise
        guard.leave(None)
        return value

    def guard(self) -> "AbstractAsyncContextManager[CircuitBreaker]":
        """Return a context manager for one use of the dependency: `async with breaker.guard():`. As a dependency it
        guards the rest of a call: `Depends(breaker.guard)`."""
        return BreakerGuard(self)

    def run(
        self, start: Run, arguments: Any, context: Any, threads: "ThreadPool", call: IncomingRequest | None
    ) -> Work:
        """Start the work of a call of the server. Raises `BreakerOpen`; the returned work reports its outcome."""
        permit = self._free_permit  # most calls of most servers
        if permit is None:
            if self._is_undecided():
                return self._run_when_admitted(partial(start, arguments, context, None), threads, call)
            permit = self._admit_locally()
        try:
            work = start(arguments, context, None)
        except BaseException as error:
            self.settle(permit, self.judge(error, call))
            raise
        if type(work) is CoroutineType:
            return self._watch(permit, cast("Any", work), call)
        if isinstance(work, ThreadCall | PlannedCall | CallbackWork | DeferredResult):
            return self._watch(permit, run_work(work, threads), call)
        self.settle(permit, Outcome.SUCCESS)
        return work

    async def _run_when_admitted(
        self, start: Callable[[], Work], threads: "ThreadPool", call: IncomingRequest | None
    ) -> Any:
        async with BreakerGuard(self, call):
            return await run_work(start(), threads)

    async def _watch(self, permit: Permit, work: Coroutine[Any, Any, Any], call: IncomingRequest | None) -> Any:
        try:
            result = await work
        except BaseException as error:
            self.settle(permit, self.judge(error, call))
            raise
        if permit is not self._free_permit or self._record.outcomes:  # otherwise `settle` would change nothing
            self.settle(permit, Outcome.SUCCESS)
        return result

    def judge(self, error: BaseException, call: IncomingRequest | None) -> Outcome:
        """Return the outcome of a call that has raised. A cancellation says nothing about the dependency, unless the
        call has exceeded its time limit."""
        if isinstance(error, Exception):
            return Outcome.FAILURE if self._is_failure(error) else Outcome.NEUTRAL
        late = (
            isinstance(error, asyncio.CancelledError)
            and call is not None
            and call.done
            and not call.cancelled
            and self.has_expired(call)
        )
        return Outcome.FAILURE if late else Outcome.NEUTRAL

    def has_expired(self, call: IncomingRequest) -> bool:
        """Return whether the deadline of a call has passed."""
        return call.has_expired(self._owner.clock.now())

    # --- the record ----------------------------------------------------------------------------

    async def admit(self) -> Permit:
        """Return the permit of a call. Raises `BreakerOpen`. Every permit is settled once."""
        return await self._admit_with_store() if self._is_undecided() else self._admit_locally()

    def try_admit(self) -> Permit | None:
        """Return the permit of a call if that needs neither a decision nor a wait; None otherwise."""
        return self._free_permit

    def _is_undecided(self) -> bool:
        """Whether only the store can decide about the next call."""
        shared = self._shared
        return shared is not None and shared.needs_store(self._record, self._owner.now())

    def _admit_locally(self) -> Permit:
        if self._record.state is BreakerState.CLOSED:
            return self._permit
        return self._admit_from(self._record)

    def _admit_from(self, record: BreakerRecord) -> Permit:
        admission = admit(record, self.policy, self._owner.now(), self._owner.new_probe_id())
        self._change(admission.record)
        if admission.permit is None:
            raise BreakerOpen(self.name, admission.retry_after)
        return admission.permit

    async def _admit_with_store(self) -> Permit:
        shared, probe = self._shared, self._owner.new_probe_id()
        if shared is None:
            return self._admit_locally()
        try:
            admission = await shared.admit(self.policy, probe)
        except StoreError:
            return self._admit_locally()
        record = shared.with_unsaved(admission.record)
        self._change(record)
        if admission.permit is None:
            raise BreakerOpen(self.name, admission.retry_after)
        if admission.permit.probe:
            return admission.permit
        if record.state is not BreakerState.CLOSED:  # this process has opened it, and the store does not know yet
            raise BreakerOpen(self.name, max(0.0, record.until - self._owner.now()))
        return self._permit

    def settle(self, permit: Permit, outcome: Outcome) -> None:
        """Report the outcome of a call."""
        if outcome is Outcome.SUCCESS and permit is self._permit and not self._record.outcomes:
            return  # most calls: there is no failure that it would count against
        now = self._owner.now()
        record = settle(self._record, self.policy, permit, outcome, now)
        if record is self._record:
            return
        self._change(record)
        if self._shared is not None:
            self._shared.apply(lambda stored: settle(stored, self.policy, permit, outcome, now), self._change)

    def _change(self, record: BreakerRecord) -> None:
        before, self._record = self._record, record
        if before.generation != record.generation:
            self._permit = Permit(record.generation)
            self._update_free_permit()
        if before.state is not record.state:
            self._owner.report(self.name, before.state, record.state)

    # --- by hand -------------------------------------------------------------------------------

    def open(self, seconds: float | None = None) -> None:
        """Open the breaker by hand, for `seconds` or for the time of its policy."""
        until = self.policy.open_seconds if seconds is None else seconds
        self._change_by_hand(lambda record: open_record(record, self._owner.now(), until))

    def close(self) -> None:
        """Close the breaker by hand and forget its history."""
        self._change_by_hand(close_record)

    def _change_by_hand(self, change: Change) -> None:
        self._change(change(self._record))
        if self._shared is not None:
            self._shared.apply(change, self._change)

    # --- binding -------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until all outcomes are stored, if the record is shared."""
        if self._shared is not None:
            await self._shared.flush()

    def bind(self, shared: "_SharedRecord | None") -> None:
        """Use a shared record from now on, or forget the state of the last run."""
        self._shared = shared
        self._record, self._permit = BreakerRecord(), Permit(0)
        self._update_free_permit()

    def _update_free_permit(self) -> None:
        unshared = self._shared is None
        self._free_permit = self._permit if unshared and self._record.state is BreakerState.CLOSED else None


class BreakerGuard:
    """A context manager around one use of a dependency. With `wait`, a plain handler on a thread can use it too."""

    __slots__ = ("_breaker", "_call", "_permit", "_wait")

    def __init__(
        self, breaker: CircuitBreaker, call: IncomingRequest | None = None, wait: Callable[[Any], Any] | None = None
    ) -> None:
        """`call` is the call of the server that uses the dependency; its timeout is a failure."""
        self._breaker = breaker
        self._call = call
        self._wait = wait
        self._permit: Permit | None = None

    async def __aenter__(self) -> CircuitBreaker:
        self._permit = await self._breaker.admit()
        return self._breaker

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.leave(error)

    def leave(self, error: BaseException | None) -> None:
        """Report the outcome."""
        permit, self._permit = self._permit, None
        if permit is not None:
            breaker = self._breaker
            breaker.settle(permit, Outcome.SUCCESS if error is None else breaker.judge(error, self._call))

    def __enter__(self) -> CircuitBreaker:
        if self._wait is None:
            raise MisuseError("use `async with` here; `with ctx.breaker(…)` is for plain handlers on a thread")
        return self._wait(self.__aenter__())

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._wait is not None:
            self._wait(self.__aexit__(kind, error, trace))


class _SharedRecord:
    """The record of one breaker in a store that processes share."""

    def __init__(self, store: "Store", key: str, now: Callable[[], float]) -> None:
        self._store = store
        self._key = key
        self._now = now
        self._read_at = float("-inf")
        self._changes: list[Change] = []  # to be stored
        self._writing: list[Change] = []  # being stored
        self._writer: asyncio.Task[None] | None = None

    def needs_store(self, record: BreakerRecord, now: float) -> bool:
        """Return whether a call has to wait for the store: it may become a probe, or the copy is old."""
        if may_probe(record, now):
            return True
        return not 0 <= now - self._read_at < _REFRESH and self._writer is None  # a writer replaces the copy

    async def admit(self, policy: BreakerPolicy, probe: str) -> Admission:
        """Admit or refuse a call by the stored record, which has all changes of this process. Raises `StoreError`."""
        await self.flush()
        admissions: list[Admission] = []  # one for each attempt

        def change(stored: BreakerRecord) -> BreakerRecord:
            admissions.append(admit(stored, policy, self._now(), probe))
            return admissions[-1].record

        await self.update(change)
        return admissions[-1]

    async def update(self, change: Change) -> BreakerRecord:
        """Apply a change to the stored record; return the record from then on. Raises `StoreError`."""
        while True:
            asked_at = self._now()
            item = await self._store.get(self._key)
            stored = BreakerRecord() if item is None else _decode_record(item.value)
            record = change(stored)
            if record is not stored:
                version = ABSENT if item is None else item.version
                expires = max(record.until, self._now()) + _RECORD_TTL
                try:
                    await self._store.commit([Put(self._key, codec.to_json(record), expires, version)])
                except Conflict:
                    continue  # another process was faster
            self._read_at = asked_at
            return record

    def apply(self, change: Change, on_record: Callable[[BreakerRecord], None]) -> None:
        """Apply a change to the stored record in the background, in order."""
        self._changes.append(change)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(on_record))

    def with_unsaved(self, record: BreakerRecord) -> BreakerRecord:
        """Return a stored record with the changes of this process that the store may not have yet."""
        return _apply_all([*self._writing, *self._changes], record)

    async def _write(self, on_record: Callable[[BreakerRecord], None]) -> None:
        try:
            while self._changes:
                self._writing, self._changes = self._changes, []
                record = await self.update(partial(_apply_all, self._writing))
                self._writing = []
                on_record(self.with_unsaved(record))
        except StoreError:
            self._changes.clear()  # this process continues with its copy
        finally:
            self._writing = []
            self._writer = None

    async def flush(self) -> None:
        """Wait until all changes are stored."""
        if self._writer is not None:
            await asyncio.wait([self._writer])


class CircuitBreakers:
    """The circuit breakers of a server, by name. A name that was not configured gets the default policy."""

    def __init__(self, server: str, clock: Clock | None, observers: Observers) -> None:
        self._server = server
        self._breakers: dict[str, CircuitBreaker] = {}
        self._local: set[str] = set()  # breakers that are not shared
        self._store: Store | None = None
        self.clock: Clock = clock or WallClock()
        self._time: Clock = self.clock  # of the records
        self._observers = observers
        self._process = secrets.token_hex(6)
        self._numbers = count(1)

    def __iter__(self) -> Iterator[CircuitBreaker]:
        return iter(self._breakers.values())

    def now(self) -> float:
        """Return the time on the clock of the records."""
        return self._time.now()

    def new_probe_id(self) -> str:
        """Return an id that is unique across processes."""
        return f"{self._process}-{next(self._numbers)}"

    def configure(
        self, name: str, policy: BreakerPolicy, is_failure: Callable[[Exception], bool], *, shared: bool
    ) -> CircuitBreaker:
        """Create a breaker. Raises `RegistrationError` if there is one of that name."""
        if name in self._breakers:
            raise RegistrationError(
                f"there is a circuit breaker named {name!r} already; configure it before it is used"
            )
        if not shared:
            self._local.add(name)
        breaker = self._breakers[name] = CircuitBreaker(self, name, policy, is_failure)
        breaker.bind(self._shared_record(name))
        return breaker

    def find(self, name: str) -> CircuitBreaker:
        """Return the breaker of a name; create it with the default policy if there is none."""
        return self._breakers.get(name) or self.configure(name, BreakerPolicy(), counts_as_failure, shared=True)

    def bind(self, clock: Clock, wall_clock: Clock, store: "Store | None") -> None:
        """Use the clock and the store of a server that starts; `store` is None if processes do not share one."""
        self.clock = clock
        self._time = clock if store is None else wall_clock
        self._store = store
        for name, breaker in self._breakers.items():
            breaker.bind(self._shared_record(name))

    async def close(self) -> None:
        """Store what is not stored yet, and stop using the store."""
        for breaker in self._breakers.values():
            await breaker.flush()
        self._store = None
        for breaker in self._breakers.values():
            breaker.bind(None)

    def report(self, name: str, before: BreakerState, after: BreakerState) -> None:
        """Report a transition to the observers."""
        if self._observers:
            self._observers.on(
                BreakerChanged(connection=0, at=self.clock.now(), name=name, before=before.value, after=after.value)
            )

    def _shared_record(self, name: str) -> _SharedRecord | None:
        if self._store is None or name in self._local:
            return None
        return _SharedRecord(self._store, key_of("breaker", key_of(self._server, name)), self.now)


def make_policy(name: Any, options: dict[str, Any]) -> BreakerPolicy:
    """Return the policy of a breaker. Raises `RegistrationError` for invalid options."""
    check_name("a circuit breaker", name, 'server.breaker("database")')
    for option, least in (("failures", 1), ("window", 1), ("successes", 1)):
        value = options[option]
        if type(value) is not int or not least <= value <= _HISTORY_LIMIT:
            raise RegistrationError(
                f"circuit breaker {name!r}: {option}= must be {least} to {_HISTORY_LIMIT}, not {describe_value(value)}"
            )
    rate, seconds = options["failure_rate"], options["open_seconds"]
    if rate is not None and (not isinstance(rate, int | float) or not 0 < rate <= 1):
        raise RegistrationError(f"circuit breaker {name!r}: failure_rate= must be above 0 and at most 1, not {rate!r}")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds <= 0:
        raise RegistrationError(f"circuit breaker {name!r}: open_seconds= must be above 0, not {seconds!r}")
    return BreakerPolicy(**options)


def _apply_all(changes: list[Change], record: BreakerRecord) -> BreakerRecord:
    for change in changes:
        record = change(record)
    return record


async def _value_of(function: Callable[[], Any]) -> Any:
    value = function()
    return await value if isawaitable(value) else value
