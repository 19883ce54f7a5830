"""A handler that raises a `BaseException` of its own is answered at once, and the connection goes on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Depends, Server
from trunkline.facts import HandlerFailed
from trunkline.server.middleware import Call, Next
from trunkline.testing import RawPeer, RecordingObserver, ScriptedServer


class Abort(BaseException):
    """Neither an `Exception` nor a signal to stop the process."""


async def abort_async() -> str:
    raise Abort("stop")


async def abort_later() -> str:
    await asyncio.sleep(0)
    raise Abort("stop")


def abort() -> str:
    raise Abort("stop")


async def abort_after_yield() -> AsyncIterator[str]:
    yield "value"
    raise Abort("stop")


def abort_after_yield_on_thread() -> Iterator[str]:
    yield "value"
    raise Abort("stop")


def register_tool(function: Callable[..., Any], **options: Any) -> Callable[[Server], None]:
    return lambda server: server.add_tool(function, name="work", **options)


def register_dependent(dependency: Callable[..., Any], *, thread: bool) -> Callable[[Server], None]:
    def register(server: Server) -> None:
        async def work(value: Annotated[str, Depends(dependency)]) -> str:
            return value

        def work_on_thread(value: Annotated[str, Depends(dependency)]) -> str:
            return value

        server.add_tool(work_on_thread if thread else work, name="work")

    return register


def register_middleware(server: Server) -> None:
    async def around(call: Call, following: Next) -> Any:
        raise Abort("stop")

    server.middleware(around)
    server.add_tool(lambda: "done", name="work")


def register_completion(server: Server) -> None:
    @server.prompt
    async def work(text: str = "") -> str:
        return text

    async def complete(value: str) -> list[str]:
        raise Abort("stop")

    server.add_completion(complete, prompt="work", argument="text")


TOOL = ("tools/call", {"name": "work"})
CASES: dict[str, tuple[Callable[[Server], None], tuple[str, Any]]] = {
    "a tool that does not wait": (register_tool(abort_async), TOOL),
    "a tool that waits": (register_tool(abort_later), TOOL),
    "a tool on a thread": (register_tool(abort), TOOL),
    "a tool on the loop": (register_tool(abort, thread=False), TOOL),
    "a dependency": (register_dependent(abort_later, thread=False), TOOL),
    "a dependency on a thread": (register_dependent(abort, thread=True), TOOL),
    "the end of a dependency": (register_dependent(abort_after_yield, thread=False), TOOL),
    "the end of a dependency on a thread": (register_dependent(abort_after_yield_on_thread, thread=True), TOOL),
    "middleware": (register_middleware, TOOL),
    "a prompt": (lambda server: server.add_prompt(abort_later, name="work"), ("prompts/get", {"name": "work"})),
    "a prompt on a thread": (lambda server: server.add_prompt(abort, name="work"), ("prompts/get", {"name": "work"})),
    "a resource": (lambda server: server.add_resource("a://b", abort_later), ("resources/read", {"uri": "a://b"})),
    "a resource on a thread": (
        lambda server: server.add_resource("a://b", abort),
        ("resources/read", {"uri": "a://b"}),
    ),
    "a completion": (
        register_completion,
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "work"}, "argument": {"name": "text", "value": ""}},
        ),
    ),
    "an idempotent call": (
        register_tool(abort_later),
        ("tools/call", {"name": "work", "_meta": {"trunkline/idempotency-key": "1"}}),
    ),
}


@pytest.mark.row("B16")
@pytest.mark.parametrize("case", CASES)
async def test_base_exception_is_internal_error(case: str) -> None:
    register, (method, params) = CASES[case]
    observer = RecordingObserver()
    server = Server("aborts", observers=[observer])
    register(server)
    async with RawPeer(server, patience=PATIENCE) as peer:
        await peer.initialize()
        answer = await peer.request(method, params)
        assert await peer.result("ping") == {}
    await server.aclose()
    if method == "tools/call":
        assert answer["result"]["isError"] is True
    else:
        assert answer["error"]["code"] == -32603
    assert "stop" not in str(answer)
    assert any(isinstance(fact.error, Abort) for fact in observer.of(HandlerFailed))


async def test_base_exception_fails_task() -> None:
    observer = RecordingObserver()
    server = Server("aborts", observers=[observer])
    server.add_tool(abort_later, name="work", task=True)
    async with RawPeer(server, patience=PATIENCE) as peer:
        await peer.initialize()
        task = (await peer.result("tools/call", {"name": "work", "task": {}}))["task"]
        result = await peer.result("tasks/result", {"taskId": task["taskId"]})
    await server.aclose()
    assert result["isError"] is True
    assert [type(fact.error) for fact in observer.of(HandlerFailed)] == [Abort]


@pytest.mark.parametrize("as_task", [False, True])
@pytest.mark.parametrize("sample", [abort_later, abort])
async def test_base_exception_in_client_callback_is_answered(
    sample: Callable[[], Awaitable[str] | str], as_task: bool
) -> None:
    observer, server = RecordingObserver(), ScriptedServer(patience=PATIENCE)

    def sampling(_: Any) -> Any:
        return sample()

    async def sampling_later(_: Any) -> Any:
        return await abort_later()

    function = sampling_later if sample is abort_later else sampling
    async with Client(server, sampling=function, observers=[observer]):
        params = {"messages": [], "maxTokens": 1, **({"task": {}} if as_task else {})}
        answer = await server.line.call("sampling/createMessage", params)
        if as_task:
            task = answer["result"]["task"]["taskId"]
            answer = await server.line.call("tasks/result", {"taskId": task}, id="s2")
        assert answer["error"]["code"] == -32603
        assert (await server.line.call("ping", id="s3"))["result"] == {}
    assert [type(fact.error) for fact in observer.of(HandlerFailed)] == [Abort]


@pytest.mark.parametrize("handler", [abort_later, abort])
async def test_base_exception_does_not_stop_other_notification_handlers(handler: Callable[[], Any]) -> None:
    observer, server, heard = RecordingObserver(), ScriptedServer(patience=PATIENCE), asyncio.Event()
    async with Client(server, observers=[observer]) as client:
        client.on("notifications/tools/list_changed", lambda _params: handler())
        client.on("notifications/tools/list_changed", lambda _params: heard.set())
        server.line.notify("notifications/tools/list_changed")
        async with asyncio.timeout(PATIENCE):
            await heard.wait()
            while not observer.of(HandlerFailed):
                await asyncio.sleep(0)
        assert (await server.line.call("ping"))["result"] == {}
    assert [type(fact.error) for fact in observer.of(HandlerFailed)] == [Abort]
