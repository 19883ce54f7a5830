"""Client-hosted tasks: a server of 2025-11-25 sends a request and fetches the result later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import json
from tests.limits import PATIENCE

from trunkline import Client, Context, PeerError, Server, Settings
from trunkline.client.host_callbacks import CallbackContext
from trunkline.protocol.types import (
    CancelTaskParams,
    CreateMessageParams,
    GetTaskParams,
    GetTaskPayloadParams,
    PaginatedParams,
    SamplingMessage,
    TaskMetadata,
    TextContent,
)
from trunkline.server.connection import Connection
from trunkline.testing import ManualClock, ScriptedServer

RELATED = "io.modelcontextprotocol/related-task"


class Model:
    """A model that answers when the test releases it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def sample(self, params: CreateMessageParams, answering: CallbackContext) -> str:
        self.asked.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        answering.progress(1)
        if params.max_tokens == 1:
            raise RuntimeError("out of words")
        return "well"


def question(max_tokens: int = 10, ttl: int | None = None) -> CreateMessageParams:
    return CreateMessageParams(
        messages=[SamplingMessage("user", TextContent("?"))], max_tokens=max_tokens, task=TaskMetadata(ttl)
    )


@asynccontextmanager
async def line(model: Model, settings: Settings | None = None) -> AsyncIterator[Connection]:
    """The server's end of a connection to a client with that model."""
    server = Server("s", observers=[])
    async with Client(server, revision="2025-11-25", sampling=model.sample, observers=[], settings=settings):
        yield server.connections[0]


async def asked(connection: Connection, method: str, params: Any) -> Any:
    return json.decode(await connection.request(method, params))


@pytest.mark.row("TSK-01")
async def test_sampling_request_with_task_runs_as_client_task() -> None:
    model = Model()
    async with line(model) as connection:
        negotiated = connection.session.negotiated
        assert negotiated is not None
        assert negotiated.client["tasks"]["requests"] == {"sampling": {"createMessage": {}}}
        task = (await asked(connection, "sampling/createMessage", question(ttl=60_000)))["task"]
        assert (task["status"], task["ttl"]) == ("working", 60_000)
        waiting = asyncio.ensure_future(asked(connection, "tasks/result", GetTaskPayloadParams(task["taskId"])))
        await model.asked.wait()
        assert (await asked(connection, "tasks/get", GetTaskParams(task["taskId"])))["status"] == "working"
        model.go_on.set()
        result = await waiting
        assert result["content"]["text"] == "well"
        assert result["_meta"] == {RELATED: {"taskId": task["taskId"]}}
        listed = await asked(connection, "tasks/list", PaginatedParams())
        assert [(one["taskId"], one["status"]) for one in listed["tasks"]] == [(task["taskId"], "completed")]


@pytest.mark.row("TSK-17")
async def test_server_cancels_client_hosted_task() -> None:
    model = Model()
    async with line(model) as connection:
        task = (await asked(connection, "sampling/createMessage", question()))["task"]
        await model.asked.wait()
        ended = await asked(connection, "tasks/cancel", CancelTaskParams(task["taskId"]))
        assert ended["status"] == "cancelled"
        await asyncio.wait_for(model.cancelled.wait(), PATIENCE)
        with pytest.raises(PeerError, match="already cancelled"):
            await connection.request("tasks/cancel", CancelTaskParams(task["taskId"]))
        with pytest.raises(PeerError, match="was cancelled"):
            await connection.request("tasks/result", GetTaskPayloadParams(task["taskId"]))


@pytest.mark.row("TSK-12", "TSK-19")
async def test_task_result_raises_error_of_the_request() -> None:
    model = Model()
    model.go_on.set()
    async with line(model) as connection:
        task = (await asked(connection, "sampling/createMessage", question(max_tokens=1)))["task"]
        with pytest.raises(PeerError, match="RuntimeError: out of words"):
            await connection.request("tasks/result", GetTaskPayloadParams(task["taskId"]))
        assert (await asked(connection, "tasks/get", GetTaskParams(task["taskId"])))["status"] == "failed"
        with pytest.raises(PeerError, match="no task") as caught:
            await connection.request("tasks/get", GetTaskParams("nothing"))
        assert caught.value.code == -32602
        with pytest.raises(PeerError, match="no cursor"):
            await connection.request("tasks/list", PaginatedParams(cursor="x"))


@pytest.mark.row("TSK-21")
async def test_running_client_tasks_are_limited() -> None:
    model = Model()
    async with line(model, Settings(max_tasks_per_principal=2)) as connection:
        for _ in range(2):
            await connection.request("sampling/createMessage", question())
        with pytest.raises(PeerError, match="2 tasks are running, which is the limit") as caught:
            await connection.request("sampling/createMessage", question())
        assert caught.value.data["kind"] == "maximum_concurrent_tasks_exceeded"
        model.go_on.set()  # ended tasks do not count
        for one in (await asked(connection, "tasks/list", PaginatedParams()))["tasks"]:
            await connection.request("tasks/result", GetTaskPayloadParams(one["taskId"]))
        await connection.request("sampling/createMessage", question())


@pytest.mark.row("TSK-21")
async def test_oldest_ended_client_tasks_are_evicted_first() -> None:
    model, names = Model(), list[str]()
    async with line(model, Settings(max_tasks=2, max_tasks_per_principal=None)) as connection:

        async def begin() -> str:
            return (await asked(connection, "sampling/createMessage", question()))["task"]["taskId"]

        for _ in range(2):
            names.append(await begin())
        model.go_on.set()
        for name in names:
            await connection.request("tasks/result", GetTaskPayloadParams(name))
        names.append(await begin())
        kept = [one["taskId"] for one in (await asked(connection, "tasks/list", PaginatedParams()))["tasks"]]
        assert kept == names[1:]


@pytest.mark.row("TSK-10")
@pytest.mark.parametrize(("wanted", "told"), [(-1, 0), (0, 0), (1500, 1500), (10_000, 2000), (None, 1000)])
async def test_client_task_ttl_is_clamped_and_reported(wanted: int | None, told: int) -> None:
    async with line(Model(), Settings(task_ttl=1, max_task_ttl=2, task_poll_interval=0.5)) as connection:
        task = (await asked(connection, "sampling/createMessage", question(ttl=wanted)))["task"]
        assert (task["ttl"], task["pollInterval"]) == (told, 500)


@pytest.mark.row("TSK-10", "TSK-19")
async def test_client_task_is_cancelled_and_deleted_after_its_ttl() -> None:
    model = Model()
    async with line(model) as connection:
        task = (await asked(connection, "sampling/createMessage", question(ttl=20)))["task"]
        with pytest.raises(PeerError, match="no task") as caught:  # which existed at the time of the request
            await connection.request("tasks/result", GetTaskPayloadParams(task["taskId"]))
        assert caught.value.code == -32602
        await asyncio.wait_for(model.cancelled.wait(), PATIENCE)
        with pytest.raises(PeerError, match="no task"):
            await connection.request("tasks/get", GetTaskParams(task["taskId"]))


SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 10}


@pytest.mark.row("TSK-02")
async def test_server_without_tasks_gets_a_direct_response() -> None:
    server, model = ScriptedServer(revision="2025-06-18"), Model()
    model.go_on.set()
    async with Client(server, sampling=model.sample, observers=[]):
        answer = await server.line.call("sampling/createMessage", {**SAMPLING, "task": {}})
        assert answer["result"]["content"]["text"] == "well"
        assert (await server.line.call("tasks/list"))["error"]["code"] == -32601


@pytest.mark.row("TSK-13", "TSK-14")
async def test_progress_has_related_task_and_status_does_not() -> None:
    server, model = ScriptedServer(capabilities={"tasks": {}}), Model()
    async with Client(server, sampling=model.sample, observers=[]):
        meta = {"progressToken": "p", RELATED: {"taskId": "of no interest"}}
        created = await server.line.call("sampling/createMessage", {**SAMPLING, "task": {}, "_meta": meta})
        name = created["result"]["task"]["taskId"]
        model.go_on.set()
        progress = await server.line.request("notifications/progress")
        assert progress["params"] == {"progressToken": "p", "progress": 1, "_meta": {RELATED: {"taskId": name}}}
        status = (await server.line.request("notifications/tasks/status"))["params"]
        assert (status["taskId"], status["status"], "_meta" in status) == (name, "completed", False)
        got = await server.line.call("tasks/get", {"taskId": name, "_meta": {RELATED: {"taskId": "other"}}}, id="s2")
        assert (got["result"]["taskId"], "_meta" in got["result"]) == (name, False)


@pytest.mark.row("TSK-18")
async def test_failed_elicitation_task_has_status_message() -> None:
    server = ScriptedServer()

    async def elicit(_question: Any) -> dict[str, Any]:
        return {"strange": 1}

    async with Client(server, elicitation=elicit, observers=[]):
        form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}, "task": {"ttl": 5000}}
        task = (await server.line.call("elicitation/create", form))["result"]["task"]
        error = (await server.line.call("tasks/result", {"taskId": task["taskId"]}, id="s2"))["error"]
        got = (await server.line.call("tasks/get", {"taskId": task["taskId"]}, id="s3"))["result"]
        assert (got["status"], got["statusMessage"]) == ("failed", error["message"])


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_handler_input_requests_use_tasks_where_supported(revision: str) -> None:
    server, form = Server("s", observers=[]), {"type": "object", "properties": {}}

    @server.tool
    async def asks(ctx: Context) -> str:
        said = await ctx.sample("?", task=True)
        answer = await ctx.elicit("?", form, task=True)
        return f"{said.content.text if isinstance(said.content, TextContent) else None} {answer.action}"

    async def fill_in(_form: Any) -> dict[str, Any]:
        return {}

    model = Model()
    model.go_on.set()
    async with Client(server, revision=revision, sampling=model.sample, elicitation=fill_in) as client:
        assert (await client.call_tool("asks")).data == "well accept"


async def test_timed_out_handler_request_cancels_client_task() -> None:
    clock, model = ManualClock(), Model()
    server = Server("s", clock=clock, observers=[])

    @server.tool
    async def asks(ctx: Context) -> str:
        await ctx.sample("?", task=True, timeout=5)
        return "never"

    async with Client(server, revision="2025-11-25", sampling=model.sample, observers=[]) as client:
        calling = asyncio.create_task(client.call_tool("asks", raise_on_error=False))
        await model.asked.wait()
        while not calling.done():
            clock.advance(5)
            await asyncio.sleep(0.001)
        assert (await calling).is_error
        await asyncio.wait_for(model.cancelled.wait(), PATIENCE)
