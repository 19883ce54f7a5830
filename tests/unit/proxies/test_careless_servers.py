"""Servers behind a proxy that tell changes to the calling client only, or ask clients for what they did not declare."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Server, proxy
from trunkline.auth import Principal
from trunkline.testing import RawPeer, ScriptedServer

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
TOOL = {"name": "act", "inputSchema": {"type": "object"}}
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
UPDATED = "notifications/resources/updated"
URL_QUESTION = {"mode": "url", "message": "Log in", "url": "https://example.com/login"}
FORM_QUESTION = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
CALL = {"name": "act", "arguments": {}}


def envelope(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a request of the modern era."""
    return {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    }


@asynccontextmanager
async def started(server: ScriptedServer, **options: Any) -> AsyncIterator[Server]:
    """A proxy in front of a scripted server, which answers lists of resources."""
    front = proxy(server, **options)
    starting = asyncio.create_task(front.start())
    if "resources" in server.capabilities:
        line = await server.connected(1)
        line.reply(await line.request("resources/list"), {"resources": []})
        line.reply(await line.request("resources/templates/list"), {"resourceTemplates": []})
    await starting
    try:
        yield front
    finally:
        await front.aclose()


def behind(**options: Any) -> ScriptedServer:
    return ScriptedServer(
        **{"capabilities": {"tools": {"listChanged": True}}, "tools": [TOOL], **options}, patience=PATIENCE
    )


async def heard(peer: RawPeer, method: str) -> Any:
    """Return the next message of a method."""
    while (message := await peer.receive()).get("method") != method:
        pass
    return message


# --- changes -------------------------------------------------------------------------------------


async def test_list_change_that_only_the_calling_session_is_told_reaches_all_clients() -> None:
    server = behind()
    async with (
        started(server) as front,
        RawPeer(front, patience=PATIENCE) as one,
        RawPeer(front, patience=PATIENCE) as two,
    ):
        await one.initialize()
        await two.initialize()
        call = one.call("tools/call", CALL)
        session = await server.connected(2)
        request = await session.request("tools/call")
        server.tools.append({**TOOL, "name": "added"})
        session.notify("notifications/tools/list_changed")
        session.reply(request, {"content": []})
        await one.answer_to(call)
        for peer in (one, two):
            await heard(peer, "notifications/tools/list_changed")
            assert [tool["name"] for tool in (await peer.result("tools/list"))["tools"]] == ["act", "added"]


async def told_in_a_session(principal: Principal | None) -> list[str]:
    """Return the URIs of the updates that a subscriber gets. The server tells it of one in its session, and of another
    one on the connection that has subscribed."""
    server = behind(capabilities=CAPABILITIES)
    server.answered |= {"resources/subscribe", "resources/unsubscribe"}
    async with started(server) as front, RawPeer(front, principal=principal, patience=PATIENCE) as peer:
        await peer.initialize()
        for uri in ("note://a", "note://b"):
            await peer.result("resources/subscribe", {"uri": uri})
        call = peer.call("tools/call", CALL)
        session = await server.connected(2)
        request = await session.request("tools/call")
        session.notify(UPDATED, {"uri": "note://a"})
        session.reply(request, {"content": []})
        await peer.answer_to(call)
        server.lines[0].notify(UPDATED, {"uri": "note://b"})
        while (await heard(peer, UPDATED))["params"]["uri"] != "note://b":
            pass
    told = [message for message in peer.transcript.said_by("server") if message.get("method") == UPDATED]
    return [message["params"]["uri"] for message in told]


async def test_update_that_only_the_calling_session_is_told_reaches_subscribers() -> None:
    assert await told_in_a_session(None) == ["note://a", "note://b"]


async def test_update_in_a_session_of_a_principal_reaches_no_other() -> None:
    assert await told_in_a_session(Principal("ann")) == ["note://b"]


# --- questions -----------------------------------------------------------------------------------


async def test_url_question_of_the_modern_era_gets_an_id_for_a_client_of_the_handshake_era() -> None:
    server = behind(modern=True)
    async with started(server, sessions=False) as front, RawPeer(front, patience=PATIENCE) as peer:
        await peer.initialize(capabilities={"elicitation": {"url": {}}})
        call = peer.call("tools/call", CALL)
        line = server.line
        questions = {"login": {"method": "elicitation/create", "params": URL_QUESTION}}
        asking = {"resultType": "input_required", "inputRequests": questions, "requestState": "s"}
        line.reply(await line.request("tools/call"), asking)
        question = await heard(peer, "elicitation/create")
        assert question["params"].pop("elicitationId")
        assert question["params"] == URL_QUESTION
        peer.reply(question, {"action": "accept"})
        again = await line.request("tools/call")
        assert again["params"]["inputResponses"] == {"login": {"action": "accept"}}
        line.reply(again, line.complete(content=[]))
        assert (await peer.answer_to(call))["result"]["content"] == []


async def test_url_question_of_the_handshake_era_has_no_id_for_a_client_of_the_modern_era() -> None:
    server = behind()
    async with started(server) as front, RawPeer(front, patience=PATIENCE) as peer:
        call = peer.call("tools/call", {**CALL, "_meta": envelope({"elicitation": {"url": {}}})})
        line = await server.connected(2)
        await line.request("tools/call")
        asking = asyncio.create_task(line.call("elicitation/create", {**URL_QUESTION, "elicitationId": "1"}))
        [question] = (await peer.answer_to(call))["result"]["inputRequests"].values()
        assert question["params"] == URL_QUESTION
        asking.cancel()


@pytest.mark.parametrize(
    ("method", "params", "declared"),
    [
        ("elicitation/create", FORM_QUESTION, {"elicitation": {"url": {}}}),
        ("elicitation/create", {**URL_QUESTION, "elicitationId": "1"}, {"elicitation": {"form": {}}}),
        ("elicitation/create", {**URL_QUESTION, "elicitationId": "1"}, {"elicitation": {}}),
        ("elicitation/create", FORM_QUESTION, {"sampling": {}}),
        ("roots/list", {}, {"sampling": {}}),
        ("sampling/createMessage", {"messages": [], "maxTokens": 1}, {"roots": {}}),
    ],
)
@pytest.mark.parametrize("front_era", [HANDSHAKE, MODERN])
async def test_client_is_not_asked_for_what_it_has_not_declared(
    front_era: str, method: str, params: dict[str, Any], declared: dict[str, Any]
) -> None:
    server = behind()
    async with started(server) as front, RawPeer(front, patience=PATIENCE) as peer:
        if front_era == HANDSHAKE:
            await peer.initialize(capabilities=declared)
        meta = {} if front_era == HANDSHAKE else {"_meta": envelope(declared)}
        call = peer.call("tools/call", {**CALL, **meta})
        line = await server.connected(2)
        request = await line.request("tools/call")
        refused = await line.call(method, params)
        assert refused["error"]["code"] == -32601
        line.reply(request, {"content": []})
        assert (await peer.answer_to(call))["result"]["content"] == []
        assert [one for one in peer.transcript.said_by("server") if one.get("method") == method] == []


async def test_elicitation_without_a_mode_means_forms() -> None:
    server = behind()
    async with started(server) as front, RawPeer(front, patience=PATIENCE) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        peer.call("tools/call", CALL)
        line = await server.connected(2)
        asking = asyncio.create_task(line.call("elicitation/create", FORM_QUESTION))
        question = await heard(peer, "elicitation/create")
        peer.reply(question, {"action": "decline"})
        assert (await asking)["result"] == {"action": "decline"}
