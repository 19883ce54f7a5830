"""Spans and metrics of OpenTelemetry, with its SDK."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode
from tests.limits import PATIENCE
from tests.telemetry import CLIENT, SERVER, Telemetry, ident, parent_of, trace_of, traceparent
from tests.unit.transports.http.asgi import call as http_call
from tests.unit.transports.http.asgi import hosted

from trunkline import (
    BlockingClient,
    Client,
    Context,
    Depends,
    OpenTelemetry,
    Server,
    Settings,
    TaskPolicy,
    ToolError,
    proxy,
)
from trunkline.clock import Clock
from trunkline.errors import PeerError, RequestTimeout
from trunkline.testing import ManualClock, RawPeer

TRACE = "0af7651916cd43dd8448eb211c80319c"
REMOTE = f"00-{TRACE}-b7ad6b7169203331-01"
BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def make_server(telemetry: Telemetry, *, clock: Clock | None = None, **options: Any) -> Server:
    """A server whose handlers have spans of their own."""
    settings = Settings(expose_errors=False)
    server = Server("traced", observers=[telemetry.observer(**options)], settings=settings, clock=clock)

    @server.tool
    async def add(a: int, b: int) -> int:
        with telemetry.tracer.start_as_current_span("adding"):
            await asyncio.sleep(0)
            return a + b

    @server.tool
    def add_on_thread(a: int, b: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        with telemetry.tracer.start_as_current_span("adding on a thread"):
            return a + b

    @server.tool
    def refuse() -> None:
        raise ToolError("not today")

    @server.tool
    def crash() -> None:
        raise LookupError("secret")

    @server.tool
    async def hang() -> None:
        await asyncio.Event().wait()

    @server.tool
    async def describe_trace(ctx: Context) -> dict[str, str]:
        span = trace.get_current_span().get_span_context()
        return {**ctx.trace, "current": f"{span.trace_id:032x}", **{k: str(v) for k, v in baggage.get_all().items()}}

    @server.prompt
    def greet(name: str) -> str:
        return f"Greet {name}."

    server.add_resource("note://user:secret@a?token=secret", lambda: "a")
    return server


@asynccontextmanager
async def opened(server: Server, telemetry: Telemetry | None, **options: Any) -> AsyncIterator[Client]:
    """A traced client of a server in this process; all facts are delivered when it has closed."""
    observers = [] if telemetry is None else [telemetry.observer()]
    async with Client(server, observers=observers, **options) as client:
        yield client
    await server.aclose()


# --- spans ---------------------------------------------------------------------------------------


@pytest.mark.row("V02")
async def test_spans_follow_the_semantic_conventions(telemetry: Telemetry) -> None:
    server = make_server(telemetry)
    listener = await server.listen("http://127.0.0.1:0/mcp")
    async with (
        opened(server, telemetry) as _,
        Client(listener.address, observers=[telemetry.observer()], revision="2025-11-25") as client,
    ):
        await client.call_tool("add", {"a": 1, "b": 2})
        await client.get_prompt("greet", {"name": "Ada"})
        await client.read_resource("note://user:secret@a?token=secret")
    served, sent = telemetry.one("tools/call add", SERVER), telemetry.one("tools/call add", CLIENT)
    assert served.attributes is not None
    assert sent.attributes is not None
    port = int(listener.address.rpartition(":")[2].partition("/")[0])
    common = {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "mcp.protocol.version": "2025-11-25",
        "network.transport": "tcp",
        "network.protocol.name": "http",
    }
    assert {**sent.attributes} == {
        **common,
        "jsonrpc.request.id": sent.attributes["jsonrpc.request.id"],
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    assert {**served.attributes} == {
        **common,
        "jsonrpc.request.id": sent.attributes["jsonrpc.request.id"],
        "mcp.session.id": served.attributes["mcp.session.id"],  # a digest, since the id is a secret
    }
    assert len(str(served.attributes["mcp.session.id"])) == 12
    assert served.status.status_code is sent.status.status_code is StatusCode.UNSET
    assert served.instrumentation_scope is not None
    assert served.instrumentation_scope.name == "trunkline"

    prompt = telemetry.one("prompts/get greet", SERVER)
    assert (prompt.attributes or {})["gen_ai.prompt.name"] == "greet"
    (read,) = telemetry.all("resources/read", SERVER)
    assert (read.attributes or {})["mcp.resource.uri"] == "note://a"


@pytest.mark.row("V02")
@pytest.mark.parametrize(("tool", "inner"), [("add", "adding"), ("add_on_thread", "adding on a thread")])
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_trace_leads_from_the_client_to_the_handler(
    tool: str, inner: str, revision: str, telemetry: Telemetry
) -> None:
    async with opened(make_server(telemetry), telemetry, revision=revision) as client:
        with telemetry.tracer.start_as_current_span("application"):
            await client.call_tool(tool, {"a": 1, "b": 2})
        assert not trace.get_current_span().get_span_context().is_valid  # nothing stays current
    call = f"tools/call {tool}"
    assert telemetry.path(telemetry.one(inner)) == [
        "internal application",
        f"client {call}",
        f"server {call}",
        f"internal {inner}",
    ]
    served, sent = telemetry.one(call, SERVER), telemetry.one(call, CLIENT)
    assert sent.start_time <= served.start_time <= telemetry.one(inner).start_time  # type: ignore[operator]
    assert telemetry.one(inner).end_time <= served.end_time  # type: ignore[operator]


async def test_dependencies_and_middleware_run_in_the_span(telemetry: Telemetry) -> None:
    server = Server("traced", observers=[telemetry.observer()])

    def database() -> Iterator[str]:
        with telemetry.tracer.start_as_current_span("connecting"):
            yield "database"

    @server.tool
    def use(db: str = Depends(database)) -> str:
        return db

    @server.middleware
    async def measure(call: Any, next: Any) -> Any:
        with telemetry.tracer.start_as_current_span("middleware"):
            return await next(call)

    async with opened(server, telemetry) as client:
        await client.call_tool("use")
    served = "server tools/call use"
    assert telemetry.path(telemetry.one("middleware"))[-2:] == [served, "internal middleware"]
    assert telemetry.path(telemetry.one("connecting"))[-3:] == [served, "internal middleware", "internal connecting"]


@pytest.mark.parametrize("hops", [1, 2])
async def test_requests_of_the_server_are_in_the_trace(hops: int, telemetry: Telemetry) -> None:
    server = Server("traced", observers=[telemetry.observer()])

    @server.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit("How many?", int))

    async def answer(question: Any) -> Any:
        with telemetry.tracer.start_as_current_span("asking a person"):
            return {"value": 3}

    target = server if hops == 1 else proxy(server, observers=[telemetry.observer()])
    async with opened(target, telemetry, revision="2025-11-25", elicitation=answer) as client:
        await client.call_tool("ask")
    await server.aclose()
    assert telemetry.path(telemetry.one("asking a person")) == [
        *(["client tools/call ask", "server tools/call ask"] * hops),
        *(["client elicitation/create", "server elicitation/create"] * hops),
        "internal asking a person",
    ]


async def test_blocking_client_continues_the_trace_of_its_thread(telemetry: Telemetry) -> None:
    server = make_server(telemetry)

    def use() -> None:
        with (
            BlockingClient(server, observers=[telemetry.observer()]) as client,
            telemetry.tracer.start_as_current_span("application"),
        ):
            client.call_tool("add", {"a": 1, "b": 2})

    await asyncio.to_thread(use)
    assert telemetry.path(telemetry.one("tools/call add", CLIENT))[0] == "internal application"


# --- failures ------------------------------------------------------------------------------------


async def test_failed_tool_is_an_error_on_both_sides(telemetry: Telemetry) -> None:
    async with opened(make_server(telemetry), telemetry) as client:
        await client.call_tool("refuse", raise_on_error=False)
    for span in telemetry.all("tools/call refuse"):
        assert (span.attributes or {})["error.type"] == "tool_error"
        assert span.status.status_code is StatusCode.ERROR


async def test_error_response_has_code_and_message(telemetry: Telemetry) -> None:
    async with opened(make_server(telemetry), telemetry) as client:
        with pytest.raises(PeerError) as raised:
            await client.get_prompt("unknown")
    for span in telemetry.all("prompts/get unknown"):
        assert (span.attributes or {})["error.type"] == str(raised.value.code)
        assert (span.attributes or {})["rpc.response.status_code"] == str(raised.value.code)
        assert span.status.description == raised.value.message
    assert len(telemetry.all("prompts/get unknown")) == 2


async def test_exception_of_a_handler_is_recorded_with_its_incident(telemetry: Telemetry) -> None:
    async with opened(make_server(telemetry), telemetry) as client:
        result = await client.call_tool("crash", raise_on_error=False)
    span = telemetry.one("tools/call crash", SERVER)
    (event,) = span.events
    assert event.timestamp <= span.end_time  # type: ignore[operator]
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "LookupError"
    assert str(event.attributes["trunkline.incident"]) in result.text
    assert "secret" not in result.text
    assert telemetry.one("tools/call crash", CLIENT).events == ()


async def test_timeout_ends_the_spans(telemetry: Telemetry) -> None:
    server = make_server(telemetry, clock=ManualClock())  # so that the client notices first
    async with opened(server, telemetry) as client:
        with pytest.raises(RequestTimeout):
            await client.call_tool("hang", timeout=1)
    assert (telemetry.one("tools/call hang", CLIENT).attributes or {})["error.type"] == "timeout"
    assert "error.type" in (telemetry.one("tools/call hang", SERVER).attributes or {})


async def test_request_that_never_becomes_a_call_has_a_span(telemetry: Telemetry) -> None:
    server = make_server(telemetry)
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.request("no/such/method")
        await peer.request("tools/call", {"name": 7, "_meta": {"traceparent": REMOTE}})
    await server.aclose()
    unknown, invalid = telemetry.one("no/such/method"), telemetry.one("tools/call")
    assert (unknown.attributes or {})["error.type"] == "-32601"
    assert (invalid.attributes or {})["error.type"] == "-32602"
    assert unknown.kind is invalid.kind is SERVER


async def test_closing_ends_the_listen_request_without_an_error(telemetry: Telemetry) -> None:
    async with opened(make_server(telemetry), telemetry, revision="2026-07-28"):
        pass
    for span in telemetry.all("subscriptions/listen"):
        assert span.status.status_code is StatusCode.UNSET
    assert len(telemetry.all("subscriptions/listen")) == 2


# --- context -------------------------------------------------------------------------------------


@pytest.mark.row("V02")
async def test_context_in_metadata_is_continued(telemetry: Telemetry) -> None:
    server = make_server(telemetry)
    async with RawPeer(server) as peer:
        await peer.initialize()
        meta = {"traceparent": REMOTE, "tracestate": "vendor=1", "baggage": "user=alice"}
        result = await peer.result("tools/call", {"name": "describe_trace", "_meta": meta})
    await server.aclose()
    span = telemetry.one("tools/call describe_trace")
    assert (trace_of(span), parent_of(span)) == (TRACE, "b7ad6b7169203331")
    assert span.context.trace_state.get("vendor") == "1"
    assert result["structuredContent"] == {"current": TRACE, "user": "alice"}


@pytest.mark.parametrize("invalid", ["", "00-0-0-00", REMOTE.replace("00-", "ff-", 1), 7, None])
async def test_invalid_context_starts_a_new_trace(invalid: object, telemetry: Telemetry) -> None:
    server = make_server(telemetry)
    async with RawPeer(server) as peer:
        await peer.initialize()
        meta = {"traceparent": invalid, "tracestate": [], "baggage": {}}
        await peer.result("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}, "_meta": meta})
    await server.aclose()
    assert parent_of(telemetry.one("tools/call add")) is None


@pytest.mark.row("V02")
async def test_context_in_http_headers_is_continued_unless_metadata_has_one(telemetry: Telemetry) -> None:
    server = make_server(telemetry)
    listener = await server.listen("http://127.0.0.1:0/mcp")
    other = REMOTE.replace(TRACE, "1" * 32)
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-method": "tools/call",
        "mcp-name": "describe_trace",
        "mcp-protocol-version": "2026-07-28",
        "traceparent": REMOTE,
        "baggage": "user=alice",
    }
    envelope = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    seen = []
    async with aiohttp.ClientSession() as http:
        for more in ({}, {"traceparent": other}):
            params = {"name": "describe_trace", "arguments": {}, "_meta": {**envelope, **more}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            async with http.post(listener.address, json=message, headers=headers) as response:
                seen.append((await response.json())["result"]["structuredContent"])
    await server.aclose()
    assert seen == [
        {"traceparent": REMOTE, "baggage": "user=alice", "current": TRACE, "user": "alice"},
        {"traceparent": other, "current": "1" * 32},
    ]


@pytest.mark.row("V02")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_client_sends_its_context_in_metadata_and_headers(revision: str, telemetry: Telemetry) -> None:
    server = Server("untraced")
    seen: list[dict[str, str]] = []

    @server.tool
    async def look(ctx: Context) -> None:
        assert ctx.request is not None
        headers = {name: ctx.request.headers.get(name, "") for name in ("traceparent", "baggage")}
        seen.extend((headers, dict(ctx.trace)))

    listener = await server.listen("http://127.0.0.1:0/mcp")
    async with (
        opened(server, telemetry) as _,
        Client(listener.address, observers=[telemetry.observer()], revision=revision) as client,
    ):
        token = context.attach(baggage.set_baggage("user", "alice"))
        for _ in range(2):  # the second request finds an idle connection
            await client.call_tool("look")
        context.detach(token)
    sent = [traceparent(span) for span in telemetry.all("tools/call look", CLIENT)]
    assert seen == [{"traceparent": parent, "baggage": "user=alice"} for parent in sent for _ in range(2)]
    assert len(sent) == 2


async def test_span_of_another_trace_is_linked(telemetry: Telemetry) -> None:
    """Such as the span of an instrumented ASGI server."""
    server = make_server(telemetry)
    call = {"name": "add", "arguments": {"a": 1, "b": 1}}
    with telemetry.tracer.start_as_current_span("surroundings") as surroundings:
        async with RawPeer(server) as peer:
            await peer.initialize()
            await peer.result("tools/call", {**call, "_meta": {"traceparent": REMOTE}})
            await peer.result("tools/call", call)
    await server.aclose()
    linked, child = telemetry.all("tools/call add")
    assert parent_of(linked) == "b7ad6b7169203331"
    assert [link.context for link in linked.links] == [surroundings.get_span_context()]
    assert parent_of(child) == ident(telemetry.one("surroundings"))
    assert child.links == ()


async def test_span_of_an_instrumented_http_server_is_the_parent(telemetry: Telemetry) -> None:
    """It is in the trace of the headers, too, and nearer."""
    server = make_server(telemetry)
    remote = trace.set_span_in_context(
        trace.NonRecordingSpan(trace.SpanContext(int(TRACE, 16), 7, True, trace.TraceFlags(1)))
    )
    async with hosted(server) as host:
        session = await host.session()
        with telemetry.tracer.start_as_current_span("POST /mcp", remote):
            headers = {"mcp_session_id": session, "traceparent": REMOTE}
            await host.ask("POST", http_call("add", a=1, b=2), **headers)
    span = telemetry.one("tools/call add")
    assert (trace_of(span), parent_of(span)) == (TRACE, ident(telemetry.one("POST /mcp")))
    assert span.links == ()


@pytest.mark.parametrize("paused", [False, True])
async def test_call_that_waits_does_not_join_the_trace_of_the_call_before_it(
    paused: bool, telemetry: Telemetry
) -> None:
    go_on = asyncio.Event()
    server = Server("traced", observers=[telemetry.observer()], settings=Settings(max_calls=1))

    @server.tool
    async def wait() -> None:
        await go_on.wait()

    async with RawPeer(server) as peer:
        await peer.initialize()
        peer.call("tools/call", {"name": "wait", "_meta": {"traceparent": REMOTE}}, id="first")
        await peer.quiet()
        if paused:
            server.pause(wait=True)
        peer.call("tools/call", {"name": "wait"}, id="second")
        await peer.quiet()
        go_on.set()
        await peer.answer_to("first")
        if paused:
            with telemetry.tracer.start_as_current_span("resuming"):
                server.resume()
        await peer.answer_to("second")
    await server.aclose()
    first, second = telemetry.all("tools/call wait")
    assert trace_of(first) == TRACE
    assert (parent_of(second), second.links) == (None, ())


async def test_span_that_has_ended_is_no_parent(telemetry: Telemetry) -> None:
    server = make_server(telemetry)
    with telemetry.tracer.start_as_current_span("opening"):
        peer = await RawPeer(server).__aenter__()
        await peer.initialize()
    await peer.result("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}})
    await peer.__aexit__(None, None, None)
    await server.aclose()
    assert parent_of(telemetry.one("tools/call add")) is None


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("revisions", [("2025-11-25", None), ("2026-07-28", None), ("2026-07-28", "2025-11-25")])
async def test_trace_passes_through_a_proxy(
    traced: bool, revisions: tuple[str, str | None], telemetry: Telemetry
) -> None:
    """A proxy that has no telemetry passes the context on."""
    server, (front, behind) = make_server(telemetry), revisions
    between = proxy(server, revision=behind, observers=[telemetry.observer()] if traced else [])
    async with Client(between, observers=[telemetry.observer()], revision=front) as client:
        token = context.attach(baggage.set_baggage("user", "alice"))
        result = await client.call_tool("describe_trace")
        await client.call_tool("add", {"a": 1, "b": 2})
        context.detach(token)
    await between.aclose()
    await server.aclose()
    hops = ["client tools/call add", "server tools/call add"] * (2 if traced else 1)
    assert telemetry.path(telemetry.one("adding")) == [*hops, "internal adding"]
    assert result.data["user"] == "alice"


async def test_decision_not_to_sample_is_obeyed(telemetry: Telemetry) -> None:
    async with opened(make_server(telemetry), None) as client:
        unsampled = REMOTE.removesuffix("1") + "0"
        await client.call_tool("add", {"a": 1, "b": 2}, meta={"traceparent": unsampled})
    assert telemetry.all("tools/call add") == telemetry.all("adding") == []


async def test_unsampled_client_tells_the_server(telemetry: Telemetry) -> None:
    silent = OpenTelemetry(tracer_provider=TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False))
    server = make_server(telemetry)
    async with Client(server, observers=[silent]) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    await server.aclose()
    assert telemetry.spans == []


async def test_task_runs_in_the_trace_of_its_creation(telemetry: Telemetry) -> None:
    server, go_on = Server("traced", observers=[telemetry.observer()]), asyncio.Event()

    @server.tool(task=TaskPolicy(support="required"))
    async def work(ctx: Context, fail: bool) -> str:
        with telemetry.tracer.start_as_current_span("working"):
            await go_on.wait()
        if fail:
            raise LookupError("nothing found")
        return ctx.trace["traceparent"]

    async with opened(server, telemetry) as client:
        task = await client.start_tool("work", {"fail": False})
        go_on.set()
        async with asyncio.timeout(PATIENCE):
            stated = (await task.result()).data
            await (await client.start_tool("work", {"fail": True})).result(raise_on_error=False)
    created, failed = telemetry.all("tools/call work", SERVER)
    run, failed_run = telemetry.all("execute_tool work")
    path = ["client tools/call work", "server tools/call work", "internal execute_tool work", "internal working"]
    assert [telemetry.path(span) for span in telemetry.all("working")] == [path, path]
    assert (parent_of(run), parent_of(failed_run)) == (ident(created), ident(failed))
    assert stated == traceparent(created)
    assert run.attributes is not None
    assert {**run.attributes} == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "work",
        "trunkline.task.id": task.id,
        "trunkline.task.attempt": 1,
    }
    assert run.end_time >= telemetry.all("working")[0].end_time  # type: ignore[operator]
    assert (failed_run.attributes or {})["error.type"] == "tool_error"
    assert [event.name for event in failed_run.events] == ["exception"]


# --- steps ---------------------------------------------------------------------------------------


@pytest.mark.row("P16")
async def test_steps_of_the_pipeline_are_events_in_order(telemetry: Telemetry) -> None:
    async with opened(make_server(telemetry, steps=True), telemetry) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    span = telemetry.one("tools/call add", SERVER)
    # parse, validate and track, route, run, respond; the id is free again before the reply is sent
    assert [event.name for event in span.events] == ["received", "admitted", "started", "decoded", "ended", "sent"]
    times = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
    assert times == sorted(times)  # type: ignore[type-var]


@pytest.mark.row("P23")
async def test_twelve_steps_of_a_tool_call_are_one_tree(telemetry: Telemetry) -> None:
    server = Server("traced", observers=[telemetry.observer(steps=True)])

    @server.middleware
    async def authorize(call: Any, next: Any) -> Any:
        with telemetry.tracer.start_as_current_span("middleware"):
            return await next(call)

    @server.tool
    async def count(ctx: Context, to: int) -> int:
        with telemetry.tracer.start_as_current_span("handler"):
            await ctx.progress(1, to)
            return to

    listener = await server.listen("tcp://127.0.0.1:0")
    async with Client(listener.address, observers=[telemetry.observer()]) as client:
        with telemetry.tracer.start_as_current_span("application"):
            await client.call_tool("count", {"to": 1}, on_progress=lambda _: None)
    await server.aclose()
    sent, served = telemetry.one("tools/call count", CLIENT), telemetry.one("tools/call count", SERVER)
    handler = telemetry.one("handler")
    moments = {event.name: event.timestamp for event in served.events}
    steps = [  # of the founding document; 4, 6 and 10 have no moment of their own
        ("1 the client passes the request to the transport", sent.start_time),
        ("2 the transport passes it to parser, codec and validator", moments["received"]),
        ("3, 4 the session has it, and tracks its id", moments["admitted"]),
        ("5, 6 the registry finds the tool; its arguments are validated", moments["decoded"]),
        ("7 the handler runs", handler.start_time),
        ("8 the handler returns", handler.end_time),
        ("9, 10 the session has the result, and releases the id", moments["ended"]),
        ("11 the transport has the response", moments["sent"]),
        ("12 the client has the response", sent.end_time),
    ]
    assert [step for step, _ in sorted(steps, key=lambda step: step[1] or 0)] == [step for step, _ in steps]
    assert telemetry.path(handler) == [
        "internal application",
        "client tools/call count",
        "server tools/call count",
        "internal middleware",
        "internal handler",
    ]


# --- metrics -------------------------------------------------------------------------------------


async def test_metrics_follow_the_semantic_conventions(telemetry: Telemetry) -> None:
    async with opened(make_server(telemetry), telemetry, revision="2025-11-25") as client:
        await client.call_tool("add", {"a": 1, "b": 2})
        await client.call_tool("refuse", raise_on_error=False)
    common = {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "mcp.protocol.version": "2025-11-25",
        "network.transport": "inproc",
    }
    for side, kind in (("server", SERVER), ("client", CLIENT)):
        points = {
            point.attributes.get("gen_ai.tool.name"): point
            for point in telemetry.points(f"mcp.{side}.operation.duration")
        }
        assert points["add"].attributes == {**common, "gen_ai.tool.name": "add"}
        assert points["refuse"].attributes == {**common, "gen_ai.tool.name": "refuse", "error.type": "tool_error"}
        assert points["add"].explicit_bounds == BUCKETS
        assert points["add"].count == 1
        (exemplar,) = points["add"].exemplars
        assert exemplar.span_id == telemetry.one("tools/call add", kind).context.span_id
        (session,) = telemetry.points(f"mcp.{side}.session.duration")
        assert session.attributes == {"mcp.protocol.version": "2025-11-25", "network.transport": "inproc"}
        assert session.sum >= points["add"].sum


async def test_names_that_peers_make_up_do_not_fill_metrics(telemetry: Telemetry) -> None:
    server = make_server(telemetry)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for number in range(3):
            await peer.request(f"made/up{number}")
            await peer.request("tools/call", {"name": f"made_up{number}"})
    await server.aclose()
    points = {
        (point.attributes["mcp.method.name"], point.attributes.get("gen_ai.tool.name")): point.count
        for point in telemetry.points("mcp.server.operation.duration")
    }
    assert points == {("initialize", None): 1, ("_OTHER", None): 3, ("tools/call", None): 3}


@pytest.mark.parametrize("left_out", ["traces", "metrics"])
async def test_one_of_the_two_can_be_left_out(left_out: str, telemetry: Telemetry) -> None:
    async with opened(make_server(telemetry, **{left_out: False}), None) as client:
        await client.call_tool("refuse", raise_on_error=False)
    assert bool(telemetry.all("tools/call refuse")) is (left_out == "metrics")
    assert bool(telemetry.points("mcp.server.operation.duration")) is (left_out == "traces")


async def test_second_tracer_makes_no_second_spans(telemetry: Telemetry) -> None:
    server = Server("traced", observers=[telemetry.observer(), telemetry.observer(metrics=False)])
    server.add_tool(lambda: 7, name="seven")
    async with Client(server) as client:
        await client.call_tool("seven")
    await server.aclose()
    assert telemetry.one("tools/call seven").kind is SERVER


# --- isolation -----------------------------------------------------------------------------------


class FailingProcessor(SpanProcessor):
    """Raises whenever a span starts or ends."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("no memory left")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("no disk space left")


class FailingExporter(SpanExporter):
    """Raises with every export."""

    def __init__(self) -> None:
        self.asked = 0

    def export(self, spans: Any) -> SpanExportResult:
        self.asked += 1
        raise RuntimeError("unreachable")


@pytest.mark.row("V06")
async def test_calls_succeed_if_exporter_raises(caplog: pytest.LogCaptureFixture) -> None:
    provider, exporter = TracerProvider(shutdown_on_exit=False), FailingExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server = Server("traced", observers=[OpenTelemetry(tracer_provider=provider)])
    server.add_tool(lambda: 7, name="seven")
    async with Client(server, observers=[OpenTelemetry(tracer_provider=provider)]) as client:
        for _ in range(100):
            assert (await client.call_tool("seven")).text == "7"
    await server.aclose()
    assert exporter.asked >= 200
    assert server.observers.failures == 0  # the SDK has caught and logged the exceptions


@pytest.mark.row("V06")
async def test_calls_succeed_if_tracer_raises(caplog: pytest.LogCaptureFixture) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(FailingProcessor())
    server = Server("traced", observers=[OpenTelemetry(tracer_provider=provider)])
    server.add_tool(lambda: 7, name="seven")
    async with Client(server, observers=[OpenTelemetry(tracer_provider=provider)]) as client:
        for _ in range(100):
            assert (await client.call_tool("seven")).text == "7"
    await server.aclose()
    assert server.observers.failures >= 200  # at the start, and for the span that was to be made at the end
    logged = [record.getMessage() for record in caplog.records if "calls continue" in record.getMessage()]
    assert 1 <= len(logged) <= 4  # at most once per minute, for each side and thread


@pytest.mark.row("V03")
def test_server_works_without_the_library() -> None:
    program = """
import asyncio, sys
sys.modules["opentelemetry"] = None  # importing it raises ModuleNotFoundError
from trunkline import Client, Context, OpenTelemetry, Server
server = Server("untraced")
@server.tool
async def look(ctx: Context) -> str:
    return ctx.trace["traceparent"]
async def main():
    async with Client(server) as client:
        print((await client.call_tool("look", meta={"traceparent": "00-1-2-01"})).data)
asyncio.run(main())
try:
    OpenTelemetry()
except Exception as error:
    print(type(error).__name__, error)
print([name for name in sys.modules if name.startswith(("trunkline.tracing", "trunkline.observers.otel.spans"))])
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.splitlines() == [
        "00-1-2-01",
        "MisuseError OpenTelemetry needs the library opentelemetry-api: pip install 'trunkline[otel]'",
        "[]",
    ], done.stderr
