"""Hears that a child process has ended, without waiting for it: it can still be told from others by its number then.

Where the system has descriptors of processes the loop waits for one; elsewhere a thread waits.
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
    """Calls back once a process has ended; what it gives back calls that off."""
    try:
        return _watch_pidfd(loop, process.pid, on_exit)
    except (AttributeError, NotImplementedError, OSError):
        return _watch_in_thread(loop, process, on_exit)


def _watch_pidfd(loop: asyncio.AbstractEventLoop, pid: int, ended: Callable[[], None]) -> Callable[[], None]:
    descriptor = os.pidfd_open(pid)

    def stop() -> None:
        nonlocal descriptor
        if descriptor >= 0:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            descriptor = -1

    def readable() -> None:
        stop()
        ended()

    try:
        loop.add_reader(descriptor, readable)
    except BaseException:
        os.close(descriptor)
        raise
    return stop


def _watch_in_thread(
    loop: asyncio.AbstractEventLoop, process: "subprocess.Popen[bytes]", ended: Callable[[], None]
) -> Callable[[], None]:
    wanted = True

    def stop() -> None:
        nonlocal wanted
        wanted = False

    def tell() -> None:
        if wanted:
            ended()

    def wait() -> None:
        if sys.platform == "win32":
            process.wait()
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=wait, name="trunkline-exit", daemon=True).start()
    return stop
