"""Lifecycle: initialize and ping, and the `shutdown` of the erlmcp profile."""

from typing import Any

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.types import Empty, InitializeParams
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work
from trunkline.server.connection import Connection

__all__ = ["FEATURE"]


def _initialize(connection: Connection, call: IncomingRequest, params: InitializeParams) -> Work:
    connection.session.own_capabilities = (
        connection.catalog.capabilities()
    )  # current ones: entries may be newer than the connection
    result = connection.session.accept_initialize(params)
    connection.settings = connection.session.settings  # a profile may have other time limits
    connection.report_phase_change(Phase.CONNECTING)
    if connection.durable_session is not None:
        from trunkline.server.access.owner_id import principal_name

        connection.durable_session.owner = principal_name(call.origin.principal)
    return connection.reply_once_persisted(result)


def _ping(connection: Connection, call: IncomingRequest, params: Empty) -> Any:  # noqa: ARG001
    return Empty()


def _shutdown(connection: Connection, call: IncomingRequest, params: Empty) -> Work:  # noqa: ARG001
    """End this session only: refuse new requests, finish the running ones, and close the connection."""
    connection.drain()
    connection.shared.owner.on_client_shutdown(connection)
    return _wait_until_drained(connection)


async def _wait_until_drained(connection: Connection) -> Empty:
    await connection.drain_other_calls(connection.settings.drain_timeout)
    return Empty()


FEATURE = Feature(
    "lifecycle",
    {"initialize": _initialize, "ping": _ping, "shutdown": _shutdown, "notifications/shutdown": _shutdown},
)
