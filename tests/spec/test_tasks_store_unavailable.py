"""Tasks while the store is unavailable: the client gets a retryable error, and no task starts that it does not know."""

import asyncio
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.modern import enveloped
from tests.spec.bank import Bank, call

from trunkline import Client, Context, MemoryStore, Server, TaskPolicy
from trunkline.errors import OutcomeUnknown
from trunkline.testing import FaultyStore, RawPeer

ORDER: dict[str, Any] = {"name": "order", "arguments": {"amount": 5}, "task": {}}
KEYED = {**call("order", "k", amount=5), "task": {}}


@pytest.mark.row("J06")
async def test_task_requests_are_refused_as_temporarily_unavailable() -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        made = (await peer.result("tools/call", ORDER))["task"]["taskId"]
        asked: list[tuple[str, dict[str, Any]]] = [
            ("tasks/get", {"taskId": made}),
            ("tasks/result", {"taskId": made}),
            ("tasks/cancel", {"taskId": made}),
            ("tasks/list", {}),
        ]
        fault = store.fail("get", "scan", "commit")
        for method, params in asked:
            told = await peer.error(method, params)
            assert (told["code"], told["data"]["kind"]) == (1008, "temporarily_unavailable")
        fault.lift()
        assert (await peer.result("tasks/result", {"taskId": made}))["structuredContent"] == {"result": 1}
    await bank.server.aclose()


async def test_listening_to_tasks_is_refused_as_temporarily_unavailable() -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer:
        extension = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        params = enveloped(extension, notifications={"taskIds": ["some"]})
        fault = store.fail("get")
        told = await peer.error("subscriptions/listen", params)
        assert (told["code"], told["data"]["kind"]) == (1008, "temporarily_unavailable")
        fault.lift()
        peer.call("subscriptions/listen", params)
        assert (await peer.receive())["method"] == "notifications/subscriptions/acknowledged"
    await bank.server.aclose()


@pytest.mark.row("J06")
async def test_unstored_task_is_not_started_and_can_be_retried() -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        fault = store.fail()
        told = await peer.error("tools/call", ORDER)
        assert (told["code"], told["data"]["kind"]) == (1008, "temporarily_unavailable")
        assert "was not started" in told["message"]
        fault.lift()
        assert (await peer.result("tasks/list", {}))["tasks"] == []
        assert (await peer.result("tools/call", ORDER))["task"]["status"] == "working"
    await bank.server.aclose()
    assert bank.runs == [5]


async def test_unconfirmed_task_is_cancelled() -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer, asyncio.timeout(PATIENCE):
        await peer.initialize()
        fault = store.fail(done=True)
        told = await peer.error("tools/call", ORDER)
        assert (told["data"]["kind"], told["data"]["interrupted"]) == ("outcome_unknown", True)
        [kept] = (await peer.result("tasks/list", {}))["tasks"]
        assert kept["status"] == "working"
        fault.lift()
        while (await peer.result("tasks/get", {"taskId": kept["taskId"]}))["status"] != "cancelled":
            await asyncio.sleep(0.01)
        while await store.scan("working/"):
            await asyncio.sleep(0.01)
    await bank.server.aclose()
    assert bank.runs == []


async def test_unconfirmed_task_with_a_key_is_started() -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer, asyncio.timeout(PATIENCE):
        await peer.initialize()
        fault = store.fail(done=True)
        told = await peer.error("tools/call", KEYED)
        assert told["data"]["kind"] == "temporarily_unavailable"
        assert bank.runs == []
        fault.lift()
        made = (await peer.result("tools/call", KEYED))["task"]["taskId"]
        assert (await peer.result("tasks/result", {"taskId": made}))["structuredContent"] == {"result": 1}
    await bank.server.aclose()
    assert bank.runs == [5]


async def test_stopping_server_leaves_unconfirmed_tasks_to_recovery() -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        store.fail(done=True)
        await peer.error("tools/call", ORDER)
    async with asyncio.timeout(PATIENCE):
        await bank.server.aclose()
    assert bank.runs == []


@pytest.mark.parametrize("confirmed", [True, False])
async def test_call_that_has_started_is_not_repeated_if_it_cannot_become_a_task(confirmed: bool) -> None:
    store, runs = FaultyStore(MemoryStore()), list[str]()
    server = Server("s", store=store, observers=[])

    @server.tool(task=TaskPolicy(asks_first=True))
    async def prepares(ctx: Context) -> None:
        runs.append("run")
        await ctx.begin_task()

    async with Client(server, revision="2026-07-28") as client:
        await client.list_tools()
        fault = store.fail("acquire", done=not confirmed)
        with pytest.raises(OutcomeUnknown):
            await client.start_tool("prepares", {})
        assert runs == ["run"]
        fault.lift()
    await server.aclose()
