"""`Gateway`: many servers behind one, on any transport, for many users."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from trunkline.client.group.names import make_prefix
from trunkline.client.server_config import ServerConfig, ServerEntry, read_servers
from trunkline.client.targets import make_connector
from trunkline.config import Settings, manifests_folder
from trunkline.errors import MisuseError, NotRegistered, TrunklineError
from trunkline.errors.text import printable
from trunkline.facts import Observer
from trunkline.findings import Finding
from trunkline.gateway.backend import BackendDefinition, GatewayBackend
from trunkline.gateway.callers import make_auth
from trunkline.gateway.launch_policy import LaunchPolicy, check_file_owner
from trunkline.gateway.list_gate import gate_lists
from trunkline.gateway.manifest_cache import ManifestCache
from trunkline.gateway.options import BackendOptions, FileOptions, find_prefixes, parse_options
from trunkline.gateway.states import BackendState, BackendStatus
from trunkline.gateway.tool_trust import ToolTrust
from trunkline.observers.logs import LogObserver
from trunkline.protocol.meta import BACKENDS
from trunkline.server.features import FEATURES
from trunkline.server.server import Server
from trunkline.supervision.restart_policy import RestartPolicy
from trunkline.supervision.supervisor import ChildStatus, Supervisor
from trunkline.transports.channel import Connector
from trunkline.transports.stdio.client import Command
from trunkline.trust.pin_store import PinStore

if TYPE_CHECKING:
    from os import PathLike

    from trunkline.auth.server.resource_server import ResourceServer
    from trunkline.stores.store import Store

__all__ = ["Gateway"]

_log: Final = logging.getLogger("trunkline")
_SUPERVISOR: Final = "backends"
_APPROVALS: Final = "approvals"


class _ReadConfig(Struct, frozen=True):
    """A configuration as it was read."""

    config: ServerConfig
    options: FileOptions
    definitions: list[BackendDefinition]
    launch: LaunchPolicy


class Gateway:
    """Many servers behind one: `Gateway("mcp.json").server.run("http")`.

    `servers` is the path of a configuration file (`mcpServers` of Claude Desktop, Cursor and others, `servers` of
    VS Code), the content of one, or a mapping of names to targets of `Client`. Each is a backend: its tools and prompts
    have its name as a prefix, `weather__forecast`. A backend that fails, hangs or crashes does not affect the others.
    """

    def __init__(
        self,
        servers: "str | PathLike[str] | Mapping[str, Any]",
        *,
        name: str = "gateway",
        options: Mapping[str, BackendOptions | Mapping[str, Any]] | None = None,
        credentials: Mapping[str, Any] | None = None,
        inputs: Mapping[str, str] | None = None,
        launch: LaunchPolicy | None = None,
        pins: PinStore | bool = True,
        cache: "str | PathLike[str] | bool" = True,
        list_wait: float = 3.0,
        instructions: str | None = None,
        auth: "ResourceServer | None" = None,
        store: "Store | None" = None,
        settings: Settings | None = None,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        """`options` are for single backends, by their names, and count more than those of the file. `credentials` are
        the `auth=` of a `Client`, for each backend at an address its own. `inputs` are values for the `inputs` of the
        configuration. `launch` decides which commands may be started. `pins` blocks tools that have changed: a
        store, True for that of the user, or False to trust all tools. `cache` is the folder for the lists that are
        offered while a backend starts, True for one of the user, or False for none. The
        first lists wait `list_wait` seconds at most for backends that were never listed. `auth`, `store`, `settings`,
        `observers` and `instructions` are those of `Server`; `auth` counts more than that of the file, and restarts of
        backends follow the settings `restart_…` and `backoff_…`."""
        self._servers = servers
        self._given_options = dict(options or {})
        self._credentials = dict(credentials or {})
        self._inputs = dict(inputs or {})
        self._launch = launch or LaunchPolicy()
        self._list_wait = list_wait
        self._settings = settings or Settings()
        self._observers: list[Observer] = [LogObserver()] if observers is None else [*observers]
        store_of_pins = PinStore() if pins is True else pins
        self._trust = ToolTrust(store_of_pins or None, self._update_meta)
        folder = manifests_folder() if cache is True else cache
        self._manifests = ManifestCache(None if folder is False else Path(folder))
        self._backends: dict[str, GatewayBackend] = {}
        self._supervisor: Supervisor | None = None  # while the server is started
        self._starting: asyncio.Task[None] | None = None  # the wait of the first lists
        self._reloading = asyncio.Lock()
        self._read_by = os.getpid()
        read = self._read(servers)
        names = {definition.name for definition in read.definitions}
        for unknown in {*self._given_options, *self._credentials} - names:
            raise NotRegistered("backend", unknown, names)
        self._callers = read.options.auth
        if auth is None and self._callers is not None:
            auth = make_auth(self._callers)
        self.server = Server(
            name,
            instructions=instructions,
            auth=auth,
            store=store,
            settings=self._settings,
            observers=self._observers,
            lifespan=self._lifespan,
            tools=True,
            resources=True,
            prompts=True,
            completions=True,
            features=gate_lists(FEATURES, lambda: self._starting),
        )
        catalog = self.server.catalog
        catalog.capability_flags = replace(catalog.capability_flags, tasks=True)  # clients come before backends do
        self.server.on_hangup(self._reload_on_hangup)
        for backend in self._make_backends(read, {}).values():
            self._add(backend)

    def __repr__(self) -> str:
        ready = sum(backend.state is BackendState.READY for backend in self._backends.values())
        return f"<Gateway {self.server.name!r}: {ready} of {len(self._backends)} backends ready>"

    # --- state -----------------------------------------------------------------------------------------

    @property
    def backends(self) -> Mapping[str, BackendStatus]:
        """The backends by their names, with their states."""
        return {name: backend.status for name, backend in self._backends.items()}

    async def wait_settled(self) -> None:
        """Wait until each backend is ready or has failed. Called on the event loop of the started server."""
        await asyncio.gather(*(backend.wait_settled() for backend in self._backends.values()))

    def findings(self) -> list[Finding]:
        """Return concerns about the tools as they were last read: blocked tools with their changes, hidden characters,
        and names that look alike."""
        return self._trust.findings()

    def restart(self, name: str) -> None:
        """Connect a backend anew, a degraded one too. Called on the event loop of the started server."""
        backend = self._backends.get(name)
        if backend is None:
            raise NotRegistered("backend", name, self._backends)
        if self._supervisor is None:
            raise MisuseError("the gateway is not started")
        if backend.state is BackendState.REFUSED:
            raise MisuseError(f"backend {name!r} is refused: {backend.reason}; change the configuration and reload it")
        if self._supervisor.has(make_prefix(name)):
            backend.connect_anew()
            self._supervisor.restart(make_prefix(name))
        else:
            self._start_backend(backend)

    # --- configuration -----------------------------------------------------------------------------------

    async def reload(self, servers: "str | PathLike[str] | Mapping[str, Any] | None" = None) -> None:
        """Read the configuration again, or another one. Backends whose definition is the same keep their connections
        and sessions; requests to those that are removed or changed may finish. Raises `ConfigError`, and changes
        nothing, if the configuration cannot be used. Called on the event loop of the server."""
        async with self._reloading:
            given = self._servers if servers is None else servers
            config = await asyncio.to_thread(self._read, given)
            wanted = self._make_backends(config, self._backends)
            self._servers = given
            if config.options.auth != self._callers:
                _log.warning("`auth` of the configuration has changed; restart the gateway to apply that")
            gone = [backend for name, backend in self._backends.items() if wanted.get(name) is not backend]
            for backend in gone:
                await self._remove(backend)
            for name, backend in wanted.items():
                if name not in self._backends:
                    self._add(backend)
                    if self._supervisor is not None:
                        await self._open_backend(backend)
            for backend in self._backends.values():
                if self._trust.blocked(backend.name):
                    await backend.examine_again()

    async def _reload_on_hangup(self) -> None:
        try:
            await self.reload()
        except TrunklineError as error:
            _log.error("the configuration was not reloaded: %s", error)
        else:
            _log.warning("the configuration was reloaded: %s", ", ".join(self._backends) or "no backends")

    async def _read_in_worker(self) -> None:
        """Read the configuration that another process has read before it was forked: it may have changed since."""
        self._read_by = os.getpid()
        try:
            await self.reload()
        except TrunklineError as error:
            _log.error("the configuration of the first start is used: %s", error)

    def _read(self, servers: Any) -> "_ReadConfig":
        """Read a configuration. Raises `ConfigError` if it cannot be used."""
        config, targets = read_servers(servers, reader="a gateway")
        listed = parse_options(FileOptions, config.options, "`trunkline` of the configuration")
        launch = self._launch if listed.commands is None else LaunchPolicy(listed.commands)
        starts = any(isinstance(target, ServerEntry) and target.command for target in targets.values())
        if starts and isinstance(servers, str | os.PathLike) and not self._launch.lists_commands:
            check_file_owner(Path(cast("str | PathLike[str]", servers)))
        options = {name: self._options_of(name, target) for name, target in targets.items()}
        prefixes = find_prefixes(options)
        definitions = [
            BackendDefinition(name, target, options[name], prefixes[name], self._credentials.get(name))
            for name, target in targets.items()
        ]
        return _ReadConfig(config, listed, definitions, launch)

    def _options_of(self, name: str, target: Any) -> BackendOptions:
        given = self._given_options.get(name)
        if isinstance(given, BackendOptions):
            return given
        own = target.options if isinstance(target, ServerEntry) else {}
        return parse_options(BackendOptions, {**own, **(given or {})}, f"backend {name!r}")

    def _make_backends(self, read: "_ReadConfig", known: Mapping[str, GatewayBackend]) -> dict[str, GatewayBackend]:
        """Return the backends of a configuration, those that are known if their definition is the same."""
        wanted: dict[str, GatewayBackend] = {}
        for definition in read.definitions:
            connect = partial(self._make_connector, definition, read.config, read.launch)
            refusal: MisuseError | None = None
            try:
                connect()
            except MisuseError as error:
                refusal = error
            same = known.get(definition.name)
            usable = same is not None and (same.state is BackendState.REFUSED) == (refusal is not None)
            if same is not None and same.definition == definition and usable:
                wanted[definition.name] = same
                continue
            backend = wanted[definition.name] = GatewayBackend(
                definition,
                connect,
                identity=_identity(definition),
                settings=self._settings,
                observers=self._observers,
                trust=self._trust,
                manifests=self._manifests,
                start=self._start_backend,
                on_change=self._update_meta,
            )
            if refusal is not None:
                _log.error("backend %r is refused: %s", definition.name, refusal)
                backend.refuse(refusal)
        return wanted

    def _make_connector(self, definition: BackendDefinition, config: ServerConfig, launch: LaunchPolicy) -> Connector:
        """Return a connector for a backend. Raises `MisuseError` if its configuration cannot be used, or its command is
        not allowed."""

        def check_launch(command: list[str], env: Mapping[str, str]) -> list[str]:
            self._launch.check(command, env)  # the policy of the operator, besides that of the file
            return launch.check(command, env)

        target = definition.target
        if isinstance(target, ServerEntry):
            return target.connector(
                self._settings,
                auth=definition.credentials,
                on_stderr=lambda line: _log.info("backend %r: %s", definition.name, printable(line)),
                ask_input=lambda ident: config.input_value(ident, self._inputs),
                check_launch=check_launch,
            )
        connector = make_connector(target, self._settings, definition.credentials)
        if isinstance(connector, Command):
            check_launch(connector.argv, {})
        return connector

    # --- backends ----------------------------------------------------------------------------------------

    def _add(self, backend: GatewayBackend) -> None:
        self._backends[backend.name] = backend
        prefix = backend.definition.prefix.text or None
        self.server.mount(backend.server, prefix=prefix, where=backend.offers)
        self.server.health(f"backend {backend.name}", critical=False)(backend.is_healthy)
        self._update_meta()

    async def _remove(self, backend: GatewayBackend) -> None:
        """Stop offering a backend, let its requests finish, and close it."""
        del self._backends[backend.name]
        self.server.unmount(backend.server, prefix=backend.definition.prefix.text or None)
        self.server.remove_health(f"backend {backend.name}")
        if self._supervisor is not None and self._supervisor.has(make_prefix(backend.name)):
            await self._supervisor.remove(make_prefix(backend.name))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout):
                await backend.wait_idle()
        await backend.close()
        await backend.server.aclose()
        self._trust.forget(backend.name)
        self._update_meta()

    async def _open_backend(self, backend: GatewayBackend) -> bool:
        """Open a backend and start it, unless it is refused or lazy; return whether its lists are not known yet."""
        if backend.state is BackendState.REFUSED:
            return False
        try:
            known = await backend.open()
        except MisuseError as error:  # a variable or a program is gone by now
            _log.error("backend %r is refused: %s", backend.name, error)
            backend.refuse(error)
            return False
        if known and backend.definition.options.lazy:
            backend.make_idle()
        else:
            self._start_backend(backend)
        return not known

    def _start_backend(self, backend: GatewayBackend) -> None:
        name = make_prefix(backend.name)  # without a slash, and unique
        if self._supervisor is not None and not self._supervisor.has(name):
            backend.mark_starting()
            self._supervisor.add(name, backend)

    def _on_child_changed(self, status: ChildStatus) -> None:
        name = status.name.rpartition("/")[2]
        for backend in self._backends.values():
            if make_prefix(backend.name) == name:
                backend.follow(status)

    def _update_meta(self) -> None:
        """Put the states of all backends into the metadata of the lists."""
        states = {name: backend.status.describe() for name, backend in self._backends.items()}
        self.server.catalog.list_meta = {BACKENDS: states}

    # --- serving -----------------------------------------------------------------------------------------

    async def _lifespan(self, server: Server) -> AsyncIterator[None]:
        """Run the backends while the server is started."""
        policy = RestartPolicy.for_children(self._settings)
        supervisor = Supervisor(_SUPERVISOR, policy=policy, on_change=self._on_child_changed)
        self._reloading = asyncio.Lock()
        if self._read_by != os.getpid():
            await self._read_in_worker()
        self._supervisor = supervisor
        server.supervise(_SUPERVISOR, supervisor, stop_timeout=None)
        server.supervise(_APPROVALS, self._watch_approvals, restart="transient")
        try:
            # One after another: cached lists then have the order of the configuration, which models notice.
            unknown = [one for one in self._backends.values() if await self._open_backend(one)]
            self._starting = asyncio.create_task(self._wait_for_lists(unknown))
            yield
        finally:
            if self._starting is not None:
                self._starting.cancel()
            await server.unsupervise(_APPROVALS)
            await server.unsupervise(_SUPERVISOR)
            self._supervisor = None
            await asyncio.gather(*(backend.close() for backend in self._backends.values()))

    async def _wait_for_lists(self, backends: list[GatewayBackend]) -> None:
        """Wait until backends are ready or have failed, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._list_wait):
                await asyncio.gather(*(backend.wait_settled() for backend in backends))

    async def _watch_approvals(self) -> None:
        await self._trust.watch_approvals(self._examine_again)

    async def _examine_again(self, name: str) -> None:
        backend = self._backends.get(name)
        if backend is not None:
            await backend.examine_again()


def _identity(definition: BackendDefinition) -> str:
    """Return what tells the manifest of a backend from others: its name, and its command or address."""
    target = definition.target
    if isinstance(target, ServerEntry):
        return ManifestCache.identity(definition.name, target.command, target.url, target.cwd)
    named: Callable[[Any], str] = repr if isinstance(target, str | list | tuple | os.PathLike) else _name_of
    return ManifestCache.identity(definition.name, named(target))


def _name_of(target: Any) -> str:
    return f"{type(target).__qualname__} {getattr(target, 'name', '')}"
