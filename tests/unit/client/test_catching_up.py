"""A client whose line was lost: what it may have missed it is told of, and what it asks meanwhile is what it would be."""

import asyncio

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Settings
from trunkline.client.notifications import NotificationReader
from trunkline.testing import ScriptedServer

QUICK = Settings(backoff_first=0.01, backoff_longest=0.02)
UPDATED = "notifications/resources/updated"
LISTEN = "subscriptions/listen"
RESOURCES = {"resources": {"subscribe": True}}


async def uri(told: NotificationReader) -> str:
    return (await asyncio.wait_for(anext(told), PATIENCE)).params.uri


@pytest.mark.row("D09")
async def test_subscribed_resources_are_reported_after_a_reconnect() -> None:
    server = ScriptedServer(capabilities=RESOURCES)
    async with Client(server, settings=QUICK, observers=[]) as client:
        told = client.notifications(UPDATED)
        server.answered.add("resources/subscribe")
        await client.subscribe("x://a")
        server.answered.discard("resources/subscribe")
        server.line.die()
        line = await server.connected(2)
        renewed = await line.request("resources/subscribe")
        line.notify(UPDATED, {"uri": "x://before"})
        assert await uri(told) == "x://before", "nothing is made up before there is a subscription again"
        line.reply(renewed, {})
        assert await uri(told) == "x://a"


async def test_subscribed_resources_are_reported_after_a_renewed_listen() -> None:
    server = ScriptedServer(modern=True, answered=["server/discover"], capabilities=RESOURCES)
    async with Client(server, settings=QUICK, observers=[]) as client:
        told = client.notifications(UPDATED)
        subscribing = asyncio.create_task(client.subscribe("x://a"))
        listening = await server.line.request(LISTEN)
        server.line.acknowledge(listening)
        await subscribing
        server.line.reply(listening, {"resultType": "complete"})
        again = await server.line.request(LISTEN)
        assert await uri(told) == "x://a", "it may miss something from now on"
        server.line.acknowledge(again)
        assert await uri(told) == "x://a", "and may have missed something until now"


@pytest.mark.row("J01")
async def test_start_tool_during_reconnect_returns_a_task() -> None:
    tools = [{"name": "work", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}]
    capabilities = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
    server = ScriptedServer(capabilities=capabilities, tools=tools)
    async with Client(server, settings=QUICK, observers=[]) as client:
        await client.list_tools()
        server.answered.discard("initialize")
        server.line.die()
        line = await server.connected(2)
        opening = await line.request("initialize")
        starting = asyncio.create_task(client.start_tool("work"))
        await asyncio.sleep(0)  # it is not known yet what the server can do now
        spoken, info = opening["params"]["protocolVersion"], {"name": "s", "version": "1"}
        line.reply(opening, {"protocolVersion": spoken, "capabilities": capabilities, "serverInfo": info})
        call = await line.request("tools/call")
        assert "task" in call["params"]
        times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
        line.reply(call, {"task": {"taskId": "t", "status": "working", "ttl": None, **times}})
        assert (await starting).id == "t"


async def test_task_lookup_during_reconnect_keeps_the_dialect() -> None:
    server = ScriptedServer(modern=True, capabilities={"extensions": {"io.modelcontextprotocol/tasks": {}}})
    async with Client(server, settings=QUICK, observers=[]) as client:
        server.answered.discard("server/discover")
        server.line.die()
        line = await server.connected(2)
        opening = await line.request("server/discover")
        waiting = asyncio.create_task(client.task("t").result())
        await asyncio.sleep(0)  # it is not known yet what the server speaks now
        told = {"supportedVersions": ["2026-07-28"], "capabilities": server.capabilities}
        line.reply(opening, line.complete(**told, ttlMs=0, cacheScope="private"))
        asked = await line.receive()
        assert asked["method"] == "tasks/get"
        times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": None}
        content = [{"type": "text", "text": "done"}]
        task = {"taskId": "t", "status": "completed", **times, "result": {"content": content}}
        line.reply(asked, line.complete(**task))
        assert (await waiting).text == "done"


async def test_lost_modern_subscription_is_requested_again() -> None:
    server = ScriptedServer(modern=True, answered=["server/discover"], capabilities=RESOURCES)
    async with Client(server, settings=QUICK, observers=[]) as client:
        subscribing = asyncio.create_task(client.subscribe("x://a"))
        await server.line.request(LISTEN)
        server.line.die()
        line = await server.connected(2)
        line.acknowledge(await line.request(LISTEN))
        await asyncio.wait_for(subscribing, PATIENCE)
        assert client.subscriptions == ("x://a",)
