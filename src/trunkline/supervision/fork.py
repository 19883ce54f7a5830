"""Processes that are forked, and the signals of the one that forks them. It has no loop and one thread, so whatever is
forked begins with nothing half done."""

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
_EXIT_FAILURE: Final = 1


class SignalQueue:
    """Signals that were sent to this process, to be looked at when there is time."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._caught: list[int] = []

    @contextlib.contextmanager
    def installed(self) -> Generator[None]:
        """Signals are noted instead of ending the process."""
        before = {number: signal.signal(number, self._record) for number in map(_signal_number, _HANDLED_SIGNALS)}
        waker = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self.close()

    def _record(self, number: int, _: Any) -> None:
        if number != _signal_number("SIGCHLD"):
            self._caught.append(number)

    def fileno(self) -> int:
        """What can be read from when there was one."""
        return self._reader.fileno()

    def take(self) -> list[int]:
        """Those that ask for an end, in the order in which they came."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(1024):
                pass
        caught, self._caught = self._caught, []
        return caught

    def close(self) -> None:
        """Lets go of what wakes the process."""
        self._reader.close()
        self._writer.close()


def fork(child: Callable[[], int]) -> int:
    """Starts a process that does something, ends with the code that comes back, and leaves nothing else behind: none of
    what surrounds the call is ever gone on with there. Gives its number.

    There Ctrl+C means nothing, since a terminal says it to all processes, and who has forked it sees to its end."""
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)  # or it would be written twice
    held = {_signal_number(name) for name in _HANDLED_SIGNALS}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(child, held)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)


def _run_child(child: Callable[[], int], held: set[int]) -> None:
    code = _EXIT_FAILURE
    try:
        signal.set_wakeup_fd(-1)
        for number in held:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, _ignore_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        code = child()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else _EXIT_FAILURE if end.code else 0
    except BaseException:  # noqa: BLE001 - nobody else is there to tell
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        os._exit(code)


def _flush(stream: Any) -> None:
    with contextlib.suppress(Exception):  # there may be none, or nobody may read it
        stream.flush()


def _ignore_signal(_: int, __: Any) -> None:
    """Unlike a signal that is ignored, this is not passed on to what a handler starts."""


def _signal_number(name: str) -> int:
    return signal.Signals[name]


def poll_exit_code(pid: int) -> int | None:
    """What a process of ours has ended with, below zero if by a signal; None if it has not."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else has waited for it
        return 0
    return os.waitstatus_to_exitcode(status) if found else None
