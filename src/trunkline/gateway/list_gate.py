"""Requests that wait until a gateway knows what its backends offer.

Many hosts list the tools once, right after they have connected. So the lists of a gateway that has just started wait,
for a short time, for backends that it has never listed, and so do requests for names that it does not know. Nothing
else waits.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from trunkline.protocol.inflight import IncomingRequest
from trunkline.rpc.dispatch import Feature, MethodHandler
from trunkline.rpc.run_handler import Work, run_work
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection

__all__ = ["gate_lists"]

_Known = Callable[[ServerCatalog, Any], bool]


def _never(_catalog: ServerCatalog, _params: Any) -> bool:
    return False


_GATED: Final[Mapping[str, _Known]] = {
    **dict.fromkeys(("tools/list", "prompts/list", "resources/list", "resources/templates/list"), _never),
    "tools/call": lambda catalog, params: params.name in catalog.tools,
    "prompts/get": lambda catalog, params: params.name in catalog.prompts,
    "resources/read": lambda catalog, params: catalog.resolve_uri(params.uri) is not None,
}  # whether the entry of a request is known

FindStart = Callable[[], "asyncio.Future[Any] | None"]
"""Returns the future that requests wait for; None if there is none."""


def gate_lists(features: Iterable[Feature], find_start: FindStart) -> tuple[Feature, ...]:
    """Return the features of a server, with the lists and the requests for unknown names waiting."""
    return tuple(
        Feature(feature.name, {name: _gate(feature, name, find_start) for name in feature.handlers})
        if _GATED.keys() & {*feature.handlers}
        else feature
        for feature in features
    )


def _gate(feature: Feature, name: str, find_start: FindStart) -> MethodHandler:
    is_known = _GATED.get(name)
    handler: MethodHandler | None = None  # looked up with the first request: it may be imported then

    def handle(connection: Connection, call: IncomingRequest, params: Any) -> Work:
        nonlocal handler
        handler = handler or feature.handlers[name]
        start = find_start()
        if start is None or start.done() or is_known is None or is_known(connection.catalog, params):
            return handler(connection, call, params)
        return _handle_later(start, handler, connection, call, params)

    return handle


async def _handle_later(
    start: "asyncio.Future[Any]", handler: MethodHandler, connection: Connection, call: IncomingRequest, params: Any
) -> Any:
    await asyncio.wait([start])
    return await run_work(handler(connection, call, params), connection.threads)
