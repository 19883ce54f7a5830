"""Cross-process notifications: changes of lists and resources reach the clients of all processes.

A client that has the result of a call may rely on the other clients having been notified of the changes that the call
made. So a reply waits until the notifications are stored for sessions that read them later, and until all peers have
acknowledged the changes. Without changes or without peers, a reply does not wait.

A batch of changes is a list of strings. The metadata of an update follows its URI, as JSON after a space, which no URI
begins with; so a process of an older version, which knows no metadata, takes it for a resource without subscribers.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from trunkline.rpc.reply_gate import ReplyGate
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Notification

if TYPE_CHECKING:
    from trunkline.server.cluster.cluster import Cluster
    from trunkline.server.sessions.durable import DurableSessions

__all__ = ["ClusterNotifications"]

_CHANGES: Final = b"n"
_SESSION_NOTIFICATION: Final = b"s"
_META: Final = " "  # begins the metadata of the preceding change
_MAX_BATCHES_IN_FLIGHT: Final = 100  # further changes wait and share a batch
_MAX_CHANGES_PER_BATCH: Final = 1000
_MAX_QUEUED_CHANGES: Final = 10_000  # above this, duplicates are removed

_decode_changes: Final = codec.json_decoder(list[str])


class ClusterNotifications:
    """Publishes the changes of this process to its peers, and receives theirs."""

    def __init__(
        self, sessions: "DurableSessions", cluster: "Cluster | None", on_change: Callable[[str, bytes | None], None]
    ) -> None:
        """`on_change` notifies the clients of this process. Its arguments are the URI of a resource or the method of a
        list_changed notification, and the metadata of an update."""
        self._sessions = sessions
        self._batcher = sessions.batcher
        self._cluster = cluster
        self._on_change = on_change
        self._queue: list[tuple[str, ...]] = []  # strings that belong together
        self._acknowledged: asyncio.Future[None] | None = None  # done when the latest change is acknowledged
        self._queue_acknowledged: asyncio.Future[None] | None = None  # done when the queued changes are acknowledged
        self._batches_in_flight = 0
        self.reply_gate = ReplyGate(self._find_pending)
        """Holds the replies of calls that may have caused changes: a client that has the reply relies on them."""
        self._batcher.on_urgent = self.reply_gate.close
        if cluster is not None:
            cluster.on(_CHANGES, self._on_changes)
            cluster.on(_SESSION_NOTIFICATION, self._on_session_notification)

    def _find_pending(self) -> "asyncio.Future[Any] | None":
        """Return a future that is done when all changes so far are stored and acknowledged; None if they are."""
        stored, acknowledged = self._batcher.urgent_writes, self._acknowledged
        if acknowledged is None or acknowledged.done():
            self._acknowledged = None
            return stored
        return acknowledged if stored is None else asyncio.gather(stored, acknowledged, return_exceptions=True)

    # --- sending ---------------------------------------------------------------------------------

    def publish(self, change: str, meta: bytes | None = None) -> None:
        """Queue a change for all peers: the URI of a resource or the method of a list_changed notification. `meta` is
        the metadata of an update."""
        if self._cluster is None or self._cluster.alone:
            return
        self._queue.append((change,) if meta is None else (change, _META + meta.decode()))
        if len(self._queue) > _MAX_QUEUED_CHANGES:
            self._queue = list(dict.fromkeys(self._queue))
        if self._queue_acknowledged is None:
            loop = asyncio.get_running_loop()
            self._acknowledged = self._queue_acknowledged = loop.create_future()
            self.reply_gate.close()
            if self._batches_in_flight < _MAX_BATCHES_IN_FLIGHT:
                loop.call_soon(self._send_queue, self._cluster)

    def _send_queue(self, cluster: "Cluster") -> None:
        """Broadcast the queued changes."""
        acknowledged, self._queue_acknowledged = self._queue_acknowledged, None
        changes, self._queue = self._queue, []
        last = None
        for start in range(0, len(changes), _MAX_CHANGES_PER_BATCH):
            batch = [text for change in changes[start : start + _MAX_CHANGES_PER_BATCH] for text in change]
            last = cluster.broadcast_reliably(_CHANGES, codec.to_json(batch)) or last
        if acknowledged is None:
            return
        if last is None:
            acknowledged.set_result(None)
        else:
            self._batches_in_flight += 1
            last.add_done_callback(lambda _: self._finish_batch(cluster, acknowledged))

    def _finish_batch(self, cluster: "Cluster", acknowledged: "asyncio.Future[None]") -> None:
        if not acknowledged.done():  # the caller may have stopped waiting
            acknowledged.set_result(None)
        self._batches_in_flight -= 1
        if self._queue_acknowledged is not None and self._batches_in_flight == _MAX_BATCHES_IN_FLIGHT - 1:
            self._send_queue(cluster)

    def notify_session(self, session_id: str, method: str, params: Any) -> None:
        """Ask the process that holds a session, if any, to send it a notification. This is not acknowledged."""
        if self._cluster is not None:
            frame = codec.encode(Notification(method, params))
            self._cluster.broadcast(_SESSION_NOTIFICATION, b"\n".join([session_id.encode(), method.encode(), frame]))

    # --- receiving -------------------------------------------------------------------------------

    def _on_changes(self, _: str, body: bytes) -> "asyncio.Future[None] | None":
        texts = _decode_changes(body)
        for change, following in zip(texts, (*texts[1:], ""), strict=True):
            if not change.startswith(_META):
                meta = following.removeprefix(_META).encode() if following.startswith(_META) else None
                self._on_change(change, meta)
        return self._batcher.urgent_writes

    def _on_session_notification(self, _: str, body: bytes) -> None:
        session, name, frame = body.split(b"\n", 2)
        connection = self._sessions.connection_of(session.decode())
        if connection is not None:
            connection.broadcast(name.decode(), Encoded(frame), None)
