"""What a campaign does, made of its seed alone: who takes part, what each does one after another, and what is done to the
server, and when. What comes of it is up to the machine; the plan is the same every time."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Final, Literal

from msgspec import Struct

__all__ = [
    "BOARDS",
    "DEPLOYMENTS",
    "FIRST_TO_TELL",
    "HARMLESS",
    "LEASE",
    "REVISIONS",
    "TASKS",
    "Deed",
    "Deployment",
    "Kind",
    "Mischief",
    "Part",
    "Plan",
    "deeds",
    "owner",
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

LEASE: Final = 2.0
"""Seconds after which the work of a dead process is taken over, and for which a server waits for its store, where that is
not a file. A busy machine needs that much; where there is little to do, half of it will do."""

Deployment = Literal["file", "workers", "valkey"]
Kind = Literal["death", "term", "kill", "stop", "restart", "cut", "drop", "stall"]
"""What is done to a deployment: all of it dies and comes back; it, or one of its processes, is stopped by SIGTERM with a drain
that is too short for most calls, and started again; one of its processes is killed, or is asleep for longer than its
leases last; its store is killed and started again, cannot be reached, breaks some of its connections and not the others,
or does not answer for longer than anybody waits."""

DEPLOYMENTS: Final[Mapping[Deployment, tuple[Kind, ...]]] = {
    "file": ("death", "term"),
    "workers": ("kill", "stop", "term"),
    "valkey": ("kill", "stop", "restart", "cut", "drop", "stall", "term"),
}
"""One process on a file; four on one port, over a file and sockets; three over one Valkey. What is done to each."""

_LASTS: Final[Mapping[Kind, tuple[float, float]]] = {
    "stop": (1.2, 2.0),
    "restart": (0.0, 0.5),
    "cut": (0.0, 0.5),
    "stall": (1.5, 2.0),
}  # leases
_WEIGHTS: Final[Mapping[str, int]] = {"look": 3, "pay": 3, "pay_once": 4, "keep": 2, "count": 4, "wait": 2, "linger": 4}
_LONGEST_PAUSE: Final = 0.15  # seconds between two deeds of one client
_SOON: Final = 0.2  # the share of mischief that comes while everybody still finds the way back
_MOST_ANSWERS: Final = 4  # for each client, between two mischiefs


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
    waits: bool  # who is asked answers only when something has been done to the server once more
    keyed: bool  # it carries a key, so that it can be asked for again, though it is no harmless one


class Mischief(Struct, frozen=True):
    """What is done, and when, counted from when all was well again: how fast that goes is up to the machine, so it is
    counted in what clients were answered since, and in a moment after that."""

    kind: Kind
    answers: int
    after: float  # seconds
    who: float = 0.0  # which of the processes, as a share of all
    lasts: float = 0.0  # seconds


class Plan(Struct, frozen=True):
    """A whole campaign. When nobody does anything any more the whole deployment dies once more, so that what was answered is
    asked for again of a process that has not answered it."""

    seed: int
    parts: tuple[Part, ...]
    mischief: tuple[Mischief, ...]
    deployment: Deployment = "file"
    lease: float = LEASE


def plan(
    seed: int,
    clients: int,
    rounds: int,
    deployment: Deployment = "file",
    *,
    only: Sequence[Kind] = (),
    lease: float = LEASE,
) -> Plan:
    """The plan of a seed. Each kind of mischief has its turn, of all that there are in a deployment or of some."""
    chance = Random(seed)
    kinds: Sequence[Kind] = chance.sample(only or DEPLOYMENTS[deployment], len(only or DEPLOYMENTS[deployment]))
    return Plan(
        seed,
        tuple(_part(number) for number in range(clients)),
        tuple(
            _mischief(chance, kinds[number % len(kinds)], _MOST_ANSWERS * clients, lease) for number in range(rounds)
        ),
        deployment,
        lease,
    )


def _mischief(chance: Random, kind: Kind, most: int, lease: float) -> Mischief:
    soon = chance.random() < _SOON
    answers, after = (0, chance.uniform(0.0, 0.5)) if soon else (chance.randint(1, most), chance.uniform(0.0, 0.05))
    return Mischief(kind, answers, after, chance.random(), lease * chance.uniform(*_LASTS.get(kind, (0.0, 0.0))))


def _part(number: int) -> Part:
    """Revisions take turns. Every board has one writer, and somebody by hand among those who listen."""
    revision = REVISIONS[number % len(REVISIONS)]
    group, place = divmod(number, BOARDS)
    raw = place in {3, 6, 7} and revision != MODERN  # where there is a stream to come back to
    return Part(f"c{number:03}", revision, raw, f"b{group:02}", writes=place == 0)


def token_of(name: str) -> str:
    """The token by which a client shows who it is."""
    return f"token-of-{name}"


def owner(deed: str) -> str:
    """Whose deed it is."""
    return deed.partition(".")[0]


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
