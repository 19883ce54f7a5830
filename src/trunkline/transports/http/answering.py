"""Answering what was posted: by plain JSON if the answer is the first thing that is sent, otherwise by events.

Writing goes at the pace of whoever reads. What it has not read yet is kept for it, up to `unsent_limit`; a peer that
lets more than that pile up has its session ended.
"""

import asyncio
import contextlib
from typing import Any, Final

from trunkline.config import Settings
from trunkline.protocol.revisions import Revision
from trunkline.transports.http.channel import Exchange
from trunkline.transports.http.events import position
from trunkline.transports.http.streams import Stream
from trunkline.transports.http.visits import JSON, Visit
from trunkline.wire import sse

__all__ = ["VERSION", "Answering", "accepts"]

VERSION: Final = b"mcp-protocol-version"
_PRIMED: Final = Revision.V2025_11_25.value.encode()  # since when a stream begins with an event that has no data
_BOTH: Final = "Accept must have application/json and text/event-stream"


class Answering:
    """Writes out what comes of exchanges, and streams."""

    def __init__(self, settings: Settings) -> None:
        self._retry = round(settings.stream_retry * 1000)
        self._keepalive = settings.stream_keepalive

    async def acceptable(self, visit: Visit) -> bool:
        """Whether a peer takes both kinds of answers; it is told if it does not."""
        if accepts(visit.headers.get(b"accept", b""), b"application/json", b"text/event-stream"):
            return True
        await visit.refuse(406, _BOTH, kind="media_type_not_acceptable")
        return False

    async def decide(self, exchange: Exchange) -> None:
        """Waits until it is known how an exchange is answered; by events, if that takes so long that proxies ask."""
        if exchange.ids and not exchange.decided:
            changed = exchange.changed()
            await asyncio.wait([changed], timeout=self._keepalive)
            if not changed.done():
                exchange.open_stream()

    async def answer(self, visit: Visit, exchange: Exchange) -> None:
        """Answers one POST, about which it is decided how."""
        if exchange.stream is not None:
            await self.flow(visit, exchange.stream)
        elif exchange.answer is not None:
            await visit.respond(200 if exchange.ids else 400, exchange.answer, JSON)
        elif exchange.ids:
            await visit.refuse(404, "the session has ended", kind="session_not_found")
        else:
            await visit.respond(202)

    async def flow(self, visit: Visit, stream: Stream, after: int | None = None) -> None:
        """Writes a stream out until it ends, the peer goes, or somebody else reads it."""
        reader = stream.attach(after)
        await visit.begin_stream()
        if visit.headers.get(VERSION, _PRIMED) >= _PRIMED and after is None:
            await visit.go_on(sse.encode(b"", id=position(stream.number, stream.read), retry=self._retry))
        gone = asyncio.ensure_future(visit.hung_up())
        try:
            while stream.reads(reader) and not gone.done():
                if data := stream.take():
                    await visit.go_on(data)
                    stream.written()
                elif stream.ended:
                    break
                else:
                    await self._wait(visit, stream.wake(), gone)
            if not gone.done():
                await visit.end_stream()
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await gone
            if stream.reads(reader):
                stream.detach()

    async def _wait(self, visit: Visit, wake: "asyncio.Future[None]", gone: "asyncio.Future[Any]") -> None:
        """Waits for something to write, and keeps the line awake meanwhile."""
        done, _ = await asyncio.wait([wake, gone], timeout=self._keepalive, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            await visit.go_on(sse.COMMENT)


def accepts(accept: bytes, *kinds: bytes) -> bool:
    """Whether a peer takes all of these media types."""
    return all(kind in accept or b"*/*" in accept or kind.partition(b"/")[0] + b"/*" in accept for kind in kinds)
