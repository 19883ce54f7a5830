"""Clients of a campaign that use our own client."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from tests.chaos.campaign_log import PATIENCE, CampaignLog
from tests.chaos.history import Outcome
from tests.chaos.plan import TASKS, ClientPlan, Operation, token_of
from tests.chaos.player import BasePlayer, arguments

from trunkline import Client, Settings
from trunkline.errors import OutcomeUnknown, PeerError, TransportError, TrunklineError
from trunkline.protocol.types import LoggingMessageParams, ProgressParams, ResourceUpdatedParams

__all__ = ["ClientPlayer"]

T = TypeVar("T")

QUICK = Settings(
    backoff_first=0.05,
    backoff_longest=0.2,
    stream_retry=0.05,
    restart_intensity=1000,
    restart_period=60.0,
    stop_timeout=0.5,
    work_timeout=PATIENCE,
    quick_timeout=PATIENCE,
    probe_timeout=PATIENCE,
)


class ClientPlayer(BasePlayer):
    """One client."""

    def __init__(self, url: str, seed: int, part: ClientPlan, log: CampaignLog, listeners: frozenset[str]) -> None:
        super().__init__(seed, part, log, listeners)
        self._asked: dict[str, Operation] = {}  # by the text of the input request
        self.client = Client(
            url,
            auth=token_of(part.name),
            name=part.name,
            revision=part.revision,
            settings=QUICK,
            elicitation=self._answer,
            on_log=self._logged,
            observers=[],
        )

    async def open(self) -> None:
        """Open the client, which fails during a fault, and is retried; and fetch the tools, since the client repeats
        only operations that it knows to be idempotent.
        """
        while True:
            with contextlib.suppress(TransportError):
                await self._again("open", self.client.open)
                await self._again("list", self.client.list_tools)
                return

    async def close(self) -> None:
        """Close the connection."""
        await self.client.close()

    # --- operations --------------------------------------------------------------------------------

    async def outcome(self, operation: Operation) -> tuple[Outcome, str]:
        """Perform an operation, with the retries of the client."""
        try:
            async with asyncio.timeout(2 * self.log.patience):
                return "answered", await self._ask(operation)
        except OutcomeUnknown as error:
            return "unknown", str(error)
        except (TrunklineError, TimeoutError) as error:
            return "failed", f"{type(error).__name__}: {error}"

    async def _ask(self, operation: Operation) -> str:
        given = arguments(operation, self.part)
        if operation.kind in TASKS:
            return await self._task(operation, given)
        if operation.kind == "wait":
            return await self._cancel(operation, given)
        key, name = (operation.id, "pay") if operation.kind == "pay_once" else (None, operation.kind)
        self._asked[f"a word for {operation.id}"] = operation
        call = partial(self.client.call_tool, name, given, idempotency_key=key, on_progress=self._teller(operation))
        return (await self._again(operation.id, call)).text

    async def _again(self, asked: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation that the server could not start."""
        while True:
            try:
                return await ask()
            except PeerError as error:
                if not isinstance(error.data, dict) or error.data.get("kind") != "temporarily_unavailable":
                    raise
                self.log.record_rejection(self.part.name, asked, 503, str(error))
            await asyncio.sleep(QUICK.backoff_first)

    async def _task(self, operation: Operation, given: dict[str, Any]) -> str:
        if operation.id not in self.tasks:
            key = operation.id if operation.keyed else None
            start = partial(self.client.start_tool, operation.kind, given, idempotency_key=key)
            self.tasks[operation.id] = (await self._again(operation.id, start)).id
        return (await self._again(operation.id, self.client.task(self.tasks[operation.id]).result)).text

    async def _cancel(self, operation: Operation, given: dict[str, Any]) -> str:
        """Call, and cancel once the call reports that it has begun."""
        begun = asyncio.Event()
        call = partial(self.client.call_tool, operation.kind, given, on_progress=lambda _: begun.set())
        both = [asyncio.ensure_future(self._again(operation.id, call)), asyncio.ensure_future(begun.wait())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return f"{operation.id} cancelled" if begun.is_set() else (await both[0]).text
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)

    def _teller(self, operation: Operation) -> Callable[[ProgressParams], None] | None:
        return (
            (lambda told: self.progress[operation.id].append(int(told.progress))) if operation.kind == "count" else None
        )

    # --- notifications -----------------------------------------------------------------------------

    def _logged(self, params: LoggingMessageParams) -> None:
        data: Any = params.data
        self.log.record_owned(self.part.name, data["operation"])
        self.logs[data["operation"]].append(data["number"])

    async def _answer(self, asked: Any) -> dict[str, str]:
        """The user's answer: at once, or after the next fault."""
        operation = self._asked.pop(asked.message)
        if operation.waits:
            await self.log.next_fault()
        return {"word": f"word-of-{operation.id}"}

    async def listen(self) -> None:
        """Subscribe; the rest is up to the client."""

        def told(params: ResourceUpdatedParams) -> None:
            self.told_of(params.uri)
            self.looking.set()

        self.client.on("notifications/resources/updated", told)
        await self._again("subscribe", partial(self.client.subscribe, self.uri))
        self.log.subscribed(self.part.name, self.part.board)

    async def look(self) -> int:
        """The number on the board."""
        [found] = await self._again("read", partial(self.client.read_resource, self.uri))
        return int(found.text or "0")

    async def check(self) -> None:
        """Nothing to check: only the client knows its streams."""
