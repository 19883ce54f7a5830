"""Which era a server on the web speaks, from what it answers to the first question."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.connections import until
from tests.limits import PATIENCE
from tests.unit.transports.http.client.test_modern import QUICK, REVISION, discover, refuse
from tests.unit.transports.http.client.web import Visit, Web, event, web

from trunkline import Client, Settings
from trunkline.errors import HandshakeFailed, TransportError
from trunkline.protocol.client_envelope import PROBE_ID
from trunkline.testing import ManualClock

HANDSHAKE = ["2025-11-25", "2025-06-18"]


@pytest.fixture
async def server() -> AsyncIterator[Web]:
    """A server of the handshake era, and nothing is left on it in the end."""
    async with web() as made:
        yield made
        await until(lambda: made.open == 0)


def client(server: Web, **options: Any) -> Client:
    return Client(server.url, **{"settings": QUICK} | options)


def asked(server: Web) -> list[str]:
    """What was posted before anything else, until the handshake began."""
    methods = [visit.method for visit in server.seen("POST")]
    return methods[: methods.index("initialize")] if "initialize" in methods else methods


def error(code: int, **data: Any) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": PROBE_ID, "error": {"code": code, "message": "no", "data": data}}
    ).encode()


OLDER = [
    (400, b"", "application/json"),
    (404, b"<html>", "text/html"),
    (405, b"", "text/plain"),
    (406, b"not acceptable", "text/plain"),
    (400, b'{"detail": 5}', "application/json"),
    (400, error(-32000), "application/json"),
    (400, error(-32600), "application/json"),
    (404, error(-32601), "application/json"),
    (200, error(-32601), "application/json"),
    (200, error(-32022), "application/json"),  # which names nothing: some code of somebody's own
    (200, b"<html>", "text/html"),
    (200, b'{"jsonrpc": "2.0", "id": "probe", "result": {"hello": true}}', "application/json"),
    (400, error(-32022, supported=HANDSHAKE), "application/json"),
    (500, b"", "text/plain"),
    (500, error(-32603), "application/json"),
    (501, error(-32601), "application/json"),
]


@pytest.mark.parametrize(("status", "body", "kind"), OLDER)
async def test_unknown_discover_falls_back_to_initialize(server: Web, status: int, body: bytes, kind: str) -> None:
    server.on("server/discover", lambda visit: visit.respond(status, body, kind))
    async with client(server) as it:
        assert it.revision == "2025-11-25"
        await it.call_tool("act")
    assert asked(server) == ["server/discover"]
    assert server.seen("DELETE")[0].headers["mcp-session-id"] == "session-1"


async def test_older_revisions_fall_back_to_initialize(server: Web) -> None:
    result = {"supportedVersions": HANDSHAKE, "capabilities": {}}
    server.on("server/discover", lambda visit: visit.reply(result))
    async with client(server) as it:
        assert it.revision == "2025-11-25"


@pytest.mark.parametrize(
    ("status", "body"), [(401, b""), (403, b""), (407, b""), (429, b""), (503, b""), (503, error(-32601))]
)
async def test_generic_status_does_not_decide_the_era(server: Web, status: int, body: bytes) -> None:
    server.on("server/discover", lambda visit: visit.respond(status, body))
    with pytest.raises(HandshakeFailed, match=f"HTTP {status}"):
        await client(server).open()
    assert [visit.method for visit in server.visits] == ["server/discover"]


async def test_failure_of_discover_and_initialize_is_reported(server: Web) -> None:
    for method in ("server/discover", "initialize"):
        server.on(method, lambda visit: visit.respond(500, b""))
    with pytest.raises(HandshakeFailed, match="refused initialize: HTTP 500"):
        await client(server).open()


@pytest.mark.parametrize("how", ["hang_up", "reset"])
async def test_broken_connection_does_not_decide_the_era(server: Web, how: str) -> None:
    server.on("server/discover", lambda visit: getattr(visit, how)())
    with pytest.raises(TransportError):
        await client(server).open()
    assert server.seen("initialize") == []


@pytest.mark.parametrize("code", [-32020, -32021])
async def test_refusing_modern_server_gets_no_initialize(server: Web, code: int) -> None:
    server.on("server/discover", lambda visit: visit.respond(400, error(code)))
    with pytest.raises(HandshakeFailed, match="refuses server/discover"):
        await client(server).open()
    assert server.seen("initialize") == []


@pytest.mark.row("VER-06")
async def test_probe_is_repeated_in_the_named_revision(server: Web) -> None:
    def answer(visit: Visit) -> None:
        first = len(server.visits) == 1
        visit.respond(400, error(-32022, supported=[REVISION])) if first else discover(visit)

    server.on("server/discover", answer)
    async with client(server) as it:
        assert it.revision == REVISION
    assert server.seen("initialize") == []


async def test_refused_named_revision_is_probed_only_twice(server: Web) -> None:
    server.on("server/discover", lambda visit: visit.respond(400, error(-32022, supported=[REVISION])))
    with pytest.raises(HandshakeFailed, match="names 2026-07-28 as supported, and refuses it"):
        await client(server).open()
    assert len(server.visits) == 2


@pytest.mark.row("VER-06")
async def test_no_common_revision_error_names_both_sides(server: Web) -> None:
    server.on("server/discover", lambda visit: visit.respond(400, error(-32022, supported=["2031-01-01"])))
    with pytest.raises(
        HandshakeFailed, match=r"the server supports 2031-01-01, and the client supports 2024-11-05, .*2026-07-28"
    ):
        await client(server).open()
    assert server.seen("initialize") == []


async def test_unanswered_discover_falls_back_to_initialize(server: Web) -> None:
    server.on("server/discover", lambda visit: visit.left())
    clock = ManualClock()
    it = client(server, clock=clock, settings=Settings(probe_timeout=5.0))
    opening = asyncio.create_task(it.open())
    await server.visited("server/discover")
    clock.advance(5)
    await opening
    assert it.revision == "2025-11-25"
    await it.close()
    assert asked(server) == ["server/discover"]


async def test_modern_only_server_is_probed_again(server: Web) -> None:
    async def answer(visit: Visit) -> None:
        if len(server.visits) == 1:
            await visit.left()
        else:
            discover(visit)

    server.on("server/discover", answer)
    server.on("initialize", lambda visit: refuse(visit, 400, -32022, supported=[REVISION]))
    server.on("GET", lambda visit: visit.respond(405))
    async with client(server, settings=Settings(probe_timeout=1.0)) as it:
        assert it.revision == REVISION
        await it.ping()
    assert [visit.method for visit in server.seen("POST")] == [
        *("server/discover", "initialize", "server/discover", "server/discover")
    ]


async def test_reconnect_skips_the_probe(server: Web) -> None:
    def greet_again(visit: Visit) -> None:
        server.on("tools/call", server.usual)
        server.greet(visit)

    async with client(server) as it:
        server.on("tools/call", lambda visit: visit.respond(404))  # the session is gone
        server.on("initialize", greet_again)
        await it.call_tool("act", timeout=PATIENCE)
        assert it.losses == 1
    assert len(server.seen("server/discover")) == 1
    assert len(server.seen("initialize")) == 2


@pytest.mark.row("VER-14")
async def test_server_upgraded_to_modern_is_detected(server: Web) -> None:
    def gone(visit: Visit) -> None:
        server.on("server/discover", discover)
        server.on("initialize", lambda visit: refuse(visit, 404, -32601))
        server.on("tools/call", lambda visit: visit.reply({"content": []}))
        visit.respond(404)

    async with client(server) as it:
        server.on("tools/call", gone)
        await it.call_tool("act", timeout=PATIENCE)
        assert it.revision == REVISION


async def test_2024_server_is_found_after_discover_and_initialize(server: Web) -> None:
    streams: list[Visit] = []

    def listen(visit: Visit) -> None:
        streams.append(visit)
        visit.stream(event(b"/post", kind="endpoint"))

    def post(visit: Visit) -> None:
        if visit.path != "/post":
            visit.respond(405)
            return
        visit.respond(202)
        if visit.method == "initialize":
            server.revision = "2024-11-05"
            streams[0].write(event(visit.answer(server.greeting())))
        elif "id" in visit.message:
            streams[0].write(event(visit.answer({})))

    server.on("GET", listen)
    for method in ("POST", "server/discover", "initialize"):
        server.on(method, post)
    async with client(server) as it:
        assert it.revision == "2024-11-05"
        await it.ping()
    assert [(visit.verb, visit.path) for visit in server.visits[:4]] == [
        *(("POST", "/mcp"), ("POST", "/mcp"), ("GET", "/mcp"), ("POST", "/post"))
    ]
