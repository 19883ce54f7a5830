"""Connection of a server whose sessions outlive the process."""

from typing import Any

from trunkline.protocol.inflight import IncomingRequest
from trunkline.server.connection import Connection

__all__ = ["DurableConnection"]


class DurableConnection(Connection):
    """Connection whose replies wait for the notifications that a call may have caused: a client that has the reply
    relies on them."""

    __slots__ = ()

    def _on_call_ended(self, call: IncomingRequest, value: Any, error: BaseException | None) -> None:
        """Reply to a call after pending notifications are stored and sent to other processes."""
        notifications = self.shared.cluster_notifications
        if notifications is None or call.done or (pending := notifications.pending_changes) is None:
            super()._on_call_ended(call, value, error)
            return
        if call.scheduled_at is None:  # it has no deadline yet
            self.set_call_timeout(call, call.method.time_limit.seconds(self.settings))
            self._deadline_timer.watch(call)
        end = super()._on_call_ended
        pending.add_done_callback(lambda _: end(call, value, error))
