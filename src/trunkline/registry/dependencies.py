"""Dependencies: parameters whose values come from functions of the server, not from the peer.

The dependency graph is resolved once, at registration, into a plan: each function once, in topological order.
Unresolvable dependencies are rejected there. This module runs nothing.

A synchronous function may block, so it runs on a thread. The dependencies of a synchronous handler run on the handler's
own thread, directly before it, and are torn down there, so that thread-bound objects, such as some database
connections, stay on one thread. Only dependencies of async functions run earlier.

Tests replace dependencies for a time (`DependencyOverrides`). A call that starts meanwhile gets a plan of its own.
"""

import inspect
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from enum import Enum, auto
from typing import Annotated, Any, get_origin
from weakref import WeakValueDictionary

from msgspec import Struct

from trunkline.errors import MisuseError, RegistrationError
from trunkline.registry.signatures import hints_of, is_context_annotation, name_of, signature_of, underlying_function

__all__ = [
    "Dependency",
    "DependencyOverrides",
    "DependencyPlan",
    "DependencyStep",
    "Depends",
    "ProviderKind",
    "Replacements",
    "dependency_of",
    "make_plan",
]

Provider = Callable[..., Any]
Replacements = Mapping[Provider, Provider]
"""Functions to run instead of others, by the functions that they replace."""


class Dependency(Struct, frozen=True):
    """Marks a parameter whose value a function provides."""

    function: Callable[..., Any]
    thread: bool = True


def Depends(function: Callable[..., Any], *, thread: bool = True) -> Any:  # noqa: N802 - stands where a type would
    """Mark a parameter whose value a function provides: `db: Annotated[Database, Depends(get_db)]`.

    The function may be async or synchronous, may yield its value and clean up afterwards, or return a context manager.
    It may have dependencies of its own and take the `Context`. It runs once per call. A synchronous function that never
    blocks can set `thread=False` to run on the event loop.
    """
    provider: Any = function
    if not isinstance(provider, Hashable) or not callable(provider):
        raise RegistrationError(f"Depends({provider!r}): a function is needed")
    return Dependency(function, thread)


class ProviderKind(Enum):
    """How a function provides its value."""

    VALUE = auto()  # returns the value
    AWAITED = auto()  # an async function
    GENERATOR = auto()  # yields the value once, and resumes after the call
    ASYNC_GENERATOR = auto()
    MANAGER = auto()  # returns a context manager that provides it
    ASYNC_MANAGER = auto()


class DependencyStep(Struct, frozen=True):
    """One function of a plan."""

    function: Callable[..., Any]
    provider_kind: ProviderKind
    thread: bool  # a synchronous function that may block
    needs: tuple[tuple[str, Callable[..., Any]], ...]  # parameters, and the functions that provide their values
    contexts: tuple[str, ...]  # parameters for the context

    @property
    def synchronous(self) -> bool:
        """Whether the function needs no await."""
        return self.provider_kind in {ProviderKind.VALUE, ProviderKind.GENERATOR, ProviderKind.MANAGER}


class DependencyPlan(Struct, frozen=True, weakref=True):
    """The functions to run before a handler, in order; they are torn down in reverse."""

    before: tuple[DependencyStep, ...]  # before the handler, from the event loop
    on_thread: tuple[DependencyStep, ...]  # on the thread of a synchronous handler
    sources: tuple[tuple[str, Callable[..., Any]], ...]  # the handler's parameters and their providers
    contexts: tuple[str, ...]  # the handler's parameters for the context
    remake: "Callable[[Replacements], DependencyPlan]"  # makes the same plan with other functions
    overrides: "DependencyOverrides | None" = None

    def current(self, context: Any) -> "DependencyPlan":
        """Return the plan of a call that starts now, with the overrides in force. Raise `MisuseError` if one of them
        takes a context and the call has none."""
        if not self.overrides:
            return self
        plan = self.remake(self.overrides.in_force())
        if context is None and plan.wants_context:
            raise MisuseError(
                "an override takes the Context, and no function that it replaces does; leave that parameter out"
            )
        return plan

    @property
    def wants_context(self) -> bool:
        """Whether any of the functions takes the context of the call."""
        return any(step.contexts for step in (*self.before, *self.on_thread))


class DependencyOverrides:
    """Functions that run instead of the dependencies of a server's handlers, each for the time of a `with` block.

    Blocks may overlap in any order, also on several threads: each ends its own overrides only, and of two for the same
    function the later one is in force.
    """

    def __init__(self) -> None:
        self._blocks: dict[object, Replacements] = {}  # each operation on it is atomic
        self._plans: WeakValueDictionary[int, DependencyPlan] = WeakValueDictionary()

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def in_force(self) -> Replacements:
        """Return the replacements in force."""
        return {function: other for block in tuple(self._blocks.values()) for function, other in block.items()}

    def track(self, plan: DependencyPlan) -> None:
        """Remember the dependencies of a plan as long as it exists."""
        self._plans[id(plan)] = plan

    @contextmanager
    def block(self, replacements: Replacements) -> Generator[None]:
        """Replace dependencies until the block ends. Raises `MisuseError` for a function that no handler depends on,
        and `RegistrationError` for a replacement that cannot be called."""
        plans = list(self._plans.values())
        known = {step.function for plan in plans for step in (*plan.before, *plan.on_thread)}
        for function, other in replacements.items():
            if not callable(other):
                raise MisuseError(f"the override of {name_of(function)} is a function, such as `lambda: {other!r}`")
            if function not in known:
                raise MisuseError(f"no handler of this server depends on {name_of(function)}, so it has no override")
        for plan in plans:
            plan.remake(replacements)
        key = object()
        self._blocks[key] = dict(replacements)
        try:
            yield
        finally:
            del self._blocks[key]


def dependency_of(parameter: inspect.Parameter, annotation: Any) -> Dependency | None:
    """Return the dependency mark of a parameter, from its annotation or its default."""
    notes: Iterable[Any] = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    return next((note for note in (*notes, parameter.default) if isinstance(note, Dependency)), None)


def make_plan(
    name: str,
    marked: Mapping[str, Dependency],
    contexts: Iterable[str],
    context: type,
    *,
    on_thread: bool,
    overrides: DependencyOverrides | None = None,
) -> DependencyPlan | None:
    """Build the plan for a handler's marked parameters; return None if there are none. Raise `RegistrationError` for
    cycles and for functions that cannot be called. `on_thread`: the handler runs on a thread. `overrides` may replace
    the functions later."""
    if not marked:
        return None
    own = tuple(contexts)

    def make(replaced: Replacements) -> DependencyPlan:
        reader = _DependencyReader(name, context, replaced)
        sources = tuple((parameter, reader.read(dependency, ())) for parameter, dependency in marked.items())
        steps = reader.steps()
        early = _needed_early(steps) if on_thread else {step.function for step in steps}
        return DependencyPlan(
            before=tuple(step for step in steps if step.function in early),
            on_thread=tuple(step for step in steps if step.function not in early),
            sources=sources,
            contexts=own,
            remake=make,
            overrides=overrides,
        )

    plan = make({})
    if overrides is not None:
        overrides.track(plan)
    return plan


def _needed_early(steps: list[DependencyStep]) -> set[Callable[..., Any]]:
    """Return the functions that run on the loop, and all their dependencies. Dependents come later in the order, so it
    is walked in reverse."""
    early: set[Callable[..., Any]] = set()
    for step in reversed(steps):
        if step.function in early or not (step.synchronous and step.thread):
            early.add(step.function)
            early.update(function for _, function in step.needs)
    return early


class _DependencyReader:
    """Collects dependencies recursively."""

    def __init__(self, asker: str, context: type, replaced: Replacements) -> None:
        self._owner = asker
        self._context = context
        self._replaced = replaced
        self._steps: dict[Callable[..., Any], DependencyStep] = {}  # in topological order
        self._nonblocking: set[Callable[..., Any]] = set()  # functions marked as non-blocking

    def steps(self) -> list[DependencyStep]:
        """Return the collected steps."""
        return [
            DependencyStep(
                step.function, step.provider_kind, step.function not in self._nonblocking, step.needs, step.contexts
            )
            for step in self._steps.values()
        ]

    def read(self, dependency: Dependency, above: tuple[Callable[..., Any], ...]) -> Provider:
        """Collect one dependency and return its function; `above` is the path of functions that leads to it."""
        function = self._replaced.get(dependency.function, dependency.function)
        if function in above:  # a replacement may depend on the function that it replaces
            function = dependency.function
        if not dependency.thread:
            self._nonblocking.add(function)
        if function in above:
            circle = " -> ".join(map(name_of, (*above[above.index(function) :], function)))
            raise RegistrationError(f"{self._owner}: a dependency depends on itself: {circle}")
        if function in self._steps:
            return function
        name = name_of(function)
        hints = hints_of(function, f"{self._owner}: dependency {name}")
        needs: dict[str, Dependency] = {}
        contexts: list[str] = []
        for parameter in signature_of(function, f"{self._owner}: dependency {name}").parameters.values():
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
                continue
            annotation = hints.get(parameter.name, Any)
            marked = dependency_of(parameter, annotation)
            if marked is not None:
                needs[parameter.name] = marked
            elif is_context_annotation(annotation, self._context):
                contexts.append(parameter.name)
            elif parameter.default is parameter.empty:
                raise self._refused(name, parameter, "nothing can give it", "mark it with Depends, give it a default")
            else:
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise self._refused(name, parameter, "it can only be given by its name", "remove the `/`")
        sources = tuple((parameter, self.read(needed, (*above, function))) for parameter, needed in needs.items())
        gives = _provider_kind(function, hints.get("return"))
        self._steps[function] = DependencyStep(function, gives, True, sources, tuple(contexts))
        return function

    def _refused(self, name: str, parameter: inspect.Parameter, why: str, remedy: str) -> RegistrationError:
        return RegistrationError(
            f"{self._owner}: dependency {name} cannot be called, because of its parameter {parameter.name!r}: "
            f"{why}; {remedy}, or ask for the Context there"
        )


def _provider_kind(function: Callable[..., Any], returns: Any) -> ProviderKind:
    runs = underlying_function(function)
    if inspect.iscoroutinefunction(runs):
        return ProviderKind.AWAITED
    if inspect.isgeneratorfunction(runs):
        return ProviderKind.GENERATOR
    if inspect.isasyncgenfunction(runs):
        return ProviderKind.ASYNC_GENERATOR
    wrapped: Any = inspect.unwrap(runs)  # for @contextmanager and the like, the generator
    made = get_origin(returns) or returns
    if inspect.isasyncgenfunction(wrapped) or made is AbstractAsyncContextManager:
        return ProviderKind.ASYNC_MANAGER
    return (
        ProviderKind.MANAGER
        if inspect.isgeneratorfunction(wrapped) or made is AbstractContextManager
        else ProviderKind.VALUE
    )
