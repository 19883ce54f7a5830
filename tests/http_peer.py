"""A raw HTTP client for messages that the package's own client never sends."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from tests.limits import PATIENCE

from trunkline.wire.sse import SseDecoder


class HttpPeer:
    """A client of an HTTP session that writes each message itself."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._headers = {"accept": "application/json, text/event-stream"}
        self._ids = iter(range(1, 1000))
        self._last: str | None = None  # id of the last event received

    async def open(self, capabilities: Mapping[str, Any] | None = None) -> None:
        client = {"name": "by hand", "version": "1"}
        info = {"protocolVersion": "2025-11-25", "capabilities": capabilities or {}, "clientInfo": client}
        async with self._post("initialize", info, id=next(self._ids)) as response:
            self._headers["mcp-session-id"] = response.headers["mcp-session-id"]
        async with self._post("notifications/initialized", {}) as response:
            assert response.status == 202

    def _post(self, method: str, params: Any, **more: Any) -> Any:
        message = {"jsonrpc": "2.0", "method": method, "params": params, **more}
        return self._http.post(self._url, json=message, headers=self._headers)

    async def ask(self, method: str, params: Any) -> Any:
        async with self._post(method, params, id=next(self._ids)) as response:
            return await response.json()

    async def result(self, method: str, params: Any) -> Any:
        return (await self.ask(method, params))["result"]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[AsyncIterator[Any]]:
        """Open the GET stream, resumed after the last event received."""
        last = {} if self._last is None else {"last-event-id": self._last}
        async with self._http.get(self._url, headers=self._headers | last) as response:
            yield self._said(response)

    async def _said(self, response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
        decoder = SseDecoder(1 << 20)
        async with asyncio.timeout(PATIENCE):
            async for data in response.content.iter_any():
                for event in decoder.feed(data):
                    self._last = event.id or self._last
                    if event.data:
                        yield json.loads(event.data)
