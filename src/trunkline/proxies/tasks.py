"""Tasks of the server behind a proxy. Their methods pass unchanged; both sides use the same era, and so its dialect."""

from functools import partial
from typing import Any, Final

from msgspec import Raw

from trunkline.client.retry import always_repeatable, never_repeatable
from trunkline.protocol.inflight import IncomingRequest
from trunkline.proxies.forward import Forwarder
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work
from trunkline.server.access.owner_id import principal_name
from trunkline.server.connection import Connection

__all__ = ["tasks_feature"]

_METHODS: Final = {
    "tasks/get": always_repeatable,
    "tasks/result": always_repeatable,
    "tasks/list": always_repeatable,
    "tasks/cancel": always_repeatable,
    "tasks/update": never_repeatable,
}


def tasks_feature(forwarder: Forwarder) -> Feature:
    """Return the handlers of all methods for tasks."""
    return Feature("tasks", {name: partial(_forward, forwarder, name) for name in _METHODS})


def _forward(forwarder: Forwarder, name: str, connection: Connection, call: IncomingRequest, params: Any) -> Work:
    if params.meta is not None:
        connection.shorten_deadline(call, params.meta)
    principal = call.origin.principal
    if principal is None:
        return forwarder.forward(connection, call, params, _METHODS[name])
    if name == "tasks/list":
        return _list_own(forwarder, connection, call, params)
    forwarder.task_owners.check(params.task_id, principal_name(principal))
    return forwarder.forward(connection, call, params, _METHODS[name])


async def _list_own(forwarder: Forwarder, connection: Connection, call: IncomingRequest, params: Any) -> Raw:
    result = await forwarder.forward(connection, call, params).run()
    return forwarder.task_owners.filter_list(result, principal_name(call.origin.principal))
