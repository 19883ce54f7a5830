"""Watches resources for as long as somebody is subscribed: the first one starts it, the last one ends it.

Starting and ending may take time. For one resource they never overlap, so a second subscriber waits until watching has
begun, and one who comes while it ends begins it anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Generic
from weakref import WeakValueDictionary

from trunkline.server.subscriptions import S, Subscriptions

__all__ = ["Watch", "Watchers"]

Watch = Callable[[str], Awaitable[None] | None]
"""Starts or ends watching the resource with that URI."""


class Watchers(Generic[S]):
    """Subscriptions, and whoever has to know when a resource gets its first and loses its last subscriber."""

    def __init__(self) -> None:
        self.subscriptions: Subscriptions[S] = Subscriptions()
        self.on_first: list[Watch] = []
        self.on_last: list[Watch] = []
        self._turns: WeakValueDictionary[str, asyncio.Lock] = (
            WeakValueDictionary()
        )  # gone when nobody holds or awaits one

    async def started(self, uri: str, subscriber: S) -> None:
        """Subscribes, once watching has begun. If a watcher raises, there is no subscription."""
        async with self._turn(uri):
            if not self.subscriptions.subscribers(uri):
                for watch in self.on_first:
                    await _called(watch, uri)
            self.subscriptions.add(uri, subscriber)

    async def stopped(self, uri: str, subscriber: S) -> None:
        """Ends a subscription; without one there is nothing to end."""
        if self.subscriptions.remove(uri, subscriber):
            await self.ended([uri])

    async def ended(self, uris: Iterable[str]) -> None:
        """Ends watching what nobody is subscribed to any more."""
        for uri in uris:
            async with self._turn(uri):
                if not self.subscriptions.subscribers(uri):
                    for watch in self.on_last:
                        await _called(watch, uri)

    def _turn(self, uri: str) -> asyncio.Lock:
        return self._turns.setdefault(uri, asyncio.Lock())


async def _called(watch: Watch, uri: str) -> None:
    try:
        waiting = watch(uri)
        if isawaitable(waiting):
            await waiting
    except SystemExit as error:  # no reason to end everybody's server
        raise RuntimeError(f"a watcher called sys.exit({error.code!r})") from error
