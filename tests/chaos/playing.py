"""What every client of a campaign does, whoever speaks for it: what the plan says, and what it writes down of that."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from tests.chaos.diary import Diary
from tests.chaos.history import Outcome, Told
from tests.chaos.plan import FIRST_TO_TELL, HARMLESS, TASKS, Deed, Part, deeds

__all__ = ["Playing"]


class Playing(ABC):
    """One client."""

    def __init__(self, seed: int, part: Part, diary: Diary, listeners: frozenset[str] = frozenset()) -> None:
        """`listeners` are those who want to hear of its board, if it writes on one."""
        self.part = part
        self.uri = f"board://{part.board}"
        self.diary = diary
        self.tasks: dict[str, str] = {}  # by deed, the name of its task, once that is known
        self.logs: dict[str, list[int]] = defaultdict(list)  # by deed, the numbers that were said of it
        self.progress: dict[str, list[int]] = defaultdict(list)
        self.looking = asyncio.Event()  # it was told to look at its board
        self._deeds = deeds(seed, part)
        self._listeners = listeners
        self._acknowledged: list[tuple[Deed, str]] = []  # what was answered, and can be asked for again

    @abstractmethod
    async def open(self) -> None:
        """Begins to speak with the server."""

    @abstractmethod
    async def close(self) -> None:
        """Ends that."""

    @abstractmethod
    async def outcome(self, deed: Deed) -> tuple[Outcome, str]:
        """Does a deed. Of a task that is known, only how it ends is asked for."""

    @abstractmethod
    async def listen(self) -> None:
        """Subscribes to the board, and hears of it."""

    @abstractmethod
    async def look(self) -> int:
        """The number on the board."""

    @abstractmethod
    async def check(self) -> None:
        """Looks once more at what else was sent, if it can."""

    def told_of(self, uri: str) -> None:
        """It was told of a resource, which should be its board."""
        if uri != self.uri:
            self.diary.strange.append(f"{self.part.name} was told of {uri}")

    async def play(self) -> None:
        """Does one deed after another, until it is over; when the server has died for the last time, asks once more for
        all that it has been answered."""
        await self.open()
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(work) for work in self._beside()]
                await self._play()
                for task in beside:
                    task.cancel()
        finally:
            await self.close()

    def _beside(self) -> list[Coroutine[Any, Any, None]]:
        return [] if self.part.writes else [self.listen(), self._look()]

    async def _play(self) -> None:
        if self.part.writes:
            await self.diary.everybody_listens(self.part.board, self._listeners)
        for deed in self._deeds:
            await asyncio.sleep(deed.pause)
            if self.diary.over.is_set():
                break
            await self._do(deed)
        await self.diary.rest(self.part.name)
        for deed, first in self._acknowledged:
            await self._ask_again(deed, first)
        await self.check()
        await self.diary.leave(self.part.name)

    async def _do(self, deed: Deed) -> None:
        began = time.monotonic()
        outcome, said = await self.outcome(deed)
        harmless = deed.kind in HARMLESS and (self.part.raw or self.part.revision >= FIRST_TO_TELL)
        self.diary.see(deed, began, outcome, said, harmless=harmless)
        if outcome == "answered":
            self.diary.answered(self.part.name)
        if (deed.kind == "pay_once" and outcome == "answered") or deed.id in self.tasks:
            self._acknowledged.append((deed, said))
        if deed.kind == "post" and outcome == "answered":
            _, board, number = said.split()
            await self.diary.everybody_hears(board, int(number))
        if deed.kind == "count":
            for kind, numbers in (("log", self.logs), ("progress", self.progress)):
                told = tuple(numbers.pop(deed.id, ()))
                self.diary.told.append(Told(f"{deed.id} {kind}", deed.size, told, outcome))

    async def _ask_again(self, deed: Deed, first: str) -> None:
        """It must be there, and the same."""
        began = time.monotonic()
        _, said = await self.outcome(deed)
        told = said if said == first else f"first {first!r}, then {said!r}"
        self.diary.see(deed, began, "answered" if said == first else "failed", told, again=True)

    async def _look(self) -> None:
        """Looks at the board whenever it is told to."""
        while True:
            await self.looking.wait()
            self.looking.clear()
            self.diary.hear(self.part.name, self.part.board, await self.look())


def arguments(deed: Deed, part: Part) -> dict[str, Any]:
    """What a deed gives its tool."""
    if deed.kind == "post":
        return {"deed": deed.id, "board": part.board}
    return {"deed": deed.id} | ({"size": deed.size} if deed.kind in {"count", "linger", *TASKS} else {})
