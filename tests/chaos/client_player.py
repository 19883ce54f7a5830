"""Clients of a campaign that use our own client."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from tests.chaos.campaign_log import PATIENCE, Diary
from tests.chaos.history import Outcome
from tests.chaos.plan import TASKS, Deed, Part, token_of
from tests.chaos.player import Playing, arguments

from trunkline import Client, Settings
from trunkline.errors import OutcomeUnknown, PeerError, TransportError, TrunklineError
from trunkline.protocol.types import LoggingMessageParams, ProgressParams, ResourceUpdatedParams

__all__ = ["Player"]

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


class Player(Playing):
    """One client."""

    def __init__(self, url: str, seed: int, part: Part, diary: Diary, listeners: frozenset[str]) -> None:
        super().__init__(seed, part, diary, listeners)
        self._asked: dict[str, Deed] = {}  # by the text of the input request
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

    async def outcome(self, deed: Deed) -> tuple[Outcome, str]:
        """Perform an operation, with the retries of the client."""
        try:
            async with asyncio.timeout(2 * self.diary.patience):
                return "answered", await self._ask(deed)
        except OutcomeUnknown as error:
            return "unknown", str(error)
        except (TrunklineError, TimeoutError) as error:
            return "failed", f"{type(error).__name__}: {error}"

    async def _ask(self, deed: Deed) -> str:
        given = arguments(deed, self.part)
        if deed.kind in TASKS:
            return await self._task(deed, given)
        if deed.kind == "wait":
            return await self._cancel(deed, given)
        key, name = (deed.id, "pay") if deed.kind == "pay_once" else (None, deed.kind)
        self._asked[f"a word for {deed.id}"] = deed
        call = partial(self.client.call_tool, name, given, idempotency_key=key, on_progress=self._teller(deed))
        return (await self._again(deed.id, call)).text

    async def _again(self, asked: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation that the server could not start."""
        while True:
            try:
                return await ask()
            except PeerError as error:
                if not isinstance(error.data, dict) or error.data.get("kind") != "temporarily_unavailable":
                    raise
                self.diary.refused(self.part.name, asked, 503, str(error))
            await asyncio.sleep(QUICK.backoff_first)

    async def _task(self, deed: Deed, given: dict[str, Any]) -> str:
        if deed.id not in self.tasks:
            key = deed.id if deed.keyed else None
            start = partial(self.client.start_tool, deed.kind, given, idempotency_key=key)
            self.tasks[deed.id] = (await self._again(deed.id, start)).id
        return (await self._again(deed.id, self.client.task(self.tasks[deed.id]).result)).text

    async def _cancel(self, deed: Deed, given: dict[str, Any]) -> str:
        """Call, and cancel once the call reports that it has begun."""
        begun = asyncio.Event()
        call = partial(self.client.call_tool, deed.kind, given, on_progress=lambda _: begun.set())
        both = [asyncio.ensure_future(self._again(deed.id, call)), asyncio.ensure_future(begun.wait())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return f"{deed.id} cancelled" if begun.is_set() else (await both[0]).text
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)

    def _teller(self, deed: Deed) -> Callable[[ProgressParams], None] | None:
        return (lambda told: self.progress[deed.id].append(int(told.progress))) if deed.kind == "count" else None

    # --- notifications -----------------------------------------------------------------------------

    def _logged(self, params: LoggingMessageParams) -> None:
        data: Any = params.data
        self.diary.owned(self.part.name, data["deed"])
        self.logs[data["deed"]].append(data["number"])

    async def _answer(self, asked: Any) -> dict[str, str]:
        """The user's answer: at once, or after the next fault."""
        deed = self._asked.pop(asked.message)
        if deed.waits:
            await self.diary.next_strike()
        return {"word": f"word-of-{deed.id}"}

    async def listen(self) -> None:
        """Subscribe; the rest is up to the client."""

        def told(params: ResourceUpdatedParams) -> None:
            self.told_of(params.uri)
            self.looking.set()

        self.client.on("notifications/resources/updated", told)
        await self._again("subscribe", partial(self.client.subscribe, self.uri))
        self.diary.subscribed(self.part.name, self.part.board)

    async def look(self) -> int:
        """The number on the board."""
        [found] = await self._again("read", partial(self.client.read_resource, self.uri))
        return int(found.text or "0")

    async def check(self) -> None:
        """Nothing to check: only the client knows its streams."""
