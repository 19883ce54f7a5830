"""The contract of all buses. A new one is one more line in `meeting.BUSES`."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.contract.buses import BUSES, IDENTITY, BusGroup, output_until
from tests.contract.connections import turns, until
from tests.contract.valkey import valkey
from tests.processes import nothing_left

from trunkline.errors import MisuseError, StoreUnavailable
from trunkline.stores.bus import MAX_MESSAGE_BYTES
from trunkline.stores.memory import MemoryStore
from trunkline.stores.redis import bus as redis_bus
from trunkline.stores.unix_bus import bus

MEGABYTE = 1 << 20


@pytest.fixture(params=BUSES)
async def group(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BusGroup]:
    group = BusGroup(request.param, tmp_path)
    yield group
    await group.leave()


# --- membership --------------------------------------------------------------------------------------------


async def test_joining_process_and_peers_know_each_other(group: BusGroup) -> None:
    names = ["one", "two", "three", "Four-" + "4" * 11]
    listeners = []
    for count, name in enumerate(names):
        listeners.append(await group.join(name))
        for listener, own in zip(listeners, names, strict=False):
            assert listener.met_ones == {*names[: count + 1]} - {own}
    assert all(not listener.lost_ones for listener in listeners)


async def test_concurrent_joins_know_each_other(group: BusGroup) -> None:
    names = [f"n{number}" for number in range(6)]
    listeners = await asyncio.gather(*map(group.join, names))
    for listener, own in zip(listeners, names, strict=True):
        await until(lambda listener=listener, own=own: listener.met_ones == {*names} - {own})
    listeners[0].bus.publish(b"all")
    for listener in listeners[1:]:
        await until(lambda listener=listener: listener.messages("n0") == [b"all"])


async def test_memory_store_has_no_bus() -> None:
    assert MemoryStore().bus() is None


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "a\n", "ä", "a_b", "x" * 17])
async def test_invalid_names_are_refused(group: BusGroup, name: str) -> None:
    with pytest.raises(MisuseError, match="is not a process name"):
        await group.join(name)
    one = await group.join("one")
    with pytest.raises(MisuseError, match="is not a process name"):
        one.bus.send(name, b"x")


# --- messages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [b"", b"\0\xff\r\n\n", b"one two\nthree", bytes(range(256))])
async def test_messages_are_arbitrary_bytes(group: BusGroup, message: bytes) -> None:
    one, two = await group.join("one"), await group.join("two")
    assert one.send("two", message)
    one.bus.publish(message)
    await until(lambda: two.messages("one") == [message, message])
    assert not one.messages("two")


async def test_send_reaches_one_and_publish_all_others(group: BusGroup) -> None:
    one, two, three = [await group.join(name) for name in ("one", "two", "three")]
    one.send("two", b"for two")
    one.bus.publish(b"for all")
    two.send("one", b"for one")
    three.bus.publish(b"from three")
    await until(lambda: two.messages("one") == [b"for two", b"for all"] and two.messages("three") == [b"from three"])
    await until(lambda: three.messages("one") == [b"for all"] and one.messages("two") == [b"for one"])
    await until(lambda: one.messages("three") == [b"from three"])
    await turns()
    assert not one.messages("one")
    assert not three.messages("two")


async def test_ten_thousand_messages_arrive_once_in_order(group: BusGroup) -> None:
    one, two, three = [await group.join(name) for name in ("one", "two", "three")]
    for number in range(5000):
        if number % 3:
            one.send("three", b"%d" % number)
        else:
            one.bus.publish(b"%d" % number)
        two.send("three", b"%d" % number)
        if number % 100 == 0:
            await asyncio.sleep(0)
    expected = [b"%d" % number for number in range(5000)]
    await until(lambda: len(three.told) >= 10_000 + 2 and len(two.messages("one")) >= len(expected[::3]))
    await turns()
    assert three.messages("one") == three.messages("two") == expected
    assert two.messages("one") == expected[::3]


async def test_large_and_small_messages_arrive_in_order(group: BusGroup) -> None:
    one, two = await group.join("one"), await group.join("two")
    expected = []
    for number in range(6):
        expected += [bytes([number]) * 3 * MEGABYTE, b"%d" % number]
        for message in expected[-2:]:
            one.send("two", message)
        await one.bus.sent()
    await until(lambda: len(two.messages("one")) == len(expected))
    assert two.messages("one") == expected
    assert not one.lost_ones | two.lost_ones


async def test_oversized_message_is_refused(group: BusGroup) -> None:
    one, two = await group.join("one"), await group.join("two")
    largest = bytes(MAX_MESSAGE_BYTES)
    for call in (lambda: one.bus.send("two", largest + b"x"), lambda: one.bus.publish(largest + b"x")):
        with pytest.raises(MisuseError, match="in pieces"):
            call()
    one.send("two", largest)
    await until(lambda: two.messages("one"))
    assert two.messages("one") == [largest]


async def test_failing_listener_receives_next_message(group: BusGroup) -> None:
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    one, two = await group.join("one"), await group.join("two")

    def heard(sender: str, message: bytes) -> None:
        two.told.append(("heard", sender, message))
        raise ValueError(message)

    two.heard = heard  # type: ignore[method-assign]
    for message in (b"a", b"b"):
        one.send("two", message)
    await until(lambda: len(failures) == 2)
    assert two.messages("one") == [b"a", b"b"]
    assert not one.lost_ones | two.lost_ones


# --- end of a member ---------------------------------------------------------------------------------------


async def test_leaving_is_reported_and_name_is_gone(group: BusGroup) -> None:
    one, two, three = [await group.join(name) for name in ("one", "two", "three")]
    two.send("one", b"last words" + bytes(MEGABYTE))
    two.bus.publish(b"goodbye")
    await two.bus.close()
    await two.bus.close()
    await until(lambda: "two" in one.lost_ones and "two" in three.lost_ones)
    assert one.messages("two") == [b"last words" + bytes(MEGABYTE), b"goodbye"]
    before = len(two.told)
    assert not one.send("two", b"x")
    one.bus.publish(b"y")
    await until(lambda: three.messages("one") == [b"y"])
    assert len(two.told) == before
    assert one.lost_ones | three.lost_ones == {"two"}


async def test_closed_bus_receives_nothing(group: BusGroup) -> None:
    one, two = await group.join("one"), await group.join("two")
    for _ in range(100):
        two.send("one", b"x")  # which leaves with a delay
        one.send("two", b"y")
    leaving = asyncio.ensure_future(two.bus.close())
    await asyncio.sleep(0)
    before = list(two.told)
    await leaving
    await until(lambda: "two" in one.lost_ones)
    assert two.told == before
    assert one.messages("two") == [b"x"] * 100


async def test_bus_opens_once_and_closes_for_good(group: BusGroup) -> None:
    new = group.bus()
    for call in (lambda: new.send("two", b"x"), lambda: new.publish(b"x")):
        with pytest.raises(MisuseError, match="not open yet"):
            call()
    one, two = await group.join("one"), await group.join("two")
    with pytest.raises(MisuseError, match="open already"):
        await one.bus.open("other", one, IDENTITY)
    await one.bus.close()
    assert one.bus.send("two", b"x")  # about an idle peer
    one.bus.publish(b"x")
    await one.bus.sent()
    with pytest.raises(StoreUnavailable, match="closed"):
        await one.bus.open("other", one, IDENTITY)
    await new.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await new.open("other", one, IDENTITY)
    assert not two.messages("one")


async def test_process_rejoins_under_another_name(group: BusGroup) -> None:
    one, two = await group.join("one"), await group.join("two")
    await two.bus.close()
    again = await group.join("two-again")
    assert again.met_ones == {"one"}
    assert one.send("two-again", b"x")
    await until(lambda: again.messages("one") == [b"x"])


@pytest.mark.parametrize("kind", BUSES)
async def test_nothing_remains_after_all_leave(kind: str, tmp_path: Path) -> None:
    valkey()
    with nothing_left():
        group = BusGroup(kind, tmp_path)
        one, two = await group.join("one"), await group.join("two")
        one.send("two", b"x")
        one.send("nobody", b"x")
        await until(lambda: two.messages("one"))
        await group.leave()
        await turns()
    assert not [*tmp_path.iterdir()]
    with valkey().client() as client:
        await until(lambda: not client.pubsub_channels(f"{quote(str(tmp_path))}*"))


# --- other processes ---------------------------------------------------------------------------------------


async def test_messages_to_killed_process_are_reported_lost(group: BusGroup) -> None:
    one, other = await group.join("one"), await group.join("other")
    peer = await group.start("peer")
    assert one.met_ones == {"peer", "other"}
    for number in range(100):
        one.send("peer", b"%d" % number)
    await until(lambda: one.messages("peer") == [b"%d" % number for number in range(100)])
    peer.send_signal(signal.SIGKILL)
    await peer.wait()
    await until(lambda: not one.send("peer", b"x") or "peer" in one.lost_ones)
    one.send("other", b"x")
    await until(lambda: other.messages("one") == [b"x"])
    assert one.lost_ones == {"peer"}
    three = await group.join("three")
    assert three.met_ones == {"one", "other"}


async def test_stalled_reader_is_dropped_and_notified(group: BusGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "PEER_TIMEOUT", 0.1)
    monkeypatch.setattr(redis_bus, "ANSWER_TIMEOUT", 0.1)
    one = await group.join("one")
    peer = await group.start("peer")
    peer.send_signal(signal.SIGSTOP)
    late = await group.join("late")
    assert late.met_ones == {"one", "peer"}  # it is alive, though it does not respond
    sent = 0
    while "peer" not in one.lost_ones:
        sent += sum(one.send("peer", bytes(8000)) for _ in range(128))
        assert sent < 200 * 128
        await asyncio.sleep(0)
    late.send("peer", b"from late")
    peer.send_signal(signal.SIGCONT)
    heard_of = await output_until(peer, "lost one" if group.kind == "unix" else "lost None")
    assert "lost late" not in heard_of
    await until(lambda: one.send("peer", b"again") and b"again" in one.messages("peer"))
