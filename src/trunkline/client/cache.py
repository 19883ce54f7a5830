"""Answers that may be used again: for as long as the server said, and until it says that something has changed.

What is kept belongs to one client, and so to one caller; nothing of it is ever shown to another. It is kept as it came,
so that whoever changes what he was given changes it for nobody else.
"""

from collections.abc import Callable
from typing import Any, Final

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


class Cache:
    """The answers of one server."""

    def __init__(self) -> None:
        self.drops = 0  # how often something was dropped: an answer that was asked for before that may be older
        self._kept: dict[tuple[str, str | None], tuple[float, Any]] = {}

    def get(self, method: str, params: Any, now: float) -> Any:
        """An answer that is still good; None if there is none."""
        key = _key(method, params)
        if key is None or key not in self._kept:
            return None
        until, answer = self._kept[key]
        if now < until:
            return answer
        del self._kept[key]
        return None

    def keep(self, method: str, params: Any, answer: Any, until: float, *, drops: int) -> None:
        """Keeps an answer, if it is one to be kept. `drops` is what it was when the question went out."""
        key = _key(method, params)
        if key is None or drops != self.drops:
            return
        self._kept.pop(key, None)
        if len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (until, answer)

    def drop(self, method: str) -> None:
        """Forgets all answers to a method: every page of a list."""
        self._drop(lambda key: key[0] == method)

    def clear(self) -> None:
        """Forgets all of it."""
        self._drop(lambda _: True)

    def _drop(self, concerned: Callable[[tuple[str, str | None]], bool]) -> None:
        self.drops += 1
        self._kept = {key: kept for key, kept in self._kept.items() if not concerned(key)}

    def handlers(self) -> dict[str, Callable[[Any], None]]:
        """What has to hear of which notifications."""
        return {_UPDATED: self._updated, **{name: self._changer(name) for name in _LISTS.values()}}

    def _updated(self, params: Any) -> None:
        self._drop(lambda key: key == ("resources/read", params.uri))

    def _changer(self, name: str) -> Callable[[Any], None]:
        lists = {method for method, told in _LISTS.items() if told == name}
        return lambda _: self._drop(lambda key: key[0] in lists)


def _key(method: str, params: Any) -> tuple[str, str | None] | None:
    """What an answer is kept under; None for what is asked anew every time, as is all that says more than usual."""
    if getattr(params, "meta", None) is not None:
        return None
    if method in _LISTS and isinstance(params, PaginatedParams) and params.limit is None:
        return method, params.cursor
    if method == "resources/read" and isinstance(params, ReadResourceParams):
        return None if params.input_responses or params.request_state else (method, params.uri)
    return None
