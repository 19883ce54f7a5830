"""`shutdown`, as the founding documents have it: a client ends its conversation in good order, and no other."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.modern import enveloped
from tests.processes import StdioPeer
from tests.spec import houses
from tests.spec.test_shutdown import SCRIPT, STAGES
from tests.unit.transports.http.asgi import Host, hosted, request

from trunkline import Server
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Store
from trunkline.testing import RawPeer

pytestmark = pytest.mark.off_the_record  # no revision has such a method

NOTICE = {"jsonrpc": "2.0", "method": "shutdown"}
NAMES = ["shutdown", "notifications/shutdown"]


class House(houses.House):
    """A server for clients of the founding documents, with a tool that waits."""

    def __init__(self, store: Store | None = None, **settings: Any) -> None:
        super().__init__(store, settings=settings, compat="erlmcp")
        self.unwatched = asyncio.Event()
        self.server.on_last_unsubscribed(lambda _: self.unwatched.set())

    async def busy(self, peer: RawPeer) -> int | str:
        """Has a peer subscribe to something and wait for something; gives the id of what it waits for."""
        await peer.result("resources/subscribe", {"uri": "memo://one"})
        ident = peer.call("tools/call", {"name": "waits"})
        await self.begun.wait()
        return ident


async def ended(peer: RawPeer) -> None:
    """Waits until the line of a peer is closed."""
    async with asyncio.timeout(PATIENCE):
        while peer.closed is None:
            await asyncio.sleep(0)


# --- on a line ----------------------------------------------------------------------------------


@pytest.mark.row("L28", "D18", "X31")
async def test_a_client_that_asks_for_it_is_drained_answered_and_closed() -> None:
    house = House()
    async with RawPeer(house.server) as peer:
        await peer.initialize()
        waiting = await house.busy(peer)
        asked = peer.call("shutdown")
        assert (await peer.error("tools/call", {"name": "quick"}))["code"] == 1008
        assert (await peer.error("tools/call", enveloped(name="quick")))["code"] == 1008
        assert (await peer.error("shutdown"))["code"] == 1008  # it is under way
        assert await peer.result("ping") == {}
        await house.unwatched.wait()
        house.go.set()
        answers = [await peer.receive(), await peer.receive()]
        assert [answer["id"] for answer in answers] == [waiting, asked]
        assert answers[1]["result"] == {}
        await ended(peer)
    await house.server.aclose()


@pytest.mark.row("L28", "D18")
@pytest.mark.parametrize("name", NAMES)
async def test_told_and_not_asked_it_does_the_same(name: str) -> None:
    house = House()
    async with RawPeer(house.server) as peer:
        await peer.initialize()
        waiting = await house.busy(peer)
        peer.notify(name)
        assert (await peer.error("tools/call", {"name": "quick"}))["code"] == 1008
        await house.unwatched.wait()
        house.go.set()
        assert (await peer.answer_to(waiting))["result"]["content"][0]["text"] == "done"
        await ended(peer)
    await house.server.aclose()


@pytest.mark.row("L28")
async def test_others_who_are_on_the_line_are_not_touched() -> None:
    house = House()
    async with RawPeer(house.server) as peer, RawPeer(house.server) as other:
        await peer.initialize()
        await other.initialize()
        await other.result("resources/subscribe", {"uri": "memo://one"})
        assert await peer.result("shutdown") == {}
        await ended(peer)
        house.server.notify_updated("memo://one")
        assert (await other.receive())["method"] == "notifications/resources/updated"
        await other.result("tools/call", {"name": "quick"})
    await house.server.aclose()


@pytest.mark.row("L28")
async def test_what_hangs_is_cut_when_its_time_is_over_and_the_request_is_answered() -> None:
    house = House(drain_timeout=0.05)
    async with RawPeer(house.server) as peer:
        await peer.initialize()
        await house.busy(peer)
        assert await peer.result("shutdown") == {}
        await ended(peer)
    await house.server.aclose()


@pytest.mark.row("L28")
async def test_a_server_that_ends_meanwhile_answers_it_as_well() -> None:
    house = House()
    async with RawPeer(house.server) as peer:
        await peer.initialize()
        waiting = await house.busy(peer)
        asked = peer.call("shutdown")
        ending = asyncio.create_task(house.server.shutdown())
        await house.server.stopping()
        house.go.set()
        assert "result" in await peer.answer_to(waiting)
        assert (await peer.answer_to(asked))["result"] == {}
        assert await ending == ()


@pytest.mark.row("L28")
@pytest.mark.parametrize("wait", [True, False])
async def test_a_server_that_is_paused_or_has_its_hands_full_lets_its_clients_go(wait: bool) -> None:
    house = House(max_calls=1)
    async with RawPeer(house.server) as peer:
        await peer.initialize()
        await house.busy(peer)
        house.server.pause(wait=wait)
        asked = peer.call("shutdown")
        assert await peer.quiet() == []
        house.go.set()
        assert (await peer.answer_to(asked))["result"] == {}
        await ended(peer)
    await house.server.aclose()


@pytest.mark.row("L28")
async def test_it_does_not_wait_for_its_turn() -> None:
    house = House(max_calls=1)
    async with RawPeer(house.server) as peer:
        await peer.initialize()
        await house.busy(peer)
        asked = peer.call("shutdown")
        assert (await peer.error("tools/call", {"name": "quick"}))["code"] == 1008
        house.go.set()
        assert (await peer.answer_to(asked))["result"] == {}
    await house.server.aclose()


@pytest.mark.row("L28", "X31")
async def test_without_the_profile_there_is_no_such_method() -> None:
    server = Server("t")
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await peer.error("shutdown"))["code"] == -32601
        for name in NAMES:
            peer.notify(name)
        assert await peer.result("ping") == {}
        assert peer.closed is None
    await server.aclose()


@pytest.mark.row("X31")
async def test_the_later_era_has_no_such_method_either() -> None:
    house = House()
    async with RawPeer(house.server) as peer:
        assert (await peer.error("shutdown", enveloped()))["code"] == -32601
    await house.server.aclose()


# --- over HTTP ----------------------------------------------------------------------------------


@asynccontextmanager
async def two_sessions(house: House) -> AsyncIterator[tuple[Host, str, str]]:
    async with hosted(house.server) as host:
        host.app = house.server.asgi()  # which keeps sessions, if the store does
        yield host, await host.session(), await host.session()


async def say_shutdown(host: Host, session: str, how: str) -> None:
    """Says it, and waits until the session has gone."""
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
async def test_over_http_the_session_is_gone_and_no_other(how: str, kept: bool, tmp_path: Path) -> None:
    house = House(SqliteStore(tmp_path / "store") if kept else None)
    async with two_sessions(house) as (host, mine, other):
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
async def test_over_http_what_runs_is_answered_first_and_what_is_new_refused() -> None:
    house = House()
    async with two_sessions(house) as (host, mine, _):
        waiting = host.begin("POST", request("tools/call", {"name": "waits"}, id=1), mcp_session_id=mine)
        await house.begun.wait()
        asked = host.begin("POST", request("shutdown", id=2), mcp_session_id=mine)
        refused = await host.ask("POST", request("tools/call", {"name": "quick"}, id=3), mcp_session_id=mine)
        assert refused.json["error"]["code"] == 1008
        house.go.set()
        assert (await waiting.finished()).json["result"]["content"][0]["text"] == "done"
        assert (await asked.finished()).json["result"] == {}


@pytest.mark.row("L28")
async def test_a_session_that_was_ended_so_makes_room_for_another() -> None:
    house = House(max_sessions=2)
    async with two_sessions(house) as (host, mine, _):
        await say_shutdown(host, mine, "request")
        await host.session()


# --- on stdio -----------------------------------------------------------------------------------


def asks(peer: StdioPeer) -> None:
    assert peer.result("shutdown") == {}


@pytest.mark.row("L28", "D13", "D18")
@pytest.mark.parametrize("say", [asks, lambda peer: peer.notify("shutdown")], ids=["request", "notification"])
def test_on_stdio_the_process_ends_with_it(say: Callable[[StdioPeer], None]) -> None:
    with StdioPeer(SCRIPT) as peer:
        peer.initialize()
        say(peer)
        assert peer.exit_code() == 0
        assert peer.stderr().split() == STAGES


@pytest.mark.row("L28")
def test_on_stdio_a_call_that_is_cut_is_told_by_the_exit_code_and_the_request_answered() -> None:
    with StdioPeer(SCRIPT, env={"TRUNKLINE_DRAIN_TIMEOUT": "0.1"}) as peer:
        peer.initialize()
        peer.tool("forever")
        peer.receive()
        assert peer.result("shutdown") == {}
        assert peer.exit_code() == 82
