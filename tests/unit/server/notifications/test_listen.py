"""subscriptions/listen requests: their notifications, order and end."""

from typing import Any

import pytest
from tests.modern import PREFIX, enveloped

from trunkline import Server, Settings
from trunkline.facts import CallEnded
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

MARK = f"{PREFIX}subscriptionId"
EVERY_LIST = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


def offering(**options: Any) -> Server:
    server = Server("s", settings=Settings(**options.pop("settings", {})), **options)
    server.add_tool(thing, name="a_tool")
    server.add_prompt("text", name="a_prompt")
    server.add_resource("x:a", "text")
    return server


async def thing() -> str:
    return "thing"


async def test_listen_request_is_limited_in_resources() -> None:
    server = Server("t", settings=Settings(max_subscriptions=3))

    @server.resource("note:{name}")
    def note(name: str) -> str:
        return name

    async with RawPeer(server) as peer:
        for named, error in ((2, False), (2, True), (1, False)):  # those of one connection count together
            listen(peer, resourceSubscriptions=[f"note:{number}" for number in range(named)])
            told = await peer.receive()
            assert ("error" in told) is error
            if error:
                data = told["error"]["data"]
                assert (data["kind"], data["maximum"]) == ("maximum_subscriptions_exceeded", 3)
                assert data["refusal"]["code"] == 1004


def listen(peer: RawPeer, *, id: Any = None, **wanted: Any) -> Any:
    return peer.call("subscriptions/listen", enveloped(notifications=wanted), id=id)


async def acknowledged(peer: RawPeer, ident: Any) -> Any:
    """The acknowledged subscriptions, from the first notification."""
    first = await peer.receive()
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert first["params"]["_meta"] == {MARK: ident}
    return first["params"]["notifications"]


async def settled(peer: RawPeer) -> list[Any]:
    """All notifications so far."""
    await peer.result("tools/list", enveloped())
    return peer.waiting()


@pytest.mark.row("SUB-02")
async def test_listen_sends_only_selected_events_with_subscription_id() -> None:
    server = offering()
    async with RawPeer(server) as peer:
        first = listen(peer, id="first", toolsListChanged=True, promptsListChanged=False)
        assert await acknowledged(peer, first) == {"toolsListChanged": True}
        second = listen(peer, id=2, resourceSubscriptions=["x:a", "x:b"])
        assert await acknowledged(peer, second) == {"resourceSubscriptions": ["x:a", "x:b"]}
        server.add_prompt("more", name="more")
        server.add_tool(thing, name="more")
        server.notify_updated("x:b")
        server.notify_updated("x:c")
        told = [(message["method"], message["params"]) for message in await settled(peer)]
        assert told == [
            ("notifications/tools/list_changed", {"_meta": {MARK: "first"}}),
            ("notifications/resources/updated", {"uri": "x:b", "_meta": {MARK: 2}}),
        ]


@pytest.mark.row("SUB-03")
async def test_unsupported_parts_of_the_filter_are_dropped() -> None:
    async with RawPeer(offering(list_changed=False, subscribe=False)) as peer:
        ident = listen(peer, **EVERY_LIST, resourceSubscriptions=["x:a"])
        assert await acknowledged(peer, ident) == {}
    async with RawPeer(Server("bare")) as peer:
        assert await acknowledged(peer, listen(peer, **EVERY_LIST)) == {}


@pytest.mark.row("SUB-03")
async def test_early_events_follow_the_acknowledgement() -> None:
    server = offering()

    @server.on_first_subscriber
    async def begin(uri: str) -> None:
        server.notify_updated("x:a")  # to which it is subscribed by now, when it comes to x:b

    async with RawPeer(server) as peer:
        ident = listen(peer, resourceSubscriptions=["x:a", "x:b"])
        assert await acknowledged(peer, ident) == {"resourceSubscriptions": ["x:a", "x:b"]}
        [told] = await settled(peer)
        assert told["params"] == {"uri": "x:a", "_meta": {MARK: ident}}


async def test_failed_watch_is_an_error_and_leaves_nothing() -> None:
    server, ended = offering(), list[str]()

    @server.on_first_subscriber
    async def begin(uri: str) -> None:
        if uri == "x:b":
            raise ValueError("no")

    @server.on_last_unsubscribed
    async def end(uri: str) -> None:
        ended.append(uri)

    async with RawPeer(server) as peer:
        answer = await peer.error(
            "subscriptions/listen", enveloped(notifications={"resourceSubscriptions": ["x:a", "x:b"]})
        )
        assert answer["code"] == -32603
        assert ended == ["x:a"]
        answer = await peer.error(
            "subscriptions/listen", enveloped(notifications={"resourceSubscriptions": ["no uri"]})
        )
        assert answer["code"] == -32602


@pytest.mark.row("SUB-06")
async def test_cancelled_listen_stops_events_and_watching() -> None:
    server, ended = offering(), list[str]()

    @server.on_last_unsubscribed
    async def end(uri: str) -> None:
        ended.append(uri)

    async with RawPeer(server) as peer:
        ident = listen(peer, toolsListChanged=True, resourceSubscriptions=["x:a"])
        await acknowledged(peer, ident)
        peer.notify("notifications/cancelled", {"requestId": ident})
        await settled(peer)
        server.add_tool(thing, name="more")
        server.notify_updated("x:a")
        assert await settled(peer) == []
        assert ended == ["x:a"]


@pytest.mark.row("SUB-07")
async def test_shutdown_answers_listen_and_sends_cancelled() -> None:
    observer = RecordingObserver()
    server = offering(observers=[observer])
    async with RawPeer(server) as peer:
        ident = listen(peer, toolsListChanged=True)
        await acknowledged(peer, ident)
        await server.aclose()
        result, gone = peer.waiting()
        assert result["id"] == ident
        assert (result["result"]["resultType"], result["result"]["_meta"][MARK]) == ("complete", ident)
        assert (gone["method"], gone["params"]["requestId"]) == ("notifications/cancelled", ident)
    assert [fact.outcome for fact in observer.facts if isinstance(fact, CallEnded)] == ["ok"]


async def test_closing_connection_ends_only_its_streams() -> None:
    server = offering()
    async with RawPeer(server) as peer, RawPeer(server) as other:
        await acknowledged(peer, listen(peer, toolsListChanged=True))
        ident = listen(other, toolsListChanged=True)
        await acknowledged(other, ident)
        await peer.connection.drain_and_close(5.0)
        assert [message.get("method", "result") for message in peer.waiting()] == ["result", "notifications/cancelled"]
        server.add_tool(thing, name="more")
        [told] = await settled(other)
        assert told["params"]["_meta"] == {MARK: ident}


async def test_listen_has_no_deadline() -> None:
    clock = ManualClock()
    server = offering(clock=clock, settings={"longest_call": 10.0, "work_timeout": 1.0})
    async with RawPeer(server) as peer:
        ident = listen(peer, toolsListChanged=True)
        await acknowledged(peer, ident)
        clock.advance(1000.0)
        server.add_tool(thing, name="more")
        clock.advance(1.0)
        [told] = await settled(peer)
        assert told["method"] == "notifications/tools/list_changed"


async def test_listen_uses_no_call_slot_and_is_limited() -> None:
    server = offering(settings={"max_calls": 2})
    async with RawPeer(server) as peer:
        for _ in range(2):
            await acknowledged(peer, listen(peer, toolsListChanged=True))
        assert await peer.result("tools/call", enveloped(name="a_tool"))
        error = await peer.error("subscriptions/listen", enveloped(notifications={}))
        assert (error["code"], error["data"]["kind"]) == (-32603, "maximum_subscriptions_exceeded")
        assert await peer.result("tools/call", enveloped(name="a_tool"))
