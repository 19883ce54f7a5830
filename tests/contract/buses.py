"""Buses for tests: several in this process, and child processes."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from tests.contract.valkey import valkey

from trunkline.stores.bus import Bus
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Store

ROOT = Path(__file__).parents[2]

BUSES: dict[str, Callable[[Path], Store]] = {
    "unix": lambda folder: SqliteStore(folder / "store.db"),
    "redis": lambda folder: RedisStore(valkey().url, prefix=f"{quote(str(folder))}[*]:"),
}

IDENTITY = StoreIdentity("0123456789abcdef", bytes(range(32)), 0.0)

Event = tuple[str, str | None, bytes]


class Listener:
    """A bus listener that records its calls, in order."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.met_ones: set[str] = set()
        self.bus: Bus
        self.sending = False
        self.rejections: list[str] = []

    def heard(self, sender: str, message: bytes) -> None:
        assert not self.sending
        assert sender in self.met_ones
        self.told.append(("heard", sender, message))

    def met(self, name: str) -> None:
        assert not self.sending
        self.told.append(("met", name, b""))
        self.met_ones.add(name)

    def lost(self, name: str | None) -> None:
        assert not self.sending
        self.told.append(("lost", name, b""))

    def rejected(self, why: str) -> None:
        assert not self.sending
        self.rejections.append(why)

    @property
    def lost_ones(self) -> set[str | None]:
        return {name for what, name, _ in self.told if what == "lost"}

    def messages(self, sender: str) -> list[bytes]:
        return [message for what, name, message in self.told if what == "heard" and name == sender]

    def send(self, to: str, message: bytes) -> bool:
        """Send, and check that no callback runs meanwhile."""
        self.sending = True
        sent = self.bus.send(to, message)
        self.sending = False
        return sent


class BusGroup:
    """A bus and its members."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self._listeners: list[Listener] = []
        self._processes: list[asyncio.subprocess.Process] = []

    def bus(self) -> Bus:
        bus = BUSES[self.kind](self._folder).bus()
        assert bus is not None
        return bus

    async def join(self, name: str, bus: Bus | None = None, identity: StoreIdentity = IDENTITY) -> Listener:
        """Add a member in this process."""
        listener = Listener()
        listener.bus = bus or self.bus()
        self._listeners.append(listener)
        await listener.bus.open(name, listener, identity)
        return listener

    async def start(self, name: str) -> asyncio.subprocess.Process:
        """Add a member in a child process, which echoes each message."""
        where = valkey().url if self.kind == "redis" else str(self._folder / "store.db")
        command = [sys.executable, "-m", "tests.contract.bus_peer", where, f"{quote(str(self._folder))}[*]:", name]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
        self._processes.append(process)
        await output_until(process, f"open {name}")
        return process

    async def leave(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        for listener in self._listeners:
            await listener.bus.close()


async def output_until(process: asyncio.subprocess.Process, what: str) -> list[str]:
    """The output of a process up to a line."""
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode().strip()]
    while lines[-1] != what:
        assert lines[-1], "it has ended"
        lines.append((await process.stdout.readline()).decode().strip())
    return lines


def check_order(told: Sequence[Event], sender: str) -> int:
    """Check that numbers of one sender arrived in order and once, and that each gap was reported before the next
    number. Return the number of missing ones.
    """
    missing, expected, known = 0, 0, False
    for what, name, message in told:
        if what == "lost" and name in {sender, None}:
            known = True
        elif what == "heard" and name == sender:
            assert int(message) >= expected, "out of its order, or twice"
            assert int(message) == expected or known, "missing, and nobody was told"
            missing += int(message) - expected
            expected, known = int(message) + 1, False
    return missing
