"""Plain functions as tasks: on a thread, which reports, stores and requests input, and notices its cancellation."""

import asyncio
import threading
from typing import Any

import pytest
from tests.unit.server.tasks.test_recovery import LEASE, RecoverySetup

from trunkline import Context, Server, TaskPolicy
from trunkline.testing import RawPeer

OVER_SOON = 10.0  # seconds before a thread that waits is a failure


async def start(peer: RawPeer, name: str, **more: Any) -> dict[str, str]:
    await peer.initialize()
    return {"taskId": (await peer.result("tools/call", {"name": name, "task": {}, **more}))["task"]["taskId"]}


@pytest.mark.row("TSK-17")
async def test_plain_function_sees_cancellation() -> None:
    server, begun, seen = Server("s", observers=[]), threading.Event(), threading.Event()

    @server.tool(task=True)
    def work(ctx: Context) -> str:
        begun.set()
        while not ctx.cancelled:
            begun.wait(0.001)
        seen.set()
        return "too late"

    async with RawPeer(server) as peer:
        task = await start(peer, "work")
        await asyncio.to_thread(begun.wait, OVER_SOON)
        assert (await peer.result("tasks/cancel", task))["status"] == "cancelled"
        assert await asyncio.to_thread(seen.wait, OVER_SOON)
        await peer.quiet()
        assert (await peer.result("tasks/get", task))["status"] == "cancelled"


@pytest.mark.parametrize("asks", ["checkpoint", "elicit"])
async def test_cancelled_plain_function_stops_where_it_waits(asks: str) -> None:
    server, begun, raised = Server("s", observers=[]), threading.Event(), list[BaseException]()
    cancelled, over = threading.Event(), threading.Event()

    @server.tool(task=True)
    def work(ctx: Context) -> None:
        begun.set()
        cancelled.wait(OVER_SOON)
        try:
            if asks == "checkpoint":
                ctx.wait(ctx.checkpoint("late"))
            else:
                ctx.wait(ctx.elicit("?", {"type": "object", "properties": {}}))
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            over.set()

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        task = {"taskId": (await peer.result("tools/call", {"name": "work", "task": {}}))["task"]["taskId"]}
        await asyncio.to_thread(begun.wait, OVER_SOON)
        await peer.result("tasks/cancel", task)
        cancelled.set()
        assert await asyncio.to_thread(over.wait, OVER_SOON)
        assert type(raised[0]).__name__ == "CancelledError"
        assert (await peer.result("tasks/get", task))["status"] == "cancelled"


@pytest.mark.row("TSK-23")
async def test_progress_from_a_thread_is_ordered_and_precedes_the_end() -> None:
    server = Server("s", observers=[])

    @server.tool(task=True)
    def counts(ctx: Context) -> None:
        for step in (1, 2, 3):
            ctx.progress(step, 3)

    async with RawPeer(server) as peer:
        task = await start(peer, "counts", _meta={"progressToken": "t"})
        await peer.result("tasks/result", task)
        said = [message["params"] for message in await peer.quiet()]
        assert [params["progress"] for params in said if "progress" in params] == [1, 2, 3]
        assert said[-1]["status"] == "completed"


async def test_plain_function_resumes_from_its_checkpoint() -> None:
    scene, begun, stop = RecoverySetup(), threading.Event(), threading.Event()

    def work(ctx: Context) -> str:
        if ctx.resumed_from is None:
            ctx.wait(ctx.checkpoint({"page": 3}))
            begun.set()
            stop.wait(OVER_SOON)
        return f"from {ctx.resumed_from}"

    policy = TaskPolicy(recovery="resume")
    server = scene.server(work, task=policy)
    async with RawPeer(server) as peer:
        task = await start(peer, "work")
        await asyncio.to_thread(begun.wait, OVER_SOON)
    stop.set()
    await server.aclose()
    async with RawPeer(scene.server(work, task=policy)) as peer:
        await peer.initialize()
        await scene.time_passes(peer, LEASE + 1)
        result = await peer.result("tasks/result", task)
        assert result["structuredContent"] == {"result": "from {'page': 3}"}
