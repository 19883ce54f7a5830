"""Behaviour of a client when its server dies, of a server when its client dies, and Ctrl+C.

Real processes, real signals. A server records its effects in a file, which the tests read.
"""

import asyncio
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.limits import soon
from tests.processes import PATIENCE, children, command, eventually, gone, light, nothing_left

from trunkline import Client, Settings
from trunkline.errors import Degraded, OutcomeUnknown
from trunkline.protocol.lifecycle import Phase

DYING = """
    import asyncio, os, sys
    from trunkline import Server

    server = Server("dying")
    calls = 0

    @server.tool
    async def wait() -> None:
        global calls
        calls += 1
        if calls == 50:
            print("50 calls are under way", file=sys.stderr)
            print("I do not feel well", file=sys.stderr, flush=True)
        await asyncio.Event().wait()

    @server.tool
    async def under_way() -> int:
        return calls

    @server.tool
    async def pid() -> int:
        return os.getpid()

    server.run()
"""


# --- the death of a server ---------------------------------------------------------------------------


async def test_killed_server_fails_only_its_fifty_calls(tmp_path: Path) -> None:
    await until_all_have_failed(tmp_path)


@pytest.mark.long
async def test_killed_server_fails_fifty_calls_within_a_quarter_second(tmp_path: Path) -> None:
    await soon(partial(until_all_have_failed, tmp_path), 0.25)


async def until_all_have_failed(tmp_path: Path) -> float:
    """Return how long it takes until all calls of a killed server have failed."""
    async with Client(command(DYING)) as dying, Client(light(tmp_path / "effects")) as other:
        pid = (await dying.call_tool("pid")).data
        calls = [asyncio.create_task(dying.call_tool("wait")) for _ in range(50)]
        elsewhere = asyncio.create_task(other.call_tool("wait"))
        unrelated = asyncio.get_running_loop().create_future()
        while (await dying.call_tool("under_way")).data < 50:
            pass
        os.kill(pid, signal.SIGKILL)
        killed = time.perf_counter()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        took = time.perf_counter() - killed
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 50
        for outcome in outcomes:
            assert isinstance(outcome, OutcomeUnknown)
            assert (outcome.status, outcome.last_words.splitlines()) == (
                -9,
                ["50 calls are under way", "I do not feel well"],
            )
            assert "killed by SIGKILL" in str(outcome)
        assert not elsewhere.done()
        assert not unrelated.done()
        assert (other.phase, other.losses) == (Phase.READY, 0)
        assert (await other.call_tool("echo", {"text": "well"})).data == "well"
        assert (await dying.call_tool("pid")).data != pid
        elsewhere.cancel()
    return took


# --- recovery ----------------------------------------------------------------------------------------


class Load:
    """Calls without a pause, and their outcomes. The test kills the child after every few responses, and at times
    the child kills itself at the worst moment: after the effect and before the response.
    """

    def __init__(self, client: Client, kills: int, seed: int) -> None:
        self.client = client
        self.kills = kills
        self.outcomes: dict[str, Any] = {}  # by the text that the call carries
        self._chance = random.Random(seed)
        self._until_kill = 0

    async def call(self, tool: str, worker: int) -> None:
        number = 0
        while self.client.losses < self.kills:
            number += 1
            text = f"{tool} {worker} {number}"
            dies = tool == "pay" and self._chance.random() < 0.1
            try:
                answer = await self.client.call_tool(tool, {"text": text, "dies": dies}, timeout=PATIENCE)
            except OutcomeUnknown as unknown:
                self.outcomes[text] = unknown
            else:
                self.outcomes[text] = answer.data
                self._answered()

    def _answered(self) -> None:
        self._until_kill -= 1
        if self._until_kill <= 0:
            self._until_kill = self._chance.randint(3, 9)
            for child in children():
                os.kill(child, signal.SIGKILL)


async def known(client: Client) -> None:
    """Wait until the client has the list of tools: it fetches them with the first call, and this server answers in
    order.
    """
    await client.call_tool("look")
    await client.ping()


async def test_ten_kills_under_load_lose_no_read_and_repeat_no_effect(tmp_path: Path, seed: int) -> None:
    await killed_under_load(tmp_path, 10, seed)


@pytest.mark.long
async def test_hundred_kills_under_load_lose_no_read_and_repeat_no_effect(tmp_path: Path, seed: int) -> None:
    unknown = await killed_under_load(tmp_path, 100, seed)
    assert set(unknown.values()) == {0, 1}, "the child died at too few moments to show anything"


async def killed_under_load(tmp_path: Path, kills: int, seed: int) -> dict[str, int]:
    """Return how often calls with an unknown outcome ran."""
    effects = tmp_path / "effects"
    with nothing_left():
        async with Client(light(effects), settings=Settings(restart_intensity=1000, backoff_first=0.05)) as client:
            await known(client)
            load = Load(client, kills, seed)
            await asyncio.gather(
                *(load.call("look", worker) for worker in range(4)), *(load.call("pay", worker) for worker in range(4))
            )
    done = Counter(effects.read_text(encoding="ascii").splitlines())
    for text, outcome in load.outcomes.items():
        if text.startswith("look"):
            assert outcome == text
        elif outcome == text:
            assert done[text] == 1, f"{text!r} was answered, and done {done[text]} times"
        else:
            assert isinstance(outcome, OutcomeUnknown), outcome
            assert done[text] <= 1, f"nobody knew about {text!r}, and it was done {done[text]} times"
    assert done.keys() <= load.outcomes.keys()
    return {text: done[text] for text, outcome in load.outcomes.items() if isinstance(outcome, OutcomeUnknown)}


async def test_server_that_exits_too_often_is_given_up(tmp_path: Path) -> None:
    told: list[Any] = []
    with nothing_left():
        async with Client(light(tmp_path / "effects"), on_failed=told.append) as client:
            await known(client)
            for _ in range(5):
                [child] = children()
                os.kill(child, signal.SIGKILL)
                assert (await client.call_tool("look")).data != str(child)
            [child] = children()
            waiting = asyncio.create_task(client.call_tool("look"))
            os.kill(child, signal.SIGKILL)
            with pytest.raises(Degraded, match=r"lost 6 times within 60 s; the limit is 5; .*killed by SIGKILL"):
                await waiting
            with pytest.raises(Degraded):
                await client.ping()
            assert client.phase is Phase.FAILED
            assert children() == set()
    assert [type(failure) for failure in told] == [Degraded]


# --- no orphans --------------------------------------------------------------------------------------

PARENT = """
    import os, subprocess, sys
    from trunkline import Server

    server = Server("parent")
    grandchild = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])

    @server.tool
    async def family() -> str:
        return f"{os.getpid()} {grandchild.pid}"

    @server.tool
    def wait() -> None:
        import time
        time.sleep(600)

    server.run()
"""
HOSTS = {
    "Client": """
        import asyncio
        from trunkline import Client, Settings

        async def main() -> None:
            async with Client({command!r}, settings=Settings(stop_timeout=0.3)) as client:
                print("family", (await client.call_tool("family")).data, flush=True)
                await client.call_tool("wait")

        asyncio.run(main())
    """,
    "BlockingClient": """
        from trunkline import BlockingClient, Settings

        with BlockingClient({command!r}, settings=Settings(stop_timeout=0.3)) as client:
            print("family", client.call_tool("family").data, flush=True)
            client.call_tool("wait")
    """,
}


class Host:
    """A program that uses a client, at a terminal of its own."""

    def __init__(self, kind: str) -> None:
        self.said = ""
        self._terminal, its_end = pty.openpty()
        script = textwrap.dedent(HOSTS[kind]).format(command=command(PARENT))
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            env={**os.environ, "PYTHON_COLORS": "0"},
            start_new_session=True,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - nothing else runs here
        )
        os.close(its_end)
        family = self.read_until(r"family (\d+) (\d+)\r?\n")
        self.family = [int(pid) for pid in family.groups()]

    def read_until(self, pattern: str) -> "re.Match[str]":
        while (found := re.search(pattern, self.said)) is None:
            assert self._read(), f"the host ended: {self.said}"
        return found

    def _read(self) -> bool:
        assert select.select([self._terminal], [], [], PATIENCE)[0], f"the host is silent: {self.said}"
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # the other end is closed
            return False
        self.said += data.decode()
        return bool(data)

    def press_ctrl_c(self) -> None:
        os.write(self._terminal, b"\x03")

    def end(self) -> int:
        """Read all output; return the exit code."""
        while self._read():
            pass
        os.close(self._terminal)
        return self.process.wait(PATIENCE)


def _own_terminal() -> None:
    os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal that a session opens becomes its controlling one


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    host = Host(request.param)
    yield host
    host.process.kill()
    host.process.wait(PATIENCE)


def test_killed_host_takes_its_server_and_children_down(host: Host) -> None:
    os.kill(host.process.pid, signal.SIGKILL)
    eventually(lambda: all(map(gone, host.family)), PATIENCE)
    assert host.end() == -signal.SIGKILL


def test_one_ctrl_c_ends_a_host_and_its_children_quietly(host: Host) -> None:
    host.press_ctrl_c()
    assert host.end() == -signal.SIGINT
    eventually(lambda: all(map(gone, host.family)), PATIENCE)
    complaints = re.findall(r"(?m)^(\w[\w.]*(?:Error|Interrupt|Exception|Group|Closed|Unknown)\b.*?)\r?$", host.said)
    assert complaints[-1] == "KeyboardInterrupt", host.said
    assert set(complaints) <= {"KeyboardInterrupt", "asyncio.exceptions.CancelledError"}, host.said
    assert "never retrieved" not in host.said
    assert "never awaited" not in host.said
