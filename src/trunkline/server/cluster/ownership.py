"""Ownership: acquire the lease of something that one process at a time may own, such as a session or a task.

A process owns things under its name. Such a lease is not renewed; it lasts as long as its data, and is free at the
moment in which its holder is evicted.
"""

from collections.abc import Container
from typing import TYPE_CHECKING

from trunkline.stores.store import Held, Lease, Store

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster

__all__ = ["acquire_ownership"]


async def acquire_ownership(
    store: Store, cluster: "Cluster", key: str, ttl: float, known_alive: Container[str] = ()
) -> Lease | Held:
    """Acquire a lease under the name of this process, and take it over if its holder is dead; or return its holder. The
    processes in `known_alive` are not checked. Raise `StoreUnavailable` if this process may have been evicted and
    cannot find out, or if the store cannot decide whether the holder is dead."""
    while True:
        name = await cluster.confirm_name()
        outcome = await store.acquire(key, name, ttl)
        if isinstance(outcome, Held) and outcome.holder not in known_alive:
            if not await cluster.evict_if_dead(outcome.holder):
                return outcome
            outcome = await store.acquire(key, name, ttl, over=outcome.token)
        if isinstance(outcome, Held) or cluster.is_own_name(outcome.holder):
            return outcome  # otherwise this process was evicted meanwhile and has another name
