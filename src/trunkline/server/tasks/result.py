"""Wait for the result of a task, and meanwhile deliver its questions (`question_delivery.py`)."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.tasks import TaskRecord
from trunkline.server.access.owner_id import owner_of
from trunkline.server.connection import Connection
from trunkline.server.tasks.question_delivery import QuestionSender

__all__ = ["wait_for_outcome"]

T = TypeVar("T")


async def wait_for_outcome(
    connection: Connection, call: IncomingRequest, task_id: str, get_outcome: Callable[[TaskRecord], T | None]
) -> T:
    """Wait until `get_outcome` returns a value for the caller's task, and return it. Meanwhile send the questions of
    the task to a client that can answer requests while it waits. Raise `TaskNotFound`."""
    tasks, owner = connection.shared.tasks, owner_of(call.origin.principal)
    sender, can_be_asked = QuestionSender(connection, call, tasks.repository), call.envelope is None
    connection.adjust_call_limit(1)  # a waiting call must not block other calls of the connection
    try:
        with tasks.question_delivery.result_waiter(task_id) if can_be_asked else nullcontext():
            while True:
                with tasks.watchers.expect_change(owner, task_id) as changed:
                    record = (await tasks.get(owner, task_id)).record
                    outcome = get_outcome(record)
                    if outcome is not None:
                        return outcome
                    if can_be_asked:
                        sender.send_open(record)
                    await _wait_for_change_or_expiry(changed, record, connection)
    finally:
        connection.adjust_call_limit(-1)
        sender.stop()


async def _wait_for_change_or_expiry(
    changed: "asyncio.Future[None]", record: TaskRecord, connection: Connection
) -> None:
    """Wait for a change of a task, or for its expiry, which no event announces."""
    if record.expires_at is None:
        return await changed

    def wake() -> None:
        if not changed.done():
            changed.set_result(None)

    timer = connection.shared.wall_clock.call_at(record.expires_at, wake)
    try:
        await changed
    finally:
        timer.cancel()
