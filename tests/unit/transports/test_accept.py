"""Accepting connections: their descriptor limit, and the deadline of a peer."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count, islice
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.contract.connections import server_tls
from tests.limits import PATIENCE

from trunkline import Client, Server, Settings
from trunkline.backlog import DescriptorsExhausted, ListenerClosed, accept_pending
from trunkline.errors import TransportError
from trunkline.fdlimit import DescriptorReserve
from trunkline.transports.accept import Acceptor
from trunkline.transports.listening import ListeningSockets, bind, resolve

ROOM = 20  # descriptors between the open ones and the reserve
CLIENTS = 15


@pytest.fixture
def little_room() -> Iterator[DescriptorReserve]:
    """A reserve that few connections reach: `ROOM` descriptors are free below it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = {int(name) for name in os.listdir("/proc/self/fd")}
    first_reserved = next(islice((number for number in count() if number not in opened), ROOM, None))
    limit = first_reserved * 4 // 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    yield DescriptorReserve(limit - first_reserved)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextlib.asynccontextmanager
async def accepting(reserve: DescriptorReserve) -> AsyncIterator[tuple[int, "asyncio.Queue[socket.socket]"]]:
    listening = bind("127.0.0.1", 0)
    accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
    port = listening[0].getsockname()[1]
    acceptor = Acceptor(ListeningSockets(listening, "here"), reserve)
    acceptor.start(accepted.put_nowait, accepted.qsize)
    try:
        yield port, accepted
    finally:
        acceptor.stop()
        while not accepted.empty():
            accepted.get_nowait().close()
    assert listening[0].fileno() == -1


async def test_accepting_pauses_at_the_reserve_and_resumes(
    little_room: DescriptorReserve, caplog: pytest.LogCaptureFixture
) -> None:
    async with accepting(little_room) as (port, accepted):
        with contextlib.ExitStack() as clients:
            for _ in range(CLIENTS):  # each uses a descriptor here, and one more after accept
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


async def test_burst_is_accepted_completely(little_room: DescriptorReserve) -> None:
    async with accepting(DescriptorReserve(1)) as (port, accepted):
        for _ in range(5):
            with contextlib.ExitStack() as clients:
                for _ in range(CLIENTS):
                    clients.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
                async with asyncio.timeout(PATIENCE):
                    for _ in range(CLIENTS):
                        (await accepted.get()).close()


async def test_accepting_resumes_after_descriptor_exhaustion(little_room: DescriptorReserve) -> None:
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
async def test_missing_tls_handshake_times_out(address: str) -> None:
    server = Server("t", observers=[], settings=Settings(header_timeout=0.2, initialize_timeout=0.2))
    listener = await server.listen(address, tls=server_tls())
    port = int(listener.address.partition("://")[2].partition("/")[0].rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    await server.aclose()


async def test_accepting_works_on_a_loop_without_add_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_reader(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", add_reader)
    async with accepting(DescriptorReserve(1)) as (port, accepted), asyncio.timeout(PATIENCE):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), PATIENCE):
                (await accepted.get()).close()


async def test_unresolvable_host_is_named() -> None:
    with pytest.raises(TransportError, match=r"cannot listen on no-such-host\.invalid:80: "):
        await resolve("no-such-host.invalid", 80)


async def test_host_name_is_resolved() -> None:
    assert {entry[4][0] for entry in await resolve("127.0.0.1", 80)} == {"127.0.0.1"}
    assert {entry[4][0] for entry in await resolve("localhost", 80)} & {"127.0.0.1", "::1"}
    assert {entry[4][0] for entry in await resolve("", 80)} & {"0.0.0.0", "::"}


def listening_at(address: object) -> socket.socket:
    """A duplicate of the socket in this process that listens at an address."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            descriptor = os.dup(int(name))
            try:
                found = socket.socket(fileno=descriptor)
            except OSError:  # it is no socket
                os.close(descriptor)
                continue
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and found.getsockname() == address:
                return found
            found.close()
    raise AssertionError(f"nothing listens at {address}")


def shut_down(listening: socket.socket) -> None:
    listening.shutdown(socket.SHUT_RDWR)


def close_descriptor(listening: socket.socket) -> None:
    """Close the descriptor of a socket that another object owns."""
    inode = os.fstat(listening.fileno()).st_ino
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) != listening.fileno() and os.fstat(int(name)).st_ino == inode:
                os.close(int(name))
    listening.close()


@pytest.mark.row("U02")
@pytest.mark.parametrize("kill", [shut_down, close_descriptor])
@pytest.mark.parametrize("transport", ["tcp", "unix", "http", "websocket"])
async def test_dead_listener_is_restarted_and_its_connections_stay_open(
    transport: str, kill: Callable[[socket.socket], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("listening", observers=[])
    where = {"tcp": "tcp://127.0.0.1:0", "unix": f"unix://{tmp_path}/socket"}.get(transport, "http://127.0.0.1:0/")
    listener = await server.listen(where)
    target = listener.address.replace("http://", "ws://" if transport == "websocket" else "http://")
    parts = urlsplit(target)
    address = str(tmp_path / "socket") if transport == "unix" else (parts.hostname, parts.port)
    async with Client(target, observers=[]) as client:
        await client.ping()
        with listening_at(address) as listening, caplog.at_level(logging.ERROR):
            kill(listening)
        async with asyncio.timeout(PATIENCE):
            while not caplog.records:
                await asyncio.sleep(0.01)
        await client.ping()
        async with Client(target, observers=[]) as other:
            await other.ping()
        await client.ping()
    await server.aclose()
    with pytest.raises(AssertionError):
        listening_at(address).close()
    ended = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(ended) == 1
    assert "has ended: its socket was shut down or closed" in ended[0].getMessage()


async def test_other_sockets_of_a_listener_stay_open(caplog: pytest.LogCaptureFixture) -> None:
    first, second = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
    port = second[0].getsockname()[1]
    acceptor = Acceptor(ListeningSockets([*first, *second], "here"), DescriptorReserve(0))
    acceptor.start(accepted.put_nowait, accepted.qsize)
    first[0].shutdown(socket.SHUT_RDWR)
    async with asyncio.timeout(PATIENCE):
        while not caplog.records:
            await asyncio.sleep(0)
        with socket.create_connection(("127.0.0.1", port), PATIENCE):
            (await accepted.get()).close()
    assert first[0].fileno() == -1
    acceptor.stop()
    assert second[0].fileno() == -1
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("number", "raises"),
    [(errno.ENFILE, True), (errno.EMFILE, True), (errno.ENETUNREACH, False), (errno.EAGAIN, False)],
)
def test_only_descriptor_exhaustion_pauses_accepting(
    number: int, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(_: socket.socket) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "accept", accept)
    expected = pytest.raises(DescriptorsExhausted) if raises else contextlib.nullcontext()
    with bind("127.0.0.1", 0)[0] as listening, expected:
        assert list(accept_pending(listening, DescriptorReserve(0))) == []


def test_closed_socket_raises_listener_closed() -> None:
    listening = socket.socket()
    listening.close()
    with pytest.raises(ListenerClosed, match="an unknown address has ended"):
        next(accept_pending(listening, DescriptorReserve(0)))
