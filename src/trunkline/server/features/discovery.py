"""Discovery: what this server speaks and can do, for clients that do not greet."""

from trunkline.protocol.inflight import Running
from trunkline.protocol.types import DiscoverResult, Empty
from trunkline.rpc.dispatch import Feature
from trunkline.server.connection import Connection

__all__ = ["FEATURE"]


def _discover(connection: Connection, call: Running, params: Empty) -> DiscoverResult:  # noqa: ARG001
    offer = connection.offer
    call.hint = offer.hint("discover", shared=True)
    return DiscoverResult(**offer.stateless.discovery(), instructions=offer.instructions)


FEATURE = Feature("discovery", {"server/discover": _discover})
