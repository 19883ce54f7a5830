"""A supervisor with minimal workers: restarts and shutdown."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.processes import PATIENCE, children, command, eventually, gone

from trunkline.supervision.worker_supervisor import GIVE_UP_EXIT_CODE

SCRIPT = """
    import asyncio, json, os, resource, signal, socket, sys, time
    from trunkline.supervision import worker_table
    from trunkline.supervision.restart_policy import RestartPolicy
    from trunkline.supervision.worker_channel import WorkerChannel
    from trunkline.supervision.worker_supervisor import WorkerSupervisor, SupervisorOptions
    from trunkline.fdlimit import DescriptorReserve

    options = json.loads(sys.argv[1])
    manner = options.pop("manner", "")
    policy = RestartPolicy(**options.pop("policy", {}))
    worker_table.STALE_AFTER = options.pop("late", worker_table.STALE_AFTER)

    async def serve(number, end):
        over = asyncio.Event()
        post = WorkerChannel(number, end, lambda: "ready", DescriptorReserve(64))
        post.open(over.set)

        def take(connection):
            connection.sendall(f"{os.getpid()} {' '.join(post.worker_states())}".encode())
            connection.close()
            if manner == "refuses" and number == 0:
                post.stop()

        post.start(take, lambda: 0)
        await over.wait()
        if manner == "dawdles":
            time.sleep(60)
        post.close()

    def work(number, end):
        if manner == "fails" or (manner == "fails later" and os.path.exists(sys.argv[2])):
            sys.exit("it cannot begin" if manner == "fails" else 7)
        asyncio.run(serve(number, end))
        return options.get("overrun_exit_code", 0) if manner == "ends badly" else 0

    def say(what):
        print(what, file=sys.stderr, flush=True)

    if manner == "runs short":

        def allow(files):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, 64))
            say(f"{files} descriptors are allowed")

        allow(64)
        signal.signal(signal.SIGUSR1, lambda *_: allow(3))
        signal.signal(signal.SIGUSR2, lambda *_: allow(64))

    if "files" in options:
        resource.setrlimit(resource.RLIMIT_NOFILE, (options["files"], options.pop("files")))
    place = socket.create_server(("127.0.0.1", 0))
    place.setblocking(False)
    port = place.getsockname()[1]

    def reopen(number):
        again = socket.create_server(("127.0.0.1", port))
        again.setblocking(False)
        return again

    if manner == "loses its socket":
        signal.signal(signal.SIGUSR1, lambda *_: place.shutdown(socket.SHUT_RDWR))

    plan = SupervisorOptions(**{"workers": 2, "policy": policy, "silence_timeout": None, "shutdown_timeout": None, "overrun_exit_code": 85, **options})
    sys.exit(WorkerSupervisor([place], work, plan, DescriptorReserve(64), say, reopen=reopen).run(lambda: say(port)))
"""


class SupervisedWorkers:
    """A supervisor with its workers."""

    def __init__(self, *words: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [*command(SCRIPT), json.dumps(options), *words], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.said = self.process.stderr
        self.port = 0

    def open(self) -> "SupervisedWorkers":
        self.port = int(self.line())
        eventually(lambda: self.ask()[1:] == ["ready"] * len(self.pids))
        return self

    def line(self) -> str:
        return self.said.readline().strip()

    def says(self, end: str) -> None:
        """Wait for a line with this end; skip others."""
        while not (line := self.line()).endswith(end):
            assert line, f"it has ended without saying {end!r}"

    @property
    def pids(self) -> set[int]:
        return children(self.process.pid)

    def ask(self) -> list[str]:
        """The process that answers, and the states of all."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as line:
            return line.recv(1000).decode().split()

    def who(self) -> int:
        return int(self.ask()[0])

    def code(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.said.close()


@pytest.fixture
def supervised() -> Iterator[Callable[..., SupervisedWorkers]]:
    made: list[SupervisedWorkers] = []

    def make(*words: str, **options: Any) -> SupervisedWorkers:
        made.append(SupervisedWorkers(*words, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_silent_worker_is_killed_and_excess_loss_shuts_down(supervised: Any) -> None:
    it = supervised(silence_timeout=3.0, policy={"intensity": 1}).open()
    before, stuck = it.pids, it.who()
    os.kill(stuck, signal.SIGSTOP)
    assert it.line().endswith("sent no heartbeat for 3 s; killing it")
    assert it.line().endswith(f"(process {stuck}) was killed by SIGKILL; restarting it at once")
    eventually(lambda: it.ask()[1:] == ["ready", "ready"])
    (victim,) = before - {stuck}
    os.kill(victim, signal.SIGKILL)
    assert it.line().endswith("shutting down: it was lost 2 times within 60 s; the limit is 1")
    assert it.code() == GIVE_UP_EXIT_CODE


def test_stopped_supervisor_does_not_kill_workers(supervised: Any) -> None:
    it = supervised(silence_timeout=3.0).open()
    before = it.pids
    it.process.send_signal(signal.SIGSTOP)
    waiting: list[int] = []
    caller = threading.Thread(target=lambda: waiting.append(it.who()))
    caller.start()
    with contextlib.suppress(subprocess.TimeoutExpired):
        it.process.wait(3.5)
    it.process.send_signal(signal.SIGCONT)
    caller.join()
    assert it.who() in before
    assert it.pids == before
    assert waiting[0] in before


def test_connection_of_a_dying_worker_is_redispatched(supervised: Any) -> None:
    it = supervised(late=10 * PATIENCE).open()  # until a suspended worker loses its undelivered connections
    before, victim = it.pids, it.who()
    os.kill(victim, signal.SIGSTOP)
    with contextlib.ExitStack() as lines:
        waiting = [lines.enter_context(socket.create_connection(("127.0.0.1", it.port), PATIENCE)) for _ in range(8)]
        eventually(lambda: len(select.select(waiting, [], [], 0)[0]) >= 4)  # as many are with the victim
        os.kill(victim, signal.SIGKILL)
        assert {int(line.recv(100).split()[0]) for line in waiting} == before - {victim}


def test_excess_connections_wait_in_the_backlog(supervised: Any) -> None:
    it = supervised(files=30).open()
    with contextlib.ExitStack() as lines:
        for pid in it.pids:
            os.kill(pid, signal.SIGSTOP)
        waiting = [lines.enter_context(socket.create_connection(("127.0.0.1", it.port), PATIENCE)) for _ in range(40)]
        assert it.line().startswith("supervisor: no connections are accepted until file descriptors are free")
        for pid in it.pids:
            os.kill(pid, signal.SIGCONT)
        assert {int(line.recv(100).split()[0]) for line in waiting} == it.pids


def test_declined_connection_is_redispatched(supervised: Any) -> None:
    it = supervised(manner="refuses").open()
    answers = [it.who() for _ in range(6)]
    assert len(set(answers[2:])) == 1


def test_failed_start_ends_with_the_workers_exit_code(supervised: Any) -> None:
    it = supervised(manner="fails")
    assert it.line().endswith("exited with 1 before any worker was ready")
    assert it.code() == 1


def test_failed_restart_is_retried_with_backoff(supervised: Any, tmp_path: Any) -> None:
    mark = tmp_path / "mark"
    it = supervised(str(mark), manner="fails later", policy={"first_delay": 0.05}).open()
    mark.touch()
    os.kill(it.who(), signal.SIGKILL)
    assert it.line().endswith("was killed by SIGKILL; restarting it at once")
    assert it.line().endswith("exited with 7; restarting it in 0.05 s")
    assert it.line().endswith("exited with 7; restarting it in 0.1 s")
    mark.unlink()
    eventually(lambda: it.ask()[1:] == ["ready", "ready"])


def test_worker_start_is_postponed_without_descriptors(supervised: Any) -> None:
    it = supervised(manner="runs short", policy={"first_delay": 0.05})
    assert it.line() == "64 descriptors are allowed"
    it.open()
    it.process.send_signal(signal.SIGUSR1)
    it.says("3 descriptors are allowed")
    os.kill(min(it.pids), signal.SIGKILL)
    it.says("was killed by SIGKILL; restarting it at once")
    it.says("cannot be started: Too many open files; restarting it in 0.05 s")
    it.process.send_signal(signal.SIGUSR2)
    eventually(lambda: it.ask()[1:] == ["ready", "ready"])
    assert it.process.poll() is None


def test_worker_exceeding_shutdown_timeout_is_killed(supervised: Any) -> None:
    it = supervised(manner="dawdles", shutdown_timeout=0.3).open()
    it.process.terminate()
    assert {it.line(), it.line()} == {f"worker {number} did not shut down in time; killing it" for number in (0, 1)}
    assert it.code() == 85


def test_exit_code_is_the_highest_of_the_workers(supervised: Any) -> None:
    it = supervised(manner="ends badly", overrun_exit_code=82).open()
    it.process.send_signal(signal.SIGINT)
    assert it.code() == 82


def test_second_signal_kills_all_workers(supervised: Any) -> None:
    it = supervised(manner="dawdles").open()
    workers = it.pids
    it.process.send_signal(signal.SIGINT)
    eventually(lambda: refused(it.port))
    it.process.send_signal(signal.SIGINT)
    assert it.code() == 128 + signal.SIGINT
    assert all(map(gone, workers))


def refused(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.row("U02")
def test_dead_listener_is_opened_again_and_workers_stay(supervised: Any) -> None:
    it = supervised(manner="loses its socket").open()
    workers = it.pids
    it.process.send_signal(signal.SIGUSR1)
    it.says("supervisor: listener:0; restarting it at once")
    it.says("supervisor: listener:0 listens again")
    assert it.who() in workers
    assert it.pids == workers


def test_orphaned_workers_shut_down(supervised: Any) -> None:
    it = supervised().open()
    workers = it.pids
    it.process.kill()
    for pid in workers:
        eventually(lambda pid=pid: gone(pid), PATIENCE)
