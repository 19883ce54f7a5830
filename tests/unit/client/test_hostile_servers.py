"""Servers that want to hurt their clients: with schemas, with streams, with addresses, with texts for a terminal."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from trunkline import Client, Settings
from trunkline.client.targets import allowed_reach, make_connector
from trunkline.errors import BadAnswer, TrunklineError
from trunkline.testing import ScriptedLine, ScriptedServer

PROMPT = 5.0  # seconds: more than the slowest machine needs, and less than what the attacks used to take


def tool(schema: Any, name: str = "bait") -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, "outputSchema": schema}


@asynccontextmanager
async def attacked(schema: Any = None, **options: Any) -> AsyncIterator[tuple[Client, ScriptedLine]]:
    """A client of a server that has one tool."""
    server = ScriptedServer(tools=[tool({"type": "object"} if schema is None else schema)])
    async with Client(server, **options) as client:
        yield client, server.line


async def answered(client: Client, line: ScriptedLine, structured: Any) -> Any:
    """The result of a call that is answered with structured content, within a short time of the processor."""
    call = asyncio.create_task(client.call_tool("bait", timeout=60))
    request = await line.request("tools/call")
    async for _ in client.tools():  # the catalog is known
        pass
    line.reply(request, {"content": [], "structuredContent": structured})
    begun = time.process_time()
    try:
        return await call
    finally:
        assert time.process_time() - begun < PROMPT


# --- output schemas ---------------------------------------------------------------------------------------------------


def doubling(levels: int, how: str) -> dict[str, Any]:
    """Two kilobytes that ask for a billion steps: each definition refers to the next one twice."""
    named = {
        f"a{level}": {how: [{"$ref": f"#/$defs/a{level + 1}"}, {"$ref": f"#/$defs/a{level + 1}"}]}
        for level in range(levels)
    }
    whole: dict[str, Any] = {"type": "object", "allOf": [{"$ref": "#/$defs/a0"}]}
    return whole | {"$defs": named | {f"a{levels}": {"type": "object"}}}


def tree(levels: int) -> dict[str, Any]:
    """Types inside of types, two in each."""
    named: dict[str, Any] = {
        f"a{level}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/a{level + 1}"} for side in ("left", "right")},
        }
        for level in range(levels)
    }
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/a0"}}, "$defs": named | {f"a{levels}": {}}}


def unevaluated(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"a": {}}}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return {"type": "object", "properties": {"a": schema}}


SCHEMAS: dict[str, tuple[Any, Any]] = {
    "allOf twice": (doubling(30, "allOf"), {}),
    "anyOf twice": (doubling(30, "anyOf"), {}),
    "a tree of types": (tree(30), {"a": {}}),
    "unevaluated in unevaluated": (unevaluated(25), {"a": 1}),
    "many properties": ({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(20_000)}}, {}),
    "names that become one": (
        {"type": "object", "properties": {"-" * i + "." * (500 - i): {"type": "integer"} for i in range(500)}},
        {},
    ),
    "many types of many members": (
        {"type": ["object"] * 1000, "properties": {f"p{i}": {"type": "string"} for i in range(500)}},
        {},
    ),
    "a schema that is deep": (deep(400), {"a": []}),
    "values times values": (
        {"type": "object", "properties": {"a": {"items": {"enum": [[i] for i in range(10_000)]}}}},
        {"a": [[9999]] * 5000},
    ),
    "a pattern that looks back": (
        {"type": "object", "properties": {"a": {"anyOf": [{"pattern": rf"^(a|aa)+\1b{i}$"} for i in range(200)]}}},
        {"a": "a" * 40},
    ),
    "another document": (
        {
            "type": "object",
            "$defs": {"a": {"$id": "x:y", "$ref": "#/$defs/b", "$defs": {"b": doubling(30, "allOf")}}, "b": {}},
            "allOf": [{"$ref": "#/$defs/a"}],
        },
        {},
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
async def test_output_schema_cannot_block_the_client(name: str) -> None:
    schema, structured = SCHEMAS[name]
    async with attacked(schema) as (client, line):
        result = await answered(client, line, structured)
        assert result.structured == structured  # what cannot be checked at little cost is not held against a result


WRONG: dict[str, tuple[Any, Any]] = {
    "many reasons": ({"type": "object", "properties": {"a": {"items": {"type": "string"}}}}, {"a": [1] * 300_000}),
    "reasons that double": (
        {
            "type": "object",
            "allOf": [{"$ref": "#/$defs/a"}],
            "$defs": {
                name: {
                    "properties": {
                        "y": {"type": "string"},
                        "x": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
                    }
                }
                for name in ("a", "b")
            },
        },
        {
            "x": {
                "x": {
                    "x": {
                        "x": {
                            "x": {"x": {"x": {"x": {"x": {"x": {"x": {"x": {"x": {"x": {"x": {"x": {"y": 1}}}}}}}}}}}}
                        }
                    }
                }
            }
        },
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_result_is_refused_without_collecting_all_reasons(name: str) -> None:
    schema, structured = WRONG[name]
    async with attacked(schema) as (client, line):
        with pytest.raises(BadAnswer, match="too large to list the reasons"):
            await answered(client, line, structured)


async def test_ordinary_results_are_validated_and_rebuilt() -> None:
    schema = {"type": "object", "properties": {"when": {"type": "string", "format": "date"}}, "required": ["when"]}
    async with attacked(schema) as (client, line):
        assert (await answered(client, line, {"when": "2026-01-02"})).data.when.year == 2026
        with pytest.raises(BadAnswer, match=r"\$.when: 1 is not of type"):
            await answered(client, line, {"when": 1})


# --- forms ------------------------------------------------------------------------------------------------------------


async def test_oversized_form_is_refused_before_the_user_sees_it() -> None:
    shown: list[Any] = []
    async with attacked(elicitation=shown.append) as (_, line):
        fields = {f"f{number}": {"type": "string"} for number in range(60_000)}
        form = {"type": "object", "properties": fields, "required": list(fields)}
        begun = time.process_time()
        answer = await line.call("elicitation/create", {"message": "?", "requestedSchema": form})
        assert time.process_time() - begun < PROMPT
        assert (answer["error"]["code"], shown) == (-32602, [])
        assert "the form is too large" in answer["error"]["message"]


async def test_form_defaults_cannot_block_the_client() -> None:
    async with attacked(elicitation=lambda _: {}) as (_, line):
        field = {"type": "string", "pattern": r"^(a|aa)+\1b$", "default": "a" * 60}
        form = {"type": "object", "properties": {f"f{number}": field for number in range(300)}}
        begun = time.process_time()
        answer = await line.call("elicitation/create", {"message": "?", "requestedSchema": form})
        assert time.process_time() - begun < PROMPT
        assert "error" in answer


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True], ids=["plain", "async"])
async def test_private_network_url_is_refused_without_asking(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"inside.example": "10.0.0.1", "outside.example": "93.184.216.34"}

    def look_up(host: str, *_: object, **__: object) -> list[object]:
        return [(0, 0, 0, "", (found[host], 0))]

    opened: list[str] = []

    def plain(question: Any) -> bool:
        opened.append(question.url)
        return True

    async def coroutine(question: Any) -> bool:
        return plain(question)

    monkeypatch.delenv("https_proxy", raising=False)
    monkeypatch.setattr("socket.getaddrinfo", look_up)
    async with attacked(open_url=coroutine if waits else plain) as (_, line):
        for url in (
            *("https://167772161/", "https://0xa.0.0.1/", "https://10.1/", "https://012.0.0.1/", "https://10.0.0.1./"),
            *("https://10\u30020.0.1/", "https://[64:ff9b::10.0.0.1]/", "https://x.example/\r\n\x1b[2J"),
            "https://inside.example/",
        ):
            answer = await line.call("elicitation/create", {"mode": "url", "message": "?", "url": url}, id=url)
            assert (answer["error"]["code"], opened) == (-32602, []), url
        asked = {"mode": "url", "message": "?", "url": "https://outside.example/"}
        answer = await line.call("elicitation/create", asked, id="last")
        assert (answer["result"], opened) == ({"action": "accept"}, ["https://outside.example/"])


@pytest.mark.parametrize(
    ("server", "local"),
    [
        ("https://mcp.example/mcp", False),
        ("wss://mcp.example/mcp", False),
        ("tcp://mcp.example:9000", False),
        ("http://127.0.0.1:8000/mcp", True),
        ("ws://localhost:8000/mcp", True),
        ("tcp://127.0.0.1:9000", True),
        ("unix:///run/mcp.sock", True),
        (["python", "server.py"], True),
    ],
    ids=str,
)
def test_only_a_local_server_may_refer_to_this_machine(server: Any, local: bool) -> None:
    settings = Settings(egress_allowed=("10.0.0.0/8",))
    reach = allowed_reach(make_connector(server, settings), settings)
    assert (reach.loopback, "10.0.0.0/8" in reach.allowed) == (local, True)


# --- texts ------------------------------------------------------------------------------------------------------------


async def test_server_text_is_escaped_for_terminals() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e" + "x" * 50_000
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with attacked(schema) as (client, line):
        call = asyncio.create_task(client.call_tool("bait"))
        line.error(await line.request("tools/call"), -32000, hostile)
        failures = [await failed(call)]
        call = asyncio.create_task(client.call_tool("bait"))
        told = [{"type": "text", "text": hostile}]
        line.reply(await line.request("tools/call"), {"content": told, "isError": True})
        failures.append(await failed(call))
        failures.append(await failed(asyncio.create_task(answered(client, line, {"a": hostile[:500]}))))
    for error in failures:
        assert "owned" in str(error)
        assert str(error).isprintable()
        assert len(str(error)) < 11_000


async def failed(call: "asyncio.Task[Any]") -> Exception:
    with pytest.raises(TrunklineError) as raised:
        await call
    return raised.value
