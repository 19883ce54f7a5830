"""Rate limits of HTTP requests, before and after the message is read."""

from typing import Any

import pytest
from tests.spec.test_http_routes import own_connections, under_asgi

from trunkline import Client, Server, Settings
from trunkline.auth import Principal, ResourceServer, StaticTokens
from trunkline.errors import PeerError
from trunkline.testing import ManualClock

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}


def make_server(clock: ManualClock, **options: Any) -> Server:
    settings = Settings(**{name: options.pop(name) for name in list(options) if name.endswith("_rate")})
    server = Server("limited", clock=clock, settings=settings, observers=[], **options)

    @server.tool
    async def work() -> str:
        return "done"

    return server


@pytest.mark.row("Q02", "Q08")
@pytest.mark.parametrize("serving", [own_connections, under_asgi])
async def test_request_above_the_rate_is_refused_unread_with_429(serving: Any) -> None:
    clock = ManualClock()
    async with serving(make_server(clock, http_rate="2/min")) as site:
        for _ in range(2):
            assert (await site.ask("POST", "/mcp", json=INITIALIZE, headers=ACCEPT)).status == 200
        refused = await site.ask("POST", "/mcp", data=b"not even JSON", headers=ACCEPT)
        assert (refused.status, refused.headers["retry-after"]) == (429, "30")
        error = refused.json["error"]
        assert (error["code"], error["data"]["kind"], error["data"]["retryAfterMs"]) == (
            *(1003, "rate_limit_exceeded", 30_000),
        )
        assert error["data"]["hint"]
        assert (await site.ask("GET", "/livez")).status == 200
        clock.advance(30)
        assert (await site.ask("POST", "/mcp", json=INITIALIZE, headers=ACCEPT)).status == 200


@pytest.mark.row("Q05")
async def test_callers_with_tokens_have_limits_of_their_own() -> None:
    tokens = StaticTokens({"a": Principal("ann"), "b": Principal("bob")})
    server = make_server(ManualClock(), http_rate="1/min", auth=ResourceServer(tokens))
    async with own_connections(server) as site:
        for token, status in (("a", 200), ("a", 429), ("b", 200), ("b", 429)):
            reply = await site.ask("POST", "/mcp", json=INITIALIZE, headers=ACCEPT, token=token)
            assert reply.status == status


@pytest.mark.row("Q02")
async def test_request_above_the_rate_is_answered_with_200_once_it_is_read() -> None:
    server = make_server(ManualClock(), server_rate="1/min")
    asked = {
        "jsonrpc": "2.0",
        "id": 5,
        "method": "tools/list",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        },
    }
    headers = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
    async with own_connections(server) as site:
        first = await site.ask("POST", "/mcp", json=asked, headers=headers)
        assert (first.status, "result" in first.json) == (200, True)
        second = await site.ask("POST", "/mcp", json=asked, headers=headers)
    assert (second.status, second.json["error"]["code"]) == (200, 1003)


async def list_often(client: Client) -> None:
    for _ in range(5):
        await client.list_tools()
        client._runtime.cache.clear()


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_client_reads_the_refusal_of_an_unread_request(revision: Any) -> None:
    clock = ManualClock()
    server = make_server(clock, http_rate="1/min burst 4")
    listener = await server.listen("http://127.0.0.1:0/mcp")
    async with Client(listener.address, revision=revision) as client:
        with pytest.raises(PeerError) as refused:
            await list_often(client)
    assert refused.value.code == 1003
    await server.aclose()
