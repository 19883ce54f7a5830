"""A gateway in front of processes, and as a process of its own."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.limits import PATIENCE
from tests.processes import children, gone, light
from tests.unit.cli.commands import run, trunkline
from tests.unit.gateway.gateways import make_gateway, make_server, tool_names, until, until_state

from trunkline import BackendState, Client, LaunchPolicy
from trunkline.errors import TrunklineError
from trunkline.testing import serve_http
from trunkline.transports.stdio.client import Command

ENVIRONMENT = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    result = {}
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "env", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "show", "inputSchema": {"type": "object"}}]}
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(dict(os.environ))}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep commands away from the files of the user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def entry(command: list[str], **members: Any) -> dict[str, Any]:
    """Return an entry of a configuration file."""
    return {"command": command[0], "args": command[1:], **members}


async def pid_of(client: Client, tool: str) -> int:
    """Return the process id that the tool `look` or `echo` of a minimal server returns."""
    return int((await client.call_tool(tool)).text)


# --- backends that are processes ---------------------------------------------------------------


async def test_killed_backend_repeats_read_only_calls_and_no_others(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    gateway = make_gateway(tmp_path, {"bank": light(effects)})
    async with Client(gateway.server) as client:
        await tool_names(client)
        for number in range(4):
            await until_state(gateway, "bank", BackendState.READY)
            paying = asyncio.create_task(client.call_tool("bank__pay", {"text": f"{number}", "dies": True}))
            looking = [asyncio.create_task(client.call_tool("bank__look", {"text": "here"})) for _ in range(5)]
            with pytest.raises(TrunklineError):
                await paying
            assert [(await one).text for one in looking] == ["here"] * 5
        assert gateway.backends["bank"].restarts <= 4
    assert effects.read_text().split() == ["0", "1", "2", "3"]


async def test_environment_of_a_backend_reaches_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "of the gateway")
    command = [sys.executable, "-I", "-S", "-c", ENVIRONMENT]
    servers = {"a": entry(command, env={"KEY_A": "${GATEWAY_SECRET}"}), "b": entry(command, env={"KEY_B": "of b"})}
    async with Client(make_gateway(tmp_path, servers).server) as client:
        a, b = [json.loads((await client.call_tool(f"{name}__show")).text) for name in "ab"]
    assert (a["KEY_A"], a.get("KEY_B"), a.get("GATEWAY_SECRET")) == ("of the gateway", None, None)
    assert (b["KEY_B"], b.get("KEY_A")) == ("of b", None)


async def test_command_that_the_policy_forbids_is_not_started(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    gateway = make_gateway(tmp_path, {"bank": entry(light(effects)), "good": make_server()}, launch=LaunchPolicy([]))
    async with Client(gateway.server) as client:
        assert await tool_names(client) == ["good__forecast"]
        assert gateway.backends["bank"].state is BackendState.REFUSED
    assert not effects.exists()


# --- the command -------------------------------------------------------------------------------


class Running(NamedTuple):
    """A process that serves over HTTP."""

    process: asyncio.subprocess.Process
    url: str


@asynccontextmanager
async def serving(folder: Path, *arguments: str) -> AsyncIterator[Running]:
    """Run `trunkline gateway` over HTTP."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trunkline", *arguments, "--http", "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            while (found := re.search(rb"listens at (\S+)", line := await process.stderr.readline())) is None:
                assert line, "it ended"
        reading = asyncio.create_task(process.stderr.read())
        yield Running(process, found[1].decode())
        reading.cancel()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def write_config(folder: Path, servers: Any, **members: Any) -> Path:
    """Write a configuration file that only this user can change."""
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers, **members}))
    path.chmod(0o600)
    return path


async def test_command_serves_good_backends_and_marks_bad_ones(tmp_path: Path) -> None:
    with serve_http(make_server()) as url:
        quick = {"trunkline": {"start_timeout": 20}}
        servers = {
            "bank": entry(light(tmp_path / "effects"), **quick),
            "web": {"url": url},
            "absent": {"command": "no-such-program", "args": ["--token=secret"]},
            "crash": entry([sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"]),
            "hung": entry([sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]),
        }
        config = write_config(tmp_path, servers)
        command = [
            sys.executable,
            "-m",
            "trunkline",
            "gateway",
            str(config),
            "--stop-timeout",
            "0.1",
            "--list-wait",
            "1",
        ]
        on_stdio = Command(command, env={"XDG_STATE_HOME": str(tmp_path / "state")})
        good = [*(f"bank__{name}" for name in ("echo", "look", "mute", "pay", "stay", "wait")), "web__forecast"]
        async with Client(on_stdio) as client:
            await until_listed(client, good)
            listed = await client.list_tools()
            assert sorted(tool.name for tool in listed.tools) == good
            states = {name: one["state"] for name, one in (listed.meta or {})["trunkline/backends"].items()}
            assert {name: states[name] for name in ("bank", "web", "hung")} == {
                "bank": "ready",
                "web": "ready",
                "hung": "starting",
            }
            assert {states["absent"], states["crash"]} <= {"failing", "starting", "degraded"}
            assert (await client.call_tool("web__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
        async with serving(tmp_path, *command[3:]) as running, Client(running.url) as client:
            await until_listed(client, good)
            assert (await client.call_tool("bank__echo", {"text": "hello"})).text == "hello"


async def until_listed(client: Client, names: list[str]) -> None:
    """Wait until a gateway has these tools."""
    async with asyncio.timeout(PATIENCE):
        while await tool_names(client) != names:
            await asyncio.sleep(0.01)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
async def test_hangup_reloads_and_a_killed_gateway_leaves_no_process(tmp_path: Path) -> None:
    kept, other = entry(light(tmp_path / "a")), entry(light(tmp_path / "b"))
    config = write_config(tmp_path, {"kept": kept, "removed": other})
    async with serving(tmp_path, "gateway", str(config)) as running, Client(running.url) as client:
        before = await pid_of(client, "kept__look"), await pid_of(client, "removed__look")
        write_config(tmp_path, {"kept": kept, "added": other})
        running.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(PATIENCE):
            while not any(name.startswith("added") for name in await tool_names(client)):
                await asyncio.sleep(0.01)
        assert await pid_of(client, "kept__look") == before[0]
        await until(lambda: gone(before[1]))
        left = children(running.process.pid)
        assert before[0] in left
        running.process.send_signal(signal.SIGKILL)
        await running.process.wait()
    await until(lambda: all(map(gone, left)))


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
async def test_workers_have_backends_of_their_own_and_the_latest_configuration(tmp_path: Path) -> None:
    bank, other = entry(light(tmp_path / "a")), entry(light(tmp_path / "b"))
    config = write_config(tmp_path, {"bank": bank})

    async def look(url: str, tool: str) -> int:
        async with Client(url) as client:
            while tool not in await tool_names(client):
                await asyncio.sleep(0.01)
            return await pid_of(client, tool)

    async with asyncio.timeout(PATIENCE), serving(tmp_path, "gateway", str(config), "--workers", "2") as running:
        banks = set[int]()
        while len(banks) < 2:  # connections reach both workers
            banks.add(await look(running.url, "bank__look"))
        workers = {parent_of(pid) for pid in banks}
        assert len(workers) == 2
        write_config(tmp_path, {"bank": bank, "added": other})
        running.process.send_signal(signal.SIGHUP)
        reloaded = set[int]()
        while len(reloaded) < 2:
            reloaded.add(parent_of(await look(running.url, "added__look")))
        assert reloaded == workers
        os.kill(min(workers), signal.SIGKILL)
        while reloaded <= workers:  # until the worker that replaces it has answered
            with suppress(TrunklineError):
                reloaded.add(parent_of(await look(running.url, "added__look")))
        running.process.send_signal(signal.SIGTERM)
        assert await running.process.wait() == 0


def parent_of(pid: int) -> int:
    """Return the process that has started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


async def test_check_shows_the_states_of_all_backends(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    servers = {"bank": entry(light(tmp_path / "effects"))}
    ended = await trunkline("gateway", str(write_config(tmp_path, servers)), "--check", environ=environ)
    assert (ended.status, ended.out.split()) == (0, ["bank", "ready"]), ended.err
    bad = {**servers, "absent": {"command": "no-such-program", "args": ["--token=secret"]}}
    ended = await trunkline("gateway", str(write_config(tmp_path, bad)), "--check", environ=environ)
    assert ended.status == 1
    assert "absent  failing  TransportError: cannot start 'no-such-program" in ended.out
    assert "secret" not in ended.out + ended.err
    listed = await trunkline("pins", "list", environ=environ)
    assert "bank  look" in listed.out


@pytest.mark.parametrize(
    ("options", "mode", "message"),
    [
        ([], 0o666, "other users can change"),
        (["--no-commands", "--allow-command", "x"], 0o600, "leave one of them out"),
        (["--no-pins", "--pins", "x"], 0o600, "leave one of them out"),
        (["--input", "token"], 0o600, "--input ID=VALUE"),
        (["--port", "5"], 0o600, "--port needs --http or --tcp"),
        (["--workers", "2"], 0o600, "--workers needs --http"),
        (["--workers", "2", "--check"], 0o600, "leave --workers out"),
        (["--work-timeout", "x"], 0o600, "work-timeout"),
    ],
)
def test_wrong_usage_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], mode: int, message: str
) -> None:
    config = write_config(tmp_path, {"bank": entry(light(tmp_path / "effects"))})
    config.chmod(mode)
    code, _, err = run(capsys, "gateway", str(config), *options)
    assert (code, message in err) == (2, True), err


def test_missing_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "gateway", str(tmp_path / "none.json"))
    assert (code, "cannot read" in err) == (2, True), err
