"""Middleware around each request that runs a handler."""

import asyncio
import sys
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.founding import FEATURES

from trunkline import Call, CallToolResult, Context, Server, Settings, TextContent, ToolError
from trunkline.errors import ProtocolError, RegistrationError
from trunkline.facts import HandlerFailed
from trunkline.testing import ManualClock, RawPeer, RecordingObserver


def server_with_everything(**options: Any) -> Server:
    server = Server("t", **{"observers": [], **options})

    @server.tool
    async def echo(text: str = "x") -> str:
        return text

    @server.tool
    def plain(text: str = "x") -> str:
        return text

    @server.tool(thread=False)
    def inline(text: str = "x") -> str:
        return text

    @server.tool
    async def fail() -> str:
        raise ToolError("no such luck")

    @server.resource("notes://{day}")
    async def note(day: str) -> str:
        return f"note of {day}"

    @server.prompt
    def greet(name: str) -> str:
        return f"Hello {name}"

    @server.completion(prompt="greet", argument="name")
    async def names(text: str) -> list[str]:
        return [text + "a"]

    return server


REF = {"type": "ref/prompt", "name": "greet"}
REQUESTS = [
    ("tools/call", "echo", {"name": "echo"}),
    ("tools/call", "plain", {"name": "plain"}),
    ("tools/call", "inline", {"name": "inline"}),
    ("resources/read", "notes://today", {"uri": "notes://today"}),
    ("prompts/get", "greet", {"name": "greet", "arguments": {"name": "you"}}),
    ("completion/complete", "greet", {"ref": REF, "argument": {"name": "name", "value": "b"}}),
]


async def ask(server: Server, method: str, params: Any) -> Any:
    async with RawPeer(server) as peer:
        await peer.initialize()
        answer = await peer.request(method, params)
    await server.aclose()
    return answer


@pytest.mark.parametrize(("method", "name", "params"), REQUESTS)
async def test_middleware_sees_every_handler_call(method: str, name: str, params: Any) -> None:
    bare = await ask(server_with_everything(), method, params)
    server, seen = server_with_everything(), []

    @server.middleware
    async def watch(call: Call, following: Any) -> Any:
        result = await following(call)
        seen.append((call.method, call.name, type(call.params).__name__, isinstance(call.context, Context)))
        return result

    assert await ask(server, method, params) == bare
    assert [entry[:2] for entry in seen] == [(method, name)]
    assert seen[0][2].endswith("Params")
    assert seen[0][3]


async def test_first_middleware_is_outermost() -> None:
    server, log = server_with_everything(), []

    def layer(name: str) -> Any:
        async def middleware(call: Call, following: Any) -> Any:
            log.append(name)
            result = await following(call)
            log.append(f"{name} ends")
            return result

        return server.middleware(middleware)

    layer("first")
    layer("second")
    await ask(server, "tools/call", {"name": "echo"})
    assert log == ["first", "second", "second ends", "first ends"]


async def test_requests_without_handler_bypass_middleware() -> None:
    server, seen = server_with_everything(), []

    @server.middleware
    async def watch(call: Call, following: Any) -> Any:
        seen.append(call.method)
        return await following(call)

    async with RawPeer(server) as peer:
        await peer.initialize()
        for method in ("ping", "tools/list", "resources/list", "prompts/list"):
            await peer.result(method)
    assert seen == []


async def test_middleware_added_while_serving_takes_effect() -> None:
    server = server_with_everything()

    async def upper(call: Call, following: Any) -> Any:
        return CallToolResult([TextContent("mine")], {"result": "mine"})

    async with RawPeer(server) as peer:
        await peer.initialize()
        before = await peer.result("tools/call", {"name": "echo"})
        server.middleware(upper)
        after = await peer.result("tools/call", {"name": "echo"})
    assert (before["content"][0]["text"], after["content"][0]["text"]) == ("x", "mine")


async def test_middleware_can_change_params_and_result() -> None:
    server = server_with_everything()

    @server.middleware
    async def loud(call: Call, following: Any) -> Any:
        params = msgspec.structs.replace(call.params, arguments=msgspec.Raw(b'{"text":"other"}'))
        result = await following(msgspec.structs.replace(call, params=params))
        return CallToolResult([TextContent(result.content[0].text + "!")], result.structured_content)

    answer = await ask(server, "tools/call", {"name": "echo"})
    assert answer["result"]["content"][0]["text"] == "other!"


async def test_middleware_sees_and_raises_exceptions() -> None:
    server, seen = server_with_everything(), []

    @server.middleware
    async def watch(call: Call, following: Any) -> Any:
        if call.name == "echo":
            raise ProtocolError("not today", code=7)
        try:
            return await following(call)
        except ToolError as error:
            seen.append(str(error))
            raise

    refused = await ask(server, "tools/call", {"name": "echo"})
    failed = await ask(server, "tools/call", {"name": "fail"})
    assert refused["error"]["code"] == 7
    assert failed["result"]["content"][0]["text"] == "no such luck"
    assert seen == ["no such luck"]


@pytest.mark.parametrize("wrong", [lambda: "text", lambda: None, lambda: sys.exit(2)])
async def test_invalid_middleware_result_is_an_internal_error(wrong: Any) -> None:
    observer = RecordingObserver()
    server = server_with_everything(observers=[observer])

    @server.middleware
    async def broken(call: Call, following: Any) -> Any:
        return wrong()

    answer = await ask(server, "prompts/get", {"name": "greet", "arguments": {"name": "you"}})
    assert answer["error"]["code"] == -32603
    told = str(observer.of(HandlerFailed)[0].error)
    assert "GetPromptResult is needed" in told or "sys.exit(2)" in told


@pytest.mark.row("R15")
async def test_request_without_a_name_reaches_its_handler() -> None:
    server, names = Server("t", observers=[]), []
    server.add_resource("doc://1", "text")

    @server.middleware
    async def around(call: Call, following: Any) -> Any:
        names.append(call.name)
        return await following(call)

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.error("resources/read", {"uri": ""}))["data"]["kind"] == "invalid_uri"
    assert names == [""]


@pytest.mark.row("T18")
async def test_tool_timeout_includes_middleware() -> None:
    clock, running = ManualClock(), asyncio.Event()
    server = Server("t", observers=[], clock=clock, settings=Settings(work_timeout=60))

    @server.tool(timeout=2)
    async def slow() -> str:
        running.set()
        return await asyncio.Event().wait()  # type: ignore[return-value]

    @server.middleware
    async def waiting(call: Call, following: Any) -> Any:
        await asyncio.sleep(0)
        return await following(call)

    async with RawPeer(server) as peer:
        await peer.initialize()
        ident = peer.call("tools/call", {"name": "slow"})
        await running.wait()
        clock.advance(3)
        answer = await peer.answer_to(ident)
    assert answer["result"]["_meta"]["trunkline/error"]["kind"] == "tool_execution_timeout"


def test_middleware_must_be_async() -> None:
    with pytest.raises(RegistrationError, match="middleware plain must be an async function"):

        @Server("t").middleware
        def plain(call: Call, following: Any) -> Any:
            return following(call)


async def test_server_with_fewer_features_supports_middleware() -> None:
    from trunkline.server.features import lifecycle, tools

    server = server_with_everything(features=[lifecycle.FEATURE, tools.FEATURE])

    @server.middleware
    async def through(call: Call, following: Any) -> Any:
        return await following(call)

    assert (await ask(server, "tools/call", {"name": "echo"}))["result"]["content"][0]["text"] == "x"
    assert (await ask(server, "prompts/get", {"name": "greet"}))["error"]["code"] == -32601


def test_server_without_middleware_has_unwrapped_handlers() -> None:
    server = server_with_everything()
    for feature in server._dispatcher.features:
        for name, handler in feature.handlers.items():
            assert server._dispatcher._prepare(name)[-1] is handler


# --- tasks -------------------------------------------------------------------------------------------


def server_of_tasks(seen: list[Any]) -> Server:
    server = Server("t", compat="erlmcp", observers=[])

    @server.tool(task=True)
    async def greet(name: str) -> str:
        seen.append("work")
        return f"Hello, {name}!"

    @server.middleware
    async def around(call: Call, following: Any) -> Any:
        params = call.params
        if call.name == "greet" and call.method == "tools/call":
            params = replace(params, arguments=Raw(b'{"name": "somebody else"}'))
        result = await following(replace(call, params=params))
        seen.append((call.method, call.name, type(result).__name__))
        return result

    return server


async def test_middleware_sees_the_creation_of_a_task() -> None:
    seen = list[Any]()
    async with RawPeer(server_of_tasks(seen)) as peer:
        await peer.initialize(capabilities=FEATURES)
        asked = {"name": "greet", "arguments": {"name": "Ann"}, "task": {}}
        task = (await peer.result("tools/call", asked))["task"]
        result = await peer.result("tasks/result", {"taskId": task["taskId"]})
    assert result["structuredContent"] == {"result": "Hello, somebody else!"}
    assert sorted(map(str, seen)) == ["('tools/call', 'greet', 'CreateTaskResult')", "work"]


async def test_middleware_wraps_founding_tasks() -> None:
    seen = list[Any]()
    taps, RawPeer.taps = RawPeer.taps, []  # no official schema has these words
    try:
        async with RawPeer(server_of_tasks(seen)) as peer:
            await peer.initialize(capabilities=FEATURES)
            action = {"type": "greet", "parameters": {"name": "Ann"}}
            assert (await peer.result("tasks/create", {"action": action})).keys() == {"taskId"}
            assert (await peer.error("tasks/create", {"action": {"type": "nothing"}}))["code"] == -32602
            await peer.quiet()
    finally:
        RawPeer.taps = taps
    assert sorted(map(str, seen)) == ["('tasks/create', 'greet', 'CreateFoundingTaskResult')", "work"]
