"""The limit on open file descriptors (RLIMIT_NOFILE) of this process, and a reserve below it.

A process without free descriptors cannot accept connections, open its store, read a file or start a worker. So
connections may use descriptors up to a threshold; those above it are reserved for everything else.

The system assigns the lowest free number. A new descriptor numbered N means that N others are open, for any purpose, so
a comparison is enough: nothing needs counting, and the files of handlers are included.
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
    """Limits a repeated log message to one per minute."""

    def __init__(self) -> None:
        self._last_allowed: float | None = None

    def allow(self, now: float) -> bool:
        """Return whether to log now; a True result counts as logged."""
        if self._last_allowed is not None and now - self._last_allowed < _THROTTLE_INTERVAL:
            return False
        self._last_allowed = now
        return True


def _soft_limit() -> int | None:
    """Return the soft limit; None if there is none."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


class DescriptorReserve(Struct, frozen=True):
    """Descriptors that connections must leave free: `size`, or a quarter of the limit if that is less."""

    size: int

    def threshold(self) -> int | None:
        """Return the lowest descriptor of the reserve; None if there is no limit. The limit may change while the
        process runs, so it is read each time."""
        limit = _soft_limit()
        return None if limit is None else limit - min(self.size, limit // 4)

    def shortage_message(self) -> str:
        """Say why no connections are accepted, and what to do about it."""
        return (
            f"no connections are accepted until file descriptors are free: all below {self.threshold()} are open, and "
            "the rest is reserved for files and stores; raise the limit (ulimit -n), or lower max_connections"
        )

    def contains(self, descriptor: int) -> bool:
        """Return whether a descriptor that was just opened belongs to the reserve."""
        threshold = self.threshold()
        return threshold is not None and descriptor >= threshold

    def has_room(self) -> bool:
        """Return whether the next descriptor lies below the reserve."""
        threshold = self.threshold()
        return threshold is None or _lowest_free(threshold) < threshold

    def raise_limit(self, connections: int) -> None:
        """Raise the soft limit to what `connections` need, within the hard limit. Child processes inherit the limit,
        so it is not raised further; a sufficient limit stays unchanged."""
        _raise_limit(_BASELINE_DESCRIPTORS + connections + self.size)

    def connection_limit(self, wanted: int) -> int:
        """Return how many connections can be open at once: `wanted`, or the number of free descriptors below the
        reserve; at least one."""
        threshold = self.threshold()
        return wanted if threshold is None else max(1, min(wanted, threshold - _lowest_free(threshold)))


def _raise_limit(wanted: int) -> None:
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # a system may allow less than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _lowest_free(otherwise: int) -> int:
    """Return the number of the next descriptor; `otherwise` if none is free."""
    try:
        probe = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return otherwise
    os.close(probe)
    return probe
