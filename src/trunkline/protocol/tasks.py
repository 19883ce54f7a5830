"""A task: its states as a table, and the record of one.

    PENDING -> WORKING <-> INPUT_REQUIRED        and from each of them to COMPLETED (if it was begun), FAILED, CANCELLED

There is one machine for all dialects. What a revision, the extension or the founding documents show of it stands in
`task_dialects.py`. A record is a value: whatever happens to a task makes a new one, for whoever keeps it to write in
the place of the old. What has ended stays as it is, whoever comes later.
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
    """Where a task stands. The value is what is kept of it."""

    PENDING = "pending"  # made, not begun
    WORKING = "working"
    INPUT_REQUIRED = "input_required"  # has asked its requestor something, and may be working meanwhile
    COMPLETED = "completed"  # has a result, which may say that it failed
    FAILED = "failed"  # has an error instead
    CANCELLED = "cancelled"


class TaskSignal(Enum):
    """What can happen to a task."""

    START = auto()
    RESUME = auto()  # somebody else goes on with it
    PROGRESS = auto()
    ASK = auto()
    ANSWER = auto()  # a question is settled, others are open
    SETTLE = auto()  # no question is open any more
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
"""The states that a task stays in."""


def allows(state: TaskState, signal: TaskSignal) -> bool:
    """Whether a signal is legal in a state."""
    return signal in TASKS[state]


def next_state(state: TaskState, signal: TaskSignal) -> TaskState:
    """The next state; a pair without a row is illegal, and there is no other branch."""
    try:
        return TASKS[state][signal]
    except KeyError:
        data = {"kind": "task_state_invalid", "state": state.value}
        raise InternalError(
            f"{signal.name.lower()} is not possible for a task that is {state.value}", data=data
        ) from None


class TaskCaller(Struct, frozen=True, kw_only=True):
    """Who asked for a task, as far as whoever goes on with it has to know."""

    revision: str = "2025-11-25"
    capabilities: dict[str, Any] = {}
    info: Implementation | None = None
    modern: bool = False  # its request stood for itself
    founding: bool = False  # it spoke as the founding documents do
    local: bool = False  # somebody who has not to say who it is
    session: str | None = None  # the conversation that it asked in, where nothing else tells callers apart
    principal: Raw | UnsetType = UNSET  # who was verified to call, in JSON


class TaskRecord(Struct, frozen=True, kw_only=True):
    """All that is known of a task, as it is kept. Times are in seconds since 1970."""

    layout: int = 1  # of this record, for whoever reads it later
    task_id: str
    client: str  # whose it is; to everybody else it is not there
    method: str  # of the request that it answers, or would have: what it does is said in one way, whoever asked
    params: Raw  # of that request
    caller: TaskCaller = TaskCaller()
    created_at: float
    updated_at: float
    expires_at: float | None = None  # may be forgotten from then on, whatever its state
    place: int | None = None  # among those of its client that are at work, where these are counted by who keeps them
    timeout_ms: int | None = None  # that it may take, from its creation
    poll_interval_ms: int | None = None
    progress_token: ProgressToken | None = None
    state: TaskState = TaskState.PENDING
    attempt: int = 0  # how often somebody has begun with it
    tries: int = 0  # of these, those since it got further last that did not end in good order
    message: str | None = None  # how it stands, in words
    progress: float | None = None
    total: float | None = None
    questions: dict[str, InputRequest] = {}  # those that are open
    answers: dict[str, Raw] = {}
    refusals: dict[str, ErrorObject] = {}  # questions that were answered with an error
    withdrawn: tuple[str, ...] = ()  # questions that nobody waits for any more
    effects: dict[str, Raw] = {}  # what was done that must not be done twice
    checkpoint: Raw | UnsetType = UNSET  # what its work needs to go on from here
    result: Raw | UnsetType = UNSET
    result_is_error: bool = False  # it says of itself that it failed
    error: ErrorObject | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.state in TERMINAL

    @property
    def used_question_names(self) -> frozenset[str]:
        """The names of all questions that there have been."""
        return frozenset((*self.questions, *self.answers, *self.refusals, *self.withdrawn))

    @property
    def deadline(self) -> float | None:
        """When it is to be given up."""
        return None if self.timeout_ms is None else self.created_at + self.timeout_ms / 1000

    # Each of these gives the record after something has happened, and raises if that cannot happen now.

    def start(self, now: float) -> "TaskRecord":
        """Somebody begins with it."""
        return self._transition(S.START, now, attempt=self.attempt + 1, tries=self.tries + 1)

    def resume(self, now: float) -> "TaskRecord":
        """Somebody else goes on with it, since whoever worked on it is gone."""
        return self._transition(S.RESUME, now, attempt=self.attempt + 1, tries=self.tries + 1)

    def release(self, now: float) -> "TaskRecord":
        """Whoever works on it lets go of it in good order: that was no failed try."""
        return self._transition(S.PROGRESS, now, tries=self.tries - 1) if allows(self.state, S.PROGRESS) else self

    def advance(
        self, now: float, progress: float, total: float | None = None, message: str | None = None
    ) -> "TaskRecord":
        """It has got somewhere. What is not said anew stays as it was."""
        said = {"total": total, "message": message}
        known = {name: value for name, value in said.items() if value is not None}
        return self._transition(S.PROGRESS, now, progress=progress, **known)

    def ask(self, now: float, questions: Mapping[str, InputRequest]) -> "TaskRecord":
        """It needs to know something. A name is used for one question in the life of a task."""
        used = questions.keys() & self.used_question_names
        if used or not questions:
            raise MisuseError(f"questions need names that were not used before, unlike {sorted(used)}")
        return self._transition(S.ASK, now, questions={**self.questions, **questions})

    def answer(self, now: float, responses: Mapping[str, Raw]) -> "TaskRecord":
        """Some questions are answered. Answers to what is not asked, or not any more, are left aside."""
        heard = {name: response for name, response in responses.items() if name in self.questions}
        return self._settle(now, heard, answers={**self.answers, **heard})

    def refuse(self, now: float, name: str, error: ErrorObject) -> "TaskRecord":
        """A question is answered with an error."""
        heard = [name] if name in self.questions else []
        return self._settle(now, heard, refusals={**self.refusals, name: error})

    def withdraw(self, now: float, names: Iterable[str]) -> "TaskRecord":
        """Some questions need no answer any more."""
        gone = [name for name in names if name in self.questions]
        return self._settle(now, gone, withdrawn=(*self.withdrawn, *gone))

    def save_checkpoint(self, now: float, checkpoint: Raw) -> "TaskRecord":
        """Its work has come to a point from which it can go on."""
        return self._transition(S.PROGRESS, now, checkpoint=checkpoint, tries=1)

    def record_effect(self, now: float, name: str, effect: Raw) -> "TaskRecord":
        """Something is done that must not be done twice."""
        return self._transition(S.PROGRESS, now, effects={**self.effects, name: effect})

    def complete(self, now: float, result: Raw, *, is_error: bool = False, message: str | None = None) -> "TaskRecord":
        """It is done; `is_error` if its result says that it failed."""
        return self._end(S.COMPLETE, now, message, result=result, result_is_error=is_error)

    def fail(self, now: float, error: ErrorObject) -> "TaskRecord":
        """It came to nothing."""
        return self._end(S.FAIL, now, error.message, error=error)

    def time_out(self, now: float) -> "TaskRecord":
        """Its time was up."""
        said = f"the task was not done after {now - self.created_at:g} s"
        return self.fail(now, ErrorObject(InternalError.code, said, {"kind": "task_timeout"}))

    def cancel(self, now: float, reason: str | None = None) -> "TaskRecord":
        """It is not wanted any more."""
        return self._end(S.CANCEL, now, reason)

    def _settle(self, now: float, names: Iterable[str], **known: Any) -> "TaskRecord":
        settled = set(names)
        if not settled:
            return self
        still = {name: question for name, question in self.questions.items() if name not in settled}
        return self._transition(S.ANSWER if still else S.SETTLE, now, questions=still, **known)

    def _end(self, signal: TaskSignal, now: float, message: str | None, **known: Any) -> "TaskRecord":
        said = self.message if message is None else message
        return self._transition(signal, now, questions={}, message=said, **known)

    def _transition(self, signal: TaskSignal, now: float, **known: Any) -> "TaskRecord":
        return replace(self, state=next_state(self.state, signal), updated_at=max(now, self.updated_at), **known)
