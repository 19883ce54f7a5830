"""Who wants to know how tasks stand: those who wait for one, and those who are told of every change.

What this process does to a task is told at once. What others do is heard of by a watch, which is a reason to look.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from trunkline.errors import StoreUnavailable
from trunkline.protocol.task_dialects import Dialect, is_notable_change
from trunkline.protocol.tasks import TaskRecord
from trunkline.server.tasks.repository import StoredTask, TaskRepository, key_of_task
from trunkline.stores.store import Store, Watch

__all__ = ["StatusCallback", "TaskWatchers"]

StatusCallback = Callable[[TaskRecord], bool]
"""Tells somebody how a task stands now; False if nobody is there to be told."""


class _Follower:
    """Somebody who is told of changes, and what was told last."""

    __slots__ = ("dialect", "last_seen", "notify")

    def __init__(self, notify: StatusCallback, dialect: Dialect, last_seen: TaskRecord) -> None:
        self.notify = notify
        self.dialect = dialect
        self.last_seen = last_seen


class _WatchedTask:
    """What is wanted to be known of one task."""

    __slots__ = ("followers", "on_change", "version", "waiters")

    def __init__(self) -> None:
        self.version = 0
        self.waiters: list[asyncio.Future[None]] = []
        self.followers: list[_Follower] = []
        self.on_change: Callable[[TaskRecord], None] | None = None


class TaskWatchers:
    """All of it, on one loop."""

    def __init__(self, store: Store, repository: TaskRepository) -> None:
        self._store = store
        self._repository = repository
        self._watched: dict[str, _WatchedTask] = {}
        self._watch: Watch | None = None
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        self._stale: set[str] = set()  # of those, what has changed meanwhile
        self._ids: dict[str, tuple[str, str]] = {}

    def close(self) -> None:
        """Nobody wants to know any more."""
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
        self._ids[key] = (owner, task_id)
        return self._watched.setdefault(key, _WatchedTask())

    # --- those who want to know ------------------------------------------------------------------

    def attach_runner(self, record: TaskRecord, on_change: Callable[[TaskRecord], None]) -> None:
        """Somebody works on a task here, and hears of what others make of it."""
        self._watch_task(record.client, record.task_id).on_change = on_change

    def detach_runner(self, record: TaskRecord) -> None:
        """Nobody does any more."""
        self._watch_task(record.client, record.task_id).on_change = None
        self._discard_if_unused(key_of_task(record.client, record.task_id))

    def follow(self, stored: StoredTask, dialect: Dialect, notify: StatusCallback) -> Callable[[], None]:
        """Somebody is told whenever a dialect shows a change; gives what ends that."""
        known, key = (
            self._watch_task(stored.record.client, stored.record.task_id),
            key_of_task(stored.record.client, stored.record.task_id),
        )
        follower = _Follower(notify, dialect, stored.record)
        known.followers.append(follower)
        return partial(self._unfollow, key, follower)

    def _unfollow(self, key: str, follower: _Follower) -> None:
        known = self._watched.get(key)
        if known is not None and follower in known.followers:
            known.followers.remove(follower)
            self._discard_if_unused(key)

    @contextmanager
    def expect_change(self, owner: str, task_id: str) -> "Generator[asyncio.Future[None]]":
        """Something to await until the next thing has happened to a task. Who looks at it after that misses nothing."""
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        known, key = self._watch_task(owner, task_id), key_of_task(owner, task_id)
        known.waiters.append(heard)
        try:
            yield heard
        finally:
            if heard in known.waiters:
                known.waiters.remove(heard)
            self._discard_if_unused(key)

    def _discard_if_unused(self, key: str) -> None:
        known = self._watched.get(key)
        if known is not None and not known.waiters and not known.followers and known.on_change is None:
            del self._watched[key]
            self._ids.pop(key, None)

    # --- what happens ------------------------------------------------------------------------------

    def notify(self, stored: StoredTask) -> None:
        """Something has happened to a task. What is older than what was told is not told."""
        key = key_of_task(stored.record.client, stored.record.task_id)
        known = self._watched.get(key)
        if known is None or stored.version <= known.version:
            return
        known.version = stored.version
        for follower in list(known.followers):
            if is_notable_change(follower.last_seen, stored.record, follower.dialect) and not follower.notify(
                stored.record
            ):
                known.followers.remove(follower)
            follower.last_seen = stored.record
        if stored.record.ended:
            known.followers.clear()
        if known.on_change is not None:
            known.on_change(stored.record)
        self._wake(key, known)

    def _wake(self, key: str, watched: _WatchedTask) -> None:
        heard, watched.waiters = watched.waiters, []
        for one in heard:
            if not one.done():
                one.set_result(None)
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
            while key in self._stale and key in self._ids:
                self._stale.discard(key)
                kept = await self._repository.find(*self._ids[key])
                if kept is not None:
                    self.notify(kept)
                elif (known := self._watched.get(key)) is not None:
                    self._wake(key, known)  # it is not there any more, which whoever waits will see
        except StoreUnavailable:
            pass  # once it is there again, it says that anything may have changed
        finally:
            self._stale.discard(key)
            self._refreshing.pop(key, None)
