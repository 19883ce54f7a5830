"""A client does not belong to a task: callers open and close it from anywhere, in any order, and nothing is left.

A caller never sees an exception group or a cancellation that it did not ask for.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.processes import children, command, eventually, gone, light, nothing_left

from trunkline import BlockingClient, Client, Server, Settings
from trunkline.client.loop_thread import _LoopCall
from trunkline.errors import ConnectionClosed, MisuseError, OutcomeUnknown, TransportError, TrunklineError
from trunkline.protocol.lifecycle import Phase
from trunkline.testing import ScriptedServer

STUBBORN = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("mute", file=sys.stderr, flush=True)
    while True:
        time.sleep(60)
"""


def in_process() -> Server:
    server = Server("near")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def wait() -> None:
        await asyncio.Event().wait()

    return server


Target = Callable[[], Any]


@pytest.fixture(params=["process", "in_process"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return in_process if request.param == "in_process" else partial(light, tmp_path / "effects")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# --- tasks -------------------------------------------------------------------------------------------


async def test_clients_opened_in_one_task_close_in_others_in_any_order(
    target: Target,
) -> None:
    clients = [Client(target()) for _ in range(3)]

    async def open_all() -> None:
        for client in clients:
            await client.open()

    async def close_all() -> None:
        for client in clients:
            await client.close()

    with nothing_left():
        for _ in range(2):
            await asyncio.create_task(open_all())
            answers = await asyncio.gather(*(client.call_tool("echo", {"text": "x"}) for client in clients))
            assert [answer.data for answer in answers] == ["x"] * 3
            await asyncio.gather(asyncio.create_task(close_all()), asyncio.create_task(close_all()))
            assert [client.phase for client in clients] == [Phase.CLOSED] * 3


async def test_failing_task_group_around_a_client_raises_only_its_error(target: Target) -> None:
    client = Client(target())
    using = asyncio.Event()

    async def use() -> None:
        async with client:
            using.set()
            await client.call_tool("wait")

    async def fail() -> None:
        await using.wait()
        raise ValueError("mine")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(use())
            group.create_task(fail())

    with nothing_left():
        with pytest.raises(ExceptionGroup) as raised:
            await both()
        assert [str(error) for error in raised.value.exceptions] == ["mine"]


async def test_client_may_outlive_the_task_group_that_opened_it(target: Target) -> None:
    client = Client(target())
    with nothing_left():
        async with asyncio.TaskGroup() as group:
            group.create_task(client.open())
        assert (await client.call_tool("echo", {"text": "later"})).data == "later"
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(client.close())


async def test_cancelled_open_leaves_nothing_behind() -> None:
    client = Client(command(STUBBORN), settings=Settings(stop_timeout=0.05))
    with nothing_left():
        opening = asyncio.create_task(client.open())
        await asyncio.sleep(0)
        while not children():
            await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await client.close()


async def test_caller_timeout_has_no_side_effects(target: Target) -> None:
    client = Client(target())
    with nothing_left():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await client.open()
        async with client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.call_tool("wait")
            assert (await client.call_tool("echo", {"text": "still"})).data == "still"
        await client.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await client.close()
        await client.close()


async def test_client_can_be_opened_while_closing(target: Target) -> None:
    client = Client(target())
    await client.open()
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    assert await client.open() is client
    await closing
    assert (await client.call_tool("echo", {"text": "again"})).data == "again"
    await client.close()


async def test_concurrent_closes_and_opens_do_not_interfere(target: Target) -> None:
    client = Client(target())
    await client.open()

    async def reopen() -> None:
        await client.close()
        await client.open()

    await asyncio.gather(reopen(), client.close(), client.close())
    await client.ping()
    await client.close()


async def test_client_can_be_opened_right_after_a_cancelled_open() -> None:
    server = ScriptedServer(answered=["ping"])
    client = Client(server)
    opening = asyncio.create_task(client.open())
    await server.connected(1)
    opening.cancel()
    await asyncio.sleep(0)
    server.answered.add("initialize")
    await client.open()
    await client.ping()
    await client.close()


async def test_opener_learns_that_another_task_closed_the_client() -> None:
    server = ScriptedServer(answered=[])
    client = Client(server)
    opening = asyncio.create_task(client.open())
    await server.connected(1)
    await client.close()
    with pytest.raises(ConnectionClosed, match="the client was closed"):
        await opening


async def test_client_closed_by_its_own_handler_closes() -> None:
    server = ScriptedServer()
    client = Client(server)

    async def close(_: Any) -> None:
        await client.close()

    with nothing_left():
        await client.open()
        call = asyncio.create_task(client.call_tool("slow", on_progress=close))
        request = await server.line.request("tools/call")
        token = request["params"]["_meta"]["progressToken"]
        server.line.notify("notifications/progress", {"progressToken": token, "progress": 1})
        with pytest.raises(OutcomeUnknown, match="the client was closed"):
            await call
        await settle()
        assert client.phase is Phase.CLOSED


async def test_cancelled_close_leaves_no_handler_thread() -> None:
    server = ScriptedServer()
    client = Client(server, sampling=lambda _: "a plain function runs on a thread")
    with nothing_left():
        await client.open()
        asked = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 1}
        await server.line.call("sampling/createMessage", asked)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        await settle()
        assert client.phase is Phase.CLOSED


async def test_failing_server_lifespan_is_the_reason_of_a_failed_open() -> None:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    client = Client(Server("s", lifespan=lifespan))
    with pytest.raises(TransportError, match="no database") as raised:
        await client.open()
    assert isinstance(raised.value.__cause__, ValueError)
    assert client.phase is Phase.FAILED


# --- frameworks --------------------------------------------------------------------------------------


@pytest.fixture
async def fixed(target: Target) -> AsyncIterator[Client]:
    async with Client(target()) as client:
        yield client


async def test_fixture_may_hold_a_client(fixed: Client) -> None:
    assert (await fixed.call_tool("echo", {"text": "x"})).data == "x"


async def test_test_may_close_the_client_of_its_fixture(fixed: Client) -> None:
    await fixed.close()
    with pytest.raises(ConnectionClosed):
        await fixed.ping()


async def test_asgi_lifespan_may_hold_a_client(target: Target) -> None:
    """Like uvicorn: startup and shutdown in one task, each request in its own."""
    client = Client(target())
    inbox: asyncio.Queue[str] = asyncio.Queue()
    outbox: asyncio.Queue[str] = asyncio.Queue()

    async def application() -> None:
        assert await inbox.get() == "lifespan.startup"
        async with client:
            await outbox.put("lifespan.startup.complete")
            assert await inbox.get() == "lifespan.shutdown"
        await outbox.put("lifespan.shutdown.complete")

    with nothing_left():
        lifespan = asyncio.create_task(application())
        await inbox.put("lifespan.startup")
        assert await outbox.get() == "lifespan.startup.complete"
        requests = [asyncio.create_task(client.call_tool("echo", {"text": str(n)})) for n in range(10)]
        hung_up = asyncio.create_task(client.call_tool("wait"))
        assert [(await request).data for request in requests] == [str(n) for n in range(10)]
        hung_up.cancel()
        await inbox.put("lifespan.shutdown")
        assert await outbox.get() == "lifespan.shutdown.complete"
        await asyncio.wait([lifespan, hung_up])


# --- loops and threads -------------------------------------------------------------------------------


def test_loop_may_end_without_closing_its_client(target: Target) -> None:
    client = Client(target())

    async def leave_open() -> None:
        await client.open()
        asyncio.create_task(client.call_tool("wait"))  # noqa: RUF006 - left alone on purpose
        await asyncio.sleep(0)

    with nothing_left():
        for _ in range(2):
            asyncio.run(leave_open())
        assert client.phase is Phase.CLOSED
        asyncio.run(client.close())
        asyncio.run(client.close())


@pytest.mark.parametrize("when", ["opening", "closing"])
def test_ending_loop_still_stops_a_stubborn_server(when: str, tmp_path: Path) -> None:
    brief = Settings(stop_timeout=0.2)
    started: set[int] = set()
    closing = threading.Event()
    before = set(children())  # servers that several tests share

    async def open_one() -> None:
        await Client(command(STUBBORN), settings=brief).open()

    async def close_one() -> None:
        client = await Client(light(tmp_path / "effects"), settings=brief).open()
        asyncio.create_task(client.call_tool("stay"))  # noqa: RUF006 - left alone on purpose
        while not (tmp_path / "effects").read_text():
            await asyncio.sleep(0.01)
        closing.set()
        await client.close()

    async def give_up() -> None:
        doing = asyncio.create_task(open_one() if when == "opening" else close_one())
        while not (set(children()) - before if when == "opening" else closing.is_set()):
            await asyncio.sleep(0.01)
        doing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doing
        started.update(set(children()) - before)

    with nothing_left():
        asyncio.run(give_up())
        assert len(started) == 1
        assert gone(started.pop())


def test_client_is_usable_from_threads_with_their_own_loops(target: Target) -> None:
    client = Client(target())
    answers: list[Any] = []

    async def use() -> None:
        await client.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.call_tool("wait")
        answers.append((await client.call_tool("echo", {"text": "x"})).data)

    async def home() -> None:
        await client.open()
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, use()) for _ in range(3)))
        assert client.pending() == []
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, client.close()) for _ in range(3)))
        assert client.phase is Phase.CLOSED
        await asyncio.to_thread(asyncio.run, client.close())

    with nothing_left():
        asyncio.run(home())
    assert answers == ["x"] * 3


def test_caller_on_another_loop_learns_that_the_loop_ended(target: Target) -> None:
    client, ready, leave = Client(target()), threading.Event(), threading.Event()
    failures: list[BaseException] = []

    async def home() -> None:
        await client.open()
        ready.set()
        while not client.pending() or client.pending()[-1].method != "tools/call":
            await asyncio.sleep(0.001)

    async def use() -> None:
        try:
            await client.call_tool("wait")
        except BaseException as error:
            failures.append(error)

    with nothing_left():
        thread = threading.Thread(target=asyncio.run, args=(home(),))
        thread.start()
        assert ready.wait(PATIENCE)
        asyncio.run(use())
        thread.join()
        leave.set()
    assert [type(error) for error in failures] == [OutcomeUnknown]
    with pytest.raises(MisuseError, match="has ended"):
        asyncio.run(client.ping())


def test_blocking_calls_on_all_threads_end_with_the_client(target: Target) -> None:
    outcomes: list[Any] = []

    def use() -> None:
        try:
            client.call_tool("wait")
        except BaseException as error:
            outcomes.append(error)

    with nothing_left():
        client = BlockingClient(target()).open()
        threads = [threading.Thread(target=use) for _ in range(5)]
        for thread in threads:
            thread.start()
        eventually(lambda: len([one for one in client.pending() if one.method == "tools/call"]) == 5)
        closers = [threading.Thread(target=client.close) for _ in range(3)]
        for thread in closers:
            thread.start()
        for thread in (*threads, *closers):
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 5


def test_blocking_client_may_be_used_while_closing() -> None:
    """A late caller gets an error; no caller waits for ever."""
    outcomes: list[BaseException] = []

    def use() -> None:
        try:
            while True:
                client.ping()
        except BaseException as error:
            outcomes.append(error)

    with nothing_left():
        for _ in range(10):
            client = BlockingClient(in_process()).open()
            threads = [threading.Thread(target=use) for _ in range(3)]
            for thread in threads:
                thread.start()
            client.ping()
            client.close()
            for thread in threads:
                thread.join(PATIENCE)
                assert not thread.is_alive()
    assert len(outcomes) == 30
    assert all(isinstance(error, TrunklineError) for error in outcomes), outcomes


def test_second_ctrl_c_while_closing_leaves_no_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[BaseException] = []

    def use() -> None:
        try:
            client.call_tool("wait")
        except BaseException as error:
            outcomes.append(error)

    wait = _LoopCall[Any].wait

    def interrupted(self: "_LoopCall[Any]", timeout: float | None = None) -> Any:
        if threading.current_thread() is thread:  # it may only now begin to wait for its outcome
            return wait(self, timeout)
        monkeypatch.undo()
        raise KeyboardInterrupt

    with nothing_left():
        client = BlockingClient(in_process()).open()
        thread = threading.Thread(target=use)
        thread.start()
        eventually(lambda: [one for one in client.pending() if one.method == "tools/call"])
        monkeypatch.setattr(_LoopCall, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown]


def test_in_process_server_of_a_blocking_client_shuts_down_cleanly() -> None:
    ended: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            ended.append("lifespan")

    with BlockingClient(Server("s", lifespan=lifespan)) as client:
        client.ping()
    assert ended == ["lifespan"]


# --- processes ---------------------------------------------------------------------------------------


async def test_process_that_outlives_its_output_is_stopped(tmp_path: Path) -> None:
    """It ignores the end of its input and SIGTERM. Its successor behaves."""
    effects = tmp_path / "effects"
    with nothing_left():
        async with Client(light(effects), settings=Settings(stop_timeout=0.3)) as client:
            with pytest.raises(OutcomeUnknown, match="closed its standard output"):
                await client.call_tool("mute")
            await client.ping()
            first = int(effects.read_text())
        assert gone(first)
