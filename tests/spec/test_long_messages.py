"""Long messages take other code paths for reading and writing, with the same results."""

from decimal import Decimal
from typing import Any

import pytest
from msgspec import Raw

from trunkline import Call, CallToolResult, Context, Server
from trunkline.testing import RawPeer
from trunkline.wire import codec

LONG = 'a line\n with "quotes", \\, é and \U0001f600 ' * 2000
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "times": {"default": 1}}, "required": ["text"]}


def make_server() -> Server:
    server = Server("t", observers=[])

    @server.tool
    async def echo(text: str, times: int = 1) -> str:
        return text * times

    @server.tool(input_schema=SCHEMA)
    async def by_schema(text: str, times: int) -> str:
        return text * times

    @server.tool
    async def keeps_all(text: str, **more: Any) -> str:
        return text + repr(more)

    @server.tool
    async def exact(text: str, ratio: Decimal) -> str:
        return text + str(ratio)

    @server.tool
    async def nothing() -> str:
        return "nothing"

    @server.tool
    async def token(ctx: Context) -> str:
        return str(ctx.progress_token)

    @server.prompt
    async def greet(name: str) -> str:
        return f"Hello {name}"

    return server


async def ask(params: Any, method: str = "tools/call", server: Server | None = None, **options: Any) -> Any:
    async with RawPeer(server or make_server()) as peer:
        await peer.initialize(**options)
        return await peer.request(method, params)


async def call(name: str, **arguments: Any) -> Any:
    return await ask({"name": name, "arguments": arguments})


def text_of(answer: Any) -> str:
    (block,) = answer["result"]["content"]
    return block["text"]


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25"])
async def test_long_text_is_echoed_unchanged(revision: str) -> None:
    assert len(LONG) > codec.LONG_THRESHOLD
    answer = await ask({"name": "echo", "arguments": {"text": LONG}}, revision=revision)

    assert text_of(answer) == LONG
    structured = None if revision == "2024-11-05" else {"result": LONG}
    assert answer["result"].get("structuredContent") == structured


async def test_text_that_grows_when_escaped_is_echoed_unchanged() -> None:
    assert text_of(await call("echo", text="ab", times=20_000)) == "ab" * 20_000


@pytest.mark.parametrize(
    ("name", "more", "expected"),
    [
        ("by_schema", {}, LONG),
        ("keeps_all", {"a": [1, 2.5]}, LONG + "{'a': [1, 2.5]}"),
        ("exact", {"ratio": 0.5}, LONG + "0.5"),
        ("echo", {"times": "1"}, LONG),  # a number inside of a string, as some models send it
    ],
)
async def test_every_kind_of_tool_accepts_long_arguments(name: str, more: dict[str, Any], expected: str) -> None:
    assert text_of(await call(name, text=LONG, **more)) == expected


async def test_number_in_a_long_message_keeps_its_digits() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        arguments = {"text": LONG, "ratio": Raw(b"0.12345678901234567890")}
        answer = await peer.request("tools/call", {"name": "exact", "arguments": arguments})

    assert text_of(answer) == LONG + "0.12345678901234567890"


@pytest.mark.parametrize("name", ["echo", "by_schema"])
@pytest.mark.parametrize("wrong", [{"times": "many"}, {"times": 1.5}, {"text": 1}, {"more": 1}, {}])
async def test_invalid_long_arguments_get_the_usual_error(name: str, wrong: dict[str, Any]) -> None:
    short = await ask({"name": name, "arguments": wrong})
    long = await ask({"name": name, "arguments": wrong, "_meta": {"padding": LONG}})

    assert short == long
    assert short["result"]["isError"] is True


@pytest.mark.parametrize("params", [{"name": "nothing", "arguments": None}, {"name": 5}, {"name": "nobody"}, {}])
async def test_long_params_are_answered_like_short_ones(params: dict[str, Any]) -> None:
    assert await ask({**params, "_meta": {"padding": LONG}}) == await ask(params)


async def test_progress_token_in_a_long_message_works() -> None:
    assert text_of(await ask({"name": "token", "_meta": {"padding": LONG, "progressToken": 5}})) == "5"


async def test_other_methods_accept_long_params() -> None:
    answer = await ask({"name": "greet", "arguments": {"name": LONG}}, "prompts/get")

    assert answer["result"]["messages"][0]["content"]["text"] == f"Hello {LONG}"


async def test_middleware_sees_long_arguments_as_raw_json() -> None:
    server, seen = make_server(), []

    @server.middleware
    async def look(call: Call, following: Any) -> CallToolResult:
        result = await following(call)
        seen.append((call.params.arguments, result))
        return result

    answer = await ask({"name": "echo", "arguments": {"text": LONG}}, server=server)

    ((arguments, result),) = seen
    assert codec.decoder(object)(arguments) == {"text": LONG}
    assert isinstance(arguments, Raw)
    assert (result.content[0].text, result.structured_content) == (LONG, {"result": LONG})
    assert text_of(answer) == LONG
