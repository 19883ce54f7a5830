"""Tasks of clients: what a server of 2025-11-25 asks, and fetches the answer to later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import json

from trunkline import Client, Context, PeerError, Server
from trunkline.client.answers import Answering
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

RELATED = "io.modelcontextprotocol/related-task"


class Model:
    """A model that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def sample(self, params: CreateMessageParams, answering: Answering) -> str:
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
async def line(model: Model) -> AsyncIterator[Connection]:
    """The server's end of a line to a client with that model."""
    server = Server("s", observers=[])
    async with Client(server, revision="2025-11-25", sampling=model.sample, observers=[]):
        yield server.connections[0]


async def asked(connection: Connection, method: str, params: Any) -> Any:
    return json.decode(await connection.request(method, params))


async def test_tsk_01_a_client_runs_what_it_is_asked_as_a_task_if_the_server_wants_it() -> None:
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


async def test_tsk_17_a_server_cancels_what_it_has_asked() -> None:
    model = Model()
    async with line(model) as connection:
        task = (await asked(connection, "sampling/createMessage", question()))["task"]
        await model.asked.wait()
        ended = await asked(connection, "tasks/cancel", CancelTaskParams(task["taskId"]))
        assert ended["status"] == "cancelled"
        await asyncio.wait_for(model.cancelled.wait(), 10)
        with pytest.raises(PeerError, match="cancelled already"):
            await connection.request("tasks/cancel", CancelTaskParams(task["taskId"]))
        with pytest.raises(PeerError, match="was cancelled"):
            await connection.request("tasks/result", GetTaskPayloadParams(task["taskId"]))


async def test_tsk_12_tsk_19_errors_are_told_as_they_would_have_been() -> None:
    model = Model()
    model.go_on.set()
    async with line(model) as connection:
        task = (await asked(connection, "sampling/createMessage", question(max_tokens=1)))["task"]
        with pytest.raises(PeerError, match="failed; the log has the details"):
            await connection.request("tasks/result", GetTaskPayloadParams(task["taskId"]))
        assert (await asked(connection, "tasks/get", GetTaskParams(task["taskId"])))["status"] == "failed"
        with pytest.raises(PeerError, match="no task") as caught:
            await connection.request("tasks/get", GetTaskParams("nothing"))
        assert caught.value.code == -32602
        with pytest.raises(PeerError, match="no cursor"):
            await connection.request("tasks/list", PaginatedParams(cursor="x"))


async def test_there_are_so_many_tasks_of_a_client_and_no_more() -> None:
    model = Model()
    async with line(model) as connection:
        for _ in range(100):
            await connection.request("sampling/createMessage", question())
        with pytest.raises(PeerError, match="the most"):
            await connection.request("sampling/createMessage", question())


async def test_a_task_of_a_client_is_forgotten_when_its_time_is_up() -> None:
    model = Model()
    async with line(model) as connection:
        task = (await asked(connection, "sampling/createMessage", question(ttl=0)))["task"]
        with pytest.raises(PeerError, match="no task"):
            await connection.request("tasks/get", GetTaskParams(task["taskId"]))


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
async def test_a_handler_asks_by_a_task_where_the_client_knows_how(revision: str) -> None:
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


async def test_a_handler_that_waits_no_more_cancels_the_task() -> None:
    server, model = Server("s", observers=[]), Model()

    @server.tool
    async def asks(ctx: Context) -> str:
        await ctx.sample("?", task=True, timeout=0.05)
        return "never"

    async with Client(server, revision="2025-11-25", sampling=model.sample, observers=[]) as client:
        result = await client.call_tool("asks", raise_on_error=False)
        assert result.is_error
        await asyncio.wait_for(model.cancelled.wait(), 10)
