"""Messages that pass through a proxy unchanged, and failures of the server behind it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.limits import PATIENCE

from trunkline import Client, Context, Server, Settings, proxy
from trunkline.errors import OutcomeUnknown, RequestTimeout, ToolFailed, TransportError
from trunkline.testing import RawPeer, ScriptedServer

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
TOOL = {"name": "act", "inputSchema": {"type": "object"}}
READ_ONLY = {**TOOL, "annotations": {"readOnlyHint": True}}
ONLY_TOOLS = {"tools": {"listChanged": True}}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "7"},
}
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": "user=1"}
UNKNOWN_RESULT = {
    "content": [{"type": "hologram", "beams": [1.0, 2]}, {"type": "text", "text": "ü", "style": "bold"}],
    "structuredContent": {"n": 12345678901234567890, "e": 1.5},
    "isError": False,
    "_meta": {"acme/cost": 3},
    "acme": None,
}


def behind(**options: Any) -> ScriptedServer:
    return ScriptedServer(**{"capabilities": ONLY_TOOLS, "tools": [TOOL], "patience": PATIENCE, **options})


@asynccontextmanager
async def open_peer(target: Any, **options: Any) -> AsyncIterator[RawPeer]:
    """Open a peer of a proxy, which is shut down afterwards."""
    front = proxy(target, **options)
    try:
        async with RawPeer(front, patience=PATIENCE) as peer:
            yield peer
    finally:
        await front.aclose()


async def call_through(
    peer: RawPeer, server: ScriptedServer, line: int, params: dict[str, Any]
) -> tuple[int | str, dict[str, Any]]:
    """Send a call; return its id, and the request that arrives behind the proxy."""
    ident = peer.call("tools/call", params)
    return ident, await (await server.connected(line)).request("tools/call")


@pytest.mark.off_the_record
async def test_unknown_content_and_metadata_pass_in_the_handshake_era() -> None:
    server = behind()
    async with open_peer(server) as peer:
        await peer.initialize()
        meta = {"acme/id": [1, {"a": None}], **TRACE}
        arguments = {"z": 1, "a": [1.50, None, "ü"]}
        calling, request = await call_through(
            peer, server, 2, {"name": "act", "arguments": arguments, "_meta": {**meta, "progressToken": "mine"}}
        )
        server.line.reply(request, UNKNOWN_RESULT)
        answer = await peer.answer_to(calling)
    assert request["params"]["arguments"] == arguments
    assert {key: value for key, value in request["params"]["_meta"].items() if key != "progressToken"} == meta
    assert request["params"]["_meta"]["progressToken"] == request["id"]
    assert answer["result"] == UNKNOWN_RESULT


@pytest.mark.off_the_record
async def test_envelope_metadata_and_result_pass_in_the_modern_era() -> None:
    server = behind(modern=True)
    async with open_peer(server) as peer:
        meta = {**ENVELOPE, **TRACE, "acme/id": 1}
        calling, request = await call_through(peer, server, 1, {"name": "act", "arguments": {}, "_meta": meta})
        result = {"resultType": "complete", **UNKNOWN_RESULT}
        server.line.reply(request, result)
        answer = await peer.answer_to(calling)
    assert request["params"]["_meta"] == meta
    assert answer["result"] == result


@pytest.mark.off_the_record
async def test_questions_and_state_pass_unchanged_in_the_modern_era() -> None:
    server = behind(modern=True)
    form = {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {"x": {"type": "?"}}}}
    questions = {"k": {"method": "elicitation/create", "params": form}}
    async with open_peer(server) as peer:
        calling, request = await call_through(peer, server, 1, {"name": "act", "arguments": {}, "_meta": ENVELOPE})
        asked = {"resultType": "input_required", "inputRequests": questions, "requestState": "opaque ü"}
        server.line.reply(request, asked)
        assert (await peer.answer_to(calling))["result"] == asked
        answers = {"inputResponses": {"k": {"action": "accept", "content": {"x": [1]}}}, "requestState": "opaque ü"}
        calling, request = await call_through(
            peer, server, 1, {"name": "act", "arguments": {}, "_meta": ENVELOPE, **answers}
        )
        assert {key: request["params"][key] for key in answers} == answers
        server.line.reply(request, {"resultType": "complete", "content": []})
        await peer.answer_to(calling)


@pytest.mark.off_the_record
async def test_question_of_unknown_shape_passes_in_the_handshake_era() -> None:
    server = behind()
    form = {"message": "?", "requestedSchema": {"type": "object", "properties": {"x": {"type": "color"}}}, "acme": 1}
    async with open_peer(server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        calling, request = await call_through(peer, server, 2, {"name": "act", "arguments": {}})
        server.line.send({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": form})
        question = await peer.receive()
        assert question["method"] == "elicitation/create"
        assert question["params"] == form
        peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "acme": [1]}})
        answer = await server.line.receive()
        assert answer == {"jsonrpc": "2.0", "id": "q1", "result": {"action": "accept", "acme": [1]}}
        server.line.reply(request, {"content": []})
        await peer.answer_to(calling)


async def test_refused_question_has_the_error_of_the_client() -> None:
    server = behind()
    async with open_peer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        calling, request = await call_through(peer, server, 2, {"name": "act", "arguments": {}})
        server.line.send(
            {"jsonrpc": "2.0", "id": 5, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
        )
        question = await peer.receive()
        error = {"code": -1, "message": "User rejected sampling request", "data": [1]}
        peer.send({"jsonrpc": "2.0", "id": question["id"], "error": error})
        assert (await server.line.receive())["error"] == error
        server.line.reply(request, {"content": []})
        await peer.answer_to(calling)


async def test_question_that_the_server_cancels_is_cancelled_in_front() -> None:
    server = behind()
    async with open_peer(server) as peer:
        await peer.initialize(capabilities={"roots": {}})
        calling, request = await call_through(peer, server, 2, {"name": "act", "arguments": {}})
        server.line.send({"jsonrpc": "2.0", "id": 5, "method": "roots/list"})
        question = await peer.receive()
        server.line.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
        cancelled = await peer.receive()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == question["id"]
        server.line.reply(request, {"content": []})
        await peer.answer_to(calling)


@pytest.mark.parametrize("data", [None, {"kind": "odd"}, [1, "two"], 0])
@pytest.mark.parametrize("era", [HANDSHAKE, MODERN])
async def test_error_passes_with_code_message_and_data(era: str, data: Any) -> None:
    server = behind(modern=era == MODERN)
    error = {"code": -32050, "message": "no \u0000 way"} | ({} if data is None else {"data": data})
    async with open_peer(server) as peer:
        if era == HANDSHAKE:
            await peer.initialize()
        meta = {"_meta": ENVELOPE} if era == MODERN else {}
        calling, request = await call_through(
            peer, server, 2 if era == HANDSHAKE else 1, {"name": "act", "arguments": {}, **meta}
        )
        server.line.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
        assert (await peer.answer_to(calling))["error"] == error


async def test_sessions_have_connections_of_their_own() -> None:
    server = behind()
    async with open_peer(server) as one, RawPeer(one.server, patience=PATIENCE) as two:
        await one.initialize(capabilities={"roots": {}})
        await two.initialize(capabilities={"sampling": {}})
        first, to_first = await call_through(one, server, 2, {"name": "act", "arguments": {"n": 1}})
        second, to_second = await call_through(two, server, 3, {"name": "act", "arguments": {"n": 2}})
        server.lines[1].reply(to_first, {"content": []})
        server.lines[2].reply(to_second, {"content": []})
        await one.answer_to(first)
        await two.answer_to(second)
        introduced = [line.transcript.said_by("client") for line in server.lines]
    capabilities = [
        next(said["params"]["capabilities"] for said in line if said.get("method") == "initialize")
        for line in introduced
    ]
    assert "roots" in capabilities[1]
    assert "sampling" not in capabilities[1]
    assert "sampling" in capabilities[2]
    assert "roots" not in capabilities[2]


async def test_closed_session_closes_its_connection() -> None:
    server = behind()
    async with open_peer(server) as other:
        await other.initialize()
        async with RawPeer(other.server, patience=PATIENCE) as peer:
            await peer.initialize()
            calling, request = await call_through(peer, server, 2, {"name": "act", "arguments": {}})
            server.line.reply(request, {"content": []})
            await peer.answer_to(calling)
        async with asyncio.timeout(PATIENCE):
            while server.lines[1].closed is None:
                await asyncio.sleep(0)
        assert server.lines[0].closed is None


async def test_unreachable_server_prevents_the_start() -> None:
    server = behind()
    server.refusals.append(TransportError("nothing listens"))
    with pytest.raises(TransportError, match="nothing listens"):
        await Client(proxy(server)).open()


async def test_lost_call_has_an_unknown_outcome() -> None:
    server = behind()
    async with Client(proxy(server), revision=HANDSHAKE) as client:
        calling = asyncio.create_task(client.call_tool("act"))
        line = await server.connected(2)
        await line.request("tools/call")
        line.die()
        with pytest.raises(OutcomeUnknown, match="may or may not have been executed"):
            await calling


async def test_lost_read_only_call_is_repeated() -> None:
    server = behind(tools=[READ_ONLY])
    settings = Settings(backoff_first=0.001, backoff_jitter=0.0)
    async with Client(proxy(server, settings=settings), revision=HANDSHAKE) as client:
        calling = asyncio.create_task(client.call_tool("act"))
        line = await server.connected(2)
        await line.request("tools/call")
        line.die()
        line = await server.connected(3)
        line.reply(await line.request("tools/call"), {"content": [{"type": "text", "text": "again"}]})
        assert (await calling).text == "again"


async def test_call_without_a_connection_is_refused_for_now() -> None:
    server = behind()
    async with open_peer(server) as peer:
        await peer.initialize()
        server.refusals.append(TransportError("gone"))
        refused = await peer.error("tools/call", {"name": "act", "arguments": {}})
        assert refused["data"]["kind"] == "temporarily_unavailable"
        assert "gone" not in refused["message"]  # the reason may name a command with secrets
        calling, request = await call_through(peer, server, 2, {"name": "act", "arguments": {}})
        server.line.reply(request, {"content": []})
        assert "result" in await peer.answer_to(calling)


async def test_slow_server_is_answered_for_at_the_deadline() -> None:
    server = behind()
    async with Client(proxy(server), revision=HANDSHAKE) as client:
        calling = asyncio.create_task(client.call_tool("act", timeout=2))
        line = await server.connected(2)
        request = await line.request("tools/call")
        assert 0 < request["params"]["_meta"]["trunkline/timeout-ms"] <= 2000
        with pytest.raises((RequestTimeout, ToolFailed)):
            await calling
        cancelled = await line.receive()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == request["id"]


async def open_connection(peer: RawPeer, server: ScriptedServer, line: int = 2) -> None:
    """Send a call that opens the connection behind the proxy: the calls after it are sent at once."""
    calling, request = await call_through(peer, server, line, {"name": "act", "arguments": {}})
    server.line.reply(request, {"content": []})
    await peer.answer_to(calling)


async def test_call_that_waits_for_the_server_has_no_task() -> None:
    server = behind()
    async with open_peer(server) as peer:
        await peer.initialize()
        await open_connection(peer, server)
        before = asyncio.all_tasks()
        calls = [peer.call("tools/call", {"name": "act", "arguments": {}}) for _ in range(3)]
        requests = [await server.line.request("tools/call") for _ in calls]
        assert asyncio.all_tasks() <= before
        for request in requests:
            server.line.reply(request, {"content": []})
        assert all(["result" in await peer.answer_to(calling) for calling in calls])


async def test_cancelled_call_is_cancelled_behind_and_its_late_response_is_ignored() -> None:
    server = behind()
    async with open_peer(server) as peer:
        await peer.initialize()
        await open_connection(peer, server)
        calling, request = await call_through(peer, server, 2, {"name": "act", "arguments": {}})
        peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": calling}})
        cancelled = await server.line.receive()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == request["id"]
        server.line.reply(request, {"content": []})
        await open_connection(peer, server)


async def test_call_is_repeated_after_the_loss_of_an_open_connection() -> None:
    server = behind(tools=[READ_ONLY])
    async with open_peer(server, settings=Settings(backoff_first=0.001, backoff_jitter=0.0)) as peer:
        await peer.initialize()
        await open_connection(peer, server)
        calling, _ = await call_through(peer, server, 2, {"name": "act", "arguments": {}})
        server.line.die()
        line = await server.connected(3)
        line.reply(await line.request("tools/call"), {"content": [{"type": "text", "text": "again"}]})
        assert (await peer.answer_to(calling))["result"]["content"][0]["text"] == "again"


async def test_call_is_cancelled_while_its_question_is_open() -> None:
    server, form = behind(modern=True), {"type": "object", "properties": {}}
    question = {"q": {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": form}}}
    async with open_peer(server, sessions=False) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        calling, request = await call_through(peer, server, 1, {"name": "act", "arguments": {}})
        server.line.reply(request, {"resultType": "input_required", "inputRequests": question, "requestState": "s"})
        assert (asked := await peer.receive())["method"] == "elicitation/create"
        peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": calling}})
        withdrawn = await peer.receive()
        assert withdrawn["method"] == "notifications/cancelled"
        assert withdrawn["params"]["requestId"] == asked["id"]
        await open_connection(peer, server, 1)


@pytest.mark.off_the_record
async def test_result_that_is_no_object_fails_its_call_alone() -> None:
    server = behind(modern=True)
    async with open_peer(server, sessions=False) as peer:
        await peer.initialize()
        await open_connection(peer, server, 1)
        calling, request = await call_through(peer, server, 1, {"name": "act", "arguments": {}})
        server.line.send({"jsonrpc": "2.0", "id": request["id"], "result": [1]})
        assert (await peer.answer_to(calling))["result"]["isError"]
        await open_connection(peer, server, 1)


async def test_catalog_is_read_again_after_a_reconnection() -> None:
    server, changed = behind(), asyncio.Event()
    settings = Settings(backoff_first=0.001, backoff_jitter=0.0)
    async with Client(proxy(server, settings=settings), revision=HANDSHAKE) as client:
        client.on("notifications/tools/list_changed", lambda _: changed.set())
        server.tools = [{**TOOL, "name": "other"}]
        server.lines[0].die()
        async with asyncio.timeout(PATIENCE):
            await changed.wait()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["other"]


async def test_invalid_tool_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    server = behind(tools=[{"name": 5}, TOOL])
    async with Client(proxy(server)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["act"]
    assert "leaves out an invalid Tool" in caplog.text


async def test_ambiguous_template_is_listed_and_read() -> None:
    server = behind(capabilities={"resources": {}})
    opening = asyncio.create_task(Client(proxy(server)).open())
    line = await server.connected(1)
    line.reply(await line.request("resources/list"), {"resources": []})
    templates = [{"uriTemplate": "x://{a}{b}", "name": "two"}]
    line.reply(await line.request("resources/templates/list"), {"resourceTemplates": templates})
    client = await opening
    assert [one.uri_template for one in (await client.list_resource_templates()).resource_templates] == ["x://{a}{b}"]
    reading = asyncio.create_task(client.read_resource("x://12"))
    line.reply(await line.request("resources/read"), {"contents": [{"uri": "x://12", "text": "found"}]})
    assert (await reading)[0].text == "found"
    await client.close()


async def test_state_of_another_request_is_refused() -> None:
    server = Server("behind")

    @server.tool
    async def ask(which: str, ctx: Context) -> str:
        return (await ctx.elicit("?", str)).data or ""

    async with open_peer(server, revision=HANDSHAKE) as peer:
        params = {"name": "ask", "arguments": {"which": "a"}, "_meta": ENVELOPE}
        asked = (await peer.request("tools/call", params))["result"]
        assert asked["resultType"] == "input_required"
        [key] = asked["inputRequests"]
        answers = {key: {"action": "accept", "content": {"value": "yes"}}}
        retry = {"inputResponses": answers, "requestState": asked["requestState"]}
        stolen = await peer.request("tools/call", {**params, "arguments": {"which": "b"}, **retry})
        assert stolen["error"]["data"]["kind"] == "invalid_request_state"
        done = (await peer.request("tools/call", {**params, **retry}))["result"]
        assert done["resultType"] == "complete"
        assert done["content"] == [{"type": "text", "text": "yes"}]
        used = await peer.request("tools/call", {**params, **retry})
        assert used["error"]["data"]["kind"] == "invalid_request_state"


async def test_concurrent_calls_of_a_modern_client_are_asked_apart() -> None:
    server, both = Server("behind"), asyncio.Barrier(2)

    @server.tool
    async def ask(name: str, ctx: Context) -> str:
        await both.wait()
        return f"{name}: {(await ctx.elicit(f'{name}?', str)).data}"

    async with Client(proxy(server, revision=HANDSHAKE), elicitation=lambda q: {"value": q.message}) as client:
        results = await asyncio.gather(*(client.call_tool("ask", {"name": name}) for name in ("a", "b")))
    assert [result.data for result in results] == ["a: a?", "b: b?"]


async def test_limit_of_a_forwarded_tool_applies() -> None:
    server = Server("behind")
    running, most, release = 0, 0, asyncio.Event()

    @server.tool
    async def work() -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await release.wait()
        running -= 1

    limited = Server("limited")

    @limited.tool(max_concurrency=1)
    async def template() -> None: ...

    front = proxy(server, settings=Settings(on_duplicate="replace"))
    async with Client(front) as client:
        entry, limits = front.tools.get("work"), limited.tools.get("template")
        assert entry is not None
        assert limits is not None
        front.tools.add(replace(entry, limiter=limits.limiter))
        calls = [asyncio.create_task(client.call_tool("work")) for _ in range(3)]
        release.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*calls)
    assert most == 1
