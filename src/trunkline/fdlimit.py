"""The limit on open file descriptors (RLIMIT_NOFILE) of this process, and a reserve below it.

A process that is out of descriptors can do nothing: it cannot accept, open its store, read a file or start a worker. So
connections may use descriptors up to a threshold, and what lies above it is left to everything else.

The system gives out the lowest free number. A new descriptor numbered N means that N others are open, whatever they are
for, so a comparison is enough: nothing is counted, and files of handlers are taken into account as well.
"""

import os
import sys
from contextlib import suppress
from typing import Final

from msgspec import Struct

__all__ = ["DescriptorReserve", "LogThrottle"]

_BASELINE_DESCRIPTORS: Final = 64  # descriptors of a server before its first connection, doubled
_THROTTLE_INTERVAL: Final = 60.0  # seconds

if sys.platform != "win32":
    import resource


class LogThrottle:
    """Limits how often one shortage is reported to a person: once a minute, however often it comes and goes."""

    def __init__(self) -> None:
        self._last_allowed: float | None = None

    def allow(self, now: float) -> bool:
        """Whether to report it now, which counts as done."""
        if self._last_allowed is not None and now - self._last_allowed < _THROTTLE_INTERVAL:
            return False
        self._last_allowed = now
        return True


def _soft_limit() -> int | None:
    """The soft limit; None where there is none."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


class DescriptorReserve(Struct, frozen=True):
    """Descriptors that connections must leave free: `size`, or a quarter of the limit if that is less."""

    size: int

    def threshold(self) -> int | None:
        """The lowest number that belongs to the reserve; None where there is no limit. Read anew each time, since the
        limit may change while the process runs."""
        limit = _soft_limit()
        return None if limit is None else limit - min(self.size, limit // 4)

    def shortage_message(self) -> str:
        """Why no connections are accepted, and what to do about it."""
        return (
            f"no connections are accepted until file descriptors are free: all below {self.threshold()} are open, and "
            "the rest is kept for files and stores; raise the limit (ulimit -n), or lower max_connections"
        )

    def contains(self, descriptor: int) -> bool:
        """Whether a descriptor that was opened just now belongs to the reserve."""
        threshold = self.threshold()
        return threshold is not None and descriptor >= threshold

    def has_room(self) -> bool:
        """Whether another descriptor can be opened below the reserve."""
        threshold = self.threshold()
        return threshold is None or _lowest_free(threshold) < threshold

    def raise_limit(self, connections: int) -> None:
        """Raise the soft limit as far as so many connections need, and the hard limit allows. Child processes inherit
        it, so it is raised no further, and a limit that is high enough stays as it is."""
        _raise_limit(_BASELINE_DESCRIPTORS + connections + self.size)

    def connection_limit(self, wanted: int) -> int:
        """How many connections can be open at once: `wanted`, or what is free below the reserve now; at least one."""
        threshold = self.threshold()
        return wanted if threshold is None else max(1, min(wanted, threshold - _lowest_free(threshold)))


def _raise_limit(wanted: int) -> None:
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # a system may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _lowest_free(otherwise: int) -> int:
    """The number that the next descriptor will have; `otherwise` if none is left."""
    try:
        probe = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return otherwise
    os.close(probe)
    return probe
