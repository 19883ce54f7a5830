"""Streamable HTTP and HTTP+SSE, client side: `Client` against servers that the tests play."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.connections import client_tls, server_tls, until
from tests.limits import PATIENCE, soon
from tests.ports import held_port
from tests.unit.transports.http.client.web import SESSION, Visit, Web, event, web

from trunkline import Client, Server, Settings
from trunkline.errors import (
    ConfigError,
    ConnectionClosed,
    HandshakeFailed,
    OutcomeUnknown,
    PeerError,
    TransportError,
)
from trunkline.testing import ManualClock
from trunkline.transports.http.client import session as client_session
from trunkline.transports.http.client.connector import HttpConnector

QUICK = Settings(stream_retry=0.02, backoff_first=0.02, stop_timeout=1.0)


@pytest.fixture
async def server() -> AsyncIterator[Web]:
    """A server; when it has ended, nothing is left of its clients."""
    descriptors, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    async with web() as made:
        yield made
        await until(lambda: made.open == 0)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors and len(asyncio.all_tasks()) <= tasks)


def client(target: Any, **options: Any) -> Client:
    """A client of the handshake era, whose sessions and streams this module tests."""
    return Client(target, **{"settings": QUICK, "revision": "2025-11-25"} | options)


# --- request headers -------------------------------------------------------------------------------------


@pytest.mark.row("HTT-04", "HTT-22", "HTT-28")
async def test_every_post_has_its_required_headers(server: Web) -> None:
    async with client(server.url) as it:
        await it.ping()
    first, *later = server.visits
    assert first.method == "initialize"
    assert "mcp-session-id" not in first.headers
    assert "mcp-protocol-version" not in first.headers
    for visit in later:
        assert visit.headers["mcp-session-id"] == SESSION
        assert visit.headers["mcp-protocol-version"] == "2025-11-25"
    for visit in server.seen("POST"):
        assert visit.headers["accept"] == "application/json, text/event-stream"
        assert visit.headers["content-type"] == "application/json"
        assert visit.headers["accept-encoding"] == "identity"


async def test_credentials_are_sent_with_every_request(server: Web) -> None:
    async with client(HttpConnector(server.url, headers={"Authorization": "Bearer x"}, settings=QUICK)) as it:
        await it.ping()
        await server.visited("GET")
    assert {visit.verb for visit in server.visits} == {"POST", "GET", "DELETE"}
    assert {visit.headers["authorization"] for visit in server.visits} == {"Bearer x"}


@pytest.mark.row("HTT-27")
async def test_close_deletes_the_session(server: Web) -> None:
    async with client(server.url):
        await server.visited("GET")
    assert server.visits[-1].verb == "DELETE"
    assert server.visits[-1].headers["mcp-session-id"] == SESSION


async def test_close_without_a_session_sends_no_delete(server: Web) -> None:
    server.session = None
    async with client(server.url) as it:
        await it.ping()
        await server.visited("GET")
    assert not server.seen("DELETE")
    assert all("mcp-session-id" not in visit.headers for visit in server.visits)


async def test_unanswered_delete_does_not_block_close(server: Web) -> None:
    release = asyncio.Event()

    async def never(_: Visit) -> None:
        await release.wait()

    server.on("DELETE", never)
    async with asyncio.timeout(PATIENCE):
        async with client(server.url, settings=Settings(stop_timeout=0.05)) as it:
            await it.ping()
    release.set()


async def test_no_request_is_posted_before_initialized_is_accepted(server: Web) -> None:
    taken = asyncio.Event()

    async def slowly(visit: Visit) -> None:
        await taken.wait()
        visit.respond(202)

    server.on("notifications/initialized", slowly)
    it = client(server.url, log_level="info")
    opening = asyncio.create_task(it.open())
    await server.visited("notifications/initialized")
    assert [visit.method for visit in server.visits] == ["initialize", "notifications/initialized"]
    taken.set()
    await opening
    await it.close()
    order = [visit.method for visit in server.seen("POST")]
    assert order == ["initialize", "notifications/initialized", "logging/setLevel"]


@pytest.mark.row("HTT-22")
@pytest.mark.parametrize("session", ["with space", "sch\u00f6n"])
async def test_invalid_session_id_is_rejected(server: Web, session: str) -> None:
    server.session = session
    with pytest.raises(HandshakeFailed, match="id"):
        await client(server.url).open()


# --- responses -------------------------------------------------------------------------------------------


@pytest.mark.row("HTT-09")
async def test_response_may_be_json_or_an_event_stream(server: Web) -> None:
    def by_events(visit: Visit) -> None:
        visit.chunked()
        visit.chunk(event(b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}'))
        visit.chunk(event(visit.answer({"content": [{"type": "text", "text": "by events"}]})))
        visit.chunk(b"")

    logged: list[Any] = []
    async with client(server.url, on_log=logged.append) as it:
        assert (await it.call_tool("json")).data == "json"
        server.on("tools/call", by_events)
        assert (await it.call_tool("events")).data == "by events"
        before = server.connections
        assert (await it.call_tool("events")).data == "by events"
        assert server.connections == before  # a stream that ended leaves a connection that can be used again
    assert len(logged) == 2


async def test_unended_response_stream_is_closed(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.transports.http.client.response._LINGER", 0.01)

    async def endless(visit: Visit) -> None:
        visit.stream(event(visit.answer({"content": []})))
        await visit.left()

    server.on("tools/call", endless)
    async with client(server.url) as it:
        await server.visited("GET")
        await asyncio.gather(*(it.call_tool("act") for _ in range(5)))
        await until(lambda: server.open <= 3)


async def test_two_hundred_concurrent_calls_succeed(server: Web) -> None:
    waiting: list[Visit] = []

    def together(visit: Visit) -> None:
        waiting.append(visit)
        if len(waiting) == 200:
            for one in waiting:
                one.reply({"content": [{"type": "text", "text": one.message["params"]["name"]}]})

    server.on("tools/call", together)
    async with client(server.url) as it:
        results = await asyncio.gather(*(it.call_tool(f"t{number}") for number in range(200)))
    assert [result.data for result in results] == [f"t{number}" for number in range(200)]


async def test_calls_beyond_max_calls_wait_but_pings_do_not(server: Web) -> None:
    release = asyncio.Event()

    async def held(visit: Visit) -> None:
        await release.wait()
        visit.reply({"content": []})

    server.on("tools/call", held)
    settings = Settings(max_calls=2, stop_timeout=1.0)
    async with client(server.url, settings=settings) as it:
        calls = [asyncio.create_task(it.call_tool("act")) for _ in range(5)]
        await server.visited("tools/call", 2)
        await it.ping()
        assert len(server.seen("tools/call")) == 2
        release.set()
        await asyncio.gather(*calls)
    assert len(server.seen("tools/call")) == 5


@pytest.mark.row("W17")
async def test_oversized_response_fails_its_request_only(server: Web) -> None:
    settings = Settings(http_body_size_limit=2048, sse_event_size_limit=2048, stop_timeout=1.0)

    def told(visit: Visit) -> None:
        visit.respond(200, visit.answer({"content": [], "x": "x" * 3000}))

    def untold(visit: Visit) -> None:
        visit.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        visit.write(visit.answer({"content": [], "x": "x" * 3000}))
        visit.hang_up()

    def events(visit: Visit) -> None:
        visit.stream(event(visit.answer({"content": [], "x": "x" * 5000}), id="1"))
        visit.hang_up()

    async with client(server.url, settings=settings) as it:
        for handler in (told, untold, events):
            server.on("tools/call", handler)
            with pytest.raises(PeerError, match=r"limit|larger"):
                await it.call_tool("act")
        await it.ping()
        assert it.losses == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "not JSON"),
        (b'{"jsonrpc":"2.0","id":999,"result":{}}', "not the response to this request"),
        (b'[{"jsonrpc":"2.0","id":%d,"result":{}}]', "not the response to this request"),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":7,"message":"so it is"}}', "so it is"),
    ],
)
async def test_unusable_response_fails_its_request_only(server: Web, body: bytes, why: str) -> None:
    def odd(visit: Visit) -> None:
        visit.respond(200, body.replace(b"%d", str(visit.message["id"]).encode()))

    server.on("tools/call", odd)
    async with client(server.url) as it:
        with pytest.raises(PeerError, match=why):
            await it.call_tool("act")
        await it.ping()


@pytest.mark.row("HTT-09")
async def test_batch_response_is_accepted_in_2025_03_26(server: Web) -> None:
    server.revision = "2025-03-26"

    def batch(visit: Visit) -> None:
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
        visit.respond(200, b"[%b,%b]" % (json.dumps(log).encode(), visit.answer({"content": []})))

    server.on("tools/call", batch)
    logged: list[Any] = []
    async with client(server.url, on_log=logged.append) as it:
        assert (await it.call_tool("act")).content == []
    assert len(logged) == 1


async def test_html_page_is_reported_as_no_mcp_endpoint(server: Web) -> None:
    server.on("POST", lambda visit: visit.respond(200, b"<html>", "text/html; charset=utf-8"))
    server.on("initialize", lambda visit: visit.respond(200, b"<html>", "text/html; charset=utf-8"))
    with pytest.raises(HandshakeFailed, match="text/html"):
        await client(server.url).open()


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (401, "authorization is needed; pass auth= with a token"),
        (403, "access denied"),
        (404, "there is nothing at this path; check the address, which often ends in /mcp"),
        (405, "this path takes no messages; check the address"),
        (429, "too many requests; try later"),
        (500, "the server failed; its log says why"),
        (503, "the server is not available now"),
    ],
)
async def test_error_status_is_reported_with_url_and_advice(server: Web, status: int, why: str) -> None:
    for what in ("POST", "GET", "initialize"):
        server.on(what, lambda visit: visit.respond(status, b"<html>", "text/html"))
    with pytest.raises(HandshakeFailed) as failed:
        await Client(server.url).open()
    told = str(failed.value)
    assert told.startswith(f"cannot connect to {server.url}: ")
    assert told.count(f"HTTP {status}") == 1
    assert why in told
    assert "-32000" not in told


@pytest.mark.parametrize("status", [401, 403])
async def test_unauthorized_initialize_does_not_fall_back_to_sse(server: Web, status: int) -> None:
    server.on("initialize", lambda visit: visit.respond(status))
    with pytest.raises(HandshakeFailed, match=rf"HTTP {status} .*(auth=|credentials)"):
        await client(server.url).open()
    assert not server.seen("GET")


async def test_error_status_fails_its_request(server: Web) -> None:
    async with client(server.url) as it:
        server.on("tools/call", lambda visit: visit.respond(500, b"out of order", "text/plain"))
        with pytest.raises(PeerError, match=r"HTTP 500 .*: out of order") as raised:
            await it.call_tool("act")
        assert raised.value.data == {"kind": "http_error", "status": 500}
        error = b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32001,"message":"said so"}}'
        server.on("tools/call", lambda visit: visit.respond(400, error))
        with pytest.raises(PeerError, match="said so") as raised:
            await it.call_tool("act")
        assert raised.value.code == -32001
        assert it.losses == 0


@pytest.mark.parametrize("status", [202, 502, 504])
async def test_gateway_error_leaves_the_outcome_unknown(server: Web, status: int) -> None:
    server.on("tools/call", lambda visit: visit.respond(status))
    async with client(server.url) as it:
        with pytest.raises(OutcomeUnknown, match=f"HTTP {status}"):
            await it.call_tool("act")
        assert len(server.seen("tools/call")) == 1
        cancelled = await server.visited("notifications/cancelled")
        assert cancelled.message["params"]["requestId"] == server.seen("tools/call")[0].message["id"]
        await it.ping()
        assert it.losses == 0


async def test_read_only_request_is_retried_a_few_times(server: Web) -> None:
    server.on("resources/list", lambda visit: visit.respond(504))
    clock = ManualClock()
    async with client(server.url, clock=clock) as it:
        asking = asyncio.create_task(it.list_resources(timeout=0.6))
        pause = 0.2  # after the second; the next is longer than what is left
        await until(lambda: any(due == clock.now() + pause for due, _, _ in clock._timers))
        assert len(server.seen("resources/list")) == 2
        clock.advance(pause)
        with pytest.raises(ConnectionClosed):
            await asking
        assert len(server.seen("resources/list")) == 3  # the fourth would be too late
        assert it.losses == 0


async def test_truncated_body_leaves_the_outcome_unknown(server: Web) -> None:
    def cut(visit: Visit) -> None:
        visit.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        visit.hang_up()

    server.on("tools/call", cut)
    async with client(server.url) as it:
        with pytest.raises(OutcomeUnknown, match="broke off"):
            await it.call_tool("act")
        await it.ping()


async def test_refused_notification_is_ignored(server: Web, caplog: pytest.LogCaptureFixture) -> None:
    server.on("notifications/roots/list_changed", lambda visit: visit.respond(400))
    async with client(server.url, roots=[]) as it:
        await it.set_roots(["file:///a"])
        await it.ping()
        await until(lambda: "refused notifications/roots/list_changed: HTTP 400" in caplog.text)
        assert it.losses == 0


async def test_notification_is_posted_again_after_a_failure(server: Web) -> None:
    method = "notifications/roots/list_changed"
    refusals = [lambda visit: visit.respond(503), lambda visit: visit.respond(502), Visit.reset]
    server.on(method, lambda visit: refusals.pop()(visit) if refusals else visit.respond(202))
    async with client(server.url, roots=[]) as it:
        await it.set_roots(["file:///a"])
        await until(lambda: len(server.seen(method)) == 4)
        await it.ping()
        assert it.losses == 0


async def test_session_is_replaced_if_initialized_is_not_accepted(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the server could send no requests to the client, and tools that need them would wait in vain."""
    monkeypatch.setattr(client_session, "_RETRY_DELAYS", (0.0, 0.0))
    refusals = [503, 502, 503]
    server.on("notifications/initialized", lambda visit: visit.respond(refusals.pop() if refusals else 202))
    async with client(server.url) as it:
        await until(lambda: len(server.seen("notifications/initialized")) == 4)
        await it.ping()
        assert len(server.seen("initialize")) == 2


async def test_listening_stream_is_retried_after_transient_errors(server: Web) -> None:
    heard = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}'

    def later(visit: Visit) -> None:
        match len(server.seen("GET")):
            case 1:
                visit.respond(503)
            case 2:
                visit.reset()
            case _:
                visit.stream(event(heard))

    server.on("GET", later)
    logged: list[Any] = []
    async with client(server.url, on_log=logged.append):
        await until(lambda: logged)


async def test_post_is_not_repeated_after_a_disconnect(server: Web) -> None:
    server.on("tools/call", Visit.reset)
    async with client(server.url) as it:
        with pytest.raises(OutcomeUnknown):
            await it.call_tool("act")
        assert len(server.seen("tools/call")) == 1


@pytest.mark.row("HTT-14")
async def test_abandoned_call_is_cancelled_and_its_connection_closed(server: Web) -> None:
    gone = asyncio.Event()

    async def silent(visit: Visit) -> None:
        visit.stream()
        await visit.left()
        gone.set()

    server.on("tools/call", silent)
    async with client(server.url) as it:
        call = asyncio.create_task(it.call_tool("act"))
        asked = await server.visited("tools/call")
        call.cancel()
        told = await server.visited("notifications/cancelled")
        assert told.message["params"]["requestId"] == asked.message["id"]
        async with asyncio.timeout(PATIENCE):
            await gone.wait()
        await it.ping()


# --- broken streams --------------------------------------------------------------------------------------


@pytest.mark.row("HTT-13")
async def test_server_retry_delay_is_respected(server: Web) -> None:
    assert await until_read_on(server) >= 0.499


@pytest.mark.row("HTT-13")
@pytest.mark.long
async def test_server_retry_delay_is_not_exceeded(server: Web) -> None:
    async def once() -> float:
        server.visits.clear()
        return await until_read_on(server)

    await soon(once, 0.7)


async def until_read_on(server: Web) -> float:
    """Return how long a client waits before it resumes a stream for which the server named half a second."""
    ended: list[float] = []

    def cut(visit: Visit) -> None:
        visit.chunked()
        visit.chunk(event(b"", id="p-1", retry=500))
        visit.chunk(b"")
        ended.append(asyncio.get_running_loop().time())

    async with client(server.url) as it:
        await server.visited("GET")
        server.on("tools/call", cut)
        call = asyncio.create_task(it.call_tool("act"))
        asked = await server.visited("tools/call")
        server.on("GET", lambda visit: visit.stream(event(asked.answer({"content": []}), id="p-2")))
        resumed = await server.visited("GET", 2)
        await call
    assert resumed.headers["last-event-id"] == "p-1"
    return resumed.at - ended[0]


@pytest.mark.row("HTT-20")
async def test_broken_response_is_resumed_repeatedly(server: Web) -> None:
    def cut(visit: Visit) -> None:
        visit.stream(event(b"", id="0", retry=1))
        visit.hang_up()

    async with client(server.url) as it:
        await server.visited("GET")
        server.on("tools/call", cut)
        call = asyncio.create_task(it.call_tool("act"))
        asked = await server.visited("tools/call")

        def go_on(visit: Visit) -> None:
            last = int(visit.headers["last-event-id"])
            if last == 4:
                visit.stream(event(asked.answer({"content": [{"type": "text", "text": "at last"}]}), id="5"))
            elif len(server.seen("GET")) % 2:
                visit.respond(503)
            else:
                visit.stream(event(b"", id=str(last + 1)))
            visit.hang_up()

        server.on("GET", go_on)
        assert (await call).data == "at last"
        assert len(server.seen("tools/call")) == 1


@pytest.mark.parametrize("status", [400, 405])
async def test_unresumable_response_fails_its_request_only(server: Web, status: int) -> None:
    def cut(visit: Visit) -> None:
        visit.stream(event(b"", id="0", retry=1))
        visit.hang_up()

    server.on("tools/call", cut)
    server.on("GET", lambda visit: visit.respond(status))
    async with client(server.url) as it:
        with pytest.raises(OutcomeUnknown, match="broke off"):
            await it.call_tool("act")
        await it.ping()
        assert it.losses == 0


@pytest.mark.row("HTT-15")
async def test_notifications_arrive_on_the_listening_stream(server: Web) -> None:
    changed = b'{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:%d"}}'

    def stream(visit: Visit) -> None:
        assert visit.headers["accept"] == "text/event-stream"
        number = len(server.seen("GET"))
        last = visit.headers.get("last-event-id")
        assert last == (None if number == 1 else str(number - 1))
        visit.stream(event(changed % number, id=str(number), retry=1))
        visit.hang_up()

    server.on("GET", stream)
    async with client(server.url) as it:
        heard = it.notifications("notifications/resources/updated")
        await it.ping()
        uris = [(await anext(heard)).params.uri for _ in range(3)]
        assert uris == ["x:1", "x:2", "x:3"]


async def test_server_request_on_the_stream_is_answered_by_post(server: Web) -> None:
    question = b'{"jsonrpc":"2.0","id":"s1","method":"roots/list"}'

    async def ask(visit: Visit) -> None:
        server.transcript.frames.append(("server", question))
        visit.stream(event(question))
        await visit.left()

    server.on("GET", ask)
    async with client(server.url, roots=["file:///a"]):
        await until(lambda: any(visit.message.get("id") == "s1" for visit in server.seen("POST")))


# --- lost sessions and servers ---------------------------------------------------------------------------


@pytest.mark.row("HTT-26")
async def test_lost_session_is_replaced_with_its_state(server: Web) -> None:
    async with client(server.url, log_level="warning") as it:
        await it.subscribe("x:1")
        server.session = "session-2"

        def act(visit: Visit) -> None:
            if visit.headers["mcp-session-id"] == SESSION:
                visit.respond(404)
            else:
                server.usual(visit)

        server.on("tools/call", act)
        results = await asyncio.gather(*(it.call_tool(f"t{number}") for number in range(10)))
        assert [result.data for result in results] == [f"t{number}" for number in range(10)]
        assert it.losses == 1
    again = server.seen("initialize")[1]
    assert "mcp-session-id" not in again.headers
    done = [visit for visit in server.seen("tools/call") if visit.headers["mcp-session-id"] == "session-2"]
    assert sorted(visit.message["params"]["name"] for visit in done) == [f"t{number}" for number in range(10)]
    for method in ("resources/subscribe", "logging/setLevel"):
        assert [visit.headers["mcp-session-id"] for visit in server.seen(method)] == [SESSION, "session-2"]
    assert [visit.headers["mcp-session-id"] for visit in server.seen("DELETE")] == ["session-2"]


@pytest.mark.row("HTT-26")
async def test_listening_stream_detects_a_lost_session(server: Web) -> None:
    def once(visit: Visit) -> None:
        server.on("GET", lambda later: later.respond(404))
        visit.stream(event(b"", retry=1))
        visit.hang_up()

    server.on("GET", once)
    async with client(server.url) as it:
        await server.visited("initialize", 2)
        await until(lambda: it.losses == 1 and it.initialized)
        await it.ping()
        assert it.losses == 1  # the second session has never had a stream: there 404 means only that it has none


async def test_retry_zero_does_not_flood_the_server(server: Web) -> None:
    def empty(visit: Visit) -> None:
        visit.stream(b"retry: 0\n\n")
        visit.hang_up()

    server.on("GET", empty)
    patient = Settings(stream_retry=0.1, backoff_jitter=0, stop_timeout=1.0)
    async with client(server.url, settings=patient):
        await server.visited("GET")
        begun = asyncio.get_running_loop().time()
        await server.visited("GET", 3)
        assert asyncio.get_running_loop().time() - begun > 0.5  # 0.2 and 0.4 s, by two clocks


async def test_resuming_in_a_lost_session_ends_the_session(server: Web) -> None:
    def cut(visit: Visit) -> None:
        visit.stream(event(b"", id="0", retry=1))
        visit.hang_up()

    async with client(server.url) as it:
        await server.visited("GET")
        server.on("tools/call", cut)
        server.on("GET", lambda visit: visit.respond(404))
        with pytest.raises(OutcomeUnknown, match="session is gone"):
            await it.call_tool("act")
        await server.visited("initialize", 2)
        assert len(server.seen("tools/call")) == 1


async def test_unsent_call_is_made_after_reconnecting(server: Web) -> None:
    async with client(server.url) as it:
        await server.visited("GET")
        port = server.port
        await server.stop()
        call = asyncio.create_task(it.call_tool("act"))
        await until(lambda: it.losses == 1)
        await server.start(port)
        assert (await call).data == "act"
        assert len(server.seen("tools/call")) == 1


async def test_sent_call_is_not_repeated_after_a_crash(server: Web) -> None:
    async with client(server.url) as it:
        await server.visited("GET")
        port = server.port
        server.on("tools/call", Visit.reset)
        with pytest.raises(OutcomeUnknown):
            await it.call_tool("act")
        await server.stop()
        reading = asyncio.create_task(it.list_resources())
        await until(lambda: it.losses == 1)
        server.on("resources/list", lambda visit: visit.reply({"resources": []}))
        await server.start(port)
        assert (await reading).resources == []
        assert len(server.seen("tools/call")) == 1


async def test_refused_connection_is_reported_clearly(server: Web) -> None:
    await server.stop()
    with held_port() as port, pytest.raises(TransportError, match=r"cannot reach .* no server is listening there"):
        await client(f"http://127.0.0.1:{port}/mcp").open()


# --- HTTP+SSE --------------------------------------------------------------------------------------------


class OldServer:
    """A server of 2024-11-05."""

    def __init__(self, server: Web, endpoint: str = "/messages?session_id=1") -> None:
        self.endpoint = endpoint
        self.stream: Visit | None = None
        self.web = server
        server.revision = "2024-11-05"
        server.on("GET", self.get)
        for method in ("initialize", "POST"):
            server.on(method, self.post)

    async def get(self, visit: Visit) -> None:
        self.stream = visit
        visit.stream(event(self.endpoint.encode(), kind="endpoint"))
        await visit.left()

    def post(self, visit: Visit) -> None:
        if visit.path == "/mcp":
            visit.respond(405)
            return
        visit.respond(202, b"Accepted", "text/plain")
        results: dict[str, Any] = {
            "initialize": self.web.greeting(),
            "tools/call": {"content": [{"type": "text", "text": "old"}]},
        }
        if self.stream is not None and "id" in visit.message:
            self.stream.write(event(visit.answer(results.get(visit.method, {})), kind="message"))


@pytest.mark.row("HTT-31")
@pytest.mark.parametrize("status", [400, 404, 405, 406, 422])
async def test_old_server_is_used_over_http_sse(server: Web, status: int) -> None:
    old = OldServer(server)
    server.on("initialize", lambda visit: visit.respond(status) if visit.path == "/mcp" else old.post(visit))
    async with client(server.url) as it:
        assert (await it.call_tool("act")).data == "old"
        assert it.revision == "2024-11-05"
    assert [visit.path for visit in server.seen("initialize")] == ["/mcp", "/messages?session_id=1"]
    assert len(server.seen("GET")) == 1


async def test_http_sse_is_remembered_for_the_next_connection(server: Web) -> None:
    old = OldServer(server)
    async with client(server.url) as it:
        await it.ping()
        assert old.stream is not None
        old.stream.hang_up()
        await until(lambda: it.losses == 1)
        assert (await it.call_tool("act")).data == "old"
    assert [visit.path.partition("?")[0] for visit in server.seen("initialize")] == ["/mcp", "/messages", "/messages"]


async def test_upgraded_server_is_detected_again(server: Web) -> None:
    old = OldServer(server)
    async with client(server.url) as it:
        await it.ping()
        for verb in ("GET", "POST", "initialize"):
            server.on(verb, server.usual)
        server.revision = "2025-11-25"
        assert old.stream is not None
        old.stream.hang_up()
        await until(lambda: it.losses == 1)
        assert (await it.call_tool("act")).data == "act"


@pytest.mark.row("SSE-02")
@pytest.mark.parametrize("endpoint", ["http://example.org/messages", "//example.org/messages", "https://127.0.0.1/m"])
async def test_sse_endpoint_at_another_origin_is_refused(server: Web, endpoint: str) -> None:
    OldServer(server, endpoint)
    with pytest.raises(HandshakeFailed, match=r"HTTP 405 .*another origin"):
        await client(server.url).open()
    assert all(visit.path == "/mcp" for visit in server.visits)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda visit: visit.respond(404), "HTTP 404"),
        (lambda visit: visit.stream(event(b"{}")), "does not begin"),
        (lambda visit: (visit.stream(), visit.hang_up())[0], "ended before"),
        (lambda visit: visit.stream(), "within 2 s"),
    ],
)
async def test_error_names_both_failed_transports(server: Web, answer: Any, why: str) -> None:
    server.on("initialize", lambda visit: visit.respond(400, b"what?", "text/plain"))
    server.on("GET", answer)
    with pytest.raises(HandshakeFailed, match=rf"HTTP 400 .*: what\?.*HTTP\+SSE.*{why}"):
        await client(server.url, settings=Settings(connect_timeout=2.0)).open()


async def test_lost_sse_session_is_replaced_and_call_repeated(server: Web) -> None:
    old = OldServer(server)

    def act(visit: Visit) -> None:
        if len(server.seen("tools/call")) == 1:
            visit.respond(404)
        else:
            old.post(visit)

    async with client(server.url) as it:
        server.on("tools/call", act)
        assert (await it.call_tool("act")).data == "old"
        assert it.losses == 1


async def test_sse_server_may_refuse_a_message_or_disconnect(server: Web) -> None:
    old = OldServer(server)
    async with client(server.url) as it:
        server.on("tools/call", lambda visit: visit.respond(403, b"not you", "text/plain"))
        with pytest.raises(PeerError, match="HTTP 403"):
            await it.call_tool("act")
        server.on(
            "tools/call", lambda visit: visit.write(b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nx") or visit.reset()
        )
        with pytest.raises(OutcomeUnknown):
            await it.call_tool("act")
        assert it.losses == 0
        assert old.stream is not None
        old.stream.reset()
        await until(lambda: it.losses == 1)


# --- redirects -------------------------------------------------------------------------------------------


async def test_redirect_within_the_origin_is_followed_and_remembered(server: Web) -> None:
    def at(visit: Visit) -> None:
        if visit.path == "/mcp":
            visit.respond(307, Location="/mcp/")
        else:
            server.usual(visit)

    for verb in ("initialize", "POST", "GET", "DELETE"):
        server.on(verb, at)
    async with client(server.url) as it:
        await it.ping()
    assert [visit.path for visit in server.visits].count("/mcp") == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_credentials_never_reach_another_origin(server: Web, status: int) -> None:
    async with web() as other:
        server.on("initialize", lambda visit: visit.respond(status, Location=other.url + "?token=secret"))
        connector = HttpConnector(server.url, headers={"Authorization": "Bearer x"})
        with pytest.raises(HandshakeFailed, match="another origin") as raised:
            await client(connector).open()
        assert f"127.0.0.1:{other.port}/mcp" in str(raised.value)
        assert "secret" not in str(raised.value)
        assert other.visits == []


@pytest.mark.parametrize(("status", "why"), [(308, "too many times"), (302, "use that address")])
async def test_endless_and_unsafe_redirects_are_refused(server: Web, status: int, why: str) -> None:
    server.on("initialize", lambda visit: visit.respond(status, Location=visit.path + "x"))
    with pytest.raises(HandshakeFailed, match=why):
        await client(server.url).open()
    assert len(server.visits) <= 4


# --- TLS and proxies -------------------------------------------------------------------------------------


async def test_only_the_custom_certificate_authority_is_trusted() -> None:
    async with web(server_tls()) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        async with client(HttpConnector(url, tls=client_tls(), settings=QUICK)) as it:
            await it.ping()
        with pytest.raises(TransportError, match="certificate is not trusted"):
            await client(url).open()


@pytest.mark.parametrize("secured", [False, True])
async def test_requests_use_the_proxy(secured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(server_tls() if secured else None) as server, proxy(server.port) as passed:
        scheme = "https" if secured else "http"
        monkeypatch.setenv(f"{scheme}_proxy", f"http://user:word@127.0.0.1:{passed.port}")
        tls = client_tls() if secured else None
        name = "localhost" if secured else "service.test"
        options: dict[str, Any] = {"proxy": f"http://user:word@127.0.0.1:{passed.port}"} if secured else {}
        async with client(HttpConnector(f"{scheme}://{name}:1/mcp", tls=tls, settings=QUICK, **options)) as it:
            await it.ping()
    assert passed.lines
    assert all(
        line.startswith(f"CONNECT {name}:1 " if secured else f"POST http://{name}:1/") for line in passed.lines[:1]
    )
    assert passed.credentials == {"Basic dXNlcjp3b3Jk"}
    assert "proxy-authorization" not in server.visits[0].headers or not secured


async def test_proxy_refusal_is_distinguished_from_server_refusal(server: Web) -> None:
    server.on("CONNECT", lambda visit: visit.respond(407))
    connector = HttpConnector("https://service.test/mcp", proxy=f"http://127.0.0.1:{server.port}")
    with pytest.raises(TransportError, match=r"the proxy at 127\.0\.0\.1:\d+ answered 'HTTP/1\.1 407"):
        await client(connector).open()


async def test_failed_accept_leaves_nothing_behind(server: Web) -> None:
    def accept(_: Any) -> Any:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await HttpConnector(server.url).connect(accept)


async def test_unreachable_proxy_is_reported(server: Web) -> None:
    with held_port() as port, pytest.raises(TransportError, match="the proxy cannot be reached"):
        await client(HttpConnector("http://service.test/mcp", proxy=f"http://127.0.0.1:{port}")).open()


class ProxyRecord:
    """Requests that a proxy has seen."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.credentials: set[str] = set()
        self.port = 0


def proxy(port: int) -> Any:
    """A proxy that sends every request to one port."""
    import contextlib

    @contextlib.asynccontextmanager
    async def made() -> AsyncIterator[ProxyRecord]:
        passed = ProxyRecord()
        tasks: set[asyncio.Task[Any]] = set()

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    writer.write(data)
            writer.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.current_task())  # type: ignore[arg-type]
            head = await reader.readuntil(b"\r\n\r\n")
            line, *headers = head.decode().split("\r\n")
            passed.lines.append(line)
            passed.credentials |= {h.partition(": ")[2] for h in headers if h.lower().startswith("proxy-authorization")}
            there, back = await asyncio.open_connection("127.0.0.1", port)
            if line.startswith("CONNECT"):
                writer.write(b"HTTP/1.1 200 Yes\r\n\r\n")
            else:
                back.write(head)
            await asyncio.gather(pump(reader, back), pump(there, writer))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        passed.port = server.sockets[0].getsockname()[1]
        yield passed
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return made()


# --- addresses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://", "https:///mcp", "http://h:0/", "http://h:99999/", "http://a b/", "http://[::1/", "http://h/\n"]
)
def test_invalid_url_is_rejected_at_once(url: str) -> None:
    with pytest.raises(ConfigError):
        Client(url)


def test_credentials_in_a_url_are_rejected_and_not_quoted() -> None:
    with pytest.raises(ConfigError, match="headers") as raised:
        Client("https://user:secret@example.org/mcp")
    assert "secret" not in str(raised.value)


def test_connector_name_contains_no_secrets() -> None:
    connector = HttpConnector("https://EXAMPLE.org:443/mcp?key=secret", headers={"Authorization": "secret"})
    assert connector.name == "https://example.org/mcp"
    assert "secret" not in repr(connector)


@pytest.mark.parametrize("headers", [{"a b": "x"}, {"A": "x\r\nB: y"}, {"A": "\0"}])
def test_header_injection_is_rejected(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        HttpConnector("https://example.org/mcp", headers=headers)


# --- our own server --------------------------------------------------------------------------------------


async def test_client_works_with_our_own_server() -> None:
    server = Server("own")

    @server.tool
    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    listener = await server.listen("http://127.0.0.1:0/mcp")
    async with client(listener.address) as it:
        results = await asyncio.gather(*(it.call_tool("add", {"a": number, "b": 1}) for number in range(200)))
        assert [result.data for result in results] == list(range(1, 201))
    await server.aclose()
