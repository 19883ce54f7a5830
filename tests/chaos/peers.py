"""Clients of a campaign that are played by hand: the same deeds as those of our own client, as far as they go."""

import asyncio
import time
from collections import defaultdict
from typing import Any

import aiohttp
from tests.chaos.by_hand import Lost, Session
from tests.chaos.diary import PATIENCE, Diary
from tests.chaos.history import Outcome, Told
from tests.chaos.plan import HARMLESS, TASKS, Deed, Part, deeds

from trunkline.protocol.meta import IDEMPOTENCY_KEY

__all__ = ["HandPlayer"]

_REPEATABLE = HARMLESS | {"pay_once"}
_ENDED = frozenset({"completed", "failed", "cancelled"})
_POLL = 0.1  # seconds between two looks at a task
_KEPT = 3  # answers that are asked for again at the end


class HandPlayer:
    """One client."""

    def __init__(self, url: str, seed: int, part: Part, diary: Diary, http: aiohttp.ClientSession) -> None:
        self._part = part
        self._diary = diary
        self._deeds = deeds(seed, part)
        self._session = Session(url, part, diary, http)
        self._numbers: dict[str, list[int]] = defaultdict(list)
        self._acknowledged: list[tuple[Deed, str]] = []
        self._tasks: dict[str, str] = {}  # by deed, the names of its task
        self._looking = asyncio.Event()

    async def play(self) -> None:
        """Does one deed after another, until it is over; then asks once more for what it has been answered."""
        await self._session.open()
        async with asyncio.TaskGroup() as group:
            listening = [] if self._part.writes else [self._listen(), self._look()]
            tasks = [group.create_task(one) for one in listening]
            for deed in self._deeds:
                await asyncio.sleep(deed.pause)
                if self._diary.over.is_set():
                    break
                await self._do(deed)
            await self._audit()
            await self._diary.leave(self._part.name)
            for task in tasks:
                task.cancel()

    async def _do(self, deed: Deed) -> None:
        began = time.monotonic()
        outcome, said = await self._outcome(deed)
        self._diary.see(deed, began, outcome, said, harmless=deed.kind in HARMLESS)
        if outcome == "answered":
            self._diary.answered(self._part.name)
            if deed.kind in {"pay_once", *TASKS}:
                self._acknowledged.append((deed, said))
        if deed.kind == "count":
            self._diary.told.append(Told(deed.id, deed.size, tuple(self._numbers.pop(deed.id, ())), outcome))

    async def _outcome(self, deed: Deed) -> tuple[Outcome, str]:
        try:
            async with asyncio.timeout(2 * PATIENCE):
                answer = await self._ask(deed)
        except Lost:
            return "unknown", "the line was lost"
        except TimeoutError:
            return "failed", "no answer in time"
        if "error" in answer:
            unknown = (answer["error"].get("data") or {}).get("kind") == "outcome_unknown"
            return "unknown" if unknown else "failed", str(answer["error"])
        return "answered", answer["result"]["content"][0]["text"]

    async def _ask(self, deed: Deed) -> Any:
        if deed.kind in TASKS:
            return await self._task(deed)
        arguments = {"deed": deed.id} | ({"size": deed.size} if deed.kind == "count" else {})
        params: dict[str, Any] = {"name": deed.kind, "arguments": arguments}
        if deed.kind == "pay_once":
            params |= {"name": "pay", "_meta": {IDEMPOTENCY_KEY: deed.id}}
        if deed.kind in _REPEATABLE:
            return await self._session.insist("tools/call", params)
        return await self._session.ask("tools/call", params, self._told)

    async def _task(self, deed: Deed) -> Any:
        """A task in the words of the founding documents. It has a key, so it is asked for until it is there."""
        if deed.id not in self._tasks:
            action = {"type": deed.kind, "parameters": {"deed": deed.id, "size": deed.size}}
            asked = {"action": action, "metadata": {}, "_meta": {IDEMPOTENCY_KEY: deed.id}}
            created = await self._session.insist("tasks/create", asked)
            if "error" in created:
                return created
            self._tasks[deed.id] = created["result"]["taskId"]
        while True:
            seen = await self._session.insist("tasks/get", {"taskId": self._tasks[deed.id]})
            if "error" in seen:
                return seen
            task = seen["result"]["task"]
            if task["status"] in _ENDED:
                return {"error": task["error"]} if task["error"] else {"result": task["result"]}
            await asyncio.sleep(_POLL)

    async def _audit(self) -> None:
        for deed, first in self._acknowledged[-_KEPT:]:
            began = time.monotonic()
            _, said = await self._outcome(deed)
            told = said if said == first else f"first {first!r}, then {said!r}"
            self._diary.see(deed, began, "answered" if said == first else "failed", told, again=True)

    # --- being told --------------------------------------------------------------------------------

    def _told(self, message: Any) -> None:
        if message["method"] == "notifications/message":
            data = message["params"]["data"]
            self._numbers[data["deed"]].append(data["number"])
        elif message["method"] == "notifications/resources/updated":
            self._looking.set()

    async def _listen(self) -> None:
        """Subscribes once, and never again."""
        await self._session.insist("resources/subscribe", {"uri": f"board://{self._part.board}"})
        self._diary.subscribed(self._part.name, self._part.board)
        await self._session.listen(self._told)

    async def _look(self) -> None:
        """Looks at a board whenever it is told to."""
        while True:
            await self._looking.wait()
            self._looking.clear()
            answer = await self._session.insist("resources/read", {"uri": f"board://{self._part.board}"})
            self._diary.hear(self._part.name, self._part.board, int(answer["result"]["contents"][0]["text"]))
