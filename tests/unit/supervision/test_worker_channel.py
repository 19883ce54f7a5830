"""A worker's side of the IPC channel; the test plays the supervisor."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.processes import no_descriptor_left

from trunkline.fdlimit import DescriptorReserve
from trunkline.supervision.ipc import (
    ACCEPTED,
    CONNECTION,
    DECLINED,
    SHUTDOWN,
    STATE,
    TABLE,
    IpcChannel,
    decode_acceptance,
    decode_state,
    decode_ticket,
    encode_ticket,
)
from trunkline.supervision.worker_channel import WorkerChannel
from trunkline.supervision.worker_table import STALE_AFTER


class ChannelEnds:
    """A worker channel, and its other end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.line = IpcChannel(ours)
        self.state = "ready"
        self.post = WorkerChannel(1, theirs, lambda: self.state, DescriptorReserve(64))
        self.taken: list[socket.socket] = []
        self.count_open = lambda: len(self.taken)
        self.told = asyncio.Event()
        self.last_count = 0
        self._frames: list[tuple[bytes, Any]] = []

    def hand(self, ticket: int, at: float) -> None:
        here, there = socket.socketpair()
        assert self.line.send_descriptors(CONNECTION, encode_ticket(ticket, at), [there.fileno()])
        here.close()
        there.close()

    async def hears(self, kind: bytes) -> Any:
        """The next message of a kind."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self._frames += self.line.receive()
                for position, (said, body) in enumerate(self._frames):
                    if said == kind:
                        del self._frames[: position + 1]
                        if kind == STATE:
                            state, self.last_count = decode_state(body)
                            return state
                        return (decode_acceptance if kind == ACCEPTED else decode_ticket)(body)[0]
                await asyncio.sleep(0.005)


@pytest.fixture
async def ends() -> AsyncIterator[ChannelEnds]:
    made = ChannelEnds()
    made.post.open(made.told.set)
    yield made
    made.post.close()
    made.line.close()
    made.post._ipc.close()
    for connection in made.taken:
        connection.close()


async def test_worker_is_starting_until_it_accepts_connections(ends: ChannelEnds) -> None:
    assert await ends.hears(STATE) == "starting"
    ends.hand(1, time.monotonic())
    assert await ends.hears(DECLINED) == 1
    ends.post.start(ends.taken.append, ends.count_open)
    ends.hand(2, time.monotonic())
    assert await ends.hears(ACCEPTED) == 2
    assert len(ends.taken) == 1


async def test_heartbeat_counts_open_connections(ends: ChannelEnds) -> None:
    ends.post.start(ends.taken.append, ends.count_open)
    for ticket in range(3):
        ends.hand(ticket, time.monotonic())
    async with asyncio.timeout(PATIENCE):
        while ends.last_count != 3:
            await ends.hears(STATE)


async def test_full_worker_declines_until_descriptors_are_free(ends: ChannelEnds) -> None:
    ends.post.start(ends.taken.append, ends.count_open)
    assert await ends.hears(STATE) == "starting"
    ends.hand(1, time.monotonic())
    with no_descriptor_left():
        ends.post._on_message()
        assert ends.post.worker_states()[-1] == "full"
        assert await ends.hears(DECLINED) == 1
        ends.post._send_state()
        assert await ends.hears(STATE) == "full"
    assert ends.taken == []
    while await ends.hears(STATE) != "ready":
        pass
    ends.hand(2, time.monotonic())
    assert await ends.hears(ACCEPTED) == 2


async def test_connection_in_the_reserve_is_declined_and_closed(
    ends: ChannelEnds,
) -> None:
    ends.post.start(ends.taken.append, ends.count_open)
    for ticket in range(1, 4):
        ends.hand(ticket, time.monotonic())
    before = os.listdir("/proc/self/fd")
    with no_descriptor_left(above=1):
        ends.post._on_message()
        assert ends.post.worker_states()[-1] == "full"
    assert os.listdir("/proc/self/fd") == before
    assert [await ends.hears(DECLINED) for _ in range(3)] == [1, 2, 3]
    assert ends.taken == []


async def test_full_worker_reports_draining(ends: ChannelEnds) -> None:
    ends.post.start(ends.taken.append, ends.count_open)
    ends.hand(1, time.monotonic())
    with no_descriptor_left():
        ends.post._on_message()
        ends.state = "draining"
        assert ends.post.worker_states()[-1] == "draining"


async def test_stale_connection_is_declined(ends: ChannelEnds) -> None:
    ends.post.start(ends.taken.append, ends.count_open)
    ends.hand(1, time.monotonic() - STALE_AFTER)
    assert await ends.hears(DECLINED) == 1
    assert ends.taken == []


async def test_stopping_worker_reports_state_before_declining(ends: ChannelEnds) -> None:
    ends.post.start(ends.taken.append, ends.count_open)
    assert await ends.hears(STATE) == "starting"
    assert await ends.hears(STATE) == "ready"
    ends.state = "draining"
    ends.post.stop()
    assert await ends.hears(STATE) == "draining"
    ends.hand(1, time.monotonic())
    assert await ends.hears(DECLINED) == 1


async def test_worker_states_include_its_own_current_state(ends: ChannelEnds) -> None:
    ends.post.start(ends.taken.append, ends.count_open)
    ends.line.send(TABLE, b"ready starting gone")
    async with asyncio.timeout(PATIENCE):
        while ends.post.worker_states() != ("ready", "ready", "gone"):
            await asyncio.sleep(0.005)


async def test_heartbeats_are_sent_periodically(ends: ChannelEnds) -> None:
    for _ in range(3):
        assert await ends.hears(STATE) == "starting"


@pytest.mark.parametrize("gone", [False, True])
async def test_worker_shuts_down_on_request_or_if_orphaned(ends: ChannelEnds, gone: bool) -> None:
    if gone:
        ends.line.close()
    else:
        ends.line.send(SHUTDOWN)
    async with asyncio.timeout(PATIENCE):
        await ends.told.wait()
    assert ends.post.orphaned is gone
