"""The deployments of a campaign: one process on a file, four workers on one port, or three processes with one
Valkey, alone or with a replica. In all but the first each request reaches another process.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.campaign_log import PATIENCE, CampaignLog
from tests.chaos.forger import forged_messages
from tests.chaos.full_disk import full_disk
from tests.chaos.history import FaultPeriod
from tests.chaos.network import Network, open_network
from tests.chaos.plan import Fault, FaultInjection, Kind, Plan
from tests.chaos.stepped_clock import BACK, FORWARD
from tests.contract.valkey import Valkey, sentinel, started
from tests.faults.processes import RunningServer
from tests.ports import HeldPort
from tests.processes import children
from valkey.exceptions import ConnectionError as ValkeyConnectionError

from trunkline.server.shutdown import EXIT_CODES

__all__ = ["Deployment", "opened"]

_WORKERS = 4
_PROCESSES = 3
_NOTICED = 0.5  # seconds after which a load balancer notices that a process does not respond
_SERVICE = "campaign"
_DOWN_AFTER = 300  # milliseconds after which the sentinel replaces a master
_LOOK = 0.02  # seconds between two polls
_DROPPED = 0.5  # the share of connections to Valkey that break while the others stay
_ALL = 0.5  # the share of graceful stops, and of wrong clocks, that concern all processes, and not one of them
_LAST_WRITE = 1000  # bytes that Valkey writes at most before its disk is full
_PARTIAL = frozenset[Kind]({"kill", "stop", "clock", "forge"})  # others serve meanwhile
_DRAIN_OVERRAN = EXIT_CODES["DrainPendingRequests"]
_SETTINGS = {"stream_retry": 0.05, "task_poll_interval": 0.1, "drain_timeout": 0.05}


class Deployment(ABC):
    """A server with any number of processes."""

    def __init__(self, folder: Path, lease: float, options: Sequence[str], interpreters: Sequence[str]) -> None:
        """The processes have the given interpreters in turn, each time that one starts."""
        self.lease = lease
        self.folder = folder
        self.effects = folder / "effects"
        self.effects.mkdir()
        self.options = options
        self._interpreters = cycle(interpreters)
        self.fault_periods: list[FaultPeriod] = []
        self.complaints: list[str] = []
        self.url = ""
        self._stopped: float | None = None  # when the last graceful stop had ended

    def serve(self, port: int, *options: str, **settings: Any) -> RunningServer:
        """Start a process."""
        leases = dict.fromkeys(("task_lease", "idempotency_lease", "process_lease"), self.lease)
        given = [*options, *self.options]
        python = next(self._interpreters)
        return RunningServer(
            "deployment", port, self.effects, options=given, python=python, **_SETTINGS, **leases, **settings
        )

    def record_output(self, served: RunningServer) -> None:
        """Record the output of an ended process, if it contains errors."""
        if served.complaints:
            self.complaints.append(served.said())
        served.close()

    async def inject(self, injection: FaultInjection, log: CampaignLog) -> None:
        """Inject a fault, and wait until all processes are ready again."""
        at = time.monotonic()
        log.count_fault()
        self._stopped = None
        pids = await self.perform(injection)
        await self.ready()
        log.back = time.monotonic()
        partial = injection.kind in _PARTIAL or (injection.kind == "term" and not self.stops_as_a_whole(injection))
        self.fault_periods.append(FaultPeriod(injection.kind, at, log.back, tuple(pids), self._stopped, partial))

    def stops_as_a_whole(self, injection: FaultInjection) -> bool:
        """Return whether a graceful stop concerns all processes, and not one of them."""
        del injection
        return True

    async def ready(self) -> None:
        """Wait until all processes are ready."""
        await _until(self.is_ready)

    def terminate(self, served: RunningServer) -> None:
        """Stop a process by SIGTERM, and wait for its end. The shutdown may interrupt calls, but must not take too
        long.
        """
        code, _ = served.stop(PATIENCE)
        self._stopped = time.monotonic()
        if code not in {0, _DRAIN_OVERRAN}:
            self.complaints.append(f"exit code {code} after SIGTERM: {served.said()}")

    @abstractmethod
    async def open(self, stack: AsyncExitStack) -> None:
        """Start it."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether all processes are ready."""

    async def fill_disk(self, pids: Sequence[int], port: int, lasts: float) -> None:
        """Have all writes of some processes fail for a while, which they have to report."""
        began = time.monotonic()
        with full_disk(pids):
            await _until(lambda: not _ready(port))
            await asyncio.sleep(max(0.0, began + lasts - time.monotonic()))

    @abstractmethod
    async def perform(self, injection: FaultInjection) -> Sequence[int]:
        """Inject a fault; return the processes that it ended or suspended."""

    @abstractmethod
    def stop(self) -> None:
        """Shut it down gracefully."""


class OneProcess(Deployment):
    """One process on a SQLite file."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Start it."""
        held = HeldPort()
        stack.callback(held.close)
        self._port = held.number
        self._served = self.start()
        stack.callback(self._close)
        self.url = self._served.url

    def start(self) -> RunningServer:
        """Start the process."""
        return self.serve(self._port)

    def _close(self) -> None:
        self._served.close()

    def is_ready(self) -> bool:
        """Return whether it is ready."""
        return self._served.listens() and _ready(self._port)

    async def perform(self, injection: FaultInjection) -> Sequence[int]:
        """Kill or stop the process, and restart it at the same address; or have it notice a full disk, or another
        time.
        """
        pid = self._served.process.pid
        match injection.kind:
            case "full":
                await self.fill_disk([pid], self._port, injection.lasts)
                return ()
            case "clock":
                await _at_another_time([pid], injection)
                return ()
            case "term":
                await asyncio.to_thread(self.terminate, self._served)
            case _:
                self._served.kill()
        self.record_output(self._served)
        self._served = self.start()
        return (pid,)

    def stop(self) -> None:
        """Shut it down gracefully."""
        self.terminate(self._served)
        self.record_output(self._served)


class Workers(OneProcess):
    """Four workers and their supervisor."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Start them."""
        await super().open(stack)
        lines = await stack.enter_async_context(open_network(0, self._port))
        self.url = f"http://127.0.0.1:{lines.forwarder}/mcp"

    def start(self) -> RunningServer:
        """Start the supervisor."""
        return self.serve(self._port, "--workers", str(_WORKERS), restart_intensity=1000)

    def is_ready(self) -> bool:
        """Return whether all workers are ready."""
        return super().is_ready() and len(children(self._served.process.pid)) == _WORKERS and _ready(self._port)

    def stops_as_a_whole(self, injection: FaultInjection) -> bool:
        """Return whether the supervisor stops, and not one worker."""
        return injection.who < _ALL

    async def perform(self, injection: FaultInjection) -> Sequence[int]:
        """Inject a fault into one worker, or all of them."""
        workers = sorted(children(self._served.process.pid))
        pid = workers[int(injection.who * len(workers))]
        match injection.kind:
            case "death":
                await super().perform(injection)
                for worker in workers:
                    _signal(worker, signal.SIGKILL)
                return workers
            case "term" if self.stops_as_a_whole(injection):
                await super().perform(injection)
                return workers
            case "term":
                _signal(pid, signal.SIGTERM)
                async with asyncio.timeout(PATIENCE):
                    while pid in children(self._served.process.pid):
                        await asyncio.sleep(_LOOK)
                self._stopped = time.monotonic()
            case "full":
                await self.fill_disk(workers, self._port, injection.lasts)
                return ()
            case "clock":
                await _at_another_time(workers if injection.who < _ALL else [pid], injection)
                return ()
            case "kill":
                _signal(pid, signal.SIGKILL)
            case _:
                await _asleep(pid, injection.lasts)
        return (pid,)


class OverValkey(Deployment):
    """Three processes that share one Valkey."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Start them."""
        words = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")
        self._valkey = Valkey(self.folder, *words).start()
        stack.callback(self._valkey.kill)
        held = [HeldPort() for _ in range(_PROCESSES)]
        for port in held:
            stack.callback(port.close)
        self._ports = [port.number for port in held]
        self._lines: Network = await stack.enter_async_context(open_network(self._valkey.port, *self._ports))
        self.url = f"http://127.0.0.1:{self._lines.forwarder}/mcp"
        self._served = [self._start(port) for port in self._ports]
        stack.callback(lambda: [served.close() for served in self._served])

    def _start(self, port: int) -> RunningServer:
        redis = f"redis://127.0.0.1:{self._lines.proxy}"
        return self.serve(port, "--redis", redis, "--patience", str(self.lease))

    def is_ready(self) -> bool:
        """Return whether all of them listen."""
        return all(served.listens() and _ready(served.port) for served in self._served)

    def stops_as_a_whole(self, injection: FaultInjection) -> bool:
        """Return False: one process stops at a time."""
        del injection
        return False

    async def perform(self, injection: FaultInjection) -> Sequence[int]:
        """Inject a fault into a process, Valkey, or the connection between them."""
        which = int(injection.who * _PROCESSES)
        pids = [served.process.pid for served in self._served]
        match injection.kind:
            case "death":
                for number in range(_PROCESSES):
                    self._served[number].kill()
                await self._restart(0.0)
                for number in range(_PROCESSES):
                    self._again(number)
                return pids
            case "kill":
                self._served[which].kill()
                self._again(which)
                return (pids[which],)
            case "term":
                await asyncio.to_thread(self.terminate, self._served[which])
                self._again(which)
                return (pids[which],)
            case "stop":
                await self._stop(which, injection.lasts)
                return (pids[which],)
            case "clock":
                await _at_another_time(pids if injection.who < _ALL else [pids[which]], injection)
            case _:
                await self._disturb(injection)
        return ()

    async def _disturb(self, injection: FaultInjection) -> None:
        """Inject a fault into Valkey, or the connections to it."""
        match injection.kind:
            case "restart":
                await self._restart(injection.lasts)
            case "full":
                await self._fill_disk(injection)
            case "drop":
                await asyncio.to_thread(self._drop, Random(injection.who))
            case "cut":
                await self._between("cut", "mend", injection.lasts)
            case "stall":
                await self._between("stall", "flow", injection.lasts)
            case _:
                with forged_messages(self._valkey):
                    await asyncio.sleep(injection.lasts)

    def _again(self, which: int) -> None:
        self.record_output(self._served[which])
        self._served[which] = self._start(self._ports[which])

    async def _fill_disk(self, injection: FaultInjection) -> None:
        """Leave Valkey little room for the next write, which it may not finish. With `appendfsync always` it ends then,
        and starts again when there is room.
        """
        written = max(file.stat().st_size for file in self.folder.glob("appendonlydir/*.aof"))
        with full_disk([self._valkey.pid], written + int(injection.who * _LAST_WRITE)):
            await _until(lambda: not self._valkey.alive)
        await self._restart(injection.lasts)

    async def _restart(self, lasts: float) -> None:
        self._valkey.kill()
        await asyncio.sleep(lasts)
        await asyncio.to_thread(self._valkey.start)

    async def _stop(self, which: int, lasts: float) -> None:
        """Suspend a process; after a while the load balancer skips it."""
        asleep = asyncio.ensure_future(_asleep(self._served[which].process.pid, lasts))
        await asyncio.sleep(_NOTICED)
        await self._lines.say(f"avoid {self._ports[which]}")
        await asleep
        await self._lines.say("meet")

    def _drop(self, chance: Random) -> None:
        """Break about half of all connections, so that a process keeps some of its own."""
        with self._valkey.client() as client:
            for other in client.client_list():
                if int(other["id"]) != client.client_id() and chance.random() < _DROPPED:
                    client.client_kill_filter(_id=other["id"])

    async def _between(self, first: str, then: str, lasts: float) -> None:
        await self._lines.say(first)
        await asyncio.sleep(lasts)
        await self._lines.say(then)

    def stop(self) -> None:
        """Shut them down gracefully, one after another."""
        for served in self._served:
            self.terminate(served)
            self.record_output(served)


class OverSentinel(OverValkey):
    """Three processes that share a Valkey, whose replica confirms all writes and takes its place when it dies."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Start them."""
        self._numbers = count()
        self._valkey = self._start_valkey()
        self._replica = self._start_valkey(of=self._valkey)
        self._watcher = sentinel(self.folder / "sentinel", _SERVICE, self._valkey.port, down_after=_DOWN_AFTER)
        stack.callback(lambda: [server.kill() for server in (self._watcher, self._replica, self._valkey)])
        held = [HeldPort() for _ in range(_PROCESSES)]
        for port in held:
            stack.callback(port.close)
        self._ports = [port.number for port in held]
        self._lines = await stack.enter_async_context(open_network(0, *self._ports))
        self.url = f"http://127.0.0.1:{self._lines.forwarder}/mcp"
        await self._synchronized()
        self._served = [self._start(port) for port in self._ports]
        stack.callback(lambda: [served.close() for served in self._served])

    def _start_valkey(self, of: Valkey | None = None) -> Valkey:
        settings = {"appendonly": "yes", "appendfsync": "always", "repl-diskless-sync-delay": "0"}
        if of is not None:
            settings["replicaof"] = f"127.0.0.1 {of.port}"
        return started(self.folder / f"valkey-{next(self._numbers)}", **settings)

    def _start(self, port: int) -> RunningServer:
        redis = f"redis+sentinel://127.0.0.1:{self._watcher.port}/{_SERVICE}"
        return self.serve(port, "--redis", redis, "--patience", str(self.lease), "--replicas", "1")

    async def perform(self, injection: FaultInjection) -> Sequence[int]:
        """Inject a fault into a process, or kill the master."""
        match injection.kind:
            case "death":
                pids = [served.process.pid for served in self._served]
                for number in range(_PROCESSES):
                    self._served[number].kill()
                    self._again(number)
                return pids
            case "failover":
                await self._fail_over()
                return ()
            case _:
                return await super().perform(injection)

    async def _fail_over(self) -> None:
        """Kill the master, wait until the replica has taken its place, and start another replica."""
        self._valkey.kill()
        await _until(lambda: _replication(self._replica, "role") == "master")
        self._valkey, self._replica = self._replica, self._start_valkey(of=self._replica)
        await self._synchronized()

    async def _synchronized(self) -> None:
        await _until(lambda: _replication(self._replica, "master_link_status") == "up")


def _replication(server: Valkey, fact: str) -> str:
    """Return a value of a server's replication status; empty if the connection is lost, since Sentinel closes the
    connections of a replica that it promotes."""
    try:
        with server.client() as client:
            return client.info("replication").get(fact, "")
    except ValkeyConnectionError:
        return ""


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def _asleep(pid: int, seconds: float) -> None:
    _signal(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        _signal(pid, signal.SIGCONT)


async def _at_another_time(pids: Sequence[int], injection: FaultInjection) -> None:
    """Set the clock of some processes forward or back, and after a while right again."""
    there, back = Random(injection.who).sample((FORWARD, BACK), 2)
    for pid in pids:
        _signal(pid, there)
    await asyncio.sleep(injection.lasts)
    for pid in pids:
        _signal(pid, back)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(_LOOK)


def _ready(port: int) -> bool:
    """Return whether all processes behind a port report that they are ready."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
        told = json.load(answer)
        return bool(told["workers"]) and all(state == "ready" for state in told["workers"].values())
    return False


_KINDS: dict[str, Callable[[Path, float, Sequence[str], Sequence[str]], Deployment]] = {
    "file": OneProcess,
    "workers": Workers,
    "valkey": OverValkey,
    "sentinel": OverSentinel,
}


@asynccontextmanager
async def opened(
    plan: Plan, folder: Path, fault: Fault | None = None, interpreters: Sequence[str] = (sys.executable,)
) -> AsyncIterator[Deployment]:
    """The deployment of a plan, with all processes ready."""
    options = ["--seed", str(plan.seed), *(["--fault", fault] if fault else [])]
    deployment = _KINDS[plan.deployment](folder, plan.lease, options, interpreters)
    async with AsyncExitStack() as stack:
        await deployment.open(stack)
        await deployment.ready()
        yield deployment
