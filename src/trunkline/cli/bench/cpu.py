"""CPU time of the processes that this one has started, and of theirs. Linux only."""

import os
from pathlib import Path
from typing import Final

__all__ = ["cpu_of_children"]

_PROCESSES: Final = Path("/proc")
_PARENT, _FIRST_TIME, _LAST_TIME = 1, 11, 15  # fields after the name: ppid; utime, stime, cutime and cstime


def cpu_of_children() -> float | None:
    """Return the user and system time of all descendants in seconds; None if there are none or it is unknown."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    try:
        entries = [entry.name for entry in os.scandir(_PROCESSES) if entry.name.isdecimal()]
        per_second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    for entry in entries:
        try:
            text = (_PROCESSES / entry / "stat").read_text("utf-8", "replace")
        except OSError:  # it has just ended
            continue
        fields = text.rpartition(")")[2].split()  # a name may have blanks and brackets
        children.setdefault(int(fields[_PARENT]), []).append(int(entry))
        ticks[int(entry)] = sum(map(int, fields[_FIRST_TIME:_LAST_TIME]))
    found = [*children.get(os.getpid(), ())]
    for process in found:
        found += children.get(process, ())
    return sum(ticks[process] for process in found) / per_second if found else None
