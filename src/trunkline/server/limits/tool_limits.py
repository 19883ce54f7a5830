"""Limits of a tool: concurrency, size of the result, and health predicates that must hold.

A tool without limits has no guard. A call that a limit rejects gets a tool result that says why.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack

from trunkline.errors import InternalError, RegistrationError
from trunkline.registry.signatures import name_of
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.run_handler import run_work
from trunkline.server.access.rules import evaluate_predicate
from trunkline.server.options import Health, LimitOptions
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.rpc.threads import ThreadPool
    from trunkline.server.limits.local_semaphore import ToolSemaphore
    from trunkline.server.limits.shared_semaphore import SharedSemaphores

__all__ = ["HealthPredicates", "ToolGuard", "make_guard"]

_DEFAULT_MAX_QUEUE: Final = 64  # enough for a burst of a busy host, not for a backlog


class ToolResultTooLarge(InternalError):
    """A result exceeds the tool's `max_result_bytes`."""

    kind = "tool_result_too_large"

    def __init__(self, name: str, size: int, limit: int) -> None:
        message = f"the result of tool {name!r} has {size} bytes, the maximum is {limit}; request less"
        super().__init__(message, data={"name": name, "size": size, "maximum": limit})


class ToolDependencyFailed(InternalError):
    """A predicate that the tool requires does not hold."""

    kind = "tool_dependency_failed"

    def __init__(self, name: str, dependency: str) -> None:
        message = f"tool {name!r} cannot run now: {dependency!r} is not available"
        super().__init__(message, data={"name": name, "dependency": dependency})


class HealthPredicates:
    """Health predicates by name. Before the server starts, tools may require names that are added later."""

    def __init__(self) -> None:
        self._by_name: dict[str, Health] = {}
        self._enforced = False

    def add(self, name: str, predicate: Health) -> None:
        """Add a predicate; it replaces an earlier one of the same name."""
        if not callable(predicate):
            raise RegistrationError(f"health predicate {name!r} must be a function, not {predicate!r}")
        self._by_name[name] = predicate

    @property
    def by_name(self) -> Mapping[str, Health]:
        """A live view of the predicates, by name."""
        return self._by_name

    def resolve(self, required: str | Health) -> Health:
        """Return the predicate for a requirement: by its name, or the function itself."""
        return self._by_name[required] if isinstance(required, str) else required

    def enforce_names(self, tools: Iterable[ToolEntry]) -> None:
        """Check the names that tools require, now and for tools added later. Raises `RegistrationError`."""
        if not self._enforced:
            for entry in tools:
                if entry.limiter is not None:
                    self._check(entry.name, entry.limiter.requires)
        self._enforced = True

    def relax_names(self) -> None:
        """Allow tools to require names that are added later."""
        self._enforced = False

    def check_added(self, tool: str, requires: Iterable[str | Health]) -> None:
        """Check the requirements of a new tool, if names are enforced."""
        if self._enforced:
            self._check(tool, requires)

    def _check(self, tool: str, requires: Iterable[str | Health]) -> None:
        for required in requires:
            if isinstance(required, str) and required not in self._by_name:
                known = ", ".join(map(repr, sorted(self._by_name))) or "none"
                raise RegistrationError(
                    f"tool {tool!r} requires the unknown health predicate {required!r}; known: {known}"
                )


def make_guard(name: str, predicates: HealthPredicates, **limits: Unpack[LimitOptions]) -> "ToolGuard | None":
    """Return the guard of a tool; None if it has no limits. Raises `RegistrationError` for invalid limits."""
    most = limits.get("max_concurrency")
    for option, value, least in (
        ("max_concurrency", most, 1),
        ("max_queue", limits.get("max_queue"), 0),
        ("max_result_bytes", limits.get("max_result_bytes"), 1),
    ):
        if value is not None and value < least:
            raise RegistrationError(f"tool {name!r}: {option} must be {least} or more, not {value}")
    if limits.get("max_queue") is not None and most is None:
        raise RegistrationError(f"tool {name!r}: max_queue needs max_concurrency")
    requires = limits.get("requires", ())
    predicates.check_added(name, requires)
    needed = requires or not (most is limits.get("max_result_bytes") is None)
    return ToolGuard(name, predicates, limits) if needed else None


class ToolGuard:
    """Enforces the limits of one tool."""

    def __init__(self, name: str, predicates: HealthPredicates, limits: LimitOptions) -> None:
        from trunkline.server.limits.local_semaphore import ConcurrencyLimit, LocalSemaphore  # few tools have limits

        self.requires = tuple(limits.get("requires", ()))
        self._name = name
        self._predicates = predicates
        self._max_result_bytes = limits.get("max_result_bytes")
        most, queue = limits.get("max_concurrency"), limits.get("max_queue")
        self._limit = (
            None if most is None else ConcurrencyLimit(name, most, _DEFAULT_MAX_QUEUE if queue is None else queue)
        )
        self._semaphore = None if self._limit is None else LocalSemaphore(self._limit)

    async def run(
        self, arguments: Any, start: Callable[[Any], Any], threads: "ThreadPool", semaphores: "SharedSemaphores | None"
    ) -> Any:
        """Run a call within the limits. `start` returns the work of the call, given the arguments. `semaphores` are
        those that processes share; None if the store is not shared."""
        for required in self.requires:
            if not await evaluate_predicate(self._predicates.resolve(required)):
                raise ToolDependencyFailed(self._name, required if isinstance(required, str) else name_of(required))
        semaphore = self._semaphore_in(semaphores)
        if semaphore is None:
            result = await run_work(start(arguments), threads)
        else:
            permit = await semaphore.acquire()
            try:
                result = await run_work(start(arguments), threads)
            finally:
                semaphore.release(permit)
        if self._max_result_bytes is not None and (size := len(codec.to_json(result))) > self._max_result_bytes:
            raise ToolResultTooLarge(self._name, size, self._max_result_bytes)
        return result

    def _semaphore_in(self, semaphores: "SharedSemaphores | None") -> "ToolSemaphore | None":
        """Return the semaphore: shared if the server has a durable store, else that of this process."""
        if self._limit is None or semaphores is None:
            return self._semaphore
        return semaphores.semaphore_for(self._limit)
