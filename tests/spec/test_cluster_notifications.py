"""Processes with one store act as one server: clients of all processes receive the changes of each."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Raw
from tests.founding import REQUESTED
from tests.limits import PATIENCE
from tests.modern import enveloped
from tests.spec.durable_server import ServerProcess, SessionPeer
from tests.unit.server.cluster.clusters import FactRecorder
from tests.unit.server.server_runs import SlowStore
from tests.unit.transports.http.asgi import Host, request

from trunkline import Server, Settings
from trunkline.protocol.tasks import TaskCaller, TaskRecord, TaskState
from trunkline.server.cluster.cluster import Cluster
from trunkline.server.cluster.membership import evict_process
from trunkline.server.cluster.notifications import ClusterNotifications
from trunkline.server.tasks.notify import TaskNotifier
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import RawPeer

UPDATED = "notifications/resources/updated"
LISTED = "notifications/tools/list_changed"


class Node:
    """One process of the server."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.store = SqliteStore(path)
        self.seen = FactRecorder()
        chosen = Settings(file_poll_interval=0.01, **settings)
        self.server = Server("one of many", store=self.store, observers=[self.seen], settings=chosen)

        @self.server.resource("note://{name}")
        def note(name: str) -> str:
            return name

        @self.server.tool
        async def change(uri: str, times: int = 1) -> None:
            for number in range(times):
                self.server.notify_updated(uri.format(number))

        @self.server.tool
        async def change_versions(uri: str, versions: list[int]) -> None:
            for version in versions:
                self.server.notify_updated(uri, meta={"version": version} if version else None)

        @self.server.tool
        def change_on_thread(uri: str) -> None:
            self.server.notify_updated(uri)

        @self.server.tool
        async def add() -> None:
            self.server.add_tool(lambda: 1, name="added")

        @self.server.tool
        async def nothing() -> None: ...

        @self.server.tool(task=True)
        async def work() -> None: ...

    @property
    def cluster(self) -> Cluster:
        cluster = self.server._runtime.get_services().cluster
        assert cluster is not None
        return cluster

    @property
    def news(self) -> ClusterNotifications:
        news = self.server._runtime.get_services().cluster_notifications
        assert news is not None
        return news


class Nodes:
    """Processes that share a SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[Node] = []

    async def one(self, **settings: Any) -> Node:
        node = Node(self.path, **settings)
        await node.server.start()
        self._open.append(node)
        return node

    async def end(self) -> None:
        for node in self._open:
            await node.server.aclose()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    made = Nodes(tmp_path / "s.db")
    yield made
    await made.end()


async def subscriber(node: Node, *uris: str) -> RawPeer:
    peer = RawPeer(node.server)
    await peer.__aenter__()
    await peer.initialize()
    for uri in uris:
        await peer.result("resources/subscribe", {"uri": uri})
    return peer


async def slow_session(node: Node, uri: str) -> SlowStore:
    """A subscribed session whose events are stored only when the test releases the store."""
    host = Host(node.server)
    host.app = node.server.asgi()
    session = await host.session()
    answer = await host.ask("POST", request("resources/subscribe", {"uri": uri}), mcp_session_id=session)
    assert "result" in answer.json
    return SlowStore(node.store, "/events/")


async def do(node: Node, tool: str, **arguments: Any) -> None:
    """Call a tool from a client that does nothing else."""
    async with RawPeer(node.server) as peer:
        await peer.initialize()
        assert not (await peer.result("tools/call", {"name": tool, "arguments": arguments})).get("isError")


async def settled(node: Node) -> None:
    """Wait for what a reply would wait for."""
    unsettled = node.news.reply_gate.find_pending()
    assert unsettled is not None
    await asyncio.wait_for(unsettled, PATIENCE)


def notifications_of(peer: RawPeer, method: str = UPDATED) -> list[Any]:
    """The notifications so far."""
    return [message.get("params", {}).get("uri") for message in peer.waiting() if message.get("method") == method]


# --- a reply implies that other clients have their notifications ---------------------------------------


@pytest.mark.parametrize("tool", ["change", "change_on_thread"])
async def test_reply_waits_for_clients_of_other_processes(nodes: Nodes, tool: str) -> None:
    here, there, third = await nodes.one(), await nodes.one(), await nodes.one()
    hearers = [await subscriber(node, "note://a") for node in (here, there, third)]
    await do(here, tool, uri="note://a")
    assert [notifications_of(hearer) for hearer in hearers] == [["note://a"]] * 3
    await do(there, tool, uri="note://b")
    assert [notifications_of(hearer) for hearer in hearers] == [[]] * 3
    for hearer in hearers:
        await hearer.close()


@pytest.mark.off_the_record  # no official schema has such names and metadata
@pytest.mark.row("N01e")
async def test_profile_metadata_of_an_update_reaches_other_processes(nodes: Nodes) -> None:
    here, there = await nodes.one(), await nodes.one()
    usual = await subscriber(there, "note://a")
    async with RawPeer(there.server) as peer, RawPeer(there.server) as listener:
        await peer.initialize(capabilities=REQUESTED)
        await peer.result("resources/subscribe", {"uri": "note://a"})
        listener.call("subscriptions/listen", enveloped(notifications={"resourceSubscriptions": ["note://a"]}), id=1)
        await listener.receive()
        here.server.notify_updated("note://a", meta={"version": "2"})
        await settled(here)
        params = {"uri": "note://a", "metadata": {"version": "2"}}
        assert peer.waiting() == [{"jsonrpc": "2.0", "method": "resources/updated", "params": params}]
        assert [message["params"] for message in usual.waiting()] == [{"uri": "note://a", "_meta": {"version": "2"}}]
        assert [message["params"]["uri"] for message in listener.waiting()] == ["note://a"]
    await usual.close()


@pytest.mark.row("R17")
async def test_metadata_of_updates_reaches_other_processes(nodes: Nodes) -> None:
    here, there = await nodes.one(), await nodes.one()
    hearers = [await subscriber(node, "note://a") for node in (here, there)]
    await do(here, "change_versions", uri="note://a", versions=[1, 0, 2, 2])
    for hearer in hearers:
        updates = [message["params"].get("_meta") for message in hearer.waiting()]
        assert updates == [{"version": 1}, None, {"version": 2}, {"version": 2}]
        await hearer.close()


async def test_listener_of_another_process_is_notified(nodes: Nodes) -> None:
    here, there = await nodes.one(), await nodes.one()
    async with RawPeer(there.server) as peer:
        wanted = {"resourceSubscriptions": ["note://a"], "toolsListChanged": True}
        peer.call("subscriptions/listen", enveloped(notifications=wanted), id=1)
        assert (await peer.receive())["method"] == "notifications/subscriptions/acknowledged"
        await do(here, "change", uri="note://a")
        await do(here, "add")
        assert [message["method"] for message in peer.waiting()] == [UPDATED, LISTED]


async def test_list_change_is_announced_by_all_processes(nodes: Nodes) -> None:
    here, there = await nodes.one(), await nodes.one()
    hearer = await subscriber(there)
    await do(here, "add")
    assert notifications_of(hearer, LISTED) == [None]
    here.server.notify_list_changed("resources")
    assert (await hearer.receive())["method"] == "notifications/resources/list_changed"
    await hearer.close()


@pytest.mark.row("D10")
async def test_reply_waits_until_peers_have_stored_notifications(nodes: Nodes) -> None:
    here, there = await nodes.one(), await nodes.one()
    store = await slow_session(there, "note://a")
    async with RawPeer(here.server) as peer:
        await peer.initialize()
        ident = peer.call("tools/call", {"name": "change", "arguments": {"uri": "note://a"}})
        await asyncio.wait_for(store.asked.wait(), PATIENCE)
        assert peer.waiting() == []
        store.go_on.set()
        assert "result" in await peer.answer_to(ident)


async def test_reply_without_changes_or_peers_does_not_wait(nodes: Nodes) -> None:
    here = await nodes.one()
    here.server.notify_updated("note://a")
    assert here.news.reply_gate.find_pending() is None
    there = await nodes.one()
    await do(here, "nothing")
    assert here.news.reply_gate.find_pending() is None
    here.server.notify_updated("note://a")
    await settled(here)
    assert here.news.reply_gate.find_pending() is None
    assert here.news.reply_gate.open
    assert there.news.reply_gate.find_pending() is None


@pytest.mark.off_the_record  # there is too much of it
async def test_many_changes_arrive_in_order_and_are_deduplicated(nodes: Nodes) -> None:
    here, there = await nodes.one(), await nodes.one(max_subscriptions=2500)
    uris = [f"note://{number}" for number in range(2500)]
    hearer = await subscriber(there, *uris)
    await do(here, "change", uri="note://{}", times=2500)
    assert notifications_of(hearer) == uris
    await do(here, "change", uri="note://1", times=15_000)
    assert 1 <= len(notifications_of(hearer)) <= 10_000
    await hearer.close()


async def test_changes_share_a_batch_while_many_are_unacknowledged(nodes: Nodes) -> None:
    here, there = await nodes.one(), await nodes.one()
    hearer = await subscriber(there, *(f"note://{number}" for number in range(300)))
    store = await slow_session(there, "note://0")
    for number in range(300):
        here.server.notify_updated(f"note://{number}")
        await asyncio.sleep(0)
    assert here.news._batches_in_flight == 100
    store.go_on.set()
    await settled(here)
    assert notifications_of(hearer) == [f"note://{number}" for number in range(300)]
    await hearer.close()


async def test_each_process_watches_files_and_notifies_once(nodes: Nodes, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("first")
    here, there = await nodes.one(), await nodes.one()
    for node in (here, there):
        node.server.add_file("file:///a.txt", path)
    hearers = [await subscriber(node, "file:///a.txt", "note://a") for node in (here, there)]
    (tmp_path / "b.txt").write_text("and second")
    (tmp_path / "b.txt").replace(path)  # at once: a file that is being written is seen empty first
    for hearer in hearers:
        while (await hearer.receive())["method"] != UPDATED:
            pass  # that there is one more resource
    await do(here, "change", uri="note://a")
    await do(there, "change", uri="note://a")
    assert [notifications_of(hearer) for hearer in hearers] == [["note://a"] * 2] * 2
    for hearer in hearers:
        await hearer.close()


# --- sessions in other processes -------------------------------------------------------------------------


@pytest.mark.row("T18")
async def test_session_in_another_process_gets_task_notifications(nodes: Nodes) -> None:
    here, there = await nodes.one(), await nodes.one()
    host = Host(there.server)
    host.app = there.server.asgi()
    session = await host.session()
    stream = host.begin("GET", mcp_session_id=session)
    teller = TaskNotifier(here.server._runtime.get_services(), _record(session))
    assert teller.send_status(_record(session))
    teller.send_progress(1, 2, "half")
    methods = [(await stream.message())["method"] for _ in range(2)]
    assert methods == ["notifications/tasks/status", "notifications/progress"]
    assert TaskNotifier(here.server._runtime.get_services(), _record("x" * 43)).send_status(_record("x" * 43))


def _record(session: str) -> TaskRecord:
    return TaskRecord(
        task_id="t1",
        client="nobody",
        caller=TaskCaller(revision="2025-11-25", session=session),
        method="tools/call",
        params=Raw(b'{"name": "work", "arguments": {}}'),
        progress_token="p",
        created_at=1_000_000.0,
        updated_at=1_000_000.0,
        expires_at=1_003_600.0,
        state=TaskState.WORKING,
    )


# --- dead processes --------------------------------------------------------------------------------------


async def test_departed_process_delays_no_reply(nodes: Nodes) -> None:
    here, there, third = [await nodes.one(process_lease=10 * PATIENCE) for _ in range(3)]
    left = third.cluster.name
    await third.server.aclose()
    await there.cluster.close()
    async with asyncio.timeout(PATIENCE):  # less than a lease
        await do(here, "change", uri="note://a")
    assert (here.cluster.peers, here.seen.steps(left)) == (frozenset(), ["Meet", "Depart"])


async def test_evicted_process_ends_listens_and_notifies_of_everything(
    nodes: Nodes,
) -> None:
    here, there = await nodes.one(), await nodes.one(process_lease=1.5)
    hearer = await subscriber(there, "note://a")
    listener = RawPeer(there.server)
    await listener.__aenter__()
    wanted = {"resourceSubscriptions": ["note://a"]}
    listener.call("subscriptions/listen", enveloped(notifications=wanted), id="stays open")
    assert (await listener.receive())["method"] == "notifications/subscriptions/acknowledged"
    await evict_process(here.store, there.cluster.name, here.cluster.name, 5.0, known_dead=True)
    await there.seen.until("Join", 2)
    assert there.seen.steps()[-3:] == ["Deposed", "Join", "Meet"]
    assert (await listener.answer_to("stays open"))["result"] is not None
    assert (await hearer.receive())["params"]["uri"] == "note://a"
    await do(here, "change", uri="note://a")
    assert notifications_of(hearer) == ["note://a"]
    for peer in (hearer, listener):
        await peer.close()


@pytest.mark.row("D03")
async def test_paused_process_delays_a_reply_by_its_lease_only(
    nodes: Nodes,
) -> None:
    lease = 5.0  # a busy machine may delay a heartbeat by seconds, and only the pause shall cause an eviction
    process = ServerProcess(nodes.path, f"{{'process_lease': {lease}}}")
    node = await nodes.one(process_lease=lease)
    try:
        async with aiohttp.ClientSession() as http:
            peer = await SessionPeer(http, process.url).open()
            await peer.call("resources/subscribe", {"uri": "note://a"})
            async with peer.stream() as stream:
                await do(node, "change", uri="note://a")
                last, message = await stream.event()
                while message is None:
                    last, message = await stream.event()
                assert message["params"]["uri"] == "note://a"
                await process.pause()
                paused = len(node.seen.steps())
                await asyncio.wait_for(do(node, "change", uri="note://a"), PATIENCE)
                assert "DeclareDead" in node.seen.steps()[paused:]
                met = node.seen.steps().count("Meet")
                process.send(signal.SIGCONT)
                await node.seen.until("Meet", met + 1)
                await asyncio.wait_for(_ended(stream.event), PATIENCE)
            async with peer.stream(last) as stream:
                assert (await stream.messages(1))[0]["params"]["uri"] == "note://a"
    finally:
        process.end()


async def _ended(event: Any) -> None:
    """Wait until a stream has ended."""
    while await event() != ("", None):
        pass
