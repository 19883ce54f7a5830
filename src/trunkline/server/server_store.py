"""Store of a server: opened at start, closed last, and monitored while it is open.

The monitor writes to the store every few seconds, so the log states once when the store becomes unavailable and once
when it is back. Health checks use a write, since a store on a full disk or behind a lock can still be read.
"""

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from trunkline.clock import Clock
from trunkline.errors import MisuseError, StoreError
from trunkline.facts import Observers, StoreProbed

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.stores.store import Store

__all__ = ["ServerStore", "StoreMonitor"]

_PROBE_INTERVAL: Final = 2.0  # seconds: less than stores wait for a lock or a connection before they refuse a call
_LOG_AFTER: Final = 2.0  # seconds until a pending probe is logged
_HEALTH_CHECK_TIMEOUT: Final = 0.3  # seconds that a health check waits for a probe
_PROBE_LIFETIME: Final = 0.5  # seconds that health checks reuse the outcome of a probe

_log: Final = logging.getLogger("trunkline")


class ServerStore:
    """The configured store of a server, or a new in-memory store each time the server serves."""

    def __init__(
        self,
        configured: "Store | None",
        make_memory_store: "Callable[[Clock], Store]",
        observers: Observers | None = None,
        wrap: "Callable[[Store], Store]" = lambda store: store,
    ) -> None:
        """`observers` receive the results of the monitor. `wrap` returns the store that the server uses in place of a
        store that is open."""
        self._observers = observers
        self._wrap = wrap
        self._configured = configured
        self._make_memory_store = make_memory_store
        self._opening: asyncio.Task[None] | None = None
        self._memory_store: Store | None = None
        self._monitor: StoreMonitor | None = None

    @property
    def configured(self) -> "Store | None":
        """The configured store; None for a store in memory."""
        return self._configured

    def configure(self, store: "Store") -> None:
        """Set the store of a server that was created without one; it is used from the next start on."""
        self._configured = store

    @property
    def lasting(self) -> bool:
        """Whether its data outlives the process."""
        return self._configured is not None and self._configured.lasting

    async def open(self) -> None:
        """Open the store; concurrent callers share one attempt. Raises the error of the store."""
        if self._configured is None:
            return
        opening = self._opening = self._opening or asyncio.create_task(self._configured.open())
        try:
            await asyncio.shield(opening)  # a cancelled caller must not cancel the others
            self._monitor = self._monitor or StoreMonitor(self._configured, observers=self._observers)
        except BaseException:
            if opening.done():
                self._opening = None
            raise

    async def writable(self) -> bool:
        """Return whether the store accepts writes. Reuses a probe of the last half second, so frequent
        calls are cheap."""
        return True if self._monitor is None else await self._monitor.writable()

    def get_open(self, clock: Clock) -> "Store":
        """Return the opened store. Raises `MisuseError` if `open` has not finished."""
        if self._configured is None:
            self._memory_store = self._make_memory_store(clock)
            return self._wrap(self._memory_store)
        if self._opening is None or not self._opening.done():
            raise MisuseError("a server with a store is started first: `await server.start()`")
        return self._wrap(self._configured)

    async def close(self) -> None:
        """Close the store if it was opened. A configured store cannot be opened again."""
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
    """Probes a store with small writes and logs when it becomes unavailable or available."""

    def __init__(
        self,
        store: "Store",
        *,
        interval: float = _PROBE_INTERVAL,
        log_after: float = _LOG_AFTER,
        observers: Observers | None = None,
    ) -> None:
        """Probe every `interval` seconds; log a probe that takes longer than `log_after` seconds. `observers` receive
        the results."""
        from trunkline.stores.store import Delete, key_of  # imported here: a store in memory needs no monitor

        self._store = store
        self._observers = observers
        self._no_change = Delete(key_of("health", "probe"))  # a write without an effect
        self._interval = interval
        self._log_after = log_after
        self._loop = asyncio.get_running_loop()
        self._probe: asyncio.Task[bool] | None = None
        self._probed_at = 0.0
        self._failing_since: float | None = None
        self._timer = self._loop.call_later(interval, self._probe_again)

    async def writable(self) -> bool:
        """Return whether a write succeeds now, or did within the last half second."""
        probe = self._recent_probe(_PROBE_LIFETIME)
        await asyncio.wait([probe], timeout=_HEALTH_CHECK_TIMEOUT)
        return probe.done() and not probe.cancelled() and probe.result()

    def close(self) -> None:
        """Stop probing."""
        self._timer.cancel()
        if self._probe is not None:
            self._probe.cancel()

    def _probe_again(self) -> None:
        self._recent_probe(self._interval / 2)
        self._timer = self._loop.call_later(self._interval, self._probe_again)

    def _recent_probe(self, max_age: float) -> "asyncio.Task[bool]":
        """Return the running probe, or one begun at most `max_age` seconds ago; otherwise start one."""
        now = self._loop.time()
        if self._probe is None or (self._probe.done() and now >= self._probed_at + max_age):
            self._probed_at = now
            self._probe = self._loop.create_task(self._write())
        return self._probe

    async def _write(self) -> bool:
        late = self._loop.call_later(self._log_after, self._note_failure, f"no response for {self._log_after:g} s")
        began = monotonic()
        try:
            await self._store.commit([self._no_change])
        except StoreError as error:
            self._note_failure(str(error))
            self._report(monotonic() - began, str(error))
            return False
        finally:
            late.cancel()
        self._report(monotonic() - began, "")
        if self._failing_since is not None:
            _log.warning("the store accepts writes again after %.0f s", self._loop.time() - self._failing_since)
            self._failing_since = None
        return True

    def _report(self, seconds: float, error: str) -> None:
        observers = self._observers
        if observers is not None and observers.want(StoreProbed):
            observers.on(StoreProbed(connection=0, at=self._loop.time(), seconds=seconds, error=error))

    def _note_failure(self, why: str) -> None:
        if self._failing_since is None:
            self._failing_since = self._probed_at
            _log.error("cannot write to the store: %s; requests that need it fail or wait until it is back", why)
