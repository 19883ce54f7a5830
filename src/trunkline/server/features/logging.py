"""Logging: the minimum level of log messages for a client."""

from typing import TYPE_CHECKING

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.types import LOGGING_LEVELS, Empty, SetLevelParams
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work
from trunkline.server.connection import Connection

if TYPE_CHECKING:
    from trunkline.server.sessions.durable import DurableSession

__all__ = ["FEATURE"]


def _set_level(connection: Connection, call: IncomingRequest, params: SetLevelParams) -> Work:  # noqa: ARG001
    level = LOGGING_LEVELS.index(params.level)
    if connection.durable_session is not None:
        return _set_and_persist(connection, connection.durable_session, level)
    connection.log_level = level
    return Empty()


async def _set_and_persist(connection: Connection, session: "DurableSession", level: int) -> Empty:
    before = connection.log_level

    async def do() -> bool:
        nonlocal before
        before, connection.log_level = connection.log_level, level
        return before != level

    async def undo() -> None:
        connection.log_level = before

    await session.change(do, undo)
    return Empty()


FEATURE = Feature("logging", {"logging/setLevel": _set_level})
