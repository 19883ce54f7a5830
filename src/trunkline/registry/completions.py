"""Completers, which propose values for one argument of a prompt, a tool or a resource template.

A proposal is a value, or a pair of a value and a label. Every reply has the values; a reply in the shape of the
founding documents has the labels, too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar, assert_never, cast

from msgspec import Struct

from trunkline.errors import RegistrationError
from trunkline.errors.options import describe_value
from trunkline.errors.suggestions import with_suggestion
from trunkline.protocol.types import CompleteResult, Completion
from trunkline.registry.handlers import Forward, Handler, Run, make_runner
from trunkline.registry.prompts import PromptEntry
from trunkline.registry.resources import ResourceEntry, TemplateEntry
from trunkline.registry.results import BadResult
from trunkline.registry.tools import ToolEntry

__all__ = [
    "Completable",
    "CompletionEntry",
    "LabelledResult",
    "Proposal",
    "completable_arguments",
    "completion_key",
    "empty_completion",
    "make_completion",
    "matching",
]

Completable = PromptEntry | ToolEntry | TemplateEntry | ResourceEntry
"""An entry whose arguments can be completed."""

Proposal = str | tuple[str, str]
"""A value, or a value and its label."""

P = TypeVar("P", bound=Proposal)

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
    def of(cls, found: Completion, labels: Sequence[str]) -> "LabelledResult":
        """Build a result with both shapes. Each value has a label."""
        labelled = [{"value": value, "label": label} for value, label in zip(found.values, labels, strict=True)]
        return cls(found, completions=labelled, has_more=bool(found.has_more), total=found.total)


class CompletionEntry(Struct, frozen=True, dict=True):
    """One completer."""

    kind: str  # "prompt", "resource" or "tool"
    name: str  # of the prompt or tool, or the URI template
    argument: str
    handler: Handler
    forward: Forward | None = None  # answers its requests through another server

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
        """Convert the proposals to a result with at most 100 values; with `labelled`, add the other shape."""
        given: Any = value.values if isinstance(value, Completion) else value
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise self._bad_result("a list of strings", given)
        proposals = cast("Sequence[Any]", given)
        pairs = [self._read_proposal(proposal) for proposal in proposals[:MAX_VALUES]]
        found = Completion([text for text, _ in pairs], len(proposals), len(proposals) > MAX_VALUES)
        if isinstance(value, Completion) and len(proposals) <= MAX_VALUES:
            found.total, found.has_more = value.total, value.has_more
        return LabelledResult.of(found, [label for _, label in pairs]) if labelled else CompleteResult(found)

    def _read_proposal(self, proposal: Any) -> tuple[str, str]:
        """Return the value and the label of a proposal. Numbers become text."""
        if isinstance(proposal, str):
            return proposal, proposal
        if _is_number(proposal):
            return str(proposal), str(proposal)
        if isinstance(proposal, tuple):
            match cast("tuple[Any, ...]", proposal):
                case (value, str(label)) if isinstance(value, str) or _is_number(value):
                    return str(value), label
                case _:
                    pass
        raise self._bad_result("strings, or pairs of a value and a label, in its list", proposal)

    def _bad_result(self, expected: str, value: Any) -> BadResult:
        what = f"completer {self.handler.name!r} of argument {self.argument!r} in {self.kind} {self.name!r}"
        return BadResult(f"{what} must return {expected}, not {describe_value(value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def matching(value: str, candidates: Iterable[P]) -> list[P]:
    """Return the candidates that match the text so far: first those that start with it, then those that contain it. A
    candidate with a label matches by its value or by its label.

    Case is ignored, and the order of the candidates is preserved. The result may be longer than a response allows: the
    server sends the first hundred and the total.
    """
    folded_value = value.casefold()
    begin: list[P] = []
    contain: list[P] = []
    for candidate in candidates:
        texts = [text.casefold() for text in ((candidate,) if isinstance(candidate, str) else candidate)]
        if any(text.startswith(folded_value) for text in texts):
            begin.append(candidate)
        elif any(folded_value in text for text in texts):
            contain.append(candidate)
    return begin + contain


def empty_completion(labelled: bool) -> CompleteResult:
    """Return a result without proposals."""
    found = Completion([], 0, False)
    return LabelledResult.of(found, []) if labelled else CompleteResult(found)


def make_completion(kind: str, name: str, argument: str, handler: Handler) -> CompletionEntry:
    """Build a completer from a function of one or two parameters."""
    if len(handler.parameters) > 2:  # noqa: PLR2004 - the text and the dict
        raise RegistrationError(f"completer {handler.name} must take the text so far and maybe a dict of arguments")
    return CompletionEntry(kind, name, argument, handler)
