"""The history of a campaign: observations of its clients, and the effects of the server's tools."""

from typing import Literal

from msgspec import Struct
from tests.chaos.effects import Effect
from tests.chaos.plan import Kind

__all__ = [
    "BoardReading",
    "EventSequence",
    "FaultPeriod",
    "History",
    "Observation",
    "Outcome",
    "Rejection",
]

Outcome = Literal["answered", "unknown", "failed"]
"""The outcome of an operation for its client. Unknown: the server said so, or the connection was lost without a way to resume."""


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
    pids: tuple[int, ...] = ()  # the processes that it ended or suspended
    stopped: float | None = None  # of a graceful stop: when the processes had ended, before others start
    partial: bool = False  # other processes serve meanwhile


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
