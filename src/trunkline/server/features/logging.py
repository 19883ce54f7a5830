"""Logging: which messages a client wants to hear."""

from trunkline.conversation.dispatch import Feature
from trunkline.conversation.drive import Work
from trunkline.protocol.inflight import Running
from trunkline.protocol.types import LOGGING_LEVELS, Empty, SetLevelParams
from trunkline.server.connection import Connection

__all__ = ["FEATURE"]


def _set_level(connection: Connection, call: Running, params: SetLevelParams) -> Work:  # noqa: ARG001
    connection.log_level = LOGGING_LEVELS.index(params.level)
    return connection.keep(Empty())


FEATURE = Feature("logging", {"logging/setLevel": _set_level})
