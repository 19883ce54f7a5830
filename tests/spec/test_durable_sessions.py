"""Durable sessions: a server with a SQLite store is killed with kill -9 and restarted, and its clients continue their
sessions. Clients speak raw HTTP, except where stated otherwise.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.processes import PATIENCE
from tests.spec.durable_server import ServerProcess, SessionPeer, Stream

from trunkline import Client
from trunkline.facts import Connected
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Item, Put
from trunkline.testing import RecordingObserver


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.db"


@pytest.fixture
def process(path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(path)
    yield made
    made.end()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


async def kept(path: Path) -> tuple[SqliteStore, list[Item]]:
    """The records in the file of a server that is not running."""
    store = SqliteStore(path)
    await store.open()
    return store, list(await store.scan("session/"))


# --- session state ----------------------------------------------------------------------------------


@pytest.mark.row("D09")
async def test_subscriptions_and_log_level_survive_kill_9(process: ServerProcess, http: aiohttp.ClientSession) -> None:
    peer = await SessionPeer(http, process.url).open()
    assert "result" in await peer.call("resources/subscribe", {"uri": "note://a"})
    assert "result" in await peer.call("resources/subscribe", {"uri": "note://b"})
    assert "result" in await peer.call("resources/unsubscribe", {"uri": "note://b"})
    assert "result" in await peer.call("logging/setLevel", {"level": "warning"})

    process.restart()

    async with peer.stream() as stream:
        await peer.tool("change", uri="note://b")
        await peer.tool("change", uri="note://a")
        [told] = await stream.messages(1)
    assert told == {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "note://a"}}
    async with peer.post("tools/call", {"name": "say"}) as response:
        said, answer = await Stream(response).messages(2)
    assert (said["params"]["data"], said["params"]["level"]) == ("heard", "warning")
    assert "result" in answer


@pytest.mark.row("D09")
async def test_capabilities_survive_and_server_requests_have_new_ids(
    process: ServerProcess, http: aiohttp.ClientSession
) -> None:
    peer = await SessionPeer(http, process.url).open({"roots": {}})
    asked: list[Any] = []
    for _ in range(2):
        async with peer.post("tools/call", {"name": "ask"}) as response:
            stream = Stream(response)
            [question] = await stream.messages(1)
            answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [{"uri": "file:///here"}]}}
            async with http.post(process.url, json=answer, headers=peer.headers()) as taken:
                assert taken.status == 202
            [result] = await stream.messages(1)
        assert result["result"]["content"][0]["text"] == "file:///here"
        asked.append(question["id"])
        process.restart()
    assert asked[0] != asked[1]


@pytest.mark.row("D09")
async def test_late_answer_to_a_lost_question_is_accepted(process: ServerProcess, http: aiohttp.ClientSession) -> None:
    peer = await SessionPeer(http, process.url).open({"roots": {}})
    async with peer.post("tools/call", {"name": "ask"}, ident=5) as response:
        stream = Stream(response)
        position, question = await stream.event()
        while question is None:
            position, question = await stream.event()
        process.restart()
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [{"uri": "file:///here"}]}}
    async with http.post(process.url, json=answer, headers=peer.headers()) as taken:
        assert taken.status == 202
    async with peer.stream(position) as stream:
        [ended] = await stream.messages(1)
    assert (ended["id"], ended["error"]["data"]["kind"]) == (5, "outcome_unknown")


@pytest.mark.row("D09")
async def test_session_survives_repeated_restarts_and_shutdown(
    process: ServerProcess, http: aiohttp.ClientSession
) -> None:
    peer = await SessionPeer(http, process.url).open()
    await peer.call("resources/subscribe", {"uri": "note://a"})
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        process.restart(number)
        async with peer.stream() as stream:
            await peer.tool("change", uri="note://a")
            assert (await stream.messages(1))[0]["params"] == {"uri": "note://a"}


@pytest.mark.row("D09")
async def test_concurrent_requests_restore_a_session_once(process: ServerProcess, http: aiohttp.ClientSession) -> None:
    peer = await SessionPeer(http, process.url).open()
    await peer.call("resources/subscribe", {"uri": "note://a"})
    process.restart()
    answers = await asyncio.gather(*(peer.call("ping") for _ in range(20)))
    assert all("result" in answer for answer in answers)
    async with peer.stream() as stream:
        await peer.tool("change", uri="note://a")
        await peer.tool("change", uri="note://a")
        assert len(await stream.messages(2)) == 2


@pytest.mark.row("D09")
async def test_incomplete_handshake_can_be_completed_after_restart(
    process: ServerProcess, http: aiohttp.ClientSession
) -> None:
    peer = SessionPeer(http, process.url)
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "x", "version": "1"},
    }
    async with peer.post("initialize", params) as response:
        peer.session = response.headers["mcp-session-id"]
    process.restart()
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(first_message(peer, "tools/call", {"name": "ask"}))
        await peer.call("ping")
        await peer.ready()
    assert asked.result()["method"] == "roots/list"


async def first_message(peer: SessionPeer, method: str, params: Any) -> Any:
    """The first message of a response stream."""
    async with peer.post(method, params) as response:
        return (await Stream(response).messages(1))[0]


# --- ownership and expiry -----------------------------------------------------------------------------


@pytest.mark.row("D17")
async def test_deleted_session_stays_deleted(process: ServerProcess, http: aiohttp.ClientSession, path: Path) -> None:
    peer = await SessionPeer(http, process.url).open()
    await peer.call("resources/subscribe", {"uri": "note://a"})
    async with http.delete(process.url, headers=peer.headers()) as response:
        assert response.status == 204
    assert await peer.refusal() == (404, "session_not_found")
    process.restart()
    assert await peer.refusal() == (404, "session_not_found")
    peer.session = "A" * 43
    assert await peer.refusal() == (404, "session_not_found")
    store, items = await kept(path)
    await store.close()
    assert items == []


@pytest.mark.row("D17", "D06")
async def test_unused_session_expires(process: ServerProcess, http: aiohttp.ClientSession, path: Path) -> None:
    peer = await SessionPeer(http, process.url).open()
    process.end()
    store, [item] = await kept(path)
    record = json.loads(item.value)
    assert item.expires is not None
    age = {"last_accessed": record["last_accessed"] - 3601}
    await store.commit([Put(item.key, json.dumps(record | age).encode(), item.expires)])
    await store.close()
    process.start()
    assert await peer.refusal() == (404, "session_expired")


@pytest.mark.row("D09")
async def test_restored_sessions_count_against_the_limit(http: aiohttp.ClientSession, path: Path) -> None:
    process = ServerProcess(path, "{'max_sessions': 1}")
    try:
        first = await SessionPeer(http, process.url).open()
        process.restart()
        second = await SessionPeer(http, process.url).open()
        assert await first.refusal() == (503, "too_many_sessions")
        async with http.delete(process.url, headers=second.headers()) as response:
            assert response.status == 204
        assert "result" in await first.call("ping")
    finally:
        process.end()


async def test_initialize_is_answered_after_the_session_is_stored(
    process: ServerProcess, http: aiohttp.ClientSession, path: Path
) -> None:
    peers = [SessionPeer(http, process.url) for _ in range(10)]
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}

    async def open_one(peer: SessionPeer) -> None:
        async with peer.post("initialize", params) as response:
            peer.session = response.headers["mcp-session-id"]
            os.kill(process._process.pid, signal.SIGKILL)

    await asyncio.gather(*map(open_one, peers), return_exceptions=True)
    opened = [peer for peer in peers if peer.session is not None]
    process.restart()
    assert opened
    for peer in opened:
        assert "result" in await peer.call("ping")


# --- stored events ------------------------------------------------------------------------------------


@pytest.mark.row("D10")
async def test_missed_events_arrive_once(process: ServerProcess, http: aiohttp.ClientSession) -> None:
    peer = await SessionPeer(http, process.url).open()
    for name in "abcd":
        await peer.call("resources/subscribe", {"uri": f"note://{name}"})
    async with peer.stream() as stream:
        await peer.tool("change", uri="note://a")
        await peer.tool("change", uri="note://b")
        position = ""
        while not position.endswith("-1"):
            position, _ = await stream.event()
            assert position
    await peer.tool("change", uri="note://c")  # which the server has acknowledged, so it is durable
    process.restart()
    async with peer.stream(position) as stream:
        await peer.tool("change", uri="note://d")
        told = [message["params"]["uri"][-1] for message in await stream.messages(7)]
    assert "".join(told) == "bc" + "abcd" + "d", "what was missed, what may have been, and what came after"


@pytest.mark.row("D10")
async def test_undelivered_events_wait_for_the_next_reader(process: ServerProcess, http: aiohttp.ClientSession) -> None:
    peer = await SessionPeer(http, process.url).open()
    await peer.call("resources/subscribe", {"uri": "note://a"})
    await peer.call("resources/subscribe", {"uri": "note://b"})
    async with peer.stream() as stream:
        await peer.tool("change", uri="note://a")
        assert await stream.messages(1)
    process.restart()
    other = await SessionPeer(http, process.url).open()
    await peer.call("ping")
    await other.tool("change", uri="note://b")  # a reply implies that other clients have their notifications
    process.restart()
    async with peer.stream() as stream:
        told = [message["params"]["uri"][-1] for message in await stream.messages(6)]
    assert "".join(told) == "a" + "ab" + "b" + "ab", (
        "what was sent last, of which nobody knows; what may have been missed, each time, and the change between"
    )


@pytest.mark.row("D10")
async def test_event_in_transit_at_a_crash_is_not_marked_delivered(
    process: ServerProcess, http: aiohttp.ClientSession
) -> None:
    peer = await SessionPeer(http, process.url).open()
    await peer.call("resources/subscribe", {"uri": "note://a"})
    async with peer.stream() as stream:
        assert await stream.event()  # a reader is connected
        await peer.tool("change", uri="note://a")
        process.end()  # the server may or may not have sent the event
    process.start()
    async with peer.stream() as stream:
        told = [message["params"]["uri"] for message in await stream.messages(2)]
    assert told == ["note://a"] * 2, "the event, and that there may have been others"


@pytest.mark.row("D09")
async def test_restored_session_is_notified_of_missed_updates(
    process: ServerProcess, http: aiohttp.ClientSession
) -> None:
    peer, other = await SessionPeer(http, process.url).open(), await SessionPeer(http, process.url).open()
    await peer.call("resources/subscribe", {"uri": "note://a"})
    async with peer.stream() as stream:
        position, _ = await stream.event()
    process.restart()
    assert "result" in await other.tool("change", uri="note://a")
    async with peer.stream(position) as stream:
        [told] = await stream.messages(1)
    assert told["params"] == {"uri": "note://a"}


@pytest.mark.row("D10")
async def test_response_can_be_resumed_from_any_event(process: ServerProcess, http: aiohttp.ClientSession) -> None:
    peer = await SessionPeer(http, process.url).open()
    params = {"name": "steps", "_meta": {"progressToken": "t"}}
    async with peer.post("tools/call", params) as response:
        stream = Stream(response)
        seen = [event async for event in _all(stream)]
    process.restart()
    numbered = [(position, message) for position, message in seen if message is not None]
    assert len(numbered) == 4
    for at, (position, _) in enumerate(numbered):
        async with peer.stream(position) as stream:
            again = [event async for event in _all(stream)]
        assert again == numbered[at + 1 :]
    async with http.get(process.url, headers=peer.headers(last_event_id="7-1")) as response:
        assert response.status == 400


@pytest.mark.row("D10")
async def test_request_of_a_dead_process_gets_outcome_unknown(
    process: ServerProcess, http: aiohttp.ClientSession
) -> None:
    peer = await SessionPeer(http, process.url).open()
    params = {"name": "hang", "_meta": {"progressToken": "t"}}
    async with peer.post("tools/call", params, ident=77) as response:
        stream = Stream(response)
        position = ""
        while not position.endswith("-1"):
            position, _ = await stream.event()
            assert position
        process.restart()
    for _ in range(2):
        async with peer.stream(position) as stream:
            progress, answer = await stream.messages(2)
            assert await stream.event() == ("", None)
        assert progress["params"]["progress"] == 2
        assert answer["id"] == 77
        assert answer["error"]["data"]["kind"] == "outcome_unknown"
        process.restart()


async def test_replay_limits_apply_to_the_store(http: aiohttp.ClientSession, path: Path) -> None:
    process = ServerProcess(path, "{'replay_events': 2, 'replay_streams': 2}")
    try:
        peer = await SessionPeer(http, process.url).open()
        await peer.call("resources/subscribe", {"uri": "note://a"})
        for _ in range(2):
            for _ in range(5):
                await peer.tool("change", uri="note://a")
                assert "result" in await peer.call(
                    "tools/call", {"name": "steps", "arguments": {}, "_meta": {"progressToken": "t"}}
                )
            process.restart()
    finally:
        process.end()
    store, items = await kept(path)
    await store.close()
    keys = [item.key.split("/")[2:] for item in items]
    streams = {key[1] for key in keys if key[0] == "streams"}
    assert len(streams) <= 4
    for stream in {key[1] for key in keys if key[0] == "events"}:
        assert sum(key[:2] == ["events", stream] for key in keys) <= 4
        assert stream in streams or stream == "00000000"


async def _all(stream: Stream) -> AsyncIterator[tuple[str, Any]]:
    while (event := await stream.event()) != ("", None):
        yield event


# --- two processes ------------------------------------------------------------------------------------


@pytest.fixture
def pair(path: Path) -> Iterator[list[ServerProcess]]:
    lease = 5.0  # a busy machine may delay a heartbeat by seconds, and only a pause shall cause an eviction
    made = [ServerProcess(path, f"{{'process_lease': {lease}}}") for _ in range(2)]
    yield made
    for process in made:
        process.end()


async def result(peer: SessionPeer, method: str, params: Any = None) -> Any:
    """Return the result of a request, repeated while its outcome is unknown."""
    async with asyncio.timeout(PATIENCE):
        while "result" not in (answer := await peer.call(method, params)):
            assert answer["error"]["data"]["kind"] in {"outcome_unknown", "temporarily_unavailable"}
    return answer["result"]


@pytest.mark.row("D08")
async def test_paused_process_adds_nothing_to_a_taken_over_session(
    pair: list[ServerProcess], http: aiohttp.ClientSession
) -> None:
    peer, other = await SessionPeer(http, pair[0].url).open(), await SessionPeer(http, pair[0].url).open()
    await peer.call("resources/subscribe", {"uri": "note://a"})
    change = {"name": "change", "arguments": {"uri": "note://a"}}
    hang = {"name": "hang", "_meta": {"progressToken": "t"}}
    async with peer.stream() as before, peer.post("tools/call", hang, ident=77) as response:
        hanging = Stream(response)
        await hanging.messages(2)
        await before.event()
        await pair[0].pause()
        moved = peer.at(pair[1].url)
        await result(moved, "ping")
        async with moved.stream("0-0") as after, moved.stream("1-2") as answered:
            assert (await answered.messages(1))[0]["error"]["data"]["kind"] == "outcome_unknown"
            await (await SessionPeer(http, pair[1].url).open()).tool("change", uri="note://a")
            assert [(await after.event())[0], (await after.event())[0]] == ["0-1", "0-2"]
            pair[0].send(signal.SIGCONT)
            await result(other, "tools/call", change)
            assert (await after.event())[0] == "0-3"
        assert [event async for event in _all(before)] == []
        assert [event async for event in _all(hanging)] == []
    await result(peer, "ping")


# --- our client ---------------------------------------------------------------------------------------


@pytest.mark.row("D09")
async def test_client_continues_in_the_same_session(process: ServerProcess) -> None:
    seen = RecordingObserver()
    async with Client(process.url, revision="2025-11-25", observers=[seen]) as client:
        await client.subscribe("note://a")
        updates = client.notifications("notifications/resources/updated")
        await asyncio.to_thread(process.restart)  # so that the client receives it
        await client.call_tool("change", {"uri": "note://a"})
        async with asyncio.timeout(PATIENCE):
            told = await anext(aiter(updates))
        assert told.params.uri == "note://a"
        assert (await client.call_tool("steps")).text == "done"
    assert len(seen.of(Connected)) == 1
