"""Tasks: the table, enumerated, against the diagram below; the record; and its form in each dialect."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from msgspec import UNSET, Raw
from tests.official import schema

from trunkline.errors import InternalError, InvalidParams, MisuseError, ProtocolError
from trunkline.protocol import types as t
from trunkline.protocol.task_dialects import (
    DIALECTS,
    Dialect,
    check_cancellable,
    dialect_of,
    is_notable_change,
    status_in,
    task_outcome,
    to_augmented_task,
    to_detailed_task,
    to_extension_task,
    to_founding_status,
    to_founding_task,
)
from trunkline.protocol.tasks import TASKS, TERMINAL, TaskCaller, TaskRecord, TaskSignal, TaskState, allows, next_state
from trunkline.protocol.types.tasks_extension import TaskCreated, UpdateTaskParams
from trunkline.protocol.types.tasks_founding import (
    CreateFoundingTaskParams,
    CreateFoundingTaskResult,
    FoundingMetadata,
    GetFoundingTaskResult,
    ListFoundingTasksResult,
)
from trunkline.wire import codec
from trunkline.wire.messages import ErrorObject

PICTURE = """
          PENDING    WORKING         INPUT_REQUIRED  COMPLETED  FAILED  CANCELLED
START     WORKING    -               -               -          -       -
RESUME    -          WORKING         INPUT_REQUIRED  -          -       -
PROGRESS  -          WORKING         INPUT_REQUIRED  -          -       -
ASK       -          INPUT_REQUIRED  INPUT_REQUIRED  -          -       -
ANSWER    -          -               INPUT_REQUIRED  -          -       -
SETTLE    -          -               WORKING         -          -       -
COMPLETE  -          COMPLETED       COMPLETED       -          -       -
FAIL      FAILED     FAILED          FAILED          -          -       -
CANCEL    CANCELLED  CANCELLED       CANCELLED       -          -       -
"""
HEAD, *ROWS = [line.split() for line in PICTURE.strip().splitlines()]
CELLS = {
    (TaskState[state], TaskSignal[name]): None if cell == "-" else TaskState[cell]
    for name, *cells in ROWS
    for state, cell in zip(HEAD, cells, strict=True)
}
FOUNDING_EDGES = {  # of the founding documents' diagram, and cancelled or failed before it started
    *(("pending", "processing"), ("processing", "completed"), ("processing", "failed"), ("processing", "cancelled")),
    *(("pending", "failed"), ("pending", "cancelled"), ("processing", "processing")),
}

NOW = 1_700_000_000.0
QUESTION = t.InputRequest("elicitation/create", {"message": "Who?"})
RESULT = Raw(b'{"content":[],"isError":false}')
FAILURE = Raw(b'{"content":[{"type":"text","text":"no"}],"isError":true,"_meta":{"k":1}}')
ERROR = ErrorObject(-32602, "no such tool", {"kind": "tool_not_found"})


def made(**known: Any) -> TaskRecord:
    given = {
        "task_id": "t-1",
        "client": "us",
        "method": "tools/call",
        "params": Raw(b'{"name":"x","arguments":{"k":1}}'),
    }
    return TaskRecord(**{**given, "created_at": NOW, "updated_at": NOW, **known})


WORKING = made().start(NOW + 1)
ASKING = WORKING.ask(NOW + 2, {"q1": QUESTION, "q2": QUESTION})
RECORDS = {
    TaskState.PENDING: made(),
    TaskState.WORKING: WORKING,
    TaskState.INPUT_REQUIRED: ASKING,
    TaskState.COMPLETED: WORKING.complete(NOW + 3, RESULT),
    TaskState.FAILED: WORKING.fail(NOW + 3, ERROR),
    TaskState.CANCELLED: WORKING.cancel(NOW + 3, "not needed"),
}
REFUSED = WORKING.complete(NOW + 3, FAILURE, is_error=True, message="no")
ACTS: dict[TaskSignal, Callable[[TaskRecord], TaskRecord]] = {
    TaskSignal.START: lambda record: record.start(NOW + 9),
    TaskSignal.RESUME: lambda record: record.resume(NOW + 9),
    TaskSignal.PROGRESS: lambda record: record.advance(NOW + 9, 0.5),
    TaskSignal.ASK: lambda record: record.ask(NOW + 9, {"q3": QUESTION}),
    TaskSignal.COMPLETE: lambda record: record.complete(NOW + 9, RESULT),
    TaskSignal.FAIL: lambda record: record.fail(NOW + 9, ERROR),
    TaskSignal.CANCEL: lambda record: record.cancel(NOW + 9),
}


def plain(value: Any) -> Any:
    return json.loads(codec.to_json(value))


# --- the table -------------------------------------------------------------------------------------------


@pytest.mark.row("J06")
def test_diagram_covers_every_state_and_signal() -> None:
    assert CELLS.keys() == {(state, signal) for state in TaskState for signal in TaskSignal}
    assert TASKS.keys() == set(TaskState)


@pytest.mark.row("J06")
@pytest.mark.parametrize(("state", "signal"), CELLS)
def test_table_equals_the_diagram(state: TaskState, signal: TaskSignal) -> None:
    expected = CELLS[state, signal]
    assert TASKS[state].get(signal) is expected
    assert allows(state, signal) is (expected is not None)


@pytest.mark.row("J06")
@pytest.mark.parametrize(("state", "signal"), [pair for pair, cell in CELLS.items() if cell is not None])
def test_transition_leads_to_listed_state(state: TaskState, signal: TaskSignal) -> None:
    assert next_state(state, signal) is CELLS[state, signal]


@pytest.mark.row("J06")
@pytest.mark.parametrize(("state", "signal"), [pair for pair, cell in CELLS.items() if cell is None])
def test_missing_transition_raises_error(state: TaskState, signal: TaskSignal) -> None:
    with pytest.raises(InternalError, match=f"{signal.name.lower()} .* {state.value}") as caught:
        next_state(state, signal)
    assert caught.value.data == {"kind": "task_state_invalid", "state": state.value}


@pytest.mark.row("J06")
def test_finished_task_never_changes() -> None:
    assert {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED} == TERMINAL
    assert {state: record.ended for state, record in RECORDS.items()} == {s: s in TERMINAL for s in TaskState}


@pytest.mark.row("J06")
@pytest.mark.parametrize("signal", ACTS)
@pytest.mark.parametrize("state", TaskState)
def test_record_methods_follow_table(state: TaskState, signal: TaskSignal) -> None:
    before = RECORDS[state]
    if CELLS[state, signal] is None:
        with pytest.raises(InternalError):
            ACTS[signal](before)
        return
    after = ACTS[signal](before)
    assert (after.state, after.updated_at) == (CELLS[state, signal], NOW + 9)
    assert before is RECORDS[state]


@pytest.mark.row("J06")
def test_founding_diagram_has_every_status_change() -> None:
    statuses = DIALECTS[Dialect.FOUNDING].statuses
    edges = {(statuses[state], statuses[after]) for state, row in TASKS.items() for after in row.values()}
    assert edges == FOUNDING_EDGES


# --- the record ------------------------------------------------------------------------------------------


@pytest.mark.row("J09")
def test_record_has_founding_members() -> None:
    assert {"expires_at", "client", "progress", "total", "timeout_ms", "result", "error"} <= {
        *TaskRecord.__struct_fields__
    }


@pytest.mark.parametrize("state", TaskState)
def test_record_round_trips_as_json(state: TaskState) -> None:
    written = codec.to_json(RECORDS[state])
    again = codec.json_decoder(TaskRecord)(written)
    assert codec.to_json(again) == written
    assert (again.state, again.layout) == (state, 1)
    assert (again.result is UNSET) is (state is not TaskState.COMPLETED)


def test_restarted_task_counts_attempts() -> None:
    assert [WORKING.attempt, WORKING.resume(NOW + 5).attempt, ASKING.resume(NOW + 5).attempt] == [1, 2, 2]
    assert ASKING.resume(NOW + 5).questions == ASKING.questions


def test_tries_reset_by_checkpoint_or_release() -> None:
    third = WORKING.resume(NOW + 5).resume(NOW + 6)
    assert [WORKING.tries, third.tries, third.save_checkpoint(NOW + 7, Raw(b"1")).tries] == [1, 3, 1]
    assert [third.release(NOW + 7).tries, third.release(NOW + 7).attempt] == [2, 3]
    ended = third.cancel(NOW + 7)
    assert (ended.release(NOW + 8), made().release(NOW + 8)) == (ended, made())


def test_effects_are_recorded_by_name() -> None:
    assert WORKING.record_effect(NOW + 1, "paid", Raw(b"7")).record_effect(NOW + 2, "sent", Raw(b"8")).effects == {
        "paid": Raw(b"7"),
        "sent": Raw(b"8"),
    }


def test_progress_keeps_unset_values() -> None:
    first = WORKING.advance(NOW + 2, 1, total=10, message="reading")
    second = first.advance(NOW + 3, 2)
    assert (second.progress, second.total, second.message) == (2, 10, "reading")
    assert second.advance(NOW + 4, 3, 20, "writing").message == "writing"


def test_updated_at_never_decreases() -> None:
    assert WORKING.advance(NOW - 100, 1).updated_at == WORKING.updated_at


def test_timed_out_task_has_failed() -> None:
    record = made(timeout_ms=50)
    assert (record.deadline, made().deadline) == (NOW + 0.05, None)
    late = record.start(NOW + 0.01).time_out(NOW + 0.05)
    assert (late.state, late.message) == (TaskState.FAILED, "the task was not done after 0.05 s")
    assert to_founding_task(late).error == ErrorObject(
        -32085, "the task was not done after 0.05 s", {"kind": "task_timeout"}
    )
    assert to_detailed_task(late).error == ErrorObject(
        -32603, "the task was not done after 0.05 s", {"kind": "task_timeout"}
    )


def test_answers_settle_open_questions_only() -> None:
    some = ASKING.answer(NOW + 3, {"q1": Raw(b"1"), "unknown": Raw(b"2")})
    assert (some.state, list(some.questions), list(some.answers)) == (TaskState.INPUT_REQUIRED, ["q2"], ["q1"])
    assert some.answer(NOW + 4, {"q1": Raw(b"3"), "unknown": Raw(b"2")}) is some
    all_of_them = some.answer(NOW + 5, {"q2": Raw(b"4"), "q1": Raw(b"3")})
    assert (all_of_them.state, all_of_them.questions) == (TaskState.WORKING, {})
    assert {name: bytes(answer) for name, answer in all_of_them.answers.items()} == {"q1": b"1", "q2": b"4"}
    assert all_of_them.answer(NOW + 6, {"q1": Raw(b"5")}) is all_of_them


def test_obsolete_questions_are_withdrawn() -> None:
    some = ASKING.withdraw(NOW + 3, ["q1", "unknown"])
    assert (some.state, list(some.questions), some.withdrawn) == (TaskState.INPUT_REQUIRED, ["q2"], ("q1",))
    assert some.answer(NOW + 4, {"q1": Raw(b"1")}) is some
    assert some.withdraw(NOW + 4, ["q2"]).state is TaskState.WORKING


@pytest.mark.parametrize("name", ["open", "answered", "withdrawn"])
def test_question_names_are_unique_per_task(name: str) -> None:
    record = WORKING.ask(NOW + 2, {"open": QUESTION, "answered": QUESTION, "withdrawn": QUESTION})
    record = record.answer(NOW + 3, {"answered": Raw(b"1")}).withdraw(NOW + 4, ["withdrawn"])
    with pytest.raises(MisuseError, match=name):
        record.ask(NOW + 5, {"new": QUESTION, name: QUESTION})
    with pytest.raises(MisuseError):
        record.ask(NOW + 5, {})
    assert list(record.ask(NOW + 5, {"new": QUESTION}).questions) == ["open", "new"]


@pytest.mark.parametrize("ended", ["complete", "fail", "cancel"])
def test_finished_task_has_no_open_questions(ended: str) -> None:
    what = {"complete": [RESULT], "fail": [ERROR], "cancel": []}[ended]
    assert getattr(ASKING, ended)(NOW + 3, *what).questions == {}


@pytest.mark.row("J06")
@given(st.lists(st.sampled_from([*ACTS, TaskSignal.ANSWER]), max_size=12))
def test_no_history_leaves_final_state(signals: list[TaskSignal]) -> None:
    record = made()
    for number, signal in enumerate(signals):
        before = record
        if signal is TaskSignal.ANSWER:
            record = record.answer(NOW + number, dict.fromkeys(list(record.questions)[:1], Raw(b"1")))
        elif signal is TaskSignal.ASK and allows(record.state, signal):
            record = record.ask(NOW + number, {f"q{number}": QUESTION})
        elif signal is not TaskSignal.ASK and allows(record.state, signal):
            record = ACTS[signal](record)
        assert not before.ended or record is before
        assert bool(record.questions) is (record.state is TaskState.INPUT_REQUIRED)
        assert record.updated_at >= before.updated_at


# --- dialects --------------------------------------------------------------------------------------------

SHOWN = """
            2025-11-25      2026-07-28      founding
pending     working         working         pending
working     working         working         processing
input_required  input_required  input_required  processing
completed   completed       completed       completed
failed      failed          failed          failed
cancelled   cancelled       cancelled       cancelled
refused     failed          completed       failed
"""
DIALECT_NAMES, *SHOWN_ROWS = [line.split() for line in SHOWN.strip().splitlines()]


@pytest.mark.row("J06")
@pytest.mark.parametrize("row", SHOWN_ROWS, ids=lambda row: row[0])
def test_dialects_map_states_to_statuses(row: list[str]) -> None:
    record = REFUSED if row[0] == "refused" else RECORDS[TaskState(row[0])]
    assert [status_in(record, Dialect(name)) for name in DIALECT_NAMES] == row[1:]


def test_dialect_traits_differ() -> None:
    told = {dialect: traits[2:] for dialect, traits in DIALECTS.items()}
    assert told == {  # cancelling what has ended, tasks/result waits, tasks/list, progress
        Dialect.AUGMENTED: (False, True, True, True),
        Dialect.EXTENSION: (True, None, False, False),
        Dialect.FOUNDING: (False, False, True, True),
    }


def test_only_visible_changes_are_notable() -> None:
    history = [made(), WORKING, WORKING.advance(NOW + 2, 1), ASKING]
    history += [ASKING.answer(NOW + 3, {"q1": Raw(b"1")})]
    history += [history[-1].answer(NOW + 4, {"q2": Raw(b"1")})]
    history += [history[-1].complete(NOW + 5, RESULT)]
    pairs = list(pairwise(history))
    told = {d.value: [is_notable_change(before, after, d) for before, after in pairs] for d in Dialect}
    assert told == {  # started, progress, input required, one answer, all answers, completed
        "2025-11-25": [False, False, True, False, True, True],
        "2026-07-28": [False, False, True, True, True, True],
        "founding": [True, False, False, False, False, True],
    }


@pytest.mark.row("J08")
def test_augmented_task_matches_official_schema() -> None:
    definitions = schema("2025-11-25")["$defs"]
    accepts = Draft202012Validator({"$ref": "#/$defs/Task", "$defs": definitions})
    for record in [*RECORDS.values(), REFUSED, made(expires_at=NOW + 60, poll_interval_ms=500, message="soon")]:
        for kind in (t.Task, t.GetTaskResult, t.CancelTaskResult, t.TaskStatusParams):
            assert list(accepts.iter_errors(plain(to_augmented_task(record, kind)))) == []
    assert plain(to_augmented_task(made(expires_at=NOW + 60.5, poll_interval_ms=500, message="soon"), t.Task)) == {
        "taskId": "t-1",
        "status": "working",
        "createdAt": "2023-11-14T22:13:20.000Z",
        "lastUpdatedAt": "2023-11-14T22:13:20.000Z",
        "ttl": 60_500,
        "statusMessage": "soon",
        "pollInterval": 500,
    }
    assert plain(to_augmented_task(made(), t.Task))["ttl"] is None


def test_extension_task_has_no_status_members() -> None:
    record = made(expires_at=NOW + 60, poll_interval_ms=500, message="soon")
    assert plain(to_extension_task(record, TaskCreated)) == {
        "taskId": "t-1",
        "status": "working",
        "createdAt": "2023-11-14T22:13:20.000Z",
        "lastUpdatedAt": "2023-11-14T22:13:20.000Z",
        "ttlMs": 60_000,
        "statusMessage": "soon",
        "pollIntervalMs": 500,
    }
    assert plain(to_extension_task(made(), TaskCreated))["ttlMs"] is None


def test_detailed_task_has_status_members() -> None:
    extras = {"inputRequests", "result", "error"}
    found = {state.value: extras & plain(to_detailed_task(record)).keys() for state, record in RECORDS.items()}
    assert found == {
        "pending": set(),
        "working": set(),
        "input_required": {"inputRequests"},
        "completed": {"result"},
        "failed": {"error"},
        "cancelled": set(),
    }
    asking = plain(to_detailed_task(ASKING.answer(NOW + 3, {"q1": Raw(b"1")})))["inputRequests"]
    assert asking == {"q2": {"method": "elicitation/create", "params": {"message": "Who?"}}}
    assert plain(to_detailed_task(REFUSED))["result"]["isError"] is True
    assert plain(to_detailed_task(RECORDS[TaskState.FAILED]))["error"] == plain(ERROR)


def test_detailed_task_has_progress_message() -> None:
    further = WORKING.advance(NOW + 2, 1, 3, "one")
    shown = {"progress": 1, "total": 3, "message": "one"}
    silent = {"progress": 1, "total": 3}
    for record, expected in (
        (further, shown),
        (further.complete(NOW + 3, RESULT), shown),
        (further.complete(NOW + 3, FAILURE, is_error=True, message="no"), silent),
        (further.fail(NOW + 3, ERROR), silent),
        (further.cancel(NOW + 3, "not needed"), silent),
    ):
        assert plain(to_detailed_task(record))["_meta"] == {"trunkline/progress": expected}
    assert "_meta" not in plain(to_detailed_task(WORKING))


def test_progress_is_notable_if_requested() -> None:
    for token, dialect, told in (
        ("t", Dialect.EXTENSION, True),
        (None, Dialect.EXTENSION, False),
        ("t", Dialect.AUGMENTED, False),  # it has separate notifications
    ):
        before = made(progress_token=token).start(NOW)
        assert is_notable_change(before, before.advance(NOW, 1), dialect) is told
        assert not is_notable_change(before, before.save_checkpoint(NOW, Raw(b"1")), dialect)


def test_extension_answers_are_decoded() -> None:
    read = codec.decoder(UpdateTaskParams)(b'{"taskId":"t-1","inputResponses":{"q1":{"action":"accept"}}}')
    answered = ASKING.answer(NOW + 3, read.input_responses)
    assert bytes(answered.answers["q1"]) == b'{"action":"accept"}'


@pytest.mark.row("J08")
@pytest.mark.parametrize("state", TaskState)
def test_founding_task_has_all_members(state: TaskState) -> None:
    task = plain(to_founding_task(RECORDS[state]))
    assert list(task) == ["taskId", "status", "action", "result", "error", "createdAt", "updatedAt"]
    assert task["action"] == {"type": "x", "parameters": {"k": 1}}
    assert (task["createdAt"], task["updatedAt"]) == (1_700_000_000_000, round(RECORDS[state].updated_at * 1000))
    assert (task["error"] is not None) is (state is TaskState.FAILED)
    assert (task["result"] is not None) is (state is TaskState.COMPLETED)
    told = plain(to_founding_status(RECORDS[state]))
    assert told == {name: task[name] for name in ("taskId", "status", "result", "error")}


@pytest.mark.row("J14")
def test_founding_codes_only_in_founding_dialect() -> None:
    refused = to_founding_task(REFUSED)
    assert refused.error == ErrorObject(-32083, "no", {"kind": "task_failed"})
    assert plain(refused)["result"]["isError"] is True
    assert to_founding_task(WORKING.complete(NOW, FAILURE, is_error=True)).error.message == "the task failed"
    assert to_founding_task(RECORDS[TaskState.FAILED]).error.code == -32002
    late = WORKING.time_out(NOW + 9)
    assert (to_founding_task(late).error.code, to_detailed_task(late).error.code) == (-32085, -32603)


@pytest.mark.row("J14")
@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"kind": "tool_dependency_failed"}, -32088),
        ({"kind": "tool_execution_failed"}, -32083),
        ({"kind": [7]}, -32083),
        ({}, -32083),
        ("ours", -32083),
    ],
)
def test_failed_result_has_code_of_its_kind(details: Any, code: int) -> None:
    result = codec.to_raw({"content": [], "isError": True, "_meta": {"trunkline/error": details}})
    assert to_founding_task(WORKING.complete(NOW, result, is_error=True)).error.code == code


@pytest.mark.row("J14")
@pytest.mark.parametrize("data", [UNSET, None, [1], {"kind": 7}, {"kind": "our_own"}, {"kind": "internal_error"}])
def test_unknown_kind_has_code_of_failed_task(data: Any) -> None:
    error = to_founding_task(WORKING.fail(NOW, ErrorObject(-32603, "x", data))).error
    assert (error.code, error.message, error.data["kind"]) == (-32083, "x", "task_failed")


def test_application_code_is_preserved() -> None:
    own = ErrorObject(7, "x", {"kind": "internal_error"})
    assert to_founding_task(WORKING.fail(NOW, own)).error == own


def test_task_dialect_follows_caller() -> None:
    assert dialect_of(made()) is Dialect.AUGMENTED
    assert dialect_of(made(caller=TaskCaller(founding=True))) is Dialect.FOUNDING
    assert dialect_of(made(caller=TaskCaller(modern=True))) is Dialect.EXTENSION


def test_founding_messages_round_trip() -> None:
    asked = codec.decoder(CreateFoundingTaskParams)(
        b'{"action":{"type":"op","parameters":{"k":"v"}},"metadata":{"progressToken":"p","timeout":30000}}'
    )
    assert (asked.action.type, bytes(asked.action.parameters)) == ("op", b'{"k":"v"}')
    assert asked.metadata == FoundingMetadata("p", 30_000)
    least = codec.decoder(CreateFoundingTaskParams)(b'{"action":{"type":"op"}}')
    assert (plain(least.action), least.metadata) == ({"type": "op"}, FoundingMetadata())
    assert plain(CreateFoundingTaskResult("t-1")) == {"taskId": "t-1"}
    assert plain(GetFoundingTaskResult(to_founding_task(WORKING)))["task"]["status"] == "processing"
    page = plain(ListFoundingTasksResult([to_founding_task(WORKING)], "next"))
    assert (len(page["tasks"]), page["cursor"]) == (1, "next")
    ended = codec.decoder(t.CancelTaskParams)(b'{"taskId":"t-1","reason":"enough"}')
    assert WORKING.cancel(NOW + 2, ended.reason).message == "enough"


# --- results and cancellation ----------------------------------------------------------------------------


def kind_and_code(error: ProtocolError) -> tuple[str, int]:
    return error.data["kind"], error.code


def test_task_result_names_related_task() -> None:
    related = {"io.modelcontextprotocol/related-task": {"taskId": "t-1"}}
    assert plain(task_outcome(RECORDS[TaskState.COMPLETED], Dialect.AUGMENTED)) == {
        "content": [],
        "isError": False,
        "_meta": related,
    }
    assert plain(task_outcome(REFUSED, Dialect.AUGMENTED))["_meta"] == {"k": 1, **related}
    assert task_outcome(RECORDS[TaskState.FAILED], Dialect.AUGMENTED) == ERROR
    assert plain(task_outcome(RECORDS[TaskState.COMPLETED], Dialect.FOUNDING)) == {
        "result": {"content": [], "isError": False}
    }
    assert task_outcome(RECORDS[TaskState.FAILED], Dialect.FOUNDING) == ErrorObject(-32002, ERROR.message, ERROR.data)
    assert task_outcome(REFUSED, Dialect.FOUNDING) == ErrorObject(-32083, "no", {"kind": "task_failed"})


@pytest.mark.parametrize("state", [TaskState.PENDING, TaskState.WORKING, TaskState.INPUT_REQUIRED])
def test_pending_result_waits_or_is_refused(state: TaskState) -> None:
    assert task_outcome(RECORDS[state], Dialect.AUGMENTED) is None
    with pytest.raises(InternalError) as caught:
        task_outcome(RECORDS[state], Dialect.FOUNDING)
    assert kind_and_code(caught.value) == ("task_result_not_ready", -32089)


@pytest.mark.parametrize(("dialect", "code"), [(Dialect.AUGMENTED, -32602), (Dialect.FOUNDING, -32084)])
def test_cancelled_task_has_no_result(dialect: Dialect, code: int) -> None:
    with pytest.raises(InvalidParams, match="cancelled") as caught:
        task_outcome(RECORDS[TaskState.CANCELLED], dialect)
    assert kind_and_code(caught.value) == ("task_cancelled", code)


@pytest.mark.parametrize(("dialect", "code"), [(Dialect.AUGMENTED, -32602), (Dialect.FOUNDING, -32090)])
@pytest.mark.parametrize("state", TaskState)
def test_finished_task_cannot_be_cancelled(state: TaskState, dialect: Dialect, code: int) -> None:
    if state not in TERMINAL:
        assert check_cancellable(RECORDS[state], dialect)
        return
    with pytest.raises(InvalidParams, match=f"is already {state.value}") as caught:
        check_cancellable(RECORDS[state], dialect)
    assert kind_and_code(caught.value) == ("task_already_completed", code)


@pytest.mark.parametrize("state", TaskState)
def test_extension_cancels_finished_task_silently(state: TaskState) -> None:
    assert check_cancellable(RECORDS[state], Dialect.EXTENSION) is (state not in TERMINAL)
