"""Requests in flight, and their deadlines."""

import pytest

from trunkline.protocol.inflight import DeadlineQueue, IncomingRequest, OutgoingRequest, TrackedRequest
from trunkline.protocol.methods import Method, find_method


def method(name: str = "tools/call") -> Method:
    row = find_method(name)
    assert row is not None
    return row


def request(
    ident: int = 1, *, started: float = 100.0, allowed: float | None = None, longest: float | None = None
) -> TrackedRequest:
    tracked = TrackedRequest(ident, method(), started)
    tracked.set_timeout(started, allowed, longest)
    return tracked


# --- deadlines -----------------------------------------------------------------------------------


@pytest.mark.row("K14")
@pytest.mark.parametrize(
    ("allowed", "longest", "deadline"), [(None, None, None), (5, None, 105), (None, 9, 109), (5, 9, 105), (9, 5, 105)]
)
def test_deadline_is_shorter_of_timeout_and_maximum(
    allowed: float | None, longest: float | None, deadline: float | None
) -> None:
    assert request(allowed=allowed, longest=longest).deadline == deadline


@pytest.mark.row("X07")
def test_renewal_is_bounded_by_max_duration() -> None:
    tracked = request(allowed=5, longest=12)
    deadlines = []
    for now in (104.0, 106.0, 108.0):
        tracked.renew_deadline(now)
        deadlines.append(tracked.deadline)
    assert deadlines == [109, 111, 112]


@pytest.mark.row("X07")
def test_suspension_stops_timeout() -> None:
    tracked = request(allowed=5, longest=60)
    tracked.suspend_deadline(101)
    tracked.suspend_deadline(102)
    tracked.resume_deadline(103)
    assert tracked.deadline == 160
    tracked.resume_deadline(110)
    assert tracked.deadline == 115


@pytest.mark.row("N12")
def test_reported_progress_must_grow() -> None:
    call = IncomingRequest(1, method(), 0.0)
    assert [call.record_progress(value, 0.0) for value in (1, 3, 2, 3, 3.5)] == [True, True, False, False, True]


@pytest.mark.row("N13")
def test_no_progress_after_call_ended() -> None:
    call = IncomingRequest(1, method(), 0.0, done=True)
    assert not call.record_progress(1, 0.0)


@pytest.mark.row("N12")
def test_received_progress_must_grow_and_renews_deadline() -> None:
    awaited = OutgoingRequest(1, method(), 0.0)
    awaited.set_timeout(0.0, 5, None)
    assert [awaited.record_progress(value, at) for value, at in ((1, 1.0), (3, 2.0), (2, 3.0), (3, 4.0))] == [
        True,
        True,
        False,
        False,
    ]
    assert awaited.deadline == 7.0


# --- deadline table ------------------------------------------------------------------------------


@pytest.mark.row("K14")
def test_requests_expire_in_deadline_order() -> None:
    timetable = DeadlineQueue()
    late, soon, never = request(1, allowed=9), request(2, allowed=5), request(3)
    for tracked in (late, soon, never):
        timetable.schedule(tracked)
    assert timetable.next_deadline() == 105
    assert timetable.pop_expired(104.9) == []
    assert timetable.pop_expired(105) == [soon]
    assert timetable.next_deadline() == 109
    assert timetable.pop_expired(200) == [late]
    assert timetable.next_deadline() is None


@pytest.mark.row("F08", "K17")
def test_finished_request_never_expires() -> None:
    timetable = DeadlineQueue()
    done, other = request(1, allowed=5), request(2, allowed=5)
    timetable.schedule(done)
    timetable.schedule(other)
    done.done = True
    assert timetable.pop_expired(3600) == [other]


def test_finished_request_has_no_next_deadline() -> None:
    timetable = DeadlineQueue()
    done = request(allowed=5)
    timetable.schedule(done)
    done.done = True
    assert timetable.next_deadline() is None


def test_extended_deadline_is_rescheduled() -> None:
    timetable = DeadlineQueue()
    tracked = request(allowed=5)
    timetable.schedule(tracked)
    tracked.renew_deadline(104)
    assert timetable.pop_expired(105) == []
    assert timetable.next_deadline() == 109
    assert timetable.pop_expired(109) == [tracked]


def test_shortened_deadline_expires_once() -> None:
    timetable = DeadlineQueue()
    tracked = request(allowed=50)
    timetable.schedule(tracked)
    tracked.set_timeout(100, 5, None)
    timetable.schedule(tracked)
    assert timetable.next_deadline() == 105
    assert timetable.pop_expired(105) == [tracked]
    assert timetable.pop_expired(200) == []


def test_removed_deadline_is_not_scheduled() -> None:
    timetable = DeadlineQueue()
    tracked = request(allowed=5)
    timetable.schedule(tracked)
    tracked.suspend_deadline(101)
    assert timetable.pop_expired(105) == []
    assert timetable.next_deadline() is None
    tracked.resume_deadline(110)
    timetable.schedule(tracked)
    assert timetable.pop_expired(115) == [tracked]


def test_request_scheduled_twice_expires_once() -> None:
    timetable = DeadlineQueue()
    tracked = request(allowed=5)
    for now in (101, 102, 103):
        timetable.schedule(tracked)
        tracked.suspend_deadline(now)
        tracked.resume_deadline(now)
        timetable.schedule(tracked)
    assert timetable.pop_expired(200) == [tracked]


def test_equal_deadlines_expire_in_order() -> None:
    timetable = DeadlineQueue()
    requests = [request(number, allowed=5) for number in range(20)]
    for tracked in requests:
        timetable.schedule(tracked)
    assert timetable.pop_expired(105) == requests


def test_finished_requests_are_swept() -> None:
    timetable = DeadlineQueue()
    waiting = [request(number, allowed=60) for number in range(10)]
    for tracked in waiting:
        timetable.schedule(tracked)
    for number in range(10_000):
        brief = request(number, allowed=60)
        timetable.schedule(brief)
        brief.done = True
    assert len(timetable) <= 64
    assert timetable.pop_expired(160) == waiting
