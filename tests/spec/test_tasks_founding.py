"""Tasks in the dialect of the founding documents, for servers with `compat="erlmcp"`."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.founding import FEATURES
from tests.limits import PATIENCE

from trunkline import Context, ProtocolError, Server, Settings, TaskPolicy, ToolError
from trunkline.errors import ConfigError
from trunkline.testing import ManualClock, RawPeer


@pytest.fixture(autouse=True)
def skip_schema_check() -> Iterator[None]:
    """No official schema has this dialect."""
    taps, RawPeer.taps = RawPeer.taps, []
    yield
    RawPeer.taps = taps


class TaskServer:
    """A server whose tool runs until the test releases it."""

    def __init__(self, **options: Any) -> None:
        self.go_on, self.begun, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.server = Server("founding", compat="erlmcp", observers=[], **options)

        @self.server.tool(task=True)
        async def work(ctx: Context, text: str = "done") -> str:
            self.begun.set()
            ctx.progress(1, 2)
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return text

        @self.server.tool(task=True)
        async def fails() -> None:
            raise ToolError("it is broken")

        @self.server.tool(task=True, requires=[lambda: False])
        async def needs() -> None:
            """Needs what is not there."""

        @self.server.tool(task=True)
        async def errs() -> None:
            raise ProtocolError("it went wrong", code=7)

        @self.server.tool
        async def plain() -> None:
            """Is no action."""


async def create(peer: RawPeer, *, action: str = "work", metadata: Any = None, **parameters: Any) -> Any:
    asked = {"action": {"type": action, "parameters": parameters}, "metadata": metadata or {}}
    return (await peer.result("tasks/create", asked))["taskId"]


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_profile_has_tasks_in_every_handshake_revision(revision: str) -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        answer = await peer.initialize(revision, FEATURES)
        assert answer["protocolVersion"] == revision
        assert "tasks" in answer["capabilities"]
        ident = await create(peer, text="well", metadata={"progressToken": "progress-123", "timeout": 30000})
        await work.begun.wait()
        (listed,) = (await peer.result("tasks/list", {}))["tasks"]
        assert (listed["taskId"], listed["status"]) == (ident, "processing")
        work.go_on.set()
        assert (await ended(peer, ident))["status"] == "completed"
        result = (await peer.result("tasks/result", {"taskId": ident}))["result"]
        assert result["content"] == [{"type": "text", "text": "well"}]
        told = [said["params"]["status"] for said in await peer.quiet() if "tasks/status" in said.get("method", "")]
        assert told[-1] == "completed"


async def test_old_revisions_have_no_tasks_without_the_profile() -> None:
    server = Server("plain", observers=[])

    @server.tool(task=True)
    async def work() -> str:
        return "done"

    async with RawPeer(server) as peer:
        assert "tasks" not in (await peer.initialize("2024-11-05"))["capabilities"]
        for method in ("tasks/create", "tasks/list", "tasks/get"):
            assert (await peer.error(method, {"taskId": "1"}))["code"] == -32601


async def ended(peer: RawPeer, ident: str) -> Any:
    """The task once it has ended."""
    while (task := (await peer.result("tasks/get", {"taskId": ident}))["task"])["status"] in {"pending", "processing"}:
        await asyncio.sleep(0)
    return task


@pytest.mark.row("J01", "J03", "J08")
async def test_create_method_makes_a_task_with_all_members() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        ident = await create(peer, text="well")
        await work.begun.wait()
        task = (await peer.result("tasks/get", {"taskId": ident}))["task"]
        assert task.keys() == {"taskId", "status", "action", "result", "error", "createdAt", "updatedAt"}
        assert (task["status"], task["result"], task["error"]) == ("processing", None, None)
        assert task["action"] == {"type": "work", "parameters": {"text": "well"}}
        assert task["createdAt"] <= task["updatedAt"]
        work.go_on.set()
        task = await ended(peer, ident)
        assert (task["status"], task["error"]) == ("completed", None)
        assert task["result"]["structuredContent"] == {"result": "well"}
        assert await peer.result("tasks/result", {"taskId": ident}) == {"result": task["result"]}


@pytest.mark.row("J06", "J10", "J11", "N17")
async def test_each_state_is_notified_once_with_progress_token() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        asked = {"action": {"type": "work"}, "metadata": {"progressToken": "t"}}
        number = peer.call("tasks/create", asked)
        await work.begun.wait()
        work.go_on.set()
        answer, *said = await said_until(peer, "completed")
        assert answer["id"] == number  # before any notification about the task
        ident = answer["result"]["taskId"]
        said += await peer.quiet()
        told = [message["params"] for message in said if message["method"] == "notifications/tasks/status"]
        assert [params["status"] for params in told] == ["processing", "completed"]
        assert {params["taskId"] for params in told} == {ident}
        progress = [message["params"] for message in said if message["method"] == "notifications/progress"]
        assert [(params["progressToken"], params["progress"]) for params in progress] == [("t", 1)]
        assert progress[0]["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": ident}


async def said_until(peer: RawPeer, status: str) -> list[Any]:
    said: list[Any] = []
    while not any(message.get("params", {}).get("status") == status for message in said):
        said.append(await peer.receive())
    return said


@pytest.mark.row("J04")
async def test_missing_result_is_refused() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        ident = await create(peer)
        error = await peer.error("tasks/result", {"taskId": ident})
        assert (error["code"], error["data"]["kind"]) == (-32089, "task_result_not_ready")


@pytest.mark.row("J05", "J12")
async def test_cancel_stops_work_and_refuses_ended_or_unknown_tasks() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        ident = await create(peer)
        await work.begun.wait()
        assert await peer.result("tasks/cancel", {"taskId": ident, "reason": "enough"}) == {}
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)
        assert (await peer.result("tasks/get", {"taskId": ident}))["task"]["status"] == "cancelled"
        assert (await peer.error("tasks/cancel", {"taskId": ident}))["code"] == -32090
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await peer.error(method, {"taskId": "nothing"}))["code"] == -32081


@pytest.mark.row("J14")
async def test_idempotency_key_names_one_task() -> None:
    work, key = TaskServer(), {"trunkline/idempotency-key": "order 7"}
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        asked = {"action": {"type": "work", "parameters": {"text": "a"}}, "_meta": key}
        made = await peer.result("tasks/create", asked)
        assert await peer.result("tasks/create", asked) == made
        other = {"action": {"type": "work", "parameters": {"text": "b"}}, "_meta": key}
        error = await peer.error("tasks/create", other)
        assert (error["code"], error["data"]["kind"]) == (-32082, "idempotency_key_reused")
        assert len((await peer.result("tasks/list"))["tasks"]) == 1


@pytest.mark.row("J14")
@pytest.mark.parametrize(
    ("action", "code", "message"),
    [("fails", -32083, "it is broken"), ("needs", -32088, "needs"), ("errs", 7, "it went wrong")],
)
async def test_failed_task_has_an_error_code_instead_of_a_result(action: str, code: int, message: str) -> None:
    async with RawPeer(TaskServer().server) as peer:
        await peer.initialize(capabilities=FEATURES)
        ident = await create(peer, action=action)
        task = await ended(peer, ident)
        assert (task["status"], task["error"]["code"]) == ("failed", code)
        error = await peer.error("tasks/result", {"taskId": ident})
        assert error["code"] == code
        assert message in error["message"]


@pytest.mark.row("J14")
async def test_cancelled_task_has_no_result() -> None:
    async with RawPeer(TaskServer().server) as peer:
        await peer.initialize(capabilities=FEATURES)
        ident = await create(peer)
        await peer.result("tasks/cancel", {"taskId": ident})
        assert (await peer.error("tasks/result", {"taskId": ident}))["code"] == -32084


@pytest.mark.row("J02")
async def test_list_pages_through_tasks_of_its_session() -> None:
    work = TaskServer(settings=Settings(max_tasks_per_principal=None))
    async with RawPeer(work.server) as peer, RawPeer(work.server) as other:
        await peer.initialize(capabilities=FEATURES)
        await other.initialize(capabilities=FEATURES)
        made = [await create(peer) for _ in range(150)]
        first = await peer.result("tasks/list", {"limit": 100})
        second = await peer.result("tasks/list", {"limit": 100, "cursor": first["cursor"]})
        assert (len(first["tasks"]), len(second["tasks"])) == (100, 50)
        assert sorted(task["taskId"] for page in (first, second) for task in page["tasks"]) == sorted(made)
        assert "cursor" not in second
        assert await other.result("tasks/list") == {"tasks": []}


@pytest.mark.row("J07")
async def test_timed_out_task_fails_with_its_code() -> None:
    clock = ManualClock()
    work = TaskServer(clock=clock)
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        short, usual = await create(peer, metadata={"timeout": 50}), await create(peer)
        await work.begun.wait()
        clock.advance(0.06)
        await asyncio.wait_for(work.cancelled.wait(), PATIENCE)
        task = (await peer.result("tasks/get", {"taskId": short}))["task"]
        assert (task["status"], task["error"]["code"]) == ("failed", -32085)
        for _ in range(100):  # J15: five minutes by default
            clock.advance(3)
            await peer.quiet()
        task = (await peer.result("tasks/get", {"taskId": usual}))["task"]
        assert (task["status"], task["error"]["code"]) == ("failed", -32085)


@pytest.mark.row("J13")
async def test_task_limit_has_its_code() -> None:
    work = TaskServer(settings=Settings(max_tasks=1))
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        await create(peer)
        asked = {"action": {"type": "work"}}
        assert (await peer.error("tasks/create", asked))["code"] == -32087
        work.go_on.set()
        await said_until(peer, "completed")
        await peer.quiet()
        assert await create(peer)


@pytest.mark.parametrize("action", ["plain", "nothing"])
async def test_action_is_a_tool_that_runs_as_a_task(action: str) -> None:
    async with RawPeer(TaskServer().server) as peer:
        await peer.initialize(capabilities=FEATURES)
        assert (await peer.error("tasks/create", {"action": {"type": action}}))["code"] == -32602


async def test_create_method_needs_the_profile() -> None:
    server = Server("s", observers=[])
    server.add_tool(lambda: None, name="work", task=TaskPolicy())
    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FEATURES)
        assert (await peer.error("tasks/create", {"action": {"type": "work"}}))["code"] == -32601


def test_unknown_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="erlmcp"):
        Server("s", compat="other")  # pyright: ignore[reportArgumentType]


# --- beside 2025-11-25 ------------------------------------------------------------------------------


@pytest.mark.row("X17")
async def test_2025_11_25_dialect_works_on_the_same_server() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer, RawPeer(work.server) as founding:
        await peer.initialize(capabilities=FEATURES)
        await founding.initialize(capabilities=FEATURES)
        task = (await peer.result("tools/call", {"name": "work", "task": {}}))["task"]
        mine = await create(founding)
        assert (await peer.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "working"
        assert (await peer.result("tasks/list"))["tasks"][0]["status"] == "working"
        assert (await peer.error("tasks/get", {"taskId": "nothing"}))["code"] == -32081
        waiting = peer.call("tasks/result", {"taskId": task["taskId"]})
        assert (await founding.error("tasks/result", {"taskId": mine}))["code"] == -32089
        assert (await founding.result("tasks/list"))["tasks"][0]["status"] == "processing"
        work.go_on.set()
        assert (await peer.answer_to(waiting))["result"]["structuredContent"] == {"result": "done"}
        assert (await peer.error("tasks/cancel", {"taskId": task["taskId"]}))["code"] == -32090


async def test_dialect_follows_the_task_that_is_asked_about() -> None:
    work = TaskServer()
    async with RawPeer(work.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        task = (await peer.result("tools/call", {"name": "errs", "task": {}}))["task"]
    async with RawPeer(work.server) as again:
        await again.initialize(capabilities=FEATURES)
        assert (await again.result("tasks/list"))["tasks"] == []  # of another session
        assert (await again.error("tasks/result", {"taskId": task["taskId"]}))["code"] == 7
        assert (await again.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "failed"
