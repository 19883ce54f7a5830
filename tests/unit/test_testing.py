"""The helpers in `trunkline.testing`."""

import asyncio

import pytest
from tests.transcripts import check_transcript

from trunkline import Client, Context, Server
from trunkline.errors import ConnectionClosed
from trunkline.facts import CallStarted, Connected
from trunkline.protocol.types import Implementation
from trunkline.testing import RawPeer, RecordingObserver, ScriptedServer, Transcript


def make_server(observer: RecordingObserver | None = None) -> Server:
    server = Server("t", observers=[observer or RecordingObserver()])

    @server.tool
    async def chatty(ctx: Context) -> str:
        await ctx.info("one")
        await ctx.info("two")
        return "done"

    return server


async def test_raw_peer_records_all_frames() -> None:
    taps: list[Transcript] = []
    RawPeer.taps.append(taps.append)
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        peer.send("nonsense")
        assert (await peer.receive())["error"]["code"] == -32700
    RawPeer.taps.remove(taps.append)
    assert taps == [peer.transcript]
    assert [who for who, _ in peer.transcript.frames] == ["client", "server", "client", "client", "server"]
    assert peer.transcript.frames[3] == ("client", b"nonsense")
    assert peer.transcript.said_by("server")[0]["result"]["serverInfo"]["name"] == "t"


async def test_messages_before_response_stay_unread_in_order() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "chatty"})
        assert (await peer.receive())["params"]["data"] == "one"
        assert [message["params"]["data"] for message in peer.waiting()] == ["two"]
        assert peer.waiting() == []


async def test_result_and_error_fail_on_opposite_outcome() -> None:
    async with RawPeer(make_server()) as peer:
        with pytest.raises(AssertionError, match="ping was answered with"):
            await peer.error("ping")
        with pytest.raises(AssertionError, match="no/such was answered with"):
            await peer.result("no/such")


async def test_quiet_returns_messages_so_far() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "chatty"})
        assert len(await peer.quiet()) == 2
        assert await peer.quiet() == []


async def test_raw_peer_times_out_on_silent_server() -> None:
    async with RawPeer(make_server(), patience=0.01) as peer:
        with pytest.raises(TimeoutError):
            await peer.receive()


async def test_raw_peer_sees_closed_connection() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert peer.closed is None
        await server.aclose()
        assert peer.closed is not None
        assert peer.closed.reason == "the other end closed"


async def test_unconnected_raw_peer_raises() -> None:
    peer = RawPeer(make_server())
    with pytest.raises(RuntimeError, match="async with"):
        peer.notify("x")
    with pytest.raises(RuntimeError, match="async with"):
        _ = peer.connection
    await peer.close()


async def test_raw_peer_sends_batch_unchanged() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize("2025-03-26")
        peer.send([{"jsonrpc": "2.0", "id": 5, "method": "ping"}])
        assert await peer.quiet() == [[{"jsonrpc": "2.0", "id": 5, "result": {}}]]


@pytest.mark.parametrize(("modern", "spoken"), [(False, "2025-11-25"), (True, "2026-07-28")])
async def test_scripted_server_speaks_configured_era(modern: bool, spoken: str) -> None:
    server = ScriptedServer(tools=[{"name": "act", "inputSchema": {"type": "object"}}], modern=modern)
    async with Client(server) as client:
        assert client.revision == spoken
        assert client.server_info == Implementation("scripted", "1")
        assert [tool.name for tool in (await client.list_tools()).tools] == ["act"]
    said = [message["method"] for message in server.line.transcript.said_by("client") if "id" in message]
    first = ["server/discover", "subscriptions/listen"] if modern else ["initialize"]
    assert said == [*first, "tools/list"]


async def test_scripted_modern_responses_are_valid() -> None:
    server = ScriptedServer(tools=[{"name": "act", "inputSchema": {"type": "object"}}], modern=True)
    async with Client(server) as client:
        await client.list_tools()
    check_transcript(server.line.transcript.frames, "server")


async def test_scripted_server_can_disable_automatic_discovery() -> None:
    server = ScriptedServer(modern=True, answered=[])
    opening = asyncio.create_task(Client(server, revision="2026-07-28").open())
    line = await server.connected(1)
    line.error(await line.request("server/discover"), -32601, "no")
    await line.request("initialize")
    line.die()
    with pytest.raises(ConnectionClosed):
        await opening


async def test_recording_observer_filters_facts_by_class() -> None:
    observer = RecordingObserver()
    async with RawPeer(make_server(observer)) as peer:
        await peer.result("ping")
    assert [fact.method for fact in observer.of(CallStarted)] == ["ping"]
    assert len(observer.of(Connected)) == 1
    await asyncio.sleep(0)
