"""Looks at things every so often, on a thread, and tells which of them look different from before.

While there is nothing to look at nothing happens, and one look ends before the next begins.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from msgspec import UNSET, Struct

from trunkline.clock import Timer
from trunkline.rpc.threads import Job
from trunkline.server.connection import SharedServices

__all__ = ["Poller", "ReadState"]

ReadState = Callable[[Any], Any]
"""Gives the state of a thing, from its last one; UNSET for a thing that is gone for good. It runs on a thread."""


class _Target(Struct):
    read_state: ReadState
    state: Any
    on_change: Callable[[], None]


class Poller:
    """Keeps the last state of each thing. All of it happens on the loop, but for the looking."""

    def __init__(self, get_shared: Callable[[], SharedServices], interval: float) -> None:
        self._get_shared = get_shared
        self._interval = interval
        self._targets: dict[Hashable, _Target] = {}
        self._timer: Timer | None = None
        self._job: Job | None = None

    def watch(self, key: Hashable, state: Any, read_state: ReadState, on_change: Callable[[], None]) -> None:
        """Looks after a thing from the state that it is in; if it is known and was in another one, that is told."""
        known = self._targets.get(key)
        self._targets[key] = _Target(read_state, state, on_change)
        if known is not None and known.state != state:
            on_change()
        self._schedule()

    def unwatch(self, *keys: Hashable) -> None:
        """Looks after some things no more."""
        for key in keys:
            self._targets.pop(key, None)
        if not self._targets:
            self.close()

    def close(self) -> None:
        """Looks after nothing any more."""
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
        for key, (thing, state) in (found or {}).items():
            if self._targets.get(key) is thing:  # or else it has been seen meanwhile, or is looked after no more
                if state is UNSET:
                    del self._targets[key]
                    continue
                before, thing.state = thing.state, state
                if before != state:
                    thing.on_change()
        self._schedule()


def _read_states(targets: dict[Hashable, _Target]) -> dict[Hashable, tuple[_Target, Any]]:
    return {key: (thing, thing.read_state(thing.state)) for key, thing in targets.items()}
