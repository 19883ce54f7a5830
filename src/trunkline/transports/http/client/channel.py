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
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, MirrorLookup, Oversized, Receiver
from trunkline.transports.http.client.credentials import OnAuthorizing
from trunkline.transports.http.client.http_backend import HttpBackend
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.http_sse import HttpSse, NoStream
from trunkline.transports.http.client.modern import ModernHttp
from trunkline.transports.http.client.outbox import INITIALIZE, Outbox, PendingPost
from trunkline.transports.http.client.session import StreamableHttp
from trunkline.transports.http.client.status import answers_request, negotiated_revision
from trunkline.wire.messages import Encoded, ErrorResponse, Incoming, Message, RequestId

__all__ = ["HttpClientChannel"]

_log: Final = logging.getLogger("trunkline")
_ORIGIN: Final = MessageOrigin()
_LOSS_GRACE: Final = 1.0  # seconds for others who are under way to find out what has become of them
# requests that wait for no others, and take no place from them
_UNLIMITED_METHODS: Final = frozenset({INITIALIZE, "ping", "server/discover", "subscriptions/listen"})


class HttpClientChannel:
    """One conversation with a server."""

    def __init__(
        self, library: HttpBackend, peer: HttpPeer, settings: Settings, settled: Callable[[str], None] = lambda _: None
    ) -> None:
        """`settled` is told which way it went, once initialize is answered."""
        self._backend = library
        self._peer = peer
        self._settings = settings
        self._on_transport_chosen = settled
        self._session_transport: StreamableHttp | HttpSse = StreamableHttp(peer, self, settings)
        self._modern_transport = ModernHttp(peer, self, settings)
        self._last_was_modern = False  # the last request was one: there is no session to say anything in
        self._mirrors: MirrorLookup = lambda _: ()
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._outbox = Outbox()
        self._call_permits = asyncio.Semaphore(settings.max_calls)
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[RequestId, asyncio.Task[None]] = {}
        self._unposted: dict[RequestId, None] = {}  # requests of which the server has not heard
        self._unsent_size = 0  # bytes
        self._posts_in_flight = 0  # letters that the server has not taken yet
        self._drained: asyncio.Future[None] | None = None  # for those who wait until fewer bytes are unsent
        self._idle: asyncio.Future[None] | None = None  # for whoever waits until none are
        self._resumed: asyncio.Future[None] | None = None  # while reading is paused
        self._loss_task: asyncio.Task[None] | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._closed: ChannelClosed | None = None

    @property
    def info(self) -> ChannelInfo:
        """What kind of line this is."""
        return ChannelInfo(self._session_transport.transport, self._peer.endpoint.origin)

    def set_mirrors(self, mirrors: MirrorLookup) -> None:
        """Repeats those arguments of tools in headers, in calls of the modern era."""
        self._mirrors = mirrors

    def open(self, receiver: Receiver) -> None:
        """Names who is told of messages."""
        self._receiver = receiver
        if isinstance(self._session_transport, HttpSse):
            self.listen()

    async def try_http_sse(self, asking: OnAuthorizing) -> None:
        """Goes the older way. Raises `TransportError` if there is none."""
        legacy = HttpSse(self._peer, self, self._settings)
        await legacy.open(asking)
        self._session_transport = legacy

    # --- out -----------------------------------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> None:  # noqa: ARG002 - the server knows by itself
        """Takes a message; it is posted as soon as its turn has come."""
        letter = PendingPost.from_message(message, self._mirrors)
        if self._closed is not None:
            return
        if len(letter.body) > self._settings.http_body_size_limit and not isinstance(message, ErrorResponse):
            raise Oversized(len(letter.body), self._settings.http_body_size_limit, "http_body_size_limit")
        if letter.modern_headers is not None or letter.method == INITIALIZE:
            self._last_was_modern = letter.modern_headers is not None
        if self._last_was_modern and letter.request_id is None:
            self._cancel_call(letter.cancels)
            return
        if letter.request_id is not None:
            self._unposted[letter.request_id] = None
        if self._loss_task is not None:
            return  # nobody is there to take it; what is asked will be told so
        self._unsent_size += len(letter.body)
        if self._unsent_size > self._settings.unsent_limit:
            self.lose(f"the server left {self._unsent_size} bytes unread")
        else:
            self._post(self._outbox.put(letter))

    def _cancel_call(self, request: RequestId | None) -> None:
        """Lets go of the answer to a request, if it is one that is called off: nothing else can be said to a server
        that knows of no session."""
        if request is not None and (call := self._calls.get(request)) is not None:
            call.cancel()

    def _post(self, letters: list[PendingPost]) -> None:
        for letter in letters:
            task = self._spawn(self._post_in_turn(letter))
            if letter.request_id is not None:
                self._calls[letter.request_id] = task
            if letter.request_id is None or letter.method in _UNLIMITED_METHODS:
                self._mark_started(letter)

    def _mark_started(self, letter: PendingPost) -> None:
        letter.started = True
        self._posts_in_flight += 1

    async def _post_in_turn(self, letter: PendingPost) -> None:
        try:
            async with contextlib.nullcontext() if letter.started else self._call_permits:
                if self._loss_task is None:
                    await self._post_now(letter)
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer is told
            self.unanswered(letter, f"{type(error).__name__}: {error}")
        finally:
            self.accepted(letter)
            if letter.request_id is not None:
                if self._calls.get(letter.request_id) is asyncio.current_task():
                    del self._calls[letter.request_id]
                if self._loss_task is None:
                    self._unposted.pop(letter.request_id, None)
        if letter.cancels is not None and (call := self._calls.get(letter.cancels)) is not None:
            call.cancel()  # the server knows: what it still says of that is of no interest

    async def _post_now(self, letter: PendingPost) -> None:
        if not letter.started:
            self._mark_started(letter)
        if letter.request_id is not None:
            self._unposted.pop(letter.request_id, None)
        await (self._session_transport if letter.modern_headers is None else self._modern_transport).post(letter)

    def accepted(self, letter: PendingPost) -> None:
        """A letter has arrived, or never will."""
        if letter.accepted:
            return
        letter.accepted = True
        self._unsent_size -= len(letter.body)
        if letter.started:
            self._posts_in_flight -= 1
        if letter.method != INITIALIZE:  # which is done when it is answered
            self._post(self._outbox.complete(letter))
        if self._drained is not None and self._unsent_size <= self._settings.unsent_high // 2:
            self._drained = _wake(self._drained)
        if self._idle is not None and not self._posts_in_flight:
            self._idle = _wake(self._idle)

    async def drain(self) -> None:
        """Waits while too much is unsent."""
        if self._unsent_size > self._settings.unsent_high and self._closed is None:
            self._drained = self._drained or self._loop.create_future()
            await asyncio.shield(self._drained)

    # --- in ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hands up no more for now."""
        self._resumed = self._resumed or self._loop.create_future()

    def resume(self) -> None:
        """Hands up again."""
        if self._resumed is not None:
            self._resumed = _wake(self._resumed)

    async def deliver(self, messages: Sequence[Incoming]) -> None:
        """Takes messages, once they are wanted."""
        while self._resumed is not None:
            await asyncio.shield(self._resumed)
        opening = self._outbox.barrier
        if opening is not None and opening.request_id is not None:
            self._check_initialize_answer(messages, opening, opening.request_id)
        if self._receiver is not None and self._closed is None:
            self._receiver.received(messages, _ORIGIN)

    def _check_initialize_answer(self, messages: Sequence[Incoming], opening: PendingPost, request: RequestId) -> None:
        """Whether initialize is answered: then it is known what is spoken, and which way."""
        for message in messages:
            if answers_request(message, request):
                self._peer.revision = negotiated_revision(message, request)
                if self._peer.revision is not None:
                    self._on_transport_chosen(self._session_transport.transport)
                self._post(self._outbox.complete(opening))

    def listen(self) -> None:
        """Reads what the server says of its own accord."""
        self._spawn(self._session_transport.listen())

    async def fall_back(self, letter: PendingPost, refused: ErrorResponse) -> None:
        """Goes the older way, since the server does not take initialize here."""
        try:
            await self.try_http_sse(partial(self.authorizing, letter))
        except AuthorizationFailed as error:
            self.authorization_failed(letter, error)
        except TransportError as error:
            if not _is_same_status(refused, error):
                told = f"{refused.error.message}; as for HTTP+SSE of 2024-11-05: {error}"
                refused = replace(refused, error=replace(refused.error, message=told))
            await self.deliver([refused])
        else:
            self.listen()
            await self._session_transport.post(letter)

    # --- who we are ----------------------------------------------------------------------------

    def authorizing(self, letter: PendingPost, begun: bool) -> None:
        """Before a letter can be answered it has to be settled who we are; and when that is over."""
        if letter.request_id is not None and self._receiver is not None and self._closed is None:
            self._receiver.authorizing(letter.request_id, begun=begun)

    def authorization_failed(self, letter: PendingPost, error: AuthorizationFailed) -> None:
        """A letter was not taken, since that could not be settled."""
        if letter.request_id is None:
            _log.warning("%s did not take %s: %s", self._peer.endpoint.name, letter.method or "an answer", error)
        elif self._receiver is not None and self._closed is None:
            self._receiver.unanswered(letter.request_id, ChannelClosed(str(error), error, reached=False))

    # --- the end -------------------------------------------------------------------------------

    def unanswered(self, letter: PendingPost, why: str) -> None:
        """A letter that may have arrived will not be answered."""
        if letter.request_id is not None and self._receiver is not None and self._closed is None:
            self._receiver.unanswered(letter.request_id, ChannelClosed(why))

    def lose(self, why: str, letter: PendingPost | None = None) -> None:
        """The server or the session is gone. Requests of which it never heard may be asked again."""
        if letter is not None and letter.request_id is not None:
            self._unposted[letter.request_id] = None
        if self._loss_task is None and self._closed is None:
            self._loss_task = self._spawn(self._lose(ChannelClosed(why), letter))

    async def _lose(self, closed: ChannelClosed, letter: PendingPost | None) -> None:
        if letter is not None:
            self.accepted(letter)
        if self._posts_in_flight:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=_LOSS_GRACE)
        self._end(closed)

    def _end(self, closed: ChannelClosed) -> None:
        if self._closed is not None:
            return
        if self._receiver is not None:
            for request in list(self._unposted):
                self._receiver.unanswered(request, replace(closed, reached=False))
        self._closed = closed
        for waiting in (self._drained, self._resumed, self._idle):
            if waiting is not None:
                _wake(waiting)
        self._drained = self._resumed = self._idle = None
        if self._receiver is not None:
            self._receiver.closed(closed)
        self._close_task = self._close_task or self._loop.create_task(self._finish())

    async def close(self) -> None:
        """Posts what is to be posted still, takes leave of the server, and ends; all of it within `stop_timeout`."""
        self._close_task = self._close_task or self._loop.create_task(self._finish())
        await asyncio.shield(self._close_task)

    async def _finish(self) -> None:
        if self._loss_task is None and self._closed is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.stop_timeout):
                    await self._end_session()
        self._end(ChannelClosed("closed"))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if isinstance(self._session_transport, HttpSse):
            self._session_transport.close()
        await self._backend.close()

    async def _end_session(self) -> None:
        """Has the last notifications taken, and the session ended; what is still asked is not waited for."""
        for call in self._calls.values():
            call.cancel()
        if self._posts_in_flight:
            self._idle = self._loop.create_future()
            await self._idle
        await self._session_transport.end_session()

    def _spawn(self, work: "Coroutine[Any, Any, None]") -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _is_same_status(refused: ErrorResponse, error: TransportError) -> bool:
    """Whether the older way was refused with the same status, so that it adds nothing."""
    told: Any = refused.error.data
    data = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    return isinstance(error, NoStream) and data.get("status") == error.status
