"""The store of a server: opened before anything is kept in it, closed when everything else has ended.

While it is open, a monitor writes to it every few seconds, also if nothing else does. So the log says when the store
has become unavailable, and when it is back, once each; and a health check is answered by a write, since a store on a
full disk or behind a lock can still be read.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from trunkline.clock import Clock
from trunkline.errors import MisuseError, StoreError
from trunkline.stores.store import Delete, Store, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OwnStore", "StoreMonitor"]

_PROBE: Final = Delete(key_of("health", "probe"))  # a write that leaves nothing behind
_PROBE_EVERY: Final = 2.0  # seconds: less than stores wait for a lock or a connection before they refuse a call
_LATE: Final = 2.0  # seconds after which a probe without an answer is logged
_PATIENCE: Final = 0.3  # seconds that a health check waits for a probe
_FRESH: Final = 0.5  # seconds that the outcome of a probe answers health checks

_log: Final = logging.getLogger("trunkline")


class OwnStore:
    """The store that a server was given, or else one in memory for each time that it serves."""

    def __init__(self, given: Store | None, in_memory: "Callable[[Clock], Store]") -> None:
        self._given = given
        self._in_memory = in_memory
        self._opening: asyncio.Task[None] | None = None
        self._used: Store | None = None
        self._monitor: StoreMonitor | None = None

    @property
    def given(self) -> Store | None:
        """What the server was given."""
        return self._given

    def give(self, store: Store) -> None:
        """Has a server that was given none use a store, from when it serves."""
        self._given = store

    @property
    def lasting(self) -> bool:
        """Whether what is kept in it outlives the process."""
        return self._given is not None and self._given.lasting

    async def open(self) -> None:
        """Opens it, once, however many ask; raises what that raises."""
        if self._given is None:
            return
        opening = self._opening = self._opening or asyncio.create_task(self._given.open())
        try:
            await asyncio.shield(opening)  # one who stops waiting does not stop it for the others
            self._monitor = self._monitor or StoreMonitor(self._given)
        except BaseException:
            if opening.done():
                self._opening = None
            raise

    async def writable(self) -> bool:
        """Whether the store can be written. A write of the last half second counts, so it can be asked often."""
        return True if self._monitor is None else await self._monitor.writable()

    def use(self, clock: Clock) -> Store:
        """The store, open. Raises `MisuseError` if somebody has to wait for that first."""
        if self._given is None:
            self._used = self._in_memory(clock)
            return self._used
        if self._opening is None or not self._opening.done():
            raise MisuseError("a server with a store is started first: `await server.start()`")
        return self._given

    async def close(self) -> None:
        """Closes it, if it was opened. A store that was given is of no use then."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        used, self._used = self._used, None
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.gather(opening, return_exceptions=True)
            used = self._given
        if used is not None:
            await used.close()


class StoreMonitor:
    """Finds out by small writes whether a store can be written, and logs when that changes."""

    def __init__(self, store: Store, *, every: float = _PROBE_EVERY, late: float = _LATE) -> None:
        """`every` so many seconds it writes; an answer that takes longer than `late` is logged."""
        self._store = store
        self._every = every
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._probe: asyncio.Task[bool] | None = None
        self._probed_at = 0.0
        self._failing_since: float | None = None
        self._timer = self._loop.call_later(every, self._probe_again)

    async def writable(self) -> bool:
        """Whether a write takes effect, now or within the last half second."""
        probe = self._recent_probe(_FRESH)
        await asyncio.wait([probe], timeout=_PATIENCE)
        return probe.done() and not probe.cancelled() and probe.result()

    def close(self) -> None:
        """Probe no more."""
        self._timer.cancel()
        if self._probe is not None:
            self._probe.cancel()

    def _probe_again(self) -> None:
        self._recent_probe(self._every / 2)
        self._timer = self._loop.call_later(self._every, self._probe_again)

    def _recent_probe(self, age: float) -> "asyncio.Task[bool]":
        """The probe that is under way, or was begun not longer ago than that; or else a new one."""
        now = self._loop.time()
        if self._probe is None or (self._probe.done() and now >= self._probed_at + age):
            self._probed_at = now
            self._probe = self._loop.create_task(self._write())
        return self._probe

    async def _write(self) -> bool:
        late = self._loop.call_later(self._late, self._note_failure, f"no answer for {self._late:g} s")
        try:
            await self._store.commit([_PROBE])
        except StoreError as error:
            self._note_failure(str(error))
            return False
        finally:
            late.cancel()
        if self._failing_since is not None:
            _log.warning("the store can be written again after %.0f s", self._loop.time() - self._failing_since)
            self._failing_since = None
        return True

    def _note_failure(self, why: str) -> None:
        if self._failing_since is None:
            self._failing_since = self._probed_at
            _log.error("the store cannot be written: %s; what has to be kept is refused or waits until it can", why)
