"""Facts about one connection, reported to its observers."""

from collections.abc import Callable
from itertools import count
from typing import Any, Final

from trunkline.clock import Clock
from trunkline.facts import CallEnded, Dropped, HandlerFailed, MessageUnreadable, Observers
from trunkline.protocol.inflight import IncomingRequest, TrackedRequest

__all__ = ["FactReporter"]

_connection_numbers: Final = count(1)


class FactReporter:
    """Report facts under the number of one connection. Without observers, no fact is created."""

    __slots__ = ("_clock", "_observers", "number", "observed")

    def __init__(self, clock: Clock, observers: Observers) -> None:
        self.number = next(_connection_numbers)
        self._clock = clock
        self._observers = observers
        self.observed = bool(observers)  # an observer receives every fact; failures have their own flag

    def emit(self, fact: Callable[..., Any], **fields: Any) -> None:
        """Report a fact of the class `fact` if there is an observer."""
        if self.observed:
            self._observers.on(fact(connection=self.number, at=self._clock.now(), **fields))

    def emit_call_ended(self, call: IncomingRequest, outcome: str, code: int | None = None) -> None:
        """Report the outcome of a call."""
        seconds = self._clock.now() - call.started
        self.emit(
            CallEnded,
            request=call.id,
            method=call.method.name,
            target=call.target,
            outcome=outcome,
            code=code,
            seconds=seconds,
        )

    def report_failure(self, call: TrackedRequest, reference: str, error: BaseException) -> None:
        """Report an error that the peer must not see. The peer sees `reference` instead, or nothing if it is "-"."""
        if self._observers.hear_failures:
            self._observers.on(
                HandlerFailed(
                    connection=self.number,
                    at=self._clock.now(),
                    request=call.id,
                    method=call.method.name,
                    target=call.target,
                    reference=reference,
                    error=error,
                )
            )

    def report_crash(self, reference: str, error: BaseException) -> None:
        """Report an internal error that belongs to no call. The peer sees `reference`."""
        if self._observers.hear_failures:
            at = self._clock.now()
            self._observers.on(
                HandlerFailed(
                    connection=self.number,
                    at=at,
                    request=None,
                    method="the conversation",
                    reference=reference,
                    error=error,
                )
            )

    def report_unreadable(self, why: str, excerpt: bytes) -> None:
        """Report a message that could not be decoded or matched, with its first bytes."""
        if self._observers.hear_failures:
            at = self._clock.now()
            self._observers.on(MessageUnreadable(connection=self.number, at=at, why=why, excerpt=excerpt))

    def report_dropped(self, why: str, kind: str) -> None:
        """Report a message or a report of progress that was discarded."""
        self.emit(Dropped, why=why, kind=kind)
