"""Recovery of tasks whose process has died, or was suspended for too long."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from msgspec import UNSET, Raw
from tests.founding import FEATURES
from tests.limits import PATIENCE

from trunkline import Context, Server, Settings, TaskPolicy, ToolAnnotations
from trunkline.errors import Fenced
from trunkline.protocol.tasks import TaskCaller, TaskRecord, TaskState
from trunkline.server.tasks.repository import TaskRepository, key_of_task
from trunkline.stores.memory import MemoryStore
from trunkline.stores.store import Held, Item, Lease, Put, Store
from trunkline.testing import FaultyStore, ManualClock, RawPeer

LEASE = 10.0


class LastingStore(MemoryStore):
    """A store with earlier content: it stands for a file, and uses the same clock."""

    lasting = True  # pyright: ignore[reportIncompatibleVariableOverride]

    async def close(self) -> None:
        """Stays open: the next process finds everything."""


class RecoverySetup:
    """A store in which a dead process left a task."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = LastingStore(clock=self.clock)
        self.shelf = TaskRepository(self.store, self.clock)
        self.runs: list[Any] = []

    def server(
        self,
        tool: Callable[..., Any],
        *,
        compat: Literal["erlmcp"] | None = None,
        store: Store | None = None,
        **options: Any,
    ) -> Server:
        server = Server(
            "s",
            store=store or self.store,
            clock=self.clock,
            observers=[],
            settings=Settings(task_lease=LEASE, max_tasks=2),
            compat=compat,
        )
        server.add_tool(tool, name="work", **options)
        return server

    async def left(self, **known: Any) -> Lease:
        """Leave a task whose creator has died."""
        await self.store.open()
        _, lease = await self.shelf.create(self.made(**known), "the dead", LEASE)
        return lease

    def made(
        self,
        *,
        state: TaskState = TaskState.WORKING,
        attempt: int = 1,
        name: str = "t1",
        owner: str = "nobody",
        **known: Any,
    ) -> TaskRecord:
        now = self.clock.now()
        return TaskRecord(
            task_id=name,
            client=owner,
            caller=TaskCaller(revision="2025-11-25", capabilities={"elicitation": {}}),
            method="tools/call",
            params=Raw(b'{"name": "work", "arguments": {}}'),
            created_at=now,
            updated_at=now,
            expires_at=now + 3600,
            state=state,
            attempt=attempt,
            tries=attempt,
            **known,
        )

    async def record(self, name: str = "t1", owner: str = "nobody") -> TaskRecord:
        kept = await self.shelf.find(owner, name)
        assert kept is not None
        return kept.record

    async def time_passes(self, peer: RawPeer, seconds: float) -> None:
        """Advance second by second, and run what falls due."""
        for _ in range(round(seconds)):
            self.clock.advance(1)
            await peer.quiet()
            await peer.quiet()


async def test_task_restarts_within_a_lease_if_policy_allows() -> None:
    setup = RecoverySetup()
    await setup.left()

    async def work() -> str:
        setup.runs.append("run")
        return "done"

    server = setup.server(work, task=True, annotations=ToolAnnotations(idempotent_hint=True))
    async with RawPeer(server) as peer:
        await peer.initialize()
        await setup.time_passes(peer, LEASE - 1)
        assert setup.runs == []  # its holder may be alive
        await setup.time_passes(peer, 2)
        result = await peer.result("tasks/result", {"taskId": "t1"})
        assert result["structuredContent"] == {"result": "done"}
        assert (setup.runs, (await setup.record()).attempt) == (["run"], 2)
        assert await setup.shelf.list_marks("") == []


async def test_task_resumes_from_its_checkpoint() -> None:
    setup = RecoverySetup()
    await setup.left(checkpoint=Raw(b'{"page": 3}'), effects={"paid": Raw(b"7")})

    async def work(ctx: Context) -> str:
        setup.runs.append(ctx.resumed_from)
        paid = await ctx.once("paid", lambda: setup.runs.append("paid twice"))
        await ctx.checkpoint({"page": 4})
        return f"{paid} {ctx.resumed_from}"

    server = setup.server(work, task=TaskPolicy(recovery="resume"))
    async with RawPeer(server) as peer:
        await peer.initialize()
        await setup.time_passes(peer, LEASE + 1)
        result = await peer.result("tasks/result", {"taskId": "t1"})
        assert result["structuredContent"] == {"result": "7 {'page': 4}"}
        assert setup.runs == [{"page": 3}]


@pytest.mark.parametrize(
    ("options", "attempt"),
    [({"task": True}, 1), ({"task": TaskPolicy(recovery="restart", attempts=2)}, 2), ({"task": None}, 1)],
)
async def test_task_with_policy_fail_gets_a_clear_error(options: dict[str, Any], attempt: int) -> None:
    setup = RecoverySetup()
    await setup.left(attempt=attempt)
    server = setup.server(lambda: setup.runs.append("run"), **options)
    server.add_tool(lambda: None, name="other", task=True)
    async with RawPeer(server) as peer:
        await peer.initialize()
        await setup.time_passes(peer, LEASE + 1)
        error = await peer.error("tasks/result", {"taskId": "t1"})
        assert error["data"]["kind"] == "task_failed"
        assert "has died" in error["message"]
        assert setup.runs == []


async def test_progress_does_not_decrease_after_restart() -> None:
    setup, more = RecoverySetup(), asyncio.Event()
    await setup.left(progress=5.0, total=9.0)

    async def work(ctx: Context) -> None:
        ctx.progress(3, 9)
        await more.wait()
        ctx.progress(6, 9)
        await asyncio.Event().wait()

    async with RawPeer(setup.server(work, task=TaskPolicy(recovery="restart"))) as peer:
        await peer.initialize()
        await setup.time_passes(peer, LEASE + 3)
        assert ((await setup.record()).attempt, (await setup.record()).progress) == (2, 5)
        more.set()
        await setup.time_passes(peer, 3)
        assert (await setup.record()).progress == 6


@pytest.mark.row("J01")
@pytest.mark.usefixtures("skip_schema_check")
async def test_founding_task_is_recovered_like_others() -> None:
    setup = RecoverySetup()

    async def work(ctx: Context, text: str) -> str:
        if ctx.resumed_from is None:
            await ctx.checkpoint("here")
            setup.runs.append("left")
            await asyncio.Event().wait()
        return f"{text}, from {ctx.resumed_from}"

    policy = TaskPolicy(recovery="resume")
    dying = setup.server(work, compat="erlmcp", task=policy)
    asked = {"type": "work", "parameters": {"text": "well"}}
    async with RawPeer(dying) as peer:
        await peer.initialize(capabilities=FEATURES)
        ident = (await peer.result("tasks/create", {"action": asked}))["taskId"]
        await peer.quiet()
    await dying.aclose()
    assert setup.runs == ["left"]
    async with RawPeer(setup.server(work, compat="erlmcp", task=policy)) as peer:
        await peer.initialize(capabilities=FEATURES)
        await setup.time_passes(peer, LEASE + 1)
        task = (await peer.result("tasks/get", {"taskId": ident}))["task"]
        assert (task["status"], task["action"]) == ("completed", asked)
        assert task["result"]["structuredContent"] == {"result": "well, from here"}


@pytest.fixture
def skip_schema_check() -> Iterator[None]:
    """No official schema has this dialect."""
    taps, RawPeer.taps = RawPeer.taps, []
    yield
    RawPeer.taps = taps


async def test_pending_task_is_started() -> None:
    setup = RecoverySetup()
    await setup.left(state=TaskState.PENDING, attempt=0)
    async with RawPeer(setup.server(lambda: "done", task=True)) as peer:
        await peer.initialize()
        await setup.time_passes(peer, LEASE + 1)
        assert (await peer.result("tasks/result", {"taskId": "t1"}))["content"][0]["text"] == "done"


async def test_task_that_ended_meanwhile_stays_unchanged() -> None:
    setup = RecoverySetup()
    await setup.left()
    await setup.shelf.change("nobody", "t1", lambda record, now: record.cancel(now))
    async with RawPeer(setup.server(lambda: setup.runs.append(1), task=True)) as peer:
        await peer.initialize()
        await setup.time_passes(peer, LEASE + 1)
        assert (await setup.record()).state is TaskState.CANCELLED
        assert (setup.runs, await setup.shelf.list_marks("")) == ([], [])


async def test_task_that_is_cancelled_while_recovery_fails_it_stays_cancelled() -> None:
    setup = RecoverySetup()
    await setup.left()

    class Cancelling(FaultyStore):
        """The client cancels the task after recovery has acquired its lease and read its record."""

        taken = False

        async def acquire(self, *args: Any, **options: Any) -> Lease | Held:
            outcome = await super().acquire(*args, **options)
            self.taken = isinstance(outcome, Lease)
            return outcome

        async def get(self, key: str) -> Item | None:
            item = await super().get(key)
            if self.taken:
                self.taken = False
                await setup.shelf.change("nobody", "t1", lambda record, now: record.cancel(now))
            return item

    async with RawPeer(setup.server(lambda: None, store=Cancelling(setup.store), task=True)) as peer:
        await peer.initialize()
        await setup.time_passes(peer, LEASE + 1)
        assert (await setup.record()).state is TaskState.CANCELLED
        assert await setup.shelf.list_marks("") == []


async def test_questions_and_answers_survive_recovery() -> None:
    setup = RecoverySetup()
    await setup.left(answers={"first": Raw(b'{"action": "decline"}')})

    async def work(ctx: Context) -> str:
        first = await ctx.elicit("One?", {"type": "object", "properties": {}}, key="first")
        second = await ctx.elicit("Two?", {"type": "object", "properties": {}}, key="second")
        return f"{first.action} {second.action}"

    server = setup.server(work, task=TaskPolicy(recovery="resume"))
    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        await setup.time_passes(peer, LEASE + 1)
        waiting = peer.call("tasks/result", {"taskId": "t1"})
        question = await peer.receive()
        assert question["params"]["message"] == "Two?"
        peer.reply(question, {"action": "cancel"})
        assert (await peer.answer_to(waiting))["result"]["structuredContent"] == {"result": "decline cancel"}


async def test_former_runner_is_cancelled_and_its_writes_refused() -> None:
    setup, cancelled, written = RecoverySetup(), asyncio.Event(), list[BaseException]()

    async def work(ctx: Context) -> str:
        setup.runs.append("run")
        if len(setup.runs) > 1:
            return "by another"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                await ctx.checkpoint("too late")
            except BaseException as error:
                written.append(error)
            cancelled.set()
            raise
        return "never"

    server = setup.server(work, task=TaskPolicy(recovery="restart"))
    async with RawPeer(server) as peer:
        await peer.initialize()
        task = (await peer.result("tools/call", {"name": "work", "task": {}}))["task"]
        await peer.quiet()
        key = key_of_task("nobody", task["taskId"])
        setup.clock._now += 2 * LEASE  # it is suspended: none of its timers fire
        lease = await setup.store.acquire(key, "somebody else", LEASE)
        assert isinstance(lease, Lease)
        setup.clock.advance(1)
        await asyncio.wait_for(cancelled.wait(), PATIENCE)
        assert isinstance(written[0], Fenced | asyncio.CancelledError)
        kept = await setup.shelf.find("nobody", task["taskId"])
        assert kept is not None
        assert kept.record.state is TaskState.WORKING
        await setup.store.release(lease)
        await setup.time_passes(peer, LEASE + 1)
        result = await peer.result("tasks/result", {"taskId": task["taskId"]})
        assert result["structuredContent"] == {"result": "by another"}


@pytest.mark.parametrize("taken", [True, False])
async def test_checkpoint_without_lease_raises_and_cancels_the_run(taken: bool) -> None:
    setup, go_on, raised, cancelled = RecoverySetup(), asyncio.Event(), list[Exception](), asyncio.Event()

    async def work(ctx: Context) -> None:
        await go_on.wait()
        try:
            await ctx.checkpoint("too late")
        except Exception as error:
            raised.append(error)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    server = setup.server(work, task=True)
    async with RawPeer(server) as peer:
        await peer.initialize()
        task = (await peer.result("tools/call", {"name": "work", "task": {}}))["task"]
        await peer.quiet()
        setup.clock._now += 2 * LEASE  # it is suspended: none of its timers fire
        if taken:
            lease = await setup.store.acquire(key_of_task("nobody", task["taskId"]), "another process", LEASE)
            assert isinstance(lease, Lease)
        go_on.set()
        await asyncio.wait_for(cancelled.wait(), PATIENCE)
        assert [type(error) for error in raised] == [Fenced]
        assert (await setup.record(task["taskId"])).checkpoint is UNSET
        while peer.connection.shared.tasks.is_handled_here(task["taskId"]):
            await asyncio.sleep(0)


async def test_recovery_waits_for_room() -> None:
    setup, go_on = RecoverySetup(), asyncio.Event()
    await setup.left()

    async def work() -> str:
        await go_on.wait()
        return "done"

    server = setup.server(work, task=TaskPolicy(recovery="restart"))
    async with RawPeer(server) as peer:
        await peer.initialize()
        made = [(await peer.result("tools/call", {"name": "work", "task": {}}))["task"] for _ in range(2)]
        await setup.time_passes(peer, LEASE + 1)
        assert (await setup.record()).attempt == 1
        go_on.set()
        for task in made:
            await peer.result("tasks/result", {"taskId": task["taskId"]})
        await setup.time_passes(peer, 2 * LEASE)
        assert (await setup.record()).state is TaskState.COMPLETED


# --- creators that pause ------------------------------------------------------------------------------


@pytest.mark.parametrize("paused_before", ["working/", "/tasks/"])
async def test_task_of_a_paused_creator_is_recovered(paused_before: str) -> None:
    """The creator pauses before one of its writes, acknowledges the task, and dies."""
    setup = RecoverySetup()
    dying = FaultyStore(setup.store)

    async def hang() -> None:
        await asyncio.Event().wait()

    policy = TaskPolicy(recovery="restart")
    async with (
        RawPeer(setup.server(hang, store=dying, task=policy)) as maker,
        RawPeer(setup.server(lambda: "recovered", task=policy)) as other,
    ):
        await maker.initialize()
        await other.initialize()
        pause = dying.hold(key=paused_before)
        asked = maker.call("tools/call", {"name": "work", "task": {}})
        await asyncio.wait_for(pause.reached.wait(), PATIENCE)
        await setup.time_passes(other, 3 * LEASE)
        pause.lift()
        made = (await maker.answer_to(asked))["result"]["task"]["taskId"]
        dying.fail()
        await setup.time_passes(other, 2 * LEASE)
        result = await other.result("tasks/result", {"taskId": made})
        assert result["content"][0]["text"] == "recovered"
        assert await setup.shelf.list_marks("") == []


async def test_mark_of_an_unstored_task_expires() -> None:
    setup = RecoverySetup()
    await setup.store.open()
    now = setup.clock.now()
    await setup.store.commit([Put("working/t1", b"nobody", now + 2 * LEASE)])
    async with RawPeer(setup.server(lambda: setup.runs.append(1), task=True)) as peer:
        await peer.initialize()
        await setup.time_passes(peer, LEASE + 1)
        assert len(await setup.shelf.list_marks("")) == 1  # the creator may still be about to write the record
        await setup.time_passes(peer, LEASE)
        assert (await setup.shelf.list_marks(""), setup.runs) == ([], [])


async def test_missing_marks_are_restored() -> None:
    """Earlier versions could leave some behind."""
    setup = RecoverySetup()
    await setup.store.open()
    lost = [("t1", "ann"), ("t2", "ann"), ("t3", "ann0"), ("t4", "nobody")]
    for name, owner in lost:
        await setup.shelf.create_without_lease(setup.made(name=name, owner=owner))
    done = setup.made(name="t5", owner="ann").complete(setup.clock.now(), Raw(b"{}"))
    await setup.shelf.create_without_lease(done)
    await setup.store.commit([Put("owner/ann/once/key", b"another kind of item")])

    async def work() -> None:
        setup.runs.append(1)

    async with RawPeer(setup.server(work, task=TaskPolicy(recovery="restart"))) as peer:
        await peer.initialize()
        await setup.time_passes(peer, 4 * LEASE)  # there is room for two at a time
        for name, owner in lost:
            assert (await setup.record(name, owner)).state is TaskState.COMPLETED
        assert (len(setup.runs), await setup.record("t5", "ann")) == (4, done)


async def test_missing_marks_are_audited_once_an_hour_per_cluster() -> None:
    setup = RecoverySetup()
    audits = 0

    class Counting(FaultyStore):
        async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Any:
            nonlocal audits
            audits += prefix == "owner/" and not after
            return await super().scan(prefix, after=after, limit=limit)

    servers = [setup.server(lambda: None, store=Counting(setup.store), task=True) for _ in range(2)]
    async with RawPeer(servers[0]) as peer, RawPeer(servers[1]) as other:
        await peer.initialize()
        await other.initialize()
        for seconds, expected in ((3 * LEASE, 1), (3500, 1), (200, 2)):
            for _ in range(round(seconds / LEASE)):
                setup.clock.advance(LEASE)
                await peer.quiet()
                await other.quiet()
            assert audits == expected


# --- failed attempts --------------------------------------------------------------------------------------


async def test_task_with_new_checkpoints_runs_without_limit() -> None:
    setup = RecoverySetup()
    await setup.left(attempt=3)

    async def work(ctx: Context) -> str:
        await ctx.checkpoint({"page": 1})
        return await asyncio.Event().wait() or ""

    for attempts in (4, 1):
        server = setup.server(work, task=TaskPolicy(recovery="resume", attempts=attempts))
        async with RawPeer(server) as peer:
            await peer.initialize()
            await setup.time_passes(peer, LEASE + 1)
            assert (await setup.record()).tries == 1  # this one, whatever came before the checkpoint
        await server.aclose()
        assert (await setup.record()).tries == 0
    assert (await setup.record()).attempt == 5


async def test_orderly_release_is_no_failed_attempt() -> None:
    setup = RecoverySetup()
    await setup.left(attempt=1)

    async def work() -> None:
        await asyncio.Event().wait()

    for _ in range(4):
        server = setup.server(work, task=TaskPolicy(recovery="restart", attempts=2))
        async with RawPeer(server) as peer:
            await peer.initialize()
            await setup.time_passes(peer, LEASE + 1)
            assert (await setup.record()).tries == 2
        await server.aclose()
    assert ((await setup.record()).tries, (await setup.record()).state) == (1, TaskState.WORKING)


@pytest.mark.row("D12")
@pytest.mark.parametrize(
    ("recovery", "lasting", "waits"), [("fail", True, True), ("restart", True, False), ("restart", False, True)]
)
async def test_drain_waits_for_a_task_that_would_be_lost(
    recovery: Literal["fail", "restart"], lasting: bool, waits: bool
) -> None:
    go_on, setup = asyncio.Event(), RecoverySetup()
    if not lasting:
        setup.store = MemoryStore(clock=setup.clock)  # type: ignore[assignment]

    async def work() -> str:
        await go_on.wait()
        return "done"

    server = setup.server(work, task=TaskPolicy(recovery=recovery))
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "work", "task": {}})
        ending = asyncio.create_task(server.shutdown())
        if waits:
            for _ in range(5):
                await peer.quiet()
            assert not ending.done()
            go_on.set()
        assert await ending == ()
    kept = [item for item in await setup.store.scan("owner/") if b'"completed"' in item.value] if lasting else []
    assert bool(kept) is (waits and lasting)


@pytest.mark.row("D12")
async def test_drain_does_not_wait_for_a_task_with_open_questions() -> None:
    server = Server("s", observers=[])

    @server.tool(task=True)
    async def work(ctx: Context) -> str:
        return str(await ctx.elicit("Well?", str))

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        task = (await peer.result("tools/call", {"name": "work", "task": {}}))["task"]
        await peer.quiet()
        assert (await peer.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "input_required"
        assert await server.shutdown() == ()
