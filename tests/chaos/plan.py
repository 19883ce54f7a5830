"""The plan of a campaign, derived from its seed alone: its clients, their operations, and the faults with their
times. The results depend on the machine; the plan is the same every time.
"""

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
    "LIMIT",
    "REVISIONS",
    "TASKS",
    "ClientPlan",
    "Deployment",
    "Fault",
    "FaultInjection",
    "Kind",
    "Operation",
    "Plan",
    "operations",
    "owner",
    "plan",
    "token_of",
]

REVISIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
MODERN: Final = "2026-07-28"
FIRST_TO_TELL: Final = "2025-03-26"  # of those in which tools have annotations
FIRST_TO_ASK: Final = "2025-06-18"  # of those with elicitation
FIRST_WITH_TASKS: Final = "2025-11-25"
TASKS: Final = ("resumed", "restarted", "given_up")
"""The task tools, each named after its recovery policy."""

HARMLESS: Final = frozenset({"look", "keep"})
"""The tools that are declared idempotent or read-only."""

LIMIT: Final = 2
"""Calls of the tool `limited` that may run at the same time, in all processes together."""

BOARDS: Final = 10
"""Clients per board: one writes on it and the others are subscribed to it."""

LEASE: Final = 2.0
"""Seconds after which another process takes over the work of a dead one, and for which a server waits for its store, where
that is not a file. A busy machine needs that much; half of it suffices where there is little to do.
"""

Deployment = Literal["file", "workers", "valkey", "sentinel"]
Kind = Literal["death", "term", "kill", "stop", "restart", "cut", "drop", "stall", "failover", "full", "clock", "forge"]
"""The kinds of faults: the whole deployment is killed and restarted; it, or one of its processes, is stopped by SIGTERM with a
drain that is too short for most calls, and restarted; one of its processes is killed, or suspended for longer than its leases
last; its store is killed and restarted, is unreachable, breaks some of its connections and not the others, does not respond
for longer than any timeout, or is killed and replaced by its replica; the disk of its store is full for a while; the clock of
one or of all of its processes is wrong by half a minute for a while; a program without the key of the bus changes and repeats
the messages of its processes.
"""

Fault = Literal["losing", "unfenced", "denying", "trusting", "stale"]
"""The faults of a deployment that a campaign has to find: its store drops writes, or its store accepts writes under lost
leases; its processes report started calls as not started, believe messages with a wrong signature, or continue under their
name after an eviction.
"""

DEPLOYMENTS: Final[Mapping[Deployment, tuple[Kind, ...]]] = {
    "file": ("death", "term", "full", "clock"),
    "workers": ("kill", "stop", "term", "full", "clock"),
    "valkey": ("kill", "stop", "restart", "cut", "drop", "stall", "term", "full", "clock", "forge"),
    "sentinel": ("failover", "kill", "stop", "term", "clock"),
}
"""The kinds of faults by deployment: one process on a file; four on one port, over a file and sockets; three over one Valkey;
three over a Valkey with a replica that confirms its writes, and a sentinel.
"""

_LASTS: Final[Mapping[Kind, tuple[float, float]]] = {
    "stop": (1.2, 2.0),
    "restart": (0.0, 0.5),
    "cut": (0.0, 0.5),
    "stall": (1.5, 2.0),
    "full": (0.2, 2.0),
    "clock": (0.2, 2.0),
    "forge": (0.5, 1.0),
}  # leases
_WEIGHTS: Final[Mapping[str, int]] = {
    "look": 3,
    "pay": 3,
    "pay_once": 4,
    "keep": 2,
    "count": 4,
    "wait": 2,
    "linger": 4,
    "limited": 3,
}
_LONGEST_PAUSE: Final = 0.15  # seconds between two operations of one client
_SOON: Final = 0.2  # the share of faults that come while clients still recover
_MOST_ANSWERS: Final = 4  # for each client, between two faults


class ClientPlan(Struct, frozen=True):
    """One client: its protocol, and the board that it writes or subscribes to."""

    name: str
    revision: str
    raw: bool  # a raw client, and not our own
    board: str
    writes: bool


class Operation(Struct, frozen=True):
    """One operation of a client. Its id is unique, and recurs in all of its effects and results."""

    id: str
    kind: str
    size: int  # steps, events
    pause: float  # seconds before it
    waits: bool  # the user answers only after the next fault
    keyed: bool  # it has a key, so that the client can repeat it, though it is not idempotent


class FaultInjection(Struct, frozen=True):
    """A fault, and its time, relative to the end of the last recovery: counted in responses since then, because the
    speed depends on the machine, plus a delay.
    """

    kind: Kind
    answers: int
    after: float  # seconds
    who: float = 0.0  # the index of the process, as a share of all
    lasts: float = 0.0  # seconds


class Plan(Struct, frozen=True):
    """A whole campaign. After the last operation the whole deployment restarts once more, so that another process
    answers the repetitions.
    """

    seed: int
    parts: tuple[ClientPlan, ...]
    injection: tuple[FaultInjection, ...]
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
    """The plan of a seed. Each kind of fault has its turn: all kinds of a deployment, or some."""
    chance = Random(seed)
    kinds: Sequence[Kind] = chance.sample(only or DEPLOYMENTS[deployment], len(only or DEPLOYMENTS[deployment]))
    return Plan(
        seed,
        tuple(_part(number) for number in range(clients)),
        tuple(
            _injection(chance, kinds[number % len(kinds)], _MOST_ANSWERS * clients, lease) for number in range(rounds)
        ),
        deployment,
        lease,
    )


def _injection(chance: Random, kind: Kind, most: int, lease: float) -> FaultInjection:
    soon = chance.random() < _SOON
    answers, after = (0, chance.uniform(0.0, 0.5)) if soon else (chance.randint(1, most), chance.uniform(0.0, 0.05))
    return FaultInjection(kind, answers, after, chance.random(), lease * chance.uniform(*_LASTS.get(kind, (0.0, 0.0))))


def _part(number: int) -> ClientPlan:
    """Revisions alternate. Each board has one writer, and a raw client among its subscribers."""
    revision = REVISIONS[number % len(REVISIONS)]
    group, place = divmod(number, BOARDS)
    raw = place in {3, 6, 7} and revision != MODERN  # where streams are resumable
    return ClientPlan(f"c{number:03}", revision, raw, f"b{group:02}", writes=place == 0)


def token_of(name: str) -> str:
    """The token of a client."""
    return f"token-of-{name}"


def owner(operation: str) -> str:
    """The client of an operation."""
    return operation.partition(".")[0]


def operations(seed: int, part: ClientPlan) -> Iterator[Operation]:
    """The endless sequence of a client's operations."""
    chance = Random(f"{seed}/{part.name}")
    weights = _weights(part)
    for number in count(1):
        kind = chance.choices(list(weights), list(weights.values()))[0]
        yield Operation(
            f"{part.name}.{number}",
            kind,
            size=chance.randint(1, 12),
            pause=chance.uniform(0.0, _LONGEST_PAUSE),
            waits=chance.choice((True, False)),
            keyed=kind == "pay_once" or chance.choice((True, False)),
        )


def _weights(part: ClientPlan) -> dict[str, int]:
    found = dict(_WEIGHTS)
    if part.writes:
        found["post"] = 20
    if not part.raw and part.revision >= FIRST_TO_ASK:
        found["ask"] = 3
    if part.revision >= FIRST_WITH_TASKS:  # raw, in the dialect of the founding documents
        found |= dict.fromkeys(TASKS, 2)
    return found
