"""A server that forwards everything to another one, and its connections to that one.

Its owner decides when it connects: `proxy` does so when the server starts, a gateway under supervision. The server
offers what was read last, with or without a connection.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from trunkline.errors import NotNow, TrunklineError
from trunkline.facts import Observer
from trunkline.proxies.backend import BackendTarget
from trunkline.proxies.backends import Backends, PrincipalPool
from trunkline.proxies.forward import Forwarder, ForwardingPolicy
from trunkline.proxies.mirrored_catalog import ExamineTools, Manifest, MirroredCatalog
from trunkline.proxies.tasks import TaskForwarder
from trunkline.server.context import Context
from trunkline.server.server import Server

__all__ = ["ProxyServer"]


class ProxyServer:
    """A server that forwards everything to another one. Between `open` and `close` it can have connections."""

    def __init__(
        self,
        target: BackendTarget,
        *,
        observers: Iterable[Observer],
        sessions: bool = True,
        supervised: bool = False,
        pool: PrincipalPool = PrincipalPool(),  # noqa: B008 - frozen
        policy: ForwardingPolicy = ForwardingPolicy(),  # noqa: B008 - frozen
        examine: ExamineTools | None = None,
        on_read: Callable[[], object] = lambda: None,
        lifespan: Callable[[Server], AsyncIterator[None]] | None = None,
    ) -> None:
        """The owner of a `supervised` proxy calls `load` again after each `wait_lost`; otherwise the proxy reads the
        lists by itself after a loss. `examine` names the tools to block. `on_read` is called when lists have been read.
        `lifespan` is that of the server."""
        self._target = target
        self._sessions = sessions
        self._supervised = supervised
        self._pool = pool
        self._forwarder = Forwarder(target.info, target.settings.state_lifetime, policy)
        self._lost: asyncio.Future[None] | None = None  # from `load` on
        name, settings = target.info.name, target.settings
        self.server = Server(name, settings=settings, observers=observers, lifespan=lifespan)
        self._tasks = TaskForwarder(self._forwarder)
        self._catalog = MirroredCatalog(self.server, self._forwarder, self._tasks, examine=examine, on_read=on_read)
        self.server.on_first_subscriber(self._subscribe)
        self.server.on_last_unsubscribed(self._unsubscribe)
        self.server.on_roots_changed(self._announce_roots)

    def open(self) -> None:
        """Allow connections, on the running loop. Connects to nothing yet."""
        backends = Backends(
            self._target,
            sessions=self._sessions,
            on_connected=self._on_connected,
            on_lost=self._on_lost,
            pool=self._pool,
        )
        self._forwarder.backends = backends
        self._catalog.open(backends)
        self.server.catalog.other_resources = self._catalog.make_other_resources()

    async def load(self) -> None:
        """Connect, or wait until a lost connection is replaced, and read all lists. Raises the reason if the server
        cannot be reached."""
        await self._catalog.load()
        self._lost = asyncio.get_running_loop().create_future()
        if not self.connected:
            self._lost.set_result(None)

    async def wait_lost(self) -> TrunklineError:
        """Wait until the connection is lost that `load` has used; return the reason."""
        if self._lost is not None:
            await asyncio.shield(self._lost)
        return self._backends.catalog.loss

    async def wait_for_tasks(self) -> None:
        """Wait until no task of a client runs at the server behind."""
        await self._tasks.wait_idle()

    async def disconnect(self) -> None:
        """Close the connection that `load` has opened, until the next `load`."""
        await self._backends.catalog.close()

    async def close(self) -> None:
        """Close all connections."""
        backends, self._forwarder.backends = self._forwarder.backends, None
        self._forwarder.dialogues.close()
        await self._catalog.close()
        if backends is not None:
            await backends.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection to read lists from."""
        return self._forwarder.backends is not None and self._forwarder.backends.catalog.connection is not None

    @property
    def _backends(self) -> Backends:
        if self._forwarder.backends is None:
            raise NotNow("the proxy is not started")
        return self._forwarder.backends

    def _on_connected(self, reconnected: bool) -> None:
        if reconnected and not self._supervised:
            self._catalog.refresh_soon()

    def _on_lost(self) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    # --- manifests ---------------------------------------------------------------------------------------

    def make_manifest(self) -> Manifest:
        """Return what the server behind has declared and listed."""
        return self._catalog.make_manifest()

    async def restore(self, manifest: Manifest) -> None:
        """Offer what a manifest has, until the lists are read."""
        await self._catalog.restore(manifest)

    async def examine_again(self) -> None:
        """Examine the tools as they were last read."""
        await self._catalog.examine_again()

    # --- events of clients ---------------------------------------------------------------------------------

    async def _subscribe(self, uri: str) -> None:
        if self._supervised and not self.connected:
            raise NotNow("the server behind the proxy is not connected")
        await self._catalog.subscribe(uri)

    async def _unsubscribe(self, uri: str) -> None:
        if self._forwarder.backends is not None:
            await self._catalog.unsubscribe(uri)

    async def _announce_roots(self, ctx: Context) -> None:
        if self._forwarder.backends is not None:
            self._forwarder.backends.announce_roots(ctx.session_id)
