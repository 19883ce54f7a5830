"""ASGI application around a server: Streamable HTTP and WebSocket at one path, HTTP+SSE beside it.

The application runs under any ASGI server and can be mounted under any path. It starts the server with the first
request, so a lifespan is optional: where the ASGI server sends lifespan events, the shutdown event closes the
application; otherwise the owner may call `aclose`. Every request passes the listener guard (Host and Origin) and the
authenticator before its body is read. The era of a request to the MCP path is decided here, once: by its version
header, or by the envelope of the posted request.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from trunkline.clock import Timer
from trunkline.protocol.envelope import has_envelope
from trunkline.protocol.revisions import MODERN_REVISIONS
from trunkline.transports.http.authenticator import Admitted, Authenticator, Rejected
from trunkline.transports.http.body import BodyReader
from trunkline.transports.http.forwarded_headers import TrustedProxies
from trunkline.transports.http.forwarding.inbound import ForwardedRequest
from trunkline.transports.http.forwarding.outbound import Forwarder, Relay
from trunkline.transports.http.health import Health
from trunkline.transports.http.http_sse import HttpSseEndpoint
from trunkline.transports.http.modern import ModernEndpoint
from trunkline.transports.http.no_session import NoSessionEndpoint
from trunkline.transports.http.request import JSON_CONTENT_TYPE, Headers, HttpRequest, Receive, Scope, Send
from trunkline.transports.http.respond import VERSION_HEADER, refuse_not_acceptable
from trunkline.transports.http.session.backend import SessionBackend
from trunkline.transports.http.session.endpoint import SessionEndpoint
from trunkline.transports.http.shutdown_signal import on_shutdown_signal
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.websocket.server import WebSocketEndpoint, refuse_handshake
from trunkline.wire import codec
from trunkline.wire.media_types import EVENT_STREAM, JSON, accepts
from trunkline.wire.messages import Request

__all__ = ["App", "AppState"]

_SSE_PATH: Final = "/sse"
_MESSAGES_PATH: Final = "/messages"
_SINGLE_HEADERS: Final = frozenset(
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
_ROUTING_HEADERS: Final = (b"mcp-method", b"mcp-name")  # headers that repeat a part of the body
_PARAM_HEADER_PREFIX: Final = b"mcp-param-"
_AMBIGUOUS_VALUE: Final = b"\0"  # no header contains it, so it contradicts any body
_CORS_METHODS: Final = b"GET, POST, DELETE, OPTIONS"
_CORS_REQUEST_HEADERS: Final = (
    *(b"content-type", b"accept", b"authorization", b"mcp-session-id", b"mcp-protocol-version", b"last-event-id"),
    *(b"dpop", *_ROUTING_HEADERS),
)
_CORS_ANY_ORIGIN: Final = (b"access-control-allow-origin", b"*")
_MODERN_VERSIONS: Final = frozenset(revision.value.encode() for revision in MODERN_REVISIONS)
_MODERN_METHODS: Final = b"POST, OPTIONS"  # the modern era has neither sessions nor a standalone stream
_METADATA_METHODS: Final = b"GET, OPTIONS"


class App:
    """ASGI application that routes HTTP requests and WebSockets by path."""

    def __init__(
        self,
        start: Callable[[], Awaitable[ListenerGuard]],
        stop: Callable[[], Awaitable[None]],
        *,
        path: str = "/",
        authenticator: Authenticator | None = None,
        close_listeners: Callable[[], None] = lambda: None,
        session_backend: Callable[[], SessionBackend | None] = lambda: None,
        relay: Callable[[], Relay | None] = lambda: None,
        health: Health | None = None,
    ) -> None:
        """Create the application; nothing is opened before the first request.

        `start` prepares the server for the running loop and may be called repeatedly; `stop` ends it. `close_listeners`
        ends the `subscriptions/listen` requests of the server. Without an authenticator every request is admitted,
        without a principal. `session_backend` and `relay` return the backend of durable sessions and the relay to other
        processes, once the server has started. `health` answers `/livez` and `/readyz`.
        """
        self._start = start
        self._stop = stop
        self._close_listeners = close_listeners
        self._session_backend = session_backend
        self._relay = relay
        self._health = health
        self._path = "/" + path.strip("/")
        self._authenticator = authenticator
        self._state: AppState | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one ASGI scope. The arguments are `Any` because every framework has types of its own for them."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._run_lifespan(receive, send)
            return
        state = self._state
        if state is None or self._loop is not asyncio.get_running_loop():
            state = await self._ensure_state()
        if kind == "http":
            await state.handle_http(HttpRequest(state.proxies.resolve_scope(scope), receive, send))
        elif kind == "websocket":
            await state.handle_websocket(state.proxies.resolve_scope(scope), receive, send)
        else:
            raise NotImplementedError(f"this application does not serve {kind}")

    async def _ensure_state(self) -> "AppState":
        guard, loop = await self._start(), asyncio.get_running_loop()
        if self._state is None or self._loop is not loop:  # a concurrent request may have created it
            self._state = AppState(
                guard,
                self._path,
                self._authenticator,
                close_listeners=self._close_listeners,
                session_backend=self._session_backend(),
                relay=self._relay(),
                health=self._health,
            )
            self._loop = loop
        return self._state

    @property
    def state(self) -> "AppState | None":
        """The state on the current event loop; None before the first request and after `aclose`."""
        return self._state

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        """Start and stop with the ASGI server's lifespan events."""
        while True:
            message: Any = await receive()
            step = message["type"].rpartition(".")[2]
            try:
                if step == "startup":
                    await self._ensure_state()
                    on_shutdown_signal(self._on_stop_signal)
                else:
                    await self.aclose()
            except Exception as error:  # noqa: BLE001 - reported to the ASGI server
                await send({"type": f"lifespan.{step}.failed", "message": str(error)})
                return
            await send({"type": f"lifespan.{step}.complete"})
            if step == "shutdown":
                return

    def close_idle_streams(self) -> None:
        """End the streams that answer no request, and admit nothing new: the ASGI server is about to stop and would
        wait for them. Requests in progress are still answered."""
        if self._state is not None:
            self._state.close_idle_streams()

    def _on_stop_signal(self) -> None:
        """Close idle streams and every WebSocket on a stop signal, and schedule the end of the rest.

        Used under a foreign ASGI server, which sets no deadline for requests in progress and would cut WebSockets off
        without a close frame.
        """
        self.close_idle_streams()
        if self._state is not None:
            self._state.websocket.close("the server is about to stop")
            self._state.schedule_close()

    async def aclose(self) -> None:
        """End every session in good order. The application can be used again afterwards."""
        state, self._state, self._loop = self._state, None, None
        if state is not None:
            state.stop_admitting()
        await self._stop()
        if state is not None:
            state.close()


class AppState:
    """Endpoints and connections of an application on one event loop."""

    def __init__(
        self,
        guard: ListenerGuard,
        path: str,
        authenticator: Authenticator | None = None,
        *,
        close_listeners: Callable[[], None] = lambda: None,
        session_backend: SessionBackend | None = None,
        relay: Relay | None = None,
        health: Health | None = None,
    ) -> None:
        settings = guard.settings
        self._relay = relay
        self._forwarder = forwarder = None if relay is None else Forwarder(relay)
        self.guard = guard
        self.proxies = TrustedProxies(settings.trusted_proxies)
        self.modern = ModernEndpoint(guard)
        self.handshake: SessionEndpoint | NoSessionEndpoint = (
            SessionEndpoint(guard, session_backend, forwarder) if settings.http_sessions else NoSessionEndpoint(guard)
        )
        self.http_sse = HttpSseEndpoint(guard, _MESSAGES_PATH, forwarder)
        self.websocket = WebSocketEndpoint(guard, settings)
        self._body_reader = BodyReader(settings, guard.clock)
        self._path = path
        self._authenticator = authenticator
        self._health = health
        self._close_listeners = close_listeners
        self._close_timer: Timer | None = None
        self._routes: dict[str, Callable[[HttpRequest], Awaitable[None]]] = {path: self._handle_mcp}
        if settings.legacy_sse and settings.http_sessions:
            self._routes.setdefault(_SSE_PATH, self.http_sse.handle_stream)
            self._routes.setdefault(_MESSAGES_PATH, self.http_sse.handle_post)

        if relay is not None:
            relay.inbound.targets.append(self)

    async def handle_forwarded(self, request: ForwardedRequest) -> bool:
        """Answer a request that another process has forwarded; return False if its session or stream is not held
        here."""
        if request.is_sse_post:
            return await self.http_sse.handle_forwarded(request)
        return isinstance(self.handshake, SessionEndpoint) and await self.handshake.handle_forwarded(request)

    def on_renamed(self) -> None:
        """Close HTTP+SSE streams whose tokens name this process by its former id: other processes cannot forward to
        them."""
        self.http_sse.close_unreachable()

    async def handle_http(self, request: HttpRequest) -> None:
        """Check, authenticate and route one HTTP request."""
        scope, headers = request.scope, request.headers
        if len(headers) != len(scope["headers"]):
            if (name := _find_duplicate_header(scope["headers"])) is not None:
                await request.refuse(400, f"the header {name} must not occur twice")
                return
            headers.update(_ambiguous_headers(scope["headers"]))
        route = _route_path(scope)
        handle = self._routes.get(route)
        if handle is None and self._health is not None and await self._health.try_handle(request, route):
            return
        if handle is None and await self._serve_metadata(request, route):
            return
        origin = headers.get(b"origin")
        if (reason := self.guard.refusal_reason(headers.get(b"host"), origin)) is not None:
            await request.refuse(403, reason, kind="access_denied")
            return
        if origin is not None:
            request.extra_headers = _cors_headers(origin)
        if handle is None:
            await request.refuse(404, f"not found: the MCP endpoint is {self._path}", kind="not_found")
        elif scope["method"] == "OPTIONS":
            await request.respond(204, b"", *_preflight_headers(headers.get(b"access-control-request-headers", b"")))
        elif self._authenticator is None or await self._authenticate(
            request, self._authenticator, self._resource_path(route)
        ):
            await handle(request)

    async def _handle_mcp(self, request: HttpRequest) -> None:
        """Decide the era of a request to the MCP path, and pass the request to the endpoint of that era."""
        method = request.scope["method"]
        if method != "POST":
            if method in {"GET", "DELETE"} and _names_modern_version(request):
                await request.refuse_method(_MODERN_METHODS)
            else:
                await self.handshake.handle(request)
            return
        if not accepts(request.headers.get(b"accept", b""), JSON, EVENT_STREAM):
            await refuse_not_acceptable(request)
            return
        body = await self._body_reader.read_body(request)
        if body is None:
            return
        message = codec.decode_strict(body)
        if _names_modern_version(request) or (isinstance(message, Request) and has_envelope(message.params)):
            await self.modern.handle(request, message)
        else:
            await self.handshake.handle_post(request, message, body)

    async def _authenticate(self, request: HttpRequest, authenticator: Authenticator, path: str) -> bool:
        """Authenticate a request and set its principal; respond with the refusal and return False if it is rejected."""
        result = authenticator.authenticate(request.scope, request.headers, path)
        if not isinstance(result, Admitted | Rejected):
            result = await result
        if isinstance(result, Rejected):
            await request.refuse(result.status, result.reason, *result.headers, kind=result.kind)
            return False
        request.principal = result.principal
        request.auth_expires_at = self._auth_expiry(result)
        request.scope_challenge = partial(authenticator.scope_challenge, request.scope, path, result.principal)
        return True

    def _auth_expiry(self, admitted: Admitted) -> float | None:
        return None if admitted.expires_in is None else self.guard.clock.now() + admitted.expires_in

    def _resource_path(self, route: str) -> str:
        """Return the path that clients know as the resource: the POST path of HTTP+SSE belongs to its stream's path."""
        return route if route == self._path else _SSE_PATH

    async def _serve_metadata(self, request: HttpRequest, route: str) -> bool:
        """Serve the authorization metadata document if the route is its path; return False otherwise.

        The document is public: any origin may read it, without credentials.
        """
        page = None if self._authenticator is None else self._authenticator.metadata_document(request.scope, route)
        if page is None or self.guard.refusal_reason(request.headers.get(b"host"), None) is not None:
            return False
        match request.scope["method"]:
            case "GET":
                await request.respond(
                    200, page, JSON_CONTENT_TYPE, _CORS_ANY_ORIGIN, (b"cache-control", b"max-age=300")
                )
            case "OPTIONS":
                allowed = (b"access-control-allow-headers", b"mcp-protocol-version")
                await request.respond(
                    204, b"", _CORS_ANY_ORIGIN, (b"access-control-allow-methods", _METADATA_METHODS), allowed
                )
            case _:
                await request.refuse_method(_METADATA_METHODS)
        return True

    async def handle_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and authenticate a WebSocket handshake, and hand it to the WebSocket endpoint."""
        headers = dict(scope["headers"])
        refused = _find_duplicate_header(scope["headers"]) or self.guard.refusal_reason(
            headers.get(b"host"), headers.get(b"origin")
        )
        if refused is not None or _route_path(scope) != self._path:
            await receive()  # websocket.connect
            await send(
                {
                    "type": "websocket.close",
                    "code": 1008,
                    "reason": (refused or f"not found: the MCP endpoint is {self._path}")[:120],
                }
            )
            return
        result = (
            Admitted() if self._authenticator is None else self._authenticator.authenticate(scope, headers, self._path)
        )
        if not isinstance(result, Admitted | Rejected):
            result = await result
        if isinstance(result, Rejected):
            await receive()
            await refuse_handshake(scope, send, result.status, result.reason, *result.headers)
        else:
            await self.websocket.handle(scope, receive, send, result.principal, self._auth_expiry(result))

    def stop_admitting(self) -> None:
        """Refuse new connections and sessions from now on."""
        self.guard.stop_admitting()

    def close_idle_streams(self) -> None:
        """Stop admitting, and end the streams that answer no request."""
        self.stop_admitting()
        self._close_listeners()
        self.handshake.close_idle_streams()
        self.http_sse.close_idle_streams()
        if self._forwarder is not None:
            self._forwarder.close_idle_streams()

    def schedule_close(self) -> None:
        """Close everything that is left once `drain_timeout` has passed."""
        limit, clock = self.guard.settings.drain_timeout, self.guard.clock
        if limit is not None and self._close_timer is None:
            self._close_timer = clock.call_at(clock.now() + limit, self.close)

    def close(self) -> None:
        """Close every endpoint; requests in progress are interrupted."""
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self._relay is not None and self in self._relay.inbound.targets:
            self._relay.inbound.targets.remove(self)
        if self._forwarder is not None:
            self._forwarder.close()
        self._body_reader.close()
        self.handshake.close("the server has stopped")
        self.modern.close("the server has stopped")
        self.http_sse.close("the server has stopped")
        self.websocket.close("the server has stopped")


def _names_modern_version(request: HttpRequest) -> bool:
    """Return whether the version header names a revision of the modern era."""
    return request.headers.get(VERSION_HEADER) in _MODERN_VERSIONS


def _find_duplicate_header(raw: Headers) -> str | None:
    """Return the name of a header that occurs twice and must not; None if there is none."""
    seen: set[bytes] = set()
    for name, _ in raw:
        if name in seen and name in _SINGLE_HEADERS:
            return name.decode("latin-1")
        seen.add(name)
    return None


def _ambiguous_headers(raw: Headers) -> Headers:
    """Return a contradicting value for each repeated header that mirrors the body.

    An intermediary may have acted on either occurrence, so the request must not pass the comparison with its body.
    """
    times = Counter(name for name, _ in raw if name in _ROUTING_HEADERS or name.startswith(_PARAM_HEADER_PREFIX))
    return [(name, _AMBIGUOUS_VALUE) for name, count in times.items() if count > 1]


def _preflight_headers(requested: bytes) -> Headers:
    """Return the CORS preflight headers. Every requested `Mcp-Param-*` header is allowed: which of them exist depends
    on the tools."""
    params = [name for each in requested.split(b",") if (name := each.strip().lower()).startswith(_PARAM_HEADER_PREFIX)]
    return [
        (b"access-control-allow-methods", _CORS_METHODS),
        (b"access-control-allow-headers", b", ".join((*_CORS_REQUEST_HEADERS, *params))),
        (b"access-control-max-age", b"86400"),
    ]


def _cors_headers(origin: bytes) -> Headers:
    """Return the headers that let a page of an allowed origin read the response."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, mcp-protocol-version, www-authenticate"),
        (b"vary", b"origin"),
    ]


def _route_path(scope: Scope) -> str:
    """Return the path within the application, without the mount's root path and a trailing slash."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :]
    return path.rstrip("/") or "/"
