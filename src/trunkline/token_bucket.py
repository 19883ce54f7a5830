"""Token bucket as pure logic: a rate with a burst, and the state of one bucket as a single time.

A bucket holds up to `burst` tokens, and one comes back in every `interval`. Its state is the time at which it will be
full. Taking tokens moves that time on by the time that they need to come back; the bucket has enough tokens as long as
it would be full soon enough. So a bucket needs no timer, and a full one is the same as a new one. Invariant: between
two times `a` and `b`, a bucket grants at most `burst + (b - a) / interval` tokens.
"""

import re
from math import ulp
from typing import Any, Final

from msgspec import Struct

from trunkline.errors.base import MisuseError

__all__ = ["RATE_EXAMPLES", "Rate", "TokenBucket", "count_tokens", "parse_rate", "slack_at", "take_tokens"]

RATE_EXAMPLES: Final = 'a text such as "10/s", "100/min" or "10/s burst 50"'

_TEXT: Final = re.compile(r"\s*(\d{1,12})\s*/\s*(s|min|h)(?:\s+burst\s+(\d{1,12}))?\s*", re.ASCII)
_SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0}
_SLACK: Final = 1e-6  # tokens: rounding must not cost one
_LARGEST_SLACK: Final = 0.5  # tokens
_ROUNDED: Final = 4  # times the resolution of a time: sums and differences of a few times are rounded by that at most


class Rate(Struct, frozen=True):
    """A rate, such as 10 per second with a burst of 20."""

    text: str
    interval: float  # seconds in which one token comes back
    burst: int  # tokens of a full bucket

    def __str__(self) -> str:
        return self.text


def parse_rate(text: Any) -> Rate:
    """Return the rate that a text states: "10/s", "100/min", "1000/h" or "10/s burst 50". Without a burst, it is the
    number before the slash. Raises `MisuseError`."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None or not int(match[1]) or (match[3] is not None and not int(match[3])):
        raise MisuseError(f"a rate is {RATE_EXAMPLES}, not {text!r}")
    count = int(match[1])
    return Rate(" ".join(match[0].split()), _SECONDS[match[2]] / count, int(match[3] or count))


def take_tokens(rate: Rate, full_at: float, now: float, count: int = 1) -> tuple[float, float]:
    """Take tokens out of a bucket that is full at `full_at`. Return that time afterwards and 0; or, if there are too
    few, that time without a change and the seconds until there are enough. If the clock was set back, the bucket is
    empty at most."""
    interval, capacity = rate.interval, rate.burst * rate.interval
    missing = full_at - now
    if missing < 0:
        missing = 0.0
    elif missing > capacity:
        missing = capacity
    wait = missing + count * interval - capacity
    slack = slack_at(rate, now) * interval
    return (now + missing, wait) if wait > slack else (now + missing + count * interval, 0.0)


def count_tokens(rate: Rate, full_at: float, now: float) -> int:
    """Return the number of tokens in a bucket that is full at `full_at`."""
    missing = min(max(0.0, full_at - now) / rate.interval, rate.burst)
    return int(rate.burst - missing + slack_at(rate, now))


def slack_at(rate: Rate, now: float) -> float:
    """Return the part of a token that rounding may cost: times of day have a resolution of a quarter microsecond."""
    return min(_SLACK + _ROUNDED * ulp(now) / rate.interval, _LARGEST_SLACK)


class TokenBucket:
    """One bucket."""

    __slots__ = ("_full_at", "_interval", "_longest", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._interval = rate.interval
        self._longest = (rate.burst - 1 + _SLACK) * rate.interval  # time until it is full, with one token left
        self._full_at = float("-inf")

    def take(self, now: float) -> float:
        """Take a token and return 0; if there is none, return the seconds until there is one."""
        full_at = self._full_at
        if full_at < now:  # noqa: PLR1730 - `max` takes longer
            full_at = now
        if full_at - now <= self._longest:  # most calls
            self._full_at = full_at + self._interval
            return 0.0
        self._full_at, wait = take_tokens(self.rate, full_at, now)
        return wait

    def is_full(self, now: float) -> bool:
        """Return whether the bucket is the same as a new one."""
        return self._full_at <= now
