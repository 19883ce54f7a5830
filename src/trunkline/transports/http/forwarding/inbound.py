"""Requests that another process has carried here, since what they are for is held here.

The other process has let them in, and has read them. They are answered like those that come by themselves, and what is
said goes back over the line between processes: at once while there is credit, and no faster than it is given.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from trunkline.clock import Clock
from trunkline.transports.http.forwarding.frames import (
    PART,
    Answer,
    Ask,
    Credit,
    End,
    FromFront,
    FromHolder,
    Head,
    HungUp,
    NotHere,
    Part,
    Pending,
    Unknown,
)
from trunkline.transports.http.request import ANSWER, MORE, Headers, Visit
from trunkline.transports.listener_limits import Busy

__all__ = ["LACKS", "Arrivals", "Carried", "Host", "Principals"]

LACKS: Final = b"trunkline-lacks"
"""Names scopes that are needed, in place of the header that the front makes of it."""

_LENGTH: Final = b"content-length"
_BUSY: Final = Busy("too many requests are being answered; try again later", "temporarily_unavailable", b"1")
_MOMENT: Final = 1.0  # seconds that what is left to be said has at the end


class Principals(Protocol):
    """How principals cross from one process to another."""

    def letters(self, principal: Any) -> str:
        """A principal in letters: those of another are others."""
        ...

    def written(self, principal: Any) -> bytes | None:
        """All of a principal; None if what is read would not be the same."""
        ...

    def read(self, written: bytes) -> Any:
        """The principal that was written."""
        ...


class Host(Protocol):
    """Holds what requests are for."""

    async def carried(self, visit: "Carried") -> bool:
        """Answers a request, if what it is for is held here."""
        ...

    def renamed(self) -> None:
        """This process may have another name, and nobody reaches it under the one before."""
        ...


class Carried(Visit):
    """A request that another process has let in and read, and the way to answer it."""

    __slots__ = ("_ask", "_body", "_credit", "_gone", "_head", "_principals", "_refill", "_reply", "_sent", "_written")

    def __init__(
        self,
        ask: Ask,
        principals: Principals,
        until: float | None,
        reply: Callable[[FromHolder], bool],
        sent: Callable[[], Awaitable[None]],
    ) -> None:
        extensions = {ANSWER: self._answer, MORE: self._push}
        scope = {"type": "http", "method": ask.method, "headers": ask.headers, "extensions": extensions}
        super().__init__(scope, self._disconnected, self._say)
        self.until = until
        self.challenge = _lacking
        self._ask = ask
        self._principals = principals
        self._reply = reply
        self._sent = sent
        self._credit = ask.window
        self._refill: asyncio.Future[None] | None = None
        self._gone = asyncio.Event()
        self._head: tuple[int, Headers] | None = None  # of an answer whose body is still to come
        self._body = bytearray(ask.body) if len(ask.body) < ask.size else ask.body
        self._written = False  # something was said

    # --- what was asked ----------------------------------------------------------------------------

    @property
    def ident(self) -> str:
        """The session that it is for, or the token of a stream."""
        return self._ask.ident

    @property
    def for_messages(self) -> bool:
        """Whether it is for a stream of HTTP+SSE."""
        return self._ask.messages

    @property
    def peer(self) -> str:
        """Where the request comes from."""
        return self._ask.peer

    @property
    def posted(self) -> bytes:
        """The body."""
        return bytes(self._body)

    @property
    def complete(self) -> bool:
        """Whether all of it is here."""
        return len(self._body) == self._ask.size

    def add(self, part: bytes) -> None:
        """More of the body."""
        if isinstance(self._body, bytearray):
            self._body += part

    def belongs_to(self, owner: Any) -> bool:
        """Whether who sent it is the owner of what it is for. It counts as sent by whom the front has let in, or by the
        owner, if that principal could not be written."""
        if self._principals.letters(owner) != self._ask.letters:
            return False
        self.principal = self.sender if self.knows_sender else owner
        return True

    @property
    def knows_sender(self) -> bool:
        """Whether it is known here who sent it, and not only by which letters."""
        return self._ask.principal is not None or self._ask.letters == self._principals.letters(None)

    @property
    def sender(self) -> Any:
        """Who sent it, if that is known here."""
        written = self._ask.principal
        return None if written is None else self._principals.read(written)

    # --- what the front says meanwhile -------------------------------------------------------------

    def leave(self) -> None:
        """Nobody waits for the answer any more."""
        self._gone.set()
        self._relax()

    def refill(self, size: int) -> None:
        """So much has been passed on."""
        self._credit += size
        self._relax()

    @property
    def unconfirmed(self) -> int:
        """Bytes that the front has not said to have passed on."""
        return self._ask.window - self._credit

    def _relax(self) -> None:
        if self._refill is not None and not self._refill.done():
            self._refill.set_result(None)

    async def _disconnected(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    # --- what is answered --------------------------------------------------------------------------

    def not_here(self) -> None:
        """What it is for is not held here."""
        self._reply(NotHere(self._ask.visit))

    async def fail(self) -> None:
        """There is no answer, for something of ours went wrong; or no more of one."""
        if self._written:
            self._reply(End(self._ask.visit))
        else:
            await self.respond(500, b"Internal Server Error", (b"content-type", b"text/plain"))

    def _answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Answers in one frame; False if it is too long for that."""
        if len(body) > PART:
            return False
        self._written = True
        told = [header for header in headers if header[0] != _LENGTH]
        self._reply(Answer(self._ask.visit, status, told, len(body), body))
        return True

    def _push(self, data: bytes) -> bool:
        """More of a stream, at once; False if the front has enough to do."""
        if len(data) > min(PART, self._credit):
            return False
        self._credit -= len(data)
        return self._reply(Part(self._ask.visit, data))

    async def _say(self, message: dict[str, Any]) -> None:
        """Takes a message of ASGI."""
        if message["type"] == "http.response.start":
            self._written = True
            status, headers = message["status"], message["headers"]
            if any(name == _LENGTH for name, _ in headers):
                self._head = (status, headers)
            else:
                self._reply(Head(self._ask.visit, status, headers))
        elif self._head is not None:
            await self._say_whole(*self._head, message["body"])
        else:
            await self._say_parts(message["body"])
            if not message.get("more_body"):
                self._reply(End(self._ask.visit))

    async def _say_whole(self, status: int, headers: Headers, body: bytes) -> None:
        if not self._answer(status, headers, body):
            told = [header for header in headers if header[0] != _LENGTH]
            self._reply(Answer(self._ask.visit, status, told, len(body), body[:PART]))
            await self._say_parts(body[PART:])

    async def _say_parts(self, data: bytes) -> None:
        """Says something, as fast as there is credit for it and the line takes it."""
        start = 0
        while start < len(data) and not self._gone.is_set():
            if self._credit <= 0:
                self._refill = asyncio.get_running_loop().create_future()
                await self._refill
                continue
            part = data[start : start + min(PART, self._credit)]
            start += len(part)
            self._credit -= len(part)
            self._reply(Part(self._ask.visit, part))
            await self._sent()


def _lacking(scopes: Any) -> tuple[bytes, bytes]:
    return (LACKS, " ".join(scopes).encode())


class Arrivals:
    """All requests that were carried here."""

    def __init__(
        self,
        reply: Callable[[str, FromHolder], bool],
        sent: Callable[[], Awaitable[None]],
        principals: Principals,
        clock: Clock,
        most: int,
    ) -> None:
        self.hosts: list[Host] = []
        self._reply = reply
        self._sent = sent
        self._principals = principals
        self._clock = clock
        self._most = most
        self._visits: dict[tuple[str, int], Carried] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def heard(self, front: str, frame: FromFront) -> None:
        """Takes what a front says."""
        if isinstance(frame, Pending):
            if unknown := [number for number in frame.visits if (front, number) not in self._visits]:
                self._reply(front, Unknown(unknown))
            return
        visit = self._visits.get((front, frame.visit))
        match frame:
            case Ask():
                self._take(front, frame)
            case _ if visit is None:
                pass
            case Part():
                visit.add(frame.data)
                if visit.complete:
                    self._start(self._serve((front, frame.visit), visit))
            case Credit():
                visit.refill(frame.size)
            case HungUp():
                visit.leave()
                if not visit.complete:
                    del self._visits[front, frame.visit]

    def _take(self, front: str, ask: Ask) -> None:
        until = None if ask.lasts is None else self._clock.now() + ask.lasts
        visit = Carried(ask, self._principals, until, lambda frame: self._reply(front, frame), self._sent)
        if len(self._visits) >= self._most:
            self._start(visit.refuse(503, _BUSY.why, (b"retry-after", _BUSY.wait), kind=_BUSY.kind))
            return
        self._visits[front, ask.visit] = visit
        if visit.complete:
            self._start(self._serve((front, ask.visit), visit))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: tuple[str, int], visit: Carried) -> None:
        try:
            for host in list(self.hosts):
                if await host.carried(visit):
                    return
            visit.not_here()
        except Exception:
            await visit.fail()
            raise
        finally:
            del self._visits[key]

    def lost(self, front: str | None) -> None:
        """What that front was sent, or has sent, may be lost: nobody there waits for an answer any more."""
        for (name, number), visit in list(self._visits.items()):
            if front is None or name == front:
                visit.leave()
                if not visit.complete:
                    del self._visits[name, number]

    async def close(self) -> None:
        """Waits a moment for what is left to be said, and gives up the rest."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_MOMENT)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
