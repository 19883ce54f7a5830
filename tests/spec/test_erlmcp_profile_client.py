"""Clients under the profile `compat="erlmcp"`, against a scripted server and against our own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from tests.founding import REQUESTED

from trunkline import Client, Context, PeerError, Server, Settings, ToolError
from trunkline.errors import (
    ConfigError,
    HandshakeFailed,
    ModelNotAvailable,
    RequestCancelled,
    RequestTimeout,
    SamplingFailed,
    SamplingRateLimited,
    ToolFailed,
)
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import CreateMessageParams, CreateMessageResult, TextContent
from trunkline.sampling import MockModel
from trunkline.testing import ManualClock, ScriptedServer

pytestmark = pytest.mark.off_the_record  # no official schema has these shapes

CAPABILITIES = {
    "tools": {},
    "resources": {"subscribe": True},
    "prompts": {},
    "completions": {},
    "tasks": {"list": {}, "cancel": {}},
}
REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
Compat = Literal["erlmcp"] | None


async def sample(params: CreateMessageParams) -> CreateMessageResult:
    return CreateMessageResult("assistant", TextContent("Here's what I recommend..."), "claude", "maxTokens")


@asynccontextmanager
async def scripted(compat: Compat = "erlmcp", **options: Any) -> AsyncIterator[tuple[ScriptedServer, Client]]:
    server = ScriptedServer(capabilities=CAPABILITIES, answered=["initialize", "ping"])
    async with Client(server, compat=compat, sampling=sample, roots=[], observers=[], **options) as client:
        yield server, client


# --- the handshake ------------------------------------------------------------------------------


@pytest.mark.row("X04e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_client_declares_the_features_and_requests_the_profile(revision: str) -> None:
    server = ScriptedServer(capabilities=CAPABILITIES, revision=revision, answered=["initialize"])
    async with Client(server, compat="erlmcp", revision=revision, observers=[]):
        first, second = server.line.transcript.said_by("client")[:2]
        assert (first["method"], first["params"]["protocolVersion"]) == ("initialize", revision)
        assert first["params"]["capabilities"] == REQUESTED
        assert second["method"] == "notifications/initialized"


def test_unknown_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="erlmcp"):
        Client("server", compat="other")  # pyright: ignore[reportArgumentType]


@pytest.mark.row("X06e", "F14e", "PH14")
async def test_server_has_ten_seconds_for_initialize() -> None:
    clock = ManualClock()
    server = ScriptedServer(answered=[])
    client = Client(server, compat="erlmcp", clock=clock, observers=[])
    opening = asyncio.create_task(client.open())
    await server.connected(1)
    await server.line.request("initialize")
    clock.advance(9.9)
    await asyncio.sleep(0)
    assert not opening.done()
    clock.advance(0.2)
    with pytest.raises(HandshakeFailed, match="10"):
        await opening
    await client.close()


@pytest.mark.row("X07e", "K14e", "K16")
@pytest.mark.parametrize(("settings", "limit"), [(None, 5.0), (Settings(work_timeout=20.0), 20.0)])
async def test_request_has_five_seconds_unless_the_settings_say_otherwise(
    settings: Settings | None, limit: float
) -> None:
    clock = ManualClock()
    async with scripted(clock=clock, settings=settings) as (server, client):
        reading = asyncio.create_task(client.read_resource("doc://readme"))
        await server.line.request("resources/read")
        clock.advance(limit - 0.1)
        await asyncio.sleep(0)
        assert not reading.done()
        clock.advance(0.2)
        with pytest.raises(RequestTimeout):
            await reading


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.row("X02e")
@pytest.mark.parametrize(
    ("compat", "name"), [("erlmcp", "roots/list_changed"), (None, "notifications/roots/list_changed")]
)
async def test_changed_roots_are_announced_by_the_bare_name(compat: Compat, name: str) -> None:
    async with scripted(compat) as (server, client):
        await client.set_roots(["file:///srv"])
        await client.ping()
        assert name in [message.get("method") for message in server.line.transcript.said_by("client")]


@pytest.mark.row("X15e")
@pytest.mark.parametrize(
    ("asked", "ref"),
    [
        (("prompt", "code_review"), {"type": "prompt", "name": "code_review"}),
        (("resource", "user://{name}"), {"type": "resource", "name": "user://{name}"}),
    ],
)
async def test_completion_reference_has_no_prefix(asked: Any, ref: Any) -> None:
    async with scripted(revision="2024-11-05") as (server, client):
        completing = asyncio.create_task(client.complete(*asked, "a", "er", context={"limit": "10"}))
        request = await server.line.request("completion/complete")
        assert request["params"] == {
            "ref": ref,
            "argument": {"name": "a", "value": "er"},
            "context": {"arguments": {"limit": "10"}},
        }
        server.line.reply(request, {"completions": [{"value": "erlang", "label": "x"}], "hasMore": False, "total": 1})
        assert (await completing).values == ["erlang"]


@pytest.mark.row("X16e", "X37e")
async def test_sampled_message_has_the_shape_of_the_documents() -> None:
    async with scripted() as (server, _):
        params = {"messages": [], "modelPreferences": {"maxTokens": 10}}
        answer = await server.line.call("sampling/createMessage", params)
        assert answer["result"] == {
            "model": "claude",
            "stopReason": "max_tokens",
            "content": [{"type": "text", "text": "Here's what I recommend..."}],
        }


@pytest.mark.row("X19e", "N16e")
async def test_server_ends_a_call_of_the_client_by_cancelling_it() -> None:
    async with scripted() as (server, client):
        reading = asyncio.create_task(client.read_resource("doc://readme"))
        asked = await server.line.request("resources/read")
        server.line.notify("notifications/cancelled", {"requestId": asked["id"], "reason": "timeout"})
        with pytest.raises(RequestCancelled, match="timeout") as raised:
            await reading
        assert (raised.value.reason, raised.value.method) == ("timeout", "resources/read")
        assert client.pending() == []
        server.line.notify("notifications/cancelled", {"requestId": asked["id"]})  # a second time
        server.line.notify("notifications/cancelled", {})
        await client.ping()


@pytest.mark.row("X19e", "N16e")
async def test_late_call_ends_as_cancelled_by_the_server() -> None:
    clock, began = ManualClock(), asyncio.Event()
    server = Server("t", clock=clock, observers=[])

    @server.tool(timeout=2)
    async def waits() -> None:
        began.set()
        await asyncio.Event().wait()

    async with Client(server, compat="erlmcp", observers=[]) as client:
        calling = asyncio.create_task(client.call_tool("waits"))
        await began.wait()
        await asyncio.sleep(0)
        clock.advance(2.1)
        with pytest.raises(RequestCancelled, match="timeout"):
            await calling
        await client.ping()  # the error that follows is ignored
        assert client.pending() == []


@pytest.mark.row("X19e")
async def test_client_does_not_cancel_requests_of_the_server() -> None:
    async def give_up(params: CreateMessageParams) -> CreateMessageResult:
        raise asyncio.CancelledError

    server = ScriptedServer(capabilities=CAPABILITIES, answered=["initialize", "ping"])
    async with Client(server, compat="erlmcp", sampling=give_up, observers=[]) as client:
        answer = await server.line.call("sampling/createMessage", {"messages": [], "maxTokens": 10})
        assert answer["error"]["code"] == -32603
        await client.ping()
        said = server.line.transcript.said_by("client")
        assert [message for message in said if message.get("method") == "notifications/cancelled"] == []


@pytest.mark.row("X19", "N16")
async def test_server_cannot_cancel_a_call_of_the_client_by_default() -> None:
    async with scripted(None) as (server, client):
        reading = asyncio.create_task(client.read_resource("doc://readme"))
        asked = await server.line.request("resources/read")
        server.line.notify("notifications/cancelled", {"requestId": asked["id"], "reason": "timeout"})
        server.line.reply(asked, {"contents": []})
        assert await reading == []


@pytest.mark.row("X19e")
async def test_cancellation_without_a_reason_says_what_was_cancelled() -> None:
    async with scripted() as (server, client):
        reading = asyncio.create_task(client.read_resource("doc://readme"))
        asked = await server.line.request("resources/read")
        server.line.notify("notifications/cancelled", {"requestId": asked["id"]})
        with pytest.raises(RequestCancelled, match="resources/read"):
            await reading


# --- errors ---------------------------------------------------------------------------------------


async def failures_of(compat: Compat) -> dict[str, Any]:
    """The exceptions of calls that a server refuses, or whose model fails: their types and details."""
    model = MockModel(SamplingFailed("broken"))
    server = Server("t", sampling=model, observers=[], clock=ManualClock())

    @server.tool
    async def asks(ctx: Context) -> str:
        return (await ctx.sample("Hello")).text

    async def nothing() -> None:
        pass

    server.add_tool(nothing, name="limited", rate="1/min")
    server.add_tool(nothing, name="closed", allow=lambda _: False)
    server.add_tool(nothing, name="off", enabled=False)
    failures: dict[str, Any] = {}
    async with Client(server, compat=compat, revision="2025-11-25", observers=[]) as client:
        await client.call_tool("limited")
        for tool in ("asks", "limited", "closed", "off"):
            with pytest.raises(ToolFailed) as raised:
                await client.call_tool(tool)
            failures[tool] = (str(raised.value), raised.value.result.meta)
    return failures


@pytest.mark.row("E32046e", "E32010e", "E1005", "E1007")
async def test_failures_of_tools_are_the_same_as_by_default() -> None:
    usual = await failures_of(None)
    assert await failures_of("erlmcp") == usual
    assert usual["asks"][1]["trunkline/error"]["kind"] == "sampling_failed"
    refusals = {tool: meta["trunkline/refusal"]["code"] for tool, (_, meta) in usual.items() if tool != "asks"}
    assert refusals == {"limited": 1003, "closed": 1005, "off": 1007}


@pytest.mark.row("E32046e", "E32049e", "E32050e")
@pytest.mark.parametrize(
    ("error", "number"),
    [
        (SamplingFailed("broken"), -32046),
        (ModelNotAvailable("there is no such model"), -32049),
        (SamplingRateLimited("later", retry_after=2), -32050),
    ],
)
async def test_client_sends_the_founding_numbers_of_its_model(error: SamplingFailed, number: int) -> None:
    server = ScriptedServer(capabilities=CAPABILITIES, answered=["initialize", "ping"])
    async with Client(server, compat="erlmcp", sampling=MockModel(error), observers=[]):
        answer = await server.line.call("sampling/createMessage", {"messages": [], "maxTokens": 10})
        assert (answer["error"]["code"], answer["error"]["data"]["kind"]) == (number, error.kind)


ERRORS = {
    # what the server sends: the code and the kind that the caller gets
    "a founding code alone": ({"code": -32003, "message": "m"}, -32602, {"kind": "prompt_not_found"}),
    "with data": (
        {"code": -32002, "message": "m", "data": {"toolId": "x"}},
        -32602,
        {"kind": "tool_not_found", "toolId": "x"},
    ),
    "with null": ({"code": -32001, "message": "m", "data": None}, -32002, {"kind": "resource_not_found"}),
    "with text": ({"code": -32004, "message": "m", "data": "text"}, -32601, "text"),
    "a code that is the same": ({"code": -32603, "message": "m"}, -32603, None),
    "a kind with another code": ({"code": -32602, "message": "m", "data": {"kind": "x"}}, -32602, {"kind": "x"}),
    "an application's code": ({"code": 7, "message": "m"}, 7, None),
    "a code that only the profile has": (
        {"code": -32089, "message": "m"},
        -32089,
        {"kind": "task_result_not_ready"},
    ),
}


@pytest.mark.row("X08e", "X10e")
@pytest.mark.parametrize("name", ERRORS)
async def test_founding_codes_are_translated_back(name: str) -> None:
    sent, code, data = ERRORS[name]
    async with scripted() as (server, client):
        getting = asyncio.create_task(client.get_prompt("code_review"))
        asked = await server.line.request("prompts/get")
        server.line.send({"jsonrpc": "2.0", "id": asked["id"], "error": sent})
        with pytest.raises(PeerError) as raised:
            await getting
        assert (raised.value.code, raised.value.data) == (code, data)


def make_server() -> Server:
    server = Server("documents", observers=[], expose_errors=True)

    @server.tool
    async def query(limit: int) -> int:
        if limit == 1:
            raise ToolError("SQL syntax error")
        if limit == 2:
            raise ValueError("oops")
        return limit

    @server.tool(max_result_bytes=10)
    async def long() -> str:
        return "x" * 100

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("What?", max_tokens=5)).text

    @server.resource("user://{name}")
    async def user(name: str) -> str:
        return name

    @server.prompt
    async def code_review(language: str) -> str:
        return language

    return server


async def caught(client: Client, name: str, arguments: Any) -> tuple[Any, ...]:
    """The exception of a call, as its caller sees it."""
    with pytest.raises(PeerError) as raised:
        await client.call_tool(name, arguments)
    error = raised.value
    return type(error), error.code, error.message, error.data


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("query", {"limit": 1}),
    ("query", {"limit": 2}),
    ("query", {"limit": "x"}),
    ("query", {}),
    ("long", {}),
    ("unknown_tool", {}),
]


@pytest.mark.row("X08e", "X09e", "X11e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_calls_raise_the_same_exceptions_as_by_default(revision: str) -> None:
    server = make_server()
    async with (
        Client(server, compat="erlmcp", revision=revision, observers=[]) as client,
        Client(server, revision=revision, observers=[]) as usual,
    ):
        assert client.revision is Revision(revision)
        for call in CALLS:
            assert await caught(client, *call) == await caught(usual, *call)


@pytest.mark.row("X11e")
async def test_failed_call_can_be_returned_instead_of_raised() -> None:
    async with Client(make_server(), compat="erlmcp", observers=[]) as client:
        result = await client.call_tool("query", {"limit": 1}, raise_on_error=False)
        assert (result.is_error, result.text) == (True, "SQL syntax error")
        with pytest.raises(ToolFailed, match="SQL syntax error"):
            await client.call_tool("query", {"limit": 1})


@pytest.mark.row("X16e", "X22e", "X14e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_our_client_and_server_work_under_the_profile(revision: str) -> None:
    options: dict[str, Any] = {"sampling": sample, "revision": revision, "observers": []}
    async with Client(make_server(), compat="erlmcp", **options) as client:
        assert (await client.call_tool("query", {"limit": 5})).data == (5 if revision >= "2025-06-18" else "5")
        assert (await client.call_tool("ask")).text == "Here's what I recommend..."
        assert [tool.name for tool in (await client.list_tools()).tools] == ["query", "long", "ask"]
        (contents,) = await client.read_resource("user://ann")
        assert (contents.uri, contents.text) == ("user://ann", "ann")
        assert (await client.get_prompt("code_review", {"language": "erlang"})).messages[0].text == "erlang"
