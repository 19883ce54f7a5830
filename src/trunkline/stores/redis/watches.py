"""Watches of a Redis store: every commit is published to the channel of its home.

A watch within a home subscribes to that channel, any other watch to a pattern. Messages arrive on a connection of their
own, because Redis disconnects a subscriber that reads too slowly. A watch is active before any later command of the
store runs, so later reads are not older than what the watch reports.

A store notifies its own watches when its commits complete, and ignores the published messages about them. After a lost
connection it subscribes again and reports that any key may have changed. A periodic ping detects a lost connection.
"""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from trunkline.stores.futures import ignore_error
from trunkline.stores.redis.client import RedisClient
from trunkline.stores.redis.connection import encode_command
from trunkline.stores.store import Changed, Watch, home
from trunkline.stores.watches import Watchers

__all__ = ["ChannelSubscriptions", "prefix_pattern"]

_SPECIAL: Final = re.compile(r"[*?\[\]\\^-]")


class ChannelSubscriptions:
    """Channels that a store is subscribed to, for its watches."""

    def __init__(
        self,
        prefix: str,
        watchers: Watchers,
        *,
        create_client: Callable[..., RedisClient],
        main_client: RedisClient,
        is_own: Callable[[str], bool],
        ping_interval: float,
    ) -> None:
        """`create_client` makes the client for subscriptions, `main_client` is for all other commands; `is_own`
        recognises this store among senders; `ping_interval` is in seconds."""
        self._prefix = prefix
        self._watchers = watchers
        self._subscriber = create_client(on_connected=self._resubscribe, on_push=self._receive)
        self._main_client = main_client
        self._is_own = is_own
        self._ping_interval = ping_interval
        self._watch_counts: dict[str, int] = {}  # watches per channel; a name that ends with * is a pattern
        self._ping_timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Connect."""
        await self._subscriber.open()

    async def close(self) -> None:
        """Drop all subscriptions, and disconnect."""
        self._watch_counts.clear()
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        await self._subscriber.close()

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Call back when keys with this prefix change."""
        channel = self._channel_of(prefix)
        watches = self._watch_counts.get(channel, 0)
        self._watch_counts[channel] = watches + 1
        if not watches and (done := self._send("SUBSCRIBE", channel)) is not None:
            self._main_client.hold_until(done)
        if self._ping_timer is None:
            self._ping_timer = asyncio.get_running_loop().call_later(self._ping_interval, self._ping)
        return self._watchers.add(prefix, callback, partial(self._watch_removed, channel))

    def _watch_removed(self, channel: str) -> None:
        """Unsubscribe from a channel after its last watch."""
        self._watch_counts[channel] -= 1
        if not self._watch_counts[channel]:
            del self._watch_counts[channel]
            self._send("UNSUBSCRIBE", channel)

    def _channel_of(self, prefix: str) -> str:
        at = home(prefix)
        return f"{self._prefix}{{{at}}}" if at != prefix else prefix_pattern(f"{self._prefix}{{{at}")

    def _send(self, what: str, channel: str) -> asyncio.Future[Any] | None:
        """Subscribe or unsubscribe. Without a connection do nothing: `_resubscribe` follows the next one."""
        if not self._subscriber.connected:
            return None
        done = self._subscriber.submit(encode_command(f"P{what}" if channel.endswith("*") else what, channel))
        done.add_done_callback(ignore_error)
        return done

    def _ping(self) -> None:
        self._ping_timer = None
        if self._watch_counts:
            self._subscriber.submit(encode_command("PING")).add_done_callback(ignore_error)
            self._ping_timer = asyncio.get_running_loop().call_later(self._ping_interval, self._ping)

    # --- messages ----------------------------------------------------------------------------------

    def _resubscribe(self) -> None:
        """Subscribe to all channels again, and report that any key may have changed meanwhile."""
        futures = [self._send("SUBSCRIBE", channel) for channel in self._watch_counts]
        if futures and futures[-1] is not None:
            futures[-1].add_done_callback(lambda _: self._watchers.notify(None))

    def _receive(self, message: list[Any]) -> None:
        """Handle a published message."""
        channel, published = message[-2].decode(), message[-1].decode()
        sender, *rests = published.split("\n")
        if not self._is_own(sender):
            at = channel[len(self._prefix) + 1 : -1]
            self._watchers.notify([at + rest for rest in rests])


def prefix_pattern(start: str) -> str:
    """Return the pattern that matches all channels with a prefix."""
    return f"{_SPECIAL.sub(_escaped, start)}*"


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"
