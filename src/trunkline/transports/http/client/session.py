"""Streamable HTTP, the client's side: every message is posted to one place, and answered there by JSON or by events.

An answer that comes as events may break off. It is read on where it stopped, if the server has numbered its events, and
after the time that the server names. If it cannot be, that one request has failed and nothing else. What belongs to no
request comes on a stream of its own, for as long as the server offers one.
"""

import asyncio
import contextlib
import logging
import random
from enum import Enum, auto
from typing import Final

from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed, TransportError
from trunkline.transports.http.client.http_backend import Reply, body_of, kind_of
from trunkline.transports.http.client.http_peer import Peer
from trunkline.transports.http.client.outbox import INITIALIZE, INITIALIZED, Letter
from trunkline.transports.http.client.post import FAILED, LOST_ON_THE_WAY, NOT_FOUND, OK, Above, post, refused
from trunkline.transports.http.client.response import read_answer, read_events
from trunkline.transports.http.client.resumable_stream import EventStream
from trunkline.transports.http.client.status import failed, unusable
from trunkline.transports.http.client.url import Misled
from trunkline.wire.media_types import EVENTS

__all__ = ["Streamable"]

_log: Final = logging.getLogger("trunkline")
_HEARING: Final = 1.0  # seconds for a server to open its own stream, before calls go out all the same
_MOST_FAILURES: Final = 5  # in a row, to open the stream of one answer again
_OLDER: Final = range(400, 500)  # to initialize: perhaps the server speaks HTTP+SSE
_NOT_OLDER: Final = frozenset({401, 403, 407})
_PASSING: Final = frozenset({429, 502, 503, 504})
_AGAIN: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2)  # seconds before each further attempt
_BATCHES: Final = "2025-03-26"


class _Verdict(Enum):
    """Why there is no stream."""

    AGAIN = auto()  # it may be had later
    NEVER = auto()
    GONE = auto()  # nor a session


class Streamable:
    """One session with a server."""

    transport: Final = "http"

    def __init__(self, peer: Peer, above: Above, settings: Settings) -> None:
        self._peer = peer
        self._above = above
        self._settings = settings
        self._heard = asyncio.Event()  # the server's own stream is open, or cannot be had now

    # --- what we say ---------------------------------------------------------------------------

    async def post(self, letter: Letter) -> None:
        """Posts a message, and sees to its answer. What wants none, as a notification or an answer of ours, is posted
        again if it may not have arrived: it does no harm twice, and somebody may wait for it."""
        for pause in (*_AGAIN, None):
            try:
                await post(self._peer, letter, self._above, self._take)
            except TransportError as error:
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
                _log.warning("%s did not take %s: %s", self._peer.place.name, letter.method or "an answer", error)
                if letter.method == INITIALIZED:  # the server waits for it before it asks anything
                    self._above.lose(f"the server did not take {INITIALIZED}: {error}", letter)
            return

    async def _take(self, reply: Reply, letter: Letter) -> None:
        if reply.status == NOT_FOUND and self._peer.session is not None:
            self._above.lose("the server does not know the session any more", letter)
        elif reply.status >= FAILED:
            await self._refused(reply, letter)
        elif letter.request is None:
            if letter.method == INITIALIZED:
                await self._begin_to_listen()
            self._above.taken(letter)
            if kind_of(reply) != EVENTS:
                await body_of(reply, self._settings.http_body_size_limit)  # so that the connection can be kept
        elif letter.method == INITIALIZE and (why := self._peer.join(reply)) is not None:
            await self._above.hand_up([failed(letter.request, why)])
        else:
            self._above.taken(letter)
            await self._answered(reply, letter)

    async def _refused(self, reply: Reply, letter: Letter) -> None:
        if letter.request is None and reply.status in _PASSING:
            raise TransportError(f"HTTP {reply.status} {reply.reason}")
        if letter.request is None:
            _log.warning("%s refused %s: HTTP %d", self._peer.place.name, letter.method or "an answer", reply.status)
        elif reply.status in LOST_ON_THE_WAY:
            self._above.unanswered(letter, f"HTTP {reply.status} {reply.reason}: the answer was lost on the way")
        else:
            answer = await refused(reply, letter.request, self._settings)
            if letter.method == INITIALIZE and reply.status in _OLDER and reply.status not in _NOT_OLDER:
                await self._above.fall_back(letter, answer)
            else:
                await self._above.hand_up([answer])

    # --- what is answered ----------------------------------------------------------------------

    async def _answered(self, reply: Reply, letter: Letter) -> None:
        batches = self._peer.revision == _BATCHES
        await read_answer(reply, letter, self._above, self._settings, self._follow, batches=batches)

    async def _follow(self, reply: Reply, letter: Letter) -> None:
        """Reads the stream of an answer to its end, wherever that may be."""
        stream = EventStream(self._settings)
        stream.opened = True
        answered = await self._read(reply, stream, letter)
        failures = 0
        while not answered:
            if stream.unusable is not None:
                await self._above.hand_up([unusable(letter.request or 0, stream.unusable)])
                return
            if stream.position is None or failures > _MOST_FAILURES:
                self._above.unanswered(letter, "the answer broke off, and cannot be read on")
                return
            reply.close()
            await self._pause(stream, failures)
            match await self._open(stream):
                case _Verdict.AGAIN:
                    failures += 1
                case _Verdict.GONE:
                    self._above.unanswered(letter, "the answer broke off, and the session is gone")
                    return
                case _Verdict.NEVER:
                    self._above.unanswered(letter, "the answer broke off, and the server does not let it be read on")
                    return
                case again:
                    failures = 0
                    try:
                        answered = await self._read(again, stream, letter)
                    finally:
                        again.close()

    async def _read(self, reply: Reply, stream: EventStream, letter: Letter | None = None) -> bool:
        """Hands up what one connection brings; whether the answer was in it."""
        stream.begin()
        begun = asyncio.get_running_loop().time()
        answered = await read_events(reply, stream.feed, self._above, None if letter is None else letter.request)
        stream.ended(asyncio.get_running_loop().time() - begun)
        return answered

    async def _pause(self, stream: EventStream, failures: int) -> None:
        """Wait before a stream is opened again."""
        chance = self._settings.backoff_jitter * random.random()  # noqa: S311 - no secret depends on it
        await asyncio.sleep(stream.wait(failures) * (1 + chance))

    # --- what belongs to no request ------------------------------------------------------------

    async def _begin_to_listen(self) -> None:
        """Opens the server's own stream before anything is asked, since there are servers that put their questions on
        it while they answer, and lose what nobody reads."""
        self._above.listen()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEARING):
                await self._heard.wait()

    async def listen(self) -> None:
        """Reads the server's own stream, and opens it again whenever it ends; until there is none."""
        stream = EventStream(self._settings)
        failures = 0
        while True:
            opened = await self._open(stream)
            self._heard.set()
            match opened:
                case _Verdict.AGAIN:
                    failures += 1
                case _Verdict():
                    return
                case reply:
                    failures = 0
                    try:
                        await self._read(reply, stream)
                    finally:
                        reply.close()
            await self._pause(stream, failures)

    async def _open(self, stream: EventStream) -> "Reply | _Verdict":
        """Opens a stream, where it stands; or says why not."""
        try:
            reply = await self._peer.send("GET", accept=EVENTS, last_id=stream.position)
        except (Misled, AuthorizationFailed):
            return _Verdict.NEVER
        except TransportError:
            return _Verdict.AGAIN
        if reply.status == OK and kind_of(reply) == EVENTS:
            stream.opened = True
            return reply
        reply.close()
        # Some servers say 404 where they mean that there are no streams at all.
        if reply.status == NOT_FOUND and self._peer.session is not None and stream.opened:
            self._above.lose("the server does not know the session any more")
            return _Verdict.GONE
        return _Verdict.AGAIN if reply.status in _PASSING else _Verdict.NEVER

    # --- the end -------------------------------------------------------------------------------

    async def farewell(self) -> None:
        """Ends the session. A server that does not care for that says so, which is fine."""
        if self._peer.session is not None:
            with contextlib.suppress(TransportError):
                (await self._peer.send("DELETE")).close()
