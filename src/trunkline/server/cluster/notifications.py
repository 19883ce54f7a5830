"""What is new for the clients of all processes: each tells its own.

Who is answered counts on it that others have heard what its call has changed. So an answer waits until that is kept for
those who hear of it later, and until all other processes have confirmed that they have it. Where nothing is new, or
nobody else is there, nothing is paid.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Notification

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.sessions.durable import DurableSessions

__all__ = ["ClusterNotifications"]

_CHANGES: Final = b"n"
_SESSION_NOTIFICATION: Final = b"s"
_MAX_BATCHES_IN_FLIGHT: Final = 100  # batches; what is new meanwhile is told together
_MAX_CHANGES_PER_BATCH: Final = 1000  # pieces of news in one batch
_MAX_QUEUED_CHANGES: Final = 10_000  # pieces of news; of more, the same is told once

_decode_changes: Final = codec.json_decoder(list[str])


class ClusterNotifications:
    """What is new, on its way to and from the other processes."""

    def __init__(
        self, sessions: "DurableSessions", cluster: "Cluster | None", on_change: Callable[[str], None]
    ) -> None:
        """`heard` tells the clients of this process: of a resource, by its URI, or of a list, by its notification."""
        self._sessions = sessions
        self._cluster = cluster
        self._on_change = on_change
        self._queue: list[str] = []
        self._acknowledged: asyncio.Future[None] | None = None  # when all is confirmed that is new by now
        self._queue_acknowledged: asyncio.Future[None] | None = None  # when what waits is
        self._batches_in_flight = 0
        if cluster is not None:
            cluster.on(_CHANGES, self._on_changes)
            cluster.on(_SESSION_NOTIFICATION, self._on_session_notification)

    @property
    def pending_changes(self) -> "asyncio.Future[Any] | None":
        """What is done when all is kept and confirmed that is new by now; None if it is."""
        kept, told = self._sessions.urgent_writes, self._acknowledged
        if told is None or told.done():
            self._acknowledged = None
            return kept
        return told if kept is None else asyncio.gather(kept, told, return_exceptions=True)

    # --- telling the others ------------------------------------------------------------------------

    def publish(self, change: str) -> None:
        """Something is new: a resource, or a list."""
        if self._cluster is None or self._cluster.alone:
            return
        self._queue.append(change)
        if len(self._queue) > _MAX_QUEUED_CHANGES:
            self._queue = list(dict.fromkeys(self._queue))
        if self._queue_acknowledged is None:
            loop = asyncio.get_running_loop()
            self._acknowledged = self._queue_acknowledged = loop.create_future()
            if self._batches_in_flight < _MAX_BATCHES_IN_FLIGHT:
                loop.call_soon(self._send_queue, self._cluster)

    def _send_queue(self, cluster: "Cluster") -> None:
        """Sends what waits."""
        sending, self._queue_acknowledged = self._queue_acknowledged, None
        waiting, self._queue = self._queue, []
        last = None
        for start in range(0, len(waiting), _MAX_CHANGES_PER_BATCH):
            last = (
                cluster.broadcast_reliably(_CHANGES, codec.to_json(waiting[start : start + _MAX_CHANGES_PER_BATCH]))
                or last
            )
        if sending is None:
            return
        if last is None:
            sending.set_result(None)
        else:
            self._batches_in_flight += 1
            last.add_done_callback(lambda _: self._finish_batch(cluster, sending))

    def _finish_batch(self, cluster: "Cluster", acknowledged: "asyncio.Future[None]") -> None:
        if not acknowledged.done():  # somebody may have stopped waiting
            acknowledged.set_result(None)
        self._batches_in_flight -= 1
        if self._queue_acknowledged is not None and self._batches_in_flight == _MAX_BATCHES_IN_FLIGHT - 1:
            self._send_queue(cluster)

    def notify_session(self, session_id: str, method: str, params: Any) -> None:
        """Has whoever holds a session send it a notification, if anybody does."""
        if self._cluster is not None:
            frame = codec.encode(Notification(method, params))
            self._cluster.broadcast(_SESSION_NOTIFICATION, b"\n".join([session_id.encode(), method.encode(), frame]))

    # --- being told --------------------------------------------------------------------------------

    def _on_changes(self, _: str, body: bytes) -> "asyncio.Future[None] | None":
        for piece in _decode_changes(body):
            self._on_change(piece)
        return self._sessions.urgent_writes

    def _on_session_notification(self, _: str, body: bytes) -> None:
        session, name, frame = body.split(b"\n", 2)
        connection = self._sessions.connection_of(session.decode())
        if connection is not None:
            connection.broadcast(name.decode(), Encoded(frame), None)
