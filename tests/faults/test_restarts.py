"""A server that is killed under its client and restarted at the same address: the client reconnects without repeating
effects.
"""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

from tests.faults.processes import RunningServer, served
from tests.limits import PATIENCE
from tests.ports import held_port
from tests.processes import nothing_left

from trunkline import Client, Settings
from trunkline.errors import TransportError

QUICK = Settings(
    backoff_first=0.05,
    backoff_longest=0.2,
    stream_retry=0.05,
    restart_intensity=1000,
    restart_period=60.0,
    stop_timeout=0.5,
)
DEATHS = 2


def effects_in(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def restarted(dying: RunningServer, effects: Path) -> RunningServer:
    """The server, restarted at the same address."""
    dying.kill()
    dying.close()
    made = RunningServer("run", dying.port, effects)
    async with asyncio.timeout(PATIENCE):
        while not made.listens():
            await asyncio.sleep(0.01)
    return made


async def test_reads_survive_and_orders_never_repeat_across_crashes(
    tmp_path: Path,
) -> None:
    effects = tmp_path / "effects"
    answered: list[str] = []
    looked: list[str] = []
    over = asyncio.Event()

    async def look(client: Client, name: str) -> None:
        while not over.is_set():
            looked.append((await client.call_tool("look", {"what": name}, timeout=PATIENCE)).text)

    async def order(client: Client, name: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            with contextlib.suppress(TransportError):  # the outcome is unknown, or the server was not back in time
                await client.call_tool("order", {"what": f"{name} {number}"}, timeout=PATIENCE)
                answered.append(f"{name} {number}")

    with nothing_left(), held_port() as port:
        server = RunningServer("run", port, effects).ready()
        try:
            async with Client(server.url, settings=QUICK) as client, asyncio.TaskGroup() as group:
                for name in ("a", "b", "c"):
                    group.create_task(look(client, name))
                    group.create_task(order(client, name))
                for _ in range(DEATHS):
                    await twenty_more(answered, looked)
                    server = await restarted(server, effects)
                await twenty_more(answered, looked)
                over.set()
        finally:
            server.close()
    done = Counter(effects_in(effects))
    assert {what: times for what, times in done.items() if times > 1} == {}
    assert set(answered) <= set(done)
    assert len({text.rpartition(" ")[2] for text in looked}) == DEATHS + 1, "each of the servers has answered"


async def twenty_more(*seen: list[str]) -> None:
    """Wait until each count has grown by twenty."""
    wanted = [len(one) + 20 for one in seen]
    async with asyncio.timeout(PATIENCE):
        while any(len(one) < many for one, many in zip(seen, wanted, strict=True)):
            await asyncio.sleep(0.005)


async def test_restarted_server_gets_a_new_session_and_all_subscriptions(
    tmp_path: Path,
) -> None:
    effects = tmp_path / "effects"
    with served(effects) as first:
        async with Client(first.url, settings=QUICK) as client:
            told = client.notifications("notifications/resources/updated")
            await client.subscribe("shop://price")
            await client.call_tool("reprice", timeout=PATIENCE)
            assert (await asyncio.wait_for(anext(told), PATIENCE)).params.uri == "shop://price"
            second = await restarted(first, effects)
            try:
                assert (await client.call_tool("look", {"what": "x"}, timeout=PATIENCE)).text.startswith("x of ")
                assert client.subscriptions == ("shop://price",)
                assert (await asyncio.wait_for(anext(told), PATIENCE)).params.uri == "shop://price"
                await client.call_tool("reprice", timeout=PATIENCE)
                assert (await asyncio.wait_for(anext(told), PATIENCE)).params.uri == "shop://price"
            finally:
                await client.close()
                second.close()
