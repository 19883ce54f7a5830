"""An ASGI application around a server: Streamable HTTP and WebSocket at one path, HTTP+SSE beside it.

It runs under any ASGI server and can be mounted anywhere. Nothing has to be entered before the first request; whoever
has a lifespan lets it end the application, whoever has none may call `aclose`. Everybody who comes passes the guard.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from trunkline.clock import Timer
from trunkline.transports.http.authenticator import Admitted, Gate, Turned
from trunkline.transports.http.forwarded_headers import Proxies
from trunkline.transports.http.forwarding.inbound import Carried
from trunkline.transports.http.forwarding.outbound import Front, Relay
from trunkline.transports.http.health import Health
from trunkline.transports.http.http_sse import LegacyEndpoint
from trunkline.transports.http.modern import StatelessEndpoint
from trunkline.transports.http.no_session import SessionlessEndpoint
from trunkline.transports.http.request import JSON, Headers, Receive, Scope, Send, Visit
from trunkline.transports.http.session.backend import SessionKeeper
from trunkline.transports.http.session.endpoint import Endpoint
from trunkline.transports.http.shutdown_signal import on_farewell
from trunkline.transports.listener_limits import Guard
from trunkline.transports.websocket.server import WebSocketEndpoint, refuse_call

__all__ = ["App", "House"]

_SSE: Final = "/sse"
_MESSAGES: Final = "/messages"
_ONCE: Final = frozenset(
    {
        b"host",
        b"origin",
        b"content-type",
        b"content-length",
        b"mcp-session-id",
        b"mcp-protocol-version",
        b"last-event-id",
        b"authorization",
        b"dpop",
    }
)
_ROUTING: Final = (b"mcp-method", b"mcp-name")  # what repeats something of the body
_PARAM: Final = b"mcp-param-"
_SAID_TWICE: Final = b"\0"  # no header has it, so it contradicts whatever the body says
_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
_ALLOWED: Final = (
    *(b"content-type", b"accept", b"authorization", b"mcp-session-id", b"mcp-protocol-version", b"last-event-id"),
    *(b"dpop", *_ROUTING),
)
_ANYBODY: Final = (b"access-control-allow-origin", b"*")
_PAGE_METHODS: Final = b"GET, OPTIONS"


class App:
    """Answers HTTP requests and WebSockets by their path."""

    def __init__(
        self,
        start: Callable[[], Awaitable[Guard]],
        stop: Callable[[], Awaitable[None]],
        *,
        path: str = "/",
        gate: Gate | None = None,
        released: Callable[[], None] = lambda: None,
        keeper: Callable[[], SessionKeeper | None] = lambda: None,
        relay: Callable[[], Relay | None] = lambda: None,
        health: Health | None = None,
    ) -> None:
        """`start` readies the server for the running loop, as often as it is asked; `stop` ends it; `released` ends
        what it has open for those who only listen. Without a gate everybody may come in, as nobody in particular.
        `keeper` gives who keeps sessions, of a server that is ready, and `relay` who carries requests to those that
        other processes hold; `health` says how it stands."""
        self._start = start
        self._stop = stop
        self._released = released
        self._keeper = keeper
        self._relay = relay
        self._health = health
        self._path = "/" + path.strip("/")
        self._gate = gate
        self._house: House | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers what comes in; ASGI's way in. Every framework has types of its own for the arguments."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(receive, send)
            return
        house = self._house
        if house is None or self._loop is not asyncio.get_running_loop():
            house = await self._ready()
        if kind == "http":
            await house.visited(Visit(house.proxies.seen_through(scope), receive, send))
        elif kind == "websocket":
            await house.called(house.proxies.seen_through(scope), receive, send)
        else:
            raise NotImplementedError(f"this application does not serve {kind}")

    async def _ready(self) -> "House":
        guard, loop = await self._start(), asyncio.get_running_loop()
        if self._house is None or self._loop is not loop:  # which it may not be for others who came meanwhile
            self._house = House(
                guard,
                self._path,
                self._gate,
                released=self._released,
                keeper=self._keeper(),
                relay=self._relay(),
                health=self._health,
            )
            self._loop = loop
        return self._house

    @property
    def house(self) -> "House | None":
        """What is open now."""
        return self._house

    async def _live(self, receive: Receive, send: Send) -> None:
        """Starts and stops with the ASGI server."""
        while True:
            message: Any = await receive()
            step = message["type"].rpartition(".")[2]
            try:
                if step == "startup":
                    await self._ready()
                    on_farewell(self._told_to_stop)
                else:
                    await self.aclose()
            except Exception as error:  # noqa: BLE001 - told to whoever runs us
                await send({"type": f"lifespan.{step}.failed", "message": str(error)})
                return
            await send({"type": f"lifespan.{step}.complete"})
            if step == "shutdown":
                return

    def release(self) -> None:
        """Ends the streams that wait for something to happen: whoever runs us is about to stop, and may wait for them.
        What is being worked on is still answered."""
        if self._house is not None:
            self._house.release()

    def _told_to_stop(self) -> None:
        """The same, where nobody else sees to it that what is being worked on has an end, and who runs us would cut
        every WebSocket off."""
        self.release()
        if self._house is not None:
            self._house.websocket.close("the server is about to stop")
            self._house.close_later()

    async def aclose(self) -> None:
        """Ends every session in good order. The application can be used again."""
        house, self._house, self._loop = self._house, None, None
        if house is not None:
            house.shut()
        await self._stop()
        if house is not None:
            house.close()


class House:
    """What an application has open on one event loop."""

    def __init__(
        self,
        guard: Guard,
        path: str,
        gate: Gate | None = None,
        *,
        released: Callable[[], None] = lambda: None,
        keeper: SessionKeeper | None = None,
        relay: Relay | None = None,
        health: Health | None = None,
    ) -> None:
        settings = guard.settings
        self._relay = relay
        self._front = front = None if relay is None else Front(relay)
        self.guard = guard
        self.proxies = Proxies(settings.trusted_proxies)
        self.stateless = StatelessEndpoint(guard)
        self.streamable: Endpoint | SessionlessEndpoint = (
            Endpoint(guard, self.stateless, keeper, front)
            if settings.http_sessions
            else SessionlessEndpoint(guard, self.stateless)
        )
        self.legacy = LegacyEndpoint(guard, _MESSAGES, front)
        self.websocket = WebSocketEndpoint(guard, settings)
        self._path = path
        self._gate = gate
        self._health = health
        self._released = released
        self._end: Timer | None = None
        self._routes: dict[str, Callable[[Visit], Awaitable[None]]] = {path: self.streamable.handle}
        if settings.legacy_sse and settings.http_sessions:
            self._routes.setdefault(_SSE, self.legacy.stream)
            self._routes.setdefault(_MESSAGES, self.legacy.post)

        if relay is not None:
            relay.arrivals.hosts.append(self)

    async def carried(self, visit: Carried) -> bool:
        """Answers an HTTP request that another process has let in, if what it is for is here."""
        if visit.for_messages:
            return await self.legacy.carried(visit)
        return isinstance(self.streamable, Endpoint) and await self.streamable.carried(visit)

    def renamed(self) -> None:
        """Nobody finds streams of HTTP+SSE by a name that this process has no more."""
        self.legacy.end_lost()

    async def visited(self, visit: Visit) -> None:
        """Answers an HTTP request, if it may come in."""
        scope, headers = visit.scope, visit.headers
        if len(headers) != len(scope["headers"]):
            if (name := _doubled(scope["headers"])) is not None:
                await visit.refuse(400, f"the header {name} must not stand there twice")
                return
            headers.update(_ambiguous(scope["headers"]))
        route = _route(scope)
        handle = self._routes.get(route)
        if handle is None and self._health is not None and await self._health.told(visit, route):
            return
        if handle is None and await self._showed(visit, route):
            return
        origin = headers.get(b"origin")
        if (why := self.guard.refusal(headers.get(b"host"), origin)) is not None:
            await visit.refuse(403, why, kind="access_denied")
            return
        if origin is not None:
            visit.extra = _cors(origin)
        if handle is None:
            await visit.refuse(404, f"there is nothing here; the endpoint is {self._path}", kind="not_found")
        elif scope["method"] == "OPTIONS":
            await visit.respond(204, b"", *_preflight(headers.get(b"access-control-request-headers", b"")))
        elif self._gate is None or await self._admitted(visit, self._gate, self._known_as(route)):
            await handle(visit)

    async def _admitted(self, visit: Visit, gate: Gate, path: str) -> bool:
        """Whether whoever sent a request may come in; it is told if not."""
        verdict = gate.admit(visit.scope, visit.headers, path)
        if not isinstance(verdict, Admitted | Turned):
            verdict = await verdict
        if isinstance(verdict, Turned):
            await visit.refuse(verdict.status, verdict.why, *verdict.headers, kind=verdict.kind)
            return False
        visit.principal = verdict.principal
        visit.until = self._until(verdict)
        visit.challenge = partial(gate.challenge, visit.scope, path, verdict.principal)
        return True

    def _until(self, admitted: Admitted) -> float | None:
        return None if admitted.lasts is None else self.guard.clock.now() + admitted.lasts

    def _known_as(self, route: str) -> str:
        """The path of an endpoint, as clients know it: what HTTP+SSE posts to is a part of its stream."""
        return route if route == self._path else _SSE

    async def _showed(self, visit: Visit, route: str) -> bool:
        """Shows whoever asks how to get in, if that is asked for: whatever page it comes from, and whoever it is."""
        page = None if self._gate is None else self._gate.page(visit.scope, route)
        if page is None or self.guard.refusal(visit.headers.get(b"host"), None) is not None:
            return False
        match visit.scope["method"]:
            case "GET":
                await visit.respond(200, page, JSON, _ANYBODY, (b"cache-control", b"max-age=300"))
            case "OPTIONS":
                allowed = (b"access-control-allow-headers", b"mcp-protocol-version")
                await visit.respond(204, b"", _ANYBODY, (b"access-control-allow-methods", _PAGE_METHODS), allowed)
            case _:
                await visit.not_allowed(_PAGE_METHODS)
        return True

    async def called(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Takes a WebSocket, if it may come in."""
        headers = dict(scope["headers"])
        refused = _doubled(scope["headers"]) or self.guard.refusal(headers.get(b"host"), headers.get(b"origin"))
        if refused is not None or _route(scope) != self._path:
            await receive()  # websocket.connect
            await send({"type": "websocket.close", "code": 1008, "reason": (refused or "there is nothing here")[:120]})
            return
        verdict = Admitted() if self._gate is None else self._gate.admit(scope, headers, self._path)
        if not isinstance(verdict, Admitted | Turned):
            verdict = await verdict
        if isinstance(verdict, Turned):
            await receive()
            await refuse_call(scope, send, verdict.status, verdict.why, *verdict.headers)
        else:
            await self.websocket.handle(scope, receive, send, verdict.principal, self._until(verdict))

    def shut(self) -> None:
        """Lets nobody new in."""
        self.guard.shut()

    def release(self) -> None:
        """Ends the streams on which nothing is being answered."""
        self.shut()
        self._released()
        self.streamable.release()
        self.legacy.release()
        if self._front is not None:
            self._front.release()

    def close_later(self) -> None:
        """Ends what is left once `drain_timeout` is over."""
        limit, clock = self.guard.settings.drain_timeout, self.guard.clock
        if limit is not None and self._end is None:
            self._end = clock.call_at(clock.now() + limit, self.close)

    def close(self) -> None:
        """Ends what is left."""
        if self._end is not None:
            self._end.cancel()
        if self._relay is not None and self in self._relay.arrivals.hosts:
            self._relay.arrivals.hosts.remove(self)
        if self._front is not None:
            self._front.close()
        self.streamable.close("the server has stopped")
        self.stateless.close("the server has stopped")
        self.legacy.close("the server has stopped")
        self.websocket.close("the server has stopped")


def _doubled(raw: Headers) -> str | None:
    """A header that must not be there twice, and is."""
    seen: set[bytes] = set()
    for name, _ in raw:
        if name in seen and name in _ONCE:
            return name.decode("latin-1")
        seen.add(name)
    return None


def _ambiguous(raw: Headers) -> Headers:
    """Headers of those that repeat the body which are there twice: who stands between may have read either."""
    times = Counter(name for name, _ in raw if name in _ROUTING or name.startswith(_PARAM))
    return [(name, _SAID_TWICE) for name, count in times.items() if count > 1]


def _preflight(requested: bytes) -> Headers:
    """What lets a page ask; which arguments it repeats in headers is between it and the tools."""
    params = [name for each in requested.split(b",") if (name := each.strip().lower()).startswith(_PARAM)]
    return [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", b", ".join((*_ALLOWED, *params))),
        (b"access-control-max-age", b"86400"),
    ]


def _cors(origin: bytes) -> Headers:
    """What lets a page of an origin that is allowed read our answers."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, mcp-protocol-version, www-authenticate"),
        (b"vary", b"origin"),
    ]


def _route(scope: Scope) -> str:
    """The path within the application, wherever it is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :]
    return path.rstrip("/") or "/"
