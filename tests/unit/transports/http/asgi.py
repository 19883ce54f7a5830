"""An ASGI server in a few lines: one request, its answer, and streams that can be read as they come."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.limits import PATIENCE

from trunkline import Server
from trunkline.clock import Clock, LoopClock
from trunkline.transports.http.asgi import App
from trunkline.transports.http.authenticator import Authenticator, CallbackAuthenticator
from trunkline.transports.http.request import Scope
from trunkline.transports.http.session.endpoint import SessionEndpoint
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.wire.sse import SseDecoder, SseEvent

HEADERS = {"host": "localhost:1", "content-type": "application/json", "accept": "application/json, text/event-stream"}


class Answer:
    """What an application answers to one request."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.largest = 0  # piece of it
        self.ended = False
        self._changed = asyncio.Event()
        self._decoder = SseDecoder(1 << 20)
        self.unread: list[Any] = []
        self.gone = asyncio.Event()  # set: the peer has hung up
        self.reading = asyncio.Event()  # not set: the peer reads nothing more
        self.reading.set()
        self.task: asyncio.Task[None] | None = None

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            data = message.get("body", b"")
            self.body += data
            self.largest = max(self.largest, len(data))
            self.unread += self._decoder.feed(data)
            self.ended = not message.get("more_body", False)
        self._changed.set()
        await self.reading.wait()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def event(self) -> SseEvent:
        """The next event of a stream."""
        async with asyncio.timeout(PATIENCE):
            while not self.unread:
                self._changed.clear()
                await self._changed.wait()
        return self.unread.pop(0)

    async def message(self) -> Any:
        """The next message of a stream; what only tells a position is passed over."""
        while not (event := await self.event()).data:
            pass
        return json.loads(event.data)

    async def finished(self) -> "Answer":
        """Waits until the application is done with the request."""
        assert self.task is not None
        async with asyncio.timeout(PATIENCE):
            await self.task
        return self


class Host:
    """An application, and what is asked of it."""

    def __init__(
        self, server: Server, *, clock: Clock | None = None, path: str = "/", gate: Authenticator | None = None
    ) -> None:
        self.server = server
        self.principal: Any = None
        self._clock = clock
        self.app = App(
            self._start, server.aclose, path=path, authenticator=gate or CallbackAuthenticator(lambda _: self.principal)
        )

    async def _start(self) -> ListenerGuard:
        await self.server.start()
        return ListenerGuard(
            self.server.connect,
            self.server.settings,
            self._clock or LoopClock(asyncio.get_running_loop()),
            profile=self.server.profile,
        )

    @property
    def endpoint(self) -> SessionEndpoint:
        assert self.app.state is not None
        assert isinstance(self.app.state.handshake, SessionEndpoint)
        return self.app.state.handshake

    def begin(
        self, method: str, body: Any = None, *, path: str = "/", pieces: list[bytes] | None = None, **headers: Any
    ) -> Answer:
        """Asks, and gives the answer as it comes. A header that is None is left out, one that is a tuple said often."""
        given = HEADERS | {name.replace("_", "-"): value for name, value in headers.items()}
        path, _, query = path.partition("?")
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "root_path": "",
            "server": ("127.0.0.1", 1),
            "client": ("127.0.0.1", 5),
            "headers": [(n.encode(), v.encode()) for n, value in given.items() for v in _each(value)],
        }
        whole = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        waiting = [whole] if pieces is None else list(pieces)
        answer = Answer()

        async def receive() -> dict[str, Any]:
            if waiting:
                piece = waiting.pop(0)
                return {"type": "http.request", "body": piece, "more_body": pieces is not None}
            await answer.gone.wait()
            return {"type": "http.disconnect"}

        answer.task = asyncio.get_running_loop().create_task(self.app(scope, receive, answer.send))
        return answer

    async def ask(self, method: str, body: Any = None, **options: Any) -> Answer:
        """Asks, and gives the whole answer."""
        return await self.begin(method, body, **options).finished()

    async def session(self, revision: str = "2025-11-25", capabilities: Any = None) -> str:
        """Opens a session, and uses it once."""
        params = {
            "protocolVersion": revision,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "asgi", "version": "1"},
        }
        answer = await self.ask("POST", request("initialize", params, id=0))
        assert answer.status == 200, answer.body
        ident = answer.headers["mcp-session-id"]
        told = await self.ask("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, mcp_session_id=ident)
        assert (told.status, told.body) == (202, b"")
        used = await self.ask("POST", request("ping", id="used"), mcp_session_id=ident)
        assert used.status == 200, used.body
        return ident


def _each(value: Any) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def request(method: str, params: Any = None, *, id: Any = 1) -> dict[str, Any]:
    """A request."""
    return {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})


def call(name: str, *, id: Any = 1, token: Any = None, **arguments: Any) -> dict[str, Any]:
    """A call of a tool."""
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    return request("tools/call", params | ({} if token is None else {"_meta": {"progressToken": token}}), id=id)


@asynccontextmanager
async def hosted(server: Server, **options: Any) -> AsyncIterator[Host]:
    """A server behind its application."""
    host = Host(server, **options)
    try:
        yield host
    finally:
        await host.app.aclose()
