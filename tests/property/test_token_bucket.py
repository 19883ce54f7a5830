"""The token bucket against a model, and shared buckets of several processes against their bound."""

import asyncio
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trunkline import MemoryStore
from trunkline.errors import MisuseError
from trunkline.server.limits.rate_limits import UNDECIDED, SharedBucket
from trunkline.testing import FaultyStore, ManualClock
from trunkline.testing.faulty_store import StoreFault
from trunkline.token_bucket import Rate, TokenBucket, count_tokens, parse_rate, take_tokens

RATES = st.builds(
    lambda count, unit, burst: parse_rate(f"{count}/{unit}" + (f" burst {burst}" if burst else "")),
    st.integers(1, 50),
    st.sampled_from(["s", "min", "h"]),
    st.integers(0, 60),
)
PARTS = st.sampled_from([0, 1, 3, 8, 16, 40, 999])  # of an eighth of an interval


class BucketMachine(RuleBasedStateMachine):
    """The model counts tokens with fractions."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = parse_rate("8/s burst 5")
        self.clock = ManualClock(0.0)
        self.bucket = TokenBucket(self.rate)
        self.tokens = Fraction(5)
        self.granted: list[float] = []

    @rule(parts=PARTS)
    def wait(self, parts: int) -> None:
        self.clock.advance(parts / 64)
        self.tokens = min(Fraction(5), self.tokens + Fraction(parts, 8))

    @rule()
    def take(self) -> None:
        now = self.clock.now()
        wait = self.bucket.take(now)
        if self.tokens >= 1:
            assert wait == 0
            self.tokens -= 1
            self.granted.append(now)
        else:
            assert wait == pytest.approx(float((1 - self.tokens) / 8), abs=1e-6)

    @rule()
    def wait_as_told(self) -> None:
        while wait := self.bucket.take(self.clock.now()):
            self.clock.advance(wait)
            self.tokens = min(Fraction(5), self.tokens + Fraction(wait) * 8)
            self.tokens = Fraction(round(self.tokens * 8), 8)
        self.tokens -= 1
        self.granted.append(self.clock.now())

    @invariant()
    def no_period_exceeds_the_limit(self) -> None:
        recent = self.granted[-60:]
        for index, begin in enumerate(recent):
            assert len(recent) - index <= 5 + (recent[-1] - begin) * 8 + 1e-3

    @invariant()
    def full_bucket_is_known(self) -> None:
        assert self.bucket.is_full(self.clock.now()) == (self.tokens == 5)


TestBucket = BucketMachine.TestCase


@given(RATES, st.integers(0, 100), st.floats(0, 4e9))
@example(parse_rate("46/s"), 12, 536870912.0)
@example(parse_rate("1000/s"), 999, 1.8e9)
def test_batch_takes_what_single_tokens_would(rate: Rate, used: int, now: float) -> None:
    full_at = now + min(used, rate.burst) * rate.interval
    count = count_tokens(rate, full_at, now)
    assert count == pytest.approx(rate.burst - min(used, rate.burst), abs=1)
    if count:
        after, wait = take_tokens(rate, full_at, now, count)
        assert wait == 0
        assert count_tokens(rate, after, now) == 0


def test_clock_that_is_set_back_does_not_lock_callers_out() -> None:
    bucket = TokenBucket(parse_rate("2/s"))
    assert [bucket.take(1e9) for _ in range(3)] == [0, 0, pytest.approx(0.5)]
    assert bucket.take(0.0) == pytest.approx(0.5)
    assert bucket.take(1.0) == 0


@pytest.mark.parametrize(
    ("text", "interval", "burst"),
    [("10/s", 0.1, 10), (" 60 / min ", 1.0, 60), ("1/h", 3600.0, 1), ("10/s burst 50", 0.1, 50)],
)
def test_rates_are_parsed(text: str, interval: float, burst: int) -> None:
    rate = parse_rate(text)
    assert (rate.interval, rate.burst) == (pytest.approx(interval), burst)
    assert str(rate) == " ".join(text.split())


@pytest.mark.parametrize("text", ["10", "0/s", "-1/s", "1.5/s", "10/d", "10/s burst 0", "10/s burst", "", 10, None])
def test_invalid_rates_are_refused(text: Any) -> None:
    with pytest.raises(MisuseError, match="10/s burst 50"):
        parse_rate(text)


# --- shared ----------------------------------------------------------------------------------------


class SharedBuckets(RuleBasedStateMachine):
    """Three processes with a bucket in one store. A process may wait for the store while others go on."""

    RATE = parse_rate("40/s burst 40")  # a batch has up to 4 tokens
    BATCH = 4
    SLOW = 1  # tokens of a process that waits for the store longer than a batch lives

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        store = MemoryStore.ready(self.clock)
        self.stores = [FaultyStore(store) for _ in range(3)]
        self.buckets = [SharedBucket(self.RATE, store, "rate/t", self.clock.now) for store in self.stores]
        self.granted: list[float] = []
        self.refused = 0
        self.waits: dict[int, tuple[StoreFault, asyncio.Future[list[None]]]] = {}  # of processes for the store

    def teardown(self) -> None:
        for process in list(self.waits):
            self.answer(process)
        self.loop.close()

    async def _take(self, bucket: SharedBucket) -> None:
        wait = bucket.take()
        wait = await bucket.take_from_store() if wait == UNDECIDED else wait
        assert wait >= 0
        if not wait:
            self.granted.append(self.clock.now())
        else:
            self.refused += 1

    async def _take_all(self, calls: list[int]) -> list[None]:
        return await asyncio.gather(*(self._take(self.buckets[process]) for process in calls))

    async def _begin(self, process: int, calls: int, fault: StoreFault) -> None:
        taking = asyncio.ensure_future(self._take_all([process] * calls))
        reached = asyncio.ensure_future(fault.reached.wait())
        await asyncio.wait([taking, reached], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        self.waits[process] = fault, taking

    async def _end(self, fault: StoreFault, taking: "asyncio.Future[list[None]]") -> None:
        fault.lift()
        await taking

    @rule(calls=st.lists(st.integers(0, 2), min_size=1, max_size=30))
    def burst(self, calls: list[int]) -> None:
        self.loop.run_until_complete(self._take_all([process for process in calls if process not in self.waits]))

    @rule(process=st.integers(0, 2), calls=st.integers(1, 45))
    def burst_on_a_slow_store(self, process: int, calls: int) -> None:
        if process not in self.waits:
            fault = self.stores[process].hold("commit")
            self.loop.run_until_complete(self._begin(process, calls, fault))

    @rule(process=st.integers(0, 2))
    def answer(self, process: int) -> None:
        if process in self.waits:
            self.loop.run_until_complete(self._end(*self.waits.pop(process)))

    @rule(milliseconds=st.sampled_from([1, 10, 25, 50, 99, 100, 1000]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)

    @invariant()
    def no_period_exceeds_the_limit_and_one_batch(self) -> None:
        recent = self.granted[-400:]
        for index, begin in enumerate(recent):
            most = 40 + (recent[-1] - begin) * 40 + self.BATCH + self.SLOW * len(self.buckets)
            assert len(recent) - index <= most + 1e-3

    @invariant()
    def slow_callers_are_never_refused(self) -> None:
        if not self.granted and not self.waits:  # as many as there are tokens may wait for the store
            assert not self.refused  # the first call always passes


TestSharedBuckets = SharedBuckets.TestCase
