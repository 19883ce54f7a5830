"""Checks of the tool with a limit: it never runs more calls than it may, and waiting calls go on. Pure.

A call runs from its entry until it leaves. A call that does not leave has ended with its process. A suspended process
may be evicted; then its calls no longer count, although they continue when it does.
"""

from collections.abc import Iterator, Mapping

from tests.chaos.effects import Effect
from tests.chaos.history import FaultPeriod, History
from tests.chaos.plan import LIMIT

__all__ = ["limit_exceeded", "waiting_stuck"]


def limit_exceeded(history: History) -> Iterator[str]:
    """Name each call that began while the tool had no permit left."""
    left = {effect.run: effect.at for effect in history.effects if effect.what == "leave"}
    running: dict[str, float] = {}  # by operation, its end
    for effect in history.effects:
        if effect.what == "enter":
            running = {operation: end for operation, end in running.items() if end > effect.at}
            running[effect.operation] = _end(effect, left, history)
            if len(running) > LIMIT:
                yield f"{effect.operation} (limited) began while {sorted(running.keys() - {effect.operation})} ran"


def _end(entry: Effect, left: Mapping[str, float], history: History) -> float:
    """When a call ended, or its process may have been evicted."""
    end = left.get(entry.run, float("inf"))
    for one in history.fault_periods:
        if entry.number in one.pids and entry.at < one.over and _ends(one, entry, left):
            end = min(end, one.at)
    return end


def _ends(period: FaultPeriod, entry: Effect, left: Mapping[str, float]) -> bool:
    return period.kind == "stop" or entry.run not in left


def waiting_stuck(history: History, patience: float) -> Iterator[str]:
    """Name each fault after which no waiting call began, for as long as some waited and no other fault came."""
    entries = [effect.at for effect in history.effects if effect.what == "enter"]
    calls = [saw for saw in history.observations if saw.kind == "limited" and not saw.again]
    begins = [one.at for one in history.fault_periods]
    for one in history.fault_periods:
        until = one.over + patience
        waits = any(saw.began <= one.over and saw.ended >= until for saw in calls)
        quiet = not any(one.at < at < until for at in begins)
        if waits and quiet and not any(one.over <= at <= until for at in entries):
            yield f"no call with a limit began for {patience} s after {one.kind}, though some waited"
