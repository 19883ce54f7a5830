"""Answers that may be used again: for as long as the server said, and until it says that something has changed.

What is kept belongs to one client, and so to one caller; nothing of it is ever shown to another, and it is forgotten
when it was settled anew who that is. It is kept as it came, so that whoever changes what he was given changes it for
nobody else. There is room for so many answers, and so many bytes: what was not used for the longest time goes first.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from trunkline.config import MIB
from trunkline.protocol.types import PaginatedParams, ReadResourceParams

__all__ = ["CACHEABLE", "Cache"]

_LISTS: Final = {
    "tools/list": "notifications/tools/list_changed",
    "prompts/list": "notifications/prompts/list_changed",
    "resources/list": "notifications/resources/list_changed",
    "resources/templates/list": "notifications/resources/list_changed",
}
CACHEABLE: Final = frozenset({*_LISTS, "resources/read"})
"""The methods whose answers say how long they may be used."""

_UPDATED: Final = "notifications/resources/updated"
_MOST: Final = 1000  # answers
_MOST_BYTES: Final = 32 * MIB


_Key = tuple[str, str | None]


class _Kept(NamedTuple):
    until: float
    answer: Any
    size: int


class Cache:
    """The answers of one server."""

    def __init__(self) -> None:
        self.drops = 0  # how often something was dropped: an answer that was asked for before that may be older
        self._kept: dict[_Key, _Kept] = {}  # what was used last comes last
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, method: str, params: Any, now: float) -> Any:
        """An answer that is still good; None if there is none."""
        key = _key(method, params)
        if key is None or key not in self._kept:
            return None
        kept = self._take(key)
        if now >= kept.until:
            return None
        self._put(key, kept)
        return kept.answer

    def keep(self, method: str, params: Any, answer: Any, until: float, *, drops: int) -> None:
        """Keeps an answer, if it is one to be kept. `drops` is what it was when the question went out."""
        key = _key(method, params)
        if key is None or drops != self.drops:
            return
        if key in self._kept:
            self._take(key)
        self._put(key, _Kept(until, answer, len(memoryview(answer))))
        while len(self._kept) > _MOST or self._bytes > _MOST_BYTES:
            self._take(next(iter(self._kept)))

    def _take(self, key: "_Key") -> "_Kept":
        kept = self._kept.pop(key)
        self._bytes -= kept.size
        return kept

    def _put(self, key: "_Key", kept: "_Kept") -> None:
        self._kept[key] = kept
        self._bytes += kept.size

    def drop(self, method: str) -> None:
        """Forgets all answers to a method: every page of a list."""
        self._drop(lambda key: key[0] == method)

    def clear(self) -> None:
        """Forgets all of it."""
        self._drop(lambda _: True)

    def _drop(self, concerned: "Callable[[_Key], bool]") -> None:
        self.drops += 1
        for key in [key for key in self._kept if concerned(key)]:
            self._take(key)

    def handlers(self) -> dict[str, Callable[[Any], None]]:
        """What has to hear of which notifications."""
        return {_UPDATED: self._updated, **{name: self._changer(name) for name in _LISTS.values()}}

    def _updated(self, params: Any) -> None:
        """A resource has changed: and what it is a part of, as may be told by its URI (resources, "Subscriptions")."""
        self._drop(lambda key: key[0] == "resources/read" and _is_part(params.uri, key[1] or ""))

    def _changer(self, name: str) -> Callable[[Any], None]:
        lists = {method for method, told in _LISTS.items() if told == name}
        return lambda _: self._drop(lambda key: key[0] in lists)


def _is_part(uri: str, whole: str) -> bool:
    return uri == whole or uri.startswith(whole.rstrip("/") + "/")


def _key(method: str, params: Any) -> _Key | None:
    """What an answer is kept under; None for what is asked anew every time, as is all that says more than usual."""
    if getattr(params, "meta", None) is not None:
        return None
    if method in _LISTS and isinstance(params, PaginatedParams) and params.limit is None:
        return method, params.cursor
    if method == "resources/read" and isinstance(params, ReadResourceParams):
        return None if params.input_responses or params.request_state else (method, params.uri)
    return None
