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

from trunkline.stores.redis.client import Line
from trunkline.stores.redis.connection import command
from trunkline.stores.store import Changed, Watch, home
from trunkline.stores.watches import Watchers

__all__ = ["Subscriptions", "pattern"]

_SPECIAL: Final = re.compile(r"[*?\[\]\\^-]")


class Subscriptions:
    """Which channels are listened to."""

    def __init__(self, prefix: str, watchers: Watchers, *, ours: Callable[[str], bool], every: float) -> None:
        """`ours` knows who of the senders is this store; `every`: seconds between two pings."""
        self._prefix = prefix
        self._watchers = watchers
        self._ours = ours
        self._every = every
        self._line: Line | None = None
        self._others: Line | None = None  # which carries everything else
        self._channels: dict[str, int] = {}  # how many want each; those with a * are patterns
        self._beat: asyncio.TimerHandle | None = None

    def use(self, line: Line, others: Line) -> None:
        """Says which lines there are."""
        self._line, self._others = line, others

    def close(self) -> None:
        """Listens to nothing any more."""
        self._channels.clear()
        self._watchers.close()
        if self._beat is not None:
            self._beat.cancel()

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Calls back when keys that start with a text change."""
        channel = self._channel_of(prefix)
        wanted = self._channels.get(channel, 0)
        self._channels[channel] = wanted + 1
        if not wanted and (done := self._say("SUBSCRIBE", channel)) is not None and self._others is not None:
            self._others.hold_until(done)
        if self._beat is None:
            self._beat = asyncio.get_running_loop().call_later(self._every, self._ping)
        return _Watch(self._watchers.add(prefix, callback), self, channel)

    def unwatch(self, channel: str) -> None:
        """One who listened does not any more."""
        left = self._channels.get(channel, 1) - 1
        if left:
            self._channels[channel] = left
        elif self._channels.pop(channel, None):
            self._say("UNSUBSCRIBE", channel)

    def _channel_of(self, prefix: str) -> str:
        at = home(prefix)
        return f"{self._prefix}{{{at}}}" if at != prefix else pattern(f"{self._prefix}{{{at}")

    def _say(self, what: str, channel: str) -> asyncio.Future[Any] | None:
        """Asks for a channel, or that there is none; does so later, when there is a connection, if there is none."""
        if self._line is None or not self._line.connected:
            return None
        done = self._line.submit(command(f"P{what}" if channel.endswith("*") else what, channel))
        done.add_done_callback(_seen)
        return done

    def _ping(self) -> None:
        self._beat = None
        if self._line is not None and self._channels:
            self._line.submit(command("PING")).add_done_callback(_seen)
            self._beat = asyncio.get_running_loop().call_later(self._every, self._ping)

    # --- what is heard ---------------------------------------------------------------------------

    def connected(self) -> None:
        """Subscribes to everything again. What was published meanwhile, nobody knows."""
        asked = [self._say("SUBSCRIBE", channel) for channel in self._channels]
        if asked and asked[-1] is not None:
            asked[-1].add_done_callback(lambda _: self._watchers.changed(None))

    def heard(self, message: list[Any]) -> None:
        """A message has come."""
        channel, published = message[-2].decode(), message[-1].decode()
        sender, *rests = published.split("\n")
        if not self._ours(sender):
            at = channel[len(self._prefix) + 1 : -1]
            self._watchers.changed([at + rest for rest in rests])


class _Watch:
    """A watch, and the channel it needs."""

    __slots__ = ("_channel", "_subscriptions", "_watch")

    def __init__(self, watch: Watch, subscriptions: Subscriptions, channel: str) -> None:
        self._watch: Watch | None = watch
        self._subscriptions = subscriptions
        self._channel = channel

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
            self._subscriptions.unwatch(self._channel)


def pattern(start: str) -> str:
    """What stands for all channels that begin with a text."""
    return f"{_SPECIAL.sub(_escaped, start)}*"


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def _seen(done: asyncio.Future[Any]) -> None:
    """Whether it was done is seen when the connection is there again."""
    if not done.cancelled():
        done.exception()
