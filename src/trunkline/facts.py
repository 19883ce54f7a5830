"""What happened, as frozen records, and who is told.

Shells and assembly report facts; logs, metrics and traces are observers, which nothing below imports. Where
nobody listens, a fact is not even made: reporters look first (`if observers:`). Observers run on a thread of their own,
so that a call costs no more than putting its facts into a queue.
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
_IDLE_TIMEOUT: Final = 5.0  # seconds without a fact, after which the thread of observers ends

_log: Final = logging.getLogger("trunkline")


class Fact(Struct, frozen=True, kw_only=True):
    """Something that happened, on which connection, and when (seconds on the connection's clock)."""

    connection: int
    at: float


class Connected(Fact, frozen=True, kw_only=True):
    """A peer is on the line."""

    transport: str
    peer: str


class Received(Fact, frozen=True, kw_only=True):
    """Messages arrived in one read."""

    count: int


class PhaseChanged(Fact, frozen=True, kw_only=True):
    """A conversation moved from one phase to another."""

    before: str
    after: str


class CallStarted(Fact, frozen=True, kw_only=True):
    """A request passed its checks and is being worked on."""

    request: int | str
    method: str
    target: str | None = None  # the name of the tool or prompt, or the URI of the resource, that it is about


class CallEnded(Fact, frozen=True, kw_only=True):
    """A request was answered, refused, cancelled or given up."""

    request: int | str
    method: str
    target: str | None = None  # the name or URI that it is about
    outcome: str  # "ok", "error", "failed" (a tool's), "input_required", "cancelled", "timeout", "closed"
    code: int | None
    seconds: float


class HandlerFailed(Fact, frozen=True, kw_only=True):
    """User code or our own raised something that the peer must not see; `reference` is what the peer sees."""

    request: int | str | None
    method: str
    target: str | None = None  # the name or URI that it is about
    reference: str
    error: BaseException


class ConnectionFailed(Fact, frozen=True, kw_only=True):
    """An error of our own on one transport connection, which was closed for it; other connections are not affected."""

    transport: str
    peer: str
    incident: str  # identifies the error in the log
    error: BaseException


class Dropped(Fact, frozen=True, kw_only=True):
    """A message, or part of our own work, that went nowhere, and why."""

    why: str
    kind: str


class MessageUnreadable(Fact, frozen=True, kw_only=True):
    """A message that could not be read, or an answer that cannot be assigned to a request."""

    why: str
    excerpt: bytes = b""  # its first bytes, where they are known


class PromptStep(Fact, frozen=True, kw_only=True):
    """A step on the way to the messages of a prompt."""

    step: str  # ProcessArguments, RenderTemplate, GenerateMessages
    request: int | str
    name: str


class SubscriptionStep(Fact, frozen=True, kw_only=True):
    """A step on the way to a confirmed subscription."""

    step: str  # RegisterSubscription, SetupWatcher, ConfirmSubscription
    uri: str


class OpeningStep(Fact, frozen=True, kw_only=True):
    """A step of a client on the way to a conversation."""

    step: str  # LoadConfig, InitTransport, EstablishConnection, SendInitialize, WaitForInitialized


class ReconnectStep(Fact, frozen=True, kw_only=True):
    """A step of a client on the way back to a server that it has lost."""

    step: str  # Backoff, Attempt, Success, Failure, IncrementRetryCount, CheckMaxRetries
    attempt: int
    detail: str = ""  # why it failed, or how long it waits


class RestoreStep(Fact, frozen=True, kw_only=True):
    """A step of a server on the way back into a session: one that another process has held, or that an error of our own
    has ended."""

    step: str  # RestoreSubscriptions, ReplayPending, RestoreCapabilities, StartMonitoring


class ShutdownStep(Fact, frozen=True, kw_only=True):
    """A stage of the end of a server begins. It concerns all of its connections: the number is 0."""

    step: str  # UnsubscribeResources, DrainPendingRequests, CloseTransport, PersistSession, Terminate


class ShutdownOverran(Fact, frozen=True, kw_only=True):
    """A stage of the end of a server took too long, and was cut off."""

    step: str


class CrashStep(Fact, frozen=True, kw_only=True):
    """A step of a server on the way to an end that nobody asked for."""

    step: str  # LogError, PersistCrashDump, Terminate
    error: BaseException
    file: str | None = None  # where the dump lies, if there is one


class CrewStep(Fact, frozen=True, kw_only=True):
    """Something about the processes that serve together. It concerns all of a server's connections: the number is 0."""

    step: str  # Join, Meet, Depart, DeclareDead, Regain, Deposed, Leave
    process: str  # the name of the one that it is about


class Closed(Fact, frozen=True, kw_only=True):
    """A connection ended."""

    reason: str


class Observer(Protocol):
    """Told what happened, on a thread of its own and in the order in which it happened: a slow observer delays no call.

    Exceptions that it raises are counted and otherwise ignored. Two optional attributes change what it is told:

    - `failures_only`, if true: `HandlerFailed` and `ConnectionFailed` alone; calls that do not fail cost nothing then.
    - `immediate`, if true: each fact when it happens, on the thread that reports it. It must be quick and not block.
    """

    def on(self, fact: Fact) -> None: ...


_FAILURES: Final = (HandlerFailed, ConnectionFailed, MessageUnreadable)


class Observers:
    """Those who are told. False when nobody listens to everything, so that a reporter can save itself the fact."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        told = tuple(observers)
        immediate = tuple(observer for observer in told if getattr(observer, "immediate", False))
        queued = tuple(observer for observer in told if observer not in immediate)
        self._immediate = (immediate, _observing_all(immediate))  # of failures, and of everything else
        self._queued = (queued, _observing_all(queued))
        self._observes_all = bool(_observing_all(told))
        self._delivery = _Delivery(partial(self._notify, self._queued)) if queued else None
        self.hear_failures = bool(told)
        self.failures = 0  # exceptions of observers

    def __bool__(self) -> bool:
        return self._observes_all

    @property
    def dropped(self) -> int:
        """How many facts were dropped because observers did not keep up."""
        return 0 if self._delivery is None else self._delivery.dropped

    def on(self, fact: Fact) -> None:
        """Passes a fact on."""
        self._notify(self._immediate, fact)
        if self._delivery is not None and _observers_for(self._queued, fact):
            self._delivery.put(fact)

    async def drain(self, timeout: float | None) -> None:
        """Wait until every fact so far has been delivered, for so many seconds at most."""
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
    """Delivers facts on a thread, in order. The thread starts with the first fact, and ends when there are no more.

    So many facts wait at most. Those that come while there is no room are dropped, counted, and reported in the log:
    once when that begins, and once when observers have caught up.
    """

    def __init__(self, deliver: Callable[[Fact], None]) -> None:
        self.dropped = 0
        self._unreported = 0  # of those that were dropped
        self._deliver = deliver
        self._queue: SimpleQueue[Fact | Future[None]] = SimpleQueue()
        self._lock = threading.Lock()  # guards what follows, and is never held while observers run
        self._thread: threading.Thread | None = None

    def put(self, fact: Fact) -> None:
        """Deliver a fact, later. Callable from any thread."""
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
        """A future that is done when every fact so far has been delivered; None if that is so now."""
        with self._lock:
            if self._thread is None:
                return None
            delivered: Future[None] = Future()
            self._enqueue(delivered)
            return delivered

    def _enqueue(self, item: "Fact | Future[None]") -> None:
        """Add to the queue, and see that there is a thread to empty it. Called with the lock held."""
        self._queue.put(item)
        if self._thread is None or not self._thread.is_alive():  # a forked process has no threads of its parent
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
                    del item  # it may refer to an error, and that to anything
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
