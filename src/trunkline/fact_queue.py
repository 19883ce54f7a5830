"""A bounded queue of facts and the thread that delivers them to one observer.

A call only appends to the queue. The thread delivers in bursts and pauses between them: a woken thread competes with
the event loop for the interpreter, so one wake-up per fact would cost more than the fact, and a long burst would delay
calls. Facts that arrive while the queue is full are dropped and counted.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic, sleep
from typing import Any, Final, cast

__all__ = ["MAX_QUEUED", "FactQueue", "OncePerMinute"]

MAX_QUEUED: Final = 10_000  # facts
_BURST: Final = 0.001  # seconds of delivery, after which the event loop gets the interpreter
_PAUSE: Final = 0.001  # seconds between two bursts
_LINGER: Final = 0.02  # seconds until the thread looks again after the queue was empty; bounds the wake-ups
_IDLE_TIMEOUT: Final = 5.0  # seconds without a fact, after which the thread ends
_REPORT_INTERVAL: Final = 60.0  # seconds


class OncePerMinute:
    """Limits the rate of a log message: true at the first call, then at most once per minute."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = float("-inf")

    def __call__(self) -> bool:
        """Return whether to log now."""
        now = monotonic()
        if now < self._next:
            return False
        self._next = now + _REPORT_INTERVAL
        return True


class FactQueue:
    """Calls `deliver` with each fact in order, on a thread that starts with the first fact and ends when idle.

    `put` and `flush` are thread-safe. `deliver` must not raise. `on_drop` is called with the number of facts that were
    dropped so far, for each one, on the thread that reports it.
    """

    def __init__(self, deliver: Callable[[Any], None], on_drop: Callable[[int], None]) -> None:
        self.dropped = 0
        self._deliver = deliver
        self._on_drop = on_drop
        self._facts: deque[Any] = deque()
        self._lock = threading.Lock()  # guards the thread and the count; released while the observer runs
        self._wake = threading.Event()
        self._asleep = True  # the thread has to be woken or started; set by the thread, before it looks a last time
        self._thread: threading.Thread | None = None
        _queues.add(self)

    def __len__(self) -> int:
        return len(self._facts)

    def put(self, fact: Any) -> None:
        """Queue a fact for delivery."""
        if len(self._facts) >= MAX_QUEUED:
            with self._lock:
                self.dropped = dropped = self.dropped + 1
            self._on_drop(dropped)
            return
        self._facts.append(fact)
        if self._asleep:
            self._rouse()

    def flush(self) -> "Future[None] | None":
        """Return a future that completes when every fact so far is delivered; None if none is queued."""
        with self._lock:
            if self._thread is None and not self._facts:
                return None
        delivered: Future[None] = Future()
        self._facts.append(delivered)
        self._rouse()
        return delivered

    def after_fork(self) -> None:
        """Let the next fact start a thread: a forked process inherits the queue, but neither thread nor locks."""
        self._lock, self._wake, self._thread, self._asleep = threading.Lock(), threading.Event(), None, True
        self._facts.clear()  # the parent delivers them

    def _rouse(self) -> None:
        """Wake the thread, or start it."""
        with self._lock:
            self._asleep = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trunkline-observer", daemon=True)
                self._thread.start()
            else:
                self._wake.set()

    def _run(self) -> None:
        while True:
            self._deliver_burst()
            if self._facts:
                sleep(_PAUSE)  # cheaper than waiting for the event
            elif not self._wake.wait(_LINGER) and not self._facts and not self._sleep():
                return
            self._wake.clear()

    def _deliver_burst(self) -> None:
        facts, deliver, until = self._facts, self._deliver, monotonic() + _BURST
        while facts and monotonic() < until:
            fact = facts.popleft()
            if type(fact) is Future:
                cast("Future[None]", fact).set_result(None)
            else:
                deliver(fact)
            del fact  # it may refer to an error, and the error to any object

    def _sleep(self) -> bool:
        """Wait for a fact; return False if none has come for a while, and the thread is to end."""
        self._asleep = True
        if self._facts or self._wake.wait(_IDLE_TIMEOUT):
            self._asleep = False
            return True
        with self._lock:
            if self._facts or self._wake.is_set():
                self._asleep = False
                return True
            self._thread = None
            return False


_queues: Final = weakref.WeakSet[FactQueue]()


def _reset_after_fork() -> None:
    for queue in _queues:
        queue.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
