"""How a server says whether it lives and is ready, to whoever watches over it."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.valkey import Valkey, started
from tests.limits import PATIENCE, soon
from tests.spec.busy_server import BusyServer
from tests.unit.transports.http.asgi import Answer, Host, hosted

from trunkline import Server, Settings
from trunkline.stores.memory import MemoryStore
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import FaultyStore
from trunkline.testing.faulty_store import StoreFault


async def ask(server: Server, path: str, method: str = "GET", *, endpoint: str = "/mcp") -> Answer:
    """What a server answers of how it stands, to somebody who calls it by a name that is not its own."""
    async with hosted(server) as host:
        host.app = server.asgi(path=endpoint)
        return await looked(host, path, method)


async def looked(host: Host, path: str, method: str = "GET") -> Answer:
    return await host.ask(method, None, path=path, host="elsewhere.example", origin="https://elsewhere.example")


class Database:
    """Something that a server relies on."""

    def __init__(self) -> None:
        self.answer: bool | BaseException = True

    async def is_there(self) -> bool:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/livez", {"ok": True, "workers": {"0": "ready"}}),
        ("/readyz", {"ok": True, "store": True, "workers": {"0": "ready"}}),
        ("/livez/0", {"ok": True, "worker": 0, "state": "ready"}),
        ("/readyz/0", {"ok": True, "store": True, "worker": 0, "state": "ready"}),
    ],
)
async def test_single_process_reports_as_worker_0(path: str, said: Any) -> None:
    answer = await ask(Server("house"), path)
    assert (answer.status, answer.json) == (200, said)
    assert answer.headers["cache-control"] == "no-store"


async def test_health_allows_get_and_head_of_existing_workers() -> None:
    assert (await ask(Server("house"), "/livez", "HEAD")).status == 200
    refused = await ask(Server("house"), "/livez", "POST")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    assert (await ask(Server("house"), "/livez/1")).status == 404
    assert (await ask(Server("house"), "/livez/x")).status == 403  # as any address that there is not, under that name


async def test_own_endpoint_precedes_health_and_health_can_be_off() -> None:
    assert (await ask(Server("house"), "/livez", endpoint="/livez")).status == 403
    assert (await ask(Server("house", settings=Settings(health=False)), "/livez")).status == 403


@pytest.mark.row("Q08")
async def test_paused_or_stopping_server_is_live_but_not_ready() -> None:
    house = BusyServer(settings={"drain_timeout": 30.0})
    async with hosted(house.server) as host:
        host.app = house.server.asgi(path="/mcp")
        house.server.pause()
        assert (await looked(host, "/readyz")).json == {"ok": False, "store": True, "workers": {"0": "paused"}}
        house.server.resume()
        assert (await looked(host, "/readyz")).status == 200
        house.server.pause(wait=True)
        paused = await looked(host, "/readyz/0")
        assert (paused.status, paused.headers["retry-after"]) == (503, "1")
        assert "retry-after" not in (await looked(host, "/livez")).headers
        assert (await looked(host, "/livez")).status == 200
        house.server.resume()


@pytest.mark.parametrize("trouble", [FaultyStore.hold, FaultyStore.fail])
async def test_unwritable_store_makes_the_server_unready(trouble: Callable[..., StoreFault]) -> None:
    store = FaultyStore(MemoryStore())
    server = Server("house", store=store)
    async with hosted(server) as host, asyncio.timeout(PATIENCE):
        host.app = server.asgi(path="/mcp")
        assert (await looked(host, "/readyz")).status == 200
        fault = trouble(store)
        while (answer := await looked(host, "/readyz")).status == 200:
            await asyncio.sleep(0.01)
        assert (answer.status, answer.json["store"]) == (503, False)
        assert (await looked(host, "/livez")).status == 200
        fault.lift()
        while (await looked(host, "/readyz")).status == 503:
            await asyncio.sleep(0.01)


# --- checks of the server's own ------------------------------------------------------------------------


async def test_health_checks_decide_readiness_not_liveness(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, database = Server("house"), Database()
    server.health("database")(database.is_there)
    server.health("queue")(lambda: True)
    async with hosted(server) as host, asyncio.timeout(PATIENCE):
        host.app = server.asgi(path="/mcp")
        for fault in (False, ValueError("password: hunter2"), SystemExit("bye")):
            database.answer = fault
            while (answer := await looked(host, "/readyz")).status == 200:
                await asyncio.sleep(0.01)
            assert answer.status == 503
            assert answer.json == {
                "ok": False,
                "store": True,
                "checks": {"database": False, "queue": True},
                "workers": {"0": "ready"},
            }
            assert b"hunter2" not in answer.body
            assert (await looked(host, "/readyz/0")).status == 503
            assert (await looked(host, "/livez")).json == {"ok": True, "workers": {"0": "ready"}}
            database.answer = True
            while (answer := await looked(host, "/readyz")).status == 503:
                await asyncio.sleep(0.01)
            assert answer.json["checks"] == {"database": True, "queue": True}
    told = [record.message for record in caplog.records if "health check" in record.message]
    assert told[0] == "health check 'database' fails: it returned False; the server is not ready"
    assert told[1] == "health check 'database' passes again"
    assert "hunter2" in told[2]
    assert len(told) == 6  # once for each change


async def test_health_checks_run_concurrently_and_time_out() -> None:
    server, begun = Server("house"), list[str]()
    met = asyncio.Barrier(2)

    @server.health("one")
    async def one() -> bool:
        await met.wait()
        return True

    @server.health("two")
    async def two() -> bool:
        await met.wait()
        return True

    @server.health("silent")
    async def silent() -> bool:
        begun.append("silent")
        await asyncio.Event().wait()
        return True

    async with hosted(server) as host, asyncio.timeout(PATIENCE):
        host.app = server.asgi(path="/mcp")
        answers = await asyncio.gather(*(looked(host, "/readyz") for _ in range(5)))
        answers += [await looked(host, "/readyz")]
        assert {answer.status for answer in answers} == {503}
        assert answers[0].json["checks"]["silent"] is False
        assert begun == ["silent"]  # what does not answer is not asked again meanwhile
    await server.aclose()


async def test_health_check_of_same_name_replaces_the_former() -> None:
    server = Server("house")
    server.health("database")(lambda: False)
    async with hosted(server) as host:
        host.app = server.asgi(path="/mcp")
        assert (await looked(host, "/readyz")).status == 503
        server.health("database")(lambda: True)
        assert (await looked(host, "/readyz")).status == 200


async def test_hanging_store_check_is_not_started_twice() -> None:
    store = FaultyStore(MemoryStore())
    server = Server("house", store=store)
    async with hosted(server) as host:
        host.app = server.asgi(path="/mcp")
        await server.start()
        fault = store.hold("commit")
        for _ in range(3):
            answers = await asyncio.gather(*(looked(host, "/readyz") for _ in range(5)))
            assert [answer.status for answer in answers] == [503] * 5
        assert fault.calls == 1


async def test_locked_database_makes_the_server_unready(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    server = Server("house", store=SqliteStore(path))
    async with hosted(server) as host, asyncio.timeout(PATIENCE):
        host.app = server.asgi(path="/mcp")
        while (await looked(host, "/readyz")).status == 503:
            await asyncio.sleep(0.01)
        with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            while (await looked(host, "/readyz")).status == 200:
                await asyncio.sleep(0.01)
            other.execute("ROLLBACK")
        while (await looked(host, "/readyz")).status == 503:
            await asyncio.sleep(0.01)


@pytest.mark.row("D03")
async def test_readiness_follows_redis_down_and_up(tmp_path: Path) -> None:
    await until_told(started(tmp_path / "valkey"))


@pytest.mark.row("D03")
@pytest.mark.long
async def test_dead_redis_is_reported_within_a_second(tmp_path: Path) -> None:
    async def once() -> float:
        return await until_told(started(tmp_path / "valkey"))

    await soon(once, 1.0)


async def until_told(valkey: Valkey) -> float:
    """How long a server is said to be ready whose Redis has died."""
    server = Server("house", store=RedisStore(valkey.url))
    async with hosted(server) as host:
        host.app = server.asgi(path="/mcp")
        assert (await looked(host, "/readyz")).status == 200
        valkey.kill()
        killed = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            while (await looked(host, "/readyz")).status == 200:
                await asyncio.sleep(0.01)
        took = time.monotonic() - killed
        valkey.start()
        async with asyncio.timeout(PATIENCE):
            while (await looked(host, "/readyz")).status == 503:
                await asyncio.sleep(0.01)
    valkey.kill()
    return took
