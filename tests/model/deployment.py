"""The scenario of the model checker: three processes, two sessions, one task and a broadcast, with its invariants."""

from collections.abc import Callable
from typing import Any, Final

from tests.model.explorer import Choice
from tests.model.owners import OWNER, TASK_ID, Owner
from tests.model.world import Message, Operation, Process, Step, World

from trunkline.errors import StoreError
from trunkline.protocol.tasks import TaskRecord, TaskState
from trunkline.server.tasks.repository import key_of_task
from trunkline.wire import codec

PROCESSES: Final = 3
FIRST, SECOND = "session/1", "session/2"
_SETTLING_TICKS: Final = 10  # after the last fault: more than three leases
_MAX_STEPS: Final = 400  # between two ticks

_decode_entries: Final = codec.json_decoder(list[str])
_decode_record: Final = codec.decoder(TaskRecord)


class Deployment:
    """Three processes that share a store, and clients that use them."""

    def __init__(self, *, deaths_are_seen: bool, short: bool = False, few_faults: bool = False) -> None:
        """With `deaths_are_seen`, processes learn of the end of a peer at once, as on one machine. With `short`, the
        clients do less. With `few_faults`, processes crash and pause, but the store and the bus do not fail."""
        self._few_faults = few_faults
        self.world = World(PROCESSES, deaths_are_seen=deaths_are_seen)
        self.owners = [Owner(process) for process in self.world.processes]
        self.stored: dict[str, list[str]] = {FIRST: [], SECOND: []}  # acknowledged entries
        self.task_acknowledged = False
        self.announced: dict[str, dict[int, int]] = {}  # by text: by process, what it had missed before
        self.completed: set[str] = set()  # broadcasts whose sender was told that all peers have handled them
        self._entries = 0
        for owner in self.owners:
            owner.process.start("join", owner.cluster.join)
            self._settle()
        self._append(0, FIRST)
        self._append(1, SECOND)
        self._settle()
        self._script = self._make_script(short=short)
        self._next = 0

    def _make_script(self, *, short: bool) -> list[tuple[str, Callable[[], None]]]:
        """Return what the clients do, in order, and the passing of time."""
        if short:
            return [
                ("P0 creates the task", lambda: self._create_task(0)),
                ("a client appends to the first session at P0", lambda: self._append(0, FIRST)),
                ("tick", self._tick),
                ("P1 broadcasts", lambda: self._announce(1, "one")),
                ("tick", self._tick),
                ("tick", self._tick),
                ("a client appends to the first session at P1", lambda: self._append(1, FIRST)),
            ]
        return [
            ("P0 creates the task", lambda: self._create_task(0)),
            ("a client appends to the first session at P0", lambda: self._append(0, FIRST)),
            ("P1 broadcasts", lambda: self._announce(1, "one")),
            ("tick", self._tick),
            ("a client appends to the first session at P1", lambda: self._append(1, FIRST)),
            ("a client appends to the second session at P2", lambda: self._append(2, SECOND)),
            ("tick", self._tick),
            ("P0 broadcasts", lambda: self._announce(0, "two")),
            ("tick", self._tick),
            ("tick", self._tick),
            ("a client appends to the first session at P1", lambda: self._append(1, FIRST)),
            ("a client appends to the first session at P0", lambda: self._append(0, FIRST)),
            ("a client appends to the second session at P0", lambda: self._append(0, SECOND)),
            ("tick", self._tick),
        ]

    # --- work --------------------------------------------------------------------------------------

    def _append(self, number: int, key: str) -> None:
        owner, self._entries = self.owners[number], self._entries + 1
        entry = f"e{self._entries}"

        async def append() -> None:
            try:
                if await owner.append(key, entry) is None:
                    self.stored[key].append(entry)
            except StoreError:
                pass  # the client does not know whether the entry is stored

        owner.process.start(f"append {entry} to {key}", append)

    def _create_task(self, number: int) -> None:
        owner = self.owners[number]

        async def create() -> None:
            try:
                await owner.create_task()
                self.task_acknowledged = True
            except StoreError:
                pass

        owner.process.start("create the task", create)

    def _announce(self, number: int, text: str) -> None:
        owner = self.owners[number]

        async def announce() -> None:
            self.announced[text] = {other.process.number: other.missed for other in self.owners}
            await owner.announce(text)
            self.completed.add(text)

        owner.process.start(f"announce {text}", announce)

    def _tick(self) -> None:
        self.world.tick()
        for owner in self.owners:
            owner.process.receive("heartbeat", owner.heartbeat)

    # --- scenario ----------------------------------------------------------------------------------

    def fingerprint(self) -> int:
        """Return a hash of the state."""
        announced = tuple((text, *missed.values()) for text, missed in self.announced.items())
        return hash((self.world.fingerprint(), self._next, announced))

    def go_on(self) -> Choice | None:
        """Return the choice of the next step, or of the next work of the clients if nothing else can happen."""
        step = self.world.next_step()
        if step is not None:
            return Choice(step.label, lambda: self.world.take(step).run())
        return self._next_work(delays=0) if self._next < len(self._script) else None

    def others(self) -> list[Choice]:
        """Return what can happen instead of that."""
        step = self.world.next_step()
        found: list[Choice] = []
        if step is not None:
            found += [choice for choice in self._disturbances(step) if not (self._few_faults and choice.faults)]
            if self._next < len(self._script):
                found.append(self._next_work(delays=1))
        else:  # when all others have come to rest, which includes that time passes
            found += self._recoveries()
        found += self._faults(step)
        return found

    def _next_work(self, *, delays: int) -> Choice:
        label, action = self._script[self._next]
        return Choice(label, lambda: self._work(action), delays=delays)

    def _work(self, action: Callable[[], None]) -> None:
        self._next += 1
        action()

    def _disturbances(self, step: Step) -> list[Choice]:
        """Return what can happen to the next step instead of it."""
        world = self.world
        if isinstance(step, Operation):
            return [
                Choice(f"stall {step.label}", lambda: world.stalled.add(step.lane), delays=1),
                Choice(f"refuse {step.label}", lambda: _as_operation(world.take(step)).fail(), faults=1),
                Choice(
                    f"lose the reply to {step.label}",
                    lambda: _as_operation(world.take(step)).fail(applied=True),
                    faults=1,
                ),
            ]
        if isinstance(step, Message):
            return [
                Choice(f"stall {step.label}", lambda: world.stalled.add(step.lane), delays=1),
                Choice(f"lose {step.label}", lambda: world.cut(step.lane[1], step.lane[2]), faults=1),
            ]
        return []

    def _faults(self, step: Step | None) -> list[Choice]:
        """Return the faults that can begin now. A fault of one process commutes with the steps of the others, so it is
        a choice only before a step of its own, or when all have come to rest."""
        world = self.world
        found: list[Choice] = []
        if not self._few_faults and not world.store_down and (step is None or isinstance(step, Operation)):
            found.append(Choice("the store is down", lambda: self._set_store(down=True), faults=1))
        for process in world.processes:
            if not process.alive or not (step is None or step.process is process):
                continue
            found.append(self._crash(process, operations_continue=False))
            if (1, repr(process), "") in world.lanes:
                found.append(self._crash(process, operations_continue=True))
            if not process.paused:
                found.append(Choice(f"{process!r} pauses", process.pause, faults=1))
        return found

    def _crash(self, process: Process, *, operations_continue: bool) -> Choice:
        label = f"{process!r} crashes" + (" while its operations take effect" if operations_continue else "")
        return Choice(label, lambda: self.world.crash(process, operations_continue=operations_continue), faults=1)

    def _recoveries(self) -> list[Choice]:
        world = self.world
        found = [Choice("the store is up", lambda: self._set_store(down=False))] * world.store_down
        found += [Choice(f"{process!r} resumes", process.resume) for process in world.processes if process.paused]
        found += [
            Choice(f"{lane} moves again", lambda lane=lane: world.stalled.discard(lane))
            for lane in sorted(world.stalled)
            if lane in world.lanes
        ]
        return found

    def _set_store(self, *, down: bool) -> None:
        self.world.store_down = down

    # --- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `AssertionError` if the state violates an invariant."""
        leases = self.world.shared._leases
        for owner in self.owners:
            process, cluster = owner.process, owner.cluster
            if not process.alive or process.paused or not cluster.lease_valid:
                continue
            name = cluster.name
            lease = leases.get(f"process/{name}")
            holder = None if lease is None else lease.holder
            assert holder == name, f"{process!r} relies on its lease, but {holder} holds it"
            for key, session in owner.sessions.items():
                held = session.lease._lease
                assert session.lease.ended or held is None or leases[key].token == held.token, (
                    f"{process!r} relies on {key}, but {leases[key]} is stored"
                )
            if (run := owner.run_lease) is not None and not owner.leases.may_be_lost(run):
                stored = leases.get(run.name)
                assert stored is None or stored.token == run.token, f"{process!r} runs the task, but {stored} is stored"
        for key, entries in self.stored.items():
            found = self._entries_of(key)
            lost = [entry for entry in entries if entry not in found]
            assert not lost, f"{key} has lost {lost}"
            assert len(set(found)) == len(found), f"{key} has an entry twice: {found}"

    def _entries_of(self, key: str) -> list[str]:
        item = self.world.shared._homes.get(key, {}).get(f"{key}/record")
        return [] if item is None else _decode_entries(item.value)

    def finish(self) -> None:
        """End all faults and let time pass. Then everything acknowledged exists, and everything begun has ended."""
        world = self.world
        world.store_down = False
        world.stalled.clear()
        for process in world.processes:
            if process.paused:
                process.resume()
        self._settle()
        for _ in range(_SETTLING_TICKS):
            self._tick()
            self._settle()
            self.check()
        alive = [owner for owner in self.owners if owner.process.alive]
        if not alive:
            return
        self._check_task()
        self._check_broadcasts(alive)
        self._check_sessions(alive)
        dead = [owner.process.loop for owner in self.owners if not owner.process.alive]
        hung = [task for task in world.tasks if not task.done() and task.get_loop() not in dead]
        assert not hung, f"these did not come to an end: {hung}"
        for owner in alive:
            assert not owner.process.loop.errors, owner.process.loop.errors

    def close(self) -> None:
        """End everything that is in progress."""
        self.world.close()

    def _settle(self) -> None:
        """Run all steps in order."""
        for _ in range(_MAX_STEPS):
            if (step := self.world.next_step()) is None:
                return
            self.world.take(step).run()
        raise AssertionError("the processes do not come to rest")

    def _check_task(self) -> None:
        record = self._record()
        assert record is not None or not self.task_acknowledged, "an acknowledged task does not exist"
        marked = "working/t" in self.world.shared._homes
        if record is not None and (self.task_acknowledged or marked):
            assert record.state is TaskState.COMPLETED, f"the task is {record.state.value} for ever"
            assert not marked, "the mark of an ended task was not deleted"

    def _record(self) -> TaskRecord | None:
        item = self.world.shared._homes.get(f"owner/{OWNER}", {}).get(key_of_task(OWNER, TASK_ID))
        return None if item is None else _decode_record(item.value)

    def _check_broadcasts(self, alive: list[Owner]) -> None:
        for text, missed in self.announced.items():
            for owner in alive:
                known = text in owner.received or owner.missed > missed[owner.process.number]
                sender = owner.process.number == {"one": 1, "two": 0}[text]
                assert known or sender or text not in self.completed, f"{owner.process!r} has missed broadcast {text}"

    def _check_sessions(self, alive: list[Owner]) -> None:
        """Every live process finds each session: it holds it, or knows the live process that does."""
        for key in (FIRST, SECOND):
            for owner in alive:
                entry = f"last of {owner.process!r}"
                found: list[Any] = []
                self._ask(owner, key, entry, found)
                holders = {other.cluster.name: other for other in alive}
                assert found, f"{owner.process!r} does not answer for {key}"
                if found[0] is not None:
                    assert found[0] in holders, f"{owner.process!r} takes {found[0]} for the holder of {key}"
                    again: list[Any] = []
                    self._ask(holders[found[0]], key, entry, again)
                    assert again == [None], f"{found[0]} does not hold {key}: {again}"
        self.check()

    def _ask(self, owner: Owner, key: str, entry: str, found: list[Any]) -> None:
        async def ask() -> None:
            found.append(await owner.append(key, entry))
            if found[0] is None:
                self.stored[key].append(entry)

        owner.process.start(entry, ask)
        self._settle()


def _as_operation(step: Any) -> Operation:
    assert isinstance(step, Operation)
    return step
