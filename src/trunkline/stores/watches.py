"""Registered watches: changes are collected until the next loop iteration, then dispatched together."""

import asyncio
from collections.abc import Callable, Iterable

from trunkline.stores.store import Changed

__all__ = ["Watchers"]


class Watchers:
    """The watches of one store."""

    def __init__(self) -> None:
        self._watches: dict[_RegisteredWatch, None] = {}  # ordered, unlike a set
        self._changed_keys: set[str] | None = set()  # None: any key may have changed
        self._scheduled = False

    def __bool__(self) -> bool:
        return bool(self._watches)

    def add(self, prefix: str, callback: Changed, on_removed: Callable[[], None] = lambda: None) -> "_RegisteredWatch":
        """Register a watch. `on_removed` is called when the watch is closed, unless all watches were removed before."""
        watch = _RegisteredWatch(self, prefix, callback, on_removed)
        self._watches[watch] = None
        return watch

    def remove(self, watch: "_RegisteredWatch") -> None:
        """Remove a watch."""
        if watch in self._watches:
            del self._watches[watch]
            watch.on_removed()

    def close(self) -> None:
        """Remove all watches."""
        self._watches.clear()

    def notify(self, keys: Iterable[str] | None) -> None:
        """Call the watches of these keys in the next loop iteration; None calls all."""
        if not self._watches:
            return
        if keys is None:
            self._changed_keys = None
        elif self._changed_keys is not None:
            self._changed_keys.update(keys)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        changed, self._changed_keys = self._changed_keys, set()
        for watch in list(self._watches):
            if watch in self._watches:  # a callback may have closed another watch
                self._call_watch(watch, changed)

    @staticmethod
    def _call_watch(watch: "_RegisteredWatch", changed: set[str] | None) -> None:
        concerned = None if changed is None else frozenset(key for key in changed if key.startswith(watch.prefix))
        if concerned is not None and not concerned:
            return
        try:
            watch.callback(concerned)
        except Exception as error:  # noqa: BLE001 - a faulty callback must not affect other watches
            context = {
                "message": f"the callback of the watch on {watch.prefix!r} raised an exception",
                "exception": error,
            }
            asyncio.get_running_loop().call_exception_handler(context)


class _RegisteredWatch:
    """A watch, until it is closed."""

    __slots__ = ("_watchers", "callback", "on_removed", "prefix")

    def __init__(self, watchers: Watchers, prefix: str, callback: Changed, on_removed: Callable[[], None]) -> None:
        self._watchers = watchers
        self.prefix = prefix
        self.callback = callback
        self.on_removed = on_removed

    def close(self) -> None:
        self._watchers.remove(self)
