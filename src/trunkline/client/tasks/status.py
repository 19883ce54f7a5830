"""Tasks as servers show them, whichever way they have to do so, and what a call was answered with."""

from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from trunkline.client.multi_round import Asked
from trunkline.client.results import read
from trunkline.errors import BadAnswer
from trunkline.protocol import lenient
from trunkline.protocol.inflight import Awaited
from trunkline.protocol.meta import TASK_PROGRESS
from trunkline.protocol.types import CallToolResult, CreateTaskResult, TaskStatus
from trunkline.protocol.types.tasks_extension import TaskCreated, TaskProgress
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

__all__ = ["ENDED", "TASK", "Seen", "Started", "is_empty", "read_call", "read_result", "read_seen"]

TASK: Final = "task"
"""What a result says of itself that is a task, in the modern era."""

ENDED: Final = frozenset({"completed", "failed", "cancelled"})
_USUAL_POLL: Final = 1.0  # seconds, where the server does not say how long
_SHORTEST_POLL: Final = 0.05  # seconds, whatever it says: otherwise 0 would be a flood of requests
_LONGEST_POLL: Final = 60.0  # seconds, whatever it says


class _Meta(Struct):
    progress: TaskProgress | None = field(name=TASK_PROGRESS, default=None)


class Seen(Struct, rename="camel"):
    """A task, as it stood when it was last heard of. Times are milliseconds; from 2026-07-28 on their names say so."""

    task_id: str
    status: TaskStatus = "working"
    status_message: str | None = None
    ttl: float | None = None
    ttl_ms: float | None = None
    poll_interval: float | None = None
    poll_interval_ms: float | None = None
    input_requests: dict[str, Asked] | None = None
    result: Raw | UnsetType = UNSET
    error: ErrorObject | None = None
    meta: Any = field(name="_meta", default=None)

    @property
    def progress(self) -> TaskProgress | None:
        """How far it has come, if its server is one that says so."""
        try:
            return msgspec.convert(self.meta, _Meta).progress
        except msgspec.ValidationError:
            return None

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        told = self.poll_interval if self.poll_interval_ms is None else self.poll_interval_ms
        return _USUAL_POLL if told is None or told < 0 else min(max(told / 1000, _SHORTEST_POLL), _LONGEST_POLL)

    @property
    def kept_for(self) -> float | None:
        """Seconds that the server keeps it, from its creation; None: for ever, or nobody has said."""
        told = self.ttl if self.ttl_ms is None else self.ttl_ms
        return None if told is None else told / 1000


class Started(NamedTuple):
    """A call that was answered with a task."""

    seen: Seen
    asked: Awaited  # its progress is heard of for as long as somebody holds this


class _Head(Struct):
    task: Raw | UnsetType = UNSET


_read_head: Final = codec.decoder(_Head)
_read_seen: Final = codec.decoder(Seen)
_read_created: Final = codec.decoder(TaskCreated)
_read_augmented: Final = codec.decoder(CreateTaskResult)


def read_call(raw: Any, asked: Awaited, *, is_task: bool) -> CallToolResult | Started:
    """What a call was answered with; `is_task`: with a task, by its own account. Raises `BadAnswer`."""
    try:
        if is_task:
            _read_created(raw)  # all that has to be there
            return Started(_read_seen(raw), asked)
        if asked.as_task and (task := _read_head(raw).task) is not UNSET:
            _read_augmented(raw)
            return Started(_read_seen(task), asked)
    except (codec.DecodeError, RecursionError) as error:
        raise BadAnswer("tools/call", str(error)) from None
    return read("tools/call", raw)


def read_seen(raw: Any) -> Seen:
    """How a task stands. Raises `BadAnswer`."""
    try:
        return _read_seen(raw)
    except (codec.DecodeError, RecursionError) as error:
        seen = lenient.task(Seen, raw)
        if seen is None:
            raise BadAnswer("tasks/get", str(error)) from None
        return seen


def is_empty(raw: Any) -> bool:
    """Whether an answer is an object without members, as some servers answer `tasks/cancel`."""
    return bytes(raw).strip() == b"{}"


def read_result(raw: Any) -> CallToolResult:
    """What a task came to. Raises `BadAnswer`."""
    given = b"null" if raw is UNSET else raw
    try:
        return lenient.task_result(given)
    except (codec.DecodeError, RecursionError) as error:
        raise BadAnswer("tools/call", codec.reason(error, given)) from None
