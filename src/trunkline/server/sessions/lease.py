"""Session lease: of all processes that share a store, one at a time may write the data of a session.

The lease is stored in the session's own home, so every write carries it as its fence: the store refuses the writes of a
process that has lost the session, however long it was paused. The lease lasts as long as the session data, because the
death of a process is detected by other means (`server/cluster`), and then peers take over its sessions. If no other
process can share the store, there is no lease.
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

__all__ = ["SessionLease", "follow"]

T = TypeVar("T")


class SessionLease:
    """Right to write the data of one session. For a new session it is acquired with the first write."""

    __slots__ = ("__weakref__", "_acquisition", "_cluster", "_lease", "_ttl", "ended", "key", "on_taken", "store")

    def __init__(
        self, key: str, store: Store, cluster: "Cluster | None", ttl: float, lease: Lease | None = None
    ) -> None:
        """`ttl` is the number of seconds for which the lease lasts without a renewal."""
        self.key = key
        self.ended = False  # this process may not write any more
        self.on_taken: Callable[[], None] | None = None  # called when another process has acquired it, or may have
        self.store = store
        self._cluster = cluster
        self._ttl = ttl
        self._lease = lease
        self._acquisition: asyncio.Future[Lease | Held] | None = None

    # --- writing -------------------------------------------------------------------------------

    def commit(self, writes: Sequence[Write]) -> "asyncio.Future[int]":
        """Commit writes. Raise `Fenced` if this process has lost the lease."""
        if self._cluster is None:
            return asyncio.ensure_future(self.store.commit(writes))
        if self._lease is None or self.ended:
            return asyncio.ensure_future(self._acquire_and_commit(writes))
        return self._watch_for_fencing(self.store.commit(writes, fence=self._lease))

    async def _acquire_and_commit(self, writes: Sequence[Write]) -> int:
        lease = await self._ensure_lease()
        return await self._watch_for_fencing(self.store.commit(writes, fence=lease))

    def commit_first(self, put: Put) -> "asyncio.Future[Any]":
        """Commit the first write of a new session together with acquiring the lease. It needs no fence: it requires the
        key to be absent, and no other process knows the session id yet."""
        if self._cluster is None or self._lease is not None or self.ended or self._acquisition is not None:
            return self.commit((put,))
        return follow(
            self._acquire(self._cluster, (replace(put, version=ABSENT),)),
            lambda error: Fenced(self.key, 0) if error is None and self.ended else error,
        )

    # --- lease ---------------------------------------------------------------------------------

    def _acquire(self, cluster: "Cluster", writes: Sequence[Write] = ()) -> "asyncio.Future[Lease | Held]":
        """Acquire the lease, together with writes unless it is being acquired already."""
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
        outcome = acquisition.result()
        if isinstance(outcome, Lease) and self._is_ours(outcome):
            self._lease = outcome
        else:
            self.lose()

    def _is_ours(self, lease: Lease) -> bool:
        """Return whether a lease is held under the current name of this process."""
        return self._cluster is not None and lease.holder == self._cluster.name

    def check_holder(self) -> None:
        """Give up a lease that is held under a previous name of this process: peers may take over what an evicted
        process held."""
        if self._lease is not None and not self._is_ours(self._lease):
            self.lose()

    async def _ensure_lease(self) -> Lease:
        """Return the lease, and acquire it first if necessary. Raise `Fenced` if it is lost."""
        if self._lease is None and not self.ended and self._cluster is not None:
            await asyncio.shield(self._acquire(self._cluster))
        if self._lease is None or self.ended:
            raise Fenced(self.key, 0)
        return self._lease

    def _watch_for_fencing(self, operation: Awaitable[T]) -> "asyncio.Future[T]":
        """Run a store operation under the lease. If it is fenced, the loss is reported before its caller sees the
        error."""
        future = asyncio.ensure_future(operation)
        future.add_done_callback(self._lose_if_fenced)
        return future

    def _lose_if_fenced(self, operation: "asyncio.Future[Any]") -> None:
        if not operation.cancelled() and isinstance(operation.exception(), Fenced):
            self.lose()

    def lose(self) -> None:
        """Give up the lease: another process has it, or may have."""
        if not self.ended:
            self.ended = True
            if self.on_taken is not None:
                self.on_taken()

    def renew(self) -> None:
        """Renew the lease in the background."""
        if self._lease is not None and not self.ended:
            self._watch_for_fencing(self.store.renew(self._lease, self._ttl))

    async def confirm(self) -> bool:
        """Renew the lease and return whether this process holds it."""
        if self._cluster is None:
            return True
        with contextlib.suppress(Fenced):
            lease = await self._ensure_lease()
            await self._watch_for_fencing(self.store.renew(lease, self._ttl))
        return not self.ended

    async def release(self) -> None:
        """Release the lease. If the store is unavailable, peers take it over in time."""
        if self._cluster is None:
            return
        self.ended = True
        if self._acquisition is not None:
            await asyncio.wait([self._acquisition])
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(StoreError):
                await self.store.release(lease)


def follow(
    operation: "asyncio.Future[Any]", adapt_error: Callable[[BaseException | None], BaseException | None]
) -> "asyncio.Future[None]":
    """Return a future that is done when an operation is, for a caller that may stop waiting. It raises the error that
    `adapt_error` returns for that of the operation, if any."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(_: object) -> None:
        if outcome.done():
            return
        error = adapt_error(asyncio.CancelledError() if operation.cancelled() else operation.exception())
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)
            outcome.exception()  # the caller may have gone, so mark it as retrieved

    operation.add_done_callback(settle)
    return outcome
