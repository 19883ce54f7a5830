"""Tests of a project that `trunkline new` has created, with every tool of `trunkline.testing`.

`make dist` copies this file into such a project and runs it in an environment that has the wheel, but not this tree.
"""

import asyncio
import sys
from pathlib import Path

import pytest

import trunkline_pytest
from server import server
from trunkline import Client, Context, Server
from trunkline.errors import OutcomeUnknown, PeerError, ToolFailed
from trunkline.testing import (
    Cassette,
    CassetteDrift,
    FakeModel,
    FakeUser,
    Faults,
    ManualClock,
    assert_catalog_unchanged,
    connect,
    fuzz_tools,
)

PROGRAM = Path(__file__).parents[1] / "server.py"


def test_kit_is_the_installed_one() -> None:
    assert Path(trunkline_pytest.__file__).is_relative_to(sys.prefix)


async def test_client(mcp_client: Client) -> None:
    assert (await mcp_client.call_tool("add", {"a": 2, "b": 3})).data == 5


async def test_process(mcp_server_process: trunkline_pytest.StartProcess) -> None:
    client = await mcp_server_process(PROGRAM)
    assert (await client.call_tool("add", {"a": 2, "b": 3})).data == 5


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_http(mcp_http_server: str, revision: str) -> None:
    async with Client(mcp_http_server, revision=revision) as client:
        assert (await client.call_tool("add", {"a": 2, "b": 3})).data == 5


async def test_catalog() -> None:
    await assert_catalog_unchanged(server)


async def test_cassette(tmp_path: Path) -> None:
    cassette = Cassette(tmp_path / "sums.jsonl")
    async with Client(cassette.record(server)) as client:
        await client.call_tool("add", {"a": 2, "b": 3})
    with cassette:
        async with Client(cassette.replay()) as client:
            assert (await client.call_tool("add", {"a": 2, "b": 3})).data == 5
    await cassette.play_to(server)
    async with Client(cassette.replay()) as client:
        with pytest.raises(PeerError, match="the client sent another message"):
            await client.call_tool("add", {"a": 2, "b": 4})
    with pytest.raises(CassetteDrift):
        cassette.assert_played()


def test_fuzz() -> None:
    fuzz_tools(server, examples=20)


async def test_faults() -> None:
    async with connect(server, faults=Faults().kill(sent="tools/call")) as client:
        with pytest.raises(OutcomeUnknown):
            await client.call_tool("add", {"a": 2, "b": 3})
        assert (await client.call_tool("add", {"a": 2, "b": 3})).data == 5


async def test_fakes() -> None:
    shop = Server("shop")

    @shop.tool
    async def slogan(ctx: Context) -> str:
        name = await ctx.elicit("What is your name?", str)
        return (await ctx.sample(f"Write a slogan for {name.data}.")).text

    model, user = FakeModel(["Tea time, Ada!"]), FakeUser({"value": "Ada"})
    async with connect(shop, model=model, user=user) as client:
        assert (await client.call_tool("slogan")).data == "Tea time, Ada!"
    assert model.prompts == ["Write a slogan for Ada."]
    assert user.messages == ["What is your name?"]


async def test_clock(manual_clock: ManualClock) -> None:
    slow, began = Server("slow", clock=manual_clock), asyncio.Event()

    @slow.tool
    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    async with connect(slow, raise_exceptions=False) as client:
        call = asyncio.create_task(client.call_tool("wait"))
        await began.wait()
        manual_clock.advance(3600)
        with pytest.raises(ToolFailed):
            await call
