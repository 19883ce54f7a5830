"""Tasks: requests with a deferred result, as 2025-11-25 defines them and as the extension of 2026-07-28 does."""

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.modern import enveloped

from trunkline import Context, ProtocolError, Server, Settings, TaskPolicy, ToolError
from trunkline.errors import RegistrationError
from trunkline.testing import ManualClock, RawPeer

TASKS = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
KNOWS_TASKS = {"elicitation": {"form": {}}, "sampling": {}, "extensions": {TASKS: {}}}


@dataclass
class Sure:
    sure: bool


class TaskServer:
    """A server with tools that run until the test releases them."""

    def __init__(self, **options: Any) -> None:
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        server = self.server = Server("tasks", observers=[], **options)

        @server.tool(task=True)
        async def work(text: str = "done") -> str:
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return text

        @server.tool(task="optional")
        async def fails() -> str:
            raise ToolError("it is broken")

        @server.tool(task="optional")
        async def errs() -> str:
            raise ProtocolError("it went wrong", code=7)

        @server.tool(task="required")
        async def only_a_task() -> str:
            return "was one"

        @server.tool
        async def never_a_task() -> str:
            return "was none"

        @server.tool(task="optional")
        async def asks(ctx: Context) -> str:
            answer = await ctx.elicit("Sure?", Sure)
            return f"{answer.action} {answer.data and answer.data.sure}"

        @server.tool(task="optional")
        def on_a_thread(ctx: Context) -> str:
            return (
                f"{threading.current_thread() is not threading.main_thread()} {ctx.wait(ctx.elicit('?', Sure)).action}"
            )


async def call(peer: RawPeer, name: str, task: Any = None, **arguments: Any) -> Any:
    asked = {"name": name, "arguments": arguments, "task": {} if task is None else task}
    return (await peer.result("tools/call", asked))["task"]


async def ended(peer: RawPeer, task: Any) -> Any:
    """The task once it has ended."""
    await peer.request("tasks/result", {"taskId": task["taskId"]})
    return await peer.result("tasks/get", {"taskId": task["taskId"]})


# --- 2025-11-25 ------------------------------------------------------------------------------------


@pytest.mark.row("TSK-06", "J16")
async def test_augmented_call_runs_as_task_and_result_is_fetched() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        declared = (await peer.initialize())["capabilities"]["tasks"]
        assert declared == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        task = await call(peer, "work", {"ttl": 60_000}, text="well")
        assert task["status"] == "working"
        assert task["ttl"] == 60_000
        assert task["createdAt"] <= task["lastUpdatedAt"]
        assert task["createdAt"].endswith("Z")
        assert task["pollInterval"] == 1000
        waiting = peer.call("tasks/result", {"taskId": task["taskId"]})
        await work.begun.wait()
        assert (await peer.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "working"
        work.go_on.set()
        result = (await peer.answer_to(waiting))["result"]
        assert result["structuredContent"] == {"result": "well"}
        assert result["_meta"] == {RELATED: {"taskId": task["taskId"]}}
        again = await peer.result("tasks/result", {"taskId": task["taskId"]})
        assert again == result
        assert (await peer.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "completed"


@pytest.mark.row("TSK-07", "J01")
async def test_task_ids_are_unique_and_reply_precedes_the_end() -> None:
    work = TaskServer(settings=Settings(max_tasks=2000, max_tasks_per_principal=None))
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        names = {(await call(peer, "work"))["taskId"] for _ in range(1000)}
        assert len(names) == 1000
        assert not work.go_on.is_set()


@pytest.mark.row("TSK-15", "J10")
async def test_each_status_change_is_notified_once() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        task = await call(peer, "asks")
        waiting = peer.call("tasks/result", {"taskId": task["taskId"]})
        said = [await peer.receive() for _ in range(2)]
        question = next(message for message in said if message["method"] == "elicitation/create")
        peer.reply(question, {"action": "accept", "content": {"sure": True}})
        await peer.answer_to(waiting)
        said += await peer.quiet()
        told = [message["params"] for message in said if message["method"] == "notifications/tasks/status"]
        assert [params["status"] for params in told] == ["input_required", "working", "completed"]
        assert {params["taskId"] for params in told} == {task["taskId"]}
        assert all("_meta" not in params for params in told)


@pytest.mark.row("TSK-09")
async def test_question_goes_to_the_waiting_client_with_related_task() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        for name in ("asks", "on_a_thread"):
            task = await call(peer, name)
            waiting = peer.call("tasks/result", {"taskId": task["taskId"]})
            while (question := await peer.receive()).get("method") != "elicitation/create":
                pass
            assert question["params"]["_meta"] == {RELATED: {"taskId": task["taskId"]}}
            assert (await peer.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "input_required"
            peer.reply(question, {"action": "accept", "content": {"sure": True}})
            result = (await peer.answer_to(waiting))["result"]
            assert result["structuredContent"] == {"result": {"asks": "accept True"}.get(name, "True accept")}
            peer.waiting()


async def test_refused_question_is_an_error_in_the_task() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        task = await call(peer, "asks")
        waiting = peer.call("tasks/result", {"taskId": task["taskId"]})
        while (question := await peer.receive()).get("method") != "elicitation/create":
            pass
        peer.send({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "nobody is here"}})
        result = (await peer.answer_to(waiting))["result"]
        assert result["isError"]
        assert "nobody is here" in result["content"][0]["text"]


@pytest.mark.row("TSK-18")
async def test_error_result_is_a_failed_task_with_its_result() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        task = await call(peer, "fails")
        result = await peer.result("tasks/result", {"taskId": task["taskId"]})
        assert result["isError"]
        assert result["content"][0]["text"] == "it is broken"
        shown = await peer.result("tasks/get", {"taskId": task["taskId"]})
        assert (shown["status"], shown["statusMessage"]) == ("failed", "it is broken")


@pytest.mark.row("TSK-12")
async def test_task_error_equals_the_error_of_the_request() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        task = await call(peer, "errs")
        error = await peer.error("tasks/result", {"taskId": task["taskId"]})
        assert (error["code"], error["message"]) == (7, "it went wrong")
        assert (await ended(peer, task))["status"] == "failed"


@pytest.mark.row("TSK-17", "J05")
async def test_cancel_stops_the_work_before_it_is_answered() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        task = await call(peer, "work")
        await work.begun.wait()
        assert (await peer.result("tasks/cancel", {"taskId": task["taskId"]}))["status"] == "cancelled"
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)
        assert (await peer.error("tasks/result", {"taskId": task["taskId"]}))["data"]["kind"] == "task_cancelled"
        assert (await peer.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "cancelled"


@pytest.mark.row("TSK-17", "TSK-19", "J12")
async def test_ended_or_unknown_task_cannot_be_cancelled() -> None:
    work = TaskServer()
    work.go_on.set()
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        task = await call(peer, "work")
        await ended(peer, task)
        error = await peer.error("tasks/cancel", {"taskId": task["taskId"]})
        assert (error["code"], error["data"]["kind"]) == (-32602, "task_already_completed")
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            for name in ("nothing", "", "x" * 1000):
                error = await peer.error(method, {"taskId": name})
                assert (error["code"], error["data"]["kind"]) == (-32602, "task_not_found")


@pytest.mark.row("TSK-04", "TSK-05")
@pytest.mark.parametrize(("name", "task"), [("never_a_task", {}), ("only_a_task", None)])
async def test_tool_is_called_as_its_task_support_allows(name: str, task: Any) -> None:
    async with RawPeer(TaskServer().server) as peer:
        await peer.initialize()
        asked = {"name": name} if task is None else {"name": name, "task": task}
        assert (await peer.error("tools/call", asked))["code"] == -32601


@pytest.mark.row("TSK-02")
async def test_task_field_is_ignored_without_task_capability() -> None:
    server = Server("plain", observers=[])

    @server.tool
    def plain() -> str:
        return "plain"

    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tools/call", {"name": "plain", "task": {}})
        assert result["structuredContent"] == {"result": "plain"}


async def test_tools_list_shows_task_support() -> None:
    async with RawPeer(TaskServer().server) as peer:
        await peer.initialize()
        tools = {tool["name"]: tool for tool in (await peer.result("tools/list"))["tools"]}
        assert tools["work"]["execution"] == {"taskSupport": "optional"}
        assert tools["only_a_task"]["execution"] == {"taskSupport": "required"}
        assert "execution" not in tools["never_a_task"]


async def test_invalid_arguments_are_refused_before_creation() -> None:
    async with RawPeer(TaskServer().server) as peer:
        await peer.initialize()
        error = await peer.error("tools/call", {"name": "work", "arguments": {"text": 5}, "task": {}})
        assert error["code"] == -32602
        assert (await peer.result("tasks/list"))["tasks"] == []


@pytest.mark.row("TSK-16", "TSK-20", "J02")
async def test_list_shows_own_tasks_in_pages_oldest_first() -> None:
    work = TaskServer(settings=Settings(max_tasks_per_principal=None))
    async with RawPeer(work.server) as peer, RawPeer(work.server) as other:
        await peer.initialize()
        await other.initialize()
        made = [(await call(peer, "work"))["taskId"] for _ in range(150)]
        first = await peer.result("tasks/list", {"limit": 100})
        second = await peer.result("tasks/list", {"limit": 100, "cursor": first["nextCursor"]})
        assert "nextCursor" not in second
        assert sorted(task["taskId"] for page in (first, second) for task in page["tasks"]) == sorted(made)
        assert (len(first["tasks"]), len(second["tasks"])) == (100, 50)
        assert (await other.result("tasks/list"))["tasks"] == []
        assert (await other.error("tasks/list", {"cursor": first["nextCursor"]}))["code"] == -32602


@pytest.mark.row("TSK-20")
async def test_task_of_another_principal_is_unknown() -> None:
    work = TaskServer()
    async with RawPeer(work.server, principal="ann") as ann, RawPeer(work.server, principal="bob") as bob:
        await ann.initialize()
        await bob.initialize()
        task = await call(ann, "work")
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await bob.error(method, {"taskId": task["taskId"]}))["data"]["kind"] == "task_not_found"
        assert (await bob.result("tasks/list"))["tasks"] == []
        assert len((await ann.result("tasks/list"))["tasks"]) == 1
    async with RawPeer(work.server, principal="ann") as again:
        await again.initialize()
        assert (await again.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "working"
        assert len((await again.result("tasks/list"))["tasks"]) == 1


@pytest.mark.row("J13", "Q06")
@pytest.mark.parametrize("settings", [Settings(max_tasks=1), Settings(max_tasks_per_principal=1)])
async def test_task_limit_is_enforced(settings: Settings) -> None:
    work = TaskServer(settings=settings)
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        task = await call(peer, "work")
        error = await peer.error("tools/call", {"name": "work", "task": {}})
        assert error["data"]["kind"] == "maximum_concurrent_tasks_exceeded"
        work.go_on.set()
        await ended(peer, task)
        assert (await call(peer, "work"))["status"] == "working"


@pytest.mark.row("J07")
async def test_timed_out_task_fails_and_its_work_is_cancelled() -> None:
    clock = ManualClock()
    server, cancelled = Server("s", clock=clock, observers=[]), asyncio.Event()

    @server.tool(task=TaskPolicy(timeout=0.05))
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with RawPeer(server) as peer:
        await peer.initialize()
        task = await call(peer, "slow")
        await peer.quiet()
        clock.advance(0.06)
        error = await peer.error("tasks/result", {"taskId": task["taskId"]})
        assert error["data"]["kind"] == "task_timeout"
        await asyncio.wait_for(cancelled.wait(), PATIENCE)


@pytest.mark.row("TSK-10", "J15")
async def test_task_expires_after_its_ttl() -> None:
    clock = ManualClock()
    work = TaskServer(clock=clock, settings=Settings(task_ttl=3600, max_task_ttl=7200, task_lease=600))
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        usual, long = await call(peer, "work"), await call(peer, "work", {"ttl": 10**9})
        assert (usual["ttl"], long["ttl"]) == (3_600_000, 7_200_000)
        for _ in range(359):  # so that leases are renewed
            clock.advance(10)
            await peer.quiet()
        assert (await peer.result("tasks/get", {"taskId": usual["taskId"]}))["status"] == "working"
        clock.advance(10)
        assert (await peer.error("tasks/get", {"taskId": usual["taskId"]}))["data"]["kind"] == "task_not_found"
        assert (await peer.result("tasks/get", {"taskId": long["taskId"]}))["status"] == "working"
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)


@pytest.mark.row("TSK-13", "TSK-23", "J11")
async def test_progress_uses_the_request_token_until_the_task_ends() -> None:
    server, more = Server("s", observers=[]), asyncio.Event()

    @server.tool(task=True)
    async def counts(ctx: Context) -> None:
        ctx.progress(1, 2, "half")
        await more.wait()
        ctx.progress(1)  # it does not grow
        ctx.progress(2, 2)

    async with RawPeer(server) as peer:
        await peer.initialize()
        asked = {"name": "counts", "task": {}, "_meta": {"progressToken": "mine"}}
        task = (await peer.result("tools/call", asked))["task"]
        more.set()
        await ended(peer, task)
        said = [message["params"] for message in await peer.quiet() if message["method"] == "notifications/progress"]
        assert [params["progress"] for params in said] == [1, 2]
        assert {params["progressToken"] for params in said} == {"mine"}
        assert all(params["_meta"] == {RELATED: {"taskId": task["taskId"]}} for params in said)


async def test_task_continues_after_its_client_disconnects() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize()
        task = await call(peer, "work")
        await work.begun.wait()
    work.go_on.set()
    async with RawPeer(work.server) as again:
        await again.initialize()
        result = await again.result("tasks/result", {"taskId": task["taskId"]})
        assert result["structuredContent"] == {"result": "done"}


# --- the extension ---------------------------------------------------------------------------------


async def modern(peer: RawPeer, method: str, capabilities: Any = KNOWS_TASKS, **params: Any) -> Any:
    return await peer.request(method, enveloped(capabilities, **params))


async def start(peer: RawPeer, name: str, **arguments: Any) -> Any:
    answer = await modern(peer, "tools/call", name=name, arguments=arguments)
    assert answer["result"]["resultType"] == "task", answer
    return answer["result"]


async def look(peer: RawPeer, task: Any, *, until: str | None = None) -> Any:
    """Return a task; wait for a status if one is given."""
    while True:
        shown = (await modern(peer, "tasks/get", taskId=task["taskId"]))["result"]
        if until is None or shown["status"] == until:
            return shown
        await asyncio.sleep(0)


@pytest.mark.row("TXE-01", "TXE-05", "TXE-08")
async def test_extension_client_gets_a_task() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        found = (await modern(peer, "server/discover"))["result"]["capabilities"]
        assert found["extensions"] == {TASKS: {}}
        assert "tasks" not in found
        task = await start(peer, "work", text="well")
        assert task.keys() == {
            *("resultType", "_meta", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs")
        }
        assert (await look(peer, task))["status"] == "working"
        work.go_on.set()
        shown = await look(peer, task, until="completed")
        assert shown["resultType"] == "complete"
        assert shown["result"]["structuredContent"] == "well"
        assert shown["result"]["resultType"] == "complete"  # the response that the request would have had
        assert "_meta" not in shown["result"]


@pytest.mark.row("TXE-02", "TXE-03")
async def test_client_without_extension_gets_result_or_error() -> None:
    work = TaskServer()
    work.go_on.set()
    async with RawPeer(work.server) as peer:
        plain = await modern(peer, "tools/call", {}, name="work")
        assert plain["result"]["resultType"] == "complete"
        refused = await modern(peer, "tools/call", {}, name="only_a_task")
        assert refused["error"]["code"] == -32021
        assert refused["error"]["data"]["requiredCapabilities"] == {"extensions": {TASKS: {}}}
        for method in ("tasks/get", "tasks/cancel"):
            assert (await modern(peer, method, {}, taskId="x"))["error"]["code"] == -32021
        assert (await modern(peer, "tasks/update", {}, taskId="x", inputResponses={}))["error"]["code"] == -32021


@pytest.mark.row("TXE-18")
async def test_extension_has_no_list_and_no_result_method() -> None:
    async with RawPeer(TaskServer().server) as peer:
        assert (await modern(peer, "tasks/list"))["error"]["code"] == -32601
        assert (await modern(peer, "tasks/result", taskId="x"))["error"]["code"] == -32601
        for method in ("tasks/get", "tasks/cancel"):
            assert (await modern(peer, method, taskId="x"))["error"]["data"]["kind"] == "task_not_found"
        assert (await modern(peer, "tasks/update", taskId="x", inputResponses={}))["error"]["code"] == -32602
        plain = await modern(peer, "tools/call", name="never_a_task", task={"ttl": 1})
        assert plain["result"]["resultType"] == "complete"


@pytest.mark.row("TXE-09")
async def test_error_result_is_completed_and_error_is_failed() -> None:
    async with RawPeer(TaskServer().server) as peer:
        failed = await look(peer, await start(peer, "fails"), until="completed")
        assert failed["result"]["isError"]
        erred = await look(peer, await start(peer, "errs"), until="failed")
        assert (erred["error"]["code"], erred["statusMessage"]) == (7, "it went wrong")
        assert "result" not in erred


@pytest.mark.row("TXE-11", "TXE-10")
async def test_questions_are_answered_by_update_and_others_ignored() -> None:
    async with RawPeer(TaskServer().server) as peer:
        task = await start(peer, "asks")
        shown = await look(peer, task, until="input_required")
        [(key, question)] = shown["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        refused = await modern(peer, "tasks/update", taskId=task["taskId"], inputResponses={key: 5})
        assert refused["error"]["code"] == -32602
        strange = await modern(peer, "tasks/update", taskId=task["taskId"], inputResponses={"strange": {}})
        assert strange["result"].keys() == {"resultType", "_meta"}
        assert (await look(peer, task))["status"] == "input_required"
        answer = {"action": "accept", "content": {"sure": True}}
        await modern(peer, "tasks/update", taskId=task["taskId"], inputResponses={key: answer})
        done = await look(peer, task, until="completed")
        assert done["result"]["structuredContent"] == "accept True"
        assert "inputRequests" not in done


@pytest.mark.row("TXE-13")
async def test_cancel_is_acknowledged_repeatedly() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        task = await start(peer, "work")
        for _ in range(2):
            answer = await modern(peer, "tasks/cancel", taskId=task["taskId"])
            assert answer["result"].keys() == {"resultType", "_meta"}
        assert (await look(peer, task))["status"] == "cancelled"
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)


@pytest.mark.row("TXE-15")
async def test_task_listener_gets_what_a_poll_would_show() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        task = await start(peer, "work")
        wanted = {"taskIds": [task["taskId"], "nothing"]}
        refused = await modern(peer, "subscriptions/listen", {}, notifications=wanted)
        assert refused["error"]["code"] == -32021
        peer.call("subscriptions/listen", enveloped(KNOWS_TASKS, notifications=wanted), id="ear")
        acknowledged = await peer.receive()
        assert acknowledged["params"]["notifications"] == {"taskIds": [task["taskId"]]}
        work.go_on.set()
        told = await peer.receive()
        assert told["method"] == "notifications/tasks"
        shown = await look(peer, task)
        assert {**shown, "_meta": {f"{TASKS.rsplit('/', 1)[0]}/subscriptionId": "ear"}} == {
            **told["params"],
            "resultType": "complete",
        }


@pytest.mark.row("TXE-15", "TXE-16")
async def test_progress_is_part_of_status_and_no_notification() -> None:
    server, go_on = Server("s", observers=[]), asyncio.Event()

    @server.tool(task="required")
    async def counts(ctx: Context) -> str:
        ctx.progress(1, 3, "one")
        await go_on.wait()
        ctx.progress(2, 3, "two")
        ctx.progress(3, 3, "three")
        return "counted"

    async with RawPeer(server) as peer:
        params = enveloped(KNOWS_TASKS, name="counts", arguments={})
        params["_meta"]["progressToken"] = "t"
        task = (await peer.request("tools/call", params))["result"]
        wanted = {"taskIds": [task["taskId"]]}
        peer.call("subscriptions/listen", enveloped(KNOWS_TASKS, notifications=wanted), id="ear")
        assert (await peer.receive())["method"] == "notifications/subscriptions/acknowledged"
        told = await peer.receive()
        assert (told["method"], told["params"]["status"]) == ("notifications/tasks", "working")
        assert told["params"]["statusMessage"] == "one"
        assert told["params"]["_meta"]["trunkline/progress"] == {"progress": 1, "total": 3, "message": "one"}
        assert "io.modelcontextprotocol/subscriptionId" in told["params"]["_meta"]
        go_on.set()
        told = await peer.receive()
        assert (told["method"], told["params"]["status"]) == ("notifications/tasks", "completed")
        shown = await look(peer, task)
        assert shown["_meta"]["trunkline/progress"] == {"progress": 3, "total": 3, "message": "three"}
        assert "io.modelcontextprotocol/serverInfo" in shown["_meta"]
        assert peer.transcript.frames[-1][1].count(b'"_meta"') == 1


async def test_progress_is_not_pushed_without_token() -> None:
    server, go_on = Server("s", observers=[]), asyncio.Event()

    @server.tool(task="required")
    async def counts(ctx: Context) -> str:
        ctx.progress(1, 3)
        await go_on.wait()
        return "counted"

    async with RawPeer(server) as peer:
        task = await start(peer, "counts")
        wanted = {"taskIds": [task["taskId"]]}
        peer.call("subscriptions/listen", enveloped(KNOWS_TASKS, notifications=wanted), id="ear")
        assert (await peer.receive())["method"] == "notifications/subscriptions/acknowledged"
        while "trunkline/progress" not in (shown := await look(peer, task))["_meta"]:
            assert shown["status"] == "working"
        go_on.set()
        assert (await peer.receive())["params"]["status"] == "completed"


@pytest.mark.row("TXE-07")
async def test_tool_may_ask_first_and_become_a_task() -> None:
    server, runs = Server("s", observers=[]), list[str]()

    @server.tool(task=TaskPolicy(support="required", asks_first=True))
    async def order(ctx: Context) -> str:
        runs.append("run")
        answer = await ctx.elicit("Sure?", Sure, key="sure")
        number = await ctx.once("number", lambda: len(runs))
        await ctx.begin_task()
        return f"{answer.action} {number}"

    async with RawPeer(server) as peer:
        first = (await modern(peer, "tools/call", name="order"))["result"]
        assert first["resultType"] == "input_required"
        answers = {"sure": {"action": "accept", "content": {"sure": True}}}
        state = {"requestState": first["requestState"]}
        second = await modern(peer, "tools/call", name="order", inputResponses=answers, **state)
        assert second["result"]["resultType"] == "task"
        assert (await look(peer, second["result"], until="completed"))["result"]["structuredContent"] == "accept 2"
        assert len(runs) == 3


# --- registering -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task", ["always", 5, TaskPolicy(support="x"), TaskPolicy(recovery="x"), TaskPolicy(attempts=0)]
)
def test_tool_lists_its_task_support(task: Any) -> None:
    with pytest.raises(RegistrationError, match="tool 'f'"):
        Server("s").add_tool(lambda: None, name="f", task=task)


@pytest.mark.parametrize("task", [None, False, "forbidden", TaskPolicy(support="forbidden")])
def test_tool_may_forbid_tasks(task: Any) -> None:
    server = Server("s")
    server.add_tool(lambda: None, name="f", task=task)
    assert server.tools.get("f").task is None
