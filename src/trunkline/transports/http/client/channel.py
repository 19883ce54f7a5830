"""The client's end of a conversation over HTTP: a channel whose every message is a POST.

Requests of the modern era stand for themselves. As for the others, which way they go, Streamable HTTP or the older
HTTP+SSE, shows when `initialize` is answered. The ways know HTTP; the channel keeps the order, the tasks, the limits
and the end.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, cast

from msgspec.structs import replace

from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, TransportError
from trunkline.transports.channel import ChannelInfo, Closed, Mirrors, Origin, Oversized, Receiver
from trunkline.transports.http.client.credentials import Asking
from trunkline.transports.http.client.http_backend import Library
from trunkline.transports.http.client.http_peer import Peer
from trunkline.transports.http.client.http_sse import Legacy, NoStream
from trunkline.transports.http.client.modern import Stateless
from trunkline.transports.http.client.outbox import INITIALIZE, Letter, Outbox
from trunkline.transports.http.client.session import Streamable
from trunkline.transports.http.client.status import answers, revision_in
from trunkline.wire.messages import Encoded, ErrorResponse, Incoming, Message, RequestId

__all__ = ["HttpChannel"]

_log: Final = logging.getLogger("trunkline")
_ORIGIN: Final = Origin()
_GRACE: Final = 1.0  # seconds for others who are under way to find out what has become of them
# requests that wait for no others, and take no place from them
_UNLIMITED: Final = frozenset({INITIALIZE, "ping", "server/discover", "subscriptions/listen"})


class HttpChannel:
    """One conversation with a server."""

    def __init__(
        self, library: Library, peer: Peer, settings: Settings, settled: Callable[[str], None] = lambda _: None
    ) -> None:
        """`settled` is told which way it went, once initialize is answered."""
        self._library = library
        self._peer = peer
        self._settings = settings
        self._settled = settled
        self._way: Streamable | Legacy = Streamable(peer, self, settings)
        self._stateless = Stateless(peer, self, settings)
        self._modern = False  # the last request was one: there is no session to say anything in
        self._mirrors: Mirrors = lambda _: ()
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._outbox = Outbox()
        self._room = asyncio.Semaphore(settings.max_calls)
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[RequestId, asyncio.Task[None]] = {}
        self._unposted: dict[RequestId, None] = {}  # requests of which the server has not heard
        self._unsent = 0  # bytes
        self._under_way = 0  # letters that the server has not taken yet
        self._eased: asyncio.Future[None] | None = None  # for those who wait until fewer bytes are unsent
        self._quiet: asyncio.Future[None] | None = None  # for whoever waits until none are
        self._flowing: asyncio.Future[None] | None = None  # while reading is paused
        self._losing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._closed: Closed | None = None

    @property
    def info(self) -> ChannelInfo:
        """What kind of line this is."""
        return ChannelInfo(self._way.transport, self._peer.place.origin)

    def repeat(self, mirrors: Mirrors) -> None:
        """Repeats those arguments of tools in headers, in calls of the modern era."""
        self._mirrors = mirrors

    def open(self, receiver: Receiver) -> None:
        """Names who is told of messages."""
        self._receiver = receiver
        if isinstance(self._way, Legacy):
            self.listen()

    async def try_legacy(self, asking: Asking) -> None:
        """Goes the older way. Raises `TransportError` if there is none."""
        legacy = Legacy(self._peer, self, self._settings)
        await legacy.open(asking)
        self._way = legacy

    # --- out -----------------------------------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> None:  # noqa: ARG002 - the server knows by itself
        """Takes a message; it is posted as soon as its turn has come."""
        letter = Letter.of(message, self._mirrors)
        if self._closed is not None:
            return
        if len(letter.body) > self._settings.http_body_size_limit and not isinstance(message, ErrorResponse):
            raise Oversized(len(letter.body), self._settings.http_body_size_limit, "http_body_size_limit")
        if letter.label is not None or letter.method == INITIALIZE:
            self._modern = letter.label is not None
        if self._modern and letter.request is None:
            self._hang_up(letter.cancels)
            return
        if letter.request is not None:
            self._unposted[letter.request] = None
        if self._losing is not None:
            return  # nobody is there to take it; what is asked will be told so
        self._unsent += len(letter.body)
        if self._unsent > self._settings.unsent_limit:
            self.lose(f"the server left {self._unsent} bytes unread")
        else:
            self._post(self._outbox.put(letter))

    def _hang_up(self, request: RequestId | None) -> None:
        """Lets go of the answer to a request, if it is one that is called off: nothing else can be said to a server
        that knows of no session."""
        if request is not None and (call := self._calls.get(request)) is not None:
            call.cancel()

    def _post(self, letters: list[Letter]) -> None:
        for letter in letters:
            task = self._spawn(self._deliver(letter))
            if letter.request is not None:
                self._calls[letter.request] = task
            if letter.request is None or letter.method in _UNLIMITED:
                self._sending(letter)

    def _sending(self, letter: Letter) -> None:
        letter.posted = True
        self._under_way += 1

    async def _deliver(self, letter: Letter) -> None:
        try:
            async with contextlib.nullcontext() if letter.posted else self._room:
                if self._losing is None:
                    await self._deliver_now(letter)
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer is told
            self.unanswered(letter, f"{type(error).__name__}: {error}")
        finally:
            self.taken(letter)
            if letter.request is not None:
                if self._calls.get(letter.request) is asyncio.current_task():
                    del self._calls[letter.request]
                if self._losing is None:
                    self._unposted.pop(letter.request, None)
        if letter.cancels is not None and (call := self._calls.get(letter.cancels)) is not None:
            call.cancel()  # the server knows: what it still says of that is of no interest

    async def _deliver_now(self, letter: Letter) -> None:
        if not letter.posted:
            self._sending(letter)
        if letter.request is not None:
            self._unposted.pop(letter.request, None)
        await (self._way if letter.label is None else self._stateless).post(letter)

    def taken(self, letter: Letter) -> None:
        """A letter has arrived, or never will."""
        if letter.taken:
            return
        letter.taken = True
        self._unsent -= len(letter.body)
        if letter.posted:
            self._under_way -= 1
        if letter.method != INITIALIZE:  # which is done when it is answered
            self._post(self._outbox.done(letter))
        if self._eased is not None and self._unsent <= self._settings.unsent_high // 2:
            self._eased = _told(self._eased)
        if self._quiet is not None and not self._under_way:
            self._quiet = _told(self._quiet)

    async def drain(self) -> None:
        """Waits while too much is unsent."""
        if self._unsent > self._settings.unsent_high and self._closed is None:
            self._eased = self._eased or self._loop.create_future()
            await asyncio.shield(self._eased)

    # --- in ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hands up no more for now."""
        self._flowing = self._flowing or self._loop.create_future()

    def resume(self) -> None:
        """Hands up again."""
        if self._flowing is not None:
            self._flowing = _told(self._flowing)

    async def hand_up(self, messages: Sequence[Incoming]) -> None:
        """Takes messages, once they are wanted."""
        while self._flowing is not None:
            await asyncio.shield(self._flowing)
        opening = self._outbox.opening
        if opening is not None and opening.request is not None:
            self._look_for_answer(messages, opening, opening.request)
        if self._receiver is not None and self._closed is None:
            self._receiver.received(messages, _ORIGIN)

    def _look_for_answer(self, messages: Sequence[Incoming], opening: Letter, request: RequestId) -> None:
        """Whether initialize is answered: then it is known what is spoken, and which way."""
        for message in messages:
            if answers(message, request):
                self._peer.revision = revision_in(message, request)
                if self._peer.revision is not None:
                    self._settled(self._way.transport)
                self._post(self._outbox.done(opening))

    def listen(self) -> None:
        """Reads what the server says of its own accord."""
        self._spawn(self._way.listen())

    async def fall_back(self, letter: Letter, refused: ErrorResponse) -> None:
        """Goes the older way, since the server does not take initialize here."""
        try:
            await self.try_legacy(partial(self.asking, letter))
        except AuthorizationFailed as error:
            self.turned_away(letter, error)
        except TransportError as error:
            if not _same_status(refused, error):
                told = f"{refused.error.message}; as for HTTP+SSE of 2024-11-05: {error}"
                refused = replace(refused, error=replace(refused.error, message=told))
            await self.hand_up([refused])
        else:
            self.listen()
            await self._way.post(letter)

    # --- who we are ----------------------------------------------------------------------------

    def asking(self, letter: Letter, begun: bool) -> None:
        """Before a letter can be answered it has to be settled who we are; and when that is over."""
        if letter.request is not None and self._receiver is not None and self._closed is None:
            self._receiver.asking(letter.request, begun=begun)

    def turned_away(self, letter: Letter, error: AuthorizationFailed) -> None:
        """A letter was not taken, since that could not be settled."""
        if letter.request is None:
            _log.warning("%s did not take %s: %s", self._peer.place.name, letter.method or "an answer", error)
        elif self._receiver is not None and self._closed is None:
            self._receiver.unanswered(letter.request, Closed(str(error), error, reached=False))

    # --- the end -------------------------------------------------------------------------------

    def unanswered(self, letter: Letter, why: str) -> None:
        """A letter that may have arrived will not be answered."""
        if letter.request is not None and self._receiver is not None and self._closed is None:
            self._receiver.unanswered(letter.request, Closed(why))

    def lose(self, why: str, letter: Letter | None = None) -> None:
        """The server or the session is gone. Requests of which it never heard may be asked again."""
        if letter is not None and letter.request is not None:
            self._unposted[letter.request] = None
        if self._losing is None and self._closed is None:
            self._losing = self._spawn(self._lose(Closed(why), letter))

    async def _lose(self, closed: Closed, letter: Letter | None) -> None:
        if letter is not None:
            self.taken(letter)
        if self._under_way:
            self._quiet = self._loop.create_future()
            await asyncio.wait([self._quiet], timeout=_GRACE)
        self._end(closed)

    def _end(self, closed: Closed) -> None:
        if self._closed is not None:
            return
        if self._receiver is not None:
            for request in list(self._unposted):
                self._receiver.unanswered(request, replace(closed, reached=False))
        self._closed = closed
        for waiting in (self._eased, self._flowing, self._quiet):
            if waiting is not None:
                _told(waiting)
        self._eased = self._flowing = self._quiet = None
        if self._receiver is not None:
            self._receiver.closed(closed)
        self._ending = self._ending or self._loop.create_task(self._finish())

    async def close(self) -> None:
        """Posts what is to be posted still, takes leave of the server, and ends; all of it within `stop_timeout`."""
        self._ending = self._ending or self._loop.create_task(self._finish())
        await asyncio.shield(self._ending)

    async def _finish(self) -> None:
        if self._losing is None and self._closed is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.stop_timeout):
                    await self._take_leave()
        self._end(Closed("closed"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if isinstance(self._way, Legacy):
            self._way.close()
        await self._library.close()

    async def _take_leave(self) -> None:
        """Has the last notifications taken, and the session ended; what is still asked is not waited for."""
        for call in self._calls.values():
            call.cancel()
        if self._under_way:
            self._quiet = self._loop.create_future()
            await self._quiet
        await self._way.farewell()

    def _spawn(self, work: "Coroutine[Any, Any, None]") -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _told(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _same_status(refused: ErrorResponse, error: TransportError) -> bool:
    """Whether the older way was refused with the same status, so that it adds nothing."""
    told: Any = refused.error.data
    data = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    return isinstance(error, NoStream) and data.get("status") == error.status
