"""HTTP application: Streamable HTTP and WebSocket at one path, HTTP+SSE and custom routes beside it.

Requests come from our own connections (`connection.py`) or from an ASGI server (`asgi.py`). Each passes the listener
guard (Host and Origin) and the authenticator before its body is read. The era of a request to the MCP path is decided
here, once: by its version header, or by the envelope of the posted request.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from trunkline.clock import Timer
from trunkline.config import Settings
from trunkline.errors import InvalidRequest, Refusal
from trunkline.protocol.envelope import ENVELOPE_KEY, has_envelope
from trunkline.transports.http.authenticator import Admitted, Authenticator, AuthResult, Rejected
from trunkline.transports.http.body import BodyReader
from trunkline.transports.http.forwarded_headers import TrustedProxies
from trunkline.transports.http.forwarding.inbound import ForwardedRequest
from trunkline.transports.http.forwarding.outbound import Forwarder, Relay
from trunkline.transports.http.health import Health
from trunkline.transports.http.http_sse import HttpSseEndpoint
from trunkline.transports.http.modern import ModernEndpoint
from trunkline.transports.http.no_session import NoSessionEndpoint
from trunkline.transports.http.request import (
    JSON_CONTENT_TYPE,
    Handling,
    Headers,
    HttpRequest,
    Receive,
    Scope,
    Send,
)
from trunkline.transports.http.respond import refuse_not_acceptable
from trunkline.transports.http.routes import MatchedRoute, RouteEndpoint, RouteFinder
from trunkline.transports.http.session.backend import SessionBackend
from trunkline.transports.http.session.endpoint import SessionEndpoint
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.websocket.server import WebSocketEndpoint, refuse_handshake
from trunkline.wire import codec
from trunkline.wire.media_types import EVENT_STREAM, JSON, accepts
from trunkline.wire.messages import Request

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["CheckRate", "HttpApp"]

Handler = Callable[[HttpRequest], Handling]
CheckRate = Callable[[Any, str], Refusal | Callable[[], Awaitable[Refusal | None]] | None]
"""Takes the principal and the address of a request; returns the refusal of one above the rate, or a function that finds
out."""

_TOO_MANY_REQUESTS: Final = 429
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
_MODERN_METHODS: Final = b"POST, OPTIONS"  # the modern era has neither sessions nor a standalone stream
_METADATA_METHODS: Final = b"GET, OPTIONS"
_PLAIN_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")


class HttpApp:
    """Routes requests to the endpoints of a server, on one event loop."""

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
        routes: RouteFinder | None = None,
        check_rate: CheckRate | None = None,
        keeps_path: bool = True,
    ) -> None:
        """`routes` finds the custom routes; raise `RegistrationError` if one is at the MCP path. `check_rate` limits
        the rate of requests. Without `keeps_path` another application may get the path while connections are open, so
        that each request has to be routed anew."""
        self._keeps_path = keeps_path
        settings, path = guard.settings, "/" + path.strip("/")
        self._relay = relay
        self._forwarder = forwarder = None if relay is None else Forwarder(relay)
        self.guard = guard
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self.modern = ModernEndpoint(guard)
        self.handshake: SessionEndpoint | NoSessionEndpoint = (
            SessionEndpoint(guard, session_backend, forwarder) if settings.http_sessions else NoSessionEndpoint(guard)
        )
        self.http_sse = HttpSseEndpoint(guard, _MESSAGES_PATH, forwarder)
        self.websocket = WebSocketEndpoint(guard, settings)
        self._body_reader = BodyReader(settings, guard.clock)
        self._body_limit = settings.http_body_size_limit
        self._path = path
        self._authenticator = authenticator
        self._health = health
        self._close_listeners = close_listeners
        self._close_timer: Timer | None = None
        self._check_rate = check_rate
        self._routes: dict[str, Handler] = {path: self._within_rate(self._handle_mcp)}
        handle_post = self._within_rate(self._handle_post)
        self._post_handler: Handler = (
            handle_post if authenticator is None else partial(self._handle_authenticated, handle=handle_post)
        )  # of POSTs to the MCP path whose head has passed all checks before
        if settings.legacy_sse and settings.http_sessions:
            self._routes.setdefault(_SSE_PATH, self._within_rate(self.http_sse.handle_stream))
            self._routes.setdefault(_MESSAGES_PATH, self._within_rate(self.http_sse.handle_post))

        self._custom_routes = routes
        self._route_endpoint = RouteEndpoint(guard, self._body_reader)
        if routes is not None:
            routes.reserve(path, "MCP")
        if relay is not None:
            relay.inbound.targets.append(self)

    async def handle_forwarded(self, request: ForwardedRequest) -> bool:
        """Answer a request that another process has forwarded; return False if its session or stream is not held
        here."""
        request.head.path = _MESSAGES_PATH if request.is_sse_post else self._path
        request.response.find_profile = self.profile_of
        request.response.report_refused = self.on_refused
        if request.is_sse_post:
            return await self.http_sse.handle_forwarded(request)
        return isinstance(self.handshake, SessionEndpoint) and await self.handshake.handle_forwarded(request)

    def on_renamed(self) -> None:
        """Close HTTP+SSE streams whose tokens name this process by its former id: other processes cannot forward to
        them."""
        self.http_sse.close_unreachable()

    # --- requests ---------------------------------------------------------------------------------

    def handle(self, request: HttpRequest) -> Handling:
        """Check, authenticate and route one HTTP request."""
        self._proxies.resolve(request)
        if request.repeated and not self._check_repeated_headers(request):
            return None
        handle, headers = self._routes.get(request.path), request.headers
        if handle is None and (public := self._find_public_page(request)) is not None:
            return public(request)
        origin = headers.get(b"origin")
        if (reason := self.guard.refusal_reason(headers.get(b"host"), origin)) is not None:
            request.refuse(403, reason, kind="access_denied")
            return None
        if origin is not None:
            request.extra_headers = _cors_headers(origin)
        if request.path == "*":
            request.respond(204, b"", (b"allow", _CORS_METHODS))  # the server as a whole
            return None
        if handle is None:
            return self._handle_route(request)
        if request.method == "OPTIONS":
            request.respond(204, b"", *_preflight_headers(headers.get(b"access-control-request-headers", b"")))
            return None
        return handle(request) if self._authenticator is None else self._handle_authenticated(request, handle)

    def profile_of(self, request: HttpRequest) -> "Profile | None":
        """Return the compatibility profile of the client that sent a request: that of the server, or of the session
        that the request names. Requests of the modern era have none."""
        if request.head.modern:
            return None
        ident, handshake = request.head.session_id, self.handshake
        if self.guard.profile is not None or ident is None or not isinstance(handshake, SessionEndpoint):
            return self.guard.profile
        return handshake.sessions.profile_of(ident)

    def on_refused(self, request: HttpRequest, status: int, kind: str) -> None:
        """Report the refusal of a request to observers."""
        self.guard.report_refused(request.method, request.path, status, kind, request.client_host)

    def _handle_route(self, request: HttpRequest) -> Handling:
        """Pass a request to a custom route."""
        route = None if self._custom_routes is None else self._custom_routes.find(request.path)
        if route is None:
            request.refuse(404, f"not found: the MCP endpoint is {self._path}", kind="not_found")
            return None
        if request.method == "OPTIONS":
            request.respond(204, b"", *_route_preflight_headers(request, route))
            return None
        handle = partial(self._route_endpoint.handle, route)
        return handle(request) if route.is_public(request.method) else self._handle_authenticated(request, handle)

    def _handle_authenticated(self, request: HttpRequest, handle: Handler) -> Handling:
        """Authenticate a request and handle it."""
        if self._authenticator is None:
            return handle(request)
        result = self._authenticator.authenticate(request, self._resource_path(request.path))
        if not isinstance(result, Admitted | Rejected):
            return self._handle_when_authenticated(request, result, handle)
        return handle(request) if self._accept_credentials(request, result) else None

    async def _handle_when_authenticated(
        self, request: HttpRequest, pending: Awaitable[AuthResult], handle: Handler
    ) -> None:
        if self._accept_credentials(request, await pending) and (handling := handle(request)) is not None:
            await handling

    def _accept_credentials(self, request: HttpRequest, result: AuthResult) -> bool:
        """Set the principal of a request; respond with the refusal and return False if it is rejected."""
        if isinstance(result, Rejected):
            request.refuse(
                result.status, result.reason, *result.headers, code=_rejection_code(result.status), kind=result.kind
            )
            return False
        request.principal = result.principal
        if result.expires_in is not None:
            request.auth_expires_at = self.guard.clock.now() + result.expires_in
        if self._authenticator is not None:
            request.scope_challenge = partial(
                self._authenticator.scope_challenge, request, self._resource_path(request.path), result.principal
            )
        return True

    def _within_rate(self, handle: Handler) -> Handler:
        """Return a handler that refuses requests above the rate before it reads their message."""
        check = self._check_rate
        return handle if check is None else partial(self._handle_within_rate, check, handle)

    def _handle_within_rate(self, check: CheckRate, handle: Handler, request: HttpRequest) -> Handling:
        answer = check(request.principal, request.client_host)
        if answer is None:
            return handle(request)
        if isinstance(answer, Refusal):
            _refuse_rate(request, answer, self.guard.settings)
            return None
        return self._handle_when_admitted(answer, handle, request)

    async def _handle_when_admitted(
        self, answer: Callable[[], Awaitable[Refusal | None]], handle: Handler, request: HttpRequest
    ) -> None:
        refusal = await answer()
        if refusal is not None:
            _refuse_rate(request, refusal, self.guard.settings)
        elif (handling := handle(request)) is not None:
            await handling

    def _check_repeated_headers(self, request: HttpRequest) -> bool:
        """Refuse a request with two values for a header that has one; make a repeated header that mirrors the body
        contradict any body, since an intermediary may have acted on either occurrence."""
        for name in request.repeated:
            if name in _SINGLE_HEADERS:
                request.refuse(400, f"the header {name.decode('latin-1')} must not occur twice")
                return False
            if name in _ROUTING_HEADERS or name.startswith(_PARAM_HEADER_PREFIX):
                request.headers[name] = _AMBIGUOUS_VALUE
        return True

    def _handle_mcp(self, request: HttpRequest) -> Handling:
        """Decide the era of a request to the MCP path, and pass the request to the endpoint of that era."""
        if request.method != "POST":
            if request.head.modern and request.method in {"GET", "DELETE"}:
                request.refuse_method(_MODERN_METHODS)
                return None
            return self.handshake.handle(request)
        if not accepts(request.headers.get(b"accept", b""), JSON, EVENT_STREAM):
            refuse_not_acceptable(request)
            return None
        if not self._body_reader.check_content_type(request):
            return None
        if (
            self._keeps_path and not request.proxied and not request.extra_headers
        ):  # nothing depends on more than the head
            request.head.route = self._post_handler
        return self._handle_post(request)

    def _handle_post(self, request: HttpRequest) -> Handling:
        body = request.body
        if body is None or len(body) > self._body_limit:
            return self._handle_when_read(request) if self._body_reader.check_length(request) else None
        request.body = b""  # decoding copies what is needed
        if request.head.modern:
            return self.modern.handle_body(request, body)
        message = codec.decode_strict(body)
        # A search in the whole body is faster than one in the params, which are a copy.
        if (
            type(message) is Request
            and (type(message.params) is not Raw or body.find(ENVELOPE_KEY) >= 0)
            and has_envelope(message.params)
        ):
            return self.modern.handle(request, message)
        return self.handshake.handle_post(request, message, body)

    async def _handle_when_read(self, request: HttpRequest) -> None:
        if (
            await self._body_reader.read_body(request) is not None
            and (handling := self._handle_post(request)) is not None
        ):
            await handling

    def _resource_path(self, route: str) -> str:
        """Return the path that clients know as the resource: the POST path of HTTP+SSE belongs to its stream's path,
        custom routes belong to the MCP path."""
        return _SSE_PATH if route != self._path and route in self._routes else self._path

    # --- public pages -----------------------------------------------------------------------------

    def _find_public_page(self, request: HttpRequest) -> Handler | None:
        """Return the handler of a page that needs neither credentials nor an allowed origin: health, or authorization
        metadata."""
        health, routes = self._health, self._custom_routes
        if (
            health is not None
            and health.matches(request.path)
            and not (routes is not None and health.yields(request.path) and routes.find(request.path) is not None)
        ):
            return health.handle
        if self._authenticator is None or self.guard.refusal_reason(request.headers.get(b"host"), None) is not None:
            return None
        page = self._authenticator.metadata_document(request)
        return None if page is None else partial(self._serve_metadata, page)

    def _serve_metadata(self, page: bytes, request: HttpRequest) -> None:
        """Serve the authorization metadata document."""
        match request.method:
            case "GET":
                cached = (b"cache-control", b"max-age=300")
                request.respond(200, page, JSON_CONTENT_TYPE, _CORS_ANY_ORIGIN, cached)
            case "OPTIONS":
                allowed = (b"access-control-allow-headers", b"mcp-protocol-version")
                methods = (b"access-control-allow-methods", _METADATA_METHODS)
                request.respond(204, b"", _CORS_ANY_ORIGIN, methods, allowed)
            case _:
                request.refuse_method(_METADATA_METHODS)

    # --- WebSocket --------------------------------------------------------------------------------

    def handle_upgrade(self, request: HttpRequest) -> Handling:
        """Check and authenticate a WebSocket handshake on one of our own connections, and open the WebSocket."""
        result = self._admit_websocket(request)
        if not isinstance(result, Admitted | Rejected):
            return self._open_websocket_when_authenticated(request, result)
        self._open_websocket(request, result)
        return None

    async def _open_websocket_when_authenticated(self, request: HttpRequest, pending: Awaitable[AuthResult]) -> None:
        self._open_websocket(request, await pending)

    def _open_websocket(self, request: HttpRequest, result: AuthResult) -> None:
        def refuse(status: int, reason: str, headers: Headers) -> None:
            request.respond(status, reason.encode(), _PLAIN_TEXT, *headers)

        if isinstance(result, Rejected):
            self.on_refused(request, result.status, result.kind)
            refuse(result.status, result.reason, result.headers)
            return
        self.websocket.open(request, result.principal, self._auth_expiry(result), refuse)

    async def handle_websocket(self, request: HttpRequest, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and authenticate the WebSocket handshake of an ASGI server, and serve the WebSocket."""
        result = self._admit_websocket(request)
        if not isinstance(result, Admitted | Rejected):
            result = await result
        if isinstance(result, Rejected):
            self.on_refused(request, result.status, result.kind)
            await receive()  # websocket.connect
            await refuse_handshake(scope, send, result.status, result.reason, *result.headers)
        else:
            expires_at = self._auth_expiry(result)
            await self.websocket.handle(scope, receive, send, result.principal, expires_at, request=request)

    def _admit_websocket(self, request: HttpRequest) -> AuthResult | Awaitable[AuthResult]:
        self._proxies.resolve(request)
        headers = request.headers
        if (name := next((name for name in request.repeated if name in _SINGLE_HEADERS), None)) is not None:
            return Rejected(400, f"the header {name.decode('latin-1')} must not occur twice", "invalid_request")
        if (reason := self.guard.refusal_reason(headers.get(b"host"), headers.get(b"origin"))) is not None:
            return Rejected(403, reason, "access_denied")
        if request.path != self._path:
            return Rejected(404, f"not found: the MCP endpoint is {self._path}", "not_found")
        return Admitted() if self._authenticator is None else self._authenticator.authenticate(request, self._path)

    def _auth_expiry(self, admitted: Admitted) -> float | None:
        return None if admitted.expires_in is None else self.guard.clock.now() + admitted.expires_in

    # --- closing ----------------------------------------------------------------------------------

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


def _rejection_code(status: int) -> int:
    """Return the error code for a request that the authenticator rejects."""
    if status != _TOO_MANY_REQUESTS:
        return InvalidRequest.code
    from trunkline.errors import RefusalCode  # imported here: few requests are refused

    return RefusalCode.RATE_LIMIT_EXCEEDED


def _refuse_rate(request: HttpRequest, refusal: Refusal, settings: Settings) -> None:
    refusal = refusal.with_hint(settings)
    seconds = -(-refusal.data["retryAfterMs"] // 1000)
    request.refuse_with_error(_TOO_MANY_REQUESTS, refusal, (b"retry-after", b"%d" % seconds))


def _preflight_headers(requested: bytes) -> Headers:
    """Return the CORS preflight headers. Every requested `Mcp-Param-*` header is allowed: which of them exist depends
    on the tools."""
    params = [name for each in requested.split(b",") if (name := each.strip().lower()).startswith(_PARAM_HEADER_PREFIX)]
    return [
        (b"access-control-allow-methods", _CORS_METHODS),
        (b"access-control-allow-headers", b", ".join((*_CORS_REQUEST_HEADERS, *params))),
        (b"access-control-max-age", b"86400"),
    ]


def _route_preflight_headers(request: HttpRequest, route: MatchedRoute) -> Headers:
    """Return the response headers of OPTIONS for a custom route. A page of an allowed origin may send any header."""
    allowed = ", ".join(route.allowed_methods).encode()
    if b"origin" not in request.headers:
        return [(b"allow", allowed)]
    return [
        (b"allow", allowed),
        (b"access-control-allow-methods", allowed),
        (b"access-control-allow-headers", request.headers.get(b"access-control-request-headers", b"")),
        (b"access-control-max-age", b"86400"),
    ]


def _cors_headers(origin: bytes) -> Headers:
    """Return the headers that let a page of an allowed origin read the response."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, mcp-protocol-version, www-authenticate"),
        (b"vary", b"origin"),
    ]
