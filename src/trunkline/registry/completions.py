"""Completers, which propose values for one argument of a prompt, a tool or a resource template."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, assert_never, cast

from msgspec import Struct

from trunkline.errors import RegistrationError
from trunkline.errors.suggestions import with_suggestion
from trunkline.protocol.types import CompleteResult, Completion
from trunkline.registry.handlers import Handler, Run, make_runner
from trunkline.registry.prompts import PromptEntry
from trunkline.registry.resources import ResourceEntry, TemplateEntry
from trunkline.registry.results import BadResult
from trunkline.registry.tools import ToolEntry

__all__ = [
    "Completable",
    "CompletionEntry",
    "LabelledResult",
    "completable_arguments",
    "completion_key",
    "empty_completion",
    "make_completion",
    "matching",
]

Completable = PromptEntry | ToolEntry | TemplateEntry | ResourceEntry
"""An entry whose arguments can be completed."""

MAX_VALUES: Final = 100  # completion, "Completion Results"


def completion_key(kind: str, name: str, argument: str) -> str:
    """Return the registry key of a completer."""
    return f"{kind} {name} {argument}"


def completable_arguments(entry: Completable) -> Collection[str]:
    """Return the names of the arguments that can be completed."""
    match entry:
        case PromptEntry():
            return {argument.name for argument in entry.definition.arguments or []}
        case ToolEntry():
            return entry.definition.input_schema.get("properties", {})
        case TemplateEntry():
            return entry.template.variables
        case ResourceEntry():
            return ()
        case _:
            assert_never(entry)


class LabelledResult(CompleteResult):
    """A completion result with labels, in addition to the shape of the specification."""

    completions: list[dict[str, str]]
    has_more: bool
    total: int | None = None

    @classmethod
    def of(cls, found: Completion) -> "LabelledResult":
        """Build a result with both shapes."""
        labels = [{"value": value, "label": value} for value in found.values]
        return cls(found, completions=labels, has_more=bool(found.has_more), total=found.total)


class CompletionEntry(Struct, frozen=True, dict=True):
    """One completer."""

    kind: str  # "prompt", "resource" or "tool"
    name: str  # of the prompt or tool, or the URI template
    argument: str
    handler: Handler

    def __repr__(self) -> str:
        return f"CompletionEntry({self.key!r})"

    @property
    def key(self) -> str:
        """The registry key."""
        return completion_key(self.kind, self.name, self.argument)

    def arguments(self, value: str, context: Mapping[str, str]) -> Any:
        """Return the handler's arguments: the text so far and, if it has a second parameter, the arguments already
        filled in."""
        arguments: dict[str, Any] = {}
        names = [parameter.name for parameter in self.handler.parameters]
        if names:
            arguments[names[0]] = value
        if len(names) > 1:
            arguments[names[1]] = dict(context)
        return self.handler.convert(arguments)

    def find_fault(self, target: Completable | None, known: Iterable[str]) -> str | None:
        """Return why the completer is unreachable, given its current target; None if it is reachable. `known` are the
        possible targets, for a suggestion."""
        what = f"completion of {self.argument!r}: "
        if target is None:
            return with_suggestion(f"{what}there is no {self.kind} {self.name!r}", self.name, known)
        names = completable_arguments(target)
        if self.argument not in names:
            return with_suggestion(f"{what}{self.kind} {self.name!r} has no such argument", self.argument, names)
        return None

    @cached_property
    def run(self) -> Run:
        """Run the completer."""
        return make_runner(self.handler, self.result)

    def result(self, value: Any, labelled: bool) -> CompleteResult:
        """Convert the proposals to a result; with `labelled`, add the other shape."""
        found = self._completion(value)
        return CompleteResult(found) if not labelled else LabelledResult.of(found)

    def _completion(self, value: Any) -> Completion:
        """Return at most 100 values, and their total."""
        if isinstance(value, Completion):
            return value if len(value.values) <= MAX_VALUES else self._completion(value.values)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise BadResult(f"a completer returns a list of strings, not {type(value).__name__}")
        values = [str(item) for item in cast("Sequence[Any]", value)]
        return Completion(values[:MAX_VALUES], len(values), len(values) > MAX_VALUES)


def matching(value: str, candidates: Iterable[str]) -> list[str]:
    """Return the candidates that match the text so far: first those that start with it, then those that contain it.

    Case is ignored, and the order of the candidates is preserved. The result may be longer than a response allows: the
    server sends the first hundred and the total.
    """
    folded_value = value.casefold()
    begin: list[str] = []
    contain: list[str] = []
    for candidate in candidates:
        folded = candidate.casefold()
        if folded.startswith(folded_value):
            begin.append(candidate)
        elif folded_value in folded:
            contain.append(candidate)
    return begin + contain


def empty_completion(labelled: bool) -> CompleteResult:
    """Return a result without proposals."""
    found = Completion([], 0, False)
    return LabelledResult.of(found) if labelled else CompleteResult(found)


def make_completion(kind: str, name: str, argument: str, handler: Handler) -> CompletionEntry:
    """Build a completer from a function of one or two parameters."""
    if len(handler.parameters) > 2:  # noqa: PLR2004 - the text and the dict
        raise RegistrationError(f"completer {handler.name} must take the text so far and maybe a dict of arguments")
    return CompletionEntry(kind, name, argument, handler)
