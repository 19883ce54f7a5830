"""A listener that several servers share: each server of a directory is served at a path of its own."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, Self

from trunkline.clock import LoopClock
from trunkline.config import CertificateFiles, Settings
from trunkline.errors import ConfigError, TrunklineError
from trunkline.names.table import NameChange
from trunkline.server.run.process import listener_name, make_tls, require_http_extra
from trunkline.server.server import Server
from trunkline.server.supervised_listener import SupervisedListener
from trunkline.supervision.restart_policy import RestartPolicy
from trunkline.supervision.supervisor import Supervisor
from trunkline.transports.addresses import parse_address
from trunkline.transports.channel import Channel, Listener, Receiver
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.listening import ListeningSockets, open_sockets, resolve, warn_if_unencrypted

if TYPE_CHECKING:
    from ssl import SSLContext

    from trunkline.transports.http.path_router import PathEndpoint, PathRouter

__all__ = ["ServerNames", "SharedListener", "open_shared_listener"]

_DEFAULT_PATH: Final = "/mcp"

_log: Final = logging.getLogger("trunkline")


class ServerNames(Protocol):
    """The names to serve: a directory."""

    def servers(self) -> list[tuple[str, Server]]:
        """Return the servers with their names."""
        ...

    def on_change(self, callback: Callable[[NameChange], None], /) -> Callable[[], None]:
        """Call a function with each change; return a function that ends that."""
        ...


async def open_shared_listener(
    directory: ServerNames, address: str, tls: "SSLContext | CertificateFiles | None", settings: Settings
) -> "SharedListener":
    """Listen at an address for the servers of a directory. Returns once those that are registered have started."""
    with require_http_extra():
        from trunkline.transports.http.path_router import PathRouter, listen_router
    where = parse_address(address)
    if where.transport != "http":
        raise ConfigError(f"{address} has no paths: several servers share a listener at http:// or https://")
    if (tls is not None) is not where.secure:
        raise ConfigError(f"{address} and tls= do not match: https:// needs a certificate, http:// takes none")
    clock, router = LoopClock(asyncio.get_running_loop()), PathRouter()
    named = where.inherited or where.socket_path
    opened = open_sockets(where, settings, None if named else await resolve(where.host, where.port))
    try:
        warn_if_unencrypted(where, opened)
        secured = make_tls(tls, clock, settings.certificate_check_interval)
        guard = ListenerGuard(_refuse_channel, settings, clock, hosts=opened.host_names)
        listener = listen_router(guard, router, opened, secured)
    except BaseException:
        opened.close()
        raise
    supervisor = Supervisor("directory", policy=RestartPolicy.for_children(settings), clock=clock)
    supervisor.start()
    supervisor.add(listener_name(opened.address), SupervisedListener(listener), restart="transient", stop_timeout=None)
    path = "" if where.path in {"", "/"} else where.path
    shared = SharedListener(listener, router, supervisor, opened, path or _DEFAULT_PATH)
    await shared.follow(directory)
    return shared


def _refuse_channel(_: Channel) -> Receiver:
    raise NotImplementedError("each server accepts its own channels")


class SharedListener:
    """Listener of several servers, which follows their names."""

    def __init__(
        self, listener: Listener, router: "PathRouter", supervisor: Supervisor, opened: ListeningSockets, path: str
    ) -> None:
        self._listener = listener
        self._router = router
        self._supervisor = supervisor
        self._host_names = opened.host_names
        self._path = path
        self._endpoints: dict[str, PathEndpoint] = {}
        self._mounting: dict[str, asyncio.Task[None]] = {}
        self._stop_following: Callable[[], None] = lambda: None

    @property
    def address(self) -> str:
        """The address of the listener, without the name of a server."""
        return self._listener.address

    def url_of(self, name: str) -> str:
        """Return the URL of the server with a name."""
        root = "/".join(self.address.split("/", 3)[:3])
        return root + self._path_of(name)

    def metrics_url_of(self, name: str) -> str:
        """Return the URL of the metrics of the server with a name, if it has the setting `metrics`."""
        return f"{self.url_of(name).rpartition('/')[0]}/metrics"

    def _path_of(self, name: str) -> str:
        return f"/{name}{self._path}"

    async def follow(self, directory: ServerNames) -> None:
        """Serve the servers of a directory, now and when they change. Wait until the present ones have started."""
        self._stop_following = directory.on_change(self._on_change)
        for name, server in directory.servers():
            self._mount(name, server)
        if self._mounting:
            await asyncio.wait(self._mounting.values())

    def _on_change(self, change: NameChange) -> None:
        if change.entry.kind == "server":
            if change.change == "added":
                self._mount(change.entry.name, change.entry.target)
            else:
                self._unmount(change.entry.name)

    def _mount(self, name: str, server: Server) -> None:
        path = self._path_of(name)
        self._router.expect(path)
        self._mounting[name] = asyncio.get_running_loop().create_task(self._open(name, path, server))

    async def _open(self, name: str, path: str, server: Server) -> None:
        try:
            endpoint = await server.serve_path(path, self._host_names)
        except TrunklineError as error:
            _log.error("cannot serve %r at %s: %s", name, path, error)
            self._router.remove(path)
            return
        except Exception:  # noqa: BLE001 - whatever a lifespan raises, the other servers are served
            _log.exception("cannot serve %r at %s", name, path)
            self._router.remove(path)
            return
        finally:
            self._mounting.pop(name, None)
        self._endpoints[name] = endpoint
        self._router.add(endpoint)

    def _unmount(self, name: str) -> None:
        """Refuse requests to a server that is gone; end what it still answers after its drain time."""
        self._router.remove(self._path_of(name))
        if (task := self._mounting.pop(name, None)) is not None:
            task.cancel()
        if (endpoint := self._endpoints.pop(name, None)) is not None:
            endpoint.app.close_idle_streams()
            endpoint.app.schedule_close()

    async def wait_lost(self) -> None:
        """Return when the listener was closed; raise `TransportError` when one of its sockets no longer listens."""
        await self._listener.wait_lost()

    def reopen(self) -> None:
        """Open the sockets that no longer listen again."""
        self._listener.reopen()

    async def close(self) -> None:
        """Accept no more connections, and serve no names any more. The servers run on."""
        self._stop_following()
        self._stop_following = lambda: None
        for name in [*self._endpoints, *self._mounting]:
            self._unmount(name)
        await self._supervisor.stop()

    async def wait_closed(self) -> None:
        """Close the connections."""
        await self._listener.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        await self.wait_closed()
