"""What is written down of a campaign: by those who take part, and by the server's tools in a file of their own."""

from pathlib import Path
from typing import Literal

from msgspec import Struct
from tests.chaos.plan import Kind

__all__ = ["Effect", "Heard", "History", "Outcome", "Refusal", "Saw", "Told", "Trouble", "read_effects"]

Outcome = Literal["answered", "unknown", "failed"]
"""How a deed ended for who did it. Unknown: it was told so, or lost the line and cannot ask again."""


class Effect(Struct, frozen=True):
    """One line that a tool has written: what it did, for which deed, as what number, in which run of it, and on whose
    behalf. What is written on a board has the board there, and then the deed."""

    what: str
    deed: str
    number: int
    run: str
    who: str


class Saw(Struct, frozen=True):
    """A deed, as it ended for who did it."""

    deed: str
    kind: str
    began: float
    ended: float
    outcome: Outcome
    said: str = ""  # the answer, or why there is none
    again: bool = False  # it was asked for once more, of what had been answered before
    harmless: bool = False  # who did it knew that it may be repeated, and had to do so


class Told(Struct, frozen=True):
    """The numbered events of one deed, in the order in which they came, over however many connections."""

    deed: str
    wanted: int  # how many there are
    numbers: tuple[int, ...]
    outcome: Outcome


class Heard(Struct, frozen=True):
    """A subscriber was told of a board, looked, and found this number on it."""

    who: str
    board: str
    number: int


class Refusal(Struct, frozen=True):
    """An HTTP status of failure that a client by hand was given."""

    who: str
    asked: str
    status: int
    said: str
    at: float = 0.0


class Trouble(Struct, frozen=True):
    """What was done to the server, from when until when all was there again."""

    kind: Kind
    at: float
    over: float


class History(Struct, frozen=True):
    """All of it."""

    effects: tuple[Effect, ...] = ()
    saw: tuple[Saw, ...] = ()
    told: tuple[Told, ...] = ()
    heard: tuple[Heard, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    gaps: tuple[str, ...] = ()  # what was wrong with the positions of events on one stream
    listeners: dict[str, tuple[str, ...]] = {}  # by board, who is subscribed to it before anything is written there
    strange: tuple[str, ...] = ()  # what somebody was told that is another's
    troubles: tuple[Trouble, ...] = ()
    complaints: tuple[str, ...] = ()  # what the server said that sounds like an error
    unfinished: tuple[str, ...] = ()  # who did not come to an end


def read_effects(path: Path) -> tuple[Effect, ...]:
    """What the tools have written. The last line may be cut off: whoever was killed while writing it was not heard."""
    found: list[Effect] = []
    for line in path.read_text(encoding="ascii").splitlines():
        what, deed, number, run, who = line.split()
        found.append(Effect(what, deed, int(number), run, who))
    return tuple(found)
