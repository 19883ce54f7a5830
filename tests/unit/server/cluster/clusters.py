"""Processes that share a store, each with its own clock, for tests of membership."""

import asyncio
from pathlib import Path
from typing import Any

from tests.limits import PATIENCE

from trunkline.clock import LoopClock
from trunkline.errors import StoreUnavailable
from trunkline.facts import CrewStep, Fact, Observers
from trunkline.server.cluster.cluster import Cluster
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.shared_values import load_identity
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Store
from trunkline.testing import ManualClock, RecordingObserver

SECONDS = 60.0  # that one may be silent, on its own clock; also the real time that a store may take for an operation
BEAT = SECONDS / 3


class FactRecorder(RecordingObserver):
    """Records facts, and wakes waiters."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def on(self, fact: Fact) -> None:
        super().on(fact)
        self._news.set()

    def steps(self, process: str | None = None) -> list[str]:
        """The events so far, of one process or of all."""
        return [fact.step for fact in self.of(CrewStep) if process in (None, fact.process)]

    async def until(self, step: str, times: int = 1) -> str:
        """Wait for the nth event of a kind; return the node of the last one."""
        async with asyncio.timeout(PATIENCE):
            while len(found := [fact.process for fact in self.of(CrewStep) if fact.step == step]) < times:
                self._news.clear()
                await self._news.wait()
        return found[-1]


class FaultyStore(SqliteStore):
    """A store that counts its leases, and can be unavailable."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        super().__init__(path, clock=clock)
        self.asked: list[str] = []
        self.unavailable = False
        self.exempt_node: str | None = None  # nodes for which it works all the same
        self.slow: asyncio.Event | None = None

    def acquire(self, name: str, *rest: Any, **more: Any) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._do(name, super().acquire, name, *rest, **more))

    def renew(self, lease: Any, ttl: float) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._do(lease.name, super().renew, lease, ttl))

    async def _do(self, name: str, act: Any, *rest: Any, **more: Any) -> Any:
        self.asked.append(name)
        if self.slow is not None:
            await self.slow.wait()
        if self.unavailable and name != self.exempt_node:
            raise StoreUnavailable("not now")
        return await act(*rest, **more)


class Member:
    """One process."""

    def __init__(self, store: Store, clock: Any, seconds: float = SECONDS) -> None:
        self.store: Any = store
        self.clock = clock
        self.seen = FactRecorder()
        bus = store.bus()
        assert bus is not None
        observers = Observers([self.seen])
        self.cluster = Cluster(store, bus, lease_ttl=seconds, clock=clock, wall=clock, observers=observers)
        self.heard: list[tuple[str, bytes]] = []
        self.lost: list[str | None] = []
        self.evictions = 0
        self.missed = 0
        self.confirms: asyncio.Future[None] | None = None  # None: at once
        self.passed: asyncio.Queue[None] = asyncio.Queue()
        self.cluster.on(b"t", self._hear)
        self.cluster.on(b"p", lambda _, __: self.passed.put_nowait(None))
        self.cluster.on_lost(self.lost.append)
        self.cluster.on_evicted(self._count_evictions)
        self.cluster.on_missed(self._count_missed)

    def _hear(self, sender: str, body: bytes) -> "asyncio.Future[None] | None":
        self.heard.append((sender, body))
        return self.confirms

    def _count_evictions(self) -> None:
        self.evictions += 1

    def _count_missed(self) -> None:
        self.missed += 1

    @property
    def name(self) -> str:
        return self.cluster.name

    async def beat(self, seconds: float = BEAT) -> None:
        """Let time pass, and run what falls due."""
        self.clock.advance(seconds)
        if (beating := self.cluster.membership._renewal) is not None:
            await asyncio.wait([beating])

    async def die_silently(self) -> None:
        """End like a killed process: without a message, and without releasing its lease."""
        await self.cluster.close()


async def round_trip(one: Member, other: Member) -> None:
    """When this returns, each has received the other's earlier messages, and the replies to them."""
    async with asyncio.timeout(PATIENCE):
        for sender, receiver in ((one, other), (other, one), (one, other)):
            assert sender.cluster.send(receiver.name, b"p", b"")
            await receiver.passed.get()


class ClusterMembers:
    """Processes that share a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._all: list[Member] = []

    async def one(self) -> Member:
        """Add a process that has joined and is known to all others."""
        clock = ManualClock(start=1_000_000.0)
        store = FaultyStore(self._path, clock)
        await store.open()
        await load_identity(store, clock.now() - SECONDS)  # as in a deployment that is older than a lease
        member = Member(store, clock)
        self._all.append(member)
        await member.cluster.join()
        for other in self._all[:-1]:
            if other.name in member.cluster.peers:
                await round_trip(member, other)
        return member

    async def end(self) -> None:
        for member in self._all:
            member.store.unavailable, member.store.slow = False, None
            await member.cluster.leave()
            await member.store.close()


async def on_redis(url: str, seconds: float = 6.0) -> Member:
    """A process on Redis; time passes on its clock and on that of Redis."""
    store = RedisStore(url, prefix="crew")
    await store.open()
    member = Member(store, LoopClock(asyncio.get_running_loop()), seconds)
    await member.cluster.join()
    return member


async def done(telling: "asyncio.Future[None] | None") -> None:
    assert telling is not None
    async with asyncio.timeout(PATIENCE):
        await telling
