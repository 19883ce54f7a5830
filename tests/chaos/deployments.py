"""The servers of a campaign, through all that is done to them: one process on a file, four on one port, or three over one
Valkey. Of the last two each request reaches another process."""

import asyncio
import contextlib
import json
import os
import signal
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.diary import PATIENCE, Diary
from tests.chaos.faulty import Fault
from tests.chaos.history import Trouble
from tests.chaos.lines import Lines, laid
from tests.chaos.plan import Mischief, Plan
from tests.contract.valkey import Valkey
from tests.faults.processes import Served
from tests.ports import HeldPort
from tests.processes import children

from trunkline.server.shutdown import EXIT_CODES

__all__ = ["Deployment", "opened"]

_WORKERS = 4
_PROCESSES = 3
_NOTICED = 0.5  # seconds after which whoever spreads connections knows that a process does not answer
_LOOK = 0.02  # seconds between two looks
_DROPPED = 0.5  # the share of connections to Valkey that break while the others stay
_ALL = 0.5  # the share of graceful stops that stop all workers, and not one of them
_DRAIN_OVERRAN = EXIT_CODES["DrainPendingRequests"]
_SETTINGS = {"stream_retry": 0.05, "task_poll_interval": 0.1, "drain_timeout": 0.05}


class Deployment(ABC):
    """A server, of however many processes."""

    def __init__(self, folder: Path, lease: float, options: Sequence[str]) -> None:
        self.lease = lease
        self.folder = folder
        self.effects = folder / "effects"
        self.effects.touch()
        self.options = options
        self.troubles: list[Trouble] = []
        self.complaints: list[str] = []
        self.url = ""

    def serve(self, port: int, *options: str, **settings: Any) -> Served:
        """Starts a process."""
        leases = dict.fromkeys(("task_lease", "idempotency_lease", "process_lease"), self.lease)
        given = [*options, *self.options]
        return Served("deployment", port, self.effects, options=given, **_SETTINGS, **leases, **settings)

    def leave(self, served: Served) -> None:
        """Reads the words of a process that has ended, if there is a complaint among them."""
        if served.complaints:
            self.complaints.append(served.said())
        served.close()

    async def strike(self, mischief: Mischief, diary: Diary) -> None:
        """Does something to it, and waits until all is there again."""
        at = time.monotonic()
        diary.strike()
        await self.do(mischief)
        await self.ready()
        diary.back = time.monotonic()
        self.troubles.append(Trouble(mischief.kind, at, diary.back))

    async def ready(self) -> None:
        """Waits until all of it is there."""
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(self.whole):
                await asyncio.sleep(_LOOK)

    def terminate(self, served: Served) -> None:
        """Stop a process by SIGTERM, and wait for its end. Calls may be cut off, and nothing else may take too long."""
        code, _ = served.stop(PATIENCE)
        if code not in {0, _DRAIN_OVERRAN}:
            self.complaints.append(f"exit code {code} after SIGTERM: {served.said()}")

    @abstractmethod
    async def open(self, stack: AsyncExitStack) -> None:
        """Starts it."""

    @abstractmethod
    def whole(self) -> bool:
        """Whether all of it is there."""

    @abstractmethod
    async def do(self, mischief: Mischief) -> None:
        """Does something to it."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it in good order, after all."""


class OneProcess(Deployment):
    """A process on a file."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Starts it."""
        held = HeldPort()
        stack.callback(held.close)
        self._port = held.number
        self._served = self.start()
        stack.callback(self._close)
        self.url = self._served.url

    def start(self) -> Served:
        """The process."""
        return self.serve(self._port)

    def _close(self) -> None:
        self._served.close()

    def whole(self) -> bool:
        """Whether it listens."""
        return self._served.listens()

    async def do(self, mischief: Mischief) -> None:
        """It is killed, or stopped, and comes back at the same place."""
        if mischief.kind == "term":
            await asyncio.to_thread(self.terminate, self._served)
        else:
            self._served.kill()
        self.leave(self._served)
        self._served = self.start()

    def stop(self) -> None:
        """Ends it in good order."""
        self.terminate(self._served)
        self.leave(self._served)


class Workers(OneProcess):
    """Four processes that are watched over by a fifth."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Starts them."""
        await super().open(stack)
        lines = await stack.enter_async_context(laid(0, self._port))
        self.url = f"http://127.0.0.1:{lines.forwarder}/mcp"

    def start(self) -> Served:
        """The one that watches."""
        return self.serve(self._port, "--workers", str(_WORKERS), restart_intensity=1000)

    def whole(self) -> bool:
        """Whether all of them are ready."""
        return super().whole() and len(children(self._served.process.pid)) == _WORKERS and _ready(self._port)

    async def do(self, mischief: Mischief) -> None:
        """One of them is killed, asleep, or stopped; or all of them are."""
        workers = sorted(children(self._served.process.pid))
        pid = workers[int(mischief.who * len(workers))]
        match mischief.kind:
            case "death":
                await super().do(mischief)
                for worker in workers:
                    _signal(worker, signal.SIGKILL)
            case "term" if mischief.who < _ALL:
                await super().do(mischief)
            case "term":
                _signal(pid, signal.SIGTERM)
                async with asyncio.timeout(PATIENCE):
                    while pid in children(self._served.process.pid):
                        await asyncio.sleep(_LOOK)
            case "kill":
                _signal(pid, signal.SIGKILL)
            case _:
                await _asleep(pid, mischief.lasts)


class OverValkey(Deployment):
    """Three processes, which have nothing in common but a Valkey."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Starts them."""
        words = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")
        self._valkey = Valkey(self.folder, *words).start()
        stack.callback(self._valkey.kill)
        held = [HeldPort() for _ in range(_PROCESSES)]
        for port in held:
            stack.callback(port.close)
        self._ports = [port.number for port in held]
        self._lines: Lines = await stack.enter_async_context(laid(self._valkey.port, *self._ports))
        self.url = f"http://127.0.0.1:{self._lines.forwarder}/mcp"
        self._served = [self._start(port) for port in self._ports]
        stack.callback(lambda: [served.close() for served in self._served])

    def _start(self, port: int) -> Served:
        redis = f"redis://127.0.0.1:{self._lines.proxy}"
        return self.serve(port, "--redis", redis, "--patience", str(self.lease))

    def whole(self) -> bool:
        """Whether all of them listen."""
        return all(served.listens() and _ready(served.port) for served in self._served)

    async def do(self, mischief: Mischief) -> None:
        """Something is done to one of them, or to Valkey, or to the line in between."""
        which = int(mischief.who * _PROCESSES)
        match mischief.kind:
            case "death":
                for number in range(_PROCESSES):
                    self._served[number].kill()
                await self._restart(0.0)
                for number in range(_PROCESSES):
                    self._again(number)
            case "kill":
                self._served[which].kill()
                self._again(which)
            case "term":
                await asyncio.to_thread(self.terminate, self._served[which])
                self._again(which)
            case "stop":
                await self._stop(which, mischief.lasts)
            case "restart":
                await self._restart(mischief.lasts)
            case "cut":
                await self._between("cut", "mend", mischief.lasts)
            case "drop":
                await asyncio.to_thread(self._drop, Random(mischief.who))
            case "stall":
                await self._between("stall", "flow", mischief.lasts)

    def _again(self, which: int) -> None:
        self.leave(self._served[which])
        self._served[which] = self._start(self._ports[which])

    async def _restart(self, lasts: float) -> None:
        self._valkey.kill()
        await asyncio.sleep(lasts)
        await asyncio.to_thread(self._valkey.start)

    async def _stop(self, which: int, lasts: float) -> None:
        """After a while nobody is sent there any more."""
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
        """Ends them in good order, one after another."""
        for served in self._served:
            self.terminate(served)
            self.leave(served)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def _asleep(pid: int, seconds: float) -> None:
    _signal(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        _signal(pid, signal.SIGCONT)


def _ready(port: int) -> bool:
    """Whether all processes behind a port say that they are ready."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
        told = json.load(answer)
        return bool(told["workers"]) and all(state == "ready" for state in told["workers"].values())
    return False


_KINDS: dict[str, Callable[[Path, float, Sequence[str]], Deployment]] = {
    "file": OneProcess,
    "workers": Workers,
    "valkey": OverValkey,
}


@asynccontextmanager
async def opened(plan: Plan, folder: Path, fault: Fault | None = None) -> AsyncIterator[Deployment]:
    """The deployment of a plan, all of it there, for as long as it is needed."""
    options = ["--seed", str(plan.seed), *(["--fault", fault] if fault else [])]
    deployment = _KINDS[plan.deployment](folder, plan.lease, options)
    async with AsyncExitStack() as stack:
        await deployment.open(stack)
        await deployment.ready()
        yield deployment
