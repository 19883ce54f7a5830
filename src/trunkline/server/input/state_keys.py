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
from trunkline.config import SHORTEST_KEY
from trunkline.errors import Conflict, StoreError
from trunkline.stores.store import ABSENT, Put, Store, key_of
from trunkline.wire import codec

__all__ = ["LOOK_EVERY", "ROTATE_EVERY", "SealKeys"]

ROTATE_EVERY: Final = 30 * 24 * 3600.0  # seconds; a key is good for 2**32 states
LOOK_EVERY: Final = 600.0
_KNOWN_AFTER: Final = 2 * LOOK_EVERY  # to every process


class SealKey(Struct, frozen=True):
    """A key, and from when on it seals."""

    secret: bytes
    since: float


_read: Final = codec.json_decoder(list[SealKey])


class SealKeys:
    """The keys of a server, the oldest first."""

    def __init__(self, store: Store, name: str, lifetime: float, wall: Clock) -> None:
        """`lifetime` is that of what is sealed."""
        self._store = store
        self._key = key_of("server", name, "seal-keys")
        self._lifetime = lifetime
        self._wall = wall
        self._keys: Sequence[SealKey] = ()
        self._timer: Timer | None = None
        self._looking: asyncio.Task[None] | None = None
        self.changed: Callable[[], object] = lambda: None  # is called when others open, or another one seals

    def secrets(self) -> list[bytes]:
        """All that open; the first is the one that seals now."""
        now = self._wall.now()
        known = [key for key in self._keys if key.since > now]
        seals = [key for key in self._keys if key.since <= now]
        return [key.secret for key in (*reversed(seals), *known)]

    async def load(self) -> None:
        """Reads them, and sees to it that there is one that is not too old."""
        while True:
            item = await self._store.get(self._key)
            found = () if item is None else _read(item.value)
            wanted = self._wanted(found)
            if wanted == found:
                break
            version = ABSENT if item is None else item.version
            try:
                await self._store.commit([Put(self._key, codec.to_json(wanted), version=version)])
            except Conflict:
                continue  # another process was faster
        self._keys = found
        self.changed()
        self._plan()

    def _wanted(self, found: Sequence[SealKey]) -> Sequence[SealKey]:
        """The keys that there should be now."""
        now = self._wall.now()
        if not found:
            return [SealKey(os.urandom(SHORTEST_KEY), now)]
        successors = found[1:]
        kept = [key for key, after in zip(found, successors, strict=False) if after.since + self._lifetime > now]
        kept.append(found[-1])
        if found[-1].since + ROTATE_EVERY <= now:
            kept.append(SealKey(os.urandom(SHORTEST_KEY), now + _KNOWN_AFTER))
        return found if len(kept) == len(found) and kept[-1] is found[-1] else kept

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._wall.call_at(self._wall.now() + LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look_again())

    async def _look_again(self) -> None:
        try:
            await self.load()
        except StoreError:
            self._plan()

    async def close(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
