"""Streamable HTTP, the server's side: one address, to which every message is posted.

A GET opens the stream for what belongs to no request, or goes on with a stream that broke off. A broken line cancels
nothing: what is answered meanwhile waits for the peer to come back.
"""

import asyncio
import contextlib
from typing import Any, Final

from trunkline.errors import StoreError
from trunkline.protocol.revisions import HANDSHAKE
from trunkline.transports.http.body import Reading
from trunkline.transports.http.forwarding.inbound import Carried
from trunkline.transports.http.forwarding.outbound import Front
from trunkline.transports.http.modern import StatelessEndpoint, is_modern, known_version, refuse_malformed
from trunkline.transports.http.request import HeaderView, Visit
from trunkline.transports.http.respond import VERSION, Answering, refuse_kinds
from trunkline.transports.http.session.backend import KeptSession, SessionKeeper
from trunkline.transports.http.session.channel import HttpChannel
from trunkline.transports.http.session.event_store import read_position
from trunkline.transports.http.session.lookup import NO_SUCH, SESSION, UNKEPT, Missing, Restoring, Seeking
from trunkline.transports.http.session.sessions import HttpSession, Sessions, Stage
from trunkline.transports.http.session.streams import STANDALONE
from trunkline.transports.listener_limits import STOPPING, Busy, Guard
from trunkline.wire import codec
from trunkline.wire.media_types import EVENTS, JSON, accepts
from trunkline.wire.messages import Incoming, Malformed, Request

__all__ = ["Endpoint"]

_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
_MODERN_METHODS: Final = b"POST, OPTIONS"
_KNOWN: Final = frozenset((None, *(revision.value.encode() for revision in HANDSHAKE)))  # None: not named


class Endpoint:
    """One address, and the sessions that were opened there."""

    def __init__(
        self,
        guard: Guard,
        stateless: StatelessEndpoint,
        keeper: SessionKeeper | None = None,
        front: Front | None = None,
    ) -> None:
        """Sessions outlive this process if there is a keeper. Those that others hold are reached through the front."""
        self.sessions = Sessions(guard.settings, guard.clock, keeper)
        self._keeper = keeper
        self._restoring = Restoring(guard, self.sessions, keeper)
        self._seeking = Seeking(guard, self._restoring, front)
        self._stateless = stateless
        self._guard = guard
        self._settings = guard.settings
        self._reading = Reading(guard.settings, guard.clock)
        self._answering = Answering(guard.settings, guard.clock)

    async def handle(self, visit: Visit) -> None:
        """Answers one HTTP request."""
        match visit.scope["method"]:
            case "POST":
                await self._post(visit)
            case "GET" | "DELETE" if is_modern(visit):  # which has neither sessions nor streams without a request
                await visit.not_allowed(_MODERN_METHODS)
            case "GET":
                await self._get(visit)
            case "DELETE":
                await self._delete(visit)
            case _:
                await visit.not_allowed(_METHODS)

    # --- POST ----------------------------------------------------------------------------------

    async def _post(self, visit: Visit) -> None:
        if not accepts(visit.headers.get(b"accept", b""), JSON, EVENTS):
            await refuse_kinds(visit)
            return
        body = await self._reading.body(visit)
        if body is None:
            return
        found = self._at_hand(visit)
        if found is None and SESSION in visit.headers and visit.headers.get(VERSION) in _KNOWN:
            found = await self._seeking.seek(visit, body)
            if found is None:
                return
        await self._take(visit, codec.decode_strict(body), found)

    async def _take(self, visit: Visit, message: Incoming, found: HttpSession | Missing | None) -> None:
        """Answers what was posted, in a session that was found; or says why there is none."""
        if await self._stateless.takes(visit, message):
            return
        session = found if isinstance(found, HttpSession) else await self._session(visit, message, found)
        if session is not None:
            await self._exchange(visit, session, message)

    async def _exchange(self, visit: Visit, session: HttpSession, message: Incoming) -> None:
        channel = session.channel
        if session.stage is not Stage.USED and SESSION in visit.headers:
            self.sessions.advance(session, message)
        channel.active += 1
        try:
            exchange = channel.exchange(message, visit.principal, HeaderView(visit.headers))
            if exchange.ids and not exchange.decided:
                await self._answering.decide(exchange)
            if SESSION not in visit.headers:
                if exchange.failed:
                    with contextlib.suppress(StoreError):  # what is left of it expires
                        await self._end(session, "the handshake failed")
                else:
                    visit.extra = [(SESSION, session.id.encode()), *visit.extra]
            elif not exchange.ids and session.kept is not None and not await self._kept(session.kept):
                await refuse_missing(visit, UNKEPT)
                return
            await self._answering.answer(visit, exchange)
        finally:
            channel.active -= 1

    def _at_hand(self, visit: Visit) -> HttpSession | None:
        """The session that a request names, if nothing speaks against it."""
        ident = visit.headers.get(SESSION)
        if ident is None or visit.headers.get(VERSION) not in _KNOWN:
            return None
        return self.sessions.get(ident.decode("latin-1"), visit.principal)

    async def _session(self, visit: Visit, message: Incoming, missing: Missing | None) -> HttpSession | None:
        """The session that a message opens; None if it opens none, which the peer has been told."""
        if not await known_version(visit, message):
            return None
        if missing is not None:
            await refuse_missing(visit, missing)
            return None
        if isinstance(message, Request) and message.method == "initialize":
            return await self._new(visit)
        if isinstance(message, Malformed):
            await refuse_malformed(visit, message)
        else:
            await visit.refuse(400, "a session is needed: initialize, then send Mcp-Session-Id")
        return None

    async def _new(self, visit: Visit) -> HttpSession | None:
        ident = self.sessions.new_id()
        kept = None if self._keeper is None else self._keeper.opened(ident)
        try:
            busy = await self._busy_for(visit, kept)
        except StoreError:
            await refuse_missing(visit, UNKEPT)
            return None
        if busy is not None:
            await visit.refuse(503, busy.why, (b"retry-after", busy.wait), kind=busy.kind)
            return None
        if kept is None:
            channel = HttpChannel(visit.peer, self._settings)
        else:
            channel = HttpChannel(visit.peer, self._settings, session=ident, events=kept.events)
        channel.open(self._guard.admit_session(channel))
        return self.sessions.add(ident, channel, visit.principal, kept, host=visit.host, stage=Stage.OPENED)

    async def _busy_for(self, visit: Visit, kept: KeptSession | None) -> Busy | None:
        """Why a client cannot have one more session, here or in all processes together; None if it can."""
        busy = self._busy_here(visit)
        if busy is not None or kept is None:
            return busy
        if not await self._counted(kept, visit.principal):
            return Busy(self.sessions.one_too_many)
        busy = self._busy_here(visit)  # others may have come meanwhile
        if busy is not None:
            await kept.drop()
        return busy

    async def _counted(self, kept: KeptSession, principal: Any) -> bool:
        """Count a new session among those of its principal in all processes, in place of one that was never used."""
        if await kept.count(principal):
            return True
        unused = self.sessions.unused_of(principal)
        if unused is None:
            return False
        await self._end(unused, "session_evicted")
        return await kept.count(principal)

    def _busy_here(self, visit: Visit) -> Busy | None:
        full = self.sessions.full_for(visit.principal, visit.host)
        return STOPPING if self._guard.closing else None if full is None else Busy(full)

    async def _kept(self, kept: KeptSession) -> bool:
        """Whether what a notification has changed about a session is kept, within a moment."""
        if (unsettled := kept.unsettled) is None:
            return True
        done, _ = await asyncio.wait([unsettled], timeout=self._settings.quick_timeout)
        return bool(done) and unsettled.exception() is None

    async def _end(self, session: HttpSession, reason: str) -> None:
        """Ends a session for good."""
        self.sessions.remove(session, reason)
        if session.kept is not None:
            await session.kept.drop()

    # --- GET and DELETE ------------------------------------------------------------------------

    async def _get(self, visit: Visit) -> None:
        if not accepts(visit.headers.get(b"accept", b""), EVENTS):
            await visit.refuse(406, "Accept must have text/event-stream", kind="media_type_not_acceptable")
            return
        session = await self._named(visit)
        if session is not None:
            await self._stream(visit, session)

    async def _stream(self, visit: Visit, session: HttpSession) -> None:
        channel, number, after = session.channel, STANDALONE, None
        if (last := visit.headers.get(b"last-event-id")) is not None:
            number, after = read_position(last.decode("latin-1")) or (STANDALONE, -1)
            try:
                known = (stream := channel.known_stream(number)) is not None and await stream.recalls(after)
            except StoreError:
                await refuse_missing(visit, UNKEPT)
                return
            if not known:
                await visit.refuse(400, "Last-Event-ID names nothing in this session that is still kept")
                return
        if self._guard.closing:
            await visit.refuse(503, STOPPING.why, (b"retry-after", STOPPING.wait), kind=STOPPING.kind)
            return
        if session.stage is not Stage.USED:
            self.sessions.advance(session, None)
        channel.active += 1
        try:
            await self._answering.flow(visit, channel.stream(number), after)
        finally:
            channel.active -= 1
            session.used = self.sessions.now()

    async def _delete(self, visit: Visit) -> None:
        session = await self._named(visit)
        if session is not None:
            await self._drop(visit, session)

    async def _drop(self, visit: Visit, session: HttpSession) -> None:
        try:
            await self._end(session, "the client ended the session")
        except StoreError:
            await refuse_missing(visit, UNKEPT)
        else:
            await visit.respond(204)

    async def _named(self, visit: Visit) -> HttpSession | None:
        if SESSION not in visit.headers:
            await visit.refuse(400, "a session is needed: send Mcp-Session-Id")
            return None
        found = self._at_hand(visit)
        if found is None and await known_version(visit):
            found = await self._seeking.seek(visit)
        if isinstance(found, Missing):
            await refuse_missing(visit, found)
            return None
        return found

    # --- what others have carried here -------------------------------------------------------------

    async def carried(self, visit: Carried) -> bool:
        """Answers a request that another process has let in, if its session is here, or can be."""
        ident, sessions = visit.ident, self.sessions
        try:
            if not sessions.holds(ident):
                await self._bring(visit)
            if not sessions.holds(ident) or not visit.belongs_to(owner := sessions.owner(ident)):
                return False
            session = sessions.get(ident, owner) or await sessions.confirmed(ident, owner)
        except StoreError:
            await refuse_missing(visit, UNKEPT)
            return True
        if session is not None:
            await self._answer_carried(visit, session)
        elif self._guard.closing or not sessions.holds(ident):  # somebody else will take it, or has
            return False
        else:
            await refuse_missing(visit, NO_SUCH)
        return True

    async def _bring(self, visit: Carried) -> None:
        """Brings a session here that this process may have the right to, though it could not be brought before."""
        await self._restoring.brought(visit.ident)
        if visit.knows_sender and not self.sessions.holds(visit.ident):
            await self._restoring.find(visit.ident, visit.sender, visit.peer)

    async def _answer_carried(self, visit: Carried, session: HttpSession) -> None:
        match visit.scope["method"]:
            case "POST":
                await self._take(visit, codec.decode_strict(visit.posted), session)
            case "GET":
                await self._stream(visit, session)
            case _:
                await self._drop(visit, session)

    # --- the end -------------------------------------------------------------------------------

    def release(self) -> None:
        """Ends the streams on which nothing is being answered."""
        for session in self.sessions:
            session.channel.release()

    def close(self, reason: str) -> None:
        """Ends every session."""
        self.sessions.close(reason)
        self._reading.close()


async def refuse_missing(visit: Visit, missing: Missing) -> None:
    """Tells a peer why there is no session."""
    wait = () if missing.wait is None else ((b"retry-after", missing.wait),)
    await visit.refuse(missing.status, missing.why, *wait, kind=missing.kind)
