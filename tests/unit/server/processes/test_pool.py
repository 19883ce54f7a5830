"""Tools that run in processes of their own."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.baggage import set_baggage
from opentelemetry.context import attach, detach
from tests.limits import PATIENCE
from tests.processes import StdioPeer, eventually, gone
from tests.telemetry import SERVER, Telemetry, ident, trace_of
from tests.unit.server.processes import computing
from tests.unit.server.processes.computing import Point

from trunkline import Client, Context, Server, Settings, TaskPolicy
from trunkline.errors import ConfigError, PeerError, RegistrationError, RequestTimeout, ToolFailed
from trunkline.facts import HandlerFailed
from trunkline.observers.otel.spans import OtelTracer
from trunkline.server.introspection.process_state import QueueSummary
from trunkline.testing import RecordingObserver


def make_server(*functions: Any, observers: Any = (), **settings: Any) -> Server:
    server = Server("t", observers=observers, settings=Settings(**settings))
    for function in functions:
        server.add_tool(function, process=True)
    return server


async def written(path: Path) -> int:
    """Wait until a function has written its process id."""
    return int(await asyncio.to_thread(eventually, lambda: path.exists() and path.read_text().strip()))


async def ended(pid: int) -> None:
    await asyncio.to_thread(eventually, lambda: gone(pid))


async def test_function_runs_in_another_process_with_its_types() -> None:
    server = make_server(computing.add, computing.move, computing.ident)
    async with Client(server) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["add"].description == "Adds."
        assert tools["add"].input_schema["required"] == ["a"]
        assert (await client.call_tool("add", {"a": 2})).data == 3
        assert (await client.call_tool("move", {"point": {"x": 1}, "by": 2}, returns=Point)).data == Point(3)
        pids = {(await client.call_tool("ident")).data for _ in range(3)}
    assert os.getpid() not in pids
    assert len(pids) == 1  # the process stays
    await server.aclose()
    await ended(pids.pop())


async def test_number_of_processes_is_bounded_and_calls_wait() -> None:
    server = make_server(computing.ident, max_processes=2)
    async with Client(server) as client:
        results = await asyncio.gather(*(client.call_tool("ident") for _ in range(8)))
    assert 1 <= len({result.data for result in results}) <= 2
    await server.aclose()


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_busy_function_is_killed_when_its_call_ends(tmp_path: Path, how: str) -> None:
    server, path = make_server(computing.add, max_processes=1), tmp_path / "pid"
    server.add_tool(computing.spin, process=True, timeout=1.0 if how == "timeout" else None)
    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("spin", {"path": str(path)}))
        if how == "cancel":
            pid = await written(path)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        else:
            with pytest.raises((ToolFailed, PeerError, RequestTimeout)):
                await call
            pid = int(path.read_text()) if path.exists() else None  # a starved machine may not have started it
        assert (await client.call_tool("add", {"a": 1})).data == 2  # in another process
        if pid is not None:
            await ended(pid)
    await server.aclose()


async def test_call_cancelled_while_it_waits_leaves_the_others_alone(tmp_path: Path) -> None:
    server, path = make_server(computing.spin, computing.add, max_processes=1, metrics=True), tmp_path / "pid"
    await server.start()
    async with Client(server) as client:
        spinning = asyncio.create_task(client.call_tool("spin", {"path": str(path)}))
        await written(path)
        waiting = [asyncio.create_task(client.call_tool("add", {"a": number})) for number in range(3)]
        await client.ping()
        assert QueueSummary("processes", waiting=3, running=1) in server.describe().queues
        counted = {"trunkline_queued_process_jobs 3", "trunkline_processes_busy 1"}
        assert counted <= {*server.metrics_text().splitlines()}
        waiting[0].cancel()
        spinning.cancel()
        await asyncio.wait([spinning, waiting[0]])
        assert [(await one).data for one in waiting[1:]] == [2, 3]
    await server.aclose()


@pytest.mark.parametrize(("code", "reason"), [(3, "exited with code 3"), (-11, "was ended by signal 11")])
async def test_crash_fails_its_own_call_only(code: int, reason: str) -> None:
    server = make_server(computing.crash, computing.add)
    async with Client(server) as client:
        crashing = client.call_tool("crash", {"code": code}, raise_on_error=False)
        failed, fine = await asyncio.gather(crashing, client.call_tool("add", {"a": 1}))
        assert failed.is_error
        assert f"the process that ran 'crash' {reason}" in failed.text
        assert fine.data == 2
        assert (await client.call_tool("add", {"a": 2})).data == 3
    await server.aclose()


async def test_dead_idle_process_is_replaced() -> None:
    server = make_server(computing.ident)
    async with Client(server) as client:
        first = (await client.call_tool("ident")).data
        os.kill(first, signal.SIGKILL)
        assert (await client.call_tool("ident")).data != first
        await ended(first)
    await server.aclose()


async def test_exceptions_arrive() -> None:
    observer = RecordingObserver()
    server = make_server(computing.fail, observers=[observer])
    async with Client(server) as client:
        texts = [
            (await client.call_tool("fail", {"kind": kind}, raise_on_error=False)).text for kind in ("tool", "odd")
        ]
        assert texts[0] == "as expected"
        for kind in ("exit", "lock"):
            assert (await client.call_tool("fail", {"kind": kind}, raise_on_error=False)).is_error
    errors = [str(fact.error) for fact in observer.of(HandlerFailed)]
    assert "Odd: 1 2" in errors[0]
    assert errors[1:] == ["a handler called sys.exit(3)", errors[2]]
    assert "the result cannot be pickled" in errors[2]
    await server.aclose()


async def test_dependencies_are_made_in_the_server_process() -> None:
    server = make_server(computing.use)
    async with Client(server) as client:
        assert (await client.call_tool("use", {"text": "!"})).data == f"{os.getpid()} tools/call !"
    await server.aclose()


async def test_argument_that_cannot_be_pickled_is_an_error() -> None:
    observer = RecordingObserver()
    server = make_server(computing.unpicklable, observers=[observer])
    async with Client(server) as client:
        assert (await client.call_tool("unpicklable", raise_on_error=False)).is_error
    assert "the arguments of 'unpicklable' cannot be pickled" in str(observer.of(HandlerFailed)[0].error)


async def test_span_of_a_call_is_current_in_its_process() -> None:
    telemetry = Telemetry()
    server = make_server(computing.find_span, observers=[telemetry.observer()], max_processes=1)
    async with Client(server, observers=[telemetry.observer()]) as client:
        attached = attach(set_baggage("tenant", "blue"))
        calls = [(await client.call_tool("find_span")).data for _ in range(2)]
        detach(attached)
        calls.append((await client.call_tool("find_span")).data)
    await server.aclose()
    spans = telemetry.all("tools/call find_span", SERVER)
    assert [call[:2] for call in calls] == [[trace_of(span), ident(span)] for span in spans]
    assert [call[2] for call in calls] == ["blue", "blue", "None"]


async def test_tracer_that_fails_leaves_the_call_alone() -> None:
    class Tracer(OtelTracer):
        def carry_current(self) -> Any:
            return lambda: None  # cannot be pickled

    observer = Telemetry().observer()
    observer.tracer = Tracer(None)
    server = make_server(computing.add, observers=[observer])
    async with Client(server) as client:
        assert (await client.call_tool("add", {"a": 1})).data == 2
    assert server.observers.failures == 1
    await server.aclose()


async def test_idle_process_ends_in_good_order(tmp_path: Path) -> None:
    server, path = make_server(computing.leave), tmp_path / "left"
    async with Client(server) as client:
        await client.call_tool("leave", {"path": str(path)})
    await server.aclose()
    assert path.exists()


async def test_task_runs_in_a_process() -> None:
    server = Server("t", observers=[])
    server.add_tool(computing.add, process=True, task=TaskPolicy("optional"))
    async with Client(server, revision="2025-11-25") as client:
        task = await client.start_tool("add", {"a": 1})
        assert (await task.result(timeout=PATIENCE)).data == 2
    await server.aclose()


async def asynchronous() -> None: ...


def generator() -> Any:
    yield 1


def with_context(ctx: Context) -> None: ...


def test_unusable_functions_are_refused_at_registration() -> None:
    def local() -> None: ...

    for function, why in (
        (asynchronous, "a plain function, neither async"),
        (generator, "a plain function, neither async nor a generator"),
        (local, "a function of a module"),
        (lambda: None, "a function of a module"),
        (len, "a function of a module"),
        (with_context, "the context of a call stays in the server's process"),
    ):
        with pytest.raises(RegistrationError, match=why):
            Server("t").add_tool(function, process=True, name="t")
    with pytest.raises(RegistrationError, match="thread= and process="):
        Server("t").add_tool(computing.add, process=True, thread=True)
    with pytest.raises(ConfigError, match="max_processes"):
        Settings(max_processes=0)


async def test_replaced_function_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = RecordingObserver()
    server = make_server(computing.add, observers=[observer])
    monkeypatch.setattr(computing, "add", lambda a, b: 0)
    async with Client(server) as client:
        assert (await client.call_tool("add", {"a": 1}, raise_on_error=False)).is_error
    assert "is another function now" in str(observer.of(HandlerFailed)[0].error)


# --- a whole server ---------------------------------------------------------------------------------------

SCRIPT = """
import os
from dataclasses import dataclass
from trunkline import Server

server = Server("computing")

@dataclass
class Answer:
    pid: int

@server.tool(process=True)
def talk() -> Answer:
    print("on standard output")
    return Answer(os.getpid())

@server.tool(process=True)
def spin(path: str) -> None:
    open(path, "w").write(f"{os.getpid()}\\n")
    while True:
        pass

server.run()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A program that runs a server from a file, without a guard around `run()`."""
    file = tmp_path / "computing_server.py"
    file.write_text(SCRIPT)
    return f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')"


def test_output_of_a_process_stays_off_the_protocol(script: str) -> None:
    with StdioPeer(script) as peer:
        peer.initialize()
        answer = peer.answer_to(peer.tool("talk"))  # any other line would fail to decode
        pid = answer["result"]["structuredContent"]["pid"]
        assert pid != peer.process.pid
        peer.close_input()
        assert peer.exit_code() == 0
        assert "on standard output" in peer.stderr()
    eventually(lambda: gone(pid))


def test_no_process_survives_a_killed_server(script: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with StdioPeer(script) as peer:
        peer.initialize()
        peer.tool("spin", path=str(path))
        pid = int(eventually(lambda: path.exists() and path.read_text().strip()))
        peer.kill(signal.SIGKILL)
        peer.exit_code()
        eventually(lambda: gone(pid))


def test_shutdown_kills_a_busy_process(script: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with StdioPeer(script, env={"TRUNKLINE_DRAIN_TIMEOUT": "0.1"}) as peer:
        peer.initialize()
        peer.tool("spin", path=str(path))
        pid = int(eventually(lambda: path.exists() and path.read_text().strip()))
        peer.kill(signal.SIGTERM)
        peer.exit_code()
        eventually(lambda: gone(pid))
