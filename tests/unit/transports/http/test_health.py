"""How a server says whether it lives and is ready, to whoever watches over it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.valkey import Valkey, started
from tests.limits import PATIENCE, soon
from tests.spec.houses import House
from tests.unit.transports.http.asgi import Answer, Host, hosted

from trunkline import Server, Settings
from trunkline.stores.memory import MemoryStore
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.store import Item


async def ask(server: Server, path: str, method: str = "GET", *, endpoint: str = "/mcp") -> Answer:
    """What a server answers of how it stands, to somebody who calls it by a name that is not its own."""
    async with hosted(server) as host:
        host.app = server.asgi(path=endpoint)
        return await looked(host, path, method)


async def looked(host: Host, path: str, method: str = "GET") -> Answer:
    return await host.ask(method, None, path=path, host="elsewhere.example", origin="https://elsewhere.example")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/livez", {"ok": True, "workers": {"0": "ready"}}),
        ("/readyz", {"ok": True, "store": True, "workers": {"0": "ready"}}),
        ("/livez/0", {"ok": True, "worker": 0, "state": "ready"}),
        ("/readyz/0", {"ok": True, "store": True, "worker": 0, "state": "ready"}),
    ],
)
async def test_one_process_is_worker_0_and_says_so_to_anybody(path: str, said: Any) -> None:
    answer = await ask(Server("house"), path)
    assert (answer.status, answer.json) == (200, said)
    assert answer.headers["cache-control"] == "no-store"


async def test_health_is_asked_for_by_get_and_head_of_workers_that_there_are() -> None:
    assert (await ask(Server("house"), "/livez", "HEAD")).status == 200
    refused = await ask(Server("house"), "/livez", "POST")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    assert (await ask(Server("house"), "/livez/1")).status == 404
    assert (await ask(Server("house"), "/livez/x")).status == 403  # as any address that there is not, under that name


async def test_an_endpoint_of_the_same_name_comes_first_and_health_can_be_off() -> None:
    assert (await ask(Server("house"), "/livez", endpoint="/livez")).status == 403
    assert (await ask(Server("house", settings=Settings(health=False)), "/livez")).status == 403


async def test_a_server_that_rests_or_ends_lives_and_is_not_ready() -> None:
    house = House(settings={"drain_timeout": 30.0})
    async with hosted(house.server) as host:
        host.app = house.server.asgi(path="/mcp")
        house.server.pause()
        assert (await looked(host, "/readyz")).json == {"ok": False, "store": True, "workers": {"0": "paused"}}
        house.server.resume()
        assert (await looked(host, "/readyz")).status == 200
        house.server.pause(wait=True)
        assert (await looked(host, "/readyz/0")).status == 503
        assert (await looked(host, "/livez")).status == 200
        house.server.resume()


class Slow(MemoryStore):
    """A store that answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.stalls = False
        self.asked = 0

    async def get(self, key: str) -> Item | None:
        self.asked += 1
        if self.stalls:
            await asyncio.Event().wait()
        return await super().get(key)


async def test_a_store_that_does_not_answer_in_time_makes_a_server_unready_and_is_not_asked_too_often() -> None:
    store = Slow()
    server = Server("house", store=store)
    async with hosted(server) as host:
        host.app = server.asgi(path="/mcp")
        assert [answer.status for answer in await asyncio.gather(*(looked(host, "/readyz") for _ in range(5)))] == [
            200
        ] * 5
        assert store.asked == 1
        store.stalls = True
        async with asyncio.timeout(PATIENCE):
            while (await looked(host, "/readyz")).status == 200:
                await asyncio.sleep(0.01)
        assert (await looked(host, "/livez")).status == 200
    assert store.asked == 2


async def test_d03_a_redis_that_has_died_is_told_and_so_is_that_it_is_back(tmp_path: Path) -> None:
    await until_told(started(tmp_path / "valkey"))


@pytest.mark.long
async def test_d03_a_redis_that_has_died_is_told_within_a_second(tmp_path: Path) -> None:
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
