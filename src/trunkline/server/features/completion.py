"""Completion: values for the arguments of prompts, resource templates and tools."""

from functools import partial

from trunkline.errors import CompletionNotFound, InvalidParams
from trunkline.errors.suggestions import with_suggestion
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.types import CompleteParams, Reference
from trunkline.registry.completions import Completable, completable_arguments, completion_key, empty_completion
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work
from trunkline.server.access.enforcement import ProtectedTarget, run_if_authorized
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.context import Context

__all__ = ["FEATURE", "find_protected"]


def find_protected(catalog: ServerCatalog, params: CompleteParams) -> ProtectedTarget | None:
    """Return the target of a completion if it has an access rule. Callers without access get "not found"."""
    kind, name = _parse_reference(params.ref)
    entry = catalog.find_completion_target(kind, name)
    return None if entry is None else _protected(entry, name)


def _protected(entry: Completable, name: str) -> ProtectedTarget | None:
    return ProtectedTarget.for_entry(entry, repr(name), CompletionNotFound(name))


def _complete(connection: Connection, call: IncomingRequest, params: CompleteParams) -> Work:
    kind, name = _parse_reference(params.ref)
    entry = connection.catalog.find_completion_target(kind, name)
    if entry is None:
        raise CompletionNotFound(name)
    if entry.access is not None and (asked := _protected(entry, name)) is not None:
        return run_if_authorized(
            connection, call, asked, partial(_run, entry, connection, call, params, kind=kind, name=name)
        )
    return _run(entry, connection, call, params, kind=kind, name=name)


def _run(
    target: Completable, connection: Connection, call: IncomingRequest, params: CompleteParams, *, kind: str, name: str
) -> Work:
    if params.meta is not None:
        connection.shorten_deadline(call, params.meta)
    argument = params.argument
    names = completable_arguments(target)
    if argument.name not in names:
        raise InvalidParams(
            with_suggestion(f"{name!r} has no argument {argument.name!r}", argument.name, names),
            data={"kind": "invalid_completion_argument", "argument": argument.name},
        )
    labelled = not params.ref.type.startswith("ref/")
    entry = connection.catalog.completions.live.get(completion_key(kind, name, argument.name))
    if entry is None:
        return empty_completion(labelled)
    if entry.forward is not None:
        return entry.forward(connection, call, params, name)
    filled = (params.context.arguments if params.context is not None else None) or {}
    context = Context(connection, call) if entry.handler.wants_context else None
    return entry.run(entry.arguments(argument.value, filled), context, labelled)


def _parse_reference(ref: Reference) -> tuple[str, str]:
    """Return kind and name of the target. Some peers omit the prefix of the type, and then refer to a
    template by name."""
    kind = ref.type.removeprefix("ref/")
    name = ref.uri if kind == "resource" and (ref.uri is not None or kind != ref.type) else ref.name
    if kind not in {"prompt", "resource", "tool"} or name is None:
        raise InvalidParams(
            f"a completion reference is ref/prompt with a name or ref/resource with a uri, not {ref.type!r}",
            data={"kind": "invalid_completion_reference"},
        )
    return kind, name


FEATURE = Feature("completion", {"completion/complete": _complete})
