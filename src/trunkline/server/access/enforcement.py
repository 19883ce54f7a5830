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
from trunkline.protocol.inflight import Running
from trunkline.registry.access import Access
from trunkline.registry.registry import Registry
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.run_handler import Work, perform
from trunkline.server.access.rules import Ruled, held_by, holds
from trunkline.server.connection import Connection
from trunkline.server.context import Context

__all__ = ["ToolNotAllowed", "Wanted", "admitted", "answers", "covered", "may_have", "visible"]


class ToolNotAllowed(InternalError):
    """A call that its tool does not admit."""

    kind = "tool_not_allowed"

    def __init__(self, name: str) -> None:
        super().__init__(f"tool {name!r} is not allowed here", data={"name": name})


class Wanted(Struct, frozen=True):
    """What a call is about, where not everybody may have that."""

    entry: Any
    access: Access
    what: str  # the same, in words
    hidden: ProtocolError | None = None  # is raised whatever is missing, where nothing shall be told

    @classmethod
    def of(cls, entry: Ruled, what: str, hidden: ProtocolError | None = None) -> "Wanted | None":
        """None where everybody may have it."""
        access = entry.access
        return None if access is None or access.open else cls(entry, access, what, hidden)


def admitted(connection: Connection, call: Running, wanted: Wanted, work: Callable[[], Work]) -> Work:
    """The work of a call whose sender may have what it is about. Raises for one who has not the scopes; one who is
    refused by a predicate, which may take time to find out, learns that from what is given back."""
    if call.admitted is wanted.entry:  # on its way in, before what goes around it
        return work()
    if not covered(connection, call, wanted.access):
        raise wanted.hidden or InsufficientScope(wanted.what, wanted.access.scopes)
    if wanted.access.allow is not None:
        return _asked(connection, call, wanted, wanted.access.allow, work)
    call.admitted = wanted.entry
    return work()


async def _asked(
    connection: Connection, call: Running, wanted: Wanted, allow: Callable[[Any], Any], work: Callable[[], Work]
) -> Any:
    if not await holds(partial(allow, Context(connection, call))):
        refused = ToolNotAllowed(wanted.entry.key) if isinstance(wanted.entry, ToolEntry) else NotPermitted(wanted.what)
        raise wanted.hidden or refused
    call.admitted = wanted.entry
    return await perform(work(), connection.threads)


def covered(connection: Connection, call: Running, access: Access) -> bool:
    """Whether the sender of a call has the scopes."""
    return access.covered(held_by(call.origin.principal, local=connection.channel.info.local))


def visible(connection: Connection, call: Running, registry: Registry[Any]) -> Iterator[str]:
    """The keys of enabled entries that the sender of a call may see for certain, without asking any predicate."""
    for entry in registry:
        access: Access | None = entry.access
        if access is None or (access.allow is None and covered(connection, call, access)):
            yield entry.key


async def answers(
    connection: Connection, call: Running, predicates: Iterable[Callable[[Any], Any]]
) -> dict[Callable[[Any], Any], bool]:
    """What predicates say of the sender of a call. Where one fails that is a no, and its reason is the operator's."""
    context, found = Context(connection, call), dict[Callable[[Any], Any], bool]()
    for predicate in predicates:
        try:
            found[predicate] = await holds(partial(predicate, context))
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a call would fail, too
            found[predicate] = False
            if not isinstance(error, ProtocolError):  # which is how a predicate says no in its own words
                connection.report_failure(call, "-", error)
    return found


async def may_have(connection: Connection, call: Running, access: Access) -> bool:
    """Whether the sender of a call may have something, for what is not an answer to the call."""
    if not covered(connection, call, access):
        return False
    if access.allow is None:
        return True
    return (await answers(connection, call, [access.allow]))[access.allow]
