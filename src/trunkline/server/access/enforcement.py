"""Lets a call through to what it is about, or not. That comes before anything else of the call: before its arguments
are read, before middleware, which may have answers of its own, and before it is run again with answers of its client.

Scopes that are missing are an error at once, since a client can do something about that. Where a predicate says no, a
tool has a failed result, for the model to read, and anything else an error.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from msgspec import Struct

from trunkline.errors import InsufficientScope, InternalError, NotPermitted, ProtocolError
from trunkline.protocol.inflight import IncomingRequest
from trunkline.registry.access import Access
from trunkline.registry.registry import Registry
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.run_handler import Work, run_work
from trunkline.server.access.rules import AccessControlled, evaluate_predicate, scopes_of
from trunkline.server.connection import Connection
from trunkline.server.context import Context

__all__ = [
    "ProtectedTarget",
    "ToolNotAllowed",
    "evaluate_predicates",
    "has_scopes",
    "is_permitted",
    "run_if_authorized",
    "visible_keys",
]


class ToolNotAllowed(InternalError):
    """A call that its tool does not admit."""

    kind = "tool_not_allowed"

    def __init__(self, name: str) -> None:
        super().__init__(f"tool {name!r} is not allowed here", data={"name": name})


class ProtectedTarget(Struct, frozen=True):
    """What a call is about, where not everybody may have that."""

    entry: Any
    access: Access
    description: str  # the same, in words
    masking_error: ProtocolError | None = None  # is raised whatever is missing, where nothing shall be told

    @classmethod
    def for_entry(
        cls, entry: AccessControlled, description: str, masking_error: ProtocolError | None = None
    ) -> "ProtectedTarget | None":
        """None where everybody may have it."""
        access = entry.access
        return None if access is None or access.unrestricted else cls(entry, access, description, masking_error)


def run_if_authorized(
    connection: Connection, call: IncomingRequest, target: ProtectedTarget, work: Callable[[], Work]
) -> Work:
    """The work of a call whose sender may have what it is about. Raises for one who has not the scopes; one who is
    refused by a predicate, which may take time to find out, learns that from what is given back."""
    if call.admitted_entry is target.entry:  # on its way in, before what goes around it
        return work()
    if not has_scopes(connection, call, target.access):
        raise target.masking_error or InsufficientScope(target.description, target.access.scopes)
    if target.access.allow is not None:
        return _run_if_predicate_allows(connection, call, target, target.access.allow, work)
    call.admitted_entry = target.entry
    return work()


async def _run_if_predicate_allows(
    connection: Connection,
    call: IncomingRequest,
    target: ProtectedTarget,
    allow: Callable[[Any], Any],
    work: Callable[[], Work],
) -> Any:
    if not await evaluate_predicate(partial(allow, Context(connection, call))):
        refused = (
            ToolNotAllowed(target.entry.key)
            if isinstance(target.entry, ToolEntry)
            else NotPermitted(target.description)
        )
        raise target.masking_error or refused
    call.admitted_entry = target.entry
    return await run_work(work(), connection.threads)


def has_scopes(connection: Connection, call: IncomingRequest, access: Access) -> bool:
    """Whether the sender of a call has the scopes."""
    return access.is_covered_by(scopes_of(call.origin.principal, local=connection.channel.info.local))


def visible_keys(connection: Connection, call: IncomingRequest, registry: Registry[Any]) -> Iterator[str]:
    """The keys of enabled entries that the sender of a call may see for certain, without asking any predicate."""
    for entry in registry:
        access: Access | None = entry.access
        if access is None or (access.allow is None and has_scopes(connection, call, access)):
            yield entry.key


async def evaluate_predicates(
    connection: Connection, call: IncomingRequest, predicates: Iterable[Callable[[Any], Any]]
) -> dict[Callable[[Any], Any], bool]:
    """What predicates say of the sender of a call. Where one fails that is a no, and its reason is the operator's."""
    context, found = Context(connection, call), dict[Callable[[Any], Any], bool]()
    for predicate in predicates:
        try:
            found[predicate] = await evaluate_predicate(partial(predicate, context))
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a call would fail, too
            found[predicate] = False
            if not isinstance(error, ProtocolError):  # which is how a predicate says no in its own words
                connection.facts.report_failure(call, "-", error)
    return found


async def is_permitted(connection: Connection, call: IncomingRequest, access: Access) -> bool:
    """Whether the sender of a call may have something, for what is not an answer to the call."""
    if not has_scopes(connection, call, access):
        return False
    if access.allow is None:
        return True
    return (await evaluate_predicates(connection, call, [access.allow]))[access.allow]
