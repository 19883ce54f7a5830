"""Who is told what happened."""

from trunkline.facts import Closed, Fact, HandlerFailed, Observers
from trunkline.testing import RecordingObserver

CLOSED = Closed(connection=1, at=0.0, reason="x")
FAILED = HandlerFailed(connection=1, at=0.0, request=1, method="m", reference="r", error=ValueError())


class FailuresOnly(RecordingObserver):
    failures_only = True


class Raising:
    def on(self, fact: Fact) -> None:
        raise RuntimeError("an observer's own fault")


def test_every_observer_is_told_in_order() -> None:
    one, other = RecordingObserver(), RecordingObserver()
    observers = Observers([one, other])
    observers.on(CLOSED)
    observers.on(FAILED)
    assert one.facts == other.facts == [CLOSED, FAILED]


def test_an_observer_that_raises_harms_nobody_and_is_counted() -> None:
    after = RecordingObserver()
    observers = Observers([Raising(), after])
    observers.on(CLOSED)
    assert after.facts == [CLOSED]
    assert observers.failures == 1


def test_one_who_wants_failures_only_hears_of_nothing_else() -> None:
    observer = FailuresOnly()
    observers = Observers([observer])
    observers.on(CLOSED)
    observers.on(FAILED)
    assert observer.facts == [FAILED]


def test_observers_are_true_when_somebody_listens_to_everything() -> None:
    assert not Observers()
    assert not Observers([FailuresOnly()])
    assert Observers([FailuresOnly(), RecordingObserver()])
