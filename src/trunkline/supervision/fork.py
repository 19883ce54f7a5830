"""Fork worker processes, and handle signals in the supervisor.

The supervisor has no event loop and a single thread, so a fork never copies a half-finished state.
"""

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Generator
from typing import Any, Final

__all__ = ["SignalQueue", "fork", "poll_exit_code"]

_HANDLED_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGCHLD")
_HANGUP: Final = "SIGHUP"
_EXIT_FAILURE: Final = 1


class SignalQueue:
    """Signals that this process has received and not handled yet."""

    def __init__(self, *, hangup: bool = False) -> None:
        """Queue SIGHUP, too, if `hangup` is true; otherwise it keeps its disposition."""
        self._names = (*_HANDLED_SIGNALS, _HANGUP) if hangup else _HANDLED_SIGNALS
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._caught: list[int] = []

    @contextlib.contextmanager
    def installed(self) -> Generator[None]:
        """Queue signals instead of letting them end the process."""
        previous = {number: signal.signal(number, self._record) for number in map(_signal_number, self._names)}
        previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number, handler in previous.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self.close()

    def _record(self, number: int, _: Any) -> None:
        if number != _signal_number("SIGCHLD"):
            self._caught.append(number)

    def fileno(self) -> int:
        """Return a descriptor that is readable after a signal."""
        return self._reader.fileno()

    def take(self) -> list[int]:
        """Return the queued SIGINT, SIGTERM and SIGHUP, in order of arrival."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(1024):
                pass
        caught, self._caught = self._caught, []
        return caught

    def close(self) -> None:
        """Close the wakeup sockets."""
        self._reader.close()
        self._writer.close()


def fork(child: Callable[[], int], *, hangup: bool = False) -> int:
    """Fork a process that runs `child` and exits with its result, without returning into the caller's code. Return its
    pid.

    The child ignores SIGINT, since a terminal sends Ctrl+C to all processes and the supervisor shuts its workers down.
    It ignores SIGHUP, too, if the supervisor handles it (`hangup`), until it has its own handler.
    """
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)  # otherwise both processes would write it
    signals = {_signal_number(name) for name in _HANDLED_SIGNALS}
    ignored: set[int] = {signal.SIGINT, *([signal.SIGHUP] if hangup else [])}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals | ignored)
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(child, signals, ignored)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals | ignored)


def _run_child(child: Callable[[], int], signals: set[int], ignored: set[int]) -> None:
    code = _EXIT_FAILURE
    try:
        signal.set_wakeup_fd(-1)
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        for number in ignored:
            signal.signal(number, _ignore_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals | ignored)
        code = child()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else _EXIT_FAILURE if end.code else 0
    except BaseException:  # noqa: BLE001 - there is no caller to raise to
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        os._exit(code)


def _flush(stream: Any) -> None:
    with contextlib.suppress(Exception):  # the stream may be missing or closed
        stream.flush()


def _ignore_signal(_: int, __: Any) -> None:
    """Ignore a signal. Unlike SIG_IGN, child processes do not inherit this."""


def _signal_number(name: str) -> int:
    return signal.Signals[name]


def poll_exit_code(pid: int) -> int | None:
    """Return the exit code of a child, negative for a signal; None while it runs."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # it was reaped elsewhere
        return 0
    return os.waitstatus_to_exitcode(status) if reaped else None
