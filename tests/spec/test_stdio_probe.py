"""stdio servers that crash on `server/discover`: the client restarts them and sends `initialize` first."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trunkline import Client, Settings
from trunkline.client.era_probe import HANDSHAKE_ONLY, FingerprintSet
from trunkline.errors import ConnectionClosed
from trunkline.transports.stdio.client import Command

# Records the methods that each start received. On a first message that is not initialize it misbehaves as configured.
SERVER = """
import json, os, sys
log, manner = sys.argv[1:]
def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    message = json.loads(line)
    with open(log, "a") as file:
        file.write(json.dumps([os.getpid(), message["method"]]) + "\\n")
    return message
def answer(ident, result):
    print(json.dumps({"jsonrpc": "2.0", "id": ident, "result": result}), flush=True)
first = read()
if first["method"] != "initialize" or manner == "broken":
    if manner == "next":  # as mcp 1.0.0 to 1.9.3 do: nothing is answered, and the next line ends the process
        read()
    if manner == "output":
        os.close(1)
        read()
    sys.exit(3)
info = {"name": "old", "version": "1"}
answer(first["id"], {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info})
while True:
    message = read()
    if "id" in message:
        answer(message["id"], {"tools": [], "content": []})
"""
QUICK = Settings(probe_timeout=0.2)


def command(tmp_path: Path, manner: str, **options: Any) -> Command:
    return Command([sys.executable, "-c", SERVER, str(tmp_path / "log"), manner], settings=QUICK, **options)


def starts(tmp_path: Path) -> list[list[str]]:
    """The methods that each process received, in the order of the processes."""
    sent: dict[int, list[str]] = {}
    for line in (tmp_path / "log").read_text().splitlines():
        process, method = json.loads(line)
        sent.setdefault(process, []).append(method)
    return list(sent.values())


@pytest.mark.parametrize("manner", ["next", "at once", "output"])
async def test_server_that_exits_at_discover_is_restarted_without_it(tmp_path: Path, manner: str) -> None:
    async with Client(command(tmp_path, manner), settings=QUICK) as client:
        assert client.revision == "2024-11-05"
        assert (await client.list_tools()).tools == []
    first, second = starts(tmp_path)
    assert first[0] == "server/discover"
    assert second[:2] == ["initialize", "notifications/initialized"]


async def test_failed_probe_is_remembered_for_the_command(tmp_path: Path) -> None:
    for _ in range(2):
        async with Client(command(tmp_path, "next"), settings=QUICK) as client:
            await client.ping()
    assert [sent[0] for sent in starts(tmp_path)] == ["server/discover", "initialize", "initialize"]


async def test_another_environment_is_probed_again(tmp_path: Path) -> None:
    for value in ("1", "2"):
        async with Client(command(tmp_path, "next", env={"VALUE": value}), settings=QUICK) as client:
            await client.ping()
    assert [sent[0] for sent in starts(tmp_path)] == ["server/discover", "initialize"] * 2


async def test_server_that_always_exits_is_not_remembered(tmp_path: Path) -> None:
    broken = command(tmp_path, "broken")
    with pytest.raises(ConnectionClosed, match="exited with status 3"):
        await Client(broken, settings=QUICK).open()
    assert [sent[0] for sent in starts(tmp_path)] == ["server/discover", "initialize"]
    assert broken.fingerprint not in HANDSHAKE_ONLY


def test_remembered_commands_are_bounded_lru() -> None:
    programs = FingerprintSet(2)
    for name in (b"a", b"b"):
        programs.add(name)
    assert b"a" in programs
    programs.add(b"c")
    assert [name in programs for name in (b"a", b"b", b"c", None)] == [True, False, True, False]
    programs.discard(b"a")
    programs.discard(b"a")
    assert b"a" not in programs
