"""Watch a child process for its exit without reaping it, so that its pid stays valid.

Uses a pidfd where the system has them, and a thread elsewhere.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable

__all__ = ["watch_exit"]


def watch_exit(
    loop: asyncio.AbstractEventLoop, process: "subprocess.Popen[bytes]", on_exit: Callable[[], None]
) -> Callable[[], None]:
    """Call `on_exit` once the process has exited; return a function that cancels the watch."""
    try:
        return _watch_pidfd(loop, process.pid, on_exit)
    except (AttributeError, NotImplementedError, OSError):
        return _watch_in_thread(loop, process, on_exit)


def _watch_pidfd(loop: asyncio.AbstractEventLoop, pid: int, on_exit: Callable[[], None]) -> Callable[[], None]:
    descriptor = os.pidfd_open(pid)

    def stop() -> None:
        nonlocal descriptor
        if descriptor >= 0:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            descriptor = -1

    def readable() -> None:
        stop()
        on_exit()

    try:
        loop.add_reader(descriptor, readable)
    except BaseException:
        os.close(descriptor)
        raise
    return stop


def _watch_in_thread(
    loop: asyncio.AbstractEventLoop, process: "subprocess.Popen[bytes]", on_exit: Callable[[], None]
) -> Callable[[], None]:
    active = True

    def stop() -> None:
        nonlocal active
        active = False

    def tell() -> None:
        if active:
            on_exit()

    def wait() -> None:
        if sys.platform == "win32":
            process.wait()
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=wait, name="trunkline-exit", daemon=True).start()
    return stop
