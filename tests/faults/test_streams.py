"""A stream that breaks off, at any byte: nothing is lost or repeated silently.

Where streams are resumable, the client resumes. In the modern era they are not: there the client repeats idempotent
calls, and the caller of any other one learns that its outcome is unknown.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.faults.proxy import Proxy, proxied
from tests.limits import PATIENCE

from trunkline import Client, Context, Server, Settings, ToolAnnotations
from trunkline.errors import OutcomeUnknown
from trunkline.transports.addresses import parse_address

QUICK = Settings(stream_retry=0.001, backoff_first=0.001, drain_timeout=0.5, stop_timeout=0.5, stream_keepalive=5.0)
STEPS = [1.0, 2.0]
CALL = b"tools/call"


class CountingSetup:
    """A server behind a proxy, its client, and the recorded effects."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.heard: list[Any] = []  # progress and log messages
        self.server = Server("counting", settings=QUICK)
        self.proxy: Proxy
        self.client: Client

        async def count(number: int, ctx: Context) -> int:
            """Report every step."""
            self.ran.append(number)
            for step in STEPS:
                await ctx.progress(step)
                await asyncio.sleep(0)
            await ctx.info(f"{number} is done")  # a client would drop duplicate progress, but not this
            return number

        self.server.add_tool(count)
        self.server.add_tool(count, name="look", annotations=ToolAnnotations(read_only_hint=True))

    async def call(self, number: int, tool: str = "count") -> tuple[Any, list[Any]]:
        """Return the result of a call and the messages before it."""
        self.heard.clear()
        result = await self.client.call_tool(
            tool, {"number": number}, timeout=PATIENCE, on_progress=lambda told: self.heard.append(told.progress)
        )
        return result.data, self.heard


@asynccontextmanager
async def counted(revision: str) -> AsyncIterator[CountingSetup]:
    made = CountingSetup()
    listener = await made.server.listen("http://127.0.0.1:0/mcp")
    try:
        async with AsyncExitStack() as stack:
            made.proxy = await stack.enter_async_context(proxied(parse_address(listener.address).port))
            url = f"http://127.0.0.1:{made.proxy.port}/mcp"
            made.client = await stack.enter_async_context(
                Client(url, revision=revision, settings=QUICK, on_log=lambda told: made.heard.append(told.data))
            )
            yield made
    finally:
        await made.server.aclose()


def expected(number: int) -> tuple[int, list[Any]]:
    return number, [*STEPS, f"{number} is done"]


async def length_of_an_answer(it: CountingSetup) -> int:
    """The length of the response to one call, in bytes."""
    it.proxy.measure(CALL)
    assert await it.call(0) == expected(0)
    return it.proxy.answered


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_response_cut_at_any_byte_is_resumed_without_loss(reset: bool) -> None:
    async with counted("2025-11-25") as it:
        size = await length_of_an_answer(it)
        assert size > 300
        offsets = range(1, size, 7 if reset else 1)
        unknown: list[int] = []
        for after in offsets:
            it.proxy.cut(CALL, after=after, reset=reset)
            try:
                assert await it.call(after) == expected(after), f"cut after {after} of {size} bytes"
            except OutcomeUnknown:
                unknown.append(after)  # before the first event there is no position to resume from
            assert it.ran.count(after) == 1, f"cut after {after} of {size} bytes"
        assert unknown == list(offsets[: len(unknown)])
        assert max(unknown, default=0) < size // 2


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_without_resumption_only_read_only_calls_repeat(reset: bool) -> None:
    async with counted("2026-07-28") as it:
        await it.client.set_log_level("info")
        size = await length_of_an_answer(it)
        assert size > 300
        for after in range(1, size, 7 if reset else 1):
            done, looked = 1000 + after, 2000 + after  # whose responses are longer than the measured one
            it.proxy.cut(CALL, after=after, reset=reset)
            with pytest.raises(OutcomeUnknown, match="count"):
                await it.call(done)
            told = list(it.heard)
            assert told == expected(done)[1][: len(told)], f"cut after {after} of {size} bytes"

            it.proxy.cut(CALL, after=after, reset=reset)
            number, heard = await it.call(looked, "look")
            lost, whole = heard[: -len(STEPS) - 1], heard[-len(STEPS) - 1 :]
            assert (number, whole) == expected(looked), f"cut after {after} of {size} bytes"
            assert lost == whole[: len(lost)], "of the first run, as far as it was heard"
            assert (it.ran.count(done), it.ran.count(looked)) == (1, 2), f"cut after {after} of {size} bytes"
        assert reset or told == expected(done)[1]
        assert await it.call(0) == expected(0)
