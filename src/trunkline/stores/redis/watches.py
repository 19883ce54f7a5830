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
from typing import Any, Final

from trunkline.stores.redis.client import RedisClient
from trunkline.stores.redis.connection import encode_command
from trunkline.stores.store import Changed, Watch, home
from trunkline.stores.watches import Watchers

__all__ = ["ChannelSubscriptions", "prefix_pattern"]

_SPECIAL: Final = re.compile(r"[*?\[\]\\^-]")


class ChannelSubscriptions:
    """Channels that a store is subscribed to, for its watches."""

    def __init__(self, prefix: str, watchers: Watchers, *, is_own: Callable[[str], bool], ping_interval: float) -> None:
        """`is_own` recognises this store among senders; `ping_interval` is in seconds."""
        self._prefix = prefix
        self._watchers = watchers
        self._is_own = is_own
        self._ping_interval = ping_interval
        self._subscriber: RedisClient | None = None
        self._main_client: RedisClient | None = None  # for all other commands
        self._watch_counts: dict[str, int] = {}  # watches per channel; a name that ends with * is a pattern
        self._ping_timer: asyncio.TimerHandle | None = None

    def attach(self, subscriber: RedisClient, main_client: RedisClient) -> None:
        """Set the clients for subscriptions and for all other commands."""
        self._subscriber, self._main_client = subscriber, main_client

    def close(self) -> None:
        """Drop all subscriptions."""
        self._watch_counts.clear()
        self._watchers.close()
        if self._ping_timer is not None:
            self._ping_timer.cancel()

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Call back when keys with this prefix change."""
        channel = self._channel_of(prefix)
        watches = self._watch_counts.get(channel, 0)
        self._watch_counts[channel] = watches + 1
        if not watches and (done := self._send("SUBSCRIBE", channel)) is not None and self._main_client is not None:
            self._main_client.hold_until(done)
        if self._ping_timer is None:
            self._ping_timer = asyncio.get_running_loop().call_later(self._ping_interval, self._ping)
        return _ChannelWatch(self._watchers.add(prefix, callback), self, channel)

    def unwatch(self, channel: str) -> None:
        """Remove a watch of a channel, and unsubscribe after the last one."""
        left = self._watch_counts.get(channel, 1) - 1
        if left:
            self._watch_counts[channel] = left
        elif self._watch_counts.pop(channel, None):
            self._send("UNSUBSCRIBE", channel)

    def _channel_of(self, prefix: str) -> str:
        at = home(prefix)
        return f"{self._prefix}{{{at}}}" if at != prefix else prefix_pattern(f"{self._prefix}{{{at}")

    def _send(self, what: str, channel: str) -> asyncio.Future[Any] | None:
        """Subscribe or unsubscribe. Without a connection do nothing: `resubscribe` follows the next one."""
        if self._subscriber is None or not self._subscriber.connected:
            return None
        done = self._subscriber.submit(encode_command(f"P{what}" if channel.endswith("*") else what, channel))
        done.add_done_callback(_ignore_error)
        return done

    def _ping(self) -> None:
        self._ping_timer = None
        if self._subscriber is not None and self._watch_counts:
            self._subscriber.submit(encode_command("PING")).add_done_callback(_ignore_error)
            self._ping_timer = asyncio.get_running_loop().call_later(self._ping_interval, self._ping)

    # --- messages ----------------------------------------------------------------------------------

    def resubscribe(self) -> None:
        """Subscribe to all channels again, and report that any key may have changed meanwhile."""
        futures = [self._send("SUBSCRIBE", channel) for channel in self._watch_counts]
        if futures and futures[-1] is not None:
            futures[-1].add_done_callback(lambda _: self._watchers.notify(None))

    def receive(self, message: list[Any]) -> None:
        """Handle a published message."""
        channel, published = message[-2].decode(), message[-1].decode()
        sender, *rests = published.split("\n")
        if not self._is_own(sender):
            at = channel[len(self._prefix) + 1 : -1]
            self._watchers.notify([at + rest for rest in rests])


class _ChannelWatch:
    """A watch and its channel."""

    __slots__ = ("_channel", "_subscriptions", "_watch")

    def __init__(self, watch: Watch, subscriptions: ChannelSubscriptions, channel: str) -> None:
        self._watch: Watch | None = watch
        self._subscriptions = subscriptions
        self._channel = channel

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
            self._subscriptions.unwatch(self._channel)


def prefix_pattern(start: str) -> str:
    """Return the pattern that matches all channels with a prefix."""
    return f"{_SPECIAL.sub(_escaped, start)}*"


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def _ignore_error(done: asyncio.Future[Any]) -> None:
    """Mark the error as retrieved; the subscription is repeated with the next connection."""
    if not done.cancelled():
        done.exception()
