"""The behaviour of one store, and of the processes that share it, as their number grows: `python -m bench.scale`, a few
seconds.

A model (`bench/scale_model.py`), not a measurement. It is the same for the same seed. `--write` puts its tables into
`docs/design/scaling.md`, where a test compares them.
"""

import argparse
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from bench.scale_model import (
    ALIKE,
    BUILT,
    CARRY_US,
    COSTS,
    FULL,
    HEAR_US,
    HOMES,
    LAST,
    LINES,
    MILLION,
    OF_OWNERS,
    ROUND_TRIP_S,
    SEED,
    SESSION_BYTES,
    SHARDS,
    SLOTS,
    STEPS,
    Design,
    Load,
    busiest,
    left_of,
    most_processes,
    percentiles,
    rendezvous,
    slot_of,
    spent,
    task_taken,
    zipf,
)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design" / "scaling.md"
PART = re.compile(r"(<!-- simulated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """A table for the terminal and for the page."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def plain(self) -> str:
        """Columns."""
        widths = [max(len(row[at]) for row in (self.head, *self.rows)) for at in range(len(self.head))]
        lines = []
        for row in (self.head, *self.rows):
            cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        """As the page has it."""
        lines = [self.head, ["---", *["--:"] * (len(self.head) - 1)], *self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


MANY = (1, 2, 5, 10, 50, 100, 500, 1000, 5000)


def _percent(share: float) -> str:
    percent = share * 100
    return f"{percent:,.1f} %" if percent < 10 else f"{percent:,.0f} %"


def loads(design: Design) -> Table:
    """The share of a Valkey that so many processes need, by purpose."""
    found = {count: spent(count, design) for count in MANY}
    names = [name for name in found[1].cpu if any(one.cpu[name] for one in found.values())]
    rows = [
        [f"{count:,}", *(_percent(one.cpu[name] / MILLION) for name in names), _percent(one.share)]
        for count, one in found.items()
    ]
    return Table(["processes", *names, "total"], rows)


def steps() -> Table:
    """The number of processes that one Valkey can serve, design by design."""
    modern = replace(Load(), in_sessions=0.0, streamed=0.0, sessions=0)
    rows = [
        [
            name,
            *(f"{most_processes(design, fsync):,}" for fsync in ("always", "everysec")),
            f"{most_processes(design, 'always', modern):,}",
        ]
        for name, design in STEPS
    ]
    return Table(["", "`always`", "`everysec`", "`always`, 2026-07-28 only"], rows)


def fan_out() -> Table:
    """Messages that each process receives from the others."""
    rows = []
    for count in MANY:
        before, after = spent(count).heard, spent(count, LAST).heard
        rows.append(
            [
                f"{count:,}",
                *(f"{before[name]:,.0f}" for name in before),
                _percent(sum(before.values()) * HEAR_US / MILLION),
                f"{sum(after.values()):,.0f}",
                _percent(sum(after.values()) * HEAR_US / MILLION),
            ]
        )
    names = list(spent(1).heard)
    return Table(["processes", *names, "of its CPU", "with all changes", "of its CPU"], rows)


def carried() -> Table:
    """Requests of sessions that reach a process which does not own them, with round-robin load balancing."""
    load = Load()
    rows = []
    for count in MANY:
        one = spent(count)
        share = (count - 1) / count
        rows.append(
            [
                f"{count:,}",
                _percent(share),
                f"{share * load.calls * count:,.0f}",
                f"{2 * share * load.calls * count:,.0f}",
                _percent(one.cpu["forwarded requests"] / MILLION),
                _percent(share * load.calls * CARRY_US / MILLION),
            ]
        )
    head = ["processes", "forwarded", "a second", "messages a second", "of a Valkey", "of each process's CPU"]
    return Table(head, rows)


def deploys() -> Table:
    """The cost of a rolling restart: each process says hello to all others, which reply; it leaves, and all receive
    that; and others restore its sessions on the next request.
    """
    cost, load = COSTS["always"] | ALIKE, Load()
    moved = cost["acquire"] + 2 * cost["commit"] + 3 * cost["get"] + cost["register"]
    rows = []
    for count in (10, 100, 500, 1000, 5000):
        others = count - 1
        messages = count * 3 * others
        talk = count * (cost["publish"] + others * cost["deliver"] + 2 * others * (cost["publish"] + 1))
        sessions = count * load.sessions
        rows.append(
            [
                f"{count:,}",
                f"{messages:,}",
                f"{talk / MILLION:,.1f} s",
                f"{sessions:,}",
                f"{sessions * moved / MILLION:,.0f} s",
                f"{count * LINES:,}",
            ]
        )
    head = ["processes", "messages", "of a Valkey", "sessions moved", "of a Valkey", "connections"]
    return Table(head, rows)


def take_overs() -> Table:
    """The time until another process takes over the work of a dead one."""
    chance, load = random.Random(SEED), Load()
    cases: list[tuple[str, Callable[[], float]]] = [
        ("a session, holder certainly gone", lambda: chance.uniform(1, 3) * ROUND_TRIP_S),
        ("a session, holder silent", lambda: left_of(load.process_lease, chance)),
    ]
    cases += [
        (f"a task, {count:,} processes", lambda c=count: task_taken(c, chance, load, BUILT))
        for count in (10, 100, 1000)
    ]
    cases.append(("a task, markers by process", lambda: task_taken(1000, chance, load, LAST)))
    rows = [[name, *(f"{seconds:.1f} s" for seconds in percentiles(draw))] for name, draw in cases]
    return Table(["", "median", "99th percentile", "maximum"], rows)


def balance() -> Table:
    """How evenly homes spread over shards."""
    sessions = [slot_of(f"session/{number:043}") for number in range(HOMES)]
    owners = [slot_of(f"owner/str 'tenant {number}'") for number in range(HOMES // 10)]
    rows, before = [], None
    for shards in SHARDS:
        map_of = rendezvous(shards)
        moved = 0.0 if before is None else sum(a != b for a, b in zip(map_of, before, strict=True)) / SLOTS
        before = map_of
        skewed = [busiest(map_of, owners, zipf(len(owners), skew), shards) for skew in (0.8, 1.0, 1.2)]
        rows.append(
            [
                str(shards),
                f"{busiest(map_of, sessions, None, shards):.2f}",
                *(f"{times:.2f}" for times in skewed),
                _percent(moved) if rows else "",
            ]
        )
    head = ["shards", "sessions", "owners, skew 0.8", "skew 1.0", "skew 1.2", "slots moved"]
    return Table(head, rows)


def hot_homes() -> Table:
    """The busiest owner's share of all writes of owners, and its limit: a home is on one shard."""
    rows, load = [], Load()
    changes = sum(load.happens()[thing] * times for thing, times in OF_OWNERS.items())
    for name, owners, skew in (("anonymous callers", 1, 0.0), *((f"skew {s}", 10_000, s) for s in (0.8, 1.0, 1.2))):
        shares = zipf(owners, skew)
        most = FULL * MILLION / (COSTS["always"]["commit"] * shares[0])
        ten = list(accumulate(shares))[min(9, owners - 1)]
        rows.append([name, _percent(shares[0]), _percent(ten), f"{most:,.0f}", f"{most / changes:,.0f}"])
    head = ["", "the busiest owner", "the ten busiest", "commits per second until full", "processes"]
    return Table(head, rows)


def sharded() -> Table:
    """The needs of a thousand and more processes, with homes on several shards: shards, and the slot of the index."""
    rows = []
    for count in (100, 500, 1000, 2000, 5000):
        one = spent(count, LAST)
        shards = max(1, -(-int(one.share * 1000) // int(FULL * 1000)))
        rows.append(
            [
                f"{count:,}",
                f"{count * Load().sessions:,}",
                _percent(one.share),
                f"{shards:,}",
                _percent(one.index / MILLION),
                f"{count * Load().sessions * SESSION_BYTES / (1 << 30):,.1f} GiB",
            ]
        )
    head = ["processes", "sessions", "load of all Valkeys", "shards", "home index on one of them", "memory"]
    return Table(head, rows)


TABLES: dict[str, tuple[str, Callable[[], Table]]] = {
    "loads": ("Share of one Valkey (appendfsync always), by what it is for", lambda: loads(BUILT)),
    "loads-changed": ("The same, with all changes", lambda: loads(LAST)),
    "steps": ("Processes that one Valkey can serve", steps),
    "fan-out": ("Messages that each process hears in a second", fan_out),
    "carried": ("Requests that are carried, where each goes to the next process in turn", carried),
    "deploys": ("All processes started anew, one after the other", deploys),
    "take-overs": ("Until somebody else goes on, after a process has died", take_overs),
    "balance": ("The busiest shard, in times of an even share", balance),
    "hot-homes": ("Owners of unlike size", hot_homes),
    "sharded": ("Shards that are needed, with all changes", sharded),
}


def renewed(text: str) -> str:
    """The page with its tables up to date."""
    return PART.sub(lambda part: f"{part[1]}{TABLES[part['name']][1]().markdown()}{part[3]}", text)


def printed() -> Iterator[str]:
    """All tables."""
    for title, made in TABLES.values():
        yield f"{title}\n{made().plain()}"


def main() -> int:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/design/scaling.md")
    if parser.parse_args().write:
        PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
    else:
        print(*printed(), sep="\n", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
