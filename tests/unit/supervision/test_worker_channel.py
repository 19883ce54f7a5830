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
    decode_ticket,
    encode_ticket,
)
from trunkline.supervision.worker_channel import WorkerChannel
from trunkline.supervision.worker_table import STALE_AFTER


class Station:
    """A worker channel, and its other end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.line = IpcChannel(ours)
        self.state = "ready"
        self.post = WorkerChannel(1, theirs, lambda: self.state, DescriptorReserve(64))
        self.taken: list[socket.socket] = []
        self.told = asyncio.Event()
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
                        return body.decode() if kind == STATE else decode_ticket(body)[0]
                await asyncio.sleep(0.005)


@pytest.fixture
async def station() -> AsyncIterator[Station]:
    made = Station()
    made.post.open(made.told.set)
    yield made
    made.post.close()
    made.line.close()
    made.post._ipc.close()
    for connection in made.taken:
        connection.close()


async def test_worker_is_starting_until_it_accepts_connections(station: Station) -> None:
    assert await station.hears(STATE) == "starting"
    station.hand(1, time.monotonic())
    assert await station.hears(DECLINED) == 1
    station.post.start(station.taken.append)
    station.hand(2, time.monotonic())
    assert await station.hears(ACCEPTED) == 2
    assert len(station.taken) == 1


async def test_full_worker_declines_until_descriptors_are_free(station: Station) -> None:
    station.post.start(station.taken.append)
    assert await station.hears(STATE) == "starting"
    station.hand(1, time.monotonic())
    with no_descriptor_left():
        station.post._on_message()
        assert station.post.worker_states()[-1] == "full"
        assert await station.hears(DECLINED) == 1
        station.post._send_state()
        assert await station.hears(STATE) == "full"
    assert station.taken == []
    while await station.hears(STATE) != "ready":
        pass
    station.hand(2, time.monotonic())
    assert await station.hears(ACCEPTED) == 2


async def test_connection_in_the_reserve_is_declined_and_closed(
    station: Station,
) -> None:
    station.post.start(station.taken.append)
    for ticket in range(1, 4):
        station.hand(ticket, time.monotonic())
    before = os.listdir("/proc/self/fd")
    with no_descriptor_left(above=1):
        station.post._on_message()
        assert station.post.worker_states()[-1] == "full"
    assert os.listdir("/proc/self/fd") == before
    assert [await station.hears(DECLINED) for _ in range(3)] == [1, 2, 3]
    assert station.taken == []


async def test_full_worker_reports_draining(station: Station) -> None:
    station.post.start(station.taken.append)
    station.hand(1, time.monotonic())
    with no_descriptor_left():
        station.post._on_message()
        station.state = "draining"
        assert station.post.worker_states()[-1] == "draining"


async def test_stale_connection_is_declined(station: Station) -> None:
    station.post.start(station.taken.append)
    station.hand(1, time.monotonic() - STALE_AFTER)
    assert await station.hears(DECLINED) == 1
    assert station.taken == []


async def test_stopping_worker_reports_state_before_declining(station: Station) -> None:
    station.post.start(station.taken.append)
    assert await station.hears(STATE) == "starting"
    assert await station.hears(STATE) == "ready"
    station.state = "draining"
    station.post.stop()
    assert await station.hears(STATE) == "draining"
    station.hand(1, time.monotonic())
    assert await station.hears(DECLINED) == 1


async def test_worker_states_include_its_own_current_state(station: Station) -> None:
    station.post.start(station.taken.append)
    station.line.send(TABLE, b"ready starting gone")
    async with asyncio.timeout(PATIENCE):
        while station.post.worker_states() != ("ready", "ready", "gone"):
            await asyncio.sleep(0.005)


async def test_heartbeats_are_sent_periodically(station: Station) -> None:
    for _ in range(3):
        assert await station.hears(STATE) == "starting"


@pytest.mark.parametrize("gone", [False, True])
async def test_worker_shuts_down_on_request_or_if_orphaned(station: Station, gone: bool) -> None:
    if gone:
        station.line.close()
    else:
        station.line.send(SHUTDOWN)
    async with asyncio.timeout(PATIENCE):
        await station.told.wait()
    assert station.post.orphaned is gone
