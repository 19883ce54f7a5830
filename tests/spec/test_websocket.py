"""WebSocket: a server under uvicorn with a third-party client library; and our client."""

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config
from tests.contract.asgi import asgi_server
from tests.contract.connections import client_tls, server_tls, until
from tests.limits import PATIENCE
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from trunkline import Client, Context, Server, Settings
from trunkline.facts import Closed
from trunkline.testing import ManualClock, RawPeer, RecordingObserver, Transcript
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.websocket.client import WebSocketConnector
from trunkline.transports.websocket.server import WebSocketEndpoint

MCP = [Subprotocol("mcp")]


class WebSocketServer:
    """A server and its WebSocket endpoint."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.observer = RecordingObserver()
        self.server = Server("net", clock=self.clock, observers=[self.observer], **options)
        self.gate = asyncio.Event()
        self.ran: list[str] = []
        self.endpoint: WebSocketEndpoint
        self.url = ""

        @self.server.tool
        async def echo(text: str) -> str:
            self.ran.append(text)
            return text

        @self.server.tool
        async def wait() -> str:
            self.ran.append("wait")
            await self.gate.wait()
            return "done"

        @self.server.tool
        def whoami(context: Context) -> str:
            return str(context.principal)

    async def start(self) -> None:
        await self.server.start()
        guard = ListenerGuard(self.server.connect, self.server.settings, self.clock)
        self.endpoint = WebSocketEndpoint(guard, self.server.settings)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "websocket"
        await self.endpoint.handle(scope, receive, send, "somebody")

    @property
    def reasons(self) -> list[str]:
        return [fact.reason for fact in self.observer.of(Closed)]


@asynccontextmanager
async def served(
    *, tls: bool = False, asgi: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[WebSocketServer]:
    subject = WebSocketServer(**options)
    await subject.start()
    async with asgi_server(subject.app, tls=server_tls() if tls else None, **(asgi or {})) as (host, port):
        subject.url = f"{'wss' if tls else 'ws'}://{host}:{port}/mcp"
        yield subject
        subject.gate.set()
        await subject.server.aclose()


class Peer:
    """A raw client, with the library `websockets`."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.transcript = Transcript()
        self._ids = count(1)

    async def send(self, message: Any) -> None:
        frame = message if isinstance(message, str) else json.dumps(message)
        self.transcript.frames.append(("client", frame.encode()))
        await self.socket.send(frame)

    async def receive(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            frame = await self.socket.recv()
        assert isinstance(frame, str)
        self.transcript.frames.append(("server", frame.encode()))
        return json.loads(frame)

    async def call(self, method: str, params: Any = None) -> int:
        ident = next(self._ids)
        asked = {"jsonrpc": "2.0", "id": ident, "method": method}
        await self.send(asked if params is None else {**asked, "params": params})
        return ident

    async def request(self, method: str, params: Any = None) -> Any:
        ident = await self.call(method, params)
        while (message := await self.receive()).get("id") != ident:
            pass
        return message

    async def initialize(self) -> Any:
        info = {"name": "by hand", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        result = (await self.request("initialize", params))["result"]
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    async def tool(self, name: str, **arguments: Any) -> Any:
        return (await self.request("tools/call", {"name": name, "arguments": arguments}))["result"]

    async def end(self) -> tuple[int, str]:
        """The code and reason of the server's close frame."""
        async with asyncio.timeout(PATIENCE):
            try:
                while True:
                    await self.receive()
            except ConnectionClosed:
                return self.socket.close_code or 0, self.socket.close_reason or ""


@asynccontextmanager
async def peer_at(url: str, **options: Any) -> AsyncIterator[Peer]:
    defaults: dict[str, Any] = {"proxy": None, "ping_interval": None, "subprotocols": MCP, "compression": None}
    async with connect(url, max_size=None, **{**defaults, **options}) as socket:
        peer = Peer(socket)
        yield peer
        for tap in RawPeer.taps:
            tap(peer.transcript)


def sized(size: int) -> str:
    """A ping of so many bytes."""
    frame = '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"%s"}}'
    return frame % ("x" * (size - len(frame) + 2))


# --- an exchange -----------------------------------------------------------------------------------------


async def full_flow(peer: Peer) -> None:
    assert (await peer.initialize())["serverInfo"]["name"] == "net"
    assert len((await peer.request("tools/list"))["result"]["tools"]) == 3
    assert (await peer.tool("echo", text="é€😀"))["content"][0]["text"] == "é€😀"
    assert (await peer.request("ping"))["result"] == {}
    assert (await peer.request("nope"))["error"]["code"] == -32601


@pytest.mark.row("W05")
@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
async def test_complete_session_with_one_message_per_frame(tls: bool) -> None:
    async with served(tls=tls) as subject, peer_at(subject.url, ssl=client_tls() if tls else None) as peer:
        assert peer.socket.subprotocol == "mcp"
        await full_flow(peer)


@pytest.mark.row("W05")
async def test_complete_session_under_hypercorn() -> None:
    subject = WebSocketServer()
    await subject.start()
    config, stop = Config(), asyncio.Event()
    config.bind, config.errorlog, config.accesslog = ["127.0.0.1:0"], None, None
    (listening,) = config.create_sockets().insecure_sockets
    listening.listen()
    port = listening.getsockname()[1]
    config.bind = [f"fd://{listening.detach()}"]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await subject.app(scope, receive, send)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own
        running = asyncio.ensure_future(serve(app, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
        async with peer_at(f"ws://127.0.0.1:{port}/") as peer:
            await full_flow(peer)
            subject.endpoint.close("the server has stopped")
            assert await peer.end() == (1001, "the server has stopped")
        stop.set()
        await running
    await subject.server.aclose()


@pytest.mark.row("W05")
@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
async def test_client_and_server_work_together(tls: bool, revision: str) -> None:
    async with served(tls=tls) as subject:
        target = WebSocketConnector(subject.url, tls=client_tls()) if tls else subject.url
        async with Client(target, revision=revision) as client:
            assert client.revision == revision
            assert (await client.call_tool("echo", {"text": "hi"})).data == "hi"
            assert (await client.call_tool("echo", {"text": "x" * (2 << 20)})).data == "x" * (2 << 20)
            await client.ping()
            assert len(subject.endpoint) == 1
        await until(lambda: not len(subject.endpoint))
        assert subject.reasons == ["the peer closed the connection: 1000"]


async def test_calls_have_the_connections_principal() -> None:
    async with served() as subject, Client(subject.url) as client:
        assert (await client.call_tool("whoami")).data == "somebody"


async def test_malformed_json_is_answered_without_closing() -> None:
    async with served() as subject, peer_at(subject.url) as peer:
        await peer.send("{nonsense")
        assert (await peer.receive())["error"]["code"] == -32700
        await full_flow(peer)


async def test_multi_line_json_is_one_message() -> None:
    async with served() as subject, peer_at(subject.url) as peer:
        await peer.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}, indent=2))
        assert (await peer.receive())["result"] == {}


async def test_batch_and_its_response_are_one_frame_each() -> None:
    async with served() as subject, peer_at(subject.url) as peer:
        info = {"name": "by hand", "version": "1"}
        params = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": info}
        await peer.request("initialize", params)
        await peer.send([{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in (7, 8)])
        assert [answer["id"] for answer in await peer.receive()] == [7, 8]


async def test_fragmented_message_is_reassembled() -> None:
    async with served() as subject, peer_at(subject.url) as peer:
        pieces = ['{"jsonrpc":"2.0",', '"id":1,', '"method":"ping"}']
        peer.transcript.frames.append(("client", "".join(pieces).encode()))
        await peer.socket.send(pieces)
        assert (await peer.receive())["id"] == 1


# --- admission -------------------------------------------------------------------------------------------


async def test_missing_subprotocol_is_accepted() -> None:
    async with served() as subject, peer_at(subject.url, subprotocols=None) as peer:
        assert peer.socket.subprotocol is None
        await full_flow(peer)


async def test_mcp_subprotocol_is_selected() -> None:
    async with served() as subject, peer_at(subject.url, subprotocols=["other", "mcp"]) as peer:
        assert peer.socket.subprotocol == "mcp"


async def test_other_subprotocols_are_refused() -> None:
    async with served() as subject:
        with pytest.raises(InvalidStatus) as caught:
            async with peer_at(subject.url, subprotocols=["graphql-ws"]):
                pass
        assert caught.value.response.status_code == 400
        assert b"none of the subprotocols is 'mcp'" in (caught.value.response.body or b"")
        assert subject.server.connections == []


async def test_connections_beyond_the_limit_get_503() -> None:
    async with served(settings=Settings(max_connections=1)) as subject:
        async with peer_at(subject.url) as peer:
            await peer.initialize()
            with pytest.raises(InvalidStatus) as caught:
                async with peer_at(subject.url):
                    pass
            assert caught.value.response.status_code == 503
            assert (await peer.request("ping"))["result"] == {}
        await until(lambda: not len(subject.endpoint))
        async with peer_at(subject.url) as peer:
            await full_flow(peer)


@pytest.mark.row("K15")
@pytest.mark.parametrize("said", ["", "{nonsense"], ids=["nothing", "bad"])
async def test_client_without_valid_message_is_disconnected(said: str) -> None:
    async with served() as subject, peer_at(subject.url) as peer:
        if said:
            await peer.send(said)
            assert (await peer.receive())["error"]["code"] == -32700
        await until(lambda: len(subject.endpoint))
        subject.clock.advance(29.9)
        assert len(subject.server.connections) == 1
        subject.clock.advance(0.1)
        assert await peer.end() == (1008, "the peer sent no valid message within 30 s")


@pytest.mark.row("K05", "K07")
async def test_silent_client_is_pinged_and_disconnected() -> None:
    async with served() as subject, peer_at(subject.url) as peer:
        await peer.initialize()
        await peer.request("ping")
        subject.clock.advance(30)
        assert (await peer.receive())["method"] == "ping"
        subject.clock.advance(10)
        assert (await peer.end())[0] == 1001
        assert subject.reasons == ["keepalive_failed"]


# --- reasons to close ------------------------------------------------------------------------------------


@pytest.mark.row("W05")
async def test_binary_frame_closes_with_1003() -> None:
    async with served() as subject, peer_at(subject.url) as peer:
        await peer.send(sized(100))
        await peer.socket.send(b'{"jsonrpc":"2.0","id":2,"method":"ping"}')
        await peer.send(sized(100))
        assert (await peer.receive())["id"] == 1
        assert await peer.end() == (1003, "a message is a text frame, not a binary one")
        assert [speaker for speaker, _ in peer.transcript.frames].count("server") == 1


@pytest.mark.row("W05", "W16", "W17", "W18")
@pytest.mark.parametrize("letter", ["x", "é"], ids=["bytes", "letters of several bytes"])
async def test_message_size_limit_is_exact(letter: str) -> None:
    frame = '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"%s"}}'
    room = 1024 - len(frame) + 2
    text = letter * (room // len(letter.encode())) + "x" * (room % len(letter.encode()))
    assert len((frame % text).encode()) == 1024
    async with served(settings=Settings(ws_message_size_limit=1024)) as subject, peer_at(subject.url) as peer:
        await peer.send(frame % text)
        assert (await peer.receive())["result"] == {}
        await peer.send(frame % (text + "x"))
        assert await peer.end() == (1009, "message is larger than the limit of 1024 bytes")
        assert subject.reasons == ["message is larger than the limit of 1024 bytes"]


@pytest.mark.row("W16")
async def test_default_size_limit_is_16_mib() -> None:
    async with served(asgi={"ws_max_size": 1 << 25}) as subject, peer_at(subject.url) as peer:
        await peer.send(sized(16 << 20))
        assert (await peer.receive())["result"] == {}
        await peer.send(sized((16 << 20) + 1))
        assert (await peer.end())[0] == 1009


@pytest.mark.row("W05")
async def test_asgi_server_limit_closes_with_the_same_code() -> None:
    async with served(asgi={"ws_max_size": 1024}) as subject, peer_at(subject.url) as peer:
        await peer.send(sized(1024))
        assert (await peer.receive())["result"] == {}
        await peer.send(sized(1025))
        assert (await peer.end())[0] == 1009
        await until(lambda: subject.reasons)
        assert "1009" in subject.reasons[0]


@pytest.mark.row("W24")
async def test_websocket_has_its_own_size_limit() -> None:
    async with served(settings=Settings(ws_message_size_limit=1024)) as subject, peer_at(subject.url) as peer:
        listener = await subject.server.listen("tcp://127.0.0.1:0")
        async with Client(listener.address) as client:
            assert (await client.call_tool("echo", {"text": "x" * 2048})).data == "x" * 2048
        await peer.send(sized(2048))
        assert (await peer.end())[0] == 1009


@pytest.mark.row("W05")
async def test_shutdown_answers_calls_and_closes_with_1001() -> None:
    async with served() as subject, peer_at(subject.url) as peer:
        await peer.initialize()
        ident = await peer.call("tools/call", {"name": "wait", "arguments": {}})
        await until(lambda: subject.ran)
        closing = asyncio.ensure_future(subject.server.aclose())
        subject.gate.set()
        assert (await peer.receive())["id"] == ident
        assert (await peer.end())[0] == 1001
        await closing


@pytest.mark.row("W05")
@pytest.mark.off_the_record
async def test_close_sends_pending_messages_first() -> None:
    async with served() as subject, peer_at(subject.url) as peer:
        await peer.initialize()
        await peer.request("ping")
        (connection,) = subject.server.connections
        for number in range(3):
            connection.channel.send({"jsonrpc": "2.0", "method": f"notifications/{number}"})  # type: ignore[arg-type]
        subject.endpoint.close("the server has stopped")
        assert [(await peer.receive())["method"] for _ in range(3)] == [
            f"notifications/{number}" for number in range(3)
        ]
        assert await peer.end() == (1001, "the server has stopped")


# --- slow readers ----------------------------------------------------------------------------------------


@pytest.mark.row("N14", "Q07")
async def test_peer_that_never_reads_is_disconnected() -> None:
    settings = Settings(unsent_high=1 << 20, unsent_limit=2 << 20)
    async with served(settings=settings) as subject, peer_at(subject.url) as quick, peer_at(subject.url) as slow:
        await quick.initialize()
        await slow.initialize()
        await slow.request("ping")
        slow.socket.transport.pause_reading()
        (channel,) = [one.channel for one in subject.server.connections if one.channel.info.peer == _address(slow)]
        for number in range(40):  # more than the system buffers per connection
            channel.send({"jsonrpc": "2.0", "method": "notifications/x", "params": {"x": "x" * (1 << 20)}})  # type: ignore[arg-type]
            assert (await quick.tool("echo", text=str(number)))["content"][0]["text"] == str(number)
            if subject.reasons:
                break
        assert "bytes unread" in subject.reasons[0]
        assert [one.channel.info.peer for one in subject.server.connections] == [_address(quick)]
        await until(lambda: len(subject.endpoint) == 1)
        slow.socket.transport.abort()


async def test_reading_pauses_while_too_much_is_unsent() -> None:
    async with served(settings=Settings(unsent_high=1 << 20)) as subject, peer_at(subject.url) as peer:
        await peer.initialize()
        await peer.request("ping")
        peer.socket.transport.pause_reading()
        text = "x" * (4 << 20)
        for _ in range(3):
            await peer.call("tools/call", {"name": "echo", "arguments": {"text": text}})
        await until(lambda: subject.ran)
        last = await peer.call("tools/call", {"name": "echo", "arguments": {"text": "last"}})
        (connection,) = subject.server.connections
        await until(lambda: connection.channel._reading_stopped)  # type: ignore[attr-defined]
        assert "last" not in subject.ran
        peer.socket.transport.resume_reading()
        while (await peer.receive()).get("id") != last:
            pass
        assert subject.ran == [text, text, text, "last"]


def _address(peer: Peer) -> str:
    host, port = peer.socket.local_address
    return f"{host}:{port}"
