"""The event log of a session in a store: time of writes, order, and event ids."""

import asyncio
from typing import Any

import pytest
from tests.contract.connections import turns
from tests.unit.server.server_runs import ServerRuns, SlowStore
from tests.unit.transports.http.asgi import call

from trunkline.errors import StoreUnavailable, StoreUnusable
from trunkline.facts import HandlerFailed
from trunkline.stores.store import Delete
from trunkline.testing import ManualClock


async def test_event_is_sent_only_after_it_is_stored(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await run.subscribe(session, "note://a")
    waiting = run.host.begin("GET", mcp_session_id=session)
    await waiting.event()
    commit, asked, answered = run.store.commit, asyncio.Event(), asyncio.Event()

    async def late(writes: Any, **options: Any) -> int:
        asked.set()
        await answered.wait()
        return await commit(writes, **options)

    run.store.commit = late  # type: ignore[method-assign, assignment]
    run.server.notify_updated("note://a")
    await asked.wait()
    coming = run.host.begin("GET", mcp_session_id=session, last_event_id="0-0")
    await waiting.finished()  # another reader takes its place
    asked_again = asyncio.ensure_future(run.request(session, "ping"))
    await turns()
    assert b"note://a" not in waiting.body + coming.body
    assert not asked_again.done()  # the event may concern it
    answered.set()
    assert "result" in (await asked_again).json
    assert (await coming.message())["params"] == {"uri": "note://a"}
    assert [item.value for item in await run.store.scan(f"session/{session}/events/")] != []
    coming.gone.set()
    await coming.finished()


async def test_short_store_outage_loses_no_event(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await run.subscribe(session, "note://a")
    stream = run.host.begin("GET", mcp_session_id=session)
    await stream.event()
    commit = run.store.commit

    async def away(_: Any, **__: Any) -> int:
        run.store.commit = commit  # type: ignore[method-assign]
        raise StoreUnavailable("not now")

    run.store.commit = away  # type: ignore[method-assign, assignment]
    run.server.notify_updated("note://a")
    assert (await stream.message())["params"] == {"uri": "note://a"}
    stream.gone.set()
    await stream.finished()


@pytest.mark.row("D10")
async def test_stream_and_event_numbers_continue_after_restart(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await run.subscribe(session, "note://a")
    await run.call(session, "change")
    for number in (1, 2):
        answer = await run.host.ask("POST", call("steps", token="t"), mcp_session_id=session)
        assert f"id: {number}-1\n".encode() in answer.body  # that the record does not contain
    assert "result" in (await run.request(session, "logging/setLevel", {"level": "error"})).json
    await run.call(session, "change")
    keys = [item.key for item in await run.store.scan(f"session/{session}/events/00000000")]
    await run.store.commit([Delete(key) for key in keys])  # as if they had expired, and the record had not
    run = await runs.begin()
    answer = await run.host.ask("POST", call("steps", token="t"), mcp_session_id=session)
    assert b"id: 3-1\n" in answer.body
    stream = run.host.begin("GET", mcp_session_id=session)
    while not (event := await stream.event()).data:
        pass
    assert event.id == "0-2"
    stream.gone.set()
    await stream.finished()


# --- events before a response ---------------------------------------------------------------------------


@pytest.mark.row("D10")
async def test_reply_waits_for_notifications_of_other_sessions(runs: ServerRuns) -> None:
    run = await runs.begin()
    cause, told = await run.host.session(), await run.host.session()
    await run.subscribe(told, "note://a")
    slow = SlowStore(run.store, told)
    answering = asyncio.ensure_future(run.call(cause, "change"))
    await slow.asked.wait()
    await turns()
    assert not answering.done()
    slow.failures = 1  # retried, and still awaited
    slow.go_on.set()
    assert "result" in (await answering).json
    [event] = await run.store.scan(f"session/{told}/events/")
    assert b"note://a" in event.value


@pytest.mark.row("D10")
async def test_notification_from_a_thread_precedes_its_reply(runs: ServerRuns) -> None:
    run = await runs.begin()
    cause, told = await run.host.session(), await run.host.session()
    await run.subscribe(told, "note://a")
    for number in range(20):
        await asyncio.gather(*(run.call(cause, "change_on_thread", number * 10 + each) for each in range(3)))
        assert len(await run.store.scan(f"session/{told}/events/")) == 3 * (number + 1)


async def test_reply_waits_for_the_store_only_up_to_its_timeout(runs: ServerRuns, clock: ManualClock) -> None:
    run = await runs.begin()
    cause, told = await run.host.session(), await run.host.session()
    await run.subscribe(told, "note://a")
    slow = SlowStore(run.store, told)
    run.server.notify_updated("note://a")
    answering = asyncio.ensure_future(run.request(cause, "ping"))
    await slow.asked.wait()
    await turns()
    clock.advance(run.server.settings.quick_timeout or 0)
    assert (await answering).json["error"]["data"]["kind"] == "request_timeout"
    slow.go_on.set()
    assert "result" in (await run.request(cause, "ping")).json


async def test_unstorable_event_is_reported_and_sent(runs: ServerRuns) -> None:
    run = await runs.begin()
    session = await run.host.session()
    await run.subscribe(session, "note://a")
    stream = run.host.begin("GET", mcp_session_id=session)
    await stream.event()
    commit = run.store.commit

    async def broken(_: Any, **__: Any) -> int:
        raise StoreUnusable("the disk is gone")

    run.store.commit = broken  # type: ignore[method-assign, assignment]
    run.server.notify_updated("note://a")
    assert (await stream.message())["params"] == {"uri": "note://a"}
    assert [str(failed.error) for failed in run.seen.of(HandlerFailed)] == ["the disk is gone"]
    changed = await run.request(session, "logging/setLevel", {"level": "error"})
    assert "error" in changed.json
    run.store.commit = commit  # type: ignore[method-assign]
    assert "result" in (await run.request(session, "logging/setLevel", {"level": "error"})).json
    stream.gone.set()
    await stream.finished()
