"""Notifications of a server: changes of lists and resources, recipients, and rate limits."""

import asyncio
import threading
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Server, Settings
from trunkline.errors import MisuseError
from trunkline.facts import Dropped, HandlerFailed, SubscriptionStep
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

TOOLS, PROMPTS = "notifications/tools/list_changed", "notifications/prompts/list_changed"
RESOURCES = "notifications/resources/list_changed"


async def nothing() -> str:
    return ""


def make_server(**options: Any) -> Server:
    server = Server("t", observers=options.pop("observers", []), **options)
    server.add_tool(nothing, name="tool")
    server.add_prompt("text", name="prompt")
    server.add_resource("r://1", "text")
    return server


def add(server: Server, kind: str, number: int) -> None:
    match kind:
        case "tools":
            server.add_tool(nothing, name=f"tool {number}".replace(" ", "_"))
        case "prompts":
            server.add_prompt("text", name=f"prompt{number}")
        case "resources":
            server.add_resource(f"r://more/{number}", "text")
        case "templates":
            server.add_resource(f"r://{number}/{{x}}", lambda x: x)


def methods(messages: list[Any]) -> list[str]:
    return [message["method"] for message in messages]


# --- list_changed -----------------------------------------------------------------------------------------------


@pytest.mark.row("B09")
@pytest.mark.parametrize("declared", [True, False])
async def test_capability_alone_decides_about_list_changes(declared: bool) -> None:
    server = make_server(list_changed=declared)
    async with RawPeer(server) as subscriber, RawPeer(server) as other:
        for peer in (subscriber, other):
            await peer.initialize()
        await subscriber.result("resources/subscribe", {"uri": "r://1"})
        add(server, "resources", 2)
        for peer in (subscriber, other):
            assert methods(peer.waiting()) == ([RESOURCES] if declared else [])


@pytest.mark.row("N02", "N04", "X02")
@pytest.mark.parametrize(
    ("kind", "name"), [("tools", TOOLS), ("prompts", PROMPTS), ("resources", RESOURCES), ("templates", RESOURCES)]
)
async def test_change_is_announced_at_once_to_every_session(kind: str, name: str) -> None:
    server = make_server()
    async with RawPeer(server) as one, RawPeer(server) as other:
        await one.initialize()
        await other.initialize("2024-11-05")
        add(server, kind, 2)
        for peer in (one, other):
            (message,) = peer.waiting()  # no turn of the loop has passed
            assert message == {"jsonrpc": "2.0", "method": name, "params": {}}


@pytest.mark.row("N02")
async def test_remove_enable_and_disable_are_announced() -> None:
    clock = ManualClock()
    server = make_server(clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for change in (
            lambda: server.tools.disable("tool"),
            lambda: server.tools.enable("tool"),
            lambda: server.remove_tool("tool"),
        ):
            change()
            assert methods(peer.waiting()) == [TOOLS]
            clock.advance(1)


@pytest.mark.row("N02")
async def test_uninitialized_session_gets_no_announcement() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        add(server, "tools", 2)
        assert await peer.quiet() == []


@pytest.mark.row("N05", "X13")
async def test_last_change_is_never_lost() -> None:
    clock = ManualClock(start=0)
    server = make_server(clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        add(server, "tools", 1)
        assert methods(peer.waiting()) == [TOOLS]  # at 0 ms
        clock.advance(0.05)
        add(server, "tools", 2)
        clock.advance(0.0499)
        assert peer.waiting() == []
        clock.advance(0.1 - clock.now())
        assert methods(peer.waiting()) == [TOOLS]  # at 100 ms
        clock.advance(10)
        assert peer.waiting() == []


@pytest.mark.row("N03", "X13")
async def test_burst_of_changes_sends_two_notifications() -> None:
    clock = ManualClock()
    server = make_server(clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for number in range(50):
            add(server, "tools", number)
            clock.advance(0.001)
        assert methods(peer.waiting()) == [TOOLS]
        clock.advance(1)
        assert methods(peer.waiting()) == [TOOLS]


@pytest.mark.row("N03")
async def test_burst_of_one_kind_does_not_delay_another() -> None:
    clock = ManualClock()
    server = make_server(clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for number in range(5):
            add(server, "tools", number)
        assert methods(peer.waiting()) == [TOOLS]
        clock.advance(0.02)
        add(server, "prompts", 1)
        assert methods(peer.waiting()) == [PROMPTS]
        add(server, "prompts", 2)
        clock.advance(0.08)
        assert methods(peer.waiting()) == [TOOLS]
        clock.advance(0.02)
        assert methods(peer.waiting()) == [PROMPTS]


@pytest.mark.row("R19")
async def test_resources_and_templates_share_a_notification() -> None:
    clock = ManualClock()
    server = make_server(clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        add(server, "resources", 2)
        add(server, "templates", 2)
        clock.advance(0.2)
        assert methods(peer.waiting()) == [RESOURCES, RESOURCES]
        clock.advance(0.2)
        server.remove_resource("r://more/2")
        assert methods(peer.waiting()) == [RESOURCES]


@pytest.mark.row("N06")
@pytest.mark.parametrize("kind", ["tools", "prompts", "resources"])
async def test_list_changed_needs_the_flag(kind: str) -> None:
    clock = ManualClock()
    server = make_server(clock=clock, list_changed=False)
    async with RawPeer(server) as peer:
        assert "listChanged" not in (await peer.initialize())["capabilities"][kind]
        add(server, kind, 1)
        clock.advance(1)
        assert await peer.quiet() == []


@pytest.mark.row("N06")
@pytest.mark.parametrize("kind", ["tools", "prompts", "resources"])
async def test_undeclared_feature_announces_nothing(kind: str) -> None:
    server = Server("t")
    async with RawPeer(server) as peer:
        assert kind not in (await peer.initialize())["capabilities"]
        add(server, kind, 1)
        assert await peer.quiet() == []


@pytest.mark.row("X04")
async def test_client_that_disables_the_flag_gets_nothing() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"tools": {"listChanged": False}})
        add(server, "tools", 1)
        add(server, "prompts", 1)
        assert methods(await peer.quiet()) == [PROMPTS]


@pytest.mark.row("N04")
async def test_change_from_another_thread_is_announced() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        await peer.initialize()
        await asyncio.to_thread(add, server, "tools", 1)
        assert methods([await peer.receive()]) == [TOOLS]


@pytest.mark.row("N05")
async def test_pending_announcement_is_dropped_without_clients() -> None:
    clock = ManualClock()
    server = make_server(clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        add(server, "tools", 1)
        add(server, "tools", 2)
    await server.aclose()
    assert clock.waiting == 0
    async with RawPeer(server) as peer:
        await peer.initialize()
        clock.advance(1)
        assert await peer.quiet() == []


# --- resources/updated --------------------------------------------------------------------------------------------


async def subscribe(peer: RawPeer, uri: str = "r://1") -> None:
    assert await peer.result("resources/subscribe", {"uri": uri}) == {}


@pytest.mark.row("N01", "R11", "R17", "A10", "X12")
async def test_update_goes_only_to_subscribers_of_the_resource() -> None:
    server = make_server()
    async with RawPeer(server) as a, RawPeer(server) as b, RawPeer(server) as c, RawPeer(server) as d:
        for peer in (a, b, c, d):
            await peer.initialize()
        await subscribe(a)
        await subscribe(b)
        await subscribe(d, "r://2")
        server.notify_updated("r://1")
        for peer in (a, b):
            assert await peer.quiet() == [
                {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "r://1"}}
            ]
        for peer in (c, d):
            assert await peer.quiet() == []


@pytest.mark.row("N01", "R17")
async def test_update_carries_its_metadata() -> None:
    server, changed = make_server(), {"updated_at": 1, "version": 2}
    async with RawPeer(server) as peer:
        await peer.initialize()
        await subscribe(peer)
        server.notify_updated("r://1", meta=changed)
        server.notify_updated("r://1")
        first, second = await peer.quiet()
    assert first["params"] == {"uri": "r://1", "_meta": changed}
    assert second["params"] == {"uri": "r://1"}


@pytest.mark.row("R17")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_client_handler_sees_the_metadata_of_an_update(revision: str) -> None:
    server, seen = make_server(), asyncio.Queue[Any]()
    async with Client(server, revision=revision) as client:
        client.on("notifications/resources/updated", seen.put_nowait)
        await client.subscribe("r://1")
        server.notify_updated("r://1", meta={"version": 2})
        async with asyncio.timeout(PATIENCE):
            params = await seen.get()
    assert (params.uri, params.meta["version"]) == ("r://1", 2)


def test_update_metadata_must_be_a_json_object() -> None:
    for wrong in ([1], "a", {"a": object()}):
        with pytest.raises(MisuseError, match="meta= "):
            make_server().notify_updated("r://1", meta=wrong)  # type: ignore[arg-type]


@pytest.mark.row("R11")
async def test_subscribing_twice_sends_one_update() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        await peer.initialize()
        await subscribe(peer)
        await subscribe(peer)
        server.notify_updated("r://1")
        assert len(await peer.quiet()) == 1
        await peer.result("resources/unsubscribe", {"uri": "r://1"})
        server.notify_updated("r://1")
        assert await peer.quiet() == []


@pytest.mark.row("R12", "R13")
async def test_no_update_after_unsubscribe() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        await peer.initialize()
        await subscribe(peer)
        assert await peer.result("resources/unsubscribe", {"uri": "r://1"}) == {}
        assert await peer.result("resources/unsubscribe", {"uri": "r://never"}) == {}
        server.notify_updated("r://1")
        assert await peer.quiet() == []


@pytest.mark.row("R14")
async def test_subscribe_needs_the_flag() -> None:
    server = make_server(subscribe=False)
    async with RawPeer(server) as peer:
        assert "subscribe" not in (await peer.initialize())["capabilities"]["resources"]
        for method in ("resources/subscribe", "resources/unsubscribe"):
            error = await peer.error(method, {"uri": "r://1"})
            assert (error["code"], error["data"]["capability"]) == (-32601, "resources.subscribe")
        server.notify_updated("r://1")
        assert await peer.quiet() == []


@pytest.mark.row("R15")
@pytest.mark.parametrize("uri", ["::::", "", "no scheme", "r://" + "x" * 3000])
async def test_subscribe_needs_a_valid_uri(uri: str) -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        assert (await peer.error("resources/subscribe", {"uri": uri}))["code"] == -32602


async def test_resource_may_be_subscribed_to_before_it_exists() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        await peer.initialize()
        await subscribe(peer, "r://later")
        server.add_resource("r://later", "text")
        server.notify_updated("r://later")
        assert "r://later" in [message.get("params", {}).get("uri") for message in await peer.quiet()]


@pytest.mark.row("R23", "A11", "PH25")
async def test_subscriptions_end_with_the_session() -> None:
    server, watched = make_server(), []
    server.on_first_subscriber(lambda uri: watched.append(("first", uri)))
    last = asyncio.Event()

    @server.on_last_unsubscribed
    async def ended(uri: str) -> None:
        watched.append(("last", uri))
        last.set()

    async with RawPeer(server) as stays:
        await stays.initialize()
        async with RawPeer(server) as goes:
            await goes.initialize()
            await subscribe(goes, "r://1")
            await subscribe(goes, "r://both")
            await subscribe(stays, "r://both")
        async with asyncio.timeout(PATIENCE):
            await last.wait()
        assert watched == [("first", "r://1"), ("first", "r://both"), ("last", "r://1")]
        server.notify_updated("r://1")
        server.notify_updated("r://both")
        assert [message["params"]["uri"] for message in await stays.quiet()] == ["r://both"]
    await server.aclose()
    assert watched[3:] == [("last", "r://both")]


@pytest.mark.row("R17")
async def test_update_from_another_thread_is_sent() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        await peer.initialize()
        await subscribe(peer)
        thread = threading.Thread(target=server.notify_updated, args=("r://1",))
        thread.start()
        assert (await peer.receive())["params"] == {"uri": "r://1"}
        thread.join()


async def test_hooks_run_for_first_and_last_subscriber() -> None:
    server, watched = make_server(), []
    server.on_first_subscriber(lambda uri: watched.append("on"))
    server.on_last_unsubscribed(lambda uri: watched.append("off"))
    async with RawPeer(server) as one, RawPeer(server) as other:
        await one.initialize()
        await other.initialize()
        for peer in (one, other):
            await subscribe(peer)
        assert watched == ["on"]
        for peer in (one, other):
            await peer.result("resources/unsubscribe", {"uri": "r://1"})
        assert watched == ["on", "off"]


@pytest.mark.row("F20")
async def test_subscription_is_confirmed_after_the_hook() -> None:
    observer = RecordingObserver()
    server, go, began = make_server(observers=[observer]), asyncio.Event(), asyncio.Event()

    @server.on_first_subscriber
    async def watch(uri: str) -> None:
        began.set()
        await go.wait()

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("resources/subscribe", {"uri": "r://1"})
        await began.wait()
        assert await peer.quiet() == []  # not answered yet
        go.set()
        assert (await peer.answer_to(call))["result"] == {}
    steps = [(fact.step, fact.uri) for fact in observer.of(SubscriptionStep)]
    assert steps == [(step, "r://1") for step in ("RegisterSubscription", "SetupWatcher", "ConfirmSubscription")]


@pytest.mark.row("F20")
async def test_failing_hook_prevents_subscription_and_is_reported() -> None:
    observer = RecordingObserver()
    server = make_server(observers=[observer])

    @server.on_first_subscriber
    async def watch(uri: str) -> None:
        raise OSError("a secret path")

    async with RawPeer(server) as peer:
        await peer.initialize()
        error = await peer.error("resources/subscribe", {"uri": "r://1"})
        server.notify_updated("r://1")
        assert await peer.quiet() == []
    assert (error["code"], error["data"]["kind"]) == (-32603, "subscription_failed")
    assert "secret" not in str(error)
    (failure,) = observer.of(HandlerFailed)
    assert str(failure.error) == "a secret path"
    assert failure.reference == error["data"]["reference"]
    assert [fact.step for fact in observer.of(SubscriptionStep)] == ["RegisterSubscription", "SetupWatcher"]


# --- notifications without a handler ---------------------------------------------------------------------------------


@pytest.mark.row("N08")
async def test_unknown_notification_is_only_counted() -> None:
    observer = RecordingObserver()
    async with RawPeer(Server("t", observers=[observer])) as peer:
        await peer.initialize()
        peer.notify("notifications/nobody/knows", {"a": 1})
        assert await peer.quiet() == []
        peer.notify("notifications/tasks/status", {"taskId": "1"})
        assert await peer.quiet() == []
    assert [fact.kind for fact in observer.of(Dropped)] == ["unknown_notification"] * 2


@pytest.mark.row("A21")
async def test_unhandled_notification_is_counted() -> None:
    from trunkline.server.features import lifecycle

    observer = RecordingObserver()
    async with RawPeer(Server("t", observers=[observer], features=[lifecycle.FEATURE])) as peer:
        await peer.initialize(capabilities={"roots": {"listChanged": True}})
        peer.notify("notifications/roots/list_changed")
        assert await peer.quiet() == []
    assert [fact.kind for fact in observer.of(Dropped)] == ["unhandled_notification"]


@pytest.mark.row("X13")
async def test_debounce_interval_is_a_setting() -> None:
    clock = ManualClock()
    server = make_server(clock=clock, settings=Settings(list_changed_interval=5))
    async with RawPeer(server) as peer:
        await peer.initialize()
        add(server, "tools", 1)
        add(server, "tools", 2)
        clock.advance(4.9)
        assert methods(peer.waiting()) == [TOOLS]
        clock.advance(0.1)
        assert methods(peer.waiting()) == [TOOLS]


@pytest.mark.row("N02", "N03")
@pytest.mark.parametrize("kind", ["tools", "resources", "prompts"])
async def test_server_may_announce_list_changed_itself(kind: Any) -> None:
    clock = ManualClock()
    server = make_server(clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.quiet()
        await asyncio.to_thread(server.notify_list_changed, kind)
        assert methods(await peer.quiet()) == [f"notifications/{kind}/list_changed"]
        server.notify_list_changed(kind)
        server.notify_list_changed(kind)
        assert methods(await peer.quiet()) == []  # not yet
        clock.advance(1)
        assert methods(await peer.quiet()) == [f"notifications/{kind}/list_changed"]
    server.notify_list_changed(kind)  # without recipients
