"""A bus on Redis: what is published there reaches all who are subscribed at that moment, and nobody else.

Each process subscribes to two channels, one for all and one of its own, over one connection; it publishes over another.
So what one sends to another comes in its order, whichever channel it takes. Who joins asks Redis for everybody else's
channels, says hello to each, and waits for their answers.

Redis publishes to subscribers of every database alike, and takes messages from any client. So the names of channels
have the identity of the store in them, the name of a process goes with a tag that only processes of that store can
make, and every message is a signed frame (`frames.py`). A broadcast counts only from a process that has sent this one
something before; any other is answered with a hello, and the answer to that proves that its sender is there.

What is published while a connection is lost is lost, too, and Redis reports it to no process. So a process that has
lost a connection starts over with all others once it has both again: it sends each of them an `_AGAIN`, reports
`lost(None)` to its own listener in the same turn of the loop, and sends nothing else before that. A process that
receives an `_AGAIN` reports its sender as lost. Redis says how many subscribers have received a message: a process that
has none is reported as lost, and sent an `_AGAIN` at that moment, in case it has subscribed meanwhile. A listener that
is told of a loss drops what it does for the other process, and no process waits for what was dropped: whenever one side
is told, the other is told as well, and not before it.

A process that has ended without a goodbye is found by asking, now and then, for the number of its subscribers.
"""

import asyncio
import hmac
import ssl
from functools import lru_cache, partial
from typing import Any, Final

from trunkline.errors import MisuseError, StoreUnavailable
from trunkline.stores import validation
from trunkline.stores.bus import Ears
from trunkline.stores.bus_listener import Hearing
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.redis.client import Line
from trunkline.stores.redis.connection import command
from trunkline.stores.redis.url import Address
from trunkline.stores.redis.watches import pattern
from trunkline.stores.signed_frames import ALL, FrameSigner, Rejection

__all__ = ["Channels", "RedisBus"]

MUCH: Final = 1 << 20  # bytes that Redis has not taken yet: who can wait should
TOO_MUCH: Final = 64 << 20  # bytes at which nothing more is sent
OFTEN: Final = 0.2  # seconds between two times that one is told that messages did not leave
ANSWERS: Final = 2.0  # seconds that who joins waits for those that do not answer; one may be stopped
MOST_GONE: Final = 1000  # names

_MESSAGE: Final = b"m"
_HELLO: Final = b"h"
_AGAIN: Final = b"a"  # hello from a process that has just reported the receiver as lost to its own listener
_HERE: Final = b"y"  # the answer to either
_BYE: Final = b"b"
_KINDS: Final = {_MESSAGE, _HELLO, _AGAIN, _HERE, _BYE}
_TAG: Final = 16  # letters


class Channels:
    """Names of the channels of one deployment."""

    def __init__(self, prefix: str, identity: StoreIdentity) -> None:
        self._key = identity.key("bus channels")
        self.all = f"{prefix}bus:{identity.id}:all"
        self.start = f"{prefix}bus:{identity.id}:to:"  # of the channel of each process
        self.of = lru_cache(1024)(self._of)

    def _of(self, name: str) -> str:
        """Return the channel of a process."""
        return f"{self.start}{name}:{hmac.digest(self._key, name.encode(), 'sha256').hex()[:_TAG]}"

    def name(self, channel: str) -> str | None:
        """Return the process whose channel it is, or None if its tag is wrong: a stranger has subscribed to it."""
        name = channel[len(self.start) :].rpartition(":")[0]
        return name if validation.is_process(name) and self.of(name) == channel else None


class RedisBus:
    """A way to the other processes on the same store, by a Redis."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, *, prefix: str, patience: float) -> None:
        self._where = str(address)
        self._line_of = partial(Line, address, tls, patience)
        self._prefix = prefix
        self._every = patience  # seconds between two looks at whether all is well
        self._name = ""  # as long as it is not open
        self._ears = Hearing()
        self._signer: FrameSigner
        self._channels: Channels
        self._opened = False
        self._closed = False
        self._speaking: Line | None = None
        self._listening: Line | None = None
        self._subscribing: list[asyncio.Future[Any]] = []
        self._subscribed = False
        self._hello = _HELLO
        self._broken = False  # something was lost, and the other processes do not know that yet
        self._peers: set[str] = set()
        self._gone: dict[str, None] = {}  # who has said goodbye, the last ones
        self._unheard: set[str] = set()  # peers whose broadcasts were dropped, since they may have been replays
        self._awaited: set[str] = set()  # names, whose answers
        self._answered: asyncio.Future[None] | None = None
        self._meeting: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[Any] | None = None  # which channels there are
        self._unsent = 0  # bytes that were not confirmed
        self._relief: asyncio.Future[None] | None = None
        self._look: asyncio.TimerHandle | None = None
        self._unreached: set[str | None] = set()  # to whom something was sent that may not have arrived
        self._admitting: asyncio.TimerHandle | None = None
        self._admitted = 0.0  # when that was told last

    # --- from open to closed ---------------------------------------------------------------------

    async def open(self, name: str, ears: Ears, identity: StoreIdentity) -> None:
        """Connects, subscribes, and meets all others that are subscribed."""
        validation.check_process(name)
        if self._closed:
            raise StoreUnavailable(f"the bus at {self._where} is closed")
        if self._name:
            raise MisuseError(f"the bus at {self._where} is open already")
        self._name = name
        self._signer, self._channels = FrameSigner(identity, name), Channels(self._prefix, identity)
        self._ears.open(ears)
        speaking = self._speaking = self._line_of(met=self._meet_again, lost=self._broke)
        listening = self._listening = self._line_of(met=self._subscribe, lost=self._went_deaf, aside=self._came)
        try:
            await speaking.open()
            await listening.open()
            await asyncio.gather(*self._subscribing)
            await self._meet(speaking)
        except BaseException:
            await self.close()
            raise
        self._opened = True
        self._plan_look()
        if self._broken:
            self._meet_again()

    async def close(self) -> None:
        """Says goodbye, and hangs up."""
        if self._closed:
            return
        if self._opened:
            self._say(None, _BYE)
        self._closed = True
        self._ears.close()
        for timer in filter(None, (self._look, self._admitting)):
            timer.cancel()
        if self._meeting is not None:
            self._meeting.cancel()
            await asyncio.wait([self._meeting])
        for line in (self._speaking, self._listening):
            if line is not None:
                await line.close()

    # --- sending ---------------------------------------------------------------------------------

    def send(self, to: str, message: bytes) -> bool:
        """Publishes a message for one process. Nobody is there for certain if it has said goodbye."""
        self._check(message)
        validation.check_process(to)
        if to in self._gone:
            return False
        if not self._closed:
            self._post(to, message)
        return True

    def publish(self, message: bytes) -> None:
        """Publishes a message for all."""
        self._check(message)
        if not self._closed:
            self._post(None, message)

    async def sent(self) -> None:
        """Waits for Redis."""
        while self._unsent > MUCH:
            if self._relief is None:
                self._relief = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._relief])

    def _check(self, message: bytes) -> None:
        validation.check_message(message)
        if not self._name:
            raise MisuseError(f"the bus at {self._where} is not open yet")

    def _post(self, to: str | None, message: bytes) -> None:
        """Publish a message. It is lost if an earlier one was, and the other processes do not know that yet."""
        if self._broken:
            self._failed(to)
        else:
            self._say(to, _MESSAGE, message)

    def _say(self, to: str | None, kind: bytes, body: bytes = b"") -> None:
        """Publish to one process or to all. Nothing waits for a connection: what cannot be sent now is lost."""
        line = self._speaking
        if line is None or not line.connected or self._unsent > TOO_MUCH:
            self._failed(to)
            return
        channel = self._channels.all if to is None else self._channels.of(to)
        packed = command("PUBLISH", channel, self._signer.sign(ALL if to is None else to, kind, body))
        self._unsent += len(packed)
        line.submit(packed).add_done_callback(partial(self._said, to, kind, len(packed)))

    def _said(self, to: str | None, kind: bytes, size: int, done: asyncio.Future[int]) -> None:
        """Redis has taken something, and says how many have got it; or has not."""
        self._unsent -= size
        if self._unsent <= MUCH and self._relief is not None:
            self._relief.set_result(None)
            self._relief = None
        if done.exception() is not None:
            self._failed(to)
        elif not done.result() and to is not None:
            self._expect_no_more(to)
            if kind == _MESSAGE or to in self._peers:
                self._missing(to)

    def _failed(self, to: str | None) -> None:
        """Something may not have arrived: report it here soon, and to the other processes before anything else."""
        self._broke()
        self._admit_soon(to)

    def _admit_soon(self, to: str | None) -> None:
        """Who is told may try again at once, and fail again: so it is told every now and then, of all that has failed
        meanwhile."""
        self._unreached.add(to)
        if self._admitting is None:
            loop = asyncio.get_running_loop()
            self._admitting = loop.call_at(max(loop.time(), self._admitted + OFTEN), self._admit)

    def _admit(self) -> None:
        """Report losses. A process that had no subscriber may have subscribed since, and sent something that the
        listener drops when it is told: so that process is told as well."""
        self._admitting, self._admitted = None, asyncio.get_running_loop().time()
        unreached, self._unreached = self._unreached, set()
        for name in unreached:
            if name is not None and name not in self._gone and not self._broken:
                self._say(name, _AGAIN)
            self._ears.lost(name)
        if self._broken and (self._asked is None or self._asked.done()):
            self._meet_again()

    def _missing(self, name: str) -> None:
        self._peers.discard(name)
        self._admit_soon(name)

    # --- hearing ---------------------------------------------------------------------------------

    def _came(self, message: list[Any]) -> None:
        """Something was published. Until all channels are subscribed to, it counts as lost."""
        if not self._subscribed:
            return
        frame = self._signer.verify(message[-1])
        if isinstance(frame, Rejection):
            self._ears.rejected(frame, self._where)
            return
        sender, kind, body = frame.sender, frame.payload[:1], frame.payload[1:]
        if sender == self._name or kind not in _KINDS:
            return
        if not frame.fresh:
            self._question(sender)
        elif kind == _BYE:
            self._forget(sender)
        else:
            self._take(sender, kind, body)

    def _question(self, sender: str) -> None:
        """Drop a broadcast that may be a replay. If its sender is there, its answer proves that, and counts."""
        if sender in self._peers:
            self._unheard.add(sender)
        if sender not in self._gone and not self._closed:
            self._say(sender, _HELLO)

    def _take(self, sender: str, kind: bytes, body: bytes) -> None:
        """Something came from a process that is there."""
        if kind == _AGAIN or sender in self._unheard:
            self._unheard.discard(sender)
            self._ears.lost(sender)
        self._know(sender)
        if kind == _MESSAGE:
            self._ears.heard(sender, body)
        elif kind != _HERE and not self._closed:
            self._say(sender, _HERE)

    def _know(self, name: str) -> None:
        if name not in self._peers:
            self._peers.add(name)
            self._ears.met(name)
        self._expect_no_more(name)

    def _expect_no_more(self, name: str) -> None:
        self._awaited.discard(name)
        if not self._awaited and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def _forget(self, name: str) -> None:
        """A process has ended, and nobody will ever have its name."""
        self._gone[name] = None
        if len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._expect_no_more(name)
        self._missing(name)

    # --- meeting ---------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        """There is a connection to hear by."""
        if self._listening is not None:
            channels = (self._channels.all, self._channels.of(self._name))
            self._subscribing = self._listening.submit_all([(command("SUBSCRIBE", each), ()) for each in channels])
            self._subscribing[0].add_done_callback(_seen)
            self._subscribing[-1].add_done_callback(self._can_hear)

    def _can_hear(self, done: asyncio.Future[Any]) -> None:
        if done.exception() is not None:
            return  # the connection is lost, so there will be another
        self._subscribed = True
        if self._broken:
            self._ears.lost(None)  # what is heard from now on may follow something that is missing
        self._meet_again()

    def _broke(self) -> None:
        self._hello, self._broken = _AGAIN, True

    def _went_deaf(self) -> None:
        self._subscribed = False
        self._broke()

    def _meet_again(self) -> None:
        """Start over with the other processes after a loss, as soon as there are both connections."""
        speaking = self._speaking
        if self._closed or not self._opened or not self._subscribed or speaking is None or not speaking.connected:
            return
        if self._meeting is not None:
            self._meeting.cancel()
        self._meeting = asyncio.create_task(self._meet(speaking))
        self._meeting.add_done_callback(_seen)

    async def _meet(self, speaking: Line) -> None:
        """Says hello to all, and waits for those that are there; not for ever, since one may be stopped."""
        self._asked = speaking.submit(command("PUBSUB", "CHANNELS", pattern(self._channels.start)))
        channels = await self._asked
        if not self._subscribed:  # another meeting follows the next subscription
            raise StoreUnavailable(f"a connection of the bus at {self._where} was lost")
        names = [self._channels.name(channel.decode("utf-8", "replace")) for channel in channels]
        self._awaited = {name for name in names if name is not None} - {self._name}
        self._answered = asyncio.get_running_loop().create_future()
        self._broken = False
        for name in [*self._awaited]:
            self._say(name, self._hello)
        if self._hello == _AGAIN:
            self._unreached.clear()
            self._ears.lost(None)
        if self._awaited:
            await asyncio.wait([self._answered], timeout=ANSWERS)
        for name in [*self._awaited]:
            self._know(name)

    # --- now and then ----------------------------------------------------------------------------

    def _plan_look(self) -> None:
        self._look = asyncio.get_running_loop().call_later(self._every, self._look_around)

    def _look_around(self) -> None:
        """Whether we would hear anything, and whether those are there whom we know."""
        if self._listening is not None and self._listening.connected:
            self._listening.submit(command("PING")).add_done_callback(_seen)
        if self._speaking is not None and self._speaking.connected and self._peers:
            names = sorted(self._peers)
            asked = self._speaking.submit(command("PUBSUB", "NUMSUB", *map(self._channels.of, names)))
            asked.add_done_callback(partial(self._looked, names))
        self._plan_look()

    def _looked(self, names: list[str], done: asyncio.Future[list[Any]]) -> None:
        if done.exception() is None:
            for name, count in zip(names, done.result()[1::2], strict=True):
                if not count:
                    self._missing(name)


def _seen(done: asyncio.Future[Any]) -> None:
    """Whether it was done is seen when there is a connection again."""
    if not done.cancelled():
        done.exception()
