"""Report of slow calls: each call that runs longer than a limit is logged once, with its stack.

A timer on the loop finds slow calls. It cannot fire while a handler blocks the loop, so a thread watches the timer: if
it is late by more than the limit, the stack of the loop's thread is logged.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from trunkline.errors.text import printable
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import TimeLimit
from trunkline.server.introspection.stacks import stack_of_call, stack_of_thread

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["SlowCallReport"]

_CHECKS: Final = 4  # of the calls, in the time of the limit
_MIN_INTERVAL: Final = 0.05  # seconds between two checks
_log: Final = logging.getLogger("trunkline.slow")


class SlowCallReport:
    """Logs the slow calls of a server."""

    def __init__(self, limit: float, connections: "Callable[[], Iterable[Connection]]") -> None:
        """`limit` is in seconds."""
        self._limit = limit
        self._interval = max(limit / _CHECKS, _MIN_INTERVAL)
        self._connections = connections
        self._reported: WeakValueDictionary[int, IncomingRequest] = WeakValueDictionary()  # by their `id()`
        self._timer: asyncio.TimerHandle | None = None
        self._checked = threading.Event()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Check from now on. Called on the loop."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval, self._check, loop)
        watch = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="trunkline-slow-calls", daemon=True
        )
        watch.start()

    def stop(self) -> None:
        """Stop checking."""
        self._stopped.set()
        self._checked.set()
        if self._timer is not None:
            self._timer.cancel()

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._checked.set()
        self._timer = loop.call_later(self._interval, self._check, loop)
        for connection in self._connections():
            now = connection.now()
            for call in connection.session.incoming_requests.values():
                if now - call.started > self._limit and self._is_new(call):
                    self._reported[id(call)] = call
                    _report(call, now - call.started)

    def _is_new(self, call: IncomingRequest) -> bool:
        """Return whether a call runs, is expected to end, and was not reported."""
        return not call.queued and call.method.time_limit is not TimeLimit.ENDLESS and id(call) not in self._reported

    def _watch(self, loop_thread: int) -> None:
        """Log the stack of the loop's thread when the timer is late. Runs on a thread."""
        while not self._stopped.is_set():
            self._checked.clear()
            if self._checked.wait(self._interval + self._limit):
                self._stopped.wait(self._interval)
                continue
            stack = _format(stack_of_thread(loop_thread))
            _log.warning("the event loop is blocked for more than %g s%s", self._limit, stack)
            self._checked.wait()


def _report(call: IncomingRequest, age: float) -> None:
    target = f" of {printable(call.target)}" if call.target else ""
    _log.warning("%s%s runs for %.1f s%s", call.method.name, target, age, _format(stack_of_call(call.work)))


def _format(stack: list[str]) -> str:
    return "".join(f"\n  {place}" for place in stack)
