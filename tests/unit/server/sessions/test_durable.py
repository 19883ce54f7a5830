"""Durable sessions, server side: their records, the time of writes, and restoring."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.limits import PATIENCE
from tests.unit.server.server_runs import TTL, Life, Lives, Slow
from tests.unit.transports.http.asgi import request

from trunkline import Context, Settings
from trunkline.auth.principal import Principal
from trunkline.errors import StoreUnavailable, StoreUnusable
from trunkline.facts import HandlerFailed, RestoreStep
from trunkline.protocol.types import LOGGING_LEVELS
from trunkline.server.access.owner_id import principal_name
from trunkline.server.sessions.record import LAYOUT, SessionMetadata, SessionRecord, read_record
from trunkline.stores.store import Put
from trunkline.testing import ManualClock

HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}

# --- records ----------------------------------------------------------------------------------------


@pytest.mark.row("D05")
async def test_stored_session_matches_its_schema(lives: Lives, clock: ManualClock) -> None:
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


@pytest.mark.row("D05")
def test_schema_matches_the_documentation() -> None:
    page = (Path(__file__).parents[4] / "docs" / "design" / "sessions.md").read_text("utf-8")
    documented = page.partition("```json\n")[2].partition("```")[0]
    assert json.loads(msgspec.json.encode(read_record(documented.encode()))) == json.loads(documented)
    assert set(json.loads(documented)) == set(SessionRecord.__struct_fields__)
    assert set(json.loads(documented)["metadata"]) == set(SessionMetadata.__struct_fields__)


@pytest.mark.row("D05")
def test_founding_record_is_migrated() -> None:
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


@pytest.mark.row("D05")
@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"version": 99}', b'{"version": 2, "id": 3}', b"\xff"])
def test_unreadable_record_raises_store_unusable(value: bytes) -> None:
    with pytest.raises(StoreUnusable):
        read_record(value)


async def test_used_session_record_expires_later(lives: Lives, clock: ManualClock) -> None:
    life = await lives.begin()
    opened = await life.host.ask("POST", request("initialize", HANDSHAKE))
    session = opened.headers["mcp-session-id"]
    await life.host.ask("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, mcp_session_id=session)

    async def seconds() -> float:
        [record] = [item for item in await life.store.scan(f"session/{session}/") if item.key.endswith("/record")]
        assert record.expires is not None
        return record.expires - clock.now()

    assert await seconds() == 30 + 300 + 2 * 60
    await life.request(session, "logging/setLevel", {"level": "error"})  # whose response waits for the write
    assert await seconds() >= TTL


@pytest.mark.row("D04")
async def test_last_use_is_written_once_in_a_tenth_of_ttl(lives: Lives, clock: ManualClock) -> None:
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


# --- failed writes ------------------------------------------------------------------------------------

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
CHANGES = {
    "subscribe": ("resources/subscribe", {"uri": "note://b"}),
    "unsubscribe": ("resources/unsubscribe", {"uri": "note://a"}),
    "level": ("logging/setLevel", {"level": "error"}),
}


async def standing(life: Life, session: str) -> list[tuple[list[str], str]]:
    """The subscriptions and the log level of a session, as active and as stored."""
    [kept] = [one.stored for one in life.host.endpoint.sessions if one.id == session]
    connection = kept.connection  # type: ignore[union-attr]
    uris = connection.shared.subscription_hooks.subscriptions.uris(connection)
    record = await life.record(session)
    return [
        (uris, LOGGING_LEVELS[connection.log_level]),
        (record.subscriptions, record.metadata.log_level),
    ]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("round_", [False, True])
async def test_unstored_change_is_refused_and_undone(
    lives: Lives, clock: ManualClock, change: str, done: bool, round_: bool
) -> None:
    """Nor is it stored without a confirmation of the store, whatever else is being written."""
    life = await lives.begin()
    session = await life.host.session()
    await life.subscribe(session, "note://a")
    before = await standing(life, session)
    fault = life.faults.fail("commit", key="session/", done=done)
    if round_:
        clock.advance(TTL / 10)
        await life.request(session, "ping")  # its time of use is due to be written, too
    async with asyncio.timeout(PATIENCE):
        error = (await life.request(session, *CHANGES[change])).json["error"]
    assert (error["code"], error["data"]["kind"]) == (1008, "temporarily_unavailable")
    assert "store" in error["message"]
    fault.lift()
    assert await standing(life, session) == before
    assert "result" in (await life.request(session, *CHANGES[change])).json
    in_force, kept = await standing(life, session)
    assert in_force == kept != before[0]


async def test_cancelled_change_is_undone_while_store_is_slow(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    before = await standing(life, session)
    held = life.faults.hold("commit", key="session/")
    asked = asyncio.create_task(life.request(session, "resources/subscribe", {"uri": "note://a"}))
    await asyncio.wait_for(held.reached.wait(), PATIENCE)
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    await life.host.ask("POST", body, mcp_session_id=session)
    [kept] = [one.stored for one in life.host.endpoint.sessions]
    connection = kept.connection  # type: ignore[union-attr]
    async with asyncio.timeout(PATIENCE):
        while connection.shared.subscription_hooks.subscriptions.uris(connection):
            await asyncio.sleep(0)
        held.lift()
        while await standing(life, session) != before:
            await asyncio.sleep(0.01)
    asked.cancel()


async def test_failing_undo_does_not_hide_the_refusal(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()

    @life.server.on_last_unsubscribed
    def fails(uri: str) -> None:
        raise OSError("cannot end")

    life.faults.fail("commit", key="session/")
    error = (await life.request(session, "resources/subscribe", {"uri": "note://a"})).json["error"]
    assert error["data"]["kind"] == "temporarily_unavailable"
    assert any(isinstance(fact.error, OSError) for fact in life.seen.of(HandlerFailed))


async def test_subscription_that_a_hook_cannot_end_is_not_stored(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    await life.subscribe(session, "note://a")

    @life.server.on_last_unsubscribed
    def fails(uri: str) -> None:
        raise OSError("cannot end")

    assert "error" in (await life.request(session, "resources/unsubscribe", {"uri": "note://a"})).json
    in_force, kept = await standing(life, session)
    assert in_force == kept == ([], "info")


async def test_unstored_handshake_is_refused_and_opens_no_session(lives: Lives) -> None:
    life = await lives.begin()
    await life.server.start()
    fault = life.faults.fail("commit", "acquire", key="session/")
    refused = await life.host.ask("POST", request("initialize", INITIALIZE))
    assert refused.json["error"]["data"]["kind"] == "temporarily_unavailable"
    assert "mcp-session-id" not in refused.headers
    assert list(life.host.endpoint.sessions) == []
    fault.lift()
    await life.host.session()


# --- restoring ----------------------------------------------------------------------------------------


@pytest.mark.row("D10")
async def test_session_is_restored_in_order(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    await life.subscribe(session, "note://a")
    life = await lives.begin()
    assert "result" in (await life.request(session, "ping")).json
    steps = [fact.step for fact in life.seen.of(RestoreStep)]
    assert steps == ["RestoreSubscriptions", "ReplayPending", "RestoreCapabilities", "StartMonitoring"]
    assert life.watched == ["note://a"]
    assert (await life.record(session)).metadata.generation == 1


@pytest.mark.row("D17")
async def test_session_of_another_principal_is_unknown(lives: Lives) -> None:
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


@pytest.mark.row("D06", "D17")
async def test_session_expires_while_no_process_runs(lives: Lives, clock: ManualClock) -> None:
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


async def test_forbidden_resource_sends_no_update_after_restart(lives: Lives) -> None:
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


async def test_failing_hook_costs_one_subscription(lives: Lives) -> None:
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


async def test_unavailable_store_answers_503_not_404(lives: Lives) -> None:
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


async def test_sessions_without_ttl_never_expire(lives: Lives, clock: ManualClock) -> None:
    life = await lives.begin(settings=Settings(session_ttl=None))
    session = await life.host.session()
    await lives.end()
    clock.advance(1e8)
    life = await lives.begin(settings=Settings(session_ttl=None))
    assert "result" in (await life.request(session, "ping")).json
    assert (await life.record(session)).timeout_ms is None


async def test_stopping_server_restores_no_session(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    life = await lives.begin()
    await life.host.session()
    life.host.app.close_idle_streams()
    answer = await life.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (503, "temporarily_unavailable")


async def test_restore_is_released_when_the_server_stops(
    lives: Lives,
) -> None:
    life = await lives.begin()
    session = await life.host.session()
    life = await lives.begin()
    await life.host.session()
    read = life.faults.hold("get", key=session)
    asking = asyncio.ensure_future(life.request(session, "ping"))
    await asyncio.wait_for(read.reached.wait(), PATIENCE)
    life.host.app.close_idle_streams()
    read.lift()
    answer = await asking
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (503, "temporarily_unavailable")
    assert not life.host.endpoint.sessions.holds(session)


# --- sessions that cannot be restored ---------------------------------------------------------------------


@pytest.mark.row("D05")
@pytest.mark.parametrize(
    "change",
    [
        {"version": LAYOUT + 1},
        {"version": "x"},
        {"metadata": {"revision": "1999-01-01"}},
        {"metadata": {"revision": "2025-11-25", "log_level": "loud"}},
        {"created_at": "yesterday"},
        {"id": "another's"},
    ],
)
async def test_newer_or_damaged_record_is_no_session(lives: Lives, change: dict[str, Any]) -> None:
    life = await lives.begin()
    session = await life.host.session()
    item = await life.store.get(f"session/{session}/record")
    assert item is not None
    await life.store.commit([Put(item.key, json.dumps(json.loads(item.value) | change).encode())])
    life = await lives.begin()
    answer = await life.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")
    assert len(life.seen.of(HandlerFailed)) == ("id" not in change)
    assert await life.host.session()


@pytest.mark.row("D05")
@pytest.mark.parametrize("key", ["position", "streams/00000001"])
async def test_session_with_unreadable_streams_is_no_session(lives: Lives, key: str) -> None:
    life = await lives.begin()
    session = await life.host.session()
    await life.store.commit([Put(f"session/{session}/{key}", b"nonsense")])
    life = await lives.begin()
    answer = await life.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")
    [failed] = life.seen.of(HandlerFailed)
    assert "cannot read" in str(failed.error)
    assert life.seen.of(RestoreStep) == []
    assert len(life.host.endpoint.sessions) == 0


@pytest.mark.row("D05")
async def test_session_of_an_older_version_is_restored(lives: Lives, clock: ManualClock) -> None:
    session, now = "S" * 43, round(clock.now() * 1000)
    old = {
        "id": session,
        "created_at": now,
        "last_accessed": now,
        "timeout_ms": 3_600_000,
        "metadata": {
            "protocol_version": "2025-06-18",
            "principal": principal_name("anna"),
            "client_capabilities": {"roots": {}},
            "subscriptions": ["note://a"],
            "log_level": "error",
        },
    }
    life = await lives.begin()
    await life.server.start()
    await life.store.commit([Put(f"session/{session}/record", json.dumps(old).encode())])
    life.host.principal = "anna"
    assert "result" in (await life.request(session, "ping")).json
    record = await life.record(session)
    assert (record.version, record.subscriptions, record.created_at) == (LAYOUT, ["note://a"], clock.now())
    assert (record.metadata.revision, record.metadata.log_level) == ("2025-06-18", "error")
    assert record.capabilities.client == {"roots": {}}


# --- ownership --------------------------------------------------------------------------------------------


async def test_session_id_of_another_principal_restores_nothing(lives: Lives) -> None:
    life = await lives.begin()
    life.host.principal = "anna"
    session = await life.host.session()
    await life.subscribe(session, "note://a")
    life = await lives.begin()
    life.host.principal = "berta"
    for method in ("POST", "GET", "DELETE"):
        answer = await life.host.ask(method, request("ping"), mcp_session_id=session)
        assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")
    assert (life.seen.of(RestoreStep), life.watched, len(life.host.endpoint.sessions)) == ([], [], 0)
    life.host.principal = "anna"
    assert "result" in (await life.request(session, "ping")).json


async def test_forbidden_subscription_is_not_restored(lives: Lives) -> None:
    life = await lives.begin()
    life.host.principal = "anna"
    session = await life.host.session()
    await life.subscribe(session, "secret://a")
    await life.subscribe(session, "note://a")
    life = await lives.begin()
    life.trusted.clear()
    life.host.principal = "anna"
    assert "result" in (await life.request(session, "ping")).json
    assert life.watched == ["note://a"]
    assert (await life.record(session)).subscriptions == ["note://a"]
    assert "result" in (await life.call(session, "change")).json
    life.server.tools.remove("change")
    gone = await life.call(session, "change")
    assert gone.json["error"]["code"] == -32602


async def test_concurrent_restores_respect_the_principal_limit(lives: Lives) -> None:
    most = Settings(max_sessions_per_principal=1)
    life = await lives.begin()
    life.host.principal = "anna"
    sessions = [await life.host.session() for _ in range(3)]
    life = await lives.begin(settings=most)
    life.host.principal = "anna"
    answers = await asyncio.gather(*(life.request(session, "ping") for session in sessions))
    assert sorted(answer.status for answer in answers) == [200, 503, 503]
    assert len(life.host.endpoint.sessions) == 1


# --- end of a session -------------------------------------------------------------------------------------


async def test_stored_session_can_be_deleted_without_restore(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    await life.subscribe(session, "note://a")
    life.server.notify_updated("note://a")
    life = await lives.begin()
    assert "result" in (await life.request(session, "ping")).json
    slow = Slow(life.store, session)
    slow.go_on.set()
    slow.failures = 1
    assert (await life.host.ask("DELETE", mcp_session_id=session)).status == 503  # and its record still exists
    assert len(life.host.endpoint.sessions) == 0
    assert (await life.host.ask("DELETE", mcp_session_id=session)).status == 204
    assert await life.store.scan("session/") == []
    assert (await life.request(session, "ping")).status == 404


async def test_session_being_deleted_is_not_restored(lives: Lives) -> None:
    life = await lives.begin()
    session = await life.host.session()
    slow = Slow(life.store, session)
    ending = asyncio.ensure_future(life.host.ask("DELETE", mcp_session_id=session))
    await slow.asked.wait()
    assert (await life.request(session, "ping")).status == 404
    slow.go_on.set()
    assert (await ending).status == 204
    assert await life.store.scan("session/") == []


async def test_deleting_a_busy_session_leaves_no_data(lives: Lives) -> None:
    life = await lives.begin()
    began = asyncio.Event()

    @life.server.tool
    async def stubborn(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ctx.close_stream()

    session = await life.host.session()
    await life.subscribe(session, "note://a")
    stream = life.host.begin("GET", mcp_session_id=session)
    await stream.event()
    stream.reading.clear()
    life.server.notify_updated("note://a")
    await stream.event()
    await life.call(session, "change")  # which waits for its reader
    working = asyncio.ensure_future(life.call(session, "stubborn", 2))
    await began.wait()
    assert (await life.host.ask("DELETE", mcp_session_id=session)).status == 204
    stream.reading.set()
    await stream.finished()
    await working
    await life.host.session()
    assert [item.key for item in await life.store.scan(f"session/{session}")] == []


@pytest.mark.row("D06")
async def test_abandoned_sessions_are_swept(lives: Lives, clock: ManualClock) -> None:
    life = await lives.begin()
    for _ in range(5):
        await life.subscribe(await life.host.session(), "note://a")
    life.server.notify_updated("note://a")
    last = await life.host.session()
    await life.request(last, "logging/setLevel", {"level": "info"})
    await life.record(last)  # all writes have ended: until then the records have the short lifetime of unused sessions
    assert len(await life.store.scan("session/")) == 5 * 2 + 1
    clock.advance(TTL)
    assert len(life.host.endpoint.sessions) == 0
    assert len(await life.store.scan("session/")) == 5 * 2 + 1  # so that their fate is known
    clock.advance(TTL + 60)
    assert (await life.request(last, "ping")).status == 404
    await lives.end()
    with contextlib.closing(sqlite3.connect(life.path)) as file:
        assert [key for (key,) in file.execute("SELECT key FROM items") if key.startswith("session/")] == []
