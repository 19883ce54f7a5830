"""A handler may let the client go while it works; never one that would not find its way back."""

from typing import Any

import pytest
from tests.unit.transports.http.asgi import call, hosted

from trunkline import Context, Server, Settings


def rambler(**settings: Any) -> Server:
    server = Server("rambler", settings=Settings(**settings))

    @server.tool
    async def ramble(ctx: Context) -> str:
        ctx.close_stream()
        await ctx.progress(1)
        return "done"

    return server


@pytest.mark.row("W06")
@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18"])
async def test_close_stream_without_priming_event_keeps_the_client(revision: str) -> None:
    async with hosted(rambler()) as host:
        ident = await host.session(revision)
        answer = await host.ask("POST", call("ramble"), mcp_session_id=ident, mcp_protocol_version=revision)
    assert answer.json["result"]["content"] == [{"type": "text", "text": "done"}]


@pytest.mark.row("W06")
async def test_client_disconnected_before_any_event_misses_nothing() -> None:
    async with hosted(rambler()) as host:
        ident = await host.session()
        headers = {"mcp_session_id": ident, "mcp_protocol_version": "2025-11-25"}
        answer = await host.ask("POST", call("ramble"), **headers)
        position = await answer.event()
        assert (answer.ended, position.data) == (True, b"")
        again = await host.ask("GET", last_event_id=position.id, **headers)
        assert (await again.message())["result"]["structuredContent"] == {"result": "done"}


async def test_close_stream_without_session_does_nothing() -> None:
    async with hosted(rambler(http_sessions=False)) as host:
        answer = await host.ask("POST", call("ramble"), mcp_protocol_version="2025-11-25")
    assert answer.json["result"]["structuredContent"] == {"result": "done"}
