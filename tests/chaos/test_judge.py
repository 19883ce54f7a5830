"""The judge finds each of the faults that it is there for, in histories that are made up; and nothing in a good one."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.chaos.history import Effect, Heard, History, Refusal, Saw, Told
from tests.chaos.judge import faults

DEATH = (10.0, 11.0)
GOOD = History(
    effects=(
        Effect("pay", "a.1", 0, "r1"),
        Effect("pay", "a.2", 0, "r2"),
        Effect("pay", "a.3", 0, "r3"),  # done, though its answer was lost
        Effect("keep", "a.4", 0, "-"),
        Effect("keep", "a.4", 0, "-"),
        Effect("ask", "a.5", 0, "word"),
        Effect("count", "a.6", 1, "r6"),
        Effect("count", "a.6", 2, "r6"),
        Effect("post", "b", 1, "-"),
        Effect("step", "a.7", 1, "t1"),
        Effect("kept", "a.7", 1, "t1"),
        Effect("step", "a.7", 2, "t1"),
        Effect("step", "a.7", 2, "t2"),  # the checkpoint after it was not reached
        Effect("kept", "a.7", 2, "t2"),
        Effect("step", "a.8", 1, "t3"),
        Effect("kept", "a.8", 1, "t3"),
        Effect("step", "a.9", 1, "t4"),
    ),
    saw=(
        Saw("a.1", "pay", 1.0, 2.0, "answered", "a.1 r1"),
        Saw("a.2", "pay_once", 9.0, 12.0, "answered", "a.2 r2"),
        Saw("a.2", "pay_once", 20.0, 21.0, "answered", "a.2 r2", again=True),
        Saw("a.3", "pay", 9.0, 10.5, "unknown", "lost"),
        Saw("a.4", "keep", 9.0, 12.0, "answered", "a.4 kept", harmless=True),
        Saw("a.5", "ask", 1.0, 2.0, "answered", "a.5 word"),
        Saw("a.6", "count", 1.0, 2.0, "answered", "a.6 2"),
        Saw("p.1", "post", 1.0, 2.0, "answered", "b 1"),
        Saw("a.7", "resumed", 9.0, 14.0, "answered", "a.7 2"),
        Saw("a.8", "restarted", 1.0, 2.0, "answered", "a.8 1"),
        Saw("a.9", "given_up", 9.0, 14.0, "failed", "it may or may not have been done"),
        Saw("a.10", "look", 9.0, 14.0, "answered", "a.10 seen", harmless=True),
    ),
    told=(Told("a.6", 2, (1, 2), "answered"), Told("a.11", 5, (1, 2, 3), "unknown"), Told("a.12", 5, (), "unknown")),
    heard=(Heard("c", "b", 1),),
    listeners={"b": ("c",)},
    deaths=(DEATH,),
)


def seen(deed: str, **changes: Any) -> History:
    """The good history, but for how one deed was seen to end the first time."""
    first = next(saw for saw in GOOD.saw if saw.deed == deed)
    return replace(GOOD, saw=tuple(replace(saw, **changes) if saw is first else saw for saw in GOOD.saw))


def more(*effects: Effect) -> History:
    return replace(GOOD, effects=(*GOOD.effects, *effects))


def less(what: str, deed: str) -> History:
    left = tuple(effect for effect in GOOD.effects if (effect.what, effect.deed) != (what, deed))
    return replace(GOOD, effects=left)


BAD = {
    "another's answer": (seen("a.10", said="a.4 kept"), "another's"),
    "a result that was acknowledged and is not there": (less("pay", "a.1"), "was not done"),
    "a keyed result that was acknowledged and is not there": (less("pay", "a.2"), "was not done"),
    "a keyed answer that is that of another run": (seen("a.2", said="a.2 r9"), "was not done"),
    "a harmless call that was acknowledged and not done": (less("keep", "a.4"), "was not done"),
    "an answer to a question that came to nothing": (less("ask", "a.5"), "was not done"),
    "an update that was acknowledged and not made": (less("post", "b"), "was not done"),
    "a payment that was made twice": (more(Effect("pay", "a.1", 0, "r9")), "done twice"),
    "a payment of unknown outcome that was made twice": (more(Effect("pay", "a.3", 0, "r9")), "done twice"),
    "a keyed payment that was made twice": (more(Effect("pay", "a.2", 0, "r9")), "done twice"),
    "a count that was begun twice": (more(Effect("count", "a.6", 1, "r9")), "done twice"),
    "a number that was written on a board twice": (more(Effect("post", "b", 1, "-")), "twice"),
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
    "a task that was to be given up and was begun again": (more(Effect("step", "a.9", 1, "t9")), "begun again"),
    "a task that went back behind its checkpoint": (more(Effect("step", "a.7", 2, "t9")), "after checkpoint 2"),
    "a task that ended before its work was done": (seen("a.8", said="a.8 5"), "after steps"),
    "a result that is another when it is asked for again": (
        replace(GOOD, saw=(*GOOD.saw, Saw("a.2", "pay_once", 20.0, 21.0, "failed", "another", again=True))),
        "not any more",
    ),
    "an event that is missing in the middle": (replace(GOOD, told=(Told("a.11", 5, (1, 3), "unknown"),)), "missing"),
    "an event that is missing at the beginning": (replace(GOOD, told=(Told("a.11", 5, (2,), "unknown"),)), "missing"),
    "an event that came twice": (replace(GOOD, told=(Told("a.11", 5, (1, 2, 2), "unknown"),)), "twice"),
    "an event that is missing at the end of what was answered": (
        replace(GOOD, told=(Told("a.6", 2, (1,), "answered"),)),
        "1 events of 2",
    ),
    "positions with a gap": (replace(GOOD, gaps=("c: 0-3 came after 0-1",)), "gap"),
    "an update that a subscriber did not hear of": (replace(GOOD, heard=()), "c was not told of update 1"),
    "a session that was refused": (replace(GOOD, refusals=(Refusal("c", "ping", 404, "gone"),)), "HTTP 404"),
    "a server with a traceback": (replace(GOOD, complaints=("Traceback",)), "Traceback"),
    "a client that never came to an end": (replace(GOOD, unfinished=("c",)), "did not come to an end"),
}


def test_nothing_is_found_in_a_history_that_is_as_it_should_be() -> None:
    assert faults(GOOD) == []


@pytest.mark.parametrize("fault", BAD)
def test_each_fault_is_found_by_itself(fault: str) -> None:
    history, said = BAD[fault]
    found = faults(history)
    assert any(said in one for one in found), found
