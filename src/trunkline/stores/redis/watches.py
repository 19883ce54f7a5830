"""Watches of a store on Redis: every commit is published, to the channel of its home.

A watch within a home subscribes to that channel, any other to all channels that begin as it does. Messages come over a
connection of their own, since Redis ends one that is subscribed and has too much to read. A watch is in force before
anything is done that the store is asked for after it: what is read then is not older than what the watch tells.

Of commits of its own a store tells itself, when they are done; so it leaves out what it hears of those. If the
connection was lost, all channels are subscribed to again, and everybody is told that anything may have changed. That it
is lost is noticed by a ping, if by nothing else.
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
    """Which channels are listened to."""

    def __init__(self, prefix: str, watchers: Watchers, *, is_own: Callable[[str], bool], ping_interval: float) -> None:
        """`ours` knows who of the senders is this store; `every`: seconds between two pings."""
        self._prefix = prefix
        self._watchers = watchers
        self._is_own = is_own
        self._ping_interval = ping_interval
        self._subscriber: RedisClient | None = None
        self._main_client: RedisClient | None = None  # which carries everything else
        self._watch_counts: dict[str, int] = {}  # how many want each; those with a * are patterns
        self._ping_timer: asyncio.TimerHandle | None = None

    def attach(self, subscriber: RedisClient, main_client: RedisClient) -> None:
        """Says which lines there are."""
        self._subscriber, self._main_client = subscriber, main_client

    def close(self) -> None:
        """Listens to nothing any more."""
        self._watch_counts.clear()
        self._watchers.close()
        if self._ping_timer is not None:
            self._ping_timer.cancel()

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Calls back when keys that start with a text change."""
        channel = self._channel_of(prefix)
        wanted = self._watch_counts.get(channel, 0)
        self._watch_counts[channel] = wanted + 1
        if not wanted and (done := self._send("SUBSCRIBE", channel)) is not None and self._main_client is not None:
            self._main_client.hold_until(done)
        if self._ping_timer is None:
            self._ping_timer = asyncio.get_running_loop().call_later(self._ping_interval, self._ping)
        return _ChannelWatch(self._watchers.add(prefix, callback), self, channel)

    def unwatch(self, channel: str) -> None:
        """One who listened does not any more."""
        left = self._watch_counts.get(channel, 1) - 1
        if left:
            self._watch_counts[channel] = left
        elif self._watch_counts.pop(channel, None):
            self._send("UNSUBSCRIBE", channel)

    def _channel_of(self, prefix: str) -> str:
        at = home(prefix)
        return f"{self._prefix}{{{at}}}" if at != prefix else prefix_pattern(f"{self._prefix}{{{at}")

    def _send(self, what: str, channel: str) -> asyncio.Future[Any] | None:
        """Asks for a channel, or that there is none; does so later, when there is a connection, if there is none."""
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

    # --- what is heard ---------------------------------------------------------------------------

    def resubscribe(self) -> None:
        """Subscribes to everything again. What was published meanwhile, nobody knows."""
        asked = [self._send("SUBSCRIBE", channel) for channel in self._watch_counts]
        if asked and asked[-1] is not None:
            asked[-1].add_done_callback(lambda _: self._watchers.notify(None))

    def receive(self, message: list[Any]) -> None:
        """A message has come."""
        channel, published = message[-2].decode(), message[-1].decode()
        sender, *rests = published.split("\n")
        if not self._is_own(sender):
            at = channel[len(self._prefix) + 1 : -1]
            self._watchers.notify([at + rest for rest in rests])


class _ChannelWatch:
    """A watch, and the channel it needs."""

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
    """What stands for all channels that begin with a text."""
    return f"{_SPECIAL.sub(_escaped, start)}*"


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def _ignore_error(done: asyncio.Future[Any]) -> None:
    """Whether it was done is seen when the connection is there again."""
    if not done.cancelled():
        done.exception()
