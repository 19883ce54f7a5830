"""Streamable HTTP, the server's side: one endpoint, to which every message is posted.

A POST is handed over and answered: by plain JSON if the answer is the first thing that was sent, otherwise by a stream
of events. A GET opens the stream for what belongs to no request, or goes on with a stream that broke off. A broken line
cancels nothing: what is answered meanwhile waits for the peer to come back.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.protocol.revisions import HANDSHAKE, Revision
from trunkline.transports.channel import Accept, Origin
from trunkline.transports.door import Door
from trunkline.transports.http.channel import Exchange, HttpChannel
from trunkline.transports.http.events import position, read_position
from trunkline.transports.http.patience import Patience
from trunkline.transports.http.sessions import HttpSession, Sessions
from trunkline.transports.http.streams import STANDALONE, Stream
from trunkline.transports.http.visits import JSON, BodyTooLarge, Disconnected, Headers, HeaderView, Scope, Visit
from trunkline.wire import codec, sse
from trunkline.wire.messages import Incoming, Malformed, Request

__all__ = ["Endpoint"]

_log: Final = logging.getLogger("trunkline")
_SESSION: Final = b"mcp-session-id"
_VERSION: Final = b"mcp-protocol-version"
_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
_REVISIONS: Final = frozenset(revision.value.encode() for revision in HANDSHAKE)
_PRIMED: Final = Revision.V2025_11_25.value.encode()  # since when a stream begins with an event that has no data
_ONCE: Final = frozenset({b"host", b"origin", b"content-type", b"content-length", _SESSION, _VERSION, b"last-event-id"})
_CLOSE: Final = (b"connection", b"close")
_KINDS: Final = {-32700: "parse_error", -32602: "invalid_params"}


class Endpoint:
    """One address, and the sessions that were opened there."""

    def __init__(
        self,
        accept: Accept,
        settings: Settings,
        clock: Clock,
        door: Door,
        *,
        principal: Callable[[Scope], Any] = lambda _: None,
    ) -> None:
        self.sessions = Sessions(settings, clock)
        self._accept = accept
        self._settings = settings
        self._door = door
        self._principal = principal
        self._patience = Patience(clock, settings.body_timeout)

    async def handle(self, visit: Visit) -> None:
        """Answers one HTTP request."""
        headers, raw = visit.headers, visit.scope["headers"]
        if len(headers) != len(raw) and (name := _doubled(raw)) is not None:
            await visit.refuse(400, f"the header {name} must not stand there twice")
            return
        origin = headers.get(b"origin")
        if (why := self._door.refusal(headers.get(b"host"), origin)) is not None:
            _log.warning("turned away: %s", why)
            await visit.refuse(403, why, kind="access_denied")
            return
        if origin is not None:
            visit.extra = _cors(origin)
        visit.principal = self._principal(visit.scope)
        match visit.scope["method"]:
            case "POST":
                await self._post(visit)
            case "GET":
                await self._get(visit)
            case "DELETE":
                await self._delete(visit)
            case "OPTIONS":
                await visit.respond(204, b"", *_PREFLIGHT)
            case _:
                await visit.respond(405, b"", (b"allow", _METHODS))

    # --- POST ----------------------------------------------------------------------------------

    async def _post(self, visit: Visit) -> None:
        if not visit.headers.get(b"content-type", b"").startswith(b"application/json"):
            await visit.refuse(415, "the content type must be application/json")
            return
        if not _accepts(visit.headers.get(b"accept", b""), b"application/json", b"text/event-stream"):
            why = "Accept must have application/json and text/event-stream"
            await visit.refuse(406, why, kind="media_type_not_acceptable")
            return
        body = await self._body(visit)
        if body is None:
            return
        message = codec.decode(body)
        session = await self._session(visit, message)
        if session is None:
            return
        channel = session.channel
        channel.active += 1
        try:
            exchange = channel.exchange(message, Origin(visit.principal, HeaderView(visit.headers)))
            await self._answer(visit, exchange, session)
        finally:
            channel.active -= 1

    async def _body(self, visit: Visit) -> bytes | None:
        """The body of a POST; None if there is none to be had, which the peer has been told."""
        limit = self._settings.http_body_size_limit
        length = visit.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            await self._too_large(visit)
            return None
        with self._patience.reading() as waiting:
            try:
                return await visit.body(limit)
            except BodyTooLarge:
                await self._too_large(visit)
            except Disconnected:
                pass
            except asyncio.CancelledError:
                if not waiting.out_of_patience():
                    raise
                await visit.refuse(408, "the body did not arrive in time", _CLOSE)
        return None

    async def _too_large(self, visit: Visit) -> None:
        why = f"message is larger than the limit of {self._settings.http_body_size_limit} bytes"
        await visit.refuse(413, why, _CLOSE, kind="message_size_exceeds_maximum")

    async def _session(self, visit: Visit, message: Incoming) -> HttpSession | None:
        """The session that a message belongs to; None if there is none, which the peer has been told."""
        if _SESSION in visit.headers:
            return await self._known(visit)
        if isinstance(message, Request) and message.method == "initialize":
            return await self._new(visit)
        if isinstance(message, Malformed):
            kind = _KINDS.get(message.code, "invalid_request")
            await visit.refuse(400, message.why, code=message.code, kind=kind)
        else:
            await visit.refuse(400, "a session is needed: initialize, then send Mcp-Session-Id")
        return None

    async def _known(self, visit: Visit) -> HttpSession | None:
        session = self.sessions.get(visit.headers[_SESSION].decode("latin-1"), visit.principal)
        if session is None:
            await visit.refuse(404, "there is no such session; initialize again", kind="session_not_found")
            return None
        version = visit.headers.get(_VERSION)
        if version is not None and version not in _REVISIONS:
            known = ", ".join(revision.value for revision in HANDSHAKE)
            await visit.refuse(400, f"MCP-Protocol-Version {version.decode('latin-1')!r} is not one of {known}")
            return None
        return session

    async def _new(self, visit: Visit) -> HttpSession | None:
        if (why := self.sessions.full_for(visit.principal)) is not None:
            await visit.refuse(503, why, (b"retry-after", b"30"), kind="too_many_sessions")
            return None
        channel = HttpChannel("", self._settings)
        channel.open(self._accept(channel))
        return self.sessions.add(channel, visit.principal)

    # --- answers -------------------------------------------------------------------------------

    async def _answer(self, visit: Visit, exchange: Exchange, session: HttpSession) -> None:
        if exchange.ids and not exchange.decided:
            await self._decide(exchange)
        if _SESSION not in visit.headers:
            if exchange.failed:
                self.sessions.remove(session, "the handshake failed")
            else:
                visit.extra = [(_SESSION, session.id.encode()), *visit.extra]
        if exchange.stream is not None:
            await self._flow(visit, exchange.stream)
        elif exchange.answer is not None:
            await visit.respond(200 if exchange.ids else 400, exchange.answer, JSON)
        elif exchange.ids:
            await visit.refuse(404, "the session has ended", kind="session_not_found")
        else:
            await visit.respond(202)

    async def _decide(self, exchange: Exchange) -> None:
        """Waits until it is known how an exchange is answered; by events, if that takes so long that proxies ask."""
        changed = exchange.changed()
        await asyncio.wait([changed], timeout=self._settings.stream_keepalive)
        if not changed.done():
            exchange.open_stream()

    async def _flow(self, visit: Visit, stream: Stream, after: int | None = None) -> None:
        """Writes a stream out until it ends, the peer goes, or somebody else reads it."""
        reader = stream.attach(after)
        await visit.begin_stream()
        if visit.headers.get(_VERSION, _PRIMED) >= _PRIMED and after is None:
            retry = round(self._settings.stream_retry * 1000)
            await visit.go_on(sse.encode(b"", id=position(stream.number, stream.read), retry=retry))
        gone = asyncio.ensure_future(visit.hung_up())
        try:
            while stream.reads(reader) and not gone.done():
                if data := stream.take():
                    await visit.go_on(data)
                elif stream.ended:
                    break
                else:
                    await self._wait(visit, stream.wake(), gone)
            if not gone.done():
                await visit.end_stream()
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await gone
            if stream.reads(reader):
                stream.detach()

    async def _wait(self, visit: Visit, wake: "asyncio.Future[None]", gone: "asyncio.Future[Any]") -> None:
        """Waits for something to write, and keeps the line awake meanwhile."""
        limit = self._settings.stream_keepalive
        done, _ = await asyncio.wait([wake, gone], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            await visit.go_on(sse.COMMENT)

    # --- GET and DELETE ------------------------------------------------------------------------

    async def _get(self, visit: Visit) -> None:
        if not _accepts(visit.headers.get(b"accept", b""), b"text/event-stream"):
            await visit.refuse(406, "Accept must have text/event-stream", kind="media_type_not_acceptable")
            return
        session = await self._named(visit)
        if session is None:
            return
        number, after = STANDALONE, None
        if (last := visit.headers.get(b"last-event-id")) is not None:
            found = read_position(last.decode("latin-1"))
            if found is None or session.channel.known_stream(found[0]) is None:
                await visit.refuse(400, "Last-Event-ID names no stream of this session")
                return
            number, after = found
        channel = session.channel
        channel.active += 1
        try:
            await self._flow(visit, channel.stream(number), after)
        finally:
            channel.active -= 1
            session.used = self.sessions.now()

    async def _delete(self, visit: Visit) -> None:
        session = await self._named(visit)
        if session is not None:
            self.sessions.remove(session, "the client ended the session")
            await visit.respond(204)

    async def _named(self, visit: Visit) -> HttpSession | None:
        if _SESSION not in visit.headers:
            await visit.refuse(400, "a session is needed: send Mcp-Session-Id")
            return None
        return await self._known(visit)

    def close(self, reason: str) -> None:
        """Ends every session."""
        self.sessions.close(reason)
        self._patience.close()


def _doubled(raw: Headers) -> str | None:
    """A header that must not be there twice, and is."""
    seen: set[bytes] = set()
    for name, _ in raw:
        if name in seen and name in _ONCE:
            return name.decode("latin-1")
        seen.add(name)
    return None


def _accepts(accept: bytes, *kinds: bytes) -> bool:
    return all(kind in accept or b"*/*" in accept or kind.partition(b"/")[0] + b"/*" in accept for kind in kinds)


_PREFLIGHT: Final[Headers] = [
    (b"access-control-allow-methods", _METHODS),
    (
        b"access-control-allow-headers",
        b"content-type, accept, authorization, mcp-session-id, mcp-protocol-version, last-event-id",
    ),
    (b"access-control-max-age", b"86400"),
]


def _cors(origin: bytes) -> Headers:
    """What lets a page of an origin that is allowed read our answers."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, mcp-protocol-version"),
        (b"vary", b"origin"),
    ]
