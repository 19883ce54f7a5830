"""The worker's channel to its supervisor, on the worker's event loop: receives connections and sends heartbeats.

A worker whose supervisor has died shuts down, since it would get no more connections.

A worker without free descriptors below the reserve reports the state `full` and declines connections until some are
free. The supervisor still holds a declined connection and dispatches it to another worker.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from trunkline.fdlimit import DescriptorReserve, LogThrottle
from trunkline.supervision.ipc import (
    ACCEPTED,
    CHILDREN,
    CODE,
    CONNECTION,
    DECLINED,
    RELOAD,
    SHUTDOWN,
    STATE,
    TABLE,
    IpcChannel,
    decode_ticket,
    encode_acceptance,
    encode_state,
    encode_ticket,
)
from trunkline.supervision.supervisor import ChildStatus
from trunkline.supervision.worker_table import ACCEPTING_STATES, FULL, HEARTBEAT_INTERVAL, STALE_AFTER, STARTING

__all__ = ["WorkerChannel"]

_log: Final = logging.getLogger("trunkline")
_decode_children: Final = msgspec.msgpack.Decoder(tuple[ChildStatus, ...]).decode


class WorkerChannel:
    """The channel of one worker; the source of its connections."""

    def __init__(
        self, number: int, ipc_socket: socket.socket, state: Callable[[], str], reserve: DescriptorReserve
    ) -> None:
        """`state` returns the worker's state once it accepts connections, which must leave `reserve` free."""
        self.number = number
        self._reserve = reserve
        self._full = False
        self._log_throttle = LogThrottle()
        self._ipc = IpcChannel(ipc_socket)
        self._table: list[str] = []
        self.children: tuple[ChildStatus, ...] = ()  # of the supervisor: all workers, and their listeners
        self._worker_state = state
        self._started = False
        self._on_connection: Callable[[socket.socket], None] | None = None
        self._count_open: Callable[[], int] = lambda: 0
        self._on_shutdown: Callable[[], Any] = lambda: None
        self._on_reload: Callable[[], Any] = lambda: None
        self._on_code: Callable[[], Any] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    @property
    def orphaned(self) -> bool:
        """Whether the supervisor has died."""
        return self._ipc.closed_by_peer

    def open(
        self,
        on_shutdown: Callable[[], Any],
        on_reload: Callable[[], Any] = lambda: None,
        on_code: Callable[[], Any] = lambda: None,
    ) -> None:
        """Start receiving, on the running loop. `on_shutdown` is called when the worker has to shut down, `on_reload`
        when it has to load its certificate files again, `on_code` when the program's code has changed."""
        self._loop = asyncio.get_running_loop()
        self._on_shutdown = on_shutdown
        self._on_reload = on_reload
        self._on_code = on_code
        self._loop.add_reader(self._ipc.socket, self._on_message)
        self._send_heartbeat()

    def close(self) -> None:
        """Stop receiving. The socket stays open until the process exits."""
        if self._loop is not None:
            self._loop.remove_reader(self._ipc.socket)
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()

    def worker_states(self) -> tuple[str, ...]:
        """Return the states of all workers by number, with the current state of this one."""
        table = self._table
        return (*table[: self.number], self._state(), *table[self.number + 1 :])

    def start(self, on_connection: Callable[[socket.socket], None], count_open: Callable[[], int], /) -> None:
        """Accept connections from now on. `count_open` returns how many are open, which the supervisor balances."""
        self._on_connection, self._count_open, self._started = on_connection, count_open, True
        self._send_state()

    def stop(self) -> None:
        """Accept no more connections."""
        self._on_connection = None
        self._send_state()

    def _state(self) -> str:
        if not self._started:
            return STARTING
        state = self._worker_state()
        return FULL if self._full and state in ACCEPTING_STATES else state

    # --- messages ----------------------------------------------------------------------------------

    def _send_heartbeat(self) -> None:
        if self._loop is not None:
            self._heartbeat_timer = self._loop.call_later(HEARTBEAT_INTERVAL, self._send_heartbeat)
            self._send_state()

    def _send_state(self) -> None:
        self._full = self._full and not self._reserve.has_room()
        self._ipc.flush()
        if self._ipc.flushed:  # otherwise an earlier heartbeat is still unsent
            self._ipc.send(STATE, encode_state(self._state(), self._count_open()))

    def _on_message(self) -> None:
        for kind, body in self._ipc.receive():
            if kind == CONNECTION:
                self._receive_connection(*decode_ticket(body), self._ipc.take_descriptor())
            elif kind == TABLE:
                self._table = body.decode().split()
            elif kind == CHILDREN:
                self.children = _decode_children(body)
            elif kind == SHUTDOWN:
                self._on_shutdown()
            elif kind == RELOAD:
                self._on_reload()
            elif kind == CODE:
                self._on_code()
        if self._ipc.closed_by_peer:
            self.close()
            self._on_shutdown()

    def _receive_connection(self, ticket: int, dispatched_at: float, descriptor: int | None) -> None:
        """Accept a connection, or decline it if it is too old and the supervisor dispatches it again, or if there is
        no free descriptor below the reserve."""
        if descriptor is None:
            self._mark_full()
            self._decline(ticket)
            return
        connection = socket.socket(fileno=descriptor)
        if self._reserve.contains(descriptor):
            self._mark_full()
        on_connection = self._on_connection
        if on_connection is None or self._full or time.monotonic() - dispatched_at >= STALE_AFTER:
            connection.close()
            self._decline(ticket)
        else:
            self._ipc.send(ACCEPTED, encode_acceptance(ticket, self._count_open() + 1))
            on_connection(connection)

    def _mark_full(self) -> None:
        """Accept no more connections until descriptors are free."""
        self._full = True
        if self._log_throttle.allow(time.monotonic()):
            _log.warning("worker %d: %s", self.number, self._reserve.shortage_message())

    def _decline(self, ticket: int) -> None:
        """Report the state and have the supervisor dispatch the connection to another worker."""
        self._send_state()
        self._ipc.send(DECLINED, encode_ticket(ticket))
