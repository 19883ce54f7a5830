"""Requests of the modern era over HTTP: each is posted by itself, says on the outside what is in it, and is answered
there or not at all."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.connections import until
from tests.limits import PATIENCE
from tests.unit.transports.http.client.web import Visit, Web, event, web

from trunkline import Client, Settings
from trunkline.errors import MisuseError, OutcomeUnknown, PeerError
from trunkline.protocol.headers import find_mirrored_arguments
from trunkline.protocol.meta import PROTOCOL_VERSION
from trunkline.protocol.types import CallToolParams, Empty, ReadResourceParams
from trunkline.transports.http.client.headers import build_modern_headers
from trunkline.wire import codec
from trunkline.wire.messages import Request

QUICK = Settings(stream_retry=0.02, backoff_first=0.02, stop_timeout=1.0)
REVISION = "2026-07-28"
DONE = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
REGION = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
COUNT = {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}
WRONG = {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}


def discover(visit: Visit, **capabilities: Any) -> None:
    told = {"tools": {}, "resources": {}} | capabilities
    visit.reply({"resultType": "complete", "supportedVersions": [REVISION], "capabilities": told})


def tools(visit: Visit, **schemas: Any) -> None:
    listed = [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]
    visit.reply({"resultType": "complete", "tools": listed, "ttlMs": 0, "cacheScope": "private"})


def refuse(visit: Visit, status: int, code: int, message: str = "no", **data: Any) -> None:
    error = {"code": code, "message": message} | ({"data": data} if data else {})
    visit.respond(status, json.dumps({"jsonrpc": "2.0", "id": visit.message["id"], "error": error}).encode())


@pytest.fixture
async def server() -> AsyncIterator[Web]:
    """A server of the modern era, and nothing is left on it in the end."""
    async with web() as made:
        made.on("server/discover", discover)
        made.on("tools/list", lambda visit: tools(visit, act={"type": "object"}))
        made.on("tools/call", lambda visit: visit.reply(DONE))
        yield made
        await until(lambda: made.open == 0)


def client(server: Web, **options: Any) -> Client:
    return Client(server.url, **{"settings": QUICK} | options)


# --- what is said with every request ---------------------------------------------------------------------


@pytest.mark.row("HTT-46", "HTT-47")
async def test_every_post_has_routing_headers(server: Web) -> None:
    async with client(server) as it:
        await it.call_tool("act")
        await it.ping()
    assert {visit.verb for visit in server.visits} == {"POST"}
    for visit in server.visits:
        assert "id" in visit.message
        assert visit.headers["mcp-method"] == visit.method
        assert visit.headers["mcp-protocol-version"] == visit.message["params"]["_meta"][PROTOCOL_VERSION] == REVISION
        assert visit.headers["accept"] == "application/json, text/event-stream"
        assert "mcp-session-id" not in visit.headers
    assert server.seen("tools/call")[0].headers["mcp-name"] == "act"


@pytest.mark.row("HTT-45")
async def test_session_id_of_a_modern_server_is_ignored(server: Web) -> None:
    server.on("tools/call", lambda visit: visit.reply(DONE, Mcp_Session_Id="s"))
    async with client(server) as it:
        await it.call_tool("act")
        await it.call_tool("act")
    assert not any("mcp-session-id" in visit.headers for visit in server.visits)
    assert server.seen("GET") == server.seen("DELETE") == []


async def test_requests_do_not_wait_for_each_other(server: Web) -> None:
    calls: list[Visit] = []

    def call(visit: Visit) -> None:
        calls.append(visit)
        if len(calls) == 3:
            for one in calls:
                one.reply(DONE)

    server.on("tools/call", call)
    async with client(server) as it:
        await asyncio.gather(*(it.call_tool("act") for _ in range(3)))


def test_headers_contain_the_resource_uri_if_present() -> None:
    meta = {PROTOCOL_VERSION: REVISION}
    read = build_modern_headers(Request(1, "resources/read", ReadResourceParams(uri="x://ä", meta=meta)), lambda _: ())
    assert read == {
        "MCP-Protocol-Version": REVISION,
        "Mcp-Method": "resources/read",
        "Mcp-Name": "=?base64?eDovL8Ok?=",
    }
    assert build_modern_headers(Request(1, "tasks/get", Empty(meta=meta)), lambda _: ()) == {
        "MCP-Protocol-Version": REVISION,
        "Mcp-Method": "tasks/get",
    }
    assert build_modern_headers(Request(1, "resources/read", ReadResourceParams(uri="x://y")), lambda _: ()) is None
    assert build_modern_headers(Request(1, "ping"), lambda _: ()) is None


def test_non_object_arguments_are_not_mirrored() -> None:
    params = CallToolParams(name="act", arguments=codec.to_raw([1]), meta={PROTOCOL_VERSION: REVISION})
    made = build_modern_headers(Request(1, "tools/call", params), lambda _: find_mirrored_arguments(REGION))
    assert made == {"MCP-Protocol-Version": REVISION, "Mcp-Method": "tools/call", "Mcp-Name": "act"}


# --- arguments in headers --------------------------------------------------------------------------------


@pytest.mark.row("HTT-51")
async def test_arguments_are_mirrored_once_the_tool_is_known(server: Web) -> None:
    server.on("tools/list", lambda visit: tools(visit, act=REGION))
    async with client(server) as it:
        await it.list_tools()
        await it.call_tool("act", {"region": "eu", "other": 1})
        await it.call_tool("act", {"region": None})
    first, second = server.seen("tools/call")
    assert first.headers["mcp-param-region"] == "eu"
    assert not any(name.startswith("mcp-param-") for name in second.headers)


@pytest.mark.row("HTT-54")
async def test_header_mismatch_refreshes_the_tool_and_retries(server: Web) -> None:
    server.on("tools/list", lambda visit: tools(visit, act=REGION))

    def call(visit: Visit) -> None:
        if "mcp-param-region" in visit.headers:
            visit.reply(DONE)
        else:
            refuse(visit, 400, -32020)

    server.on("tools/call", call)
    async with client(server) as it:
        await it.list_tools()
        assert (await it.call_tool("act", {"region": "eu"})).text == "done"
        assert len(server.seen("tools/call")) == 1
        with pytest.raises(PeerError) as raised:
            await it.call_tool("act")  # has no region, and never will have
    assert raised.value.code == -32020
    assert len(server.seen("tools/call")) == 3
    assert len(server.seen("tools/list")) == 2


@pytest.mark.row("HTT-54")
async def test_unlisted_tool_is_looked_up_on_mismatch(server: Web) -> None:
    server.on("tools/list", lambda visit: tools(visit, act=REGION))
    server.on(
        "tools/call",
        lambda visit: visit.reply(DONE) if "mcp-param-region" in visit.headers else refuse(visit, 400, -32020),
    )
    async with client(server) as it:
        assert (await it.call_tool("act", {"region": "eu"})).text == "done"


async def test_unmirrorable_argument_raises_misuse_error(server: Web) -> None:
    server.on("tools/list", lambda visit: tools(visit, act=COUNT))
    async with client(server) as it:
        await it.list_tools()
        with pytest.raises(MisuseError, match="argument 'n' cannot go into Mcp-Param-N"):
            await it.call_tool("act", {"n": 2**53})
    assert server.seen("tools/call") == []


@pytest.mark.row("HTT-52")
async def test_tools_with_invalid_mirrors_are_dropped_and_logged_once(
    server: Web, caplog: pytest.LogCaptureFixture
) -> None:
    server.on("tools/list", lambda visit: tools(visit, good=REGION, bad=WRONG))
    with caplog.at_level(logging.WARNING, "trunkline"):
        async with client(server) as it:
            assert [tool.name async for tool in it.tools()] == ["good"]
            assert [tool.name for tool in (await it.list_tools()).tools] == ["good"]
            await it.call_tool("good")
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("the tool 'bad' is left out: x-mcp-header of 'n' needs the type")


async def test_mirrors_are_ignored_in_the_handshake_era(server: Web) -> None:
    server.on("tools/list", lambda visit: tools(visit, bad=WRONG))
    async with client(server, revision="2025-11-25") as it:
        assert [tool.name async for tool in it.tools()] == ["bad"]


async def test_remote_schema_references_are_never_fetched(server: Web) -> None:
    async with web() as elsewhere:
        refers = {"type": "object", "$ref": f"{elsewhere.url}/schema.json"}
        listed = [{"name": "act", "inputSchema": refers, "outputSchema": refers}]
        server.on("tools/list", lambda visit: visit.reply({"resultType": "complete", "tools": listed}))
        server.on("tools/call", lambda visit: visit.reply({**DONE, "structuredContent": {"a": 1}}))
        async with client(server) as it:
            [tool] = [tool async for tool in it.tools()]
            assert tool.input_schema == refers
            assert (await it.call_tool("act")).structured == {"a": 1}
        assert elsewhere.connections == 0


# --- answers ---------------------------------------------------------------------------------------------


@pytest.mark.row("HTT-59")
@pytest.mark.parametrize(("status", "code"), [(400, -32602), (404, -32601), (500, -32603), (200, -32000)])
async def test_error_body_is_the_response_for_any_status(server: Web, status: int, code: int) -> None:
    server.on("tools/call", lambda visit: refuse(visit, status, code, "so it is"))
    async with client(server) as it:
        with pytest.raises(PeerError, match="so it is") as raised:
            await it.call_tool("act")
        assert raised.value.code == code
        assert it.losses == 0


@pytest.mark.row("HTT-44")
async def test_event_ids_and_comments_are_ignored(server: Web) -> None:
    heard: list[Any] = []

    def call(visit: Visit) -> None:
        token = visit.message["params"]["_meta"]["progressToken"]
        visit.stream(b": hello\n\n")
        for progress in (1, 2):
            params = {"progressToken": token, "progress": progress}
            told = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            visit.write(event(json.dumps(told).encode(), id="same") + b":\n\n")
        visit.write(event(visit.answer(DONE), id="same"))
        visit.hang_up()

    server.on("tools/call", call)
    async with client(server) as it:
        await it.call_tool("act", on_progress=heard.append)
    assert [one.progress for one in heard] == [1, 2]


@pytest.mark.row("HTT-44")
@pytest.mark.parametrize("how", ["hang_up", "reset"])
async def test_broken_response_is_not_resumed(server: Web, how: str) -> None:
    def call(visit: Visit) -> None:
        visit.stream(event(b"", id="7"))
        getattr(visit, how)()

    server.on("tools/call", call)
    async with client(server) as it:
        with pytest.raises(OutcomeUnknown):
            await it.call_tool("act")
        assert it.losses == 0
    assert server.seen("GET") == []


@pytest.mark.row("HTT-44")
async def test_repeatable_request_is_retried_with_a_new_id(server: Web) -> None:
    def read(visit: Visit) -> None:
        if len(server.seen("resources/read")) == 1:
            visit.stream()
            visit.hang_up()
        else:
            visit.reply({"resultType": "complete", "contents": []})

    server.on("resources/read", read)
    async with client(server) as it:
        assert await it.read_resource("x://y") == []
    first, second = server.seen("resources/read")
    assert first.message["id"] != second.message["id"]


@pytest.mark.parametrize("status", [502, 504])
async def test_gateway_error_leaves_request_unanswered(server: Web, status: int) -> None:
    server.on("tools/call", lambda visit: visit.respond(status))
    async with client(server) as it:
        with pytest.raises(OutcomeUnknown, match=f"HTTP {status}"):
            await it.call_tool("act")


async def test_oversized_event_fails_its_request(server: Web) -> None:
    def call(visit: Visit) -> None:
        visit.stream(event(visit.answer({"content": "x" * 5000})))
        visit.hang_up()

    server.on("tools/call", call)
    async with client(server, settings=Settings(sse_event_size_limit=2000)) as it:
        with pytest.raises(PeerError, match="2000"):
            await it.call_tool("act")


async def test_stream_after_the_response_does_not_block(server: Web) -> None:
    server.on("tools/call", lambda visit: visit.stream(event(visit.answer(DONE))))
    async with client(server) as it:
        assert (await it.call_tool("act", timeout=PATIENCE)).text == "done"


# --- calling off -----------------------------------------------------------------------------------------


@pytest.mark.row("HTT-43")
@pytest.mark.parametrize("begun", [False, True])
async def test_cancelling_closes_the_response_silently(server: Web, begun: bool) -> None:
    gone = asyncio.Event()

    async def call(visit: Visit) -> None:
        if begun:
            visit.stream()
        await visit.left()
        gone.set()

    server.on("tools/call", call)
    async with client(server) as it:
        calling = asyncio.create_task(it.call_tool("act"))
        await server.visited("tools/call")
        calling.cancel()
        async with asyncio.timeout(PATIENCE):
            await gone.wait()
        await it.ping()
        assert it.losses == 0
    assert all("id" in visit.message for visit in server.visits)


async def test_request_of_a_modern_server_is_not_answered(server: Web) -> None:
    def call(visit: Visit) -> None:
        visit.stream(event(b'{"jsonrpc":"2.0","id":"s","method":"roots/list"}') + event(visit.answer(DONE)))
        visit.hang_up()

    server.on("tools/call", call)
    async with client(server, roots=[]) as it:
        await it.call_tool("act")
        await it.ping()
    assert {visit.method for visit in server.visits} <= {"server/discover", "tools/call", "tools/list"}


# --- listening -------------------------------------------------------------------------------------------


def acknowledged(visit: Visit) -> bytes:
    meta = {"io.modelcontextprotocol/subscriptionId": visit.message["id"]}
    params = {"notifications": visit.message["params"]["notifications"], "_meta": meta}
    method = "notifications/subscriptions/acknowledged"
    return event(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())


@pytest.mark.row("SUB-06", "SUB-07")
async def test_subscription_stream_is_reopened_without_a_call_permit(
    server: Web,
) -> None:
    open_now: list[Visit] = []

    def listen(visit: Visit) -> None:
        open_now.append(visit)
        visit.stream(acknowledged(visit))

    server.on("server/discover", lambda visit: discover(visit, tools={"listChanged": True}))
    server.on("subscriptions/listen", listen)
    async with client(server, settings=Settings(max_calls=1, backoff_first=0.01, stop_timeout=1.0)) as it:
        await it.call_tool("act", timeout=PATIENCE)
        open_now[0].reset()
        again = await server.visited("subscriptions/listen", 2)
        assert again.headers["mcp-method"] == "subscriptions/listen"
        assert again.message["id"] != open_now[0].message["id"]
        await it.call_tool("act", timeout=PATIENCE)
        assert it.losses == 0
    assert len(server.seen("subscriptions/listen")) == 2
