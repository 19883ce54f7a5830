"""A campaign against a server that is killed time and again: `python -m tests.chaos.run --seed 7 --clients 100`."""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
from tests.chaos.campaign import Recovery, run
from tests.chaos.history import History
from tests.chaos.judge import faults
from tests.chaos.plan import plan

SHOWN = 40  # faults


def main() -> int:
    """Runs one, and says what came of it."""
    given = _arguments()
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}: {given.clients} clients, {given.rounds} kills", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        history, recovered = asyncio.run(
            run(plan(seed, given.clients, given.rounds), Path(folder), losing=given.losing)
        )
    found = faults(history)
    if found and given.keep is not None:
        given.keep.write_bytes(msgspec.json.encode(history))
    _report(history, recovered, time.monotonic() - began)
    for fault in found[:SHOWN]:
        print(f"FAULT {fault}")
    print(f"{len(found)} faults; again with SEED={seed} CLIENTS={given.clients} ROUNDS={given.rounds}")
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20, help="how often the server is killed")
    parser.add_argument("--losing", type=int, default=0, help="have the store drop one write in so many")
    parser.add_argument("--keep", type=Path, help="where to write down all that was seen, if there are faults")
    return parser.parse_args()


def _report(history: History, recovered: list[Recovery], took: float) -> None:
    outcomes = Counter((saw.kind, saw.outcome) for saw in history.saw if not saw.again)
    for kind in sorted({kind for kind, _ in outcomes}):
        told = ", ".join(f"{outcomes[kind, how]} {how}" for how in ("answered", "unknown", "failed"))
        print(f"  {kind:10} {told}; {_across(history, kind)} answered across a death")
    again = sum(saw.again for saw in history.saw)
    print(f"  {len(history.effects)} effects, {again} asked for again, {len(history.heard)} updates heard")
    for name in ("back", "first", "whole"):
        times = sorted(value for one in recovered if (value := getattr(one, name)) is not None)
        if times:
            middle = times[len(times) // 2]
            print(f"  {name:5} after a kill: {middle:.2f} s in the middle, {times[-1]:.2f} s at most ({len(times)})")
    print(f"  {took:.0f} s in all")


def _across(history: History, kind: str) -> int:
    """How many were begun in one process and answered by another."""
    answered = [saw for saw in history.saw if saw.kind == kind and saw.outcome == "answered" and not saw.again]
    return sum(any(saw.began < at < saw.ended for at, _ in history.deaths) for saw in answered)


if __name__ == "__main__":
    sys.exit(main())
