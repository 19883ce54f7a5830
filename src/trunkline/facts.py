"""Facts: frozen records of events, and the observers that receive them.

Shells and assembly report facts. Logs, metrics and traces are observers, which no lower layer imports. Without an
observer that wants it no fact is created: reporters check first (`observers.want`). Each observer runs on a thread of
its own, so that a call only pays for putting its facts into a queue, and no observer waits for another.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from trunkline.fact_queue import MAX_QUEUED, FactQueue, OncePerMinute

if TYPE_CHECKING:
    from trunkline.tracing import GuardedTracer

__all__ = [
    "BreakerChanged",
    "CallEnded",
    "CallStarted",
    "CallStep",
    "ChildChanged",
    "Closed",
    "Connected",
    "ConnectionFailed",
    "CrashStep",
    "CrewStep",
    "Dropped",
    "Fact",
    "HandlerFailed",
    "HealthChanged",
    "HttpRefused",
    "MessageUnreadable",
    "Observer",
    "Observers",
    "OpeningStep",
    "PhaseChanged",
    "PromptStep",
    "RateExceeded",
    "Received",
    "ReconnectStep",
    "RequestEnded",
    "RestoreStep",
    "ShutdownOverran",
    "ShutdownStep",
    "StoreCallEnded",
    "StoreProbed",
    "StreamClosed",
    "StreamOpened",
    "SubscriptionStep",
    "TaskEnded",
    "TaskRunEnded",
]

_LONGEST_IMMEDIATE: Final = 0.1  # seconds that an immediate observer may take, before it counts as blocking

_log: Final = logging.getLogger("trunkline")


class Fact(Struct, frozen=True, kw_only=True):
    """An event on a connection, and its time in seconds on the connection's clock."""

    connection: int
    at: float


class Connected(Fact, frozen=True, kw_only=True):
    """A peer connected."""

    transport: str
    peer: str


class Received(Fact, frozen=True, kw_only=True):
    """One read delivered messages."""

    count: int


class PhaseChanged(Fact, frozen=True, kw_only=True):
    """A session moved from one lifecycle phase to another."""

    before: str
    after: str


class CallStarted(Fact, frozen=True, kw_only=True, gc=False):
    """A request passed its checks, and its handler starts."""

    request: int | str
    method: str
    target: str | None = None  # the tool, prompt or resource URI that the request names
    transport: str = ""


class CallStep(Fact, frozen=True, kw_only=True, gc=False):
    """One step of a request of the peer. Only for observers whose `wants` names it: there are several per request.

    A request that succeeds has the steps "received", "admitted" (its message is valid now, and its id is tracked),
    "queued" (if it has to wait), "started", "decoded" (its handler is known, its params are valid), "progress" (each
    time), "ended" (its handler has a result) and "sent" (the transport has its reply).
    """

    step: str
    request: int | str
    method: str
    target: str | None = None  # the name or URI that it is about, from "decoded" on
    seconds: float  # since it was received


class _EndedFact(Fact, frozen=True, kw_only=True, gc=False):
    request: int | str | None  # its id; None if it has none that could be read
    method: str  # empty if it could not be read
    target: str | None = None  # the name or URI that it is about
    outcome: str  # "ok", "error", "failed" (a tool's), "input_required", "cancelled", "timeout", "closed", "refused"
    code: int | None  # of the error
    kind: str | None = None  # `data.kind` of the error, or of the failure of a tool
    message: str | None = None  # of the error, as the peer sees it
    reference: str | None = None  # the id of the incident, which the peer also sees in `data`; `HandlerFailed` has it
    seconds: float  # in all
    transport: str = ""
    revision: str | None = None
    session: str | None = None  # a digest of the session id, which is a secret
    principal: str | None = None  # the subject of the caller
    traceparent: str | None = None  # the trace context that its sender stated, unchecked
    request_size: int | None = None  # bytes: of its params if it was received, of the message if it was sent
    response_size: int | None = None  # bytes: of the result if it was received, of the message if it was sent
    span: object | None = None  # that a tracer has started for it

    @property
    def family(self) -> str:
        """The feature that the method belongs to, such as "tools" for `tools/call`."""
        return self.method.partition("/")[0]


class CallEnded(_EndedFact, frozen=True, kw_only=True, gc=False):
    """A request of the peer ended: answered, refused, cancelled or abandoned."""

    wait_seconds: float = 0.0  # until its handler started: the queue, a pause, a rate limit
    run_seconds: float = 0.0  # until its handler had a result
    send_seconds: float = 0.0  # until the transport had its reply
    started: bool = False  # whether its handler was started


class RequestEnded(_EndedFact, frozen=True, kw_only=True, gc=False):
    """A request to the peer ended."""

    peer: str = ""  # its address or its command


class TaskRunEnded(Fact, frozen=True, kw_only=True, gc=False):
    """One run of a task ended in this process. The connection number is that of the run."""

    task: str  # the id of the task
    tool: str
    attempt: int  # the number of this run
    outcome: str  # "ok", "error", "failed" (the tool's), "cancelled", or "released": for another run, or expired
    code: int | None = None  # of the error
    message: str | None = None  # of the error, as the client sees it
    seconds: float
    span: object | None = None  # that a tracer has started for it


class HandlerFailed(Fact, frozen=True, kw_only=True):
    """A handler, or our own code, raised an error that the peer must not see; the peer gets `reference` only."""

    request: int | str | None
    method: str  # of a custom route: the HTTP method and the path
    target: str | None = None  # the name or URI that it is about
    reference: str
    error: BaseException
    span: object | None = None  # that a tracer has started for the request


class ConnectionFailed(Fact, frozen=True, kw_only=True):
    """An internal error on one transport connection, which was closed; other connections are not affected."""

    transport: str
    peer: str
    incident: str  # identifies the error in the log
    error: BaseException


class HttpRefused(Fact, frozen=True, kw_only=True, gc=False):
    """An HTTP request was refused before a message in it became a request. The connection number is 0."""

    method: str  # of HTTP
    path: str  # without the query
    status: int
    kind: str  # `data.kind` of the error
    client: str  # the address that it came from; empty if unknown


class Dropped(Fact, frozen=True, kw_only=True):
    """A message, or part of our own work, that was discarded, and the reason."""

    why: str
    kind: str


class MessageUnreadable(Fact, frozen=True, kw_only=True):
    """A message that could not be decoded, or a response that matches no request."""

    why: str
    excerpt: bytes = b""  # its first bytes, if known


class PromptStep(Fact, frozen=True, kw_only=True):
    """A step in rendering a prompt."""

    step: str  # ProcessArguments, RenderTemplate, GenerateMessages
    request: int | str
    name: str


class SubscriptionStep(Fact, frozen=True, kw_only=True):
    """A step in confirming a subscription."""

    step: str  # RegisterSubscription, SetupWatcher, ConfirmSubscription
    uri: str


class OpeningStep(Fact, frozen=True, kw_only=True):
    """A step of a client that opens a session."""

    step: str  # LoadConfig, InitTransport, EstablishConnection, SendInitialize, WaitForInitialized


class ReconnectStep(Fact, frozen=True, kw_only=True):
    """A step of a client that reconnects to a server."""

    step: str  # Backoff, Attempt, Success, Failure, IncrementRetryCount, CheckMaxRetries
    attempt: int
    detail: str = ""  # the reason of the failure, or the delay


class RestoreStep(Fact, frozen=True, kw_only=True):
    """A step of a server that restores a session: one of another process, or one that an internal error ended."""

    step: str  # RestoreSubscriptions, ReplayPending, RestoreCapabilities, StartMonitoring


class ShutdownStep(Fact, frozen=True, kw_only=True):
    """A shutdown stage of a server begins. It concerns all connections: the connection number is 0."""

    step: str  # UnsubscribeResources, DrainPendingRequests, CloseTransport, PersistSession, Terminate


class ShutdownOverran(Fact, frozen=True, kw_only=True):
    """A shutdown stage exceeded its time limit and was cancelled."""

    step: str


class CrashStep(Fact, frozen=True, kw_only=True):
    """A step of a server that terminates because of an unexpected error."""

    step: str  # LogError, PersistCrashDump, Terminate
    error: BaseException
    file: str | None = None  # the path of the crash dump, if one was written


class CrewStep(Fact, frozen=True, kw_only=True):
    """A change of cluster membership. It concerns all connections of a server: the connection number is 0."""

    step: str  # Join, Meet, Depart, DeclareDead, Regain, Deposed, Leave
    process: str  # the id of the process


class BreakerChanged(Fact, frozen=True, kw_only=True):
    """A circuit breaker changed its state. It concerns all connections of a server: the connection number is 0."""

    name: str
    before: str  # closed, open, half_open
    after: str


class RateExceeded(Fact, frozen=True, kw_only=True):
    """A request was refused because of a rate limit. The connection number is 0."""

    scope: str  # the requests that share the limit, such as "each principal" or "tool 'search'"
    limit: str


class HealthChanged(Fact, frozen=True, kw_only=True):
    """A component changed its health. It concerns all connections of a server: the connection number is 0."""

    name: str
    before: str  # healthy, degraded, unhealthy, unknown
    after: str
    reason: str


class ChildChanged(Fact, frozen=True, kw_only=True):
    """A child of the server's supervisor, such as a listener, changed its state. The connection number is 0."""

    name: str  # the path from the root: "server/tcp:7000"
    kind: str  # listener, task, process, connection, supervisor
    state: str  # starting, running, backoff, degraded, stopping, stopped, ended
    failure: str  # the last one; empty if it never failed


class StreamOpened(Fact, frozen=True, kw_only=True, gc=False):
    """An event stream of an HTTP response was opened. The connection number is 0."""


class StreamClosed(Fact, frozen=True, kw_only=True, gc=False):
    """An event stream of an HTTP response was closed. The connection number is 0."""

    seconds: float  # since it was opened


class TaskEnded(Fact, frozen=True, kw_only=True, gc=False):
    """This process ended a task. The connection number is 0."""

    task: str  # its id
    state: str  # completed, failed, cancelled
    seconds: float  # since it was created


class StoreCallEnded(Fact, frozen=True, kw_only=True, gc=False):
    """A call of the store ended. Only for observers whose `wants` names it. The connection number is 0."""

    operation: str  # get, scan, commit, acquire, renew, release
    outcome: str  # "ok", "conflict", "fenced", "unavailable", "cancelled", "error"
    seconds: float


class StoreProbed(Fact, frozen=True, kw_only=True, gc=False):
    """A small write has tested the store. The connection number is 0."""

    seconds: float  # that it took
    error: str  # empty if it succeeded


class Closed(Fact, frozen=True, kw_only=True):
    """A connection closed."""

    reason: str
    failure: str | None = None  # the class of the error that ended it, or "keepalive_failed"
    side: str = ""  # ours: "server" or "client"
    transport: str = ""
    revision: str | None = None
    seconds: float | None = None  # since the peer connected; None for a channel of independent requests


class Observer(Protocol):
    """Observer protocol: receives facts on a thread of its own, in order. A slow observer delays no call.

    Exceptions of an observer are counted, logged once per minute, and otherwise ignored. Optional attributes change
    what it receives:

    - `wants`, a collection of classes of facts: only these. Without it, all but `CallStep` and `StoreCallEnded`. Facts
      that no observer wants cost nothing.
    - `failures_only`, if true: `HandlerFailed`, `ConnectionFailed` and `MessageUnreadable` only.
    - `immediate`, if true: each fact at once, on the thread that reports it, most often that of the event loop. Such an
      observer must be quick and must not block.
    - `tracer`, a `Tracer` of `trunkline.tracing` or None: it starts spans, which the facts about the end contain. Only
      the first observer with a tracer is asked for spans.
    """

    def on(self, fact: Fact) -> None: ...


_FAILURES: Final = (HandlerFailed, ConnectionFailed, MessageUnreadable)
_DETAILS: Final = (CallStep, StoreCallEnded)  # several per request


class Observers:
    """A set of observers. False if no observer wants more than failures, so that a reporter can skip creating facts."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._deliveries: tuple[_Delivery, ...] = ()
        self._routes: dict[type[Fact], tuple[Callable[[Fact], None], ...]] = {}
        self._arrange(tuple(map(_Delivery, observers)))

    def _arrange(self, deliveries: "tuple[_Delivery, ...]") -> None:
        self._deliveries = deliveries
        self._routes = {}
        self._wants_more = any(not delivery.failures_only for delivery in deliveries)
        self.tracer = next((one.tracer for one in deliveries if one.tracer is not None), None)
        self.hear_failures = any(map(self.want, _FAILURES))

    def _find_route(self, kind: type[Fact]) -> tuple[Callable[[Fact], None], ...]:
        """Return the functions that take the facts of a class."""
        route = self._routes.get(kind)
        if route is None:
            route = self._routes[kind] = tuple(one.put for one in self._deliveries if one.wants(kind))
        return route

    def want(self, kind: type[Fact]) -> bool:
        """Return whether an observer wants the facts of a class."""
        return bool(self._find_route(kind))

    def add(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; return a function that removes it. Connections that are open already report only what the
        observers wanted when they opened."""
        added = _Delivery(observer)
        self._arrange((*self._deliveries, added))

        def remove() -> None:
            self._arrange(tuple(one for one in self._deliveries if one is not added))

        return remove

    def __bool__(self) -> bool:
        return self._wants_more

    def __iter__(self) -> Iterator[Observer]:
        return (delivery.observer for delivery in self._deliveries)

    @property
    def dropped(self) -> int:
        """The number of facts dropped because observers were too slow."""
        return sum(one.dropped for one in self._deliveries)

    @property
    def queued(self) -> int:
        """The number of facts that wait for an observer."""
        return sum(one.queued for one in self._deliveries)

    @property
    def failures(self) -> int:
        """The number of exceptions that observers and their tracers raised."""
        return sum(one.failures + (0 if one.tracer is None else one.tracer.failures) for one in self._deliveries)

    @property
    def blocked(self) -> int:
        """How often an immediate observer took more than a tenth of a second, in the middle of a call."""
        return sum(one.blocked for one in self._deliveries)

    def on(self, fact: Fact) -> None:
        """Pass a fact to every observer that wants it."""
        kind = type(fact)
        for put in self._routes.get(kind) or self._find_route(kind):
            put(fact)

    async def drain(self, timeout: float | None) -> None:
        """Wait until the observers have received every fact so far, for at most `timeout` seconds."""
        flushed = [done for one in self._deliveries if (done := one.flush()) is not None]
        if flushed:
            await asyncio.wait([asyncio.wrap_future(done) for done in flushed], timeout=timeout)


def _find_tracer(observer: Observer) -> "GuardedTracer | None":
    tracer = getattr(observer, "tracer", None)
    if tracer is None:
        return None
    from trunkline.tracing import GuardedTracer  # imported here: few observers have a tracer

    return GuardedTracer(tracer)


class _Delivery:
    """Delivery of facts to one observer: by a queue, or at once."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.failures = self.blocked = 0
        self.failures_only: bool = getattr(observer, "failures_only", False)
        self._wanted: Iterable[type[Fact]] | None = getattr(observer, "wants", None)
        self._name = type(observer).__name__
        self._may_log = OncePerMinute()
        self.tracer = _find_tracer(observer)
        self._queue = None if getattr(observer, "immediate", False) else FactQueue(self._notify, self._on_drop)
        self.put: Callable[[Fact], None] = self._notify_timed if self._queue is None else self._queue.put

    def wants(self, kind: type[Fact]) -> bool:
        """Return whether the observer receives facts of a class."""
        if self.failures_only:
            return issubclass(kind, _FAILURES)
        return not issubclass(kind, _DETAILS) if self._wanted is None else issubclass(kind, tuple(self._wanted))

    @property
    def dropped(self) -> int:
        """The number of facts dropped because the observer was too slow."""
        return 0 if self._queue is None else self._queue.dropped

    @property
    def queued(self) -> int:
        """The number of facts that wait for the observer."""
        return 0 if self._queue is None else len(self._queue)

    def flush(self) -> Future[None] | None:
        """Return a future that completes when all queued facts are delivered; None if there is none."""
        return None if self._queue is None else self._queue.flush()

    def _notify(self, fact: Fact) -> None:
        try:
            self.observer.on(fact)
        except (KeyboardInterrupt, SystemExit):
            if self._queue is None:
                raise
            self.failures += 1  # on its own thread it would end the thread only
        except BaseException as error:  # noqa: BLE001 - an observer's fault is its own
            self.failures += 1
            if self._may_log():
                _log.warning(
                    "observer %s failed, %d times so far; calls continue", self._name, self.failures, exc_info=error
                )

    def _notify_timed(self, fact: Fact) -> None:
        started = perf_counter()
        self._notify(fact)
        seconds = perf_counter() - started
        if seconds > _LONGEST_IMMEDIATE:
            self.blocked += 1
            if self._may_log():
                template = "observer %s blocked its caller for %.1f s; without `immediate` it runs on a thread"
                _log.warning(template, self._name, seconds)

    def _on_drop(self, dropped: int) -> None:
        if self._may_log():
            template = "observer %s is too slow: %d facts wait for it, and %d were dropped so far"
            _log.warning(template, self._name, MAX_QUEUED, dropped)
