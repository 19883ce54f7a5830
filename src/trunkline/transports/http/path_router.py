"""Several HTTP applications behind one listener, by path."""

import ssl
from typing import TYPE_CHECKING, Final

from trunkline.transports.accept import Acceptor, TransportOpener
from trunkline.transports.channel import Listener
from trunkline.transports.http.app import HttpApp
from trunkline.transports.http.connection import HttpConnections
from trunkline.transports.http.listen import HttpListener
from trunkline.transports.http.request import Handling, HttpRequest
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.listening import ListeningSockets
from trunkline.transports.tls import ServerTls, TlsOptions

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["PathEndpoint", "PathRouter", "listen_router"]

_METADATA: Final = "/.well-known/oauth-protected-resource"  # followed by the path of the endpoint, RFC 9728


class PathEndpoint:
    """The application of one server at a path of a shared listener; to the server it is a listener."""

    def __init__(self, app: HttpApp, path: str, *pages: str) -> None:
        """`pages` are the paths of other pages of the application."""
        self.app = app
        self.pages = pages
        self._path = path

    @property
    def address(self) -> str:
        """The path."""
        return self._path

    async def wait_lost(self) -> None:
        """Return at once: the sockets belong to the shared listener."""

    def reopen(self) -> None:
        """Do nothing: the sockets belong to the shared listener."""

    async def close(self) -> None:
        """Admit no new sessions, and end idle streams."""
        self.app.close_idle_streams()

    async def wait_closed(self) -> None:
        """Close the application."""
        self.app.stop_admitting()
        self.app.close()


class PathRouter:
    """Passes each request to the application at its path. Requests to any other path are refused at once."""

    def __init__(self) -> None:
        self._apps: dict[str, HttpApp] = {}
        self._opening: set[str] = set()

    def expect(self, path: str) -> None:
        """Refuse requests to a path with 503 until its application is added."""
        self._opening.add(path)

    def add(self, endpoint: PathEndpoint) -> None:
        """Pass the requests to the path and the pages of an endpoint to its application, from now on."""
        path = endpoint.address
        self._opening.discard(path)
        for each in endpoint.pages:
            self._apps.setdefault(each, endpoint.app)  # the endpoint of another server may have that path
        self._apps[path] = self._apps[_METADATA + path] = endpoint.app

    def remove(self, path: str) -> None:
        """Refuse requests to a path, and to the other pages of its application, from now on."""
        self._opening.discard(path)
        if (app := self._apps.get(path)) is not None:
            self._apps = {each: other for each, other in self._apps.items() if other is not app}

    def handle(self, request: HttpRequest) -> Handling:
        """Pass a request on, or refuse it."""
        app = self._apps.get(request.path)
        if app is None:
            self._refuse(request)
            return None
        return app.handle(request)

    def handle_upgrade(self, request: HttpRequest) -> Handling:
        """Pass a WebSocket handshake on, or refuse it."""
        app = self._apps.get(request.path)
        if app is None:
            self._refuse(request)
            return None
        return app.handle_upgrade(request)

    def profile_of(self, request: HttpRequest) -> "Profile | None":
        """Return the compatibility profile of the client that sent a request."""
        app = self._apps.get(request.path)
        return None if app is None else app.profile_of(request)

    def on_refused(self, request: HttpRequest, status: int, kind: str) -> None:
        """Report a refused request to the observers of the server at its path."""
        app = self._apps.get(request.path)
        if app is not None:
            app.on_refused(request, status, kind)

    def _refuse(self, request: HttpRequest) -> None:
        if request.path in self._opening:
            reason = f"the server at {request.path} is starting"
            request.refuse(503, reason, (b"retry-after", b"1"), kind="temporarily_unavailable")
        else:
            request.refuse(404, f"not found: no server is registered at {request.path}", kind="not_found")

    def close_idle_streams(self) -> None:
        """End the streams that answer no request: of no application, since each belongs to its server."""

    def stop_admitting(self) -> None:
        """Refuse all requests from now on."""
        self._apps.clear()
        self._opening.clear()

    def close(self) -> None:
        """Do nothing: each application belongs to its server."""


def listen_router(
    guard: ListenerGuard, router: PathRouter, opened: ListeningSockets, tls: ssl.SSLContext | ServerTls | None
) -> Listener:
    """Listen for the clients of a router. `guard` limits the connections."""
    connections, acceptor = HttpConnections(guard, router), Acceptor(opened, guard.reserve)
    secured = TlsOptions(tls, guard.settings.header_timeout)
    opener = TransportOpener(acceptor, connections.make, secured, lambda: len(connections.open))
    return HttpListener(router, opener, connections, opened.address, acceptor)
