"""Proxies between real transports: HTTP in front of a process, and a process in front of HTTP."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, proxy
from trunkline.errors import OutcomeUnknown
from trunkline.testing import serve_http

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
PAIRS = [(front, behind) for front in (HANDSHAKE, MODERN) for behind in (HANDSHAKE, MODERN)]

BEHIND = """
import asyncio
import os

from trunkline import Context, Server

server = Server("behind")


@server.tool
async def ask(ctx: Context) -> str:
    await ctx.progress(1, 2)
    await ctx.info("asking")
    return f"{(await ctx.elicit('Who?', str)).data}"


@server.tool
async def pid() -> int:
    return os.getpid()


@server.tool
async def hang() -> None:
    await asyncio.Event().wait()


server.run()
"""

FRONT = """
import sys

from trunkline import proxy

proxy(sys.argv[1], revision=sys.argv[2], sessions=sys.argv[2] == "2025-11-25").run()
"""


@pytest.fixture
def behind(tmp_path: Path) -> list[str]:
    (tmp_path / "behind.py").write_text(BEHIND)
    return [sys.executable, str(tmp_path / "behind.py")]


async def exercise(client: Client) -> None:
    """Call a tool that asks, reports progress and logs, twice: a stream of the first call must not be used again."""
    for name in ("Ada", "Grace"):
        progress: list[Any] = []
        client_answers.append(name)
        assert (await client.call_tool("ask", on_progress=progress.append, timeout=PATIENCE)).data == name
        assert [one.progress for one in progress][:1] == [1]


client_answers: list[str] = []


@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
async def test_http_in_front_of_a_process(pair: tuple[str, str], behind: list[str]) -> None:
    front = proxy(behind, revision=pair[1], sessions=pair[1] == HANDSHAKE)
    logs: list[Any] = []
    with serve_http(front) as url:
        client = Client(url, revision=pair[0], elicitation=lambda _: {"value": client_answers[-1]}, on_log=logs.append)
        async with client:
            await exercise(client)
    assert [one.data for one in logs] == ["asking"] * len(logs)
    assert logs


@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
async def test_process_in_front_of_http(pair: tuple[str, str], behind: list[str], tmp_path: Path) -> None:
    (tmp_path / "front.py").write_text(FRONT)
    with serve_http(proxy(behind)) as url:  # so that two proxies are in a row
        command = [sys.executable, str(tmp_path / "front.py"), url, pair[1]]
        async with Client(command, revision=pair[0], elicitation=lambda _: {"value": client_answers[-1]}) as client:
            await exercise(client)


@pytest.mark.parametrize("era", [HANDSHAKE, MODERN])
async def test_killed_server_is_started_again(era: str, behind: list[str]) -> None:
    async with Client(proxy(behind, revision=era), revision=era) as client:
        first = (await client.call_tool("pid")).data
        hanging = asyncio.create_task(client.call_tool("hang"))
        await client.call_tool("pid")  # the first call has been sent as well
        os.kill(first, signal.SIGKILL)
        with pytest.raises(OutcomeUnknown):
            await hanging
        async with asyncio.timeout(PATIENCE):
            second = (await client.call_tool("pid")).data
    assert second != first


async def test_no_process_is_left_after_the_proxy(behind: list[str]) -> None:
    front = proxy(behind)
    async with Client(front, revision=HANDSHAKE) as client:
        pid = (await client.call_tool("pid")).data
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
