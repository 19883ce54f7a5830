"""HTTP behind three verbs: what any library has to do there."""

import asyncio
import socket
import ssl
from typing import Any

import pytest
from tests.contract.connections import client_tls, server_tls
from tests.ports import held_port
from tests.unit.transports.http.client.web import Visit, web

from trunkline import Settings
from trunkline.errors import TransportError
from trunkline.transports.http.client.connection_pool import ConnectionPool
from trunkline.transports.http.client.http_backend import ReplyTooLarge, RequestNotSent, read_body

pytestmark = pytest.mark.off_the_record


async def test_reply_has_status_headers_and_body() -> None:
    async with web() as server:
        server.on("POST", lambda visit: visit.respond(418, b"short", "text/plain", X_Kind="Teapot"))
        library = ConnectionPool(Settings())
        reply = await library.send("POST", server.url, {"A": "b"}, b"{}")
        assert (reply.status, reply.reason, reply.headers["x-kind"]) == (418, "Said", "Teapot")
        assert await read_body(reply, 5) == b"short"
        reply.close()
        await library.close()
        assert server.visits[0].headers["a"] == "b"


async def test_redirects_cookies_and_compression_are_not_handled() -> None:
    async with web() as server:
        packed = b"\x1f\x8b not to be unpacked"
        headers = {"Location": "/elsewhere", "Set_Cookie": "a=b", "Content_Encoding": "gzip"}
        server.on("POST", lambda visit: visit.respond(302, packed, **headers))
        library = ConnectionPool(Settings())
        for _ in range(2):
            reply = await library.send("POST", server.url, {}, b"{}")
            assert reply.status == 302
            assert await read_body(reply, 1000) == packed
        await library.close()
        assert [visit.path for visit in server.visits] == ["/mcp", "/mcp"]
        assert "cookie" not in server.visits[1].headers


async def test_refused_connection_differs_from_a_broken_one() -> None:
    library = ConnectionPool(Settings())
    with held_port() as port, pytest.raises(RequestNotSent, match="no server is listening"):
        await library.send("POST", f"http://127.0.0.1:{port}/", {}, b"{}")
    with pytest.raises(RequestNotSent, match="the URL is invalid"):
        await library.send("POST", "http://", {}, b"{}")
    async with web() as server:
        server.on("POST", Visit.reset)
        with pytest.raises(TransportError) as raised:
            await library.send("POST", server.url, {}, b"{}")
        assert not isinstance(raised.value, RequestNotSent)
        assert len(server.visits) == 1
    await library.close()


async def test_connect_timeout_is_respected() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)
        library = ConnectionPool(Settings(connect_timeout=0.05), tls=client_tls())
        with pytest.raises(RequestNotSent, match=r"within 0\.05 s"):
            await library.send("POST", f"https://127.0.0.1:{deaf.getsockname()[1]}/", {}, b"{}")
        await library.close()


@pytest.mark.parametrize("through_proxy", [False, True])
async def test_request_cancelled_as_its_handshake_ends_leaves_no_transport(through_proxy: bool) -> None:
    """The transport is the socket's only owner: a descriptor that is closed beside it belongs to the next socket."""
    requests: list[asyncio.Task[Any]] = []

    class CancelsAfterHandshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            for request in requests:
                request.cancel()

    tls = client_tls()
    tls.sslobject_class = CancelsAfterHandshake
    async with web(server_tls()) as server:
        server.on("GET", lambda visit: visit.respond(200, b"here"))
        proxy = server.url.removesuffix("/mcp") if through_proxy else None
        library = ConnectionPool(Settings(), tls=tls, proxy=proxy)
        requests.append(asyncio.create_task(library.send("GET", server.url, {})))
        with pytest.raises(asyncio.CancelledError):
            await requests[0]
        requests.clear()
        direct = ConnectionPool(Settings(), tls=tls)
        reply = await direct.send("GET", server.url, {})
        assert await read_body(reply, 10) == b"here"
        for pool in (library, direct):
            await pool.close()


async def test_unknown_certificate_is_not_trusted() -> None:
    async with web(server_tls()) as server:
        library = ConnectionPool(Settings())
        with pytest.raises(RequestNotSent, match="certificate is not trusted"):
            await library.send("GET", server.url, {})
        await library.close()


@pytest.mark.parametrize("head", [b"Content-Length: 100\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n9\r\n"])
async def test_truncated_body_raises(head: bytes) -> None:
    async with web() as server:

        def cut(visit: Visit) -> None:
            visit.write(b"HTTP/1.1 200 OK\r\n" + head + b"some")
            visit.hang_up()

        server.on("GET", cut)
        library = ConnectionPool(Settings())
        reply = await library.send("GET", server.url, {})
        with pytest.raises(TransportError, match="broke"):
            await read_body(reply, 1000)
        with pytest.raises(TransportError):
            await anext(reply.chunks())
        reply.close()
        await library.close()


async def test_invalid_http_is_reported_without_the_url() -> None:
    async with web() as server:
        server.on("GET", lambda visit: visit.write(b"SSH-2.0-Open\r\n\r\n"))
        library = ConnectionPool(Settings())
        with pytest.raises(TransportError, match="not valid HTTP") as raised:
            await library.send("GET", server.url + "?key=secret", {})
        assert "secret" not in str(raised.value)
        await library.close()


async def test_bytes_before_a_break_are_delivered() -> None:
    async with web() as server:
        left = asyncio.Event()

        async def cut(visit: Visit) -> None:
            visit.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            visit.end()
            await visit.left()
            left.set()

        server.on("GET", cut)
        library = ConnectionPool(Settings())
        reply = await library.send("GET", server.url, {})
        await left.wait()  # the client has noticed the break, and closed
        assert await anext(reply.chunks()) == b"hello"
        with pytest.raises(TransportError):
            await anext(reply.chunks())
        reply.close()
        await library.close()


async def test_oversized_body_is_not_read_completely() -> None:
    async with web() as server:
        server.on("GET", lambda visit: visit.respond(200, b"x" * 101))
        library = ConnectionPool(Settings())
        with pytest.raises(ReplyTooLarge, match="100 bytes"):
            await read_body(reply := await library.send("GET", server.url, {}), 100)
        reply.close()
        await library.close()


async def test_tcp_keepalive_is_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    real = socket.socket.setsockopt

    class Watched(socket.socket):
        def setsockopt(self, *args: object) -> None:
            if args[:2] == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                kept.append(1)
            real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", Watched)
    async with web() as server:
        library = ConnectionPool(Settings())
        (await library.send("GET", server.url, {})).close()
        await library.close()
    assert kept
