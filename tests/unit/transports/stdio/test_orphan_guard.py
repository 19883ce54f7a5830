"""The orphan guard: a process that kills our children after our death, noticed by a broken pipe."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.limits import PATIENCE
from tests.processes import eventually, gone

from trunkline.transports.stdio import orphan_guard


def guards() -> list[int]:
    """The guards of this process: those with the other end of its pipe."""
    if orphan_guard._guard_pipe is None:
        return []
    pipe = os.readlink(f"/proc/self/fd/{orphan_guard._guard_pipe}")
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _reads(entry, pipe)]


def _reads(process: Path, pipe: str) -> bool:
    try:
        return int(process.name) != os.getpid() and os.readlink(process / "fd/0") == pipe
    except OSError:
        return False


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two children, each with its own process group."""
    made = [subprocess.Popen(["sleep", "100"], start_new_session=True) for _ in range(2)]
    yield made
    for process in made:
        orphan_guard.remove(process.pid)
        process.kill()
        process.wait()


def test_guard_runs_while_there_are_children(children: list[subprocess.Popen[bytes]]) -> None:
    one, two = (process.pid for process in children)
    orphan_guard.add(one)
    (guard,) = eventually(guards)
    orphan_guard.add(two)
    orphan_guard.remove(one)
    assert guards() == [guard]
    assert os.getsid(guard) not in {os.getsid(0), one, two}
    orphan_guard.remove(two)
    assert orphan_guard._guard_pipe is None
    eventually(lambda: gone(guard))
    assert [process.poll() for process in children] == [None, None]  # they were released, and live


def test_guard_kills_the_groups_it_was_last_sent(children: list[subprocess.Popen[bytes]]) -> None:
    one, two = children
    orphan_guard.add(one.pid)
    orphan_guard.add(two.pid)
    orphan_guard.remove(one.pid)
    orphan_guard._reset_after_fork()  # as a process that is killed
    assert two.wait(PATIENCE) == -signal.SIGTERM
    assert one.poll() is None


def test_killed_guard_is_replaced_with_all_groups(children: list[subprocess.Popen[bytes]]) -> None:
    one, two = children
    orphan_guard.add(one.pid)
    (guard,) = eventually(guards)
    os.kill(guard, signal.SIGKILL)
    eventually(lambda: gone(guard))
    orphan_guard.add(two.pid)
    assert guards() != [guard]
    orphan_guard._reset_after_fork()
    assert [one.wait(PATIENCE), two.wait(PATIENCE)] == [-signal.SIGTERM, -signal.SIGTERM]


def test_killed_guard_is_not_replaced_without_children(children: list[subprocess.Popen[bytes]]) -> None:
    orphan_guard.add(children[0].pid)
    (guard,) = eventually(guards)
    os.kill(guard, signal.SIGKILL)
    eventually(lambda: gone(guard))
    orphan_guard.remove(children[0].pid)
    assert orphan_guard._guard_pipe is None


def test_no_guard_without_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_guard, "_SHELL", "/no/such/shell")
    before = len(os.listdir("/proc/self/fd"))
    orphan_guard.add(4711)
    assert orphan_guard._guard_pipe is None
    assert len(os.listdir("/proc/self/fd")) <= before
    orphan_guard.remove(4711)


def test_guard_that_ends_at_once_is_replaced_later(
    children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = children
    with monkeypatch.context() as patched:
        patched.setattr(orphan_guard, "_GUARD_SCRIPT", "exit 1")
        orphan_guard.add(one.pid)
    assert orphan_guard._guard_pipe is None
    orphan_guard.add(two.pid)
    orphan_guard._reset_after_fork()
    assert [one.wait(PATIENCE), two.wait(PATIENCE)] == [-signal.SIGTERM, -signal.SIGTERM]


def test_pipe_closed_by_other_code_is_replaced(children: list[subprocess.Popen[bytes]]) -> None:
    one, two = children
    orphan_guard.add(one.pid)
    assert orphan_guard._guard_pipe is not None
    orphan_guard.add(two.pid)
    os.close(orphan_guard._guard_pipe)  # kills the first two, as the end of this process would
    assert [one.wait(PATIENCE), two.wait(PATIENCE)] == [-signal.SIGTERM, -signal.SIGTERM]
    orphan_guard.remove(one.pid)
    assert eventually(guards)


FORKS = """
import os, subprocess, time
from trunkline.transports.stdio import orphan_guard
held = subprocess.Popen(["sleep", "100"], start_new_session=True)
orphan_guard.add(held.pid)
copy = os.fork()
if copy == 0:
    assert orphan_guard._guard_pipe is None and not orphan_guard._groups
    time.sleep(100)
print(held.pid, copy, flush=True)
time.sleep(100)
"""


def test_forked_child_closes_the_guard_pipe() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        held, copy = map(int, host.stdout.readline().split())
        host.kill()
        host.wait()
        eventually(lambda: gone(held))
        assert not gone(copy)
        os.kill(copy, signal.SIGKILL)
