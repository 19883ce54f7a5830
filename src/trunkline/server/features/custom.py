"""Methods outside of the specification, which the server has handlers for."""

from functools import partial
from typing import Any

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import progress_token
from trunkline.registry.methods import MethodEntry, decode_params, read_meta
from trunkline.rpc.dispatch import CustomMethod
from trunkline.rpc.run_handler import Work
from trunkline.server.access.enforcement import ProtectedTarget, run_if_authorized
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.context import Context

__all__ = ["find_custom", "find_protected"]


def find_custom(catalog: ServerCatalog, name: str) -> CustomMethod | None:
    """Return the method of a name, if the server has one."""
    entry = catalog.methods.live.get(name)
    return None if entry is None else CustomMethod(entry.row, decode_params, partial(_handle, entry))


def find_protected(catalog: ServerCatalog, name: str) -> ProtectedTarget | None:
    """Return a method if it has an access rule."""
    entry = catalog.methods.live.get(name)
    return None if entry is None else _protected(entry)


def _protected(entry: MethodEntry) -> ProtectedTarget | None:
    return ProtectedTarget.for_entry(entry, f"method {entry.key!r}")


def _handle(entry: MethodEntry, connection: Connection, call: IncomingRequest, params: dict[str, Any]) -> Work:
    if entry.timeout is not None:
        connection.set_call_timeout(call, entry.timeout)
    work = partial(_run, entry, connection, call, params)
    asked = _protected(entry)
    return work() if asked is None else run_if_authorized(connection, call, asked, work)


def _run(entry: MethodEntry, connection: Connection, call: IncomingRequest, params: dict[str, Any]) -> Work:
    meta = read_meta(params)
    call.token = progress_token(meta)
    connection.shorten_deadline(call, meta)
    context = Context(connection, call) if entry.handler.wants_context else None
    return entry.run(entry.arguments(params), context, None)
