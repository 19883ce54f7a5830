"""How long the machine kept processes from running: the time that their runnable threads waited for a CPU.

A test that compares a duration with a bar of the product may deduct it. Only waiting for a CPU counts: neither time that the
product sleeps or waits for a timer, a lock or a peer, nor the CPU time that it uses. If several threads wait at the same time,
each of them counts, so the rest is a lower estimate of the duration on an idle machine.
"""

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["Starvation"]


class Starvation:
    """The time that the threads of some processes have waited for a CPU."""

    def __init__(self, *pids: int) -> None:
        """Without `pids` it is that of this process."""
        self._folders = [Path(f"/proc/{pid}/task") for pid in pids or (os.getpid(),)]

    def seconds(self) -> float:
        """The time so far; 0 where the system does not tell. A thread that ends takes its time with it."""
        waited = 0
        for folder in self._folders:
            with suppress(FileNotFoundError, ProcessLookupError):
                for thread in folder.iterdir():
                    with suppress(FileNotFoundError, ProcessLookupError):
                        waited += int((thread / "schedstat").read_text("ascii").split()[1])
        return waited / 1e9
