"""ASGI application around a server, for any ASGI server and framework.

The application can be mounted under any path. It starts the server with the first request, so a lifespan is optional:
where the ASGI server sends lifespan events, the shutdown event closes the application; otherwise the owner may call
`aclose`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from trunkline.transports.http.app import CheckRate, HttpApp
from trunkline.transports.http.authenticator import Authenticator
from trunkline.transports.http.forwarding.outbound import Relay
from trunkline.transports.http.health import Health
from trunkline.transports.http.request import (
    UNIX_CLIENT,
    BodyTooLarge,
    DetachedTransport,
    Disconnected,
    Handling,
    Headers,
    HttpHead,
    HttpRequest,
    Receive,
    Scope,
    Send,
    run_detached,
)
from trunkline.transports.http.routes import RouteFinder
from trunkline.transports.http.session.backend import SessionBackend
from trunkline.transports.http.shutdown_signal import on_shutdown_signal
from trunkline.transports.listener_limits import ListenerGuard

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["App"]

_NO_CONTENT: Final = 204


class App:
    """ASGI application."""

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
        check_rate: CheckRate | None = None,
        routes: RouteFinder | None = None,
    ) -> None:
        """Create the application; nothing is opened before the first request.

        `start` prepares the server for the running loop and may be called repeatedly; `stop` ends it. `close_listeners`
        ends the `subscriptions/listen` requests of the server. Without an authenticator every request is admitted,
        without a principal. `session_backend` and `relay` return the backend of durable sessions and the relay to other
        processes, once the server has started. `health` answers `/livez` and `/readyz`, `check_rate`
        limits the rate of requests, `routes` finds the custom routes.
        """
        self._start = start
        self._stop = stop
        self._close_listeners = close_listeners
        self._session_backend = session_backend
        self._relay = relay
        self._health = health
        self._check_rate = check_rate
        self._routes = routes
        self._path = path
        self._authenticator = authenticator
        self._state: HttpApp | None = None
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
            exchange = AsgiExchange(receive, send, state)
            request = make_request(exchange, scope, method=scope["method"])
            await exchange.serve(request, state.handle(request))
        elif kind == "websocket":
            await state.handle_websocket(make_request(_NO_WRITER, scope, method="GET"), scope, receive, send)
        else:
            raise NotImplementedError(f"this application does not serve {kind}")

    async def _ensure_state(self) -> "HttpApp":
        guard, loop = await self._start(), asyncio.get_running_loop()
        if self._state is None or self._loop is not loop:  # a concurrent request may have created it
            self._state = HttpApp(
                guard,
                self._path,
                self._authenticator,
                close_listeners=self._close_listeners,
                session_backend=self._session_backend(),
                relay=self._relay(),
                health=self._health,
                check_rate=self._check_rate,
                routes=self._routes,
            )
            self._loop = loop
        return self._state

    @property
    def state(self) -> "HttpApp | None":
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


class AsgiExchange:
    """One HTTP request of an ASGI server; the source of the request.

    It keeps no reference to the request, which refers to it: both are freed without the garbage collector.
    """

    __slots__ = ("_app", "_begun", "_over", "_receive", "_response", "_send", "_wake", "_watcher", "_work")

    def __init__(self, receive: Receive, send: Send, app: HttpApp | None = None) -> None:
        self._app = app  # that handles the request
        self._receive = receive
        self._send = send
        self._response: tuple[int, Headers, bytes] | None = None  # a whole response, not sent yet
        self._work: list[Coroutine[Any, Any, None]] = []
        self._begun = False  # the response has begun
        self._over = False  # nothing waits for the response any more
        self._wake: asyncio.Future[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def serve(self, request: HttpRequest, handling: Handling) -> None:
        """Wait until the request is answered, and send the response."""
        try:
            if handling is not None:
                await handling
            while not self._begun:
                if self._response is not None:
                    await self._send_response(request.method, *self._response)
                elif self._work:
                    await self._work.pop(0)
                elif request.disconnected:
                    return
                else:
                    self._wake = asyncio.get_running_loop().create_future()
                    await self._wake
        except asyncio.CancelledError:
            if not request.disconnected:
                request.set_disconnected()
            raise
        finally:
            self._over = True
            if self._watcher is not None:
                await cancel_and_wait(self._watcher)

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _send_response(self, method: str, status: int, headers: Headers, body: bytes) -> None:
        self._begun = True
        all_headers = [*headers, (b"content-length", b"%d" % len(body))] if status != _NO_CONTENT else [*headers]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})
        await self._send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    # --- the source of the request ------------------------------------------------------------------

    def respond(self, request: HttpRequest, status: int, headers: Headers, body: bytes) -> None:  # noqa: ARG002
        """Keep a whole response for `serve`, which sends it."""
        if not self._begun:
            self._response = (status, headers, body)
            self._wake_up()

    def run(self, request: HttpRequest, work: Coroutine[Any, Any, None]) -> None:  # noqa: ARG002
        """Keep a coroutine for `serve`, which runs it."""
        if self._over:
            run_detached(work)
        else:
            self._work.append(work)
            self._wake_up()

    def profile_of(self, request: HttpRequest) -> "Profile | None":
        """Return the compatibility profile of the client that sent a request, if it has one."""
        return None if self._app is None else self._app.profile_of(request)

    def on_refused(self, request: HttpRequest, status: int, kind: str) -> None:
        """Report the refusal of a request to observers."""
        if self._app is not None:
            self._app.on_refused(request, status, kind)

    async def begin(self, request: HttpRequest, status: int, headers: Headers) -> None:  # noqa: ARG002
        """Begin a response whose body follows in chunks."""
        self._begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, request: HttpRequest, data: bytes) -> None:  # noqa: ARG002
        """Write a chunk; the ASGI server waits while the peer reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def write_nowait(self, request: HttpRequest, data: bytes) -> bool:  # noqa: ARG002
        """Return False: an ASGI server has to be awaited."""
        return False

    async def end(self, request: HttpRequest) -> None:  # noqa: ARG002
        """End a response that was sent in chunks."""
        await self._send({"type": "http.response.body", "body": b""})

    async def read_body(self, request: HttpRequest, limit: int) -> bytes:
        """Return the whole body. Raise `BodyTooLarge` as soon as it exceeds the limit, and `Disconnected`."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                request.set_disconnected()
                raise Disconnected
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise BodyTooLarge
            if not message.get("more_body"):
                return b"".join((*pieces, piece)) if pieces else piece
            pieces.append(piece)

    def is_open(self, request: HttpRequest) -> bool:
        """Return whether the peer still waits."""
        return not request.disconnected

    def detach(self, request: HttpRequest) -> DetachedTransport:
        """Raise an error: there is no transport to give up."""
        raise NotImplementedError

    def watch_disconnect(self, request: HttpRequest) -> None:
        """Wait for the disconnect event in a task, until the request is answered."""
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch(request))

    async def _watch(self, request: HttpRequest) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        request.set_disconnected()
        self._wake_up()

    def watch_half_close(self, request: HttpRequest, callback: Callable[[], object]) -> None:
        """Do nothing: ASGI does not report it."""


class _NoWriter:
    """Source of a WebSocket handshake, which is answered by events of its own."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"a WebSocket handshake has no {name}")


_NO_WRITER: Any = _NoWriter()


def make_request(writer: Any, scope: Scope, *, method: str) -> HttpRequest:
    """Make the request of an ASGI scope. Repeated headers are joined by commas."""
    fields: list[tuple[bytes, bytes]] = list(scope["headers"])
    headers, repeated = dict(fields), ()
    if len(headers) < len(fields):
        headers, repeated = _join_repeated(fields)
    path: str = scope["path"]
    root: str = scope.get("root_path") or ""
    client, server = scope.get("client", ()), scope.get("server")
    head = HttpHead(
        method,
        path[len(root) :] if root and path.startswith(root) else path,
        headers,
        query=scope.get("query_string", b""),
        repeated=repeated,
    )
    request = HttpRequest(
        writer,
        head,
        scheme=scope.get("scheme", "http"),
        client=UNIX_CLIENT if client is None else (client[0], client[1]) if client else None,
        server=None if server is None else (server[0], server[1]),
    )
    request.root_path, request.scope = root, scope
    return request


def _join_repeated(fields: list[tuple[bytes, bytes]]) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return headers with their values joined, and the names that occur more than once."""
    headers: dict[bytes, bytes] = {}
    repeated: list[bytes] = []
    for name, value in fields:
        if name in headers:
            repeated.append(name)
            headers[name] += b", " + value
        else:
            headers[name] = value
    return headers, repeated


async def cancel_and_wait(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end.

    Awaiting the task itself would raise its error here, and the traceback of that error would keep the request alive
    until the garbage collector runs.
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
