"""What a client can ask: one typed coroutine per method, pages, typed results."""

import asyncio
import dataclasses
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trunkline import CallToolResult, Client, Context, ProtocolError, Server, Settings, TextContent, ToolError
from trunkline.errors import BadAnswer, CapabilityNotSupported, MisuseError, PeerError, RequestTimeout, ToolFailed
from trunkline.protocol.lifecycle import Phase
from trunkline.testing import ManualClock, ScriptedServer

OBJECT = {"type": "object"}


@dataclasses.dataclass
class Person:
    name: str
    born: datetime.date
    tags: set[str]


def person(name: str) -> Person:
    return Person(name, datetime.date(1815, 12, 10), {"maths"})


def make_server() -> Server:
    server = Server("library", instructions="Ask nicely.", settings=Settings(page_size=2))

    @server.tool
    async def add(a: int, b: int = 3) -> int:
        return a + b

    @server.tool
    async def find(name: str) -> Person:
        return person(name)

    @server.tool
    async def everybody() -> list[Person]:
        return [person("Ada"), person("Grace")]

    @server.tool
    async def text() -> CallToolResult:
        return CallToolResult([TextContent("one"), TextContent("two")])

    @server.tool
    async def refuse() -> str:
        raise ToolError("not today")

    @server.tool
    async def wrong() -> str:
        raise ProtocolError("mine", code=77, data={"why": "because"})

    @server.tool
    async def count(ctx: Context, to: int) -> int:
        for step in range(1, to + 1):
            ctx.progress(step, to, f"step {step}")
        return to

    server.add_resource("memo://one", lambda: "first")
    server.add_resource("memo://two", lambda: b"\x00\x01")
    server.add_resource("memo://three", lambda: "third")

    @server.resource("user://{name}")
    def user(name: str) -> str:
        return f"I am {name}"

    @server.prompt
    def greet(name: str, style: str = "warm") -> str:
        return f"A {style} hello to {name}"

    server.add_completion(["warm", "wild", "cold"], argument="style", prompt="greet")
    return server


@pytest.fixture
async def client(revision: str) -> AsyncIterator[Client]:
    """A client in either era."""
    async with Client(make_server(), revision=revision) as one:
        assert one.revision == revision
        yield one


# --- tools -------------------------------------------------------------------------------------------


@pytest.mark.row("A17")
async def test_call_tool_returns_the_value(client: Client) -> None:
    result = await client.call_tool("add", {"a": 1, "b": 2})
    assert result.data == 3
    assert result.structured == (3 if client.revision == "2026-07-28" else {"result": 3})
    assert result.text == "3"
    assert not result.is_error


async def test_arguments_may_be_an_object(client: Client) -> None:
    @dataclasses.dataclass
    class Sum:
        a: int
        b: int

    assert (await client.call_tool("add", Sum(4, 5))).data == 9
    assert (await client.call_tool("text", {"path": Path("x")}, raise_on_error=False)).is_error


async def test_data_is_rebuilt_from_the_output_schema(client: Client) -> None:
    found = (await client.call_tool("find", {"name": "Ada"})).data
    assert (found.name, found.born, found.tags) == ("Ada", datetime.date(1815, 12, 10), {"maths"})
    everybody = (await client.call_tool("everybody")).data
    assert [one.name for one in everybody] == ["Ada", "Grace"]


async def test_data_is_decoded_into_the_named_type(client: Client) -> None:
    found = await client.call_tool("find", {"name": "Ada"}, returns=Person)
    assert found.data == person("Ada")
    everybody = await client.call_tool("everybody", returns=list[Person])
    assert everybody.data == [person("Ada"), person("Grace")]
    assert (await client.call_tool("add", {"a": 1}, returns=float)).data == 4.0
    assert (await client.call_tool("text", returns=str)).data == "one\ntwo"


async def test_result_not_fitting_the_named_type_raises(client: Client) -> None:
    with pytest.raises(BadAnswer, match="tool 'add' is not valid"):
        await client.call_tool("add", {"a": 1}, returns=Person)


async def test_text_is_the_data_of_an_unstructured_result(client: Client) -> None:
    result = await client.call_tool("text")
    assert (result.data, result.structured) == ("one\ntwo", None)


async def test_failed_tool_raises_with_its_text(client: Client) -> None:
    with pytest.raises(ToolFailed, match="tool 'refuse' failed: not today") as raised:
        await client.call_tool("refuse")
    assert raised.value.result.is_error
    result = await client.call_tool("refuse", raise_on_error=False)
    assert (result.is_error, result.text, result.data) == (True, "not today", None)


async def test_server_error_keeps_code_message_and_data(client: Client) -> None:
    with pytest.raises(PeerError) as raised:
        await client.call_tool("wrong")
    assert (raised.value.code, raised.value.message, raised.value.data["why"]) == (77, "mine", "because")


@pytest.mark.row("N10")
async def test_progress_arrives_in_order_before_the_result(client: Client) -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    result = await client.call_tool(
        "count", {"to": 3}, on_progress=lambda told: heard.append((told.progress, told.total, told.message))
    )
    assert result.data == 3
    assert heard == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_progress_callback_may_be_async(client: Client) -> None:
    heard: asyncio.Queue[float] = asyncio.Queue()

    async def hear(told: Any) -> None:
        await heard.put(told.progress)

    await client.call_tool("count", {"to": 2}, on_progress=hear)
    assert [await heard.get(), await heard.get()] == [1, 2]


async def test_iterators_read_all_pages(client: Client) -> None:
    assert [tool.name async for tool in client.tools()] == [
        *("add", "find", "everybody", "text", "refuse", "wrong", "count"),
    ]
    assert [resource.uri async for resource in client.resources()] == ["memo://one", "memo://two", "memo://three"]
    assert [template.uri_template async for template in client.resource_templates()] == ["user://{name}"]
    assert [prompt.name async for prompt in client.prompts()] == ["greet"]


async def test_lists_contain_all_pages(client: Client) -> None:
    tools = await client.list_tools()
    assert [tool.name for tool in tools.tools] == ["add", "find", "everybody", "text", "refuse", "wrong", "count"]
    assert tools.next_cursor is None
    resources = await client.list_resources()
    assert [resource.uri for resource in resources.resources] == ["memo://one", "memo://two", "memo://three"]
    templates = await client.list_resource_templates()
    assert [template.uri_template for template in templates.resource_templates] == ["user://{name}"]
    assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["greet"]


async def test_single_page_can_be_requested(client: Client) -> None:
    page = await client.list_tools(cursor=None)
    assert len(page.tools) == 2
    assert [tool.name for tool in (await client.list_tools(page.next_cursor)).tools] == ["everybody", "text"]


async def test_resources_prompts_and_completions_are_returned(client: Client) -> None:
    [first] = await client.read_resource("memo://one")
    assert first.text == "first"
    [user] = await client.read_resource("user://ada")
    assert user.text == "I am ada"
    prompt = await client.get_prompt("greet", {"name": "Ada"})
    assert isinstance(prompt.messages[0].content, TextContent)
    assert prompt.messages[0].content.text == "A warm hello to Ada"
    completion = await client.complete("prompt", "greet", "style", "w", context={"name": "Ada"})
    assert completion.values == ["warm", "wild"]


async def test_any_request_can_be_sent_by_name(client: Client) -> None:
    result = await client.request("tools/list", {})
    assert [tool.name for tool in result.tools] == ["add", "find"]
    with pytest.raises(MisuseError, match="'tools/dance' is not a request"):
        await client.request("tools/dance")
    with pytest.raises(MisuseError, match="params of resources/read"):
        await client.request("resources/read", {"uri": 5})


@pytest.mark.row("A25")
async def test_state_properties_are_read_only() -> None:
    client = Client(make_server(), sampling=str)
    assert client.phase is Phase.NEW
    await client.open()
    assert client.server_info is not None
    assert client.server_info.name == "library"
    assert client.instructions == "Ask nicely."
    assert "tools" in client.capabilities
    assert client.initialized
    assert client.request_id == 1
    assert client.pending() == []
    assert client.subscriptions == ()
    assert client.roots == ()
    assert client.settings.auto_reconnect
    assert client.settings.work_timeout == 60
    assert client.notification_handlers == {}
    client.on("notifications/tools/list_changed", print)
    assert client.notification_handlers == {"notifications/tools/list_changed": (print,)}
    assert client.sampling is str
    for name, value in vars(Client).items():
        if isinstance(value, property):
            with pytest.raises(AttributeError):
                setattr(client, name, None)
    state = {"phase", "capabilities", "initialized", "request_id", "subscriptions", "notification_handlers", "sampling"}
    assert not state & vars(client).keys()
    assert "settings" not in vars(client)
    await client.close()


async def test_on_log_needs_no_level(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def talk(ctx: Context) -> None:
        ctx.debug("quietly")
        ctx.info("aloud")

    heard: list[Any] = []
    async with Client(server, revision=revision, on_log=lambda message: heard.append(message.data)) as client:
        await client.call_tool("talk")
        await client.ping()
    assert heard == ["aloud"]


# --- against a server played by hand -------------------------------------------------------------------


@pytest.mark.row("A07")
async def test_pending_requests_are_listed() -> None:
    server = ScriptedServer()
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("slow"))
        request = await server.line.request("tools/call")
        [pending] = [one for one in client.pending() if one.method == "tools/call"]
        assert pending.id == request["id"]
        assert pending.age >= 0
        server.line.reply(request, {"content": []})
        await call
        assert client.pending() == []


@pytest.mark.row("L23")
async def test_undeclared_capability_is_refused_before_sending() -> None:
    server = ScriptedServer(capabilities={"tools": {}})
    async with Client(server) as client:
        with pytest.raises(CapabilityNotSupported, match="needs the capability 'prompts'"):
            await client.list_prompts()
        with pytest.raises(CapabilityNotSupported):
            await client.subscribe("a:b")
        assert [m["method"] for m in server.line.waiting()] == ["notifications/initialized"]


async def test_server_without_the_template_method_has_no_templates() -> None:
    server = ScriptedServer(capabilities={"resources": {}})
    async with Client(server) as client:
        for code in (-32601, -32603):
            listing = asyncio.create_task(client.list_resource_templates())
            server.line.error(await server.line.request("resources/templates/list"), code, "no")
            if code == -32601:
                assert (await listing).resource_templates == []
            else:
                with pytest.raises(PeerError):
                    await listing


async def test_null_structured_content_survives_forwarding() -> None:
    server = ScriptedServer(modern=True, tools=[{"name": "t", "inputSchema": OBJECT}])
    async with Client(server) as client:
        for content, is_error in (
            ({"structuredContent": None}, False),
            ({}, False),
            ({"structuredContent": None}, True),
        ):
            call = asyncio.create_task(client.call_tool("t", raise_on_error=False))
            result = server.line.complete(content=[], isError=is_error, **content)
            server.line.reply(await server.line.request("tools/call"), result)
            received = await call
            assert received.structured is None
            assert received.has_structured is bool(content)
            assert ("structuredContent" in msgspec.to_builtins(received.as_sent())) is bool(content)


async def test_result_violating_its_schema_raises() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    server = ScriptedServer(tools=[{"name": "t", "inputSchema": OBJECT, "outputSchema": schema}])
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("t"))
        server.line.reply(await server.line.request("tools/call"), {"content": [], "structuredContent": {"n": "x"}})
        with pytest.raises(BadAnswer, match="violates the tool's output schema"):
            await call


async def test_invalid_output_schema_is_ignored() -> None:
    server = ScriptedServer(tools=[{"name": "t", "inputSchema": OBJECT, "outputSchema": {"type": "strng"}}])
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("t"))
        server.line.reply(await server.line.request("tools/call"), {"content": [], "structuredContent": {"n": 1}})
        assert (await call).data == {"n": 1}


@pytest.mark.parametrize("result", [{}, {"content": 5}, {"content": [{"type": "hologram"}]}, []])
async def test_malformed_result_raises(result: Any) -> None:
    server = ScriptedServer()
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("t"))
        server.line.reply(await server.line.request("tools/call"), result)
        with pytest.raises(BadAnswer, match="the response to tools/call is not valid"):
            await call
        await client.ping()


async def test_repeated_cursor_ends_iteration() -> None:
    server = ScriptedServer(answered=["initialize", "ping"])
    async with Client(server) as client:
        walk = asyncio.create_task(_walked(client))
        for _ in range(2):
            server.line.reply(await server.line.request("prompts/list"), {"prompts": [], "nextCursor": "again"})
        with pytest.raises(BadAnswer, match="leads back"):
            await walk


async def test_repeated_cursor_is_refused_in_a_list() -> None:
    server = ScriptedServer(answered=["initialize", "ping"])
    async with Client(server) as client:
        listing = asyncio.create_task(client.list_prompts())
        for _ in range(2):
            server.line.reply(await server.line.request("prompts/list"), {"prompts": [], "nextCursor": "again"})
        with pytest.raises(BadAnswer, match="the cursor 'again' leads back"):
            await listing


LISTS: dict[str, tuple[str, Callable[[Client], Awaitable[Any]]]] = {
    "tools/list": ("tools", lambda client: client.list_tools()),
    "resources/list": ("resources", lambda client: client.list_resources()),
    "resources/templates/list": ("resourceTemplates", lambda client: client.list_resource_templates()),
    "prompts/list": ("prompts", lambda client: client.list_prompts()),
}


@pytest.mark.parametrize("method", LISTS)
async def test_list_above_the_page_limit_is_refused(method: str) -> None:
    server = ScriptedServer(answered=["initialize", "ping"])
    member, read = LISTS[method]
    async with Client(server, settings=Settings(max_list_pages=3)) as client:
        listing = asyncio.ensure_future(read(client))
        for page in range(3):
            server.line.reply(await server.line.request(method), {member: [], "nextCursor": f"{page}"})
        with pytest.raises(BadAnswer, match=rf"{method} .*more than 3 pages \(max_list_pages\)"):
            await listing


async def test_list_at_the_limits_is_read() -> None:
    server = ScriptedServer(answered=["initialize", "ping"])
    async with Client(server, settings=Settings(max_list_pages=2, max_list_items=2)) as client:
        listing = asyncio.create_task(client.list_prompts())
        for name, more in (("a", {"nextCursor": "b"}), ("b", {})):
            server.line.reply(await server.line.request("prompts/list"), {"prompts": [{"name": name}], **more})
        assert [prompt.name for prompt in (await listing).prompts] == ["a", "b"]


async def test_list_above_the_item_limit_is_refused() -> None:
    server = ScriptedServer(answered=["initialize", "ping"])
    async with Client(server, settings=Settings(max_list_items=2)) as client:
        listing = asyncio.create_task(client.list_prompts())
        prompts = [{"name": name} for name in "abc"]
        server.line.reply(await server.line.request("prompts/list"), {"prompts": prompts})
        with pytest.raises(BadAnswer, match=r"more than 2 items \(max_list_items\)"):
            await listing


async def test_reading_tools_stops_at_the_limits() -> None:
    server = ScriptedServer(answered=["initialize", "ping"])
    async with Client(server, settings=Settings(max_list_pages=2)) as client:
        call = asyncio.create_task(client.call_tool("t"))
        request = await server.line.request("tools/call")
        for page in range(2):
            server.line.reply(await server.line.request("tools/list"), {"tools": [], "nextCursor": f"{page}"})
        server.line.reply(request, {"content": [], "structuredContent": {"result": 5}})
        assert (await call).data == {"result": 5}
        assert [m for m in server.line.waiting() if m.get("method") == "tools/list"] == []


async def test_list_timeout_covers_all_pages() -> None:
    clock, server = ManualClock(), ScriptedServer(answered=["initialize", "ping"])
    async with Client(server, clock=clock) as client:
        listing = asyncio.create_task(client.list_prompts(timeout=2))
        request = await server.line.request("prompts/list")
        clock.advance(1.5)
        server.line.reply(request, {"prompts": [], "nextCursor": "1"})
        await server.line.request("prompts/list")
        clock.advance(1)
        with pytest.raises(RequestTimeout):
            await listing


async def _walked(client: Client) -> list[Any]:
    return [prompt async for prompt in client.prompts()]


async def test_tools_are_callable_without_a_list() -> None:
    server = ScriptedServer(answered=["initialize", "ping"])
    async with Client(server) as client:
        for _ in range(2):
            call = asyncio.create_task(client.call_tool("t"))
            request = await server.line.request("tools/call")
            if _ == 0:
                server.line.error(await server.line.request("tools/list"), -32603, "I do not tell")
            server.line.reply(request, {"content": [], "structuredContent": {"result": 5}})
            assert (await call).data == {"result": 5}  # nothing is known of it
        assert [m for m in server.line.waiting() if m.get("method") == "tools/list"] == []


async def test_tools_are_read_again_after_a_change() -> None:
    server = ScriptedServer(tools=[{"name": "t", "inputSchema": OBJECT}])
    result = {"content": [], "structuredContent": {"result": "2020-01-01"}}
    async with Client(server) as client:
        for data in ({"result": "2020-01-01"}, datetime.date(2020, 1, 1)):
            call = asyncio.create_task(client.call_tool("t"))
            server.line.reply(await server.line.request("tools/call"), result)
            assert (await call).data == data
            wrapped = {"type": "object", "properties": {"result": {"type": "string", "format": "date"}}}
            server.tools = [{"name": "t", "inputSchema": OBJECT, "outputSchema": wrapped}]
            server.line.notify("notifications/tools/list_changed")
            await client.ping()


@pytest.mark.row("N16")
async def test_cancelled_call_notifies_the_server() -> None:
    server = ScriptedServer()
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("slow"))
        request = await server.line.request("tools/call")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        notice = await server.line.request("notifications/cancelled")
        assert notice["params"]["requestId"] == request["id"]
        assert [one for one in client.pending() if one.method == "tools/call"] == []
        server.line.reply(request, {"content": []})
        await client.ping()


@pytest.mark.row("N16")
async def test_server_cannot_cancel_our_request() -> None:
    server = ScriptedServer()
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("slow"))
        request = await server.line.request("tools/call")
        server.line.notify("notifications/cancelled", {"requestId": request["id"]})
        await client.ping()
        assert not call.done()
        server.line.reply(request, {"content": []})
        await call


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_older_revision_can_be_requested(revision: str) -> None:
    async with Client(make_server(), revision=revision) as client:
        assert client.revision == revision
        assert (await client.call_tool("add", {"a": 1})).text == "4"


def test_unknown_revision_is_refused() -> None:
    with pytest.raises(MisuseError, match=r"revision= must be one of 2024-11-05.*, not '2019-01-01'"):
        Client(make_server(), revision="2019-01-01")
