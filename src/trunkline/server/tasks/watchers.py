"""Task watchers: requests that wait for a change of a task, and followers that are notified of every change.

Changes by this process notify the watchers at once. Changes by other processes arrive through a store watch, which
causes the record to be read again.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from msgspec import Struct

from trunkline.errors import StoreUnavailable
from trunkline.protocol.task_dialects import Dialect, is_notable_change
from trunkline.protocol.tasks import TaskRecord
from trunkline.server.tasks.repository import StoredTask, TaskRepository, key_of_task
from trunkline.stores.store import Store, Watch

__all__ = ["StatusCallback", "TaskWatchers"]

StatusCallback = Callable[[TaskRecord], bool]
"""Notify a client of a task's status. Return False if the client is unreachable."""


class _Follower(Struct, eq=False):
    """A callback for the changes of a task that its dialect shows, and the record of the last notification."""

    notify: StatusCallback
    dialect: Dialect
    last_seen: TaskRecord


class _WatchedTask(Struct, eq=False):
    """Watchers of one task."""

    owner: str
    task_id: str
    version: int = 0
    waiters: list[asyncio.Future[None]] = []
    followers: list[_Follower] = []
    on_change: Callable[[StoredTask], None] | None = None


class TaskWatchers:
    """Watchers of tasks, on one loop."""

    def __init__(self, store: Store, repository: TaskRepository) -> None:
        self._store = store
        self._repository = repository
        self._watched: dict[str, _WatchedTask] = {}
        self._watch: Watch | None = None
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        self._stale: set[str] = set()  # keys that changed while they were being refreshed

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for task in list(self._refreshing.values()):
            task.cancel()
        self._watched.clear()

    def _watch_task(self, owner: str, task_id: str) -> _WatchedTask:
        key = key_of_task(owner, task_id)
        if self._watch is None:
            self._watch = self._store.watch("owner/", self._on_store_change)
        return self._watched.setdefault(key, _WatchedTask(owner, task_id))

    # --- registration ----------------------------------------------------------------------------

    def attach_runner(self, record: TaskRecord, on_change: Callable[[StoredTask], None]) -> None:
        """Register the runner of a task; `on_change` receives its changes, also those by other processes."""
        self._watch_task(record.client, record.task_id).on_change = on_change

    def detach_runner(self, record: TaskRecord) -> None:
        """Unregister the runner of a task."""
        self._watch_task(record.client, record.task_id).on_change = None
        self._discard_if_unused(key_of_task(record.client, record.task_id))

    def follow(self, stored: StoredTask, dialect: Dialect, notify: StatusCallback) -> Callable[[], None]:
        """Call `notify` with each change of a task that a dialect shows. Return a function that ends this."""
        owner, task_id = stored.record.client, stored.record.task_id
        watched, key = self._watch_task(owner, task_id), key_of_task(owner, task_id)
        follower = _Follower(notify, dialect, stored.record)
        watched.followers.append(follower)
        return partial(self._unfollow, key, follower)

    def _unfollow(self, key: str, follower: _Follower) -> None:
        watched = self._watched.get(key)
        if watched is not None and follower in watched.followers:
            watched.followers.remove(follower)
            self._discard_if_unused(key)

    @contextmanager
    def expect_change(self, owner: str, task_id: str) -> "Generator[asyncio.Future[None]]":
        """Yield a future that is done at the next change of a task. A record that is read after this call misses no
        change."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watched, key = self._watch_task(owner, task_id), key_of_task(owner, task_id)
        watched.waiters.append(changed)
        try:
            yield changed
        finally:
            if changed in watched.waiters:
                watched.waiters.remove(changed)
            self._discard_if_unused(key)

    def _discard_if_unused(self, key: str) -> None:
        watched = self._watched.get(key)
        if watched is not None and not watched.waiters and not watched.followers and watched.on_change is None:
            del self._watched[key]

    # --- changes -----------------------------------------------------------------------------------

    def notify(self, stored: StoredTask) -> None:
        """Notify the watchers of a task. Versions older than the last one are ignored."""
        key = key_of_task(stored.record.client, stored.record.task_id)
        watched = self._watched.get(key)
        if watched is None or stored.version <= watched.version:
            return
        watched.version = stored.version
        for follower in list(watched.followers):
            if is_notable_change(follower.last_seen, stored.record, follower.dialect) and not follower.notify(
                stored.record
            ):
                watched.followers.remove(follower)
            follower.last_seen = stored.record
        if stored.record.ended:
            watched.followers.clear()
        if watched.on_change is not None:
            watched.on_change(stored)
        self._wake(key, watched)

    def _wake(self, key: str, watched: _WatchedTask) -> None:
        waiters, watched.waiters = watched.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._discard_if_unused(key)

    def _on_store_change(self, keys: frozenset[str] | None) -> None:
        for key in list(self._watched) if keys is None else keys & self._watched.keys():
            if key in self._refreshing:
                self._stale.add(key)
            else:
                self._refreshing[key] = asyncio.get_running_loop().create_task(self._refresh(key))

    async def _refresh(self, key: str) -> None:
        try:
            self._stale.add(key)
            while key in self._stale and (watched := self._watched.get(key)) is not None:
                self._stale.discard(key)
                stored = await self._repository.find(watched.owner, watched.task_id)
                if stored is not None:
                    self.notify(stored)
                elif (watched := self._watched.get(key)) is not None:
                    self._wake(key, watched)  # the task is gone; the waiting requests will find that out
        except StoreUnavailable:
            pass  # when the store is back, its watch reports that everything may have changed
        finally:
            self._stale.discard(key)
            self._refreshing.pop(key, None)
