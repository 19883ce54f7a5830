"""Who holds a session: of all processes that share a store, one at a time writes what is kept of it.

The right to that is a lease in the session's own home, so every write carries it as its fence: what a process writes
whose session was taken is refused, however long it slept. It lasts as long as what is kept of the session, since a
process that has died is known by other means (`crew`), and then others take what it held. Where there are no others,
none of this is done.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from trunkline.errors import Fenced, StoreError
from trunkline.stores.store import ABSENT, Held, Lease, Put, Store, Write

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster

__all__ = ["SessionLease"]

T = TypeVar("T")


class SessionLease:
    """The right to the home of one session. Of a new one, it is asked for with the first write."""

    __slots__ = ("__weakref__", "_acquisition", "_cluster", "_lease", "_ttl", "ended", "key", "on_taken", "store")

    def __init__(
        self, key: str, store: Store, cluster: "Cluster | None", ttl: float, lease: Lease | None = None
    ) -> None:
        """`ttl` is for how long nobody has to be told that it is still held."""
        self.key = key
        self.ended = False  # nothing is written here any more
        self.on_taken: Callable[[], None] | None = None  # is told that another process has it
        self.store = store
        self._cluster = cluster
        self._ttl = ttl
        self._lease = lease
        self._acquisition: asyncio.Future[Lease | Held] | None = None

    # --- writing -------------------------------------------------------------------------------

    def commit(self, writes: Sequence[Write]) -> "asyncio.Future[int]":
        """Does some writes. Raises `Fenced` if they are no longer this process's to do."""
        if self._cluster is None:
            return asyncio.ensure_future(self.store.commit(writes))
        if self._lease is None or self.ended:
            return asyncio.ensure_future(self._acquire_and_commit(writes))
        return self._watch_for_fencing(self.store.commit(writes, fence=self._lease))

    async def _acquire_and_commit(self, writes: Sequence[Write]) -> int:
        lease = await self._ensure_lease()
        return await self._watch_for_fencing(self.store.commit(writes, fence=lease))

    def commit_first(self, put: Put) -> "asyncio.Future[Any]":
        """Do the first write, in one commit with acquiring the lease. It needs no fence: it says that nothing is there,
        and nobody else knows yet that anything will be."""
        if self._cluster is None or self._lease is not None or self.ended or self._acquisition is not None:
            return self.commit((put,))
        return asyncio.ensure_future(self._acquire_and_put(self._cluster, replace(put, version=ABSENT)))

    async def _acquire_and_put(self, cluster: "Cluster", put: Put) -> None:
        if not isinstance(await asyncio.shield(self._acquire(cluster, (put,))), Lease):
            raise Fenced(self.key, 0)

    # --- the right -----------------------------------------------------------------------------

    def _acquire(self, cluster: "Cluster", writes: Sequence[Write] = ()) -> "asyncio.Future[Lease | Held]":
        """Acquire the lease, with writes if it is not being acquired already."""
        if self._acquisition is None:
            self._acquisition = asyncio.ensure_future(
                self.store.acquire(self.key, cluster.name, self._ttl, writes=writes)
            )
            self._acquisition.add_done_callback(self._finish_acquisition)
        return self._acquisition

    def _finish_acquisition(self, acquisition: "asyncio.Future[Lease | Held]") -> None:
        self._acquisition = None
        if acquisition.cancelled() or acquisition.exception() is not None:
            return
        given = acquisition.result()
        if isinstance(given, Lease) and self._is_ours(given):
            self._lease = given
        else:
            self.lose()

    def _is_ours(self, lease: Lease) -> bool:
        """Whether a lease is held under the name that this process has now."""
        return self._cluster is not None and lease.holder == self._cluster.name

    def check_holder(self) -> None:
        """This process has another name. What it holds under one that was declared dead is everybody's."""
        if self._lease is not None and not self._is_ours(self._lease):
            self.lose()

    async def _ensure_lease(self) -> Lease:
        """The lease, asked for if need be."""
        if self._lease is None and not self.ended and self._cluster is not None:
            await asyncio.shield(self._acquire(self._cluster))
        if self._lease is None or self.ended:
            raise Fenced(self.key, 0)
        return self._lease

    def _watch_for_fencing(self, operation: Awaitable[T]) -> "asyncio.Future[T]":
        """What was asked for under the lease; whoever waits for it learns that it is lost after everybody else."""
        future = asyncio.ensure_future(operation)
        future.add_done_callback(self._lose_if_fenced)
        return future

    def _lose_if_fenced(self, operation: "asyncio.Future[Any]") -> None:
        if not operation.cancelled() and isinstance(operation.exception(), Fenced):
            self.lose()

    def lose(self) -> None:
        """Another process has it, or may have."""
        if not self.ended:
            self.ended = True
            if self.on_taken is not None:
                self.on_taken()

    def renew(self) -> None:
        """Holds it for as long as at first again, from now on."""
        if self._lease is not None and not self.ended:
            self._watch_for_fencing(self.store.renew(self._lease, self._ttl))

    async def confirm(self) -> bool:
        """Whether this process has it now."""
        if self._cluster is None:
            return True
        with contextlib.suppress(Fenced):
            lease = await self._ensure_lease()
            await self._watch_for_fencing(self.store.renew(lease, self._ttl))
        return not self.ended

    async def release(self) -> None:
        """Lets others have it. That they cannot be told does no harm: they find out, in time."""
        if self._cluster is None:
            return
        self.ended = True
        if self._acquisition is not None:
            await asyncio.wait([self._acquisition])
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(StoreError):
                await self.store.release(lease)
