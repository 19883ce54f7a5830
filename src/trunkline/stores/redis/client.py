"""A line to a Redis that mends itself: what is asked for in one turn of the loop goes out in one piece.

Nobody waits for longer than `patience`. What was sent and not answered by then, or when the connection ends, has an end
that nobody knows; it is never sent again. What is asked for while there is no connection waits for the next one.

One answer is no end: a Redis that does not know our script any more has done nothing. Then the script is sent, and the
jobs of that turn that were refused, in their order. If a later one of the same turn was done, since somebody else sent
the script in the nick of time, they are given up instead: commits of one turn keep their order.
"""

import asyncio
import random
import re
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

from trunkline.errors import StoreError, StoreUnavailable, StoreUnusable
from trunkline.stores.redis.connection import Job, Link, ReplyError, command, connect, refusal
from trunkline.stores.redis.url import Address

__all__ = ["Line"]

_KEPT: Final = 0.1  # seconds: who is woken that much too late was kept from running
_SOONEST: Final = 0.02  # seconds between two attempts to connect, at first
_LATEST: Final = 1.0
_GONE: Final = re.compile(r"\b(READONLY|LOADING|MASTERDOWN)\b")  # this one is not, or not yet, who we look for


def _nothing(*_: object) -> None:
    """For those who need not be told."""


class Line:
    """The connections to one Redis, one after another. `met` is called when there is a new one, `lost` when there is
    none any more, `aside` with what nobody asked for, and `changed` with the keys of a job that has been done, or may
    have been."""

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None,
        patience: float,
        *,
        script: str | None = None,
        met: Callable[[], None] = _nothing,
        lost: Callable[[], None] = _nothing,
        aside: Callable[[list[Any]], None] | None = None,
        changed: Callable[[Sequence[str]], None] = _nothing,
    ) -> None:
        self._address = address
        self._tls = tls
        self._patience = patience
        self._load = [] if script is None else [command("SCRIPT", "LOAD", script)]
        self._met = met
        self._bereft = lost
        self._aside = aside
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] = self._loop.create_future()  # connection
        self._why: StoreError = StoreUnavailable("nothing was heard from it")  # there is no connection
        self._gathered: list[Job] = []
        self._missed: list[Job] = []
        self._held = 0
        self._turn = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._due = 0.0  # when it rings

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._link is not None

    async def open(self) -> None:
        """Waits for the first connection."""
        self._connecting = asyncio.create_task(self._connect())
        done, _ = await asyncio.wait([self._first], timeout=self._patience)
        if not done:
            raise StoreUnavailable(f"the store {self._address} does not answer: {self._why}") from self._why
        self._first.result()

    async def close(self) -> None:
        """Waits for what is under way, and ends the connection."""
        while under_way := [job.done for job in self._jobs() if not job.done.done()]:
            await asyncio.wait(under_way)
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        link, self._link = self._link, None
        if link is not None:
            link.abort()
            await link.ended
        if self._alarm is not None:
            self._alarm.cancel()

    # --- jobs ------------------------------------------------------------------------------------

    def submit(self, packed: bytes, keys: Sequence[str] = ()) -> asyncio.Future[Any]:
        """Has a command done, together with all else that this turn of the loop asks for."""
        return self.submit_all(((packed, keys),))[0]

    def submit_all(self, commands: Sequence[tuple[bytes, Sequence[str]]]) -> list[asyncio.Future[Any]]:
        """Has commands done one after another, over one connection; if one of them is not sent, none is."""
        due = self._loop.time() + self._patience
        if not self._gathered:
            self._loop.call_soon(self._flush)
        jobs = [Job(packed, due, keys) for packed, keys in commands]
        self._gathered += jobs
        if self._alarm is None:
            self._ring_at(due)
        return [job.done for job in jobs]

    def _jobs(self) -> list[Job]:
        return [*(self._link.waiting if self._link else ()), *self._missed, *self._gathered]

    def hold_until(self, done: asyncio.Future[Any]) -> None:
        """Sends nothing until something is done elsewhere."""
        self._held += 1
        done.add_done_callback(self._go_on)

    def _go_on(self, _: asyncio.Future[Any]) -> None:
        self._held -= 1
        self._flush()

    def _flush(self) -> None:
        if self._link is None or self._held or not self._gathered:
            return
        jobs, self._gathered = self._gathered, []
        self._turn += 1
        for job in jobs:
            job.turn = self._turn
        self._link.send(jobs)

    def _replied(self, job: Job, reply: Any) -> None:
        if isinstance(reply, ReplyError):
            self._refused(job, str(reply))
        else:
            job.settle(reply)
            if self._missed and job.turn == self._missed[-1].turn:
                self._give_up_missed()
            if job.keys and (reply[0] if isinstance(reply, list) else reply) > 0:
                self._changed(job.keys)
        if self._missed:
            self._send_missed()

    def _refused(self, job: Job, said: str) -> None:
        if said.startswith("NOSCRIPT") and not job.again:
            self._missed.append(job)
            return
        job.settle(refusal(said))
        if _GONE.search(said) and self._link is not None:
            self._drop(self._link, said)

    def _give_up_missed(self) -> None:
        missed, self._missed = self._missed, []
        for job in missed:
            job.settle(StoreUnavailable("the store had lost its script, and had it again too late; nothing was done"))

    def _send_missed(self) -> None:
        """Sends the script and what was refused without it, once the whole turn has been answered."""
        link, turn = self._link, self._missed[-1].turn
        if link is None or (link.waiting and link.waiting[0].turn == turn):
            return
        missed, self._missed = self._missed, []
        for job in missed:
            job.again = True
        loads = [Job(load, missed[0].due) for load in self._load]
        for load in loads:
            load.done.cancel()  # nobody waits for it
        link.send([*loads, *missed])

    def _ring_at(self, due: float) -> None:
        self._due = due
        self._alarm = self._loop.call_at(due, self._rang)

    def _rang(self) -> None:
        """Ends the wait of those who have waited for long enough. If this process was kept from running meanwhile, what
        has come is read first: it is not the store that was silent."""
        self._alarm = None
        now = self._loop.time()
        if now - self._due > _KEPT:
            self._ring_at(now + _KEPT / 2)
            return
        link = self._link
        if link is not None and link.waiting and link.waiting[0].due <= now:
            self._drop(link, "it has stopped answering")
        late = [job for job in self._gathered if job.due <= now]
        self._gathered = self._gathered[len(late) :]
        for job in late:
            job.settle(StoreUnavailable(f"the store {self._address} cannot be reached: {self._why}"))
        if left := self._jobs():
            self._ring_at(min(job.due for job in left))

    # --- connections -----------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Tries until there is a connection."""
        pause = _SOONEST
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    link = await connect(self._address, self._tls, self._patience, self._made, *self._load)
                break
            except TimeoutError:
                self._why = StoreUnavailable("it does not answer in time")
            except (OSError, StoreError) as error:
                self._why = error if isinstance(error, StoreError) else StoreUnavailable(str(error))
            if isinstance(self._why, StoreUnusable) and not self._first.done():
                self._first.set_exception(self._why)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once
            pause = min(2 * pause, _LATEST)
        self._connecting = None
        self._link = link
        if not self._first.done():
            self._first.set_result(None)
        self._met()
        self._flush()

    def _made(self) -> Link:
        return Link(self._replied, self._aside, self._lost)

    def _drop(self, link: Link, why: str) -> None:
        self._why = StoreUnavailable(why)
        link.abort()
        self._lost(link)

    def _lost(self, link: Link) -> None:
        lost = [*link.waiting]
        link.waiting.clear()
        unsent: list[Job] = []
        if link is self._link:
            lost += self._missed
            unsent, self._link, self._missed, self._gathered = self._gathered, None, [], []
            self._connecting = asyncio.create_task(self._connect())
            self._bereft()
        for job in lost:
            job.settle(StoreUnavailable(f"the store {self._address} has not answered; whether it did it is not known"))
            if job.keys:
                self._changed(job.keys)
        for job in unsent:  # they were made for that connection
            job.settle(StoreUnavailable(f"the connection to the store {self._address} was lost; nothing was done"))
