"""Our client against a third-party server, and against programs that are no servers."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest
from tests.contract.connections import Recorder, client_tls, server_tls, turns, until
from tests.contract.test_channels import held
from tests.limits import PATIENCE
from websockets.asyncio.server import ServerConnection, serve

from trunkline import Settings
from trunkline.client.targets import make_connector
from trunkline.errors import ConfigError, TransportError
from trunkline.transports.channel import Channel
from trunkline.transports.http.client.status import ADVICE
from trunkline.transports.websocket.client import WebSocketConnector
from trunkline.wire.messages import Notification


@asynccontextmanager
async def library_server(handler: Callable[[ServerConnection], Any], **options: Any) -> AsyncIterator[str]:
    """A server with the library `websockets`; yields its address."""
    async with serve(handler, "127.0.0.1", 0, ping_interval=None, **options) as server:
        scheme = "wss" if options.get("ssl") else "ws"
        yield f"{scheme}://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/mcp"


async def until_closed(socket: ServerConnection) -> None:
    await socket.wait_closed()


@asynccontextmanager
async def line_to(url: str, **options: Any) -> AsyncIterator[tuple[Channel, Recorder]]:
    recorder = Recorder()
    channel = await WebSocketConnector(url, **options).connect(lambda _: recorder)
    yield channel, recorder
    await channel.close()


async def refusal(url: str, **options: Any) -> str:
    before = held()
    with pytest.raises(TransportError) as caught:
        await WebSocketConnector(url, **options).connect(lambda _: Recorder())
    await until(lambda: held() == before)
    return str(caught.value)


# --- the address -----------------------------------------------------------------------------------------


def test_connector_name_contains_no_secrets() -> None:
    assert WebSocketConnector("ws://example.org/mcp?key=secret").name == "ws://example.org:80/mcp"
    assert WebSocketConnector("wss://[::1]:9/x").name == "wss://[::1]:9/x"


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("http://example.org", {}, "http:// is not a WebSocket scheme; use ws:// or wss://"),
        ("ws://", {}, "is not an address like"),
        ("ws://name:word@example.org", {}, "must not contain a user name and a password"),
        ("ws://example.org", {"tls": client_tls()}, "tls= is for wss:// addresses"),
        ("ws://example.org", {"proxy": "socks5://example.org"}, "a proxy has an address like"),
    ],
)
def test_invalid_options_are_rejected_at_once(url: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        WebSocketConnector(url, **options)


@pytest.mark.parametrize("url", ["ws://example.org/mcp", "wss://example.org/mcp"])
def test_websocket_url_is_a_client_target(url: str) -> None:
    assert isinstance(make_connector(url, Settings()), WebSocketConnector)


def test_missing_package_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['websockets'] = None; import trunkline.transports.websocket.client"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1].endswith(
        "ConfigError: WebSocket needs the package websockets: pip install 'trunkline[http]'"
    )


# --- connecting ------------------------------------------------------------------------------------------


async def test_handshake_offers_subprotocol_and_sends_headers() -> None:
    seen: list[Any] = []

    async def note(socket: ServerConnection) -> None:
        seen.append(socket)
        await socket.wait_closed()

    async with library_server(note, subprotocols=["mcp"]) as url:  # type: ignore[list-item]
        options = {"headers": {"Authorization": "Bearer x", "user-agent": "me"}}
        async with line_to(f"{url}?a=b", **options) as (channel, _):
            assert (channel.info.transport, channel.info.needs_keepalive) == ("websocket", True)
            assert url.split("/")[2] == channel.info.peer
            (socket,) = seen
            assert socket.subprotocol == "mcp"
            assert socket.request.path == "/mcp?a=b"
            assert socket.request.headers["Authorization"] == "Bearer x"
            assert socket.request.headers.get_all("User-Agent") == ["me"]
            assert "Sec-WebSocket-Extensions" not in socket.request.headers
            assert "Origin" not in socket.request.headers


async def test_server_without_subprotocol_is_accepted() -> None:
    async with library_server(until_closed) as url, line_to(url) as (_, recorder):
        assert recorder.ends == []


async def test_refused_connection_is_reported() -> None:
    async with library_server(until_closed) as url:
        pass
    assert await refusal(url) == f"cannot reach {url}: no server is listening there; is it running?"


async def test_untrusted_certificate_is_reported() -> None:
    async with library_server(until_closed, ssl=server_tls()) as url:
        assert "its certificate is not trusted" in await refusal(url)
        async with line_to(url, tls=client_tls()) as (_, recorder):
            assert recorder.ends == []


@pytest.mark.parametrize(("body", "said"), [("not you\n", "not you; "), ("", "")], ids=["with a reason", "without"])
async def test_refusal_quotes_the_servers_reason(body: str, said: str) -> None:
    def refuse(socket: ServerConnection, request: Any) -> Any:
        return socket.respond(HTTPStatus.FORBIDDEN, body)

    async with library_server(until_closed, process_request=refuse) as url:
        assert await refusal(url) == f"cannot reach {url}: it answered 403 Forbidden: {said}{ADVICE[403]}"


async def test_redirects_are_not_followed() -> None:
    def redirect(socket: ServerConnection, request: Any) -> Any:
        response = socket.respond(HTTPStatus.FOUND, "")
        response.headers["Location"] = "ws://elsewhere.example.org/"
        return response

    async with library_server(until_closed, process_request=redirect) as url:
        why = await refusal(url, headers={"Authorization": "secret"})
    assert why.endswith("it answered 302 and names another address, which is not followed: ws://elsewhere.example.org/")


@asynccontextmanager
async def raw_port(answer: bytes | None, *, stays: bool = False) -> AsyncIterator[str]:
    """A port that answers with these bytes, or not at all."""
    gone = asyncio.Event()

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            writer.write(answer)
            await writer.drain()
        if stays:
            await reader.read()
        writer.close()
        gone.set()

    async with await asyncio.start_server(met, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with asyncio.timeout(PATIENCE):
            await gone.wait()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "the server closed the connection, or does not speak HTTP"),
        (b"220 mail.example.org\r\n", "the server closed the connection, or does not speak HTTP"),
        (b"HTTP/1.1 404 Not Found\r\n\r\nno end", "it answered 404 Not Found: no end"),
        (b"HTTP/1.1 101 Fine\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "the WebSocket handshake failed"),
    ],
    ids=["nothing", "mail", "web page", "other protocol"],
)
async def test_invalid_handshake_responses_are_reported(answer: bytes, why: str) -> None:
    async with raw_port(answer) as url:
        assert why in await refusal(url)


async def test_unanswered_handshake_times_out() -> None:
    async with raw_port(None, stays=True) as url:
        why = await refusal(url, settings=Settings(connect_timeout=0.05))
        assert why == f"cannot reach {url}: no answer within 0.05 s"


async def test_cancelled_connect_leaves_nothing_behind() -> None:
    async with raw_port(None, stays=True) as url:
        before = held()
        connecting = asyncio.ensure_future(WebSocketConnector(url).connect(lambda _: Recorder()))
        await until(lambda: held()[0] >= before[0] + 2)  # both ends of a connection
        connecting.cancel()
        await asyncio.wait([connecting])
        assert connecting.cancelled()


async def test_error_in_accept_is_raised_and_connection_closed() -> None:
    def accept(_: Channel) -> Recorder:
        raise RuntimeError("not today")

    async with library_server(until_closed) as url:
        with pytest.raises(RuntimeError, match="not today"):
            await WebSocketConnector(url).connect(accept)


# --- messages --------------------------------------------------------------------------------------------


async def test_message_right_after_the_handshake_is_delivered() -> None:
    async def eager(socket: ServerConnection) -> None:
        await socket.send('{"jsonrpc":"2.0","method":"first"}')
        await socket.send(['{"jsonrpc":"2.0",', '"method":', '"second"}'])
        await socket.close(4000, "that was all")

    async with library_server(eager) as url, line_to(url) as (_, recorder):
        await until(lambda: recorder.ends)
        assert recorder.methods == ["first", "second"]
        assert recorder.ends[0].reason == "the peer closed the connection: 4000 that was all"


async def test_send_during_the_last_delivery_raises_nothing() -> None:
    async def eager(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send('{"jsonrpc":"2.0","method":"last"}')
        await socket.close()

    class Answering(Recorder):
        def received(self, messages: Any, origin: Any) -> None:
            super().received(messages, origin)
            channel.send(Notification("too late"))

    recorder = Answering()
    async with library_server(eager) as url:
        channel = await WebSocketConnector(url).connect(lambda _: recorder)
        channel.send(Notification("go on"))
        await until(lambda: recorder.ends)
        assert recorder.methods == ["last"]
        assert recorder.ends[0].reason == "the peer closed the connection: 1000"
        await channel.close()


async def test_server_pings_are_answered() -> None:
    answered = asyncio.Event()

    async def pinging(socket: ServerConnection) -> None:
        await (await socket.ping(b"there?"))
        answered.set()
        await socket.wait_closed()

    async with library_server(pinging) as url, line_to(url), asyncio.timeout(PATIENCE):
        await answered.wait()


@pytest.mark.row("W05", "W16")
@pytest.mark.parametrize(
    ("frame", "code", "reason"),
    [
        (b"{}", 1003, "a message is a text frame, not a binary one (1003)"),
        ("x" * 1025, 1009, "message is larger than the limit of 1024 bytes (ws_message_size_limit)"),
    ],
    ids=["binary", "too large"],
)
async def test_forbidden_frames_close_with_a_code(frame: bytes | str, code: int, reason: str) -> None:
    codes: list[Any] = []

    async def sending(socket: ServerConnection) -> None:
        await socket.send('{"jsonrpc":"2.0","method":"%s"}' % ("n" * (1024 - 29)))
        await socket.send(frame)
        await socket.send('{"jsonrpc":"2.0","method":"unheard"}')
        await socket.wait_closed()
        codes.append(socket.close_code)

    settings = Settings(ws_message_size_limit=1024)
    async with library_server(sending) as url, line_to(url, settings=settings) as (_, recorder):
        await until(lambda: recorder.ends and codes)
        assert recorder.methods == ["n" * (1024 - 29)]
        assert recorder.ends[0].reason == reason
        assert codes == [code]


async def test_close_sends_1000_after_pending_messages() -> None:
    heard: list[Any] = []

    async def listening(socket: ServerConnection) -> None:
        heard.extend([message async for message in socket])
        heard.append(socket.close_code)

    async with library_server(listening) as url:
        async with line_to(url) as (channel, recorder):
            channel.send(Notification("n"))
        await until(lambda: len(heard) == 2)
        assert heard == ['{"jsonrpc":"2.0","method":"n"}', 1000]
        assert recorder.ends[0].reason == "closed"


async def test_slow_reader_gets_all_messages_and_close_frame() -> None:
    heard: list[Any] = []
    closing = asyncio.Event()

    async def slow(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await closing.wait()
        socket.transport.resume_reading()
        heard.extend([len(message) async for message in socket])
        heard.append(socket.close_code)

    async with library_server(slow, max_size=None) as url, line_to(url) as (channel, recorder):
        for _ in range(2):
            channel.send(
                Notification("n", {"x": "x" * (12 << 20)})
            )  # together more than the system buffers per connection
        ended = asyncio.ensure_future(channel.close())
        await turns()
        assert recorder.ends == []
        closing.set()
        await ended
        await until(lambda: len(heard) == 3)
        assert heard[0] == heard[1] > 12 << 20
        assert heard[2] == 1000


async def test_broken_connection_is_reported() -> None:
    async def breaking(socket: ServerConnection) -> None:
        socket.transport.abort()
        await socket.wait_closed()

    async with library_server(breaking) as url, line_to(url) as (_, recorder):
        await until(lambda: recorder.ends)
        assert "connection" in recorder.ends[0].reason


# --- proxies ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def proxy(status: bytes = b"HTTP/1.1 200 Fine") -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that tunnels, if its status says so; yields its address and its requests."""
    asked: list[bytes] = []
    tasks: set[Any] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(status + b"\r\n\r\n" if status.startswith(b"H") else status)
        if b" 200 " not in status:
            writer.close()
            return
        host, port = asked[0].split()[1].decode().rsplit(":", 1)
        there = await asyncio.open_connection(host, int(port))
        tasks.update(asyncio.ensure_future(pump(*pair)) for pair in ((reader, there[1]), (there[0], writer)))

    async with await asyncio.start_server(met, "127.0.0.1", 0) as server:
        yield f"http://me:w%20rd@127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)


@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
async def test_proxy_tunnel_is_used(tls: bool) -> None:
    heard: list[Any] = []

    async def listening(socket: ServerConnection) -> None:
        heard.extend([message async for message in socket])

    options: dict[str, Any] = {"ssl": server_tls()} if tls else {}
    async with library_server(listening, **options) as url, proxy() as (place, asked):
        async with line_to(url, proxy=place, tls=client_tls() if tls else None) as (channel, _):
            channel.send(Notification("n"))
        await until(lambda: heard)
    where = url.split("/")[2].encode()
    assert asked[0].startswith(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n" % (where, where))
    assert b"Proxy-Authorization: Basic bWU6dyByZA==\r\n" in asked[0]


async def test_certificate_is_checked_through_a_proxy() -> None:
    async with library_server(until_closed, ssl=server_tls()) as url, proxy() as (place, _):
        assert "its certificate is not trusted" in await refusal(url, proxy=place)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (b"HTTP/1.1 407 Who are you?", "407 Who are you?"),
        (b"", "connection closed"),
        (b"x" * 17_000, "response header too large"),
    ],
    ids=["refusing", "mute", "chatty"],
)
async def test_proxy_refusal_is_reported(status: bytes, said: str) -> None:
    async with proxy(status) as (place, _):
        why = await refusal("ws://example.org/", proxy=place)
        assert why.startswith("cannot reach ws://example.org:80/: the proxy at 127.0.0.1:")
        assert said in why
