"""A completer: proposes values for one argument of a prompt, a tool, or a resource template."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct

from trunkline.errors import RegistrationError
from trunkline.protocol.types import CompleteResult, Completion
from trunkline.registry.handlers import Handler
from trunkline.registry.results import BadResult

__all__ = ["CompletionEntry", "completion_key", "make_completion"]

MAX_VALUES: Final = 100  # completion, "Completion Results"


def completion_key(kind: str, name: str, argument: str) -> str:
    """The key of a completer."""
    return f"{kind} {name} {argument}"


class CompletionEntry(Struct, frozen=True):
    """One completer."""

    kind: str  # "prompt", "resource" or "tool"
    name: str  # of the prompt or tool, or the URI template
    argument: str
    handler: Handler

    @property
    def key(self) -> str:
        """What it completes."""
        return completion_key(self.kind, self.name, self.argument)

    def arguments(self, value: str, context: Mapping[str, str]) -> Any:
        """The handler's arguments: the text so far, and where it asks for them the arguments already filled in."""
        given: dict[str, Any] = {}
        names = [parameter.name for parameter in self.handler.parameters]
        if names:
            given[names[0]] = value
        if len(names) > 1:
            given[names[1]] = dict(context)
        return self.handler.convert(given)

    def result(self, value: Any) -> CompleteResult:
        """What was proposed, as the answer to a request: a hundred values at most, and how many there are."""
        if isinstance(value, CompleteResult):
            return value
        if isinstance(value, Completion):
            return CompleteResult(value)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise BadResult(f"a completer returns a list of strings, not {type(value).__name__}")
        values = [str(item) for item in cast("Sequence[Any]", value)]
        return CompleteResult(Completion(values[:MAX_VALUES], len(values), len(values) > MAX_VALUES))


def make_completion(kind: str, name: str, argument: str, handler: Handler) -> CompletionEntry:
    """A completer made of a function of one or two parameters."""
    if len(handler.parameters) > 2 or any(p.required for p in handler.parameters[2:]):  # noqa: PLR2004
        raise RegistrationError(f"completer {handler.name} takes the text so far and, if it likes, a dict of arguments")
    return CompletionEntry(kind, name, argument, handler)
