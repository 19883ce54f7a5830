"""Resource subscriptions with hooks for the first and the last subscriber of a resource.

Hooks may be async. For one resource they never overlap: a second subscriber waits for the first-subscriber hooks, and a
subscriber that arrives during the last-subscriber hooks runs the first-subscriber hooks again afterwards.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Generic
from weakref import WeakValueDictionary

from trunkline.server.notifications.subscriptions import S, Subscriptions, TooManySubscriptions

__all__ = ["SubscriptionHook", "SubscriptionHooks"]

SubscriptionHook = Callable[[str], Awaitable[None] | None]
"""Starts or stops watching the resource with a URI."""


class SubscriptionHooks(Generic[S]):
    """Subscriptions, and the hooks to run when a resource gets its first or loses its last subscriber."""

    def __init__(self) -> None:
        self.subscriptions: Subscriptions[S] = Subscriptions()
        self.on_first: list[SubscriptionHook] = []
        self.on_last: list[SubscriptionHook] = []
        # By URI. An entry disappears when no task holds or awaits its lock.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def subscribe(self, uri: str, subscriber: S, limit: int | None = None) -> bool:
        """Run the first-subscriber hooks if needed, then subscribe; return False if already subscribed. A hook that
        raises prevents the subscription. Raises `TooManySubscriptions` if the subscriber has `limit` of them."""
        async with self._lock_of(uri):
            self._check_limit(uri, subscriber, limit)
            first = not self.subscriptions.subscribers(uri)
            if first:
                await self._run_first_hooks(uri)
            try:
                self._check_limit(uri, subscriber, limit)  # it may have subscribed to other resources meanwhile
            except TooManySubscriptions:
                if first:
                    await self._run_last_hooks(uri)
                raise
            return self.subscriptions.add(uri, subscriber)

    def _check_limit(self, uri: str, subscriber: S, limit: int | None) -> None:
        subscriptions = self.subscriptions
        if limit is not None and subscriptions.count(subscriber) >= limit and not subscriptions.has(uri, subscriber):
            raise TooManySubscriptions(limit)

    async def _run_first_hooks(self, uri: str) -> None:
        for number, watch in enumerate(self.on_first):
            try:
                await _call_hook(watch, uri)
            except BaseException:
                if number:  # earlier hooks have started watching
                    await self._run_last_hooks(uri)
                raise

    async def _run_last_hooks(self, uri: str) -> list[Exception]:
        """Run all last-subscriber hooks; return the exceptions that they raised."""
        failed: list[Exception] = []
        for watch in self.on_last:
            try:
                await _call_hook(watch, uri)
            except Exception as error:  # noqa: BLE001 - the other hooks must run as well
                failed.append(error)
        return failed

    async def unsubscribe(self, uri: str, subscriber: S) -> bool:
        """End a subscription and run the last-subscriber hooks if needed; return False if there was none."""
        if not self.subscriptions.remove(uri, subscriber):
            return False
        await self.release_unused([uri])
        return True

    async def release_unused(self, uris: Iterable[str]) -> None:
        """Run the last-subscriber hooks for all URIs without subscribers, then raise the first exception of a hook."""
        failed: list[Exception] = []
        for uri in uris:
            async with self._lock_of(uri):
                if not self.subscriptions.subscribers(uri):
                    failed += await self._run_last_hooks(uri)
        if failed:
            raise failed[0]

    def _lock_of(self, uri: str) -> asyncio.Lock:
        return self._locks.setdefault(uri, asyncio.Lock())


async def _call_hook(watch: SubscriptionHook, uri: str) -> None:
    try:
        waiting = watch(uri)
        if isawaitable(waiting):
            await waiting
    except SystemExit as error:  # must not end the server
        raise RuntimeError(f"a subscription hook called sys.exit({error.code!r})") from error
