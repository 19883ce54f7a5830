"""Circuit breakers of a server."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec.structs import replace

from trunkline import Context, Depends, Server, SqliteStore, ToolError
from trunkline.errors import InvalidParams, MisuseError, RegistrationError
from trunkline.facts import BreakerChanged
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.server.resilience.breaker_states import BreakerState, Outcome
from trunkline.server.resilience.circuit_breaker import BreakerOpen, CircuitBreaker
from trunkline.testing import FaultyStore, ManualClock, RawPeer, RecordingObserver


class Backend:
    """A dependency that fails on request, and a server with a tool that uses it."""

    def __init__(self, breaker: Any = True, **options: Any) -> None:
        self.clock = ManualClock()
        self.seen = RecordingObserver()
        self.server = Server("t", clock=self.clock, observers=[self.seen], **options)
        self.error: BaseException | None = RuntimeError("no")
        self.runs = 0
        if callable(breaker):
            breaker = breaker(self.server)

        @self.server.tool(breaker=breaker)
        async def use() -> str:
            return await self.use()

    async def use(self) -> str:
        self.runs += 1
        if self.error is not None:
            raise self.error
        return "done"

    def state(self, name: str = "use") -> str:
        return next(breaker.state.value for breaker in self.server._runtime.breakers if breaker.name == name)


async def call(peer: RawPeer, name: str = "use") -> Any:
    return await peer.result("tools/call", {"name": name})


def refusal_of(result: Any) -> dict[str, Any] | None:
    return result.get("_meta", {}).get("trunkline/refusal")


@pytest.mark.row("E1009", "Q01")
async def test_sixth_call_is_not_executed_after_five_failures() -> None:
    backend = Backend()
    async with RawPeer(backend.server) as peer:
        await peer.initialize()
        for _ in range(5):
            assert refusal_of(await call(peer)) is None
        backend.clock.advance(20)
        refused = await call(peer)
    assert backend.runs == 5
    assert refused["isError"]
    refusal = refusal_of(refused)
    assert refusal is not None
    assert (refusal["code"], refusal["name"], refusal["retryAfterMs"]) == (1009, "dependency_failed", 40_000)
    assert refusal["breaker"] == "use"
    assert refusal["hint"]
    assert [(fact.before, fact.after) for fact in backend.seen.of(BreakerChanged)] == [("closed", "open")]


@pytest.mark.row("Q01")
async def test_probes_close_the_breaker() -> None:
    backend = Backend(lambda server: server.breaker("db", failures=2, open_seconds=10, successes=2))
    async with RawPeer(backend.server) as peer:
        await peer.initialize()
        for _ in range(2):
            await call(peer)
        assert backend.state("db") == "open"
        backend.clock.advance(10)
        await call(peer)  # the probe fails
        assert (backend.runs, backend.state("db")) == (3, "open")
        backend.clock.advance(10)
        backend.error = None
        assert not (await call(peer))["isError"]
        assert backend.state("db") == "half_open"
        await call(peer)
    assert (backend.runs, backend.state("db")) == (5, "closed")


async def test_only_one_probe_runs_at_a_time() -> None:
    clock, go = ManualClock(), asyncio.Event()
    server = Server("t", clock=clock)
    began: asyncio.Queue[None] = asyncio.Queue()
    breaker = server.breaker("db", failures=1, open_seconds=10, successes=1)

    @server.tool(breaker="db")
    async def use() -> str:
        began.put_nowait(None)
        await go.wait()
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        breaker.open()
        clock.advance(10)
        probe = peer.call("tools/call", {"name": "use"})
        await began.get()
        refused = refusal_of(await call(peer))
        assert refused is not None
        assert 0 < refused["retryAfterMs"] <= 1000
        go.set()
        assert not (await peer.answer_to(probe))["result"]["isError"]
        assert breaker.state is BreakerState.CLOSED
        assert not (await call(peer))["isError"]


@pytest.mark.parametrize(
    "error", [ToolError("take less"), InvalidParams("not like this"), asyncio.CancelledError()], ids=repr
)
async def test_faults_of_the_caller_do_not_open_the_breaker(error: BaseException) -> None:
    backend = Backend()
    backend.error = error
    async with RawPeer(backend.server) as peer:
        await peer.initialize()
        for _ in range(20):
            await peer.request("tools/call", {"name": "use"})
    assert (backend.runs, backend.state()) == (20, "closed")


async def test_failure_test_can_be_configured() -> None:
    def is_failure(error: Exception) -> bool:
        return "fatal" in str(error)

    backend = Backend(lambda server: server.breaker("db", failures=1, is_failure=is_failure))
    async with RawPeer(backend.server) as peer:
        await peer.initialize()
        await call(peer)
        assert backend.state("db") == "closed"
        backend.error = ToolError("fatal")
        await call(peer)
    assert backend.state("db") == "open"


async def test_alternating_outcomes_reach_the_failure_rate() -> None:
    backend = Backend(lambda server: server.breaker("db", failures=5, failure_rate=0.5, window=10))
    async with RawPeer(backend.server) as peer:
        await peer.initialize()
        for number in range(9):
            assert backend.state("db") == "closed"
            backend.error = None if number % 2 else RuntimeError("no")
            await call(peer)
    assert backend.state("db") == "open"


async def test_success_between_failures_keeps_the_breaker_closed() -> None:
    failure = RuntimeError("no")
    backend = Backend(lambda server: server.breaker("db", failures=2, failure_rate=None))
    async with RawPeer(backend.server) as peer:
        await peer.initialize()
        for error in (failure, None, failure):
            backend.error = error
            await call(peer)
        assert backend.state("db") == "closed"
        await call(peer)
    assert backend.state("db") == "open"


async def test_timeout_of_a_call_is_a_failure_and_cancellation_is_not() -> None:
    clock = ManualClock()
    server = Server("t", clock=clock, observers=[])
    began: asyncio.Queue[None] = asyncio.Queue()
    breaker = server.breaker("db", failures=1)

    @server.tool(timeout=5)
    async def hang(ctx: Context) -> None:
        async with ctx.breaker("db"):
            began.put_nowait(None)
            await asyncio.Event().wait()

    @server.tool(timeout=5, breaker=breaker)
    async def hang_too() -> None:
        began.put_nowait(None)
        await asyncio.Event().wait()

    async with RawPeer(server) as peer:
        await peer.initialize()
        for name in ("hang", "hang_too"):
            ident = peer.call("tools/call", {"name": name})
            await began.get()
            peer.notify("notifications/cancelled", {"requestId": ident})
            await peer.quiet()
            assert breaker.state is BreakerState.CLOSED
            ident = peer.call("tools/call", {"name": name})
            await began.get()
            clock.advance(5)
            await peer.answer_to(ident)
            await peer.quiet()
            assert breaker.state is BreakerState.OPEN
            breaker.close()


@pytest.mark.parametrize("thread", [True, False])
async def test_plain_tools_have_breakers(thread: bool) -> None:
    server = Server("t", observers=[])
    runs: list[bool] = []

    @server.tool(breaker=True, thread=thread)
    def fail() -> None:
        runs.append(True)
        raise OSError("no")

    @server.tool(breaker=True, thread=thread)
    def succeed() -> str:
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        results = [await call(peer, "fail") for _ in range(6)]
        assert not (await call(peer, "succeed"))["isError"]
    assert len(runs) == 5
    assert refusal_of(results[5]) is not None


async def test_breaker_guards_dependencies_and_blocks() -> None:
    server = Server("t", observers=[])
    db = server.breaker("db", failures=2)
    fail = True

    async def connect(_: Annotated[CircuitBreaker, Depends(db.guard)]) -> str:
        if fail:
            raise OSError("no")
        return "connection"

    @server.tool
    async def by_dependency(connection: Annotated[str, Depends(connect)]) -> str:
        return connection

    @server.tool
    def on_a_thread(ctx: Context) -> str:
        with ctx.breaker("db"):
            return "done"

    @server.tool
    async def by_hand(ctx: Context) -> str:
        async with ctx.breaker("db") as breaker:
            return breaker.name

    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(2):
            await call(peer, "by_dependency")
        assert db.state is BreakerState.OPEN
        for name in ("by_dependency", "on_a_thread", "by_hand"):
            refused = refusal_of(await call(peer, name))
            assert refused is not None
            assert refused["code"] == 1009
        db.close()
        fail = False
        for name in ("by_dependency", "on_a_thread", "by_hand"):
            assert not (await call(peer, name))["isError"]


async def test_call_uses_the_fallback_while_the_breaker_is_open() -> None:
    server = Server("t")
    db = server.breaker("db", failures=1)

    async def fail() -> str:
        raise OSError("no")

    async def cached() -> str:
        return "cached"

    with pytest.raises(OSError, match="no"):
        await db.call(fail, fallback=cached)
    assert await db.call(fail, fallback=cached) == "cached"
    assert await db.call(fail, fallback=lambda: "plain") == "plain"
    with pytest.raises(BreakerOpen):
        await db.call(fail)
    assert db.retry_after is not None
    assert repr(db) == "<CircuitBreaker 'db': open>"
    db.close()
    assert await db.call(lambda: "plain") == "plain"
    assert db.retry_after is None
    with pytest.raises(MisuseError, match="async with"):
        db.guard().__enter__()  # type: ignore[attr-defined]


async def test_refused_call_does_not_use_up_its_idempotency_key(tmp_path: Path) -> None:
    clock = ManualClock()
    server, runs = Server("t", store=SqliteStore(tmp_path / "s", clock=clock), clock=clock), []
    breaker = server.breaker("db", failures=1)

    @server.tool(breaker="db")
    async def pay() -> str:
        runs.append(True)
        return "paid"

    asked = {"name": "pay", "_meta": {IDEMPOTENCY_KEY: "k"}}
    await server.start()
    async with RawPeer(server) as peer:
        await peer.initialize()
        breaker.open()
        await breaker.flush()
        assert refusal_of(await peer.result("tools/call", asked)) is not None
        breaker.close()
        await breaker.flush()
        assert not (await peer.result("tools/call", asked))["isError"]
        assert not (await peer.result("tools/call", asked))["isError"]
    await server.aclose()
    assert len(runs) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"failures": 0},
        {"failures": 1.5},
        {"window": 2000},
        {"failure_rate": 1.5},
        {"failure_rate": 0},
        {"open_seconds": 0},
        {"open_seconds": True},
        {"successes": 0},
    ],
    ids=repr,
)
def test_invalid_policies_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError, match=next(iter(options))):
        Server("t").breaker("db", **options)


def test_breaker_is_configured_once() -> None:
    server = Server("t")
    server.breaker("db")
    with pytest.raises(RegistrationError, match="'db' already"):
        server.breaker("db")
    with pytest.raises(RegistrationError, match="breaker="):
        server.tool(breaker=5)(lambda: None)  # type: ignore[arg-type]


# --- shared by processes ---------------------------------------------------------------------------


class Process:
    """One process on a shared store: a server with a breaker, and calls of it."""

    def __init__(self, store: Any, clock: Any) -> None:
        self.store = FaultyStore(store)
        self.server = Server("shared", store=self.store, clock=clock, observers=[])
        self.db = self.server.breaker("db", failures=5, open_seconds=10, successes=1)
        self.runs = 0

    async def use(self, error: Exception | None) -> str:
        async def run() -> None:
            self.runs += 1
            if error is not None:
                raise error

        try:
            await self.db.call(run)
        except BreakerOpen:
            return "refused"
        except OSError:
            await self.db.flush()
            return "failed"
        await self.db.flush()
        return "done"


async def use_all(processes: list[Process], clock: ManualClock, error: Exception | None) -> list[str]:
    """Use the dependency in each process, after each has had the time to learn of the others."""
    answers: list[str] = []
    for process in processes:
        clock.advance(0.1)
        answers.append(await process.use(error))
    return answers


@pytest.mark.row("Q01")
async def test_processes_share_a_breaker(tmp_path: Path) -> None:
    clock = ManualClock()
    processes = [Process(SqliteStore(tmp_path / "s", clock=clock), clock) for _ in range(3)]
    for process in processes:
        await process.server.start()
    failure = OSError("no")
    assert await use_all(processes, clock, failure) == ["failed"] * 3
    assert await use_all(processes, clock, failure) == ["failed", "failed", "refused"]  # five failures in all
    assert sum(process.runs for process in processes) == 5
    assert await use_all(processes, clock, None) == ["refused"] * 3
    clock.advance(10)

    admitted = await asyncio.gather(*(process.db.admit() for process in processes), return_exceptions=True)
    assert sum(isinstance(answer, BreakerOpen) for answer in admitted) == 2
    [(prober, probe)] = [
        (process, answer)
        for process, answer in zip(processes, admitted, strict=True)
        if not isinstance(answer, BaseException)
    ]
    assert await use_all(processes, clock, None) == ["refused"] * 3
    prober.db.settle(probe, Outcome.SUCCESS)
    await prober.db.flush()
    assert await use_all(processes, clock, None) == ["done"] * 3
    for process in processes:
        await process.server.aclose()


async def test_breaker_continues_alone_while_the_store_is_unavailable(tmp_path: Path) -> None:
    clock = ManualClock()
    process = Process(SqliteStore(tmp_path / "s", clock=clock), clock)
    await process.server.start()
    process.store.fail("get", "commit", key="breaker/")
    for _ in range(5):
        assert await process.use(OSError("no")) == "failed"
    assert await process.use(None) == "refused"
    clock.advance(10)
    assert await process.use(None) == "done"
    assert process.db.state is BreakerState.CLOSED
    await process.server.aclose()


async def test_probe_of_a_dead_process_is_given_up(tmp_path: Path) -> None:
    clock = ManualClock()
    dead, alive = (Process(SqliteStore(tmp_path / "s", clock=clock), clock) for _ in range(2))
    for process in (dead, alive):
        await process.server.start()
    dead.db.open()
    await dead.db.flush()
    clock.advance(10)
    await dead.db.admit()  # and never settled
    assert await alive.use(None) == "refused"
    clock.advance(10)
    assert await alive.use(None) == "done"
    assert alive.db.state is BreakerState.CLOSED
    for process in (dead, alive):
        await process.server.aclose()


@pytest.mark.row("Q01")
async def test_reset_time_that_passes_during_a_store_access_admits_one_probe(tmp_path: Path) -> None:
    clock = ManualClock()
    processes = [Process(SqliteStore(tmp_path / "s", clock=clock), clock) for _ in range(2)]
    for process in processes:
        await process.server.start()
    processes[0].db.open()
    await processes[0].db.flush()
    clock.advance(9.95)  # the copies are old, so each process reads the record
    held = [process.store.hold("get", key="breaker/") for process in processes]
    admissions = [asyncio.ensure_future(process.db.admit()) for process in processes]
    for fault in held:
        await fault.reached.wait()
    clock.advance(0.1)
    for fault in held:
        fault.lift()
    answers = await asyncio.gather(*admissions, return_exceptions=True)
    assert sum(isinstance(answer, BreakerOpen) for answer in answers) == 1
    for process in processes:
        await process.server.aclose()


@pytest.mark.row("Q01")
async def test_next_probe_waits_for_the_stored_outcome_of_the_last(tmp_path: Path) -> None:
    clock = ManualClock()
    one, other = (Process(SqliteStore(tmp_path / "s", clock=clock), clock) for _ in range(2))
    for process in (one, other):
        process.db.policy = replace(process.db.policy, successes=2)
        await process.server.start()
    one.db.open()
    await one.db.flush()
    clock.advance(10)
    probe = await one.db.admit()
    clock.advance(1)
    held = one.store.hold("commit", key="breaker/")
    one.db.settle(probe, Outcome.SUCCESS)
    await held.reached.wait()
    ours = asyncio.ensure_future(one.db.admit())
    await asyncio.sleep(0)
    with pytest.raises(BreakerOpen):  # as far as the store knows, the first probe runs
        await other.db.admit()
    assert not ours.done()
    held.lift()
    await one.db.flush()
    clock.advance(0.1)
    theirs = asyncio.ensure_future(other.db.admit())
    answers = await asyncio.gather(ours, theirs, return_exceptions=True)
    assert sum(isinstance(answer, BreakerOpen) for answer in answers) == 1
    for process in (one, other):
        await process.server.aclose()


@pytest.mark.row("Q01")
async def test_steady_outcomes_do_not_hide_that_another_process_opened_the_breaker(tmp_path: Path) -> None:
    clock = ManualClock()
    one, other = (Process(SqliteStore(tmp_path / "s", clock=clock), clock) for _ in range(2))
    for process in (one, other):
        await process.server.start()
    assert await one.use(OSError("no")) == "failed"
    permit = await one.db.admit()
    held = one.store.hold("get", key="breaker/")
    one.db.settle(permit, Outcome.SUCCESS)
    await held.reached.wait()
    one.db.settle(permit, Outcome.SUCCESS)  # one more, while the first is stored
    other.db.open()
    await other.db.flush()
    held.lift()
    again = one.store.hold("get", key="breaker/")
    await again.reached.wait()  # the second is being stored
    assert one.db.state is BreakerState.OPEN
    with pytest.raises(BreakerOpen):
        await one.db.admit()
    again.lift()
    for process in (one, other):
        await process.server.aclose()


@pytest.mark.row("Q01")
async def test_late_read_does_not_undo_an_opening_that_is_not_stored_yet(tmp_path: Path) -> None:
    clock = ManualClock()
    process = Process(SqliteStore(tmp_path / "s", clock=clock), clock)
    await process.server.start()
    permit = await process.db.admit()
    clock.advance(0.1)
    reading, writing = process.store.hold("get", key="breaker/", times=1), process.store.hold("commit", key="breaker/")
    late = asyncio.ensure_future(process.db.admit())
    await reading.reached.wait()
    for _ in range(5):
        process.db.settle(permit, Outcome.FAILURE)
    await writing.reached.wait()
    reading.lift()
    with pytest.raises(BreakerOpen):
        await late
    assert process.db.state is BreakerState.OPEN
    writing.lift()
    await process.db.flush()
    assert process.db.state is BreakerState.OPEN
    await process.server.aclose()


async def test_breaker_can_be_local(tmp_path: Path) -> None:
    clock = ManualClock()
    processes = [Process(SqliteStore(tmp_path / "s", clock=clock), clock) for _ in range(2)]
    own = [process.server.breaker("own", failures=1, shared=False) for process in processes]
    for process in processes:
        await process.server.start()
    own[0].open()
    clock.advance(1)
    assert await own[1].call(lambda: "done") == "done"
    for process in processes:
        await process.server.aclose()
