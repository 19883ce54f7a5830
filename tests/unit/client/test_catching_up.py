"""A client whose line was lost: what it may have missed it is told of, and what it asks meanwhile is what it would be."""

import asyncio
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Settings
from trunkline.client.notifications import NotificationReader
from trunkline.facts import Dropped
from trunkline.testing import ManualClock, RecordingObserver, ScriptedServer

QUICK = Settings(backoff_first=0.01, backoff_longest=0.02)
UPDATED = "notifications/resources/updated"
SUBSCRIBE = "resources/subscribe"
LISTEN = "subscriptions/listen"
RESOURCES = {"resources": {"subscribe": True}}
PASSING = [
    pytest.param({"kind": "temporarily_unavailable", "retryAfterMs": 1}, id="unavailable"),
    pytest.param({"kind": "outcome_unknown", "interrupted": True}, id="interrupted"),
    pytest.param({"kind": "http_error", "status": 503}, id="HTTP 503"),
]
FINAL = {"kind": "resource_not_found"}
HOUR = 3600.0


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


# --- refusals of what is renewed -------------------------------------------------------------------------


async def settle() -> None:
    """Lets everything happen that can happen without the clock."""
    for _ in range(20):
        await asyncio.sleep(0)


async def refuse_renewal(server: ScriptedServer, client: Client, data: Any) -> None:
    """Subscribe, lose the connection, and have the new subscription refused."""
    server.answered.add(SUBSCRIBE)
    await client.subscribe("x://a")
    server.answered.discard(SUBSCRIBE)
    server.line.die()
    line = await server.connected(2)
    line.error(await line.request(SUBSCRIBE), -32000, "not now", data)
    await client.ping()


@pytest.mark.row("D09")
@pytest.mark.parametrize("data", PASSING)
async def test_subscription_refused_for_now_is_renewed_later(data: Any) -> None:
    server = ScriptedServer(capabilities=RESOURCES)
    async with Client(server, settings=QUICK, observers=[]) as client:
        told = client.notifications(UPDATED)
        await refuse_renewal(server, client, data)
        assert await uri(told) == "x://a"
        server.line.error(await server.line.request(SUBSCRIBE), -32000, "not yet", data)
        server.line.reply(await server.line.request(SUBSCRIBE), {})
        assert await uri(told) == "x://a", "it may have changed while there was no subscription"


async def test_subscription_that_timed_out_is_renewed_later() -> None:
    server, clock = ScriptedServer(capabilities=RESOURCES), ManualClock()
    async with Client(server, settings=Settings(work_timeout=10.0), clock=clock, observers=[]) as client:
        server.answered.add(SUBSCRIBE)
        await client.subscribe("x://a")
        server.answered.discard(SUBSCRIBE)
        server.line.die()
        line = await server.connected(2)
        await line.request(SUBSCRIBE)
        clock.advance(10.0)
        await asyncio.wait_for(client.ping(), PATIENCE)
        clock.advance(HOUR)
        assert (await line.request(SUBSCRIBE))["params"] == {"uri": "x://a"}


async def test_subscription_refused_for_good_is_reported_and_not_renewed() -> None:
    server, clock, observer = ScriptedServer(capabilities=RESOURCES), ManualClock(), RecordingObserver()
    async with Client(server, settings=QUICK, clock=clock, observers=[observer]) as client:
        await refuse_renewal(server, client, FINAL)
        clock.advance(HOUR)
        await settle()
        assert server.line.waiting() == []
        assert [fact.kind for fact in observer.of(Dropped)] == ["not_renewed"]


async def test_ended_subscription_is_not_renewed() -> None:
    server, clock = ScriptedServer(capabilities=RESOURCES), ManualClock()
    async with Client(server, settings=QUICK, clock=clock, observers=[]) as client:
        await refuse_renewal(server, client, {"kind": "temporarily_unavailable"})
        server.answered.add("resources/unsubscribe")
        await client.unsubscribe("x://a")
        clock.advance(HOUR)
        await settle()
        assert server.line.waiting() == []


async def test_renewal_ends_with_its_connection() -> None:
    server, clock = ScriptedServer(capabilities=RESOURCES), ManualClock()
    async with Client(server, settings=QUICK, clock=clock, observers=[]) as client:
        tasks = len(asyncio.all_tasks())
        await refuse_renewal(server, client, {"kind": "temporarily_unavailable"})
        server.line.die()
        clock.advance(HOUR)
        line = await server.connected(3)
        line.reply(await line.request(SUBSCRIBE), {})
        await client.ping()
        clock.advance(HOUR)
        await settle()
        assert line.waiting() == [], "the subscription is renewed once"
        assert len(asyncio.all_tasks()) == tasks


async def test_log_level_refused_for_now_is_renewed_later() -> None:
    server = ScriptedServer()
    server.answered.add("logging/setLevel")
    async with Client(server, settings=QUICK, observers=[], log_level="error") as client:
        server.answered.discard("logging/setLevel")
        server.line.die()
        line = await server.connected(2)
        line.error(await line.request("logging/setLevel"), 1008, "not now", {"kind": "temporarily_unavailable"})
        await client.ping()
        assert (await line.request("logging/setLevel"))["params"] == {"level": "error"}


async def test_changed_log_level_replaces_the_renewal() -> None:
    server, clock = ScriptedServer(), ManualClock()
    server.answered.add("logging/setLevel")
    async with Client(server, settings=QUICK, clock=clock, observers=[], log_level="error") as client:
        server.answered.discard("logging/setLevel")
        server.line.die()
        line = await server.connected(2)
        line.error(await line.request("logging/setLevel"), 1008, "not now", {"kind": "temporarily_unavailable"})
        await client.ping()
        server.answered.add("logging/setLevel")
        await client.set_log_level("debug")
        clock.advance(HOUR)
        await settle()
        said = [one for one in line.transcript.said_by("client") if one["method"] == "logging/setLevel"]
        assert [one["params"]["level"] for one in said] == ["error", "debug"]


@pytest.mark.row("SUB-07")
@pytest.mark.parametrize("data", PASSING)
async def test_listen_refused_for_now_is_requested_again(data: Any) -> None:
    server = ScriptedServer(modern=True, answered=["server/discover"], capabilities=RESOURCES)
    async with Client(server, settings=QUICK, observers=[]) as client:
        subscribing = asyncio.create_task(client.subscribe("x://a"))
        server.line.acknowledge(await server.line.request(LISTEN))
        await subscribing
        server.line.die()
        line = await server.connected(2)
        line.error(await line.request(LISTEN), -32000, "not now", data)
        assert (await line.request(LISTEN))["params"]["notifications"]["resourceSubscriptions"] == ["x://a"]


async def test_tools_that_cannot_be_listed_for_now_are_listed_with_the_next_call() -> None:
    server = ScriptedServer(tools=[{"name": "work", "inputSchema": {"type": "object"}}])
    async with Client(server, settings=QUICK, observers=[]) as client:
        call = asyncio.create_task(client.call_tool("work"))
        server.line.reply(await server.line.request("tools/call"), {"content": []})
        await call
        server.answered.discard("tools/list")
        server.line.die()
        line = await server.connected(2)
        line.error(await line.request("tools/list"), 1008, "not now", {"kind": "temporarily_unavailable"})
        await client.ping()
        call = asyncio.create_task(client.call_tool("work"))
        assert {(await line.receive())["method"] for _ in range(2)} == {"tools/list", "tools/call"}
        call.cancel()
