"""Dependencies: parameters whose values come from functions of the server's own, not from the peer.

What depends on what is read once, at registration, and becomes a plan: the functions in an order in which each comes
after all that it needs, each of them once. What could never be resolved is refused then. Nothing is run here.

A plain function may block, so it runs on a thread. Those that a plain handler needs run on the handler's own thread,
right before it, and are torn down there: what belongs to a thread, as some connections do, stays on it. Only what an
async function needs as well has to be there earlier.
"""

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import Enum, auto
from typing import Annotated, Any, get_origin

from msgspec import Struct

from trunkline.errors import RegistrationError
from trunkline.registry.signatures import hints_of, is_context_annotation, name_of, signature_of, underlying_function

__all__ = ["Dependency", "DependencyPlan", "DependencyStep", "Depends", "ProviderKind", "dependency_of", "make_plan"]


class Dependency(Struct, frozen=True):
    """Marks a parameter: its value is what a function gives."""

    function: Callable[..., Any]
    thread: bool = True


def Depends(function: Callable[..., Any], *, thread: bool = True) -> Any:  # noqa: N802 - stands where a type would
    """Marks a parameter that a function gives the value of: `db: Annotated[Database, Depends(get_db)]`.

    The function may be async or plain, yield its value and tidy up after it, or make a context manager. It may have
    dependencies of its own and ask for the `Context`. It runs once per call. A plain one that is quick and never
    blocks can say `thread=False`: then it runs on the loop.
    """
    given: Any = function
    if not isinstance(given, Hashable) or not callable(given):
        raise RegistrationError(f"Depends({given!r}): a function is needed")
    return Dependency(function, thread)


class ProviderKind(Enum):
    """How a function gives its value."""

    VALUE = auto()  # returns it
    AWAITED = auto()  # an async function
    GENERATOR = auto()  # yields it once, and goes on when the call has ended
    ASYNC_GENERATOR = auto()
    MANAGER = auto()  # returns a context manager that gives it
    ASYNC_MANAGER = auto()


class DependencyStep(Struct, frozen=True):
    """One function of a plan."""

    function: Callable[..., Any]
    provider_kind: ProviderKind
    thread: bool  # a plain function that may block
    needs: tuple[tuple[str, Callable[..., Any]], ...]  # parameter, and the function that its value comes from
    contexts: tuple[str, ...]  # parameters that the context is given for

    @property
    def synchronous(self) -> bool:
        """Whether nothing about it has to be awaited."""
        return self.provider_kind in {ProviderKind.VALUE, ProviderKind.GENERATOR, ProviderKind.MANAGER}


class DependencyPlan(Struct, frozen=True):
    """What has to be run before a handler, in order; torn down in reverse."""

    before: tuple[DependencyStep, ...]  # before the handler
    on_thread: tuple[DependencyStep, ...]  # on the thread of a plain handler
    sources: tuple[tuple[str, Callable[..., Any]], ...]  # the handler's parameters, and where their values come from
    contexts: tuple[str, ...]  # those of its parameters that the context is given for

    @property
    def wants_context(self) -> bool:
        """Whether any of the functions asks for the context of the call."""
        return any(step.contexts for step in (*self.before, *self.on_thread))


def dependency_of(parameter: inspect.Parameter, annotation: Any) -> Dependency | None:
    """The mark on a parameter, in its annotation or as its default."""
    notes: Iterable[Any] = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    return next((note for note in (*notes, parameter.default) if isinstance(note, Dependency)), None)


def make_plan(
    name: str, marked: Mapping[str, Dependency], contexts: Iterable[str], context: type, *, on_thread: bool
) -> DependencyPlan | None:
    """What a handler with these marked parameters needs; None if that is nothing. Raises `RegistrationError` for
    what depends on itself, and for what could not be called. `on_thread`: the handler is a plain one."""
    if not marked:
        return None
    reader = _DependencyReader(name, context)
    for dependency in marked.values():
        reader.read(dependency, ())
    steps = reader.steps()
    early = _needed_early(steps) if on_thread else {step.function for step in steps}
    return DependencyPlan(
        before=tuple(step for step in steps if step.function in early),
        on_thread=tuple(step for step in steps if step.function not in early),
        sources=tuple((parameter, dependency.function) for parameter, dependency in marked.items()),
        contexts=tuple(contexts),
    )


def _needed_early(steps: list[DependencyStep]) -> set[Callable[..., Any]]:
    """What runs on the loop, and all that it needs: those that need something come later, so they are asked first."""
    early: set[Callable[..., Any]] = set()
    for step in reversed(steps):
        if step.function in early or not (step.synchronous and step.thread):
            early.add(step.function)
            early.update(function for _, function in step.needs)
    return early


class _DependencyReader:
    """Reads dependencies and those of theirs."""

    def __init__(self, asker: str, context: type) -> None:
        self._owner = asker
        self._context = context
        self._steps: dict[Callable[..., Any], DependencyStep] = {}  # in the order in which they can be run
        self._nonblocking: set[Callable[..., Any]] = set()  # those of which somebody says that they never block

    def steps(self) -> list[DependencyStep]:
        """Everything that was read."""
        return [
            DependencyStep(
                step.function, step.provider_kind, step.function not in self._nonblocking, step.needs, step.contexts
            )
            for step in self._steps.values()
        ]

    def read(self, dependency: Dependency, above: tuple[Callable[..., Any], ...]) -> None:
        """Reads one dependency; `above` are those that led to it."""
        function = dependency.function
        if not dependency.thread:
            self._nonblocking.add(function)
        if function in above:
            circle = " -> ".join(map(name_of, (*above[above.index(function) :], function)))
            raise RegistrationError(f"{self._owner}: a dependency depends on itself: {circle}")
        if function in self._steps:
            return
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
        for needed in needs.values():
            self.read(needed, (*above, function))
        sources = tuple((parameter, needed.function) for parameter, needed in needs.items())
        gives = _provider_kind(function, hints.get("return"))
        self._steps[function] = DependencyStep(function, gives, True, sources, tuple(contexts))

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
    wrapped: Any = inspect.unwrap(runs)  # of @contextmanager and its like, a generator
    made = get_origin(returns) or returns
    if inspect.isasyncgenfunction(wrapped) or made is AbstractAsyncContextManager:
        return ProviderKind.ASYNC_MANAGER
    return (
        ProviderKind.MANAGER
        if inspect.isgeneratorfunction(wrapped) or made is AbstractContextManager
        else ProviderKind.VALUE
    )
