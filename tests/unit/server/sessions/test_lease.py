"""Session leases: one of several processes owns a session, and writes of any other are fenced off."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import turns, until
from tests.limits import PATIENCE
from tests.unit.server.server_runs import TTL, ServerRun
from tests.unit.transports.http.asgi import call, request

from trunkline import Context, Settings
from trunkline.errors import Fenced, StoreUnavailable
from trunkline.facts import Closed, HandlerFailed, RestoreStep
from trunkline.server.cluster.cluster import Cluster
from trunkline.server.sessions.durable import DurableSession, DurableSessions
from trunkline.server.sessions.lease import SessionLease
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Held, Lease, Put
from trunkline.testing import ManualClock
from trunkline.transports.http.session.backend import EXPIRED, HeldElsewhere

INITIALIZE = request(
    "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
)


class Processes:
    """Servers on one file, each like a separate process."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self._path = path
        self._clock = clock
        self._all: list[ServerRun] = []

    async def start(self, *, alone: bool = False, **options: Any) -> ServerRun:
        """Add one; `alone` without a bus."""
        run = ServerRun(self._path, self._clock, **options)
        if alone:
            run.store.bus = lambda: None  # type: ignore[method-assign]
        self._all.append(run)
        await run.server.start()
        return run

    async def end(self, run: ServerRun) -> None:
        """Shut it down gracefully."""
        self._all.remove(run)
        await run.host.app.aclose()

    async def close(self) -> None:
        for run in list(self._all):
            await self.end(run)


@pytest.fixture
async def processes(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Processes]:
    made = Processes(tmp_path / "shared.db", clock)
    yield made
    await made.close()


@pytest.fixture
async def first(processes: Processes) -> ServerRun:
    return await processes.start()


@pytest.fixture
async def second(processes: Processes, first: ServerRun) -> ServerRun:
    return await processes.start()


def cluster_of(run: ServerRun) -> Cluster:
    crew = run.server._runtime.get_services().cluster
    assert crew is not None
    return crew


def sessions_of(run: ServerRun) -> DurableSessions:
    keeper = run.server._runtime.get_services().durable_sessions
    assert keeper is not None
    return keeper


async def silence(run: ServerRun) -> str:
    """Silence a process without its knowledge."""
    await cluster_of(run).close()
    return cluster_of(run).name


async def owner(run: ServerRun, session: str) -> Lease | Held:
    """The owner of a session, or its lease if there is none."""
    return await run.store.acquire(f"session/{session}", "nobody", 1e-6)


async def take(run: ServerRun, session: str) -> None:
    """Continue a session."""
    assert "result" in (await run.request(session, "ping")).json


class LateStore:
    """A store in which one kind of call about a key waits for the test."""

    def __init__(self, store: SqliteStore, name: str, about: str, after: int = 0) -> None:
        self._call: Any = getattr(store, name)
        self._about = about
        self._after = after  # calls that do not wait
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        setattr(store, name, self)

    async def __call__(self, key: str, *words: Any, **options: Any) -> Any:
        if self._about in key:
            self._after -= 1
            if self._after < 0:
                self.asked.set()
                await self.go_on.wait()
        return await self._call(key, *words, **options)


def ends(run: ServerRun) -> list[str]:
    return [fact.reason for fact in run.seen.of(Closed)]


async def advance(clock: ManualClock, seconds: float, *runs: ServerRun) -> None:
    """Let time pass, and wait for the writes that are due: otherwise a lease could expire while it is renewed, each time
    again."""
    clock.advance(seconds)
    await turns()
    for run in runs:
        await run.store.acquire("nothing/here", "this test", 1)
    await turns()


async def silenced(run: ServerRun, by: ServerRun, clock: ManualClock) -> None:
    """A live process that is silent for too long, until another has evicted it."""
    renew, name = run.store.renew, cluster_of(run).name

    async def away(*_: Any) -> Lease:
        raise StoreUnavailable("not now")

    run.store.renew = away  # type: ignore[method-assign, assignment]
    while not await cluster_of(by).evict_if_dead(name):
        await advance(clock, 1, by)
    run.store.renew = renew  # type: ignore[method-assign]


# --- ownership ------------------------------------------------------------------------------------------


@pytest.mark.row("D03")
async def test_process_without_the_lease_names_the_holder(first: ServerRun, second: ServerRun) -> None:
    session = await first.host.session()
    assert await sessions_of(second).acquire(session, None) == HeldElsewhere(cluster_of(first).name)
    assert await sessions_of(second).acquire(session, "somebody else") is None
    assert await sessions_of(second).acquire("S" * 43, None) is None
    held = await owner(second, session)
    assert isinstance(held, Held)
    assert held.holder == cluster_of(first).name


@pytest.mark.row("D03")
async def test_expired_session_is_not_taken_over(first: ServerRun, second: ServerRun, clock: ManualClock) -> None:
    session = await first.host.session()
    await first.record(session)  # every write has ended
    clock.advance(TTL)
    assert await sessions_of(second).acquire(session, None) is EXPIRED
    held = await owner(second, session)
    assert isinstance(held, Held)


@pytest.mark.row("D08")
async def test_shutdown_releases_sessions_at_once(processes: Processes, first: ServerRun) -> None:
    second = await processes.start()
    session = await first.host.session()
    await first.subscribe(session, "note://a")
    await processes.end(first)
    await take(second, session)
    assert second.watched == ["note://a"]
    assert (await second.record(session)).metadata.generation == 1


@pytest.mark.row("D08")
async def test_departed_process_loses_its_sessions_at_once(first: ServerRun, second: ServerRun) -> None:
    session = await first.host.session()
    name = await silence(first)
    await take(second, session)
    held = await owner(second, session)
    assert isinstance(held, Held)
    assert held.holder == cluster_of(second).name != name


@pytest.mark.row("D08")
async def test_one_of_many_processes_takes_over_a_session(processes: Processes, first: ServerRun) -> None:
    others = [await processes.start() for _ in range(3)]
    session = await first.host.session()
    await silence(first)
    found = await asyncio.gather(*(sessions_of(run).acquire(session, None) for run in others))
    [won] = [run for run, one in zip(others, found, strict=True) if not isinstance(one, HeldElsewhere)]
    assert [one for one in found if isinstance(one, HeldElsewhere)] == [HeldElsewhere(cluster_of(won).name)] * 2


async def test_initialize_is_answered_after_the_lease_is_held(first: ServerRun) -> None:
    waiting = LateStore(first.store, "acquire", "session/")
    opening = asyncio.ensure_future(first.host.session())
    await waiting.asked.wait()
    await turns()
    assert not opening.done()
    assert await first.store.scan("session/") == []  # the commit that grants the lease stores it
    waiting.go_on.set()
    assert isinstance(await owner(first, await opening), Held)


async def test_session_without_lease_is_not_opened(first: ServerRun) -> None:
    async def away(*_: Any, **__: Any) -> Lease | Held:
        raise StoreUnavailable("not now")

    acquire, first.store.acquire = first.store.acquire, away  # type: ignore[method-assign, assignment]
    answer = await first.host.ask("POST", INITIALIZE)
    assert "error" in answer.json
    assert len(first.host.endpoint.sessions) == 0
    first.store.acquire = acquire  # type: ignore[method-assign]
    await first.host.session()


async def test_lease_lasts_while_the_session_is_used(first: ServerRun, clock: ManualClock) -> None:
    session = await first.host.session()
    for _ in range(5):
        clock.advance(TTL - 1)
        await take(first, session)
        await first.record(session)
    assert isinstance(await owner(first, session), Held)
    assert first.seen.of(RestoreStep) == []


async def test_use_of_a_session_renews_its_lease(first: ServerRun, clock: ManualClock) -> None:
    session = await first.host.session()
    [held] = first.host.endpoint.sessions
    assert held.stored is not None
    clock.advance(1)
    held.stored.touch()
    await first.record(session)
    now = await owner(first, session)
    assert now.expires == clock.now() + 2 * TTL


async def test_deleted_session_has_no_lease(first: ServerRun, second: ServerRun) -> None:
    session = await first.host.session()
    assert (await first.host.ask("DELETE", mcp_session_id=session)).status == 204
    assert isinstance(await owner(second, session), Lease)
    assert await second.store.scan(f"session/{session}") == []


async def test_process_without_room_releases_the_session(processes: Processes, first: ServerRun) -> None:
    full = await processes.start(settings=Settings(max_sessions=1))
    await full.host.session()
    session = await first.host.session()
    await processes.end(first)
    refused = await full.request(session, "ping")
    assert (refused.status, refused.json["error"]["data"]["kind"]) == (503, "too_many_sessions")
    await take(await processes.start(), session)


@pytest.mark.row("D08")
async def test_last_stored_change_is_restored(first: ServerRun, second: ServerRun) -> None:
    session = await first.host.session()
    waiting = LateStore(second.store, "acquire", session)
    going_on = asyncio.ensure_future(second.request(session, "ping"))
    await waiting.asked.wait()  # it has seen that the session exists
    await first.subscribe(session, "note://a")
    await silence(first)
    waiting.go_on.set()
    assert "result" in (await going_on).json
    assert second.watched == ["note://a"]


@pytest.mark.row("D08")
async def test_session_deleted_before_takeover_is_not_restored(first: ServerRun, second: ServerRun) -> None:
    session = await first.host.session()
    waiting = LateStore(second.store, "acquire", session)
    finding = asyncio.ensure_future(sessions_of(second).acquire(session, None))
    await waiting.asked.wait()
    assert (await first.host.ask("DELETE", mcp_session_id=session)).status == 204
    waiting.go_on.set()
    assert await finding is None
    assert isinstance(await owner(second, session), Lease)


async def test_unshared_store_needs_no_lease(processes: Processes) -> None:
    session = ""
    for number in range(3):
        run = await processes.start(alone=True)
        assert run.server._runtime.get_services().cluster is None
        session = session or await run.host.session()
        assert "result" in (await run.request(session, "logging/setLevel", {"level": "error"})).json
        assert isinstance(await owner(run, session), Lease)
        assert (await run.record(session)).metadata.generation == number
        await processes.end(run)


# --- changes by another process ---------------------------------------------------------------------------


async def taken(first: ServerRun, second: ServerRun, session: str) -> None:
    """The second process owns a session that the first believes to own."""
    await silence(first)
    await take(second, session)


@pytest.mark.row("D08")
async def test_events_of_a_lost_session_are_refused_and_not_sent(first: ServerRun, second: ServerRun) -> None:
    session = await first.host.session()
    await first.subscribe(session, "note://a")
    stream = first.host.begin("GET", mcp_session_id=session)
    await stream.event()
    await taken(first, second, session)
    first.server.notify_updated("note://a")
    await stream.finished()
    assert b"note://a" not in stream.body
    assert ends(first) == ["session_moved"]
    assert len(first.host.endpoint.sessions) == 0
    assert first.watched == ["note://a"]
    assert first.seen.of(HandlerFailed) == []
    coming = second.host.begin("GET", mcp_session_id=session)
    assert [(await coming.event()).id, (await coming.event()).id] == ["0-0", "0-1"]  # that it may have changed
    second.server.notify_updated("note://a")
    assert (await coming.event()).id == "0-2"
    coming.gone.set()
    await coming.finished()


@pytest.mark.row("D08")
async def test_streams_of_a_lost_session_never_begin(first: ServerRun, second: ServerRun) -> None:
    session = await first.host.session()
    await taken(first, second, session)
    lost = await first.host.ask("POST", call("steps", token="t"), mcp_session_id=session)
    assert b"id:" not in lost.body
    kept = await second.host.ask("POST", call("steps", token="t"), mcp_session_id=session)
    assert b"id: 1-1\n" in kept.body


@pytest.mark.row("D08")
@pytest.mark.parametrize("method", ["logging/setLevel", "resources/subscribe"])
async def test_change_of_a_lost_session_has_unknown_outcome(first: ServerRun, second: ServerRun, method: str) -> None:
    session = await first.host.session()
    await taken(first, second, session)
    before = await second.record(session)
    answer = await first.request(session, method, {"level": "error", "uri": "note://a"})
    # Another write of the session may have noticed the loss before, and then the change has not begun.
    noticed = {(200, "outcome_unknown"), (503, "temporarily_unavailable")}
    assert (answer.status, answer.json["error"]["data"]["kind"]) in noticed
    assert await second.record(session) == before
    assert ends(first) == ["session_moved"]


@pytest.mark.row("D08")
async def test_notification_to_a_lost_session_is_not_acknowledged(first: ServerRun, second: ServerRun) -> None:
    session = (await first.host.ask("POST", INITIALIZE)).headers["mcp-session-id"]
    await taken(first, second, session)
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await first.host.ask("POST", ready, mcp_session_id=session)).status == 503
    assert not (await second.record(session)).metadata.ready
    assert (await second.host.ask("POST", ready, mcp_session_id=session)).status == 202


@pytest.mark.row("D08")
async def test_former_holder_cannot_delete_a_session(first: ServerRun, second: ServerRun) -> None:
    session = await first.host.session()
    await taken(first, second, session)
    kept = await second.store.scan(f"session/{session}")
    assert (await first.host.ask("DELETE", mcp_session_id=session)).status == 503
    assert await second.store.scan(f"session/{session}") == kept
    await take(second, session)


@pytest.mark.row("D08")
async def test_former_holder_does_not_record_use(first: ServerRun, second: ServerRun, clock: ManualClock) -> None:
    session = await first.host.session()
    [held] = first.host.endpoint.sessions
    assert held.stored is not None
    await taken(first, second, session)
    before = await second.record(session)
    clock.advance(1)
    held.stored.touch()
    await until(lambda: len(first.host.endpoint.sessions) == 0)
    assert await second.record(session) == before


@pytest.mark.row("D08")
async def test_call_in_a_lost_session_has_unknown_outcome(first: ServerRun, second: ServerRun) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    @first.server.tool
    async def slow(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await ctx.info("too late")
            cancelled.set()

    session = await first.host.session()
    asking = asyncio.ensure_future(first.call(session, "slow"))
    await began.wait()
    [held] = first.host.endpoint.sessions
    assert held.stored is not None
    await taken(first, second, session)
    assert not await held.stored.confirm_lease()
    answer = await asking
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (200, "outcome_unknown")
    await cancelled.wait()
    await take(second, session)


@pytest.mark.row("D08")
async def test_losing_one_session_leaves_others_alone(first: ServerRun, second: ServerRun) -> None:
    lost, other, cause = [await first.host.session() for _ in range(3)]
    for session in (lost, other):
        await first.subscribe(session, "note://a")
    stream = first.host.begin("GET", mcp_session_id=other)
    await stream.event()
    await taken(first, second, lost)
    assert "result" in (await first.call(cause, "change")).json
    assert (await stream.message())["params"] == {"uri": "note://a"}
    assert len(first.host.endpoint.sessions) == 2
    assert first.seen.of(HandlerFailed) == []
    stream.gone.set()
    await stream.finished()


@pytest.mark.row("D08")
async def test_writes_waiting_for_a_refused_lease_are_refused(first: ServerRun, second: ServerRun) -> None:
    acquire, lost = first.store.acquire, asyncio.Event()

    async def too_late(at: str, who: str, ttl: float, **more: Any) -> Lease | Held:
        given = await acquire(at, who, ttl, **more)
        await second.store.acquire(at, "another", ttl, over=given.token)
        return given

    first.store.acquire = too_late  # type: ignore[method-assign, assignment]
    holding = SessionLease("session/1", first.store, cluster_of(first), TTL)
    holding.on_taken = lost.set
    with pytest.raises(Fenced):
        await holding.commit([Put("session/1/streams/00000001", b"")])
    assert lost.is_set()
    assert await second.store.scan("session/1") == []


async def test_reader_of_a_session_being_lost_is_released(first: ServerRun, second: ServerRun) -> None:
    session = await first.host.session()
    await first.subscribe(session, "note://a")
    [held] = first.host.endpoint.sessions
    await taken(first, second, session)
    first.server.notify_updated("note://a")
    await until(lambda: held.channel.closed)
    for number in (0, 7):
        stream = held.channel.ensure_stream(number)
        reader = stream.attach(0)
        assert not stream.is_current_reader(reader)
        async with asyncio.timeout(PATIENCE):
            await stream.wait_committed(reader)
        assert stream.take() == b""
        stream.write(b"{}")  # by a caller that should know better
        assert not held.channel._events.is_committed(number)  # type: ignore[union-attr]
        assert stream.take() == b""


@pytest.mark.row("D08")
async def test_session_lost_before_first_use_is_not_used(first: ServerRun) -> None:
    kept, lost = sessions_of(first).create("S" * 43), list[str]()
    kept.lease.lose()  # as when this process is evicted while it checks the quota
    kept.on_taken_over(lambda: lost.append("told"))
    assert lost == ["told"]


# --- uncertain ownership --------------------------------------------------------------------------------


async def test_lease_is_confirmed_before_use_after_long_silence(first: ServerRun, clock: ManualClock) -> None:
    session = await first.host.session()
    renew, renewed = first.store.renew, list[str]()

    def count(lease: Lease, ttl: float) -> Awaitable[Lease]:
        renewed.append(lease.name)
        return renew(lease, ttl)

    first.store.renew = count  # type: ignore[method-assign, assignment]
    await take(first, session)
    assert renewed == []
    clock.advance(5)
    assert first.host.endpoint.sessions.get(session, None) is None
    answers = await asyncio.gather(*(first.request(session, "ping") for _ in range(5)))
    assert all("result" in answer.json for answer in answers)
    assert renewed.count(f"session/{session}") == 1
    assert (first.seen.of(RestoreStep), ends(first)) == ([], [])


@pytest.mark.row("D08")
async def test_former_holder_does_not_answer_for_a_session(
    first: ServerRun, second: ServerRun, clock: ManualClock
) -> None:
    session = await first.host.session()
    await taken(first, second, session)
    clock.advance(5)
    assert (await first.request(session, "ping")).status == 503
    assert (ends(first), len(first.host.endpoint.sessions)) == (["session_moved"], 0)
    await take(second, session)


async def test_unconfirmable_lease_answers_503(first: ServerRun, clock: ManualClock) -> None:
    session = await first.host.session()

    async def away(*_: Any) -> Lease:
        raise StoreUnavailable("not now")

    renew, first.store.renew = first.store.renew, away  # type: ignore[method-assign, assignment]
    clock.advance(5)
    assert (await first.request(session, "ping")).status == 503
    first.store.renew = renew  # type: ignore[method-assign]
    await take(first, session)
    assert (first.seen.of(RestoreStep), ends(first)) == ([], [])


async def test_session_is_acquired_again_after_the_store_lost_its_lease(first: ServerRun) -> None:
    session = await first.host.session()
    await first.store.acquire(f"session/{session}", cluster_of(first).name, 1e-6)  # as the same, so that it is replaced
    answer = await first.request(session, "logging/setLevel", {"level": "error"})
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (200, "outcome_unknown")
    assert "result" in (await first.request(session, "logging/setLevel", {"level": "error"})).json
    assert (await first.record(session)).metadata.generation == 1


@pytest.mark.row("D08")
async def test_evicted_process_gives_up_all_sessions(first: ServerRun, second: ServerRun, clock: ManualClock) -> None:
    sessions = [await first.host.session() for _ in range(3)]
    name = cluster_of(first).name
    stream = first.host.begin("GET", mcp_session_id=sessions[0])
    await stream.event()
    await rejoined(first, second, clock)
    await stream.finished()
    assert ends(first) == ["session_moved"] * 3
    assert len(first.host.endpoint.sessions) == 0
    await take(first, sessions[0])
    await take(second, sessions[1])
    held = await asyncio.gather(*(owner(second, session) for session in sessions))
    assert [one.holder for one in held] == [cluster_of(first).name, cluster_of(second).name, name]


async def rejoined(first: ServerRun, second: ServerRun, clock: ManualClock) -> None:
    """A process is evicted by another, and rejoins with a new id."""
    name = cluster_of(first).name
    await silenced(first, second, clock)
    async with asyncio.timeout(PATIENCE):
        while cluster_of(first).name == name:
            await advance(clock, 0.1, first, second)


@pytest.mark.row("D08")
async def test_session_opened_under_an_evicted_name_is_lost(
    processes: Processes, second: ServerRun, clock: ManualClock
) -> None:
    first = await processes.start(settings=Settings(initialize_timeout=None))  # much time passes
    waiting = LateStore(first.store, "acquire", "session/")
    opening = asyncio.ensure_future(first.host.ask("POST", INITIALIZE))
    await waiting.asked.wait()
    [held] = first.host.endpoint.sessions
    await rejoined(first, second, clock)
    waiting.go_on.set()
    assert (await opening).json["error"]["data"]["kind"] == "temporarily_unavailable"
    async with asyncio.timeout(PATIENCE):  # the store may respond later
        while not isinstance(await sessions_of(second).acquire(held.id, None), DurableSession):
            await turns()


@pytest.mark.row("D08")
async def test_session_opened_without_a_name_is_given_up(
    first: ServerRun, second: ServerRun, clock: ManualClock
) -> None:
    name = cluster_of(first).name
    await first.host.session()
    waiting = LateStore(first.store, "acquire", "process/", after=1)  # it may find out that it was evicted
    await silenced(first, second, clock)
    await until(lambda: [clock.advance(0.1), waiting.asked.is_set()][-1])
    assert ends(first) == ["session_moved"]
    session = await first.host.session()
    held = await owner(second, session)
    assert held.holder == name
    waiting.go_on.set()
    await until(lambda: cluster_of(first).name != name)
    assert ends(first) == ["session_moved"] * 2
    await take(first, session)


@pytest.mark.row("D08")
async def test_session_acquired_under_an_evicted_name_is_acquired_again(
    processes: Processes, first: ServerRun, second: ServerRun, clock: ManualClock
) -> None:
    third = await processes.start()
    session = await third.host.session()
    await processes.end(third)
    waiting = LateStore(first.store, "get", session, after=1)
    finding = asyncio.ensure_future(sessions_of(first).acquire(session, None))
    await waiting.asked.wait()
    await rejoined(first, second, clock)
    waiting.go_on.set()
    assert isinstance(await finding, DurableSession)
    held = await owner(second, session)
    assert held.holder == cluster_of(first).name
