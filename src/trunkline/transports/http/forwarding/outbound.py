"""Carrying requests to the process that holds what they are for, and their answers back.

Whoever of several processes a client comes to lets it in, and reads what it sends; where another one holds its session,
that one answers. What it answers is passed on as it comes, at the pace of who reads: no more than a window's worth of
it is ever on the way. A process that is lost on the way has answered or not, which nobody knows.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from itertools import count
from typing import Any, Final, Protocol

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import StoreError
from trunkline.transports.http.forwarding.frames import (
    ANSWERED,
    ASKED,
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
    read_answered,
    read_asked,
    write,
)
from trunkline.transports.http.forwarding.inbound import LACKS, Arrivals, Principals
from trunkline.transports.http.request import Headers, Visit, cancel
from trunkline.transports.http.session.channel import Decision

__all__ = ["Front", "Outcome", "Relay", "Trunk"]

_FORWARDED: Final = frozenset({b"accept", b"content-type", b"last-event-id"})
_LOOK_EVERY: Final = 1.0  # seconds: whether those who are waited for are still there


class Trunk(Protocol):
    """The line to the other processes. What one sends to another arrives in order and once, or both are told."""

    @property
    def name(self) -> str:
        """What this process is called among them. It may have another name later."""
        ...

    @property
    def others(self) -> Collection[str]:
        """Those that are there."""
        ...

    def on(self, kind: bytes, heard: Callable[[str, bytes], Any]) -> None:
        """Has a function be told who says something of a kind, and what."""
        ...

    def on_lost(self, lost: Callable[[str | None], None]) -> None:
        """Has a function be told whose messages may have been lost, of None: anybody's; or who is gone."""
        ...

    def on_deposed(self, deposed: Callable[[], None]) -> None:
        """Has a function be told that others take this process for dead: nobody reaches it under its name."""
        ...

    def on_missed(self, missed: Callable[[], None]) -> None:
        """Has a function be told that it was out of reach for a while, and may have another name now."""
        ...

    def send(self, to: str, kind: bytes, body: bytes) -> bool:
        """Sends something to one process. False if nothing was sent: it is certain that nobody is there, or there is no
        way to others for now."""
        ...

    async def sent(self) -> None:
        """Waits while much of what was sent has not left yet."""
        ...

    async def gone(self, name: str) -> bool:
        """Whether a process is gone. Raises `StoreError` if that cannot be found out."""
        ...

    async def there(self, name: str) -> bool:
        """Whether a process is there to be sent something, once that is not in doubt. Raises `StoreError` if that
        cannot be found out."""
        ...


class Outcome(Enum):
    """What has become of a request that was to be carried."""

    ANSWERED = auto()
    NOT_HELD = auto()  # that process does not hold what it is for, or is gone: nothing was done
    LOST = auto()  # on the way: nobody knows whether anything was done, and the client has been told nothing


class Relay:
    """All that one process carries for others, and has carried by others."""

    def __init__(self, trunk: Trunk, principals: Principals, settings: Settings, clock: Clock) -> None:
        self.trunk = trunk
        self.principals = principals
        self.clock = clock
        self.window = settings.unsent_high
        self.arrivals = Arrivals(self._answer, trunk.sent, principals, clock, settings.max_connections)
        self._numbers = count(1)
        self._lines: dict[int, Line] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        trunk.on(ASKED, self._asked)
        trunk.on(ANSWERED, self._answered)
        trunk.on_lost(self.lost)
        trunk.on_deposed(lambda: self.lost(None))
        trunk.on_missed(self._renamed)

    def _asked(self, front: str, data: bytes) -> None:
        self.arrivals.heard(front, read_asked(data))

    def _answer(self, front: str, frame: FromHolder) -> bool:
        return self.trunk.send(front, ANSWERED, write(frame))

    def _answered(self, holder: str, data: bytes) -> None:
        frame = read_answered(data)
        if isinstance(frame, Unknown):
            for line in [line for number in frame.visits if (line := self._lines.get(number)) is not None]:
                if line.holder == holder:
                    line.lose()
            return
        line = self._lines.get(frame.visit)
        if line is not None and line.holder == holder:
            line.heard(frame)

    def lost(self, name: str | None) -> None:
        """What that process was sent or has sent may be lost: nobody waits for it any more."""
        for line in list(self._lines.values()):
            if name is None or line.holder == name:
                line.lose()
        self.arrivals.lost(name)

    def _renamed(self) -> None:
        for host in self.arrivals.hosts:
            host.renamed()

    # --- what others answer ------------------------------------------------------------------------

    def begin(self, holder: str, visit: Visit) -> "Line":
        """One more request that is carried."""
        number = next(self._numbers)
        line = self._lines[number] = Line(self, number, holder, visit)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY, self._look)
        return line

    def end(self, line: "Line") -> None:
        """It is over."""
        del self._lines[line.number]
        if self._drained is not None and not self._drained.done() and not self._owed():
            self._drained.set_result(None)

    def _owed(self) -> bool:
        """Whether somebody waits for an answer; a stream of what belongs to no request is none."""
        return any(not line.idle for line in self._lines.values())

    async def drained(self) -> None:
        """Waits until all that is carried is answered."""
        if self._owed():
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _look(self) -> None:
        """Those who are waited for may be gone, and nobody else looks. Or a message was lost on the way there or back,
        and neither side was told: each is asked whether it still works on what it is waited for."""
        self._timer = None
        if self._lines:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_LOOK_EVERY, self._look)
            for holder in {line.holder for line in self._lines.values()}:
                pending = [number for number, line in self._lines.items() if line.holder == holder]
                self.trunk.send(holder, ASKED, write(Pending(pending)))
            if self._looking is None:
                self._looking = loop.create_task(self._find_out({line.holder for line in self._lines.values()}))

    async def _find_out(self, holders: Collection[str]) -> None:
        try:
            for holder in holders:
                with contextlib.suppress(StoreError):
                    if await self.trunk.gone(holder):
                        self.lost(holder)
        finally:
            self._looking = None

    async def close(self) -> None:
        """Carries nothing any more; what is being written to others has a moment."""
        for line in list(self._lines.values()):
            line.lose()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._looking is not None:
            self._looking.cancel()
        await self.arrivals.close()


class Front:
    """What one place where clients come has carried to others."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._lines: set[Line] = set()

    @property
    def name(self) -> str:
        """What this process is called among the others."""
        return self._relay.trunk.name

    def knows(self, name: str) -> bool:
        """Whether there is another process of that name."""
        return name in self._relay.trunk.others

    async def reaches(self, name: str) -> bool:
        """Whether a process can be asked, once that is not in doubt. Raises `StoreError` if that is not known."""
        return await self._relay.trunk.there(name)

    async def carry(
        self, visit: Visit, holder: str, ident: str, body: bytes = b"", *, messages: bool = False
    ) -> Outcome:
        """Has another process answer a request; the client has the answer then, unless it says otherwise."""
        line = self._relay.begin(holder, visit)
        self._lines.add(line)
        try:
            if not line.ask(ident, body, messages=messages):
                return Outcome.NOT_HELD
            if len(body) > PART:
                await line.send_rest(body)
            return await line.bring()
        finally:
            self._lines.discard(line)
            self._relay.end(line)
            line.end()

    def release(self) -> None:
        """Ends the streams on which nothing is being answered."""
        for line in list(self._lines):
            if line.idle:
                line.lose()

    def close(self) -> None:
        """Ends what is left."""
        for line in list(self._lines):
            line.lose()


class Line:
    """One request that another process answers."""

    __slots__ = ("_ended", "_lost", "_more", "_passed", "_relay", "_visit", "_waiting", "_wake", "holder", "number")

    def __init__(self, relay: Relay, number: int, holder: str, visit: Visit) -> None:
        self.number = number
        self.holder = holder
        self._relay = relay
        self._visit = visit
        self._waiting: deque[FromHolder] = deque()
        self._wake: Decision | None = None
        self._more: Callable[[bytes], bool] | None = None  # writes at once
        self._passed = 0  # bytes for which the holder has no credit yet
        self._lost = False
        self._ended = False  # the holder has said all

    @property
    def idle(self) -> bool:
        """Whether it is a stream for whatever happens, and no answer."""
        return self._visit.scope["method"] == "GET"

    # --- asking ------------------------------------------------------------------------------------

    def ask(self, ident: str, body: bytes, *, messages: bool) -> bool:
        """Sends the request, or the beginning of it; False if nobody is there."""
        visit, relay = self._visit, self._relay
        ask = Ask(
            visit=self.number,
            method=visit.scope["method"],
            ident=ident,
            messages=messages,
            headers=_forwarded(visit.headers),
            peer=visit.peer,
            letters=relay.principals.letters(visit.principal),
            principal=relay.principals.written(visit.principal),
            lasts=None if visit.until is None else visit.until - relay.clock.now(),
            window=relay.window,
            size=len(body),
            body=body[:PART],
        )
        sent = self._say(ask)
        self._ended = not sent
        return sent

    def _say(self, frame: FromFront) -> bool:
        return self._relay.trunk.send(self.holder, ASKED, write(frame))

    async def send_rest(self, body: bytes) -> None:
        """Sends what did not fit into the first frame."""
        for start in range(PART, len(body), PART):
            await self._relay.trunk.sent()
            self._say(Part(self.number, body[start : start + PART]))

    def end(self) -> None:
        """Nobody waits any more."""
        if not self._ended:
            self._say(HungUp(self.number))

    # --- hearing -----------------------------------------------------------------------------------

    def heard(self, frame: FromHolder) -> None:
        """Takes what the holder says."""
        if type(frame) is Part and self._more is not None and self._idles and self._more(frame.data):
            self._pass(len(frame.data))
            return
        self._waiting.append(frame)
        self._rouse()

    @property
    def _idles(self) -> bool:
        """Whether all that came is written, and more is waited for."""
        return not self._waiting and self._wake is not None and not self._wake.done()

    def lose(self) -> None:
        """Nothing more comes."""
        self._lost = True
        self._rouse()

    def _rouse(self, _: object = None) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _changed(self) -> Decision:
        if self._wake is None or self._wake.done():
            self._wake = Decision()
        return self._wake

    async def _next(self) -> FromHolder | None:
        """What the holder says next; None if nothing more comes."""
        while not self._waiting:
            if self._lost:
                return None
            await self._changed()
        return self._waiting.popleft()

    def _pass(self, size: int) -> None:
        """So much has been passed on. Credit is given for much at a time; of a stream that is for whatever happens, at
        once: what was not passed on is for whoever comes next."""
        self._passed += size
        if self.idle or self._passed * 2 >= self._relay.window:
            self._say(Credit(self.number, self._passed))
            self._passed = 0

    # --- answering ---------------------------------------------------------------------------------

    async def bring(self) -> Outcome:
        """Brings the client its answer."""
        first = await self._next()
        match first:
            case Answer():
                body = await self._whole(first)
                self._ended = body is not None
                if body is None:
                    return Outcome.LOST
                await self._visit.respond(first.status, body, *self._dressed(first))
            case Head():
                await self._flow(first)
            case NotHere():
                self._ended = True
                return Outcome.NOT_HELD
            case _:
                return Outcome.LOST
        return Outcome.ANSWERED

    def _dressed(self, head: Answer | Head) -> list[tuple[bytes, bytes]]:
        """The headers of an answer. How to get more rights is for the front to say, which knows how it was reached."""
        challenge = self._visit.challenge
        return [challenge(value.decode().split()) if name == LACKS else (name, value) for name, value in head.headers]

    async def _whole(self, answer: Answer) -> bytes | None:
        """The body of an answer; None if it does not come."""
        if len(answer.body) == answer.size:
            return answer.body
        body = bytearray(answer.body)
        while len(body) < answer.size:
            if type(part := await self._next()) is not Part:
                return None
            body += part.data
            self._pass(len(part.data))
        return bytes(body)

    async def _flow(self, head: Head) -> None:
        """Writes a stream out until it ends, the client goes, or the holder is lost: who comes back reads on."""
        visit = self._visit
        await visit.begin(head.status, self._dressed(head))
        gone = asyncio.ensure_future(visit.hung_up())
        gone.add_done_callback(self._rouse)
        self._more = visit.more
        try:
            while not gone.done():
                if self._waiting:
                    frame = self._waiting.popleft()
                    if type(frame) is not Part:
                        self._ended = type(frame) is End
                        break
                    await visit.go_on(frame.data)
                    self._pass(len(frame.data))
                elif self._lost:
                    break
                else:
                    await self._changed()
            self._more = None
            if not gone.done():
                await visit.end_stream()
        finally:
            self._more = None
            await cancel(gone)


def _forwarded(headers: Mapping[bytes, bytes]) -> Headers:
    """Return the headers that the holder reads. The front has authenticated the caller and sends the principal, so
    credentials (`Authorization`, `DPoP`, cookies, whatever a custom gate looks at) stay in this process."""
    return [(name, value) for name, value in headers.items() if name in _FORWARDED or name.startswith(b"mcp-")]
