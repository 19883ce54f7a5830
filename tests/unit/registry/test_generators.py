"""Tools that are generators."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from trunkline import Context, Depends, Image, ImageContent, Progress, Server
from trunkline.errors import RegistrationError
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
async def test_what_is_yielded_is_content_in_order_and_progress_is_reported(function: Any, options: Any) -> None:
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


async def test_a_generator_that_yields_nothing_gives_no_content() -> None:
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


async def test_a_generator_that_is_cancelled_cleans_up() -> None:
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


def test_a_generator_with_dependencies_is_refused() -> None:
    def needing(value: Annotated[int, Depends(lambda: 1)]) -> Iterator[int]:
        yield value

    with pytest.raises(RegistrationError, match="a generator cannot have dependencies"):
        Server("generators").add_tool(needing)
