"""Connections of the built-in listener: requests in order, bodies, streams, deadlines, and the end in every state."""

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.attacks import websocket_frames as frames
from tests.attacks.attacked_server import listening
from tests.attacks.raw import Answer, Caller, begin, call, request, text_of, tool, until, within
from tests.attacks.test_parsing import chunked

from trunkline import Settings
from trunkline.facts import ConnectionFailed, Observers
from trunkline.testing import ManualClock, RecordingObserver
from trunkline.transports.http.connection import HttpConnections
from trunkline.transports.http.request import BodyTooLarge, Disconnected, Handling, HttpRequest
from trunkline.transports.listener_limits import ListenerGuard

BUFFER_LIMIT = 64 * 1024
ONE_READ = 256 * 1024  # the most that either loop passes on at once
TEXT = (b"content-type", b"text/plain")
CLOSE = (b"connection", b"close")


class Site:
    """Handler with a function for each path, and the requests that it has seen."""

    def __init__(self, settings: Settings) -> None:
        self.clock = ManualClock()
        self.observer = RecordingObserver()
        self.guard = ListenerGuard(_accept_nothing, settings, self.clock, observers=Observers([self.observer]))
        self.connections = HttpConnections(self.guard, self)
        self.port = 0
        self.seen: list[HttpRequest] = []
        self.bodies: list[bytes | None] = []  # as far as they had arrived
        self.gate = asyncio.Event()
        self.read: list[bytes | type[Exception]] = []  # what readers of bodies got
        self.routes: dict[str, Callable[[HttpRequest], Handling]] = {
            "/now": lambda request: request.respond(200, request.path.encode(), TEXT),
            "/wait": self._wait,
            "/read": self._read,
            "/wait-and-read": self._wait_and_read,
            "/silent": lambda _: None,
        }

    def handle(self, request: HttpRequest) -> Handling:
        self.seen.append(request)
        self.bodies.append(request.body)
        return self.routes[request.path](request)

    handle_upgrade = handle

    async def _wait(self, request: HttpRequest) -> None:
        await self.gate.wait()
        request.respond(200, request.path.encode(), TEXT)

    async def _read(self, request: HttpRequest) -> None:
        try:
            self.read.append(await request.read_body(1000))
        except BodyTooLarge:
            self.read.append(BodyTooLarge)
            request.respond(413, b"", CLOSE)
        except Disconnected:
            self.read.append(Disconnected)
            request.respond(500)
        else:
            request.respond(200, self.read[-1], TEXT)

    async def _wait_and_read(self, request: HttpRequest) -> None:
        await self.gate.wait()
        await self._read(request)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.seen]

    @property
    def failures(self) -> list[ConnectionFailed]:
        return self.observer.of(ConnectionFailed)

    async def until_seen(self, count: int = 1) -> None:
        await until(lambda: len(self.seen) >= count, "the request")

    async def until_closed(self) -> None:
        await until(lambda: not self.connections.open, "the end of all connections")


def _accept_nothing(channel: Any) -> Any:
    raise AssertionError(channel)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Site]:
    site = Site(Settings(**settings))
    server = await asyncio.get_running_loop().create_server(site.connections.make, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()
        await site.connections.shut_down(0.0)


async def ask(caller: Caller, method: str, path: str, body: bytes | None = None, **headers: Any) -> Answer:
    caller.say(request(method, path, body, **headers))
    return await caller.answer(method)


def reset(caller: Caller) -> None:
    """Close a connection so that the server notices at once: a closed socket looks half-closed until it is written to."""
    sock: socket.socket = caller.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.writer.transport.abort()


def head_of(path: str, length: int, **headers: str) -> bytes:
    """The head of a request whose body is sent apart."""
    return request("POST", path, b"", content_length=str(length), **headers)


# --- requests and responses ---------------------------------------------------------------------------


async def test_pipelined_requests_are_handled_one_at_a_time_in_order() -> None:
    async with serving() as site, Caller(site.port) as caller:
        paths = ["/now", "/wait", "/now", "/read", "/now"]
        caller.say(b"".join(request("POST", path, b"body") for path in paths))
        await site.until_seen(2)
        await asyncio.sleep(0)
        assert site.paths == paths[:2]
        site.gate.set()
        answers = [(await caller.answer()).body for _ in paths]
        assert answers == [b"/now", b"/wait", b"/now", b"body", b"/now"]
        assert site.bodies == [b"body"] * 5


async def test_request_has_its_parts_and_peer() -> None:
    async with serving() as site, Caller(site.port) as caller:
        data = request("POST", "/now/?a=%20", b"{}", ("x-a", "1"), ("X-A", "2"))
        caller.say(data)
        await caller.answer()
        [seen] = site.seen
        assert (seen.method, seen.path, seen.query, seen.body, seen.scheme) == ("POST", "/now", b"a=%20", b"{}", "http")
        assert (seen.headers[b"x-a"], list(seen.repeated)) == (b"1, 2", [b"x-a"])
        assert seen.client == caller.writer.get_extra_info("sockname")
        assert seen.server == ("127.0.0.1", site.port)


async def test_response_to_head_has_no_body() -> None:
    async with serving() as site, Caller(site.port) as caller:
        answer = await ask(caller, "HEAD", "/now")
        assert (answer.status, answer.headers["content-length"]) == (200, "4")
        assert (await ask(caller, "GET", "/now")).body == b"/now"


@pytest.mark.parametrize("status", [204, 304])
async def test_response_without_body_has_no_content_length(status: int) -> None:
    async with serving() as site, Caller(site.port) as caller:
        site.routes["/none"] = lambda request: request.respond(status)
        caller.say(request("GET", "/none"))
        assert "content-length" not in (await caller.head()).headers
        assert (await ask(caller, "GET", "/now")).body == b"/now"


async def test_connection_header_closes_after_the_response() -> None:
    async with serving() as site:
        site.routes["/last"] = lambda request: request.respond(200, b"last", CLOSE)
        for path, asked in (("/now", {"connection": "close"}), ("/last", {})):
            async with Caller(site.port) as caller:
                caller.say(request("GET", path, **asked) + request("GET", "/now"))
                answer = await caller.answer()
                assert (answer.status, answer.headers["connection"]) == (200, "close")
                assert await caller.rest() == b""
        assert site.paths == ["/now", "/last"]


async def test_http_1_0_connection_closes_unless_kept() -> None:
    async with serving() as site:
        data = request("GET", "/now").replace(b"HTTP/1.1", b"HTTP/1.0")
        async with Caller(site.port) as caller:
            caller.say(data)
            assert (await caller.answer()).body == b"/now"
            assert await caller.rest() == b""


async def test_second_response_and_response_to_absent_peer_are_dropped() -> None:
    async with serving() as site:

        def twice(request: HttpRequest) -> None:
            request.respond(200, b"first")
            request.respond(500, b"second")

        site.routes["/twice"] = twice
        async with Caller(site.port) as caller:
            assert (await ask(caller, "GET", "/twice")).body == b"first"
            assert (await ask(caller, "GET", "/now")).body == b"/now"
            caller.say(request("GET", "/silent"))
            await site.until_seen(3)
            reset(caller)
        await site.until_closed()
        late = site.seen[-1]
        assert late.disconnected
        late.respond(200, b"late")
        await late.begin_stream()
        assert not late.write_nowait(b"late")
        await late.write(b"late")
        await late.end_stream()
        assert site.failures == []


async def test_header_with_line_break_is_never_written() -> None:
    async with serving() as site, Caller(site.port) as caller:
        site.routes["/split"] = lambda request: request.respond(200, b"", (b"x-a", b"1\r\nx-b: 2"))
        caller.say(request("GET", "/split"))
        assert await caller.rest() == b""
        assert [type(failure.error) for failure in site.failures] == [ValueError]


# --- reading --------------------------------------------------------------------------------------------


async def test_reading_pauses_while_requests_wait() -> None:
    async with serving() as site, Caller(site.port) as caller:
        one = request("GET", "/now")
        count = 8 * ONE_READ // len(one)
        caller.say(request("GET", "/wait") + one * count)
        await site.until_seen()
        [connection] = site.connections.open
        await until(lambda: len(connection._buffer) > BUFFER_LIMIT, "the requests behind it")
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(connection._buffer) <= BUFFER_LIMIT + ONE_READ
        site.gate.set()
        assert (await caller.answer()).body == b"/wait"
        for _ in range(count):
            assert (await caller.answer()).body == b"/now"
            assert len(connection._buffer) <= BUFFER_LIMIT + ONE_READ


@pytest.mark.parametrize("in_chunks", [False, True], ids=["length", "chunks"])
async def test_body_arrives_in_any_split(in_chunks: bool) -> None:
    if in_chunks:
        data = request("POST", "/read", b"", content_length=None, transfer_encoding="chunked")
        data += chunked(b"hello", b"x-trailer: 1\r\n")
    else:
        data = request("POST", "/read", b"hello")
    async with serving() as site, Caller(site.port) as caller:
        for at in range(1, len(data)):
            caller.say(data[:at])
            await caller.all_said()
            await asyncio.sleep(0.001)
            caller.say(data[at:])
            assert (await caller.answer()).body == b"hello", data[:at]
        assert set(site.read) == {b"hello"}


async def test_body_that_has_arrived_before_it_is_read_is_read() -> None:
    async with serving() as site, Caller(site.port) as caller:
        caller.say(head_of("/wait-and-read", 5))
        await site.until_seen()
        caller.say(b"hello" + request("GET", "/now"))
        [connection] = site.connections.open
        await until(lambda: connection._buffer, "the body")
        site.gate.set()
        assert (await caller.answer()).body == b"hello"
        assert (await caller.answer()).body == b"/now"


async def test_reading_pauses_until_a_long_body_is_read() -> None:
    async with serving() as site, Caller(site.port) as caller:
        got: list[bytes] = []
        size = 16 * ONE_READ

        async def read_late(request: HttpRequest) -> None:
            await site.gate.wait()
            got.append(await request.read_body(size))
            request.respond(200, b"read")

        site.routes["/late"] = read_late
        caller.say(head_of("/late", size))
        await site.until_seen()
        caller.say(b"x" * size)
        [connection] = site.connections.open
        await until(lambda: connection._read_paused, "the pause")
        assert connection._body is not None
        assert connection._body.size <= BUFFER_LIMIT + ONE_READ
        site.gate.set()
        assert (await caller.answer()).body == b"read"
        assert got == [b"x" * size]


async def test_rest_of_the_handling_begins_at_once_where_python_can_do_that() -> None:
    async with serving() as site, Caller(site.port) as caller:
        order: list[str] = []

        async def respond(request: HttpRequest) -> None:
            order.append("begun")
            request.respond(200, b"done")

        def handle(request: HttpRequest) -> None:
            request.run(respond(request))
            order.append("handed over")

        site.routes["/later"] = handle
        caller.say(request("GET", "/later"))
        assert (await caller.answer()).body == b"done"
        assert order == (["begun", "handed over"] if sys.version_info >= (3, 12) else ["handed over", "begun"])


@pytest.mark.parametrize("in_chunks", [False, True], ids=["length", "chunks"])
async def test_body_over_the_limit_is_reported_early(in_chunks: bool) -> None:
    async with serving() as site, Caller(site.port) as caller:
        if in_chunks:
            caller.say(request("POST", "/read", b"", content_length=None, transfer_encoding="chunked"))
            await site.until_seen()
            caller.say(b"7d0\r\n" + b"x" * 1500)
        else:
            caller.say(head_of("/read", 2000) + b"x" * 1500)
        assert (await caller.answer()).status == 413
        assert site.read == [BodyTooLarge]


async def test_disconnect_during_a_body_ends_its_reader() -> None:
    async with serving() as site:
        async with Caller(site.port) as caller:
            caller.say(head_of("/read", 10) + b"x")
            await site.until_seen()
        await until(lambda: site.read, "the end of the read")
        assert site.read == [Disconnected]


@pytest.mark.parametrize("answered", [False, True], ids=["before its response", "after its response"])
async def test_invalid_chunk_closes_the_connection(answered: bool) -> None:
    async with serving() as site, Caller(site.port) as caller:
        caller.say(
            request("POST", "/now" if answered else "/read", b"", content_length=None, transfer_encoding="chunked")
        )
        if answered:
            assert (await caller.answer()).body == b"/now"
        else:
            await site.until_seen()
        caller.say(b"5\nhello\r\n")
        answer = await caller.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert await caller.rest() == b""


@pytest.mark.parametrize(("data", "status"), [(b"GET  / HTTP/1.1\r\n\r\n", 400), (b"GET /" + b"a" * 2000, 414)])
async def test_invalid_head_is_refused_and_the_connection_closed(data: bytes, status: int) -> None:
    async with serving(max_header_bytes=1000) as site, Caller(site.port) as caller:
        caller.say(request("GET", "/now") + data)
        assert (await caller.answer()).status == 200
        answer = await caller.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert await caller.rest() == b""
        assert (site.paths, site.failures) == (["/now"], [])


# --- Expect: 100-continue ---------------------------------------------------------------------------------


async def test_body_is_asked_for_when_it_is_read() -> None:
    async with serving() as site, Caller(site.port) as caller:
        caller.say(head_of("/wait-and-read", 5, expect="100-continue"))
        await site.until_seen()
        site.gate.set()
        assert (await caller.head()).status == 100
        caller.say(b"hello")
        answer = await caller.answer()
        assert (answer.status, answer.body) == (200, b"hello")
        assert (await ask(caller, "GET", "/now")).body == b"/now"


async def test_refusal_of_an_expected_body_closes_the_connection() -> None:
    async with serving() as site, Caller(site.port) as caller:
        caller.say(head_of("/now", 5, expect="100-continue"))
        answer = await caller.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await caller.rest() == b""


async def test_body_that_is_sent_anyway_is_not_asked_for() -> None:
    async with serving() as site, Caller(site.port) as caller:
        caller.say(head_of("/wait-and-read", 5, expect="100-continue") + b"he")
        await site.until_seen()
        site.gate.set()
        await asyncio.sleep(0)
        caller.say(b"llo")
        answer = await caller.answer()
        assert (answer.status, answer.body) == (200, b"hello")


async def test_http_1_0_client_is_not_asked_for_its_body() -> None:
    async with serving() as site, Caller(site.port) as caller:
        caller.say(head_of("/read", 5, expect="100-continue").replace(b"HTTP/1.1", b"HTTP/1.0"))
        await site.until_seen()
        caller.say(b"hello")
        assert (await caller.answer()).status == 200


# --- responses before the end of the body -------------------------------------------------------------------


@pytest.mark.parametrize("in_chunks", [False, True], ids=["length", "chunks"])
async def test_rest_of_an_unread_body_is_discarded(in_chunks: bool) -> None:
    async with serving() as site, Caller(site.port) as caller:
        hidden = request("GET", "/silent")
        if in_chunks:
            caller.say(request("POST", "/now", b"", content_length=None, transfer_encoding="chunked"))
            body = chunked(hidden)
        else:
            caller.say(head_of("/now", len(hidden)))
            body = hidden
        assert (await caller.answer()).body == b"/now"
        for byte in body:
            caller.say(bytes([byte]))
            await caller.all_said()
        assert (await ask(caller, "GET", "/now")).body == b"/now"
        assert site.paths == ["/now", "/now"]


async def test_discarding_ends_at_the_size_limit() -> None:
    async with serving(http_body_size_limit=100_000) as site, Caller(site.port) as caller:
        caller.say(head_of("/now", 10_000_000))
        assert (await caller.answer()).body == b"/now"
        with contextlib.suppress(OSError):
            while site.connections.open:
                caller.say(b"x" * 10_000)
                await caller.all_said()
                await asyncio.sleep(0.001)
        await site.until_closed()
        assert site.paths == ["/now"]


async def test_discarding_ends_at_its_deadline() -> None:
    async with serving(header_timeout=5.0, idle_timeout=100.0) as site, Caller(site.port) as caller:
        caller.say(head_of("/now", 10))
        assert (await caller.answer()).body == b"/now"
        site.clock.advance(4.0)
        caller.say(b"x")
        await caller.all_said()
        assert site.connections.open
        site.clock.advance(2.0)
        assert (await caller.answer()).status == 408
        assert await caller.rest() == b""


async def test_connection_is_idle_after_a_discarded_body() -> None:
    async with serving(header_timeout=5.0, idle_timeout=100.0) as site, Caller(site.port) as caller:
        caller.say(head_of("/now", 5))
        assert (await caller.answer()).body == b"/now"
        caller.say(b"hello")
        [connection] = site.connections.open
        await until(lambda: connection._body is None, "the body")
        site.clock.advance(99.0)
        assert (await ask(caller, "GET", "/now")).body == b"/now"


async def sent(port: int, *parts: bytes) -> bytes:
    """Send all parts from a socket that reads nothing before; return what it then reads up to the end."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        for part in parts:
            await within(loop.sock_sendall(sock, part), "a server that reads")
            await asyncio.sleep(0.005)
        found = b""
        while data := await within(loop.sock_recv(sock, 1 << 16), "the response"):
            found += data
        return found


async def test_peer_that_is_still_sending_can_read_the_response() -> None:
    async with serving(http_body_size_limit=1024) as site:
        refused: dict[str, Any] = {"connection": "close"}
        parts = [b"x" * 10_000] * 20
        found = await sent(site.port, head_of("/now", 10_000_000, **refused), *parts)
        assert found.startswith(b"HTTP/1.1 200 OK\r\n")
        assert found.endswith(b"/now")


async def test_peer_that_sends_too_much_can_read_the_refusal() -> None:
    async with serving(http_body_size_limit=1024) as site:
        found = await sent(site.port, head_of("/read", 10_000_000), *([b"x" * 10_000] * 20))
        assert found.startswith(b"HTTP/1.1 413 ")
        assert site.read == [BodyTooLarge]


async def test_nothing_is_handled_after_the_last_response() -> None:
    async with serving() as site, Caller(site.port) as caller:
        caller.say(head_of("/now", 5, connection="close"))
        assert (await caller.answer()).headers["connection"] == "close"
        caller.say(b"hello" + request("GET", "/wait"))
        await caller.all_said()
        assert await caller.rest() == b""
        caller.writer.close()
        await site.until_closed()
        assert (site.paths, site.failures) == (["/now"], [])


# --- streams ------------------------------------------------------------------------------------------------


async def test_stream_is_sent_in_chunks_and_the_connection_kept() -> None:
    async with serving() as site, Caller(site.port) as caller:

        async def stream(request: HttpRequest) -> None:
            await request.begin_response(200, (TEXT,))
            assert request.write_nowait(b"one")
            await request.write(b"two")
            await request.end_stream()
            assert not request.write_nowait(b"three")

        site.routes["/stream"] = stream
        caller.say(request("GET", "/stream") + request("GET", "/now"))
        head = await caller.head()
        assert (head.headers["transfer-encoding"], "content-length" in head.headers) == ("chunked", False)
        assert [piece async for piece in caller.pieces()] == [b"one", b"two"]
        assert (await caller.answer()).body == b"/now"


async def test_stream_to_http_1_0_ends_with_the_connection() -> None:
    async with serving() as site, Caller(site.port) as caller:

        async def stream(request: HttpRequest) -> None:
            await request.begin_response(200, (TEXT,))
            await request.write(b"one")
            await request.write(b"two")
            await request.end_stream()

        site.routes["/stream"] = stream
        caller.say(request("GET", "/stream", connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"))
        head = await caller.head()
        assert ("transfer-encoding" in head.headers, head.headers["connection"]) == (False, "close")
        assert await caller.rest() == b"onetwo"


def flood(site: Site, written: list[int], size: int, count: int) -> Callable[[HttpRequest], Handling]:
    """A handler that streams more than any buffer holds."""

    async def stream(request: HttpRequest) -> None:
        await request.begin_response(200, (TEXT,))
        for number in range(count):
            await request.write(b"%08d" % number * (size // 8))
            if request.disconnected:
                return
            written.append(number)
        await request.end_stream()

    return stream


async def test_stream_waits_for_a_slow_reader() -> None:
    async with serving() as site, Caller(site.port) as caller:
        written: list[int] = []
        size, count = 1 << 16, 1000
        site.routes["/flood"] = flood(site, written, size, count)
        caller.say(request("GET", "/flood"))
        await site.until_seen()
        [connection] = site.connections.open
        await until(lambda: connection._drained is not None, "a full buffer")
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(written) < count
        assert not site.seen[0].write_nowait(b"x")
        await caller.head()
        found = b"".join([piece async for piece in caller.pieces()])
        assert found == b"".join(b"%08d" % number * (size // 8) for number in range(count))
        assert (await ask(caller, "GET", "/now")).body == b"/now"


async def test_stream_to_a_peer_that_does_not_read_ends_at_the_write_deadline() -> None:
    async with serving(write_timeout=30.0) as site, Caller(site.port) as caller:
        written: list[int] = []
        site.routes["/flood"] = flood(site, written, 1 << 16, 1000)
        caller.writer.transport.pause_reading()
        caller.say(request("GET", "/flood"))
        await site.until_seen()
        [connection] = site.connections.open
        await until(lambda: connection._drained is not None, "a full buffer")
        site.clock.advance(31.0)
        await site.until_closed()
        await until(lambda: not site.connections.tasks, "the end of the stream")
        assert site.seen[0].disconnected
        assert len(written) < 1000


async def test_requests_behind_an_unread_response_wait() -> None:
    async with serving() as site, Caller(site.port) as caller:
        site.routes["/much"] = lambda request: request.respond(200, b"x" * (32 << 20))
        caller.writer.transport.pause_reading()
        caller.say(request("GET", "/much") + request("GET", "/now"))
        await site.until_seen()
        for _ in range(100):
            await asyncio.sleep(0)
        assert site.paths == ["/much"]
        caller.writer.transport.resume_reading()
        assert len((await caller.answer()).body) == 32 << 20
        assert (await caller.answer()).body == b"/now"


# --- the peer's end -------------------------------------------------------------------------------------------


async def test_disconnect_is_reported_to_the_request_in_progress() -> None:
    async with serving() as site:
        async with Caller(site.port) as caller:
            caller.say(request("GET", "/silent"))
            await site.until_seen()
            gone = asyncio.Event()
            site.seen[0].when_disconnected(gone.set)
            reset(caller)
        await within(gone.wait(), "the disconnect")
        late: list[bool] = []
        site.seen[0].when_disconnected(lambda: late.append(True))
        assert late == [True]


async def test_complete_requests_are_answered_after_half_close() -> None:
    async with serving() as site, Caller(site.port) as caller:
        caller.say(request("GET", "/wait") + request("GET", "/now"))
        await site.until_seen()
        half_closed = asyncio.Event()
        site.seen[0].when_half_closed(half_closed.set)
        caller.writer.write_eof()
        await within(half_closed.wait(), "the half-close")
        again: list[bool] = []
        site.seen[0].when_half_closed(lambda: again.append(True))
        assert again == [True]
        site.gate.set()
        assert [(await caller.answer()).body for _ in range(2)] == [b"/wait", b"/now"]
        assert await caller.rest() == b""


@pytest.mark.parametrize("rest", [b"GET /n", head_of("/read", 5) + b"hel"], ids=["in its head", "in its body"])
async def test_incomplete_request_behind_others_ends_with_half_close(rest: bytes) -> None:
    async with serving() as site, Caller(site.port) as caller:
        caller.say(request("GET", "/wait") + rest)
        await site.until_seen()
        half_closed = asyncio.Event()
        site.seen[0].when_half_closed(half_closed.set)
        caller.writer.write_eof()
        await within(half_closed.wait(), "the half-close")
        site.gate.set()
        assert (await caller.answer()).body == b"/wait"
        assert await caller.rest(10) == b""
        assert site.read in ([], [Disconnected])


async def test_requests_behind_an_unread_response_are_answered_after_half_close() -> None:
    async with serving() as site, Caller(site.port) as caller:
        site.routes["/much"] = lambda request: request.respond(200, b"x" * (32 << 20))
        caller.writer.transport.pause_reading()
        caller.say(request("GET", "/much") + request("GET", "/now"))
        caller.writer.write_eof()
        await site.until_seen()
        for _ in range(100):
            await asyncio.sleep(0.001)
        caller.writer.transport.resume_reading()
        assert len((await caller.answer()).body) == 32 << 20
        assert (await caller.answer()).body == b"/now"
        assert await caller.rest() == b""


# --- deadlines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\r\n", b"GET /now HTTP/1.1\r\n"], ids=["nothing", "an empty line", "a line"])
async def test_head_has_a_deadline(data: bytes) -> None:
    async with serving(header_timeout=10.0, idle_timeout=100.0) as site, Caller(site.port) as caller:
        await until(lambda: site.connections.open, "the connection")
        site.clock.advance(9.0)
        caller.say(data)
        await caller.all_said()
        await asyncio.sleep(0.01)
        assert site.connections.open
        site.clock.advance(2.0)  # bytes do not extend it
        answer = await caller.answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert await caller.rest() == b""


async def test_each_head_has_a_deadline_of_its_own() -> None:
    async with serving(header_timeout=10.0, idle_timeout=100.0) as site, Caller(site.port) as caller:
        for _ in range(3):
            site.clock.advance(8.0)
            assert (await ask(caller, "GET", "/now")).status == 200
        site.clock.advance(8.0)
        caller.say(b"GET /now HTTP/1.1\r\n")
        [connection] = site.connections.open
        await until(lambda: connection._head is not None, "the beginning of the head")
        site.clock.advance(9.0)
        assert site.connections.open
        site.clock.advance(2.0)
        assert (await caller.answer()).status == 408


async def test_request_in_progress_has_no_deadline() -> None:
    async with serving(header_timeout=10.0, idle_timeout=10.0, write_timeout=10.0) as site, Caller(site.port) as caller:
        caller.say(request("GET", "/wait") + b"GET /no")
        await site.until_seen()
        site.clock.advance(1000.0)
        site.gate.set()
        assert (await caller.answer()).body == b"/wait"
        caller.say(b"w HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await caller.answer(), site.paths)[1] == ["/wait", "/now"]


async def test_idle_connection_is_closed_without_a_response() -> None:
    async with serving(header_timeout=1.0, idle_timeout=50.0) as site, Caller(site.port) as caller:
        assert (await ask(caller, "GET", "/now")).status == 200
        site.clock.advance(49.0)
        assert (await ask(caller, "GET", "/now")).status == 200
        site.clock.advance(49.0)
        assert site.connections.open
        site.clock.advance(2.0)
        assert await caller.rest() == b""


async def test_deadlines_end_with_their_connections() -> None:
    async with serving() as site:
        for data in (b"", b"GET", request("GET", "/now"), head_of("/now", 5)):
            async with Caller(site.port) as caller:
                caller.say(data)
                await caller.all_said()
                await until(lambda: site.connections.open, "the connection")
            await site.until_closed()
        deadlines = (site.connections.reading, site.connections.writing)
        assert [len(each._since) for each in deadlines] == [0, 0]


async def test_idle_connections_are_closed_each_in_its_time() -> None:
    async with (
        serving(header_timeout=100.0, idle_timeout=64.0) as site,
        Caller(site.port) as first,
        Caller(site.port) as second,
    ):
        for caller in (first, second):
            assert (await ask(caller, "GET", "/now")).status == 200
            site.clock.advance(30.0)
        site.clock.advance(5.0)  # 65 and 35 seconds
        assert await first.rest() == b""
        await until(lambda: len(site.connections.open) == 1, "the end of the first connection")
        site.clock.advance(28.0)
        assert site.connections.open
        site.clock.advance(2.0)
        assert await second.rest() == b""


async def test_idle_deadline_begins_anew_after_all_were_busy() -> None:
    async with serving(idle_timeout=10.0) as site, Caller(site.port) as caller:
        assert (await ask(caller, "GET", "/now")).status == 200
        caller.say(request("GET", "/wait"))
        await site.until_seen(2)
        site.clock.advance(100.0)
        site.gate.set()
        assert (await caller.answer()).status == 200
        site.clock.advance(9.0)
        assert site.connections.open
        site.clock.advance(2.0)
        assert await caller.rest() == b""


# --- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "in a task"])
async def test_fault_of_the_handler_is_one_incident_and_a_500(waits: bool) -> None:
    async with serving() as site, Caller(site.port) as other:

        async def fail_later(_: HttpRequest) -> None:
            await asyncio.sleep(0)
            raise KeyError("broken")

        def fail(_: HttpRequest) -> None:
            raise KeyError("broken")

        site.routes["/fail"] = fail_later if waits else fail
        assert (await ask(other, "GET", "/now")).status == 200
        async with Caller(site.port) as caller:
            caller.say(request("GET", "/fail") + request("GET", "/now"))
            answer = await caller.answer()
            assert (answer.status, answer.headers["connection"]) == (500, "close")
            assert await caller.rest() == b""
        [failure] = site.failures
        assert failure.incident in answer.body.decode()
        assert (failure.transport, str(failure.error)) == ("http", "'broken'")
        assert failure.peer.startswith("127.0.0.1:")
        assert site.paths == ["/now", "/fail"]
        assert (await ask(other, "GET", "/now")).status == 200


async def test_fault_in_a_stream_breaks_it_off() -> None:
    async with serving() as site, Caller(site.port) as caller:

        async def fail(request: HttpRequest) -> None:
            await request.begin_stream()
            raise KeyError("broken")

        site.routes["/fail"] = fail
        caller.say(request("GET", "/fail"))
        assert b"0\r\n\r\n" not in await caller.rest()
        assert len(site.failures) == 1


async def test_fault_after_the_response_is_reported_only() -> None:
    async with serving() as site, Caller(site.port) as caller:

        def fail(request: HttpRequest) -> None:
            request.respond(200, b"answered")
            raise KeyError("broken")

        site.routes["/fail"] = fail
        assert (await ask(caller, "GET", "/fail")).body == b"answered"
        assert (await ask(caller, "GET", "/now")).body == b"/now"
        assert len(site.failures) == 1


async def test_fault_of_a_disconnect_callback_is_contained() -> None:
    async with serving() as site:
        async with Caller(site.port) as caller:
            caller.say(request("GET", "/silent"))
            await site.until_seen()
            site.seen[0].when_disconnected(lambda: {}["broken"])
            reset(caller)
        await until(lambda: site.failures, "the report")
        assert not site.connections.open


# --- admission and shutdown -----------------------------------------------------------------------------------------


@pytest.mark.row("Q08")
async def test_connection_over_the_limit_is_refused() -> None:
    async with serving(max_connections=1) as site, Caller(site.port) as first:
        assert (await ask(first, "GET", "/now")).status == 200
        async with Caller(site.port) as caller:
            answer = await caller.answer()
            assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (503, "30", "close")
            assert await caller.rest() == b""
        await until(lambda: len(site.connections.open) == 1, "the end of the refused connection")
        assert (await ask(first, "GET", "/now")).status == 200


@pytest.mark.row("Q08")
async def test_connection_to_a_stopping_server_is_refused() -> None:
    async with serving() as site:
        site.guard.stop_admitting()
        async with Caller(site.port) as caller:
            answer = await caller.answer()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.refusal["data"]["kind"] == "temporarily_unavailable"
            assert await caller.rest() == b""


async def test_shut_down_closes_idle_connections_and_lets_responses_finish() -> None:
    async with serving() as site, Caller(site.port) as idle, Caller(site.port) as busy:
        assert (await ask(idle, "GET", "/now")).status == 200
        busy.say(request("GET", "/wait") + request("GET", "/now"))
        await site.until_seen(2)
        closing = asyncio.create_task(site.connections.shut_down(60.0))
        assert await idle.rest() == b""
        assert not closing.done()
        site.gate.set()
        answer = await busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"/wait", "close")
        assert await busy.rest() == b""
        await within(closing, "the end of all connections")
        assert site.paths == ["/now", "/wait"]


async def test_shut_down_interrupts_responses_after_its_grace() -> None:
    async with serving() as site, Caller(site.port) as caller:
        cancelled = asyncio.Event()

        async def stuck(_: HttpRequest) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        site.routes["/stuck"] = stuck
        caller.say(request("GET", "/stuck"))
        await site.until_seen()
        await within(site.connections.shut_down(0.01), "the end")
        assert cancelled.is_set()
        assert await caller.rest() == b""
        await site.until_closed()
        assert (site.seen[0].disconnected, site.failures) == (True, [])
        assert site.clock.waiting == 0


# --- a whole server -----------------------------------------------------------------------------------------------------


async def test_pipelined_requests_and_empty_lines_are_handled() -> None:
    async with listening() as place, Caller(place.port) as caller:
        session = await begin(place.port)
        known = {"mcp_session_id": session}
        effect = json.dumps(tool("effect", what="in chunks")).encode()
        streamed = request("POST", "/mcp", b"", content_length=None, transfer_encoding="chunked", **known)
        plain = request("POST", "/mcp", tool("effect", what="plain"), **known)
        data = plain + b"\r\n" + streamed + chunked(effect, b"x-trailer: 1\r\n") + plain + plain + b"\r\n\r\n" + plain
        for cut in range(0, len(data), 7):
            caller.say(data[:cut])
            await caller.all_said()
            await asyncio.sleep(0)
            caller.say(data[cut:])
            for _ in range(5):
                answer = await caller.answer()
                assert answer.status == 200, (cut, answer.body)


async def test_request_is_answered_before_the_next_is_complete() -> None:
    async with listening() as place, Caller(place.port) as caller:
        session = await begin(place.port)
        known = {"mcp_session_id": session}
        waiting = request("POST", "/mcp", tool("wait", who="first"), **known)
        caller.say(waiting + request("POST", "/mcp", tool("effect", what="second"), **known) + b"POST /m")
        await until(lambda: place.started, "the call")
        place.gate.set()
        assert [text_of((await caller.answer()).json) for _ in range(2)] == ["first", "second"]


async def test_websocket_on_reused_connection_has_no_header_timeout() -> None:
    async with listening(header_timeout=10.0) as place, Caller(place.port) as caller:
        caller.say(request("GET", "/other"))
        assert (await caller.answer()).status == 404
        await frames.shake_hands(caller)
        place.clock.advance(20.0)
        await asyncio.sleep(0)
        frames.say(caller, call("ping", ident=7))
        assert (await frames.message(caller))["id"] == 7
