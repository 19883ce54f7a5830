"""Every feature through a proxy, in all pairs of eras: that of the client in front, and that of the server behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from tests.limits import PATIENCE

from trunkline import (
    Call,
    CallToolResult,
    Client,
    Context,
    Next,
    Server,
    TaskPolicy,
    TextContent,
    UrlElicitationRequired,
    proxy,
)
from trunkline.errors import PeerError, ProtocolError, ToolFailed
from trunkline.protocol.types import CreateMessageParams, LoggingMessageParams, ProgressParams
from trunkline.testing import RawPeer
from trunkline.transports.channel import Accept, Channel
from trunkline.transports.memory import memory_pair

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
PAIRS = [(front, behind) for front in (HANDSHAKE, MODERN) for behind in (HANDSHAKE, MODERN)]

Pair = tuple[str, str]


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]}-to-{pair[1]}")
def pair(request: pytest.FixtureRequest) -> Pair:
    return request.param


class Teapot(ProtocolError):
    """An error of the application."""

    code = 418


def make_server() -> Server:
    """Make a server with something of every feature."""
    server = Server("behind", instructions="Ask nicely.")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def count(ctx: Context) -> str:
        for step in range(1, 4):
            await ctx.progress(step, 3, f"step {step}")
        return "counted"

    @server.tool
    async def log(ctx: Context) -> str:
        await ctx.debug("fine")
        await ctx.warning({"disk": "full"}, logger="storage")
        return "logged"

    @server.tool
    async def ask(ctx: Context) -> str:
        color = await ctx.elicit("Which color?", Literal["red", "blue"], key="color")
        size = await ctx.elicit("Which size?", int, key="size")
        return f"{color.action} {color.data} {size.data}"

    @server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("Log in", "https://example.com/login")).action

    @server.tool
    async def sample(ctx: Context) -> str:
        return (await ctx.sample("Say hello", system_prompt="Be brief")).text

    @server.tool
    async def roots(ctx: Context) -> list[str]:
        return [root.uri for root in await ctx.roots()]

    @server.tool
    async def fail() -> str:
        raise Teapot("short and stout", data={"kind": "teapot", "spout": True})

    @server.tool
    async def break_down() -> str:
        raise ValueError("secret")

    @server.tool
    async def needs_login(ctx: Context) -> str:
        raise UrlElicitationRequired.of(("Log in", "https://example.com/login"))

    @server.resource("notes://{name}")
    def note(name: str) -> str:
        return f"note {name}"

    @server.resource("config://app")
    def config() -> str:
        return "debug = true"

    @server.prompt
    def greet(name: str) -> str:
        return f"Hello {name}"

    @server.completion(prompt="greet", argument="name")
    def complete_name(value: str) -> list[str]:
        return [name for name in ("Ada", "Alan", "Grace") if name.startswith(value)]

    return server


def make_proxy(server: Any, behind: str) -> Server:
    """Make a proxy that speaks one era to its server."""
    return proxy(server, name="proxy", revision=behind, sessions=behind == HANDSHAKE)


@asynccontextmanager
async def open_pair(pair: Pair, server: Server | None = None, **options: Any) -> AsyncIterator[Client]:
    front, behind = pair
    async with Client(make_proxy(server or make_server(), behind), revision=front, **options) as client:
        assert client.revision == front
        yield client


async def test_tools_pass_with_structured_content(pair: Pair) -> None:
    async with open_pair(pair) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        result = await client.call_tool("add", {"a": 2, "b": 3})
    assert "add" in listed
    assert listed["add"].input_schema["properties"].keys() == {"a", "b"}
    assert result.data == 5
    assert result.structured == ({"result": 5} if HANDSHAKE in pair else 5)


async def test_arguments_are_checked_by_the_server_behind(pair: Pair) -> None:
    async with open_pair(pair) as client:
        with pytest.raises(ToolFailed, match="invalid arguments for tool 'add'"):
            await client.call_tool("add", {"a": "two"})


async def test_resources_and_templates_pass(pair: Pair) -> None:
    async with open_pair(pair) as client:
        assert [one.uri for one in (await client.list_resources()).resources] == ["config://app"]
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["notes://{name}"]
        assert (await client.read_resource("config://app"))[0].text == "debug = true"
        assert (await client.read_resource("notes://today"))[0].text == "note today"


async def test_unlisted_resource_fails_with_the_error_of_the_server_behind(pair: Pair) -> None:
    async with open_pair(pair) as client:
        with pytest.raises(PeerError) as raised:
            await client.read_resource("other://x")
    assert raised.value.code == (-32002 if pair[0] == HANDSHAKE else -32602)
    assert raised.value.data["kind"] == "resource_not_found"


async def test_prompts_and_completions_pass(pair: Pair) -> None:
    async with open_pair(pair) as client:
        assert [one.name for one in (await client.list_prompts()).prompts] == ["greet"]
        rendered = await client.get_prompt("greet", {"name": "Ada"})
        completed = await client.complete("prompt", "greet", "name", "A")
    assert rendered.messages[0].content.text == "Hello Ada"  # pyright: ignore[reportAttributeAccessIssue]
    assert completed.values == ["Ada", "Alan"]


async def test_instructions_and_capabilities_are_those_of_the_server_behind(pair: Pair) -> None:
    async with open_pair(pair) as client, Client(make_server(), revision=pair[0]) as direct:
        assert client.capabilities == direct.capabilities
        assert client.instructions == direct.instructions == "Ask nicely."


async def test_progress_passes(pair: Pair) -> None:
    seen: list[ProgressParams] = []
    async with open_pair(pair) as client:
        await client.call_tool("count", on_progress=seen.append)
    assert [(one.progress, one.total, one.message) for one in seen] == [(n, 3, f"step {n}") for n in (1, 2, 3)]


async def test_log_messages_pass_from_the_level_of_the_client(pair: Pair) -> None:
    seen: list[LoggingMessageParams] = []
    async with open_pair(pair, on_log=seen.append) as client:
        await client.call_tool("log")
        assert [one.data for one in seen] == [{"disk": "full"}]
        assert seen[0].logger == "storage"
        await client.set_log_level("debug")
        await client.call_tool("log")
        assert [one.data for one in seen[1:]] == ["fine", {"disk": "full"}]
        await client.set_log_level("error")
        await client.call_tool("log")
    assert len(seen) == 3


async def test_questions_pass_one_after_another(pair: Pair) -> None:
    asked: list[str] = []

    def answer(question: Any) -> dict[str, Any]:
        asked.append(question.message)
        return {"value": "red" if "color" in question.message else 42}

    async with open_pair(pair, elicitation=answer) as client:
        assert (await client.call_tool("ask")).data == "accept red 42"
    assert asked == ["Which color?", "Which size?"]


async def test_declined_question_passes(pair: Pair) -> None:
    async with open_pair(pair, elicitation=lambda _question: None) as client:
        assert (await client.call_tool("ask")).text.startswith("decline None")


async def test_url_elicitation_passes(pair: Pair) -> None:
    visited: list[str] = []

    def open_url(question: Any) -> bool:
        visited.append(question.url)
        return True

    async with open_pair(pair, open_url=open_url) as client:
        assert (await client.call_tool("visit")).data == "accept"
    assert visited == ["https://example.com/login"]


async def test_sampling_passes(pair: Pair) -> None:
    asked: list[CreateMessageParams] = []

    def sample(params: CreateMessageParams) -> str:
        asked.append(params)
        return "hello"

    async with open_pair(pair, sampling=sample) as client:
        assert (await client.call_tool("sample")).data == "hello"
    assert asked[0].system_prompt == "Be brief"


async def test_roots_pass(pair: Pair) -> None:
    async with open_pair(pair, roots=["file:///work"]) as client:
        assert (await client.call_tool("roots")).data == ["file:///work"]


async def test_missing_capability_is_reported_by_the_server_behind(pair: Pair) -> None:
    async with open_pair(pair) as client, Client(make_server(), revision=pair[1]) as direct:
        with pytest.raises(PeerError) as raised:
            await client.call_tool("sample")
        with pytest.raises(PeerError) as expected:
            await direct.call_tool("sample")
    assert (raised.value.code, raised.value.data) == (expected.value.code, expected.value.data)


async def test_error_has_its_code_and_data(pair: Pair) -> None:
    async with open_pair(pair) as client:
        with pytest.raises(PeerError) as raised:
            await client.call_tool("fail")
    assert (raised.value.code, raised.value.message) == (418, "short and stout")
    assert raised.value.data == {"kind": "teapot", "spout": True}


async def test_failed_tool_result_passes(pair: Pair) -> None:
    async with open_pair(pair) as client:
        with pytest.raises(ToolFailed, match="ValueError: secret"):  # a server in this process exposes errors
            await client.call_tool("break_down")


async def test_list_changes_reach_the_client(pair: Pair) -> None:
    server, changed = make_server(), asyncio.Event()
    async with open_pair(pair, server) as client:
        client.on("notifications/tools/list_changed", lambda _: changed.set())
        await client.list_tools()

        @server.tool
        async def late() -> str:
            return "new"

        async with asyncio.timeout(PATIENCE):
            await changed.wait()
        assert "late" in [tool.name for tool in (await client.list_tools()).tools]
        assert (await client.call_tool("late")).data == "new"


async def test_resource_updates_reach_subscribers(pair: Pair) -> None:
    server, updated = make_server(), asyncio.Queue[Any]()
    async with open_pair(pair, server) as client:
        client.on("notifications/resources/updated", updated.put_nowait)
        await client.subscribe("config://app")
        server.notify_updated("config://app", meta={"by": "test"})
        async with asyncio.timeout(PATIENCE):
            update = await updated.get()
        assert update.uri == "config://app"
        assert update.meta["by"] == "test"
        await client.unsubscribe("config://app")


async def test_cancelled_call_is_cancelled_behind(pair: Pair) -> None:
    server, started, cancelled = make_server(), asyncio.Event(), asyncio.Event()

    @server.tool
    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with open_pair(pair, server) as client:
        call = asyncio.create_task(client.call_tool("hang"))
        async with asyncio.timeout(PATIENCE):
            await started.wait()
            call.cancel()
            await cancelled.wait()


async def test_disconnect_cancels_the_call_behind(pair: Pair) -> None:
    server, started, cancelled = make_server(), asyncio.Event(), asyncio.Event()

    @server.tool
    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    front = make_proxy(server, pair[1])
    await front.start()
    client = await Client(front, revision=pair[0]).open()
    call = asyncio.create_task(client.call_tool("hang"))
    async with asyncio.timeout(PATIENCE):
        await started.wait()
        await client.close()
        await cancelled.wait()
        await asyncio.gather(call, return_exceptions=True)
        await front.aclose()


async def test_deadline_shrinks_on_its_way(pair: Pair) -> None:
    server, left = make_server(), list[float | None]()

    @server.tool
    async def look(ctx: Context) -> None:
        left.append(ctx.deadline)

    async with open_pair(pair, server) as client:
        await client.call_tool("look", timeout=20.0)
    assert left[0] is not None
    assert 0 < left[0] <= 20.0


async def test_url_required_by_an_error_passes(pair: Pair) -> None:
    visited: list[str] = []

    def open_url(question: Any) -> bool:
        visited.append(question.url)
        return False

    async with open_pair(pair, open_url=open_url) as client:
        with pytest.raises(PeerError) as raised:
            await asyncio.wait_for(client.call_tool("needs_login"), PATIENCE)
    assert raised.value.data["elicitations"][0]["url"] == "https://example.com/login"
    if pair == (HANDSHAKE, HANDSHAKE):
        assert raised.value.code == -32042
        assert visited == []
    else:
        assert raised.value.code == -32603
        assert visited == ["https://example.com/login"]


@pytest.mark.parametrize("era", [HANDSHAKE, MODERN])
async def test_tasks_pass_in_the_dialect_of_their_era(era: str) -> None:
    server, release = make_server(), asyncio.Event()

    @server.tool(task=TaskPolicy("optional"))
    async def slow(ctx: Context) -> str:
        await release.wait()
        return "slept"

    async with open_pair((era, era), server) as client:
        task = await client.start_tool("slow")
        assert task.id
        assert await task.refresh() == "working"
        release.set()
        async with asyncio.timeout(PATIENCE):
            assert (await task.result()).data == "slept"


@pytest.mark.parametrize("era", [HANDSHAKE, MODERN])
async def test_task_is_cancelled_behind(era: str) -> None:
    server, started, cancelled = make_server(), asyncio.Event(), asyncio.Event()

    @server.tool(task=TaskPolicy("optional"))
    async def slow() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    async with asyncio.timeout(PATIENCE), open_pair((era, era), server) as client:
        task = await client.start_tool("slow")
        await started.wait()
        await task.cancel()
        await cancelled.wait()


async def test_middleware_of_a_proxy_sees_and_changes_results(pair: Pair) -> None:
    front, seen = make_proxy(make_server(), pair[1]), list[Any]()

    @front.middleware
    async def watch(call: Call, next: Next) -> Any:
        result = await next(call)
        seen.append(result)
        return CallToolResult([TextContent("changed")], is_error=True) if call.name == "count" else result

    async with Client(front, revision=pair[0], elicitation=lambda _: None) as client:
        assert (await client.call_tool("add", {"a": 2, "b": 3})).data == 5
        assert isinstance(seen[0], CallToolResult)
        assert (await client.call_tool("count", raise_on_error=False)).text == "changed"
        assert (await client.read_resource("config://app"))[0].text == "debug = true"
        assert (await client.call_tool("ask")).text.startswith("decline")


async def test_changed_roots_are_announced_behind() -> None:
    server, changed = make_server(), asyncio.Event()

    @server.on_roots_changed
    async def note(ctx: Context) -> None:
        changed.set()

    async with open_pair((HANDSHAKE, HANDSHAKE), server, roots=["file:///a"]) as client:
        await client.call_tool("roots")
        await client.set_roots(["file:///b"])
        async with asyncio.timeout(PATIENCE):
            await changed.wait()
        assert (await client.call_tool("roots")).data == ["file:///b"]


async def test_principals_have_no_access_to_tasks_of_others() -> None:
    server = make_server()

    @server.tool(task=TaskPolicy("optional"))
    async def slow() -> str:
        await asyncio.Event().wait()
        return ""

    front = make_proxy(ScopedTarget(server), HANDSHAKE)
    try:
        async with (
            RawPeer(front, principal="alice", patience=PATIENCE) as alice,
            RawPeer(front, principal="bob", patience=PATIENCE) as bob,
        ):
            await alice.initialize()
            await bob.initialize()
            task = (await alice.result("tools/call", {"name": "slow", "arguments": {}, "task": {}}))["task"]
            ident = {"taskId": task["taskId"]}
            assert (await alice.result("tasks/get", ident))["status"] == "working"
            assert [one["taskId"] for one in (await alice.result("tasks/list"))["tasks"]] == [task["taskId"]]
            assert (await bob.result("tasks/list"))["tasks"] == []
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                refused = await bob.error(method, ident)
                assert refused["data"]["kind"] == "task_not_found"
            assert (await alice.result("tasks/cancel", ident))["status"] == "cancelled"
    finally:
        await front.aclose()


class ScopedTarget:
    """A server that sees every connection of the proxy as one principal, as with one token for all."""

    name = "scoped"

    def __init__(self, server: Server) -> None:
        self._server = server

    async def connect(self, accept: Accept) -> Channel:
        await self._server.attach(self)
        ours, theirs = memory_pair(principal="proxy")
        ours.open(accept(ours))
        theirs.open(self._server.connect(theirs))
        return ours

    async def release(self) -> None:
        await self._server.detach(self)
