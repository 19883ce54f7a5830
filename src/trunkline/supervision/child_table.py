"""Table of a supervisor's children: their states, and the decisions that follow from each event. Pure; time and
randomness are arguments.

A shell reports events (`started`, `ended`, `tick`) and carries out the decisions, in their order: `Start` or `Stop` a
child, or `Escalate`. After each event it asks `next_due` when to call `tick`. The worker processes of a server and the
children of a `Supervisor` follow the same table.

The strategy says which children share the fate of one that is restarted: none (`one_for_one`), all (`one_for_all`), or
those that were added after it (`rest_for_one`). They are stopped first, the last one started first, and start again
one after another. The restart type says which ends lead to a restart: every end (`permanent`), failures (`transient`),
or none (`temporary`).

More than `intensity` restarts within `period` seconds are too many. Then the children concerned are degraded: they stay
down and are tried once more after a pause, or by hand. If the supervisor escalates instead, it stops all children and
fails, and its parent decides. A supervisor that degrades independent children counts the restarts of each by itself;
any other counts those of all children together.

Invariants, which the tests check: at most one child is stopping; a child that depends on others runs only if they run;
a temporary child starts once; after `shut_down` nothing starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, Literal

from msgspec import Struct

from trunkline.errors import MisuseError
from trunkline.supervision.restart_policy import GiveUp, History, RestartPolicy, after_exit, after_failure

__all__ = [
    "TRANSITIONS",
    "ChildDecision",
    "ChildRow",
    "ChildSignal",
    "ChildState",
    "ChildTable",
    "Escalate",
    "OnLimit",
    "RestartType",
    "Start",
    "Stop",
    "Strategy",
]

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
RestartType = Literal["permanent", "transient", "temporary"]
OnLimit = Literal["degrade", "escalate"]


class ChildState(Enum):
    """States of a child."""

    STOPPED = "stopped"  # not started yet, or stopped with its supervisor
    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "backoff"  # down; it is started again when its delay has passed
    STOPPING = "stopping"
    DEGRADED = "degraded"  # restarted too often; it is tried again after a pause, or by hand
    ENDED = "ended"  # its restart type keeps it down


class ChildSignal(Enum):
    """Signals that change the state of a child."""

    START = "start"
    STARTED = "started"
    RETRY = "retry"
    GIVE_UP = "give up"
    END = "end"
    STOP = "stop"
    STOPPED = "stopped"


_DOWN: Final = {
    ChildSignal.START: ChildState.STARTING,
    ChildSignal.RETRY: ChildState.BACKOFF,
    ChildSignal.GIVE_UP: ChildState.DEGRADED,
    ChildSignal.STOPPED: ChildState.STOPPED,
}
_UP: Final = {
    ChildSignal.RETRY: ChildState.BACKOFF,
    ChildSignal.GIVE_UP: ChildState.DEGRADED,
    ChildSignal.END: ChildState.ENDED,
    ChildSignal.STOP: ChildState.STOPPING,
}
TRANSITIONS: Final[Mapping[ChildState, Mapping[ChildSignal, ChildState]]] = {
    ChildState.STOPPED: _DOWN,
    ChildState.STARTING: {ChildSignal.STARTED: ChildState.RUNNING, **_UP},
    ChildState.RUNNING: _UP,
    ChildState.BACKOFF: _DOWN,
    ChildState.STOPPING: {
        ChildSignal.RETRY: ChildState.BACKOFF,
        ChildSignal.GIVE_UP: ChildState.DEGRADED,
        ChildSignal.END: ChildState.ENDED,
        ChildSignal.STOPPED: ChildState.STOPPED,
    },
    ChildState.DEGRADED: _DOWN,
    ChildState.ENDED: _DOWN,
}
"""The next state of a child, by its state and a signal."""

_ACTIVE: Final = frozenset({ChildState.STARTING, ChildState.RUNNING})
_WAITING: Final = frozenset({ChildState.BACKOFF, ChildState.DEGRADED})


class Start(Struct, frozen=True):
    """Start a child, then report `started` or `ended`."""

    name: str


class Stop(Struct, frozen=True):
    """Stop a child, then report `ended`."""

    name: str


class Escalate(Struct, frozen=True):
    """All children have stopped: the supervisor fails because of a child."""

    name: str
    reason: str


ChildDecision = Start | Stop | Escalate


class ChildRow(Struct):
    """Row of the table. The shell reads it, and changes nothing."""

    name: str
    restart: RestartType
    since: float  # time of the last change of the state
    state: ChildState = ChildState.STOPPED
    restarts: int = 0
    last_failure: str = ""
    due: float | None = None  # when to start it, while it waits; None: by hand
    started_as: int = 0  # number of its last start among those of all children
    history: History = History()
    after_stop: ChildSignal | None = None  # set while it has to be stopped: the signal that follows
    removed: bool = False


class ChildTable:
    """The children of one supervisor, in the order in which they were added."""

    def __init__(
        self, *, strategy: Strategy = "one_for_one", policy: RestartPolicy | None = None, on_limit: OnLimit = "degrade"
    ) -> None:
        self._strategy = strategy
        self._policy = policy or RestartPolicy()
        self._on_limit = on_limit
        self._children: dict[str, ChildRow] = {}
        self._counts_together = strategy != "one_for_one" or on_limit == "escalate"
        self._losses: tuple[float, ...] = ()  # of all children, if they are counted together
        self._starts = 0
        self.running = False  # between `start` and `shut_down`
        self.escalation: Escalate | None = None  # once it is decided; the children may still be stopping
        self._escalated = False

    # --- reading -----------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> ChildRow:
        return self._children[name]

    def __contains__(self, name: str) -> bool:
        return name in self._children

    def __iter__(self) -> Iterator[ChildRow]:
        return iter(self._children.values())

    @property
    def next_due(self) -> float | None:
        """When `tick` has to be called next; None if no child waits for a time."""
        if not self.running:
            return None
        waiting = (child for child in self if child.state in _WAITING and self._may_start(child))
        return min((child.due for child in waiting if child.due is not None), default=None)

    @property
    def stopped(self) -> bool:
        """Whether no child runs, starts or stops."""
        return not any(child.state in _ACTIVE or child.state is ChildState.STOPPING for child in self)

    # --- commands ----------------------------------------------------------------------------------

    def add(self, name: str, restart: RestartType, now: float) -> Sequence[ChildDecision]:
        """Add a child; start it if the supervisor runs."""
        if name in self._children:
            raise MisuseError(f"there is a child {name!r} already; choose another name, or remove that one first")
        child = self._children[name] = ChildRow(name, restart, now)
        if self.running:
            self._wait(child, now)
        return self._advance(now)

    def remove(self, name: str, now: float) -> Sequence[ChildDecision]:
        """Stop a child and forget it. Children that depend on it are not restarted."""
        child = self._children[name]
        child.removed = True
        if child.state in _ACTIVE:
            child.after_stop = ChildSignal.STOPPED
        elif child.state is not ChildState.STOPPING:
            del self._children[name]
        return self._advance(now)

    def start(self, now: float) -> Sequence[ChildDecision]:
        """Start all children."""
        self.running = True
        for child in self._children.values():
            self._wait(child, now)
        return self._advance(now)

    def shut_down(self, now: float) -> Sequence[ChildDecision]:
        """Stop all children, the last one started first; start none any more."""
        self._stop_all(now)
        return self._advance(now)

    def restart(self, name: str, now: float) -> Sequence[ChildDecision]:
        """Restart a child by hand, together with those that share its fate; forget earlier failures."""
        child = self._children[name]
        if not self.running or child.removed:
            return ()
        child.history, self._losses = History(), ()
        self._take_down(child, ChildSignal.RETRY, now, due=now, gone=False)
        return self._advance(now)

    # --- events ------------------------------------------------------------------------------------

    def started(self, name: str, now: float) -> Sequence[ChildDecision]:
        """Record that a child runs."""
        child = self._children[name]
        if child.state is ChildState.STARTING:
            child.history = child.history.succeeded()
            self._change(child, ChildSignal.STARTED, now)
        return self._advance(now)

    def ended(
        self,
        name: str,
        failure: str | None,
        now: float,
        *,
        chance: float = 0.0,
        is_loss: bool = True,
        at_once: bool = True,
    ) -> Sequence[ChildDecision]:
        """Record that a child has ended: in good order, or with a `failure`. A start that the system had no resources
        for is no loss (`is_loss`): it only delays the next attempt. Without `at_once` a child that had started is
        restarted with a delay, too. `chance` is a random number from 0 to 1."""
        child = self._children[name]
        was_stopping, started = child.state is ChildState.STOPPING, child.state is ChildState.RUNNING and at_once
        child.last_failure = failure or child.last_failure
        if child.removed:
            del self._children[name]
        elif was_stopping:
            self._finish_stop(child, now)
        elif child.after_stop is not None:  # it ended before its turn to be stopped
            self._change(child, ChildSignal.STOP, now)
            self._finish_stop(child, now)
        elif child.restart == "temporary" or (child.restart == "transient" and failure is None):
            self._change(child, ChildSignal.END, now)
        elif failure is None and started and now - child.since >= self._policy.first_delay:
            self._take_down(child, ChildSignal.RETRY, now, due=now)  # it ran and ended in good order: no loss
        else:
            self._count_failure(child, now, started=started, chance=chance, is_loss=is_loss)
        return self._advance(now)

    def tick(self, now: float) -> Sequence[ChildDecision]:
        """Start the children whose delay has passed."""
        return self._advance(now)

    # --- decisions ---------------------------------------------------------------------------------

    def _count_failure(self, child: ChildRow, now: float, *, started: bool, chance: float, is_loss: bool) -> None:
        """Ask the restart policy about a child that has failed, and take it down."""
        history = History(self._losses, child.history.attempts) if self._counts_together else child.history
        if is_loss:
            child.history, decision = after_exit(history, self._policy, now, started=started, chance=chance)
        else:
            child.history, decision = after_failure(history, self._policy, chance)
        self._losses = child.history.losses if self._counts_together else ()
        if not isinstance(decision, GiveUp):
            self._take_down(child, ChildSignal.RETRY, now, due=now + decision.delay)
        elif self._on_limit == "degrade":
            pause = self._policy.pause
            self._take_down(child, ChildSignal.GIVE_UP, now, due=None if pause is None else now + pause)
        else:
            self.escalation = Escalate(child.name, decision.reason)
            self._change(child, ChildSignal.RETRY, now)
            self._stop_all(now)

    def _take_down(
        self, child: ChildRow, signal: ChildSignal, now: float, *, due: float | None, gone: bool = True
    ) -> None:
        """Bring a child and those that share its fate into a waiting state until `due`. Those that run, except the
        child itself if it is `gone`, are stopped first."""
        for each in self._fate_sharing(child):
            each.due = due
            if (each.state in _ACTIVE and not (gone and each is child)) or each.state is ChildState.STOPPING:
                each.after_stop = ChildSignal.END if each.restart == "temporary" and each is not child else signal
            else:
                self._change(each, signal, now)

    def _wait(self, child: ChildRow, now: float) -> None:
        """Let a child start as soon as those that it depends on run."""
        child.due = now
        self._change(child, ChildSignal.RETRY, now)

    def _fate_sharing(self, child: ChildRow) -> list[ChildRow]:
        """Return a child and those that are restarted together with it."""
        if self._strategy == "one_for_one":
            return [child]
        children = list(self)
        begin = 0 if self._strategy == "one_for_all" else children.index(child)
        return [
            each
            for each in children[begin:]
            if each is child or not (each.removed or (each.state is ChildState.ENDED and each.restart == "temporary"))
        ]

    def _stop_all(self, now: float) -> None:
        self.running = False
        for child in self:
            if child.state in _ACTIVE or child.state is ChildState.STOPPING:
                child.after_stop = ChildSignal.STOPPED
            else:
                self._change(child, ChildSignal.STOPPED, now)

    def _advance(self, now: float) -> Sequence[ChildDecision]:
        """Return what can be done now: the next stop, and every start that waits for nothing."""
        decisions: list[ChildDecision] = []
        if not any(child.state is ChildState.STOPPING for child in self):
            doomed = [child for child in self if child.after_stop is not None]
            if doomed:
                last = max(doomed, key=lambda child: child.started_as)
                self._change(last, ChildSignal.STOP, now)
                decisions.append(Stop(last.name))
        if self.running:
            for child in self:
                if child.state in _WAITING and child.due is not None and child.due <= now and self._may_start(child):
                    self._start(child, now)
                    decisions.append(Start(child.name))
        elif self.escalation is not None and self.stopped and not self._escalated:
            decisions.append(self.escalation)
            self._escalated = True
        return decisions

    def _may_start(self, child: ChildRow) -> bool:
        """Return whether the children that a child depends on run."""
        if self._strategy == "one_for_one":
            return True
        children = list(self)
        return not any(each.after_stop is not None for each in children) and all(
            each.state in {ChildState.RUNNING, ChildState.ENDED} for each in children[: children.index(child)]
        )

    def _start(self, child: ChildRow, now: float) -> None:
        if child.state is ChildState.DEGRADED:  # it has one attempt: the next loss degrades it again
            losses = (now,) * self._policy.intensity
            child.history = History(losses)
            self._losses = losses if self._counts_together else ()
        if child.started_as:
            child.restarts += 1
        self._starts += 1
        child.started_as = self._starts
        self._change(child, ChildSignal.START, now)

    def _finish_stop(self, child: ChildRow, now: float) -> None:
        signal, child.after_stop = child.after_stop or ChildSignal.STOPPED, None
        self._change(child, signal, now)

    def _change(self, child: ChildRow, signal: ChildSignal, now: float) -> None:
        state = TRANSITIONS[child.state][signal]
        if state is not child.state:
            child.state, child.since = state, now
