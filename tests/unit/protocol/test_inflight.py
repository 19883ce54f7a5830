"""Requests under way, and when their time is up."""

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
def test_a_request_has_the_shorter_of_its_times(
    allowed: float | None, longest: float | None, deadline: float | None
) -> None:
    assert request(allowed=allowed, longest=longest).deadline == deadline


@pytest.mark.row("X07")
def test_a_sign_of_life_renews_the_time_but_not_the_longest() -> None:
    tracked = request(allowed=5, longest=12)
    deadlines = []
    for now in (104.0, 106.0, 108.0):
        tracked.renew_deadline(now)
        deadlines.append(tracked.deadline)
    assert deadlines == [109, 111, 112]


@pytest.mark.row("X07")
def test_time_stands_still_while_it_is_held() -> None:
    tracked = request(allowed=5, longest=60)
    tracked.suspend_deadline(101)
    tracked.suspend_deadline(102)
    tracked.resume_deadline(103)
    assert tracked.deadline == 160
    tracked.resume_deadline(110)
    assert tracked.deadline == 115


@pytest.mark.row("N12")
def test_the_progress_that_we_report_must_grow() -> None:
    call = IncomingRequest(1, method(), 0.0)
    assert [call.record_progress(value, 0.0) for value in (1, 3, 2, 3, 3.5)] == [True, True, False, False, True]


@pytest.mark.row("N13")
def test_no_progress_is_reported_once_a_call_is_done() -> None:
    call = IncomingRequest(1, method(), 0.0, done=True)
    assert not call.record_progress(1, 0.0)


@pytest.mark.row("N12")
def test_the_progress_that_we_hear_must_grow_and_renews_the_time() -> None:
    awaited = OutgoingRequest(1, method(), 0.0)
    awaited.set_timeout(0.0, 5, None)
    assert [awaited.record_progress(value, at) for value, at in ((1, 1.0), (3, 2.0), (2, 3.0), (3, 4.0))] == [
        True,
        True,
        False,
        False,
    ]
    assert awaited.deadline == 7.0


# --- the timetable -------------------------------------------------------------------------------


@pytest.mark.row("K14")
def test_requests_fall_due_in_the_order_of_their_deadlines() -> None:
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
def test_a_request_that_is_done_never_falls_due() -> None:
    timetable = DeadlineQueue()
    done, other = request(1, allowed=5), request(2, allowed=5)
    timetable.schedule(done)
    timetable.schedule(other)
    done.done = True
    assert timetable.pop_expired(3600) == [other]


def test_a_request_that_is_done_is_not_waited_for() -> None:
    timetable = DeadlineQueue()
    done = request(allowed=5)
    timetable.schedule(done)
    done.done = True
    assert timetable.next_deadline() is None


def test_a_deadline_that_moved_back_is_looked_at_again_at_its_new_time() -> None:
    timetable = DeadlineQueue()
    tracked = request(allowed=5)
    timetable.schedule(tracked)
    tracked.renew_deadline(104)
    assert timetable.pop_expired(105) == []
    assert timetable.next_deadline() == 109
    assert timetable.pop_expired(109) == [tracked]


def test_a_deadline_that_moved_forward_is_met_once() -> None:
    timetable = DeadlineQueue()
    tracked = request(allowed=50)
    timetable.schedule(tracked)
    tracked.set_timeout(100, 5, None)
    timetable.schedule(tracked)
    assert timetable.next_deadline() == 105
    assert timetable.pop_expired(105) == [tracked]
    assert timetable.pop_expired(200) == []


def test_a_deadline_that_was_lifted_is_not_waited_for() -> None:
    timetable = DeadlineQueue()
    tracked = request(allowed=5)
    timetable.schedule(tracked)
    tracked.suspend_deadline(101)
    assert timetable.pop_expired(105) == []
    assert timetable.next_deadline() is None
    tracked.resume_deadline(110)
    timetable.schedule(tracked)
    assert timetable.pop_expired(115) == [tracked]


def test_a_request_watched_twice_falls_due_once() -> None:
    timetable = DeadlineQueue()
    tracked = request(allowed=5)
    for now in (101, 102, 103):
        timetable.schedule(tracked)
        tracked.suspend_deadline(now)
        tracked.resume_deadline(now)
        timetable.schedule(tracked)
    assert timetable.pop_expired(200) == [tracked]


def test_requests_with_the_same_deadline_fall_due_in_the_order_they_came() -> None:
    timetable = DeadlineQueue()
    requests = [request(number, allowed=5) for number in range(20)]
    for tracked in requests:
        timetable.schedule(tracked)
    assert timetable.pop_expired(105) == requests


def test_what_is_done_is_not_kept_until_its_time_is_up() -> None:
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
