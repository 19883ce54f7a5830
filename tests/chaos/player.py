"""The behaviour that all clients of a campaign share: perform the plan's operations, and log the outcomes."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from tests.chaos.campaign_log import CampaignLog
from tests.chaos.history import EventSequence, Outcome
from tests.chaos.plan import FIRST_TO_TELL, HARMLESS, TASKS, ClientPlan, Operation, operations

__all__ = ["BasePlayer"]


class BasePlayer(ABC):
    """One client."""

    def __init__(self, seed: int, part: ClientPlan, log: CampaignLog, listeners: frozenset[str] = frozenset()) -> None:
        """`listeners` are the subscribers of its board, if it writes to one."""
        self.part = part
        self.uri = f"board://{part.board}"
        self.log = log
        self.tasks: dict[str, str] = {}  # by operation, the id of its task, once known
        self.logs: dict[str, list[int]] = defaultdict(list)  # by operation, the numbers of its events
        self.progress: dict[str, list[int]] = defaultdict(list)
        self.looking = asyncio.Event()  # it was notified of its board
        self._operations = operations(seed, part)
        self._listeners = listeners
        self._acknowledged: list[tuple[Operation, str]] = []  # operations with a response, which can be repeated

    @abstractmethod
    async def open(self) -> None:
        """Connect to the server."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    @abstractmethod
    async def outcome(self, operation: Operation) -> tuple[Outcome, str]:
        """Perform an operation. If its task is known, only fetch the outcome."""

    @abstractmethod
    async def listen(self) -> None:
        """Subscribe to the board, and wait for notifications."""

    @abstractmethod
    async def look(self) -> int:
        """The number on the board."""

    @abstractmethod
    async def check(self) -> None:
        """Check the other messages once more, if possible."""

    def told_of(self, uri: str) -> None:
        """It was notified of a resource, which should be its board."""
        if uri != self.uri:
            self.log.strange.append(f"{self.part.name} was told of {uri}")

    async def play(self) -> None:
        """Perform one operation after another until the end; after the last fault, repeat all that had a response."""
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
            await self.log.all_subscribed(self.part.board, self._listeners)
        for operation in self._operations:
            await asyncio.sleep(operation.pause)
            if self.log.over.is_set():
                break
            await self._do(operation)
        await self.log.finish(self.part.name)
        for operation, first in self._acknowledged:
            await self._ask_again(operation, first)
        await self.check()
        await self.log.wait_to_leave(self.part.name)

    async def _do(self, operation: Operation) -> None:
        began = time.monotonic()
        outcome, said = await self.outcome(operation)
        harmless = operation.kind in HARMLESS and (self.part.raw or self.part.revision >= FIRST_TO_TELL)
        self.log.record_outcome(operation, began, outcome, said, harmless=harmless)
        if outcome == "answered":
            self.log.record_response(self.part.name)
        if (operation.kind == "pay_once" and outcome == "answered") or operation.id in self.tasks:
            self._acknowledged.append((operation, said))
        if operation.kind == "post" and outcome == "answered":
            _, board, number = said.split()
            await self.log.all_have_read(board, int(number))
        if operation.kind == "count":
            for kind, numbers in (("log", self.logs), ("progress", self.progress)):
                told = tuple(numbers.pop(operation.id, ()))
                self.log.events.append(EventSequence(f"{operation.id} {kind}", operation.size, told, outcome))

    async def _ask_again(self, operation: Operation, first: str) -> None:
        """The outcome must exist, and be the same."""
        began = time.monotonic()
        _, said = await self.outcome(operation)
        told = said if said == first else f"first {first!r}, then {said!r}"
        self.log.record_outcome(operation, began, "answered" if said == first else "failed", told, again=True)

    async def _look(self) -> None:
        """Read the board after each notification."""
        while True:
            await self.looking.wait()
            self.looking.clear()
            self.log.record_reading(self.part.name, self.part.board, await self.look())


def arguments(operation: Operation, part: ClientPlan) -> dict[str, Any]:
    """The arguments of an operation's tool."""
    if operation.kind == "post":
        return {"operation": operation.id, "board": part.board}
    return {"operation": operation.id} | (
        {"size": operation.size} if operation.kind in {"count", "linger", "limited", *TASKS} else {}
    )
