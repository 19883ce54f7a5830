"""The interface of a server that a process runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from trunkline.config import CertificateFiles, Settings
from trunkline.facts import Observers
from trunkline.transports.channel import Channel, Listener, Receiver

if TYPE_CHECKING:
    from ssl import SSLContext

    from trunkline.protocol.profiles import Profile
    from trunkline.server.introspection.process_state import CallStack, ServerState

__all__ = ["PendingRequests", "RunnableServer"]


class PendingRequests(Protocol):
    """A connection whose requests to the client can be failed."""

    def fail_pending_requests(self, reason: str) -> None:
        """Fail all requests to the client: it sends no more, though it may still read."""
        ...


class RunnableServer(Protocol):
    """A server that a process starts, connects to its clients and shuts down.

    All members belong to the event loop, except `abort`, which any thread may call. Concurrent calls of `shutdown`
    share one shutdown; afterwards the server can be started again.
    """

    @property
    def name(self) -> str:
        """The name of the server."""
        ...

    @property
    def settings(self) -> Settings:
        """The settings of the server."""
        ...

    @property
    def profile(self) -> "Profile | None":
        """The compatibility profile of all clients of the handshake era."""
        ...

    @property
    def observers(self) -> Observers:
        """The observers that receive the server's facts."""
        ...

    @property
    def connections(self) -> Sequence[PendingRequests]:
        """The open connections."""
        ...

    @property
    def crash(self) -> BaseException | None:
        """The error that the server crashed with since it was last started; None if it has not."""
        ...

    def describe(self) -> "ServerState":
        """Return the state of the server: its connections, calls and tasks."""
        ...

    def stacks(self) -> "Sequence[CallStack]":
        """Return the calls that run, with their stacks."""
        ...

    def scoped(self) -> list[str]:
        """Return the names of the entries that need scopes."""
        ...

    def connect(self, channel: Channel) -> Receiver:
        """Serve one channel until it closes; return its receiver."""
        ...

    async def start(self) -> None:
        """Prepare to serve, unless that has happened."""
        ...

    async def listen(self, address: str, *, tls: "SSLContext | CertificateFiles | None" = None) -> Listener:
        """Start, and listen for clients at an address until the shutdown."""
        ...

    def reload_certificates(self) -> None:
        """Load the certificate files of all listeners again, for new connections."""
        ...

    @property
    def handles_hangup(self) -> bool:
        """Whether the server has a use for SIGHUP besides its certificates."""
        ...

    def hang_up(self) -> None:
        """React to SIGHUP: load certificates again, and whatever else the server reloads."""
        ...

    async def stopping(self) -> None:
        """Wait until a shutdown begins."""
        ...

    async def shutdown(self) -> Sequence[str]:
        """Shut down in stages; return the names of the stages that exceeded their time limit."""
        ...

    async def aclose(self) -> None:
        """Shut down in stages, as `shutdown()` does."""
        ...

    def abort(self, error: BaseException) -> None:
        """Crash with an error: close everything without waiting for running requests."""
        ...

    def loop_failed(self, error: BaseException, incident: str) -> None:
        """Report an exception that only the event loop's exception handler caught."""
        ...
