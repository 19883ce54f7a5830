"""What processes say to each other of themselves: the first byte of a message. Those up to 15 are the crew's own.

Who in this process is told what others say, and what becomes of them and of this process; observers, too.

What one of these raises is reported, and keeps nobody else from being told.

What a process hears over one bus, for as long as it is known there by one name.
"""

import asyncio
from collections.abc import Callable
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

HEARTBEAT: Final = b"\x00"  # a process has renewed its lease
BROADCAST: Final = b"\x01"
ACK: Final = b"\x02"
BROADCAST_MISSED: Final = b"\x03"  # who is told this has not confirmed something, and nobody waits for it any longer
LEAVING: Final = b"\x04"
EVICTED: Final = b"\x05"  # somebody was declared dead: the name
CHECK_LEASE: Final = b"\x06"  # who is told this was declared dead
PING: Final = b"\x07"  # who is told this says that it is there
PONG: Final = b"\x08"  # says no more than that


MessageHandler = Callable[[str, bytes], "asyncio.Future[Any] | None"]
"""Is told who says something, and what. Of what was told it may give what is done when that can be confirmed."""


class ClusterCallbacks:
    """All who are told."""

    def __init__(self, observers: Observers, clock: Clock) -> None:
        self.on_lost: list[Callable[[str | None], None]] = []
        self.on_evicted: list[Callable[[], None]] = []
        self.on_missed: list[Callable[[], None]] = []
        self.on_store_reset: list[Callable[[], None]] = []
        self._handlers: dict[bytes, MessageHandler] = {}
        self._observers = observers
        self._clock = clock

    def register(self, kind: bytes, handler: MessageHandler) -> None:
        """Has a function be told what comes of a kind."""
        if kind in self._handlers:
            raise ValueError(f"somebody else is told what comes of the kind {kind!r}")
        self._handlers[kind] = handler

    def dispatch(self, sender: str, message: bytes) -> "asyncio.Future[Any] | None":
        """Another process says something, whose first byte is its kind."""
        handler = self._handlers.get(message[:1])
        return None if handler is None else self._call_safely(partial(handler, sender, message[1:]))

    def notify_lost(self, name: str | None) -> None:
        """That process is gone, or messages from or to it may be lost; of None: anybody's."""
        for lost in self.on_lost:
            self._call_safely(partial(lost, name))

    def notify_evicted(self) -> None:
        """This process was declared dead."""
        for deposed in self.on_evicted:
            self._call_safely(deposed)

    def notify_missed(self) -> None:
        """This process may not have heard what others have told."""
        for missed in self.on_missed:
            self._call_safely(missed)

    def notify_store_reset(self) -> None:
        """The store has lost its data, and this process has joined again."""
        for reset in self.on_store_reset:
            self._call_safely(reset)

    def _call_safely(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - an error of our own, which must not end the bus
            self.report_failure("what another process has said", error)
            return None

    # --- observers ---------------------------------------------------------------------------------

    def report_step(self, step: str, name: str) -> None:
        """Something has become of a process."""
        if self._observers:
            self._observers.on(CrewStep(connection=0, at=self._clock.now(), step=step, process=name))

    def report_unacknowledged(self) -> None:
        """A process has not confirmed what it was told, and is not waited for."""
        if self._observers:
            at = self._clock.now()
            self._observers.on(Dropped(connection=0, at=at, why="a process does not confirm it", kind="news"))

    def report_rejected_frame(self, why: str) -> None:
        """A frame on the bus failed verification."""
        if self._observers:
            self._observers.on(Dropped(connection=0, at=self._clock.now(), why=why, kind="bus frame"))

    def report_failure(self, operation: str, error: BaseException) -> None:
        """Something of ours went wrong."""
        if self._observers.hear_failures:
            at = self._clock.now()
            self._observers.on(
                HandlerFailed(connection=0, at=at, request=None, method=operation, reference="-", error=error)
            )


class BufferedListener:
    """Passes on what is heard; what comes before the process has its name waits until then."""

    def __init__(self, target: BusListener) -> None:
        self._target = target
        self._buffered: list[Callable[[], None]] | None = []
        self._stopped = False

    def start(self) -> None:
        """The process has its name."""
        early, self._buffered = self._buffered or [], None
        for heard in early:
            heard()

    def stop(self) -> None:
        """It has it no more."""
        self._stopped = True

    def _deliver(self, event: Callable[[], None]) -> None:
        if self._buffered is not None:
            self._buffered.append(event)
        elif not self._stopped:
            event()

    def heard(self, sender: str, message: bytes) -> None:
        """A message from another process."""
        self._deliver(lambda: self._target.heard(sender, message))

    def met(self, name: str) -> None:
        """Another process is there."""
        self._deliver(lambda: self._target.met(name))

    def lost(self, name: str | None) -> None:
        """Something may not have arrived."""
        self._deliver(lambda: self._target.lost(name))

    def rejected(self, why: str) -> None:
        """A frame failed verification."""
        if not self._stopped:
            self._target.rejected(why)
