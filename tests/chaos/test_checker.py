"""The checker finds each kind of violation in invented histories; and none in a correct one."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.chaos.checker import LATE, violations
from tests.chaos.effects import Effect
from tests.chaos.history import BoardReading, EventSequence, FaultPeriod, History, Observation, Rejection

DEATH = FaultPeriod("death", 10.0, 11.0, (100, 101))
STOP = FaultPeriod("stop", 10.0, 12.0, (100,))
GOOD = History(
    effects=(
        Effect("pay", "a.1", 0, "r1", "a"),
        Effect("pay", "a.2", 0, "r2", "a"),
        Effect("pay", "a.3", 0, "r3", "a"),  # done, though its response was lost
        Effect("keep", "a.4", 0, "-", "a"),
        Effect("keep", "a.4", 0, "-", "a"),
        Effect("ask", "a.5", 0, "word", "a"),
        Effect("count", "a.6", 1, "r6", "a"),
        Effect("count", "a.6", 2, "r6", "a"),
        Effect("post", "b", 1, "p.1", "p"),
        Effect("step", "a.7", 1, "t1", "a"),
        Effect("kept", "a.7", 1, "t1", "a"),
        Effect("step", "a.7", 2, "t1", "a"),
        Effect("step", "a.7", 2, "t2", "a"),  # the checkpoint after it was not reached
        Effect("kept", "a.7", 2, "t2", "a"),
        Effect("step", "a.8", 1, "t3", "a"),
        Effect("kept", "a.8", 1, "t3", "a"),
        Effect("step", "a.9", 1, "t4", "a"),
        Effect("linger", "a.14", 0, "r14", "a"),  # interrupted
        Effect("wait", "a.13", 1, "r13", "a"),
        Effect("wait", "a.13", 2, "r13", "a"),
        Effect("enter", "a.15", 100, "r15", "a", at=9.0),
        Effect("enter", "a.16", 100, "r16", "a", at=9.1),  # killed
        Effect("leave", "a.15", 100, "r15", "a", at=9.8),
        Effect("enter", "a.17", 101, "r17", "a", at=9.9),
        Effect("leave", "a.17", 101, "r17", "a", at=10.2),
        Effect("enter", "a.19", 102, "r19", "a", at=12.0),
        Effect("leave", "a.19", 102, "r19", "a", at=13.0),
    ),
    observations=(
        Observation("a.1", "pay", 1.0, 2.0, "answered", "a.1 r1"),
        Observation("a.2", "pay_once", 9.0, 12.0, "answered", "a.2 r2"),
        Observation("a.2", "pay_once", 20.0, 21.0, "answered", "a.2 r2", again=True),
        Observation("a.3", "pay", 9.0, 10.5, "unknown", "lost"),
        Observation("a.4", "keep", 9.0, 12.0, "answered", "a.4 kept", harmless=True),
        Observation("a.5", "ask", 1.0, 2.0, "answered", "a.5 word"),
        Observation("a.6", "count", 1.0, 2.0, "answered", "a.6 2"),
        Observation("p.1", "post", 1.0, 2.0, "answered", "p.1 b 1"),
        Observation("a.7", "resumed", 9.0, 14.0, "answered", "a.7 2"),
        Observation("a.8", "restarted", 1.0, 2.0, "answered", "a.8 1"),
        Observation("a.9", "given_up", 9.0, 14.0, "failed", "it may or may not have been done"),
        Observation("a.10", "look", 9.0, 14.0, "answered", "a.10 seen", harmless=True),
        Observation("a.13", "wait", 1.0, 2.0, "answered", "a.13 cancelled"),
        Observation("a.14", "linger", 9.0, 10.5, "unknown", "cut off"),
        Observation("a.15", "limited", 8.9, 9.9, "answered", "a.15 r15"),
        Observation("a.16", "limited", 8.9, 10.5, "unknown", "lost"),
        Observation("a.19", "limited", 9.0, 20.0, "answered", "a.19 r19"),
    ),
    events=(
        EventSequence("a.6", 2, (1, 2), "answered"),
        EventSequence("a.11", 5, (1, 2, 3), "unknown"),
        EventSequence("a.12", 5, (), "unknown"),
    ),
    readings=(BoardReading("c", "b", 1),),
    listeners={"b": ("c",)},
    fault_periods=(DEATH,),
)


def seen(operation: str, **changes: Any) -> History:
    """The correct history, apart from the first outcome of one operation."""
    first = next(saw for saw in GOOD.observations if saw.operation == operation)
    return replace(
        GOOD, observations=tuple(replace(saw, **changes) if saw is first else saw for saw in GOOD.observations)
    )


MANY = replace(GOOD, fault_periods=(STOP,))


def more(*effects: Effect, periods: tuple[FaultPeriod, ...] = (DEATH,)) -> History:
    return replace(GOOD, effects=(*GOOD.effects, *effects), fault_periods=periods)


def less(what: str, operation: str, number: int | None = None) -> History:
    left = tuple(
        effect
        for effect in GOOD.effects
        if (effect.what, effect.operation) != (what, operation) or number not in {None, effect.number}
    )
    return replace(GOOD, effects=left)


def after_suspension(*effects: tuple[str, int, str]) -> History:
    """The correct history of several processes, and what a task of one of them did afterwards."""
    done = (Effect(what, "a.7", number, run, "a") for what, number, run in effects)
    return replace(MANY, effects=(*MANY.effects, *done))


BAD = {
    "an operation on another's behalf": (more(Effect("pay", "a.99", 0, "r9", "b")), "on behalf of b"),
    "a notice that is another's": (replace(GOOD, strange=("c was told of a.6",)), "c was told of a.6"),
    "an update on another's behalf": (more(Effect("post", "b", 2, "p.2", "q")), "on behalf of q"),
    "another's answer to an update": (seen("p.1", said="p.9 b 1"), "another's"),
    "another's answer": (seen("a.10", said="a.4 kept"), "another's"),
    "a result that was acknowledged and is not there": (less("pay", "a.1"), "was not done"),
    "a keyed result that was acknowledged and is not there": (less("pay", "a.2"), "was not done"),
    "a keyed answer that is that of another run": (seen("a.2", said="a.2 r9"), "was not done"),
    "a harmless call that was acknowledged and not done": (less("keep", "a.4"), "was not done"),
    "an answer to a question that came to nothing": (less("ask", "a.5"), "was not done"),
    "an update that was acknowledged and not made": (less("post", "b"), "was not done"),
    "a payment that was made twice": (more(Effect("pay", "a.1", 0, "r9", "a")), "done twice"),
    "a payment of unknown outcome that was made twice": (more(Effect("pay", "a.3", 0, "r9", "a")), "done twice"),
    "a payment that a graceful stop cut off, and that was made twice": (
        replace(more(Effect("linger", "a.14", 0, "r9", "a")), fault_periods=(FaultPeriod("term", 10.0, 11.0),)),
        "a.14 (linger) was done twice",
    ),
    "a keyed payment that was made twice": (more(Effect("pay", "a.2", 0, "r9", "a")), "done twice"),
    "a count that was begun twice": (more(Effect("count", "a.6", 1, "r9", "a")), "done twice"),
    "a number that was written on a board twice": (more(Effect("post", "b", 1, "p.1", "p")), "twice"),
    "an update that was made twice": (more(Effect("post", "b", 2, "p.1", "p")), "p.1 (post) was done twice"),
    "something that was cancelled and goes on": (less("wait", "a.13", 2), "goes on"),
    "a call that failed": (seen("a.1", outcome="failed", said="internal error"), "failed: internal error"),
    "no outcome, though the server lived": (seen("a.3", ended=9.5), "the server lived"),
    "no outcome, though the server was back": (seen("a.3", began=11.5, ended=12.0), "the server lived"),
    "a harmless call that was given up": (seen("a.10", outcome="unknown"), "may be repeated"),
    "an idempotent call that was given up": (seen("a.4", outcome="unknown"), "may be repeated"),
    "a task that may go on and was given up": (
        seen("a.7", outcome="failed", said="it may or may not have been done"),
        "failed",
    ),
    "a task that failed though its process lived": (seen("a.9", ended=9.5), "the server lived"),
    "a task that was lost": (seen("a.9", said="there is no such task"), "failed: there is no such task"),
    "a task that was to be given up and was begun again": (more(Effect("step", "a.9", 1, "t9", "a")), "begun again"),
    "a task that went back behind its checkpoint": (more(Effect("step", "a.7", 2, "t9", "a")), "after checkpoint 2"),
    "a task that ended before its work was done": (seen("a.8", said="a.8 5"), "after steps"),
    "a result that is another when it is asked for again": (
        replace(
            GOOD,
            observations=(
                *GOOD.observations,
                Observation("a.2", "pay_once", 20.0, 21.0, "failed", "another", again=True),
            ),
        ),
        "not any more",
    ),
    "an event that is missing in the middle": (
        replace(GOOD, events=(EventSequence("a.11", 5, (1, 3), "unknown"),)),
        "missing",
    ),
    "an event that is missing at the beginning": (
        replace(GOOD, events=(EventSequence("a.11", 5, (2,), "unknown"),)),
        "missing",
    ),
    "an event that came twice": (replace(GOOD, events=(EventSequence("a.11", 5, (1, 2, 2), "unknown"),)), "twice"),
    "an event that is missing at the end of what was answered": (
        replace(GOOD, events=(EventSequence("a.6", 2, (1,), "answered"),)),
        "1 events of 2",
    ),
    "positions with a gap": (replace(GOOD, gaps=("c: 0-3 came after 0-1",)), "gap"),
    "an update that a subscriber did not hear of": (replace(GOOD, readings=()), "c was not told of update 1"),
    "an update that a subscriber did not hear of before the next": (
        replace(
            GOOD,
            observations=(*GOOD.observations, Observation("p.2", "post", 3.0, 4.0, "answered", "p.2 b 3")),
            effects=(*GOOD.effects, Effect("post", "b", 3, "p.2", "p")),
            readings=(BoardReading("c", "b", 3),),
        ),
        "c was not told of update 1",
    ),
    "a call with a limit that was done twice": (
        more(Effect("enter", "a.19", 102, "r9", "a", at=14.0)),
        "a.19 (limited) was done twice",
    ),
    "a call with a limit that was acknowledged and not done": (less("leave", "a.19", 102), "was not done"),
    "a call beyond a limit": (
        more(*(Effect("enter", f"a.{number}", 103, f"r{number}", "a", at=15.0) for number in (20, 21, 22))),
        "a.22 (limited) began while ['a.20', 'a.21'] ran",
    ),
    "a call beyond a limit after the end of another process": (
        more(
            Effect("enter", "a.20", 103, "r20", "a", at=15.0),
            *(Effect("enter", f"a.{number}", 104, f"r{number}", "a", at=16.0) for number in (21, 22)),
            periods=(DEATH, FaultPeriod("kill", 15.5, 15.8, (105,))),
        ),
        "a.22 (limited) began while",
    ),
    "calls that do not go on after the end of a process": (
        replace(less("enter", "a.19"), fault_periods=(replace(DEATH, kind="kill"),)),
        "no call with a limit began",
    ),
    "a session that was put off, though nothing was wrong": (
        replace(GOOD, rejections=(Rejection("c", "ping", 503, "busy", 20.0),)),
        "HTTP 503",
    ),
    "a session that is put off for too long": (
        replace(MANY, rejections=(Rejection("c", "ping", 503, "busy", STOP.over + LATE + 0.1),)),
        "HTTP 503",
    ),
    "a session that was refused while one process was asleep": (
        replace(MANY, rejections=(Rejection("c", "ping", 404, "gone", 11.0),)),
        "HTTP 404",
    ),
    "a task that goes on in a process that was asleep": (
        after_suspension(("step", 1, "t9"), ("step", 2, "t9")),
        "after checkpoint 2",
    ),
    "a checkpoint of a process that was asleep": (
        after_suspension(("step", 1, "t9"), ("kept", 1, "t9")),
        "a run that was over",
    ),
    "a session that was refused": (replace(GOOD, rejections=(Rejection("c", "ping", 404, "gone"),)), "HTTP 404"),
    "a server with a traceback": (replace(GOOD, complaints=("Traceback",)), "Traceback"),
    "a client that never came to an end": (replace(GOOD, unfinished=("c",)), "did not come to an end"),
}


def test_correct_history_has_no_findings() -> None:
    assert violations(GOOD) == []


def test_unavoidable_effects_of_clusters_are_no_findings() -> None:
    """The last step of a suspended process; a session that has to retry; an update together with another."""
    assert violations(after_suspension(("step", 2, "t9"))) == []
    assert violations(replace(MANY, rejections=(Rejection("c", "ping", 502, "lost", 11.0),))) == []
    assert violations(replace(MANY, readings=(BoardReading("c", "b", 2),))) == []


def test_permits_of_ended_and_suspended_processes_do_not_count() -> None:
    entries = [Effect("enter", f"a.{number}", 100, f"r{number}", "a", at=15.0) for number in (20, 21)]
    other = Effect("enter", "a.23", 101, "r23", "a", at=16.5)
    assert violations(more(*entries, other, periods=(DEATH, FaultPeriod("kill", 16.0, 17.0, (100,))))) == []
    late = [Effect("leave", one.operation, 100, one.run, "a", at=19.0) for one in entries]
    suspended = FaultPeriod("stop", 16.0, 18.0, (100,))
    assert violations(more(*entries, other, *late, periods=(DEATH, suspended))) == []
    assert violations(more(*entries, other, *late, periods=(DEATH, replace(suspended, pids=(101,))))) != []


@pytest.mark.parametrize("fault", BAD)
def test_each_violation_is_found(fault: str) -> None:
    history, said = BAD[fault]
    found = violations(history)
    assert any(said in one for one in found), found
