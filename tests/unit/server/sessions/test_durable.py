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
from tests.unit.server.server_runs import TTL, ServerRun, ServerRuns, SlowStore
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
async def test_stored_session_matches_its_schema(runs: ServerRuns, clock: ManualClock) -> None:
    run = await runs.begin()
    run.host.principal = "anna"
    session = await run.host.session(capabilities={"roots": {}})
    await run.subscribe(session, "note://a")
    item = await run.store.get(f"session/{session}/record")
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


async def test_used_session_record_expires_later(runs: ServerRuns, clock: ManualClock) -> None:
    run = await runs.begin()
    opened = await run.host.ask("POST", request("initialize", HANDSHAKE))
    session = opened.headers["mcp-session-id"]
    await run.host.ask("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, mcp_session_id=session)

    async def seconds() -> float:
        [record] = [item for item in await run.store.scan(f"session/{session}/") if item.key.endswith("/record")]
        assert record.expires is not None
        return record.expires - clock.now()

    assert await seconds() == 30 + 300 + 2 * 60
    await run.request(session, "logging/setLevel", {"level": "error"})  # whose response waits for the write
    assert await seconds() >= TTL


@pytest.mark.row("D04")
async def test_last_use_is_written_once_in_a_tenth_of_ttl(runs: ServerRuns, clock: ManualClock) -> None:
    run = await runs.begin()
    session = await run.host.session()
    opened = clock.now()
    clock.advance(TTL / 10 - 1)
    await run.request(session, "ping")
    assert (await run.record(session)).last_accessed == opened
    clock.advance(1)
    await run.request(session, "ping")
    await run.request(session, "logging/setLevel", {"level": "info"})
    assert (await run.record(session)).last_accessed == opened + TTL / 10


# --- failed writes ------------------------------------------------------------------------------------

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
CHANGES = {
    "subscribe": ("resources/subscribe", {"uri": "note://b"}),
    "unsubscribe": ("resources/unsubscribe", {"uri": "note://a"}),
    "level": ("logging/setLevel", {"level": "error"}),
}


async def subscriptions_and_level(run: ServerRun, session: str) -> list[tuple[list[str], str]]:
    """The subscriptions and the log level of a session, as active and as stored."""
    [kept] = [one.stored for one in run.host.endpoint.sessions if one.id == session]
    connection = kept.connection  # type: ignore[union-attr]
    uris = connection.shared.subscription_hooks.subscriptions.uris(connection)
    record = await run.record(session)
    return [
        (uris, LOGGING_LEVELS[connection.log_level]),
        (record.subscriptions, record.metadata.log_level),
    ]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("round_", [False, True])
async def test_unstored_change_is_refused_and_undone(
    runs: ServerRuns, clock: ManualClock, change: str, done: bool, round_: bool
) -> None:
    """Nor is it stored without a confirmation of the store, whatever else is being written."""
    run = await runs.begin()
    session = await run.host.session()
    await run.subscribe(session, "note://a")
    before = await subscriptions_and_level(run, session)
    fault = run.faults.fail("commit", key="session/", done=done)
    if round_:
        clock.advance(TTL / 10)
        await run.request(session, "ping")  # its time of use is due to be written, too
    async with asyncio.timeout(PATIENCE):
        error = (await run.request(session, *CHANGES[change])).json["error"]
    assert (error["code"], error["data"]["kind"]) == (1008, "temporarily_unavailable")
    assert "store" in error["message"]
    fault.lift()
    assert await subscriptions_and_level(run, session) == before
    assert "result" in (await run.request(session, *CHANGES[change])).json
    in_force, kept = await subscriptions_and_level(run, session)
    assert in_force == kept != before[0]


async def test_cancelled_change_is_undone_while_store_is_slow(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    before = await subscriptions_and_level(run, session)
    held = run.faults.hold("commit", key="session/")
    asked = asyncio.create_task(run.request(session, "resources/subscribe", {"uri": "note://a"}))
    await asyncio.wait_for(held.reached.wait(), PATIENCE)
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    await run.host.ask("POST", body, mcp_session_id=session)
    [kept] = [one.stored for one in run.host.endpoint.sessions]
    connection = kept.connection  # type: ignore[union-attr]
    async with asyncio.timeout(PATIENCE):
        while connection.shared.subscription_hooks.subscriptions.uris(connection):
            await asyncio.sleep(0)
        held.lift()
        while await subscriptions_and_level(run, session) != before:
            await asyncio.sleep(0.01)
    asked.cancel()


async def test_failing_undo_does_not_hide_the_refusal(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()

    @run.server.on_last_unsubscribed
    def fails(uri: str) -> None:
        raise OSError("cannot end")

    run.faults.fail("commit", key="session/")
    error = (await run.request(session, "resources/subscribe", {"uri": "note://a"})).json["error"]
    assert error["data"]["kind"] == "temporarily_unavailable"
    assert any(isinstance(fact.error, OSError) for fact in run.seen.of(HandlerFailed))


async def test_subscription_that_a_hook_cannot_end_is_not_stored(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await run.subscribe(session, "note://a")

    @run.server.on_last_unsubscribed
    def fails(uri: str) -> None:
        raise OSError("cannot end")

    assert "error" in (await run.request(session, "resources/unsubscribe", {"uri": "note://a"})).json
    in_force, kept = await subscriptions_and_level(run, session)
    assert in_force == kept == ([], "info")


async def test_unstored_handshake_is_refused_and_opens_no_session(runs: ServerRuns) -> None:
    run = await runs.begin()
    await run.server.start()
    fault = run.faults.fail("commit", "acquire", key="session/")
    refused = await run.host.ask("POST", request("initialize", INITIALIZE))
    assert refused.json["error"]["data"]["kind"] == "temporarily_unavailable"
    assert "mcp-session-id" not in refused.headers
    assert list(run.host.endpoint.sessions) == []
    fault.lift()
    await run.host.session()


# --- restoring ----------------------------------------------------------------------------------------


@pytest.mark.row("D10")
async def test_session_is_restored_in_order(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await run.subscribe(session, "note://a")
    run = await runs.begin()
    assert "result" in (await run.request(session, "ping")).json
    steps = [fact.step for fact in run.seen.of(RestoreStep)]
    assert steps == ["RestoreSubscriptions", "ReplayPending", "RestoreCapabilities", "StartMonitoring"]
    assert run.watched == ["note://a"]
    assert (await run.record(session)).metadata.generation == 1


@pytest.mark.row("D17")
async def test_session_of_another_principal_is_unknown(runs: ServerRuns) -> None:
    anna = Principal("anna", issuer="idp")
    run = await runs.begin()
    run.host.principal = anna
    session = await run.host.session()
    run = await runs.begin()
    for stranger in (None, "anna", Principal("anna", issuer="other"), Principal("berta", issuer="idp")):
        run.host.principal = stranger
        answer = await run.request(session, "ping")
        assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")
    run.host.principal = Principal("anna", issuer="idp", scopes=("more",))
    assert "result" in (await run.request(session, "ping")).json


@pytest.mark.row("D06", "D17")
async def test_session_expires_while_no_process_runs(runs: ServerRuns, clock: ManualClock) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await runs.end()
    clock.advance(TTL - 1)
    run = await runs.begin()
    assert "result" in (await run.request(session, "ping")).json
    await runs.end()
    clock.advance(TTL)
    run = await runs.begin()
    answer = await run.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_expired")
    clock.advance(TTL)
    answer = await run.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")


async def test_forbidden_resource_sends_no_update_after_restart(runs: ServerRuns) -> None:
    run = await runs.begin()
    run.host.principal = "anna"
    session = await run.host.session()
    await run.subscribe(session, "secret://a")
    run = await runs.begin()
    run.host.principal = "anna"
    stream = run.host.begin("GET", mcp_session_id=session)
    assert not (await stream.event()).data
    run.server.notify_updated("secret://a")
    assert (await stream.message())["params"] == {"uri": "secret://a"}
    stream.gone.set()
    await stream.finished()


async def test_failing_hook_costs_one_subscription(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await run.subscribe(session, "note://a")
    await run.subscribe(session, "note://b")
    record = await run.record(session)
    broken = msgspec.structs.replace(record, subscriptions=["note://broken", "note://b"])
    await run.store.commit([Put(f"session/{session}/record", msgspec.json.encode(broken))])
    run = await runs.begin()
    assert "result" in (await run.request(session, "ping")).json
    assert run.watched == ["note://b"]
    assert (await run.record(session)).subscriptions == ["note://b"]


@pytest.mark.row("Q08")
async def test_unavailable_store_answers_503_not_404(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    run = await runs.begin()
    await run.host.session()

    async def silent(_: str) -> None:
        raise StoreUnavailable("not now")

    read, run.store.get = run.store.get, silent  # type: ignore[method-assign, assignment]
    answer = await run.request(session, "ping")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    run.store.get = read  # type: ignore[method-assign]
    assert "result" in (await run.request(session, "ping")).json


async def test_sessions_without_ttl_never_expire(runs: ServerRuns, clock: ManualClock) -> None:
    run = await runs.begin(settings=Settings(session_ttl=None))
    session = await run.host.session()
    await runs.end()
    clock.advance(1e8)
    run = await runs.begin(settings=Settings(session_ttl=None))
    assert "result" in (await run.request(session, "ping")).json
    assert (await run.record(session)).timeout_ms is None


async def test_stopping_server_restores_no_session(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    run = await runs.begin()
    await run.host.session()
    run.host.app.close_idle_streams()
    answer = await run.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (503, "temporarily_unavailable")


async def test_restore_is_released_when_the_server_stops(
    runs: ServerRuns,
) -> None:
    run = await runs.begin()
    session = await run.host.session()
    run = await runs.begin()
    await run.host.session()
    read = run.faults.hold("get", key=session)
    asking = asyncio.ensure_future(run.request(session, "ping"))
    await asyncio.wait_for(read.reached.wait(), PATIENCE)
    run.host.app.close_idle_streams()
    read.lift()
    answer = await asking
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (503, "temporarily_unavailable")
    assert not run.host.endpoint.sessions.holds(session)


@pytest.mark.parametrize("how", ["closed", "drained"])
async def test_session_that_ends_during_its_restore_is_refused_for_now(runs: ServerRuns, how: str) -> None:
    run = await runs.begin()
    session = await run.host.session()
    run = await runs.begin()
    reading = run.faults.hold("scan", key=session)
    asking = asyncio.ensure_future(run.request(session, "ping"))
    await asyncio.wait_for(reading.reached.wait(), PATIENCE)
    for connection in run.server.connections:
        if how == "closed":  # as on an eviction of the process
            await connection.close()
        else:  # as on its shutdown
            connection.drain()
    reading.lift()
    answer = await asking
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (503, "temporarily_unavailable")
    assert (await run.request(session, "ping")).status == 200


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
async def test_newer_or_damaged_record_is_no_session(runs: ServerRuns, change: dict[str, Any]) -> None:
    run = await runs.begin()
    session = await run.host.session()
    item = await run.store.get(f"session/{session}/record")
    assert item is not None
    await run.store.commit([Put(item.key, json.dumps(json.loads(item.value) | change).encode())])
    run = await runs.begin()
    answer = await run.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")
    assert len(run.seen.of(HandlerFailed)) == ("id" not in change)
    assert await run.host.session()


@pytest.mark.row("D05")
@pytest.mark.parametrize("key", ["position", "streams/00000001"])
async def test_session_with_unreadable_streams_is_no_session(runs: ServerRuns, key: str) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await run.store.commit([Put(f"session/{session}/{key}", b"nonsense")])
    run = await runs.begin()
    answer = await run.request(session, "ping")
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")
    [failed] = run.seen.of(HandlerFailed)
    assert "cannot read" in str(failed.error)
    assert run.seen.of(RestoreStep) == []
    assert len(run.host.endpoint.sessions) == 0


@pytest.mark.row("D05")
async def test_session_of_an_older_version_is_restored(runs: ServerRuns, clock: ManualClock) -> None:
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
    run = await runs.begin()
    await run.server.start()
    await run.store.commit([Put(f"session/{session}/record", json.dumps(old).encode())])
    run.host.principal = "anna"
    assert "result" in (await run.request(session, "ping")).json
    record = await run.record(session)
    assert (record.version, record.subscriptions, record.created_at) == (LAYOUT, ["note://a"], clock.now())
    assert (record.metadata.revision, record.metadata.log_level) == ("2025-06-18", "error")
    assert record.capabilities.client == {"roots": {}}


# --- ownership --------------------------------------------------------------------------------------------


async def test_session_id_of_another_principal_restores_nothing(runs: ServerRuns) -> None:
    run = await runs.begin()
    run.host.principal = "anna"
    session = await run.host.session()
    await run.subscribe(session, "note://a")
    run = await runs.begin()
    run.host.principal = "berta"
    for method in ("POST", "GET", "DELETE"):
        answer = await run.host.ask(method, request("ping"), mcp_session_id=session)
        assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")
    assert (run.seen.of(RestoreStep), run.watched, len(run.host.endpoint.sessions)) == ([], [], 0)
    run.host.principal = "anna"
    assert "result" in (await run.request(session, "ping")).json


async def test_forbidden_subscription_is_not_restored(runs: ServerRuns) -> None:
    run = await runs.begin()
    run.host.principal = "anna"
    session = await run.host.session()
    await run.subscribe(session, "secret://a")
    await run.subscribe(session, "note://a")
    run = await runs.begin()
    run.trusted.clear()
    run.host.principal = "anna"
    assert "result" in (await run.request(session, "ping")).json
    assert run.watched == ["note://a"]
    assert (await run.record(session)).subscriptions == ["note://a"]
    assert "result" in (await run.call(session, "change")).json
    run.server.tools.remove("change")
    gone = await run.call(session, "change")
    assert gone.json["error"]["code"] == -32602


async def test_concurrent_restores_respect_the_principal_limit(runs: ServerRuns) -> None:
    most = Settings(max_sessions_per_principal=1)
    run = await runs.begin()
    run.host.principal = "anna"
    sessions = [await run.host.session() for _ in range(3)]
    run = await runs.begin(settings=most)
    run.host.principal = "anna"
    answers = await asyncio.gather(*(run.request(session, "ping") for session in sessions))
    assert sorted(answer.status for answer in answers) == [200, 503, 503]
    assert len(run.host.endpoint.sessions) == 1


# --- end of a session -------------------------------------------------------------------------------------


async def test_stored_session_can_be_deleted_without_restore(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await run.subscribe(session, "note://a")
    run.server.notify_updated("note://a")
    run = await runs.begin()
    assert "result" in (await run.request(session, "ping")).json
    slow = SlowStore(run.store, session)
    slow.go_on.set()
    slow.failures = 1
    assert (await run.host.ask("DELETE", mcp_session_id=session)).status == 503  # and its record still exists
    assert len(run.host.endpoint.sessions) == 0
    assert (await run.host.ask("DELETE", mcp_session_id=session)).status == 204
    assert await run.store.scan("session/") == []
    assert (await run.request(session, "ping")).status == 404


async def test_session_being_deleted_is_not_restored(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    slow = SlowStore(run.store, session)
    ending = asyncio.ensure_future(run.host.ask("DELETE", mcp_session_id=session))
    await slow.asked.wait()
    assert (await run.request(session, "ping")).status == 404
    slow.go_on.set()
    assert (await ending).status == 204
    assert await run.store.scan("session/") == []


async def test_deleting_a_busy_session_leaves_no_data(runs: ServerRuns) -> None:
    run = await runs.begin()
    began = asyncio.Event()

    @run.server.tool
    async def stubborn(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ctx.close_stream()

    session = await run.host.session()
    await run.subscribe(session, "note://a")
    stream = run.host.begin("GET", mcp_session_id=session)
    await stream.event()
    stream.reading.clear()
    run.server.notify_updated("note://a")
    await stream.event()
    await run.call(session, "change")  # which waits for its reader
    working = asyncio.ensure_future(run.call(session, "stubborn", 2))
    await began.wait()
    assert (await run.host.ask("DELETE", mcp_session_id=session)).status == 204
    stream.reading.set()
    await stream.finished()
    await working
    await run.host.session()
    assert [item.key for item in await run.store.scan(f"session/{session}")] == []


@pytest.mark.row("D06")
async def test_abandoned_sessions_are_swept(runs: ServerRuns, clock: ManualClock) -> None:
    run = await runs.begin()
    for _ in range(5):
        await run.subscribe(await run.host.session(), "note://a")
    run.server.notify_updated("note://a")
    last = await run.host.session()
    await run.request(last, "logging/setLevel", {"level": "info"})
    await run.record(last)  # all writes have ended: until then the records have the short lifetime of unused sessions
    assert len(await run.store.scan("session/")) == 5 * 2 + 1
    clock.advance(TTL)
    assert len(run.host.endpoint.sessions) == 0
    assert len(await run.store.scan("session/")) == 5 * 2 + 1  # so that their fate is known
    clock.advance(TTL + 60)
    assert (await run.request(last, "ping")).status == 404
    await runs.end()
    with contextlib.closing(sqlite3.connect(run.path)) as file:
        assert [key for (key,) in file.execute("SELECT key FROM items") if key.startswith("session/")] == []
