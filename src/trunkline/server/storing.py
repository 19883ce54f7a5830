"""The store of a server: opened before anything is kept in it, closed when everything else has ended."""

import asyncio
from typing import TYPE_CHECKING, Final

from trunkline.clock import Clock
from trunkline.errors import MisuseError, StoreError
from trunkline.stores.store import Store, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OwnStore"]

_LOOKED_AT: Final = key_of("health", "look")  # nothing is ever kept there
_PATIENCE: Final = 0.3  # seconds that it has to answer
_KNOWN: Final = 0.5  # seconds that this is not asked again


class OwnStore:
    """The store that a server was given, or else one in memory for each time that it serves."""

    def __init__(self, given: Store | None, in_memory: "Callable[[Clock], Store]") -> None:
        self._given = given
        self._in_memory = in_memory
        self._opening: asyncio.Task[None] | None = None
        self._used: Store | None = None
        self._look: asyncio.Task[bool] | None = None  # at whether it answers
        self._looked_at = 0.0

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
        except BaseException:
            if opening.done():
                self._opening = None
            raise

    async def answers(self) -> bool:
        """Whether the store answers. What it did within the last half second counts: so it can be asked often."""
        if self._opening is None or self._given is None:
            return True
        if self._look is None or _now() >= self._looked_at + _KNOWN:
            self._looked_at = _now()
            self._look = asyncio.ensure_future(_answers(self._given))
        return await asyncio.shield(self._look)

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
        used, self._used, self._look = self._used, None, None
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.gather(opening, return_exceptions=True)
            used = self._given
        if used is not None:
            await used.close()


async def _answers(store: Store) -> bool:
    try:
        async with asyncio.timeout(_PATIENCE):
            await store.get(_LOOKED_AT)
    except (StoreError, TimeoutError):
        return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
