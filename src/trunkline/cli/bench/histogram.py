"""Histogram of latencies with a bounded relative error.

Each power of two is divided into `_PARTS` buckets of equal width, so a bucket is at most 1/128 of its value wide and a
few thousand buckets cover everything from nanoseconds to hours. Percentiles are upper bounds of buckets: they may
overstate a latency by that share, and never understate it.
"""

import math
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

__all__ = ["Bucket", "LatencyHistogram"]

_PARTS: Final = 128  # buckets of each power of two
_LEAST: Final = 1e-9  # seconds; the resolution of the clock


class Bucket(Struct, frozen=True):
    """A range of latencies in seconds, and how many fell into it."""

    low: float
    high: float
    count: int


class LatencyHistogram:
    """Counts latencies, given in seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.max = 0.0
        self._counts: dict[int, int] = {}

    def record(self, seconds: float) -> None:
        """Count one latency."""
        seconds = max(seconds, _LEAST)
        mantissa, exponent = math.frexp(seconds)
        index = exponent * _PARTS + int((mantissa - 0.5) * 2 * _PARTS)
        self._counts[index] = self._counts.get(index, 0) + 1
        self.count += 1
        self.total += seconds
        self.max = max(self.max, seconds)

    @property
    def mean(self) -> float:
        """The mean latency; 0 if there is none."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return the latency that this share of all latencies does not exceed; 0 if there is none."""
        rank = max(math.ceil(self.count * percent / 100), 1)
        for bucket in self.buckets():
            rank -= bucket.count
            if rank <= 0:
                return min(bucket.high, self.max)
        return self.max

    def buckets(self) -> Iterator[Bucket]:
        """Yield the buckets that are not empty, in order."""
        for index in sorted(self._counts):
            yield Bucket(_bound(index), _bound(index + 1), self._counts[index])


def _bound(index: int) -> float:
    exponent, part = divmod(index, _PARTS)
    return math.ldexp(0.5 + part / (2 * _PARTS), exponent)
