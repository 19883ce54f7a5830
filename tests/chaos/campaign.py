"""Runs a campaign: a deployment, its clients, and the fault injector."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct
from tests.chaos.campaign_log import PATIENCE, Diary
from tests.chaos.client_player import Player
from tests.chaos.deployments import Deployment, opened
from tests.chaos.faulty_stores import Fault
from tests.chaos.history import History, Trouble, read_effects
from tests.chaos.plan import Kind, Mischief, Part, Plan
from tests.chaos.raw_player import HandPlayer

__all__ = ["Recovery", "recoveries", "run"]

_PARTIAL: Final = frozenset[Kind]({"kill", "stop"})
_END: Final = Mischief("death", 0, 0.0)
_REST: Final = 1.0  # seconds that it continues after the last fault


class Recovery(Struct, frozen=True):
    """The duration of recovery from a fault, in seconds."""

    kind: Kind
    back: float  # until all processes were ready
    first: float | None  # until the first response; None: another fault came before it
    whole: float | None  # until every client had a response


async def run(
    plan: Plan, folder: Path, *, fault: Fault | None = None, patience: float = PATIENCE
) -> tuple[History, list[Recovery]]:
    """Run a campaign; return its history and recovery times. With a `fault` the store is defective; then some waits
    would never end, and short timeouts suffice.
    """
    names = [part.name for part in plan.parts]
    diary = Diary(names, patience)
    async with opened(plan, folder, fault) as deployment:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(sock_read=PATIENCE)
        ) as http:
            players = _players(plan, deployment.url, diary, http)
            await _play(plan, players, diary, deployment)
        await asyncio.to_thread(deployment.stop)
    return _history(diary, deployment), recoveries(deployment.troubles, diary.answers, names)


def _players(plan: Plan, url: str, diary: Diary, http: aiohttp.ClientSession) -> dict[str, Player | HandPlayer]:
    return {
        part.name: HandPlayer(url, plan.seed, part, diary, http=http)
        if part.raw
        else Player(url, plan.seed, part, diary, _listeners(plan, part))
        for part in plan.parts
    }


def _listeners(plan: Plan, writer: Part) -> frozenset[str]:
    return frozenset(part.name for part in plan.parts if part.board == writer.board and not part.writes)


async def _play(plan: Plan, players: dict[str, Player | HandPlayer], diary: Diary, deployment: Deployment) -> None:
    tasks = [asyncio.create_task(player.play(), name=name) for name, player in players.items()]
    for task in tasks:
        task.add_done_callback(lambda ended: diary.left(ended.get_name()))
    try:
        for mischief in plan.mischief:
            await diary.more_answers(mischief.answers)
            await asyncio.sleep(mischief.after)
            await deployment.strike(mischief, diary)
        await asyncio.sleep(_REST)
        diary.over.set()
        diary.stir()
        await diary.everybody_rests()
        await deployment.strike(_END, diary)
        diary.last_death.set()
        await asyncio.wait(tasks, timeout=3 * diary.patience)
    finally:
        for task in tasks:
            if not task.done():
                diary.unfinished.append(task.get_name())
                task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    diary.unfinished += [f"{task.get_name()}: {error!r}" for task, error in zip(tasks, ended, strict=True) if error]


def _history(diary: Diary, deployment: Deployment) -> History:
    return History(
        effects=read_effects(deployment.effects),
        saw=tuple(diary.saw),
        told=tuple(diary.told),
        heard=tuple(diary.heard),
        refusals=tuple(diary.refusals),
        gaps=tuple(diary.gaps),
        listeners={board: tuple(sorted(who)) for board, who in diary.listeners.items()},
        strange=tuple(diary.strange),
        troubles=tuple(deployment.troubles),
        complaints=tuple(deployment.complaints),
        unfinished=tuple(diary.unfinished),
    )


def recoveries(
    troubles: Sequence[Trouble], answers: Sequence[tuple[float, str]], names: Sequence[str]
) -> list[Recovery]:
    """The recovery time after each fault, unless the next one came before it. Where other processes can respond
    meanwhile, their responses count from the beginning.
    """
    found: list[Recovery] = []
    for number, one in enumerate(troubles):
        since = one.at if one.kind in _PARTIAL else one.over
        until = troubles[number + 1].at if number + 1 < len(troubles) else float("inf")
        firsts: dict[str, float] = {}
        for when, who in answers:
            if since <= when < until:
                firsts.setdefault(who, when)
        first = min(firsts.values(), default=None)
        whole = max(firsts.values()) if len(firsts) == len(names) else None
        found.append(Recovery(one.kind, one.over - one.at, first and first - one.at, whole and whole - one.at))
    return found
