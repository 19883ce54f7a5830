"""Campaigns of fault injection: `python -m tests.chaos.run --deployment valkey --seed 7`."""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import get_args

import msgspec
from bench.environments import Environments
from tests.chaos.campaign import Recovery, run
from tests.chaos.campaign_log import PATIENCE
from tests.chaos.checker import violations
from tests.chaos.history import History
from tests.chaos.plan import DEPLOYMENTS, Fault, Kind, Plan, plan

SHOWN = 40  # violations
LONGEST = 4_000  # characters of each: room for a traceback


def main() -> int:
    """Run one in each deployment, and print the result."""
    given = _arguments()
    logging.getLogger("trunkline").addHandler(logging.NullHandler())  # log messages of clients
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    deployments = list(DEPLOYMENTS) if given.deployment == "all" else [given.deployment]
    return max(
        _campaign(plan(seed, given.clients, given.rounds, deployment, only=given.only), given)
        for deployment in deployments
    )


def _campaign(planned: Plan, given: argparse.Namespace) -> int:
    print(
        f"{planned.deployment}, seed {planned.seed}: {given.clients} clients, {given.rounds} mischiefs",
        flush=True,
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        history, recovered = asyncio.run(
            run(
                planned,
                Path(folder),
                fault=given.fault,
                patience=given.patience,
                interpreters=_interpreters(given.base),
            )
        )
    found = violations(history)
    if found and given.keep is not None:
        given.keep.write_bytes(msgspec.json.encode(history))
    _report(history, recovered, time.monotonic() - began)
    for fault in found[:SHOWN]:
        print(f"FAULT {fault[:LONGEST]}")
    again = f"DEPLOYMENT={planned.deployment} SEED={planned.seed} CLIENTS={given.clients} ROUNDS={given.rounds}"
    print(f"{len(found)} faults; again with {again}", flush=True)
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployment", choices=["all", *DEPLOYMENTS], default="all")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20, help="how often something is done to the server")
    parser.add_argument("--only", nargs="*", choices=get_args(Kind), default=(), help="what is done to it")
    parser.add_argument(
        "--fault", choices=get_args(Fault), help="have a store, or a server, that is not as it should be"
    )
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds that anybody waits for anything")
    parser.add_argument("--keep", type=Path, help="where to write down all that was seen, if there are faults")
    parser.add_argument("--base", help="a commit: every other process that starts is of that release")
    return parser.parse_args()


def _interpreters(base: str | None) -> list[str]:
    """The interpreters of the processes: with the package of a commit, and with this one."""
    return [*([] if base is None else [str(Environments(sys.executable).base(base)[0])]), sys.executable]


def _report(history: History, recovered: list[Recovery], took: float) -> None:
    outcomes = Counter((saw.kind, saw.outcome) for saw in history.observations if not saw.again)
    for kind in sorted({kind for kind, _ in outcomes}):
        told = ", ".join(f"{outcomes[kind, how]} {how}" for how in ("answered", "unknown", "failed"))
        print(f"  {kind:10} {told}; {_across(history, kind)} answered across the fault")
    again = sum(saw.again for saw in history.observations)
    print(f"  {len(history.effects)} effects, {again} asked for again, {len(history.readings)} updates heard")
    for kind in dict.fromkeys(one.kind for one in recovered):
        for name in ("stop", "back", "first", "whole"):
            times = sorted(value for one in recovered if one.kind == kind and (value := getattr(one, name)) is not None)
            if times:
                told = f"{times[len(times) // 2]:.2f} s in the middle, {times[-1]:.2f} s at most ({len(times)})"
                print(f"  {name:5} after {kind}: {told}")
    print(f"  {took:.0f} s in all")


def _across(history: History, kind: str) -> int:
    """How many operations began before a fault, and got their response after it."""
    answered = [saw for saw in history.observations if saw.kind == kind and saw.outcome == "answered" and not saw.again]
    return sum(any(saw.began < one.at < saw.ended for one in history.fault_periods) for saw in answered)


if __name__ == "__main__":
    sys.exit(main())
