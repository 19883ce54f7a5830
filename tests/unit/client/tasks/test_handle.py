"""Calls that are tasks, against a server played by hand: what is asked when, and what a client makes of the answers."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Settings
from trunkline.client.tasks.handle import Task
from trunkline.client.tasks.status import TaskSnapshot
from trunkline.errors import (
    BadAnswer,
    ConnectionClosed,
    OutcomeUnknown,
    PeerError,
    RequestTimeout,
    TaskCancelled,
    ToolFailed,
)
from trunkline.testing import ManualClock, ScriptedLine, ScriptedServer

TASKS = "io.modelcontextprotocol/tasks"
TOOLS = [{"name": "work", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}]
RESULT = {"content": [{"type": "text", "text": "done"}]}
TIMES = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}


class Played:
    """A server of either era that has tasks, played by hand."""

    def __init__(self, *, modern: bool) -> None:
        self.modern = modern
        capabilities: dict[str, Any] = {"tools": {}, "prompts": {}}
        if modern:
            capabilities["extensions"] = {TASKS: {}}
        else:
            capabilities["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        self.server = ScriptedServer(modern=modern, capabilities=capabilities, tools=TOOLS)
        self.clock = ManualClock()

    def client(self, **options: Any) -> Client:
        settings = Settings(backoff_first=0.01, stop_timeout=0.01)
        return Client(self.server, clock=self.clock, observers=[], **{"settings": settings, **options})

    @property
    def line(self) -> ScriptedLine:
        return self.server.line

    def shown(
        self, status: str = "working", *, ttl: int | None = None, poll: int = 1000, **more: Any
    ) -> dict[str, Any]:
        """A task, in the words of its era."""
        if self.modern:
            return {"taskId": "t", "status": status, **TIMES, "ttlMs": ttl, "pollIntervalMs": poll, **more}
        return {"taskId": "t", "status": status, **TIMES, "ttl": ttl, "pollInterval": poll, **more}

    async def asked(self, method: str) -> Any:
        return await self.line.request(method)

    def reply(self, request: Any, result: dict[str, Any]) -> None:
        self.line.reply(request, self.line.complete(**result) if self.modern else result)

    def create(self, request: Any, **shown: Any) -> None:
        """Answers a call with a task."""
        task = self.shown(**shown)
        self.line.reply(request, {"resultType": "task", **task} if self.modern else {"task": task})

    async def created(self, **shown: Any) -> Any:
        request = await self.asked("tools/call")
        self.create(request, **shown)
        return request

    async def finish(self) -> None:
        """Lets the task end well."""
        if self.modern:
            self.reply(await self.asked("tasks/get"), self.shown("completed", result=RESULT))
        else:
            self.reply(await self.asked("tasks/result"), RESULT)

    def progress(self, request: Any, progress: int) -> None:
        token = request["params"]["_meta"]["progressToken"]
        self.line.notify("notifications/progress", {"progressToken": token, "progress": progress})


@pytest.fixture(params=[False, True], ids=["2025-11-25", "2026-07-28"])
def played(request: pytest.FixtureRequest) -> Played:
    return Played(modern=request.param)


@pytest.fixture
def old() -> Played:
    return Played(modern=False)


@pytest.fixture
def new() -> Played:
    return Played(modern=True)


async def settle() -> None:
    """Lets everything happen that can happen now."""
    for _ in range(20):
        await asyncio.sleep(0)


def begun(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    return asyncio.create_task(work)


# --- progress ------------------------------------------------------------------------------------------


@pytest.mark.row("TSK-23")
async def test_progress_uses_the_call_token_until_the_task_ends(old: Played) -> None:
    heard = list[float]()
    async with old.client() as client:
        calling = begun(client.call_tool("work", on_progress=lambda told: heard.append(told.progress)))
        request = await old.asked("tools/call")
        old.progress(request, 1)
        old.create(request)
        old.progress(request, 2)  # in one go with the answer
        result = await old.asked("tasks/result")
        old.progress(request, 3)
        old.progress(request, 3)  # which does not grow
        old.reply(result, RESULT)
        assert (await calling).data == "done"
        del calling
        gc.collect()
        old.progress(request, 4)
        await settle()
    assert heard == [1, 2, 3]


@pytest.mark.row("TSK-23")
async def test_progress_is_reported_while_the_handle_exists(old: Played) -> None:
    heard = list[float]()
    async with old.client() as client:
        starting = begun(client.start_tool("work", on_progress=lambda told: heard.append(told.progress)))
        request = await old.created()
        task: Task | None = await starting
        del starting
        old.progress(request, 1)
        await settle()
        task = None
        old.clock.advance(60)  # the time that it had is over, too
        gc.collect()
        old.progress(request, 2)
        await settle()
        assert (heard, task) == ([1], None)


@pytest.mark.row("TSK-23")
async def test_task_progress_renews_the_call_deadline(old: Played) -> None:
    async with old.client() as client:
        calling = begun(client.call_tool("work", timeout=10, on_progress=lambda _: None))
        await settle()
        old.clock.advance(4)  # which count
        request = await old.created()
        await old.asked("tasks/result")
        for progress in (1, 2):
            await settle()
            old.clock.advance(9)
            old.progress(request, progress)
        await settle()
        old.clock.advance(9)
        await settle()
        assert not calling.done()
        old.clock.advance(1)
        with pytest.raises(RequestTimeout, match="32"):
            await calling
        await old.asked("tasks/cancel")


async def test_extension_task_progress_is_read_from_its_status(new: Played) -> None:
    heard = list[Any]()
    async with new.client() as client:
        calling = begun(client.call_tool("work", timeout=10, on_progress=heard.append))
        request = await new.created(poll=4000)
        for progress in (
            {"progress": 1, "total": 4, "message": "one"},
            {"progress": 1, "total": 4, "message": "one"},  # which does not grow
            {"progress": 2.5},  # which puts off the timeout
            "half",  # of another program
        ):
            shown = new.shown(poll=4000, _meta={"trunkline/progress": progress})
            new.reply(await new.asked("tasks/get"), shown)
            await settle()
            new.clock.advance(4)
        new.reply(await new.asked("tasks/get"), new.shown("completed", result=RESULT, _meta=5))
        assert (await calling).data == "done"
    token = request["params"]["_meta"]["progressToken"]
    assert [(told.progress_token, told.progress, told.total, told.message) for told in heard] == [
        (token, 1, 4, "one"),
        (token, 2.5, None, None),
    ]


async def test_without_progress_a_task_call_times_out(played: Played) -> None:
    async with played.client() as client:
        calling = begun(client.call_tool("work", timeout=10))
        await settle()
        played.clock.advance(6)
        await played.created(poll=60_000)
        await settle()
        if played.modern:
            played.reply(await played.asked("tasks/get"), played.shown(poll=60_000))
        await settle()
        played.clock.advance(4)
        with pytest.raises(RequestTimeout):
            await calling
        await played.asked("tasks/cancel")


# --- cancelling ----------------------------------------------------------------------------------------

Calls = Callable[[Client], Coroutine[Any, Any, Any]]
CALLS: list[Calls] = [lambda client: client.call_tool("work", timeout=5), lambda c: c.start_tool("work", timeout=5)]


@pytest.mark.row("TSK-23")
@pytest.mark.parametrize("late", [False, True], ids=["cancelled", "timed out"])
@pytest.mark.parametrize("call", CALLS, ids=["call_tool", "start_tool"])
async def test_abandoned_call_cancels_its_task_once_known(played: Played, call: Calls, late: bool) -> None:
    async with played.client() as client:
        calling = begun(call(client))
        request = await played.asked("tools/call")
        if late:
            played.clock.advance(5)
        else:
            calling.cancel()
        with pytest.raises((asyncio.CancelledError, RequestTimeout)):
            await calling
        await settle()
        cancelled = "notifications/cancelled" in [message["method"] for message in played.line.waiting()]
        assert cancelled == played.modern  # which does not know yet that it is to be a task
        played.create(request)
        assert (await played.asked("tasks/cancel"))["params"]["taskId"] == "t"


@pytest.mark.parametrize("call", CALLS, ids=["call_tool", "start_tool"])
async def test_response_during_cancellation_is_not_lost(played: Played, call: Calls) -> None:
    async with played.client() as client:
        calling = begun(call(client))
        request = await played.asked("tools/call")
        calling.cancel()
        played.create(request)  # before the caller has noticed
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert (await played.asked("tasks/cancel"))["params"]["taskId"] == "t"


async def test_close_waits_for_cancellations_of_abandoned_tasks(played: Played) -> None:
    client = played.client(settings=Settings(stop_timeout=PATIENCE))
    await client.open()
    calling = begun(client.call_tool("work"))
    await played.created()
    await settle()
    calling.cancel()
    await settle()
    closing = begun(client.close())
    cancel = await played.asked("tasks/cancel")
    await settle()
    assert not closing.done()
    played.reply(cancel, {} if played.modern else played.shown("cancelled"))
    if played.modern:
        played.reply(await played.asked("tasks/get"), played.shown("cancelled"))
    await closing
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_late_plain_result_is_ignored(played: Played) -> None:
    async with played.client() as client:
        calling = begun(client.call_tool("work"))
        request = await played.asked("tools/call")
        calling.cancel()
        await settle()
        played.reply(request, RESULT)
        await settle()
        assert "tasks/cancel" not in [message["method"] for message in played.line.waiting()]


@pytest.mark.row("TSK-17", "TXE-13")
async def test_task_unknown_after_cancel_is_cancelled(played: Played) -> None:
    async with played.client() as client:
        starting = begun(client.start_tool("work"))
        await played.created()
        task = await starting
        cancelling = begun(task.cancel())
        played.reply(await played.asked("tasks/cancel"), {} if played.modern else played.shown("cancelled"))
        if played.modern:
            played.line.error(await played.asked("tasks/get"), -32602, "no such task")
        await cancelling
        assert task.status == "cancelled"


# --- waiting -------------------------------------------------------------------------------------------


@pytest.mark.row("TXE-14")
async def test_poll_interval_of_the_server_is_followed(new: Played) -> None:
    async with new.client() as client:
        calling = begun(client.call_tool("work"))
        await new.created()
        for seconds in (1, 5, 0.25):
            new.reply(await new.asked("tasks/get"), new.shown(poll=round(seconds * 1000)))
            await settle()
            new.clock.advance(seconds - 0.01)
            await settle()
            assert [message["method"] for message in new.line.waiting()] == []
            new.clock.advance(0.01)
        await new.finish()
        assert (await calling).data == "done"


@pytest.mark.row("TXE-15")
async def test_task_notification_shortens_the_wait(new: Played) -> None:
    async with new.client() as client:
        calling = begun(client.call_tool("work"))
        await new.created()
        new.server.answered.discard("subscriptions/listen")
        new.reply(await new.asked("tasks/get"), new.shown())
        listen = await new.asked("subscriptions/listen")
        assert listen["params"]["notifications"] == {"taskIds": ["t"]}
        new.line.acknowledge(listen)
        new.line.notify("notifications/tasks", new.shown("completed", result=RESULT))
        await new.finish()
        assert (await calling).data == "done"


@pytest.mark.row("TXE-15")
@pytest.mark.parametrize("how", ["refused", "left out", "silent"])
async def test_server_without_task_notifications_is_polled(new: Played, how: str) -> None:
    async with new.client() as client:
        calling = begun(client.call_tool("work"))
        await new.created()
        new.server.answered.discard("subscriptions/listen")
        new.reply(await new.asked("tasks/get"), new.shown())
        listen = await new.asked("subscriptions/listen")
        if how == "refused":
            new.line.error(listen, -32602, "taskIds?")
        elif how == "left out":
            listen["params"]["notifications"] = {}
            new.line.acknowledge(listen)
        for _ in range(3):
            await settle()
            new.clock.advance(1)
            new.reply(await new.line.receive(), new.shown())  # and not another request to listen
        await settle()
        new.clock.advance(1)
        await new.finish()
        assert (await calling).data == "done"


@pytest.mark.row("TSK-15")
async def test_notified_status_is_verified_by_a_poll(new: Played) -> None:
    async with new.client() as client:
        calling = begun(client.call_tool("work"))
        await new.created()
        new.reply(await new.asked("tasks/get"), new.shown())
        await settle()
        new.line.notify("notifications/tasks", new.shown("cancelled"))
        await new.finish()
        assert (await calling).data == "done"


@pytest.mark.row("TXE-12")
async def test_input_request_is_answered_once(new: Played) -> None:
    put = list[str]()

    async def elicit(question: Any) -> dict[str, Any]:
        put.append(question.message)
        return {}

    def asks(*keys: str) -> dict[str, Any]:
        form = {"mode": "form", "requestedSchema": {"type": "object", "properties": {}}}
        questions = {key: {"method": "elicitation/create", "params": {"message": key, **form}} for key in keys}
        return new.shown("input_required", inputRequests=questions)

    async with new.client(elicitation=elicit) as client:
        calling = begun(client.call_tool("work"))
        await new.created()
        new.reply(await new.asked("tasks/get"), asks("a"))
        update = await new.asked("tasks/update")
        assert update["params"]["inputResponses"] == {"a": {"action": "accept", "content": {}}}
        new.reply(update, {})
        new.reply(await new.asked("tasks/get"), asks("a", "b"))  # what was answered may be shown for a while
        update = await new.asked("tasks/update")
        assert update["params"]["inputResponses"].keys() == {"b"}
        new.reply(update, {})
        await new.finish()
        await calling
    assert put == ["a", "b"]


async def test_time_of_a_person_does_not_count(new: Played) -> None:
    answer = asyncio.Event()

    async def elicit(_question: Any) -> dict[str, Any]:
        await answer.wait()
        return {}

    form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    questions = {"a": {"method": "elicitation/create", "params": form}}
    async with new.client(elicitation=elicit) as client:
        calling = begun(client.call_tool("work", timeout=5))
        await new.created()
        new.reply(await new.asked("tasks/get"), new.shown("input_required", inputRequests=questions))
        await settle()
        new.clock.advance(100)
        await settle()
        answer.set()
        new.reply(await new.asked("tasks/update"), {})
        await new.finish()
        assert (await calling).data == "done"


# --- when something goes wrong -----------------------------------------------------------------------------


async def test_lost_connection_does_not_end_a_task(played: Played) -> None:
    async with played.client() as client:
        calling = begun(client.call_tool("work"))
        await played.created()
        await played.asked("tasks/get" if played.modern else "tasks/result")
        played.line.die()
        await played.server.connected(2)
        await played.finish()
        assert (await calling).data == "done"


async def test_overloaded_server_is_polled_again_later(played: Played) -> None:
    look = "tasks/get" if played.modern else "tasks/result"
    async with played.client() as client:
        calling = begun(client.call_tool("work"))
        await played.created()
        for _ in range(3):
            played.line.error(await played.asked(look), -32603, "not now")
            if not played.modern:
                played.reply(await played.asked("tasks/get"), played.shown())
            await settle()
            played.clock.advance(1)
        await played.finish()
        assert (await calling).data == "done"


async def test_permanently_overloaded_server_raises(played: Played) -> None:
    async with played.client() as client:
        calling = begun(client.call_tool("work"))
        await played.created()
        for _ in range(5):
            for method in ("tasks/get",) if played.modern else ("tasks/result", "tasks/get"):
                played.line.error(await played.asked(method), -32603, "not now")
            await settle()
            played.clock.advance(1)
        with pytest.raises(PeerError, match="not now"):
            await calling
        await played.asked("tasks/cancel")


async def test_task_forgotten_by_its_server_has_an_unknown_outcome(played: Played) -> None:
    async with played.client() as client:
        calling = begun(client.call_tool("work"))
        await played.created()
        if not played.modern:
            played.line.error(await played.asked("tasks/result"), -32602, "no such task")
        played.line.error(await played.asked("tasks/get"), -32602, "no such task")
        with pytest.raises(OutcomeUnknown, match="does not know task t any more: no such task"):
            await calling


async def test_task_that_never_existed_raises_the_server_error(played: Played) -> None:
    async with played.client() as client:
        asking = begun(client.task("t").result())
        if not played.modern:
            played.line.error(await played.asked("tasks/result"), -32602, "no such task")
        played.line.error(await played.asked("tasks/get"), -32602, "no such task")
        with pytest.raises(PeerError, match="no such task"):
            await asking


@pytest.mark.row("TXE-14")
async def test_task_past_retention_is_polled_once_more(played: Played) -> None:
    async with played.client() as client:
        calling = begun(client.call_tool("work"))
        await played.created(ttl=10_000, poll=60_000)
        if played.modern:
            played.reply(await played.asked("tasks/get"), played.shown(ttl=10_000, poll=2000))
            for _ in range(5):
                await settle()
                played.clock.advance(2)
                played.reply(await played.asked("tasks/get"), played.shown(ttl=10_000, poll=2000))
        else:
            await played.asked("tasks/result")
        await settle()
        assert not calling.done()
        played.clock.advance(2 if played.modern else 70)
        played.reply(await played.asked("tasks/get"), played.shown(ttl=10_000, poll=2000))
        with pytest.raises(OutcomeUnknown, match="that its server retains it"):
            await calling
        await played.asked("tasks/cancel")


async def test_task_that_ended_at_its_retention_limit_has_its_result(old: Played) -> None:
    async with old.client() as client:
        calling = begun(client.call_tool("work"))
        await old.created(ttl=10_000)
        await old.asked("tasks/result")  # which gets lost
        await settle()
        old.clock.advance(11)
        old.reply(await old.asked("tasks/get"), old.shown("completed", ttl=10_000))
        await settle()
        old.clock.advance(1)
        await old.finish()
        assert (await calling).data == "done"


async def test_task_cancelled_by_another_client_raises(played: Played) -> None:
    async with played.client() as client:
        calling = begun(client.call_tool("work"))
        await played.created()
        if not played.modern:
            played.line.error(await played.asked("tasks/result"), -32602, "the task was cancelled")
        played.reply(await played.asked("tasks/get"), played.shown("cancelled"))
        with pytest.raises(TaskCancelled):
            await calling


async def test_close_wakes_waiting_callers(played: Played) -> None:
    async with played.client() as client:
        starting = begun(client.start_tool("work"))
        await played.created()
        waiting = begun((await starting).result())
        if played.modern:
            played.reply(await played.asked("tasks/get"), played.shown(poll=60_000))
        await settle()
    with pytest.raises(ConnectionClosed, match="closed"):
        await waiting


UNKNOWN = {"code": -32603, "message": "the process died", "data": {"kind": "outcome_unknown"}}


async def test_unknown_outcome_of_a_task_is_raised(played: Played) -> None:
    async with played.client() as client:
        calling = begun(client.call_tool("work"))
        played.line.error(await played.asked("tools/call"), -32603, "the process died", {"kind": "outcome_unknown"})
        with pytest.raises(OutcomeUnknown, match="tools/call of 'work': the process died"):
            await calling
        calling = begun(client.call_tool("work"))
        await played.created()
        if played.modern:
            played.reply(await played.asked("tasks/get"), played.shown("failed", error=UNKNOWN))
        else:
            played.line.error(await played.asked("tasks/result"), -32603, "the process died", UNKNOWN["data"])
        with pytest.raises(OutcomeUnknown, match="the process died"):
            await calling


# --- answers that are none ---------------------------------------------------------------------------------


@pytest.mark.row("TXE-04")
@pytest.mark.parametrize(
    ("method", "ask"),
    [
        ("prompts/get", lambda client: client.get_prompt("p")),
        ("prompts/list", lambda client: client.list_prompts()),
        ("tasks/get", lambda client: client.task("t").refresh()),
    ],
)
async def test_task_is_only_valid_as_the_result_of_a_call(new: Played, method: str, ask: Calls) -> None:
    async with new.client() as client:
        asking = begun(ask(client))
        new.line.reply(await new.asked(method), {"resultType": "task", **new.shown()})
        with pytest.raises(BadAnswer, match="unexpected result type 'task'"):
            await asking


@pytest.mark.row("TXE-04")
@pytest.mark.parametrize(
    "wrong", [{"taskId": 1}, {"status": "sleeping"}, {"createdAt": None}, {"ttl": "x", "ttlMs": "x"}]
)
async def test_task_without_required_fields_is_rejected(played: Played, wrong: dict[str, Any]) -> None:
    async with played.client() as client:
        calling = begun(client.call_tool("work"))
        await played.created(**wrong)
        with pytest.raises(BadAnswer, match="tools/call"):
            await calling


@pytest.mark.row("TSK-06")
async def test_unrequested_task_is_rejected(old: Played) -> None:
    async with old.client() as client:
        calling = begun(client.call_tool("other"))
        await old.created()
        with pytest.raises(BadAnswer, match="content"):
            await calling


@pytest.mark.row("TSK-06")
async def test_immediate_result_of_a_task_call_is_accepted(old: Played) -> None:
    async with old.client() as client:
        starting = begun(client.start_tool("work"))
        old.reply(await old.asked("tools/call"), {**RESULT, "isError": True})
        task = await starting
        assert task.status == "failed"
        await task.cancel()  # there is nothing to cancel
        with pytest.raises(ToolFailed, match="done"):
            await task.result()


@pytest.mark.parametrize(
    ("status", "more", "said"),
    [
        ("failed", {}, "the response has no error"),
        ("completed", {"result": {}}, "content"),
        ("odd", {}, "Invalid enum"),
    ],
)
async def test_ended_task_without_outcome_is_rejected(
    new: Played, status: str, more: dict[str, Any], said: str
) -> None:
    async with new.client() as client:
        calling = begun(client.call_tool("work"))
        await new.created()
        new.reply(await new.asked("tasks/get"), new.shown(status, **more))
        with pytest.raises(BadAnswer, match=said):
            await calling


@pytest.mark.parametrize(("told", "pause"), [(None, 1.0), (-1, 1.0), (0, 0.05), (1, 0.05), (500, 0.5), (10**9, 60.0)])
def test_poll_interval_is_bounded(told: float | None, pause: float) -> None:
    assert TaskSnapshot("t", poll_interval_ms=told).poll_seconds == pause
