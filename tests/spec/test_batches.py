"""Batches: part of revision 2025-03-26 and of no other."""

import asyncio
from typing import Any

import pytest

from trunkline import Context, Server
from trunkline.testing import RawPeer

WITH_BATCHES = "2025-03-26"
WITHOUT = ["2024-11-05", "2025-06-18", "2025-11-25"]


def request(ident: int | str, method: str = "ping", params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ident, "method": method, **({} if params is None else {"params": params})}


def notification(method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}


@pytest.mark.row("P05", "X25")
async def test_batch_requests_are_answered_in_one_array() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(WITH_BATCHES)
        peer.send([request(1), notification("foo/bar"), request("two")])
        answers = await peer.receive()
        assert answers == [{"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "id": "two", "result": {}}]
        assert await peer.quiet() == []


@pytest.mark.row("P05")
async def test_batch_is_answered_after_its_slowest_request() -> None:
    go = asyncio.Event()
    server = Server("t")

    @server.tool
    async def slow() -> str:
        await go.wait()
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(WITH_BATCHES)
        peer.send([request(1, "tools/call", {"name": "slow"}), request(2)])
        assert await peer.quiet() == []
        go.set()
        assert [answer["id"] for answer in await peer.receive()] == [2, 1]


@pytest.mark.row("P05")
async def test_invalid_messages_of_a_batch_are_answered_with_the_rest() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(WITH_BATCHES)
        peer.send([5, request(1, "foo/bar"), request(2), [request(3)], {"jsonrpc": "2.0", "id": 4}])
        answers = await peer.receive()
        codes = {(answer["id"], answer.get("error", {}).get("code")) for answer in answers}
        assert codes == {(None, -32600), (1, -32601), (2, None), (4, -32600)}
        assert len(answers) == 5


@pytest.mark.row("P05")
async def test_batch_of_notifications_is_not_answered() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(WITH_BATCHES)
        peer.send([notification("foo/bar"), notification("notifications/progress", 5)])
        assert await peer.quiet() == []


@pytest.mark.row("P05")
async def test_responses_to_a_server_may_be_batched() -> None:
    server = Server("t")

    @server.tool
    async def both(ctx: Context) -> str:
        await asyncio.gather(ctx.ping(), ctx.ping())
        return "answered"

    async with RawPeer(server) as peer:
        await peer.initialize(WITH_BATCHES)
        call = peer.call("tools/call", {"name": "both"})
        asked = [await peer.receive(), await peer.receive()]
        peer.send([{"jsonrpc": "2.0", "id": ping["id"], "result": {}} for ping in asked])
        answer = await peer.answer_to(call)
        assert answer["result"]["content"] == [{"type": "text", "text": "answered"}]


@pytest.mark.row("P05", "N19")
async def test_cancelled_request_leaves_its_batch() -> None:
    server = Server("t")

    @server.tool
    async def endless() -> str:
        return await asyncio.Future()

    async with RawPeer(server) as peer:
        await peer.initialize(WITH_BATCHES)
        peer.send([request(1, "tools/call", {"name": "endless"}), request(2)])
        assert await peer.quiet() == []
        peer.notify("notifications/cancelled", {"requestId": 1})
        assert [answer["id"] for answer in await peer.receive()] == [2]


@pytest.mark.row("P05")
async def test_initialize_in_a_batch_is_refused() -> None:
    params = {"protocolVersion": WITH_BATCHES, "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}}
    async with RawPeer(Server("t")) as peer:
        peer.send([request(1, "initialize", params)])
        assert (await peer.receive())["error"]["code"] == -32600
        await peer.initialize(WITH_BATCHES)


@pytest.mark.row("P06")
@pytest.mark.parametrize("revision", [*WITHOUT, WITH_BATCHES])
async def test_empty_batch_is_an_invalid_request(revision: str) -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(revision)
        peer.send("[]")
        assert (await peer.receive())["error"]["code"] == -32600


@pytest.mark.row("X25")
@pytest.mark.parametrize("revision", WITHOUT)
async def test_batch_in_another_revision_is_an_invalid_request(revision: str) -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(revision)
        peer.send([request(1), request(2)])
        answer = await peer.receive()
        assert answer["error"]["code"] == -32600
        assert "2025-03-26" in answer["error"]["message"]
        assert await peer.quiet() == []


@pytest.mark.row("X25")
async def test_batch_before_the_handshake_is_an_invalid_request() -> None:
    async with RawPeer(Server("t")) as peer:
        peer.send([request(1), request(2)])
        assert (await peer.receive())["error"]["code"] == -32600
        assert await peer.quiet() == []
