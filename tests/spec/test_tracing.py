"""One trace over several processes: client, proxy, server, a handler on a thread, and a task that another process takes
over after its own was killed."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.limits import PATIENCE
from tests.spec.traced_server import Seen, make_server, see

from trunkline import Client, OpenTelemetry, Settings, proxy
from trunkline.facts import Fact, TaskRunEnded

ROOT = Path(__file__).parents[2]
TREE = {
    "application": None,
    "CLIENT tools/call add": "application",  # the client
    "SERVER tools/call add": "CLIENT tools/call add",  # the proxy
    "CLIENT tools/call add 2": "SERVER tools/call add",
    "SERVER tools/call add 2": "CLIENT tools/call add 2",  # the server
    "adding on a thread": "SERVER tools/call add 2",
    "CLIENT tools/call work": "application",
    "SERVER tools/call work": "CLIENT tools/call work",
    "CLIENT tools/call work 2": "SERVER tools/call work",
    "SERVER tools/call work 2": "CLIENT tools/call work 2",  # the server, which was killed
    "execute_tool work": "SERVER tools/call work",  # the task of the proxy, which follows that of the server
    "execute_tool work 2": "SERVER tools/call work 2",  # the process that has taken over
    "working on a thread": "execute_tool work 2",
}


class Process:
    """A process that writes JSON lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.spans: list[Seen] = []

    async def read(self, member: str) -> Any:
        """The first line with a member; spans before it are collected."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            async for line in self._process.stdout:
                said = json.loads(line)
                if "span" in said:
                    self.spans.append(Seen(*said["span"]))
                if member in said:
                    return said[member]
        raise AssertionError(f"the process has ended without {member!r}")

    async def read_spans(self, name: str, kind: str, count: int = 1) -> None:
        """Collect spans until there are some of a name and a kind."""
        while sum((span.name, span.kind) == (name, kind) for span in self.spans) < count:
            await self.read("span")

    async def kill(self) -> None:
        """Kill it, like the kernel or an operator."""
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def started(module: str, *arguments: str) -> AsyncIterator[Process]:
    """Run a module of the tests."""
    command = [sys.executable, "-m", f"tests.spec.{module}", *arguments]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class RunEnded:
    """Tells when a run of a task has ended."""

    immediate = True
    wants = (TaskRunEnded,)

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def on(self, fact: Fact) -> None:
        self.event.set()


async def make_trace(
    store: str, process: Process, exporter: SpanExporter, is_exported: Callable[[], Awaitable[None]]
) -> None:
    """Call both tools of a server process through a proxy; kill it, once its spans are exported; and let a server of
    this process take over."""
    provider, ended = TracerProvider(shutdown_on_exit=False), RunEnded()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observer = OpenTelemetry(tracer_provider=provider, metrics=False)
    between = proxy(await process.read("address"), observers=[observer], settings=Settings(stop_timeout=0.1))
    async with Client(between, observers=[observer]) as client:
        await client.list_tools()
        with provider.get_tracer("application").start_as_current_span("application"):
            assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
            await client.start_tool("work")
        await process.read("begun")
    await is_exported()
    await process.kill()
    await between.aclose()  # not before: it would cancel its tasks, and so those behind
    server = make_server(store, provider, more=[ended])
    await server.start()
    async with asyncio.timeout(PATIENCE):
        await ended.event.wait()
    await server.aclose()  # its observers have all facts then


def assert_one_tree(spans: list[Seen]) -> None:
    """Assert that the spans of the application's trace have the expected parents."""
    (root,) = (span for span in spans if span.name == "application")
    labels: dict[str, str] = {root.ident: "application"}
    found: dict[str, str | None] = {"application": None}
    rest = [span for span in spans if span.trace == root.trace and span is not root]
    while children := [span for span in rest if span.parent in labels]:
        for span in children:
            rest.remove(span)
            if span.name.startswith("tasks/"):  # how often the proxy asks for the status depends on time
                labels[span.ident] = span.name
                continue
            label = span.name if span.kind == "INTERNAL" else f"{span.kind} {span.name}"
            labels[span.ident] = label = f"{label} 2" if label in found else label
            found[label] = labels[span.parent or ""]
    assert rest == []  # all are in the tree
    assert found == TREE


@pytest.mark.row("V02")
async def test_trace_of_a_task_taken_over_after_sigkill(tmp_path: Path) -> None:
    exporter, store = InMemorySpanExporter(), str(tmp_path / "store")
    async with started("traced_server", store) as process:
        await make_trace(store, process, exporter, lambda: process.read_spans("tools/call work", "SERVER"))
    assert_one_tree([*process.spans, *map(see, exporter.get_finished_spans())])


@pytest.mark.row("V02")
async def test_otlp_receiver_gets_the_same_trace(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    async with started("otlp_receiver") as receiver:
        endpoint = await receiver.read("address")
        async with started("traced_server", store, endpoint) as process:
            exporter = OTLPSpanExporter(endpoint)
            # that of the proxy, and that of the server
            await make_trace(store, process, exporter, lambda: receiver.read_spans("tools/call work", "SERVER", 2))
            exporter.shutdown()
        await receiver.read_spans("execute_tool work", "INTERNAL", 2)  # the last ones
    assert_one_tree(receiver.spans)
