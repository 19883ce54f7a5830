"""An ASGI application around a server: Streamable HTTP at one path, HTTP+SSE and WebSocket beside it.

It runs under any ASGI server and can be mounted anywhere. Nothing has to be entered before the first request; whoever
has a lifespan lets it end the application, whoever has none may call `aclose`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from trunkline.transports.http.streamable import Endpoint
from trunkline.transports.http.visits import Receive, Scope, Send, Visit

__all__ = ["App"]

Handler = Callable[[Visit], Awaitable[None]]


class App:
    """Answers HTTP requests by their path."""

    def __init__(
        self,
        start: Callable[[], Awaitable[Endpoint]],
        stop: Callable[[], Awaitable[None]],
        *,
        path: str = "/",
    ) -> None:
        """`start` readies the server for the running loop, as often as it is asked; `stop` ends it."""
        self._start = start
        self._stop = stop
        self._path = "/" + path.strip("/")
        self._endpoint: Endpoint | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers what comes in; ASGI's way in."""
        match scope["type"]:
            case "http":
                endpoint = self._endpoint
                if endpoint is None or self._loop is not asyncio.get_running_loop():
                    endpoint = await self._ready()
                visit = Visit(scope, receive, send)
                if _route(scope) == self._path:
                    await endpoint.handle(visit)
                else:
                    await visit.respond(404)
            case "lifespan":
                await self._live(receive, send)
            case kind:
                raise NotImplementedError(f"this application does not serve {kind}")

    async def _ready(self) -> Endpoint:
        self._endpoint = await self._start()
        self._loop = asyncio.get_running_loop()
        return self._endpoint

    async def _live(self, receive: Receive, send: Send) -> None:
        """Starts and stops with the ASGI server."""
        while True:
            message: Any = await receive()
            step = message["type"].rpartition(".")[2]
            try:
                await (self._ready() if step == "startup" else self.aclose())
            except Exception as error:  # noqa: BLE001 - told to whoever runs us
                await send({"type": f"lifespan.{step}.failed", "message": str(error)})
                return
            await send({"type": f"lifespan.{step}.complete"})
            if step == "shutdown":
                return

    async def aclose(self) -> None:
        """Ends every session in good order. The application can be used again."""
        self._endpoint = self._loop = None
        await self._stop()


def _route(scope: Scope) -> str:
    """The path within the application, wherever it is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :]
    return path.rstrip("/") or "/"
