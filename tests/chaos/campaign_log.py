"""The log that all clients of a campaign share, and its points of synchronization."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.history import BoardReading, EventSequence, Observation, Outcome, Rejection
from tests.chaos.plan import Operation, owner

__all__ = ["PATIENCE", "CampaignLog"]

PATIENCE = 120.0  # seconds after which a wait gives up: recovery takes a few


class CampaignLog:
    """The shared log of a campaign."""

    def __init__(self, names: Iterable[str], patience: float = PATIENCE) -> None:
        """`names` are those of all clients; `patience` is the time limit of their waits."""
        self.patience = patience
        self._busy = set(names)  # clients that may still write updates
        self._at_work = set(names)
        self.over = asyncio.Event()  # clients start no new operation
        self.last_fault = asyncio.Event()  # no more faults follow
        self.observations: list[Observation] = []
        self.events: list[EventSequence] = []
        self.readings: list[BoardReading] = []
        self.rejections: list[Rejection] = []
        self.gaps: list[str] = []
        self.unfinished: list[str] = []
        self.strange: list[str] = []
        self.fault_count = 0  # the number of faults so far
        self.answers: list[tuple[float, str]] = []  # the time of each response, and its client
        self.listeners: dict[str, set[str]] = defaultdict(set)  # the subscribers of each board
        self.back = time.monotonic()  # when the server last began to listen
        self._found: dict[tuple[str, str], int] = defaultdict(int)  # by client and board, the highest number
        self._news: asyncio.Future[None] | None = None

    # --- synchronization ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake all waiting clients."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def next_event(self) -> None:
        """Wait for the next event."""
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)

    def count_fault(self) -> None:
        """Count a fault."""
        self.fault_count += 1
        self.wake()

    async def next_fault(self) -> None:
        """Wait for the next fault, or until no more follow."""
        before = self.fault_count
        while self.fault_count == before and not self.over.is_set():
            await self.next_event()

    async def more_responses(self, wanted: int) -> None:
        """Wait for so many more responses; not for ever."""
        wanted += len(self.answers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                while len(self.answers) < wanted:
                    await self.next_event()

    async def all_subscribed(self, board: str, wanted: frozenset[str]) -> None:
        """Wait until all subscribers of a board are subscribed."""
        while self.listeners[board] < wanted and not self.over.is_set():
            await self.next_event()

    def subscribed(self, who: str, board: str) -> None:
        """Record that a client is subscribed, for the rest of the campaign."""
        self.listeners[board].add(who)
        self.wake()

    async def all_have_read(self, board: str, number: int) -> None:
        """Wait until all subscribers of a board have read a number or a later one. If they do not while the server
        is up, the checker reports it.
        """
        began, missing = time.monotonic(), set(self.listeners[board])
        while missing and time.monotonic() < max(began, self.back) + self.patience:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.next_event(), 1.0)
            missing = {who for who in missing if self._found[who, board] < number}

    async def finish(self, who: str) -> None:
        """Record that a client has finished; wait for the last fault."""
        self._at_work.discard(who)
        self.wake()
        await self.last_fault.wait()

    async def all_finished(self) -> None:
        """Wait until all clients have finished; not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * self.patience):
                while self._at_work:
                    await self.next_event()

    async def wait_to_leave(self, who: str) -> None:
        """Wait until all clients are ready to leave, since a client that has left receives no updates."""
        self.no_more_updates(who)
        while self._busy:
            await self.next_event()

    def no_more_updates(self, who: str) -> None:
        """Record that a client writes no more updates."""
        self._at_work.discard(who)
        self._busy.discard(who)
        self.wake()

    # --- observations ------------------------------------------------------------------------------

    def record_rejection(self, who: str, asked: str, status: int, said: str) -> None:
        """Record the rejection of a raw client."""
        self.rejections.append(Rejection(who, asked, status, said, time.monotonic()))

    def record_owned(self, who: str, operation: str) -> None:
        """Record the task or session that a client received, which should be its own."""
        if owner(operation) != who:
            self.strange.append(f"{who} was told of {operation}")

    def record_response(self, who: str) -> None:
        """Record a response."""
        self.answers.append((time.monotonic(), who))
        self.wake()

    def record_outcome(
        self,
        operation: Operation,
        began: float,
        outcome: Outcome,
        said: str,
        *,
        again: bool = False,
        harmless: bool = False,
    ) -> None:
        """Record the outcome of an operation."""
        self.observations.append(
            Observation(operation.id, operation.kind, began, time.monotonic(), outcome, said, again, harmless)
        )

    def record_reading(self, who: str, board: str, number: int) -> None:
        """Record the number that a client has read after a notification."""
        self.readings.append(BoardReading(who, board, number))
        self._found[who, board] = max(number, self._found[who, board])
        self.wake()
