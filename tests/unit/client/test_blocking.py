"""The client that waits, for scripts and notebooks."""

import _weakrefset
import asyncio
import gc
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE

from trunkline import BlockingClient, Context, Server, Settings
from trunkline.errors import MisuseError, RequestTimeout, ToolFailed
from trunkline.protocol.lifecycle import Phase
from trunkline.testing import ScriptedServer


def make_server() -> Server:
    server = Server("shop")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def fail() -> int:
        raise ValueError

    @server.tool
    async def ask(ctx: Context) -> str:
        ctx.progress(1)
        sampled = await ctx.sample("hi")
        return str(sampled.content)

    server.add_resource("a:1", lambda: "one")
    server.add_resource("a:{name}", lambda name: name)
    server.add_prompt("Hello {name}", name="greet")
    server.add_completion(["Ada"], argument="name", prompt="greet")
    return server


@pytest.mark.parametrize(
    ("revision", "sign_of_life", "runs"),
    [("2025-11-25", "ping", 1), ("2026-07-28", "server/discover", 2)],  # one more with the answer, in the modern era
)
def test_calls_wait_for_their_result(revision: str, sign_of_life: str, runs: int) -> None:
    heard: list[Any] = []
    with BlockingClient(make_server(), revision=revision, sampling=lambda _: "sampled") as client:
        assert client.phase is Phase.READY
        assert client.server_info is not None
        assert "tools" in client.capabilities
        assert client.instructions is None
        client.ping()
        assert client.call_tool("add", {"a": 1, "b": 2}).data == 3
        assert "sampled" in client.call_tool("ask", on_progress=heard.append).data
        assert [tool.name for tool in client.tools()] == ["add", "fail", "ask"]
        assert [tool.name for tool in client.list_tools().tools] == ["add", "fail", "ask"]
        assert [resource.uri for resource in client.resources()] == ["a:1"]
        assert [resource.uri for resource in client.list_resources(timeout=5).resources] == ["a:1"]
        assert [one.uri_template for one in client.list_resource_templates().resource_templates] == ["a:{name}"]
        assert [prompt.name for prompt in client.list_prompts(cursor=None).prompts] == ["greet"]
        assert [template.uri_template for template in client.resource_templates()] == ["a:{name}"]
        assert client.read_resource("a:1")[0].text == "one"
        assert [prompt.name for prompt in client.prompts()] == ["greet"]
        assert client.get_prompt("greet", {"name": "Ada"}).messages
        assert client.complete("prompt", "greet", "name").values == ["Ada"]
        assert client.request(sign_of_life) is not None
        assert client.pending() == []
        client.subscribe("a:1")
        client.unsubscribe("a:1")
        client.set_log_level("error")
        with pytest.raises(ToolFailed):
            client.call_tool("fail")
    assert len(heard) == runs
    assert client.phase is Phase.CLOSED
    assert "trunkline-client" not in [thread.name for thread in threading.enumerate()]


async def test_works_inside_a_running_loop() -> None:
    with BlockingClient(make_server()) as client:
        assert client.call_tool("add", {"a": 1, "b": 2}).data == 3


def test_works_from_another_thread() -> None:
    client = BlockingClient(make_server()).open()
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: (answers.append(client.call_tool("add", {"a": 1, "b": 2}).data), client.close())
    )
    thread.start()
    thread.join()
    assert answers == [3]
    client.close()
    with client:
        client.ping()


def test_unopened_client_raises_misuse() -> None:
    with pytest.raises(MisuseError, match="not open"):
        BlockingClient(make_server()).ping()


def test_failed_open_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot start"):
        BlockingClient([str(tmp_path / "nothing")]).open()
    assert "trunkline-client" not in [thread.name for thread in threading.enumerate()]


def test_blocking_call_in_a_handler_is_refused() -> None:
    async def sample(_: Any) -> str:
        with pytest.raises(MisuseError, match="for ever"):
            client.ping()
        return "not for ever"

    client = BlockingClient(make_server(), sampling=sample)
    with client:
        assert "not for ever" in client.call_tool("ask").data


def test_notifications_are_received() -> None:
    heard = threading.Event()
    server = make_server()
    with BlockingClient(server) as client:
        client.on("notifications/tools/list_changed", lambda _: heard.set())
        server.add_tool(lambda: 1, name="new")
        assert heard.wait(PATIENCE)


def test_ctrl_c_cancels_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    server: list[ScriptedServer] = []

    class Later:
        """A scripted server needs a running loop, which comes with the client."""

        name = "later"

        async def connect(self, accept: Any) -> Any:
            server.append(ScriptedServer())
            return await server[0].connect(accept)

    with BlockingClient(Later()) as client:
        given_up = threading.Event()

        def interrupted(self: Any, timeout: float | None = None) -> Any:
            monkeypatch.undo()
            given_up.set()
            raise KeyboardInterrupt

        monkeypatch.setattr("trunkline.client.loop_thread._LoopCall.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.call_tool("slow")
        assert given_up.is_set()
        client.ping()
        assert client.pending() == []


class CtrlC:
    """Ctrl+C at one of the moments of a call at which Python looks for signals: whenever a function has been entered,
    and whenever a function written in C has returned, in the blocking client and in all that it calls."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        dropped = frame.f_code is interrupted_at.__code__ or frame.f_code.co_filename == _weakrefset.__file__
        if event in {"call", "c_return"} and not dropped:
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


def interrupted_at(moment: int, client: BlockingClient) -> bool:
    sys.setprofile(CtrlC(moment))
    try:
        client.call_tool("add", {"a": 1, "b": 2})
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_ctrl_c_at_any_moment_leaves_a_working_client() -> None:
    with warnings.catch_warnings(record=True) as said, BlockingClient(make_server()) as client:
        warnings.simplefilter("always")
        moment = 0
        while interrupted_at(moment, client):
            still_works = threading.Thread(target=client.call_tool, args=("add", {"a": 1, "b": 2}), daemon=True)
            still_works.start()
            still_works.join(PATIENCE)
            assert not still_works.is_alive(), f"Ctrl+C at moment {moment} has blocked the client"
            moment += 1
        assert moment > 5
        gc.collect()  # so that a coroutine in a cycle is reported, too
    assert [str(warning.message) for warning in said] == []


def test_ctrl_c_that_does_not_wake_the_waiting_thread_ends_the_call() -> None:
    server, cancelled = make_server(), threading.Event()

    @server.tool
    async def press_ctrl_c() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # this thread, while the main one sleeps
        try:
            await asyncio.sleep(PATIENCE / 4)  # less than the time limit of a call, which cancels it, too
        except asyncio.CancelledError:
            cancelled.set()
            raise

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with BlockingClient(server) as client:
            with pytest.raises(KeyboardInterrupt):
                client.call_tool("press_ctrl_c")
            assert cancelled.wait(PATIENCE / 4)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_closed_loop_is_named() -> None:
    client = asyncio.run(_opened())
    with pytest.raises(MisuseError, match="has ended"):
        asyncio.run(client.ping())


async def _opened() -> Any:
    from trunkline import Client

    return await Client(make_server()).open()


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_task_handle_waits_and_is_found_by_id(revision: str) -> None:
    server, go_on, heard = Server("s", settings=Settings(task_poll_interval=0.01)), threading.Event(), list[float]()

    @server.tool(task="required")
    def work(number: int, ctx: Context) -> int:
        ctx.progress(1)
        while not (go_on.wait(0.01) or ctx.cancelled):
            pass
        return number * 2

    with BlockingClient(server, revision=revision) as client:
        task = client.start_tool("work", {"number": 2}, on_progress=lambda told: heard.append(told.progress), ttl=60)
        assert (task.refresh(), task.status, task.message) == ("working", "working", None)
        stopped = client.start_tool("work", {"number": 3})
        stopped.cancel()
        assert stopped.status == "cancelled"
        with pytest.raises(RequestTimeout):
            task.result(timeout=0.01)
        go_on.set()
        assert task.result(timeout=10).data == 4
        assert client.task(task.id, name="work", returns=int).result().data == 4
    assert heard == [1]
