"""A worker's side of the line to its supervisor, on the worker's loop: connections come in, and how it stands goes out.

A worker whose supervisor is gone ends in good order: nobody would bring it anything any more.

A worker whose descriptors are used up, but for a reserve, says that it is full and declines connections, and is ready
again when some are free. The supervisor still has what was declined, and gives it to another worker.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from trunkline.fdlimit import DescriptorReserve, LogThrottle
from trunkline.supervision.ipc import (
    ACCEPTED,
    CONNECTION,
    DECLINED,
    SHUTDOWN,
    STATE,
    TABLE,
    IpcChannel,
    decode_ticket,
    encode_ticket,
)
from trunkline.supervision.worker_table import ACCEPTING_STATES, FULL, HEARTBEAT_INTERVAL, STALE_AFTER, STARTING

__all__ = ["WorkerChannel"]

_log: Final = logging.getLogger("trunkline")


class WorkerChannel:
    """Where a worker stands."""

    def __init__(
        self, number: int, ipc_socket: socket.socket, state: Callable[[], str], reserve: DescriptorReserve
    ) -> None:
        """`state` says how the worker stands, once it takes connections, for which `reserve` must be left free."""
        self.number = number
        self._reserve = reserve
        self._full = False
        self._log_throttle = LogThrottle()
        self._ipc = IpcChannel(ipc_socket)
        self._table: list[str] = []
        self._worker_state = state
        self._started = False
        self._on_connection: Callable[[socket.socket], None] | None = None
        self._on_shutdown: Callable[[], Any] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    @property
    def orphaned(self) -> bool:
        """Whether the supervisor is gone."""
        return self._ipc.closed_by_peer

    def open(self, on_shutdown: Callable[[], Any]) -> None:
        """Listens to the supervisor from now on, on the running loop. `end` is called when the worker is to end."""
        self._loop = asyncio.get_running_loop()
        self._on_shutdown = on_shutdown
        self._loop.add_reader(self._ipc.socket, self._on_message)
        self._send_heartbeat()

    def close(self) -> None:
        """Hears nothing any more. The line itself stays open for as long as the process lives."""
        if self._loop is not None:
            self._loop.remove_reader(self._ipc.socket)
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()

    def worker_states(self) -> tuple[str, ...]:
        """How all workers stand, by their numbers: what is newest is known of this one."""
        table = self._table
        return (*table[: self.number], self._state(), *table[self.number + 1 :])

    def start(self, on_connection: Callable[[socket.socket], None]) -> None:
        """Connections are taken from now on."""
        self._on_connection, self._started = on_connection, True
        self._send_state()

    def stop(self) -> None:
        """Connections are taken no more."""
        self._on_connection = None
        self._send_state()

    def _state(self) -> str:
        if not self._started:
            return STARTING
        state = self._worker_state()
        return FULL if self._full and state in ACCEPTING_STATES else state

    # --- the line ----------------------------------------------------------------------------------

    def _send_heartbeat(self) -> None:
        if self._loop is not None:
            self._heartbeat_timer = self._loop.call_later(HEARTBEAT_INTERVAL, self._send_heartbeat)
            self._send_state()

    def _send_state(self) -> None:
        self._full = self._full and not self._reserve.has_room()
        self._ipc.flush()
        if self._ipc.flushed:  # or it says enough already
            self._ipc.send(STATE, self._state().encode())

    def _on_message(self) -> None:
        for kind, body in self._ipc.receive():
            if kind == CONNECTION:
                self._receive_connection(*decode_ticket(body), self._ipc.take_descriptor())
            elif kind == TABLE:
                self._table = body.decode().split()
            elif kind == SHUTDOWN:
                self._on_shutdown()
        if self._ipc.closed_by_peer:
            self.close()
            self._on_shutdown()

    def _receive_connection(self, ticket: int, at: float, descriptor: int | None) -> None:
        """Takes a connection, unless it has been on its way for so long that somebody else is given it, or there is no
        descriptor for it: it was lost on the way, or belongs to the reserve."""
        if descriptor is None:
            self._mark_full()
            self._decline(ticket)
            return
        connection = socket.socket(fileno=descriptor)
        if self._reserve.contains(descriptor):
            self._mark_full()
        take = self._on_connection
        if take is None or self._full or time.monotonic() - at >= STALE_AFTER:
            connection.close()
            self._decline(ticket)
        else:
            self._ipc.send(ACCEPTED, encode_ticket(ticket))
            take(connection)

    def _mark_full(self) -> None:
        """Take no more connections until descriptors are free."""
        self._full = True
        if self._log_throttle.allow(time.monotonic()):
            _log.warning("worker %d: %s", self.number, self._reserve.shortage_message())

    def _decline(self, ticket: int) -> None:
        """Says how the worker stands, and that the supervisor should give a connection to another one."""
        self._send_state()
        self._ipc.send(DECLINED, encode_ticket(ticket))
