"""What clients of the handshake era hear of their tasks: how they stand, and how far they have come.

A client hears nothing of a task before it knows of it: what happens until then is told after the answer to its request.
It is told on the line that it asked on, or, where sessions outlive processes and somebody else works on the task now,
on that of its session, once it is here or whichever process has it.
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
    from trunkline.server.connection import Connection, SharedServices

__all__ = ["TaskNotifier"]

_STATUS: Final = "notifications/tasks/status"


class TaskNotifier:
    """Tells whoever asked for a task."""

    def __init__(self, shared: "SharedServices", record: TaskRecord, connection: "Connection | None" = None) -> None:
        """`line` is where the task was asked for, by a client that does not know of it yet."""
        self.dialect = dialect_of(record)
        self._shared = shared
        self._record = record
        self._connection = connection
        self._held_back: list[Callable[[], object]] | None = None if connection is None else []
        self._client_knows: asyncio.Future[None] | None = None  # done when the client knows of the task

    def release_after(self, call: IncomingRequest) -> None:
        """The client knows of the task when that call has been answered."""
        call.work.add_done_callback(self._release)  # the answer leaves first, in a callback made earlier

    def _release(self, *_: object) -> None:
        held, self._held_back = self._held_back, None
        for told in held or ():
            told()
        if self._client_knows is not None:
            self._client_knows.set_result(None)
            self._client_knows = None

    def send_status(self, record: TaskRecord) -> bool:
        """Tells how the task stands; False if nobody is there, nor will be."""
        founding = self.dialect is Dialect.FOUNDING
        return self._send(
            _STATUS, to_founding_status(record) if founding else to_augmented_task(record, TaskStatusParams)
        )

    def send_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Tells how far the task has come, if its client wants to know."""
        token, related = self._record.progress_token, {RELATED_TASK: {"taskId": self._record.task_id}}
        if token is not None:
            said = ProgressParams(progress_token=token, progress=progress, total=total, message=message, meta=related)
            self._send("notifications/progress", said)

    async def drain(self) -> None:
        """Wait until the client knows of the task, and while it reads too slowly what it is told."""
        if self._held_back is not None:
            self._client_knows = self._client_knows or self._shared.threads.loop.create_future()
            await asyncio.shield(self._client_knows)
        if self._connection is not None:
            await self._connection.channel.drain()

    def _send(self, name: str, params: Any) -> bool:
        if self._held_back is not None:
            self._held_back.append(partial(self._send, name, params))
            return True
        keeper, news, session = (
            self._shared.durable_sessions,
            self._shared.cluster_notifications,
            self._record.caller.session,
        )
        if self._connection is None or self._connection.close_reason is not None:
            self._connection = None if keeper is None or session is None else keeper.connection_of(session)
            if self._connection is None and news is not None and session is not None:
                news.notify_session(session, name, params)
        return (self._connection is not None and self._connection.notify(name, params)) or keeper is not None
