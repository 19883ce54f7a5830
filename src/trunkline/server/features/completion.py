"""Completion: proposals for the arguments of prompts, resource templates and tools."""

from collections.abc import Container
from functools import partial
from typing import assert_never

from trunkline.conversation.dispatch import Feature
from trunkline.conversation.drive import Work
from trunkline.errors import CompletionNotFound, InvalidParams
from trunkline.protocol.inflight import Running
from trunkline.protocol.types import CompleteParams, Reference
from trunkline.registry.completions import completion_key, no_completion
from trunkline.registry.prompts import PromptEntry
from trunkline.registry.resources import ResourceEntry, TemplateEntry
from trunkline.registry.tools import ToolEntry
from trunkline.server.admission import Wanted, admitted
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.offer import Offer

__all__ = ["FEATURE", "wanted"]

Completed = PromptEntry | ToolEntry | TemplateEntry | ResourceEntry
"""What has arguments, or could have some."""


def wanted(offer: Offer, params: CompleteParams) -> Wanted | None:
    """What is being completed, if it is not for everybody. To others it is not there."""
    kind, name = _target(params.ref)
    entry = _entry(offer, kind, name)
    return None if entry is None else _wanted(entry, name)


def _wanted(entry: Completed, name: str) -> Wanted | None:
    return Wanted.of(entry, repr(name), CompletionNotFound(name))


def _complete(connection: Connection, call: Running, params: CompleteParams) -> Work:
    kind, name = _target(params.ref)
    entry = _entry(connection.offer, kind, name)
    if entry is None:
        raise CompletionNotFound(name)
    if entry.access is not None and (asked := _wanted(entry, name)) is not None:
        return admitted(connection, call, asked, partial(_run, entry, connection, call, params, kind=kind, name=name))
    return _run(entry, connection, call, params, kind=kind, name=name)


def _run(
    target: Completed, connection: Connection, call: Running, params: CompleteParams, *, kind: str, name: str
) -> Work:
    argument = params.argument
    if argument.name not in _arguments_of(target):
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
    """What is being completed. Some peers leave out the prefix of the type, and then give a template by
    its name as well."""
    kind = ref.type.removeprefix("ref/")
    name = ref.uri if kind == "resource" and (ref.uri is not None or kind != ref.type) else ref.name
    if kind not in {"prompt", "resource", "tool"} or name is None:
        raise InvalidParams(
            f"a completion reference is ref/prompt with a name or ref/resource with a uri, not {ref.type!r}",
            data={"kind": "invalid_completion_reference"},
        )
    return kind, name


def _entry(offer: Offer, kind: str, name: str) -> Completed | None:
    """What is being completed; None if there is no such thing."""
    if kind == "prompt":
        return offer.prompts.get(name)
    if kind == "tool":
        return offer.tools.get(name)
    return offer.templates.get(name) or offer.resources.get(name)


def _arguments_of(entry: Completed) -> Container[str]:
    """The names of what can be completed."""
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


FEATURE = Feature("completion", {"completion/complete": _complete})
