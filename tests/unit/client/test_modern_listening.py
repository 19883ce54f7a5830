"""What a client of the modern era hears of: one request that stays open, whatever becomes of it."""

import asyncio
from typing import Any

import pytest

from trunkline import Client, Settings
from trunkline.client.listen import build_filter
from trunkline.errors import CapabilityNotSupported, RequestTimeout
from trunkline.protocol.types import SubscriptionFilter
from trunkline.testing import ScriptedServer

QUICK = Settings(backoff_first=0.01, backoff_longest=0.02, quick_timeout=5.0)
RESOURCES = {"resources": {"subscribe": True}}
LISTEN = "subscriptions/listen"


def by_hand(**options: Any) -> ScriptedServer:
    """A server that answers no request to listen by itself."""
    return ScriptedServer(modern=True, answered=["server/discover"], **{"capabilities": RESOURCES} | options)


def listens(server: ScriptedServer) -> list[Any]:
    """What a client has asked to hear of on the last line, and what it has called off."""
    said = server.line.transcript.said_by("client")
    called_off = {one["params"]["requestId"] for one in said if one["method"] == "notifications/cancelled"}
    return [(one["params"]["notifications"], one["id"] in called_off) for one in said if one["method"] == LISTEN]


def uris(request: Any) -> list[str]:
    return request["params"]["notifications"].get("resourceSubscriptions", [])


async def subscribed(server: ScriptedServer, client: Client, uri: str) -> Any:
    subscribing = asyncio.create_task(client.subscribe(uri))
    request = await server.line.request(LISTEN)
    server.line.acknowledge(request)
    await subscribing
    return request


def test_filter_contains_only_declared_notifications() -> None:
    declared = {"tools": {"listChanged": True}, "prompts": {"listChanged": False}, "resources": {}, "logging": {}}
    assert build_filter(declared, []) == SubscriptionFilter(tools_list_changed=True)
    assert build_filter({}, ["x://y"]) == SubscriptionFilter(resource_subscriptions=["x://y"])
    assert build_filter({"tools": {}}, []) is None


@pytest.mark.row("SUB-01")
async def test_client_listens_to_all_lists_from_the_start() -> None:
    server = ScriptedServer(modern=True)
    async with Client(server):
        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
        assert listens(server) == [(wanted, False)]


async def test_server_without_notifications_is_not_asked() -> None:
    server = ScriptedServer(modern=True, capabilities={"tools": {}})
    async with Client(server):
        assert listens(server) == []


async def test_subscription_replaces_the_listen_request() -> None:
    server = ScriptedServer(modern=True, capabilities=RESOURCES)
    async with Client(server) as client:
        await client.subscribe("x://a")
        await client.subscribe("x://b")
        assert client.subscriptions == ("x://a", "x://b")
        await client.unsubscribe("x://a")
        await client.unsubscribe("x://b")
        assert client.subscriptions == ()
        one, both, other = ({"resourceSubscriptions": uris} for uris in (["x://a"], ["x://a", "x://b"], ["x://b"]))
        assert listens(server) == [(one, True), (both, True), (other, True)]


async def test_concurrent_subscriptions_do_not_overwrite_each_other() -> None:
    server = ScriptedServer(modern=True, capabilities=RESOURCES)
    async with Client(server) as client:
        await asyncio.gather(*(client.subscribe(f"x://{number}") for number in range(5)))
        last, called_off = listens(server)[-1]
        assert last == {"resourceSubscriptions": [f"x://{number}" for number in range(5)]}
        assert not called_off
        assert all(off for _, off in listens(server)[:-1])


@pytest.mark.row("SUB-07")
@pytest.mark.parametrize("how", ["complete", "error"])
async def test_ended_listen_request_is_renewed_with_all_subscriptions(how: str) -> None:
    server = by_hand()
    async with Client(server, settings=QUICK) as client:
        first = await subscribed(server, client, "x://a")
        second = await subscribed(server, client, "x://b")
        if how == "complete":
            server.line.reply(second, {"resultType": "complete"})
        else:
            server.line.error(second, -32603, "oh")
        for _ in range(2):  # and again, when that fails
            again = await server.line.request(LISTEN)
            assert uris(again) == ["x://a", "x://b"]
            server.line.error(again, -32603, "not yet")
        again = await server.line.request(LISTEN)
        server.line.acknowledge(again)
        assert len({first["id"], second["id"], again["id"]}) == 3


async def test_missed_notifications_clear_the_cache() -> None:
    server = by_hand(capabilities={"prompts": {"listChanged": True}})
    page = {"resultType": "complete", "prompts": [], "ttlMs": 60_000, "cacheScope": "private"}
    opening = asyncio.create_task((client := Client(server, settings=QUICK)).open())
    line = await server.connected(1)
    listening = await line.request(LISTEN)
    line.acknowledge(listening)
    await opening
    listing = asyncio.create_task(client.list_prompts())
    line.reply(await line.request("prompts/list"), page)
    await listing
    await client.list_prompts()  # is kept
    line.reply(listening, {"resultType": "complete"})
    again = await line.request(LISTEN)
    for _ in range(2):  # what was kept before, and what was kept while nobody listened
        listing = asyncio.create_task(client.list_prompts())
        line.reply(await line.request("prompts/list"), page)
        await listing
        line.acknowledge(again)
        await client.ping()
    await client.close()


@pytest.mark.row("SUB-05")
async def test_ungranted_resource_is_not_subscribed() -> None:
    server = by_hand()
    async with Client(server, settings=QUICK) as client:
        subscribing = asyncio.create_task(client.subscribe("x://a"))
        request = await server.line.request(LISTEN)
        server.line.acknowledge({"id": request["id"], "params": {"notifications": {}}})
        with pytest.raises(CapabilityNotSupported):
            await subscribing
        assert client.subscriptions == ()


async def test_server_without_subscriptions_is_not_asked() -> None:
    server = ScriptedServer(modern=True, capabilities={"resources": {}})
    async with Client(server) as client:
        with pytest.raises(CapabilityNotSupported):
            await client.subscribe("x://a")
        assert listens(server) == []


async def test_unacknowledged_request_is_cancelled_and_the_old_one_stays() -> None:
    server = by_hand()
    async with Client(server, settings=QUICK) as client:
        await subscribed(server, client, "x://a")
        with pytest.raises(RequestTimeout):
            await client.subscribe("x://b", timeout=0.02)
        assert client.subscriptions == ("x://a",)
        assert [off for _, off in listens(server)] == [False, True]


async def test_cancelled_subscribe_leaves_no_request() -> None:
    server = by_hand()
    async with Client(server, settings=QUICK) as client:
        subscribing = asyncio.create_task(client.subscribe("x://a"))
        await server.line.request(LISTEN)
        subscribing.cancel()
        await server.line.request("notifications/cancelled")
        assert client.subscriptions == ()


async def test_missing_first_acknowledgement_is_retried() -> None:
    server = by_hand(capabilities={"tools": {"listChanged": True}})
    async with Client(server, settings=Settings(backoff_first=0.01, quick_timeout=0.05)):
        await server.line.request(LISTEN)
        server.line.acknowledge(await server.line.request(LISTEN))


async def test_server_without_listen_is_asked_once() -> None:
    server = by_hand(capabilities={"tools": {"listChanged": True}, "prompts": {}})
    opening = asyncio.create_task((client := Client(server, settings=QUICK)).open())
    line = await server.connected(1)
    line.error(await line.request(LISTEN), -32601, "what?")
    await opening
    await client.ping()
    assert line.waiting() == []
    await client.close()


@pytest.mark.row("SUB-06")
async def test_reconnect_renews_the_listen_request() -> None:
    server = ScriptedServer(modern=True, capabilities=RESOURCES)
    async with Client(server, settings=QUICK) as client:
        await client.subscribe("x://a")
        server.line.die()
        await client.ping()
        assert len(server.lines) == 2
        assert listens(server) == [({"resourceSubscriptions": ["x://a"]}, False)]


async def test_unrelated_acknowledgement_is_ignored() -> None:
    server = ScriptedServer(modern=True)
    async with Client(server) as client:
        server.line.acknowledge({"id": 99, "params": {"notifications": {}}})
        await client.ping()
