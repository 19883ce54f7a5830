"""Task policies of tools: whether calls run as tasks, and how tasks of a dead process recover."""

from typing import Any, Final, Literal, get_args

from msgspec import Struct

from trunkline.errors import RegistrationError
from trunkline.errors.options import POSITIVE
from trunkline.protocol.types import ToolAnnotations

__all__ = ["Recovery", "TaskPolicy", "TaskSupport", "parse_policy"]

TaskSupport = Literal["forbidden", "optional", "required"]
Recovery = Literal["fail", "restart", "resume"]


class _Support(Struct, frozen=True):
    """Holds the first field of `TaskPolicy`, which may be positional."""

    support: TaskSupport = "optional"


class TaskPolicy(_Support, frozen=True, kw_only=True):
    """How calls of a tool run as tasks: `TaskPolicy("required", ttl=60)`."""

    recovery: Recovery = "fail"  # if its process died: fail, restart, or resume from the checkpoint
    attempts: int = 3  # maximum, without a new checkpoint in between
    ttl: float | None = None  # seconds that a task is stored; None: the setting
    timeout: float | None = None  # time limit in seconds
    poll_interval: float | None = None  # seconds between polls; None: the setting
    asks_first: bool = False  # an ordinary call until it runs `await ctx.begin_task()`

    def goes_on(self, tries: int, *, begun: bool) -> bool:
        """Return whether another process may take over a task whose process has died."""
        return tries < self.attempts and (self.recovery != "fail" or not begun)


_SUPPORT: Final = get_args(TaskSupport)


def parse_policy(name: str, option: Any, hints: ToolAnnotations | None) -> TaskPolicy | None:
    """Return the policy of a tool; None if its calls never run as tasks. A tool with an idempotent or read-only hint
    restarts by default. Raise `RegistrationError` for an invalid option."""
    if option is None or option is False or option == "forbidden":
        return None
    if isinstance(option, TaskPolicy):
        return _checked(name, option)
    support: Any = "optional" if option is True else option
    if support not in _SUPPORT:
        raise RegistrationError(
            f"tool {name!r}: task= is one of {', '.join(_SUPPORT)}, or a TaskPolicy, not {option!r}"
        )
    harmless = hints is not None and (hints.idempotent_hint or hints.read_only_hint)
    return TaskPolicy(support=support, recovery="restart" if harmless else "fail")


def _checked(name: str, policy: TaskPolicy) -> TaskPolicy | None:
    for option, known in (("support", _SUPPORT), ("recovery", get_args(Recovery))):
        if getattr(policy, option) not in known:
            raise RegistrationError(f"tool {name!r}: {option}= of a task is one of {', '.join(known)}")
    for option in ("attempts", "ttl", "timeout", "poll_interval"):
        value = getattr(policy, option)
        if value is not None and not POSITIVE.fits(value):
            raise RegistrationError(f"tool {name!r}: {option}= of a task must be above 0, not {value!r}")
    return None if policy.support == "forbidden" else policy
