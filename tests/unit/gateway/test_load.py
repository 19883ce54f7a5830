"""Many calls through a gateway with many backends, some of which die meanwhile."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tests.processes import children, light
from tests.unit.gateway.gateways import make_gateway, tool_names

from trunkline import BackendState, Client
from trunkline.errors import OutcomeUnknown, PeerError

BACKENDS = 20
CALLS = 10_000
AT_ONCE = 50


@pytest.mark.long
async def test_twenty_backends_answer_ten_thousand_calls_while_some_die(tmp_path: Path) -> None:
    effects = [tmp_path / f"effects-{number}" for number in range(BACKENDS)]
    servers = {**{f"b{number}": light(path) for number, path in enumerate(effects)}, "absent": ["/no/such/program"]}
    gateway = make_gateway(tmp_path, servers)
    looked, paid, unknown = 0, list[str](), list[str]()
    processes = dict[str, str]()  # by backend; each is killed at most once, so that none is restarted too often
    numbers = iter(range(CALLS))

    async def work(client: Client) -> None:
        nonlocal looked
        for number in numbers:
            backend = f"b{number % BACKENDS}"
            if number % 10:
                processes[backend] = (await client.call_tool(f"{backend}__look")).text
                looked += 1
                continue
            try:
                await client.call_tool(f"{backend}__pay", {"text": str(number)})
                paid.append(str(number))
            except (OutcomeUnknown, PeerError):
                unknown.append(str(number))
            if number % 1000 == 0 and (victim := processes.get(f"b{number // 500 + 1}")) is not None:
                with suppress(ProcessLookupError):
                    os.kill(int(victim), signal.SIGKILL)

    before = children()
    async with Client(gateway.server) as client:
        assert len(await tool_names(client)) == 6 * BACKENDS
        await asyncio.gather(*(work(client) for _ in range(AT_ONCE)))
        states = {name: status.state for name, status in gateway.backends.items()}
    assert children() == before
    assert looked == CALLS * 9 // 10
    assert len(paid) + len(unknown) == CALLS // 10
    done = [line for path in effects for line in path.read_text().split()]
    assert len(done) == len(set(done))  # no effect twice
    assert set(paid) <= set(done)
    assert states.pop("absent") is not BackendState.READY
    assert set(states.values()) <= {BackendState.READY, BackendState.RESTARTING}
