"""Custom routes: requests to paths that the program has added beside the MCP endpoint.

The application has checked Host and Origin and authenticated the caller. This endpoint checks the method, reads the
body within its limits, and sends the response of the route.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

from trunkline.errors import ProtocolError
from trunkline.transports.channel import RequestHead
from trunkline.transports.http.body import BodyReader
from trunkline.transports.http.request import Handling, Headers, HttpRequest
from trunkline.transports.listener_limits import SHUTTING_DOWN, ListenerGuard

__all__ = ["MatchedRoute", "RouteEndpoint", "RouteFinder", "RouteRefusal", "RouteReply"]

_RETRY_SOON: Final = (b"retry-after", b"1")


class RouteReply(Struct, frozen=True):
    """The response of a route."""

    status: int
    headers: Headers
    body: bytes


class RouteRefusal(Struct, frozen=True):
    """The response for an error of a route. For missing scopes it has a challenge."""

    status: int
    error: ProtocolError
    headers: Headers = ()
    missing_scopes: tuple[str, ...] = ()


class MatchedRoute(Protocol):
    """The routes of one path."""

    @property
    def allowed_methods(self) -> tuple[str, ...]:
        """The methods that can be used at the path."""
        ...

    def is_public(self, method: str) -> bool:
        """Return whether a request with a method needs no credentials."""
        ...

    async def respond(self, request: RequestHead, headers: Mapping[str, str], body: bytes) -> RouteReply | RouteRefusal:
        """Run the route of a request, whose method is one of the allowed ones. Must not raise."""
        ...


class RouteFinder(Protocol):
    """Finds routes by the path of a request."""

    def find(self, path: str) -> MatchedRoute | None:
        """Return the routes of a decoded path; None if there are none."""
        ...

    def reserve(self, path: str, purpose: str) -> None:
        """Refuse routes at a path that the application uses. Raise `RegistrationError` if there is one already."""
        ...


class RouteEndpoint:
    """Answers requests to custom routes."""

    def __init__(self, guard: ListenerGuard, body_reader: BodyReader) -> None:
        self._guard = guard
        self._body_reader = body_reader
        self._running = 0

    def handle(self, route: MatchedRoute, request: HttpRequest) -> Handling:
        """Answer a request to a route."""
        if request.method not in route.allowed_methods:
            request.refuse_method(", ".join(route.allowed_methods).encode())
            return None
        if (reason := self._refusal_reason()) is not None:
            request.refuse(503, reason, _RETRY_SOON, kind="temporarily_unavailable")
            return None
        return self._run(route, request) if self._body_reader.check_length(request) else None

    def _refusal_reason(self) -> str | None:
        if self._guard.closing:
            return SHUTTING_DOWN.reason
        limit = self._guard.settings.max_connections
        if self._running >= limit:
            return f"{limit} requests are in progress, which is the limit (max_connections); try again later"
        return None

    async def _run(self, route: MatchedRoute, request: HttpRequest) -> None:
        body = await self._body_reader.read_body(request)
        if body is None:
            return
        request.body = b""  # the route has it
        self._running += 1
        try:
            answer = await route.respond(request, request.head.view, body)
        finally:
            self._running -= 1
        if isinstance(answer, RouteReply):
            request.respond(answer.status, answer.body, *answer.headers)
        elif answer.missing_scopes:
            request.refuse_with_error(answer.status, answer.error, request.scope_challenge(answer.missing_scopes))
        else:
            request.refuse_with_error(answer.status, answer.error, *answer.headers)
