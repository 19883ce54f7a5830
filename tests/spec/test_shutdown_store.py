"""How often a graceful stop waits for the store, one operation after another: as often for many clients as for few. A
process releases its sessions together, with its process lease, and ends calls and tasks concurrently.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.contract.valkey import valkey
from tests.limits import PATIENCE
from tests.spec.killed_processes import REVISION, headers, posted

from trunkline import Server, Settings, TaskPolicy
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore

LEASE = 1000.0  # seconds: nothing is renewed meanwhile
TURNS = 50  # of the loop, in which everything happens that needs no store


class _Stepped:
    """Carries out operations in rounds, once it is told to: those of one round begin together, and the next round begins
    when all of them have ended and nothing else happens.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.rounds = 0
        self.operations = 0
        self._waiting: list[asyncio.Future[None]] | None = None
        self._under_way = 0

    def _in_turn(self, operation: Any, *given: Any, **more: Any) -> Any:
        return asyncio.ensure_future(self._operate(operation, given, more))

    async def _operate(self, operation: Any, given: Sequence[Any], more: dict[str, Any]) -> Any:
        if self._waiting is not None:
            self._waiting.append(begin := asyncio.get_running_loop().create_future())
            await begin
        self._under_way += 1
        try:
            return await operation(*given, **more)
        finally:
            self._under_way -= 1

    def get(self, *given: Any, **more: Any) -> Any:
        above: Any = super()
        return self._in_turn(above.get, *given, **more)

    def scan(self, *given: Any, **more: Any) -> Any:
        above: Any = super()
        return self._in_turn(above.scan, *given, **more)

    def commit(self, *given: Any, **more: Any) -> Any:
        above: Any = super()
        return self._in_turn(above.commit, *given, **more)

    def acquire(self, *given: Any, **more: Any) -> Any:
        above: Any = super()
        return self._in_turn(above.acquire, *given, **more)

    def renew(self, *given: Any, **more: Any) -> Any:
        above: Any = super()
        return self._in_turn(above.renew, *given, **more)

    def release(self, *given: Any, **more: Any) -> Any:
        above: Any = super()
        return self._in_turn(above.release, *given, **more)

    async def step_through(self, work: Awaitable[Any]) -> None:
        """Carry out some work in rounds."""
        self._waiting = []
        task = asyncio.ensure_future(work)
        async with asyncio.timeout(PATIENCE):
            while not task.done():
                await self._rest(task)
                waiting, self._waiting = [begin for begin in self._waiting if not begin.cancelled()], []
                self.rounds += bool(waiting)
                self.operations += len(waiting)
                for begin in waiting:
                    begin.set_result(None)
        await task

    async def _rest(self, task: "asyncio.Future[Any]") -> None:
        """Wait until an operation waits, none is under way, and nothing else happens."""
        quiet = 0
        while quiet < TURNS and not task.done():
            await asyncio.sleep(0.001)
            quiet = 0 if self._under_way or not self._waiting else quiet + 1


class SteppedFile(_Stepped, SqliteStore):
    """A file, in rounds."""


class SteppedRedis(_Stepped, RedisStore):
    """A Redis, in rounds."""


async def rounds_of_a_stop(kind: str, folder: Path, clients: int) -> tuple[int, int]:
    """The rounds and operations of the graceful stop of a process with so many clients. Each has a session with a stream
    and two running calls, one of them with a key, and runs a task.
    """
    begun = asyncio.Semaphore(0)

    def serve() -> tuple[Server, Any]:
        prefix = f"{folder.name}-{clients}:"
        store = SteppedFile(folder / str(clients)) if kind == "file" else SteppedRedis(valkey().url, prefix=prefix)
        settings = Settings(process_lease=LEASE, task_lease=LEASE, drain_timeout=0.05)
        server = Server("stopping", store=store, settings=settings, observers=[])

        async def wait() -> None:
            begun.release()
            await asyncio.Event().wait()

        server.add_tool(wait, name="wait")
        server.add_tool(wait, name="work", task=TaskPolicy(recovery="restart"))
        return server, store

    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(PATIENCE))
        )
        (peer, _), (server, store) = serve(), serve()
        stack.push_async_callback(peer.aclose)
        await peer.listen("http://127.0.0.1:0/mcp")
        url = (await server.listen("http://127.0.0.1:0/mcp")).address

        async def client() -> list[asyncio.Future[Any]]:
            hello = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            _, _, session = await posted(http, url, "initialize", hello)
            await posted(http, url, "notifications/initialized", {}, session)
            stream = await http.get(url, headers=headers(session) | {"accept": "text/event-stream"})
            stack.callback(stream.close)
            await posted(http, url, "tools/call", {"name": "work", "arguments": {}, "task": {"ttl": 600_000}}, session)
            keys = {IDEMPOTENCY_KEY: uuid.uuid4().hex}
            calls = ({"name": "wait", "arguments": {}}, {"name": "wait", "arguments": {}, "_meta": keys})
            return [
                asyncio.ensure_future(posted(http, url, "tools/call", call, session, ident=number))
                for number, call in enumerate(calls)
            ]

        calls = [call for one in await asyncio.gather(*(client() for _ in range(clients))) for call in one]
        async with asyncio.timeout(PATIENCE):
            for _ in range(3 * clients):
                await begun.acquire()
        await store.step_through(server.aclose())
        await asyncio.gather(*calls, return_exceptions=True)
        return store.rounds, store.operations


@pytest.mark.parametrize("kind", ["file", "valkey"])
async def test_stop_waits_for_the_store_as_often_for_many_clients_as_for_few(kind: str, tmp_path: Path) -> None:
    few, _ = await rounds_of_a_stop(kind, tmp_path, 2)
    many, operations = await rounds_of_a_stop(kind, tmp_path, 20)
    assert operations > 20
    assert many <= few + 1
