"""Streamable HTTP of the modern era: what a POST is refused with, what it is answered with, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from msgspec import Meta
from tests import official
from tests.modern import PREFIX, REVISION, ask, begin, enveloped, headers_of, meta, refused, result
from tests.unit.transports.http.asgi import Host, hosted, request

from trunkline import Context, Server, Settings
from trunkline.protocol.types import CallToolResult

MARK = f"{PREFIX}subscriptionId"
VERSION = {"mcp_protocol_version": REVISION}


class Place:
    """A server, and what its handlers wait for and have come to."""

    def __init__(self, **settings: Any) -> None:
        self.server = Server("s", settings=Settings(**settings))
        self.go = asyncio.Event()
        self.started = asyncio.Event()
        self.begun = 0
        self.seen: list[str] = []
        self.server.tool(self.add)
        self.server.tool(self.wait)
        self.server.tool(self.tell)
        self.server.tool(self.route)
        self.server.tool(self.flood)

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def wait(self) -> str:
        self.begun += 1
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            self.started.set()
            raise
        return "done"

    async def tell(self, ctx: Context) -> str:
        await ctx.progress(1, message="half")
        await ctx.info("heard")
        return "told"

    async def route(self, region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})] = "eu") -> str:
        return region

    async def flood(self, size: int, ctx: Context) -> str:
        await ctx.progress(1)
        await self.go.wait()
        for number in (2, 3):
            await ctx.progress(number, message="x" * size)
            await asyncio.sleep(0)
        self.seen.append(str(size))
        return "flooded"


@pytest.fixture
async def place() -> Place:
    return Place()


@pytest.fixture
async def host(place: Place) -> AsyncIterator[Host]:
    async with hosted(place.server) as made:
        yield made


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "_meta": meta()}


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.row("HTT-59")
async def test_refusal_has_its_status_and_request_id(host: Host) -> None:
    later = {**meta(), f"{PREFIX}protocolVersion": "2030-01-01"}
    unclear = {f"{PREFIX}protocolVersion": REVISION}
    assert await refused(host, "tools/list", {"_meta": {"a": 1}}, id="x") == (400, -32602)
    assert await refused(host, "tools/list", {"_meta": unclear}) == (400, -32602)
    assert await refused(host, "tools/list", mcp_method="tools/call") == (400, -32020)
    assert await refused(host, "tools/list", mcp_protocol_version="2025-11-25") == (400, -32020)
    assert await refused(host, "tools/list", mcp_protocol_version=None) == (400, -32020)
    assert await refused(host, "tools/list", {"_meta": later}, mcp_protocol_version="2030-01-01") == (400, -32022)
    assert await refused(host, "no/such", id=0) == (404, -32601)
    assert await refused(host, "ping") == (404, -32601)
    assert await refused(host, "initialize") == (404, -32601)
    assert await refused(host, "tools/call", call("no_such")) == (200, -32602)
    assert await refused(host, "tools/call", {"name": 5, "_meta": meta()}, mcp_name=None) == (200, -32602)


@pytest.mark.row("VER-05")
@pytest.mark.parametrize("method", ["tools/list", "initialize"])
async def test_unknown_revision_is_answered_with_supported_ones(host: Host, method: str) -> None:
    answer = await host.ask("POST", request(method, id=7), mcp_protocol_version="2030-01-01")
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (400, 7, -32022)
    assert answer.json["error"]["data"]["requested"] == "2030-01-01"


async def test_non_requests_are_accepted_or_refused(host: Host) -> None:
    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    taken = await host.ask("POST", notice, **VERSION)
    assert (taken.status, taken.body) == (202, b"")
    answers = [
        await host.ask("POST", body, **VERSION)
        for body in (
            [request("tools/list")],
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": 3},
            b"{",
            {**request("tools/list", id=4), "params": [1]},
        )
    ]
    assert [(answer.status, answer.json["error"]["code"], answer.json.get("id")) for answer in answers] == [
        (400, -32600, None),
        (400, -32600, None),
        (400, -32600, 3),
        (400, -32700, None),
        (400, -32602, 4),
    ]
    unknown = await host.ask("POST", notice, mcp_protocol_version="2030-01-01")
    assert (unknown.status, unknown.json["error"]["code"]) == (400, -32022)


@pytest.mark.row("HTT-45")
async def test_get_and_delete_are_405_and_no_session_is_opened(host: Host) -> None:
    for method in ("GET", "DELETE"):
        answer = await host.ask(method, mcp_session_id="x", last_event_id="1-1", **VERSION)
        assert (answer.status, answer.headers["allow"]) == (405, "POST, OPTIONS")
    answer = await ask(host, "tools/list", mcp_session_id="x", last_event_id="1-1")
    assert answer.status == 200
    assert "mcp-session-id" not in answer.headers


async def test_envelope_key_inside_text_is_not_an_envelope(host: Host) -> None:
    session = await host.session()
    body = request("tools/call", {"name": "route", "arguments": {"region": f"{PREFIX}protocolVersion"}})
    answer = await host.ask("POST", body, mcp_session_id=session, mcp_protocol_version="2025-11-25")
    assert answer.json["result"]["content"][0]["text"] == f"{PREFIX}protocolVersion"


@pytest.mark.row("HTT-49")
@pytest.mark.parametrize("name", ["mcp_method", "mcp_name", "mcp_param_region"])
async def test_repeated_routing_header_contradicts_the_body(host: Host, name: str) -> None:
    values = {"mcp_method": "tools/call", "mcp_name": "route", "mcp_param_region": "us"}
    params = call("route", region="us")
    assert await refused(host, "tools/call", params, **values | {name: (values[name],) * 2}) == (400, -32020)
    told = await result(host, "tools/call", params, **values, x_other=("1", "1"))
    assert told["structuredContent"] == "us"


@pytest.mark.row("HTT-53")
@pytest.mark.parametrize("header", [None, "us", "=?base64?%%%?="])
async def test_param_header_must_match_the_argument(host: Host, header: str | None) -> None:
    assert await refused(host, "tools/call", call("route", region="eu"), mcp_param_region=header) == (400, -32020)
    told = await result(host, "tools/call", call("route", region="ü"), mcp_param_region="=?base64?w7w=?=")
    assert told["structuredContent"] == "ü"
    assert (await result(host, "tools/call", call("route")))["structuredContent"] == "eu"
    assert await refused(host, "tools/call", call("route"), mcp_param_region="eu") == (400, -32020)


@pytest.mark.parametrize("arguments", [[1], 5, "x"])
async def test_arguments_that_are_no_object_are_refused(host: Host, arguments: Any) -> None:
    answer = await ask(host, "tools/call", {"name": "route", "arguments": arguments, "_meta": meta()})
    told = answer.json
    assert told.get("error", {}).get("code") == -32602 or told["result"]["isError"] is True
    none = {"name": "route", "arguments": None, "_meta": meta()}
    answer = await host.ask("POST", request("tools/call", none), **headers_of("tools/call", none))
    assert answer.json["result"]["structuredContent"] == "eu"


async def test_preflight_allows_param_headers(host: Host) -> None:
    asked = "Content-Type, Mcp-Param-Region, X-Evil, mcp-param-zone"
    answer = await host.ask("OPTIONS", origin="http://localhost:1", access_control_request_headers=asked)
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert answer.status == 204
    assert {"mcp-method", "mcp-name", "mcp-param-region", "mcp-param-zone"} <= set(allowed)
    assert "x-evil" not in allowed


# --- answers ---------------------------------------------------------------------------------------


async def test_requests_with_equal_ids_do_not_collide(host: Host, place: Place) -> None:
    waiting = begin(host, "tools/call", call("wait"), id=1)
    await place.started.wait()
    told = await result(host, "tools/call", call("add", a=1, b=2))
    assert told["structuredContent"] == 3
    place.go.set()
    answer = await waiting.finished()
    assert (answer.json["id"], answer.json["result"]["structuredContent"]) == (1, "done")


@pytest.mark.row("HTT-40")
async def test_messages_before_the_reply_have_no_event_ids(host: Host) -> None:
    params = {**call("tell"), "_meta": meta(progressToken="t", **{f"{PREFIX}logLevel": "info"})}
    answer = await begin(host, "tools/call", params, id="call").finished()
    assert (answer.headers["content-type"], answer.headers["x-accel-buffering"]) == ("text/event-stream", "no")
    messages = [await answer.message() for _ in range(3)]
    for message in messages:
        official.check(message, revision=REVISION, sender="server", answers="tools/call")
    assert [message.get("method", message.get("id")) for message in messages] == [
        "notifications/progress",
        "notifications/message",
        "call",
    ]
    assert messages[0]["params"]["progressToken"] == "t"
    assert b"id:" not in answer.body.replace(b'"id":', b"")
    assert b"retry:" not in answer.body


async def test_log_messages_need_a_requested_level(host: Host) -> None:
    answer = await ask(host, "tools/call", call("tell"))
    assert answer.headers["content-type"] == "application/json"
    quiet = {**call("tell"), "_meta": meta(**{f"{PREFIX}logLevel": "error"})}
    assert (await ask(host, "tools/call", quiet)).headers["content-type"] == "application/json"


@pytest.mark.row("HTT-43")
async def test_disconnect_cancels_the_request(host: Host, place: Place) -> None:
    waiting = begin(host, "tools/call", call("wait"))
    await place.started.wait()
    place.started.clear()
    waiting.gone.set()
    await waiting.finished()
    await place.started.wait()
    assert place.seen == ["cancelled"]
    assert waiting.body == b""


async def test_slow_reader_does_not_delay_other_clients() -> None:
    place = Place(unsent_high=10)
    async with hosted(place.server) as host:
        params = [{**call("flood", size=size), "_meta": meta(progressToken=1)} for size in (1000, 1)]
        slow = begin(host, "tools/call", params[0])
        await slow.message()
        slow.reading.clear()
        place.go.set()
        quick = await begin(host, "tools/call", params[1]).finished()
        assert b"flooded" in quick.body
        assert place.seen == ["1"]
        slow.reading.set()
        await slow.finished()
        assert place.seen == ["1", "1000"]


async def test_client_that_does_not_read_is_disconnected() -> None:
    place = Place(unsent_high=10, unsent_limit=100)
    async with hosted(place.server) as host:
        slow = begin(host, "tools/call", {**call("flood", size=1000), "_meta": meta(progressToken=1)})
        await slow.message()
        slow.reading.clear()
        place.go.set()
        [connection] = place.server.connections
        while connection.session.incoming_requests:
            await asyncio.sleep(0)
        slow.reading.set()
        await slow.finished()
        assert place.seen == []
        assert b"flooded" not in slow.body


# --- how many, and the end ---------------------------------------------------------------------------


@pytest.mark.row("Q08")
async def test_requests_are_limited_by_max_connections() -> None:
    place = Place(max_calls=1, max_connections=3)
    async with hosted(place.server) as host:
        waiting = [begin(host, "tools/call", call("wait"), id=number) for number in range(3)]
        while place.begun < len(waiting):
            await asyncio.sleep(0)
        answer = await ask(host, "tools/call", call("add", a=1, b=1), id="more")
        assert (answer.status, answer.json["id"], answer.headers["retry-after"]) == (503, "more", "1")
        place.go.set()
        assert [(await each.finished()).json["result"]["structuredContent"] for each in waiting] == ["done"] * 3
        assert (await ask(host, "tools/call", call("add", a=1, b=1))).status == 200


def listening(host: Host, **wanted: Any) -> Any:
    return begin(host, "subscriptions/listen", enveloped(notifications=wanted), id="sub")


@pytest.mark.row("SUB-07")
async def test_listen_request_gets_its_result_at_shutdown() -> None:
    place = Place()
    async with hosted(place.server) as host:
        stream = listening(host, toolsListChanged=True)
        first = await stream.message()
        assert first["params"]["_meta"] == {MARK: "sub"}
        place.server.add_tool(place.add, name="more")
        told = await stream.message()
        assert (told["method"], told["params"]["_meta"]) == ("notifications/tools/list_changed", {MARK: "sub"})
        await host.app.aclose()
        last = await stream.message()
        assert (last["id"], last["result"]["resultType"], last["result"]["_meta"][MARK]) == ("sub", "complete", "sub")
        assert (await stream.finished()).ended
        for message in (first, told, last):
            official.check(message, revision=REVISION, sender="server", answers="subscriptions/listen")


@pytest.mark.row("SUB-07")
async def test_listen_request_ends_before_asgi_server_waits() -> None:
    place = Place()
    host = Host(place.server)
    host.app = place.server.asgi()
    stream = listening(host, toolsListChanged=True)
    await stream.message()
    host.app.close_idle_streams()
    assert (await stream.message())["result"]["resultType"] == "complete"
    assert (await stream.finished()).ended
    late = await ask(host, "tools/list", id=9)
    assert (late.status, late.json["id"]) == (503, 9)
    await host.app.aclose()


async def test_call_cut_off_at_drain_timeout_is_answered_outcome_unknown() -> None:
    place = Place(drain_timeout=0.01)
    async with hosted(place.server) as host:
        plain, streamed = begin(host, "tools/call", call("wait")), listening(host, toolsListChanged=True)
        told = begin(host, "tools/call", {**call("flood", size=1), "_meta": meta(progressToken=1)})
        await place.started.wait()
        await streamed.message()
        await told.message()
        await host.app.aclose()
        assert ((await plain.finished()).status, plain.json["id"]) == (200, 1)
        assert plain.json["error"]["data"] == {"kind": "outcome_unknown", "interrupted": True}
        assert b"flooded" not in (await told.finished()).body
        assert b"outcome_unknown" in told.body


@pytest.mark.row("SUB-06")
async def test_disconnect_ends_the_listen_request(host: Host, place: Place) -> None:
    stream = listening(host, toolsListChanged=True)
    await stream.message()
    stream.gone.set()
    await stream.finished()
    [connection] = place.server.connections
    while connection.session.incoming_requests:
        await asyncio.sleep(0)
    place.server.add_tool(place.add, name="more")
    assert stream.body.count(b"data:") == 1


async def test_idle_stream_gets_keepalive_comments() -> None:
    place = Place(stream_keepalive=0.01)
    async with hosted(place.server) as host:
        stream = listening(host, toolsListChanged=True)
        await stream.message()
        while stream.body.count(b"\n:") < 2:
            await asyncio.sleep(0.005)
        waiting = begin(host, "tools/call", call("wait"))
        while b":" not in waiting.body:
            await asyncio.sleep(0.005)
        place.go.set()
        assert (await waiting.message())["result"]["structuredContent"] == "done"


async def test_result_without_json_form_is_answered_with_an_error() -> None:
    server = Server("s")

    @server.tool
    async def odd() -> CallToolResult:
        return CallToolResult([], {"a": object()})

    async with hosted(server) as host:
        answer = await ask(host, "tools/call", {"name": "odd", "arguments": {}})
        assert json.loads(answer.body)["result"]["isError"] is True
