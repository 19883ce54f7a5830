"""Deadlines travel from hop to hop: a server and the clients in its handlers have the time that the caller has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.modern import enveloped

from trunkline import Client, Context, Server, Settings
from trunkline.client.blocking import BlockingClient
from trunkline.errors import RequestTimeout
from trunkline.testing import ManualClock, RawPeer, ScriptedServer

KEY = "trunkline/timeout-ms"
every_era = pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])


def last_server(**options: Any) -> Server:
    """A server whose tools, prompts, resources and methods return the time that they have."""
    server = Server("last", observers=[], **options)

    @server.tool(timeout=30)
    async def left(ctx: Context) -> float | None:
        return ctx.deadline

    @server.prompt
    async def prompt(ctx: Context) -> str:
        return str(ctx.deadline)

    @server.resource("left://now")
    async def resource(ctx: Context) -> str:
        return str(ctx.deadline)

    @server.method("acme/left")
    async def method(ctx: Context) -> dict[str, float | None]:
        return {"left": ctx.deadline}

    @server.completion(prompt="said", argument="text")
    async def complete(value: str, ctx: Context) -> list[str]:
        return [str(ctx.deadline)]

    server.add_prompt("{text}", name="said")
    return server


@asynccontextmanager
async def gateway(behind: Server | str, revision: str, **options: Any) -> AsyncIterator[Server]:
    """A server that passes calls on to another one."""
    server = Server("gateway", observers=[], **options)
    async with Client(behind, revision=revision) as client:

        @server.tool
        async def left() -> float:
            return (await client.call_tool("left", returns=float)).data

        @server.tool
        async def both() -> list[float]:
            calls = (client.call_tool("left", returns=float, timeout=timeout) for timeout in (None, 1.0))
            return [result.data for result in await asyncio.gather(*calls)]

        yield server


@every_era
async def test_deadline_of_a_client_reaches_the_tool_behind_two_gateways(revision: str) -> None:
    async with (
        gateway(last_server(), revision) as inner,
        gateway(inner, revision) as outer,
        Client(outer, revision=revision) as client,
    ):
        result = await client.call_tool("left", returns=float, timeout=5)
        assert 0 < result.data <= 5
        assert 5 < (await client.call_tool("left", returns=float)).data <= 30  # the tool's own limit
        longest, shortest = (await client.call_tool("both", returns=list[float], timeout=5)).data
        assert 1 < longest <= 5
        assert 0 < shortest <= 1


async def test_deadline_travels_between_processes_over_http() -> None:
    last = last_server()
    listener = await last.listen("http://127.0.0.1:0/mcp")
    async with gateway(listener.address, "2026-07-28") as server, Client(server) as client:
        assert 0 < (await client.call_tool("left", returns=float, timeout=5)).data <= 5
    await last.aclose()


async def test_client_on_a_thread_inherits_the_deadline() -> None:
    last = last_server()
    listener = await last.listen("tcp://127.0.0.1:0")
    server = Server("gateway", observers=[])

    @server.tool
    def left() -> float:
        with BlockingClient(listener.address) as client:
            return client.call_tool("left", returns=float).data

    async with Client(server) as client:
        assert (await client.call_tool("left", returns=float, timeout=20)).data <= 30  # starts the tracking
        assert 0 < (await client.call_tool("left", returns=float, timeout=5)).data <= 5
    await last.aclose()


async def test_call_that_outlasts_its_caller_is_stopped_at_every_hop() -> None:
    last, stopped = Server("last", observers=[]), asyncio.Event()

    @last.tool
    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with gateway(last, "2025-11-25") as server, Client(server) as client:
        with pytest.raises(RequestTimeout):
            await client.call_tool("left", timeout=0.05)
        async with asyncio.timeout(PATIENCE):
            await stopped.wait()


# --- on the wire --------------------------------------------------------------------------------------


async def test_timeout_is_sent_only_if_the_caller_has_one() -> None:
    server = ScriptedServer(capabilities={"tools": {}, "resources": {}, "prompts": {}})
    async with Client(server, revision="2025-11-25") as client:
        for timeout in (None, 7.0):
            call = asyncio.create_task(client.call_tool("t", timeout=timeout, meta={"mine": 1}))
            request = await server.line.request("tools/call")
            assert request["params"]["_meta"] == {"mine": 1} | ({} if timeout is None else {KEY: 7000})
            server.line.reply(request, {"content": []})
            await call
        listing = asyncio.create_task(client.list_resources(timeout=7.0))
        request = await server.line.request("resources/list")
        assert "_meta" not in request.get("params", {})  # no handler runs for it
        server.line.reply(request, {"resources": []})
        await listing


async def shown(peer: RawPeer, method: str, params: dict[str, Any], asked: Any) -> float:
    """Call something that returns the time it has; return that."""
    meta = params.pop("_meta", {})
    result = await peer.result(method, {**params, "_meta": {**meta, KEY: asked}})
    match method:
        case "tools/call":
            return float(result["content"][0]["text"])
        case "prompts/get":
            return float(result["messages"][0]["content"]["text"])
        case "resources/read":
            return float(result["contents"][0]["text"])
        case "completion/complete":
            return float(result["completion"]["values"][0])
    return result["left"]


CALLS = [
    ("tools/call", {"name": "left"}, 30),
    ("prompts/get", {"name": "prompt"}, 60),
    ("resources/read", {"uri": "left://now"}, 60),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "said"}, "argument": {"name": "text", "value": ""}},
        60,
    ),
    ("acme/left", {}, 60),
]


@pytest.mark.parametrize(("method", "params", "own"), CALLS)
@pytest.mark.parametrize("modern", [True, False])
async def test_server_shortens_its_deadline_and_never_lengthens_it(
    method: str, params: dict[str, Any], own: float, *, modern: bool
) -> None:
    clock = ManualClock()
    async with RawPeer(last_server(clock=clock)) as peer:
        if not modern:
            await peer.initialize()
        for asked, expected in ((2500, 2.5), (0, 0), (2500.5, 2.5005)):
            given = enveloped(**params) if modern else dict(params)
            assert await shown(peer, method, given, asked) == pytest.approx(expected)
        if method == "tools/call":
            for asked in (10**9, -1, True, "5", None, 10**400, [1]):
                given = enveloped(**params) if modern else dict(params)
                assert await shown(peer, method, given, asked) == own


async def test_time_in_the_queue_counts() -> None:
    clock, go = ManualClock(), asyncio.Event()
    server = last_server(clock=clock, settings=Settings(max_calls=1))

    @server.tool
    async def waits() -> None:
        await go.wait()

    async with RawPeer(server) as peer:
        await peer.initialize()
        first = peer.call("tools/call", {"name": "waits"})
        second = peer.call("tools/call", {"name": "left", "_meta": {KEY: 5000}})
        assert await peer.quiet() == []
        clock.advance(2)
        go.set()
        await peer.answer_to(first)
        assert (await peer.answer_to(second))["result"]["content"][0]["text"] == "3.0"
