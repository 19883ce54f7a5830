"""A full disk: processes that may not write to any file for a while."""

import contextlib
import resource
from collections.abc import Iterable, Iterator

__all__ = ["full_disk"]


@contextlib.contextmanager
def full_disk(pids: Iterable[int], room: int = 0) -> Iterator[None]:
    """Have all writes of some processes fail beyond the first `room` bytes of a file. The limit ends with the block,
    for processes that exist then.
    """
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, most) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, most))
    try:
        yield
    finally:
        for pid, limit in limits.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
