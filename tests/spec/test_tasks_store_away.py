"""Tasks while the store is away: who asks is told to come back, or that nobody knows."""

from collections.abc import Sequence
from typing import Any

from trunkline import MemoryStore, Server
from trunkline.errors import StoreUnavailable
from trunkline.stores.store import Item, Lease, Write
from trunkline.testing import RawPeer


class Away(MemoryStore):
    """A store that can be away."""

    away = False

    async def get(self, key: str) -> Item | None:
        self._look()
        return await super().get(key)

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        self._look()
        return await super().scan(prefix, after=after, limit=limit)

    async def commit(self, writes: Sequence[Write], *, fence: Lease | None = None) -> int:
        self._look()
        return await super().commit(writes, fence=fence)

    def _look(self) -> None:
        if self.away:
            raise StoreUnavailable("away")


def shop(store: Away) -> Server:
    server = Server("shop", store=store)

    @server.tool(task="optional")
    async def order(amount: int) -> int:
        """Orders something."""
        return amount

    return server


ORDER = {"name": "order", "arguments": {"amount": 5}, "task": {}}


async def test_j06_who_asks_after_a_task_while_the_store_is_away_is_told_to_come_back() -> None:
    store = Away()
    server = shop(store)
    async with RawPeer(server) as peer:
        await peer.initialize()
        made = (await peer.result("tools/call", ORDER))["task"]["taskId"]
        asked: list[tuple[str, dict[str, Any]]] = [
            ("tasks/get", {"taskId": made}),
            ("tasks/result", {"taskId": made}),
            ("tasks/cancel", {"taskId": made}),
            ("tasks/list", {}),
        ]
        store.away = True
        for method, params in asked:
            told = await peer.error(method, params)
            assert (told["code"], told["data"]["kind"]) == (1008, "temporarily_unavailable")
        store.away = False
        assert (await peer.result("tasks/result", {"taskId": made}))["structuredContent"] == {"result": 5}
    await server.aclose()


async def test_j06_of_a_task_that_may_have_been_kept_nobody_knows_what_will_become() -> None:
    store = Away()
    server = shop(store)
    async with RawPeer(server) as peer:
        await peer.initialize()
        store.away = True
        told = await peer.error("tools/call", ORDER)
        assert told["data"]["kind"] == "outcome_unknown"
        store.away = False
        assert (await peer.result("tools/call", ORDER))["task"]["status"] == "working"
    await server.aclose()
