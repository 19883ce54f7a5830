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
    look: ReadState
    state: Any
    tell: Callable[[], None]


class Poller:
    """Keeps the last state of each thing. All of it happens on the loop, but for the looking."""

    def __init__(self, get_shared: Callable[[], SharedServices], interval: float) -> None:
        self._serving = get_shared
        self._interval = interval
        self._targets: dict[Hashable, _Target] = {}
        self._timer: Timer | None = None
        self._looking: Job | None = None

    def watch(self, key: Hashable, state: Any, read_state: ReadState, on_change: Callable[[], None]) -> None:
        """Looks after a thing from the state that it is in; if it is known and was in another one, that is told."""
        known = self._targets.get(key)
        self._targets[key] = _Target(read_state, state, on_change)
        if known is not None and known.state != state:
            on_change()
        self._wait()

    def end(self, *keys: Hashable) -> None:
        """Looks after some things no more."""
        for key in keys:
            self._targets.pop(key, None)
        if not self._targets:
            self.close()

    def close(self) -> None:
        """Looks after nothing any more."""
        self._targets.clear()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        if self._targets and self._timer is None and self._looking is None:
            clock = self._serving().clock
            self._timer = clock.call_at(clock.now() + self._interval, self._look)

    def _look(self) -> None:
        self._timer = None
        self._looking = Job(partial(_read_states, dict(self._targets)), self._finish_poll)
        self._serving().threads.submit(self._looking)

    def _finish_poll(self, found: "dict[Hashable, tuple[_Target, Any]] | None", _: BaseException | None) -> None:
        self._looking = None
        for key, (thing, state) in (found or {}).items():
            if self._targets.get(key) is thing:  # or else it has been seen meanwhile, or is looked after no more
                if state is UNSET:
                    del self._targets[key]
                    continue
                before, thing.state = thing.state, state
                if before != state:
                    thing.tell()
        self._wait()


def _read_states(targets: dict[Hashable, _Target]) -> dict[Hashable, tuple[_Target, Any]]:
    return {key: (thing, thing.look(thing.state)) for key, thing in targets.items()}
