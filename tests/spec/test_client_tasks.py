"""Client-side tasks: calls that wait for tasks, task handles, and input requests of servers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Context, PeerError, ProtocolError, Server, Settings, TaskPolicy, ToolError
from trunkline.errors import InputFailed, RequestTimeout, TaskCancelled, ToolFailed
from trunkline.facts import CallStarted, Fact
from trunkline.protocol.types import ProgressParams
from trunkline.stores.memory import MemoryStore
from trunkline.stores.store import Lease, Write
from trunkline.testing import ManualClock

REVISIONS = ["2025-11-25", "2026-07-28"]
QUICK = Settings(task_poll_interval=0.01)


@dataclass
class Sure:
    sure: bool


class TaskServer:
    """A server whose tool runs until the test releases it."""

    immediate = True  # as an observer

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.looked_at = asyncio.Event()  # by a caller that knows that it is a task
        server = self.server = Server("tasks", observers=[self], settings=QUICK, store=store)

        @server.tool(task="required")
        async def work(number: int = 1) -> int:
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return number * 2

        @server.tool(task="required")
        async def asks(ctx: Context) -> str:
            answer = await ctx.elicit("Sure?", Sure)
            return f"{answer.action} {answer.data and answer.data.sure}"

        @server.tool(task="required")
        async def tells(ctx: Context) -> str:
            for step, word in enumerate(("one", "two", "three"), 1):
                ctx.progress(step, 3, word)
                await asyncio.sleep(0)
            await self.go_on.wait()
            ctx.progress(4, 4)
            return "told"

        @server.tool(task="required")
        async def fails() -> str:
            raise ToolError("it is broken")

        @server.tool(task="required")
        async def errs() -> str:
            raise ProtocolError("it went wrong", code=7)

        @server.tool
        async def plain() -> str:
            return "plain"

    def on(self, fact: Fact) -> None:
        """Observe the facts of the server."""
        if isinstance(fact, CallStarted) and fact.method in {"tasks/get", "tasks/result"}:
            self.looked_at.set()


@pytest.fixture(params=REVISIONS)
def revision(request: pytest.FixtureRequest) -> str:
    """Each dialect of tasks."""
    return request.param


async def test_task_call_is_awaited_like_any_other(revision: str) -> None:
    work = TaskServer()
    work.go_on.set()
    async with Client(work.server, revision=revision) as client:
        assert (await client.call_tool("work", {"number": 4})).data == 8
        assert (await client.call_tool("plain")).data == "plain"


@pytest.mark.row("TXE-12")
async def test_input_requests_of_a_task_are_answered(revision: str) -> None:
    asked = list[str]()

    async def say_yes(form: Any) -> dict[str, Any]:
        asked.append(form.message)
        return {"sure": True}

    async with Client(TaskServer().server, revision=revision, elicitation=say_yes) as client:
        assert (await client.call_tool("asks")).data == "accept True"
    assert asked == ["Sure?"]


async def test_task_errors_are_raised_like_those_of_any_call(revision: str) -> None:
    async with Client(TaskServer().server, revision=revision) as client:
        with pytest.raises(ToolFailed, match="it is broken"):
            await client.call_tool("fails")
        assert (await client.call_tool("fails", raise_on_error=False)).is_error
        with pytest.raises(PeerError, match="it went wrong") as caught:
            await client.call_tool("errs")
        assert caught.value.code == 7


@pytest.mark.row("TSK-23", "TXE-13")
async def test_abandoned_call_cancels_its_task(revision: str) -> None:
    work = TaskServer()
    async with Client(work.server, revision=revision) as client:
        calling = asyncio.ensure_future(client.call_tool("work"))
        await work.looked_at.wait()
        calling.cancel()
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)
        with pytest.raises(asyncio.CancelledError):
            await calling


class SlowStore(MemoryStore):
    """A store that delays its first write."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> int:
        self.asked.set()
        await self.go_on.wait()
        return await super().commit(writes, fence=fence, release=release)


@pytest.mark.row("TSK-23", "TXE-13")
async def test_call_abandoned_before_its_task_exists_leaves_none(revision: str) -> None:
    work = TaskServer(store := SlowStore())
    async with Client(work.server, revision=revision) as client:
        calling = asyncio.ensure_future(client.call_tool("work"))
        await store.asked.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        store.go_on.set()
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)


@pytest.mark.row("TSK-23", "TXE-13")
async def test_call_abandoned_at_close_leaves_no_task(revision: str) -> None:
    work = TaskServer()

    async def once() -> None:
        async with Client(work.server, revision=revision) as client:
            await client.call_tool("work")

    async with Client(work.server, revision=revision):  # so that the server continues
        calling = asyncio.ensure_future(once())
        await work.looked_at.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)


@pytest.mark.row("TSK-23")
async def test_progress_of_a_task_reaches_its_caller_until_the_end(revision: str) -> None:
    work, heard, far = TaskServer(), list[ProgressParams](), asyncio.Event()

    async def told(progress: ProgressParams) -> None:
        heard.append(progress)
        if progress.progress == 3:
            far.set()

    async with Client(work.server, revision=revision) as client:
        calling = asyncio.ensure_future(client.call_tool("tells", on_progress=told))
        await asyncio.wait_for(far.wait(), PATIENCE)
        work.go_on.set()
        assert (await calling).data == "told"
    numbers = [progress.progress for progress in heard]
    # With the extension a client polls: reports that follow each other quickly arrive as one.
    assert numbers == ([1, 2, 3, 4] if revision == "2025-11-25" else [3, 4])
    assert [progress.total for progress in heard[-2:]] == [3, 4]
    assert heard[-2].message == "three"


async def test_failing_progress_callback_does_not_affect_the_task(revision: str) -> None:
    work = TaskServer()
    work.go_on.set()

    def told(_: ProgressParams) -> None:
        raise ValueError("not today")

    async with Client(work.server, revision=revision) as client:
        assert (await client.call_tool("tells", on_progress=told)).data == "told"


async def test_task_handle_works_from_another_loop(revision: str) -> None:
    """A host may run its clients on a separate loop."""
    work = TaskServer()
    async with Client(work.server, revision=revision) as client:

        async def elsewhere() -> int:
            task = await client.start_tool("work", {"number": 3})
            assert await task.refresh() == "working"
            client_loop.call_soon_threadsafe(work.go_on.set)
            assert (await client.call_tool("work", {"number": 5}, timeout=10)).data == 10
            return (await task.result(timeout=10)).data

        client_loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(asyncio.run, elsewhere()) == 6


async def test_cancelled_call_from_another_loop_cancels_its_task(revision: str) -> None:
    work = TaskServer()
    async with Client(work.server, revision=revision) as client:

        async def elsewhere() -> None:
            calling = asyncio.create_task(client.call_tool("work"))
            while not work.looked_at.is_set():
                await asyncio.sleep(0.001)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling

        await asyncio.to_thread(asyncio.run, elsewhere())
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)


async def test_timed_out_call_cancels_its_task(revision: str) -> None:
    work, clock = TaskServer(), ManualClock()
    async with Client(work.server, revision=revision, clock=clock) as client:
        calling = asyncio.create_task(client.call_tool("work", timeout=5))
        await work.looked_at.wait()
        while not calling.done():  # the client may set its timer after this turn of the loop
            clock.advance(1)
            await asyncio.sleep(0)
        with pytest.raises(RequestTimeout):
            await calling
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)


async def test_handle_reports_status_and_repeats_its_result(revision: str) -> None:
    work = TaskServer()
    async with Client(work.server, revision=revision) as client:
        task = await client.start_tool("work", {"number": 3}, ttl=60)
        assert task.status == "working"
        assert await task.refresh() == "working"
        with pytest.raises(RequestTimeout):
            await task.result(timeout=0.01)
        work.go_on.set()
        assert (await task.result()).data == 6
        assert task.status == "completed"
        assert (await task.result()).data == 6


async def test_task_is_found_by_id_on_another_connection(revision: str) -> None:
    work = TaskServer()
    async with Client(work.server, revision=revision) as client:
        task = await client.start_tool("work", {"number": 3})
    work.go_on.set()
    async with Client(work.server, revision=revision) as again:
        found = again.task(task.id, name="work", returns=int)
        assert (await found.result(timeout=10)).data == 6


async def test_cancelled_task_has_no_result(revision: str) -> None:
    work = TaskServer()
    async with Client(work.server, revision=revision) as client:
        task = await client.start_tool("work")
        await work.begun.wait()
        await task.cancel()
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)
        assert task.status == "cancelled"
        await task.cancel()  # a terminal status is final
        with pytest.raises(TaskCancelled, match=task.id):
            await task.result()
        with pytest.raises(PeerError, match="no task"):
            await client.task("nothing").cancel()


async def test_handle_of_a_plain_call_has_the_result(revision: str) -> None:
    async with Client(TaskServer().server, revision=revision) as client:
        task = await client.start_tool("plain")
        assert (task.status, await task.refresh()) == ("completed", "completed")
        assert (await task.result()).data == "plain"


async def test_task_without_answer_to_its_input_request_is_cancelled() -> None:
    server, cancelled = Server("s", observers=[], settings=QUICK), asyncio.Event()

    @server.tool(task=TaskPolicy(support="required"))
    async def asks(ctx: Context) -> str:
        try:
            return (await ctx.elicit("Sure?", Sure)).action
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def breaks(_form: Any) -> None:
        raise RuntimeError("no screen")

    async with Client(server, revision="2026-07-28", elicitation=breaks) as client:
        with pytest.raises(InputFailed, match="no screen"):
            await client.call_tool("asks")
        await asyncio.wait_for(cancelled.wait(), PATIENCE)
