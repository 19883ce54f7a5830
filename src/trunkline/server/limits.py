"""What a tool may be held to: who may call it, how often at once, how much it may answer, and what must be well first.

A tool that is held to nothing has no guard, and its calls pass none. Every refusal here is a result that says so.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Any, Final

from msgspec import Struct

from trunkline.conversation.perform import perform
from trunkline.conversation.threads import Threads
from trunkline.errors import InternalError, RegistrationError
from trunkline.registry.signatures import name_of
from trunkline.server.context import Context
from trunkline.wire import codec

__all__ = ["Allow", "Guard", "Health", "Limits", "guard_of"]

Allow = Callable[[Context], bool | Awaitable[bool]]
"""Whether a call may go on. It runs on the loop, so it must not block."""

Health = Callable[[], bool | Awaitable[bool]]
"""Whether something that tools rely on is well. It runs on the loop, so it must not block."""

_QUEUE: Final = 64  # calls that wait for one tool: a burst of a busy host, not a backlog


class ToolNotAllowed(InternalError):
    """A call that its tool does not admit."""

    kind = "tool_not_allowed"

    def __init__(self, name: str) -> None:
        super().__init__(f"tool {name!r} is not allowed here", data={"name": name})


class TooManyCalls(InternalError):
    """A call of a tool that is busy, with as many waiting for it as may."""

    kind = "maximum_concurrent_tools_exceeded"

    def __init__(self, name: str, limit: int) -> None:
        told = f"tool {name!r} is busy: {limit} calls run and no more may wait; try again later"
        super().__init__(told, data={"name": name, "maximum": limit})


class ToolResultTooLarge(InternalError):
    """A result over its tool's limit."""

    kind = "tool_result_too_large"

    def __init__(self, name: str, size: int, limit: int) -> None:
        told = f"the result of tool {name!r} has {size} bytes, {limit} is the most; ask for less"
        super().__init__(told, data={"name": name, "size": size, "maximum": limit})


class ToolDependencyFailed(InternalError):
    """A call of a tool that relies on something which is not well."""

    kind = "tool_dependency_failed"

    def __init__(self, name: str, what: str) -> None:
        told = f"tool {name!r} cannot run now: {what!r} is not available"
        super().__init__(told, data={"name": name, "dependency": what})


class Limits(Struct, frozen=True):
    """What one tool is held to."""

    max_concurrency: int | None = None  # calls at once, of all connections together
    max_queue: int | None = None  # more that wait; None: some
    max_result_bytes: int | None = None  # of the result, as JSON
    allow: Allow | None = None
    requires: tuple[str | Health, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is anything to be held to."""
        return bool(self.requires) or not (self.max_concurrency is self.max_result_bytes is self.allow is None)


def guard_of(
    name: str,
    health: Mapping[str, Health],
    *,
    max_concurrency: int | None,
    max_queue: int | None,
    max_result_bytes: int | None,
    allow: Allow | None,
    requires: Iterable[str | Health],
) -> "Guard | None":
    """The guard of a tool; None if it needs none. `health` are the predicates that have names."""
    for option, value, least in (
        ("max_concurrency", max_concurrency, 1),
        ("max_queue", max_queue, 0),
        ("max_result_bytes", max_result_bytes, 1),
    ):
        if value is not None and value < least:
            raise RegistrationError(f"tool {name!r}: {option} must be {least} or more, not {value}")
    if max_queue is not None and max_concurrency is None:
        raise RegistrationError(f"tool {name!r}: max_queue says how many wait; it needs max_concurrency")
    limits = Limits(max_concurrency, max_queue, max_result_bytes, allow, tuple(requires))
    return Guard(name, limits, health) if limits.any else None


class Guard:
    """Holds the calls of one tool to its limits."""

    def __init__(self, name: str, limits: Limits, health: Mapping[str, Health]) -> None:
        self._name = name
        self._limits = limits
        self._health = health
        self._free = limits.max_concurrency or 0
        self._queue = _QUEUE if limits.max_queue is None else limits.max_queue
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, context: Context, start: Callable[[], Any], threads: Threads) -> Any:
        """Runs a call, if it may and when it may. `start` gives its work."""
        limits = self._limits
        if limits.allow is not None and not await _true(limits.allow(context)):
            raise ToolNotAllowed(self._name)
        if limits.requires:
            await self._check_health()
        if limits.max_concurrency is None:
            result = await perform(start(), threads)
        else:
            await self._take(limits.max_concurrency)
            try:
                result = await perform(start(), threads)
            finally:
                self._give()
        most = limits.max_result_bytes
        if most is not None and (size := len(codec.to_json(result))) > most:
            raise ToolResultTooLarge(self._name, size, most)
        return result

    async def _check_health(self) -> None:
        for required in self._limits.requires:
            predicate = self._health.get(required) if isinstance(required, str) else required
            if predicate is None or not await _true(predicate()):
                raise ToolDependencyFailed(self._name, required if isinstance(required, str) else name_of(required))

    async def _take(self, most: int) -> None:
        if self._free:
            self._free -= 1
            return
        if len(self._waiting) >= self._queue:
            raise TooManyCalls(self._name, most)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(turn)
            else:
                self._give()  # the turn had come, and nobody will take it
            raise

    def _give(self) -> None:
        """A call has ended: the next one has its turn. One that was cancelled meanwhile has not left the queue yet."""
        turn = next((turn for turn in self._waiting if not turn.done()), None)
        if turn is None:
            self._free += 1
        else:
            self._waiting.remove(turn)
            turn.set_result(None)


async def _true(answer: bool | Awaitable[bool]) -> bool:
    return bool(await answer if isawaitable(answer) else answer)
