"""One client after another on the same standard input and output, as gateways do it."""

import json
from typing import Any

import pytest
from tests.processes import StdioPeer

SERVER = """
import asyncio
from trunkline import Context, Server

server = Server("shared")
server.add_resource("note://one", "text")

@server.tool
async def about(ctx: Context) -> str:
    await ctx.debug("looked at")
    return f"{ctx.session_id} {ctx.client.info.name} {'roots' in ctx.client.capabilities}"

@server.tool
async def change(ctx: Context) -> str:
    server.notify_updated("note://one")
    return "changed"

@server.tool
async def forever(ctx: Context) -> str:
    await ctx.info("started")
    await asyncio.Event().wait()
    return "never"

server.run()
"""


def hello(name: str, **capabilities: Any) -> dict[str, Any]:
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": capabilities,
        "clientInfo": {"name": name, "version": "1"},
    }


def begin(peer: StdioPeer, name: str, **capabilities: Any) -> None:
    assert peer.result("initialize", hello(name, **capabilities))["serverInfo"]["name"] == "shared"
    peer.notify("notifications/initialized")


def text(peer: StdioPeer, tool: str) -> str:
    return peer.result("tools/call", {"name": tool, "arguments": {}})["content"][0]["text"]


@pytest.mark.row("L06")
def test_second_initialize_starts_a_fresh_session() -> None:
    with StdioPeer(SERVER) as peer:
        begin(peer, "first", roots={})
        peer.result("logging/setLevel", {"level": "debug"})
        peer.result("resources/subscribe", {"uri": "note://one"})
        number, *first = text(peer, "about").split()
        assert text(peer, "change") == "changed"
        begin(peer, "second")
        before = len(peer.transcript.frames)
        other, *second = text(peer, "about").split()
        assert text(peer, "change") == "changed"
        peer.result("ping")
        assert (first, second) == (["first", "True"], ["second", "False"])
        assert number != other
        told = [message["method"] for message in peer.transcript.said_by("server") if "method" in message]
        assert told == ["notifications/message", "notifications/resources/updated"]
        assert len(peer.transcript.frames) == before + 6


@pytest.mark.row("L06")
def test_messages_after_second_initialize_use_the_new_session() -> None:
    with StdioPeer(SERVER) as peer:
        begin(peer, "first")
        initialize = {"jsonrpc": "2.0", "id": "a", "method": "initialize", "params": hello("second")}
        call = {"jsonrpc": "2.0", "id": "b", "method": "tools/call", "params": {"name": "about"}}
        peer.send(b"".join(json.dumps(message).encode() + b"\n" for message in (initialize, call)))
        assert peer.answer_to("a")["result"]["serverInfo"]["name"] == "shared"
        assert " second " in peer.answer_to("b")["result"]["content"][0]["text"]


@pytest.mark.row("L06")
def test_second_initialize_is_refused_during_a_call() -> None:
    with StdioPeer(SERVER) as peer:
        begin(peer, "first")
        running = peer.tool("forever")
        assert peer.receive()["method"] == "notifications/message"
        error = peer.request("initialize", hello("second"))["error"]
        assert (error["code"], error["data"]["kind"]) == (-32600, "already_initialized")
        peer.notify("notifications/cancelled", {"requestId": running})
        begin(peer, "third")
        assert " third " in text(peer, "about")


@pytest.mark.row("L06")
def test_invalid_second_initialize_keeps_the_session() -> None:
    with StdioPeer(SERVER) as peer:
        begin(peer, "first")
        error = peer.request("initialize", {"protocolVersion": 5})["error"]
        assert error["data"]["kind"] == "already_initialized"
        assert " first " in text(peer, "about")
