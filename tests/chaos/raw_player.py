"""Raw clients of a campaign. They drop their connections at random, and never their session."""

import asyncio
from typing import Any

import aiohttp
from tests.chaos.campaign_log import Diary
from tests.chaos.history import Outcome
from tests.chaos.plan import HARMLESS, TASKS, Deed, Part
from tests.chaos.player import Playing, arguments
from tests.chaos.raw_session import Lost, Session

from trunkline.protocol.meta import IDEMPOTENCY_KEY

__all__ = ["HandPlayer"]

_REPEATABLE = HARMLESS | {"pay_once"}
_ENDED = frozenset({"completed", "failed", "cancelled"})
_POLL = 0.1  # seconds between two polls of a task


class HandPlayer(Playing):
    """One client."""

    def __init__(
        self,
        url: str,
        seed: int,
        part: Part,
        diary: Diary,
        *,
        http: aiohttp.ClientSession,
    ) -> None:
        super().__init__(seed, part, diary)
        self._session = Session(url, part, diary, http)

    async def open(self) -> None:
        """Open a session."""
        await self._session.open()

    async def close(self) -> None:
        """Leave the session open."""

    # --- operations --------------------------------------------------------------------------------

    async def outcome(self, deed: Deed) -> tuple[Outcome, str]:
        """Perform an operation; repeat it as often as necessary if it is idempotent."""
        try:
            async with asyncio.timeout(2 * self.diary.patience):
                answer = await (self._task(deed) if deed.kind in TASKS else self._call(deed))
        except Lost:
            return "unknown", "the line was lost"
        except TimeoutError:
            return "failed", "no answer in time"
        if "error" in answer:
            unknown = (answer["error"].get("data") or {}).get("kind") == "outcome_unknown"
            return "unknown" if unknown else "failed", str(answer["error"])
        return "answered", answer["result"]["content"][0]["text"]

    async def _call(self, deed: Deed) -> Any:
        meta, name = {"progressToken": deed.id}, deed.kind
        if deed.kind == "pay_once":
            meta, name = {IDEMPOTENCY_KEY: deed.id}, "pay"
        params = {"name": name, "arguments": arguments(deed, self.part), "_meta": meta}
        if deed.kind == "wait":
            await self._session.cancel("tools/call", params)
            return {"result": {"content": [{"text": f"{deed.id} cancelled"}]}}
        if deed.kind in _REPEATABLE:
            return await self._session.insist("tools/call", params)
        if (
            deed.kind == "count" and deed.waits
        ):  # the client reads half of its events, and the rest after the next fault
            return await self._session.ask("tools/call", params, self._told, cut=deed.size, away=self.diary.next_strike)
        return await self._session.ask("tools/call", params, self._told)

    async def _task(self, deed: Deed) -> Any:
        """A task in the dialect of the founding documents. It has a key, so the client repeats the request until it
        exists.
        """
        if deed.id not in self.tasks:
            action = {"type": deed.kind, "parameters": arguments(deed, self.part)}
            asked = {"action": action, "metadata": {}, "_meta": {IDEMPOTENCY_KEY: deed.id}}
            created = await self._session.insist("tasks/create", asked)
            if "error" in created:
                return created
            self.tasks[deed.id] = created["result"]["taskId"]
        while True:
            seen = await self._session.insist("tasks/get", {"taskId": self.tasks[deed.id]})
            if "error" in seen:
                return seen
            task = seen["result"]["task"]
            if task["status"] in _ENDED:
                return {"error": task["error"]} if task["error"] else {"result": task["result"]}
            await asyncio.sleep(_POLL)

    # --- notifications -----------------------------------------------------------------------------

    def _told(self, message: Any) -> None:
        params = message["params"]
        match message["method"]:
            case "notifications/message":
                self.diary.owned(self.part.name, params["data"]["deed"])
                self.logs[params["data"]["deed"]].append(params["data"]["number"])
            case "notifications/progress":
                self.diary.owned(self.part.name, params["progressToken"])
                self.progress[params["progressToken"]].append(int(params["progress"]))
            case "notifications/resources/updated":
                self.told_of(params["uri"])
                self.looking.set()

    async def listen(self) -> None:
        """Subscribe once, and never again."""
        await self._session.insist("resources/subscribe", {"uri": self.uri})
        self.diary.subscribed(self.part.name, self.part.board)
        await self._session.listen(self._told)

    async def look(self) -> int:
        """The number on the board."""
        answer = await self._session.insist("resources/read", {"uri": self.uri})
        return int(answer["result"]["contents"][0]["text"])

    async def check(self) -> None:
        """Read the streams of responses again, from their beginning."""
        await self._session.read_again()
