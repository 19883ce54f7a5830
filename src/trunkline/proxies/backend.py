"""One connection of a proxy to the server behind it.

It is a client without an application: the client in front of the proxy answers the requests of the server, and requests
of that client keep their envelope. Results stay encoded. The connection is opened with its first request, and again
with the next request after it has failed for good.
"""

from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Raw, Struct

from trunkline.client.connection import ClientConnection
from trunkline.client.retry import NextRound, OnProgress, Repeatable, SentRequest, ServerReply, send_with_retry
from trunkline.client.runtime import ClientDeclaration, ClientRuntime
from trunkline.config import Settings
from trunkline.errors import ConnectionClosed, MethodNotFound, MisuseError, TrunklineError
from trunkline.facts import Observers
from trunkline.protocol.inflight import IncomingRequest, OutgoingRequest
from trunkline.protocol.lifecycle import Phase
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import LOGGING_LEVELS, Empty, Implementation, Root, SetLevelParams
from trunkline.proxies.results import related_task
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.outgoing_requests import closed_error
from trunkline.rpc.run_handler import Work
from trunkline.transports.channel import Connector

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["Answer", "Backend", "BackendTarget", "FrontCall", "TaskBehind"]

Answer = Callable[["Backend", ClientConnection, IncomingRequest, Raw], Coroutine[Any, Any, Raw]]
"""Answers a request of the server behind the proxy: takes the connection that it arrived on, the request and its
params, and returns the result; params and result are encoded."""

_QUESTIONS: Final = (
    *("sampling/createMessage", "elicitation/create", "roots/list"),
    *("tasks/get", "tasks/result", "tasks/list", "tasks/cancel"),  # of requests that the client runs as tasks
)
_DEFAULT_LEVEL: Final = LOGGING_LEVELS.index("info")


class FrontCall(Struct, eq=False):
    """A call of a client in front of the proxy. If it has several rounds, this is the latest one."""

    connection: "Connection"
    call: IncomingRequest
    timed: bool = False  # it has a deadline of its own, which the server behind learns


class TaskBehind(Protocol):
    """A task of the server behind, which a task in front follows."""

    task_id: str | None

    async def ask(self, connection: ClientConnection, call: IncomingRequest, params: Raw) -> Raw:
        """Answer a request of the server about the task."""
        ...

    def note_status(self, message: str | None) -> None:
        """Pass on a status message."""
        ...


class BackendTarget(Struct, frozen=True):
    """The server behind a proxy, and how the proxy connects to it."""

    make_connector: Callable[[], Connector]  # one for each connection
    settings: Settings
    observers: Observers
    info: Implementation
    newest: Revision = Revision.V2026_07_28  # the newest revision to negotiate

    def revisions(self, newest: Revision) -> tuple[Revision, ...]:
        """Return the revisions to negotiate, up to one that is allowed."""
        return tuple(revision for revision in Revision if revision <= min(newest, self.newest))


class _NoTasks:
    """Tasks that a client runs for its server: the client in front of the proxy has them."""

    def feature(self) -> Feature:
        return Feature("tasks", {})

    def close(self) -> None:
        pass


class _Callbacks:
    """The capabilities of the client in front of the proxy, which answers the requests of the server."""

    def __init__(self, backend: "Backend", capabilities: Mapping[str, Any], answer: Answer | None) -> None:
        self.roots: list[Root] | None = None
        self.tasks = _NoTasks()
        self._backend = backend
        self._capabilities = capabilities
        self._answer_request = answer

    def capabilities(self) -> dict[str, Any]:
        return dict(self._capabilities)

    def feature(self) -> Feature:
        return Feature("answers", {"ping": _pong, **dict.fromkeys(_QUESTIONS, self._answer)}, undecoded=True)

    def _answer(self, connection: ClientConnection, call: IncomingRequest, params: Any) -> Work:
        if self._answer_request is None:
            raise MethodNotFound(call.method.name)
        if (task := self._backend.find_task(related_task(params))) is not None:
            return task.ask(connection, call, params)
        return self._answer_request(self._backend, connection, call, params)

    async def close(self) -> None:
        pass


class Backend:
    """A connection to the server behind a proxy, and the calls that it serves."""

    def __init__(
        self,
        target: BackendTarget,
        revisions: tuple[Revision, ...],
        *,
        info: Implementation | None = None,
        capabilities: Mapping[str, Any] | None = None,
        answer: Answer | None = None,
        front: "Connection | None" = None,
        on_connected: Callable[[bool], object] = bool,
        on_lost: Callable[[], object] | None = None,
        listens: bool = False,
    ) -> None:
        """`info` and `capabilities` are those of the client in front, `front` is its connection if this one serves no
        other. `on_connected` is called with each connection, and with whether it replaces a lost one; `on_lost` when
        one is lost."""
        declared = dict(capabilities or {})
        experimental, extensions = declared.pop("experimental", {}), declared.pop("extensions", {})
        self.front = front
        self.calls: dict[int, FrontCall] = {}  # in flight, the latest last
        self.tasks: set[TaskBehind] = set()  # that tasks in front follow on this connection
        self.idle_since = 0.0
        self._serial = 0
        self._level = _DEFAULT_LEVEL
        self._shared = answer is None  # several clients may use it, so none of them can be asked
        self.runtime = ClientRuntime(
            target.make_connector(),
            ClientDeclaration(info or target.info, revisions, experimental, extensions, forwards=True),
            _Callbacks(self, declared, answer),
            settings=target.settings,
            observers=target.observers,
            clock=None,
            log_level=None,
            default_log_level=None,
            on_failed=None if on_lost is None else lambda _: on_lost(),
            on_phase=None if on_lost is None else lambda phase: phase is Phase.RECONNECTING and on_lost(),
            on_connected=on_connected,
            listens=listens,
        )

    @property
    def modern(self) -> bool:
        """Whether the server speaks the modern era on this connection."""
        return self.runtime.modern

    @property
    def connection(self) -> ClientConnection | None:
        """The connection, if it is usable now."""
        supervisor = self.runtime.supervisor
        return None if supervisor is None else supervisor.connection

    async def open(self) -> None:
        """Connect, unless the connection is open or being replaced. Raises the reason if that is impossible."""
        supervisor = self.runtime.supervisor
        if supervisor is None or supervisor.done or supervisor.last_ready is None:
            await self.runtime.open()

    async def wait_connected(self) -> None:
        """Connect, or wait until a lost connection is replaced. Raises the reason if that is impossible."""
        await self.open()
        supervisor = self.runtime.supervisor
        if supervisor is not None:
            await supervisor.wait_for_connection("the catalog", None)

    @property
    def loss(self) -> TrunklineError:
        """The reason why the last connection was lost."""
        latest = self.runtime.latest
        if latest is None or not latest.disconnected.done():
            return ConnectionClosed("the connection was lost")
        return closed_error(latest.disconnected.result())

    async def close(self) -> None:
        """Close the connection and wait until all of its work has ended."""
        if self.runtime.supervisor is not None:
            self.runtime.stop_waiters()
            await self.runtime.close()

    async def send(
        self,
        name: str,
        params: Any,
        *,
        repeatable: Repeatable,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        next_params: NextRound | None = None,
        on_abandoned: Callable[[OutgoingRequest], None] | None = None,
        first: SentRequest | None = None,
    ) -> ServerReply:
        """Send a request and return its result, undecoded. Raises the errors of `send_with_retry`; an error response is
        raised as it is. `on_abandoned` is called with a request that may be answered with a task after its caller has
        stopped waiting. `first` is the request if it has been sent before."""
        if first is None and self.connection is None:
            await self.open()
        supervisor, clock = self.runtime.supervisor, self.runtime.clock
        if supervisor is None or clock is None:
            raise MisuseError("the proxy is closed")
        return await send_with_retry(
            supervisor,
            clock,
            name,
            params,
            repeatable=repeatable,
            timeout=timeout,
            on_progress=on_progress,
            send_timeout=timeout is not None,
            next_params=next_params,
            on_abandoned=on_abandoned,
            forwarded=True,
            first=first,
        )

    def covers_log_level(self, level: int) -> bool:
        """Return whether the server sends the log messages of a level. On a shared connection the lowest level that a
        client wants counts: the proxy leaves out what others do not want."""
        return level == self._level or (self._shared and level > self._level)

    async def set_log_level(self, level: int) -> None:
        """Send `logging/setLevel` if the level has changed and the server has log messages."""
        connection = self.connection
        if self.covers_log_level(level):
            return
        if connection is None or not connection.session.may_send("logging/setLevel"):
            return
        self._level, self.runtime.log_level = level, LOGGING_LEVELS[level]
        await connection.request("logging/setLevel", SetLevelParams(LOGGING_LEVELS[level]))

    # --- calls and tasks in flight -------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no call and no task uses the connection."""
        return not self.calls and not self.tasks

    def find_task(self, task_id: str | None) -> TaskBehind | None:
        """Return the task of the server with an id, if a task in front follows it."""
        return None if task_id is None else next((one for one in self.tasks if one.task_id == task_id), None)

    def enter(self, front: FrontCall) -> int:
        """Count a call of a client in front; return the number to leave with."""
        self._serial += 1
        self.calls[self._serial] = front
        return self._serial

    def leave(self, number: int) -> None:
        """Stop counting a call."""
        del self.calls[number]
        if not self.calls:
            self.idle_since = self.runtime.now()

    def latest_call(self) -> FrontCall | None:
        """Return the latest call in flight. A server does not say for which call it asks or logs."""
        return next(reversed(self.calls.values()), None)

    @contextmanager
    def deadlines_suspended(self, connection: ClientConnection) -> Generator[None]:
        """Suspend the deadlines of all requests to the server while the client in front answers a question."""
        requests = list(connection.session.outgoing_requests.values())
        for request in requests:
            connection.suspend_request(request, suspended=True)
        try:
            yield
        finally:
            for request in requests:
                connection.suspend_request(request, suspended=False)


def _pong(_connection: ClientConnection, _call: IncomingRequest, _params: Any) -> Empty:
    return Empty()
