"""The contract of all channels, over each transport. A new transport is one more line in `LINES`."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import LINES, OVER_BYTES, STREAMS, Line, Open, turns, until
from tests.limits import PATIENCE

from trunkline import Settings
from trunkline.transports.channel import Oversized
from trunkline.wire.messages import Encoded, ErrorObject, ErrorResponse, Malformed, Notification, Request, Response

MIB = 1 << 20


@pytest.fixture(params=LINES)
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    """Both ends of a connection; after it has closed, none of its resources are left."""
    before = held()
    async with LINES[request.param](Settings()) as made:
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
async def test_channel_info_names_the_transport(line: Line) -> None:
    assert line.ours.info.transport in {"memory", "stream", "stdio", "tcp", "unix", "websocket"}
    assert line.ours.info.peer
    assert line.theirs.info.peer


@pytest.mark.row("W01", "W12")
async def test_messages_arrive_in_order_in_both_directions(line: Line) -> None:
    for number in range(100):
        line.ours.send(Request(number, "ask", {"x": "x" * number * 300}))
        line.theirs.send(Response(number, {"n": number}))
    await until(lambda: len(line.at_theirs.messages) == len(line.at_ours.messages) == 100)
    assert line.at_theirs.ids == line.at_ours.ids == list(range(100))
    assert [len(bytes(message.params)) for message in line.at_theirs.messages] == [  # type: ignore[union-attr]
        len('{"x":""}') + number * 300 for number in range(100)
    ]


async def test_send_never_delivers_synchronously(line: Line) -> None:
    line.ours.send(Notification("n"))
    assert line.at_theirs.messages == []
    await until(lambda: line.at_theirs.messages)
    assert line.at_theirs.methods == ["n"]


async def test_encoded_message_arrives_in_order(line: Line) -> None:
    line.ours.send(Notification("first"))
    line.ours.send(Encoded(b'{"jsonrpc":"2.0","method":"second"}'))
    line.ours.send(Notification("third"))
    await until(lambda: len(line.at_theirs.messages) == 3)
    assert line.at_theirs.methods == ["first", "second", "third"]


async def test_batch_arrives_as_one_message(line: Line) -> None:
    line.ours.send([Response(1, {}), Response(2, {})])
    await until(lambda: line.at_theirs.messages)
    (batch,) = line.at_theirs.messages
    assert [message.id for message in batch.messages] == [1, 2]  # type: ignore[union-attr]


async def test_about_is_ignored_without_streams(line: Line) -> None:
    line.ours.send(Notification("n"), about="whatever")
    line.ours.send(Notification("n"), about=7)
    await until(lambda: len(line.at_theirs.messages) == 2)


async def test_origin_has_the_principal(line: Line) -> None:
    line.ours.send(Notification("n"))
    await until(lambda: line.at_theirs.messages)
    assert [origin.principal for origin in line.at_theirs.origins] == [line.principal]


async def test_unencodable_message_raises_and_sends_nothing(line: Line) -> None:
    line.ours.send(Notification("before"))
    with pytest.raises(TypeError):
        line.ours.send(Response(1, {"fine": 1, "not": object()}))
    line.ours.send(Notification("after"))
    await until(lambda: len(line.at_theirs.messages) == 2)
    assert line.at_theirs.methods == ["before", "after"]


async def test_malformed_message_is_delivered_as_malformed(line: Line) -> None:
    line.ours.send(Notification("n"))
    line.ours.send(Encoded(b"nonsense"))
    line.ours.send(Notification("n"))
    await until(lambda: len(line.at_theirs.messages) == 3)
    assert [type(message) for message in line.at_theirs.messages] == [Notification, Malformed, Notification]


@pytest.mark.row("W15")
async def test_multibyte_characters_survive_fragmentation(line: Line) -> None:
    text = "é€😀" * 100_000  # more than any single read returns
    line.ours.send(Notification("n", {"text": text}))
    await until(lambda: line.at_theirs.messages)
    (message,) = line.at_theirs.messages
    assert bytes(message.params) == b'{"text":"%b"}' % text.encode()  # type: ignore[union-attr]


# --- flow control ----------------------------------------------------------------------------------------


@pytest.mark.row("W01")
async def test_paused_messages_arrive_in_order_after_resume(line: Line) -> None:
    line.theirs.pause()
    for number in range(3):
        line.ours.send(Request(number, "ask"))
        await line.settle()
    assert line.at_theirs.messages == []
    line.theirs.resume()
    await until(lambda: len(line.at_theirs.messages) == 3)
    assert line.at_theirs.ids == [0, 1, 2]


async def test_pause_does_not_affect_the_other_direction(line: Line) -> None:
    line.ours.pause()
    line.ours.send(Notification("n"))
    await until(lambda: line.at_theirs.messages)


@pytest.mark.parametrize("closed", [False, True])
async def test_drain_returns_at_once_if_peer_reads_or_is_gone(line: Line, *, closed: bool) -> None:
    if closed:
        await line.ours.close()
    draining: Coroutine[Any, Any, None] = line.ours.drain()
    async with asyncio.timeout(PATIENCE):
        await draining


@pytest.mark.row("W01", "N14")
@pytest.mark.parametrize("open_", OVER_BYTES.values(), ids=OVER_BYTES)
async def test_drain_waits_for_a_slow_reader_without_loss(open_: Open) -> None:
    async with open_(Settings(unsent_high=64 * 1024)) as line:
        line.theirs.pause()
        for number in range(24):
            line.ours.send(Request(number, "ask", {"x": "x" * MIB}))
            await turns(1)
        await line.settle()
        draining = asyncio.ensure_future(line.ours.drain())
        await line.settle()
        assert not draining.done()
        line.theirs.resume()
        async with asyncio.timeout(PATIENCE):
            await draining
        await until(lambda: len(line.at_theirs.messages) == 24)
        assert line.at_theirs.ids == list(range(24))
        await line.ours.close()
        await line.theirs.close()


@pytest.mark.parametrize("open_", OVER_BYTES.values(), ids=OVER_BYTES)
async def test_mutual_flood_does_not_deadlock(open_: Open) -> None:
    async with open_(Settings(unsent_high=64 * 1024)) as line:
        for number in range(24):
            line.ours.send(Request(number, "ask", {"x": "x" * MIB}))
            line.theirs.send(Request(number, "ask", {"x": "x" * MIB}))
        await until(lambda: len(line.at_theirs.messages) == len(line.at_ours.messages) == 24)
        await line.ours.close()
        await line.theirs.close()


@pytest.mark.row("N14")
@pytest.mark.parametrize("open_", OVER_BYTES.values(), ids=OVER_BYTES)
async def test_peer_that_never_reads_is_disconnected(open_: Open) -> None:
    async with open_(Settings(unsent_high=MIB, unsent_limit=2 * MIB)) as line:
        line.theirs.pause()
        for number in range(40):  # more than the system buffers per connection
            line.ours.send(Request(number, "ask", {"x": "x" * MIB}))
            await line.settle() if not line.at_ours.ends else None
        (closed,) = line.at_ours.ends
        assert "bytes unread" in closed.reason
        await line.ours.close()
        line.theirs.resume()
        await until(lambda: line.at_theirs.ends)
        await line.theirs.close()


@pytest.mark.row("W16")
@pytest.mark.parametrize("open_", STREAMS.values(), ids=STREAMS)
async def test_message_size_limit_is_exact(open_: Open) -> None:
    async with open_(Settings(unsent_limit=64 * MIB)) as line:
        frame = b'{"jsonrpc":"2.0","method":"n","params":{"x":"%b"}}'
        room = 16 * MIB - len(frame) + 2
        line.ours.send(Encoded(frame % (b"x" * room)))
        with pytest.raises(Oversized, match="the message has 16777217 bytes, and the limit is 16777216 bytes"):
            line.ours.send(Encoded(frame % (b"x" * (room + 1))))
        line.ours.send(ErrorResponse(7, ErrorObject(1, "x" * 16 * MIB)))  # errors are sent in any case
        line.ours.send(Notification("next"))
        await until(lambda: len(line.at_theirs.messages) == 3)
        whole, refused, following = line.at_theirs.messages
        assert isinstance(whole, Notification)
        assert isinstance(refused, Malformed)
        assert (refused.code, refused.limit, refused.id, refused.is_reply) == (-32600, 16 * MIB, 7, True)
        assert following == Notification("next")
        await line.ours.close()
        await line.theirs.close()


# --- close -----------------------------------------------------------------------------------------------


@pytest.mark.row("W01")
@pytest.mark.parametrize("closer", ["ours", "theirs"])
async def test_closed_is_reported_once_at_both_ends(line: Line, closer: str) -> None:
    await getattr(line, closer).close()
    await getattr(line, closer).close()
    await until(lambda: line.at_ours.ends and line.at_theirs.ends)
    await line.ours.close()
    await line.theirs.close()
    assert len(line.at_ours.ends) == len(line.at_theirs.ends) == 1


async def test_both_ends_may_close_concurrently(line: Line) -> None:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        for channel in (line.ours, line.theirs, line.theirs, line.ours):
            tasks.create_task(channel.close())
    assert len(line.at_ours.ends) == len(line.at_theirs.ends) == 1


async def test_cancelled_close_still_closes_the_channel(line: Line) -> None:
    closing = asyncio.ensure_future(line.ours.close())
    await turns(1)
    closing.cancel()
    await until(lambda: line.at_ours.ends and line.at_theirs.ends)


async def test_messages_sent_before_close_arrive(line: Line) -> None:
    line.ours.send(Notification("many", {"x": "x" * 3 * MIB}))
    line.ours.send(Notification("last words"))
    line.theirs.send(Notification("unheard"))
    await line.ours.close()
    await until(lambda: line.at_theirs.ends)
    assert line.at_theirs.methods == ["many", "last words"]


@pytest.mark.row("W01")
async def test_send_after_close_does_nothing(line: Line) -> None:
    await line.ours.close()
    await until(lambda: line.at_theirs.ends)
    line.ours.send(Notification("n"))
    line.theirs.send(Notification("n"))
    await turns()
    assert line.at_theirs.messages == line.at_ours.messages == []


async def test_no_message_is_delivered_after_closed(line: Line) -> None:
    line.theirs.pause()
    line.ours.send(Notification("n"))
    await line.settle()
    await line.theirs.close()
    before = list(line.at_theirs.messages)
    line.theirs.resume()
    await turns()
    assert line.at_theirs.messages == before
