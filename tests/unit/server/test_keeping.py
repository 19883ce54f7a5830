"""Sessions in a store, seen from the server: what is written, when, and how it is brought back."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.transports.http.asgi import Answer, Host

from trunkline import Server, Settings
from trunkline.auth.principal import Principal
from trunkline.errors import StoreUnavailable, StoreUnusable
from trunkline.facts import RestoreStep
from trunkline.server.records import LAYOUT, SessionRecord, read_record
from trunkline.stores.sqlite import SqliteStore
from trunkline.stores.store import Put
from trunkline.testing import ManualClock, RecordingObserver

TTL = 3600.0


class Life:
    """One life of a server on a file; the next one begins where it ends."""

    def __init__(self, path: Path, clock: ManualClock, **options: Any) -> None:
        self.store = SqliteStore(path, clock=clock)
        self.seen = RecordingObserver()
        self.server = Server("kept", store=self.store, clock=clock, observers=[self.seen], **options)
        self.watched: list[str] = []

        @self.server.resource("note://{name}")
        def note(name: str) -> str:
            return name

        @self.server.resource("secret://{name}", allow=lambda ctx: ctx.principal == "anna")
        def secret(name: str) -> str:
            return name

        @self.server.on_first_subscriber
        def begin(uri: str) -> None:
            if uri == "note://broken":
                raise RuntimeError("cannot be watched")
            self.watched.append(uri)

        self.host = Host(self.server, clock=clock)
        self.host.app = self.server.asgi(identify=lambda _: self.host.principal)

    async def request(self, session: str, method: str, params: Any = None) -> Answer:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return await self.host.ask("POST", body, mcp_session_id=session)

    async def subscribe(self, session: str, uri: str) -> None:
        assert "result" in (await self.request(session, "resources/subscribe", {"uri": uri})).json

    async def record(self, session: str) -> SessionRecord:
        for one in self.host.endpoint.sessions:
            if one.kept is not None and (unsettled := one.kept.unsettled) is not None:
                await asyncio.wait([unsettled])
        item = await self.store.get(f"session/{session}/record")
        assert item is not None
        return read_record(item.value)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=1_000_000.0)


class Lives:
    """Lives of a server, one after another."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self._path = path
        self._clock = clock
        self.now: Life | None = None

    async def begin(self, **options: Any) -> Life:
        """The next one."""
        await self.end()
        self.now = Life(self._path, self._clock, **options)
        return self.now

    async def end(self) -> None:
        if self.now is not None:
            await self.now.host.app.aclose()
            self.now = None


@pytest.fixture
async def lives(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Lives]:
    made = Lives(tmp_path / "kept.db", clock)
    yield made
    await made.end()


# --- what is written --------------------------------------------------------------------------------


async def test_d05_a_stored_session_is_what_its_schema_says(lives: Lives, clock: ManualClock) -> None:
    life = await lives.begin()
    life.host.principal = "anna"
    session = await life.host.session(capabilities={"roots": {}})
    await life.subscribe(session, "note://a")
    item = await life.store.get(f"session/{session}/record")
    assert item is not None
    found = json.loads(item.value)
    assert set(found) == set(SessionRecord.__struct_fields__)
    assert msgspec.json.decode(item.value, type=SessionRecord, strict=True).version == LAYOUT
    assert found["id"] == session
    assert found["created_at"] == found["last_accessed"] == clock.now()
    assert found["timeout_ms"] == 3_600_000
    assert found["subscriptions"] == ["note://a"]
    assert found["capabilities"]["client"] == {"roots": {}}
    assert found["metadata"]["principal"] == "str 'anna'"
    assert found["metadata"]["revision"] == "2025-11-25"
    assert found["metadata"]["ready"] is True


def test_d05_a_record_of_the_founding_documents_becomes_one_of_today() -> None:
    old = {
        "id": "x",
        "created_at": 1_000_000,
        "last_accessed": 2_000_000,
        "timeout_ms": "infinity",
        "metadata": {
            "protocol_version": "2024-11-05",
            "client_capabilities": {"roots": {}},
            "subscriptions": ["note://a"],
            "client_info": {"name": "c", "version": "1"},
        },
    }
    record = read_record(json.dumps(old).encode())
    assert (record.version, record.id, record.created_at, record.last_accessed) == (LAYOUT, "x", 1000, 2000)
    assert (record.timeout_ms, record.subscriptions) == (None, ["note://a"])
    assert record.metadata.revision == "2024-11-05"
    assert record.metadata.client is not None
    assert record.capabilities.client == {"roots": {}}


@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"version": 99}', b'{"version": 2, "id": 3}', b"\xff"])
def test_d05_what_cannot_be_read_is_said_to_be_unusable(value: bytes) -> None:
    with pytest.raises(StoreUnusable):
        read_record(value)


async def test_d04_that_a_session_is_used_is_written_once_in_a_tenth_of_its_time(
    lives: Lives, clock: ManualClock
) -> None:
    life = await lives.begin()
    session = await life.host.session()
    opened = clock.now()
    clock.advance(TTL / 10 - 1)
    await life.request(session, "ping")
    assert (await life.record(session)).last_accessed == opened
    clock.advance(1)
    await life.request(session, "ping")
    await life.request(session, "logging/setLevel", {"level": "info"})
    assert (await life.record(session)).last_accessed == opened + TTL / 10


# --- how it is brought back ---------------------------------------------------------------------------


async def test_d10_a_session_is_restored_in_order(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    await life.subscribe(session, "note://a")
    life = await lives.begin()
    assert "result" in (await life.request(session, "ping")).json
    steps = [fact.step for fact in life.seen.of(RestoreStep)]
    assert steps == ["RestoreSubscriptions", "ReplayPending", "RestoreCapabilities", "StartMonitoring"]
    assert life.watched == ["note://a"]
    assert (await life.record(session)).metadata.generation == 1


async def test_d17_another_principals_session_is_not_there(lives: Lives) -> None:
    anna = Principal("anna", issuer="idp")
    life = await lives.begin()
    life.host.principal = anna
    session = await life.host.session()
    life = await lives.begin()
    for stranger in (None, "anna", Principal("anna", issuer="other"), Principal("berta", issuer="idp")):
        life.host.principal = stranger
        answer = await life.request(session, "ping")
        assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")
    life.host.principal = Principal("anna", issuer="idp", scopes=("more",))
    assert "result" in (await life.request(session, "ping")).json


async def test_d06_d17_time_runs_while_no_process_does(lives: Lives, clock: ManualClock) -> None:
    life = await lives.begin()
    session = await life.host.session()
    await lives.end()
    clock.advance(TTL - 1)
    life = await lives.begin()
    assert "result" in (await life.request(session, "ping")).json
    await lives.end()
    clock.advance(TTL)
    life = await lives.begin()
    answer = await life.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_expired")
    clock.advance(TTL)
    answer = await life.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")


async def test_who_may_not_hear_of_a_resource_any_more_is_not_told_after_a_restart(lives: Lives) -> None:
    life = await lives.begin()
    life.host.principal = "anna"
    session = await life.host.session()
    await life.subscribe(session, "secret://a")
    life = await lives.begin()
    life.host.principal = "anna"
    stream = life.host.begin("GET", mcp_session_id=session)
    assert not (await stream.event()).data
    life.server.notify_updated("secret://a")
    assert (await stream.message())["params"] == {"uri": "secret://a"}
    stream.gone.set()
    await stream.finished()


async def test_a_watcher_that_fails_costs_one_subscription_and_no_more(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    await life.subscribe(session, "note://a")
    await life.subscribe(session, "note://b")
    record = await life.record(session)
    broken = msgspec.structs.replace(record, subscriptions=["note://broken", "note://b"])
    await life.store.commit([Put(f"session/{session}/record", msgspec.json.encode(broken))])
    life = await lives.begin()
    assert "result" in (await life.request(session, "ping")).json
    assert life.watched == ["note://b"]
    assert (await life.record(session)).subscriptions == ["note://b"]


async def test_a_store_that_does_not_answer_is_no_reason_to_begin_anew(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    life = await lives.begin()
    await life.host.session()

    async def silent(_: str) -> None:
        raise StoreUnavailable("not now")

    read, life.store.get = life.store.get, silent  # type: ignore[method-assign, assignment]
    answer = await life.request(session, "ping")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    life.store.get = read  # type: ignore[method-assign]
    assert "result" in (await life.request(session, "ping")).json


async def test_an_event_is_sent_when_it_is_kept_and_not_before(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    await life.subscribe(session, "note://a")
    waiting = life.host.begin("GET", mcp_session_id=session)
    await waiting.event()
    commit, asked, answered = life.store.commit, asyncio.Event(), asyncio.Event()

    async def late(writes: Any) -> int:
        asked.set()
        await answered.wait()
        return await commit(writes)

    life.store.commit = late  # type: ignore[method-assign, assignment]
    life.server.notify_updated("note://a")
    await asked.wait()
    coming = life.host.begin("GET", mcp_session_id=session, last_event_id="0-0")
    await waiting.finished()  # another reads in its place
    await life.request(session, "ping")
    assert b"note://a" not in waiting.body + coming.body
    answered.set()
    assert (await coming.message())["params"] == {"uri": "note://a"}
    assert [item.value for item in await life.store.scan(f"session/{session}/events/")] != []
    coming.gone.set()
    await coming.finished()


async def test_a_store_that_was_away_for_a_moment_loses_no_event(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    await life.subscribe(session, "note://a")
    stream = life.host.begin("GET", mcp_session_id=session)
    await stream.event()
    commit = life.store.commit

    async def away(_: Any) -> int:
        life.store.commit = commit  # type: ignore[method-assign]
        raise StoreUnavailable("not now")

    life.store.commit = away  # type: ignore[method-assign, assignment]
    life.server.notify_updated("note://a")
    assert (await stream.message())["params"] == {"uri": "note://a"}
    stream.gone.set()
    await stream.finished()


async def test_sessions_that_never_expire_stay_that_way(lives: Lives, clock: ManualClock) -> None:
    life = await lives.begin(settings=Settings(session_ttl=None))
    session = await life.host.session()
    clock.advance(1e8)
    life = await lives.begin(settings=Settings(session_ttl=None))
    assert "result" in (await life.request(session, "ping")).json
    assert (await life.record(session)).timeout_ms is None


async def test_a_server_that_is_about_to_stop_brings_nothing_back(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    life = await lives.begin()
    await life.host.session()
    life.host.app.release()
    answer = await life.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (503, "temporarily_unavailable")
