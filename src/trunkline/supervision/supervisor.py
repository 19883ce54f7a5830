"""The supervisor of workers: takes connections in, hands them out in turn, and sees to it that somebody is there.

A shell without a loop of asyncio, without threads, and without a store, so that it can fork at any time. It decides
nothing: whose turn it is says the rota, whether a worker is started again says the policy.
"""

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from trunkline.fdlimit import DescriptorReserve
from trunkline.supervision.fd_dispatch import ConnectionDispatcher
from trunkline.supervision.fork import SignalQueue, fork, poll_exit_code
from trunkline.supervision.ipc import ACCEPTED, DECLINED, SHUTDOWN, STATE, TABLE, IpcChannel, decode_ticket
from trunkline.supervision.restart_policy import GiveUp, History, RestartPolicy, after_failure, after_worker_exit
from trunkline.supervision.worker_table import HEARTBEAT_INTERVAL, WorkerTable

__all__ = ["GIVE_UP_EXIT_CODE", "Supervisor", "SupervisorOptions"]

GIVE_UP_EXIT_CODE: Final = 86
"""What the supervisor ends with if workers end too often."""

_SIGNAL_EXIT_BASE: Final = 128  # and the number of the signal, as shells have it

WorkerMain = Callable[[int, socket.socket], int]
"""What a worker does: it is given its number and its end of the line, and gives what it ends with."""


class SupervisorOptions(Struct, frozen=True):
    """How many workers, and what is done about those that end, or do not."""

    workers: int
    policy: RestartPolicy
    silence_timeout: float | None  # seconds, after which a worker is killed
    shutdown_timeout: float | None  # seconds that workers have to end in good order
    overrun_exit_code: int  # what the process ends with if one of them had to be killed then


class Supervisor:
    """Runs workers until it is told to end, or they end too often."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        worker_main: WorkerMain,
        options: SupervisorOptions,
        reserve: DescriptorReserve,
        report: Callable[[str], None],
    ) -> None:
        """`places` are listened at already; they are the supervisor's to close. Connections that no worker has taken
        yet leave `reserve` free. `say` tells a person."""
        self._worker_main = worker_main
        self._options = options
        self._report = report
        self._table = WorkerTable(options.workers)
        self._history = History()
        self._signals = SignalQueue()
        self._selector = selectors.DefaultSelector()
        self._pids: dict[int, int] = {}  # of the workers that are there
        self._channels: dict[int, IpcChannel] = {}  # to them
        self._dispatcher = ConnectionDispatcher(
            listeners, self._table, self._channels, self._selector, reserve=reserve, report=report
        )
        self._restarts: dict[int, float] = {}  # workers that are started then
        self._sent_states: tuple[str, ...] = ()
        self._on_ready: Callable[[], None] | None = None
        self._shutdown_deadline: float | None = None
        self._shutting_down = False
        self._exit_codes: list[int] = []

    def run(self, on_ready: Callable[[], None]) -> int:
        """Runs; gives what the process should end with. `opened` is called when the first worker is ready."""
        self._on_ready = on_ready
        with self._signals.installed():
            self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
            try:
                for number in range(self._options.workers):
                    self._start_worker(number)
                while self._pids or self._restarts:
                    self._run_once()
            finally:
                self._kill_all()
                self._release()
        return max(self._exit_codes, default=0)

    # --- one turn ----------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Sleeps, looks at the clock, hears, and judges: in this order, since whoever was silent until then has to have
        been heard, even if this process itself has stood still for a while."""
        wait = min([HEARTBEAT_INTERVAL, *(at - time.monotonic() for at in self._restarts.values())])
        self._selector.select(max(wait, 0.0))
        now = time.monotonic()
        for key, _ in self._selector.select(0):
            key.data()
        for number in list(self._pids):
            self._reap(number)
        self._kill_silent_workers(now)
        self._start_due_workers(now)
        self._broadcast_states(now)
        self._dispatcher.update(now)
        if self._shutdown_deadline is not None and now >= self._shutdown_deadline:
            self._kill_overdue_workers()

    def _on_signal(self) -> None:
        for number in self._signals.take():
            if self._shutting_down:
                self._kill_all()
                self._exit_codes = [_SIGNAL_EXIT_BASE + number]
            else:
                self._shut_down()

    def _kill_silent_workers(self, now: float) -> None:
        for number in self._table.unresponsive(now, self._options.silence_timeout):
            if number in self._pids:
                self._report(f"worker {number} has said nothing for {self._options.silence_timeout:g} s, and is killed")
                _kill_process(self._pids[number])
                self._table.mark_gone(number)

    def _start_due_workers(self, now: float) -> None:
        for number, at in list(self._restarts.items()):
            if now >= at:
                del self._restarts[number]
                self._start_worker(number)

    def _broadcast_states(self, now: float) -> None:
        """Tells all workers how they stand, if that has changed."""
        table = self._table.states(now)
        if table != self._sent_states:
            self._sent_states = table
            for line in self._channels.values():
                line.send(TABLE, _encode_states(table))

    # --- workers -----------------------------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._postpone(number, error)
            return
        try:
            pid = fork(partial(self._run_worker, number, theirs, ours))
        except OSError as error:
            ours.close()
            self._postpone(number, error)
            return
        finally:
            theirs.close()
        self._pids[number] = pid
        line = self._channels[number] = IpcChannel(ours)
        self._selector.register(ours, selectors.EVENT_READ, partial(self._on_worker_message, number))
        now = time.monotonic()
        self._table.mark_started(number, now)
        line.send(TABLE, _encode_states(self._table.states(now)))  # before it can be asked

    def _postpone(self, number: int, error: OSError) -> None:
        """Try again later to start a worker for which the system has no descriptor or no process left. Raises the error
        if no worker has ever been ready."""
        if self._on_ready is not None:
            raise error
        self._history, decision = after_failure(self._history, self._options.policy)
        if isinstance(decision, GiveUp):
            self._report(f"worker {number} cannot be started: {error.strerror}; all end: {decision.reason}")
            self._shut_down(GIVE_UP_EXIT_CODE)
            return
        self._report(f"worker {number} cannot be started: {error.strerror}; tried again in {decision.delay:g} s")
        self._restarts[number] = time.monotonic() + decision.delay

    def _run_worker(self, number: int, theirs: socket.socket, ours: socket.socket) -> int:
        """A new process: it keeps nothing of its supervisor's but its end of the line."""
        ours.close()
        self._selector.close()
        self._signals.close()
        for line in self._channels.values():
            line.close()
        self._dispatcher.close_all()
        return self._worker_main(number, theirs)

    def _on_worker_message(self, number: int) -> None:
        line, now = self._channels.get(number), time.monotonic()
        if line is None:
            return
        for kind, body in line.receive():
            if kind == STATE:
                served = self._table.has_served(number)
                self._table.record_heartbeat(number, now, body.decode())
                if not served and self._table.has_served(number):
                    self._on_worker_ready()
            elif kind in {ACCEPTED, DECLINED}:
                self._dispatcher.acknowledge(number, decode_ticket(body)[0], accepted=kind == ACCEPTED)
        line.flush()
        if line.closed_by_peer and line.socket in self._selector.get_map():
            self._selector.unregister(line.socket)
            self._table.mark_gone(number)
            _kill_process(self._pids[number])  # it is at its end, or of no use any more

    def _on_worker_ready(self) -> None:
        """A worker is ready that was not before."""
        self._history = self._history.succeeded()
        if self._on_ready is not None:
            self._on_ready()
            self._on_ready = None

    def _reap(self, number: int) -> None:
        code = poll_exit_code(self._pids[number])
        if code is None:
            return
        self._on_worker_message(number)  # its last words
        line = self._channels.pop(number)
        with contextlib.suppress(KeyError):
            self._selector.unregister(line.socket)
        line.close()
        for ticket in self._table.mark_gone(number):
            self._table.release_ticket(ticket)
        self._on_worker_exit(number, self._pids.pop(number), code)

    def _on_worker_exit(self, number: int, pid: int, code: int) -> None:
        """Has a worker started again, or ends all of it."""
        if self._shutting_down:
            self._exit_codes.append(0 if code == -signal.SIGTERM else _exit_code(code))
            return
        served = self._table.has_served(number)
        how = f"worker {number} (process {pid}) {_describe_exit(code)}"
        if not served and self._on_ready is not None and code >= 0:
            self._report(f"{how} before anybody was ready")
            self._shut_down(_exit_code(code) or 1)
            return
        self._history, decision = after_worker_exit(
            self._history, self._options.policy, time.monotonic(), served=served, clean=code == 0
        )
        if isinstance(decision, GiveUp):
            self._report(f"{how}; workers are not started again, and all end: {decision.reason}")
            self._shut_down(GIVE_UP_EXIT_CODE)
            return
        again = f"in {decision.delay:g} s" if decision.delay else "at once"
        self._report(f"{how}, and is started again {again}")
        self._restarts[number] = time.monotonic() + decision.delay

    # --- the end -----------------------------------------------------------------------------------

    def _shut_down(self, code: int = 0) -> None:
        """Takes nothing in any more, and has every worker end in good order."""
        self._shutting_down = True
        self._exit_codes.append(code)
        self._restarts.clear()
        self._dispatcher.close()
        for line in self._channels.values():
            line.send(SHUTDOWN)
        if self._options.shutdown_timeout is not None:
            self._shutdown_deadline = time.monotonic() + self._options.shutdown_timeout

    def _kill_overdue_workers(self) -> None:
        for number in self._pids:
            self._report(f"worker {number} did not end in time, and is killed")
            self._exit_codes.append(self._options.overrun_exit_code)
        self._kill_all()

    def _kill_all(self) -> None:
        """Ends the workers that are left, at once."""
        for pid in self._pids.values():
            _kill_process(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for line in self._channels.values():
            line.close()
        self._pids.clear()
        self._channels.clear()
        self._restarts.clear()

    def _release(self) -> None:
        self._selector.close()
        self._dispatcher.close_all()


def _encode_states(table: Sequence[str]) -> bytes:
    return " ".join(table).encode()


def _kill_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _exit_code(code: int) -> int:
    return code if code >= 0 else _SIGNAL_EXIT_BASE - code


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
