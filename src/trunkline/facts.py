"""What happened, as frozen records, and who is told.

Shells and assembly report facts; logs, metrics and traces are observers, which nothing below imports. Where
nobody listens, a fact is not even made: reporters look first (`if observers:`).
"""

from collections.abc import Iterable
from typing import Protocol

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


class CallEnded(Fact, frozen=True, kw_only=True):
    """A request was answered, refused, cancelled or given up."""

    request: int | str
    method: str
    outcome: str  # "ok", "error", "failed" (a tool's), "input_required", "cancelled", "timeout", "closed"
    code: int | None
    seconds: float


class HandlerFailed(Fact, frozen=True, kw_only=True):
    """User code or our own raised something that the peer must not see; `reference` is what the peer sees."""

    request: int | str | None
    method: str
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
    """Told what happened. Whatever it raises is swallowed: watching never harms what is watched.

    One that has an attribute `failures_only` which is true hears of `HandlerFailed` and `ConnectionFailed` alone, and
    costs a call nothing.
    """

    def on(self, fact: Fact) -> None: ...


class Observers:
    """Those who are told. False when nobody listens to everything, so that a reporter can save itself the fact."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self._all = any(not getattr(observer, "failures_only", False) for observer in self._observers)
        self.hear_failures = bool(self._observers)
        self.failures = 0  # of observers, counted and otherwise ignored

    def __bool__(self) -> bool:
        return self._all

    def on(self, fact: Fact) -> None:
        """Passes a fact on."""
        for observer in self._observers:
            if isinstance(fact, HandlerFailed | ConnectionFailed) or not getattr(observer, "failures_only", False):
                try:
                    observer.on(fact)
                except Exception:  # noqa: BLE001 - an observer's fault is its own
                    self.failures += 1
