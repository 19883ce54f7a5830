"""The control socket of a serving process, and the commands that read it."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.processes import eventually
from tests.unit.cli.commands import run, trunkline
from tests.unit.cli.screen import screen_of

from trunkline import Client
from trunkline.cli.processes import query_state
from trunkline.server.introspection.control_socket import ControlSocket
from trunkline.server.introspection.process_state import ChildSummary

PROGRAM = Path(__file__).parent / "control_server.py"


class Process:
    """A server with a control socket."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), *options], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.url = self.process.stderr.readline().strip().rpartition(" listens at ")[2]
        eventually(lambda: self.sockets)

    @property
    def sockets(self) -> list[Path]:
        return sorted(self.folder.glob("*.sock"))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path / "control")
    yield made
    made.process.terminate()
    made.process.communicate(timeout=PATIENCE)
    assert made.process.returncode == 0
    assert made.sockets == []


def calls_of(process: Process) -> list[str]:
    state = query_state(process.sockets[0])
    return [] if state is None else [call.target for call in state.server.calls if call.method == "tools/call"]


def running_threads(process: Process) -> int:
    state = query_state(process.sockets[0])
    return 0 if state is None else sum(queue.running for queue in state.server.queues if queue.name == "threads")


async def test_socket_is_for_its_user_only(process: Process) -> None:
    [path] = process.sockets
    assert path.name == f"{process.process.pid}.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_state_names_connections_calls_and_their_ages(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Client(process.url, revision="2025-11-25", name="till") as client:
        calls = [asyncio.create_task(client.call_tool(name)) for name in ("wait", "block")]
        await asyncio.to_thread(eventually, lambda: sorted(calls_of(process)) == ["block", "wait"])
        await asyncio.to_thread(eventually, lambda: running_threads(process) == 1)
        state = query_state(process.sockets[0])
        assert state is not None
        [connection] = state.server.connections
        assert (connection.client.split()[0], connection.revision, connection.calls) == ("till", "2025-11-25", 2)
        assert all(call.age >= 0 for call in state.server.calls)
        assert (state.pid, state.server.worker) == (process.process.pid, None)
        assert {(queue.name, queue.waiting, queue.running) for queue in state.server.queues} == {
            ("calls", 0, connection.calls),
            ("threads", 0, 1),
            ("facts", 0, 0),
        }
        assert 0 < state.memory < 1 << 30
        code, out, _ = run(capsys, "ps", str(process.folder), "--pid", str(state.pid))
        assert code == 0
        for said in ("till", "tools/call", "threads", "server/http:"):
            assert said in out
        code, out, _ = run(capsys, "ps", str(process.sockets[0]), "--stacks")
        assert (code, "in wait" in out, "in block" in out) == (0, True, True)
        (process.folder / "go").touch()
        await asyncio.gather(*calls)


async def test_slow_call_and_blocked_loop_are_logged_with_their_stacks(tmp_path: Path) -> None:
    process = Process(tmp_path / "control", "slow")
    log = tmp_path / "control" / "log"
    async with Client(process.url) as client:
        calls = [asyncio.create_task(client.call_tool(name)) for name in ("wait", "block")]
        await asyncio.to_thread(eventually, lambda: log.read_text().count("tools/call of") == 2)
        (process.folder / "go").touch()
        await asyncio.gather(*calls)
        assert "in wait" in log.read_text()
        assert "in block" in log.read_text()
        await client.call_tool("hog")
        assert "the event loop is blocked" in log.read_text()
        assert "in hog" in log.read_text()
    process.process.send_signal(signal.SIGTERM)
    process.process.communicate(timeout=PATIENCE)
    assert "subscriptions/listen" not in log.read_text()


async def test_socket_of_a_killed_process_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = Process(tmp_path / "control")
    process.process.kill()
    process.process.communicate()
    assert len(process.sockets) == 1
    code, out, err = run(capsys, "ps", str(process.folder))
    assert (code, out) == (1, "")
    assert "no serving process was found" in err
    assert process.sockets == []


async def test_top_shows_the_screen_and_leaves_it_clean(process: Process) -> None:
    with screen_of("top", str(process.folder)) as screen:
        screen.until(str(process.process.pid))
        screen.until("shop")
        screen.send("\x03")
        assert screen.ended() == 130
        assert screen.echoes
    piped = await trunkline("top", str(process.folder), "--count", "2", "--interval", "0.01", "--json")
    assert (piped.status, len(piped.out.splitlines())) == (0, 2)


async def test_children_are_shown_with_their_restarts_and_last_failure(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Client(process.url) as client:
        await client.call_tool("supervise")

    def children() -> list[ChildSummary]:
        state = query_state(process.sockets[0])
        return [] if state is None else [*state.server.children]

    eventually(lambda: [child.state for child in children()] == ["running"] * 3)
    listener, poll, sleep = children()
    assert (listener.kind, listener.state, listener.restarts) == ("listener", "running", 0)
    assert (poll.name, poll.kind, poll.restarts) == ("server/poll", "task", 1)
    assert poll.last_failure == "ConnectionError: it has moved"
    assert (sleep.name, sleep.kind, sleep.state) == ("server/sleep", "process", "running")
    assert Path(f"/proc/{sleep.pid}/cmdline").read_bytes().startswith(b"sleep")
    assert all(0 <= child.age < 2 * PATIENCE for child in (listener, poll, sleep))
    out = run(capsys, "top", str(process.folder), "--count", "1")[1]
    assert "ConnectionError: it has moved" in out


async def test_processes_are_chosen_by_store(process: Process) -> None:
    found = await trunkline("ps", str(process.folder), "--store", str(process.folder / "store.db"))
    assert (found.status, str(process.process.pid) in found.out) == (0, True)
    found = await trunkline("ps", str(process.folder), "--store", "other.db")
    assert found.status == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["/nowhere"], "no control socket"), ([".", "--pid", "1"], "process 1 has no control socket")],
)
def test_missing_process_is_named(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "ps", *arguments)
    assert (code, said in err) == (2, True)


@pytest.mark.parametrize("request_line", [b"shutdown\n", b"\n", b"x" * 10_000, b""])
async def test_other_requests_change_nothing(process: Process, request_line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(process.sockets[0])
    writer.write(request_line)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert b"pid" not in answer
    writer.close()
    assert query_state(process.sockets[0]) is not None


async def test_server_runs_without_a_socket_if_its_folder_is_open_to_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)
    control = ControlSocket(str(tmp_path), _never, _never)
    await control.open()
    await control.close()
    assert "is not a private folder" in caplog.text
    assert not [*tmp_path.glob("*.sock")]


def _never() -> Any:
    raise AssertionError(os.getpid())
