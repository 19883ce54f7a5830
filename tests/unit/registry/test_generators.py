"""Tools that are generators."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from tests.limits import PATIENCE

from trunkline import Context, Depends, Image, ImageContent, Progress, Server
from trunkline.testing import RawPeer

PNG = b"\x89PNG\r\n\x1a\n..."


async def counting(limit: int) -> AsyncIterator[Any]:
    for number in range(limit):
        yield Progress(number + 1, limit, f"step {number}")
        yield number
    yield Image(PNG)


def plain(limit: int) -> Iterator[Any]:
    for number in range(limit):
        yield Progress(number + 1, limit, f"step {number}")
        yield number
    yield Image(PNG)


async def with_context(limit: int, ctx: Context) -> AsyncIterator[Any]:
    assert isinstance(ctx, Context)
    async for item in counting(limit):
        yield item


def plain_with_context(ctx: Context, limit: int) -> Iterator[Any]:
    assert isinstance(ctx, Context)
    yield from plain(limit)


@pytest.mark.parametrize(
    ("function", "options"),
    [(counting, {}), (plain, {}), (plain, {"thread": False}), (with_context, {}), (plain_with_context, {})],
)
async def test_yielded_values_are_content_in_order(function: Any, options: Any) -> None:
    server = Server("generators")
    server.add_tool(function, name="it", **options)
    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "it", "arguments": {"limit": 2}, "_meta": {"progressToken": "p"}})
        told = [(await peer.receive())["params"] for _ in range(2)]
        result = (await peer.answer_to(call))["result"]

    assert [(t["progress"], t["total"], t["message"]) for t in told] == [(1, 2, "step 0"), (2, 2, "step 1")]
    assert [block.get("text", block.get("mimeType")) for block in result["content"]] == ["0", "1", "image/png"]
    assert "structuredContent" not in result


async def test_empty_generator_has_no_content() -> None:
    def nothing() -> Iterator[ImageContent]:
        yield from ()

    server = Server("generators")
    server.add_tool(nothing)
    async with RawPeer(server) as peer:
        await peer.initialize()
        (tool,) = (await peer.result("tools/list"))["tools"]
        result = await peer.result("tools/call", {"name": "nothing"})

    assert "outputSchema" not in tool
    assert result == {"content": [], "isError": False}


async def test_cancelled_generator_cleans_up() -> None:
    began, closed = asyncio.Event(), asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            began.set()
            await asyncio.Event().wait()
            yield 1
        finally:
            closed.set()

    server = Server("generators")
    server.add_tool(endless)
    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "endless"})
        await began.wait()
        peer.notify("notifications/cancelled", {"requestId": call})
        await closed.wait()


async def test_sync_generator_stops_at_next_piece_when_cancelled() -> None:
    loop, began, closed = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    go = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                loop.call_soon_threadsafe(began.set)
                go.wait(PATIENCE)
                yield 1
        finally:
            loop.call_soon_threadsafe(closed.set)

    server = Server("generators")
    server.add_tool(endless)
    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "endless"})
        await began.wait()
        peer.notify("notifications/cancelled", {"requestId": call})
        await peer.quiet()
        go.set()
        await closed.wait()


# --- with dependencies -----------------------------------------------------------------------------------------


class Recorder:
    """A dependency of either kind, and the order of events."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    async def pool(self) -> AsyncIterator[str]:
        self.steps.append("pool opened")
        yield "pool"
        self.steps.append("pool closed")

    def cursor(self) -> Iterator[str]:
        self.steps.append("cursor opened")
        yield "cursor"
        self.steps.append("cursor closed")


def needing(recorder: Recorder, *, plain: bool, context: bool) -> Any:
    """A generator that needs both kinds, and may take the context too."""
    pool, cursor = Annotated[str, Depends(recorder.pool)], Annotated[str, Depends(recorder.cursor)]

    def pieces(limit: int, given: tuple[str, ...], ctx: Context | None) -> Iterator[Any]:
        assert given == ("pool", "cursor")
        assert isinstance(ctx, Context) is context
        for number in range(limit):
            yield Progress(number + 1)
            recorder.steps.append(f"piece {number}")
            yield number

    async def tool(limit: int, a: pool, b: cursor) -> AsyncIterator[Any]:
        for piece in pieces(limit, (a, b), None):
            yield piece

    async def tool_with_context(limit: int, a: pool, ctx: Context, b: cursor) -> AsyncIterator[Any]:
        for piece in pieces(limit, (a, b), ctx):
            yield piece

    def plain_tool(limit: int, a: pool, b: cursor) -> Iterator[Any]:
        yield from pieces(limit, (a, b), None)

    def plain_tool_with_context(ctx: Context, limit: int, a: pool, b: cursor) -> Iterator[Any]:
        yield from pieces(limit, (a, b), ctx)

    if plain:
        return plain_tool_with_context if context else plain_tool
    return tool_with_context if context else tool


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize(("plain", "thread"), [(False, None), (True, None), (True, False)])
async def test_dependencies_stay_open_until_last_piece(plain: bool, thread: bool | None, context: bool) -> None:
    recorder, server = Recorder(), Server("generators")
    server.add_tool(needing(recorder, plain=plain, context=context), name="it", thread=thread)
    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "it", "arguments": {"limit": 2}, "_meta": {"progressToken": 1}})
        told = [(await peer.receive())["params"]["progress"] for _ in range(2)]
        result = (await peer.answer_to(call))["result"]
    assert told == [1, 2]
    assert [block["text"] for block in result["content"]] == ["0", "1"]
    opened, pieces, closed = recorder.steps[:2], recorder.steps[2:-2], recorder.steps[-2:]
    assert opened == ["pool opened", "cursor opened"]
    assert pieces == ["piece 0", "piece 1"]
    assert closed == ["cursor closed", "pool closed"]


async def test_failed_generator_closes_before_dependencies() -> None:
    steps: list[str] = []

    async def pool() -> AsyncIterator[str]:
        try:
            yield "pool"
        finally:
            steps.append("pool closed")

    async def it(a: Annotated[str, Depends(pool)]) -> AsyncIterator[Any]:
        try:
            yield Progress("nonsense")  # type: ignore[arg-type]
        finally:
            steps.append("generator closed")

    server = Server("generators", observers=[])
    server.add_tool(it)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "it"}))["isError"]
    assert steps == ["generator closed", "pool closed"]


async def test_cancellation_tears_down_dependencies() -> None:
    steps: list[str] = []
    began, closed = asyncio.Event(), asyncio.Event()

    async def pool() -> AsyncIterator[str]:
        try:
            yield "pool"
        finally:
            steps.append("pool closed")
            closed.set()

    async def endless(a: Annotated[str, Depends(pool)]) -> AsyncIterator[str]:
        try:
            yield a
            began.set()
            await asyncio.Event().wait()
        finally:
            steps.append("generator closed")

    server = Server("generators")
    server.add_tool(endless)
    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "endless"})
        await began.wait()
        peer.notify("notifications/cancelled", {"requestId": call})
        await closed.wait()
    assert steps == ["generator closed", "pool closed"]
