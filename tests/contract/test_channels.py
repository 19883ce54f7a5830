"""The contract of all channels, over each transport. A new transport is one more line in `LINES`."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import CONNECTIONS, OVER_BYTES, STREAMS, ConnectionPair, Open, turns, until
from tests.limits import PATIENCE

from trunkline import Settings
from trunkline.transports.channel import Oversized
from trunkline.wire.messages import Encoded, ErrorObject, ErrorResponse, Malformed, Notification, Request, Response

MIB = 1 << 20


@pytest.fixture(params=CONNECTIONS)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[ConnectionPair]:
    """Both ends of a connection; after it has closed, none of its resources are left."""
    before = held()
    async with CONNECTIONS[request.param](Settings()) as made:
        yield made
        await made.ours.close()
        await made.theirs.close()
    await until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def held() -> tuple[Any, ...]:
    """The resources of this process: descriptors, tasks, threads and children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), threading.active_count(), set(children)


# --- messages --------------------------------------------------------------------------------------------


@pytest.mark.row("W01", "W08")
async def test_channel_info_names_the_transport(pair: ConnectionPair) -> None:
    assert pair.ours.info.transport in {"memory", "stream", "stdio", "tcp", "unix", "websocket"}
    assert pair.ours.info.peer
    assert pair.theirs.info.peer


@pytest.mark.row("W01", "W12")
async def test_messages_arrive_in_order_in_both_directions(pair: ConnectionPair) -> None:
    for number in range(100):
        pair.ours.send(Request(number, "ask", {"x": "x" * number * 300}))
        pair.theirs.send(Response(number, {"n": number}))
    await until(lambda: len(pair.at_theirs.messages) == len(pair.at_ours.messages) == 100)
    assert pair.at_theirs.ids == pair.at_ours.ids == list(range(100))
    assert [len(bytes(message.params)) for message in pair.at_theirs.messages] == [  # type: ignore[union-attr]
        len('{"x":""}') + number * 300 for number in range(100)
    ]


async def test_send_never_delivers_synchronously(pair: ConnectionPair) -> None:
    pair.ours.send(Notification("n"))
    assert pair.at_theirs.messages == []
    await until(lambda: pair.at_theirs.messages)
    assert pair.at_theirs.methods == ["n"]


async def test_encoded_message_arrives_in_order(pair: ConnectionPair) -> None:
    pair.ours.send(Notification("first"))
    pair.ours.send(Encoded(b'{"jsonrpc":"2.0","method":"second"}'))
    pair.ours.send(Notification("third"))
    await until(lambda: len(pair.at_theirs.messages) == 3)
    assert pair.at_theirs.methods == ["first", "second", "third"]


async def test_batch_arrives_as_one_message(pair: ConnectionPair) -> None:
    pair.ours.send([Response(1, {}), Response(2, {})])
    await until(lambda: pair.at_theirs.messages)
    (batch,) = pair.at_theirs.messages
    assert [message.id for message in batch.messages] == [1, 2]  # type: ignore[union-attr]


async def test_about_is_ignored_without_streams(pair: ConnectionPair) -> None:
    pair.ours.send(Notification("n"), about="whatever")
    pair.ours.send(Notification("n"), about=7)
    await until(lambda: len(pair.at_theirs.messages) == 2)


async def test_origin_has_the_principal(pair: ConnectionPair) -> None:
    pair.ours.send(Notification("n"))
    await until(lambda: pair.at_theirs.messages)
    assert [origin.principal for origin in pair.at_theirs.origins] == [pair.principal]


async def test_unencodable_message_raises_and_sends_nothing(pair: ConnectionPair) -> None:
    pair.ours.send(Notification("before"))
    with pytest.raises(TypeError):
        pair.ours.send(Response(1, {"fine": 1, "not": object()}))
    pair.ours.send(Notification("after"))
    await until(lambda: len(pair.at_theirs.messages) == 2)
    assert pair.at_theirs.methods == ["before", "after"]


async def test_malformed_message_is_delivered_as_malformed(pair: ConnectionPair) -> None:
    pair.ours.send(Notification("n"))
    pair.ours.send(Encoded(b"nonsense"))
    pair.ours.send(Notification("n"))
    await until(lambda: len(pair.at_theirs.messages) == 3)
    assert [type(message) for message in pair.at_theirs.messages] == [Notification, Malformed, Notification]


@pytest.mark.row("W15")
async def test_multibyte_characters_survive_fragmentation(pair: ConnectionPair) -> None:
    text = "é€😀" * 100_000  # more than any single read returns
    pair.ours.send(Notification("n", {"text": text}))
    await until(lambda: pair.at_theirs.messages)
    (message,) = pair.at_theirs.messages
    assert bytes(message.params) == b'{"text":"%b"}' % text.encode()  # type: ignore[union-attr]


# --- flow control ----------------------------------------------------------------------------------------


@pytest.mark.row("W01")
async def test_paused_messages_arrive_in_order_after_resume(pair: ConnectionPair) -> None:
    pair.theirs.pause()
    for number in range(3):
        pair.ours.send(Request(number, "ask"))
        await pair.settle()
    assert pair.at_theirs.messages == []
    pair.theirs.resume()
    await until(lambda: len(pair.at_theirs.messages) == 3)
    assert pair.at_theirs.ids == [0, 1, 2]


async def test_pause_does_not_affect_the_other_direction(pair: ConnectionPair) -> None:
    pair.ours.pause()
    pair.ours.send(Notification("n"))
    await until(lambda: pair.at_theirs.messages)


@pytest.mark.parametrize("closed", [False, True])
async def test_drain_returns_at_once_if_peer_reads_or_is_gone(pair: ConnectionPair, *, closed: bool) -> None:
    if closed:
        await pair.ours.close()
    draining: Coroutine[Any, Any, None] = pair.ours.drain()
    async with asyncio.timeout(PATIENCE):
        await draining


@pytest.mark.row("W01", "N14")
@pytest.mark.parametrize("open_", OVER_BYTES.values(), ids=OVER_BYTES)
async def test_drain_waits_for_a_slow_reader_without_loss(open_: Open) -> None:
    async with open_(Settings(unsent_high=64 * 1024)) as pair:
        pair.theirs.pause()
        sent, draining = 0, asyncio.ensure_future(pair.ours.drain())
        async with asyncio.timeout(PATIENCE):
            while sent < 24 or draining.done():  # systems buffer different amounts, up to tens of megabytes
                for _ in range(8):
                    pair.ours.send(Request(sent, "ask", {"x": "x" * MIB}))
                    sent += 1
                    await turns(1)
                await pair.settle()
                draining.cancel()
                draining = asyncio.ensure_future(pair.ours.drain())
                await pair.settle()
        pair.theirs.resume()
        async with asyncio.timeout(PATIENCE):
            await draining
        await until(lambda: len(pair.at_theirs.messages) == sent)
        assert pair.at_theirs.ids == list(range(sent))
        await pair.ours.close()
        await pair.theirs.close()


@pytest.mark.parametrize("open_", OVER_BYTES.values(), ids=OVER_BYTES)
async def test_mutual_flood_does_not_deadlock(open_: Open) -> None:
    async with open_(Settings(unsent_high=64 * 1024)) as pair:
        for number in range(24):
            pair.ours.send(Request(number, "ask", {"x": "x" * MIB}))
            pair.theirs.send(Request(number, "ask", {"x": "x" * MIB}))
        await until(lambda: len(pair.at_theirs.messages) == len(pair.at_ours.messages) == 24)
        await pair.ours.close()
        await pair.theirs.close()


@pytest.mark.row("N14")
@pytest.mark.parametrize("open_", OVER_BYTES.values(), ids=OVER_BYTES)
async def test_peer_that_never_reads_is_disconnected(open_: Open) -> None:
    async with open_(Settings(unsent_high=MIB, unsent_limit=2 * MIB)) as pair:
        pair.theirs.pause()
        for number in range(40):  # more than the system buffers per connection
            pair.ours.send(Request(number, "ask", {"x": "x" * MIB}))
            await pair.settle() if not pair.at_ours.ends else None
        (closed,) = pair.at_ours.ends
        assert "bytes unread" in closed.reason
        await pair.ours.close()
        pair.theirs.resume()
        await until(lambda: pair.at_theirs.ends)
        await pair.theirs.close()


@pytest.mark.row("W16")
@pytest.mark.parametrize("open_", STREAMS.values(), ids=STREAMS)
async def test_message_size_limit_is_exact(open_: Open) -> None:
    async with open_(Settings(unsent_limit=64 * MIB)) as pair:
        frame = b'{"jsonrpc":"2.0","method":"n","params":{"x":"%b"}}'
        room = 16 * MIB - len(frame) + 2
        pair.ours.send(Encoded(frame % (b"x" * room)))
        with pytest.raises(Oversized, match="the message has 16777217 bytes, and the limit is 16777216 bytes"):
            pair.ours.send(Encoded(frame % (b"x" * (room + 1))))
        pair.ours.send(ErrorResponse(7, ErrorObject(1, "x" * 16 * MIB)))  # errors are sent in any case
        pair.ours.send(Notification("next"))
        await until(lambda: len(pair.at_theirs.messages) == 3)
        whole, refused, following = pair.at_theirs.messages
        assert isinstance(whole, Notification)
        assert isinstance(refused, Malformed)
        assert (refused.code, refused.limit, refused.id, refused.is_reply) == (-32600, 16 * MIB, 7, True)
        assert following == Notification("next")
        await pair.ours.close()
        await pair.theirs.close()


# --- close -----------------------------------------------------------------------------------------------


@pytest.mark.row("W01")
@pytest.mark.parametrize("closer", ["ours", "theirs"])
async def test_closed_is_reported_once_at_both_ends(pair: ConnectionPair, closer: str) -> None:
    await getattr(pair, closer).close()
    await getattr(pair, closer).close()
    await until(lambda: pair.at_ours.ends and pair.at_theirs.ends)
    await pair.ours.close()
    await pair.theirs.close()
    assert len(pair.at_ours.ends) == len(pair.at_theirs.ends) == 1


async def test_both_ends_may_close_concurrently(pair: ConnectionPair) -> None:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        for channel in (pair.ours, pair.theirs, pair.theirs, pair.ours):
            tasks.create_task(channel.close())
    assert len(pair.at_ours.ends) == len(pair.at_theirs.ends) == 1


async def test_cancelled_close_still_closes_the_channel(pair: ConnectionPair) -> None:
    closing = asyncio.ensure_future(pair.ours.close())
    await turns(1)
    closing.cancel()
    await until(lambda: pair.at_ours.ends and pair.at_theirs.ends)


async def test_messages_sent_before_close_arrive(pair: ConnectionPair) -> None:
    pair.ours.send(Notification("many", {"x": "x" * 3 * MIB}))
    pair.ours.send(Notification("last words"))
    pair.theirs.send(Notification("unheard"))
    await pair.ours.close()
    await until(lambda: pair.at_theirs.ends)
    assert pair.at_theirs.methods == ["many", "last words"]


@pytest.mark.row("W01")
async def test_send_after_close_does_nothing(pair: ConnectionPair) -> None:
    await pair.ours.close()
    await until(lambda: pair.at_theirs.ends)
    pair.ours.send(Notification("n"))
    pair.theirs.send(Notification("n"))
    await turns()
    assert pair.at_theirs.messages == pair.at_ours.messages == []


async def test_no_message_is_delivered_after_closed(pair: ConnectionPair) -> None:
    pair.theirs.pause()
    pair.ours.send(Notification("n"))
    await pair.settle()
    await pair.theirs.close()
    before = list(pair.at_theirs.messages)
    pair.theirs.resume()
    await turns()
    assert pair.at_theirs.messages == before
