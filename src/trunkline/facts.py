"""Facts: frozen records of events, and the observers that receive them.

Shells and assembly report facts. Logs, metrics and traces are observers, which no lower layer imports. Without an
observer no fact is created: reporters check first (`if observers:`). Observers run on a thread of their own, so that a
call only pays for putting its facts into a queue.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from msgspec import Struct

__all__ = [
    "CallEnded",
    "CallStarted",
    "Closed",
    "Connected",
    "ConnectionFailed",
    "CrashStep",
    "CrewStep",
    "Dropped",
    "Fact",
    "HandlerFailed",
    "MessageUnreadable",
    "Observer",
    "Observers",
    "OpeningStep",
    "PhaseChanged",
    "PromptStep",
    "Received",
    "ReconnectStep",
    "RestoreStep",
    "ShutdownOverran",
    "ShutdownStep",
    "SubscriptionStep",
]

_MOST_QUEUED: Final = 10_000  # facts
_IDLE_TIMEOUT: Final = 5.0  # seconds without a fact, after which the observer thread ends

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


class CallStarted(Fact, frozen=True, kw_only=True):
    """A request passed its checks, and its handler starts."""

    request: int | str
    method: str
    target: str | None = None  # the tool, prompt or resource URI that the request names


class CallEnded(Fact, frozen=True, kw_only=True):
    """A request ended: answered, refused, cancelled or abandoned."""

    request: int | str
    method: str
    target: str | None = None  # the name or URI that it is about
    outcome: str  # "ok", "error", "failed" (a tool's), "input_required", "cancelled", "timeout", "closed"
    code: int | None
    seconds: float


class HandlerFailed(Fact, frozen=True, kw_only=True):
    """A handler, or our own code, raised an error that the peer must not see; the peer gets `reference` only."""

    request: int | str | None
    method: str  # of a custom route: the HTTP method and the path
    target: str | None = None  # the name or URI that it is about
    reference: str
    error: BaseException


class ConnectionFailed(Fact, frozen=True, kw_only=True):
    """An internal error on one transport connection, which was closed; other connections are not affected."""

    transport: str
    peer: str
    incident: str  # identifies the error in the log
    error: BaseException


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


class Closed(Fact, frozen=True, kw_only=True):
    """A connection closed."""

    reason: str


class Observer(Protocol):
    """Observer protocol: receives facts on a thread of its own, in order. A slow observer delays no call.

    Exceptions of an observer are counted and otherwise ignored. Two optional attributes change what it receives:

    - `failures_only`, if true: `HandlerFailed`, `ConnectionFailed` and `MessageUnreadable` only; successful calls then
      cost nothing.
    - `immediate`, if true: each fact at once, on the thread that reports it. Such an observer must be quick and must
      not block.
    """

    def on(self, fact: Fact) -> None: ...


_FAILURES: Final = (HandlerFailed, ConnectionFailed, MessageUnreadable)


class Observers:
    """A set of observers. False if no observer wants every fact, so that a reporter can skip creating it."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        all_observers = tuple(observers)
        immediate = tuple(observer for observer in all_observers if getattr(observer, "immediate", False))
        queued = tuple(observer for observer in all_observers if observer not in immediate)
        self._immediate = (immediate, _observing_all(immediate))  # observers of failures, and of every fact
        self._queued = (queued, _observing_all(queued))
        self._observes_all = bool(_observing_all(all_observers))
        self._delivery = _Delivery(partial(self._notify, self._queued)) if queued else None
        self.hear_failures = bool(all_observers)
        self.failures = 0  # exceptions that observers raised

    def __bool__(self) -> bool:
        return self._observes_all

    @property
    def dropped(self) -> int:
        """The number of facts dropped because observers were too slow."""
        return 0 if self._delivery is None else self._delivery.dropped

    def on(self, fact: Fact) -> None:
        """Pass a fact to every observer that wants it."""
        self._notify(self._immediate, fact)
        if self._delivery is not None and _observers_for(self._queued, fact):
            self._delivery.put(fact)

    async def drain(self, timeout: float | None) -> None:
        """Wait until the observers have received every fact so far, for at most `timeout` seconds."""
        if self._delivery is not None and (delivered := self._delivery.flush()) is not None:
            await asyncio.wait([asyncio.wrap_future(delivered)], timeout=timeout)

    def _notify(self, observers: "_Observed", fact: Fact) -> None:
        for observer in _observers_for(observers, fact):
            try:
                observer.on(fact)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:  # noqa: BLE001 - an observer's fault is its own
                self.failures += 1


_Observed = tuple[tuple[Observer, ...], tuple[Observer, ...]]


def _observing_all(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    return tuple(observer for observer in observers if not getattr(observer, "failures_only", False))


def _observers_for(observers: _Observed, fact: Fact) -> tuple[Observer, ...]:
    return observers[0 if isinstance(fact, _FAILURES) else 1]


class _Delivery:
    """Delivers facts in order on a thread, which starts with the first fact and ends after some idle time.

    The queue is bounded. Facts that arrive while it is full are dropped, counted and logged: once when dropping begins,
    and once when the observers have caught up.
    """

    def __init__(self, deliver: Callable[[Fact], None]) -> None:
        self.dropped = 0
        self._unreported = 0  # dropped facts that the log does not mention yet
        self._deliver = deliver
        self._queue: SimpleQueue[Fact | Future[None]] = SimpleQueue()
        self._lock = threading.Lock()  # guards the thread and the queue; released while observers run
        self._thread: threading.Thread | None = None

    def put(self, fact: Fact) -> None:
        """Queue a fact for delivery. Thread-safe."""
        with self._lock:
            full = self._queue.qsize() >= _MOST_QUEUED
            if full:
                self.dropped += 1
                self._unreported += 1
                begins = self._unreported == 1
            else:
                begins = False
                self._enqueue(fact)
        if begins:
            _log.warning("observers are too slow: %d facts wait for them, and further ones are dropped", _MOST_QUEUED)

    def flush(self) -> "Future[None] | None":
        """Return a future that completes when every queued fact is delivered; None if the queue is empty already."""
        with self._lock:
            if self._thread is None:
                return None
            delivered: Future[None] = Future()
            self._enqueue(delivered)
            return delivered

    def _enqueue(self, item: "Fact | Future[None]") -> None:
        """Add an item to the queue and start the thread if necessary. The caller holds the lock."""
        self._queue.put(item)
        if self._thread is None or not self._thread.is_alive():  # a forked process does not inherit the thread
            self._thread = threading.Thread(target=self._run, name="trunkline-observers", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            flushed: Future[None] | None = None
            try:
                item = self._queue.get(timeout=_IDLE_TIMEOUT)
            except Empty:
                pass
            else:
                if isinstance(item, Fact):
                    self._deliver(item)
                    del item  # a fact may reference an error, and the error any object
                    continue
                flushed = item
            self._report_dropped()
            with self._lock:
                ends = self._queue.empty()
                if ends:
                    self._thread = None
            if flushed is not None:
                flushed.set_result(None)
            if ends:
                return

    def _report_dropped(self) -> None:
        with self._lock:
            dropped, self._unreported = self._unreported, 0
        if dropped:
            _log.warning("%d facts were dropped while observers were too slow", dropped)
