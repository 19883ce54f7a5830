"""The checker: finds violations in the history of a campaign. Pure: it reads the history, and names each violation.

Guarantees, and what may be missing:

- **A response** is final: the effects that it reports are in the effects file, and a repetition with the same key or task
  returns the same.
- **A call that must not run twice** is in the file at most once, whether or not its response arrived. Its outcome may be
  unknown only if it was in flight during a fault, including a graceful shutdown. An idempotent call always gets a
  response.
- **A task** whose id a client knows ends with its result; or with an error for an unknown outcome, if its tool has chosen
  that and the server died meanwhile. No run starts before a stored checkpoint.
- **An event** on a stream has the number after that of its predecessor, over all connections. The last ones may be missing
  only if their call did not end with a result either.
- **An update** whose writer got a response reaches every subscriber, from any process.
- **A tool with a limit** runs at most as many calls at the same time as it says, in all processes (`concurrency.py`).
- **A session** that was confirmed is never rejected, and no client receives or changes what belongs to another.

With several processes, clients of the others may notice a fault a little later: when the leases of a process have
expired. And a process that was suspended, or could not reach the store, does not know that it has lost its leases
before its next call of the store; so it may take one more step, which nothing can prevent, and never reach a
checkpoint.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from tests.chaos.concurrency import limit_exceeded, waiting_stuck
from tests.chaos.effects import Effect
from tests.chaos.history import FaultPeriod, History, Observation
from tests.chaos.plan import LEASE, TASKS, owner

__all__ = ["violations"]

UNKNOWN_OUTCOME: Final = "may or may not have been done"
PASSING: Final = frozenset({502, 503})
"""Statuses that a session may get during a fault: the outcome is unknown, or the request was not started."""

LATE: Final = 3 * LEASE
"""Seconds for which a fault of one of several processes, or of their store, has effects after its end."""


def violations(history: History) -> list[str]:
    """All violations."""
    rules: Sequence[Callable[[History], Iterator[str]]] = (
        _own,
        _answered_is_done,
        _done_once,
        _known_outcomes,
        _asked_again,
        _events,
        _updates,
        _tasks,
        _cancelled,
        _refused,
        limit_exceeded,
        lambda history: waiting_stuck(history, LATE),
        _the_rest,
    )
    return [fault for rule in rules for fault in rule(history)]


def _by_operation(history: History, *kinds: str) -> Mapping[str, list[Effect]]:
    found: dict[str, list[Effect]] = defaultdict(list)
    for effect in history.effects:
        if effect.what in kinds:
            found[effect.operation].append(effect)
    return found


def _during_fault(history: History, began: float, ended: float) -> bool:
    """Return whether a fault was active meanwhile."""
    return any(one.at <= ended and began <= one.over + _affected(one) for one in history.fault_periods)


def _affected(period: FaultPeriod) -> float:
    return 0.0 if period.kind == "death" else LATE


def _own(history: History) -> Iterator[str]:
    """No client gets another's response: each response names its operation, and each effect its principal."""
    for saw in history.observations:
        if saw.outcome == "answered" and not saw.again and saw.said.split()[0] != saw.operation:
            yield f"{saw.operation} ({saw.kind}) was answered with {saw.said!r}, which is another's"
    for effect in history.effects:
        if owner(effect.run if effect.what == "post" else effect.operation) != effect.who:
            yield f"{effect.operation} ({effect.what}) was done on behalf of {effect.who}"
    yield from history.strange


def _answered_is_done(history: History) -> Iterator[str]:
    """The effects file contains what responses report."""
    done = _by_operation(history, "pay", "linger", "ask", "leave")
    lasting = {(effect.what, effect.operation) for effect in history.effects}
    posted = {f"{effect.run} {effect.operation} {effect.number}" for effect in history.effects if effect.what == "post"}
    for saw in history.observations:
        if saw.outcome != "answered" or saw.again:
            continue
        if saw.kind in {"pay", "pay_once", "linger", "ask", "limited"}:
            if saw.said.split()[-1] not in {effect.run for effect in done[saw.operation]}:
                yield f"{saw.operation} ({saw.kind}) was answered with {saw.said!r}, and was not done"
        elif saw.kind == "keep" and ("keep", saw.operation) not in lasting:
            yield f"{saw.operation} (keep) was answered, and was not done"
        elif saw.kind == "post" and saw.said not in posted:
            yield f"{saw.operation} (post) was answered with {saw.said!r}, and was not done"


def _done_once(history: History) -> Iterator[str]:
    for operation, done in _by_operation(history, "pay", "linger", "count", "ask", "wait").items():
        numbers = [effect.number for effect in done]
        if len(set(numbers)) < len(numbers):
            yield f"{operation} ({done[0].what}) was done twice: {[effect.run for effect in done]}"
    for operation, done in _by_operation(history, "enter").items():
        if len(done) > 1:
            yield f"{operation} (limited) was done twice: {[effect.run for effect in done]}"
    posts = [effect for effect in history.effects if effect.what == "post"]
    for number, times in Counter((effect.operation, effect.number) for effect in posts).items():
        if times > 1:
            yield f"{number} was written on a board twice"
    for operation, times in Counter(effect.run for effect in posts).items():
        if times > 1:
            yield f"{operation} (post) was done twice"


def _known_outcomes(history: History) -> Iterator[str]:
    """No operation fails, and one with an unknown outcome was interrupted by a fault; except for repeatable ones."""
    for saw in history.observations:
        if saw.outcome == "answered" or saw.again:
            continue
        given_up = saw.kind == "given_up" and UNKNOWN_OUTCOME in saw.said
        if saw.outcome == "failed" and not given_up:
            yield f"{saw.operation} ({saw.kind}) failed: {saw.said}"
        elif saw.harmless:
            yield f"{saw.operation} ({saw.kind}) may be repeated, and was given up: {saw.said}"
        elif not _during_fault(history, saw.began, saw.ended):
            yield f"{saw.operation} ({saw.kind}) has no outcome, though the server lived: {saw.said}"


def _asked_again(history: History) -> Iterator[str]:
    for saw in history.observations:
        if saw.again and saw.outcome != "answered":
            yield f"{saw.operation} ({saw.kind}) was answered, and is not any more: {saw.said}"


def _events(history: History) -> Iterator[str]:
    """Numbers without a gap, from the first on; all of them if the call has a result."""
    for told in history.events:
        if told.numbers != tuple(range(1, len(told.numbers) + 1)):
            yield f"{told.operation}: events are missing, twice or in disorder: {told.numbers}"
        elif told.outcome == "answered" and len(told.numbers) != told.wanted:
            yield f"{told.operation}: {len(told.numbers)} events of {told.wanted}, though it was answered"
    for gap in history.gaps:
        yield f"a stream has a gap: {gap}"


def _updates(history: History) -> Iterator[str]:
    """A writer waits until all subscribers have the number, so each update arrives separately; or together with one
    whose writer got no response.
    """
    heard: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in history.readings:
        heard[one.who, one.board].append(one.number)
    made: dict[str, list[int]] = defaultdict(list)
    for saw in history.observations:
        if saw.kind == "post" and saw.outcome == "answered":
            _, board, number = saw.said.split()
            made[board].append(int(number))
    for board, numbers in made.items():
        for number, after in pairwise([*sorted(numbers), sys.maxsize]):
            for who in history.listeners.get(board, ()):
                if not any(number <= found < after for found in heard[who, board]):
                    yield f"{who} was not told of update {number} of {board}, which was acknowledged"


def _tasks(history: History) -> Iterator[str]:
    kinds = {saw.operation: saw for saw in history.observations if saw.kind in TASKS and not saw.again}
    many = any(one.kind not in {"death", "term"} for one in history.fault_periods)
    for operation, done in _by_operation(history, "step", "kept").items():
        saw = kinds.get(operation)
        if saw is not None:
            yield from _task(saw, done)
            if saw.kind == "resumed":
                yield from _resumed(saw, done, allowed=1 if many else 0)


def _task(saw: Observation, done: Sequence[Effect]) -> Iterator[str]:
    steps = [effect.number for effect in done if effect.what == "step"]
    if saw.outcome == "answered" and set(steps) != set(range(1, int(saw.said.split()[-1]) + 1)):
        yield f"{saw.operation} ({saw.kind}) has ended with {saw.said!r} after steps {steps}"
    if saw.kind == "given_up" and len(set(steps)) < len(steps):
        yield f"{saw.operation} (given_up) was begun again: {steps}"


def _resumed(saw: Observation, done: Sequence[Effect], allowed: int) -> Iterator[str]:
    """No step repeats that a checkpoint covers, except for a few steps of a run that lost its lease unnoticed; such
    a run reaches no checkpoint.
    """
    kept: dict[str, int] = defaultdict(int)  # by run
    late: dict[str, int] = defaultdict(int)  # by run, the repeated steps
    for effect in done:
        if effect.what == "kept":
            kept[effect.run] = effect.number
            if late[effect.run]:
                yield f"{saw.operation} (resumed) has reached checkpoint {effect.number} in a run that was over"
        elif effect.number <= max(kept.values(), default=0):
            late[effect.run] += 1
            if late[effect.run] > allowed:
                yield f"{saw.operation} (resumed) has done step {effect.number} again after checkpoint {max(kept.values())}"


def _cancelled(history: History) -> Iterator[str]:
    """Cancelled calls end."""
    waited = _by_operation(history, "wait")
    for saw in history.observations:
        if (
            saw.kind == "wait"
            and len(waited[saw.operation]) == 1
            and not _during_fault(history, saw.began, saw.ended + LEASE)
        ):
            yield f"{saw.operation} (wait) was cancelled, and goes on"


def _refused(history: History) -> Iterator[str]:
    """No session is rejected, except that clients of several processes may have to retry during a fault."""
    for one in history.rejections:
        if one.status not in PASSING or not _during_fault(history, one.at, one.at):
            yield f"{one.who} was refused {one.asked}: HTTP {one.status} {one.said}"


def _the_rest(history: History) -> Iterator[str]:
    for complaint in history.complaints:
        yield f"the server said: {complaint}"
    for one in history.unfinished:
        yield f"did not come to an end: {one}"
