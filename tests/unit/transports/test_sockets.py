"""Sockets: getting through, waiting for clients, and what goes wrong below a channel."""

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
from tests.contract.lines import Recorder, client_tls, guard, server_tls, tcp, turns, until
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
    listener = await listen_tcp(guard(lambda _: recorder or Recorder()), **options)
    return listener, parse_address(listener.address)


# --- TCP -------------------------------------------------------------------------------------------------


async def test_nobody_at_home_is_told_with_the_address() -> None:
    listener, where = await listen()
    await listener.close()
    with pytest.raises(
        TransportError, match=rf"cannot reach tcp://127\.0\.0\.1:{where.port}: no server is listening there"
    ):
        await TcpConnector("127.0.0.1", where.port).connect(lambda _: Recorder())


async def test_a_name_that_nobody_has_is_told() -> None:
    with pytest.raises(TransportError, match=r"cannot reach tcp://no-such-host\.invalid:1: "):
        await TcpConnector("no-such-host.invalid", 1).connect(lambda _: Recorder())


async def test_a_server_that_does_not_answer_in_time_is_given_up() -> None:
    with socket.socket() as silent:  # it takes the line, and never says hello
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        connector = TcpConnector(
            "127.0.0.1", silent.getsockname()[1], tls=True, settings=Settings(connect_timeout=0.05)
        )
        with pytest.raises(TransportError, match=r"no answer within 0\.05 s"):
            await connector.connect(lambda _: Recorder())


async def test_giving_up_to_connect_leaves_nothing_behind() -> None:
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
async def test_a_server_that_cannot_show_who_it_is_is_not_spoken_to(host: str, context: Any, why: str) -> None:
    recorder = Recorder()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    listener, where = await listen(recorder, host=host, tls=server_tls())
    connector = TcpConnector(host, where.port, tls=client_tls() if context == "ours" else True)
    assert connector.name == f"tls://{host}:{where.port}"
    with pytest.raises(TransportError, match=why):
        await connector.connect(lambda _: Recorder())
    await listener.close()
    assert recorder.messages == []


async def test_a_server_without_tls_is_told_from_one_with() -> None:
    listener, where = await listen()
    with pytest.raises(TransportError, match="cannot reach tls://"):
        await TcpConnector("127.0.0.1", where.port, tls=True).connect(lambda _: Recorder())
    await listener.close()


async def test_messages_are_not_held_back_to_be_sent_together() -> None:
    async with tcp(SETTINGS) as line:
        for channel in (line.ours, line.theirs):
            transport: asyncio.Transport = channel._source._transport  # type: ignore[attr-defined]
            option = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert option != 0
        await line.ours.close()
        await line.theirs.close()


async def test_a_line_that_breaks_is_told_with_the_reason() -> None:
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


async def test_what_was_asked_before_the_peer_said_no_more_is_answered() -> None:
    server = Server("s")
    listener = await server.listen("tcp://127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", parse_address(listener.address).port)
    writer.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    writer.write_eof()
    assert await reader.read() == b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
    writer.close()
    await server.aclose()


async def test_a_peer_that_does_not_hang_up_is_waited_for_a_moment_only() -> None:
    recorder, channels = Recorder(), list[Channel]()

    def accept(channel: Channel) -> Recorder:
        channels.append(channel)
        return recorder

    listener = await listen_tcp(guard(accept))
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


async def test_who_gives_up_closing_with_bytes_unsent_breaks_the_line() -> None:
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


async def test_who_closes_while_the_line_breaks_is_not_kept() -> None:
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


async def test_a_client_that_nobody_takes_hears_why_and_the_line_is_closed() -> None:
    def refuse(_: Channel) -> Recorder:
        raise RuntimeError("not now")

    recorder = Recorder()
    listener, where = await listen(recorder)
    with pytest.raises(RuntimeError, match="not now"):
        await TcpConnector("127.0.0.1", where.port).connect(refuse)
    await until(lambda: recorder.ends)
    await listener.close()


async def test_who_was_still_on_the_way_when_a_listener_closed_is_turned_away() -> None:
    taken: list[Channel] = []

    def accept(channel: Channel) -> Recorder:
        taken.append(channel)
        return Recorder()

    listener = await listen_tcp(guard(accept), tls=server_tls())
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
                await listener.close()  # in the midst of the handshake
            else:
                raw.send(outgoing.read())
                return

    await shake()
    with contextlib.suppress(ConnectionResetError):
        while await loop.sock_recv(raw, 1 << 16):
            pass
    assert taken == []
    raw.close()


def test_lines_share_the_room_that_is_read_into() -> None:
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


async def test_only_the_owner_may_use_a_socket_and_it_goes_with_its_server(place: Path) -> None:
    os.umask(os.umask(0o022))
    listener = await listen_unix(guard(lambda _: Recorder()), place)
    assert listener.address == f"unix://{place}"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_ISSOCK(place.stat().st_mode)
    await listener.close()
    assert not place.exists()
    await listener.close()


async def test_a_socket_that_was_left_behind_is_replaced(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place))
    recorder, ours = Recorder(), Recorder()
    listener = await listen_unix(guard(lambda _: recorder), place)
    channel = await UnixConnector(place).connect(lambda _: ours)
    channel.send(Notification("n"))
    await until(lambda: recorder.messages)
    await channel.close()
    await listener.close()


async def test_a_socket_at_which_somebody_listens_is_left_alone(place: Path) -> None:
    listener = await listen_unix(guard(lambda _: Recorder()), place)
    with pytest.raises(
        TransportError, match=f"^cannot listen on unix://{place}: another server listens there; stop it"
    ):
        await listen_unix(guard(lambda _: Recorder()), place)
    await (await UnixConnector(place).connect(lambda _: Recorder())).close()
    await listener.close()


async def test_a_file_that_is_no_socket_is_left_alone(place: Path) -> None:
    place.write_text("precious")
    with pytest.raises(
        TransportError, match=f"^cannot listen on unix://{place}: a file that is not a socket exists there"
    ):
        await listen_unix(guard(lambda _: Recorder()), place)
    assert place.read_text() == "precious"


async def test_a_socket_that_has_been_replaced_is_not_removed(place: Path) -> None:
    listener = await listen_unix(guard(lambda _: Recorder()), place)
    place.unlink()
    place.write_text("somebody else's")
    await listener.close()
    assert place.read_text() == "somebody else's"


@pytest.mark.parametrize("path", ["/proc/no/such/folder/s", "/tmp/" + "x" * 200], ids=["no folder", "too long"])
async def test_a_path_that_cannot_be_is_told(path: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TransportError, match="cannot listen on unix://"):
        await listen_unix(guard(lambda _: Recorder()), path)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_path_without_a_server_is_told(place: Path) -> None:
    with pytest.raises(
        TransportError, match=f"cannot reach unix://{place}: no server is listening there; is it running"
    ):
        await UnixConnector(place).connect(lambda _: Recorder())


def test_a_context_of_ones_own_is_taken_as_it_is() -> None:
    context = ssl.create_default_context()
    assert TcpConnector("h", 1, tls=context).name == "tls://h:1"
    assert TcpConnector("::1", 1).name == "tcp://[::1]:1"
