"""Keep-alive comments of an event stream: when they are due."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.testing import ManualClock
from trunkline.transports.http.respond import SseKeepalive
from trunkline.transports.http.session.event_store import MemoryEventStore
from trunkline.transports.http.session.streams import STANDALONE, Stream

INTERVAL = 16


def written(events: set[int], seconds: int) -> list[tuple[int, str]]:
    """Return what a reader writes when, in order, if events come at the given times."""
    clock = ManualClock(0.0)
    stream = Stream(STANDALONE, MemoryEventStore(1000, 1 << 20))
    stream.attach()
    keepalive = SseKeepalive(INTERVAL, stream, clock)
    log = [(0, "start")]
    for now in range(1, seconds):
        clock.advance(1)
        if keepalive.due:
            keepalive.reset()
            log.append((now, "comment"))
        if now in events:
            stream.write(b"{}")
            stream.take()
            log.append((now, "event"))
    keepalive.stop()
    assert clock.waiting == 0
    return log


@given(st.sets(st.integers(1, 199)))
def test_stream_is_never_silent_for_longer_than_the_interval(events: set[int]) -> None:
    times = [time for time, _ in written(events, 200)]
    assert max(later - earlier for earlier, later in zip(times, [*times[1:], 199], strict=True)) <= INTERVAL


@given(st.sets(st.integers(1, 199)))
def test_comment_is_sent_only_after_half_an_interval_without_events(events: set[int]) -> None:
    log = written(events, 200)
    for (earlier, _), (later, what) in pairwise(log):
        assert what != "comment" or later - earlier >= INTERVAL / 2


def test_idle_stream_gets_one_comment_in_an_interval() -> None:
    assert [time for time, what in written(set(), 100) if what == "comment"] == [16, 32, 48, 64, 80, 96]


@pytest.mark.parametrize("late", [9, 40])
def test_comment_that_could_not_be_written_stays_due(late: int) -> None:
    clock = ManualClock(0.0)
    keepalive = SseKeepalive(INTERVAL, Stream(STANDALONE, MemoryEventStore(1000, 1 << 20)), clock)
    clock.advance(INTERVAL + late)
    assert keepalive.due
