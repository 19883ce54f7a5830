"""Keys for states that clients carry, made by the server itself and kept in its store.

They are made once, so what one process has sealed another opens, after a restart or beside it. Now and then there is a
new one. It is there for a while before anything is sealed with it, until every process has looked again; and those
before it are dropped when the last that was sealed with them has expired.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from trunkline.clock import Clock, Timer
from trunkline.config import MIN_KEY_BYTES
from trunkline.errors import Conflict, StoreError
from trunkline.stores.store import ABSENT, Put, Store, key_of
from trunkline.wire import codec

__all__ = ["RELOAD_INTERVAL", "ROTATION_INTERVAL", "StateKeyRing"]

ROTATION_INTERVAL: Final = 30 * 24 * 3600.0  # seconds; a key is good for 2**32 states
RELOAD_INTERVAL: Final = 600.0
_ACTIVATION_DELAY: Final = 2 * RELOAD_INTERVAL  # to every process


class StateKey(Struct, frozen=True):
    """A key, and from when on it seals."""

    secret: bytes
    since: float


_decode_keys: Final = codec.json_decoder(list[StateKey])


class StateKeyRing:
    """The keys of a server, the oldest first."""

    def __init__(self, store: Store, name: str, lifetime: float, wall_clock: Clock) -> None:
        """`lifetime` is that of what is sealed."""
        self._store = store
        self._key = key_of("server", name, "seal-keys")
        self._lifetime = lifetime
        self._wall_clock = wall_clock
        self._keys: Sequence[StateKey] = ()
        self._timer: Timer | None = None
        self._reload_task: asyncio.Task[None] | None = None
        self.on_change: Callable[[], object] = lambda: None  # is called when others open, or another one seals

    def secrets(self) -> list[bytes]:
        """All that open; the first is the one that seals now."""
        now = self._wall_clock.now()
        known = [key for key in self._keys if key.since > now]
        seals = [key for key in self._keys if key.since <= now]
        return [key.secret for key in (*reversed(seals), *known)]

    async def load(self) -> None:
        """Reads them, and sees to it that there is one that is not too old."""
        while True:
            item = await self._store.get(self._key)
            found = () if item is None else _decode_keys(item.value)
            wanted = self._desired_keys(found)
            if wanted == found:
                break
            version = ABSENT if item is None else item.version
            try:
                await self._store.commit([Put(self._key, codec.to_json(wanted), version=version)])
            except Conflict:
                continue  # another process was faster
        self._keys = found
        self.on_change()
        self._schedule_reload()

    def _desired_keys(self, stored: Sequence[StateKey]) -> Sequence[StateKey]:
        """The keys that there should be now."""
        now = self._wall_clock.now()
        if not stored:
            return [StateKey(os.urandom(MIN_KEY_BYTES), now)]
        successors = stored[1:]
        kept = [key for key, after in zip(stored, successors, strict=False) if after.since + self._lifetime > now]
        kept.append(stored[-1])
        if stored[-1].since + ROTATION_INTERVAL <= now:
            kept.append(StateKey(os.urandom(MIN_KEY_BYTES), now + _ACTIVATION_DELAY))
        return stored if len(kept) == len(stored) and kept[-1] is stored[-1] else kept

    def _schedule_reload(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._wall_clock.call_at(self._wall_clock.now() + RELOAD_INTERVAL, self._start_reload)

    def _start_reload(self) -> None:
        self._reload_task = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        try:
            await self.load()
        except StoreError:
            self._schedule_reload()

    async def close(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reload_task is not None:
            self._reload_task.cancel()
            await asyncio.wait([self._reload_task])
