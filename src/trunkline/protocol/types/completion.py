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
    """Names what is being filled in: `ref/prompt` by its name, or `ref/resource` by its URI template."""

    type: str
    name: str | None = None
    uri: str | None = None
    title: str | None = None


class CompletionArgument(Wire):
    """The argument being filled in, and what was typed so far."""

    name: str
    value: str


class CompletionContext(Wire):
    """The arguments that are filled in already."""

    arguments: dict[str, str] | None = None


class CompleteParams(Params):
    """Asks how an argument could go on."""

    ref: Reference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(Wire):
    """Proposed values, the best first; a hundred at most."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result):
    """The proposals."""

    completion: Completion
