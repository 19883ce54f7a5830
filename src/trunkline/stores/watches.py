"""Who wants to know of which keys: changes gather until the next turn of the loop, and are told in one go."""

import asyncio
from collections.abc import Iterable

from trunkline.stores.store import Changed

__all__ = ["Watchers"]


class Watchers:
    """The watches of one store."""

    def __init__(self) -> None:
        self._watches: dict[int, _RegisteredWatch] = {}
        self._changed_keys: set[str] | None = set()  # None: anything may have
        self._scheduled = False

    def __bool__(self) -> bool:
        return bool(self._watches)

    def add(self, prefix: str, callback: Changed) -> "_RegisteredWatch":
        """One more watch."""
        watch = _RegisteredWatch(self, prefix, callback)
        self._watches[id(watch)] = watch
        return watch

    def remove(self, watch: "_RegisteredWatch") -> None:
        """One watch less."""
        self._watches.pop(id(watch), None)

    def close(self) -> None:
        """Tells nobody anything any more."""
        self._watches.clear()

    def notify(self, keys: Iterable[str] | None) -> None:
        """Tells everybody concerned, in the next turn of the loop; of None, everybody."""
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
        for watch in list(self._watches.values()):
            if id(watch) in self._watches:  # one that was called may have closed another
                self._call_watch(watch, changed)

    @staticmethod
    def _call_watch(watch: "_RegisteredWatch", changed: set[str] | None) -> None:
        concerned = None if changed is None else frozenset(key for key in changed if key.startswith(watch.prefix))
        if concerned is not None and not concerned:
            return
        try:
            watch.callback(concerned)
        except Exception as error:  # noqa: BLE001 - the others are not to blame
            context = {"message": f"who watches {watch.prefix!r} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


class _RegisteredWatch:
    """A watch that is kept until it is closed."""

    __slots__ = ("_watchers", "callback", "prefix")

    def __init__(self, watchers: Watchers, prefix: str, callback: Changed) -> None:
        self._watchers = watchers
        self.prefix = prefix
        self.callback = callback

    def close(self) -> None:
        self._watchers.remove(self)
