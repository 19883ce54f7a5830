"""Rate limits and circuit breakers that processes share, under more load than they admit: four workers on a SQLite file, and
three processes on a Valkey. Handlers record their calls in a file, and the figures are printed.

A process records the time of a call after it was admitted, and on a busy machine it may have to wait for a CPU in between. So
each line has that waiting time, too.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from tests.contract.valkey import valkey
from tests.limits import PATIENCE
from tests.modern import enveloped, headers_of
from tests.processes import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

RATE, BURST = 20, 20
BATCH = BURST // 10
SECONDS = 6.0  # of load on the rate limit
CONNECTIONS = 12
OPEN_SECONDS = 2.0
REFRESH = 0.1  # seconds after which each process knows that a breaker is open
STORE_ACCESS = 0.4  # seconds to store that it is open
SUCCESSES = 3

PROGRAM = """
import asyncio, os, sys, time
from pathlib import Path
from trunkline import Server
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore

place, prefix, port, workers, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])
server = Server("shared", store=RedisStore(place, prefix=prefix) if prefix else SqliteStore(place), observers=[])
server.breaker("backend", failures=1, open_seconds=OPEN_SECONDS, successes=SUCCESSES)
effects = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def record(what):
    with open("/proc/thread-self/schedstat") as waited:
        waits = int(waited.read().split()[1]) / 1e9
    os.write(effects, b"%s %d %.6f %.6f\\n" % (what.encode(), os.getpid(), time.time(), waits))

@server.tool(rate="RATE/s burst BURST")
async def limited() -> int:
    record("limited")
    return os.getpid()

@server.tool(breaker="backend")
async def guarded() -> int:
    try:
        broken = (folder / "broken").read_text()
    except FileNotFoundError:
        broken = ""
    record("begin")
    try:
        await asyncio.sleep(0.02)
        if broken in ("all", str(os.getpid())):
            raise ConnectionError("the backend is broken")
        return os.getpid()
    finally:
        record("end")

@server.tool
async def which() -> int:
    return os.getpid()

server.run("http", port=port, **({"workers": workers} if workers else {}))
"""
for name in ("OPEN_SECONDS", "SUCCESSES", "RATE", "BURST"):
    PROGRAM = PROGRAM.replace(name, str(globals()[name]))


class Effect(NamedTuple):
    """An event in a handler."""

    what: str
    pid: int
    at: float
    waited: float  # for a CPU, by its process, so far


class Deployment:
    """Processes that share a store, and connections to them."""

    def __init__(self, folder: Path, urls: list[str]) -> None:
        self.folder = folder
        self.urls = urls

    def effects(self, *what: str) -> list[Effect]:
        """The recorded events, in the order of their times."""
        lines = map(str.split, (self.folder / "effects").read_text().splitlines())
        found = [Effect(name, int(pid), float(at), float(waited)) for name, pid, at, waited in lines]
        return sorted((effect for effect in found if effect.what in what), key=lambda effect: effect.at)

    async def load(self, tool: str, until: Callable[[], bool], pause: float = 0.0) -> list[dict[str, Any]]:
        """Call a tool over many connections, one call after another on each, until a condition holds."""
        async with asyncio.TaskGroup() as group:
            lines = [
                group.create_task(self._load(self.urls[number % len(self.urls)], tool, until, pause))
                for number in range(CONNECTIONS)
            ]
        return [answer for line in lines for answer in line.result()]

    async def _load(self, url: str, tool: str, until: Callable[[], bool], pause: float) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as http:
            while not until():
                answers.append(await self.call(http, url, tool, len(answers)))
                await asyncio.sleep(pause)
        return answers

    async def call(self, http: aiohttp.ClientSession, url: str, tool: str, ident: int = 0) -> dict[str, Any]:
        """Call a tool; return its result."""
        params = enveloped(name=tool, arguments={})
        headers = {name.replace("_", "-"): value for name, value in headers_of("tools/call", params).items()}
        headers["accept"] = "application/json, text/event-stream"
        message = {"jsonrpc": "2.0", "id": ident, "method": "tools/call", "params": params}
        async with http.post(url, json=message, headers=headers) as response:
            answer = json.loads(await response.read())
        assert answer["id"] == ident
        return answer["result"]

    async def pids(self, count: int) -> set[int]:
        """The processes, once all of them answer."""
        found: set[int] = set()
        async with asyncio.timeout(PATIENCE):
            while len(found) < count:
                for url in self.urls:
                    async with aiohttp.ClientSession() as http:
                        found.add((await self.call(http, url, "which"))["structuredContent"])
        return found


@asynccontextmanager
async def deployed(folder: Path, where: str) -> AsyncIterator[tuple[Deployment, set[int]]]:
    (folder / "effects").touch()
    if where == "4 workers, SQLite":
        commands, count = [[str(folder / "store"), "", "0", "4", str(folder)]], 4
    else:
        commands, count = [[valkey().url, f"{uuid.uuid4().hex}:", "0", "0", str(folder)]] * 3, 3
    logs = [(folder / f"log{number}").open("w+") for number in range(len(commands))]
    processes = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM), *command], stderr=log)
        for command, log in zip(commands, logs, strict=True)
    ]
    try:
        for log in logs:
            eventually(lambda path=log.name: " listens at " in Path(path).read_text(), every=0.05)
        urls = [Path(log.name).read_text().split(" listens at ")[1].split()[0] for log in logs]
        deployment = Deployment(folder, urls)
        yield deployment, await deployment.pids(count)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process, log in zip(processes, logs, strict=True):
            process.wait(PATIENCE)
            log.close()


def is_refused(result: dict[str, Any], code: int) -> bool:
    """Return whether a result is a refusal, which then has a code and a delay."""
    refusal = result.get("_meta", {}).get("trunkline/refusal")
    if refusal is None:
        return False
    assert (refusal["code"], refusal["retryAfterMs"] > 0) == (code, True)
    return True


def worst_excess(times: list[float]) -> float:
    """The largest number of calls above the limit, in any period."""
    worst, low = 0.0, float("inf")
    for number, at in enumerate(times):  # calls i to j: j - i + 1 - BURST - RATE * (t[j] - t[i])
        low = min(low, number - RATE * at)
        worst = max(worst, number - RATE * at - low + 1 - BURST)
    return worst


def longest_wait(effects: Iterable[Effect]) -> float:
    """The longest time that a process waited for a CPU between two of its events."""
    of_process: dict[int, list[float]] = defaultdict(list)
    for effect in effects:
        of_process[effect.pid].append(effect.waited)
    return max((b - a for waits in of_process.values() for a, b in pairwise(waits)), default=0.0)


@pytest.mark.row("Q02")
@pytest.mark.parametrize("where", ["4 workers, SQLite", "3 processes, Valkey"])
async def test_processes_together_stay_within_the_rate(where: str, tmp_path: Path) -> None:
    async with deployed(tmp_path, where) as (deployment, pids):
        began = time.time()
        answers = await deployment.load("limited", lambda: time.time() > began + SECONDS)
        ended = time.time()
        effects = deployment.effects("limited")
    admitted = [answer for answer in answers if not is_refused(answer, 1003)]
    limit = BURST + RATE * (ended - began)
    excess, waited = worst_excess([effect.at for effect in effects]), longest_wait(effects)
    used = {pid: sum(effect.pid == pid for effect in effects) for pid in pids}
    print(
        f"\n{where}: offered {len(answers) / (ended - began):.0f}/s for {ended - began:.1f} s, limit {limit:.0f}, "
        f"admitted {len(admitted)} by replies and {len(effects)} by effects, in each process {sorted(used.values())}; "
        f"in the worst period {excess:.1f} above the limit, allowed {BATCH} (+{len(pids)} if the store is slow); "
        f"longest wait for a CPU {waited * 1000:.0f} ms"
    )
    assert not any(answer["isError"] for answer in admitted)
    assert len(admitted) == len(effects)
    assert all(used.values())
    assert BURST <= len(effects) <= limit  # nothing was taken before
    assert excess <= BATCH + len(pids) + RATE * waited


@pytest.mark.row("Q01")
@pytest.mark.parametrize("where", ["4 workers, SQLite", "3 processes, Valkey"])
async def test_processes_share_an_open_breaker_and_its_probe(where: str, tmp_path: Path) -> None:
    async with deployed(tmp_path, where) as (deployment, pids):
        broken = tmp_path / "broken"
        done = False
        load = asyncio.create_task(deployment.load("guarded", lambda: done, pause=0.005))
        async with asyncio.timeout(PATIENCE):
            while {effect.pid for effect in deployment.effects("end")} != pids:
                await asyncio.sleep(0.05)
            (tmp_path / "new").write_text(str(min(pids)))
            os.replace(tmp_path / "new", broken)  # the backend fails in one process
            broken_at = time.time()
            await asyncio.sleep(OPEN_SECONDS / 2)
            (tmp_path / "new").write_text("all")
            os.replace(tmp_path / "new", broken)  # so the first probe fails
            while not probes(deployment, broken_at):
                await asyncio.sleep(0.02)
            broken.unlink()
            while len(probes(deployment, broken_at)) < 1 + SUCCESSES + 20:  # the last ones in a closed breaker
                await asyncio.sleep(0.02)
        done = True
        answers = await load
        begun, ended = deployment.effects("begin"), deployment.effects("end")
    failure = next(effect for effect in ended if effect.pid == min(pids) and effect.at >= broken_at)
    after = [effect for effect in begun if failure.at < effect.at < failure.at + OPEN_SECONDS * 0.9]
    late = max((effect.at - failure.at for effect in after), default=0.0)
    waited = longest_wait(sorted([*begun, *ended], key=lambda effect: effect.at))
    tried = sorted(
        (effect for effect in [*begun, *ended] if effect.at > failure.at + OPEN_SECONDS * 0.9),
        key=lambda effect: effect.at,
    )[: 2 * (1 + SUCCESSES)]
    refused = sum(is_refused(answer, 1009) for answer in answers)
    print(
        f"\n{where}: {len(answers)} calls, {refused} refused; after the breaker opened {len(after)} calls reached the backend, "
        f"the last {late * 1000:.0f} ms later, allowed {REFRESH * 1000:.0f} ms and a store access; "
        f"probes: {' '.join(effect.what for effect in tried)}, by {len({effect.pid for effect in tried})} processes; "
        f"longest wait for a CPU {waited * 1000:.0f} ms"
    )
    assert refused
    assert late < REFRESH + STORE_ACCESS + 2 * waited
    assert [effect.what for effect in tried] == ["begin", "end"] * (1 + SUCCESSES)  # one at a time
    assert tried[2].at - tried[1].at > OPEN_SECONDS * 0.9  # the first failed, and opened the breaker again


def probes(deployment: Deployment, broken_at: float) -> list[Effect]:
    """Calls that ended after the breaker was open for a while."""
    return [effect for effect in deployment.effects("end") if effect.at > broken_at + OPEN_SECONDS * 0.9]
