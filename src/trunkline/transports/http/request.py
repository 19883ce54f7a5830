"""One HTTP request and the methods that respond to it, whether it comes from our own connection or from ASGI."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from trunkline.errors import ProtocolError, Refusal
from trunkline.protocol.error_codes import add_refusal, founding_code
from trunkline.protocol.error_kinds import kind_of
from trunkline.protocol.headers import RoutingHeaders
from trunkline.protocol.known_request import KnownRequest
from trunkline.protocol.revisions import HANDSHAKE, MODERN_REVISIONS
from trunkline.transports.addresses import format_host_port
from trunkline.wire import codec
from trunkline.wire.messages import RequestId

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = [
    "JSON_CONTENT_TYPE",
    "UNIX_CLIENT",
    "BodyTooLarge",
    "DetachedTransport",
    "Disconnected",
    "Handling",
    "HeaderView",
    "Headers",
    "HttpHead",
    "HttpRequest",
    "Receive",
    "ResponseWriter",
    "Scope",
    "Send",
    "insufficient_scope_challenge",
    "run_detached",
]

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
Handling = Awaitable[None] | None
"""Result of a handler: None if it has responded or will do so in a callback, otherwise an awaitable that responds."""

UNIX_CLIENT: Final = ("unix", 0)
"""Address of a client that is connected through a Unix socket."""

SESSION_HEADER: Final = b"mcp-session-id"
VERSION_HEADER: Final = b"mcp-protocol-version"

JSON_CONTENT_TYPE: Final = (b"content-type", b"application/json")
_OVERLOADED: Final = frozenset({429, 503})
_RETRY_SOON: Final = (b"retry-after", b"1")
_SSE_HEADERS: Final[Headers] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # a buffering proxy would hold back events
)


_HANDSHAKE_VERSIONS: Final = frozenset((None, *(revision.value.encode() for revision in HANDSHAKE)))  # None: no header
_MODERN_VERSIONS: Final = frozenset(revision.value.encode() for revision in MODERN_REVISIONS)


_MAX_LESSONS: Final = 4  # a client whose requests differ in more than their arguments is not worth more


class BodyTooLarge(Exception):
    """The request body exceeds the size limit."""


class Disconnected(Exception):
    """The peer disconnected before the request was complete."""


class ResponseWriter(Protocol):
    """The source of requests: reads their bodies and writes their responses.

    A response to a request whose peer has disconnected is dropped.
    """

    def respond(self, request: "HttpRequest", status: int, headers: Headers, body: bytes) -> None:
        """Write a whole response, with its Content-Length."""
        ...

    async def begin(self, request: "HttpRequest", status: int, headers: Headers) -> None:
        """Begin a response whose body follows in chunks."""
        ...

    async def write(self, request: "HttpRequest", data: bytes) -> None:
        """Write a chunk, waiting while the peer reads too slowly."""
        ...

    def write_nowait(self, request: "HttpRequest", data: bytes) -> bool:
        """Write a chunk at once; return False if that is not possible now."""
        ...

    async def end(self, request: "HttpRequest") -> None:
        """End a response that was sent in chunks."""
        ...

    async def read_body(self, request: "HttpRequest", limit: int) -> bytes:
        """Return the whole body. Raise `BodyTooLarge` as soon as it exceeds the limit, and `Disconnected`."""
        ...

    def run(self, request: "HttpRequest", work: Coroutine[Any, Any, None]) -> None:
        """Run the rest of a request's handling. An exception that it raises is this request's alone."""
        ...

    def is_open(self, request: "HttpRequest") -> bool:
        """Return whether a response can still reach the peer."""
        ...

    def detach(self, request: "HttpRequest") -> "DetachedTransport":
        """Give up the open connection of a request, for another protocol."""
        ...

    def profile_of(self, request: "HttpRequest") -> "Profile | None":
        """Return the compatibility profile of the client that sent a request, if it has one."""
        ...

    def on_refused(self, request: "HttpRequest", status: int, kind: str) -> None:
        """Report the refusal of a request to observers."""
        ...

    def watch_disconnect(self, request: "HttpRequest") -> None:
        """Call `on_disconnect` of the request when the peer disconnects."""
        ...

    def watch_half_close(self, request: "HttpRequest", callback: Callable[[], object]) -> None:
        """Call a callback once the peer has closed its sending side, if the source can tell."""
        ...


class DetachedTransport(NamedTuple):
    """A connection that another protocol takes over."""

    transport: asyncio.Transport
    rest: bytes  # received after the request
    on_closed: Callable[[], None]  # must be called when the transport is lost


class HttpHead:
    """The head of a request: its method, target and headers.

    The requests of a connection that repeat a head share one object, so an application can keep in `route` what it
    has decided from the head alone.
    """

    __slots__ = (
        "handshake",
        "headers",
        "known_request",
        "lessons",
        "method",
        "modern",
        "path",
        "query",
        "repeated",
        "route",
        "routing_headers",
        "session_id",
        "view",
    )

    def __init__(
        self,
        method: str,
        path: str,
        headers: dict[bytes, bytes],
        *,
        query: bytes = b"",
        repeated: Sequence[bytes] = (),
    ) -> None:
        """`path` is the decoded path within the application."""
        self.method = method
        self.path = path if path == "/" else path.rstrip("/") or "/"
        self.query = query
        self.headers = headers  # by lower-case name; repeated headers are joined by commas
        self.view = HeaderView(headers)
        self.repeated = repeated  # names of headers that occur more than once
        self.route: Callable[[HttpRequest], Handling] | None = None  # the handler of all requests with this head
        self.routing_headers: RoutingHeaders | None = None  # once a request of the modern era has read them
        self.known_request: KnownRequest | None = None  # of the modern era, once the head has been sent again
        self.lessons = _MAX_LESSONS  # how often another known request may still replace it
        session, version = headers.get(SESSION_HEADER), headers.get(VERSION_HEADER)
        self.session_id = None if session is None else session.decode("latin-1")
        self.modern = version in _MODERN_VERSIONS  # the version header names a revision of the modern era
        self.handshake = version in _HANDSHAKE_VERSIONS  # it names one of the handshake era, or there is none

    def with_content_length(self, length: bytes) -> "HttpHead":
        """Return this head with another Content-Length."""
        head = HttpHead.__new__(HttpHead)  # nothing else that `__init__` reads has changed
        head.headers = headers = self.headers.copy()
        headers[b"content-length"] = length
        head.view = HeaderView(headers)
        head.method = self.method
        head.path = self.path
        head.query = self.query
        head.repeated = self.repeated
        head.route = self.route
        head.routing_headers = self.routing_headers
        head.known_request = self.known_request
        head.lessons = self.lessons
        head.session_id = self.session_id
        head.modern = self.modern
        head.handshake = self.handshake
        return head

    def read_routing_headers(self) -> RoutingHeaders:
        """Return the headers that repeat parts of a modern request."""
        self.routing_headers = RoutingHeaders.read(self.view)
        return self.routing_headers


def insufficient_scope_challenge(scopes: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a `WWW-Authenticate` header that names the required scopes, without a link to resource metadata."""
    return (b"www-authenticate", f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}"'.encode())


class HttpRequest:
    """An HTTP request, its authenticated principal, and the way to respond to it."""

    # Defaults on the class: most requests set few of them.
    body: bytes | None = None  # until the whole body has arrived
    prefix = ""  # the path prefix that a trusted proxy has stripped
    proxied = False  # whether a trusted proxy has forwarded the request
    principal: Any = None
    auth_expires_at: float | None = None  # by the guard's clock
    extra_headers: Headers = ()  # added to every response
    disconnected = False
    on_disconnect: Callable[[], object] | None = None
    root_path = ""  # the path that the application is mounted at
    scope: Mapping[str, Any] | None = None  # the ASGI scope, if there is one
    scope_challenge: Callable[[Sequence[str]], tuple[bytes, bytes]] = staticmethod(insufficient_scope_challenge)

    def __init__(
        self,
        writer: ResponseWriter,
        head: HttpHead,
        scheme: str = "http",
        client: tuple[str, int] | None = None,
        server: tuple[str, int | None] | None = None,
    ) -> None:
        self._writer = writer
        self.head = head
        self.headers = head.headers
        self.scheme = scheme
        self.client = client
        self.server = server

    @property
    def method(self) -> str:
        """The method."""
        return self.head.method

    @property
    def path(self) -> str:
        """The decoded path within the application."""
        return self.head.path

    @property
    def query(self) -> bytes:
        """The query, without its question mark."""
        return self.head.query

    @property
    def repeated(self) -> Sequence[bytes]:
        """The names of headers that occur more than once."""
        return self.head.repeated

    # --- responding -------------------------------------------------------------------------------

    def respond(self, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
        """Send a whole response."""
        self._writer.respond(self, status, (*headers, *self.extra_headers) if self.extra_headers else headers, body)

    def refuse(
        self,
        status: int,
        reason: str,
        *headers: tuple[bytes, bytes],
        code: int = -32600,
        kind: str = "invalid_request",
        request_id: RequestId | None = None,
    ) -> None:
        """Send an error response with a JSON-RPC error as its body. The error has no id unless `request_id` is
        given."""
        data: dict[str, Any] = {"kind": kind}
        if (seconds := dict(headers).get(b"retry-after")) is not None:
            data["retryAfterMs"] = int(seconds) * 1000
        self.refuse_with_error(status, ProtocolError.rebuilt(reason, code, data), *headers, request_id=request_id)

    def refuse_with_error(
        self, status: int, error: ProtocolError, *headers: tuple[bytes, bytes], request_id: RequestId | None = None
    ) -> None:
        """Send an error response whose body is the given error, with the code that the client's profile has for it. A
        response that means overload says when to repeat the request."""
        data: Any = error.data
        if status in _OVERLOADED and not any(name == b"retry-after" for name, _ in headers):
            headers = (*headers, _RETRY_SOON)
            data = cast("Any", {**data, "retryAfterMs": 1000} if isinstance(data, dict) else data)
        code = error.refusal_code if isinstance(error, Refusal) else error.code
        profile = self._writer.profile_of(self)
        if profile is not None and profile.founding_codes:
            code = founding_code(data, code)
        error_object = {"code": code, "message": error.message, "data": add_refusal(code, data)}
        identified = {} if request_id is None else {"id": request_id}
        self._writer.on_refused(self, status, kind_of(data) or "")
        self.respond(
            status, codec.to_json({"jsonrpc": "2.0", **identified, "error": error_object}), JSON_CONTENT_TYPE, *headers
        )

    def refuse_method(self, allowed: bytes) -> None:
        """Respond 405 with the methods that are allowed."""
        self.refuse(405, f"method not allowed: use {allowed.decode()}", (b"allow", allowed))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Continue to handle this request in a coroutine, from a callback that cannot wait for it."""
        self._writer.run(self, work)

    @property
    def is_open(self) -> bool:
        """Whether a response can still reach the peer."""
        return self._writer.is_open(self)

    def detach(self) -> DetachedTransport:
        """Give up the open connection of this request, for another protocol."""
        return self._writer.detach(self)

    # --- streaming --------------------------------------------------------------------------------

    async def begin_stream(self) -> None:
        """Start the response with the headers of an event stream."""
        await self.begin_response(200, _SSE_HEADERS)

    async def begin_response(self, status: int, headers: Headers) -> None:
        """Start a response whose body follows in chunks."""
        await self._writer.begin(self, status, (*headers, *self.extra_headers))

    async def write(self, data: bytes) -> None:
        """Write a chunk of a stream, waiting while the peer reads too slowly."""
        await self._writer.write(self, data)

    @property
    def write_nowait(self) -> Callable[[bytes], bool]:
        """A function that writes a chunk of a stream at once; it returns False if the peer reads too slowly, or the
        source has to wait."""
        return partial(self._writer.write_nowait, self)

    async def end_stream(self) -> None:
        """End a stream."""
        await self._writer.end(self)

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of a stream that were written but not acknowledged by the process that forwards them to the client.
        Always 0 for a direct connection, where TCP acknowledgements are invisible."""
        return 0

    # --- the peer ---------------------------------------------------------------------------------

    def when_disconnected(self, callback: Callable[[], object]) -> None:
        """Call a callback when the peer disconnects before the response is complete; at once if it already has."""
        if self.disconnected:
            callback()
        else:
            self.on_disconnect = callback
            self._writer.watch_disconnect(self)

    def set_disconnected(self) -> None:
        """Note that the peer has disconnected. The source calls this, at most once."""
        self.disconnected = True
        callback, self.on_disconnect = self.on_disconnect, None
        if callback is not None:
            callback()

    def when_half_closed(self, callback: Callable[[], object]) -> None:
        """Call a callback once the peer has closed its sending side: it may be gone, or still be reading. Only a later
        write tells which. ASGI does not report it."""
        self._writer.watch_half_close(self, callback)

    @property
    def peer(self) -> str:
        """The client's address and port; empty if unknown."""
        return format_host_port(*self.client) if self.client else ""

    @property
    def client_host(self) -> str:
        """The client's address without its port; behind a trusted proxy, the address that the proxy reports."""
        return self.client[0] if self.client else ""

    async def read_body(self, limit: int) -> bytes:
        """Return the whole body. Raise `BodyTooLarge` as soon as it exceeds the limit, and `Disconnected`."""
        if self.body is None:
            self.body = await self._writer.read_body(self, limit)
        elif len(self.body) > limit:
            raise BodyTooLarge
        return self.body


_detached: set[asyncio.Task[None]] = set()


def run_detached(work: Coroutine[Any, Any, None]) -> None:
    """Run the end of a handling whose peer has left: it writes nothing, and frees what it holds."""
    task = asyncio.get_running_loop().create_task(work)
    _detached.add(task)
    task.add_done_callback(_detached.discard)


class HeaderView(Mapping[str, str]):
    """Read-only mapping of a request's headers as text, with case-insensitive names."""

    __slots__ = ("_found", "_raw")

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self._raw = raw
        self._found: dict[str, str] = {}  # by the names that were asked for

    def __getitem__(self, name: str) -> str:
        return self._raw[_encode_header_name(name)].decode("latin-1")

    def get(self, name: str, default: Any = None) -> Any:
        """Return a header, or `default` if it is absent."""
        found = self._found.get(name)
        if found is None:
            raw = self._raw.get(_encode_header_name(name))
            if raw is None:
                return default
            found = self._found[name] = raw.decode("latin-1")
        return found

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


@lru_cache(256)
def _encode_header_name(name: str) -> bytes:
    """Return a header name in the form ASGI uses."""
    return name.lower().encode("latin-1")
