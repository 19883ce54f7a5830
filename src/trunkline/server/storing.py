"""The store of a server: opened before anything is kept in it, closed when everything else has ended."""

import asyncio
from typing import TYPE_CHECKING

from trunkline.clock import Clock
from trunkline.errors import MisuseError
from trunkline.stores.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OwnStore"]


class OwnStore:
    """The store that a server was given, or else one in memory for each time that it serves."""

    def __init__(self, given: Store | None, in_memory: "Callable[[Clock], Store]") -> None:
        self._given = given
        self._in_memory = in_memory
        self._opening: asyncio.Task[None] | None = None
        self._used: Store | None = None

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
        used, self._used = self._used, None
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.gather(opening, return_exceptions=True)
            used = self._given
        if used is not None:
            await used.close()
