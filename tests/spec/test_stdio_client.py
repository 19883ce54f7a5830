"""stdio, client side: starting server processes, talking to them and ending them."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import Recorder, until
from tests.limits import PATIENCE, soon
from tests.processes import children, eventually, gone

from trunkline import Settings
from trunkline.errors import ConfigError, TransportError
from trunkline.transports.channel import Channel
from trunkline.transports.stdio.client import Command
from trunkline.wire.messages import Encoded, Notification, Request

SAY = """
import json, os, signal, subprocess, sys, time
def say(**told):
    print(json.dumps({"jsonrpc": "2.0", "method": "said", "params": told}), flush=True)
"""
SHORT = Settings(stop_timeout=0.2)


class Child(Recorder):
    """A server process and its messages."""

    def __init__(self, script: str, *, settings: Settings = SHORT, **options: Any) -> None:
        super().__init__()
        self.command = Command([sys.executable, "-c", SAY + script], settings=settings, **options)
        self.channel: Channel

    @property
    def said(self) -> dict[str, Any]:
        """All messages so far."""
        return {k: v for m in self.messages for k, v in json.loads(bytes(m.params)).items()}  # type: ignore[union-attr]

    async def has_said(self, name: str) -> Any:
        await until(lambda: name in self.said)
        return self.said[name]

    async def end(self) -> Any:
        """Wait for its end; return the reported reason."""
        await until(lambda: self.ends)
        return self.ends[0]


@contextlib.asynccontextmanager
async def started(script: str, **options: Any) -> AsyncIterator[Child]:
    child = Child(script, **options)
    child.channel = await child.command.connect(lambda _: child)
    yield child
    await child.channel.close()


# --- messages --------------------------------------------------------------------------------------------


@pytest.mark.row("STD-01", "W02")
async def test_command_starts_a_server_that_answers() -> None:
    recorder = Recorder()
    script = "from trunkline import Server; Server('hello').run()"
    command = Command([sys.executable, "-c", script], settings=Settings(stop_timeout=10 * PATIENCE))
    channel = await command.connect(lambda _: recorder)
    channel.send(Request(1, "ping"))
    await until(lambda: recorder.messages)
    assert recorder.ids == [1]
    await asyncio.wait_for(channel.close(), PATIENCE)  # it ends when its input does
    assert [end.reason for end in recorder.ends] == ["closed"]


async def test_command_string_is_split_without_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(sys.executable).parent)
    recorder = Recorder()
    script = 'import json, sys; print(json.dumps({"jsonrpc": "2.0", "method": sys.argv[1]}))'
    command = Command(f"{sys.executable} -c '{script}' '$HOME; echo *'")
    channel = await command.connect(lambda _: recorder)
    await until(lambda: recorder.ends)
    assert recorder.methods == ["$HOME; echo *"]
    assert channel.info.peer == command.name
    await channel.close()


@pytest.mark.parametrize("command", ["", [], "  "])
def test_empty_command_is_rejected(command: Any) -> None:
    with pytest.raises(ConfigError, match="name of a program"):
        Command(command)


async def test_server_runs_in_cwd(tmp_path: Path) -> None:
    async with started("say(cwd=os.getcwd())", cwd=tmp_path) as child:
        assert await child.has_said("cwd") == str(tmp_path)


# --- failures to start -----------------------------------------------------------------------------------


def _file(path: Path, text: str, mode: int) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: {"command": ["no-such-program", "x"]}, "no program 'no-such-program' on PATH; install it"),
        (lambda tmp: {"command": [tmp / "nothing"]}, "there is no program at"),
        (lambda tmp: {"command": [_file(tmp / "x", "#!/no/such/thing\n", 0o755)]}, "or none to run it with"),
        (lambda tmp: {"command": [_file(tmp / "x", "hello", 0o644)]}, "is not executable; check its mode"),
        (lambda tmp: {"command": [_file(tmp / "x", "hello", 0o755)]}, "a script needs a first line"),
        (lambda tmp: {"command": ["true"], "cwd": tmp / "nowhere"}, "there is no folder .*; check cwd"),
        (lambda _: {"command": ["true", "a\0b"]}, "must not contain a null byte"),
        (lambda _: {"command": ["true"], "env": {"A": "\0"}}, "must not contain a null byte"),
    ],
)
async def test_start_error_names_command_and_remedy(make: Any, why: str, tmp_path: Path) -> None:
    command = Command(**make(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TransportError, match=why) as raised:
        await command.connect(lambda _: Recorder())
    assert repr(command.name)[1:-1] in str(raised.value)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_process_is_ended_if_accept_fails() -> None:
    pids: list[int] = []

    def refuse(_: Channel) -> Recorder:
        pids.extend(children())
        raise RuntimeError("not now")

    with pytest.raises(RuntimeError, match="not now"):
        await Command(["cat"]).connect(refuse)
    assert pids
    assert all(map(gone, pids))


# --- environment -----------------------------------------------------------------------------------------


async def test_environment_is_inherited_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_SECRET", "tweet")
    monkeypatch.setenv("OTHER_SECRET", "chirp")
    monkeypatch.setenv("LC_MONETARY", "C")
    monkeypatch.setenv("TERM", "() { :; }; echo bad")
    async with started("say(env=dict(os.environ))", env={"GIVEN": "1"}, env_from=["OTHER_SECRET", "NOT_SET"]) as child:
        env = await child.has_said("env")
    assert env.keys() <= {
        *("GIVEN", "HOME", "LANG", "LANGUAGE", "LOGNAME", "OTHER_SECRET", "PATH", "SHELL", "TMPDIR", "TZ", "USER"),
        *(name for name in env if name.startswith("LC_")),
    }
    assert (env["GIVEN"], env["OTHER_SECRET"], env["LC_MONETARY"]) == ("1", "chirp", "C")
    assert env["PATH"] == os.environ["PATH"]


# --- end of the process ----------------------------------------------------------------------------------


async def test_exit_is_reported_after_the_last_messages() -> None:
    await seconds_until_death_reported()


@pytest.mark.long
async def test_exit_is_reported_within_a_quarter_second() -> None:
    await soon(seconds_until_death_reported, 0.25)


async def seconds_until_death_reported() -> float:
    """Return how long it takes until the death of the process is reported."""
    async with started("[say(number=n) for n in range(1000)]; say(pid=os.getpid()); sys.stdin.read()") as child:
        os.kill(await child.has_said("pid"), signal.SIGKILL)
        killed_at = time.monotonic()
        closed = await child.end()
        took = time.monotonic() - killed_at
        assert (closed.reason, closed.status) == ("the server process was killed by SIGKILL", -9)
        assert len(child.messages) == 1001
    return took


@pytest.mark.parametrize("paused", [False, True])
async def test_exit_reports_status_and_end_of_stderr(paused: bool) -> None:
    child = Child("print('one', file=sys.stderr); say(n=1); print('zwölf', file=sys.stderr); sys.exit(3)")
    child.channel = await child.command.connect(lambda _: child)
    if paused:
        child.channel.pause()  # reported all the same, after the messages
    closed = await child.end()
    assert (closed.reason, closed.status, closed.last_words) == (
        "the server process exited with status 3",
        3,
        "one\nzwölf",
    )
    assert child.said == {"n": 1}
    await child.channel.close()
    assert len(child.ends) == 1


async def test_unnamed_signal_is_reported_by_number() -> None:
    async with started("os.kill(os.getpid(), signal.SIGRTMIN + 6)") as child:
        assert (await child.end()).reason == f"the server process was killed by signal {signal.SIGRTMIN + 6}"


@pytest.mark.row("STD-07")
@pytest.mark.parametrize(("stream", "number"), [("output", 1), ("input", 0)])
async def test_process_that_closes_a_stream_is_ended(stream: str, number: int) -> None:
    async with started(f"say(pid=os.getpid()); os.close({number}); time.sleep(100)") as child:
        pid = await child.has_said("pid")
        while not child.ends:
            child.channel.send(Notification("is anybody there"))
            await asyncio.sleep(0.001)
        assert child.ends[0].reason == f"the server process closed its standard {stream}"
        assert child.ends[0].status is None
        await child.channel.close()
        assert gone(pid)


STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(pid=os.getpid())
while True:
    time.sleep(100)
"""


POLITE = "say(pid=os.getpid()); sys.stdin.read()"
DEAF = "say(pid=os.getpid()); time.sleep(100)"


@pytest.mark.row("STD-06")
@pytest.mark.parametrize(
    ("script", "patience", "least"),
    [
        (POLITE, 10 * PATIENCE, 0),  # its input ends
        (DEAF, 0.2, 0.2),  # SIGTERM
        (STUBBORN, 0.2, 0.4),  # SIGKILL
    ],
    ids=["polite", "deaf", "stubborn"],
)
async def test_shutdown_escalates_from_eof_to_sigterm_to_sigkill(script: str, patience: float, least: float) -> None:
    async with asyncio.timeout(PATIENCE):
        assert await until_ended(script, patience) >= least


@pytest.mark.row("STD-06")
@pytest.mark.long
@pytest.mark.parametrize(("script", "most"), [(POLITE, 0.2), (DEAF, 0.4), (STUBBORN, 0.8)])
async def test_hanging_process_is_killed(script: str, most: float) -> None:
    await soon(partial(until_ended, script, 0.2), most)


async def until_ended(script: str, patience: float) -> float:
    """Return how long it takes to end a server."""
    async with started(script, settings=Settings(stop_timeout=patience)) as child:
        pid = await child.has_said("pid")
        began = time.monotonic()
        await child.channel.close()
        took = time.monotonic() - began
        assert not Path(f"/proc/{pid}").exists()  # not even as a zombie
        assert [end.reason for end in child.ends] == ["closed"]
    return took


async def test_process_that_does_not_read_can_be_ended() -> None:
    settings = Settings(stop_timeout=0.1, drain_timeout=0.1)
    async with started("say(pid=os.getpid()); time.sleep(100)", settings=settings) as child:
        pid = await child.has_said("pid")
        child.channel.send(Encoded(b" " * (4 << 20) + b"{}"))
        async with asyncio.timeout(PATIENCE):
            await child.channel.close()
        assert gone(pid)


async def test_output_during_shutdown_is_read_and_discarded() -> None:
    script = "say(pid=os.getpid()); sys.stdin.read(); [say(x='x' * 100_000) for _ in range(100)]; say(done=1)"
    async with started(script, settings=Settings(stop_timeout=20)) as child:
        await child.has_said("pid")
        child.channel.pause()
        await child.channel.close()
        assert child.said.keys() == {"pid"}


# --- descendants -----------------------------------------------------------------------------------------

GRANDCHILD = """
inner = subprocess.Popen([sys.executable, "-c", "import signal, time; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(100)"], stdout=subprocess.PIPE)
inner.stdout.readline()
say(pid=os.getpid(), inner=inner.pid)
"""


@pytest.mark.parametrize(
    "ending", ["sys.stdin.read()", "time.sleep(100)", "sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"]
)
async def test_grandchildren_do_not_outlive_the_server(ending: str) -> None:
    async with started(GRANDCHILD + ending) as child:
        inner = await child.has_said("inner")
    await until(lambda: gone(inner))


async def test_server_leads_its_own_session() -> None:
    async with started("say(pid=os.getpid(), session=os.getsid(0)); sys.stdin.read()") as child:
        assert await child.has_said("session") == child.said["pid"] != os.getsid(0)


HOST = """
import asyncio, json, sys
from trunkline.transports.stdio.client import Command

class Told:
    def received(self, messages, origin):
        print(bytes(messages[0].params).decode(), flush=True)
    def closed(self, closed):
        print(closed, file=sys.stderr)

async def main():
    await Command([sys.executable, "-c", sys.argv[1]]).connect(lambda _: Told())
    await asyncio.sleep(100)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_host_leaves_no_processes(number: signal.Signals) -> None:
    command = [sys.executable, "-W", "ignore", "-c", HOST, SAY + GRANDCHILD + STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as host:
        assert host.stdout is not None
        told = json.loads(host.stdout.readline())
        host.send_signal(number)
        host.wait(PATIENCE)
        eventually(lambda: gone(told["pid"]) and gone(told["inner"]))


# --- standard error --------------------------------------------------------------------------------------


@pytest.mark.row("STD-05")
async def test_on_stderr_gets_every_line() -> None:
    heard: list[str] = []
    script = (
        "sys.stderr.write('one\\ntwo\\n'); sys.stderr.flush(); say(n=1); sys.stdin.read(); sys.stderr.write('three')"
    )
    async with started(script, on_stderr=heard.append) as child:
        await child.has_said("n")
        await until(lambda: heard == ["one", "two"])
        assert child.ends == []
    assert heard == ["one", "two", "three"]


async def test_failing_on_stderr_is_reported_only() -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail(line: str) -> None:
        raise ValueError(line)

    async with started("sys.stderr.write('one\\ntwo\\n'); sys.exit(4)", on_stderr=fail) as child:
        assert ((await child.end()).status, child.ends[0].last_words) == (4, "one\ntwo")
    assert [str(failure) for failure in failures] == ["one", "two"]


async def test_stderr_flood_does_not_block_or_fill_memory() -> None:
    lines = 0

    def count(_: str) -> None:
        nonlocal lines
        lines += 1

    script = "[sys.stderr.write(('x' * 99 + '\\n') * 10_000) for _ in range(100)]; say(done=1); sys.exit(5)"
    before = _resident()
    async with started(script, on_stderr=count) as child:
        closed = await child.end()
        assert child.said == {"done": 1}
        assert (lines, closed.status) == (1_000_000, 5)
        assert 60_000 < len(closed.last_words) <= Settings().stderr_kept
    assert _resident() - before < 16 << 20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
