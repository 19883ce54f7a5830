"""A model of processes that share a store: their load on it and on each other, and latencies.

Its inputs are the store calls of each operation and their cost for a Valkey, which `python -m bench.units` measures,
and an assumed load. `bench/scale.py` prints the results.
"""

import binascii
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

SEED = 1
MILLION = 1e6

# --- inputs ---------------------------------------------------------------------------------------

COSTS = {
    "always": {"commit": 53.0, "get": 19.0, "page": 23.0, "acquire": 41.0, "refused": 15.0, "renew": 29.0},
    "everysec": {"commit": 45.0, "get": 18.0, "page": 26.0, "acquire": 33.0, "refused": 20.0, "renew": 26.0},
}
"""CPU µs of a Valkey for each call of the store's script, by `appendfsync`: the first of three runs of `bench.units`,
when the machine had little else to do. In the others, with ten times as much to do, most were up to 1.8 times that."""
ALIKE = {"register": 15.0, "sweep": 16.0, "settle": 11.0, "publish": 3.3, "deliver": 1.0, "count": 0.35}
"""The same for every `appendfsync`: they write little or nothing. Publishing a message has a cost, and so has each
delivery; counting the subscribers of a channel has one, too."""
HEAR_US = 3.1  # CPU of a process of ours for a message without a waiter there
CARRY_US = 135.0  # more CPU, of both processes, for a forwarded call: the middle of 106 (Valkey) and 159 (sockets)
LINES = 4  # connections of each process: two for the store, two for the bus
ROUND_TRIP_S = 0.0003  # to a Valkey in the same building; assumed
SESSION_BYTES = 3_600  # of a session with a record, a lease and an event, in Valkey's memory
FULL = 0.7  # of a Valkey's one thread: above that, calls queue for longer than they take

ASKED: Mapping[str, Mapping[str, float]] = {
    "session": {"register": 2, "acquire": 1, "commit": 2, "sweep": 2, "settle": 2},
    "touch": {"register": 1, "commit": 1, "renew": 1, "sweep": 1, "settle": 1},
    "stream": {"register": 1, "commit": 2, "sweep": 1, "settle": 1},
    "keyed": {"commit": 2, "get": 1},
    "task": {"register": 1, "acquire": 1, "commit": 5, "get": 1, "release": 1, "sweep": 2, "settle": 2},
    "poll": {"get": 1},
}
"""Calls of the script for each thing that happens. A home that has not been written to for some 15 s is registered with
the first write, and swept a minute later; so is the mark of a task, which is a home of its own."""
OF_OWNERS = {"keyed": 2, "task": 2}  # of these, commits to homes of owners, which processes watch


@dataclass(frozen=True)
class Load:
    """The operations of one process, and the duration of its leases. Rates are per second."""

    sessions: int = 2000
    calls: float = 300.0
    streamed: float = 0.05  # of the calls; these have a stream of two events as response
    keyed: float = 0.02
    tasks: float = 0.01
    task_seconds: float = 10.0
    news: float = 0.05  # updated resources, added tools
    in_sessions: float = 1.0  # of the calls; the others are of 2026-07-28
    session_ttl: float = 3600.0
    task_lease: float = 10.0  # between two scans for lost tasks
    process_lease: float = 5.0
    patience: float = 5.0  # of the bus: how often each checks whether the others are subscribed

    def happens(self) -> dict[str, float]:
        """The rate of each operation in a process."""
        made = self.calls * self.tasks
        return {
            "session": self.sessions / self.session_ttl,
            "touch": self.sessions / (self.session_ttl / 10),
            "stream": self.calls * self.streamed,
            "keyed": self.calls * self.keyed,
            "task": made,
            "poll": made * self.task_seconds,
        }

    @property
    def running(self) -> float:
        """Tasks that a process runs at a time."""
        return self.calls * self.tasks * self.task_seconds


@dataclass(frozen=True)
class Design:
    """Options of the whole deployment; each is a change to the present design."""

    sent_home: bool = False  # the load balancer sends a session's requests to its owner
    watched_by_owner: bool = False  # a waiter for a task watches its owner, not all owners
    marks_by_process: bool = False  # working tasks are marked by process; a takeover reads the marks of the process
    quiet: bool = False  # no heartbeats on the bus: liveness checks read the store
    news_by_interest: float = 1.0  # of all processes; so many receive a notification
    each_looks: bool = False  # for lost tasks, as if it was alone


BUILT = Design()
STEPS: tuple[tuple[str, Design], ...] = (
    ("if each process scanned for lost tasks as if it were alone", Design(each_looks=True)),
    ("as built", BUILT),
    ("1. requests go to the holder of their session", Design(True)),
    ("2. and each owner has its own watch", Design(True, True)),
    ("3. and task markers are stored by process", Design(True, True, True)),
    ("4. and there are no heartbeats on the bus", Design(True, True, True, True)),
    ("5. and notifications go to the interested tenth", Design(True, True, True, True, 0.1)),
)
LAST = STEPS[-1][1]


# --- the store ------------------------------------------------------------------------------------


@dataclass
class Spent:
    """The spending per second, by purpose: CPU µs of Valkey, of which some in the slot of the index, and messages
    that each process receives.
    """

    cpu: Counter[str] = field(default_factory=Counter)
    index: float = 0.0
    heard: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """The share of a Valkey's one thread."""
        return sum(self.cpu.values()) / MILLION


def spent(processes: int, design: Design = BUILT, load: Load | None = None, fsync: str = "always") -> Spent:
    """The spending of so many processes."""
    load = load or Load()
    cost, found, others = COSTS[fsync] | ALIKE, Spent(), processes - 1
    cost["release"] = cost["renew"]
    for thing, often in load.happens().items():
        asked = dict(ASKED[thing])
        if thing == "task" and design.marks_by_process:  # their home exists already
            asked |= {"register": 0, "sweep": 0, "settle": 0}
        found.cpu["own work"] += processes * often * sum(cost[kind] * times for kind, times in asked.items())
        found.index += processes * often * sum(cost[kind] * asked.get(kind, 0) for kind in ("register", "settle"))
    _add_crew(found, processes, design, load, cost)
    if not design.sent_home:
        carried = processes * load.calls * load.in_sessions * others / processes
        found.cpu["forwarded requests"] += carried * 2 * (cost["publish"] + cost["deliver"])
        found.heard["forwarded requests"] += 2 * carried / processes
    changes = sum(load.happens()[thing] * times for thing, times in OF_OWNERS.items())
    hear = 0 if design.watched_by_owner else others * changes
    found.cpu["owner watches"] += processes * hear * cost["deliver"]
    found.heard["owner watches"] += hear
    return found


def _add_crew(found: Spent, processes: int, design: Design, load: Load, cost: Mapping[str, float]) -> None:
    """Add the spending on membership."""
    others, beats = processes - 1, 3 / load.process_lease
    found.cpu["heartbeats"] += processes * beats * cost["renew"]
    if not design.quiet:
        found.cpu["heartbeats"] += processes * beats * (cost["publish"] + others * cost["deliver"])
        found.cpu["heartbeats"] += processes * others / load.patience * cost["count"]
        found.heard["heartbeats"] += others * beats
    told = others * design.news_by_interest
    back = cost["publish"] + cost["deliver"]
    found.cpu["notifications"] += processes * load.news * (cost["publish"] + told * (cost["deliver"] + back))
    found.heard["notifications"] += 2 * told * load.news
    marks = load.running * processes
    if design.marks_by_process:
        found.cpu["task recovery"] += processes / load.task_lease * cost["get"]  # the list of processes
    else:
        each = marks * cost["page"] + (marks - load.running) * cost["refused"]
        often = processes / load.task_lease if design.each_looks else looks(processes, load)
        found.cpu["task recovery"] += often * each
    found.cpu["other"] += processes * (cost["get"] / 600 + cost["settle"] / 60)  # keys of states, sweeps
    found.index += processes * cost["settle"] / 60


def looks(processes: int, load: Load) -> float:
    """The rate of periodic scans for lost tasks: each process scans the more seldom the more of them come before."""
    return sum(1 / (load.task_lease * (1 + before)) for before in range(processes))


def most_processes(design: Design, fsync: str = "always", load: Load | None = None) -> int:
    """The number of processes that one Valkey can serve."""
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spent(middle, design, load, fsync).share <= FULL else (low, middle)
    return low


# --- shards ---------------------------------------------------------------------------------------

SLOTS = 16_384
SHARDS = (1, 2, 4, 8, 16, 32, 64)
HOMES = 100_000


def slot_of(home: str) -> int:
    """The slot of a home, by its hash tag, as in Redis Cluster."""
    return binascii.crc_hqx(home.encode(), 0) % SLOTS


@cache
def _weights() -> list[list[bytes]]:
    """For each slot, a number for each possible shard."""
    found = []
    for slot in range(SLOTS):
        drawn = b"".join(hashlib.blake2b(b"%d %d" % (slot, n)).digest() for n in range(SHARDS[-1] // 16))
        found.append([drawn[at : at + 4] for at in range(0, len(drawn), 4)])
    return found


def rendezvous(shards: int) -> list[int]:
    """The shard of each slot: the one whose name, hashed with that of the slot, gives the highest number."""
    return [weights.index(max(weights[:shards])) for weights in _weights()]


def zipf(count: int, skew: float) -> list[float]:
    """The share of the load of each of so many, the first the largest."""
    weights = [1 / rank**skew for rank in range(1, count + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def busiest(map_of: Sequence[int], homes: Sequence[int], shares: Sequence[float] | None, shards: int) -> float:
    """The load of the busiest shard, relative to an even spread."""
    loads = [0.0] * shards
    for at, slot in enumerate(homes):
        loads[map_of[slot]] += 1 / len(homes) if shares is None else shares[at]
    return max(loads) * shards


# --- takeover ---------------------------------------------------------------------------------------


def percentiles(draw: Callable[[], float], times: int = 20_000) -> tuple[float, float, float]:
    """Median, 99th percentile and maximum of so many draws."""
    drawn = sorted(draw() for _ in range(times))
    return drawn[times // 2], drawn[times * 99 // 100], drawn[-1]


def left_of(lease: float, chance: random.Random) -> float:
    """The remaining time of a lease that is renewed every third of its duration, when its holder dies at a random
    moment.
    """
    return lease - chance.uniform(0, lease / 3)


def task_taken(processes: int, chance: random.Random, load: Load, design: Design) -> float:
    """The time from the death of a process until another runs one of its tasks. Another one finds with a heartbeat that
    the process lease has expired. The first one then scans, and goes from mark to mark, one after the other.
    """
    soonest = 1 - chance.random() ** (1 / (processes - 1))  # of the next heartbeats of all others
    evicted = left_of(load.process_lease, chance) + soonest * load.process_lease / 3
    marks = load.running if design.marks_by_process else load.running * processes * 1.01
    return evicted + chance.random() * marks * ROUND_TRIP_S
