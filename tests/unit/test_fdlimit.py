"""The limit on descriptors of a process, and the reserve below it."""

import os
import resource
import sys
from collections.abc import Iterator

import pytest
from tests.processes import no_descriptor_left

from trunkline.fdlimit import DescriptorReserve, LogThrottle


@pytest.fixture
def limit() -> Iterator[int]:
    """A soft limit of this process that is known."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
    yield 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def lowest_free() -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_the_highest_descriptors_are_the_reserve(limit: int) -> None:
    reserve = DescriptorReserve(100)
    assert reserve.threshold() == limit - 100
    assert not reserve.contains(limit - 101)
    assert reserve.contains(limit - 100)
    assert reserve.has_room()


def test_the_reserve_is_a_quarter_of_the_limit_at_most(limit: int) -> None:
    assert DescriptorReserve(600).threshold() == limit * 3 // 4


def test_the_reserve_is_touched_when_no_descriptor_below_it_is_free() -> None:
    with no_descriptor_left(above=1):
        assert not DescriptorReserve(1).has_room()
    with no_descriptor_left(above=2):
        assert DescriptorReserve(1).has_room()
    with no_descriptor_left():
        assert not DescriptorReserve(1).has_room()


def test_connections_are_limited_by_what_is_free_below_the_reserve(limit: int) -> None:
    assert DescriptorReserve(100).connection_limit(20) == 20
    assert DescriptorReserve(100).connection_limit(5000) == limit - 100 - lowest_free()
    with no_descriptor_left():
        assert DescriptorReserve(1).connection_limit(20) == 1


def test_the_limit_is_raised_as_far_as_connections_need_it_and_never_lowered(limit: int) -> None:
    DescriptorReserve(64).raise_limit(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit
    DescriptorReserve(64).raise_limit(1000)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1064
    assert DescriptorReserve(64).connection_limit(1000) == 1000


def test_the_limit_is_not_raised_above_the_hard_one(limit: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    DescriptorReserve(64).raise_limit(hard * 2)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard


def test_without_a_limit_there_is_no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    reserve = DescriptorReserve(64)
    assert reserve.threshold() is None
    assert not reserve.contains(10**6)
    assert reserve.has_room()
    assert reserve.connection_limit(7) == 7
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve.raise_limit(10**9)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_a_shortage_is_reported_once_a_minute() -> None:
    notice = LogThrottle()
    assert [notice.allow(now) for now in (0.0, 1.0, 59.0, 60.0, 61.0)] == [True, False, False, True, False]
