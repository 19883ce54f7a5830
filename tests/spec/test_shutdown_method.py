"""`shutdown` of the founding documents: a client ends its own connection in good order, and no other one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.founding import FEATURES
from tests.limits import PATIENCE
from tests.modern import enveloped
from tests.processes import StdioPeer
from tests.spec import busy_server
from tests.spec.test_shutdown import SCRIPT, STAGES
from tests.unit.transports.http.asgi import Host, hosted, request

from trunkline import Server
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Store
from trunkline.testing import RawPeer

pytestmark = pytest.mark.off_the_record  # no revision has such a method

NOTICE = {"jsonrpc": "2.0", "method": "shutdown"}
NAMES = ["shutdown", "notifications/shutdown"]


class RunningServer(busy_server.BusyServer):
    """A server for clients of the founding documents, with a tool that blocks."""

    def __init__(self, store: Store | None = None, **settings: Any) -> None:
        super().__init__(store, settings=settings, compat="erlmcp")
        self.unwatched = asyncio.Event()
        self.server.on_last_unsubscribed(lambda _: self.unwatched.set())

    async def busy(self, peer: RawPeer) -> int | str:
        """Subscribe and call the blocking tool as a peer; return the id of the call."""
        await peer.result("resources/subscribe", {"uri": "memo://one"})
        ident = peer.call("tools/call", {"name": "waits"})
        await self.begun.wait()
        return ident


async def ended(peer: RawPeer) -> None:
    """Wait until the connection of a peer is closed."""
    async with asyncio.timeout(PATIENCE):
        while peer.closed is None:
            await asyncio.sleep(0)


# --- stream connections -------------------------------------------------------------------------


@pytest.mark.row("L28", "D18", "X31")
async def test_shutdown_request_drains_replies_and_closes() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        waiting = await subject.busy(peer)
        asked = peer.call("shutdown")
        assert (await peer.error("tools/call", {"name": "quick"}))["code"] == 1008
        assert (await peer.error("tools/call", enveloped(name="quick")))["code"] == 1008
        assert (await peer.error("shutdown"))["code"] == 1008  # it is under way
        assert await peer.result("ping") == {}
        await subject.unwatched.wait()
        subject.go.set()
        answers = [await peer.receive(), await peer.receive()]
        assert [answer["id"] for answer in answers] == [waiting, asked]
        assert answers[1]["result"] == {}
        await ended(peer)
    await subject.server.aclose()


@pytest.mark.row("L28", "D18")
@pytest.mark.parametrize("name", NAMES)
async def test_shutdown_notification_does_the_same(name: str) -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        waiting = await subject.busy(peer)
        peer.notify(name)
        assert (await peer.error("tools/call", {"name": "quick"}))["code"] == 1008
        await subject.unwatched.wait()
        subject.go.set()
        assert (await peer.answer_to(waiting))["result"]["content"][0]["text"] == "done"
        await ended(peer)
    await subject.server.aclose()


@pytest.mark.row("L28")
async def test_shutdown_request_does_not_affect_other_clients() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer, RawPeer(subject.server) as other:
        await peer.initialize(capabilities=FEATURES)
        await other.initialize(capabilities=FEATURES)
        await other.result("resources/subscribe", {"uri": "memo://one"})
        assert await peer.result("shutdown") == {}
        await ended(peer)
        subject.server.notify_updated("memo://one")
        assert (await other.receive())["method"] == "resources/updated"
        await other.result("tools/call", {"name": "quick"})
    await subject.server.aclose()


@pytest.mark.row("L28")
async def test_hanging_call_is_cancelled_before_the_reply() -> None:
    subject = RunningServer(drain_timeout=0.05)
    async with RawPeer(subject.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        await subject.busy(peer)
        assert await peer.result("shutdown") == {}
        await ended(peer)
    await subject.server.aclose()


@pytest.mark.row("L28")
async def test_server_shutdown_answers_a_pending_shutdown_request() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        waiting = await subject.busy(peer)
        asked = peer.call("shutdown")
        ending = asyncio.create_task(subject.server.shutdown())
        await subject.server.stopping()
        subject.go.set()
        assert "result" in await peer.answer_to(waiting)
        assert (await peer.answer_to(asked))["result"] == {}
        assert await ending == ()


@pytest.mark.row("L28")
@pytest.mark.parametrize("wait", [True, False])
async def test_shutdown_request_works_while_paused_or_busy(wait: bool) -> None:
    subject = RunningServer(max_calls=1)
    async with RawPeer(subject.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        await subject.busy(peer)
        subject.server.pause(wait=wait)
        asked = peer.call("shutdown")
        assert await peer.quiet() == []
        subject.go.set()
        assert (await peer.answer_to(asked))["result"] == {}
        await ended(peer)
    await subject.server.aclose()


@pytest.mark.row("L28")
async def test_shutdown_request_is_not_queued() -> None:
    subject = RunningServer(max_calls=1)
    async with RawPeer(subject.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        await subject.busy(peer)
        asked = peer.call("shutdown")
        assert (await peer.error("tools/call", {"name": "quick"}))["code"] == 1008
        subject.go.set()
        assert (await peer.answer_to(asked))["result"] == {}
    await subject.server.aclose()


@pytest.mark.row("L28", "X31")
async def test_shutdown_method_needs_the_profile() -> None:
    server = Server("t")
    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FEATURES)
        assert (await peer.error("shutdown"))["code"] == -32601
        for name in NAMES:
            peer.notify(name)
        assert await peer.result("ping") == {}
        assert peer.closed is None
    await server.aclose()


@pytest.mark.row("X31")
async def test_shutdown_method_does_not_exist_in_the_modern_era() -> None:
    subject = RunningServer()
    async with RawPeer(subject.server) as peer:
        assert (await peer.error("shutdown", enveloped()))["code"] == -32601
    await subject.server.aclose()


# --- over HTTP ----------------------------------------------------------------------------------


@asynccontextmanager
async def two_sessions(subject: RunningServer) -> AsyncIterator[tuple[Host, str, str]]:
    async with hosted(subject.server) as host:
        host.app = subject.server.asgi()  # sessions are durable if the store is
        yield host, await host.session(capabilities=FEATURES), await host.session(capabilities=FEATURES)


async def say_shutdown(host: Host, session: str, how: str) -> None:
    """Send shutdown, and wait until the session has gone."""
    if how == "request":
        answer = await host.ask("POST", request("shutdown"), mcp_session_id=session)
        assert (answer.status, answer.json["result"]) == (200, {})
    else:
        assert (await host.ask("POST", NOTICE, mcp_session_id=session)).status == 202
    async with asyncio.timeout(PATIENCE):
        while (await host.ask("POST", request("ping"), mcp_session_id=session)).status == 200:
            await asyncio.sleep(0)


@pytest.mark.row("L28", "D18")
@pytest.mark.parametrize("how", ["request", "notification"])
@pytest.mark.parametrize("kept", [True, False])
async def test_http_shutdown_request_ends_only_its_session(how: str, kept: bool, tmp_path: Path) -> None:
    subject = RunningServer(SqliteStore(tmp_path / "store") if kept else None)
    async with two_sessions(subject) as (host, mine, other):
        stream = host.begin("GET", mcp_session_id=mine)
        await say_shutdown(host, mine, how)
        answer = await host.ask("POST", request("tools/call", {"name": "quick"}), mcp_session_id=mine)
        assert (answer.status, answer.json["error"]["data"]["kind"]) == (404, "session_not_found")
        assert (await stream.finished()).ended
        answer = await host.ask("POST", request("tools/call", {"name": "quick"}), mcp_session_id=other)
        assert answer.json["result"]["content"][0]["text"] == "quick"
    if kept:
        store = SqliteStore(tmp_path / "store")
        await store.open()
        assert [item.key for item in await store.scan("session/") if mine in item.key] == []
        await store.close()


@pytest.mark.row("L28")
async def test_http_shutdown_request_drains_before_the_reply() -> None:
    subject = RunningServer()
    async with two_sessions(subject) as (host, mine, _):
        waiting = host.begin("POST", request("tools/call", {"name": "waits"}, id=1), mcp_session_id=mine)
        await subject.begun.wait()
        asked = host.begin("POST", request("shutdown", id=2), mcp_session_id=mine)
        refused = await host.ask("POST", request("tools/call", {"name": "quick"}, id=3), mcp_session_id=mine)
        assert refused.json["error"]["code"] == 1008
        subject.go.set()
        assert (await waiting.finished()).json["result"]["content"][0]["text"] == "done"
        assert (await asked.finished()).json["result"] == {}


@pytest.mark.row("L28")
async def test_ended_session_frees_its_quota() -> None:
    subject = RunningServer(max_sessions=2)
    async with two_sessions(subject) as (host, mine, _):
        await say_shutdown(host, mine, "request")
        await host.session(capabilities=FEATURES)


# --- on stdio -----------------------------------------------------------------------------------


def asks(peer: StdioPeer) -> None:
    assert peer.result("shutdown") == {}


@pytest.mark.row("L28", "D13", "D18")
@pytest.mark.parametrize("say", [asks, lambda peer: peer.notify("shutdown")], ids=["request", "notification"])
def test_stdio_shutdown_request_ends_the_process(say: Callable[[StdioPeer], None]) -> None:
    with StdioPeer(SCRIPT) as peer:
        peer.initialize(capabilities=FEATURES)
        say(peer)
        assert peer.exit_code() == 0
        assert peer.stderr().split() == STAGES


@pytest.mark.row("L28")
def test_stdio_shutdown_request_reports_cancelled_calls() -> None:
    with StdioPeer(SCRIPT, env={"TRUNKLINE_DRAIN_TIMEOUT": "0.1"}) as peer:
        peer.initialize(capabilities=FEATURES)
        peer.tool("forever")
        peer.receive()
        assert peer.result("shutdown") == {}
        assert peer.exit_code() == 82
