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

__all__ = ["ServerStore", "StoreMonitor"]

_PROBE: Final = Delete(key_of("health", "probe"))  # a write that leaves nothing behind
_PROBE_INTERVAL: Final = 2.0  # seconds: less than stores wait for a lock or a connection before they refuse a call
_LOG_AFTER: Final = 2.0  # seconds after which a probe without an answer is logged
_HEALTH_CHECK_TIMEOUT: Final = 0.3  # seconds that a health check waits for a probe
_PROBE_LIFETIME: Final = 0.5  # seconds that the outcome of a probe answers health checks

_log: Final = logging.getLogger("trunkline")


class ServerStore:
    """The store that a server was given, or else one in memory for each time that it serves."""

    def __init__(self, configured: Store | None, make_memory_store: "Callable[[Clock], Store]") -> None:
        self._configured = configured
        self._make_memory_store = make_memory_store
        self._opening: asyncio.Task[None] | None = None
        self._memory_store: Store | None = None
        self._monitor: StoreMonitor | None = None

    @property
    def configured(self) -> Store | None:
        """What the server was given."""
        return self._configured

    def configure(self, store: Store) -> None:
        """Has a server that was given none use a store, from when it serves."""
        self._configured = store

    @property
    def lasting(self) -> bool:
        """Whether what is kept in it outlives the process."""
        return self._configured is not None and self._configured.lasting

    async def open(self) -> None:
        """Opens it, once, however many ask; raises what that raises."""
        if self._configured is None:
            return
        opening = self._opening = self._opening or asyncio.create_task(self._configured.open())
        try:
            await asyncio.shield(opening)  # one who stops waiting does not stop it for the others
            self._monitor = self._monitor or StoreMonitor(self._configured)
        except BaseException:
            if opening.done():
                self._opening = None
            raise

    async def writable(self) -> bool:
        """Whether the store can be written. A write of the last half second counts, so it can be asked often."""
        return True if self._monitor is None else await self._monitor.writable()

    def get_open(self, clock: Clock) -> Store:
        """The store, open. Raises `MisuseError` if somebody has to wait for that first."""
        if self._configured is None:
            self._memory_store = self._make_memory_store(clock)
            return self._memory_store
        if self._opening is None or not self._opening.done():
            raise MisuseError("a server with a store is started first: `await server.start()`")
        return self._configured

    async def close(self) -> None:
        """Closes it, if it was opened. A store that was given is of no use then."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        used, self._memory_store = self._memory_store, None
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.gather(opening, return_exceptions=True)
            used = self._configured
        if used is not None:
            await used.close()


class StoreMonitor:
    """Finds out by small writes whether a store can be written, and logs when that changes."""

    def __init__(self, store: Store, *, interval: float = _PROBE_INTERVAL, log_after: float = _LOG_AFTER) -> None:
        """`every` so many seconds it writes; an answer that takes longer than `late` is logged."""
        self._store = store
        self._interval = interval
        self._log_after = log_after
        self._loop = asyncio.get_running_loop()
        self._probe: asyncio.Task[bool] | None = None
        self._probed_at = 0.0
        self._failing_since: float | None = None
        self._timer = self._loop.call_later(interval, self._probe_again)

    async def writable(self) -> bool:
        """Whether a write takes effect, now or within the last half second."""
        probe = self._recent_probe(_PROBE_LIFETIME)
        await asyncio.wait([probe], timeout=_HEALTH_CHECK_TIMEOUT)
        return probe.done() and not probe.cancelled() and probe.result()

    def close(self) -> None:
        """Probe no more."""
        self._timer.cancel()
        if self._probe is not None:
            self._probe.cancel()

    def _probe_again(self) -> None:
        self._recent_probe(self._interval / 2)
        self._timer = self._loop.call_later(self._interval, self._probe_again)

    def _recent_probe(self, max_age: float) -> "asyncio.Task[bool]":
        """The probe that is under way, or was begun not longer ago than that; or else a new one."""
        now = self._loop.time()
        if self._probe is None or (self._probe.done() and now >= self._probed_at + max_age):
            self._probed_at = now
            self._probe = self._loop.create_task(self._write())
        return self._probe

    async def _write(self) -> bool:
        late = self._loop.call_later(self._log_after, self._note_failure, f"no answer for {self._log_after:g} s")
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
