"""What is done about something that ended: tried again, and when, or given up. Pure; time and chance come in.

The first attempt after a loss is made at once. Each that fails doubles the wait before the next, up to a limit. Losses
are counted too: what is lost too often in a period is not started again, however well that would go.
"""

from msgspec import Struct

from trunkline.config import Settings

__all__ = [
    "Decision",
    "GiveUp",
    "History",
    "RestartPolicy",
    "RetryAfter",
    "after_failure",
    "after_loss",
    "after_worker_exit",
]


class RestartPolicy(Struct, frozen=True):
    """How often, and how patiently."""

    max_retries: int | None = None  # attempts in a row; None: as many as it takes
    first_delay: float = 1.0  # seconds before the second attempt
    max_delay: float = 30.0
    jitter: float = 0.0  # the share of a wait that chance may add
    intensity: int = 5  # losses that are made good in a period
    period: float = 60.0

    @classmethod
    def from_settings(cls, settings: Settings) -> "RestartPolicy":
        """The policy that settings ask for."""
        return cls(
            max_retries=settings.max_retries if settings.auto_reconnect else 0,
            first_delay=settings.backoff_first,
            max_delay=settings.backoff_longest,
            jitter=settings.backoff_jitter,
            intensity=settings.restart_intensity,
            period=settings.restart_period,
        )


class History(Struct, frozen=True):
    """What has happened so far."""

    losses: tuple[float, ...] = ()  # when, within the last period
    attempts: int = 0  # in a row that failed

    def succeeded(self) -> "History":
        """An attempt went well."""
        return History(self.losses)


class RetryAfter(Struct, frozen=True):
    """Try again, after so many seconds."""

    delay: float


class GiveUp(Struct, frozen=True):
    """Do not try again."""

    reason: str
    degraded: bool  # lost too often, rather than not found again


Decision = RetryAfter | GiveUp


def after_loss(history: History, policy: RestartPolicy, now: float) -> tuple[History, Decision]:
    """Something that ran has ended."""
    losses = (*(when for when in history.losses if now - when < policy.period), now)
    history = History(losses)
    if policy.max_retries == 0:
        return history, GiveUp("it is not to be made again", degraded=False)
    if len(losses) > policy.intensity:
        why = f"it was lost {len(losses)} times within {policy.period:g} s, and {policy.intensity} is the most"
        return history, GiveUp(why, degraded=True)
    return history, RetryAfter(0.0)


def after_failure(history: History, policy: RestartPolicy, chance: float = 0.0) -> tuple[History, Decision]:
    """An attempt has failed. `chance` is a number from 0 to 1."""
    attempts = history.attempts + 1
    history = History(history.losses, attempts)
    if policy.max_retries is not None and attempts >= policy.max_retries:
        return history, GiveUp(f"{attempts} attempts in a row have failed", degraded=False)
    wait = min(policy.first_delay * 2.0 ** min(attempts - 1, 64), policy.max_delay)
    return history, RetryAfter(wait * (1 + policy.jitter * chance))


def after_worker_exit(
    history: History, policy: RestartPolicy, now: float, *, served: bool, clean: bool
) -> tuple[History, Decision]:
    """A worker has ended. If it has served, another one is started at once, and one that has ended well is no loss; if
    it never has, that is an attempt that failed, and a loss."""
    if served and clean:
        return history, RetryAfter(0.0)
    after, decision = after_loss(history, policy, now)
    if served or isinstance(decision, GiveUp):
        return after, decision
    return after_failure(History(after.losses, history.attempts), policy)
