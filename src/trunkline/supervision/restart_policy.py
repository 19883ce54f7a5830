"""Restart policy: decide whether and when to retry after a loss or a failed attempt. Pure; time and randomness are
arguments.

The first attempt after a loss follows at once. Each failed attempt doubles the delay, up to a limit. Losses are counted
as well: more than `intensity` losses within `period` seconds end the retries. Clients, sessions and all supervisors
(`child_table.py`) use this policy.
"""

from msgspec import Struct

from trunkline.config import Settings

__all__ = [
    "Decision",
    "GiveUp",
    "History",
    "RestartPolicy",
    "RetryAfter",
    "after_exit",
    "after_failure",
    "after_loss",
]


class RestartPolicy(Struct, frozen=True):
    """Limits and delays of restarts."""

    max_retries: int | None = None  # consecutive attempts; None: unlimited
    first_delay: float = 1.0  # seconds before the second attempt
    max_delay: float = 30.0
    jitter: float = 0.0  # largest random addition, as a fraction of the delay
    intensity: int = 5  # restarts within a period
    period: float = 60.0
    pause: float | None = 300.0  # seconds until a degraded child is tried again; None: only by hand

    @classmethod
    def from_settings(cls, settings: Settings) -> "RestartPolicy":
        """Return the policy of a client's connection."""
        return cls(
            max_retries=settings.max_retries if settings.auto_reconnect else 0,
            first_delay=settings.backoff_first,
            max_delay=settings.backoff_longest,
            jitter=settings.backoff_jitter,
            intensity=settings.restart_intensity,
            period=settings.restart_period,
        )

    @classmethod
    def for_children(cls, settings: Settings) -> "RestartPolicy":
        """Return the policy of the children of a server: its listeners and workers."""
        return cls(
            first_delay=settings.backoff_first,
            max_delay=settings.backoff_longest,
            jitter=settings.backoff_jitter,
            intensity=settings.restart_intensity,
            period=settings.restart_period,
            pause=settings.restart_pause,
        )


class History(Struct, frozen=True):
    """Losses and failed attempts so far."""

    losses: tuple[float, ...] = ()  # times within the last period
    attempts: int = 0  # consecutive failed attempts

    def succeeded(self) -> "History":
        """Return the history after a successful attempt."""
        return History(self.losses)


class RetryAfter(Struct, frozen=True):
    """Try again after `delay` seconds."""

    delay: float


class GiveUp(Struct, frozen=True):
    """Do not try again."""

    reason: str
    degraded: bool  # too many losses, as opposed to too many failed attempts


Decision = RetryAfter | GiveUp


def after_loss(history: History, policy: RestartPolicy, now: float) -> tuple[History, Decision]:
    """Decide after a running process or connection was lost."""
    losses = (*(when for when in history.losses if now - when < policy.period), now)
    history = History(losses)
    if policy.max_retries == 0:
        return history, GiveUp("retries are disabled", degraded=False)
    if len(losses) > policy.intensity:
        why = f"it was lost {len(losses)} times within {policy.period:g} s; the limit is {policy.intensity}"
        return history, GiveUp(why, degraded=True)
    return history, RetryAfter(0.0)


def after_failure(history: History, policy: RestartPolicy, chance: float = 0.0) -> tuple[History, Decision]:
    """Decide after a failed attempt. `chance` is a random number from 0 to 1."""
    attempts = history.attempts + 1
    history = History(history.losses, attempts)
    if policy.max_retries is not None and attempts >= policy.max_retries:
        return history, GiveUp(f"{attempts} consecutive attempts failed", degraded=False)
    wait = min(policy.first_delay * 2.0 ** min(attempts - 1, 64), policy.max_delay)
    return history, RetryAfter(wait * (1 + policy.jitter * chance))


def after_exit(
    history: History, policy: RestartPolicy, now: float, *, started: bool, chance: float = 0.0
) -> tuple[History, Decision]:
    """Decide after a child has ended that has to be restarted. One that has `started` is restarted at once; one that
    never did counts as a loss and a failed attempt."""
    after, decision = after_loss(history, policy, now)
    if started or isinstance(decision, GiveUp):
        return after, decision
    return after_failure(History(after.losses, history.attempts), policy, chance)
