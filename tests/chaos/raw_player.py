"""Raw clients of a campaign. They drop their connections at random, and never their session."""

import asyncio
from typing import Any

import aiohttp
from tests.chaos.campaign_log import CampaignLog
from tests.chaos.history import Outcome
from tests.chaos.plan import HARMLESS, TASKS, ClientPlan, Operation
from tests.chaos.player import BasePlayer, arguments
from tests.chaos.raw_session import Lost, Session

from trunkline.protocol.meta import IDEMPOTENCY_KEY

__all__ = ["RawPlayer"]

_REPEATABLE = HARMLESS | {"pay_once"}
_ENDED = frozenset({"completed", "failed", "cancelled"})
_POLL = 0.1  # seconds between two polls of a task


class RawPlayer(BasePlayer):
    """One client."""

    def __init__(
        self,
        url: str,
        seed: int,
        part: ClientPlan,
        log: CampaignLog,
        *,
        http: aiohttp.ClientSession,
    ) -> None:
        super().__init__(seed, part, log)
        self._session = Session(url, part, log, http)

    async def open(self) -> None:
        """Open a session."""
        await self._session.open()

    async def close(self) -> None:
        """Leave the session open."""

    # --- operations --------------------------------------------------------------------------------

    async def outcome(self, operation: Operation) -> tuple[Outcome, str]:
        """Perform an operation; repeat it as often as necessary if it is idempotent."""
        try:
            async with asyncio.timeout(2 * self.log.patience):
                answer = await (self._task(operation) if operation.kind in TASKS else self._call(operation))
        except Lost:
            return "unknown", "the line was lost"
        except TimeoutError:
            return "failed", "no answer in time"
        if "error" in answer:
            unknown = (answer["error"].get("data") or {}).get("kind") == "outcome_unknown"
            return "unknown" if unknown else "failed", str(answer["error"])
        return "answered", answer["result"]["content"][0]["text"]

    async def _call(self, operation: Operation) -> Any:
        meta, name = {"progressToken": operation.id}, operation.kind
        if operation.kind == "pay_once":
            meta, name = {IDEMPOTENCY_KEY: operation.id}, "pay"
        params = {"name": name, "arguments": arguments(operation, self.part), "_meta": meta}
        if operation.kind == "wait":
            await self._session.cancel("tools/call", params)
            return {"result": {"content": [{"text": f"{operation.id} cancelled"}]}}
        if operation.kind in _REPEATABLE:
            return await self._session.insist("tools/call", params)
        if (
            operation.kind == "count" and operation.waits
        ):  # the client reads half of its events, and the rest after the next fault
            return await self._session.ask(
                "tools/call", params, self._told, cut=operation.size, away=self.log.next_fault
            )
        return await self._session.ask("tools/call", params, self._told)

    async def _task(self, operation: Operation) -> Any:
        """A task in the dialect of the founding documents. It has a key, so the client repeats the request until it
        exists.
        """
        if operation.id not in self.tasks:
            action = {"type": operation.kind, "parameters": arguments(operation, self.part)}
            asked = {"action": action, "metadata": {}, "_meta": {IDEMPOTENCY_KEY: operation.id}}
            created = await self._session.insist("tasks/create", asked)
            if "error" in created:
                return created
            self.tasks[operation.id] = created["result"]["taskId"]
        while True:
            seen = await self._session.insist("tasks/get", {"taskId": self.tasks[operation.id]})
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
                self.log.record_owned(self.part.name, params["data"]["operation"])
                self.logs[params["data"]["operation"]].append(params["data"]["number"])
            case "notifications/progress":
                self.log.record_owned(self.part.name, params["progressToken"])
                self.progress[params["progressToken"]].append(int(params["progress"]))
            case "notifications/resources/updated" | "resources/updated":
                self.told_of(params["uri"])
                self.looking.set()

    async def listen(self) -> None:
        """Subscribe once, and never again."""
        await self._session.insist("resources/subscribe", {"uri": self.uri})
        self.log.subscribed(self.part.name, self.part.board)
        await self._session.listen(self._told)

    async def look(self) -> int:
        """The number on the board."""
        answer = await self._session.insist("resources/read", {"uri": self.uri})
        return int(answer["result"]["contents"][0]["text"])

    async def check(self) -> None:
        """Read the streams of responses again, from their beginning."""
        await self._session.read_again()
