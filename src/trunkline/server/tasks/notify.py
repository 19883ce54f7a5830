"""Task notifications for handshake-era clients: status and progress.

Nothing is sent before the client knows the task: notifications are held back until the reply that names it has left.
They go to the connection that created the task. If that is closed and sessions are durable, they go to the connection
that serves the session now, in this process or in another one.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import RELATED_TASK
from trunkline.protocol.task_dialects import Dialect, dialect_of, to_augmented_task, to_founding_status
from trunkline.protocol.tasks import TaskRecord
from trunkline.protocol.types import ProgressParams, TaskStatusParams

if TYPE_CHECKING:
    from trunkline.server.call_peer import ConnectedPeer
    from trunkline.server.runtime_services import RuntimeServices

__all__ = ["TaskNotifier"]

_STATUS: Final = "notifications/tasks/status"


class TaskNotifier:
    """Sends notifications about one task to the client that created it."""

    def __init__(
        self, shared: "RuntimeServices", record: TaskRecord, connection: "ConnectedPeer | None" = None
    ) -> None:
        """`connection` is the one that creates the task; None for a task that was taken over."""
        self.dialect = dialect_of(record)
        self._shared = shared
        self._record = record
        self._connection = connection
        self._held_back: list[Callable[[], object]] | None = None if connection is None else []
        self._client_knows: asyncio.Future[None] | None = None  # done when the reply that names the task has left

    def release_after(self, call: IncomingRequest) -> None:
        """Send the held-back notifications after a call has been answered."""
        call.work.add_done_callback(self._release)  # the reply leaves first, in a callback registered earlier

    def _release(self, *_: object) -> None:
        held_back, self._held_back = self._held_back, None
        for send in held_back or ():
            send()
        if self._client_knows is not None:
            self._client_knows.set_result(None)
            self._client_knows = None

    def send_status(self, record: TaskRecord) -> bool:
        """Send the status of the task. Return False if the client is unreachable for good."""
        founding = self.dialect is Dialect.FOUNDING
        return self._send(
            _STATUS, to_founding_status(record) if founding else to_augmented_task(record, TaskStatusParams)
        )

    def send_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send progress, if the request had a progress token."""
        token, related = self._record.progress_token, {RELATED_TASK: {"taskId": self._record.task_id}}
        if token is not None:
            params = ProgressParams(progress_token=token, progress=progress, total=total, message=message, meta=related)
            self._send("notifications/progress", params)

    async def drain(self) -> None:
        """Wait until the client knows the task, and while it reads its notifications too slowly."""
        if self._held_back is not None:
            self._client_knows = self._client_knows or self._shared.threads.loop.create_future()
            await asyncio.shield(self._client_knows)
        if self._connection is not None:
            await self._connection.channel.drain()

    def _send(self, name: str, params: Any) -> bool:
        if self._held_back is not None:
            self._held_back.append(partial(self._send, name, params))
            return True
        shared, session = self._shared, self._record.caller.session
        sessions = shared.durable_sessions
        if self._connection is None or self._connection.close_reason is not None:
            self._connection = None if sessions is None or session is None else sessions.connection_of(session)
            if self._connection is None and shared.cluster_notifications is not None and session is not None:
                shared.cluster_notifications.notify_session(session, name, params)
        return (self._connection is not None and self._connection.notify(name, params)) or sessions is not None
