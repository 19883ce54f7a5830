"""A raw HTTP client for sessions of the handshake era that never opens a second session: through all faults of the
server, it continues its session and resumes broken streams. It uses none of our client's code.
"""

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

import aiohttp
from tests.chaos.campaign_log import CampaignLog
from tests.chaos.plan import FIRST_WITH_TASKS, ClientPlan, token_of
from tests.founding import REQUESTED

__all__ = ["Lost", "Session"]

_PAUSE = 0.05  # seconds until the next attempt
_GOOD = {200, 202}
_UNKNOWN = 502
_NOT_NOW = 503
_STANDALONE = 0  # the stream id of messages without a request
_KEPT = 50  # streams of a session, of which servers store 64 by default
_LINE = (aiohttp.ClientError, ConnectionError, TimeoutError)


_BROKEN = object()


class _NotNow(Exception):
    """The request was not started, and may be repeated later."""


class Lost(Exception):
    """The connection was lost, and the response cannot be recovered."""


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """The events of a stream: each id with its message; None if it has none."""
    buffer = b""
    async for data in response.content.iter_any():
        *whole, buffer = (buffer + data).split(b"\n\n")
        for event in whole:
            fields = dict(line.split(b": ", 1) for line in event.splitlines() if b": " in line)
            if b"data" in fields or b"id" in fields:
                told = fields.get(b"data", b"")
                yield fields.get(b"id", b"").decode(), json.loads(told) if told else None


class Session:
    """One session."""

    def __init__(self, url: str, part: ClientPlan, log: CampaignLog, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._part = part
        self._log = log
        self._http = http
        self._ids = count(1)
        self._last: dict[int, int] = {}  # by stream, the number of the last event
        self._heard: dict[int, list[Any]] = defaultdict(list)  # by stream, the messages
        self._session = ""

    # --- requests ----------------------------------------------------------------------------------

    def _headers(self, **more: str) -> dict[str, str]:
        found = {
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {token_of(self._part.name)}",
        }
        if self._session:
            found |= {"mcp-session-id": self._session, "mcp-protocol-version": self._part.revision}
        return found | more

    def _post(self, method: str, params: Any, ident: int | None = None) -> Any:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        if not method.startswith("notifications/"):
            message["id"] = ident or next(self._ids)
        return self._http.post(self._url, json=message, headers=self._headers())

    async def _refused(self, asked: str, response: aiohttp.ClientResponse) -> bool:
        """Return whether the server rejected a request; record it, since few rejections are legitimate."""
        if response.status in _GOOD:
            return False
        self._log.record_rejection(self._part.name, asked, response.status, await response.text())
        return True

    async def open(self) -> None:
        """Open the session; once the server has confirmed it, it stays the only one."""
        client = {"name": self._part.name, "version": "1"}
        capabilities = REQUESTED if self._part.revision >= FIRST_WITH_TASKS else {}  # for their tasks
        params = {"protocolVersion": self._part.revision, "capabilities": capabilities, "clientInfo": client}
        while not self._session:
            try:
                async with self._post("initialize", params) as response:
                    if not await self._refused("initialize", response):
                        said = await response.text()
                        self._session = response.headers.get("mcp-session-id", "")
                        if not self._session:  # the server stopped before its response
                            self._log.record_rejection(self._part.name, "initialize", _NOT_NOW, said)
            except _LINE:
                pass
            await asyncio.sleep(0 if self._session else _PAUSE)
        await self.insist("notifications/initialized", {})

    async def insist(self, method: str, params: Any) -> Any:
        """Return the response to a request that may be repeated as often as necessary."""
        while True:
            try:
                return await self.ask(method, params)
            except Lost:
                await asyncio.sleep(_PAUSE)

    async def ask(
        self,
        method: str,
        params: Any,
        told: Callable[[Any], None] = lambda _: None,
        *,
        cut: int | None = None,
        away: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """Return the response, resuming its stream if necessary; report the messages before it. With `cut` the
        client disconnects after so many events, and stays away until `away` returns. It repeats a request that was
        not started. Raises `Lost`.
        """
        while True:
            reader = _Reader(self._follows, told)
            try:
                answer = await self._ask(method, params, reader, cut)
            except _NotNow:
                await asyncio.sleep(_PAUSE)
                continue
            if answer is _BROKEN:
                if away is not None:
                    await away()
                answer = await self._rest(reader)
            if _interrupted(answer):
                raise Lost
            if not self._put_off(method, answer):
                return answer
            await asyncio.sleep(_PAUSE)

    async def _ask(
        self, method: str, params: Any, reader: "_Reader", cut: int | None = None, ident: int | None = None
    ) -> Any:
        with contextlib.suppress(*_LINE):
            async with self._post(method, params, ident) as response:
                if await self._refused(method, response):
                    raise _NotNow if response.status == _NOT_NOW else Lost
                if response.content_type != "text/event-stream":
                    said = await response.read()
                    return json.loads(said) if said else None
                if (answer := await reader.read(response, cut)) is not None:
                    return answer
        return _BROKEN

    def _put_off(self, asked: str, answer: Any) -> bool:
        """Return whether a response says that the request was not started and may be repeated."""
        error = (answer or {}).get("error") or {}
        if (error.get("data") or {}).get("kind") != "temporarily_unavailable":
            return False
        self._log.record_rejection(self._part.name, asked, _NOT_NOW, str(error))
        return True

    async def cancel(self, method: str, params: Any) -> None:
        """Send a request, and cancel it once it reports that it has begun. Raises `Lost`."""
        begun, ident = asyncio.Event(), next(self._ids)
        reader = _Reader(lambda *_: None, lambda _: begun.set())
        asking = asyncio.ensure_future(self._ask(method, params, reader, ident=ident))
        waiting = asyncio.ensure_future(begun.wait())
        try:
            await asyncio.wait([asking, waiting], return_when=asyncio.FIRST_COMPLETED)
            if not begun.is_set():
                raise Lost
            await self.insist("notifications/cancelled", {"requestId": ident})
        finally:
            asking.cancel()
            waiting.cancel()
            await asyncio.wait([asking, waiting])

    async def _rest(self, reader: "_Reader") -> Any:
        """The response at the end of a stream that broke off."""
        while reader.place:
            with contextlib.suppress(*_LINE):
                async with self._stream(reader.place) as response:
                    if not await self._refused(f"the stream after {reader.place}", response):
                        if (answer := await reader.read(response)) is not None:
                            return answer
                    elif response.status not in {_UNKNOWN, _NOT_NOW}:
                        break
            await asyncio.sleep(_PAUSE)
        raise Lost

    def _stream(self, place: str) -> Any:
        more = {"last-event-id": place} if place else {}
        return self._http.get(self._url, headers=self._headers(**more))

    async def listen(self, told: Callable[[Any], None]) -> None:
        """Read the GET stream for as long as the caller wants."""
        reader = _Reader(self._follows, told)
        while True:
            with contextlib.suppress(*_LINE):
                async with self._stream(reader.place) as response:
                    if not await self._refused(f"the stream after {reader.place!r}", response):
                        await reader.read(response)
            await asyncio.sleep(_PAUSE)

    def _follows(self, place: str, message: Any) -> None:
        """Check that the numbers of a stream's events have no gap and begin with 1: a client without an event has no
        position to resume from, and gets all.
        """
        stream, number = map(int, place.split("-"))
        known = self._last.get(stream, 0)
        if number != known + (message is not None):
            self._log.gaps.append(f"{self._part.name}: {place} came after {stream}-{known}")
        self._last[stream] = number
        if message is not None:
            self._heard[stream].append(message)

    async def read_again(self) -> None:
        """Read the streams of responses again: all events are there, unchanged."""
        for stream in sorted(self._heard.keys() - {_STANDALONE})[-_KEPT:]:
            heard: list[Any] = []
            reader = _Reader(lambda *_: None, heard.append)
            reader.place = f"{stream}-0"
            with contextlib.suppress(Lost):  # as the log has it
                heard.append(await self._rest(reader))
            if heard[: len(self._heard[stream])] != self._heard[stream]:
                self._log.gaps.append(f"{self._part.name}: stream {stream} is {heard}, was {self._heard[stream]}")


def _interrupted(answer: Any) -> bool:
    """Return whether a response says that a shutdown interrupted the request, which is no final outcome."""
    error = (answer or {}).get("error") or {}
    return bool((error.get("data") or {}).get("interrupted"))


class _Reader:
    """One stream, over as many connections as necessary."""

    def __init__(self, seen: Callable[[str, Any], None], told: Callable[[Any], None]) -> None:
        self.place = ""  # the position to resume from
        self._seen = seen
        self._told = told

    async def read(self, response: aiohttp.ClientResponse, most: int | None = None) -> Any:
        """Report the messages of one connection, up to a response; None if there is none, or not among so many."""
        count = 0
        async for place, message in events_of(response):
            self.place = place
            self._seen(place, message)
            if message is not None and ("result" in message or "error" in message):
                return message
            if message is not None:
                self._told(message)
                count += 1
            if count == most:
                break
        return None
