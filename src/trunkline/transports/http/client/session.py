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
from trunkline.transports.http.client.http_backend import Reply, media_type_of, read_body
from trunkline.transports.http.client.http_peer import HttpPeer
from trunkline.transports.http.client.outbox import INITIALIZE, INITIALIZED, PendingPost
from trunkline.transports.http.client.post import (
    FIRST_FAILURE_STATUS,
    GATEWAY_ERRORS,
    NOT_FOUND,
    OK,
    ChannelCallbacks,
    post,
    read_refusal,
)
from trunkline.transports.http.client.response import read_events, read_response
from trunkline.transports.http.client.resumable_stream import ResumableStream
from trunkline.transports.http.client.status import http_error, unusable_answer_error
from trunkline.transports.http.client.url import RedirectRefused
from trunkline.wire.media_types import EVENT_STREAM

__all__ = ["StreamableHttp"]

_log: Final = logging.getLogger("trunkline")
_STREAM_OPEN_TIMEOUT: Final = 1.0  # seconds for a server to open its own stream, before calls go out all the same
_MAX_RESUME_FAILURES: Final = 5  # in a row, to open the stream of one answer again
_FALLBACK_STATUSES: Final = range(400, 500)  # to initialize: perhaps the server speaks HTTP+SSE
_NO_FALLBACK_STATUSES: Final = frozenset({401, 403, 407})
_TRANSIENT_STATUSES: Final = frozenset({429, 502, 503, 504})
_RETRY_DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2)  # seconds before each further attempt
_BATCH_REVISION: Final = "2025-03-26"


class _OpenFailure(Enum):
    """Why there is no stream."""

    TRANSIENT = auto()  # it may be had later
    PERMANENT = auto()
    SESSION_GONE = auto()  # nor a session


class StreamableHttp:
    """One session with a server."""

    transport: Final = "http"

    def __init__(self, peer: HttpPeer, above: ChannelCallbacks, settings: Settings) -> None:
        self._peer = peer
        self._channel = above
        self._settings = settings
        self._stream_tried = asyncio.Event()  # the server's own stream is open, or cannot be had now

    # --- what we say ---------------------------------------------------------------------------

    async def post(self, letter: PendingPost) -> None:
        """Posts a message, and sees to its answer. What wants none, as a notification or an answer of ours, is posted
        again if it may not have arrived: it does no harm twice, and somebody may wait for it."""
        for pause in (*_RETRY_DELAYS, None):
            try:
                await post(self._peer, letter, self._channel, self._handle_reply)
            except TransportError as error:
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
                _log.warning("%s did not take %s: %s", self._peer.endpoint.name, letter.method or "an answer", error)
                if letter.method == INITIALIZED:  # the server waits for it before it asks anything
                    self._channel.lose(f"the server did not take {INITIALIZED}: {error}", letter)
            return

    async def _handle_reply(self, reply: Reply, letter: PendingPost) -> None:
        if reply.status == NOT_FOUND and self._peer.session_id is not None:
            self._channel.lose("the server does not know the session any more", letter)
        elif reply.status >= FIRST_FAILURE_STATUS:
            await self._handle_failure(reply, letter)
        elif letter.request_id is None:
            if letter.method == INITIALIZED:
                await self._start_listening()
            self._channel.accepted(letter)
            if media_type_of(reply) != EVENT_STREAM:
                await read_body(reply, self._settings.http_body_size_limit)  # so that the connection can be kept
        elif letter.method == INITIALIZE and (why := self._peer.adopt_session(reply)) is not None:
            await self._channel.deliver([http_error(letter.request_id, why)])
        else:
            self._channel.accepted(letter)
            await self._read_answer(reply, letter)

    async def _handle_failure(self, reply: Reply, letter: PendingPost) -> None:
        if letter.request_id is None and reply.status in _TRANSIENT_STATUSES:
            raise TransportError(f"HTTP {reply.status} {reply.reason}")
        if letter.request_id is None:
            _log.warning("%s refused %s: HTTP %d", self._peer.endpoint.name, letter.method or "an answer", reply.status)
        elif reply.status in GATEWAY_ERRORS:
            self._channel.unanswered(letter, f"HTTP {reply.status} {reply.reason}: the answer was lost on the way")
        else:
            answer = await read_refusal(reply, letter.request_id, self._settings)
            if (
                letter.method == INITIALIZE
                and reply.status in _FALLBACK_STATUSES
                and reply.status not in _NO_FALLBACK_STATUSES
            ):
                await self._channel.fall_back(letter, answer)
            else:
                await self._channel.deliver([answer])

    # --- what is answered ----------------------------------------------------------------------

    async def _read_answer(self, reply: Reply, letter: PendingPost) -> None:
        batches = self._peer.revision == _BATCH_REVISION
        await read_response(reply, letter, self._channel, self._settings, self._read_to_end, batches=batches)

    async def _read_to_end(self, reply: Reply, letter: PendingPost) -> None:
        """Reads the stream of an answer to its end, wherever that may be."""
        stream = ResumableStream(self._settings)
        stream.opened = True
        answered = await self._read_connection(reply, stream, letter)
        failures = 0
        while not answered:
            if stream.unusable_reason is not None:
                await self._channel.deliver([unusable_answer_error(letter.request_id or 0, stream.unusable_reason)])
                return
            if stream.last_event_id is None or failures > _MAX_RESUME_FAILURES:
                self._channel.unanswered(letter, "the answer broke off, and cannot be read on")
                return
            reply.close()
            await self._back_off(stream, failures)
            match await self._open_stream(stream):
                case _OpenFailure.TRANSIENT:
                    failures += 1
                case _OpenFailure.SESSION_GONE:
                    self._channel.unanswered(letter, "the answer broke off, and the session is gone")
                    return
                case _OpenFailure.PERMANENT:
                    self._channel.unanswered(letter, "the answer broke off, and the server does not let it be read on")
                    return
                case again:
                    failures = 0
                    try:
                        answered = await self._read_connection(again, stream, letter)
                    finally:
                        again.close()

    async def _read_connection(self, reply: Reply, stream: ResumableStream, letter: PendingPost | None = None) -> bool:
        """Hands up what one connection brings; whether the answer was in it."""
        stream.begin_connection()
        begun = asyncio.get_running_loop().time()
        answered = await read_events(reply, stream.feed, self._channel, None if letter is None else letter.request_id)
        stream.end_connection(asyncio.get_running_loop().time() - begun)
        return answered

    async def _back_off(self, stream: ResumableStream, failures: int) -> None:
        """Wait before a stream is opened again."""
        chance = self._settings.backoff_jitter * random.random()  # noqa: S311 - no secret depends on it
        await asyncio.sleep(stream.retry_delay(failures) * (1 + chance))

    # --- what belongs to no request ------------------------------------------------------------

    async def _start_listening(self) -> None:
        """Opens the server's own stream before anything is asked, since there are servers that put their questions on
        it while they answer, and lose what nobody reads."""
        self._channel.listen()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STREAM_OPEN_TIMEOUT):
                await self._stream_tried.wait()

    async def listen(self) -> None:
        """Reads the server's own stream, and opens it again whenever it ends; until there is none."""
        stream = ResumableStream(self._settings)
        failures = 0
        while True:
            opened = await self._open_stream(stream)
            self._stream_tried.set()
            match opened:
                case _OpenFailure.TRANSIENT:
                    failures += 1
                case _OpenFailure():
                    return
                case reply:
                    failures = 0
                    try:
                        await self._read_connection(reply, stream)
                    finally:
                        reply.close()
            await self._back_off(stream, failures)

    async def _open_stream(self, stream: ResumableStream) -> "Reply | _OpenFailure":
        """Opens a stream, where it stands; or says why not."""
        try:
            reply = await self._peer.send("GET", accept=EVENT_STREAM, last_id=stream.last_event_id)
        except (RedirectRefused, AuthorizationFailed):
            return _OpenFailure.PERMANENT
        except TransportError:
            return _OpenFailure.TRANSIENT
        if reply.status == OK and media_type_of(reply) == EVENT_STREAM:
            stream.opened = True
            return reply
        reply.close()
        # Some servers say 404 where they mean that there are no streams at all.
        if reply.status == NOT_FOUND and self._peer.session_id is not None and stream.opened:
            self._channel.lose("the server does not know the session any more")
            return _OpenFailure.SESSION_GONE
        return _OpenFailure.TRANSIENT if reply.status in _TRANSIENT_STATUSES else _OpenFailure.PERMANENT

    # --- the end -------------------------------------------------------------------------------

    async def end_session(self) -> None:
        """Ends the session. A server that does not care for that says so, which is fine."""
        if self._peer.session_id is not None:
            with contextlib.suppress(TransportError):
                (await self._peer.send("DELETE")).close()
