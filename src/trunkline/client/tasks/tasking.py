"""What a client does for its tasks: hears of them, answers what they ask, and cancels those that nobody wants."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw

from trunkline.client.listen import Listening
from trunkline.client.multi_round import Asked, answered
from trunkline.client.results import ToolResult
from trunkline.client.standing import NOT_OPEN, Standing
from trunkline.client.tasks.handle import Task, TaskHost
from trunkline.client.tasks.status import TASK, Started, read_call
from trunkline.client.tasks.watch import Following, Partings
from trunkline.errors import MisuseError
from trunkline.protocol.client_envelope import head_of
from trunkline.protocol.events import ProgressHeard
from trunkline.protocol.extensions import agreed
from trunkline.protocol.inflight import Awaited
from trunkline.protocol.types import CallToolParams, CallToolResult, ProgressParams
from trunkline.protocol.types.tasks_extension import TASKS_EXTENSION, TaskProgress

__all__ = ["EXTENSIONS", "Tasking"]

EXTENSIONS: Mapping[str, Any] = {TASKS_EXTENSION: {}}
"""What every client has."""


class Tasking(Standing):
    """A client, as far as tasks are concerned."""

    def __init__(self) -> None:
        super().__init__()
        self._following = Following()
        self._partings = Partings()
        self._listening: Listening | None = None

    def _speaks_modern(self) -> bool:
        """While the line is being made again, what was spoken before it was lost."""
        used = None if self._line is None else self._line.used
        return used is not None and used.modern

    def _may_become_task(self, name: str, params: Any) -> bool:
        """Whether a server may answer a request with a task."""
        if name != "tools/call" or not isinstance(params, CallToolParams):
            return False
        if not self._speaks_modern():
            return params.task is not None
        return agreed(TASKS_EXTENSION, {"extensions": EXTENSIONS}, self.capabilities) is not None

    def _task_host(self, finish: Callable[[CallToolResult, bool], ToolResult]) -> TaskHost:
        return TaskHost(
            modern=self._speaks_modern,
            ask=self._ask,
            answer=self._answer,
            finish=finish,
            expecting=self._following.expecting,
            listen=self._hear_of_tasks,
            now=self._now,
            wait=self._wait_for,
            home=self._home,
            progressed=self._progressed,
            recovers=lambda: self._line is not None and self._line.recovers,
        )

    def _hear_of_tasks(self) -> None:
        if self._line is not None and self._line.connection is not None and self._listening is not None:
            self._line.beside(self._listening.follow())

    def _progressed(self, asked: Awaited, told: TaskProgress) -> None:
        """Tells the caller of a task how far that has come, if it is further than was told before."""
        connection = None if self._line is None else self._line.last
        if connection is not None and asked.heard(told.progress, self._now()):
            said = ProgressParams(asked.id, told.progress, told.total, told.message)
            connection.progressed(ProgressHeard(asked, said))

    async def _wait_for(self, futures: "Sequence[asyncio.Future[Any]]", due: float | None) -> None:
        if self._line is None:
            raise MisuseError(NOT_OPEN)
        await self._line.wait_for(futures, due)

    async def _answer(self, questions: Mapping[str, Asked]) -> dict[str, Raw]:
        if self._line is None:
            raise MisuseError(NOT_OPEN)
        return await answered(await self._line.usable("tasks/update", None), questions)

    # --- what nobody wants any more --------------------------------------------------------------

    def _part(self, task: Task) -> None:
        if self._line is not None and not self._line.over:
            self._partings.begin(task.cancel())

    def _disown(self, asked: Awaited) -> None:
        """Nobody waits for a call any more: if it is answered with a task, nobody wants that. Where the call has asked
        for one, that is to be expected, and who closes the line waits for it; elsewhere the server was told."""
        waiter: asyncio.Future[Any] = asked.waiter
        told = not waiter.cancelled() and waiter.exception() is None
        answer: asyncio.Future[Any] = waiter if told else asked.late
        if asked.as_task or answer.done():
            self._partings.begin(self._disowned(asked, answer))
        else:
            answer.add_done_callback(lambda _: self._partings.begin(self._disowned(asked, answer)))

    async def _disowned(self, asked: Awaited, answer: "asyncio.Future[Any]") -> None:
        quick = self.settings.quick_timeout
        await self._wait_for([answer], None if quick is None else self._now() + quick)
        if answer.done():
            raw = answer.result()
            found = read_call(raw, asked, is_task=head_of(raw).result_type == TASK)
            if isinstance(found, Started):
                await self.task(found.seen.task_id).cancel()
