"""Store reader protocol: reads everything in a store and writes nothing, for inspection, export and backups.

A reader works while servers use the store. It returns expired items and leases too, as long as they are not deleted.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from trunkline.stores.store import Item, Lease

__all__ = ["StoreReader"]


class StoreReader(Protocol):
    """Reads a whole store. Methods raise `StoreUnavailable` and `StoreUnusable`, as those of a store do."""

    schema: int  # version of the schema, once open; 0: the store is empty
    pending: list[str]  # changes of the schema that this release makes when it opens the store, once open
    stop_first: bool  # whether those changes need all servers to be stopped
    now: float  # time by the clock of the store, once open

    def __str__(self) -> str:
        """Return the location, without credentials."""
        ...

    async def open(self) -> None:
        """Open the store for reading. Raises `StoreUnusable` if it does not exist or is not a store."""
        ...

    async def verify(self) -> list[str]:
        """Return what is wrong with the structure of the store, independent of the meaning of its items."""
        ...

    def items(self) -> AsyncIterator[Item]:
        """Return all items, in an order of their homes."""
        ...

    def leases(self) -> AsyncIterator[Lease]:
        """Return all leases."""
        ...

    async def size(self) -> int | None:
        """Return the bytes that the store occupies, or None if that is unknown."""
        ...

    async def close(self) -> None:
        """Close the store."""
        ...
