"""Kill the process groups of our children if this process dies without doing so.

A killed process cannot clean up. So, while there are children, a small guard process runs beside ours. It reads a pipe
whose write end only this process has. When the pipe breaks, the guard sends SIGTERM to the process groups it was last
sent, and SIGKILL a second later. The guard belongs to no terminal and is reparented, so signals to us do not reach it
and it needs no reaping. It is a shell with a constant script, the smallest program that every system has.

Without /bin/sh there is no guard; a child then notices our death only by the end of its input.
"""

import contextlib
import errno
import os
import subprocess
import threading
from typing import Final

__all__ = ["add", "remove"]

_SHELL: Final = "/bin/sh"
_GUARD_SCRIPT: Final = """
trap '' HUP INT TERM
exec 3<&0
{
    groups=
    while IFS= read -r line; do groups=$line; done
    for group in $groups; do kill -s TERM -- "-$group"; done
    [ -z "$groups" ] || sleep 1
    for group in $groups; do kill -s KILL -- "-$group"; done
} <&3 3<&- &
"""

_lock: Final = threading.Lock()  # several loops may start children
_groups: Final[set[int]] = set()
_guard_pipe: int | None = None  # write end of the guard's pipe


def add(group: int) -> None:
    """Have a process group killed if this process dies."""
    with _lock:
        _groups.add(group)
        _update_guard()


def remove(group: int) -> None:
    """Remove a process group that has ended. Call this before its id can be reused."""
    with _lock:
        _groups.discard(group)
        _update_guard()


def _update_guard() -> None:
    """Send the groups to the guard; start one if there is none, and end it if there are no groups."""
    global _guard_pipe
    if _guard_pipe is not None and not _send_groups(_guard_pipe):
        _guard_pipe = None
    if _groups and _guard_pipe is None:
        pipe = _start_guard()
        _guard_pipe = pipe if pipe is not None and _send_groups(pipe) else None
    elif not _groups and _guard_pipe is not None:
        os.close(_guard_pipe)
        _guard_pipe = None


def _send_groups(pipe: int) -> bool:
    """Send the current groups to the guard; return False, and close the pipe, if the guard has ended."""
    try:
        os.write(pipe, b"%b\n" % b" ".join(b"%d" % group for group in sorted(_groups)))
    except OSError as error:
        if error.errno != errno.EBADF:  # unless other code of this process has closed all descriptors
            os.close(pipe)
        return False
    return True


def _start_guard() -> int | None:
    read_end, write_end = os.pipe()
    try:
        subprocess.run(  # noqa: S603 - a constant; returns once the guard runs
            [_SHELL, "-c", _GUARD_SCRIPT],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
            check=False,
        )
    except OSError:
        os.close(write_end)
        return None
    finally:
        os.close(read_end)
    return write_end


def _reset_after_fork() -> None:
    """Close the pipe in a forked child, which has other children and must not keep its parent's guard waiting."""
    global _guard_pipe
    _groups.clear()
    if _guard_pipe is not None:
        with contextlib.suppress(OSError):
            os.close(_guard_pipe)
    _guard_pipe = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=lambda: (_reset_after_fork(), _lock.release()),
    )
