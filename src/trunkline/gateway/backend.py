"""One backend of a gateway: a server that forwards to it, and a child of the supervision tree.

A run of the child is the life of one connection: connect, read the lists, and wait until the connection is lost. The
client behind replaces a lost connection once, at once, so that requests in flight can be repeated; the next run waits
for that. Everything after that is the decision of the supervisor: delays, and when the backend has failed too often.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from trunkline.config import Settings
from trunkline.errors import ConnectionClosed, MisuseError, NotNow, TransportError, TrunklineError
from trunkline.errors.text import printable
from trunkline.facts import Observer, Observers
from trunkline.gateway.guard import BackendGuard
from trunkline.gateway.manifest_cache import ManifestCache
from trunkline.gateway.options import BackendOptions, BreakerOptions, can_be_named, make_filter
from trunkline.gateway.states import BackendState, BackendStatus, state_of
from trunkline.gateway.tool_trust import ToolTrust
from trunkline.protocol.types import Implementation
from trunkline.proxies.backend import BackendTarget
from trunkline.proxies.backends import PrincipalPool
from trunkline.proxies.forward import ForwardingPolicy
from trunkline.proxies.mirrored_catalog import Manifest
from trunkline.proxies.proxy_server import ProxyServer
from trunkline.registry.prefixes import Prefix
from trunkline.server.server import Server
from trunkline.supervision.supervisor import ChildStatus
from trunkline.transports.channel import Connector
from trunkline.transports.stdio.client import Command
from trunkline.version import __version__

__all__ = ["BackendDefinition", "GatewayBackend"]


_log: Final = logging.getLogger("trunkline")
_LAST_WORDS: Final = 500  # characters of the standard error of a process, in the log


class BackendDefinition(Struct, frozen=True):
    """A backend as it is configured. A reload keeps a backend whose definition is equal."""

    name: str
    target: Any  # an entry of a configuration file, or a target of `Client`
    options: BackendOptions
    prefix: Prefix
    credentials: Any = None


class GatewayBackend:
    """A backend, with the server that forwards to it."""

    kind = "backend"

    def __init__(
        self,
        definition: BackendDefinition,
        make_connector: Callable[[], Connector],
        *,
        identity: str,
        settings: Settings,
        observers: list[Observer],
        trust: ToolTrust,
        manifests: ManifestCache,
        start: Callable[["GatewayBackend"], None],
        on_change: Callable[[], object],
    ) -> None:
        """`identity` is that of its manifest. `start` adds a lazy backend to the supervisor. `on_change` is called when
        the state changes."""
        self.definition = definition
        self.state = BackendState.STOPPED
        self.reason = ""
        self.restarts = 0
        self._make_connector = make_connector
        self._identity = identity
        self._manifests = manifests
        self._anew = False
        self._saved: Manifest | None = None
        self._unnameable: frozenset[str] = frozenset()
        self._trust = trust
        self._start = start
        self._on_change = on_change
        self._waiters: list[asyncio.Future[None]] = []  # for the next state
        self._background: set[asyncio.Task[Any]] = set()
        options = definition.options
        self.guard = BackendGuard(
            definition.name,
            options,
            is_ready=lambda: self.state is BackendState.READY,
            check_state=self._check_state,
            wait_ready=self._wait_ready,
        )
        info = Implementation(name=definition.name, version=__version__)
        own = replace(settings, max_retries=1, initialize_timeout=options.start_timeout)
        self._proxy = ProxyServer(
            BackendTarget(make_connector, own, Observers(observers), info),
            observers=observers,
            supervised=True,
            pool=PrincipalPool(
                shared=options.shared, max_principals=options.max_principals, idle_seconds=options.idle_seconds
            ),
            policy=ForwardingPolicy(timeout=options.timeout, retries=options.retry, guard=self.guard),
            examine=self._examine,
            on_read=self._on_read,
        )
        if options.breaker is not False:
            breaker = options.breaker if isinstance(options.breaker, BreakerOptions) else BreakerOptions()
            self.guard.add_breaker(self._proxy.server, breaker)
        self.offers = make_filter(options, definition.prefix)

    def __repr__(self) -> str:
        return f"<GatewayBackend {self.name!r}: {self.state.value}>"

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self.definition.name

    @property
    def server(self) -> Server:
        """The server that forwards to the backend."""
        return self._proxy.server

    @property
    def status(self) -> BackendStatus:
        """The state of the backend, for operators."""
        blocked = self._trust.blocked(self.name)
        return BackendStatus(state=self.state, reason=self.reason, blocked=blocked, restarts=self.restarts)

    def is_healthy(self) -> bool:
        """Return whether requests are answered; a lazy backend that was not used counts as healthy. Raises
        `TransportError` with the reason if they are not."""
        breaker = self.guard.breaker
        if self.state not in {BackendState.READY, BackendState.IDLE}:
            raise TransportError(f"it is {self.state.value}")
        return breaker is None or breaker.retry_after is None

    # --- starting and stopping -----------------------------------------------------------------------

    async def open(self) -> bool:
        """Allow connections, and offer the cached manifest; return whether there is one."""
        self._proxy.open()
        self._saved = await asyncio.to_thread(self._manifests.load, self._identity)
        if self._saved is not None:
            try:
                await self._proxy.restore(self._saved)
            except TrunklineError as error:  # for example, a name that another backend has
                _log.warning("the cached lists of backend %r cannot be used: %s", self.name, error)
                self._saved = None
        return self._saved is not None

    async def wait_idle(self) -> None:
        """Wait until no request and no task runs."""
        await self.guard.wait_idle()
        await self._proxy.wait_for_tasks()

    async def close(self) -> None:
        """Close all connections. The lists stay."""
        if self.state is not BackendState.REFUSED:
            self._enter(BackendState.STOPPED, "")
        await self._proxy.close()
        if self._background:
            await asyncio.wait(self._background)

    def make_idle(self) -> None:
        """Let the first request start the backend."""
        self._enter(BackendState.IDLE, "")

    def mark_starting(self) -> None:
        """Let requests wait for the backend, which its supervisor is about to start."""
        self._enter(BackendState.STARTING, "")

    def refuse(self, error: MisuseError) -> None:
        """Mark the backend as one that cannot be started."""
        self._enter(BackendState.REFUSED, str(error))

    async def run(self, started: Callable[[], None], /) -> None:
        """Connect, read the lists, and wait until the connection is lost, which is a failure. A stop closes nothing:
        requests may still run."""
        seconds, anew = self.definition.options.start_timeout, self._anew
        self._anew = False
        if anew:
            await self._proxy.disconnect()
        try:
            async with asyncio.timeout(seconds):
                await self._proxy.load()
        except Exception as error:
            await self._proxy.disconnect()  # else the client would go on by itself
            if isinstance(error, TrunklineError):
                raise self._explain(error) from None
            if isinstance(error, TimeoutError):
                raise TransportError(f"it was not ready within {seconds:g} s") from None
            raise
        started()
        raise self._explain(await self._proxy.wait_lost())

    def connect_anew(self) -> None:
        """Let the next run replace a connection that works."""
        self._anew = True

    def _explain(self, error: TrunklineError) -> TransportError:
        """Return the reason of a failure without possible secrets: a command may have them in its arguments, an address
        in its query. The log has the last lines that a process has written."""
        if isinstance(error, ConnectionClosed) and error.last_words:
            _log.warning("backend %r: %s", self.name, printable(error.last_words[-_LAST_WORDS:], multiline=True))
        text, named = str(error).partition("\n")[0], self._make_connector()
        shown = named.name.partition("?")[0]
        if isinstance(named, Command):
            shown = f"{named.argv[0]}{' …' if len(named.argv) > 1 else ''}"
        for spelling in (repr(named.name)[1:-1], named.name):
            text = text.replace(spelling, shown)
        return TransportError(printable(text))

    # --- state -----------------------------------------------------------------------------------------

    def follow(self, child: ChildStatus) -> None:
        """Follow a change of the child of the supervisor."""
        self.restarts = child.restarts
        state = state_of(child.state, self.state)
        reason = "" if state is BackendState.READY else child.last_failure
        if state is BackendState.DEGRADED:
            self._run_in_background(self._proxy.disconnect())  # it may have connected again by itself
        self._enter(state, reason)

    def _enter(self, state: BackendState, reason: str) -> None:
        changed = (state, reason) != (self.state, self.reason)
        self.state, self.reason = state, reason
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if changed:
            self._on_change()

    async def wait_settled(self) -> None:
        """Wait until the backend is ready, or will not be ready soon."""
        while self.state.may_become_ready and self.state is not BackendState.IDLE:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _check_state(self) -> None:
        if self.state is not BackendState.READY and not self.state.may_become_ready:
            raise NotNow(f"backend {self.name!r} is not available: it is {self.state.value}")

    async def _wait_ready(self) -> None:
        if self.state is BackendState.READY:
            return
        if self.state is BackendState.IDLE:
            self._start(self)
        await self.wait_settled()
        self._check_state()

    # --- lists -----------------------------------------------------------------------------------------

    async def examine_again(self) -> None:
        """Compare the tools with their pins again."""
        await self._proxy.examine_again()

    async def _examine(self, tools: list[Any]) -> Any:
        return await self._trust.examine(self.name, tools)

    def _on_read(self) -> None:
        manifest = self._proxy.make_manifest()
        self._report_unnameable(manifest)
        if manifest != self._saved:
            self._saved = manifest
            self._run_in_background(asyncio.to_thread(self._manifests.save, self._identity, manifest))

    def _report_unnameable(self, manifest: Manifest) -> None:
        """Log which tools cannot be offered, once."""
        names = frozenset(tool.name for tool in manifest.tools if not can_be_named(self.definition.prefix, tool.name))
        if names - self._unnameable:
            shown = ", ".join(sorted(map(printable, names)))
            _log.warning("backend %r has tools whose names cannot be offered: %s", self.name, shown)
        self._unnameable = names

    def _run_in_background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(_log_failure(work, self.name))
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _log_failure(work: Any, name: str) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await work
        except Exception:  # noqa: BLE001 - nothing waits for it
            _log.exception("background work of backend %r failed", name)
