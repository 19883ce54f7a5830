"""Supervisor of worker processes: accepts connections, dispatches them evenly, and restarts workers.

It has no asyncio loop, no threads and no store, so that it can fork at any time. It makes no decisions: the worker
table chooses the next worker, and the child table decides about restarts, of workers and of listening sockets.
"""

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from trunkline.fdlimit import DescriptorReserve
from trunkline.supervision.child_table import ChildDecision, ChildState, ChildTable, Start
from trunkline.supervision.fd_dispatch import ConnectionDispatcher
from trunkline.supervision.fork import SignalQueue, fork, poll_exit_code
from trunkline.supervision.ipc import (
    ACCEPTED,
    CHILDREN,
    CODE,
    DECLINED,
    RELOAD,
    SHUTDOWN,
    STATE,
    TABLE,
    IpcChannel,
    decode_acceptance,
    decode_state,
    decode_ticket,
)
from trunkline.supervision.restart_policy import RestartPolicy
from trunkline.supervision.supervisor import ChildStatus
from trunkline.supervision.worker_table import HEARTBEAT_INTERVAL, WorkerTable

__all__ = ["GIVE_UP_EXIT_CODE", "Certificate", "SupervisorOptions", "WorkerSupervisor"]

GIVE_UP_EXIT_CODE: Final = 86
"""Exit code of the supervisor if workers end too often."""

_LISTENER: Final = "listener:{}"
_WORKER: Final = "worker:{}"
_SIGNAL_EXIT_BASE: Final = 128  # plus the signal number, as in shells
_encode_children: Final = msgspec.msgpack.Encoder().encode

WorkerMain = Callable[[int, socket.socket], int]
"""Runs a worker, with its number and its end of the socket pair; returns the exit code."""


class Certificate(Protocol):
    """The certificate of the workers, which the supervisor keeps for those that it starts later."""

    def check(self, now: float) -> None:
        """Load it again if it has changed."""
        ...

    def reload(self) -> None:
        """Load it again."""
        ...


class SupervisorOptions(Struct, frozen=True):
    """Number of workers, restart policy and timeouts."""

    workers: int
    policy: RestartPolicy
    silence_timeout: float | None  # seconds without a heartbeat until a worker is killed
    shutdown_timeout: float | None  # seconds for workers to shut down
    overrun_exit_code: int  # exit code if a worker exceeded shutdown_timeout


class WorkerSupervisor:
    """Runs workers until a signal arrives or they end too often."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        worker_main: WorkerMain,
        options: SupervisorOptions,
        reserve: DescriptorReserve,
        report: Callable[[str], None],
        *,
        certificate: "Certificate | None" = None,
        reloads: bool = False,
        reload_code: Callable[[], bool] | None = None,
        reopen: Callable[[int], socket.socket] | None = None,
        on_restart: Callable[[str], object] | None = None,
    ) -> None:
        """The supervisor owns and closes the sockets `listeners`, which listen already. Connections that wait for a
        worker leave `reserve` free. `report` prints a message for the operator. With a `certificate`, or if
        the workers have something else that `reloads`, SIGHUP makes them load it again, instead of ending the process.
        `reload_code` loads changed code into this process, for workers that start later, and returns whether the
        running ones have to load it. `reopen` opens the listener with a number again, after its socket has died; it
        raises OSError if that is not possible. `on_restart` is called with "worker" or "listener" when one has to be
        started again."""
        self._reopen = reopen
        self._on_restart = on_restart
        self._certificate = certificate
        self._reload_code = reload_code
        self._next_code_check = 0.0
        self._worker_main = worker_main
        self._options = options
        self._report = report
        self._table = WorkerTable(options.workers)
        self._children = ChildTable(policy=options.policy, on_limit="escalate")
        self._listeners = {_LISTENER.format(number): number for number in range(len(listeners))}
        self._workers = {_WORKER.format(number): number for number in range(options.workers)}
        self._signals = SignalQueue(hangup=reloads or certificate is not None)
        self._selector = selectors.DefaultSelector()
        self._pids: dict[int, int] = {}  # of the running workers
        self._channels: dict[int, IpcChannel] = {}  # to the running workers
        self._dispatcher = ConnectionDispatcher(
            listeners,
            self._table,
            self._channels,
            self._selector,
            reserve=reserve,
            report=report,
            on_lost=self._on_listener_lost,
        )
        self._listening = set(self._listeners.values())  # numbers of the open listeners
        self._sent_states: tuple[str, ...] = ()
        self._sent_children: list[ChildStatus] = []
        self._on_ready: Callable[[], None] | None = None
        self._shutdown_deadline: float | None = None
        self._shutting_down = False
        self._exit_codes: list[int] = []

    def run(self, on_ready: Callable[[], None]) -> int:
        """Run, and return the exit code. `on_ready` is called when the first worker is ready."""
        self._on_ready = on_ready
        with self._signals.installed():
            self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)
            try:
                self._start_children()
                while self._pids or (not self._shutting_down and self._children.next_due is not None):
                    self._run_once()
            finally:
                self._kill_all()
                self._release()
        return max(self._exit_codes, default=0)

    # --- one turn ----------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Wait, read the clock, process events, then evaluate timeouts: in this order, so that heartbeats that
        arrived while this process itself was stopped count."""
        due = self._children.next_due
        wait = HEARTBEAT_INTERVAL if due is None else min(HEARTBEAT_INTERVAL, due - time.monotonic())
        self._selector.select(max(wait, 0.0))
        now = time.monotonic()
        for key, _ in self._selector.select(0):
            key.data()
        for number in list(self._pids):
            self._reap(number)
        self._kill_silent_workers(now)
        if self._certificate is not None:
            self._certificate.check(now)
        self._check_code(now)
        self._apply(self._children.tick(now))
        self._broadcast_states(now)
        self._broadcast_children()
        self._dispatcher.update(now)
        if self._shutdown_deadline is not None and now >= self._shutdown_deadline:
            self._kill_overdue_workers()

    def _on_signal(self) -> None:
        for number in self._signals.take():
            if number == signal.SIGHUP:
                if self._certificate is not None:
                    self._certificate.reload()
                for channel in self._channels.values():
                    channel.send(RELOAD)
            elif self._shutting_down:
                self._kill_all()
                self._exit_codes = [_SIGNAL_EXIT_BASE + number]
            else:
                self._shut_down()

    def _check_code(self, now: float) -> None:
        """Have the workers load code that has changed."""
        if self._reload_code is None or now < self._next_code_check:
            return
        if self._reload_code():
            for channel in self._channels.values():
                channel.send(CODE)
        self._next_code_check = time.monotonic() + HEARTBEAT_INTERVAL

    def _kill_silent_workers(self, now: float) -> None:
        for number in self._table.unresponsive(now, self._options.silence_timeout):
            if number in self._pids:
                self._report(f"worker {number} sent no heartbeat for {self._options.silence_timeout:g} s; killing it")
                _kill_process(self._pids[number])
                self._table.mark_gone(number)

    def _broadcast_states(self, now: float) -> None:
        """Send the states to all workers if they have changed."""
        table = self._table.states(now)
        if table != self._sent_states:
            self._sent_states = table
            for channel in self._channels.values():
                channel.send(TABLE, _encode_states(table))

    def _broadcast_children(self) -> None:
        """Send the statuses of the children to all workers if they have changed."""
        statuses = self._describe_children()
        if statuses != self._sent_children:
            self._sent_children = statuses
            for channel in self._channels.values():
                channel.send(CHILDREN, _encode_children(statuses))

    def _describe_children(self) -> list[ChildStatus]:
        return [
            ChildStatus(
                row.name,
                row.name.partition(":")[0],
                row.state,
                row.restarts,
                row.last_failure,
                row.since,
                self._pids.get(self._workers.get(row.name, -1)),
            )
            for row in self._children
        ]

    # --- children ----------------------------------------------------------------------------------

    def _start_children(self) -> None:
        now = time.monotonic()
        for name in self._listeners:
            self._children.add(name, "temporary" if self._reopen is None else "permanent", now)
        for name in self._workers:
            self._children.add(name, "permanent", now)
        self._apply(self._children.start(now))

    def _apply(self, decisions: Iterable[ChildDecision]) -> None:
        """Carry out decisions of the child table. If it gives up, shut down: all workers at the same time."""
        for decision in decisions:
            if not isinstance(decision, Start) or self._shutting_down:
                return
            if decision.name in self._workers:
                self._start_worker(self._workers[decision.name])
            else:
                self._start_listener(decision.name)

    def _start_listener(self, name: str) -> None:
        number = self._listeners[name]
        if number not in self._listening and self._reopen is not None:
            try:
                self._dispatcher.add_listener(number, self._reopen(number))
            except OSError as error:
                self._on_child_ended(name, f"supervisor: {error}", str(error))
                return
            self._report(f"supervisor: {name} listens again")
        self._listening.add(number)
        self._apply(self._children.started(name, time.monotonic()))

    def _on_listener_lost(self, number: int, why: str) -> None:
        self._listening.discard(number)
        if not self._shutting_down:
            name = _LISTENER.format(number)
            self._on_child_ended(name, f"supervisor: {name}", why)

    def _on_child_ended(self, name: str, summary: str, failure: str | None, *, is_loss: bool = True) -> None:
        """Have a child restarted, or shut down."""
        now = time.monotonic()
        decisions = self._children.ended(name, failure, now, is_loss=is_loss)
        if (escalation := self._children.escalation) is not None:
            self._report(f"{summary}; giving up and shutting down: {escalation.reason}")
            self._shut_down(GIVE_UP_EXIT_CODE)
            return
        due, state = self._children[name].due, self._children[name].state
        if due is not None and state is not ChildState.ENDED:
            self._report(f"{summary}; restarting it {f'in {due - now:.3g} s' if due > now else 'at once'}")
            if self._on_restart is not None:
                self._on_restart(name.partition(":")[0])
        self._apply(decisions)

    # --- workers -----------------------------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        try:
            supervisor_socket, worker_socket = socket.socketpair()
        except OSError as error:
            self._postpone(number, error)
            return
        try:
            run = partial(self._run_worker, number, worker_socket, supervisor_socket)
            pid = fork(run, hangup=self._certificate is not None)
        except OSError as error:
            supervisor_socket.close()
            self._postpone(number, error)
            return
        finally:
            worker_socket.close()
        self._pids[number] = pid
        channel = self._channels[number] = IpcChannel(supervisor_socket)
        self._selector.register(supervisor_socket, selectors.EVENT_READ, partial(self._on_worker_message, number))
        now = time.monotonic()
        self._table.mark_started(number, now)
        channel.send(TABLE, _encode_states(self._table.states(now)))  # before the worker serves its first health check
        channel.send(CHILDREN, _encode_children(self._describe_children()))

    def _postpone(self, number: int, error: OSError) -> None:
        """Retry later if the system has no free descriptor or process for a worker. Raise the error if no worker was
        ever ready."""
        if self._on_ready is not None:
            raise error
        summary = f"worker {number} cannot be started: {error.strerror}"
        self._on_child_ended(_WORKER.format(number), summary, str(error), is_loss=False)

    def _run_worker(self, number: int, worker_socket: socket.socket, supervisor_socket: socket.socket) -> int:
        """Run in the new process: close everything of the supervisor's except this worker's socket."""
        supervisor_socket.close()
        self._selector.close()
        self._signals.close()
        for channel in self._channels.values():
            channel.close()
        self._dispatcher.close_all()
        return self._worker_main(number, worker_socket)

    def _on_worker_message(self, number: int) -> None:
        channel, now = self._channels.get(number), time.monotonic()
        if channel is None:
            return
        for kind, body in channel.receive():
            if kind == STATE:
                served = self._table.has_served(number)
                self._table.record_heartbeat(number, now, *decode_state(body))
                if not served and self._table.has_served(number):
                    self._on_worker_ready(number)
            elif kind == ACCEPTED:
                self._dispatcher.complete(number, *decode_acceptance(body))
            elif kind == DECLINED:
                self._dispatcher.redispatch(number, decode_ticket(body)[0])
        channel.flush()
        if channel.closed_by_peer and channel.socket in self._selector.get_map():
            self._selector.unregister(channel.socket)
            self._table.mark_gone(number)
            _kill_process(self._pids[number])  # without its channel a worker is useless

    def _on_worker_ready(self, number: int) -> None:
        """Record that a worker has become ready."""
        self._apply(self._children.started(_WORKER.format(number), time.monotonic()))
        if self._on_ready is not None:
            self._on_ready()
            self._on_ready = None

    def _reap(self, number: int) -> None:
        code = poll_exit_code(self._pids[number])
        if code is None:
            return
        self._on_worker_message(number)  # its last messages
        channel = self._channels.pop(number)
        with contextlib.suppress(KeyError):
            self._selector.unregister(channel.socket)
        channel.close()
        for ticket in self._table.mark_gone(number):
            self._table.release_ticket(ticket)
        self._on_worker_exit(number, self._pids.pop(number), code)

    def _on_worker_exit(self, number: int, pid: int, code: int) -> None:
        """Restart a worker, or shut down."""
        if self._shutting_down:
            self._exit_codes.append(0 if code == -signal.SIGTERM else _exit_code(code))
            return
        served = self._table.has_served(number)
        summary = f"worker {number} (process {pid}) {_describe_exit(code)}"
        if not served and self._on_ready is not None and code >= 0:
            self._report(f"{summary} before any worker was ready")
            self._shut_down(_exit_code(code) or 1)
            return
        self._on_child_ended(_WORKER.format(number), summary, None if code == 0 else _describe_exit(code))

    # --- the end -----------------------------------------------------------------------------------

    def _shut_down(self, code: int = 0) -> None:
        """Accept no more connections and ask every worker to shut down."""
        self._shutting_down = True
        self._exit_codes.append(code)
        self._dispatcher.close()
        for channel in self._channels.values():
            channel.send(SHUTDOWN)
        if self._options.shutdown_timeout is not None:
            self._shutdown_deadline = time.monotonic() + self._options.shutdown_timeout

    def _kill_overdue_workers(self) -> None:
        for number in self._pids:
            self._report(f"worker {number} did not shut down in time; killing it")
            self._exit_codes.append(self._options.overrun_exit_code)
        self._kill_all()

    def _kill_all(self) -> None:
        """Kill the remaining workers."""
        for pid in self._pids.values():
            _kill_process(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for channel in self._channels.values():
            channel.close()
        self._pids.clear()
        self._channels.clear()

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
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
