"""Discovery: revisions and capabilities of the server, for clients without a handshake."""

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.types import DiscoverResult, Empty
from trunkline.rpc.dispatch import Feature
from trunkline.server.connection import Connection

__all__ = ["FEATURE"]


def _discover(connection: Connection, call: IncomingRequest, params: Empty) -> DiscoverResult:  # noqa: ARG001
    catalog = connection.catalog
    call.hint = catalog.cache_hint("discover", public=True)
    return DiscoverResult(**catalog.get_modern().discover_result(), instructions=catalog.instructions)


FEATURE = Feature("discovery", {"server/discover": _discover})
