"""Clients of a campaign that are our own client."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from tests.chaos.diary import PATIENCE, Diary
from tests.chaos.history import Outcome
from tests.chaos.plan import TASKS, Deed, Part, token_of
from tests.chaos.playing import Playing, arguments

from trunkline import Client, Settings
from trunkline.errors import OutcomeUnknown, TransportError, TrunklineError
from trunkline.protocol.types import LoggingMessageParams, ProgressParams, ResourceUpdatedParams

__all__ = ["Player"]

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
        self._asked: dict[str, Deed] = {}  # by what the user is asked
        self._uri = f"board://{part.board}"
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
        """Opens the client, which fails if the server dies meanwhile, and is tried again; and finds out about tools,
        since only what is known to do no harm is repeated."""
        while True:
            with contextlib.suppress(TransportError):
                await self.client.open()
                await self.client.list_tools()
                return

    async def close(self) -> None:
        """Ends the line."""
        await self.client.close()

    # --- deeds -------------------------------------------------------------------------------------

    async def outcome(self, deed: Deed) -> tuple[Outcome, str]:
        """Does a deed, as the client does it: it repeats what may be repeated."""
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
        if deed.kind == "pay_once":
            return (await self.client.call_tool("pay", given, idempotency_key=deed.id)).text
        self._asked[f"a word for {deed.id}"] = deed
        return (await self.client.call_tool(deed.kind, given, on_progress=self._teller(deed))).text

    async def _task(self, deed: Deed, given: dict[str, Any]) -> str:
        if deed.id not in self.tasks:
            key = deed.id if deed.keyed else None
            self.tasks[deed.id] = (await self.client.start_tool(deed.kind, given, idempotency_key=key)).id
        return (await self.client.task(self.tasks[deed.id]).result()).text

    def _teller(self, deed: Deed) -> Callable[[ProgressParams], None] | None:
        return (lambda told: self.progress[deed.id].append(int(told.progress))) if deed.kind == "count" else None

    # --- being told --------------------------------------------------------------------------------

    def _logged(self, params: LoggingMessageParams) -> None:
        data: Any = params.data
        self.logs[data["deed"]].append(data["number"])

    async def _answer(self, asked: Any) -> dict[str, str]:
        """The user's word: at once, or when the server has been killed once more."""
        deed = self._asked.pop(asked.message)
        if deed.waits:
            await self.diary.next_kill()
        return {"word": f"word-of-{deed.id}"}

    async def listen(self) -> None:
        """Subscribes; the rest is up to the client."""

        def told(params: ResourceUpdatedParams) -> None:
            if params.uri == self._uri:
                self.looking.set()

        self.client.on("notifications/resources/updated", told)
        await self.client.subscribe(self._uri)
        self.diary.subscribed(self.part.name, self.part.board)

    async def look(self) -> int:
        """The number on the board."""
        [found] = await self.client.read_resource(self._uri)
        return int(found.text or "0")

    async def check(self) -> None:
        """What was sent is known to the client alone."""
