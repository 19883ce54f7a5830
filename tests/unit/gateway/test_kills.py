"""A backend that is killed again and again while calls pass through the gateway."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.limits import PATIENCE
from tests.processes import children, gone, light
from tests.unit.gateway.gateways import QUICK, make_gateway, make_server, until, until_state
from tests.unit.gateway.test_processes import entry, serving, write_config

from trunkline import BackendState, Client, Settings
from trunkline.errors import OutcomeUnknown, PeerError, TrunklineError
from trunkline.protocol.meta import BACKENDS

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"


class Load:
    """Calls without a pause, and their outcomes. After every few answers all processes of the backend are killed, and
    at times one kills itself at the worst moment: after the effect and before the response."""

    def __init__(self, client: Client, kills: int, seed: int) -> None:
        self.outcomes: dict[str, Any] = {}  # by the text that the call carries
        self.killed: set[int] = set()
        self.longest = 0.0  # seconds that a read-only call took
        self._client = client
        self._kills = kills
        self._chance = random.Random(seed)
        self._until_kill = 5

    async def call(self, tool: str, worker: int) -> None:
        """Call a tool until enough processes were killed."""
        number = 0
        while len(self.killed) < self._kills:
            number += 1
            text = f"{tool} {worker} {number}"
            dies = tool == "pay" and (number == 3 + 4 * worker or self._chance.random() < 0.02)
            begun = time.monotonic()
            try:
                answer = await self._client.call_tool(f"bank__{tool}", {"text": text, "dies": dies}, timeout=PATIENCE)
            except TrunklineError as error:
                self.outcomes[text] = error
            else:
                self.outcomes[text] = answer.text
                self._kill_at_times()
            if tool == "look":
                self.longest = max(self.longest, time.monotonic() - begun)

    def _kill_at_times(self) -> None:
        self._until_kill -= 1
        if self._until_kill <= 0:
            self._until_kill = self._chance.randint(3, 40)
            for process in children():
                os.kill(process, signal.SIGKILL)
                self.killed.add(process)


async def kill_under_load(folder: Path, kills: int, seed: int, revision: str) -> Counter[str]:
    """Return the numbers of calls with an unknown outcome that were done, and of those that were not."""
    effects = folder / "effects"
    settings = replace(QUICK, restart_intensity=100 * kills)
    gateway = make_gateway(folder, {"bank": light(effects)}, settings=settings)
    before = children(), asyncio.all_tasks()
    async with Client(gateway.server, revision=revision) as client:
        await until_state(gateway, "bank", BackendState.READY)
        processes = 2 if revision == HANDSHAKE else 1  # a session has one besides that of the catalog
        load = Load(client, kills * processes, seed)
        await asyncio.gather(*(load.call(tool, worker) for tool in ("look", "pay") for worker in range(4)))
        await until_state(gateway, "bank", BackendState.READY)
    assert (children(), asyncio.all_tasks()) == before
    done = Counter(effects.read_text(encoding="ascii").splitlines())
    assert max(done.values()) == 1, "an effect was repeated"
    assert done.keys() <= load.outcomes.keys()
    unknown: Counter[str] = Counter()
    for text, outcome in load.outcomes.items():
        if text.startswith("look"):
            assert outcome == text
        elif isinstance(outcome, str):
            assert (outcome, done[text]) == (text, 1)
        else:
            assert isinstance(outcome, OutcomeUnknown), repr(outcome)
            unknown["done" if done[text] else "not done"] += 1
    print(
        f"{len(load.outcomes)} calls, {len(load.killed)} processes killed, outcome unknown: {dict(unknown)}, "
        f"longest read-only call: {load.longest * 1000:.0f} ms"
    )
    return unknown


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_few_kills_under_load_lose_no_read_and_repeat_no_effect(tmp_path: Path, seed: int, revision: str) -> None:
    await kill_under_load(tmp_path, 5, seed, revision)


@pytest.mark.long
@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_hundred_kills_under_load_lose_no_read_and_repeat_no_effect(
    tmp_path: Path, seed: int, revision: str
) -> None:
    unknown = await kill_under_load(tmp_path, 100, seed, revision)
    assert {*unknown} == {"done", "not done"}, "the backend died at too few moments to show anything"


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_one_death_with_many_calls_in_flight_leaves_the_breaker_closed(tmp_path: Path, revision: str) -> None:
    gateway = make_gateway(tmp_path, {"bank": light(tmp_path / "effects")})
    async with Client(gateway.server, revision=revision) as client:
        await client.call_tool("bank__look")
        waiting = [asyncio.create_task(client.call_tool("bank__wait")) for _ in range(20)]
        paying = asyncio.create_task(client.call_tool("bank__pay", {"text": "1", "dies": True}))
        outcomes = await asyncio.gather(*waiting, paying, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
        assert (await client.call_tool("bank__look", {"text": "here"})).text == "here"


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_gateway_repeats_a_lost_read_for_a_client_that_does_not(tmp_path: Path, revision: str) -> None:
    gateway = make_gateway(tmp_path, {"bank": light(tmp_path / "effects")})
    plain = Settings(auto_reconnect=False)
    async with Client(gateway.server, revision=revision, settings=plain) as client:
        await client.call_tool("bank__look")
        paying = asyncio.create_task(client.call_tool("bank__pay", {"text": "1", "dies": True}))
        looking = [asyncio.create_task(client.call_tool("bank__look", {"text": f"{n}"})) for n in range(5)]
        with pytest.raises(OutcomeUnknown):
            await paying
        assert [(await one).text for one in looking] == ["0", "1", "2", "3", "4"]
    assert (tmp_path / "effects").read_text() == "1\n"


async def listed_states(client: Client) -> Any:
    """Return the states of the backends in the metadata of the list of tools."""
    return ((await client.list_tools()).meta or {})[BACKENDS]


async def test_backend_that_dies_too_often_is_degraded_in_health_and_lists(tmp_path: Path) -> None:
    settings = replace(QUICK, restart_intensity=2)
    gateway = make_gateway(tmp_path, {"bank": light(tmp_path / "effects"), "good": make_server()}, settings=settings)
    async with Client(gateway.server) as client:
        for _ in range(3):
            await until_state(gateway, "bank", BackendState.READY)
            process = int((await client.call_tool("bank__look")).text)
            assert await listed_states(client) == {"bank": {"state": "ready"}, "good": {"state": "ready"}}
            os.kill(process, signal.SIGKILL)
            await until(lambda: gateway.backends["bank"].state is not BackendState.READY)
        await until_state(gateway, "bank", BackendState.DEGRADED)
        assert "killed by SIGKILL" in gateway.backends["bank"].reason
        assert await listed_states(client) == {"bank": {"state": "degraded"}, "good": {"state": "ready"}}
        health = await gateway.server.check_health()
        assert "it is degraded" in health.components["backend bank"].reason
        assert health.components["backend good"].usable
        with pytest.raises(PeerError) as refused:
            await client.call_tool("bank__look", timeout=2)
        assert refused.value.data["kind"] == "temporarily_unavailable"
        assert (await client.call_tool("good__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
        await until(lambda: not children())
        gateway.restart("bank")
        assert int((await client.call_tool("bank__look", timeout=PATIENCE)).text) in children()


async def test_killed_gateway_leaves_no_process_of_a_session_or_a_principal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANN_TOKEN", "token-of-ann")
    servers = {name: entry(light(tmp_path / name)) for name in ("a", "b")}
    auth = {"auth": {"tokens": {"ann": "ANN_TOKEN"}}}
    config = write_config(tmp_path, servers, trunkline=auth)
    async with (
        serving(tmp_path, "gateway", str(config)) as running,
        Client(running.url, auth="token-of-ann", revision=HANDSHAKE) as session,
        Client(running.url, auth="token-of-ann", revision=MODERN) as principal,
    ):
        used = {int((await one.call_tool(f"{name}__look")).text) for one in (session, principal) for name in "ab"}
        waiting = [asyncio.create_task(one.call_tool("a__wait")) for one in (session, principal) for _ in range(5)]
        processes = children(running.process.pid)
        assert len(used) == 4
        assert used < processes  # those of the catalog as well
        running.process.send_signal(signal.SIGKILL)
        await running.process.wait()
        await until(lambda: all(map(gone, processes)))
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
