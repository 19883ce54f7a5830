"""TCP and Unix sockets: listening servers, driven byte by byte."""

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import client_tls, server_tls, turns, until
from tests.limits import PATIENCE
from tests.ports import held_port

from trunkline import Context, Server, Settings
from trunkline.errors import ConfigError, TransportError
from trunkline.facts import Closed, Connected
from trunkline.testing import ManualClock, RawPeer, RecordingObserver, Transcript
from trunkline.transports.addresses import parse_address


class StreamPeer:
    """A raw client on a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, headed: bool = False) -> None:
        self.reader, self.writer, self.headed = reader, writer, headed
        self.transcript = Transcript()
        self._ids = count(1)

    def send(self, message: Mapping[str, Any]) -> None:
        frame = json.dumps(message).encode()
        self.transcript.frames.append(("client", frame))
        self.writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(frame), frame) if self.headed else frame + b"\n")

    async def receive(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            if self.headed:
                header = await self.reader.readuntil(b"\r\n\r\n")
                frame = await self.reader.readexactly(int(header.removeprefix(b"Content-Length: ")))
            else:
                frame = await self.reader.readline()
        if not frame:
            raise ConnectionError("the server closed the line")
        self.transcript.frames.append(("server", frame))
        return json.loads(frame)

    def notify(self, method: str) -> None:
        self.send({"jsonrpc": "2.0", "method": method})

    def call(self, method: str, params: Any = None) -> int:
        ident = next(self._ids)
        self.send({"jsonrpc": "2.0", "id": ident, "method": method, **({} if params is None else {"params": params})})
        return ident

    async def request(self, method: str, params: Any = None) -> Any:
        ident = self.call(method, params)
        while (message := await self.receive()).get("id") != ident or "method" in message:
            pass
        return message

    async def initialize(self) -> Any:
        info = {"name": "stream peer", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        result = (await self.request("initialize", params))["result"]
        self.notify("notifications/initialized")
        return result

    async def tool(self, name: str, **arguments: Any) -> Any:
        return (await self.request("tools/call", {"name": name, "arguments": arguments}))["result"]

    async def rest(self) -> bytes:
        """Messages until the server closes the connection."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        for tap in RawPeer.taps:
            tap(self.transcript)
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def peer_at(address: str, *, headed: bool = False) -> AsyncIterator[StreamPeer]:
    where = parse_address(address)
    if where.scheme == "unix":
        streams = await asyncio.open_unix_connection(where.path)
    else:
        context = client_tls() if where.scheme == "tls" else None
        streams = await asyncio.open_connection(where.host, where.port, ssl=context, limit=1 << 24)
    peer = StreamPeer(*streams, headed=headed)
    yield peer
    await peer.close()


def make_server(**options: Any) -> Server:
    server = Server("net", **options)
    server.ran = []  # type: ignore[attr-defined]

    @server.tool
    async def echo(text: str) -> str:
        server.ran.append(text)  # type: ignore[attr-defined]
        return text

    server.add_resource("r://one", "first")

    @server.prompt
    def greet(name: str) -> str:
        return f"Hello {name}"

    return server


async def full_flow(peer: StreamPeer, text: str = "hi") -> None:
    assert (await peer.initialize())["serverInfo"]["name"] == "net"
    assert [tool["name"] for tool in (await peer.request("tools/list"))["result"]["tools"]] == ["echo"]
    assert (await peer.tool("echo", text=text))["content"][0]["text"] == text
    assert (await peer.request("resources/read", {"uri": "r://one"}))["result"]["contents"][0]["text"] == "first"
    prompt = (await peer.request("prompts/get", {"name": "greet", "arguments": {"name": "A"}}))["result"]
    assert prompt["messages"][0]["content"]["text"] == "Hello A"
    assert (await peer.request("ping"))["result"] == {}
    assert (await peer.request("nope"))["error"]["code"] == -32601


@asynccontextmanager
async def listening(server: Server, address: str = "tcp://127.0.0.1:0", **options: Any) -> AsyncIterator[str]:
    listener = await server.listen(address, **options)
    yield listener.address
    await server.aclose()


# --- the same exchange on each ---------------------------------------------------------------------------


@pytest.mark.row("RPC-29", "W01", "W03", "W10")
@pytest.mark.parametrize("headed", [False, True], ids=["lines", "headers"])
@pytest.mark.parametrize("kind", ["tcp", "tcp6", "tls", "unix"])
async def test_complete_session_over_tcp(kind: str, headed: bool, tmp_path: Path) -> None:
    address = {
        "tcp": "tcp://127.0.0.1:0",
        "tcp6": "tcp://[::1]:0",
        "tls": "tls://localhost:0",
        "unix": f"unix://{tmp_path}/s.sock",
    }[kind]
    server, tls = make_server(), server_tls() if kind == "tls" else None
    async with listening(server, address, tls=tls) as found, peer_at(found, headed=headed) as peer:
        await full_flow(peer)


@pytest.mark.row("W03")
async def test_hundred_concurrent_clients_are_served() -> None:
    server = make_server()
    async with listening(server) as address:

        async def one(number: int) -> None:
            async with peer_at(address) as peer:
                await full_flow(peer, f"number {number}")

        async with asyncio.TaskGroup() as tasks:
            for number in range(100):
                tasks.create_task(one(number))
        assert sorted(server.ran) == sorted(f"number {number}" for number in range(100))  # type: ignore[attr-defined]
        await until(lambda: not server.connections)


@pytest.mark.row("W09")
async def test_connection_facts_arrive_in_order() -> None:
    observer = RecordingObserver()
    async with listening(make_server(observers=[observer])) as address:
        async with peer_at(address) as peer:
            await peer.request("ping")
            us = peer.writer.get_extra_info("sockname")
        await until(lambda: observer.of(Closed))
    kinds = [type(fact).__name__ for fact in observer.facts]
    assert [kind for kind in kinds if kind in {"Connected", "Received", "Closed"}] == [
        "Connected",
        "Received",
        "Closed",
    ]
    assert [(fact.transport, fact.peer) for fact in observer.of(Connected)] == [("tcp", f"127.0.0.1:{us[1]}")]
    assert [fact.reason for fact in observer.of(Closed)] == ["the peer closed the connection"]


@pytest.mark.row("W16", "W16e", "W18")
@pytest.mark.parametrize(("compat", "code"), [(None, -32600), ("erlmcp", -32012)])
async def test_oversized_message_is_refused_and_next_answered(compat: str | None, code: int) -> None:
    server = make_server(settings=Settings(tcp_message_size_limit=1024), compat=compat)
    async with listening(server) as address, peer_at(address) as peer:
        peer.writer.write(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"%b"}}\n' % (b"x" * 1024))
        error = json.loads(await peer.reader.readline())["error"]
        assert (error["code"], error["data"]["maxSize"]) == (code, 1024)
        assert (await peer.request("ping"))["result"] == {}


# --- unexpected clients ----------------------------------------------------------------------------------

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"run"}}}'


@pytest.mark.parametrize(
    "start",
    [
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b\n"
        % (len(CALL), CALL),
        b"CONNECT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(CALL), CALL),
        b"\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\n" + CALL + b"\n",
    ],
    ids=["web page", "proxy", "browser", "tls", "somebody"],
)
async def test_other_protocols_are_disconnected_without_response(start: bytes) -> None:
    observer = RecordingObserver()
    server = make_server(observers=[observer])
    async with listening(server) as address, peer_at(address) as peer:
        peer.writer.write(start)
        assert await peer.rest() == b""
        assert server.ran == []  # type: ignore[attr-defined]
        assert "the peer speaks something else" in observer.of(Closed)[0].reason


async def test_other_protocols_are_detected_byte_by_byte() -> None:
    server = make_server()
    async with listening(server) as address, peer_at(address) as peer:
        for letter in "\r\nCONN":
            await until(lambda: server.connections)
            peer.writer.write(letter.encode())
            await turns()
        assert await peer.rest() == b""


async def test_connections_beyond_the_limit_are_refused() -> None:
    async with listening(make_server(settings=Settings(max_connections=2))) as address:
        async with peer_at(address) as one:
            await one.initialize()
            async with peer_at(address) as two:
                await two.initialize()
                async with peer_at(address) as three:
                    with pytest.raises(ConnectionError):
                        await three.request("ping")
            assert (await one.request("ping"))["result"] == {}

        async def welcome() -> bool:
            async with peer_at(address) as four:
                try:
                    return "result" in await four.request("ping")
                except ConnectionError:
                    return False

        async with asyncio.timeout(PATIENCE):
            while not await welcome():
                pass


# --- idle clients ----------------------------------------------------------------------------------------


@pytest.mark.row("K15")
@pytest.mark.parametrize(
    "said", [b"", b"  \n", b"Content-Le", b"{nonsense\n"], ids=["nothing", "blanks", "part", "bad"]
)
async def test_client_without_valid_message_is_disconnected(said: bytes) -> None:
    clock = ManualClock()
    server = make_server(clock=clock)
    async with listening(server) as address, peer_at(address) as peer:
        peer.writer.write(said)
        if said.startswith(b"{"):
            assert b"-32700" in await peer.reader.readline()
        await until(lambda: server.connections)
        (connection,) = server.connections
        clock.advance(29.9)
        assert server.connections == [connection]
        clock.advance(0.1)
        assert await peer.rest() == b""
        assert connection.close_reason == "the peer sent no valid message within 30 s"


@pytest.mark.row("K15", "K17")
async def test_first_valid_message_stops_the_timer() -> None:
    clock = ManualClock()
    server = make_server(clock=clock)
    async with listening(server) as address, peer_at(address) as peer:
        assert (await peer.request("ping"))["result"] == {}
        clock.advance(600)
        assert (await peer.request("ping"))["result"] == {}


@asynccontextmanager
async def kept_alive(**options: Any) -> AsyncIterator[tuple[Server, ManualClock, StreamPeer]]:
    clock = ManualClock()
    server = make_server(clock=clock, settings=Settings(**options))
    async with listening(server) as address, peer_at(address) as peer:
        await peer.initialize()
        await peer.request("ping")  # so that `initialized` has been processed
        yield server, clock, peer


@pytest.mark.row("K05")
async def test_silent_client_is_pinged_every_thirty_seconds() -> None:
    async with kept_alive() as (server, clock, peer):
        for _ in range(3):
            clock.advance(30)
            asked = await peer.receive()
            assert asked["method"] == "ping"
            peer.send({"jsonrpc": "2.0", "id": asked["id"], "result": {}})
            await peer.request("ping")
        assert len(server.connections) == 1
        clock.advance(29.9)
        assert (await peer.request("ping"))["result"] == {}  # and nothing before it


@pytest.mark.row("K06")
async def test_active_client_is_not_pinged() -> None:
    async with kept_alive() as (_, clock, peer):
        for _ in range(10):
            clock.advance(29)
            ident = peer.call("ping")
            assert (await peer.receive())["id"] == ident
        heard = [json.loads(frame) for speaker, frame in peer.transcript.frames if speaker == "server"]
        assert [message for message in heard if "method" in message] == []


@pytest.mark.row("K06")
async def test_any_message_after_a_ping_counts_as_alive() -> None:
    async with kept_alive() as (server, clock, peer):
        clock.advance(30)
        assert (await peer.receive())["method"] == "ping"
        assert (await peer.request("tools/list"))["result"]
        clock.advance(10)
        assert (await peer.request("ping"))["result"] == {}
        assert len(server.connections) == 1


@pytest.mark.row("F26", "K07", "K08", "K09")
async def test_unresponsive_client_is_disconnected_and_cleaned_up() -> None:
    async with kept_alive() as (server, clock, peer):
        gone: list[str] = []

        @server.on_last_unsubscribed
        async def left(uri: str) -> None:
            gone.append(uri)

        await peer.request("resources/subscribe", {"uri": "r://one"})
        (connection,) = server.connections
        clock.advance(30)
        assert (await peer.receive())["method"] == "ping"
        clock.advance(9.9)
        assert server.connections == [connection]
        clock.advance(0.1)
        await until(lambda: not server.connections)
        assert connection.close_reason == "keepalive_failed"
        await until(lambda: gone == ["r://one"])
        assert b"ping" not in await peer.rest()


@pytest.mark.row("K07")
async def test_dead_client_with_unsent_data_is_disconnected() -> None:
    async with kept_alive(unsent_high=1000, tcp_message_size_limit=1 << 25) as (server, clock, peer):
        peer.call("tools/call", {"name": "echo", "arguments": {"text": "x" * (12 << 20)}})
        await until(lambda: server.ran)  # type: ignore[attr-defined]
        clock.advance(30)
        clock.advance(10)
        await until(lambda: not server.connections)


@pytest.mark.row("K05")
@pytest.mark.parametrize("options", [{"keepalive_interval": None}, {"keepalive_interval": 1000.0}])
async def test_keepalive_can_be_configured_and_disabled(options: dict[str, Any]) -> None:
    async with kept_alive(**options) as (server, clock, peer):
        clock.advance(999)
        assert (await peer.request("ping"))["result"] == {}
        assert len(server.connections) == 1


@pytest.mark.row("K05")
async def test_no_ping_before_handshake_or_while_paused() -> None:
    clock = ManualClock()
    server = make_server(clock=clock, settings=Settings(max_calls=1, max_waiting=1, work_timeout=None))
    go = asyncio.Event()

    @server.tool
    async def wait(ctx: Context) -> str:
        await go.wait()
        return "done"

    async with listening(server) as address, peer_at(address) as peer:
        peer.call("ping")
        assert (await peer.receive())["result"] == {}
        clock.advance(100)
        await peer.initialize()
        calls = [peer.call("tools/call", {"name": "wait"}) for _ in range(3)]
        await until(lambda: server.connections[0]._reading_paused)
        clock.advance(100)
        clock.advance(100)
        go.set()
        answers = [await peer.receive() for _ in calls]
        assert [answer["id"] for answer in answers] == calls


async def test_local_transports_are_not_pinged(tmp_path: Path) -> None:
    clock = ManualClock()
    server = make_server(clock=clock)
    async with listening(server, f"unix://{tmp_path}/s") as address, peer_at(address) as peer:
        await peer.initialize()
        clock.advance(3000)
        assert (await peer.request("ping"))["result"] == {}


# --- addresses --------------------------------------------------------------------------------------------


async def test_public_listener_without_tls_warns() -> None:
    server = make_server()
    with pytest.warns(RuntimeWarning, match=r"can be reached from other machines.*pass tls=, or host='127\.0\.0\.1'"):
        await server.listen("tcp://0.0.0.0:0")
    await server.aclose()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await server.listen("tls://0.0.0.0:0", tls=server_tls())
        await server.listen("tcp://[::1]:0")
        await server.listen("tcp://localhost:0")
    await server.aclose()


async def test_used_or_invalid_address_is_rejected() -> None:
    server = make_server()
    async with listening(server) as address:
        with pytest.raises(TransportError, match=rf"cannot listen on 127\.0\.0\.1:{parse_address(address).port}: "):
            await server.listen(address)
    with pytest.raises(ConfigError, match="is not an address"):
        await server.listen("ftp://x:1")
    with pytest.raises(ConfigError, match="http:// and https:// serve WebSockets"):
        await server.listen("ws://x:1")
    with pytest.raises(ConfigError, match="do not match"):
        await server.listen("tls://127.0.0.1:0")
    with pytest.raises(ConfigError, match="do not match"):
        await server.listen("tcp://127.0.0.1:0", tls=ssl.create_default_context())


async def test_closed_server_can_listen_again() -> None:
    server = make_server()
    with held_port() as port:
        listener = await server.listen(f"tcp://127.0.0.1:{port}")
        async with peer_at(listener.address) as peer:
            await peer.initialize()
            await server.aclose()
            assert await peer.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        async with listening(server, listener.address) as again, peer_at(again) as peer:
            await full_flow(peer)


# --- in a process ----------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
from trunkline import Context, Server

server = Server("net")

@server.tool
async def steps(ctx: Context) -> str:
    await ctx.info("started")
    await asyncio.sleep(0.3)
    return "finished"

server.run(sys.argv[1], **({"path": sys.argv[2]} if sys.argv[1] == "unix" else {}))
"""


@pytest.mark.row("D13")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_signal_drains_calls_and_refuses_clients(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    command = [sys.executable, "-c", PROGRAM, kind, str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        name, _, address = (await asyncio.to_thread(process.stderr.readline)).strip().partition(" listens at ")
        assert name == "net"
        async with peer_at(address) as peer:
            await peer.initialize()
            ident = peer.call("tools/call", {"name": "steps"})
            assert (await peer.receive())["method"] == "notifications/message"
            process.send_signal(number)
            answer = await peer.receive()
            assert (answer["id"], answer["result"]["content"][0]["text"]) == (ident, "finished")
            assert await peer.rest() == b""
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        assert process.stderr.read() == ""
    assert not path.exists()
    if kind == "tcp":
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", parse_address(address).port))
