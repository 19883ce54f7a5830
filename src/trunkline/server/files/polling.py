"""Polling: reads the states of targets periodically, on a thread, and reports the targets whose state has changed.

Without targets there is no timer. Polls never overlap.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from msgspec import UNSET, Struct

from trunkline.clock import Timer
from trunkline.rpc.connection import LoopResources
from trunkline.rpc.threads import Job

__all__ = ["Poller", "ReadState"]

ReadState = Callable[[Any], Any]
"""Returns the state of a target, given the last one; UNSET if the target no longer exists. It runs on a thread."""


class _Target(Struct):
    read_state: ReadState
    state: Any
    on_change: Callable[[], None]


class Poller:
    """Polls targets. Everything runs on the event loop, except for the reading of states."""

    def __init__(self, get_shared: Callable[[], LoopResources], interval: float) -> None:
        self._get_shared = get_shared
        self._interval = interval
        self._targets: dict[Hashable, _Target] = {}
        self._timer: Timer | None = None
        self._job: Job | None = None

    def watch(self, key: Hashable, state: Any, read_state: ReadState, on_change: Callable[[], None]) -> None:
        """Poll a target from a known state; call `on_change` at once if the target had another state before."""
        known = self._targets.get(key)
        self._targets[key] = _Target(read_state, state, on_change)
        if known is not None and known.state != state:
            on_change()
        self._schedule()

    def unwatch(self, *keys: Hashable) -> None:
        """Stop polling targets."""
        for key in keys:
            self._targets.pop(key, None)
        if not self._targets:
            self.close()

    def close(self) -> None:
        """Stop polling all targets."""
        self._targets.clear()
        if self._job is not None:
            self._job.cancel()
            self._job = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._targets and self._timer is None and self._job is None:
            clock = self._get_shared().clock
            self._timer = clock.call_at(clock.now() + self._interval, self._start_poll)

    def _start_poll(self) -> None:
        self._timer = None
        self._job = Job(partial(_read_states, dict(self._targets)), self._finish_poll)
        self._get_shared().threads.submit(self._job)

    def _finish_poll(self, found: "dict[Hashable, tuple[_Target, Any]] | None", _: BaseException | None) -> None:
        self._job = None
        for key, (target, state) in (found or {}).items():
            if self._targets.get(key) is target:  # otherwise it was replaced or removed meanwhile
                if state is UNSET:
                    del self._targets[key]
                    continue
                previous, target.state = target.state, state
                if previous != state:
                    target.on_change()
        self._schedule()


def _read_states(targets: dict[Hashable, _Target]) -> dict[Hashable, tuple[_Target, Any]]:
    return {key: (target, target.read_state(target.state)) for key, target in targets.items()}
