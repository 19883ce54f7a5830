"""The bus on Redis beyond the contract: lost connections, and processes that die silently."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import cast
from urllib.parse import quote

import pytest
from tests.contract.buses import IDENTITY, BusGroup, Listener, check_order
from tests.contract.connections import turns, until
from tests.contract.valkey import started, valkey
from tests.faults.proxy import Proxy, proxied
from tests.ports import held_port
from tests.processes import nothing_left

from trunkline.errors import StoreUnavailable
from trunkline.stores.bus import Bus
from trunkline.stores.redis import bus as redis_bus
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.signed_frames import ALL, FrameSigner


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BusGroup]:
    group = BusGroup("redis", tmp_path)
    yield group
    await group.leave()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"{quote(str(tmp_path))}[*]:"


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with proxied(valkey().port) as proxy:
        yield proxy


def at(port: int, prefix: str, patience: float = 5.0) -> Bus:
    return RedisStore(f"redis://127.0.0.1:{port}", prefix=prefix, patience=patience).bus()


def index(listener: Listener, what: str, name: str | None, message: bytes = b"") -> int:
    return listener.told.index((what, name, message))


# --- lost connections --------------------------------------------------------------------------------------


async def test_connection_loss_is_reported_before_later_messages(group: BusGroup, proxy: Proxy, prefix: str) -> None:
    one, two = await group.join("one", at(proxy.port, prefix)), await group.join("two")
    proxy.reset()
    await until(lambda: None in one.lost_ones and "one" in two.lost_ones)
    assert one.send("two", b"here again")
    two.bus.publish(b"welcome back")
    await until(lambda: two.messages("one") and one.messages("two"))
    assert index(two, "lost", "one") < index(two, "heard", "one", b"here again")
    assert index(one, "lost", None) < index(one, "heard", "two", b"welcome back")


async def test_send_without_connection_is_reported_lost(group: BusGroup, proxy: Proxy, prefix: str) -> None:
    one, two = await group.join("one", at(proxy.port, prefix)), await group.join("two")
    proxy.refusing = True
    proxy.reset()
    await until(lambda: one.send("two", b"nowhere") and "two" in one.lost_ones)
    one.bus.publish(b"nowhere")
    late = await group.join("late")
    assert late.met_ones == {"two"}
    two.send("one", b"lost")
    await until(lambda: "one" in two.lost_ones)
    proxy.refusing = False
    await until(lambda: "late" in one.met_ones and "one" in late.met_ones)
    one.bus.publish(b"here again")
    await until(lambda: two.messages("one") == late.messages("one") == [b"here again"])
    assert not one.messages("two")


async def test_no_loss_is_unreported_under_broken_connections(group: BusGroup, proxy: Proxy, prefix: str) -> None:
    async with proxied(valkey().port) as other:
        one = await group.join("one", at(proxy.port, prefix))
        two = await group.join("two", at(other.port, prefix))
        numbers = count()
        for turn in range(300):
            number = next(numbers)
            for listener, to in ((one, "two"), (two, "one")):
                if number % 3:
                    listener.send(to, b"%d" % number)
                else:
                    listener.bus.publish(b"%d" % number)
            if turn % 60 == 0:
                (proxy if turn % 120 else other).reset()
            await asyncio.sleep(0.001)

        def all_is_well() -> bool:
            for listener, to in ((one, "two"), (two, "one")):
                listener.send(to, b"%d" % number)
            return all(
                int((listener.messages(sender) or [b"-1"])[-1]) >= 300
                for listener, sender in ((one, "two"), (two, "one"))
            )

        number = next(numbers)
        while not all_is_well():
            number = next(numbers)
            await asyncio.sleep(0.005)
    missing = [check_order(one.told, "two"), check_order(two.told, "one")]
    assert sum(missing) > 0
    assert {None, "two"} & one.lost_ones
    assert {None, "one"} & two.lost_ones


async def test_lost_publisher_notifies_both_sides(group: BusGroup, tmp_path: Path) -> None:
    """Each side drops its work for the other when it learns of the loss, so the other must not wait for that."""
    server = started(tmp_path / "other")
    try:
        with server.client() as client:
            two = await group.join("two", at(server.port, "x:"))
            before = {known["id"] for known in client.client_list()}
            one = await group.join("one", at(server.port, "x:"))
            [publishing] = [new for new in client.client_list(_type="normal") if new["id"] not in before]
            client.client_kill_filter(_id=publishing["id"])
        await until(lambda: "one" in two.lost_ones)
        await until(lambda: one.lost_ones & {"two", None})
        await group.leave()
    finally:
        server.kill()


async def test_late_loss_report_reaches_the_other_side(
    group: BusGroup, proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of the other side since its return are dropped then, so it has to know."""
    monkeypatch.setattr(redis_bus, "LOSS_REPORT_INTERVAL", 3.0)
    one, two = await group.join("one"), await group.join("two", at(proxy.port, prefix))
    proxy.refusing = True
    proxy.reset()
    await until(lambda: one.send("two", b"to no subscriber") and "two" in one.lost_ones)
    one.send("two", b"to no subscriber")
    proxy.refusing = False
    await until(lambda: None in two.lost_ones and two.send("one", b"here again") and one.messages("two"))
    sent, heard = len(two.told), len(one.told)
    await until(lambda: ("lost", "two", b"") in one.told[heard:])
    await until(lambda: ("lost", "one", b"") in two.told[sent:])


async def test_silently_dead_connection_is_detected(group: BusGroup, proxy: Proxy, prefix: str) -> None:
    one, two = await group.join("one", at(proxy.port, prefix, patience=1.0)), await group.join("two")
    proxy.half_open()
    await until(lambda: None in one.lost_ones)
    await until(lambda: two.send("one", b"x") and b"x" in one.messages("two"))


async def test_peers_reconnect_after_redis_restart(group: BusGroup, tmp_path: Path) -> None:
    server = started(tmp_path / "other")
    try:
        one, two = [await group.join(name, at(server.port, "x:")) for name in ("one", "two")]
        server.kill()
        server.start()
        await until(lambda: None in one.lost_ones and None in two.lost_ones)
        await until(lambda: one.send("two", b"x") and b"x" in two.messages("one"))
        await until(lambda: two.send("one", b"x") and b"x" in one.messages("two"))
        await group.leave()
    finally:
        server.kill()


async def test_unreachable_redis_raises_unavailable(prefix: str) -> None:
    with nothing_left():
        with held_port() as port, pytest.raises(StoreUnavailable, match="does not respond"):
            await at(port, prefix, patience=0.5).open("one", Listener(), IDENTITY)
        await turns()


async def test_sending_above_limit_is_reported_and_bounded(
    group: BusGroup, proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_bus, "MAX_UNSENT_BYTES", 4 << 20)
    one, two = await group.join("one", at(proxy.port, prefix)), await group.join("two")
    proxy.stall()
    for number in range(10):
        one.send("two", (b"%d" % number).ljust(1 << 20))
    waiting = asyncio.ensure_future(one.bus.sent())
    await until(lambda: "two" in one.lost_ones)
    assert not waiting.done()
    proxy.go_on()
    await waiting
    numbers = count(10)
    await until(lambda: one.send("two", b"%d" % next(numbers)) and int((two.messages("one") or [b"0"])[-1]) >= 10)
    assert check_order(two.told, "one") >= 4


async def test_retrying_sender_is_throttled_while_redis_is_down(
    group: BusGroup, proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = await group.join("one", at(proxy.port, prefix)), await group.join("two")
    tried: list[str | None] = []

    def again(name: str | None) -> None:
        tried.append(name)
        one.bus.send("two", b"again")

    monkeypatch.setattr(one, "lost", again)
    proxy.refusing = True
    proxy.reset()
    one.bus.send("two", b"first")
    began = time.monotonic()
    await until(lambda: len(tried) > 5)
    pauses = (time.monotonic() - began) / 0.2
    assert len(tried) <= 2 * (pauses + 2), "twice in each fifth of a second: of the message, and of what is said before"


# --- other programs ----------------------------------------------------------------------------------------


async def test_killed_peer_is_detected_without_messages(
    group: BusGroup, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_bus, "ANSWER_TIMEOUT", 0.05)
    with valkey().client() as client, client.pubsub() as silent:
        channels = redis_bus.Channels(prefix, IDENTITY)
        silent.subscribe(channels.for_peer("silent"), channels.all)
        await until(lambda: len(cast("list[bytes]", client.pubsub_channels(f"{prefix[:-4]}*"))) == 2)
        one = await group.join("one", at(valkey().port, prefix, patience=1.0))
        assert one.met_ones == {"silent"}
    await until(lambda: "silent" in one.lost_ones)


async def test_connection_loss_while_joining_starts_over(
    group: BusGroup, proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_bus, "ANSWER_TIMEOUT", 1.0)
    channels = redis_bus.Channels(prefix, IDENTITY)
    with valkey().client() as client, client.pubsub(ignore_subscribe_messages=True) as silent:
        silent.subscribe(channels.for_peer("silent"))
        await until(lambda: len(cast("list[bytes]", client.pubsub_channels(f"{prefix[:-4]}*"))) == 1)
        joining = asyncio.ensure_future(group.join("one", at(proxy.port, prefix)))
        await until(silent.get_message)  # a hello, which gets no reply
        proxy.reset()
        one = await joining
        await until(lambda: None in one.lost_ones)
        two = await group.join("two")
        await until(lambda: "two" in one.met_ones)
        assert one.send("two", b"first")
        await until(lambda: two.messages("one") == [b"first"])


async def test_messages_before_hello_answer_are_reported_lost(
    group: BusGroup, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_bus, "ANSWER_TIMEOUT", 0.05)
    channels, silent = redis_bus.Channels(prefix, IDENTITY), FrameSigner(IDENTITY, "silent")
    with valkey().client() as client, client.pubsub() as listening:
        listening.subscribe(channels.for_peer("silent"))
        await until(lambda: len(cast("list[bytes]", client.pubsub_channels(f"{prefix[:-4]}*"))) == 1)
        one = await group.join("one")
        client.publish(channels.all, silent.sign(ALL, b"m", b"it may be a replay"))
        client.publish(channels.for_peer("one"), silent.sign("one", b"y"))
        client.publish(channels.all, silent.sign(ALL, b"m", b"it is none"))
        await until(lambda: one.messages("silent"))
    assert one.told == [("met", "silent", b""), ("lost", "silent", b""), ("heard", "silent", b"it is none")]
    assert not one.rejections


async def test_foreign_subscriber_is_not_a_peer(group: BusGroup, prefix: str) -> None:
    start = redis_bus.Channels(prefix, IDENTITY).peer_prefix
    with valkey().client() as client, client.pubsub() as stranger:
        names = [
            f"{start}stranger",
            f"{start}stranger:",
            f"{start}stranger:{16 * '0'}",
            f"{start}:",
            start.encode() + b"\xff",
        ]
        stranger.subscribe(*names)
        await until(lambda: len(cast("list[bytes]", client.pubsub_channels(f"{prefix[:-4]}*"))) == len(names))
        one = await group.join("one")
    assert not one.told


async def test_departed_peers_are_remembered_up_to_a_limit(group: BusGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_bus, "MAX_DEPARTED", 2)
    one = await group.join("one")
    for name in ("a", "b", "c"):
        await (await group.join(name)).bus.close()
    await until(lambda: one.lost_ones == {"a", "b", "c"})
    assert [one.send(name, b"x") for name in ("a", "b", "c")] == [True, False, False]


async def test_processes_with_other_prefixes_are_separate(group: BusGroup, prefix: str) -> None:
    one = await group.join("one", at(valkey().port, f"{prefix}a:"))
    two = await group.join("two", at(valkey().port, f"{prefix}b:"))
    one.bus.publish(b"x")
    one.send("two", b"x")
    await until(lambda: "two" in one.lost_ones)
    assert not two.told
    assert not one.met_ones
