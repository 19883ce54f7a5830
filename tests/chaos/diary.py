"""What those who take part in a campaign write down while it runs, and what they have to know of each other."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.history import Heard, Outcome, Refusal, Saw, Told
from tests.chaos.plan import Deed, owner

__all__ = ["PATIENCE", "Diary"]

PATIENCE = 120.0  # seconds after which whoever waits for something gives up: everybody is back within a few


class Diary:
    """Everybody writes in the same one."""

    def __init__(self, names: Iterable[str], patience: float = PATIENCE) -> None:
        """`names` are those of all who take part; `patience` is how long they wait for anything."""
        self.patience = patience
        self._busy = set(names)  # who may still have something to tell the others
        self._at_work = set(names)
        self.over = asyncio.Event()  # nobody begins anything new
        self.last_death = asyncio.Event()  # the server will not die any more
        self.saw: list[Saw] = []
        self.told: list[Told] = []
        self.heard: list[Heard] = []
        self.refusals: list[Refusal] = []
        self.gaps: list[str] = []
        self.unfinished: list[str] = []
        self.strange: list[str] = []
        self.strikes = 0  # how often something was done to the server
        self.answers: list[tuple[float, str]] = []  # when somebody was answered, and who
        self.listeners: dict[str, set[str]] = defaultdict(set)  # of each board, those who are subscribed
        self.back = time.monotonic()  # when the server began to listen, the last time
        self._found: dict[tuple[str, str], int] = defaultdict(int)  # by who and board, the highest number
        self._news: asyncio.Future[None] | None = None

    # --- waiting for each other --------------------------------------------------------------------

    def stir(self) -> None:
        """Something has happened that somebody may wait for."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def news(self) -> None:
        """Waits until something happens."""
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)

    def strike(self) -> None:
        """Something is done to the server."""
        self.strikes += 1
        self.stir()

    async def next_strike(self) -> None:
        """Waits until something is done to the server once more, or nothing will be."""
        before = self.strikes
        while self.strikes == before and not self.over.is_set():
            await self.news()

    async def more_answers(self, wanted: int) -> None:
        """Waits until so many more have been given; not for ever."""
        wanted += len(self.answers)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                while len(self.answers) < wanted:
                    await self.news()

    async def everybody_listens(self, board: str, wanted: frozenset[str]) -> None:
        """Waits until all who want to hear of a board are subscribed."""
        while self.listeners[board] < wanted and not self.over.is_set():
            await self.news()

    def subscribed(self, who: str, board: str) -> None:
        """Somebody is, and stays it."""
        self.listeners[board].add(who)
        self.stir()

    async def everybody_hears(self, board: str, number: int) -> None:
        """Waits until all who listen to a board have found a number on it, or a later one. If they do not while the
        server lives, the judge finds that."""
        began, missing = time.monotonic(), set(self.listeners[board])
        while missing and time.monotonic() < max(began, self.back) + self.patience:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.news(), 1.0)
            missing = {who for who in missing if self._found[who, board] < number}

    async def rest(self, who: str) -> None:
        """Somebody has done all that it does; waits until the server has died for the last time."""
        self._at_work.discard(who)
        self.stir()
        await self.last_death.wait()

    async def everybody_rests(self) -> None:
        """Waits until nobody does anything; not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * self.patience):
                while self._at_work:
                    await self.news()

    async def leave(self, who: str) -> None:
        """Waits until everybody wants to leave, since who leaves hears of nothing any more."""
        self.left(who)
        while self._busy:
            await self.news()

    def left(self, who: str) -> None:
        """Somebody has nothing more to tell."""
        self._at_work.discard(who)
        self._busy.discard(who)
        self.stir()

    # --- what was seen -----------------------------------------------------------------------------

    def refused(self, who: str, asked: str, status: int, said: str) -> None:
        """Somebody by hand was."""
        self.refusals.append(Refusal(who, asked, status, said, time.monotonic()))

    def owned(self, who: str, deed: str) -> None:
        """Somebody was told of a deed, which should be its own."""
        if owner(deed) != who:
            self.strange.append(f"{who} was told of {deed}")

    def answered(self, who: str) -> None:
        """Somebody has got an answer."""
        self.answers.append((time.monotonic(), who))
        self.stir()

    def see(
        self, deed: Deed, began: float, outcome: Outcome, said: str, *, again: bool = False, harmless: bool = False
    ) -> None:
        """How a deed ended."""
        self.saw.append(Saw(deed.id, deed.kind, began, time.monotonic(), outcome, said, again, harmless))

    def hear(self, who: str, board: str, number: int) -> None:
        """What somebody found on a board, after having been told to look."""
        self.heard.append(Heard(who, board, number))
        self._found[who, board] = max(number, self._found[who, board])
        self.stir()
