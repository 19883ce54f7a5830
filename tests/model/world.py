"""A deployment in one thread: processes with the real code of the cluster, a store, and a bus. Nothing happens by itself.

Every store operation, every message and every due timer is a step that waits in a queue until the explorer runs it. So a
schedule is a list of choices, and the same choices always give the same execution. Between two steps a process has run
everything that it could run.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from tests.model.process_loop import ProcessLoop

from trunkline.clock import LoopClock, Timer
from trunkline.errors import StoreUnavailable
from trunkline.facts import Observers
from trunkline.server.cluster.cluster import Cluster
from trunkline.stores.bus import BusListener
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.memory import MemoryStore
from trunkline.stores.store import Changed, Held, Item, Lease, Watch, Write

LEASE: Final = 3.0  # seconds: `process_lease`
TICK: Final = LEASE / 3  # the time between two heartbeats
START: Final = 1000.0


class NoTimer:
    """A timer that never runs."""

    def cancel(self) -> None:
        """Do nothing."""


class StoreClock:
    """Clock of the shared store. Its sweep is not part of the model: expired data is invisible anyway."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Ignore the timer."""
        return NoTimer()


Lane = tuple[int, str, str]
"""What happens in order: the store operations of one process, the messages from one process to another, or the timers of
one process."""


class Step:
    """Something that can happen to one process."""

    __slots__ = ("label", "lane", "process", "run")

    def __init__(self, process: "Process", lane: Lane, label: str, run: Callable[[], None]) -> None:
        self.process = process
        self.lane = lane
        self.label = label
        self.run = run


class Operation(Step):
    """A store operation that was called and has not taken effect."""

    __slots__ = ("apply", "outcome")

    def __init__(
        self, process: "Process", label: str, apply: Callable[[], Awaitable[Any]], outcome: "asyncio.Future[Any]"
    ) -> None:
        super().__init__(process, (1, repr(process), ""), label, self.execute)
        self.apply = apply
        self.outcome = outcome

    def execute(self) -> None:
        """Let the operation take effect, and return its outcome to the process."""
        world = self.process.world
        if world.store_down:
            self.fail()
            return
        try:
            result, error = finish(self.apply()), None
        except Exception as raised:
            result, error = None, raised
        self._return(result, error)

    def fail(self, *, applied: bool = False) -> None:
        """Return an error to the process, whether or not the operation takes effect."""
        if applied:
            with contextlib.suppress(Exception):  # the process does not learn of it
                finish(self.apply())
        self._return(None, StoreUnavailable("the connection to the store is lost"))

    def _return(self, result: Any, error: BaseException | None) -> None:
        def set_outcome() -> None:
            if self.outcome.done():  # the process has stopped waiting
                return
            if error is None:
                self.outcome.set_result(result)
            else:
                self.outcome.set_exception(error)

        shown = type(error).__name__ if error is not None else repr(result)
        self.process.receive(f"{self.label} -> {shown}", set_outcome)


def finish(operation: Awaitable[Any]) -> Any:
    """Return the result of an operation that does not wait."""
    coroutine: Any = operation
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the store in memory does not wait")


class ProcessStore:
    """The store as one process sees it."""

    lasting = True

    def __init__(self, process: "Process", shared: MemoryStore) -> None:
        self._process = process
        self._shared = shared

    def bus(self) -> "ProcessBus":
        return ProcessBus(self._process)

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def get(self, key: str) -> Item | None:
        return await self._call(f"get {key}", lambda: self._shared.get(key))

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        return await self._call(f"scan {prefix}", lambda: self._shared.scan(prefix, after=after, limit=limit))

    def commit(
        self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False
    ) -> "asyncio.Future[int]":
        label = "commit " + ", ".join(f"{type(write).__name__} {write.key}" for write in writes)
        return self._call(label, lambda: self._process.world.commit(writes, fence, release=release))

    def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> "asyncio.Future[Lease | Held]":
        label = f"acquire {name} as {holder}" + ("" if over is None else f" over {over}")
        return self._call(label, lambda: self._shared.acquire(name, holder, ttl, over=over, writes=writes))

    def renew(self, lease: Lease, ttl: float) -> "asyncio.Future[Lease]":
        return self._call(f"renew {lease.name}", lambda: self._shared.renew(lease, ttl))

    def release(self, lease: Lease) -> "asyncio.Future[None]":
        return self._call(f"release {lease.name}", lambda: self._shared.release(lease))

    def watch(self, prefix: str, callback: Changed) -> Watch:
        raise NotImplementedError

    def _call(self, label: str, apply: Callable[[], Awaitable[Any]]) -> "asyncio.Future[Any]":
        outcome = self._process.loop.create_future()
        self._process.world.add(Operation(self._process, label, apply, outcome))
        return outcome


class Message(Step):
    """A message, or the news of a connection, on its way to a process."""

    def __init__(self, process: "Process", sender: str, receiver: str, label: str, run: Callable[[], None]) -> None:
        super().__init__(process, (2, sender, receiver), label, run)


class ProcessBus:
    """The bus as one process sees it."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._world = process.world
        self.name = ""
        self.listener: BusListener | None = None

    async def open(self, name: str, ears: BusListener, identity: StoreIdentity) -> None:
        self.name, self.listener = name, ears
        for peer in self._world.buses.values():
            ears.met(peer.name)
            self._world.post(self, peer, "met", lambda listener: listener.met(name))
        self._world.buses[name] = self

    def send(self, to: str, message: bytes) -> bool:
        peer = self._world.buses.get(to)
        if peer is None or not peer.process.alive:
            return not self._world.deaths_are_seen
        self._world.post(self, peer, message.hex(), lambda listener: listener.heard(self.name, message))
        return True

    def publish(self, message: bytes) -> None:
        for peer in list(self._world.buses.values()):
            if peer is not self and peer.process.alive:
                self._world.post(self, peer, message.hex(), lambda listener: listener.heard(self.name, message))

    async def sent(self) -> None:
        """Do nothing: messages leave at once."""

    async def close(self) -> None:
        self._world.buses.pop(self.name, None)

    @property
    def process(self) -> "Process":
        return self._process


class Process:
    """A process: a cluster membership, and what it owns."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.paused = False
        self.loop = ProcessLoop(lambda: world.now)
        self.store = ProcessStore(self, world.shared)
        self._inbox: deque[Callable[[], None]] = deque()  # what has arrived during a pause
        self.history = 0  # hash of everything that this process has received
        self._clock = LoopClock(self.loop)
        self.cluster = Cluster(
            self.store, self.store.bus(), lease_ttl=LEASE, clock=self._clock, wall=self._clock, observers=Observers(())
        )

    def __repr__(self) -> str:
        return f"P{self.number}"

    @property
    def clock(self) -> LoopClock:
        """Clock of this process, which also is its wall clock."""
        return self._clock

    def receive(self, label: str, action: Callable[[], None]) -> None:
        """Run an action in this process now, or when it resumes."""
        if not self.alive:
            return
        self.history = hash((self.history, label))
        if self.paused:
            self._inbox.append(action)
            return
        self.loop.call_soon(action)
        self.loop.run()

    def start(self, label: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start a coroutine in this process."""

        def begin() -> None:
            self.world.tasks.append(asyncio.ensure_future(work(), loop=self.loop))

        self.receive(label, begin)

    def wake(self) -> None:
        """Run the due timers."""
        self.history = hash((self.history, self.world.now))
        self.loop.run_due()

    def pause(self) -> None:
        """Stop running."""
        self.paused = True
        self.history = hash((self.history, "pause"))

    def resume(self) -> None:
        """Run again. The timers that were due meanwhile run first, as in a loop that returns from a long callback."""
        self.paused = False
        self.history = hash((self.history, "resume", self.world.now))
        self.loop.run_due()
        while self._inbox:
            self.loop.call_soon(self._inbox.popleft())
            self.loop.run()

    def crash(self) -> None:
        """End without a last word."""
        self.alive = self.paused = False
        self._inbox.clear()

    def close(self) -> None:
        """Cancel everything that is in progress."""
        self.alive, self.paused = True, False
        self._inbox.clear()
        self.loop.cancel_tasks()


class World:
    """All processes, the store, the messages on their way, and the time."""

    def __init__(self, processes: int, *, deaths_are_seen: bool) -> None:
        """With `deaths_are_seen`, the bus reports the end of a process to its peers, as on one machine."""
        self.now = START
        self.deaths_are_seen = deaths_are_seen
        self.store_down = False
        self.shared = MemoryStore.ready(StoreClock(lambda: self.now))
        self.lanes: dict[Lane, deque[Step]] = {}
        self.stalled: set[Lane] = set()
        self.buses: dict[str, ProcessBus] = {}
        self.tasks: list[asyncio.Future[Any]] = []
        self.processes = [Process(self, number) for number in range(processes)]

    def commit(self, writes: Sequence[Write], fence: Lease | None, *, release: bool) -> Awaitable[int]:
        """Commit to the shared store."""
        return self.shared.commit(writes, fence=fence, release=release)

    # --- steps -------------------------------------------------------------------------------------

    def add(self, step: Step) -> None:
        """Add a step to its lane."""
        self.lanes.setdefault(step.lane, deque()).append(step)

    def next_step(self) -> Step | None:
        """Return the step that comes next unless the explorer decides otherwise: timers, store operations, messages."""
        lanes = self.lanes.keys() - self.stalled if self.stalled else self.lanes
        lane = min(lanes, default=None)
        return None if lane is None else self.lanes[lane][0]

    def take(self, step: Step) -> Step:
        """Remove the first step of a lane."""
        lane = self.lanes[step.lane]
        lane.popleft()
        if not lane:
            del self.lanes[step.lane]
        return step

    # --- bus ---------------------------------------------------------------------------------------

    def post(self, sender: ProcessBus, to: ProcessBus, label: str, deliver: Callable[[BusListener], None]) -> None:
        """Put a message on its way."""
        label = f"{sender.name} to {to.name}: {label}"

        def run() -> None:
            listener = to.listener
            if listener is not None and self.buses.get(to.name) is to:
                to.process.receive(label, lambda: deliver(listener))

        self.add(Message(to.process, sender.name, to.name, label, run))

    def cut(self, one: str, other: str) -> None:
        """Lose the messages between two processes, and report that to both."""
        for lane in ((2, one, other), (2, other, one)):
            self.lanes.pop(lane, None)
            self.stalled.discard(lane)
        self._report_loss(one, other)
        self._report_loss(other, one)

    def _report_loss(self, name: str, peer: str) -> None:
        bus = self.buses.get(name)
        if bus is not None and bus.listener is not None and bus.process.alive:
            process, listener, label = bus.process, bus.listener, f"{name} lost {peer}"
            self.add(Message(process, peer, name, label, lambda: process.receive(label, lambda: listener.lost(peer))))

    def crash(self, process: Process, *, operations_continue: bool) -> None:
        """End a process. What it has sent is still delivered; its store operations in progress may take effect."""
        process.crash()
        name = process.cluster.name
        kept = 1 if operations_continue else None
        for lane in [lane for lane, steps in self.lanes.items() if lane[0] != kept and steps[0].process is process]:
            del self.lanes[lane]
            self.stalled.discard(lane)
        self.buses.pop(name, None)
        if self.deaths_are_seen:
            for peer in list(self.buses):
                self._report_loss(peer, name)

    # --- time --------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let time pass until the next heartbeat is due."""
        self.now += TICK
        for process in self.processes:
            if process.alive:
                lane = (0, repr(process), "")
                self.lanes.pop(lane, None)
                self.add(Step(process, lane, f"{process!r} wakes", lambda process=process: self._wake(process)))

    @staticmethod
    def _wake(process: Process) -> None:
        if process.alive and not process.paused:
            process.wake()

    def close(self) -> None:
        """Cancel everything that is in progress, also in crashed processes."""
        self.store_down = True
        self.stalled.clear()
        self.buses.clear()
        for process in self.processes:
            process.close()
        while (step := self.next_step()) is not None:
            self.take(step).run()

    # --- state -------------------------------------------------------------------------------------

    def fingerprint(self) -> int:
        """Return a hash that differs for states with different futures. A process is a function of what it has
        received, so its history stands for its state."""
        store = self.shared
        leases = frozenset(store._leases.values())
        items = frozenset(item for home in store._homes.values() for item in home.values())
        return hash(
            (
                self.now,
                leases,
                items,
                store._last_version,
                self.store_down,
                tuple((process.history, process.alive, process.paused) for process in self.processes),
                frozenset((lane, tuple(step.label for step in steps)) for lane, steps in self.lanes.items()),
                frozenset(self.stalled),
            )
        )
