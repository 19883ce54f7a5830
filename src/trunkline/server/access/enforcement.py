"""Enforcement of access rules on calls.

The check precedes every other step of a call: before its arguments are decoded, before middleware, which may return
results of its own, and before another round with the client's answers.

Missing scopes are an error at once, since the client can obtain them. If a predicate denies access, a tool call fails
with a result that the model reads; any other call fails with an error.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from trunkline.errors import InsufficientScope, InternalError, NotPermitted, ProtocolError
from trunkline.protocol.inflight import IncomingRequest
from trunkline.registry.access import Access
from trunkline.registry.registry import Registry
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.run_handler import Work, run_work
from trunkline.server.access.rules import AccessControlled, evaluate_predicate, scopes_of
from trunkline.server.context import Context

if TYPE_CHECKING:
    from trunkline.server.call_peer import ConnectedPeer

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
    """A tool call that the tool's predicate denies."""

    kind = "tool_not_allowed"

    def __init__(self, name: str) -> None:
        super().__init__(f"tool {name!r} is not allowed here", data={"name": name})


class ProtectedTarget(Struct, frozen=True):
    """The registry entry that a call needs, if access to it is restricted."""

    entry: Any
    access: Access
    description: str  # of the entry, for error messages
    masking_error: ProtocolError | None = None  # raised for every denial, so that the entry's existence stays secret

    @classmethod
    def for_entry(
        cls, entry: AccessControlled, description: str, masking_error: ProtocolError | None = None
    ) -> "ProtectedTarget | None":
        """Return the target for an entry, or None if access to it is unrestricted."""
        access = entry.access
        return None if access is None or access.unrestricted else cls(entry, access, description, masking_error)


def run_if_authorized(
    connection: "ConnectedPeer", call: IncomingRequest, target: ProtectedTarget, work: Callable[[], Work]
) -> Work:
    """Return the work of a call whose sender has access to its target. Raises `InsufficientScope` at once if scopes are
    missing. A predicate may be async: the returned work evaluates it and raises if it denies access."""
    if call.admitted_entry is target.entry:  # checked already, before the middleware
        return work()
    if not has_scopes(connection, call, target.access):
        raise target.masking_error or InsufficientScope(target.description, target.access.scopes)
    if target.access.allow is not None:
        return _run_if_predicate_allows(connection, call, target, target.access.allow, work)
    call.admitted_entry = target.entry
    return work()


async def _run_if_predicate_allows(
    connection: "ConnectedPeer",
    call: IncomingRequest,
    target: ProtectedTarget,
    allow: Callable[[Any], Any],
    work: Callable[[], Work],
) -> Any:
    if not await evaluate_predicate(partial(allow, Context(connection, call))):
        denial = (
            ToolNotAllowed(target.entry.key)
            if isinstance(target.entry, ToolEntry)
            else NotPermitted(target.description)
        )
        raise target.masking_error or denial
    call.admitted_entry = target.entry
    return await run_work(work(), connection.threads)


def has_scopes(connection: "ConnectedPeer", call: IncomingRequest, access: Access) -> bool:
    """Return whether the sender of a call has the scopes that an access rule requires."""
    return access.is_covered_by(scopes_of(call.origin.principal, local=connection.channel.info.local))


def visible_keys(connection: "ConnectedPeer", call: IncomingRequest, registry: Registry[Any]) -> Iterator[str]:
    """Yield the keys of enabled entries that the sender may see, without those that need a predicate."""
    for entry in registry:
        access: Access | None = entry.access
        if access is None or (access.allow is None and has_scopes(connection, call, access)):
            yield entry.key


async def evaluate_predicates(
    connection: "ConnectedPeer", call: IncomingRequest, predicates: Iterable[Callable[[Any], Any]]
) -> dict[Callable[[Any], Any], bool]:
    """Evaluate predicates for the sender of a call. A predicate that raises denies access; observers get the error."""
    context, results = Context(connection, call), dict[Callable[[Any], Any], bool]()
    for predicate in predicates:
        try:
            results[predicate] = await evaluate_predicate(partial(predicate, context))
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a call would fail as well
            results[predicate] = False
            if not isinstance(error, ProtocolError):  # a predicate may deny access by raising one
                connection.facts.report_failure(call, "-", error)
    return results


async def is_permitted(connection: "ConnectedPeer", call: IncomingRequest, access: Access) -> bool:
    """Return whether the sender of a call has access, for messages that are not the response to the call."""
    if not has_scopes(connection, call, access):
        return False
    if access.allow is None:
        return True
    return (await evaluate_predicates(connection, call, [access.allow]))[access.allow]
