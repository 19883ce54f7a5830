"""An internal error ends one connection and nothing else, and the session continues. The server's clock fails here,
at a chosen moment.
"""

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.contract.connections import until
from tests.processes import PATIENCE
from tests.unit.transports.http.asgi import Host, call, hosted, request

from trunkline import Context, Server, Settings
from trunkline.errors import ProtocolError, ToolError
from trunkline.facts import CallEnded, Closed, Connected, Fact, HandlerFailed, Received, RestoreStep
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

IN_ORDER = ["RestoreSubscriptions", "ReplayPending", "RestoreCapabilities", "StartMonitoring"]


class FailingClock(ManualClock):
    """A clock that raises at chosen moments."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.spared = 0  # reads that succeed before the failures

    def now(self) -> float:
        if self.spared:
            self.spared -= 1
        elif self.failures:
            self.failures -= 1
            raise RuntimeError("the clock has stopped")
        return super().now()


class FailingServer:
    """A server with such a clock."""

    immediate = True  # as an observer

    def __init__(self, **options: Any) -> None:
        self.clock = FailingClock()
        self.seen = RecordingObserver()
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.watched: list[str] = []
        self.fails_after: type[Fact] | None = None
        self.server = Server("scene", clock=self.clock, observers=[self.seen, self], **options)
        self.server.add_resource("note://a", lambda: "a")
        self.server.on_first_subscriber(self.watched.append)

        @self.server.tool
        async def wait() -> None:
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()

        @self.server.tool
        async def fail() -> str:
            """Respond, and then fail internally: the first time that is read is that of the end of the handler."""
            self.clock.failures, self.clock.spared = 1, 1
            return "answered"

        @self.server.tool
        async def say(ctx: Context) -> None:
            await ctx.info("of no interest")
            await ctx.error("heard")

        @self.server.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.roots())[0].uri

    def on(self, fact: Fact) -> None:
        """Make the clock fail next, if this is the moment."""
        if type(fact) is self.fails_after:
            self.fails_after = None
            self.clock.failures = 1

    @property
    def steps(self) -> list[str]:
        return [fact.step for fact in self.seen.of(RestoreStep)]

    @property
    def failures(self) -> list[HandlerFailed]:
        return self.seen.of(HandlerFailed)


@pytest.fixture
async def failing() -> AsyncIterator[FailingServer]:
    made = FailingServer()
    yield made
    await made.server.aclose()


def is_internal(answer: Any, failed: HandlerFailed) -> bool:
    """Return whether a response reports an internal error without details."""
    error = answer["error"]
    return error["code"] == -32603 and failed.reference in error["message"] and "clock" not in json.dumps(answer)


async def opened(peer: RawPeer, revision: str = "2025-11-25") -> None:
    """Perform the handshake; nothing is in flight afterwards."""
    await peer.initialize(revision)
    assert await peer.quiet() == []


# --- stream connections -------------------------------------------------------------------------------


@pytest.mark.row("D07")
async def test_session_is_replaced_and_pending_requests_are_answered(failing: FailingServer) -> None:
    async with RawPeer(failing.server) as peer:
        await peer.initialize("2025-06-18", {"roots": {}})
        await peer.result("resources/subscribe", {"uri": "note://a"})
        await peer.result("logging/setLevel", {"level": "error"})
        waiting = peer.call("tools/call", {"name": "wait"})
        asking = peer.call("tools/call", {"name": "ask"})
        question = await peer.receive()
        await failing.began.wait()
        failing.clock.failures = 1
        refused = await peer.request("ping")
        [failed] = failing.failures
        assert (failed.request, failed.method, str(failed.error)) == (None, "the conversation", "the clock has stopped")
        cut_off = [await peer.answer_to(waiting), await peer.answer_to(asking)]
        for answer in (*cut_off, refused):
            assert is_internal(answer, failed)
        assert [answer["error"]["data"]["kind"] for answer in cut_off] == ["outcome_unknown"] * 2
        await failing.ended.wait()  # the caller has given up
        assert failing.steps == IN_ORDER

        failing.server.notify_updated("note://a")
        assert await peer.quiet() == [
            {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "note://a"}}
        ]
        peer.call("tools/call", {"name": "say"})
        assert (await peer.receive())["params"]["data"] == "heard"
        peer.reply(question, {"roots": []})  # too late for the caller
        asking = peer.call("tools/call", {"name": "ask"})
        await peer.receive()
        anew = await peer.receive()
        assert anew["method"] == "roots/list"
        assert anew["id"] != question["id"]
        peer.reply(anew, {"roots": [{"uri": "file:///here"}]})
        assert (await peer.answer_to(asking))["result"]["content"][0]["text"] == "file:///here"
        assert peer.connection.session.effective_revision.value == "2025-06-18"
    assert failing.watched == ["note://a"]
    assert (len(failing.seen.of(Connected)), len(failing.seen.of(Closed))) == (1, 1)
    assert [fact.outcome for fact in failing.seen.of(CallEnded)].count("error") == 2


@pytest.mark.row("D07")
async def test_messages_after_a_failed_one_are_read(failing: FailingServer) -> None:
    async with RawPeer(failing.server) as peer:
        await opened(peer)
        failing.clock.failures = 1
        first, second = peer.call("ping"), peer.call("ping")
        assert "error" in await peer.answer_to(first)
        assert "result" in await peer.answer_to(second)


@pytest.mark.row("D07")
async def test_answered_call_has_one_response(failing: FailingServer) -> None:
    async with RawPeer(failing.server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", {"name": "fail"}))["structuredContent"] == {"result": "answered"}
        assert await peer.quiet() == []
        assert len(failing.failures) == 1
        assert failing.steps == IN_ORDER


@pytest.mark.row("D07")
async def test_call_that_failed_at_start_has_one_response(failing: FailingServer) -> None:
    async with RawPeer(failing.server) as peer:
        await opened(peer)
        failing.fails_after = Received
        assert is_internal(await peer.request("tools/call", {"name": "wait"}), failing.failures[0])
        assert await peer.quiet() == []
    assert not failing.began.is_set()


@pytest.mark.row("D07")
async def test_failed_deadline_costs_only_the_session(failing: FailingServer) -> None:
    async with RawPeer(failing.server) as peer:
        await peer.initialize()
        waiting = peer.call("tools/call", {"name": "wait"})
        await failing.began.wait()
        failing.clock.failures = 1
        failing.clock.advance(3600)
        assert is_internal(await peer.answer_to(waiting), failing.failures[0])
        assert await peer.result("ping") == {}


@pytest.mark.row("D07")
async def test_failed_batch_is_answered_as_a_whole(failing: FailingServer) -> None:
    async with RawPeer(failing.server) as peer:
        await opened(peer, "2025-03-26")
        failing.clock.failures = 1
        peer.send(
            [request("ping", id="a"), {"jsonrpc": "2.0", "method": "notifications/none"}, request("ping", id="b")]
        )
        answers = await peer.receive()
        assert [(one["id"], one["error"]["code"]) for one in answers] == [("a", -32603), ("b", -32603)]
        failing.clock.failures = 1
        peer.send([{"jsonrpc": "2.0", "method": "notifications/none"}])
        assert await peer.quiet() == []
        assert failing.steps == IN_ORDER * 2


@pytest.mark.row("D07")
@pytest.mark.parametrize("said", ["notifications/initialized", "notifications/cancelled"])
async def test_failed_notification_gets_no_response(failing: FailingServer, said: str) -> None:
    async with RawPeer(failing.server) as peer:
        await opened(peer)
        failing.clock.failures = 1
        peer.notify(said)
        assert await peer.quiet() == []
        assert failing.steps == IN_ORDER


@pytest.mark.row("D07")
async def test_handshake_continues_after_a_failure(failing: FailingServer) -> None:
    async with RawPeer(failing.server) as peer:
        failing.clock.failures = 1
        assert "error" in await peer.request("ping")
        await peer.initialize(capabilities={"roots": {}}, confirm=False)
        asking = peer.call("tools/call", {"name": "ask"})
        assert await peer.quiet() == []
        failing.clock.failures = 1
        assert "error" in await peer.request("ping")
        assert "error" in await peer.answer_to(asking)
        peer.call("tools/call", {"name": "ask"})
        for _ in range(3):  # so that it reaches its wait
            assert await peer.quiet() == []
        peer.notify("notifications/initialized")
        assert (await peer.receive())["method"] == "roots/list"


@pytest.mark.row("D07")
async def test_paused_or_draining_server_stays_so(failing: FailingServer) -> None:
    async with RawPeer(failing.server) as peer:
        await opened(peer)
        failing.server.pause()
        failing.clock.failures = 1
        assert (await peer.error("ping"))["code"] == -32603
        assert (await peer.error("tools/list"))["code"] == 1008
        failing.server.resume()
        assert "tools" in await peer.result("tools/list")
        peer.connection.drain()
        failing.clock.failures = 1
        assert (await peer.error("ping"))["code"] == -32603
        assert (await peer.error("tools/list"))["code"] == 1008


@pytest.mark.row("D07")
async def test_failing_channel_does_not_affect_other_clients(failing: FailingServer) -> None:
    """A channel that fails in third-party code, as a transport may."""
    async with RawPeer(failing.server) as first, RawPeer(failing.server) as second:
        for peer in (first, second):
            await peer.initialize()
            await peer.result("resources/subscribe", {"uri": "note://a"})
        send, told = first.connection.channel.send, list[Any]()

        def fail(message: Any, **_: Any) -> None:
            told.append(message)
            first.connection.channel.send = send  # type: ignore[method-assign]
            raise RuntimeError("no way out")

        first.connection.channel.send = fail  # type: ignore[method-assign]
        failing.server.notify_updated("note://a")
        assert (await second.receive())["method"] == "notifications/resources/updated"
        assert len(told) == 1
        assert await first.result("ping") == {}


@pytest.mark.row("D07", "U01")
async def test_frequent_failures_close_only_that_connection() -> None:
    failing = FailingServer(settings=Settings(restart_intensity=2, restart_period=60))
    async with RawPeer(failing.server) as good, RawPeer(failing.server) as other, RawPeer(failing.server) as bad:
        for peer in (good, other, bad):
            await opened(peer)
        for _ in range(2):
            failing.clock.failures = 1
            assert "error" in await bad.request("ping")
        failing.clock.advance(61)
        for _ in range(3):
            assert bad.closed is None
            failing.clock.failures = 1
            assert "error" in await bad.request("ping")
        await until(lambda: bad.closed is not None)
        assert "failed too often" in failing.seen.of(Closed)[0].reason
        assert await good.result("ping") == {}
        assert await other.result("ping") == {}
    await failing.server.aclose()


@pytest.mark.row("D07")
async def test_failure_after_disconnect_is_only_reported(failing: FailingServer) -> None:
    @failing.server.tool
    async def late() -> None:
        failing.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            failing.clock.failures = 1
            raise ValueError("too late")

    async with RawPeer(failing.server) as peer:
        await opened(peer)
        peer.call("tools/call", {"name": "late"})
        await failing.began.wait()
    await until(lambda: failing.failures)
    assert [str(failed.error) for failed in failing.failures] == ["the clock has stopped"]
    assert failing.steps == []


async def test_broken_exception_text_leaves_no_caller_waiting(failing: FailingServer) -> None:
    class Silent(ToolError):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @failing.server.tool
    async def silent() -> None:
        raise Silent("x")

    @failing.server.tool
    async def odd() -> None:
        raise ProtocolError("odd", code=7, data={"what": object()})

    async with RawPeer(failing.server) as peer:
        await peer.initialize()
        for name in ("silent", "odd"):
            result = await peer.result("tools/call", {"name": name})
            assert result["isError"]
            assert failing.failures[-1].reference in result["content"][0]["text"]
    assert failing.steps == []


# --- over HTTP ----------------------------------------------------------------------------------------


@pytest.mark.row("D07")
async def test_http_session_continues_under_its_id(failing: FailingServer) -> None:
    async with hosted(failing.server) as host:
        session = await host.session()
        subscribed = await host.ask("POST", request("resources/subscribe", {"uri": "note://a"}), mcp_session_id=session)
        assert "result" in subscribed.json
        stream = host.begin("GET", mcp_session_id=session)
        await stream.event()
        waiting = host.begin("POST", call("wait", id=2), mcp_session_id=session)
        await failing.began.wait()
        failing.clock.failures = 1
        refused = await host.ask("POST", request("ping", id=3), mcp_session_id=session)
        [failed] = failing.failures
        assert (refused.status, refused.json["id"], is_internal(refused.json, failed)) == (200, 3, True)
        cut = await waiting.finished()
        assert (cut.status, cut.json["id"], is_internal(cut.json, failed)) == (200, 2, True)
        failing.server.notify_updated("note://a")
        assert (await stream.message())["params"] == {"uri": "note://a"}
        assert "result" in (await host.ask("POST", request("ping"), mcp_session_id=session)).json
        stream.gone.set()
        await stream.finished()
    assert failing.steps == IN_ORDER


@pytest.mark.row("D07")
async def test_event_stream_ends_with_the_error(failing: FailingServer) -> None:
    @failing.server.tool
    async def slowly(ctx: Context) -> None:
        await ctx.progress(1)
        await asyncio.Event().wait()

    async with hosted(failing.server) as host:
        session = await host.session()
        answer = host.begin("POST", call("slowly", id=2, token="t"), mcp_session_id=session)
        assert (await answer.message())["method"] == "notifications/progress"
        failing.clock.failures = 1
        await host.ask("POST", request("ping", id=3), mcp_session_id=session)
        assert is_internal(await answer.message(), failing.failures[0])
        await answer.finished()
        assert answer.ended


@pytest.mark.row("D07")
async def test_requests_of_other_peers_are_not_affected(failing: FailingServer) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }

    def asked(name: str) -> dict[str, Any]:
        return request("tools/call", {"name": name, "arguments": {}, "_meta": meta})

    def begin(host: Host, name: str) -> Any:
        headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": name}
        return host.begin("POST", asked(name), **headers)

    async with hosted(failing.server) as host:
        waiting = begin(host, "wait")
        await failing.began.wait()
        failing.clock.failures = 1
        refused = await begin(host, "say").finished()
        assert is_internal(refused.json, failing.failures[0])
        answered = await begin(host, "fail").finished()
        assert answered.json["result"]["structuredContent"] == "answered"
        assert not waiting.ended
        assert not failing.ended.is_set()
        waiting.gone.set()
        await waiting.finished()
    assert failing.steps == []


@pytest.mark.row("D07")
async def test_durable_session_continues_here_and_after_restart(tmp_path: Path) -> None:
    session = ""
    for life in range(2):
        failing = FailingServer(store=SqliteStore(tmp_path / "kept.db", clock=ManualClock()))
        host = Host(failing.server)
        host.app = failing.server.asgi()
        if not session:
            session = await host.session()
            params = {"uri": "note://a"}
            await host.ask("POST", request("resources/subscribe", params), mcp_session_id=session)
        failed = await host.ask("POST", call("fail"), mcp_session_id=session)
        assert failed.json["result"]["structuredContent"] == {"result": "answered"}
        assert failing.steps == IN_ORDER * (life + 1)
        stream = host.begin("GET", mcp_session_id=session)
        await stream.event()
        failing.server.notify_updated("note://a")
        assert (await stream.message())["params"] == {"uri": "note://a"}
        stream.gone.set()
        await stream.finished()
        await host.app.aclose()


# --- sockets ------------------------------------------------------------------------------------------


@asynccontextmanager
async def websocket(failing: FailingServer) -> AsyncIterator[Any]:
    listener = await failing.server.listen("http://127.0.0.1:0/mcp")
    async with aiohttp.ClientSession() as http, http.ws_connect(listener.address, protocols=["mcp"]) as line:
        yield line


@pytest.mark.row("D07")
async def test_websocket_stays_open(failing: FailingServer) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    async with asyncio.timeout(PATIENCE), websocket(failing) as line:
        await line.send_json(request("initialize", params))
        await line.receive_json()
        await line.send_json(call("fail", id=2))
        assert "result" in await line.receive_json()
        await line.send_json(request("ping", id=3))
        assert await line.receive_json() == {"jsonrpc": "2.0", "id": 3, "result": {}}
    assert failing.steps == IN_ORDER


SCRIPT = textwrap.dedent(
    """
    from trunkline import Server, Settings
    from trunkline.clock import WallClock

    class Stopping(WallClock):
        reads_left = None
        def now(self):
            if self.reads_left is not None:
                self.reads_left -= 1
                if self.reads_left < 0:
                    self.reads_left = None
                    raise RuntimeError("the clock has stopped")
            return super().now()

    clock = Stopping()

    class Watching:
        immediate = True

        def on(self, fact): ...

    server = Server("failing", clock=clock, observers=[Watching()], settings=Settings(restart_intensity=1))

    @server.tool
    async def fail() -> str:
        clock.reads_left = 1  # the end of the handler; the next one is after the reply
        return "answered"

    server.run()
    """
)


@pytest.mark.row("D07")
def test_process_ends_only_after_frequent_failures() -> None:
    command = [sys.executable, "-c", SCRIPT]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        for message in (request("initialize", params), call("fail"), request("ping"), call("fail")):
            print(json.dumps(message), file=process.stdin, flush=True)
            assert "result" in json.loads(process.stdout.readline())
        assert process.wait(PATIENCE) == 1
        assert process.stderr is not None
        assert "the clock has stopped" in process.stderr.read()
