"""Streamable HTTP with sessions, server side: POST, GET and DELETE at one path.

GET opens the standalone stream, or resumes a stream that broke off. A broken connection cancels nothing: events wait
for the client to come back.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from msgspec import UNSET, DecodeError

from trunkline.errors import StoreError
from trunkline.protocol.types import CancelledParams
from trunkline.transports.http.forwarding.inbound import ForwardedRequest
from trunkline.transports.http.forwarding.outbound import Forwarder
from trunkline.transports.http.request import SESSION_HEADER, Handling, HttpRequest
from trunkline.transports.http.respond import Responder, check_version, refuse_malformed, respond_json
from trunkline.transports.http.session.backend import SessionBackend, StoredSession
from trunkline.transports.http.session.channel import Exchange, HttpChannel
from trunkline.transports.http.session.event_store import parse_event_id
from trunkline.transports.http.session.lookup import (
    SESSION_NOT_FOUND,
    STORE_UNAVAILABLE,
    SessionLookup,
    SessionRefusal,
    SessionRestorer,
)
from trunkline.transports.http.session.sessions import HttpSession, SessionTable, Stage
from trunkline.transports.http.session.streams import STANDALONE
from trunkline.transports.listener_limits import SHUTTING_DOWN, ListenerGuard, RetryLater
from trunkline.wire import codec
from trunkline.wire.media_types import EVENT_STREAM, accepts
from trunkline.wire.messages import Incoming, Malformed, Notification, Request, RequestId

__all__ = ["SessionEndpoint"]

_CANCELLED: Final = "notifications/cancelled"
_read_cancelled: Final = codec.decoder(CancelledParams)
_METHODS: Final = b"GET, POST, DELETE, OPTIONS"


def _cancelled_request(message: Incoming) -> RequestId | None:
    """Return the id of the request that a message cancels; None if it cancels none."""
    if type(message) is not Notification or message.method != _CANCELLED or message.params is UNSET:
        return None
    try:
        return _read_cancelled(message.params).request_id
    except (DecodeError, RecursionError):
        return None


class SessionEndpoint:
    """Handler of one path, and its sessions."""

    def __init__(
        self,
        guard: ListenerGuard,
        backend: SessionBackend | None = None,
        forwarder: Forwarder | None = None,
    ) -> None:
        """With a backend, sessions outlive this process. The forwarder reaches sessions of other processes."""
        self.sessions = SessionTable(guard.settings, guard.clock, backend)
        self._backend = backend
        self._restorer = SessionRestorer(guard, self.sessions, backend)
        self._lookup = SessionLookup(guard, self._restorer, forwarder)
        self._guard = guard
        self._settings = guard.settings
        self._responder = Responder(guard)

    def handle(self, request: HttpRequest) -> Handling:
        """Answer a GET or DELETE; refuse other methods."""
        match request.method:
            case "GET":
                return self._handle_get(request)
            case "DELETE":
                return self._handle_delete(request)
            case _:
                request.refuse_method(_METHODS)
                return None

    # --- POST ----------------------------------------------------------------------------------

    def handle_post(self, request: HttpRequest, message: Incoming, body: bytes) -> Handling:
        """Answer a posted message: in its session, in the process that holds it, or in a new session. `body` is the
        encoded message, for forwarding."""
        session = self._local_session(request)
        if session is None and (cancelled := _cancelled_request(message)) is not None:
            session = self._session_in_doubt(request, cancelled)
        if session is None:
            return self._find_and_handle(request, message, body)
        return self._run_exchange(request, session, message)

    async def _find_and_handle(self, request: HttpRequest, message: Incoming, body: bytes) -> None:
        found: HttpSession | SessionRefusal | None = None
        if request.head.session_id is not None and request.head.handshake:
            found = await self._lookup.find_or_forward(request, body)
            if found is None:
                return
        session = found if isinstance(found, HttpSession) else await self._open_session(request, message, found)
        if session is not None and (handling := self._run_exchange(request, session, message)) is not None:
            await handling

    def _run_exchange(self, request: HttpRequest, session: HttpSession, message: Incoming) -> Handling:
        channel, head = session.channel, request.head
        if session.stage is not Stage.USED and head.session_id is not None:
            self.sessions.advance_stage(session, message)
        channel.active_requests += 1
        try:
            exchange = channel.begin_exchange(message, request.principal, head.view, request)
        except BaseException:
            channel.active_requests -= 1
            raise
        if exchange.response is not None and exchange.stream is None and head.session_id is not None:
            channel.active_requests -= 1
            respond_json(request, exchange, exchange.response)  # the common case: the reply came at once
            return None
        if exchange.request_ids and not exchange.decided:
            self._responder.when_decided(exchange, partial(self._respond_later, request, session, exchange))
            return None
        if not exchange.request_ids and _cancelled_request(message) is not None:  # changes nothing that is stored
            channel.active_requests -= 1
            self._responder.respond(request, exchange)
            return None
        return self._respond(request, session, exchange)

    def _respond_later(self, request: HttpRequest, session: HttpSession, exchange: Exchange) -> None:
        handling = self._respond(request, session, exchange)
        if handling is not None:
            request.run(handling)

    def _respond(
        self, request: HttpRequest, session: HttpSession, exchange: Exchange
    ) -> "Coroutine[Any, Any, None] | None":
        """Answer the POST of an exchange that is decided: at once, unless a stream or the store makes it wait."""
        if request.head.session_id is None:
            if exchange.failed:
                return self._respond_failed_handshake(request, session, exchange)
            request.extra_headers = ((SESSION_HEADER, session.id.encode()), *request.extra_headers)
        elif not exchange.request_ids and session.stored is not None and session.stored.pending_writes is not None:
            return self._respond_when_persisted(request, session, session.stored, exchange)
        if exchange.stream is not None:
            return self._respond_with_stream(request, session, exchange)
        session.channel.active_requests -= 1
        self._responder.respond(request, exchange)
        return None

    async def _respond_with_stream(self, request: HttpRequest, session: HttpSession, exchange: Exchange) -> None:
        try:
            if (handling := self._responder.respond(request, exchange)) is not None:
                await handling
        finally:
            session.channel.active_requests -= 1

    async def _respond_failed_handshake(self, request: HttpRequest, session: HttpSession, exchange: Exchange) -> None:
        with contextlib.suppress(StoreError):  # the rest of it expires
            await self._end_session(session, "the handshake failed")
        await self._respond_with_stream(request, session, exchange)

    async def _respond_when_persisted(
        self, request: HttpRequest, session: HttpSession, stored: StoredSession, exchange: Exchange
    ) -> None:
        if await self._wait_persisted(stored):
            await self._respond_with_stream(request, session, exchange)
        else:
            session.channel.active_requests -= 1
            refuse_session(request, STORE_UNAVAILABLE)

    def _local_session(self, request: HttpRequest) -> HttpSession | None:
        """Return the session that a request names if it is here and usable at once."""
        head = request.head
        if head.session_id is None or not head.handshake:
            return None
        return self.sessions.get(head.session_id, request.principal)

    def _session_in_doubt(self, request: HttpRequest, request_id: RequestId) -> HttpSession | None:
        """Return the session of a call that runs here, even if another process may have acquired the session: calls
        stay where they began."""
        head = request.head
        if head.session_id is None or not head.handshake:
            return None
        return self.sessions.get_in_doubt(head.session_id, request.principal, request_id)

    async def _open_session(
        self, request: HttpRequest, message: Incoming, refusal: SessionRefusal | None
    ) -> HttpSession | None:
        """Open a session for `initialize`; refuse any other message without a session, and return None."""
        if not check_version(request, message):
            return None
        if refusal is not None:
            refuse_session(request, refusal)
            return None
        if isinstance(message, Request) and message.method == "initialize":
            return await self._create_session(request)
        if isinstance(message, Malformed):
            refuse_malformed(request, message)
        else:
            request.refuse(400, "a session is required: initialize, then send Mcp-Session-Id")
        return None

    async def _create_session(self, request: HttpRequest) -> HttpSession | None:
        ident = self.sessions.new_id()
        stored = None if self._backend is None else self._backend.create(ident)
        try:
            refusal = await self._refusal_for(request, stored)
        except StoreError:
            refuse_session(request, STORE_UNAVAILABLE)
            return None
        if refusal is not None:
            request.refuse(503, refusal.reason, (b"retry-after", refusal.retry_after), kind=refusal.kind)
            return None
        if stored is None:
            channel = HttpChannel(request.peer, self._settings, session_id=ident)
        else:
            channel = HttpChannel(request.peer, self._settings, session_id=ident, events=stored.events)
        channel.open(self._guard.admit_session(channel))
        return self.sessions.add(
            ident, channel, request.principal, stored, host=request.client_host, stage=Stage.OPENED
        )

    async def _refusal_for(self, request: HttpRequest, stored: StoredSession | None) -> RetryLater | None:
        """Return why a client cannot open one more session, in this process or in all; None if it can."""
        refusal = self._local_refusal(request)
        if refusal is not None or stored is None:
            return refusal
        if not await self._claim_quota(stored, request.principal):
            return RetryLater(self.sessions.quota_message)
        refusal = self._local_refusal(request)  # sessions may have been opened meanwhile
        if refusal is not None:
            await stored.delete()
        return refusal

    async def _claim_quota(self, stored: StoredSession, principal: Any) -> bool:
        """Count a new session against its principal's quota; if that is used up, end a session that was never used in
        its place."""
        if await stored.claim_quota(principal):
            return True
        unused = self.sessions.oldest_unused_of(principal)
        if unused is None:
            return False
        await self._end_session(unused, "session_evicted")
        return await stored.claim_quota(principal)

    def _local_refusal(self, request: HttpRequest) -> RetryLater | None:
        full = self.sessions.make_room(request.principal, request.client_host)
        return SHUTTING_DOWN if self._guard.closing else None if full is None else RetryLater(full)

    async def _wait_persisted(self, stored: StoredSession) -> bool:
        """Wait up to `quick_timeout` until the change by a notification is written; return whether it is."""
        if (writes := stored.pending_writes) is None:
            return True
        done, _ = await asyncio.wait([writes], timeout=self._settings.quick_timeout)
        return bool(done) and writes.exception() is None

    async def _end_session(self, session: HttpSession, reason: str) -> None:
        """End a session for good, in all processes."""
        self.sessions.remove(session, reason)
        if session.stored is not None:
            await session.stored.delete()

    # --- GET and DELETE ------------------------------------------------------------------------

    async def _handle_get(self, request: HttpRequest) -> None:
        if not accepts(request.headers.get(b"accept", b""), EVENT_STREAM):
            request.refuse(406, "Accept must include text/event-stream", kind="media_type_not_acceptable")
            return
        session = await self._find_session(request)
        if session is not None:
            await self._serve_stream(request, session)

    async def _serve_stream(self, request: HttpRequest, session: HttpSession) -> None:
        channel, number, after = session.channel, STANDALONE, None
        if (last := request.headers.get(b"last-event-id")) is not None:
            number, after = parse_event_id(last.decode("latin-1")) or (STANDALONE, -1)
            try:
                known = (stream := channel.find_stream(number)) is not None and await stream.can_resume_after(after)
            except StoreError:
                refuse_session(request, STORE_UNAVAILABLE)
                return
            if not known:
                request.refuse(400, "Last-Event-ID names no event of this session that is still available")
                return
        if self._guard.closing:
            request.refuse(
                503, SHUTTING_DOWN.reason, (b"retry-after", SHUTTING_DOWN.retry_after), kind=SHUTTING_DOWN.kind
            )
            return
        if session.stage is not Stage.USED:
            self.sessions.advance_stage(session, None)
        channel.active_requests += 1
        try:
            await self._responder.write_stream(request, channel.ensure_stream(number), after)
        finally:
            channel.active_requests -= 1
            session.last_used = self.sessions.now()

    async def _handle_delete(self, request: HttpRequest) -> None:
        session = await self._find_session(request)
        if session is not None:
            await self._delete_session(request, session)

    async def _delete_session(self, request: HttpRequest, session: HttpSession) -> None:
        try:
            await self._end_session(session, "the client ended the session")
        except StoreError:
            refuse_session(request, STORE_UNAVAILABLE)
        else:
            request.respond(204)

    async def _find_session(self, request: HttpRequest) -> HttpSession | None:
        if request.head.session_id is None:
            request.refuse(400, "a session is required: send Mcp-Session-Id")
            return None
        found = self._local_session(request)
        if found is None and check_version(request):
            found = await self._lookup.find_or_forward(request)
        if isinstance(found, SessionRefusal):
            refuse_session(request, found)
            return None
        return found

    # --- forwarded requests --------------------------------------------------------------------

    async def handle_forwarded(self, request: ForwardedRequest) -> bool:
        """Answer a request that another process forwarded; return False if its session is not here and cannot be
        restored here."""
        ident, sessions = request.target_id, self.sessions
        try:
            if not sessions.holds(ident):
                await self._restore_session(request)
            if not sessions.holds(ident) or not request.belongs_to(owner := sessions.principal_of(ident)):
                return False
            session = sessions.get(ident, owner) or await sessions.get_confirmed(ident, owner)
        except StoreError:
            refuse_session(request, STORE_UNAVAILABLE)
            return True
        if session is not None:
            await self._dispatch_forwarded(request, session)
        elif self._guard.closing or not sessions.holds(ident):  # another process takes it over
            return False
        else:
            refuse_session(request, SESSION_NOT_FOUND)
        return True

    async def _restore_session(self, request: ForwardedRequest) -> None:
        """Wait for a restore in progress, or restore a session whose lease this process holds although an earlier
        attempt failed."""
        await self._restorer.wait_restored(request.target_id)
        if request.has_principal and not self.sessions.holds(request.target_id):
            await self._restorer.find(request.target_id, request.sender_principal, request.peer)

    async def _dispatch_forwarded(self, request: ForwardedRequest, session: HttpSession) -> None:
        match request.method:
            case "POST":
                handling = self._run_exchange(request, session, codec.decode_strict(request.received_body))
                if handling is not None:
                    await handling
            case "GET":
                await self._serve_stream(request, session)
            case _:
                await self._delete_session(request, session)

    # --- closing -------------------------------------------------------------------------------

    def close_idle_streams(self) -> None:
        """End the standalone streams."""
        for session in self.sessions:
            session.channel.detach_standalone_reader()

    def close(self, reason: str) -> None:
        """End every session."""
        self.sessions.close(reason)


def refuse_session(request: HttpRequest, refusal: SessionRefusal) -> None:
    """Respond with the reason why there is no session."""
    wait = () if refusal.retry_after is None else ((b"retry-after", refusal.retry_after),)
    request.refuse(refusal.status, refusal.reason, *wait, kind=refusal.kind)
