"""Ends the process groups of our children when this process has died without doing so itself.

Whoever is killed cannot clean up, so somebody else has to: while there are children, a small guard stands beside us. It
reads a pipe whose other end only this process has; when that breaks, it ends the groups that it was told of last, first
politely and a second later for good. The guard belongs to no terminal and is nobody's child, so nothing that ends us
ends it, and nobody has to wait for it. It is a shell with a text of our own, the smallest thing that every system has.

Where there is no shell there is no guard, and a child learns of our end by the end of its input alone.
"""

import contextlib
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

_lock: Final = threading.Lock()  # children may be started on several loops
_groups: Final[set[int]] = set()
_guard_pipe: int | None = None  # our end of the pipe


def add(group: int) -> None:
    """From now on a process group ends with us."""
    with _lock:
        _groups.add(group)
        _update_guard()


def remove(group: int) -> None:
    """A process group has ended. Tell it while its number cannot be in use again."""
    with _lock:
        _groups.discard(group)
        _update_guard()


def _update_guard() -> None:
    global _guard_pipe
    if _guard_pipe is None or not _send_groups(_guard_pipe):
        _guard_pipe = _start_guard() if _groups else None
        if _guard_pipe is not None:
            _send_groups(_guard_pipe)
    elif not _groups:
        os.close(_guard_pipe)
        _guard_pipe = None


def _send_groups(lifeline: int) -> bool:
    """Tells the guard which groups there are; False if it is not there any more."""
    try:
        os.write(lifeline, b"%b\n" % b" ".join(b"%d" % group for group in sorted(_groups)))
    except BrokenPipeError:
        os.close(lifeline)
        return False
    return True


def _start_guard() -> int | None:
    theirs, ours = os.pipe()
    try:
        subprocess.run(  # noqa: S603 - a constant; done as soon as the guard stands
            [_SHELL, "-c", _GUARD_SCRIPT],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
            check=False,
        )
    except OSError:
        os.close(ours)
        return None
    finally:
        os.close(theirs)
    return ours


def _reset_after_fork() -> None:
    """A copy of this process has other children, and must not hold the lifeline of its original."""
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
