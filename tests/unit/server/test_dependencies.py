"""Dependencies: values that handlers get from functions of the server."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Any

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Context, Depends, Server, Settings, ToolError
from trunkline.errors import MisuseError, RegistrationError
from trunkline.facts import HandlerFailed
from trunkline.registry.handlers import read_handler
from trunkline.testing import ManualClock, RawPeer, RecordingObserver, connect


class Log(list[str]):
    """Events, in order."""


class ValueOnThread:
    """A value, and its thread."""

    def __init__(self, name: str = "valueonthread") -> None:
        self.name = name
        self.thread = threading.get_ident()


async def call(server: Server, **arguments: Any) -> Any:
    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tools/call", {"name": "tool", "arguments": arguments})
    await server.aclose()
    return result


def value_of(result: Any) -> Any:
    assert not result.get("isError"), result
    return result["structuredContent"]["result"]


# --- kinds of dependencies ----------------------------------------------------------------------------------------


def plain() -> ValueOnThread:
    return ValueOnThread("plain")


async def awaited() -> ValueOnThread:
    await asyncio.sleep(0)
    return ValueOnThread("awaited")


def generator() -> Iterator[ValueOnThread]:
    yield ValueOnThread("generator")


async def async_generator() -> AsyncIterator[ValueOnThread]:
    await asyncio.sleep(0)
    yield ValueOnThread("async_generator")


@contextmanager
def manager() -> Iterator[ValueOnThread]:
    yield ValueOnThread("manager")


@asynccontextmanager
async def async_manager() -> AsyncIterator[ValueOnThread]:
    yield ValueOnThread("async_manager")


class CallableObject:
    """A callable object."""

    def __call__(self) -> ValueOnThread:
        return ValueOnThread("Called")


KINDS = [
    plain,
    awaited,
    generator,
    async_generator,
    manager,
    async_manager,
    CallableObject(),
    partial(ValueOnThread, "partial"),
    ValueOnThread,
]


@pytest.mark.row("A12")
@pytest.mark.parametrize("function", KINDS, ids=lambda function: getattr(function, "__name__", "object"))
@pytest.mark.parametrize("handler", ["async", "thread", "inline"])
async def test_every_kind_of_function_serves_every_kind_of_handler(function: Callable[..., Any], handler: str) -> None:
    server = Server("t", observers=[])

    async def async_tool(word: str, place: Annotated[ValueOnThread, Depends(function)]) -> str:
        return f"{word} {place.name}"

    def plain_tool(word: str, place: Annotated[ValueOnThread, Depends(function)]) -> str:
        return f"{word} {place.name}"

    server.add_tool(
        async_tool if handler == "async" else plain_tool, name="tool", thread=False if handler == "inline" else None
    )
    value = value_of(await call(server, word="at"))
    assert value.startswith("at ")
    assert value.endswith(getattr(function, "__name__", value).lower()) or value in {"at Called", "at partial"}


@pytest.mark.parametrize("waits", [False, True])
async def test_annotated_context_manager_is_entered(waits: bool) -> None:
    server = Server("t", observers=[])

    @server.tool
    async def tool(place: Annotated[Any, Depends(entering_async if waits else entering)]) -> str:
        return place

    assert value_of(await call(server)) == "entered"


async def test_shared_dependency_is_inspected_once() -> None:
    server = Server("t", observers=[])

    async def deepest() -> int:
        return 1

    deeper: Any = deepest
    for _ in range(40):  # two paths to each: 2**40 paths down

        async def needing(a: Annotated[int, Depends(deeper)], b: Annotated[int, Depends(deeper)]) -> int:
            return max(a, b)

        deeper = needing

    @server.tool
    async def tool(value: Annotated[int, Depends(deeper)]) -> int:
        return value

    assert value_of(await call(server)) == 1


def entering_async() -> AbstractAsyncContextManager[str]:
    @asynccontextmanager
    async def made() -> AsyncIterator[str]:
        yield "entered"

    return made()


def entering() -> AbstractContextManager[str]:
    @contextmanager
    def made() -> Iterator[str]:
        yield "entered"

    return made()


async def test_dependency_can_be_a_parameter_default() -> None:
    server = Server("t", observers=[])

    @server.tool
    async def tool(
        word: str = "at",
        place: ValueOnThread = Depends(awaited),  # noqa: B008
        *,
        more: ValueOnThread = Depends(plain),  # noqa: B008
    ) -> str:
        return f"{word} {place.name} {more.name}"

    assert value_of(await call(server)) == "at awaited plain"


async def test_dependencies_are_not_tool_arguments() -> None:
    server = Server("t", observers=[])

    @server.tool
    async def tool(word: str, place: Annotated[ValueOnThread, Depends(awaited)], **more: Any) -> str:
        return f"{word} {place.name} {more}"

    async with RawPeer(server) as peer:
        await peer.initialize()
        listed = await peer.result("tools/list")
        given = await peer.result("tools/call", {"name": "tool", "arguments": {"word": "at", "place": "mine"}})
        other = await peer.result("tools/call", {"name": "tool", "arguments": {"word": "at", "x": 1}})
    assert list(listed["tools"][0]["inputSchema"]["properties"]) == ["word"]
    assert given["_meta"]["trunkline/error"]["kind"] == "invalid_tool_arguments"
    assert value_of(other) == "at awaited {'x': 1}"


async def test_all_kinds_of_handlers_support_dependencies() -> None:
    server = Server("t", observers=[])

    @server.resource("place://one")
    async def one(place: Annotated[ValueOnThread, Depends(awaited)]) -> str:
        return place.name

    @server.resource("place://{number}")
    def numbered(number: int, place: Annotated[ValueOnThread, Depends(generator)]) -> str:
        return f"{number} {place.name}"

    @server.prompt
    async def prompt(word: str, place: Annotated[ValueOnThread, Depends(async_generator)]) -> str:
        return f"{word} {place.name}"

    @server.completion(prompt="prompt", argument="word")
    def words(text: str, place: Annotated[ValueOnThread, Depends(plain)]) -> list[str]:
        return [f"{text} {place.name}"]

    async with RawPeer(server) as peer:
        await peer.initialize()
        first = await peer.result("resources/read", {"uri": "place://one"})
        second = await peer.result("resources/read", {"uri": "place://2"})
        prompts = await peer.result("prompts/list")
        third = await peer.result("prompts/get", {"name": "prompt", "arguments": {"word": "at"}})
        ref = {"type": "ref/prompt", "name": "prompt"}
        fourth = await peer.result("completion/complete", {"ref": ref, "argument": {"name": "word", "value": "x"}})
    assert first["contents"][0]["text"] == "awaited"
    assert second["contents"][0]["text"] == "2 generator"
    assert [argument["name"] for argument in prompts["prompts"][0]["arguments"]] == ["word"]
    assert third["messages"][0]["content"]["text"] == "at async_generator"
    assert fourth["completion"]["values"] == ["x plain"]


# --- dependencies of dependencies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("on_thread", [False, True])
async def test_dependency_runs_once_and_is_torn_down_in_reverse(on_thread: bool) -> None:
    log = Log()

    def first() -> Iterator[str]:
        log.append("first")
        yield "1"
        log.append("first ends")

    async def second(one: Annotated[str, Depends(first)], ctx: Context) -> AsyncIterator[str]:
        log.append(f"second of call {ctx.request_id}")
        yield f"{one}2"
        log.append("second ends")

    @contextmanager
    def third(one: Annotated[str, Depends(first)], two: str = Depends(second), more: str = "3") -> Iterator[str]:
        log.append("third")
        yield f"{two}{more}{one}"
        log.append("third ends")

    server = Server("t", observers=[])

    async def tool(three: Annotated[str, Depends(third)], one: Annotated[str, Depends(first)]) -> str:
        log.append("tool")
        return three + one

    def plain_tool(three: Annotated[str, Depends(third)], one: Annotated[str, Depends(first)]) -> str:
        log.append("tool")
        return three + one

    server.add_tool(plain_tool if on_thread else tool, name="tool")
    assert value_of(await call(server)) == "12311"
    assert log == ["first", "second of call 2", "third", "tool", "third ends", "second ends", "first ends"]


async def test_dependencies_are_not_shared_between_calls() -> None:
    made: list[int] = []

    async def number() -> int:
        made.append(len(made))
        return made[-1]

    server = Server("t", observers=[])

    @server.tool
    async def tool(value: Annotated[int, Depends(number)]) -> int:
        return value

    assert [value_of(await call(server)) for _ in range(2)] == [0, 1]


async def test_handler_with_dependencies_can_take_the_context() -> None:
    server = Server("t", observers=[])

    @server.tool
    async def tool(ctx: Context, word: str, place: Annotated[ValueOnThread, Depends(awaited)]) -> str:
        return f"{word} {place.name} {ctx.request_id}"

    assert value_of(await call(server, word="at")) == "at awaited 2"


def circle_a(value: Annotated[str, "to be marked"]) -> str:
    return value


def circle_b(value: Annotated[str, Depends(circle_a)]) -> str:
    return value


circle_a.__annotations__["value"] = Annotated[str, Depends(circle_b)]


def unknown(place) -> str:
    return place


def by_position(ctx: Context, /) -> str:
    return str(ctx)


def undefined(place: "Nowhere") -> str:  # noqa: F821
    return place


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (circle_a, "tool: a dependency depends on itself: circle_a -> circle_b -> circle_a"),
        (unknown, "tool: dependency unknown cannot be called, because of its parameter 'place': nothing can give it"),
        (by_position, "because of its parameter 'ctx': it can only be given by its name"),
        (undefined, "tool: dependency undefined: an annotation names something that is not defined"),
        (type, "tool: dependency type: its signature cannot be read"),
    ],
)
def test_unresolvable_dependency_is_refused_at_registration(function: Callable[..., Any], why: str) -> None:
    async def tool(place: Annotated[Any, Depends(function)]) -> str:
        return str(place)

    with pytest.raises(RegistrationError, match=why.replace("(", r"\(")):
        Server("t").add_tool(tool)


@pytest.mark.parametrize("function", ["text", None, type("Odd", (list,), {"__call__": lambda self: 1})()])
def test_non_callable_dependency_is_refused(function: Any) -> None:
    with pytest.raises(RegistrationError, match="a function is needed"):
        Depends(function)


def test_dependency_may_have_default_parameters() -> None:
    def lenient(*args: int, number: int = 1, **more: int) -> int:
        return number + len(args) + len(more)

    async def tool(number: Annotated[int, Depends(lenient)]) -> int:
        return number

    Server("t").add_tool(tool)


# --- threads ------------------------------------------------------------------------------------------------------


@pytest.mark.row("A12")
async def test_plain_dependencies_share_the_thread_of_their_handler() -> None:
    threads: list[int] = []

    def place() -> Iterator[ValueOnThread]:
        yield ValueOnThread()
        threads.append(threading.get_ident())

    def other(outer: Annotated[ValueOnThread, Depends(place)]) -> int:
        return outer.thread

    async def late() -> int:
        return threading.get_ident()

    server = Server("t", observers=[])

    @server.tool
    def tool(
        loop: Annotated[int, Depends(late)],
        first: Annotated[ValueOnThread, Depends(place)],
        second: Annotated[int, Depends(other)],
        third: Annotated[ValueOnThread, Depends(plain, thread=False)],
    ) -> list[bool]:
        threads.append(threading.get_ident())
        return [first.thread == second == threading.get_ident(), loop == third.thread != first.thread]

    assert value_of(await call(server)) == [True, True]
    assert len(threads) == 2
    assert len(set(threads)) == 1


@pytest.mark.row("A12")
@pytest.mark.parametrize("function", [plain, generator, manager])
async def test_plain_dependency_of_async_handler_runs_on_a_thread(
    function: Callable[..., Any],
) -> None:
    server = Server("t", observers=[])

    @server.tool(name="tool")
    async def slow(place: Annotated[ValueOnThread, Depends(function)]) -> bool:
        return place.thread == threading.get_ident()

    @server.tool
    async def quick(place: Annotated[ValueOnThread, Depends(function, thread=False)]) -> bool:
        return place.thread == threading.get_ident()

    async with RawPeer(server) as peer:
        await peer.initialize()
        answers = [value_of(await peer.result("tools/call", {"name": name})) for name in ("tool", "quick")]
    assert answers == [False, True]


# --- cleanup ------------------------------------------------------------------------------------------------------


class FailingServer:
    """A server whose tool fails with a dependency of some kind around it; records how the dependency ended."""

    def __init__(self, kind: str, fail: Callable[[], Any], swallow: bool = False) -> None:
        self.heard: list[str] = []
        self.observer = RecordingObserver()
        self.server = Server("t", observers=[self.observer])

        def heard(error: BaseException) -> None:
            self.heard.append(type(error).__name__)
            if not swallow:
                raise error

        def plain_one() -> Iterator[str]:
            try:
                yield "x"
            except BaseException as error:
                heard(error)

        async def async_one() -> AsyncIterator[str]:
            try:
                yield "x"
            except BaseException as error:
                heard(error)

        function = async_one if kind == "async" else plain_one

        async def tool(value: Annotated[str, Depends(function)]) -> str:
            return fail()

        def plain_tool(value: Annotated[str, Depends(function)]) -> str:
            return fail()

        self.server.add_tool(plain_tool if kind == "beside" else tool, name="tool")


def tool_error() -> None:
    raise ToolError("no such luck")


def not_a_string() -> Any:
    return 7


@pytest.mark.parametrize("kind", ["async", "thread", "beside"])
@pytest.mark.parametrize("swallow", [False, True])
async def test_exception_of_a_call_reaches_its_dependencies(kind: str, swallow: bool) -> None:
    ending = FailingServer(kind, tool_error, swallow)
    result = await call(ending.server)
    assert result["isError"]
    assert result["content"][0]["text"] == "no such luck"
    assert ending.heard == ["ToolError"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_invalid_result_reaches_the_dependencies(kind: str) -> None:
    ending = FailingServer(kind, not_a_string)
    assert (await call(ending.server))["isError"]
    assert ending.heard == ["BadResult"]


@pytest.mark.parametrize("kind", ["async", "thread", "beside"])
async def test_sys_exit_in_a_dependency_does_not_stop_the_server(kind: str) -> None:
    ending = FailingServer(kind, lambda: sys.exit(3))
    assert (await call(ending.server))["isError"]
    assert "sys.exit(3)" in str(ending.observer.of(HandlerFailed)[0].error)
    assert ending.heard == ["SystemExit"]


async def test_failing_dependency_tears_down_earlier_ones() -> None:
    log = Log()

    async def first() -> AsyncIterator[None]:
        try:
            yield
        finally:
            log.append("first ends")

    def second(first: Annotated[None, Depends(first)]) -> str:
        raise ToolError("the database is away")

    server = Server("t", observers=[])

    @server.tool
    async def tool(value: Annotated[str, Depends(second)]) -> str:
        log.append("tool")
        return value

    result = await call(server)
    assert result["content"][0]["text"] == "the database is away"
    assert log == ["first ends"]


async def test_cancelled_call_tears_down_its_dependencies() -> None:
    log, running = Log(), asyncio.Event()

    async def place() -> AsyncIterator[str]:
        try:
            yield "x"
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            log.append("undone")
            ended.set()
            raise

    ended = asyncio.Event()
    server = Server("t", observers=[])

    @server.tool
    async def tool(value: Annotated[str, Depends(place)]) -> str:
        running.set()
        await asyncio.Event().wait()
        return value

    async with RawPeer(server) as peer:
        await peer.initialize()
        ident = peer.call("tools/call", {"name": "tool"})
        await running.wait()
        peer.notify("notifications/cancelled", {"requestId": ident})
        await asyncio.wait_for(ended.wait(), PATIENCE)
        assert await peer.quiet() == []
    assert log == ["undone"]


@pytest.mark.parametrize("early", [True, False], ids=["while it is set up", "while the handler runs"])
async def test_teardown_waits_for_the_thread_that_uses_it(early: bool) -> None:
    log, go, ended = Log(), threading.Event(), asyncio.Event()
    running = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(name: str) -> None:
        loop.call_soon_threadsafe(running.set)
        go.wait(PATIENCE)
        log.append(f"{name} is done")

    async def outer() -> AsyncIterator[str]:
        try:
            yield "x"
        finally:
            log.append("outer ends")
            ended.set()

    def inner(value: Annotated[str, Depends(outer)]) -> Iterator[str]:
        if early:
            work("inner")
        try:
            yield value
        finally:
            log.append("inner ends")

    async def between(value: Annotated[str, Depends(inner)]) -> str:
        return value

    clock = ManualClock()
    server = Server("t", observers=[], clock=clock, settings=Settings(work_timeout=5))

    @server.tool
    def tool(value: Annotated[str, Depends(between)]) -> str:
        work("tool")
        return value

    async with RawPeer(server) as peer:
        await peer.initialize()
        ident = peer.call("tools/call", {"name": "tool"})
        await running.wait()
        clock.advance(6)
        answer = await peer.answer_to(ident)  # while the thread still works
        assert answer["result"]["_meta"]["trunkline/error"]["kind"] == "tool_execution_timeout"
        assert log == []
        go.set()
        await asyncio.wait_for(ended.wait(), PATIENCE)
    await server.aclose()
    assert log == [f"{'inner' if early else 'tool'} is done", "inner ends", "outer ends"]


class BusyThreadServer:
    """A server whose only thread is busy until the test releases it, and a tool that has to wait for it."""

    def __init__(self) -> None:
        self.go, self.running = threading.Event(), asyncio.Event()
        self.placed, self.ended = asyncio.Event(), asyncio.Event()
        self.begun: list[str] = []
        self.server = Server("t", observers=[], settings=Settings(max_threads=1, drain_timeout=0.01))
        loop = asyncio.get_running_loop()

        async def place() -> AsyncIterator[str]:
            self.placed.set()
            try:
                yield "x"
            finally:
                self.ended.set()

        @self.server.tool
        def occupy() -> None:
            loop.call_soon_threadsafe(self.running.set)
            self.go.wait(PATIENCE)

        @self.server.tool
        def tool(value: Annotated[str, Depends(place)]) -> str:
            self.begun.append(value)
            loop.call_soon_threadsafe(self.running.set)
            self.go.wait(PATIENCE)
            return value


async def test_cancelled_wait_for_a_thread_tears_down_at_once() -> None:
    occupied = BusyThreadServer()
    async with RawPeer(occupied.server) as peer:
        await peer.initialize()
        peer.call("tools/call", {"name": "occupy"})
        await occupied.running.wait()
        ident = peer.call("tools/call", {"name": "tool"})
        await occupied.placed.wait()
        await peer.quiet()
        peer.notify("notifications/cancelled", {"requestId": ident})
        await asyncio.wait_for(occupied.ended.wait(), PATIENCE)  # though the thread is still busy
        occupied.go.set()
        await peer.result("tools/call", {"name": "occupy"})
    assert occupied.begun == []
    await occupied.server.aclose()


async def test_teardown_runs_if_the_thread_outlives_the_server() -> None:
    occupied = BusyThreadServer()
    async with RawPeer(occupied.server) as peer:
        await peer.initialize()
        peer.call("tools/call", {"name": "tool"})
        await occupied.running.wait()
    await occupied.server.aclose()
    assert not occupied.ended.is_set()
    occupied.go.set()
    await asyncio.wait_for(occupied.ended.wait(), PATIENCE)


@pytest.mark.parametrize("at_once", [True, False])
async def test_second_cancellation_abandons_a_hanging_thread(at_once: bool) -> None:
    go, running, ended = threading.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[Any]] = []

    async def place() -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            yield "x"
        finally:
            ended.set()

    server = Server("t", observers=[], settings=Settings(max_threads=1))

    @server.tool
    def tool(value: Annotated[str, Depends(place)]) -> str:
        loop.call_soon_threadsafe(running.set)
        go.wait(PATIENCE)
        return value

    async with RawPeer(server) as peer:
        await peer.initialize()
        peer.call("tools/call", {"name": "tool"})
        await running.wait()
    if not at_once:
        for _ in range(10):
            await asyncio.sleep(0)
    assert not ended.is_set()
    tasks[0].cancel()
    await asyncio.wait_for(ended.wait(), PATIENCE)
    go.set()
    assert value_of(await call(server)) == "x"  # on the same thread, once it is free


async def test_queued_dependency_of_a_cancelled_call_never_runs() -> None:
    log, go, running = Log(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    server = Server("t", observers=[], settings=Settings(max_threads=1))

    def place() -> Iterator[str]:
        log.append("place")
        yield "x"

    @server.tool
    def block() -> str:
        loop.call_soon_threadsafe(running.set)
        go.wait(PATIENCE)
        return "blocked"

    @server.tool
    async def tool(value: Annotated[str, Depends(place)]) -> str:
        return value

    async with RawPeer(server) as peer:
        await peer.initialize()
        first = peer.call("tools/call", {"name": "block"})
        await running.wait()
        second = peer.call("tools/call", {"name": "tool"})
        await peer.quiet()
        peer.notify("notifications/cancelled", {"requestId": second})
        await peer.quiet()
        go.set()
        assert value_of((await peer.answer_to(first))["result"]) == "blocked"
        assert value_of(await peer.result("tools/call", {"name": "block"})) == "blocked"
    await server.aclose()
    assert log == []


# --- overrides ----------------------------------------------------------------------------------------------------


def real() -> str:
    return "real"


def wrapped(inner: Annotated[str, Depends(real)]) -> str:
    return f"<{inner}>"


def make_overridable() -> Server:
    server = Server("t")

    @server.tool(name="plain")
    def plain_tool(value: Annotated[str, Depends(wrapped)]) -> str:
        return value

    @server.tool(name="async")
    async def async_tool(value: Annotated[str, Depends(wrapped)]) -> str:
        return value

    @server.tool(name="generator", structured=False)
    async def generator_tool(value: Annotated[str, Depends(wrapped)]) -> AsyncIterator[str]:
        yield value

    @server.resource("value://{name}")
    async def resource(name: str, value: Annotated[str, Depends(wrapped)]) -> str:
        return value

    @server.prompt
    async def prompt(value: Annotated[str, Depends(wrapped)]) -> str:
        return value

    return server


async def values_of(server: Server) -> set[str]:
    async with Client(server) as client:
        tools = [(await client.call_tool(name)).text for name in ("plain", "async", "generator")]
        (resource,) = await client.read_resource("value://any")
        (message,) = (await client.get_prompt("prompt")).messages
    return {*tools, resource.text, message.content.text}


async def fake_awaited() -> str:
    return "awaited"


def fake_generator() -> Iterator[str]:
    yield "generated"


def fake_around(inner: Annotated[str, Depends(real)]) -> str:
    return f"around {inner}"


@pytest.mark.parametrize(
    ("fake", "shown"),
    [
        (lambda: "fake", "fake"),
        (fake_awaited, "awaited"),
        (fake_generator, "generated"),
        (fake_around, "around real"),
    ],
)
async def test_override_replaces_a_dependency_until_the_block_ends(fake: Callable[..., Any], shown: str) -> None:
    server = make_overridable()
    with server.override({real: fake}):
        assert await values_of(server) == {f"<{shown}>"}
    assert await values_of(server) == {"<real>"}


async def test_overrides_may_overlap_in_any_order() -> None:
    server = make_overridable()
    first, second = server.override({real: lambda: "first"}), server.override({real: lambda: "second"})
    with server.override({wrapped: lambda: "outer"}):
        assert await values_of(server) == {"outer"}
    first.__enter__()
    second.__enter__()
    assert await values_of(server) == {"<second>"}
    first.__exit__(None, None, None)
    assert await values_of(server) == {"<second>"}
    second.__exit__(None, None, None)
    assert await values_of(server) == {"<real>"}


async def test_running_call_keeps_the_overrides_it_started_with() -> None:
    server, started, go = Server("t"), asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        started.set()
        await go.wait()
        return "slow"

    @server.tool
    async def tool(first: Annotated[str, Depends(slow)], second: Annotated[str, Depends(real)]) -> str:
        return f"{first} {second}"

    async with Client(server) as client:
        with server.override({real: lambda: "fake"}):
            call = asyncio.create_task(client.call_tool("tool"))
            await asyncio.wait_for(started.wait(), PATIENCE)
        go.set()
        assert (await call).data == "slow fake"
        assert (await client.call_tool("tool")).data == "slow real"


def test_unusable_override_is_refused() -> None:
    server = make_overridable()
    with pytest.raises(MisuseError, match="no handler of this server depends on fake_awaited"):
        server.override({fake_awaited: real}).__enter__()
    with pytest.raises(MisuseError, match="the override of real is a function, such as `lambda: 'fake'`"):
        server.override({real: "fake"}).__enter__()  # type: ignore[dict-item]
    with pytest.raises(RegistrationError, match="parameter 'place'"):
        server.override({real: unknown}).__enter__()
    assert not server._overrides


async def test_override_takes_the_context_only_if_there_is_one() -> None:
    server = Server("t")

    def fake(ctx: Context) -> str:
        return type(ctx).__name__

    @server.tool
    async def without(value: Annotated[str, Depends(real)]) -> str:
        return value

    @server.tool
    async def with_context(ctx: Context, value: Annotated[str, Depends(real)]) -> str:
        return value

    async with connect(server) as client:
        with server.override({real: fake}):
            assert (await client.call_tool("with_context")).data == "Context"
            with pytest.raises(MisuseError, match="takes the Context"):
                await client.call_tool("without")


def test_handler_without_a_server_has_its_own_dependencies() -> None:
    def handler(value: Annotated[str, Depends(real)]) -> str:
        return value

    plan = read_handler(handler, Context).plan
    assert plan is not None
    assert plan.current(None) is plan
