"""What a tool may be held to: how often at once it is called, how much it may answer, and what must be well first.

A tool that is held to nothing has no guard, and its calls pass none. Every refusal here is a result that says so.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack

from trunkline.errors import InternalError, RegistrationError
from trunkline.registry.signatures import name_of
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.run_handler import run_work
from trunkline.server.access.rules import evaluate_predicate
from trunkline.server.limits.local_semaphore import ConcurrencyLimit, LocalSemaphore, ToolSemaphore
from trunkline.server.options import Health, LimitOptions
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.server.connection import SharedServices

__all__ = ["HealthPredicates", "ToolGuard", "make_guard"]

_DEFAULT_MAX_QUEUE: Final = 64  # calls that wait for one tool: a burst of a busy host, not a backlog


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


class HealthPredicates:
    """The predicates that have names. Until a server serves, tools may require names that are yet to be given."""

    def __init__(self) -> None:
        self._by_name: dict[str, Health] = {}
        self._enforced = False

    def add(self, name: str, predicate: Health) -> None:
        """Names a predicate; one that had the name before has it no more."""
        if not callable(predicate):
            raise RegistrationError(f"what is named {name!r} must be a function, not {predicate!r}")
        self._by_name[name] = predicate

    @property
    def by_name(self) -> Mapping[str, Health]:
        """All of them, by their names; those that are named later, too."""
        return self._by_name

    def resolve(self, required: str | Health) -> Health:
        """The predicate of that name, or the one given."""
        return self._by_name[required] if isinstance(required, str) else required

    def enforce_names(self, tools: Iterable[ToolEntry]) -> None:
        """From now on all names must be known. Raises `RegistrationError` for the first that is not."""
        if not self._enforced:
            for entry in tools:
                if entry.limiter is not None:
                    self._check(entry.name, entry.limiter.requires)
        self._enforced = True

    def relax_names(self) -> None:
        """Names may come later again."""
        self._enforced = False

    def check_added(self, tool: str, requires: Iterable[str | Health]) -> None:
        """Checks what a tool requires that is being added."""
        if self._enforced:
            self._check(tool, requires)

    def _check(self, tool: str, requires: Iterable[str | Health]) -> None:
        for required in requires:
            if isinstance(required, str) and required not in self._by_name:
                known = ", ".join(map(repr, sorted(self._by_name))) or "none"
                raise RegistrationError(
                    f"tool {tool!r} requires {required!r}, which no predicate is named; there are: {known}"
                )


def make_guard(name: str, predicates: HealthPredicates, **limits: Unpack[LimitOptions]) -> "ToolGuard | None":
    """The guard of a tool; None if it needs none."""
    most = limits.get("max_concurrency")
    for option, value, least in (
        ("max_concurrency", most, 1),
        ("max_queue", limits.get("max_queue"), 0),
        ("max_result_bytes", limits.get("max_result_bytes"), 1),
    ):
        if value is not None and value < least:
            raise RegistrationError(f"tool {name!r}: {option} must be {least} or more, not {value}")
    if limits.get("max_queue") is not None and most is None:
        raise RegistrationError(f"tool {name!r}: max_queue says how many wait; it needs max_concurrency")
    requires = limits.get("requires", ())
    predicates.check_added(name, requires)
    needed = requires or not (most is limits.get("max_result_bytes") is None)
    return ToolGuard(name, predicates, limits) if needed else None


class ToolGuard:
    """Holds the calls of one tool to its limits."""

    def __init__(self, name: str, predicates: HealthPredicates, limits: LimitOptions) -> None:
        self.requires = tuple(limits.get("requires", ()))
        self._name = name
        self._predicates = predicates
        self._max_result_bytes = limits.get("max_result_bytes")
        most, queue = limits.get("max_concurrency"), limits.get("max_queue")
        self._limit = (
            None if most is None else ConcurrencyLimit(name, most, _DEFAULT_MAX_QUEUE if queue is None else queue)
        )
        self._semaphore = None if self._limit is None else LocalSemaphore(self._limit)

    async def run(self, arguments: Any, start: Callable[[Any], Any], shared: "SharedServices") -> Any:
        """Runs a call, if it may and when it may. `start` gives its work with the arguments."""
        for required in self.requires:
            if not await evaluate_predicate(self._predicates.resolve(required)):
                raise ToolDependencyFailed(self._name, required if isinstance(required, str) else name_of(required))
        turns = self._semaphore_in(shared)
        if turns is None:
            result = await run_work(start(arguments), shared.threads)
        else:
            turn = await turns.acquire()
            try:
                result = await run_work(start(arguments), shared.threads)
            finally:
                turns.release(turn)
        if self._max_result_bytes is not None and (size := len(codec.to_json(result))) > self._max_result_bytes:
            raise ToolResultTooLarge(self._name, size, self._max_result_bytes)
        return result

    def _semaphore_in(self, shared: "SharedServices") -> ToolSemaphore | None:
        """Who may call it now: of this process, or of all that share its store."""
        return (
            self._semaphore
            if self._limit is None or shared.shared_semaphores is None
            else shared.shared_semaphores.semaphore_for(self._limit)
        )
