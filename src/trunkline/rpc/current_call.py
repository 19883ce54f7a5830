"""Context variable with the call in progress, for code without a `Context`.

Servers set it only if a log handler, a subscription or a client in the same process needs it, since setting it costs
more than a short call. Tasks and threads that a handler starts inherit it with its context variables.

A client that is used in a handler has the time that is left for the handler's call. So a server tracks its calls from
the moment that this process opens a client of another server.
"""

from contextvars import ContextVar
from typing import Any, Final, Protocol
from weakref import WeakSet, ref

from trunkline.config import Settings
from trunkline.protocol.inflight import IncomingRequest

__all__ = ["CURRENT_CALL", "TRACKED_SERVERS", "CallConnection", "CurrentCall", "TrackedServers", "time_left"]

_MIN_LEFT: Final = 0.001  # seconds; the call is about to time out


class CallConnection(Protocol):
    """The connection of a call."""

    @property
    def settings(self) -> Settings: ...

    def now(self) -> float: ...


class CurrentCall:
    """A call and its connection. It does not keep them alive, since timers and tasks that outlive the call inherit the
    context variable."""

    __slots__ = ("_call", "_connection")

    def __init__(self, connection: Any, call: IncomingRequest) -> None:
        self._connection = ref(connection)
        self._call = ref(call)

    def get(self) -> tuple[Any, IncomingRequest] | None:
        """Return the connection and the call; None if the call has ended."""
        connection, call = self._connection(), self._call()
        return None if connection is None or call is None or call.done else (connection, call)


CURRENT_CALL: Final[ContextVar[CurrentCall | None]] = ContextVar("trunkline_current_call", default=None)
"""The current call; None outside of calls, and while connections do not track calls."""


def time_left() -> float | None:
    """Return the seconds until the current call times out; None outside of calls, and without a limit."""
    current = CURRENT_CALL.get()
    found = None if current is None else current.get()
    if found is None:
        return None
    connection: CallConnection = found[0]
    call, deadline = found[1], found[1].deadline
    if deadline is None:  # not set before the handler waits for the first time
        allowed = call.method.time_limit.seconds(connection.settings)
        deadline = None if allowed is None else call.started + allowed
    return None if deadline is None else max(deadline - connection.now(), _MIN_LEFT)


class TrackableServer(Protocol):
    """A server that can set `CURRENT_CALL`."""

    def track_calls(self) -> None:
        """Set `CURRENT_CALL` for every call from now on. Callable from any thread, and more than once."""
        ...


class TrackedServers:
    """The servers of this process. All but the one that a client is connected to track their calls."""

    def __init__(self) -> None:
        self._servers: WeakSet[Any] = WeakSet()  # of TrackableServer
        self._targets: WeakSet[Any] = WeakSet()  # servers in this process that have clients here
        self._has_remote = False  # whether there was a client of another process

    def add_server(self, server: TrackableServer) -> None:
        """Add a server; it tracks its calls if there is a client of another one."""
        self._servers.add(server)
        if self._has_remote or any(target is not server for target in self._targets):
            server.track_calls()

    def add_client(self, target: TrackableServer | None) -> None:
        """Add a client, of a server in this process or of another process (None)."""
        if target is None:
            self._has_remote = True
        else:
            self._targets.add(target)
        for server in list(self._servers):
            if server is not target:
                server.track_calls()


TRACKED_SERVERS: Final = TrackedServers()
"""The servers of this process."""
