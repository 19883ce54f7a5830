"""Services of one server runtime that do not depend on its connections."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trunkline.clock import Clock
from trunkline.rpc.connection import LoopResources
from trunkline.server.catalog import ServerCatalog

if TYPE_CHECKING:
    from trunkline.receipts.writer import ReceiptWriter
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.cluster.notifications import ClusterNotifications
    from trunkline.server.limits.rate_limits import RateLimits
    from trunkline.server.limits.shared_semaphore import SharedSemaphores
    from trunkline.server.resilience.circuit_breaker import CircuitBreakers
    from trunkline.server.sessions.durable import DurableSessions
    from trunkline.stores.store import Store

__all__ = ["RuntimeServices"]


class RuntimeServices(LoopResources, frozen=True, kw_only=True):
    """Services for work with or without a connection, such as tasks."""

    catalog: ServerCatalog
    get_store: "Callable[[], Store]"  # opened; a store in memory is made on first use
    wall_clock: Clock  # the clock that stores use for expiry
    durable_sessions: "DurableSessions | None" = None  # where sessions outlive the process
    cluster: "Cluster | None" = None  # where processes share a store with a bus
    cluster_notifications: "ClusterNotifications | None" = None  # where sessions outlive the process
    shared_semaphores: "SharedSemaphores | None" = None  # where processes share a store with a bus
    receipts: "ReceiptWriter | None" = None  # of a server with receipts
    get_lifespan_value: "Callable[[], Any]"
    get_breakers: "Callable[[], CircuitBreakers]"  # made on first use
    get_rate_limits: "Callable[[], RateLimits]"  # made on first use

    @property
    def store(self) -> "Store":
        """The store of the server."""
        return self.get_store()
