"""Sockets: connecting, listening, and failures below a channel."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import stat
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import Recorder, client_tls, listener_limits, server_tls, tcp, turns, until
from tests.limits import PATIENCE

from trunkline import Server, Settings
from trunkline.errors import TransportError
from trunkline.transports.addresses import Address, parse_address
from trunkline.transports.channel import Channel, Listener
from trunkline.transports.sockets import LINGER, SocketConnection
from trunkline.transports.tcp import TcpConnector, listen_tcp
from trunkline.transports.unix import UnixConnector, listen_unix
from trunkline.wire.messages import Notification, Request

SETTINGS = Settings()


async def listen(recorder: Recorder | None = None, **options: Any) -> tuple[Listener, Address]:
    listener = await listen_tcp(listener_limits(lambda _: recorder or Recorder()), **options)
    return listener, parse_address(listener.address)


# --- TCP -------------------------------------------------------------------------------------------------


async def test_refused_connection_error_names_the_address() -> None:
    listener, where = await listen()
    await listener.close()
    with pytest.raises(
        TransportError, match=rf"cannot reach tcp://127\.0\.0\.1:{where.port}: no server is listening there"
    ):
        await TcpConnector("127.0.0.1", where.port).connect(lambda _: Recorder())


async def test_unresolvable_host_is_reported() -> None:
    with pytest.raises(TransportError, match=r"cannot reach tcp://no-such-host\.invalid:1: "):
        await TcpConnector("no-such-host.invalid", 1).connect(lambda _: Recorder())


async def test_connect_timeout_is_reported() -> None:
    with socket.socket() as silent:  # it accepts the connection, and never sends a hello
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        connector = TcpConnector(
            "127.0.0.1", silent.getsockname()[1], tls=True, settings=Settings(connect_timeout=0.05)
        )
        with pytest.raises(TransportError, match=r"no answer within 0\.05 s"):
            await connector.connect(lambda _: Recorder())


async def test_cancelled_connect_leaves_nothing_behind() -> None:
    gc.collect()  # descriptors of earlier tests must not be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        connector = TcpConnector("127.0.0.1", silent.getsockname()[1], tls=True)
        connecting = asyncio.ensure_future(connector.connect(lambda _: Recorder()))
        await until(lambda: len(os.listdir("/proc/self/fd")) > before + 1)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize(
    ("host", "context", "why"),
    [
        ("127.0.0.1", True, "its certificate is not trusted: self.signed certificate"),
        ("127.0.0.2", "ours", r"its certificate is not trusted: IP address mismatch"),
    ],
)
async def test_untrusted_certificate_is_refused(host: str, context: Any, why: str) -> None:
    recorder = Recorder()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    listener, where = await listen(recorder, host=host, tls=server_tls())
    connector = TcpConnector(host, where.port, tls=client_tls() if context == "ours" else True)
    assert connector.name == f"tls://{host}:{where.port}"
    with pytest.raises(TransportError, match=why):
        await connector.connect(lambda _: Recorder())
    await listener.close()
    assert recorder.messages == []


async def test_tls_to_a_plain_server_is_reported() -> None:
    listener, where = await listen()
    with pytest.raises(TransportError, match="cannot reach tls://"):
        await TcpConnector("127.0.0.1", where.port, tls=True).connect(lambda _: Recorder())
    await listener.close()


async def test_tcp_nodelay_is_set() -> None:
    async with tcp(SETTINGS) as line:
        for channel in (line.ours, line.theirs):
            transport: asyncio.Transport = channel._source._transport  # type: ignore[attr-defined]
            option = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert option != 0
        await line.ours.close()
        await line.theirs.close()


async def test_broken_connection_is_reported_with_its_reason() -> None:
    recorder = Recorder()
    listener, where = await listen(recorder)
    raw = socket.create_connection((where.host, where.port))
    raw.sendall(b'{"jsonrpc":"2.0","method":"n"}\n')
    await until(lambda: recorder.messages)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
    await until(lambda: recorder.ends)
    assert recorder.ends[0].reason == "the connection broke: [Errno 104] Connection reset by peer"
    assert isinstance(recorder.ends[0].error, ConnectionResetError)
    await listener.close()


async def test_requests_before_half_close_are_answered() -> None:
    server = Server("s")
    listener = await server.listen("tcp://127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", parse_address(listener.address).port)
    writer.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    writer.write_eof()
    assert await reader.read() == b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
    writer.close()
    await server.aclose()


async def test_close_waits_only_linger_seconds_for_the_peer() -> None:
    recorder, channels = Recorder(), list[Channel]()

    def accept(channel: Channel) -> Recorder:
        channels.append(channel)
        return recorder

    listener = await listen_tcp(listener_limits(accept))
    raw = socket.create_connection(("127.0.0.1", parse_address(listener.address).port))
    await until(lambda: channels)
    loop = asyncio.get_running_loop()
    began = loop.time()
    closing = asyncio.ensure_future(channels[0].close())
    await turns()
    raw.sendall(b'{"jsonrpc":"2.0","method":"n"}\n' * 1000)
    await closing
    assert channels[0]._received == recorder.messages == []  # type: ignore[attr-defined]
    assert LINGER <= loop.time() - began < LINGER + 2
    assert len(recorder.ends) == 1
    raw.close()
    await listener.close()


async def test_cancelled_close_with_unsent_bytes_aborts() -> None:
    recorder = Recorder()
    async with tcp(Settings(unsent_high=1000)) as line:
        line.theirs.pause()
        line.ours.send(Request(1, "ask", {"x": "x" * (12 << 20)}))
        await turns()
        closing = asyncio.ensure_future(line.ours.close())
        await turns()
        assert line.at_ours.ends == []
        closing.cancel()
        await until(lambda: line.at_ours.ends)
        line.theirs.resume()
        await until(lambda: line.at_theirs.ends)
        assert line.at_theirs.messages == recorder.messages == []
        await line.ours.close()
        await line.theirs.close()


async def test_close_during_a_break_returns() -> None:
    async with tcp(Settings(unsent_high=1000)) as line:
        line.theirs.pause()
        line.ours.send(Request(1, "ask", {"x": "x" * (12 << 20)}))
        await turns()
        closing = asyncio.gather(line.ours.close(), line.ours.close())
        await turns()
        line.theirs._source._transport.abort()  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE):
            await closing
        await line.theirs.close()


async def test_error_in_accept_is_raised_to_the_client() -> None:
    def refuse(_: Channel) -> Recorder:
        raise RuntimeError("not now")

    recorder = Recorder()
    listener, where = await listen(recorder)
    with pytest.raises(RuntimeError, match="not now"):
        await TcpConnector("127.0.0.1", where.port).connect(refuse)
    await until(lambda: recorder.ends)
    await listener.close()


async def test_connection_during_listener_close_is_refused() -> None:
    taken: list[Channel] = []

    def accept(channel: Channel) -> Recorder:
        taken.append(channel)
        return Recorder()

    listener = await listen_tcp(listener_limits(accept), tls=server_tls())
    where = parse_address(listener.address)
    raw = socket.create_connection((where.host, where.port))
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = client_tls().wrap_bio(incoming, outgoing, server_hostname="localhost")

    async def shake() -> None:
        while True:
            try:
                hello.do_handshake()
            except ssl.SSLWantReadError:
                raw.send(outgoing.read())
                incoming.write(await loop.sock_recv(raw, 1 << 16))
                await listener.close()  # in the middle of the handshake
            else:
                raw.send(outgoing.read())
                return

    await shake()
    with contextlib.suppress(ConnectionResetError):
        while await loop.sock_recv(raw, 1 << 16):
            pass
    assert taken == []
    raw.close()


def test_connections_share_the_read_buffer() -> None:
    async def run() -> None:
        async with tcp(SETTINGS) as one:
            source: SocketConnection = one.theirs._source  # type: ignore[attr-defined]
            assert source.get_buffer(1) is source._factory.read_buffer
            await one.ours.close()
            await one.theirs.close()

    asyncio.run(run())


# --- Unix ------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


async def test_socket_file_is_private_and_removed_on_close(place: Path) -> None:
    os.umask(os.umask(0o022))
    listener = await listen_unix(listener_limits(lambda _: Recorder()), place)
    assert listener.address == f"unix://{place}"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(place.stat().st_mode)
    await listener.close()
    assert not place.exists()
    await listener.close()


async def test_stale_socket_file_is_replaced(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place))
    recorder, ours = Recorder(), Recorder()
    listener = await listen_unix(listener_limits(lambda _: recorder), place)
    channel = await UnixConnector(place).connect(lambda _: ours)
    channel.send(Notification("n"))
    await until(lambda: recorder.messages)
    await channel.close()
    await listener.close()


async def test_socket_file_in_use_is_kept(place: Path) -> None:
    listener = await listen_unix(listener_limits(lambda _: Recorder()), place)
    with pytest.raises(
        TransportError, match=f"^cannot listen on unix://{place}: another server listens there; stop it"
    ):
        await listen_unix(listener_limits(lambda _: Recorder()), place)
    await (await UnixConnector(place).connect(lambda _: Recorder())).close()
    await listener.close()


async def test_regular_file_at_the_path_is_kept(place: Path) -> None:
    place.write_text("precious")
    with pytest.raises(
        TransportError, match=f"^cannot listen on unix://{place}: a file that is not a socket exists there"
    ):
        await listen_unix(listener_limits(lambda _: Recorder()), place)
    assert place.read_text() == "precious"


async def test_replaced_socket_file_is_not_removed(place: Path) -> None:
    listener = await listen_unix(listener_limits(lambda _: Recorder()), place)
    place.unlink()
    place.write_text("somebody else's")
    await listener.close()
    assert place.read_text() == "somebody else's"


@pytest.mark.parametrize("path", ["/proc/no/such/folder/s", "/tmp/" + "x" * 200], ids=["no folder", "too long"])
async def test_invalid_socket_path_is_reported(path: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TransportError, match="cannot listen on unix://"):
        await listen_unix(listener_limits(lambda _: Recorder()), path)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_missing_socket_file_is_reported(place: Path) -> None:
    with pytest.raises(
        TransportError, match=f"cannot reach unix://{place}: no server is listening there; is it running"
    ):
        await UnixConnector(place).connect(lambda _: Recorder())


def test_custom_ssl_context_is_used_unchanged() -> None:
    context = ssl.create_default_context()
    assert TcpConnector("h", 1, tls=context).name == "tls://h:1"
    assert TcpConnector("::1", 1).name == "tcp://[::1]:1"
