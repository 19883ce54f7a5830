"""Runs a campaign: a server on a file, its clients, and whoever kills it."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from msgspec import Struct
from tests.chaos.diary import PATIENCE, Diary
from tests.chaos.history import History, read_effects
from tests.chaos.peers import HandPlayer
from tests.chaos.plan import Part, Plan
from tests.chaos.players import Player
from tests.faults.processes import Served, free_port

__all__ = ["Recovery", "recoveries", "run"]

LEASE = 2.0  # seconds after which the work of a dead process is taken over
_REST = 1.0  # seconds that it goes on after the last death


class Recovery(Struct, frozen=True):
    """How long it took after a kill, in seconds."""

    back: float  # until the server listened
    first: float | None  # until somebody was answered; None: it was killed before that
    whole: float | None  # until everybody was


class House:
    """The server, through all of its deaths."""

    def __init__(self, folder: Path, seed: int, losing: int) -> None:
        self.port = free_port()
        self.effects = folder / "effects"
        self.effects.touch()
        self.deaths: list[tuple[float, float]] = []
        self.complaints: list[str] = []
        self._options = ["--losing", str(losing), "--seed", str(seed)]
        self.served = self._start()

    def _start(self) -> Served:
        settings = {"task_lease": LEASE, "idempotency_lease": LEASE, "stream_retry": 0.05, "task_poll_interval": 0.1}
        return Served("house", self.port, self.effects, options=self._options, **settings)

    async def ready(self) -> None:
        """Waits until it listens."""
        async with asyncio.timeout(PATIENCE):
            while not self.served.listens():
                await asyncio.sleep(0.01)

    async def die(self, diary: Diary) -> None:
        """Is killed, and comes back at the same place."""
        at = time.monotonic()
        diary.kills.append(at)
        self.served.kill()
        self._look()
        self.served = self._start()
        diary.stir()
        await self.ready()
        diary.back = time.monotonic()
        self.deaths.append((at, diary.back))

    def _look(self) -> None:
        self.complaints += self.served.complaints
        self.served.close()

    def stop(self) -> None:
        """Ends in good order, after all."""
        code, _ = self.served.stop(PATIENCE)
        if code:
            self.complaints.append(f"exit code {code}")
        self._look()


async def run(
    plan: Plan, folder: Path, *, losing: int = 0, patience: float = PATIENCE
) -> tuple[History, list[Recovery]]:
    """What was seen of a campaign, and how long recovery took. With `losing` the store drops one write in so many; then
    there may be nothing to wait for, and no need for much patience."""
    names = [part.name for part in plan.parts]
    diary, house = Diary(names, patience), House(folder, plan.seed, losing)
    try:
        await house.ready()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=PATIENCE)) as http:
            players = _players(plan, house.served.url, diary, http)
            await _play(plan, players, diary, house)
        house.stop()
    finally:
        house.served.close()
    return _history(diary, house), recoveries(house.deaths, diary.answers, names)


def _players(plan: Plan, url: str, diary: Diary, http: aiohttp.ClientSession) -> dict[str, Player | HandPlayer]:
    return {
        part.name: HandPlayer(url, plan.seed, part, diary, http=http)
        if part.raw
        else Player(url, plan.seed, part, diary, _listeners(plan, part))
        for part in plan.parts
    }


def _listeners(plan: Plan, writer: Part) -> frozenset[str]:
    return frozenset(part.name for part in plan.parts if part.board == writer.board and not part.writes)


async def _play(plan: Plan, players: dict[str, Player | HandPlayer], diary: Diary, house: House) -> None:
    tasks = [asyncio.create_task(player.play(), name=name) for name, player in players.items()]
    for task in tasks:
        task.add_done_callback(lambda ended: diary.left(ended.get_name()))
    try:
        for kill in plan.kills:
            await diary.more_answers(kill.answers)
            await asyncio.sleep(kill.after)
            await house.die(diary)
        await asyncio.sleep(_REST)
        diary.over.set()
        diary.stir()
        await diary.everybody_rests()
        await house.die(diary)
        diary.last_death.set()
        await asyncio.wait(tasks, timeout=3 * diary.patience)
    finally:
        for task in tasks:
            if not task.done():
                diary.unfinished.append(task.get_name())
                task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    diary.unfinished += [f"{task.get_name()}: {error!r}" for task, error in zip(tasks, ended, strict=True) if error]


def _history(diary: Diary, house: House) -> History:
    return History(
        effects=read_effects(house.effects),
        saw=tuple(diary.saw),
        told=tuple(diary.told),
        heard=tuple(diary.heard),
        refusals=tuple(diary.refusals),
        gaps=tuple(diary.gaps),
        listeners={board: tuple(sorted(who)) for board, who in diary.listeners.items()},
        deaths=tuple(house.deaths),
        complaints=tuple(house.complaints),
        unfinished=tuple(diary.unfinished),
    )


def recoveries(
    deaths: Sequence[tuple[float, float]], answers: Sequence[tuple[float, str]], names: Sequence[str]
) -> list[Recovery]:
    """How long it took after each kill; as far as the next one did not come in between."""
    found: list[Recovery] = []
    for number, (at, back) in enumerate(deaths):
        until = deaths[number + 1][0] if number + 1 < len(deaths) else float("inf")
        firsts: dict[str, float] = {}
        for when, who in answers:
            if back <= when < until:
                firsts.setdefault(who, when)
        first = min(firsts.values(), default=None)
        whole = max(firsts.values()) if len(firsts) == len(names) else None
        found.append(Recovery(back - at, first and first - at, whole and whole - at))
    return found
