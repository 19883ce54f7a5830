"""Watches resources for as long as somebody is subscribed: the first one starts it, the last one ends it.

Starting and ending may take time. For one resource they never overlap, so a second subscriber waits until watching has
begun, and one who comes while it ends begins it anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Generic
from weakref import WeakValueDictionary

from trunkline.server.notifications.subscriptions import S, Subscriptions, TooManySubscriptions

__all__ = ["SubscriptionHook", "SubscriptionHooks"]

SubscriptionHook = Callable[[str], Awaitable[None] | None]
"""Starts or ends watching the resource with that URI."""


class SubscriptionHooks(Generic[S]):
    """Subscriptions, and whoever has to know when a resource gets its first and loses its last subscriber."""

    def __init__(self) -> None:
        self.subscriptions: Subscriptions[S] = Subscriptions()
        self.on_first: list[SubscriptionHook] = []
        self.on_last: list[SubscriptionHook] = []
        self._locks: WeakValueDictionary[str, asyncio.Lock] = (
            WeakValueDictionary()
        )  # gone when nobody holds or awaits one

    async def subscribe(self, uri: str, subscriber: S, limit: int | None = None) -> bool:
        """Subscribe, once watching has begun; return False if there was a subscription. If a watcher raises, there is
        none; nor if the subscriber has `most` of them already, which raises `TooManySubscriptions`."""
        async with self._lock_of(uri):
            self._check_limit(uri, subscriber, limit)
            begun = not self.subscriptions.subscribers(uri)
            if begun:
                await self._run_first_hooks(uri)
            try:
                self._check_limit(uri, subscriber, limit)  # others of its subscriptions may have begun meanwhile
            except TooManySubscriptions:
                if begun:
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
                if number:  # others have begun already, and nobody will be there to end it
                    await self._run_last_hooks(uri)
                raise

    async def _run_last_hooks(self, uri: str) -> list[Exception]:
        """Tells everybody; gives what they raised."""
        failed: list[Exception] = []
        for watch in self.on_last:
            try:
                await _call_hook(watch, uri)
            except Exception as error:  # noqa: BLE001 - the others have to end all the same
                failed.append(error)
        return failed

    async def unsubscribe(self, uri: str, subscriber: S) -> bool:
        """End a subscription; return False if there was none."""
        if not self.subscriptions.remove(uri, subscriber):
            return False
        await self.release_unused([uri])
        return True

    async def release_unused(self, uris: Iterable[str]) -> None:
        """Ends watching what nobody is subscribed to any more: all of it, though some watcher may raise."""
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
    except SystemExit as error:  # no reason to end everybody's server
        raise RuntimeError(f"a watcher called sys.exit({error.code!r})") from error
