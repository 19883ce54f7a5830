"""Policies: functions that judge requests to handlers, or their results, and refuse some of them.

A policy runs as middleware, so a server without policies pays nothing for them.
"""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from trunkline.errors import MisuseError, Refusal
from trunkline.errors.refusals import find_refusal
from trunkline.registry.signatures import name_of
from trunkline.server.middleware import Call, Middleware, Next

__all__ = ["Policy", "judge_requests", "judge_results"]

Policy = Callable[..., str | None | Awaitable[str | None]]
"""Takes a `Call`, and its result if it judges results; returns the reason for a refusal, or None."""


def judge_requests(policy: Policy, code: int) -> Middleware:
    """Return middleware that refuses requests with a code before their handlers run."""
    find_refusal(code)

    async def judge(call: Call, next: Next) -> Any:  # noqa: A002 - the documented name
        await _refuse_by(policy, code, call)
        return await next(call)

    return judge


def judge_results(policy: Policy, code: int) -> Middleware:
    """Return middleware that replaces results by a refusal with a code. The handler has run by then."""
    find_refusal(code)

    async def judge(call: Call, next: Next) -> Any:  # noqa: A002 - the documented name
        result = await next(call)
        await _refuse_by(policy, code, call, result)
        return result

    return judge


async def _refuse_by(policy: Policy, code: int, *judged: Any) -> None:
    """Raise the refusal that a policy gives a reason for. A policy that fails refuses, too: its exception ends the
    call."""
    answer = policy(*judged)
    reason: Any = await answer if isawaitable(answer) else answer
    if isinstance(reason, str):
        raise Refusal(code, reason or None)
    if reason is not None:
        raise MisuseError(
            f"policy {name_of(policy)} returned {reason!r}; return the reason for a refusal as a string, or None"
        )
