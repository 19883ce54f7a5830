"""Prompts: list and render."""

from functools import partial

from trunkline.errors import PromptNotFound
from trunkline.facts import PromptStep
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import progress_token
from trunkline.protocol.types import GetPromptParams, PaginatedParams
from trunkline.registry.prompts import PromptEntry, Rendering
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work
from trunkline.server.access.enforcement import ProtectedTarget, run_if_authorized, visible_keys
from trunkline.server.access.filtered_lists import list_page
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.input.multi_round import begin_round

__all__ = ["FEATURE", "find_protected"]


def _list(connection: Connection, call: IncomingRequest, params: PaginatedParams) -> Work:
    return list_page(connection, call, params, connection.catalog.prompts)


def find_protected(catalog: ServerCatalog, params: GetPromptParams) -> ProtectedTarget | None:
    """Return the prompt of a request if it has an access rule."""
    entry = catalog.prompts.live.get(params.name)
    return None if entry is None else _protected(entry)


def _protected(entry: PromptEntry) -> ProtectedTarget | None:
    return ProtectedTarget.for_entry(entry, f"prompt {entry.key!r}")


def _get(connection: Connection, call: IncomingRequest, params: GetPromptParams) -> Work:
    prompts = connection.catalog.prompts
    entry = prompts.live.get(params.name)
    if entry is None:
        raise PromptNotFound(params.name, visible_keys(connection, call, prompts))
    if entry.access is not None and (asked := _protected(entry)) is not None:
        return run_if_authorized(connection, call, asked, partial(_admit, entry, connection, call, params))
    return _admit(entry, connection, call, params)


def _admit(entry: PromptEntry, connection: Connection, call: IncomingRequest, params: GetPromptParams) -> Work:
    if entry.rate is None:
        return _run(entry, connection, call, params)
    start, limits = partial(_run, entry, connection, call, params), connection.shared.get_rate_limits()
    return limits.run_within("prompt", entry.key, entry.rate, start, connection.threads)


def _run(entry: PromptEntry, connection: Connection, call: IncomingRequest, params: GetPromptParams) -> Work:
    if params.meta is not None:
        call.token = progress_token(params.meta)
        connection.shorten_deadline(call, params.meta)
    if entry.forward is not None:
        return entry.forward(connection, call, params, params.arguments)
    if call.envelope is not None:
        begin_round(connection, call, params)
    context = Context(connection, call) if entry.wants_context else None
    if connection.facts.observed:
        return _run_observed(entry, context, connection, call, params)
    if connection.session.profile is not None:
        return entry.run(
            entry.arguments(params.arguments or {}), context, Rendering(roles=_more_roles(connection, call))
        )
    return entry.run(entry.arguments(params.arguments or {}), context, None)


def _run_observed(
    entry: PromptEntry, context: Context | None, connection: Connection, call: IncomingRequest, params: GetPromptParams
) -> Work:
    """Run a prompt and report each step to the observers."""
    tell = partial(connection.facts.emit, PromptStep, request=call.id, name=params.name)
    tell(step="ProcessArguments")
    arguments = entry.arguments(params.arguments or {})
    tell(step="RenderTemplate")
    rendering = Rendering(partial(tell, step="GenerateMessages"), _more_roles(connection, call))
    return entry.run(arguments, context, rendering)


def _more_roles(connection: Connection, call: IncomingRequest) -> tuple[str, ...]:
    """Return the roles that messages may have besides those of the specification."""
    profile = connection.session.profile_of(call)
    return ("system",) if profile is not None and profile.system_role else ()


FEATURE = Feature("prompts", {"prompts/list": _list, "prompts/get": _get})
