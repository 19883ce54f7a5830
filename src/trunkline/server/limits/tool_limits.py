"""Limits of a tool: concurrency, size of the result, health predicates that must hold, and its circuit breaker.

A tool without limits has no guard. A call that a limit rejects gets a tool result that says why.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Protocol, Unpack

from trunkline.errors import InternalError, RegistrationError
from trunkline.protocol.inflight import IncomingRequest
from trunkline.registry.handlers import Run
from trunkline.registry.signatures import name_of
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.run_handler import Work, run_work
from trunkline.server.access.rules import evaluate_predicate
from trunkline.server.options import Guarding, Health, LimitOptions
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.rpc.threads import ThreadPool
    from trunkline.server.limits.local_semaphore import ToolSemaphore
    from trunkline.server.limits.shared_semaphore import SharedSemaphores
    from trunkline.server.resilience.health_monitor import HealthCheck
    from trunkline.server.runtime_services import RuntimeServices

__all__ = ["HealthPredicates", "ReplacedBreaker", "ToolBreaker", "ToolGuard", "make_guard"]

_RETRY_AFTER_MS: Final = 1000  # a guess, a little longer than the result of a health check is reused
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
        super().__init__(message, data={"name": name, "dependency": dependency, "retryAfterMs": _RETRY_AFTER_MS})


class HealthPredicates:
    """Health predicates by name. Before the server starts, tools may require names that are added later."""

    def __init__(self) -> None:
        self._by_name: dict[str, HealthCheck] = {}
        self._enforced = False

    def add(self, name: str, make_check: "Callable[[Health], HealthCheck]", predicate: Health) -> None:
        """Add a predicate as a check; it replaces an earlier one of the same name."""
        if not callable(predicate):
            raise RegistrationError(f"health predicate {name!r} must be a function, not {predicate!r}")
        self._by_name[name] = make_check(predicate)

    def remove(self, name: str) -> None:
        """Remove a predicate, if there is one of that name."""
        self._by_name.pop(name, None)

    @property
    def by_name(self) -> "Mapping[str, HealthCheck]":
        """A live view of the checks, by name."""
        return self._by_name

    def resolve(self, required: str | Health) -> Health:
        """Return the predicate for a requirement: by its name, or the function itself."""
        return self._by_name[required].predicate if isinstance(required, str) else required

    def enforce_names(self, tools: Iterable[ToolEntry]) -> None:
        """Check the names that tools require, now and for tools added later. Raises `RegistrationError`."""
        if not self._enforced:
            for entry in tools:
                if entry.limiter is not None:
                    entry.limiter.check_requirements()
        self._enforced = True

    def relax_names(self) -> None:
        """Allow tools to require names that are added later."""
        self._enforced = False

    def check_added(self, tool: str, requires: Iterable[str | Health]) -> None:
        """Check the requirements of a new tool, if names are enforced."""
        if self._enforced:
            self.check_names(tool, requires)

    def check_names(self, tool: str, requires: Iterable[str | Health]) -> None:
        """Raise `RegistrationError` if a tool requires a name that no predicate has."""
        for required in requires:
            if isinstance(required, str) and required not in self._by_name:
                known = ", ".join(map(repr, sorted(self._by_name))) or "none"
                raise RegistrationError(
                    f"tool {tool!r} requires the unknown health predicate {required!r}; known: {known}"
                )


class ToolBreaker(Protocol):
    """The circuit breaker of a tool, as its guard uses it."""

    def run(
        self, start: Run, arguments: Any, context: Any, threads: "ThreadPool", call: IncomingRequest | None
    ) -> Work:
        """Start the work of a call, or raise to refuse it; the returned work reports its outcome."""
        ...


class ReplacedBreaker:
    """A circuit breaker of another library: its guard surrounds the calls of a tool."""

    def __init__(self, breaker: Guarding) -> None:
        self._breaker = breaker

    async def run(
        self,
        start: Run,
        arguments: Any,
        context: Any,
        threads: "ThreadPool",
        call: IncomingRequest | None,  # noqa: ARG002 - part of ToolBreaker
    ) -> Any:
        """Run the work of a call of the server within the guard, which may raise to refuse it."""
        async with self._breaker.guard():
            return await run_work(start(arguments, context, None), threads)


def make_guard(
    name: str, predicates: HealthPredicates, breaker: ToolBreaker | None, **limits: Unpack[LimitOptions]
) -> "ToolGuard | None":
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
    needed = requires or breaker is not None or not (most is limits.get("max_result_bytes") is None)
    return ToolGuard(name, predicates, breaker, limits) if needed else None


class ToolGuard:
    """Enforces the limits of one tool."""

    def __init__(
        self, name: str, predicates: HealthPredicates, breaker: ToolBreaker | None, limits: LimitOptions
    ) -> None:
        from trunkline.server.limits.local_semaphore import ConcurrencyLimit, LocalSemaphore  # few tools have limits

        self.requires = tuple(limits.get("requires", ()))
        self._name = name
        self._predicates = predicates
        self._breaker = breaker
        self._max_result_bytes = limits.get("max_result_bytes")
        most, queue = limits.get("max_concurrency"), limits.get("max_queue")
        self._limit = (
            None if most is None else ConcurrencyLimit(name, most, _DEFAULT_MAX_QUEUE if queue is None else queue)
        )
        self._semaphore = None if self._limit is None else LocalSemaphore(self._limit)
        self.waits = bool(self.requires or self._limit or self._max_result_bytes)  # a circuit breaker alone does not

    def run(self, start: Run, arguments: Any, context: Any, shared: "RuntimeServices", call: Any) -> Work:
        """Return the work of a call within the limits. `start` returns the work without them. `call` is None for a
        task."""
        if not self.waits and self._breaker is not None:
            return self._breaker.run(start, arguments, context, shared.threads, call)
        return self._run_limited(start, arguments, context, shared, call)

    async def _run_limited(
        self, start: Run, arguments: Any, context: Any, shared: "RuntimeServices", call: IncomingRequest | None
    ) -> Any:
        threads = shared.threads
        for required in self.requires:
            if not await evaluate_predicate(self._predicates.resolve(required)):
                raise ToolDependencyFailed(self._name, required if isinstance(required, str) else name_of(required))
        semaphore, breaker = self._semaphore_in(shared.shared_semaphores), self._breaker
        permit = None if semaphore is None else await semaphore.acquire()
        try:
            if breaker is None:
                work = start(arguments, context, None)
            else:
                work = breaker.run(start, arguments, context, threads, call)
            result = await run_work(work, threads)
        finally:
            if semaphore is not None:
                semaphore.release(permit)
        if self._max_result_bytes is not None and (size := len(codec.to_json(result))) > self._max_result_bytes:
            raise ToolResultTooLarge(self._name, size, self._max_result_bytes)
        return result

    def check_requirements(self) -> None:
        """Raise `RegistrationError` if the tool requires the name of a health predicate that does not exist."""
        self._predicates.check_names(self._name, self.requires)

    def named(self, name: str) -> "ToolGuard":
        """Return the same guard for a tool under another name; both have one limit on concurrent calls."""
        other = copy(self)
        other._name = name
        other._limit = None if self._limit is None else self._limit._replace(tool=name)
        return other

    def _semaphore_in(self, semaphores: "SharedSemaphores | None") -> "ToolSemaphore | None":
        """Return the semaphore: shared if the server has a durable store, else that of this process."""
        if self._limit is None or semaphores is None:
            return self._semaphore
        return semaphores.semaphore_for(self._limit)
