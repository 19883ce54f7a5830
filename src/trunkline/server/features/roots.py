"""Roots: notification that the roots of a client have changed."""

import asyncio

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.types import Empty
from trunkline.rpc.dispatch import Feature
from trunkline.server.connection import Connection
from trunkline.server.context import Context

__all__ = ["FEATURE"]


async def _roots_changed(connection: Connection, call: IncomingRequest, params: Empty) -> None:  # noqa: ARG001
    for callback in connection.shared.on_roots_changed:
        try:
            await callback(Context(connection, call))
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the other callbacks must still run
            connection.facts.report_failure(call, "-", error)


FEATURE = Feature("roots", {"notifications/roots/list_changed": _roots_changed})
