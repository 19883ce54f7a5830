"""The pool: which connections are used again, which requests are sent again, and what a hostile server can do."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio
from tests.contract.connections import client_tls, server_tls, until
from tests.limits import PATIENCE
from tests.unit.transports.http.client.web import Visit, Web, web

from trunkline import Settings
from trunkline.errors import ConfigError, TransportError
from trunkline.transports.http.client import connection_pool, dial
from trunkline.transports.http.client.connection_pool import ConnectionPool
from trunkline.transports.http.client.http_backend import AddressForbidden, Reply, RequestNotSent, read_body

pytestmark = pytest.mark.off_the_record
LIMIT = 10_000_000


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Web]:
    async with web() as made:
        yield made


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(Settings())
    yield made
    await made.close()


async def fetch(pool: ConnectionPool, url: str, method: str = "POST") -> bytes:
    reply = await pool.send(method, url, {}, b"{}" if method == "POST" else None)
    try:
        return await read_body(reply, LIMIT)
    finally:
        reply.close()


# --- use of connections --------------------------------------------------------------------------------


async def test_connection_is_used_again(server: Web, pool: ConnectionPool) -> None:
    for method in ("POST", "GET", "DELETE", "POST"):
        await fetch(pool, server.url, method)
    assert server.connections == 1


async def test_connection_is_free_before_its_response_is_read(server: Web, pool: ConnectionPool) -> None:
    replies = [await pool.send("POST", server.url, {}, b'{"id":%d,"method":"m"}' % number) for number in range(3)]
    assert server.connections == 1
    bodies = [await read_body(reply, LIMIT) for reply in replies]
    assert [b'"id": %d' % number in body for number, body in enumerate(bodies)] == [True] * 3


async def test_cancelled_request_leaves_its_connection_to_the_next_one(server: Web, pool: ConnectionPool) -> None:
    first = asyncio.ensure_future(pool.send("GET", server.url, {}))
    outcomes: asyncio.Queue[Any] = asyncio.Queue()
    while pool.start("POST", server.url, {}, b'{"id":2,"method":"m"}', outcomes.put_nowait) is None:
        await asyncio.sleep(0)  # the response to the first request has arrived when its connection is free …
    assert not first.done()  # … and its task has not run yet
    first.cancel()
    async with asyncio.timeout(PATIENCE):
        second = await outcomes.get()
    assert b'"id": 2' in await read_body(second, LIMIT)
    assert server.connections == 1


async def test_cancelled_request_closes_the_connection_of_an_unfinished_response(
    server: Web, pool: ConnectionPool
) -> None:
    server.on("GET", lambda visit: visit.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{"))
    for turns in range(30):  # the headers of the response arrive after some of them
        request = asyncio.ensure_future(pool.send("GET", server.url, {}))
        for _ in range(turns):
            await asyncio.sleep(0)
        if request.done():
            request.result().close()
        request.cancel()
        await asyncio.wait([request])
    await until(lambda: server.open == 0)


async def test_concurrent_requests_have_their_own_connections(server: Web, pool: ConnectionPool) -> None:
    server.on("POST", lambda visit: None)
    requests = [asyncio.ensure_future(pool.send("POST", server.url, {}, b"{}")) for _ in range(5)]
    await server.visited("POST", 5)
    assert server.connections == 5
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)
    await until(lambda: server.open == 0)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}garbage",
    ],
    ids=["close", "HTTP/1.0", "second response", "garbage"],
)
async def test_unusable_connection_is_not_used_again(server: Web, pool: ConnectionPool, head: bytes) -> None:
    server.on("POST", lambda visit: visit.write(head))
    for number in range(1, 4):
        assert await fetch(pool, server.url) == b"{}"
        assert server.connections == number


async def test_unrequested_response_does_not_answer_the_next_request(server: Web, pool: ConnectionPool) -> None:
    """A response that a server sends early, on an idle connection, must not be taken for that of a later request."""
    visits: list[Visit] = []
    server.on("POST", lambda visit: (visits.append(visit), visit.respond(200, b"{}"))[1])
    await fetch(pool, server.url)
    visits[0].respond(200, b"poison")
    await until(lambda: server.open == 0)
    assert await fetch(pool, server.url) == b"{}"
    assert server.connections == 2


async def test_connection_closed_while_idle_is_not_used_again(server: Web, pool: ConnectionPool) -> None:
    for end in (Visit.end, Visit.hang_up, Visit.reset):
        visits: list[Visit] = []
        server.on("POST", lambda visit, visits=visits: (visits.append(visit), visit.respond(200, b"{}"))[1])
        await fetch(pool, server.url)
        end(visits[0])
        await until(lambda pool=pool: server.open == 0 and not pool._origins)  # both sides know
        assert await fetch(pool, server.url) == b"{}"
        await pool.close()
        pool = ConnectionPool(Settings())
    await pool.close()
    assert len(server.visits) == 6


async def test_connection_closed_in_this_turn_of_the_loop_is_not_used(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the process was busy or suspended: the end of the connection waits in the socket."""
    monkeypatch.setattr(connection_pool, "_TRUSTED_FOR", -1.0)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)

        async def serve() -> socket.socket:
            accepted, _ = await loop.sock_accept(listening)
            await loop.sock_recv(accepted, 1000)
            await loop.sock_sendall(accepted, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return accepted

        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        for _ in range(2):
            serving = asyncio.ensure_future(serve())
            assert await fetch(pool, url) == b"{}"
            (await serving).close()


async def test_idle_connections_are_closed(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "_IDLE_TIMEOUT", 0.01)
    pool = ConnectionPool(Settings())
    await fetch(pool, server.url)
    await until(lambda: server.open == 0)
    await fetch(pool, server.url)
    assert server.connections == 2
    await pool.close()


async def test_closing_idle_connections_leaves_requests_alone(server: Web, pool: ConnectionPool) -> None:
    await fetch(pool, server.url)
    server.on("GET", lambda visit: None)
    request = asyncio.ensure_future(pool.send("GET", server.url, {}))
    visit = await server.visited("GET")
    await fetch(pool, server.url)
    assert server.open == 2
    await pool.close_idle()
    await until(lambda: server.open == 1)
    visit.respond(200, b"late")
    assert await read_body(await request, LIMIT) == b"late"
    await fetch(pool, server.url)
    assert server.connections == 2


async def test_old_idle_connection_is_not_used(
    server: Web, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fetch(pool, server.url)
    monkeypatch.setattr(connection_pool, "_IDLE_TIMEOUT", 0.0)
    await fetch(pool, server.url)
    assert server.connections == 2


async def test_closed_pool_has_no_connections_and_sends_nothing(server: Web) -> None:
    pool = ConnectionPool(Settings())
    await fetch(pool, server.url)
    server.on("POST", lambda visit: visit.chunked())
    reply = await pool.send("POST", server.url, {}, b"{}")
    server.on("POST", lambda visit: None)
    sending = asyncio.ensure_future(pool.send("POST", server.url, {}, b"{}"))
    await server.visited("POST", 3)
    await pool.close()
    await until(lambda: server.open == 0)
    with pytest.raises(TransportError, match="closed"):
        await anext(reply.chunks())
    with pytest.raises(TransportError, match="closed"):
        await sending
    with pytest.raises(RequestNotSent, match="closed"):
        await pool.send("POST", server.url, {}, b"{}")


async def test_unread_response_closes_its_connection(server: Web, pool: ConnectionPool) -> None:
    server.on("POST", lambda visit: visit.chunked())
    (await pool.send("POST", server.url, {}, b"{}")).close()
    await until(lambda: server.open == 0)


# --- repeated requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Visit.hang_up, Visit.reset])
async def test_lost_post_is_never_repeated(server: Web, pool: ConnectionPool, end: Any) -> None:
    await fetch(pool, server.url)
    server.on("POST", end)
    with pytest.raises(TransportError) as raised:
        await fetch(pool, server.url)
    assert not isinstance(raised.value, RequestNotSent)
    assert len(server.visits) == 2


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_idempotent_request_is_repeated_once_if_a_used_connection_was_closed(
    server: Web, pool: ConnectionPool, method: str
) -> None:
    await fetch(pool, server.url)
    server.on(method, Visit.hang_up)
    with pytest.raises(TransportError, match="without a response"):
        await fetch(pool, server.url, method)
    assert len(server.seen(method)) == 2
    with pytest.raises(TransportError):  # on a new connection
        await fetch(pool, server.url, method)
    assert len(server.seen(method)) == 3


async def test_request_is_not_repeated_once_a_response_has_begun(server: Web, pool: ConnectionPool) -> None:
    def cut(visit: Visit) -> None:
        visit.write(b"HTTP/1.1 2")
        visit.hang_up()

    await fetch(pool, server.url)
    server.on("GET", cut)
    with pytest.raises(TransportError, match="broke"):
        await fetch(pool, server.url, "GET")
    assert len(server.seen("GET")) == 1


# --- responses -------------------------------------------------------------------------------------------


async def test_response_to_head_has_no_body(server: Web, pool: ConnectionPool) -> None:
    server.on("HEAD", lambda visit: visit.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"))
    for _ in range(2):
        assert await fetch(pool, server.url, "HEAD") == b""


async def test_interim_responses_are_skipped(server: Web, pool: ConnectionPool) -> None:
    def interim(visit: Visit) -> None:
        visit.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
        visit.respond(200, b"{}")

    server.on("POST", interim)
    assert await fetch(pool, server.url) == await fetch(pool, server.url) == b"{}"
    assert server.connections == 1


async def test_response_may_end_with_its_connection(server: Web, pool: ConnectionPool) -> None:
    def stream(visit: Visit) -> None:
        visit.write(b"HTTP/1.1 200 OK\r\n\r\nhel")
        visit.write(b"lo")
        visit.hang_up()

    server.on("POST", stream)
    assert await fetch(pool, server.url) == b"hello"


async def test_response_before_the_end_of_the_request_is_read(server: Web, pool: ConnectionPool) -> None:
    """As from a server that refuses a body by its announced length: the connection still has unsent bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        sending = asyncio.ensure_future(pool.send("POST", url, {}, b"x" * 30_000_000))
        accepted, _ = await loop.sock_accept(listening)
        with accepted:
            await loop.sock_sendall(accepted, b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            reply = await asyncio.wait_for(sending, PATIENCE)
            assert (reply.status, await read_body(reply, 10)) == (413, b"no")
            reply.close()
            while await loop.sock_recv(accepted, 1 << 20):
                pass  # the client has closed the connection


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-Open\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
    ],
    ids=["other protocol", "upgrade", "two lengths", "endless header", "endless interim responses"],
)
async def test_invalid_response_fails_and_closes_the_connection(server: Web, pool: ConnectionPool, data: bytes) -> None:
    server.on("POST", lambda visit: visit.write(data))
    with pytest.raises(TransportError, match="not valid HTTP"):
        await fetch(pool, server.url)
    await until(lambda: server.open == 0)


async def test_reading_stops_while_nothing_reads_the_response(server: Web, pool: ConnectionPool) -> None:
    """Otherwise a server could fill the memory of a client that is slow, or has paused."""
    sent = 0

    async def flood(visit: Visit) -> None:
        nonlocal sent
        visit.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n")
        while sent < 50_000_000:
            visit.write(b"x" * 100_000)
            sent += 100_000
            await visit._writer.drain()

    server.on("GET", flood)
    reply = await pool.send("GET", server.url, {})
    previous = -1
    while sent != previous:  # as much as the buffers of the system hold
        previous = sent
        for _ in range(200):
            await asyncio.sleep(0)
    assert sent < 50_000_000
    held: Any = reply
    assert held.unread < 2_000_000
    assert sum([len(data) async for data in reply.chunks()]) == 50_000_000
    assert len(await fetch(pool, server.url)) >= 0
    assert server.connections == 1


async def test_cancelled_request_closes_its_connection(server: Web, pool: ConnectionPool) -> None:
    server.on("POST", lambda visit: None)
    sending = asyncio.ensure_future(pool.send("POST", server.url, {}, b"{}"))
    await server.visited("POST")
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await until(lambda: server.open == 0)


async def test_invalid_header_is_not_sent(server: Web, pool: ConnectionPool) -> None:
    with pytest.raises(RequestNotSent, match="must not contain"):
        await pool.send("GET", server.url, {"Last-Event-ID": "1\r\nX: 2"})
    assert not server.visits


async def test_many_urls_and_headers_are_not_remembered_for_ever(server: Web, pool: ConnectionPool) -> None:
    for number in range(200):
        reply: Reply = await pool.send("GET", f"{server.url}?{number}", {"X": str(number)})
        reply.close()
    assert len(pool._targets) <= 64
    assert len(pool._header_blocks) <= 64
    assert server.visits[-1].headers["x"] == "199"


# --- addresses -------------------------------------------------------------------------------------------


def resolving(*addresses: str) -> Any:
    async def resolve(host: str) -> list[str]:
        assert host == "service.test"
        return list(addresses)

    return resolve


async def test_next_address_is_tried_if_one_refuses(server: Web) -> None:
    pool = ConnectionPool(Settings(), resolve=resolving("127.0.0.2", "127.0.0.3", "127.0.0.1"))
    assert await fetch(pool, f"http://service.test:{server.port}/mcp", "GET") == b""
    await pool.close()


async def test_next_address_is_tried_if_one_is_silent(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "_STAGGER", 0.01)
    original, silent = dial._connect, asyncio.Event()

    async def connect(address: Any, vet: Any) -> socket.socket:
        if address.host == "127.0.0.2":
            await silent.wait()
        return await original(address, vet)

    monkeypatch.setattr(dial, "_connect", connect)
    pool = ConnectionPool(Settings(), resolve=resolving("127.0.0.2", "127.0.0.1"))
    await fetch(pool, f"http://service.test:{server.port}/mcp", "GET")
    await pool.close()


async def test_error_of_the_first_address_is_reported() -> None:
    pool = ConnectionPool(Settings(), resolve=resolving("127.0.0.2", "127.0.0.3"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.2", 0))
        with pytest.raises(RequestNotSent, match="no server is listening"):
            await pool.send("GET", f"http://service.test:{unused.getsockname()[1]}/", {})
    await pool.close()


async def test_name_without_addresses_is_reported() -> None:
    pool = ConnectionPool(Settings(), resolve=resolving())
    with pytest.raises(RequestNotSent, match=r"service\.test has no address"):
        await pool.send("GET", "http://service.test/", {})
    await pool.close()


async def test_one_forbidden_address_forbids_the_name(server: Web) -> None:
    def vet(address: str) -> str | None:
        return "private" if address == "10.0.0.1" else None

    pool = ConnectionPool(Settings(), resolve=resolving("127.0.0.1", "10.0.0.1"), vet=vet)
    with pytest.raises(AddressForbidden, match="private"):
        await pool.send("GET", f"http://service.test:{server.port}/", {})
    with pytest.raises(AddressForbidden):
        await pool.send("GET", "http://167772161/", {})
    await pool.close()
    assert server.connections == 0


def test_address_families_alternate() -> None:
    addresses = [dial._SocketAddress(family, (str(number),)) for number, family in enumerate([10, 10, 10, 2, 2])]
    assert [address.host for address in dial._alternate_families(addresses)] == ["0", "3", "1", "4", "2"]


# --- TLS and proxies -------------------------------------------------------------------------------------


async def test_tls_connection_is_used_again() -> None:
    async with web(server_tls()) as server:
        pool = ConnectionPool(Settings(), tls=client_tls())
        for _ in range(3):
            await fetch(pool, server.url)
        assert server.connections == 1
        server.on("POST", lambda visit: visit.stream(b"until the end"))
        reply = await pool.send("POST", server.url, {}, b"{}")
        server.visits[-1].hang_up()
        assert await read_body(reply, LIMIT) == b"until the end"
        await pool.close()


async def test_secure_and_plain_connections_are_kept_apart(server: Web) -> None:
    pool = ConnectionPool(Settings(connect_timeout=0.1), tls=client_tls())
    await fetch(pool, server.url)
    with pytest.raises(RequestNotSent):
        await fetch(pool, server.url.replace("http:", "https:"))
    assert len(server.visits) == 1
    await pool.close()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "127.0.0.1:1", "http://"])
async def test_invalid_proxy_is_a_configuration_error(proxy: str) -> None:
    with pytest.raises(ConfigError, match="a proxy has an address like"):
        ConnectionPool(Settings(), proxy=proxy)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 502 Bad\r\n\r\n", b"garbage\r\n\r\n", b"x" * 100_000])
async def test_refusing_proxy_is_reported_as_not_sent(server: Web, answer: bytes) -> None:
    server.on("CONNECT", lambda visit: visit.write(answer))
    pool = ConnectionPool(Settings(), proxy=f"http://127.0.0.1:{server.port}")
    with pytest.raises(RequestNotSent, match="the proxy at"):
        await pool.send("POST", "https://service.test/", {}, b"{}")
    await pool.close()
    await until(lambda: server.open == 0)


async def test_proxy_over_tls_is_used() -> None:
    async with web(server_tls()) as proxy:
        pool = ConnectionPool(Settings(), tls=client_tls(), proxy=f"https://u:p@localhost:{proxy.port}")
        for _ in range(2):
            await fetch(pool, "http://service.test/mcp", "GET")
        await pool.close()
    assert [(visit.path, visit.headers["host"]) for visit in proxy.visits] == [
        ("http://service.test/mcp", "service.test")
    ] * 2
    assert proxy.visits[0].headers["proxy-authorization"] == "Basic dTpw"
    assert proxy.connections == 1


class Hasty(asyncio.Protocol):
    """Server that sends bytes, or closes, as soon as a connection is open."""

    sends = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        if self.sends:
            made.write(self.sends)
        else:
            made.close()


@pytest.mark.parametrize("sends", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"bytes", b""])
async def test_connection_that_ends_before_its_request_fails(sends: bytes) -> None:
    """With TLS 1.2 the first bytes of the server arrive together with the end of the handshake."""
    tls = client_tls()
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
    server = await asyncio.get_running_loop().create_server(
        type("Sends", (Hasty,), {"sends": sends}), "127.0.0.1", ssl=server_tls()
    )
    pool = ConnectionPool(Settings(), tls=tls)
    try:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(TransportError):
            await asyncio.wait_for(pool.send("POST", url, {}, b"{}"), PATIENCE)
    finally:
        await pool.close()
        server.close()
