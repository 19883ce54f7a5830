"""When the policy restarts an ended process."""

import pytest

from trunkline import Settings
from trunkline.supervision import restart_policy
from trunkline.supervision.restart_policy import Decision, GiveUp, History, RestartPolicy, RetryAfter


def waits(times: int, how: RestartPolicy) -> list[Decision]:
    """The decisions after so many failed attempts in a row."""
    history, decisions = History(), []
    for _ in range(times):
        history, decision = restart_policy.after_failure(history, how)
        decisions.append(decision)
    return decisions


@pytest.mark.row("K12")
def test_delays_double_from_one_to_thirty_seconds() -> None:
    assert waits(8, RestartPolicy()) == [RetryAfter(seconds) for seconds in (1, 2, 4, 8, 16, 30, 30, 30)]


@pytest.mark.row("K12")
def test_first_attempt_after_a_loss_is_immediate() -> None:
    assert restart_policy.after_loss(History(), RestartPolicy(), 100.0)[1] == RetryAfter(0.0)


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 1.0), (0.5, 1.05), (1.0, 1.1)])
def test_jitter_extends_the_delay(chance: float, wait: float) -> None:
    _, decision = restart_policy.after_failure(History(), RestartPolicy(jitter=0.1), chance)
    assert decision == RetryAfter(pytest.approx(wait))


@pytest.mark.row("K13")
def test_max_retries_ends_the_attempts() -> None:
    decisions = waits(3, RestartPolicy(max_retries=3))
    assert decisions[:2] == [RetryAfter(1), RetryAfter(2)]
    assert decisions[2] == GiveUp("3 consecutive attempts failed", degraded=False)


@pytest.mark.row("K13")
def test_without_max_retries_attempts_never_end() -> None:
    assert waits(200, RestartPolicy())[-1] == RetryAfter(30)


def test_success_resets_the_attempts() -> None:
    history, _ = restart_policy.after_failure(History((1.0,)), RestartPolicy())
    assert history.succeeded() == History((1.0,), 0)


def test_losses_beyond_the_intensity_give_up() -> None:
    history = History()
    for second in range(5):
        history, decision = restart_policy.after_loss(history, RestartPolicy(intensity=5, period=60), float(second))
        assert decision == RetryAfter(0.0)
    _, decision = restart_policy.after_loss(history, RestartPolicy(intensity=5, period=60), 59.0)
    assert decision == GiveUp("it was lost 6 times within 60 s; the limit is 5", degraded=True)


def test_losses_before_the_period_are_forgotten() -> None:
    history = History((0.0, 1.0, 2.0, 3.0, 4.0))
    history, decision = restart_policy.after_loss(history, RestartPolicy(intensity=5, period=60), 60.0)
    assert decision == RetryAfter(0.0)
    assert history.losses == (1.0, 2.0, 3.0, 4.0, 60.0)


def test_zero_retries_give_up_at_the_first_loss() -> None:
    how = RestartPolicy.from_settings(Settings(auto_reconnect=False))
    assert restart_policy.after_loss(History(), how, 0.0)[1] == GiveUp("retries are disabled", degraded=False)


def test_policy_is_built_from_settings() -> None:
    settings = Settings(
        max_retries=3, backoff_first=2.0, backoff_longest=9.0, backoff_jitter=0, restart_intensity=7, restart_period=8.0
    )
    assert RestartPolicy.from_settings(settings) == RestartPolicy(3, 2.0, 9.0, 0, 7, 8.0)


def test_started_child_is_replaced_at_once() -> None:
    policy = RestartPolicy(intensity=1)
    history, decision = restart_policy.after_exit(History(), policy, 1.0, started=True)
    assert (history.losses, decision) == ((1.0,), RetryAfter(0.0))
    assert isinstance(restart_policy.after_exit(history, policy, 2.0, started=True)[1], GiveUp)


def test_child_that_never_started_backs_off_then_gives_up() -> None:
    history, decisions = History(), []
    for now in range(4):
        history, decision = restart_policy.after_exit(history, RestartPolicy(intensity=3), now, started=False)
        decisions.append(decision)
    assert decisions[:3] == [RetryAfter(1.0), RetryAfter(2.0), RetryAfter(4.0)]
    assert isinstance(decisions[3], GiveUp)
    again = restart_policy.after_exit(history.succeeded(), RestartPolicy(), 90.0, started=False)[1]
    assert again == RetryAfter(1.0)


def test_policy_of_children_ignores_the_retries_of_clients() -> None:
    settings = Settings(max_retries=3, restart_intensity=2, restart_pause=None)
    policy = RestartPolicy.for_children(settings)
    assert (policy.max_retries, policy.intensity, policy.pause) == (None, 2, None)
