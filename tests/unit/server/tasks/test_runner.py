"""One run of a task: its writes, and its input requests."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.contract.connections import turns, until
from tests.limits import PATIENCE

from trunkline import Context, Server, Settings
from trunkline.errors import RequestTimeout, StoreUnavailable
from trunkline.server.input.ask import ClientLacksCapability
from trunkline.stores.memory import MemoryStore
from trunkline.stores.store import Held, Item, Lease, Write
from trunkline.testing import FaultyStore, ManualClock, RawPeer


class UnreliableStore(MemoryStore):
    """A store that is unavailable for a while."""

    failures = 0

    async def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> int:
        """Fail as often as configured."""
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("it does not answer")
        return await super().commit(writes, fence=fence, release=release)


class RecordingStore(MemoryStore):
    """A store that records its operations on items and leases."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    async def get(self, key: str) -> Item | None:
        """Record a read."""
        self.operations.append("get")
        return await super().get(key)

    async def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> int:
        """Record a commit."""
        self.operations.append("commit and release" if release else "commit")
        return await super().commit(writes, fence=fence, release=release)

    async def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> Lease | Held:
        """Record an acquisition."""
        self.operations.append("acquire")
        return await super().acquire(name, holder, ttl, over=over, writes=writes)

    async def release(self, lease: Lease) -> None:
        """Record a release."""
        self.operations.append("release")
        await super().release(lease)


async def task_of(peer: RawPeer, name: str) -> Any:
    return {"taskId": (await peer.result("tools/call", {"name": name, "task": {}}))["task"]["taskId"]}


async def test_task_needs_four_store_operations() -> None:
    server = Server("s", store=(store := RecordingStore()), observers=[])

    @server.tool(task=True)
    async def work() -> str:
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        task = await task_of(peer, "work")
        await peer.connection.shared.tasks.drain()
        assert store.operations == ["commit", "acquire", "commit and release", "commit"]
        assert (await peer.result("tasks/get", task))["status"] == "completed"
    await server.aclose()


async def test_short_store_outage_loses_no_result() -> None:
    store = UnreliableStore()
    server = Server("s", store=store, observers=[])

    @server.tool(task=True)
    async def work() -> str:
        store.failures = 2
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tasks/result", await task_of(peer, "work"))
        assert result["structuredContent"] == {"result": "done"}
    await server.aclose()


async def test_short_store_outage_does_not_fail_the_work() -> None:
    store = UnreliableStore()
    server = Server("s", store=store, observers=[])

    @server.tool(task=True)
    async def work(ctx: Context) -> str:
        store.failures = 2
        await ctx.checkpoint("half")
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tasks/result", await task_of(peer, "work"))
        assert result["structuredContent"] == {"result": "done"}
    await server.aclose()


async def test_close_waits_for_a_task_being_created() -> None:
    store = FaultyStore(MemoryStore())
    server = Server("s", store=store, observers=[], settings=Settings(drain_timeout=0.01))
    working = list[str]()

    @server.tool(task=True)
    async def work() -> None:
        working.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            working.append("ended")

    async with RawPeer(server) as peer:
        await peer.initialize()
        keeping = store.hold("acquire", key="/tasks/")
        peer.call("tools/call", {"name": "work", "task": {}})
        await asyncio.wait_for(keeping.reached.wait(), PATIENCE)
        stopping = asyncio.ensure_future(server.aclose())
        await until(lambda: peer.closed is not None)
        await turns(1000)
        assert not stopping.done()
        keeping.lift()
        await asyncio.wait_for(stopping, PATIENCE)
        await turns(100)
    assert working in ([], ["begun", "ended"])


async def test_unsupported_question_is_not_sent_and_timeout_is_reported() -> None:
    server, raised = Server("s", observers=[]), list[Exception]()

    @server.tool(task=True)
    async def asks(ctx: Context) -> str:
        for question in (ctx.roots(), ctx.ping(), ctx.sample("?", timeout=0.01)):
            try:
                await question
            except Exception as error:
                raised.append(error)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        task = await task_of(peer, "asks")
        while (await peer.result("tasks/get", task))["status"] != "completed":
            await asyncio.sleep(0)
    assert [type(error) for error in raised] == [ClientLacksCapability, ClientLacksCapability, RequestTimeout]
    await server.aclose()


async def test_progress_is_stored_for_later_polls() -> None:
    clock, go_on = ManualClock(), asyncio.Event()
    server = Server("s", observers=[], clock=clock, settings=Settings(task_lease=60))

    @server.tool(task=True)
    async def counts(ctx: Context) -> None:
        ctx.progress(1, 4, "a quarter")
        ctx.progress(2, 4, "half")
        await go_on.wait()

    async with RawPeer(server) as peer:
        await peer.initialize()
        task = await task_of(peer, "counts")
        await peer.quiet()
        assert "statusMessage" not in await peer.result("tasks/get", task)
        clock.advance(1)
        await peer.quiet()
        assert (await peer.result("tasks/get", task))["statusMessage"] == "half"
        go_on.set()
    await server.aclose()
