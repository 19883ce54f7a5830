"""Results of tools: checked by the output schema, rebuilt by it, and passed on."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, get_type_hints
from uuid import UUID

import pytest
from msgspec import Raw

from trunkline import CallToolResult, Client, Context, ImageContent, Server, TextContent, ToolError
from trunkline.client.results import ToolResult
from trunkline.errors import BadAnswer, MisuseError, PeerError, ToolFailed
from trunkline.testing import ScriptedServer

IMAGE = ImageContent("AAEC", "image/png")


def chain(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def nested(depth: int, schema: dict[str, Any]) -> dict[str, Any]:
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@asynccontextmanager
async def called(schema: Any, result: Any, **options: Any) -> AsyncIterator[asyncio.Task[ToolResult]]:
    """A call of a tool with an output schema, answered with a result."""
    tools = [{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}]
    server = ScriptedServer(tools=tools)
    async with Client(server) as client:
        [_] = [tool async for tool in client.tools()]
        call = asyncio.create_task(client.call_tool("t", **options))
        server.line.reply(await server.line.request("tools/call"), result)
        yield call


async def answered(schema: Any, structured: Any, **options: Any) -> ToolResult:
    async with called(schema, {"content": [], "structuredContent": structured}, **options) as call:
        return await call


# --- schemas that say something unusual -------------------------------------------------------------------------


UNUSUAL: dict[str, tuple[Any, Any]] = {
    "__typename": ({"type": "object", "properties": {"__typename": {"type": "string"}}}, {"__typename": "A"}),
    "__metadata__": ({"type": "object", "properties": {"__metadata__": {}, "__init__": {}}}, {"__metadata__": 1}),
    "quotes": ({"type": "object", "properties": {'a"b': {}, "'": {}}}, {'a"b': 1}),
    "backslashes": ({"type": "object", "properties": {"a\\b": {}}}, {"a\\b": 1}),
    "control characters": ({"type": "object", "properties": {"a\nb": {}, "\0": {}}}, {"a\nb": 1}),
    "no options": ({"type": "object", "properties": {"a": {"anyOf": []}}}, {"a": 1}),
    "no types": ({"type": []}, {"a": 1}),
    "no types inside": ({"type": "object", "properties": {"a": {"type": []}}}, {"a": 1}),
    "required is a boolean": (
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": True},
        {"a": "b"},
    ),
    "required of draft 3": ({"type": "object", "properties": {"a": {"required": True}}}, {"a": 1}),
    "deep schema": (nested(120, {}), chain(120)),
    "deeper schema": (nested(400, {}), chain(400)),
    "deep unique items": (
        {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
        {"a": [chain(400), chain(399)]},
    ),
    "a schema without words": ({}, {"a": 1}),
    "a union that is its own option": ({"anyOf": [{"$ref": "#"}, {"type": "object"}]}, {"a": 1}),
}


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.off_the_record  # some of them are no valid schemas
async def test_result_is_returned_whatever_its_schema(name: str) -> None:
    schema, structured = UNUSUAL[name]
    result = await answered(schema, structured)
    assert result.structured == structured
    typed = await answered(schema, structured, returns=dict[str, Any])
    assert typed.data == structured


@pytest.mark.off_the_record
@pytest.mark.parametrize("schema", [{"type": []}, {"type": "object", "required": True}, {"anyOf": []}])
async def test_invalid_schema_is_not_validated_and_logged_once(schema: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = ScriptedServer(tools=[{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}])
    with caplog.at_level(logging.WARNING, "trunkline"):
        async with Client(server) as client:
            for number in range(3):
                [_] = [tool async for tool in client.tools()]  # told again, and the same as before
                call = asyncio.create_task(client.call_tool("t"))
                request = await server.line.request("tools/call")
                server.line.reply(request, {"content": [], "structuredContent": {"n": number}})
                assert (await call).data == {"n": number}
    [warning] = caplog.messages
    assert warning.startswith("results of tool 't' are not checked: the schema of tool 't' is not valid: ")


async def test_changed_schema_is_used() -> None:
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}}
    server = ScriptedServer(tools=[tool])
    async with Client(server) as client:
        [_] = [one async for one in client.tools()]
        tool["outputSchema"] = {"type": "object", "required": ["n"]}
        [_] = [one async for one in client.tools()]
        call = asyncio.create_task(client.call_tool("t"))
        server.line.reply(await server.line.request("tools/call"), {"content": [], "structuredContent": {}})
        with pytest.raises(BadAnswer, match="violates the tool's output schema"):
            await call


# --- structured content that is missing ---------------------------------------------------------------------------


async def test_success_without_structured_content_raises_with_a_schema() -> None:
    result = {"content": [{"type": "text", "text": "{}"}]}
    for options in ({}, {"returns": dict}, {"raise_on_error": False}):
        async with called({"type": "object"}, result, **options) as call:
            with pytest.raises(
                BadAnswer, match="the tool has an output schema, and its result has no structured content"
            ):
                await call


async def test_failure_needs_no_structured_content() -> None:
    failed = {"content": [{"type": "text", "text": "no"}], "isError": True}
    async with called({"type": "object", "required": ["n"]}, failed, raise_on_error=False) as call:
        assert (await call).is_error
    async with called({"type": "object", "required": ["n"]}, failed) as call:
        with pytest.raises(ToolFailed, match="no"):
            await call


async def test_server_with_declared_type_sends_structured_content(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def promise() -> Annotated[CallToolResult, int]:
        return CallToolResult([TextContent("5")])

    @server.tool
    async def fail() -> Annotated[CallToolResult, int]:
        return CallToolResult([TextContent("no")], is_error=True)

    async with Client(server, revision=revision) as client:
        with pytest.raises(ToolFailed, match=r"BadResult: structured content must be"):
            await client.call_tool("promise")
        with pytest.raises(ToolFailed, match="tool 'fail' failed: no"):
            await client.call_tool("fail")


# --- types that JSON has not --------------------------------------------------------------------------------------


@dataclass
class Moment:
    at: datetime
    day: date
    hour: time
    length: timedelta
    ident: UUID
    price: Decimal
    data: bytes
    maybe: datetime | None = None
    many: list[timedelta] = field(default_factory=list[timedelta])
    below: "list[Moment]" = field(default_factory=list["Moment"])


AWARE = Moment(
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    date(2026, 1, 2),
    time(3, 4, 5),
    timedelta(days=1, seconds=1.5),
    UUID(int=5),
    Decimal("1.10"),
    b"\x00\x01",
    datetime(2026, 1, 2, tzinfo=UTC),
    [timedelta(0), timedelta(days=-1)],
)
LOCAL = Moment(
    datetime(2026, 1, 2, 3, 4, 5), date(2026, 1, 2), time(3), timedelta(0), UUID(int=5), Decimal(1), b"", below=[AWARE]
)


@pytest.fixture
async def times(revision: str) -> AsyncIterator[Client]:
    server = Server("times")

    @server.tool
    async def moment(local: bool) -> Moment:
        return LOCAL if local else AWARE

    def giver(kind: Any, value: Any) -> Any:
        async def give() -> Any:
            return value

        give.__annotations__["return"] = kind
        return give

    for name, kind in get_type_hints(Moment).items():
        server.add_tool(giver(kind, getattr(AWARE, name)), name=name)
    async with Client(server, revision=revision) as client:
        yield client


@pytest.mark.parametrize("name", [name for name in get_type_hints(Moment) if name != "below"])
async def test_data_has_the_type_that_the_tool_returned(times: Client, name: str) -> None:
    assert (await times.call_tool(name)).data == getattr(AWARE, name)


@pytest.mark.parametrize("local", [True, False])
async def test_members_have_the_types_that_the_tool_returned(times: Client, local: bool) -> None:
    sent = LOCAL if local else AWARE
    result = await times.call_tool("moment", {"local": local})
    for name in get_type_hints(Moment):
        if name != "below":
            assert getattr(result.data, name) == getattr(sent, name)
    assert [type(one) for one in result.data.below] == [type(result.data)] * len(sent.below)
    assert (await times.call_tool("moment", {"local": local}, returns=Moment)).data == sent


@dataclass
class Tree:
    n: int
    below: "list[Tree]"


async def test_recursive_result_has_one_class(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def tree(depth: int) -> Tree:
        made = Tree(0, [])
        for n in range(1, depth):
            made = Tree(n, [made])
        return made

    async with Client(server, revision=revision) as client:
        found = (await client.call_tool("tree", {"depth": 60})).data
        kind, count = type(found), 1
        while found.below:
            [found] = found.below
            assert type(found) is kind
            count += 1
        assert count == 60
        typed = (await client.call_tool("tree", {"depth": 2}, returns=Tree)).data
        assert typed == Tree(1, [Tree(0, [])])


# --- results that a tool passes on ----------------------------------------------------------------------------------


def make_inner() -> Server:
    inner = Server("inner")

    @inner.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @inner.tool
    async def find() -> Tree:
        return Tree(1, [])

    @inner.tool
    async def picture() -> CallToolResult:
        return CallToolResult([TextContent("a"), IMAGE], {"x": 1}, meta={"mine": 5})

    @inner.tool
    async def fail() -> str:
        raise ToolError("not today")

    return inner


@asynccontextmanager
async def proxied(inner: str, outer: str) -> AsyncIterator[tuple[Client, Client]]:
    """A client of a server, and one of a server that passes on its results."""
    server = Server("outer")
    async with Client(make_inner(), revision=inner) as client:

        @server.tool
        async def relay(name: str, arguments: dict[str, Any]):
            return await client.call_tool(name, arguments, raise_on_error=False)

        @server.tool
        async def typed(name: str) -> ToolResult:
            return await client.call_tool(name)

        @server.tool
        async def declared() -> Annotated[ToolResult, int]:
            return await client.call_tool("add", {"a": 1, "b": 2})

        @server.tool
        async def undeclared() -> Annotated[ToolResult, int]:
            return await client.call_tool("picture")

        async with Client(server, revision=outer) as other:
            yield client, other


@pytest.mark.parametrize("inner", ["2025-11-25", "2026-07-28"])
async def test_tool_returns_the_result_of_another(inner: str, revision: str) -> None:
    async with proxied(inner, revision) as (client, other):
        for name, arguments in (("add", {"a": 1, "b": 2}), ("find", {}), ("picture", {}), ("fail", {})):
            sent = await client.call_tool(name, arguments, raise_on_error=False)
            got = await other.call_tool("relay", {"name": name, "arguments": arguments}, raise_on_error=False)
            assert (got.content, got.is_error) == (sent.content, sent.is_error)
            wrapped = revision == "2025-11-25" and not isinstance(sent.structured, dict | None)
            assert got.structured == ({"result": sent.structured} if wrapped else sent.structured)
            own = {key: value for key, value in (got.meta or {}).items() if not key.startswith("io.")}
            assert own == ({"mine": 5} if name == "picture" else {})
            info = (got.meta or {}).get("io.modelcontextprotocol/serverInfo", {"name": "outer"})
            assert info["name"] == "outer"


async def test_annotation_of_a_forwarded_result_declares_nothing(revision: str) -> None:
    async with proxied(revision, revision) as (_, other):
        tools = {tool.name: tool async for tool in other.tools()}
        assert tools["typed"].output_schema is None
        assert (await other.call_tool("typed", {"name": "picture"})).content == [TextContent("a"), IMAGE]


@pytest.mark.parametrize("inner", ["2025-11-25", "2026-07-28"])
async def test_declared_type_of_a_forwarded_result_is_validated(inner: str, revision: str) -> None:
    async with proxied(inner, revision) as (_, other):
        assert (await other.call_tool("declared")).data == 3
        with pytest.raises(ToolFailed, match=r"BadResult: .*declared return type"):
            await other.call_tool("undeclared")


async def test_middleware_may_return_a_client_result(revision: str) -> None:
    server = Server("outer")
    async with Client(make_inner()) as inner:

        @server.middleware
        async def elsewhere(call: Any, following: Any) -> Any:
            return await inner.call_tool("picture") if call.name == "far" else await following(call)

        server.add_tool(lambda: "near", name="far")
        async with Client(server, revision=revision) as client:
            assert (await client.call_tool("far", returns=dict)).structured == {"x": 1}


# --- numbers that cannot be read -----------------------------------------------------------------------------------

DIGITS = "9" * 5000
BEYOND = [
    ("1e9999", "the number 1e9999 is out of range"),
    ("-1e9999", "the number -1e9999 is out of range"),
    (DIGITS, "an integer of 5000 digits is out of range"),
    (f"-{DIGITS}", "an integer of 5000 digits is out of range"),
]


@pytest.mark.parametrize(("number", "told"), BEYOND)
@pytest.mark.parametrize("size", [0, 100_000])  # short, and read at once
async def test_argument_out_of_range_is_named(number: str, told: str, size: int, revision: str) -> None:
    server = Server("s")

    @server.tool
    async def typed(a: int, text: str) -> int:
        return a

    @server.tool
    async def anything(a: Any, text: str) -> Any:
        return a

    def read(a: int, text: str) -> int:
        return a

    server.add_tool(read, name="described", input_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
    async with Client(server, revision=revision) as client:
        for name in ("typed", "anything", "described"):
            arguments = f'{{"text":"{"x" * size}","a":[1,{{"b":{number}}}]}}'
            with pytest.raises(ToolFailed, match=re.escape(f"$.a[1].b: {told}")):
                await client.call_tool(name, Raw(arguments.encode()))


@pytest.mark.parametrize(("number", "told"), BEYOND)
async def test_number_out_of_range_in_params_is_named(number: str, told: str, revision: str) -> None:
    server = Server("s")
    server.add_prompt(lambda name: "hello", name="greet")
    server.add_tool(lambda: "hello", name="t")
    async with Client(server, revision=revision) as client:
        with pytest.raises(Exception, match=re.escape(told)):
            await client.get_prompt("greet", {"name": Raw(number.encode())})  # type: ignore[dict-item]
        with pytest.raises(Exception, match=re.escape(told)):
            await client.call_tool("t", meta={"x": [Raw(number.encode())]})


@pytest.mark.off_the_record
@pytest.mark.parametrize(("number", "told"), BEYOND)
async def test_number_out_of_range_in_a_result_is_named(number: str, told: str) -> None:
    result = {"content": [], "structuredContent": {"a": [Raw(number.encode())]}}
    async with called({"type": "object"}, result) as call:
        with pytest.raises(BadAnswer, match=re.escape(f"{told} - at `$.structuredContent.a[0]`")):
            await call


async def test_arguments_without_json_raise_misuse() -> None:
    circle: list[Any] = []
    circle.append(circle)
    async with Client(Server("s")) as client:
        for wrong in (10**5000, object(), circle):
            with pytest.raises(MisuseError, match="arguments of tool 't'"):
                await client.call_tool("t", {"a": wrong})
            with pytest.raises(MisuseError, match="params of tools/call"):
                await client.request("tools/call", {"name": "t", "arguments": {"a": wrong}})


async def test_meta_without_json_leaves_no_request(revision: str) -> None:
    server = Server("s")
    server.add_tool(lambda: "hello", name="t")
    async with Client(server, revision=revision) as client:
        for wrong in (10**5000, object()):
            with pytest.raises(MisuseError, match="params of tools/call"):
                await client.call_tool("t", meta={"a": wrong})
        assert client.pending() == []


async def test_decimal_may_exceed_a_float(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def same(a: Decimal) -> Decimal:
        return a

    async with Client(server, revision=revision) as client:
        for options in ({}, {"idempotency_key": "k"}, {"idempotency_key": "k"}):
            assert (await client.call_tool("same", Raw(b'{"a":1e9999}'), **options)).data == Decimal("1e9999")
        with pytest.raises(PeerError, match="key"):
            await client.call_tool("same", Raw(b'{"a":1e9998}'), idempotency_key="k")


async def test_deeply_nested_arguments_are_refused(revision: str) -> None:
    server = Server("s")

    def read(a: Any, ctx: Context) -> str:
        return "read"

    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    server.add_tool(read, name="t", input_schema=unique)
    async with Client(server, revision=revision) as client:
        assert (await client.call_tool("t", {"a": [chain(2), chain(1)]})).data == "read"
        with pytest.raises(ToolFailed, match="nested too deep"):
            await client.call_tool("t", {"a": [chain(300), chain(299)]})
