"""DPoP proofs at several servers on one file: each proof is valid once for all of them together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.auth.server.issuer import Issuer, running_issuer
from tests.unit.auth.server.test_authenticator import challenge, kind, offering, ping, proof, signed
from tests.unit.transports.http.asgi import Answer, Host

from trunkline.auth import SigningKey
from trunkline.server.access.dpop_replays import DpopReplayStore
from trunkline.stores.memory import MemoryStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import ManualClock

KEY = SigningKey.generate()


class SharedServers:
    """Servers that share only their file."""

    def __init__(self, issuer: Issuer, hosts: list[Host], stores: list[SqliteStore]) -> None:
        self.issuer = issuer
        self.hosts = hosts
        self.stores = stores
        self.token = issuer.token(cnf={"jkt": KEY.thumbprint})

    def proof(self, **claims: Any) -> str:
        return proof(KEY, self.token, self.issuer.wall, **claims)

    async def ask(self, number: int, shown: str) -> Answer:
        return await ping(self.hosts[number], f"DPoP {self.token}", dpop=shown)


@asynccontextmanager
async def shared_servers(path: Path, **options: Any) -> AsyncIterator[SharedServers]:
    async with AsyncExitStack() as stack:
        issuer = await stack.enter_async_context(running_issuer())
        hosts: list[Host] = []
        clock = ManualClock(start=issuer.wall())
        stores = [SqliteStore(path, clock=clock, synchronous="NORMAL") for _ in range(2)]
        for store in stores:
            host = Host(offering(auth=signed(issuer, **options), store=store))
            host.app = host.server.asgi()
            stack.push_async_callback(host.app.aclose)
            hosts.append(host)
        yield SharedServers(issuer, hosts, stores)


async def test_proof_used_at_one_process_is_refused_at_another(tmp_path: Path) -> None:
    async with shared_servers(tmp_path / "shared.db") as servers:
        once = servers.proof()
        assert (await servers.ask(0, once)).status == 200
        refused = await servers.ask(1, once)
        assert (refused.status, challenge(refused).params["error"]) == (401, "invalid_dpop_proof")
        assert "used before" in refused.json["error"]["message"]
        assert (await servers.ask(1, servers.proof())).status == 200


async def test_concurrent_use_of_proof_has_one_winner(tmp_path: Path) -> None:
    async with shared_servers(tmp_path / "shared.db") as servers:
        for _ in range(5):
            once = servers.proof()
            answers = await asyncio.gather(servers.ask(0, once), servers.ask(1, once))
            assert sorted(answer.status for answer in answers) == [200, 401]


async def test_nonce_is_valid_at_all_processes(tmp_path: Path) -> None:
    async with shared_servers(tmp_path / "shared.db", dpop_nonces=True) as servers:
        asked = await servers.ask(0, servers.proof())
        assert challenge(asked).params["error"] == "use_dpop_nonce"
        assert (await servers.ask(1, servers.proof(nonce=asked.headers["dpop-nonce"]))).status == 200
        assert (await servers.ask(0, servers.proof(nonce="another"))).status == 401


async def test_proof_is_refused_while_store_is_down(tmp_path: Path) -> None:
    async with shared_servers(tmp_path / "shared.db") as servers:
        assert (await servers.ask(0, servers.proof())).status == 200
        await servers.stores[0].close()
        answer = await servers.ask(0, servers.proof())
        assert (answer.status, kind(answer)) == (503, "temporarily_unavailable")


async def test_used_proof_is_dropped_after_its_window() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await store.open()
    one, other = DpopReplayStore(store, "server"), DpopReplayStore(store, "another server")
    assert await one.record_first_use("proof", clock.now() + 10)
    assert not await one.record_first_use("proof", clock.now() + 10)
    assert await other.record_first_use("proof", clock.now() + 10)
    clock.advance(11)
    assert await one.record_first_use("proof", clock.now() + 10)


async def test_processes_agree_on_one_secret(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "shared.db") for _ in range(3)]
    for store in stores:
        await store.open()
    known = await asyncio.gather(*(DpopReplayStore(store, "server").secret() for store in stores))
    assert len(set(known)) == 1
    assert len(known[0]) == 32
    assert await DpopReplayStore(stores[0], "another").secret() != known[0]
    for store in stores:
        await store.close()
