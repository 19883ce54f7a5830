"""`proxy`: a server that forwards everything to another one, at any target of a client."""

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from trunkline.client.targets import display_name, make_connector
from trunkline.config import Settings
from trunkline.errors import MisuseError
from trunkline.facts import Observer, Observers
from trunkline.observers.logs import LogObserver
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import Implementation
from trunkline.proxies.backend import BackendTarget
from trunkline.proxies.proxy_server import ProxyServer
from trunkline.server.server import Server
from trunkline.version import __version__

if TYPE_CHECKING:
    from trunkline.transports.http.client.credentials import Auth

__all__ = ["proxy"]


def proxy(
    target: Any,
    *,
    name: str | None = None,
    auth: "Auth | None" = None,
    revision: str | None = None,
    sessions: bool = True,
    settings: Settings | None = None,
    observers: Iterable[Observer] | None = None,
) -> Server:
    """Return a server that forwards everything to another one.

    `target` is any target of a `Client`: a command, a script, an address, a `Server` or a connector. `auth`
    authenticates the proxy to it, and `revision` is the newest revision to negotiate with it. Serve the proxy on any
    transport, or mount it into another server. It connects when it is started, and fails to start if it cannot.

    Clients of 2025-11-25 and older get a connection to the target for each of their sessions. With `sessions=False`
    they share one, as newer clients do, if the target speaks 2026-07-28.
    """
    if revision is not None and revision not in list(Revision):
        raise MisuseError(f"revision= must be one of {', '.join(Revision)}, not {revision!r}")
    settings = settings or Settings()
    watching = [LogObserver()] if observers is None else list(observers)
    connect = partial(make_connector, target, settings, auth)
    name = name or display_name(connect())
    info = Implementation(name=name, version=__version__)
    newest = Revision.V2026_07_28 if revision is None else Revision(revision)
    behind = BackendTarget(connect, settings, Observers(watching), info, newest)

    async def lifespan(_: Server) -> AsyncIterator[None]:
        made.open()
        try:
            await made.load()
            yield
        finally:
            await made.close()

    made = ProxyServer(behind, observers=watching, sessions=sessions, lifespan=lifespan)
    return made.server
