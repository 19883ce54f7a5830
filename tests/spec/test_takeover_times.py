"""How soon the task and the session of a killed process continue in another process, over many kills: at once where the
system reports the end of a process, and after its lease where nothing does, as between machines.
"""

import asyncio
import statistics
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count, islice
from pathlib import Path

import aiohttp
import pytest
from tests.contract.valkey import valkey
from tests.limits import PATIENCE
from tests.spec.killed_processes import ForkedServers, KilledProcess, forked_servers, posted

from trunkline import Server, Settings, TaskPolicy
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore

KILLS = 200
AT_ONCE = 5  # processes that are killed together
SOON = 1.0  # seconds
LEASE = {"one machine": 1000.0, "several machines": 3.0}  # seconds


class Survivor:
    """The process that takes over."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.url = ""
        self.servers: ForkedServers
        self._http = http
        self._begun: dict[int, asyncio.Future[float]] = {}
        server.add_tool(self._work, name="work", task=TaskPolicy(recovery="restart"))

    async def _work(self, number: int) -> None:
        if not self._begun[number].done():
            self._begun[number].set_result(time.perf_counter())

    async def measure(self, *numbers: int) -> list[tuple[float, float]]:
        """Kill some processes. Return for each the seconds until its task runs here, and its session answers here; not
        for one that was evicted before, as on a busy machine.
        """
        loop = asyncio.get_running_loop()
        self._begun |= {number: loop.create_future() for number in numbers}
        processes = await self.servers.start(*numbers)
        killed = time.perf_counter()
        for process in processes:
            process.kill()
        async with asyncio.timeout(PATIENCE):
            tasks = asyncio.gather(*(self._begun[number] for number in numbers))
            sessions = await asyncio.gather(*map(self._answered, processes))
            found = zip(await tasks, sessions, strict=True)
            return [(ran - killed, answered - killed) for ran, answered in found if ran > killed]

    async def _answered(self, process: KilledProcess) -> float:
        while True:
            status, answer, _ = await posted(self._http, self.url, "ping", {}, process.session)
            if "result" in answer:
                return time.perf_counter()
            assert status == 503 or answer["error"]["data"]["kind"] == "outcome_unknown", answer
            await asyncio.sleep(0.01)


@pytest.fixture(params=list(LEASE))
async def survivor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Survivor]:
    local, lease = request.param == "one machine", LEASE[request.param]
    place, prefix = (str(tmp_path / "store"), "") if local else (valkey().url, f"{uuid.uuid4().hex}:")
    store = SqliteStore(place) if local else RedisStore(place, prefix=prefix)
    settings = Settings(process_lease=lease, task_lease=1000)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)))
        made = Survivor(Server("takeover", store=store, settings=settings, observers=[]), http)
        stack.push_async_callback(made.server.aclose)
        made.url = (await made.server.listen("http://127.0.0.1:0/mcp")).address
        made.servers = await stack.enter_async_context(forked_servers(place, prefix, lease, http))
        yield made


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("survivor", ["one machine", "several machines"], indirect=True)
async def test_task_and_session_of_a_killed_process_continue_soon(
    survivor: Survivor, request: pytest.FixtureRequest
) -> None:
    where = request.node.callspec.params["survivor"]
    limit = SOON if where == "one machine" else LEASE[where] + SOON
    taken: list[tuple[float, float]] = []
    numbers = count()
    while len(taken) < KILLS:
        taken += await survivor.measure(*islice(numbers, AT_ONCE))
    for what, seconds in zip(("task", "session"), zip(*taken, strict=True), strict=True):
        centiles = statistics.quantiles(seconds, n=100, method="inclusive")
        p50, p99 = centiles[49], centiles[98]
        print(f"{where}: takeover of a {what}, {len(taken)} kills: p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms")
        assert p50 < limit
