"""The event loop of programs: uvloop's if it is installed."""

import asyncio
import sys

import pytest

import trunkline
from trunkline import BlockingClient, Server
from trunkline.event_loop import find_loop_factory


async def loop_module() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_program_runs_on_uvloop_and_returns_its_value() -> None:
    assert trunkline.run(loop_module()) == "uvloop"


def test_program_runs_on_asyncio_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert trunkline.run(loop_module()) == "asyncio"
    assert find_loop_factory() is asyncio.new_event_loop


def test_exception_of_a_program_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        trunkline.run(fail())


def test_blocking_client_runs_on_uvloop() -> None:
    server, seen = Server("s"), list[str]()

    @server.tool
    async def look() -> None:
        seen.append(await loop_module())

    with BlockingClient(server) as client:
        client.call_tool("look")
    assert seen == ["uvloop"]
