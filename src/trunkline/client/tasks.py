"""Calls that a server works on as tasks: how they stand, what they come to, and answers to what they ask meanwhile.

Of 2025-11-25 a client says which calls shall be tasks, and waits in `tasks/result`, where it is asked as in any call.
With the extension of 2026-07-28 the server says so; the client looks now and then, and answers by an update.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType

from trunkline.client.results import ToolResult, read
from trunkline.client.rounds import Asked
from trunkline.errors import BadAnswer, PeerError, RequestTimeout, TaskCancelled
from trunkline.protocol.types import CallToolResult, CancelTaskParams, GetTaskParams, GetTaskPayloadParams, TaskStatus
from trunkline.protocol.types.tasks_extension import UpdateTaskParams
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

__all__ = ["ENDED", "Seen", "Task", "TaskHost", "created", "read_call"]

ENDED: Final = frozenset({"completed", "failed", "cancelled"})
_USUAL_POLL: Final = 1.0  # seconds, where the server does not say how long
_LONGEST_POLL: Final = 60.0  # seconds, whatever it says


class Seen(Struct, rename="camel"):
    """A task as a server shows it, whichever way it has to do so."""

    task_id: str
    status: TaskStatus = "working"
    status_message: str | None = None
    created_at: str | None = None
    poll_interval: float | None = None  # ms, as 2025-11-25 names it
    poll_interval_ms: float | None = None
    input_requests: dict[str, Asked] = {}
    result: Raw | UnsetType = UNSET
    error: ErrorObject | None = None

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        told = self.poll_interval_ms or self.poll_interval
        return _USUAL_POLL if told is None or told < 0 else min(told / 1000, _LONGEST_POLL)


class _Created(Struct, rename="camel"):
    result_type: Any = None
    task: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET


_read_created: Final = codec.decoder(_Created)
_read_seen: Final = codec.decoder(Seen)
_read_result: Final = codec.decoder(CallToolResult)
_HINT: Final = b'"task'


def created(raw: Raw) -> Seen | None:
    """The task that a call was answered with; None if it was answered with a result. Raises `codec.DecodeError`."""
    if _HINT not in bytes(raw):  # as most are
        return None
    head = _read_created(raw)
    if head.result_type == "task":
        return _read_seen(raw)
    return _read_seen(head.task) if head.task is not UNSET and head.content is UNSET else None


def read_call(raw: Any) -> CallToolResult | Seen:
    """What a call was answered with. Raises `BadAnswer`."""
    try:
        return created(raw) or read("tools/call", raw)
    except (codec.DecodeError, RecursionError) as error:
        raise BadAnswer("tools/call", str(error)) from None


class TaskHost(NamedTuple):
    """What a task needs of its client."""

    modern: Callable[[], bool]  # whether its server speaks the modern era
    ask: Callable[[str, Any], Awaitable[Any]]
    answer: Callable[[Mapping[str, Asked]], Awaitable[dict[str, Raw]]]
    finish: Callable[[CallToolResult, bool], ToolResult]  # and whether to raise what it says that failed


class Task:
    """A call that a server works on. It goes on without us; who has its `id` can ask for it again, later and from
    elsewhere: `client.task(id)`."""

    def __init__(self, host: TaskHost, seen: Seen, sent: CallToolResult | None = None) -> None:
        self._host = host
        self._seen = seen
        self._sent = sent  # its result, where that is known
        self._answered: set[str] = set()  # questions are put once

    @property
    def id(self) -> str:
        """Its name at the server."""
        return self._seen.task_id

    @property
    def status(self) -> TaskStatus:
        """How it stood when that was last heard of."""
        return self._seen.status

    @property
    def message(self) -> str | None:
        """What the server said of that."""
        return self._seen.status_message

    async def refresh(self) -> TaskStatus:
        """Asks how it stands now."""
        if self._sent is None:
            self._seen = self._read(await self._host.ask("tasks/get", GetTaskParams(self.id)))
        return self.status

    async def cancel(self) -> None:
        """Has the server stop working on it. What has ended stays as it is."""
        try:
            await self._host.ask("tasks/cancel", CancelTaskParams(self.id))
        except PeerError:
            if await self.refresh() not in ENDED:
                raise
        else:
            await self.refresh()

    async def result(self, *, timeout: float | None = None, raise_on_error: bool = True) -> ToolResult:
        """What the call comes to; waits for that, and answers what the server asks meanwhile. Raises what the call
        would have raised, `TaskCancelled` if it was cancelled, and `RequestTimeout` if that takes too long: then the
        task goes on all the same."""
        if self._sent is None:
            try:
                async with asyncio.timeout(timeout):
                    self._sent = await (self._looked_for() if self._host.modern() else self._waited_for())
            except TimeoutError:
                raise RequestTimeout("tools/call", timeout or 0.0) from None
        return self._host.finish(self._sent, raise_on_error)

    async def _waited_for(self) -> CallToolResult:
        """The result, of a server that answers when there is one."""
        try:
            raw = await self._host.ask("tasks/result", GetTaskPayloadParams(self.id))
        except PeerError as error:
            if await self.refresh() == "cancelled":
                raise TaskCancelled(self.id) from None
            raise error from None
        self._seen.status = "completed"
        return self._as_result(raw)

    async def _looked_for(self) -> CallToolResult:
        """The result, of a server that has to be asked for it now and then."""
        while True:
            await self.refresh()
            seen = self._seen
            if seen.status == "completed":
                return self._as_result(seen.result)
            if seen.status == "failed":
                raise _failure(seen.error)
            if seen.status == "cancelled":
                raise TaskCancelled(self.id)
            new = {key: asked for key, asked in seen.input_requests.items() if key not in self._answered}
            if new:
                answers = await self._host.answer(new)
                await self._host.ask("tasks/update", UpdateTaskParams(self.id, answers))
                self._answered |= new.keys()
            else:
                await asyncio.sleep(seen.pause)

    def _read(self, raw: Any) -> Seen:
        try:
            return _read_seen(raw)
        except (codec.DecodeError, RecursionError) as error:
            raise BadAnswer("tasks/get", str(error)) from None

    def _as_result(self, raw: Any) -> CallToolResult:
        try:
            return _read_result(b"null" if raw is UNSET else raw)
        except (codec.DecodeError, RecursionError) as error:
            raise BadAnswer("tools/call", str(error)) from None


def _failure(error: ErrorObject | None) -> PeerError:
    if error is None:
        return BadAnswer("tasks/get", "a task has failed, and it does not say why")
    return PeerError(error.code, error.message, None if error.data is UNSET else error.data)
