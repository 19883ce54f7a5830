"""Lifecycle: initialize and ping."""

from typing import Any

from trunkline.conversation.dispatch import Feature
from trunkline.protocol.inflight import Running
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.types import Empty, InitializeParams, InitializeResult
from trunkline.server.connection import Connection

__all__ = ["FEATURE"]


def _initialize(connection: Connection, call: Running, params: InitializeParams) -> InitializeResult:  # noqa: ARG001
    connection.session.offered = connection.offer.capabilities()  # as they are now, not when the line was opened
    result = connection.session.initialize(params)
    connection.phase_changed(Phase.CONNECTING)
    return result


def _ping(connection: Connection, call: Running, params: Empty) -> Any:  # noqa: ARG001
    return Empty()


FEATURE = Feature("lifecycle", {"initialize": _initialize, "ping": _ping})
