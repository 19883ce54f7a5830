"""The descriptor limit of a process, and the reserve below it."""

import os
import resource
import sys
from collections.abc import Iterator

import pytest
from tests.processes import no_descriptor_left

from trunkline.fdlimit import DescriptorReserve, LogThrottle


@pytest.fixture
def limit() -> Iterator[int]:
    """A known soft limit of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
    yield 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def lowest_free() -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_reserve_contains_the_highest_descriptors(limit: int) -> None:
    reserve = DescriptorReserve(100)
    assert reserve.threshold() == limit - 100
    assert not reserve.contains(limit - 101)
    assert reserve.contains(limit - 100)
    assert reserve.has_room()


def test_reserve_is_at_most_a_quarter_of_the_limit(limit: int) -> None:
    assert DescriptorReserve(600).threshold() == limit * 3 // 4


def test_reserve_has_no_room_when_lower_descriptors_are_used() -> None:
    with no_descriptor_left(above=1):
        assert not DescriptorReserve(1).has_room()
    with no_descriptor_left(above=2):
        assert DescriptorReserve(1).has_room()
    with no_descriptor_left():
        assert not DescriptorReserve(1).has_room()


def test_connection_limit_is_bounded_by_free_descriptors(limit: int) -> None:
    assert DescriptorReserve(100).connection_limit(20) == 20
    assert DescriptorReserve(100).connection_limit(5000) == limit - 100 - lowest_free()
    with no_descriptor_left():
        assert DescriptorReserve(1).connection_limit(20) == 1


def test_limit_is_raised_as_needed_and_never_lowered(limit: int) -> None:
    DescriptorReserve(64).raise_limit(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit
    DescriptorReserve(64).raise_limit(1000)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1064
    assert DescriptorReserve(64).connection_limit(1000) == 1000


def test_limit_is_not_raised_above_the_hard_limit(limit: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    DescriptorReserve(64).raise_limit(hard * 2)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard


def test_unlimited_descriptors_need_no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    reserve = DescriptorReserve(64)
    assert reserve.threshold() is None
    assert not reserve.contains(10**6)
    assert reserve.has_room()
    assert reserve.connection_limit(7) == 7
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve.raise_limit(10**9)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_log_throttle_allows_one_message_per_minute() -> None:
    notice = LogThrottle()
    assert [notice.allow(now) for now in (0.0, 1.0, 59.0, 60.0, 61.0)] == [True, False, False, True, False]
