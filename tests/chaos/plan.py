"""What a campaign does, made of its seed alone: who takes part, what each does one after another, and when the server is
killed. What comes of it is up to the machine; the plan is the same every time."""

from collections.abc import Iterator, Mapping
from itertools import count
from random import Random
from typing import Final

from msgspec import Struct

__all__ = [
    "BOARDS",
    "FIRST_TO_TELL",
    "HARMLESS",
    "REVISIONS",
    "TASKS",
    "Deed",
    "Kill",
    "Part",
    "Plan",
    "deeds",
    "plan",
    "token_of",
]

REVISIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
MODERN: Final = "2026-07-28"
FIRST_TO_TELL: Final = "2025-03-26"  # of those in which a tool says of itself what it does
FIRST_TO_ASK: Final = "2025-06-18"  # of the revisions in which a user can be asked
FIRST_WITH_TASKS: Final = "2025-11-25"
TASKS: Final = ("resumed", "restarted", "given_up")
"""The tools that are tasks, each by what becomes of one whose process dies."""

HARMLESS: Final = frozenset({"look", "keep"})
"""The tools that say of themselves that they may be called twice."""

BOARDS: Final = 10
"""Clients to a board: of as many, one writes on it and the others want to hear of that."""

_WEIGHTS: Final[Mapping[str, int]] = {"look": 3, "pay": 3, "pay_once": 4, "keep": 2, "count": 4}
_LONGEST_PAUSE: Final = 0.15  # seconds between two deeds of one client
_SOON: Final = 0.2  # the share of kills that come while everybody still finds the way back
_MOST_ANSWERS: Final = 4  # for each client, between two kills


class Part(Struct, frozen=True):
    """One client: how it speaks, and which board it writes on or hears of."""

    name: str
    revision: str
    raw: bool  # it is played by hand, and not by our client
    board: str
    writes: bool


class Deed(Struct, frozen=True):
    """One thing that a client does. Its id is unlike that of any other deed, and is found again in all that comes of
    it."""

    id: str
    kind: str
    size: int  # steps, events
    pause: float  # seconds before it is done
    waits: bool  # who is asked answers only when the server has been killed once more
    keyed: bool  # it carries a key, so that it can be asked for again, though it is no harmless one


class Kill(Struct, frozen=True):
    """When the server is killed, counted from when it has come back: how fast that goes is up to the machine, so it is
    counted in what clients were answered since, and in a moment after that."""

    answers: int
    after: float  # seconds


class Plan(Struct, frozen=True):
    """A whole campaign. When nobody does anything any more the server is killed once more, so that what was answered is
    asked for again of a process that has not answered it."""

    seed: int
    parts: tuple[Part, ...]
    kills: tuple[Kill, ...]


def plan(seed: int, clients: int, kills: int) -> Plan:
    """The plan of a seed."""
    chance = Random(seed)
    return Plan(
        seed,
        tuple(_part(number) for number in range(clients)),
        tuple(_kill(chance, _MOST_ANSWERS * clients) for _ in range(kills)),
    )


def _kill(chance: Random, most: int) -> Kill:
    if chance.random() < _SOON:
        return Kill(0, chance.uniform(0.0, 0.5))
    return Kill(chance.randint(1, most), chance.uniform(0.0, 0.05))


def _part(number: int) -> Part:
    """Revisions take turns. Every board has one writer, and somebody by hand among those who listen."""
    revision = REVISIONS[number % len(REVISIONS)]
    group, place = divmod(number, BOARDS)
    raw = place in {3, 6, 7} and revision != MODERN  # where there is a stream to come back to
    return Part(f"c{number:03}", revision, raw, f"b{group:02}", writes=place == 0)


def token_of(name: str) -> str:
    """The token by which a client shows who it is."""
    return f"token-of-{name}"


def deeds(seed: int, part: Part) -> Iterator[Deed]:
    """What a client does, without end."""
    chance = Random(f"{seed}/{part.name}")
    weights = _weights(part)
    for number in count(1):
        kind = chance.choices(list(weights), list(weights.values()))[0]
        yield Deed(
            f"{part.name}.{number}",
            kind,
            size=chance.randint(1, 12),
            pause=chance.uniform(0.0, _LONGEST_PAUSE),
            waits=chance.choice((True, False)),
            keyed=kind == "pay_once" or chance.choice((True, False)),
        )


def _weights(part: Part) -> dict[str, int]:
    found = dict(_WEIGHTS)
    if part.writes:
        found["post"] = 20
    if not part.raw and part.revision >= FIRST_TO_ASK:
        found["ask"] = 3
    if part.revision >= FIRST_WITH_TASKS:  # by hand, in the words of the founding documents
        found |= dict.fromkeys(TASKS, 2)
    return found
