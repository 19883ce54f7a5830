"""A gateway of twenty backends: servers from PyPI and npm among them, and four that do not work."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.packages import ServerEntry, servers
from tests.interop.test_packages import started
from tests.limits import PATIENCE, soon
from tests.processes import children, light
from tests.unit.gateway.gateways import make_gateway, tool_names, until, until_state

from trunkline import BackendState, Client, Gateway
from trunkline.protocol.meta import BACKENDS

BACKENDS_IN_ALL = 20
CALLS = 10_000
AT_ONCE = 40
LISTED_WITHIN = 0.3  # seconds
CRASHING = """
import json, os, sys, threading
threading.Timer(1, os._exit, [1]).start()
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    result = {"tools": []}
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "crashing", "version": "1"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
PYTHON = [sys.executable, "-I", "-S", "-c"]


class Known(NamedTuple):
    """A call, and the text that its result contains."""

    tool: str
    arguments: dict[str, Any]
    text: str


def known_calls(entry: ServerEntry, fill: Callable[[Any], Any]) -> Callable[[int], Known]:
    """Return the function that makes the call of a number: another one for each, if the server allows that."""
    first = entry.calls[0]
    match entry.name:
        case "calculator":
            return lambda number: Known("calculate", {"expression": f"{number} + 1"}, str(number + 1))
        case "calculator-wrtn":
            return lambda number: Known("mul", {"a": number, "b": 3}, f"of {number} and 3 is {number * 3}")
        case "echo-chuk":
            return lambda number: Known("echo_reverse", {"text": f"n{number}"}, f"n{number}"[::-1])
        case _:
            return lambda _: Known(first["tool"], fill(first["arguments"]), fill(first["text"]))


async def answer_500(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request with status 500."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


@asynccontextmanager
async def made(folder: Path) -> AsyncIterator[tuple[Gateway, dict[str, Callable[[int], Known]]]]:
    """A gateway of twenty backends, and the calls of those that work."""
    targets: dict[str, Any] = {}
    calls: dict[str, Callable[[int], Known]] = {}
    async with AsyncExitStack() as stack:
        for entry in servers():
            if entry.quick and "stdio" in entry.commands:
                (folder / entry.name).mkdir()
                values = {"folder": str(folder / entry.name), "site": ""}
                targets[entry.name], fill = stack.enter_context(started(entry, "stdio", values))
                calls[entry.name] = known_calls(entry, fill)
        listening = await stack.enter_async_context(await asyncio.start_server(answer_500, "127.0.0.1", 0))
        targets |= {
            "hung": [*PYTHON, "import sys; sys.stdin.read()"],
            "failing": f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp",
            "absent": ["/no/such/program"],
            "crashing": [*PYTHON, CRASHING],
        }
        for number in range(BACKENDS_IN_ALL - len(targets)):
            targets[f"light-{number}"] = light(folder / f"effects-{number}")
            calls[f"light-{number}"] = lambda number: Known("echo", {"text": f"n{number}"}, f"n{number}")
        options = {"hung": {"start_timeout": 5.0}}
        yield make_gateway(folder, targets, options=options, list_wait=PATIENCE), calls


async def call_all(client: Client, calls: dict[str, Callable[[int], Known]]) -> int:
    """Send all calls, many at a time, and compare their answers; return the number of correct ones."""
    names, numbers, correct = [*calls], iter(range(CALLS)), 0

    async def work(numbers: Iterator[int]) -> None:
        nonlocal correct
        for number in numbers:
            name = names[number % len(names)]
            known = calls[name](number)
            result = await client.call_tool(f"{name}__{known.tool}", known.arguments, timeout=PATIENCE)
            exact = name.startswith("light") or name == "calculator"
            assert result.text == known.text if exact else known.text in result.text, (name, number, result.text)
            correct += 1

    await asyncio.gather(*(work(numbers) for _ in range(AT_ONCE)))
    return correct


@pytest.mark.long
async def test_twenty_backends_of_which_four_are_broken(tmp_path: Path) -> None:
    before = children()
    async with made(tmp_path) as (gateway, calls), Client(gateway.server) as client:
        bad = {"hung", "failing", "absent", "crashing"}
        assert len(gateway.backends) == BACKENDS_IN_ALL
        for name in calls:
            await until_state(gateway, name, BackendState.READY)
        expected = await tool_names(client)
        assert {name.partition("__")[0] for name in expected} == {*calls}

        async def list_once() -> float:
            begun = time.monotonic()
            listed = await tool_names(client)
            took = time.monotonic() - begun
            assert listed == expected
            times.append(took)
            return took

        times: list[float] = []
        await soon(list_once, LISTED_WITHIN)
        begun = time.monotonic()
        assert await call_all(client, calls) == CALLS
        seconds = time.monotonic() - begun
        await soon(list_once, LISTED_WITHIN)
        shown = ", ".join(f"{took * 1000:.1f}" for took in times)
        print(f"\n{len(expected)} tools listed within {shown} ms; {CALLS} calls in {seconds:.1f} s")
        await until(lambda: all(gateway.backends[name].state is BackendState.DEGRADED for name in bad - {"hung"}))
        states = ((await client.list_tools()).meta or {})[BACKENDS]
        assert {name for name, one in states.items() if one["state"] != "ready"} == bad
        health = await gateway.server.check_health()
        marked = {name for name, one in health.components.items() if one.state.value == "unhealthy"}
        assert marked == {f"backend {name}" for name in bad}
        assert "500" in gateway.backends["failing"].reason
        assert gateway.backends["crashing"].restarts
    assert children() == before
