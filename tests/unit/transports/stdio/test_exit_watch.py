"""Detection of the end of a child process."""

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.contract.connections import Recorder, turns, until
from tests.limits import PATIENCE

from trunkline.transports.stdio import client
from trunkline.transports.stdio.client import Command
from trunkline.transports.stdio.exit_watch import watch_exit
from trunkline.wire.messages import Notification


def refuse(*_: Any) -> None:
    raise NotImplementedError


@pytest.fixture(params=["descriptor", "thread, no descriptors", "thread, no polling"])
def mechanism(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The mechanism, by what the system and the loop support."""
    if request.param == "thread, no descriptors":
        monkeypatch.setattr(os, "pidfd_open", refuse)
    return request.param


@pytest.fixture
async def loop(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> asyncio.AbstractEventLoop:
    running = asyncio.get_running_loop()
    if mechanism == "thread, no polling":
        monkeypatch.setattr(running, "add_reader", refuse)
    return running


async def test_exit_is_reported_once_before_reaping(loop: asyncio.AbstractEventLoop) -> None:
    before, ends = len(os.listdir("/proc/self/fd")), list[int]()
    process = subprocess.Popen(["sh", "-c", "exit 3"])
    stop = watch_exit(loop, process, lambda: ends.append(1))
    await until(lambda: ends)
    assert os.waitpid(process.pid, 0)[1] == 3 << 8  # we still have to wait for it
    process.returncode = 3
    stop()
    assert ends == [1]
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_cancelled_watch_reports_nothing(loop: asyncio.AbstractEventLoop) -> None:
    ends: list[int] = []
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    stop = watch_exit(loop, process, lambda: ends.append(1))
    stop()
    stop()
    process.kill()
    process.communicate()
    await turns(100)
    assert ends == []


async def test_exit_after_the_loop_closed_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", refuse)
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)

    async def watch() -> None:
        watch_exit(asyncio.get_running_loop(), process, lambda: None)

    await asyncio.to_thread(asyncio.run, watch())
    process.communicate()
    assert process.returncode == 0


async def test_command_works_with_each_kind_of_watch(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "EXIT_GRACE", PATIENCE)  # a busy machine delays the thread that reports the exit
    script = "import sys; [print(line, end='', flush=True) for line in sys.stdin]; sys.stderr.write('bye'); sys.exit(7)"
    recorder = Recorder()
    channel = await Command([sys.executable, "-c", script]).connect(lambda _: recorder)
    channel.send(Notification("echo"))
    await until(lambda: recorder.messages)
    await channel.close()
    assert [end.reason for end in recorder.ends] == ["closed"]
    recorder = Recorder()
    channel = await Command([sys.executable, "-c", script + "# 2"]).connect(lambda _: recorder)
    channel._sink.close()  # type: ignore[attr-defined]
    channel._source._process.stdin.close()  # type: ignore[attr-defined]
    await until(lambda: recorder.ends)
    assert (recorder.ends[0].status, recorder.ends[0].last_words) == (7, "bye")
    await channel.close()
