"""Tools: listing, calling, validation and failures."""

import asyncio
import json
import logging
import threading
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import jsonschema_rs
import pytest
from msgspec import Meta, Struct
from tests.limits import PATIENCE
from tests.processes import StdioPeer

from trunkline import (
    Annotations,
    AudioContent,
    CallToolResult,
    Context,
    EmbeddedResource,
    Icon,
    ImageContent,
    ProtocolError,
    Refusal,
    ResourceContents,
    ResourceLink,
    Server,
    Settings,
    TextContent,
    ToolAnnotations,
    ToolError,
)
from trunkline.errors import DuplicateEntry, NotRegistered, RegistrationError
from trunkline.facts import HandlerFailed
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
EXAMPLES = Path(__file__).parents[2] / "examples"
every_revision = pytest.mark.parametrize("revision", REVISIONS)


async def call(peer: RawPeer, name: str, arguments: Any = None, **params: Any) -> Any:
    given = {} if arguments is None else {"arguments": arguments}
    return await peer.result("tools/call", {"name": name, **given, **params})


def text_of(result: Any) -> str:
    (block,) = result["content"]
    return block["text"]


# --- listing -------------------------------------------------------------------------------------


@dataclass
class Weather:
    """How it is outside."""

    degrees: float
    windy: bool = False


def weather_server() -> Server:
    server = Server("t")

    @server.tool(
        title="Weather",
        annotations=ToolAnnotations(read_only_hint=True, destructive_hint=False),
        icons=[Icon("https://example.com/sun.png", mime_type="image/png", sizes=["48x48"])],
        meta={"version": "1.0.0", "deprecated": False, "metadata": {"team": "sky"}, "experimental": {}},
    )
    async def weather(city: Annotated[str, Meta(min_length=1)], days: int = 1) -> Weather:
        """Tells the weather.

        Args:
            city: Where.
        """
        return Weather(21.5 * days)

    @server.tool
    async def nothing() -> None: ...

    return server


INPUT = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "description": "Where."},
        "days": {"type": "integer", "default": 1},
    },
    "required": ["city"],
    "additionalProperties": False,
}
PLAIN = {"name": "weather", "description": "Tells the weather.", "inputSchema": INPUT}
WITH_ANNOTATIONS = {**PLAIN, "annotations": {"readOnlyHint": True, "destructiveHint": False}}
WITH_OUTPUT = {
    **WITH_ANNOTATIONS,
    "title": "Weather",
    "outputSchema": {
        "title": "Weather",
        "description": "How it is outside.",
        "type": "object",
        "properties": {"degrees": {"type": "number"}, "windy": {"type": "boolean", "default": False}},
        "required": ["degrees"],
    },
    "_meta": {"version": "1.0.0", "deprecated": False, "metadata": {"team": "sky"}, "experimental": {}},
}
WITH_ICONS = {
    **WITH_OUTPUT,
    "icons": [{"src": "https://example.com/sun.png", "mimeType": "image/png", "sizes": ["48x48"]}],
}
TOLD = dict(zip(REVISIONS, [PLAIN, WITH_ANNOTATIONS, WITH_OUTPUT, WITH_ICONS], strict=True))


@pytest.mark.row("TOO-03", "T01", "T02")
@every_revision
async def test_tool_definitions_match_revision(revision: str) -> None:
    async with RawPeer(weather_server()) as peer:
        await peer.initialize(revision)
        listed = await peer.result("tools/list")
    assert listed == {
        "tools": [
            TOLD[revision],
            {"name": "nothing", "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False}},
        ]
    }


@pytest.mark.row("T01")
async def test_tools_keep_registration_order() -> None:
    server = Server("t")
    names = [f"{letter}{number}" for number in range(3) for letter in "cab"]
    for name in names:
        server.add_tool(lambda: None, name=name)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(2):
            assert [tool["name"] for tool in (await peer.result("tools/list"))["tools"]] == names


@pytest.mark.row("T03")
async def test_tool_with_too_long_description_is_refused() -> None:
    server = Server("t")
    server.add_tool(lambda: None, name="long", description="x" * 10_000)
    with pytest.raises(ValueError, match="has 10001 characters; 10000 is the most"):
        server.add_tool(lambda: None, name="longer", description="x" * 10_001)

    assert [entry.key for entry in server.tools] == ["long"]


@pytest.mark.row("TOO-01")
async def test_tool_methods_need_tools() -> None:
    async with RawPeer(Server("t")) as peer:
        assert "tools" not in (await peer.initialize())["capabilities"]
        for method in ("tools/list", "tools/call"):
            error = await peer.error(method, {"name": "x"})
            assert (error["code"], error["data"]["kind"]) == (-32601, "capability_not_supported")


# --- registering ---------------------------------------------------------------------------------


@pytest.mark.row("T13")
async def test_functions_and_decorators_give_the_same_list() -> None:
    def add(a: int, b: int = 3) -> int:
        """Adds."""
        return a + b

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    by_function, by_decorator = Server("t"), Server("t")
    by_function.add_tool(add)
    by_function.add_tool(add, name="with_schema", input_schema=schema)
    assert by_decorator.tool(add) is add
    assert by_decorator.tool(name="with_schema", input_schema=schema)(add) is add

    listed = []
    for server in (by_function, by_decorator):
        async with RawPeer(server) as peer:
            await peer.initialize()
            listed.append(await peer.result("tools/list"))
            assert (await call(peer, "add", {"a": 1}))["structuredContent"] == {"result": 4}
            assert (await call(peer, "with_schema", {"a": 1, "b": 1}))["structuredContent"] == {"result": 2}
    assert listed[0] == listed[1]
    assert [tool["inputSchema"] for tool in listed[0]["tools"]] == [
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 3}},
            "required": ["a"],
            "additionalProperties": False,
        },
        schema,
    ]


@pytest.mark.parametrize("on_duplicate", ["error", "replace", "warn"])
async def test_duplicate_tool_follows_on_duplicate(on_duplicate: Any) -> None:
    server = Server("t", settings=Settings(on_duplicate=on_duplicate))
    server.add_tool(lambda: "first", name="twice")
    if on_duplicate == "error":
        with pytest.raises(DuplicateEntry, match="tool 'twice' is already registered"):
            server.add_tool(lambda: "second", name="twice")
    elif on_duplicate == "warn":
        with pytest.warns(UserWarning, match="tool 'twice' was registered before and is replaced"):
            server.add_tool(lambda: "second", name="twice")
    else:
        server.add_tool(lambda: "second", name="twice")
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert text_of(await call(peer, "twice")) == ("first" if on_duplicate == "error" else "second")


@pytest.mark.row("A13")
async def test_tools_can_change_while_connected() -> None:
    server = weather_server()

    async def names() -> list[str]:
        return [tool["name"] for tool in (await peer.result("tools/list"))["tools"]]

    async with RawPeer(server) as peer:
        await peer.initialize()
        server.add_tool(lambda: "late", name="late")
        assert await names() == ["weather", "nothing", "late"]
        assert text_of(await call(peer, "late")) == "late"
        server.tools.disable("nothing")
        assert await names() == ["weather", "late"]
        server.tools.enable("nothing")
        assert await names() == ["weather", "nothing", "late"]
        server.remove_tool("late")
        assert (await peer.error("tools/call", {"name": "late"}))["data"]["kind"] == "tool_not_found"
        with pytest.raises(NotRegistered):
            server.remove_tool("late")


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda *values: None, "can never be passed, since arguments have names"),
        (lambda path: path, "cannot be described"),
    ],
)
async def test_uncallable_tool_is_refused_with_reason(function: Any, sentence: str) -> None:
    function.__annotations__["path"] = complex
    server = weather_server()
    with pytest.raises(RegistrationError, match=sentence):
        server.add_tool(function, name="bad")
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert len((await peer.result("tools/list"))["tools"]) == 2


# --- calling -------------------------------------------------------------------------------------


@pytest.mark.row("T04", "PH31")
@every_revision
async def test_call_result_has_content_and_is_error(revision: str) -> None:
    async with RawPeer(weather_server()) as peer:
        await peer.initialize(revision)
        result = await call(peer, "weather", {"city": "Oslo", "days": 2})
        expected: dict[str, Any] = {
            "content": [{"type": "text", "text": '{"degrees":43.0,"windy":false}'}],
            "isError": False,
        }
        if revision >= "2025-06-18":
            expected["structuredContent"] = {"degrees": 43.0, "windy": False}
        assert result == expected
        assert await call(peer, "nothing") == {"content": [], "isError": False}
        assert await call(peer, "nothing", {}) == {"content": [], "isError": False}


PICTURE = {"type": "image", "data": "AAEC", "mimeType": "image/png"}


@pytest.mark.row("TOO-11", "T05", "T16")
@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", [{"type": "text", "text": "text"}]),
        ({"a": 1}, [{"type": "text", "text": '{"a":1}'}]),
        ([1, 2], [{"type": "text", "text": "[1,2]"}]),
        (
            TextContent("{}", mime_type="application/json"),
            [{"type": "text", "text": "{}", "mimeType": "application/json"}],
        ),
        (ImageContent("AAEC", "image/png"), [PICTURE]),
        (["see", ImageContent("AAEC", "image/png")], [{"type": "text", "text": "see"}, PICTURE]),
        (
            EmbeddedResource(ResourceContents("doc://a", "text/plain", text="a")),
            [{"type": "resource", "resource": {"uri": "doc://a", "mimeType": "text/plain", "text": "a"}}],
        ),
        (CallToolResult([TextContent("whole")]), [{"type": "text", "text": "whole"}]),
    ],
)
@every_revision
async def test_raw_values_and_content_are_encoded(revision: str, value: Any, content: Any) -> None:
    server = Server("t")
    server.add_tool(lambda: value, name="give")
    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        assert await call(peer, "give") == {"content": content, "isError": False}


@pytest.mark.row("T16", "X22")
@every_revision
async def test_newer_content_is_projected(revision: str) -> None:
    server = Server("t")

    @server.tool
    async def give() -> list[AudioContent | ResourceLink]:
        return [AudioContent("AAEC", "audio/wav"), ResourceLink("doc://a", "a")]

    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        kinds = [block["type"] for block in (await call(peer, "give"))["content"]]
    assert kinds == {
        "2024-11-05": ["resource", "text"],
        "2025-03-26": ["audio", "text"],
    }.get(revision, ["audio", "resource_link"])


@pytest.mark.row("Y08")
async def test_content_annotations_are_preserved() -> None:
    server = Server("t")

    @server.tool
    async def give() -> TextContent:
        return TextContent("a", Annotations(audience=["user"], priority=0.5, last_modified="2025-01-02T03:04:05Z"))

    async with RawPeer(server) as peer:
        await peer.initialize()
        (block,) = (await call(peer, "give"))["content"]
    assert block["annotations"] == {"audience": ["user"], "priority": 0.5, "lastModified": "2025-01-02T03:04:05Z"}


class Colour(Enum):
    RED = "red"


class Options(TypedDict, total=False):
    deep: bool


class Filter(Struct):
    field: str
    limit: int = 10


class Everything(Struct):
    """Whatever was given, back."""

    text: str
    number: int | None
    mode: str
    colour: Colour
    tags: list[str]
    counts: dict[str, int]
    weather: Weather
    options: Options
    filter: Filter


@pytest.mark.row("TOO-07")
async def test_all_types_round_trip_and_match_schemas() -> None:
    server = Server("t")

    @server.tool
    async def everything(
        *,
        text: str,
        number: int | None,
        mode: Literal["fast", "slow"],
        colour: Colour,
        tags: list[str],
        counts: dict[str, int],
        weather: Weather,
        options: Options,
        filter: Filter,
    ) -> Everything:
        assert isinstance(colour, Colour)
        assert isinstance(weather, Weather)
        assert isinstance(filter, Filter)
        return Everything(text, number, mode, colour, tags, counts, weather, options, filter)

    arguments = {
        "text": "é",
        "number": None,
        "mode": "fast",
        "colour": "red",
        "tags": ["a"],
        "counts": {"a": 1},
        "weather": {"degrees": 1.5, "windy": True},
        "options": {"deep": True},
        "filter": {"field": "x", "limit": 5},
    }
    async with RawPeer(server) as peer:
        await peer.initialize()
        (tool,) = (await peer.result("tools/list"))["tools"]
        jsonschema_rs.validate(tool["inputSchema"], arguments)
        result = await call(peer, "everything", arguments)
    assert result["structuredContent"] == arguments
    assert json.loads(text_of(result)) == arguments
    jsonschema_rs.validate(tool["outputSchema"], result["structuredContent"])


@pytest.mark.row("TOO-07")
async def test_non_object_is_wrapped_in_result() -> None:
    server = Server("t")

    @server.tool
    async def days() -> list[Weather]:
        return [Weather(1.5)]

    async with RawPeer(server) as peer:
        await peer.initialize()
        (tool,) = (await peer.result("tools/list"))["tools"]
        result = await call(peer, "days")
    assert result["structuredContent"] == {"result": [{"degrees": 1.5, "windy": False}]}
    assert text_of(result) == '[{"degrees":1.5,"windy":false}]'
    jsonschema_rs.validate(tool["outputSchema"], result["structuredContent"])


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, by: int = 1) -> int:
        """Adds to it."""
        self.count += by
        return self.count

    async def __call__(self) -> int:
        return self.count


async def test_methods_partials_and_callable_objects_are_tools() -> None:
    server, counter = Server("t"), Counter()
    server.add_tool(counter.add)
    server.add_tool(partial(counter.add, by=10), name="add_ten")
    server.add_tool(counter, name="current")
    async with RawPeer(server) as peer:
        await peer.initialize()
        for name in ("add", "add_ten"):
            await call(peer, name, {})
        assert (await call(peer, "current"))["structuredContent"] == {"result": 11}
        described = {tool["name"]: tool["description"] for tool in (await peer.result("tools/list"))["tools"]}
    assert described == {"add": "Adds to it.", "add_ten": "Adds to it.", "current": "Counts."}


@pytest.mark.row("T10")
async def test_tool_without_schema_accepts_any_object() -> None:
    server, seen = Server("t"), []

    @server.tool
    async def anything(**values: Any) -> None:
        seen.append(values)

    async with RawPeer(server) as peer:
        await peer.initialize()
        await call(peer, "anything", {"x": 1})
        assert (await peer.result("tools/list"))["tools"][0]["inputSchema"] == {"type": "object", "properties": {}}
    assert seen == [{"x": 1}]


@pytest.mark.row("T14", "T15", "PH34")
async def test_progress_reaches_token_owner_only() -> None:
    server = Server("t")

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.progress(0.5, 1.0)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        with_token = peer.call("tools/call", {"name": "work", "_meta": {"progressToken": "t1"}})
        notice, answer = await peer.receive(), await peer.receive()
        assert notice["method"] == "notifications/progress"
        assert notice["params"] == {"progressToken": "t1", "progress": 0.5, "total": 1.0}
        assert answer["id"] == with_token
        peer.call("tools/call", {"name": "work"})
        assert text_of((await peer.receive())["result"]) == "done"


@pytest.mark.row("T19")
async def test_slow_calls_run_concurrently() -> None:
    server, together = Server("t"), asyncio.Barrier(2)

    @server.tool
    async def slow() -> str:
        await together.wait()  # returns only if two calls are under way at once
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        first = peer.call("tools/call", {"name": "slow"})
        assert await peer.result("ping") == {}
        second = peer.call("tools/call", {"name": "slow"})
        answers = [await peer.answer_to(first), await peer.answer_to(second)]
    assert [text_of(answer["result"]) for answer in answers] == ["done", "done"]


@pytest.mark.row("A12")
async def test_blocking_function_does_not_delay_others() -> None:
    server, released = Server("t"), threading.Event()

    @server.tool
    def slow() -> str:
        assert released.wait(PATIENCE)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        waiting = peer.call("tools/call", {"name": "slow"})
        assert await peer.result("ping") == {}
        released.set()
        assert text_of((await peer.answer_to(waiting))["result"]) == "done"


# --- arguments -----------------------------------------------------------------------------------

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "pattern": "^[a-z ]+$"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
    },
    "required": ["query"],
    "additionalProperties": False,
}


def search_server(seen: list[Any]) -> Server:
    """The same tool twice: with a derived schema, and with a handwritten one."""
    server = Server("t")

    @server.tool
    async def by_hints(
        query: Annotated[str, Meta(pattern="^[a-z ]+$")], limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    ) -> None:
        seen.append((query, limit))

    @server.tool(input_schema=SEARCH)
    async def by_schema(query: str, limit: int) -> None:
        seen.append((query, limit))

    return server


both = pytest.mark.parametrize("name", ["by_hints", "by_schema"])


def refusal(answer: Any, revision: str) -> Any:
    """The validation errors of a rejected call, in the form of its revision."""
    if revision < "2025-11-25":
        assert answer["error"]["code"] == -32602
        data = answer["error"]["data"]
    else:
        assert answer["result"]["isError"] is True
        assert "invalid arguments for tool" in text_of(answer["result"])
        data = answer["result"]["_meta"]["trunkline/error"]
    assert data["kind"] == "invalid_tool_arguments"
    return data["errors"]


@pytest.mark.row("T07", "T08", "T11", "T21", "A14", "X09", "AD007", "PH32")
@both
@every_revision
@pytest.mark.parametrize(
    ("arguments", "path", "rule"),
    [
        ({"query": "a", "limit": 0}, "$.limit", "minimum"),
        ({"query": "a", "limit": 1001}, "$.limit", "maximum"),
        ({"query": "a", "limit": "one"}, "$.limit", "type"),
        ({"limit": 1}, "$", "required"),
        ({"query": "A1"}, "$.query", "pattern"),
        ({"query": "a", "unknown": 1}, "$", "additionalProperties"),
    ],
)
async def test_invalid_arguments_are_refused_before_handler(
    revision: str, name: str, arguments: Any, path: str, rule: str
) -> None:
    seen: list[Any] = []
    async with RawPeer(search_server(seen)) as peer:
        await peer.initialize(revision)
        (fault,) = refusal(await peer.request("tools/call", {"name": name, "arguments": arguments}), revision)
    assert (fault["path"], fault["rule"]) == (path, rule)
    assert fault["message"]
    assert seen == []


@pytest.mark.row("T09")
@both
async def test_default_is_applied_before_the_call(name: str) -> None:
    seen: list[Any] = []
    async with RawPeer(search_server(seen)) as peer:
        await peer.initialize()
        await call(peer, name, {"query": "a"})
        await call(peer, name, {"query": "b", "limit": 1})
    assert seen == [("a", 100), ("b", 1)]


@pytest.mark.row("TOO-12", "T12", "T21", "X08", "PH35")
@every_revision
async def test_unknown_tool_is_reported_despite_arguments(revision: str) -> None:
    async with RawPeer(search_server([])) as peer:
        await peer.initialize(revision)
        for arguments in ({}, {"query": 5}, 5):
            error = await peer.error("tools/call", {"name": "nope", "arguments": arguments})
            assert error["code"] == -32602
            assert error["data"] == {"kind": "tool_not_found", "toolId": "nope"}


@pytest.mark.row("TOO-14")
@both
@every_revision
@pytest.mark.parametrize("arguments", [[], "a", 5])
async def test_malformed_call_is_invalid_params(revision: str, name: str, arguments: Any) -> None:
    async with RawPeer(search_server([])) as peer:
        await peer.initialize(revision)
        for params in ({"name": name, "arguments": arguments}, {"arguments": {"query": "a"}}, {"name": 5}):
            error = await peer.error("tools/call", params)
            assert (error["code"], error["data"]["kind"]) == (-32602, "invalid_params")


# --- failures ------------------------------------------------------------------------------------


def failing_server(**options: Any) -> Server:
    server = Server("t", **options)

    @server.tool
    async def known() -> str:
        raise ToolError("the disk is full")

    @server.tool
    async def secret() -> str:
        raise ValueError("password: hunter2")

    @server.tool
    def secret_on_thread() -> str:
        raise ValueError("password: hunter2")

    @server.tool(thread=False)
    def secret_inline() -> str:
        raise ValueError("password: hunter2")

    @server.tool
    async def liar() -> Weather:
        return Weather("hunter2")  # not a number

    return server


@pytest.mark.row("TOO-13", "T06", "X11")
@every_revision
async def test_tool_error_text_is_sent(revision: str) -> None:
    async with RawPeer(failing_server()) as peer:
        await peer.initialize(revision)
        assert await call(peer, "known") == {
            "content": [{"type": "text", "text": "the disk is full"}],
            "isError": True,
        }


@pytest.mark.row("T06", "T21", "X11")
@pytest.mark.parametrize("name", ["secret", "secret_on_thread", "secret_inline", "liar"])
@every_revision
async def test_other_exception_is_reported_by_reference(revision: str, name: str) -> None:
    observer = RecordingObserver()
    async with RawPeer(failing_server(observers=[observer])) as peer:
        await peer.initialize(revision)
        result = await call(peer, name)
        (frame,) = [frame for _, frame in peer.transcript.frames if b'"isError"' in frame]
    (failed,) = observer.of(HandlerFailed)
    assert result["isError"] is True
    assert text_of(result) == f"the tool failed; the log has the details under {failed.reference}"
    assert "structuredContent" not in result
    assert b"hunter2" not in frame
    assert b"Weather" not in frame
    assert failed.method == "tools/call"
    assert failed.error.__traceback__ is not None
    kind = "invalid_content" if name == "liar" else "tool_execution_failed"
    assert result["_meta"]["trunkline/error"] == {"kind": kind, "reference": failed.reference}


@pytest.mark.row("T06")
async def test_log_has_traceback_with_reference(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "trunkline"):
        async with RawPeer(failing_server()) as peer:
            await peer.initialize()
            result = await call(peer, "secret")
    (record,) = caplog.records
    reference = result["_meta"]["trunkline/error"]["reference"]
    assert reference in record.getMessage()
    assert reference in text_of(result)
    assert "ValueError: password: hunter2" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.row("T21")
async def test_protocol_error_is_error_response() -> None:
    server = Server("t")

    @server.tool
    async def declines() -> str:
        raise ProtocolError("no such account", data={"account": 5})

    @server.tool
    async def refuses() -> str:
        raise Refusal(1001, "not today", name="policy_violation", hint="ask tomorrow")

    async with RawPeer(server) as peer:
        await peer.initialize()
        error = await peer.error("tools/call", {"name": "declines"})
        assert (error["code"], error["message"], error["data"]["account"]) == (-32603, "no such account", 5)
        refused = await call(peer, "refuses")
    assert refused["isError"] is True
    assert text_of(refused) == "not today"
    assert refused["_meta"]["trunkline/refusal"] == {"code": 1001, "name": "policy_violation", "hint": "ask tomorrow"}


@pytest.mark.row("T18")
async def test_tool_timeout_is_failed_result() -> None:
    clock = ManualClock()
    server, ended = Server("t", clock=clock), []

    @server.tool(timeout=2)
    async def forever() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return "never"

    async with RawPeer(server) as peer:
        await peer.initialize()
        ident = peer.call("tools/call", {"name": "forever"})
        assert await peer.quiet() == []
        clock.advance(1.9)
        assert await peer.quiet() == []
        clock.advance(0.1)
        result = (await peer.answer_to(ident))["result"]
        await peer.quiet()
    assert result["isError"] is True
    assert text_of(result) == "tools/call was not done after 2 s"
    assert result["_meta"]["trunkline/error"]["kind"] == "tool_execution_timeout"
    assert ended == [True]


@pytest.mark.row("T18")
async def test_call_of_disabled_tool_is_a_failed_result() -> None:
    server = weather_server()
    server.tools.disable("weather")
    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await call(peer, "weather", {"city": "Oslo"})
    assert result["isError"] is True
    assert text_of(result) == "tool 'weather' is disabled"
    assert result["_meta"]["trunkline/error"]["kind"] == "tool_is_disabled"


@pytest.mark.row("Y06", "Y09", "Y10")
@pytest.mark.parametrize(
    ("block", "kind"),
    [
        (TextContent("12345678901"), "text_too_long"),
        (ImageContent("AAECAwQ=", "image/png"), "binary_data_too_large"),
        (ImageContent("not base64!", "image/png"), "invalid_encoding"),
        (ImageContent("AAEC", "foo"), "invalid_mime_type"),
    ],
)
async def test_invalid_content_is_failed_result(block: Any, kind: str) -> None:
    server = Server("t", settings=Settings(max_text=10, max_binary=4), observers=[])
    server.add_tool(lambda: block, name="give")
    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await call(peer, "give")
    assert result["isError"] is True
    assert result["_meta"]["trunkline/error"]["kind"] == kind


# --- changes -------------------------------------------------------------------------------------


@pytest.mark.row("TOO-17", "T17", "X13", "AD003", "PH33")
async def test_burst_of_changes_sends_two_notifications() -> None:
    clock = ManualClock()
    server = Server("t", tools=True, clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for number in range(50):
            server.add_tool(lambda: None, name=f"tool{number}")
        assert [message["method"] for message in await peer.quiet()] == ["notifications/tools/list_changed"]
        clock.advance(0.1)
        assert [message["method"] for message in await peer.quiet()] == ["notifications/tools/list_changed"]
        assert len((await peer.result("tools/list"))["tools"]) == 50
        clock.advance(10)
        assert await peer.quiet() == []
        server.remove_tool("tool0")
        assert len(await peer.quiet()) == 1


@pytest.mark.row("T17")
async def test_changes_are_not_sent_if_undeclared() -> None:
    server = Server("t", tools=True, list_changed=False, clock=ManualClock())
    async with RawPeer(server) as peer:
        assert (await peer.initialize())["capabilities"]["tools"] == {}
        server.add_tool(lambda: None, name="late")
        assert await peer.quiet() == []


# --- examples ------------------------------------------------------------------------------------


@pytest.mark.row("P25")
def test_calculator_example_adds_five_and_three() -> None:
    with StdioPeer((EXAMPLES / "calculator.py").read_text()) as peer:
        peer.initialize()
        params = {"name": "calculator", "arguments": {"operation": "add", "a": 5, "b": 3}}
        assert peer.result("tools/call", params)["content"] == [{"type": "text", "text": "Result: 8"}]
        params["arguments"] = {"operation": "divide", "a": 5, "b": 0}
        assert peer.result("tools/call", params)["isError"] is True


@pytest.mark.row("T20")
def test_sql_query_example_answers_a_select() -> None:
    with StdioPeer((EXAMPLES / "sql_query.py").read_text()) as peer:
        peer.initialize()
        (tool,) = peer.result("tools/list")["tools"]
        assert tool["inputSchema"]["properties"] == {
            "query": {"type": "string", "description": "SQL query to execute"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
        }
        asked = peer.result(
            "tools/call", {"name": "sql_query", "arguments": {"query": "SELECT * FROM users", "limit": 2}}
        )
        assert asked["structuredContent"] == {"result": [{"id": 1, "name": "Alice"}, {"id": 2, "name": "Bob"}]}
        refused = peer.result("tools/call", {"name": "sql_query", "arguments": {"query": "DELETE FROM users"}})
        assert refused["content"][0]["text"] == "SQL error: attempt to write a readonly database"
        nothing = peer.result("tools/call", {"name": "sql_query", "arguments": {"query": "SELECT 1", "limit": 0}})
        assert nothing["isError"] is True


async def test_null_arguments_are_empty() -> None:
    server = Server("t")

    @server.tool
    async def hello(who: str = "world") -> str:
        return f"hello {who}"

    @server.tool
    async def greet(who: str) -> str:
        return f"hello {who}"

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "hello", "arguments": None}))["isError"] is False
        refused = await peer.result("tools/call", {"name": "greet", "arguments": None})
        assert refused["isError"] is True
        assert "who" in refused["content"][0]["text"]


async def test_deeply_nested_arguments_are_refused() -> None:
    server = Server("t")

    @server.tool
    async def take(value: Any) -> str:
        return "taken"

    deep = b"[" * 200_000 + b"]" * 200_000
    frame = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"take","arguments":{"value":%b}}}' % deep
    async with RawPeer(server) as peer:
        await peer.initialize()
        peer.send(frame)
        answer = await peer.receive()
        assert "error" in answer or answer["result"]["isError"] is True
        assert (await peer.result("tools/call", {"name": "take", "arguments": {"value": 1}}))["isError"] is False
