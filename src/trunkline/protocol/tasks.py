"""Task state machine: the table of states, and the stored record of a task.

    PENDING -> WORKING <-> INPUT_REQUIRED        and from each of them to COMPLETED (if started), FAILED, CANCELLED

All dialects share this state machine; `task_dialects.py` presents it in the messages of a revision, of the extension or
of the founding documents. A record is immutable: every event returns a new record, which replaces the stored one. A
finished task never changes.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from trunkline.errors import InternalError, MisuseError
from trunkline.protocol.meta import ProgressToken
from trunkline.protocol.types.lifecycle import Implementation
from trunkline.protocol.types.multi_round import InputRequest
from trunkline.wire.messages import ErrorObject

__all__ = ["TASKS", "TERMINAL", "TaskCaller", "TaskRecord", "TaskSignal", "TaskState", "allows", "next_state"]


class TaskState(Enum):
    """States of a task. The values are stored."""

    PENDING = "pending"  # created, not started
    WORKING = "working"
    INPUT_REQUIRED = "input_required"  # waits for input of the client, and may be working meanwhile
    COMPLETED = "completed"  # has a result, which may be a failed one
    FAILED = "failed"  # has an error
    CANCELLED = "cancelled"


class TaskSignal(Enum):
    """Events of a task."""

    START = auto()
    RESUME = auto()  # another process takes over
    PROGRESS = auto()
    ASK = auto()
    ANSWER = auto()  # a question is settled, others are open
    SETTLE = auto()  # the last open question is settled
    COMPLETE = auto()
    FAIL = auto()
    CANCEL = auto()


T, S = TaskState, TaskSignal
TASKS: Final[Mapping[TaskState, Mapping[TaskSignal, TaskState]]] = {
    T.PENDING: {S.START: T.WORKING, S.FAIL: T.FAILED, S.CANCEL: T.CANCELLED},
    T.WORKING: {
        S.RESUME: T.WORKING,
        S.PROGRESS: T.WORKING,
        S.ASK: T.INPUT_REQUIRED,
        S.COMPLETE: T.COMPLETED,
        S.FAIL: T.FAILED,
        S.CANCEL: T.CANCELLED,
    },
    T.INPUT_REQUIRED: {
        S.RESUME: T.INPUT_REQUIRED,
        S.PROGRESS: T.INPUT_REQUIRED,
        S.ASK: T.INPUT_REQUIRED,
        S.ANSWER: T.INPUT_REQUIRED,
        S.SETTLE: T.WORKING,
        S.COMPLETE: T.COMPLETED,
        S.FAIL: T.FAILED,
        S.CANCEL: T.CANCELLED,
    },
    T.COMPLETED: {},
    T.FAILED: {},
    T.CANCELLED: {},
}
TERMINAL: Final = frozenset(state for state, row in TASKS.items() if not row)
"""The final states."""


def allows(state: TaskState, signal: TaskSignal) -> bool:
    """Return whether a signal is legal in a state."""
    return signal in TASKS[state]


def next_state(state: TaskState, signal: TaskSignal) -> TaskState:
    """Return the next state; raise `InternalError` if the table has no such transition."""
    try:
        return TASKS[state][signal]
    except KeyError:
        data = {"kind": "task_state_invalid", "state": state.value}
        raise InternalError(
            f"{signal.name.lower()} is not possible for a task that is {state.value}", data=data
        ) from None


class TaskCaller(Struct, frozen=True, kw_only=True):
    """The caller of a task, as far as a process that takes over needs to know it."""

    revision: str = "2025-11-25"
    capabilities: dict[str, Any] = {}
    info: Implementation | None = None
    modern: bool = False  # its request was of the modern era
    founding: bool = False  # it uses the dialect of the founding documents
    local: bool = False  # a local caller, which needs no authentication
    session: str | None = None  # its session, if nothing else identifies the caller
    principal: Raw | UnsetType = UNSET  # the authenticated principal, in JSON


class TaskRecord(Struct, frozen=True, kw_only=True):
    """The stored record of a task. Times are in seconds since 1970."""

    layout: int = 1  # version of the record layout
    task_id: str
    client: str  # the owner id; the task is invisible to other clients
    method: str  # method of the original request, the same in every dialect
    params: Raw  # params of that request
    caller: TaskCaller = TaskCaller()
    created_at: float
    updated_at: float
    expires_at: float | None = None  # expiry; the task may be deleted from then on, in any state
    place: int | None = None  # its slot among the running tasks of its owner, if the store counts them
    timeout_ms: int | None = None  # time limit, from its creation
    poll_interval_ms: int | None = None
    progress_token: ProgressToken | None = None
    trace: dict[str, str] = {}  # trace context of that request, which every run of the task continues
    state: TaskState = TaskState.PENDING
    attempt: int = 0  # number of starts
    tries: int = 0  # starts since the last checkpoint that did not end in a release
    message: str | None = None  # status message
    progress: float | None = None
    total: float | None = None
    questions: dict[str, InputRequest] = {}  # open questions
    answers: dict[str, Raw] = {}
    refusals: dict[str, ErrorObject] = {}  # questions that were answered with an error
    withdrawn: tuple[str, ...] = ()  # questions that need no answer any more
    effects: dict[str, Raw] = {}  # recorded effects that must not be repeated
    checkpoint: Raw | UnsetType = UNSET  # state to resume from
    result: Raw | UnsetType = UNSET
    result_is_error: bool = False  # the result is a failed one
    error: ErrorObject | None = None

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in TERMINAL

    @property
    def used_question_names(self) -> frozenset[str]:
        """The names of all questions so far."""
        return frozenset((*self.questions, *self.answers, *self.refusals, *self.withdrawn))

    @property
    def deadline(self) -> float | None:
        """When the task times out."""
        return None if self.timeout_ms is None else self.created_at + self.timeout_ms / 1000

    # Each of these returns the record after an event, and raises if the event is illegal now.

    def start(self, now: float) -> "TaskRecord":
        """Start the task for the first time."""
        return self._transition(S.START, now, attempt=self.attempt + 1, tries=self.tries + 1)

    def resume(self, now: float) -> "TaskRecord":
        """Take over the task, since the previous process is gone."""
        return self._transition(S.RESUME, now, attempt=self.attempt + 1, tries=self.tries + 1)

    def release(self, now: float) -> "TaskRecord":
        """Release the task in good order, which is not a failed attempt."""
        return self._transition(S.PROGRESS, now, tries=self.tries - 1) if allows(self.state, S.PROGRESS) else self

    def advance(
        self, now: float, progress: float | None, total: float | None = None, message: str | None = None
    ) -> "TaskRecord":
        """Record progress. None leaves a value unchanged."""
        changes = {"progress": progress, "total": total, "message": message}
        known = {name: value for name, value in changes.items() if value is not None}
        return self._transition(S.PROGRESS, now, **known)

    def ask(self, now: float, questions: Mapping[str, InputRequest]) -> "TaskRecord":
        """Ask the client for input. A name identifies one question in the life of a task."""
        used = questions.keys() & self.used_question_names
        if used or not questions:
            raise MisuseError(f"questions need names that were not used before, unlike {sorted(used)}")
        return self._transition(S.ASK, now, questions={**self.questions, **questions})

    def answer(self, now: float, responses: Mapping[str, Raw]) -> "TaskRecord":
        """Record answers to questions. Ignore answers to unknown or closed questions."""
        answered = {name: response for name, response in responses.items() if name in self.questions}
        return self._settle(now, answered, answers={**self.answers, **answered})

    def refuse(self, now: float, name: str, error: ErrorObject) -> "TaskRecord":
        """Record an error as the answer to a question."""
        refused = [name] if name in self.questions else []
        return self._settle(now, refused, refusals={**self.refusals, name: error})

    def withdraw(self, now: float, names: Iterable[str]) -> "TaskRecord":
        """Withdraw questions."""
        gone = [name for name in names if name in self.questions]
        return self._settle(now, gone, withdrawn=(*self.withdrawn, *gone))

    def save_checkpoint(self, now: float, checkpoint: Raw) -> "TaskRecord":
        """Record a checkpoint to resume from."""
        return self._transition(S.PROGRESS, now, checkpoint=checkpoint, tries=1)

    def record_effect(self, now: float, name: str, effect: Raw) -> "TaskRecord":
        """Record an effect that must not be repeated."""
        return self._transition(S.PROGRESS, now, effects={**self.effects, name: effect})

    def complete(self, now: float, result: Raw, *, is_error: bool = False, message: str | None = None) -> "TaskRecord":
        """Complete the task with a result; `is_error` if it is a failed one."""
        return self._end(S.COMPLETE, now, message, result=result, result_is_error=is_error)

    def fail(self, now: float, error: ErrorObject) -> "TaskRecord":
        """Fail the task with an error."""
        return self._end(S.FAIL, now, error.message, error=error)

    def time_out(self, now: float) -> "TaskRecord":
        """Fail the task because of its time limit."""
        message = f"the task was not done after {now - self.created_at:g} s"
        return self.fail(now, ErrorObject(InternalError.code, message, {"kind": "task_timeout"}))

    def cancel(self, now: float, reason: str | None = None) -> "TaskRecord":
        """Cancel the task."""
        return self._end(S.CANCEL, now, reason)

    def _settle(self, now: float, names: Iterable[str], **known: Any) -> "TaskRecord":
        settled = set(names)
        if not settled:
            return self
        still = {name: question for name, question in self.questions.items() if name not in settled}
        return self._transition(S.ANSWER if still else S.SETTLE, now, questions=still, **known)

    def _end(self, signal: TaskSignal, now: float, message: str | None, **known: Any) -> "TaskRecord":
        final_message = self.message if message is None else message
        return self._transition(signal, now, questions={}, message=final_message, **known)

    def _transition(self, signal: TaskSignal, now: float, **known: Any) -> "TaskRecord":
        return replace(self, state=next_state(self.state, signal), updated_at=max(now, self.updated_at), **known)
