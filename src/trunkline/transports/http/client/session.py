"""Streamable HTTP of the handshake era, client side: a session with one endpoint.

If a response breaks off as an event stream, the client resumes it with `Last-Event-ID`, provided the server numbers its
events, after the delay that the server names. If that fails, only this request fails. Messages that belong to no
request arrive on the server's own stream, if the server offers one.
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
from trunkline.transports.http.client.response import parse_complete_answer, read_events, read_response
from trunkline.transports.http.client.resumable_stream import ResumableStream
from trunkline.transports.http.client.status import http_error, unusable_answer_error
from trunkline.transports.http.client.url import RedirectRefused
from trunkline.wire.media_types import EVENT_STREAM
from trunkline.wire.messages import Incoming

__all__ = ["StreamableHttp"]

_log: Final = logging.getLogger("trunkline")
_STREAM_OPEN_TIMEOUT: Final = 1.0  # seconds to wait for the server's own stream before requests are sent
_MAX_RESUME_FAILURES: Final = 5  # consecutive failures to resume a response
_FALLBACK_STATUSES: Final = range(400, 500)  # for initialize; the server may only support HTTP+SSE
_NO_FALLBACK_STATUSES: Final = frozenset({401, 403, 407})
_TRANSIENT_STATUSES: Final = frozenset({429, 502, 503, 504})
_RETRY_DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2)  # seconds
_BATCH_REVISION: Final = "2025-03-26"


class _OpenFailure(Enum):
    """Why a stream could not be opened."""

    TRANSIENT = auto()  # try again later
    PERMANENT = auto()
    SESSION_GONE = auto()  # the session does not exist any more


class StreamableHttp:
    """One session with a server."""

    transport: Final = "http"

    def __init__(self, peer: HttpPeer, channel: ChannelCallbacks, settings: Settings) -> None:
        self._peer = peer
        self._channel = channel
        self._settings = settings
        self._stream_tried = asyncio.Event()  # set once the server's own stream is open or has failed

    # --- sending --------------------------------------------------------------------------------

    async def post(self, pending: PendingPost) -> None:
        """Post a message and handle its response.

        A notification or response is posted again if it may not have arrived: a duplicate does no harm, and the server
        may be waiting for it.
        """
        for pause in (*_RETRY_DELAYS, None):
            try:
                await post(self._peer, pending, self._channel, self._handle_reply)
            except TransportError as error:
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
                _log.warning(
                    "%s did not accept %s: %s", self._peer.endpoint.name, pending.method or "a response", error
                )
                if pending.method == INITIALIZED:  # the server sends no requests before it
                    self._channel.lose(f"the server did not accept {INITIALIZED}: {error}", pending)
            return

    async def _handle_reply(self, reply: Reply, pending: PendingPost) -> None:
        if reply.status == NOT_FOUND and self._peer.session_id is not None:
            self._channel.lose("the server does not know the session any more", pending)
        elif reply.status >= FIRST_FAILURE_STATUS:
            await self._handle_failure(reply, pending)
        elif pending.request_id is None:
            if pending.method == INITIALIZED:
                await self._start_listening()
            self._channel.accepted(pending)
            if media_type_of(reply) != EVENT_STREAM:
                await read_body(reply, self._settings.http_body_size_limit)  # read it to keep the connection alive
        elif pending.method == INITIALIZE and (reason := self._peer.adopt_session(reply)) is not None:
            await self._channel.deliver([http_error(pending.request_id, reason)])
        else:
            self._channel.accepted(pending)
            await self._read_answer(reply, pending)

    async def _handle_failure(self, reply: Reply, pending: PendingPost) -> None:
        if pending.request_id is None and reply.status in _TRANSIENT_STATUSES:
            raise TransportError(f"HTTP {reply.status} {reply.reason}")
        if pending.request_id is None:
            _log.warning(
                "%s refused %s: HTTP %d", self._peer.endpoint.name, pending.method or "a response", reply.status
            )
        elif reply.status in GATEWAY_ERRORS:
            self._channel.unanswered(
                pending, f"HTTP {reply.status} {reply.reason}: the gateway has no response from the server"
            )
        else:
            answer = await read_refusal(reply, pending.request_id, self._settings)
            if (
                pending.method == INITIALIZE
                and reply.status in _FALLBACK_STATUSES
                and reply.status not in _NO_FALLBACK_STATUSES
            ):
                await self._channel.fall_back(pending, answer)
            else:
                await self._channel.deliver([answer])

    # --- responses ------------------------------------------------------------------------------

    def parse_complete_answer(self, reply: Reply, pending: PendingPost) -> Incoming | None:
        """Return the response to a request if it needs no more than to be parsed; None otherwise."""
        batches = self._peer.revision == _BATCH_REVISION
        return parse_complete_answer(reply, pending, self._settings, batches=batches)

    async def _read_answer(self, reply: Reply, pending: PendingPost) -> None:
        batches = self._peer.revision == _BATCH_REVISION
        await read_response(reply, pending, self._channel, self._settings, self._read_to_end, batches=batches)

    async def _read_to_end(self, reply: Reply, pending: PendingPost) -> None:
        """Read the event stream of a response to its end, resuming it as needed."""
        stream = ResumableStream(self._settings)
        stream.opened = True
        answered = await self._read_connection(reply, stream, pending)
        failures = 0
        while not answered:
            if stream.unusable_reason is not None:
                await self._channel.deliver([unusable_answer_error(pending.request_id or 0, stream.unusable_reason)])
                return
            if stream.last_event_id is None or failures > _MAX_RESUME_FAILURES:
                self._channel.unanswered(pending, "the response broke off and cannot be resumed")
                return
            reply.close()
            await self._back_off(stream, failures)
            match await self._open_stream(stream):
                case _OpenFailure.TRANSIENT:
                    failures += 1
                case _OpenFailure.SESSION_GONE:
                    self._channel.unanswered(pending, "the response broke off and the session is gone")
                    return
                case _OpenFailure.PERMANENT:
                    self._channel.unanswered(pending, "the response broke off and the server refuses to resume it")
                    return
                case resumed:
                    failures = 0
                    try:
                        answered = await self._read_connection(resumed, stream, pending)
                    finally:
                        resumed.close()

    async def _read_connection(self, reply: Reply, stream: ResumableStream, pending: PendingPost | None = None) -> bool:
        """Deliver the messages of one connection; return whether the response was among them."""
        stream.begin_connection()
        started = asyncio.get_running_loop().time()
        answered = await read_events(reply, stream.feed, self._channel, None if pending is None else pending.request_id)
        stream.end_connection(asyncio.get_running_loop().time() - started)
        return answered

    async def _back_off(self, stream: ResumableStream, failures: int) -> None:
        """Wait before reopening a stream."""
        jitter = self._settings.backoff_jitter * random.random()  # noqa: S311 - not security-relevant
        await asyncio.sleep(stream.retry_delay(failures) * (1 + jitter))

    # --- the server's own stream ----------------------------------------------------------------

    async def _start_listening(self) -> None:
        """Open the server's own stream before the first request: some servers send their requests there during a
        call, and lose them if it is not open."""
        self._channel.listen()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STREAM_OPEN_TIMEOUT):
                await self._stream_tried.wait()

    async def listen(self) -> None:
        """Read the server's own stream, reopening it whenever it ends, until the server refuses it."""
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
        """Open or resume a stream; return the failure if that is not possible."""
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
        # Some servers answer 404 if they offer no stream; only a stream that was open before proves a lost session.
        if reply.status == NOT_FOUND and self._peer.session_id is not None and stream.opened:
            self._channel.lose("the server does not know the session any more")
            return _OpenFailure.SESSION_GONE
        return _OpenFailure.TRANSIENT if reply.status in _TRANSIENT_STATUSES else _OpenFailure.PERMANENT

    # --- closing --------------------------------------------------------------------------------

    async def end_session(self) -> None:
        """End the session with a DELETE; ignore a refusal."""
        if self._peer.session_id is not None:
            with contextlib.suppress(TransportError):
                (await self._peer.send("DELETE")).close()
