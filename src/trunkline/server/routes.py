"""Running of custom HTTP routes: arguments, threads, timeouts, and responses for values and errors."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import (
    CompletionNotFound,
    ContentTooLarge,
    InsufficientScope,
    InternalError,
    InvalidParams,
    InvalidRequest,
    NotPermitted,
    ParseError,
    PromptNotFound,
    ProtocolError,
    Refusal,
    RegistrationError,
    RequestTimeout,
    ResourceAccessDenied,
    ResourceNotFound,
    ToolError,
    ToolNotFound,
)
from trunkline.errors.text import printable
from trunkline.facts import HandlerFailed
from trunkline.http import Request, Response
from trunkline.registry.access import parse_access
from trunkline.registry.handlers import StartMode, ThreadCall, exit_error
from trunkline.registry.routes import RouteEntry, RouteMatch, RouteTable, parse_methods, parse_path
from trunkline.registry.signatures import accepts_positional, name_of, underlying_function
from trunkline.rpc.run_handler import Work, start_work
from trunkline.server.access.rules import scopes_of
from trunkline.server.http_request import make_request
from trunkline.server.options import RouteOptions, check_options
from trunkline.transports.channel import RequestHead
from trunkline.transports.http.routes import RouteRefusal, RouteReply

if TYPE_CHECKING:
    from trunkline.server.runtime_services import RuntimeServices

__all__ = ["Routes", "SingleRoute", "build_route"]

_STATUSES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (InsufficientScope, 403),
    (NotPermitted, 403),
    (ResourceAccessDenied, 403),
    (ResourceNotFound, 404),
    (ToolNotFound, 404),
    (PromptNotFound, 404),
    (CompletionNotFound, 404),
    (ContentTooLarge, 413),
    (RequestTimeout, 504),
    (Refusal, 403),  # unless its reason has another one
    (InvalidParams, 400),
    (InvalidRequest, 400),
    (ParseError, 400),
    (ToolError, 400),
    (ProtocolError, 500),
)  # of the errors whose message is for the caller; the first match counts
_RETRY_AFTER: Final = "retryAfterMs"
_DECLINED, _UNAVAILABLE = 403, 503


def build_route(path: str, function: Callable[..., Any], options: RouteOptions) -> RouteEntry:
    """Build a route from a function. Raises `RegistrationError` for invalid options."""
    check_options("a route", RouteOptions, options, path)
    path, shape, names = parse_path(path)
    what = f"route {path!r}"
    if not callable(function):
        raise RegistrationError(f"{what} needs a function of the request, not {function!r}")
    if not accepts_positional(function, 1):
        raise RegistrationError(f"{what}: {name_of(function)} must take one argument, the request")
    access, public = parse_access(what, options.get("scopes"), None), options.get("public", False)
    if public and access is not None and access.scopes:
        raise RegistrationError(f"{what} is public, so it cannot need scopes")
    if iscoroutinefunction(underlying_function(function)):
        start = StartMode.ASYNC
    else:
        start = StartMode.INLINE if options.get("thread") is False else StartMode.THREAD
    return RouteEntry(
        path,
        shape,
        names,
        parse_methods(path, options.get("methods") or ("GET",)),
        function,
        start,
        public=public,
        access=access,
        timeout=options.get("timeout"),
    )


class SingleRoute:
    """One of the routes of a server, at another path."""

    def __init__(self, routes: "Routes", route: str, path: str) -> None:
        """Find the `route` at `path`."""
        self.path = path
        self._routes = routes
        self._route = route

    def find(self, path: str) -> "_Matched | None":
        """Return the route, if the decoded path is its own."""
        return self._routes.find(self._route) if path == self.path else None

    def reserve(self, path: str, purpose: str) -> None:
        """Do nothing: the route was added when its path was free."""


class Routes:
    """The custom routes of a server."""

    def __init__(self, settings: Settings, get_services: "Callable[[], RuntimeServices]") -> None:
        self._settings = settings
        self._get_services = get_services
        self._table = RouteTable()
        self._running: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[RouteEntry]:
        return iter(self._table)

    def add(self, entry: RouteEntry) -> None:
        """Add a route. Raises `RegistrationError` if its path is in use."""
        self._table.add(entry)

    def reserve(self, path: str, purpose: str) -> None:
        """Refuse routes at a path that the server uses itself, and below it if it ends with `/*`."""
        self._table.reserve(path, purpose)

    def find(self, path: str) -> "_Matched | None":
        """Return the routes of a decoded path; None if there are none."""
        match = self._table.find(path)
        return None if match is None else _Matched(self, match)

    async def drain(self) -> None:
        """Wait until all running routes have ended."""
        if self._running:
            await asyncio.wait(self._running)

    async def respond(
        self, entry: RouteEntry, values: tuple[str, ...], head: RequestHead, headers: Mapping[str, str], body: bytes
    ) -> RouteReply | RouteRefusal:
        """Run a route; return its response, or that for its error."""
        services = self._get_services()
        try:
            if entry.access is not None and not entry.access.is_covered_by(scopes_of(head.principal, local=False)):
                raise InsufficientScope(f"route {entry.path!r}", entry.access.scopes)
            request = make_request(
                head,
                headers,
                head.principal,
                services.get_lifespan_value(),
                body=body,
                path_params=dict(zip(entry.names, values, strict=True)),
            )
            response = _to_response(await self._call(entry, request, services))
        except Exception as error:  # noqa: BLE001 - becomes the response
            return self._refuse(error, entry, head.method, services)
        return RouteReply(
            response.status,
            [(name.encode(), value.encode("latin-1")) for name, value in response.headers],
            response.body,
        )

    async def _call(self, entry: RouteEntry, request: Request, services: "RuntimeServices") -> Any:
        """Run the function of a route and return its value. Raise `RequestTimeout` if it takes too long."""
        ended: asyncio.Future[Any] = services.threads.loop.create_future()

        def finish(_call: object, value: Any, error: BaseException | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(value)
            elif isinstance(error, asyncio.CancelledError | StopIteration):  # a future cannot hold these
                ended.set_exception(RuntimeError(f"the route ended with {type(error).__name__}"))
            else:
                ended.set_exception(exit_error(error) if isinstance(error, SystemExit) else error)

        def expire() -> None:
            if not ended.done():
                ended.set_exception(RequestTimeout(f"{request.method} {entry.path}", seconds or 0))

        clock, seconds = services.clock, self._settings.work_timeout if entry.timeout is None else entry.timeout
        self._running.add(ended)
        ended.add_done_callback(self._running.discard)
        work = start_work(_start(entry, request), services.threads, finish, None)
        timer = None if seconds is None or work is None else clock.call_at(clock.now() + seconds, expire)
        try:
            return await ended
        finally:
            if timer is not None:
                timer.cancel()
            if work is not None:
                work.cancel()  # does nothing if it has ended

    def _refuse(self, error: Exception, entry: RouteEntry, method: str, services: "RuntimeServices") -> RouteRefusal:
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
        if status is None:
            return RouteRefusal(500, self._report(error, entry, method, services))
        if not isinstance(error, ProtocolError):
            return RouteRefusal(status, ProtocolError.rebuilt(str(error), -32603, {"kind": "tool_execution_failed"}))
        if isinstance(error, InsufficientScope):
            return RouteRefusal(status, error, missing_scopes=tuple(error.data["scopes"]))
        return self._refuse_with_advice(error) if isinstance(error, Refusal) else RouteRefusal(status, error)

    def _refuse_with_advice(self, error: Refusal) -> RouteRefusal:
        """Return a refusal with the HTTP status of its reason, and with `Retry-After` if it says when to retry."""
        from trunkline.errors import REFUSALS

        info, retry = REFUSALS.get(error.refusal_code), error.data.get(_RETRY_AFTER)
        status = info.http_status if info is not None else _DECLINED if retry is None else _UNAVAILABLE
        headers = [] if retry is None else [(b"retry-after", b"%d" % -(-retry // 1000))]
        return RouteRefusal(status, error.with_hint(self._settings), headers)

    def _report(self, error: Exception, entry: RouteEntry, method: str, services: "RuntimeServices") -> ProtocolError:
        """Report an unexpected error to the observers; return the error for the caller, which names the incident."""
        reference = os.urandom(6).hex()
        if services.observers.hear_failures:
            services.observers.on(
                HandlerFailed(
                    connection=0,
                    at=services.clock.now(),
                    request=None,
                    method=f"{method} {entry.path}",
                    reference=reference,
                    error=error,
                )
            )
        message = f"the route failed; the log has the details under {reference}"
        if self._settings.expose_errors:
            message = f"{type(error).__name__}: {printable(str(error), multiline=True)}"
        return InternalError(message, data={"reference": reference})


class _Matched(Struct, frozen=True):
    """The routes of one path."""

    routes: Routes
    match: RouteMatch

    @property
    def allowed_methods(self) -> tuple[str, ...]:
        return self.match.allowed_methods

    def is_public(self, method: str) -> bool:
        return self.match.is_public(method)

    async def respond(self, request: RequestHead, headers: Mapping[str, str], body: bytes) -> RouteReply | RouteRefusal:
        entry = cast("RouteEntry", self.match.find(request.method))  # the method was checked
        return await self.routes.respond(entry, self.match.values, request, headers, body)


def _start(entry: RouteEntry, request: Request) -> Work:
    function = entry.function
    if entry.start is StartMode.THREAD:
        return ThreadCall(lambda: function(request), lambda value: value)

    async def run() -> Any:
        try:
            value = function(request)
            return await value if isawaitable(value) else value
        except SystemExit as error:
            raise exit_error(error) from error

    return run()


def _to_response(value: Any) -> Response:
    """Convert the value that a route returned."""
    if isinstance(value, Response):
        return value
    if value is None:
        return Response(status=204)
    if isinstance(value, str):
        return Response.text(value)
    return Response(bytes(value)) if isinstance(value, bytes | bytearray) else Response.json(value)
