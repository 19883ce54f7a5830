"""The supervisor of workers: takes connections in, hands them out in turn, and sees to it that somebody is there.

A shell without a loop of asyncio, without threads, and without a store, so that it can fork at any time. It decides
nothing: whose turn it is says the rota, whether a worker is started again says the policy.
"""

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from trunkline.fdlimit import Reserve
from trunkline.supervision.fd_dispatch import Handing
from trunkline.supervision.fork import Signals, fork, left
from trunkline.supervision.ipc import END, KEPT, NOT_KEPT, STATE, TABLE, Line, ticket_of
from trunkline.supervision.restart_policy import GiveUp, History, Policy, ended, failed
from trunkline.supervision.worker_table import BEAT, Rota

__all__ = ["GIVEN_UP", "Plan", "Supervisor"]

GIVEN_UP: Final = 86
"""What the supervisor ends with if workers end too often."""

_KILLED: Final = 128  # and the number of the signal, as shells have it

Work = Callable[[int, socket.socket], int]
"""What a worker does: it is given its number and its end of the line, and gives what it ends with."""


class Plan(Struct, frozen=True):
    """How many workers, and what is done about those that end, or do not."""

    workers: int
    policy: Policy
    silence: float | None  # seconds, after which a worker is killed
    end: float | None  # seconds that workers have to end in good order
    overran: int  # what the process ends with if one of them had to be killed then


class Supervisor:
    """Runs workers until it is told to end, or they end too often."""

    def __init__(
        self,
        places: Sequence[socket.socket],
        work: Work,
        plan: Plan,
        reserve: Reserve,
        say: Callable[[str], None],
    ) -> None:
        """`places` are listened at already; they are the supervisor's to close. Connections that no worker has taken
        yet leave `reserve` free. `say` tells a person."""
        self._work = work
        self._plan = plan
        self._say = say
        self._rota = Rota(plan.workers)
        self._history = History()
        self._signals = Signals()
        self._selector = selectors.DefaultSelector()
        self._pids: dict[int, int] = {}  # of the workers that are there
        self._lines: dict[int, Line] = {}  # to them
        self._handing = Handing(places, self._rota, self._lines, self._selector, reserve=reserve, say=say)
        self._due: dict[int, float] = {}  # workers that are started then
        self._told: tuple[str, ...] = ()
        self._opened: Callable[[], None] | None = None
        self._ends_by: float | None = None
        self._ending = False
        self._codes: list[int] = []

    def run(self, opened: Callable[[], None]) -> int:
        """Runs; gives what the process should end with. `opened` is called when the first worker is ready."""
        self._opened = opened
        with self._signals.heard():
            self._selector.register(self._signals, selectors.EVENT_READ, self._signalled)
            try:
                for number in range(self._plan.workers):
                    self._start(number)
                while self._pids or self._due:
                    self._turn()
            finally:
                self._kill()
                self._let_go()
        return max(self._codes, default=0)

    # --- one turn ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Sleeps, looks at the clock, hears, and judges: in this order, since whoever was silent until then has to have
        been heard, even if this process itself has stood still for a while."""
        wait = min([BEAT, *(at - time.monotonic() for at in self._due.values())])
        self._selector.select(max(wait, 0.0))
        now = time.monotonic()
        for key, _ in self._selector.select(0):
            key.data()
        for number in list(self._pids):
            self._reap(number)
        self._rid_of_silent(now)
        self._start_due(now)
        self._tell(now)
        self._handing.look(now)
        if self._ends_by is not None and now >= self._ends_by:
            self._cut_off()

    def _signalled(self) -> None:
        for number in self._signals.taken():
            if self._ending:
                self._kill()
                self._codes = [_KILLED + number]
            else:
                self._end()

    def _rid_of_silent(self, now: float) -> None:
        for number in self._rota.hopeless(now, self._plan.silence):
            if number in self._pids:
                self._say(f"worker {number} has said nothing for {self._plan.silence:g} s, and is killed")
                _kill(self._pids[number])
                self._rota.ended(number)

    def _start_due(self, now: float) -> None:
        for number, at in list(self._due.items()):
            if now >= at:
                del self._due[number]
                self._start(number)

    def _tell(self, now: float) -> None:
        """Tells all workers how they stand, if that has changed."""
        table = self._rota.table(now)
        if table != self._told:
            self._told = table
            for line in self._lines.values():
                line.say(TABLE, _written(table))

    # --- workers -----------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._postpone(number, error)
            return
        try:
            pid = fork(partial(self._become, number, theirs, ours))
        except OSError as error:
            ours.close()
            self._postpone(number, error)
            return
        finally:
            theirs.close()
        self._pids[number] = pid
        line = self._lines[number] = Line(ours)
        self._selector.register(ours, selectors.EVENT_READ, partial(self._heard, number))
        now = time.monotonic()
        self._rota.started(number, now)
        line.say(TABLE, _written(self._rota.table(now)))  # before it can be asked

    def _postpone(self, number: int, error: OSError) -> None:
        """Try again later to start a worker for which the system has no descriptor or no process left. Raises the error
        if no worker has ever been ready."""
        if self._opened is not None:
            raise error
        self._history, decision = failed(self._history, self._plan.policy)
        if isinstance(decision, GiveUp):
            self._say(f"worker {number} cannot be started: {error.strerror}; all end: {decision.why}")
            self._end(GIVEN_UP)
            return
        self._say(f"worker {number} cannot be started: {error.strerror}; tried again in {decision.after:g} s")
        self._due[number] = time.monotonic() + decision.after

    def _become(self, number: int, theirs: socket.socket, ours: socket.socket) -> int:
        """A new process: it keeps nothing of its supervisor's but its end of the line."""
        ours.close()
        self._selector.close()
        self._signals.close()
        for line in self._lines.values():
            line.close()
        self._handing.forget()
        return self._work(number, theirs)

    def _heard(self, number: int) -> None:
        line, now = self._lines.get(number), time.monotonic()
        if line is None:
            return
        for kind, body in line.heard():
            if kind == STATE:
                served = self._rota.served(number)
                self._rota.heard(number, now, body.decode())
                if not served and self._rota.served(number):
                    self._ready()
            elif kind in {KEPT, NOT_KEPT}:
                self._handing.answered(number, ticket_of(body)[0], kept=kind == KEPT)
        line.flush()
        if line.ended and line.socket in self._selector.get_map():
            self._selector.unregister(line.socket)
            self._rota.ended(number)
            _kill(self._pids[number])  # it is at its end, or of no use any more

    def _ready(self) -> None:
        """A worker is ready that was not before."""
        self._history = self._history.succeeded()
        if self._opened is not None:
            self._opened()
            self._opened = None

    def _reap(self, number: int) -> None:
        code = left(self._pids[number])
        if code is None:
            return
        self._heard(number)  # its last words
        line = self._lines.pop(number)
        with contextlib.suppress(KeyError):
            self._selector.unregister(line.socket)
        line.close()
        for ticket in self._rota.ended(number):
            self._rota.settled(ticket)
        self._ended(number, self._pids.pop(number), code)

    def _ended(self, number: int, pid: int, code: int) -> None:
        """Has a worker started again, or ends all of it."""
        if self._ending:
            self._codes.append(0 if code == -signal.SIGTERM else _code(code))
            return
        served = self._rota.served(number)
        how = f"worker {number} (process {pid}) {_ended_with(code)}"
        if not served and self._opened is not None and code >= 0:
            self._say(f"{how} before anybody was ready")
            self._end(_code(code) or 1)
            return
        self._history, decision = ended(
            self._history, self._plan.policy, time.monotonic(), served=served, well=code == 0
        )
        if isinstance(decision, GiveUp):
            self._say(f"{how}; workers are not started again, and all end: {decision.why}")
            self._end(GIVEN_UP)
            return
        again = f"in {decision.after:g} s" if decision.after else "at once"
        self._say(f"{how}, and is started again {again}")
        self._due[number] = time.monotonic() + decision.after

    # --- the end -----------------------------------------------------------------------------------

    def _end(self, code: int = 0) -> None:
        """Takes nothing in any more, and has every worker end in good order."""
        self._ending = True
        self._codes.append(code)
        self._due.clear()
        self._handing.close()
        for line in self._lines.values():
            line.say(END)
        if self._plan.end is not None:
            self._ends_by = time.monotonic() + self._plan.end

    def _cut_off(self) -> None:
        for number in self._pids:
            self._say(f"worker {number} did not end in time, and is killed")
            self._codes.append(self._plan.overran)
        self._kill()

    def _kill(self) -> None:
        """Ends the workers that are left, at once."""
        for pid in self._pids.values():
            _kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for line in self._lines.values():
            line.close()
        self._pids.clear()
        self._lines.clear()
        self._due.clear()

    def _let_go(self) -> None:
        self._selector.close()
        self._handing.forget()


def _written(table: Sequence[str]) -> bytes:
    return " ".join(table).encode()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _code(code: int) -> int:
    return code if code >= 0 else _KILLED - code


def _ended_with(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
