"""Every schedule of a small deployment, within a budget of faults and delays, keeps the invariants of the protocol."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
from tests.model.deployment import Deployment
from tests.model.explorer import Explorer, Violation
from tests.model.world import World

from trunkline.server.cluster import membership
from trunkline.server.cluster.cluster import Cluster
from trunkline.server.cluster.failure_detector import FailureDetector
from trunkline.server.cluster.membership import ProcessLease
from trunkline.server.sessions.lease import SessionLease
from trunkline.server.tasks import repository
from trunkline.server.tasks.repository import StoredTask, TaskRepository
from trunkline.stores import shared_values

MakeDeployment = Callable[..., Deployment]
SMALL = 5_000  # states: fewer would mean that the explorer stops too early


@pytest.fixture(params=[True, False], ids=["one machine", "several machines"])
def deaths_are_seen(request: pytest.FixtureRequest) -> bool:
    """Whether the bus reports the end of a process."""
    return request.param


@pytest.fixture(autouse=True)
def predictable_names(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Processes choose their names from a sequence, and the store has always the same identity, so that an execution can
    be repeated and its states be found again."""
    names = iter(())

    def start_over() -> None:
        nonlocal names
        names = (f"n{number}" for number in count())

    monkeypatch.setattr(membership, "token_hex", lambda _: next(names))
    monkeypatch.setattr(shared_values, "token_hex", lambda size: "0" * 2 * size)
    monkeypatch.setattr(shared_values, "token_bytes", bytes)
    return start_over


@pytest.fixture
def make(predictable_names: Callable[[], None], deaths_are_seen: bool) -> MakeDeployment:
    """Create the deployment in its first state."""

    def make_deployment(**options: bool) -> Deployment:
        predictable_names()
        return Deployment(deaths_are_seen=deaths_are_seen, **options)

    return make_deployment


@pytest.mark.parametrize(("faults", "delays"), [(1, 0), (0, 1)])
def test_invariants_hold_with_any_fault_or_delay(make: MakeDeployment, faults: int, delays: int) -> None:
    explorer = Explorer(partial(make, short=True), faults, delays)
    explorer.explore()
    assert explorer.states > SMALL


def test_execution_can_be_repeated(make: MakeDeployment) -> None:
    def run() -> list[int]:
        deployment, reached = make(short=True), list[int]()
        while choice := deployment.go_on():
            choice.act()
            reached.append(deployment.fingerprint())
        deployment.close()
        return reached

    assert run() == run()


@pytest.mark.long
@pytest.mark.parametrize(("faults", "delays"), [(1, 0), (0, 1)])
def test_states_with_one_fingerprint_have_the_same_future(make: MakeDeployment, faults: int, delays: int) -> None:
    once, again = (Explorer(partial(make, short=True), faults, delays, revisit=revisit) for revisit in (False, True))
    once.explore()
    again.explore()
    assert once.runs <= again.runs
    assert once.seen == again.seen


@pytest.mark.long
@pytest.mark.parametrize(("faults", "delays"), [(1, 0), (0, 1)])
def test_invariants_hold_in_a_longer_scenario(make: MakeDeployment, faults: int, delays: int) -> None:
    explorer = Explorer(make, faults, delays)
    explorer.explore()
    print(f"{explorer.runs} schedules, {explorer.states} states")
    assert explorer.states > SMALL


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("deaths_are_seen", [False], ids=["several machines"], indirect=True)
@pytest.mark.parametrize(("faults", "delays"), [(2, 0), (0, 2)])
def test_invariants_hold_with_two_faults_or_delays(make: MakeDeployment, faults: int, delays: int) -> None:
    explorer = Explorer(partial(make, short=True, few_faults=True), faults, delays)
    explorer.explore()
    print(f"{explorer.runs} schedules, {explorer.states} states")
    assert explorer.states > SMALL


# --- planted mistakes -------------------------------------------------------------------------------


def commit_without_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(World, "commit", lambda self, writes, fence, release: self.shared.commit(writes))


def believe_in_the_lease_of_an_evicted_name(patch: pytest.MonkeyPatch) -> None:
    acquire = ProcessLease.acquire

    async def always(self: ProcessLease) -> bool:
        await acquire(self)
        return True

    patch.setattr(ProcessLease, "acquire", always)


def keep_sessions_after_an_eviction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionLease, "lose", lambda self: None)


def rely_on_a_lease_without_looking_at_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership.Membership, "lease_valid", True)


def evict_without_asking_the_store(patch: pytest.MonkeyPatch) -> None:
    async def evict_if_dead(self: FailureDetector, name: str) -> bool:
        if self._peers.is_silent(name, self._clock.now()):
            self.remove_peer(name, "DeclareDead")
        return self._peers.has_departed(name)

    patch.setattr(FailureDetector, "evict_if_dead", evict_if_dead)


def acknowledge_a_task_before_its_mark(patch: pytest.MonkeyPatch) -> None:
    async def create(self: TaskRepository, holder: str, ttl: float, record: Any, extra: Any) -> Any:
        key = repository.key_of_task(record.client, record.task_id)
        lease: Any = await self._store.acquire(key, holder, ttl, writes=repository._creation_writes(record, extra))
        marking = asyncio.ensure_future(self._store.commit([repository._put_mark(record)]))
        marking.add_done_callback(lambda marked: marked.exception())
        return StoredTask(record, lease.token), lease

    patch.setattr(TaskRepository, "_create_with_mark", create)


def forget_a_broadcast_that_may_be_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cluster, "lost", lambda self, name: None)
    patch.setattr("trunkline.server.cluster.broadcast.ReliableBroadcast.retry_overdue", lambda self: None)


@pytest.mark.parametrize(
    ("plant", "faults", "delays"),
    [
        (commit_without_fence, 0, 1),
        (believe_in_the_lease_of_an_evicted_name, 0, 1),
        (keep_sessions_after_an_eviction, 0, 1),
        (rely_on_a_lease_without_looking_at_the_clock, 0, 1),
        (evict_without_asking_the_store, 1, 0),
        (acknowledge_a_task_before_its_mark, 1, 0),
        (forget_a_broadcast_that_may_be_lost, 1, 0),
    ],
)
def test_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    faults: int,
    delays: int,
    predictable_names: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make() -> Deployment:
        predictable_names()
        return Deployment(deaths_are_seen=False)

    plant(monkeypatch)
    with pytest.raises(Violation):
        Explorer(make, faults, delays).explore()
