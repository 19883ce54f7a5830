"""Tools: listed and called."""

from functools import partial
from typing import Any

from msgspec import Raw

from trunkline.conversation.dispatch import Feature
from trunkline.conversation.drive import Work
from trunkline.conversation.threads import Threads
from trunkline.errors import HeaderMismatch, InternalError, MissingCapability, ToolNotFound
from trunkline.protocol.capabilities import declared
from trunkline.protocol.envelope import Envelope
from trunkline.protocol.headers import param_mismatch
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import progress_token
from trunkline.protocol.types import NO_ARGUMENTS, CallToolParams, PaginatedParams
from trunkline.registry.tools import ToolEntry
from trunkline.server.admission import Wanted, admitted
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.limits import Guard
from trunkline.server.listing import listed
from trunkline.server.offer import Offer
from trunkline.server.rounds import begin
from trunkline.wire.codec import DecodeError, as_written, decoder

__all__ = ["FEATURE", "wanted"]


read_object = decoder(dict[str, Any])


class ToolDisabled(InternalError):
    """A call of a tool that is switched off."""

    kind = "tool_is_disabled"

    def __init__(self, name: str) -> None:
        super().__init__(f"tool {name!r} is disabled", data={"name": name})


def _list(connection: Connection, call: Running, params: PaginatedParams) -> Work:
    return listed(connection, call, params, connection.offer.tools)


def wanted(offer: Offer, params: CallToolParams) -> Wanted | None:
    """The tool that a call is about, if not everybody may call it."""
    entry = offer.tools.live.get(params.name)
    return None if entry is None else _wanted(entry)


def _wanted(entry: ToolEntry) -> Wanted | None:
    return Wanted.of(entry, f"tool {entry.name!r}")


def _call(connection: Connection, call: Running, params: CallToolParams) -> Work:
    tools = connection.offer.tools
    entry = tools.live.get(params.name)
    if entry is None:
        raise ToolDisabled(params.name) if params.name in tools else ToolNotFound(params.name)
    if entry.timeout is not None:
        connection.limit(call, entry.timeout)
    if entry.access is not None and (asked := _wanted(entry)) is not None:
        return admitted(connection, call, asked, partial(_run, entry, connection, call, params))
    return _run(entry, connection, call, params)


def _run(entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams) -> Work:
    if params.meta is not None:
        call.token = progress_token(params.meta)
    if call.envelope is not None:
        _begin(entry, connection, call, params, call.envelope)
    arguments = _arguments(entry, params)
    context = Context(connection, call) if entry.handler.wants_context else None
    if entry.guard is not None:
        return _guarded(entry, entry.guard, arguments, context, connection.threads)
    return entry.run(arguments, context, None)


def _guarded(entry: ToolEntry, guard: Guard, arguments: Any, context: Context | None, threads: Threads) -> Work:
    """A call that may have to wait, or be refused."""
    return guard.run(arguments, lambda read: entry.run(read, context, None), threads)


def _begin(entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams, said: Envelope) -> None:
    """What is looked at before a call of the modern era: the headers that repeat its arguments, what its client can
    be asked, and what it has been asked already."""
    if call.origin.named is not None and entry.mirrors:  # it came with headers of its own
        why = param_mismatch(entry.mirrors, _object(params), call.origin.headers)
        if why is not None:
            raise HeaderMismatch(why)
    for capability in entry.asks:
        if not declared(said.capabilities, capability):
            raise MissingCapability(capability)
    begin(connection, call, params)
    call.natural = entry.output.wraps


def _object(params: CallToolParams) -> dict[str, Any]:
    """The arguments by name; none if they are no object, which is told of later."""
    try:
        return read_object(as_written(params.arguments))
    except DecodeError:
        return {}


def _arguments(entry: ToolEntry, params: CallToolParams) -> Any:
    given = params.arguments
    try:
        return entry.decode(given) if type(given) is Raw else entry.decode_plain(given)
    except (DecodeError, RecursionError) as error:
        given = as_written(given)
        missing = bytes(given) == b"null"  # which some clients send for no arguments at all
        return _without_arguments(entry) if missing else entry.reread(given, error)


def _without_arguments(entry: ToolEntry) -> object:
    try:
        return entry.decode(NO_ARGUMENTS)
    except DecodeError as error:
        raise entry.refusal(NO_ARGUMENTS, error) from None


FEATURE = Feature("tools", {"tools/list": _list, "tools/call": _call})
