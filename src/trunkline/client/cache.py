"""Response cache (2026-07-28): for as long as a response allows, and until the server reports a change.

A cache belongs to one client, and so to one user. It is cleared when the client authorizes again. Responses are stored
encoded, so a caller that modifies a decoded result does not affect others. The number of entries and of bytes is
bounded; the least recently used entry is dropped first.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from trunkline.config import MIB
from trunkline.protocol.types import PaginatedParams, ReadResourceParams

__all__ = ["CACHEABLE", "ResponseCache"]

_CHANGE_NOTIFICATIONS: Final = {
    "tools/list": "notifications/tools/list_changed",
    "prompts/list": "notifications/prompts/list_changed",
    "resources/list": "notifications/resources/list_changed",
    "resources/templates/list": "notifications/resources/list_changed",
}
CACHEABLE: Final = frozenset({*_CHANGE_NOTIFICATIONS, "resources/read"})
"""The methods whose results state a time to live."""

_UPDATED: Final = "notifications/resources/updated"
_MAX_ENTRIES: Final = 1000
_MAX_BYTES: Final = 32 * MIB


_Key = tuple[str, str | None]


class _CachedResponse(NamedTuple):
    expires_at: float
    response: Any
    size: int


class ResponseCache:
    """The cached responses of one server."""

    def __init__(self) -> None:
        self.drop_count = 0  # the number of drops: a response to an earlier request may be outdated
        self._entries: dict[_Key, _CachedResponse] = {}  # the most recently used is last
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, method: str, params: Any, now: float) -> Any:
        """Return a fresh response; None if there is none."""
        key = _key(method, params)
        if key is None or key not in self._entries:
            return None
        kept = self._remove(key)
        if now >= kept.expires_at:
            return None
        self._insert(key, kept)
        return kept.response

    def store(self, method: str, params: Any, response: Any, expires_at: float, *, drop_count: int) -> None:
        """Store a response, if it is cacheable. `drop_count` is the count from before the request: if it has changed,
        the response may be outdated."""
        key = _key(method, params)
        if key is None or drop_count != self.drop_count:
            return
        if key in self._entries:
            self._remove(key)
        self._insert(key, _CachedResponse(expires_at, response, len(memoryview(response))))
        while len(self._entries) > _MAX_ENTRIES or self._bytes > _MAX_BYTES:
            self._remove(next(iter(self._entries)))

    def _remove(self, key: "_Key") -> "_CachedResponse":
        kept = self._entries.pop(key)
        self._bytes -= kept.size
        return kept

    def _insert(self, key: "_Key", entry: "_CachedResponse") -> None:
        self._entries[key] = entry
        self._bytes += entry.size

    def drop(self, method: str) -> None:
        """Drop all responses to a method, such as every page of a list."""
        self._drop(lambda key: key[0] == method)

    def clear(self) -> None:
        """Drop all responses."""
        self._drop(lambda _: True)

    def _drop(self, matches: "Callable[[_Key], bool]") -> None:
        self.drop_count += 1
        for key in [key for key in self._entries if matches(key)]:
            self._remove(key)

    def notification_handlers(self) -> dict[str, Callable[[Any], None]]:
        """Return the handlers of the notifications that invalidate responses."""
        return {
            _UPDATED: self._on_resource_updated,
            **{name: self._list_changed_handler(name) for name in _CHANGE_NOTIFICATIONS.values()},
        }

    def _on_resource_updated(self, params: Any) -> None:
        """Drop a resource, and those that contain it by their URI (resources, "Subscriptions")."""
        self._drop(lambda key: key[0] == "resources/read" and _is_within(params.uri, key[1] or ""))

    def _list_changed_handler(self, name: str) -> Callable[[Any], None]:
        lists = {method for method, notification in _CHANGE_NOTIFICATIONS.items() if notification == name}
        return lambda _: self._drop(lambda key: key[0] in lists)


def _is_within(uri: str, whole: str) -> bool:
    return uri == whole or uri.startswith(whole.rstrip("/") + "/")


def _key(method: str, params: Any) -> _Key | None:
    """Return the cache key of a request; None if it is not cacheable, such as one with `_meta`."""
    if getattr(params, "meta", None) is not None:
        return None
    if method in _CHANGE_NOTIFICATIONS and isinstance(params, PaginatedParams) and params.limit is None:
        return method, params.cursor
    if method == "resources/read" and isinstance(params, ReadResourceParams):
        return None if params.input_responses or params.request_state else (method, params.uri)
    return None
