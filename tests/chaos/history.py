"""The history of a campaign: observations of its clients, and the effects file that the server's tools wrote."""

from pathlib import Path
from typing import Literal

from msgspec import Struct
from tests.chaos.plan import Kind

__all__ = [
    "BoardReading",
    "Effect",
    "EventSequence",
    "FaultPeriod",
    "History",
    "Observation",
    "Outcome",
    "Rejection",
    "read_effects",
]

Outcome = Literal["answered", "unknown", "failed"]
"""The outcome of an operation for its client. Unknown: the server said so, or the connection was lost without a way to resume."""


class Effect(Struct, frozen=True):
    """One line of a tool: its name, the operation, a number, the run, and the principal. For a number on a board,
    the board precedes the operation.
    """

    what: str
    operation: str
    number: int
    run: str
    who: str


class Observation(Struct, frozen=True):
    """The outcome of an operation for its client."""

    operation: str
    kind: str
    began: float
    ended: float
    outcome: Outcome
    said: str = ""  # the response, or the reason why there is none
    again: bool = False  # a repetition of an operation that had its response
    harmless: bool = False  # the client knew that it may repeat the operation, and had to


class EventSequence(Struct, frozen=True):
    """The numbered events of one operation, in the order of arrival, over any number of connections."""

    operation: str
    wanted: int  # how many there are
    numbers: tuple[int, ...]
    outcome: Outcome


class BoardReading(Struct, frozen=True):
    """A subscriber was notified of a board, read it, and found this number."""

    who: str
    board: str
    number: int


class Rejection(Struct, frozen=True):
    """An HTTP error status that a raw client received."""

    who: str
    asked: str
    status: int
    said: str
    at: float = 0.0


class FaultPeriod(Struct, frozen=True):
    """A fault, with its beginning and the time when all processes were ready again."""

    kind: Kind
    at: float
    over: float


class History(Struct, frozen=True):
    """All observations."""

    effects: tuple[Effect, ...] = ()
    observations: tuple[Observation, ...] = ()
    events: tuple[EventSequence, ...] = ()
    readings: tuple[BoardReading, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    gaps: tuple[str, ...] = ()  # errors in the event ids of one stream
    listeners: dict[str, tuple[str, ...]] = {}  # by board, the subscribers before the first update
    strange: tuple[str, ...] = ()  # what a client received that belongs to another
    fault_periods: tuple[FaultPeriod, ...] = ()
    complaints: tuple[str, ...] = ()  # error lines of the server's output
    unfinished: tuple[str, ...] = ()  # clients that did not finish


def read_effects(path: Path) -> tuple[Effect, ...]:
    """Read the effects file. The last line may be incomplete: the process was killed before its response."""
    found: list[Effect] = []
    for line in path.read_text(encoding="ascii").splitlines():
        what, operation, number, run, who = line.split()
        found.append(Effect(what, operation, int(number), run, who))
    return tuple(found)
