"""Supervisor: keeps children running on the event loop, and stops them in order.

A child is anything with a `kind` and a coroutine `run` (`Supervised`): a task, a listener, a connection, an OS process,
or another supervisor, which makes a tree. A child that returns has ended in good order, a child that raises has failed,
and a child is stopped by cancelling it. The supervisor decides nothing: the child table does (`child_table.py`).

All methods belong to the event loop. An exception of one child reaches neither the other children nor the caller.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol, Self, get_args, runtime_checkable

from msgspec import Struct

from trunkline.clock import Clock, LoopClock, Timer
from trunkline.errors import MisuseError, SupervisionError, TrunklineError
from trunkline.supervision.child_table import (
    ChildDecision,
    ChildRow,
    ChildState,
    ChildTable,
    Escalate,
    OnLimit,
    RestartType,
    Start,
    Stop,
    Strategy,
)
from trunkline.supervision.restart_policy import RestartPolicy

__all__ = ["ChildStatus", "DescribesChildren", "Supervised", "Supervisor"]

_SEPARATOR: Final = "/"
_STOP_TIMEOUT: Final = 10.0  # seconds
_WORKING: Final = frozenset({ChildState.RUNNING, ChildState.ENDED, ChildState.STARTING, ChildState.STOPPED})

_log: Final = logging.getLogger("trunkline")


@runtime_checkable
class Supervised(Protocol):
    """A child. `run` is called again for each restart, never twice at the same time."""

    @property
    def kind(self) -> str:
        """What it is, in one word: task, listener, connection, process or supervisor."""
        ...

    async def run(self, started: Callable[[], None], /) -> None:
        """Run until the child ends. Call `started` once it works; raise if it cannot start, or fails. When it is
        cancelled, release everything within the stop time-out of the child."""
        ...


class ChildStatus(Struct, frozen=True):
    """The status of a child, with that of its own children if it is a supervisor."""

    name: str  # the path from the root: "server/tcp:7000"
    kind: str
    state: ChildState
    restarts: int = 0
    last_failure: str = ""  # of the last time that it failed; it may be running again
    since: float = 0.0  # time of the last change of the state, on the clock of the supervisor
    pid: int | None = None  # of an OS process that runs
    children: "tuple[ChildStatus, ...]" = ()

    def walk(self) -> "Iterable[ChildStatus]":
        """Yield this status and those below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def impaired(self) -> "list[ChildStatus]":
        """Return the children in the tree that should run and do not: degraded ones, and those that have failed and
        wait for a restart or are starting again."""
        return [each for each in self.walk() if each.state not in _WORKING or each.starts_again]

    @property
    def starts_again(self) -> bool:
        """Whether the child has failed before and is starting."""
        return self.state is ChildState.STARTING and bool(self.last_failure)


@runtime_checkable
class DescribesChildren(Protocol):
    """A child that keeps children of its own running without a supervisor, such as a group of clients."""

    def describe_children(self, path: str, /) -> tuple[ChildStatus, ...]:
        """Return the status of each of them; `path` is that of this child."""
        ...


class _Entry(Struct):
    """A child as the supervisor was given it."""

    child: Supervised
    restart: RestartType
    stop_timeout: float | None
    attempts: int = 0  # runs so far
    task: "asyncio.Task[None] | None" = None
    stop_timer: Timer | None = None


class Supervisor:
    """Starts children, restarts them as the strategy and their restart types say, and stops them in reverse order.

    Use it as an async context manager, or add it to another supervisor.
    """

    kind = "supervisor"

    def __init__(
        self,
        name: str,
        *,
        strategy: Strategy = "one_for_one",
        policy: RestartPolicy | None = None,
        on_limit: OnLimit = "degrade",
        clock: Clock | None = None,
        on_change: Callable[[ChildStatus], object] | None = None,
    ) -> None:
        """`policy` has the delays, and the number of restarts within a period that are too many. Then the children
        concerned are degraded; with `on_limit="escalate"` this supervisor stops all children and fails. `on_change` is
        called with the status of each child in the tree whose state has changed."""
        _check_name(name)
        _check_choice("strategy", strategy, get_args(Strategy))
        _check_choice("on_limit", on_limit, get_args(OnLimit))
        self.name = name
        self._policy = policy
        self._strategy: Strategy = strategy
        self._on_limit: OnLimit = on_limit
        self._given_clock = clock
        self._clock: Clock | None = None  # while it runs
        self._on_change = on_change
        self._parent: Supervisor | None = None
        self._entries: dict[str, _Entry] = {}
        self._table = self._new_table()
        self._seen: dict[str, ChildState] = {}  # states that `on_change` was called with
        self._timer: Timer | None = None
        self._ended: asyncio.Future[None] | None = None  # while it runs: done when it has stopped or escalated
        self._changed = asyncio.Event()

    def _new_table(self) -> ChildTable:
        return ChildTable(strategy=self._strategy, policy=self._policy, on_limit=self._on_limit)

    def __repr__(self) -> str:
        states = ", ".join(f"{row.name} {row.state.value}" for row in self._table)
        return f"<Supervisor {self.path!r}: {states or 'no children'}>"

    # --- children ----------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        child: "Supervised | Callable[[], Awaitable[Any]]",
        *,
        restart: RestartType = "permanent",
        stop_timeout: float | None = _STOP_TIMEOUT,
    ) -> None:
        """Add a child, or an async function as a task; start it if this supervisor runs. `restart` says after which
        ends it is restarted: "permanent" after each, "transient" after failures, "temporary" after none. A child that
        takes longer than `stop_timeout` seconds to stop is abandoned."""
        _check_name(name)
        _check_choice("restart", restart, get_args(RestartType))
        entry = _Entry(child if isinstance(child, Supervised) else _Task(child), restart, stop_timeout)
        decisions = self._table.add(name, restart, self._now())
        self._entries[name] = entry
        if isinstance(child, Supervisor):
            child.name, child._parent = name, self
        self._apply(decisions)

    def has(self, name: str) -> bool:
        """Return whether there is a child of that name."""
        return name in self._entries

    async def remove(self, name: str) -> None:
        """Stop a child and forget it. Children that depend on it are not restarted."""
        entry = self._find(name)
        decisions = self._table.remove(name, self._now())
        if name not in self._table:
            del self._entries[name]
        self._apply(decisions)
        await self._wait_until(lambda: name not in self._table or self._entries.get(name) is not entry)

    def restart(self, path: str) -> None:
        """Restart a child by hand, a degraded one too; forget its earlier failures. `path` names it from here."""
        name, _, rest = path.partition(_SEPARATOR)
        child = self._find(name).child
        if rest and isinstance(child, Supervisor):
            child.restart(rest)
        elif rest:
            raise MisuseError(f"{name!r} is no supervisor, so there is no child {path!r}")
        else:
            self._apply(self._table.restart(name, self._now()))

    def _find(self, name: str) -> _Entry:
        if name not in self._entries:
            raise MisuseError(f"there is no child {name!r}; there are: {', '.join(self._entries) or 'none'}")
        return self._entries[name]

    # --- status ------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The names from the root of the tree to this supervisor."""
        return self.name if self._parent is None else f"{self._parent.path}{_SEPARATOR}{self.name}"

    @property
    def running(self) -> bool:
        """Whether this supervisor was started and has neither stopped nor escalated."""
        return self._ended is not None and not self._ended.done()

    def describe(self) -> ChildStatus:
        """Return the status of this supervisor and, below it, of its children."""
        state = ChildState.RUNNING if self.running else ChildState.STOPPED
        return ChildStatus(
            self.path, self.kind, state, children=tuple(self._status(row, deep=True) for row in self._table)
        )

    def _status(self, row: ChildRow, *, deep: bool = False) -> ChildStatus:
        child = self._entries[row.name].child
        path = f"{self.path}{_SEPARATOR}{row.name}"
        pid = getattr(child, "pid", None)
        below: tuple[ChildStatus, ...] = ()
        if deep and isinstance(child, Supervisor):
            below = child.describe().children
        elif deep and isinstance(child, DescribesChildren):
            below = child.describe_children(path)
        return ChildStatus(path, child.kind, row.state, row.restarts, row.last_failure, row.since, pid, below)

    async def wait_for(self, name: str, *states: ChildState) -> ChildStatus:
        """Wait until a child is in one of some states; return its status."""
        self._find(name)
        await self._wait_until(lambda: name not in self._table or self._table[name].state in states)
        self._find(name)  # it may have been removed
        return self._status(self._table[name])

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # --- running -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Start the children. Return at once; `wait_for` waits for one of them."""
        if self.running:
            return
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        parent = self._parent
        self._clock = self._given_clock or (LoopClock(loop) if parent is None else parent._clock)
        self._table = self._new_table()
        for name, entry in self._entries.items():
            self._table.add(name, entry.restart, self._now())
        self._apply(self._table.start(self._now()))

    async def stop(self) -> None:
        """Stop all children, the last one started first, each within its stop time-out. Concurrent calls share one
        shutdown. If this is cancelled, cancel all children at once and wait for none."""
        if self._ended is None:
            return
        self._apply(self._table.shut_down(self._now()))
        try:
            await self._wait_until(lambda: self._table.stopped)
        except asyncio.CancelledError:
            for entry in self._entries.values():
                if entry.task is not None:
                    entry.task.cancel()
            raise
        finally:
            if not self._ended.done():
                self._ended.set_result(None)

    async def wait(self) -> None:
        """Wait until this supervisor has stopped; raise `SupervisionError` if it has escalated."""
        if self._ended is not None:
            await asyncio.shield(self._ended)

    async def run(self, started: Callable[[], None], /) -> None:
        """Run as the child of another supervisor."""
        self.start()
        started()
        try:
            await self.wait()
        finally:
            await self.stop()

    # --- events and decisions ----------------------------------------------------------------------

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock.now()

    def _call_at(self, when: float, action: Callable[[], None]) -> Timer | None:
        return None if self._clock is None else self._clock.call_at(when, action)

    def _apply(self, decisions: Iterable[ChildDecision]) -> None:
        """Carry out decisions, report changed states, and set the timer for the next event."""
        for decision in decisions:
            match decision:
                case Start(name):
                    self._start_child(name, self._entries[name])
                case Stop(name):
                    self._stop_child(name, self._entries[name])
                case Escalate(name, reason):
                    self._escalate(f"{name}: {reason}; {self._table[name].last_failure or 'it ended in good order'}")
        self._report_changes()
        if self._timer is not None:
            self._timer.cancel()
        due = self._table.next_due
        self._timer = None if due is None else self._call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._apply(self._table.tick(self._now()))

    def _start_child(self, name: str, entry: _Entry) -> None:
        entry.attempts += 1
        started = partial(self._on_started, name, entry, entry.attempts)
        title = f"trunkline: {self.path}{_SEPARATOR}{name}"
        entry.task = asyncio.get_running_loop().create_task(_run(entry.child, started), name=title)
        entry.task.add_done_callback(partial(self._on_done, name, entry))

    def _on_started(self, name: str, entry: _Entry, attempt: int) -> None:
        if entry.task is not None and entry.attempts == attempt:  # otherwise that run has ended
            self._apply(self._table.started(name, self._now()))

    def _stop_child(self, name: str, entry: _Entry) -> None:
        if entry.task is not None:
            entry.task.cancel()
        if entry.stop_timeout is not None:
            due = self._now() + entry.stop_timeout
            entry.stop_timer = self._call_at(due, partial(self._abandon, name, entry))

    def _abandon(self, name: str, entry: _Entry) -> None:
        """Go on without a child that has not stopped in time."""
        task, entry.task = entry.task, None
        if task is not None:
            task.cancel()
            why = f"it did not stop within {entry.stop_timeout:g} s"
            _log.error("%s%s%s: %s and was abandoned", self.path, _SEPARATOR, name, why)
            self._on_ended(name, entry, why)

    def _on_done(self, name: str, entry: _Entry, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if entry.task is not task:  # it was abandoned
            return
        entry.task = None
        if error is not None:
            failure = f"{type(error).__name__}: {error}"
            unexpected = None if isinstance(error, TrunklineError) else error  # its traceback helps
            _log.warning("%s%s%s failed: %s", self.path, _SEPARATOR, name, failure, exc_info=unexpected)
            self._on_ended(name, entry, failure)
        elif task.cancelled() and self._table[name].state is not ChildState.STOPPING:
            # The end of the loop cancels all tasks, so it is not restarted at once, in this turn of the loop.
            self._on_ended(name, entry, "it was cancelled", at_once=False)
        else:
            self._on_ended(name, entry, None)

    def _on_ended(self, name: str, entry: _Entry, failure: str | None, *, at_once: bool = True) -> None:
        if entry.stop_timer is not None:
            entry.stop_timer.cancel()
            entry.stop_timer = None
        chance = random.random()  # noqa: S311 - no secret depends on it
        decisions = self._table.ended(name, failure, self._now(), chance=chance, at_once=at_once)
        if name not in self._table:
            del self._entries[name]
        self._apply(decisions)

    def _escalate(self, reason: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(SupervisionError(f"{self.path} failed: {reason}"))
            self._ended.exception()  # mark it as retrieved: there may be no waiting caller
            if self._parent is None:
                _log.error("%s failed: %s", self.path, reason)

    def _report_changes(self) -> None:
        """Wake those that wait for a state, and call `on_change` for each child whose state has changed."""
        self._changed.set()
        before, self._seen = self._seen, {row.name: row.state for row in self._table}
        for row in list(self._table):
            if before.get(row.name, ChildState.STOPPED) is not row.state:
                self._report(self._status(row))

    def _report(self, status: ChildStatus) -> None:
        if self._on_change is not None:
            with contextlib.suppress(Exception):  # an error of the callback must not stop the supervisor
                self._on_change(status)
        if self._parent is not None:
            self._parent._report(status)


async def _run(child: Supervised, started: Callable[[], None]) -> None:
    await child.run(started)


class _Task:
    """An async function as a child."""

    kind = "task"

    def __init__(self, function: Callable[[], Awaitable[Any]]) -> None:
        self._function = function

    async def run(self, started: Callable[[], None], /) -> None:
        started()
        await self._function()


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or _SEPARATOR in name:
        raise MisuseError(f"the name of a child is a text without {_SEPARATOR!r}, not {name!r}")


def _check_choice(option: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise MisuseError(f"{option}= is one of {', '.join(known)}, not {value!r}")
