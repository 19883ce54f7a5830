"""Completion: proposals for the arguments of prompts, resource templates and tools."""

from trunkline.conversation.dispatch import Feature
from trunkline.conversation.drive import Work
from trunkline.errors import CompletionNotFound, InvalidParams
from trunkline.protocol.inflight import Running
from trunkline.protocol.types import CompleteParams, Reference
from trunkline.registry.completions import completion_key, no_completion
from trunkline.server.connection import Connection
from trunkline.server.context import Context

__all__ = ["FEATURE"]


def _complete(connection: Connection, call: Running, params: CompleteParams) -> Work:
    kind, name = _target(params.ref)
    known = _arguments_of(connection, kind, name)
    if known is None:
        raise CompletionNotFound(name)
    argument = params.argument
    if argument.name not in known:
        raise InvalidParams(
            f"{name!r} has no argument {argument.name!r}",
            data={"kind": "invalid_completion_argument", "argument": argument.name},
        )
    labelled = not params.ref.type.startswith("ref/")
    entry = connection.offer.completions.live.get(completion_key(kind, name, argument.name))
    if entry is None:
        return no_completion(labelled)
    filled = (params.context.arguments if params.context is not None else None) or {}
    context = Context(connection, call) if entry.handler.wants_context else None
    return entry.run(entry.arguments(argument.value, filled), context, labelled)


def _target(ref: Reference) -> tuple[str, str]:
    """What is being completed. The prefix of the type may be left out, as some peers do."""
    kind = ref.type.removeprefix("ref/")
    name = ref.uri if kind == "resource" else ref.name
    if kind not in {"prompt", "resource", "tool"} or name is None:
        raise InvalidParams(
            f"a completion reference is ref/prompt with a name or ref/resource with a uri, not {ref.type!r}",
            data={"kind": "invalid_completion_reference"},
        )
    return kind, name


def _arguments_of(connection: Connection, kind: str, name: str) -> set[str] | None:
    """The names of what can be completed; None if there is no such thing."""
    offer = connection.offer
    if kind == "prompt":
        prompt = offer.prompts.get(name)
        return None if prompt is None else {argument.name for argument in prompt.definition.arguments or []}
    if kind == "tool":
        tool = offer.tools.get(name)
        return None if tool is None else set(tool.definition.input_schema.get("properties", {}))
    template = offer.templates.get(name)
    if template is not None:
        return set(template.template.variables)
    return set() if name in offer.resources else None


FEATURE = Feature("completion", {"completion/complete": _complete})
