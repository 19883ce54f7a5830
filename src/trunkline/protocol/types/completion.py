"""Completion: proposals for the value of an argument."""

from trunkline.protocol.types.base import Params, Result, Wire

__all__ = [
    "CompleteParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "Reference",
]


class Reference(Wire):
    """The target of a completion: `ref/prompt` by its name, or `ref/resource` by its URI template."""

    type: str
    name: str | None = None
    uri: str | None = None
    title: str | None = None


class CompletionArgument(Wire):
    """The argument to complete, and its text so far."""

    name: str
    value: str


class CompletionContext(Wire):
    """The arguments that already have values."""

    arguments: dict[str, str] | None = None


class CompleteParams(Params):
    """Params of `completion/complete`."""

    ref: Reference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(Wire):
    """Proposed values, the best first; a hundred at most."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result):
    """Result of `completion/complete`."""

    completion: Completion
