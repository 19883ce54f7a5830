"""Accepting connections: how many descriptors they may take, and how long a peer has."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from itertools import count, islice

import pytest
from tests.contract.lines import server_tls
from tests.limits import PATIENCE

from trunkline import Server, Settings
from trunkline.errors import TransportError
from trunkline.fdlimit import Reserve
from trunkline.transports.accepting import Acceptor, bind, resolve

ROOM = 20  # descriptors between what is open and the reserve
CLIENTS = 15


@pytest.fixture
def little_room() -> Iterator[Reserve]:
    """A reserve that few connections reach: `ROOM` descriptors are free below it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = {int(name) for name in os.listdir("/proc/self/fd")}
    first_reserved = next(islice((number for number in count() if number not in opened), ROOM, None))
    limit = first_reserved * 4 // 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    yield Reserve(limit - first_reserved)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextlib.asynccontextmanager
async def accepting(reserve: Reserve) -> AsyncIterator[tuple[int, "asyncio.Queue[socket.socket]"]]:
    listening = bind("127.0.0.1", 0)
    accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
    port = listening[0].getsockname()[1]
    acceptor = Acceptor(listening, reserve)
    acceptor.begin(accepted.put_nowait)
    try:
        yield port, accepted
    finally:
        acceptor.stop()
        while not accepted.empty():
            accepted.get_nowait().close()
    assert listening[0].fileno() == -1


async def test_accepting_pauses_at_the_reserve_and_goes_on_when_descriptors_are_free(
    little_room: Reserve, caplog: pytest.LogCaptureFixture
) -> None:
    async with accepting(little_room) as (port, accepted):
        with contextlib.ExitStack() as clients:
            for _ in range(CLIENTS):  # each takes a descriptor here, and one more when it is accepted
                clients.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            async with asyncio.timeout(PATIENCE):
                while not caplog.records:
                    await asyncio.sleep(0.01)
            at_once = accepted.qsize()
            assert at_once < CLIENTS
            assert "no connections are accepted until file descriptors are free" in caplog.text
            for _ in range(at_once):
                accepted.get_nowait().close()
            async with asyncio.timeout(PATIENCE):
                for _ in range(CLIENTS - at_once):
                    (await accepted.get()).close()
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_burst_is_accepted_whole(little_room: Reserve) -> None:
    async with accepting(Reserve(1)) as (port, accepted):
        for _ in range(5):
            with contextlib.ExitStack() as clients:
                for _ in range(CLIENTS):
                    clients.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
                async with asyncio.timeout(PATIENCE):
                    for _ in range(CLIENTS):
                        (await accepted.get()).close()


async def test_accepting_goes_on_after_no_descriptor_was_left(little_room: Reserve) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with accepting(little_room) as (port, accepted):
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert accepted.empty()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            async with asyncio.timeout(PATIENCE):
                (await accepted.get()).close()


@pytest.mark.parametrize("address", ["https://127.0.0.1:0/mcp", "tls://127.0.0.1:0"])
async def test_a_peer_that_does_not_begin_its_tls_handshake_is_cut_off(address: str) -> None:
    server = Server("t", observers=[], settings=Settings(header_timeout=0.2, initialize_timeout=0.2))
    listener = await server.listen(address, tls=server_tls())
    port = int(listener.address.partition("://")[2].partition("/")[0].rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    await server.aclose()


async def test_connections_are_accepted_on_a_loop_that_cannot_watch_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_reader(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", add_reader)
    async with accepting(Reserve(1)) as (port, accepted), asyncio.timeout(PATIENCE):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), PATIENCE):
                (await accepted.get()).close()


async def test_a_host_that_has_no_address_is_named() -> None:
    with pytest.raises(TransportError, match=r"cannot listen at no-such-host\.invalid:80: "):
        await resolve("no-such-host.invalid", 80)


async def test_a_name_is_resolved_as_well_as_a_number() -> None:
    assert {entry[4][0] for entry in await resolve("127.0.0.1", 80)} == {"127.0.0.1"}
    assert {entry[4][0] for entry in await resolve("localhost", 80)} & {"127.0.0.1", "::1"}
    assert {entry[4][0] for entry in await resolve("", 80)} & {"0.0.0.0", "::"}
