"""Streamable HTTP without sessions: every request stands for itself."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.transports.http.asgi import Host, call, hosted, request

from trunkline import Context, Server, Settings
from trunkline.transports.http.no_session import NoSessionEndpoint

OPENING = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.server = Server("sessionless", settings=Settings(http_sessions=False, **settings))
        self.go = asyncio.Event()
        self.done: list[str] = []
        self.roots: list[str] = []

        @self.server.tool
        async def echo(text: str) -> str:
            return text

        @self.server.tool
        async def wait(ctx: Context) -> str:
            ctx.progress(1, 2)
            await self.go.wait()
            self.done.append("waited")
            return "waited"

        @self.server.tool
        async def ask(ctx: Context) -> str:
            await ctx.elicit("who?", str)
            return "never"


@pytest.fixture
async def scene() -> Scene:
    return Scene()


@pytest.fixture
async def host(scene: Scene) -> AsyncIterator[Host]:
    async with hosted(scene.server) as one:
        yield one


def endpoint(host: Host) -> NoSessionEndpoint:
    assert host.app.state is not None
    assert isinstance(host.app.state.handshake, NoSessionEndpoint)
    return host.app.state.handshake


@pytest.mark.row("W04")
async def test_call_needs_neither_handshake_nor_session(host: Host) -> None:
    answer = await host.ask("POST", call("echo", text="hi"), mcp_protocol_version="2025-11-25")
    assert (answer.status, answer.json["result"]["structuredContent"]) == (200, {"result": "hi"})
    assert "mcp-session-id" not in answer.headers
    assert host.server.connections == []


async def test_revision_comes_from_the_version_header(host: Host) -> None:
    plain = await host.ask("POST", call("echo", text="hi"))
    assert "structuredContent" not in plain.json["result"]  # 2025-03-26, which is spoken by those who do not say
    assert (await host.ask("POST", call("echo", text="hi"), mcp_protocol_version="1999-01-01")).status == 400


async def test_initialize_is_answered_without_session_id(host: Host) -> None:
    answer = await host.ask("POST", request("initialize", OPENING))
    assert (answer.status, answer.json["result"]["protocolVersion"]) == (200, "2025-06-18")
    assert "mcp-session-id" not in answer.headers
    told = await host.ask("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (told.status, told.body) == (202, b"")
    assert host.server.connections == []


async def test_get_and_delete_are_refused(host: Host) -> None:
    for method in ("GET", "DELETE", "PUT"):
        answer = await host.ask(method)
        assert (answer.status, answer.headers["allow"]) == (405, "POST, OPTIONS")


async def test_request_to_client_fails(host: Host) -> None:
    answer = await host.ask("POST", call("ask"), mcp_protocol_version="2025-11-25")
    assert answer.json["result"]["isError"] is True
    assert "the client does not support elicitation" in answer.json["result"]["content"][0]["text"]


async def test_malformed_message_is_refused(host: Host) -> None:
    answer = await host.ask("POST", b"{")
    assert (answer.status, answer.json["error"]["code"]) == (400, -32700)
    assert (await host.ask("POST", call("echo"), accept="text/plain")).status == 406
    assert (await host.ask("POST", call("echo"), accept="application/json, text/event-stream;q=0")).status == 406
    assert (await host.ask("POST", call("echo"), accept="APPLICATION/*, Text/*")).status == 200
    assert (await host.ask("POST", call("echo"), content_type="text/plain")).status == 415


async def test_batch_is_answered_in_revisions_with_batches(host: Host) -> None:
    answer = await host.ask("POST", [call("echo", id=1, text="a"), call("echo", id=2, text="b")])
    assert sorted(one["id"] for one in answer.json) == [1, 2]


async def test_equal_ids_of_two_requests_do_not_collide(scene: Scene, host: Host) -> None:
    waiting = host.begin("POST", call("wait", id=7, token="t"))
    assert (await waiting.message())["method"] == "notifications/progress"
    other = await host.ask("POST", call("echo", id=7, text="other"))
    assert other.json["result"]["content"][0]["text"] == "other"
    scene.go.set()
    assert (await waiting.message())["result"]["content"][0]["text"] == "waited"
    await waiting.finished()
    assert host.server.connections == []


async def test_disconnect_does_not_cancel(scene: Scene, host: Host) -> None:
    waiting = host.begin("POST", call("wait", token="t"))
    await waiting.message()
    waiting.gone.set()
    await waiting.finished()
    assert len(host.server.connections) == 1
    scene.go.set()
    while host.server.connections:
        await asyncio.sleep(0)
    assert scene.done == ["waited"]


@pytest.mark.row("Q08")
async def test_requests_over_the_limit_are_refused() -> None:
    scene = Scene(max_sessions=1)
    async with hosted(scene.server) as host:
        waiting = host.begin("POST", call("wait", token="t"))
        await waiting.message()
        refused = await host.ask("POST", call("echo", text="x"))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        endpoint(host).close_idle_streams()  # ends nothing that is being answered
        scene.go.set()
        await waiting.message()
        await waiting.finished()


async def test_aclose_interrupts_requests_in_progress() -> None:
    scene = Scene(drain_timeout=0.01)
    host = Host(scene.server)
    waiting = host.begin("POST", call("wait", token="t"))
    await waiting.message()
    await host.app.aclose()
    await waiting.finished()
    assert waiting.ended
    assert scene.done == []
