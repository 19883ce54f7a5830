"""Table of resource subscriptions."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from trunkline.errors import InternalError

__all__ = ["Subscriptions", "TooManySubscriptions"]

S = TypeVar("S", bound=Hashable)


class TooManySubscriptions(InternalError):
    """A client has reached `max_subscriptions`."""

    kind = "maximum_subscriptions_exceeded"

    def __init__(self, limit: int, why: str | None = None) -> None:
        why = why or f"this client has {limit} subscriptions, the maximum"
        super().__init__(f"{why} (max_subscriptions); end some of them first", data={"maximum": limit})


class Subscriptions(Generic[S]):
    """Subscribers by URI, and URIs by subscriber."""

    def __init__(self) -> None:
        self._by_uri: dict[str, dict[S, None]] = {}  # dicts as ordered sets
        self._by_subscriber: dict[S, dict[str, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_uri.values()))

    def add(self, uri: str, subscriber: S) -> bool:
        """Subscribe; return False if already subscribed."""
        subscribers = self._by_uri.setdefault(uri, {})
        if subscriber in subscribers:
            return False
        subscribers[subscriber] = None
        self._by_subscriber.setdefault(subscriber, {})[uri] = None
        return True

    def remove(self, uri: str, subscriber: S) -> bool:
        """End a subscription; return False if there was none."""
        subscribers = self._by_uri.get(uri, {})
        if subscriber not in subscribers:
            return False
        del subscribers[subscriber]
        if not subscribers:
            del self._by_uri[uri]
        uris = self._by_subscriber[subscriber]
        del uris[uri]
        if not uris:
            del self._by_subscriber[subscriber]
        return True

    def drop(self, subscriber: S) -> list[str]:
        """End all subscriptions of a subscriber; return the URIs that have no subscriber left."""
        uris = list(self._by_subscriber.get(subscriber, {}))
        for uri in uris:
            self.remove(uri, subscriber)
        return [uri for uri in uris if uri not in self._by_uri]

    def count(self, subscriber: S) -> int:
        """Return the number of subscriptions of a subscriber."""
        return len(self._by_subscriber.get(subscriber, ()))

    def has(self, uri: str, subscriber: S) -> bool:
        """Return whether a subscriber is subscribed to a resource."""
        return uri in self._by_subscriber.get(subscriber, ())

    def subscribers(self, uri: str) -> list[S]:
        """Return the subscribers of a resource."""
        return list(self._by_uri.get(uri, {}))

    def uris(self, subscriber: S) -> list[str]:
        """Return the URIs that a subscriber is subscribed to."""
        return list(self._by_subscriber.get(subscriber, {}))

    def subscribed_uris(self) -> list[str]:
        """Return all URIs that have a subscriber."""
        return list(self._by_uri)
