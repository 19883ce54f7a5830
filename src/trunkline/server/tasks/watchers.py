"""Who wants to know how tasks stand: those who wait for one, and those who are told of every change.

What this process does to a task is told at once. What others do is heard of by a watch, which is a reason to look.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from trunkline.errors import StoreUnavailable
from trunkline.protocol.task_dialects import Dialect, worth_telling
from trunkline.protocol.tasks import TaskRecord
from trunkline.server.tasks.repository import Kept, Shelf, key_of_task
from trunkline.stores.store import Store, Watch

__all__ = ["Interest", "Tell"]

Tell = Callable[[TaskRecord], bool]
"""Tells somebody how a task stands now; False if nobody is there to be told."""


class _Follower:
    """Somebody who is told of changes, and what was told last."""

    __slots__ = ("dialect", "last", "tell")

    def __init__(self, tell: Tell, dialect: Dialect, last: TaskRecord) -> None:
        self.tell = tell
        self.dialect = dialect
        self.last = last


class _Known:
    """What is wanted to be known of one task."""

    __slots__ = ("followers", "heard", "version", "work")

    def __init__(self) -> None:
        self.version = 0
        self.heard: list[asyncio.Future[None]] = []
        self.followers: list[_Follower] = []
        self.work: Callable[[TaskRecord], None] | None = None


class Interest:
    """All of it, on one loop."""

    def __init__(self, store: Store, shelf: Shelf) -> None:
        self._store = store
        self._shelf = shelf
        self._known: dict[str, _Known] = {}
        self._watch: Watch | None = None
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()  # of those, what has changed meanwhile
        self._names: dict[str, tuple[str, str]] = {}

    def close(self) -> None:
        """Nobody wants to know any more."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for task in list(self._looking.values()):
            task.cancel()
        self._known.clear()

    def _of(self, owner: str, task_id: str) -> _Known:
        key = key_of_task(owner, task_id)
        if self._watch is None:
            self._watch = self._store.watch("owner/", self._changed)
        self._names[key] = (owner, task_id)
        return self._known.setdefault(key, _Known())

    # --- those who want to know ------------------------------------------------------------------

    def works(self, record: TaskRecord, heard: Callable[[TaskRecord], None]) -> None:
        """Somebody works on a task here, and hears of what others make of it."""
        self._of(record.client, record.task_id).work = heard

    def rests(self, record: TaskRecord) -> None:
        """Nobody does any more."""
        self._of(record.client, record.task_id).work = None
        self._tidy(key_of_task(record.client, record.task_id))

    def follow(self, kept: Kept, dialect: Dialect, tell: Tell) -> Callable[[], None]:
        """Somebody is told whenever a dialect shows a change; gives what ends that."""
        known, key = (
            self._of(kept.record.client, kept.record.task_id),
            key_of_task(kept.record.client, kept.record.task_id),
        )
        follower = _Follower(tell, dialect, kept.record)
        known.followers.append(follower)
        return partial(self._unfollow, key, follower)

    def _unfollow(self, key: str, follower: _Follower) -> None:
        known = self._known.get(key)
        if known is not None and follower in known.followers:
            known.followers.remove(follower)
            self._tidy(key)

    @contextmanager
    def expecting(self, owner: str, task_id: str) -> "Generator[asyncio.Future[None]]":
        """Something to await until the next thing has happened to a task. Who looks at it after that misses nothing."""
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        known, key = self._of(owner, task_id), key_of_task(owner, task_id)
        known.heard.append(heard)
        try:
            yield heard
        finally:
            if heard in known.heard:
                known.heard.remove(heard)
            self._tidy(key)

    def _tidy(self, key: str) -> None:
        known = self._known.get(key)
        if known is not None and not known.heard and not known.followers and known.work is None:
            del self._known[key]
            self._names.pop(key, None)

    # --- what happens ------------------------------------------------------------------------------

    def tell(self, kept: Kept) -> None:
        """Something has happened to a task. What is older than what was told is not told."""
        key = key_of_task(kept.record.client, kept.record.task_id)
        known = self._known.get(key)
        if known is None or kept.version <= known.version:
            return
        known.version = kept.version
        for follower in list(known.followers):
            if worth_telling(follower.last, kept.record, follower.dialect) and not follower.tell(kept.record):
                known.followers.remove(follower)
            follower.last = kept.record
        if kept.record.ended:
            known.followers.clear()
        if known.work is not None:
            known.work(kept.record)
        self._wake(key, known)

    def _wake(self, key: str, known: _Known) -> None:
        heard, known.heard = known.heard, []
        for one in heard:
            if not one.done():
                one.set_result(None)
        self._tidy(key)

    def _changed(self, keys: frozenset[str] | None) -> None:
        for key in list(self._known) if keys is None else keys & self._known.keys():
            if key in self._looking:
                self._again.add(key)
            else:
                self._looking[key] = asyncio.get_running_loop().create_task(self._look(key))

    async def _look(self, key: str) -> None:
        try:
            self._again.add(key)
            while key in self._again and key in self._names:
                self._again.discard(key)
                kept = await self._shelf.find(*self._names[key])
                if kept is not None:
                    self.tell(kept)
                elif (known := self._known.get(key)) is not None:
                    self._wake(key, known)  # it is not there any more, which whoever waits will see
        except StoreUnavailable:
            pass  # once it is there again, it says that anything may have changed
        finally:
            self._again.discard(key)
            self._looking.pop(key, None)
