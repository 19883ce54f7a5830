"""Runs a campaign: a deployment, its clients, and the fault injector."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct
from tests.chaos.campaign_log import PATIENCE, CampaignLog
from tests.chaos.client_player import ClientPlayer
from tests.chaos.deployments import Deployment, opened
from tests.chaos.effects import read_effects
from tests.chaos.history import FaultPeriod, History
from tests.chaos.plan import ClientPlan, Fault, FaultInjection, Kind, Plan
from tests.chaos.raw_player import RawPlayer

__all__ = ["Recovery", "recoveries", "run"]

_END: Final = FaultInjection("death", 0, 0.0)
_REST: Final = 1.0  # seconds that it continues after the last fault


class Recovery(Struct, frozen=True):
    """The duration of recovery from a fault, in seconds."""

    kind: Kind
    stop: float | None  # of a graceful stop: until the processes had ended; the rest of `back` is the start of others
    back: float  # until all processes were ready
    first: float | None  # until the first response; None: another fault came before it
    whole: float | None  # until every client had a response


async def run(
    plan: Plan,
    folder: Path,
    *,
    fault: Fault | None = None,
    patience: float = PATIENCE,
    interpreters: Sequence[str] = (sys.executable,),
) -> tuple[History, list[Recovery]]:
    """Run a campaign; return its history and recovery times. With a `fault` the store is defective; then some waits
    would never end, and short timeouts suffice. The processes have the given interpreters, in turn.
    """
    names = [part.name for part in plan.parts]
    log = CampaignLog(names, patience)
    async with opened(plan, folder, fault, interpreters) as deployment:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(sock_read=PATIENCE)
        ) as http:
            players = _players(plan, deployment.url, log, http)
            await _play(plan, players, log, deployment)
        await asyncio.to_thread(deployment.stop)
    return _history(log, deployment), recoveries(deployment.fault_periods, log.answers, names)


def _players(
    plan: Plan, url: str, log: CampaignLog, http: aiohttp.ClientSession
) -> dict[str, ClientPlayer | RawPlayer]:
    return {
        part.name: RawPlayer(url, plan.seed, part, log, http=http)
        if part.raw
        else ClientPlayer(url, plan.seed, part, log, _listeners(plan, part))
        for part in plan.parts
    }


def _listeners(plan: Plan, writer: ClientPlan) -> frozenset[str]:
    return frozenset(part.name for part in plan.parts if part.board == writer.board and not part.writes)


async def _play(
    plan: Plan, players: dict[str, ClientPlayer | RawPlayer], log: CampaignLog, deployment: Deployment
) -> None:
    tasks = [asyncio.create_task(player.play(), name=name) for name, player in players.items()]
    for task in tasks:
        task.add_done_callback(lambda ended: log.no_more_updates(ended.get_name()))
    try:
        for injection in plan.injection:
            await log.more_responses(injection.answers)
            await asyncio.sleep(injection.after)
            await deployment.inject(injection, log)
        await asyncio.sleep(_REST)
        log.over.set()
        log.wake()
        await log.all_finished()
        await deployment.inject(_END, log)
        log.last_fault.set()
        await asyncio.wait(tasks, timeout=3 * log.patience)
    finally:
        for task in tasks:
            if not task.done():
                log.unfinished.append(task.get_name())
                task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    log.unfinished += [f"{task.get_name()}: {error!r}" for task, error in zip(tasks, ended, strict=True) if error]


def _history(log: CampaignLog, deployment: Deployment) -> History:
    return History(
        effects=read_effects(deployment.effects),
        observations=tuple(log.observations),
        events=tuple(log.events),
        readings=tuple(log.readings),
        rejections=tuple(log.rejections),
        gaps=tuple(log.gaps),
        listeners={board: tuple(sorted(who)) for board, who in log.listeners.items()},
        strange=tuple(log.strange),
        fault_periods=tuple(deployment.fault_periods),
        complaints=tuple(deployment.complaints),
        unfinished=tuple(log.unfinished),
    )


def recoveries(
    fault_periods: Sequence[FaultPeriod], answers: Sequence[tuple[float, str]], names: Sequence[str]
) -> list[Recovery]:
    """The recovery time after each fault, unless the next one came before it. Where other processes can respond
    meanwhile, their responses count from the beginning.
    """
    found: list[Recovery] = []
    for number, one in enumerate(fault_periods):
        since = one.at if one.partial else one.over
        until = fault_periods[number + 1].at if number + 1 < len(fault_periods) else float("inf")
        firsts: dict[str, float] = {}
        for when, who in answers:
            if since <= when < until:
                firsts.setdefault(who, when)
        first = min(firsts.values(), default=None)
        whole = max(firsts.values()) if len(firsts) == len(names) else None
        stop = None if one.stopped is None else one.stopped - one.at
        found.append(Recovery(one.kind, stop, one.over - one.at, first and first - one.at, whole and whole - one.at))
    return found
