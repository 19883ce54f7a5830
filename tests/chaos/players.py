"""Clients of a campaign that are our own client: they do what the plan says, and write down what came of it."""

import asyncio
import contextlib
import time
from collections import defaultdict
from typing import Any

from tests.chaos.diary import PATIENCE, Diary
from tests.chaos.history import Outcome, Told
from tests.chaos.plan import FIRST_TO_TELL, HARMLESS, TASKS, Deed, Part, deeds, token_of

from trunkline import Client, Settings
from trunkline.errors import OutcomeUnknown, TransportError, TrunklineError
from trunkline.protocol.types import LoggingMessageParams, ResourceUpdatedParams

__all__ = ["QUICK", "Player"]

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
_KEPT = 3  # answers of each kind that are asked for again at the end


class Player:
    """One client."""

    def __init__(self, url: str, seed: int, part: Part, diary: Diary, listeners: frozenset[str]) -> None:
        """`listeners` are those who want to hear of its board, if it writes on one."""
        self._part = part
        self._diary = diary
        self._listeners = listeners
        self._deeds = deeds(seed, part)
        self._numbers: dict[str, list[int]] = defaultdict(list)  # by deed, what was logged of it
        self._asked: dict[str, Deed] = {}
        self._acknowledged: list[tuple[Deed, str, str]] = []  # with the id of its task, and what was answered
        self._looking = asyncio.Event()
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

    async def play(self) -> None:
        """Does one deed after another, until it is over; then asks once more for what it has been answered."""
        await self._open()
        async with self.client, asyncio.TaskGroup() as group:
            listening = None if self._part.writes else group.create_task(self._listen())
            if self._part.writes:
                await self._diary.everybody_listens(self._part.board, self._listeners)
            for deed in self._deeds:
                await asyncio.sleep(deed.pause)
                if self._diary.over.is_set():
                    break
                await self._do(deed)
            await self._audit()
            await self._diary.leave(self._part.name)
            if listening is not None:
                listening.cancel()

    async def _open(self) -> None:
        """Opens the client, which fails if the server dies meanwhile, and is tried again; and finds out about tools,
        since only what is known to do no harm is repeated."""
        while True:
            with contextlib.suppress(TransportError):
                await self.client.open()
                await self.client.list_tools()
                return

    # --- deeds -------------------------------------------------------------------------------------

    async def _do(self, deed: Deed) -> None:
        began = time.monotonic()
        outcome, said = await self._outcome(deed)
        harmless = deed.kind in HARMLESS and self._part.revision >= FIRST_TO_TELL
        self._diary.see(deed, began, outcome, said, harmless=harmless)
        if outcome == "answered":
            self._diary.answered(self._part.name)
            if deed.kind == "post":
                board, number = said.split()
                await self._diary.everybody_hears(board, int(number))
        if deed.kind == "count":
            self._diary.told.append(Told(deed.id, deed.size, tuple(self._numbers.pop(deed.id, ())), outcome))

    async def _outcome(self, deed: Deed) -> tuple[Outcome, str]:
        try:
            async with asyncio.timeout(2 * PATIENCE):
                return "answered", await self._ask(deed)
        except OutcomeUnknown as error:
            return "unknown", str(error)
        except (TrunklineError, TimeoutError) as error:
            return "failed", f"{type(error).__name__}: {error}"

    async def _ask(self, deed: Deed) -> str:
        if deed.kind in TASKS:
            return await self._task(deed)
        if deed.kind == "pay_once":
            result = await self.client.call_tool("pay", {"deed": deed.id}, idempotency_key=deed.id)
            self._acknowledged.append((deed, "", result.text))
            return result.text
        self._asked[f"a word for {deed.id}"] = deed
        return (await self.client.call_tool(deed.kind, self._arguments(deed))).text

    def _arguments(self, deed: Deed) -> dict[str, Any]:
        match deed.kind:
            case "post":
                return {"board": self._part.board}
            case "count" | "resumed" | "restarted" | "given_up":
                return {"deed": deed.id, "size": deed.size}
            case _:
                return {"deed": deed.id}

    async def _task(self, deed: Deed) -> str:
        key = deed.id if deed.keyed else None
        task = await self.client.start_tool(deed.kind, self._arguments(deed), idempotency_key=key)
        try:
            said = (await self.client.task(task.id).result()).text
        except TrunklineError as error:
            self._acknowledged.append((deed, task.id, f"{type(error).__name__}: {error}"))
            raise
        self._acknowledged.append((deed, task.id, said))
        return said

    async def _audit(self) -> None:
        """Asks once more for some of what was answered: it must be there, and the same."""
        for deed, task, first in self._acknowledged[-_KEPT:]:
            began = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE):
                    said = await self._again(deed, task)
            except (TrunklineError, TimeoutError) as error:
                said = f"{type(error).__name__}: {error}"
            told = said if said == first else f"first {first!r}, then {said!r}"
            self._diary.see(deed, began, "answered" if said == first else "failed", told, again=True)

    async def _again(self, deed: Deed, task: str) -> str:
        if task:
            return (await self.client.task(task).result()).text
        return (await self.client.call_tool("pay", {"deed": deed.id}, idempotency_key=deed.id)).text

    # --- being told --------------------------------------------------------------------------------

    def _logged(self, params: LoggingMessageParams) -> None:
        data: Any = params.data
        self._numbers[data["deed"]].append(data["number"])

    async def _answer(self, asked: Any) -> dict[str, str]:
        """The user's word: at once, or when the server has been killed once more."""
        deed = self._asked.pop(asked.message)
        if deed.waits:
            await self._diary.next_kill()
        return {"word": f"word-of-{deed.id}"}

    async def _listen(self) -> None:
        """Looks at a board whenever it is told to."""
        board = f"board://{self._part.board}"

        def told(params: ResourceUpdatedParams) -> None:
            if params.uri == board:
                self._looking.set()

        self.client.on("notifications/resources/updated", told)
        await self.client.subscribe(board)
        self._diary.subscribed(self._part.name, self._part.board)
        while True:
            await self._looking.wait()
            self._looking.clear()
            [found] = await self.client.read_resource(board)
            self._diary.hear(self._part.name, self._part.board, int(found.text or "0"))
