"""What happens on a connection, told to whoever watches."""

from collections.abc import Callable
from itertools import count
from typing import Any, Final

from trunkline.clock import Clock
from trunkline.facts import CallEnded, Dropped, HandlerFailed, MessageUnreadable, Observers
from trunkline.protocol.inflight import IncomingRequest, TrackedRequest

__all__ = ["FactReporter"]

_connection_numbers: Final = count(1)


class FactReporter:
    """Something with a number of its own that reports facts. Where nobody listens, none is made."""

    __slots__ = ("_clock", "_observers", "number", "observed")

    def __init__(self, clock: Clock, observers: Observers) -> None:
        self.number = next(_connection_numbers)
        self._clock = clock
        self._observers = observers
        self.observed = bool(observers)  # somebody hears of everything

    def emit(self, fact: Callable[..., Any], **fields: Any) -> None:
        """Reports a fact, if anybody listens."""
        if self.observed:
            self._observers.on(fact(connection=self.number, at=self._clock.now(), **fields))

    def emit_call_ended(self, call: IncomingRequest, outcome: str, code: int | None = None) -> None:
        """Tells how a call has ended."""
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
        """Tells of an error that the peer must not see; `reference` is what it sees instead, "-" if nothing."""
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
        """Tells of an error that is not a call's but our own; `reference` is what the peer sees."""
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
        """Tell of a message that could not be read or assigned, with its first bytes."""
        if self._observers.hear_failures:
            at = self._clock.now()
            self._observers.on(MessageUnreadable(connection=self.number, at=at, why=why, excerpt=excerpt))

    def report_dropped(self, why: str, kind: str) -> None:
        """Tells of something that went nowhere."""
        self.emit(Dropped, why=why, kind=kind)
