"""Cluster messages: their kinds, the handlers of incoming ones, and the listener that receives them from the bus.

The first byte of a message is its kind. Kinds 0 to 15 belong to the cluster itself; features register handlers for
other kinds. `ClusterCallbacks` also holds the callbacks for membership events and reports both to the observers. An
exception of one callback is reported and does not stop the next callback.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from trunkline.clock import Clock
from trunkline.facts import CrewStep, Dropped, HandlerFailed, Observers
from trunkline.stores.bus import BusListener

__all__ = [
    "ACK",
    "BROADCAST",
    "BROADCAST_MISSED",
    "CHECK_LEASE",
    "EVICTED",
    "HEARTBEAT",
    "LEAVING",
    "PING",
    "PONG",
    "BufferedListener",
    "ClusterCallbacks",
    "MessageHandler",
]

HEARTBEAT: Final = b"\x00"  # the sender has renewed its lease
BROADCAST: Final = b"\x01"
ACK: Final = b"\x02"
BROADCAST_MISSED: Final = b"\x03"  # the receiver has not acknowledged a broadcast, and the sender has stopped waiting
LEAVING: Final = b"\x04"
EVICTED: Final = b"\x05"  # the sender knows of an eviction; the body is the name of the evicted process
CHECK_LEASE: Final = b"\x06"  # the receiver was evicted and should check its lease
PING: Final = b"\x07"  # asks the receiver for a PONG
PONG: Final = b"\x08"  # answer to a PING; it needs no handler, since any message shows that the sender is reachable


MessageHandler = Callable[[str, bytes], "asyncio.Future[Any] | None"]
"""Handle the body of a message from a sender. For a reliable broadcast it may return a future; the acknowledgement is
sent when that future is done."""


class ClusterCallbacks:
    """Message handlers by kind, callbacks for membership events, and reports to observers."""

    def __init__(self, observers: Observers, clock: Clock) -> None:
        # Messages from or to a process, or with None any process, may be lost. A departed process counts as lost, too.
        self.on_lost: list[Callable[[str | None], None]] = []
        self.on_evicted: list[Callable[[], None]] = []  # this process was evicted
        self.on_disconnect: list[Callable[[], None]] = []  # it is about to leave the bus
        self.on_rejoined: list[Callable[[], None]] = []  # it has another name
        self.on_missed: list[Callable[[], None]] = []  # it may have missed broadcasts of other processes
        self.on_store_reset: list[Callable[[], None]] = []  # it has joined again, and the store has lost its data
        self.on_heartbeat: list[Callable[[], None]] = []  # a periodic heartbeat is due
        self._handlers: dict[bytes, MessageHandler] = {}
        self._observers = observers
        self._clock = clock

    def register(self, kind: bytes, handler: MessageHandler) -> None:
        """Register the handler of a message kind. Raise `ValueError` if the kind already has one."""
        if kind in self._handlers:
            raise ValueError(f"message kind {kind!r} already has a handler")
        self._handlers[kind] = handler

    def dispatch(self, sender: str, message: bytes) -> "asyncio.Future[Any] | None":
        """Pass a message to the handler of its kind and return the handler's result. Unknown kinds are ignored."""
        handler = self._handlers.get(message[:1])
        return None if handler is None else self._call_safely(partial(handler, sender, message[1:]))

    def notify(self, callbacks: Iterable[Callable[..., None]], *args: object) -> None:
        """Run the callbacks for a membership event."""
        for callback in callbacks:
            self._call_safely(partial(callback, *args))

    def _call_safely(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - an error of our own must not stop the bus
            self.report_failure("a message from another process", error)
            return None

    # --- observers ---------------------------------------------------------------------------------

    def report_step(self, step: str, name: str) -> None:
        """Report a membership event of a process."""
        if self._observers:
            self._observers.on(CrewStep(connection=0, at=self._clock.now(), step=step, process=name))

    def report_dropped(self, kind: str, why: str) -> None:
        """Report that a broadcast or a frame on the bus was dropped."""
        if self._observers:
            self._observers.on(Dropped(connection=0, at=self._clock.now(), why=why, kind=kind))

    def report_failure(self, operation: str, error: BaseException) -> None:
        """Report an exception of the library's own code."""
        if self._observers.hear_failures:
            at = self._clock.now()
            self._observers.on(
                HandlerFailed(connection=0, at=at, request=None, method=operation, reference="-", error=error)
            )


class BufferedListener:
    """Bus listener of one membership: buffers events until the process has joined, and drops them after it has left."""

    def __init__(self, target: BusListener) -> None:
        self._target = target
        self._buffered: list[Callable[[], None]] | None = []
        self._stopped = False

    def start(self) -> None:
        """Deliver the buffered callbacks, and later ones at once."""
        buffered, self._buffered = self._buffered or [], None
        for event in buffered:
            event()

    def stop(self) -> None:
        """Drop all further callbacks."""
        self._stopped = True

    def _deliver(self, event: Callable[[], None]) -> None:
        if self._buffered is not None:
            self._buffered.append(event)
        elif not self._stopped:
            event()

    def heard(self, sender: str, message: bytes) -> None:
        """Deliver a message from another process."""
        self._deliver(lambda: self._target.heard(sender, message))

    def met(self, name: str) -> None:
        """Report that another process is reachable."""
        self._deliver(lambda: self._target.met(name))

    def lost(self, name: str | None) -> None:
        """Report that messages may have been lost."""
        self._deliver(lambda: self._target.lost(name))

    def rejected(self, why: str) -> None:
        """Report a frame that failed verification; this needs no buffering."""
        if not self._stopped:
            self._target.rejected(why)
