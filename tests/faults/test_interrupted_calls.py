"""Calls that a graceful shutdown, or the end of their session, interrupts: on each transport, in both eras, with and
without a store. A call whose handler has started fails with `outcome_unknown`, and our client repeats it only if the
tool is idempotent or the call has a key that outlives the process. The client repeats a call that has not started
until it runs.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from tests.chaos.effects import read_effects
from tests.chaos.plan import token_of
from tests.faults.processes import RunningServer
from tests.ports import HeldPort, held_port
from tests.processes import PATIENCE

from trunkline import Client, Context, Server, Settings
from trunkline.errors import OutcomeUnknown
from trunkline.protocol.types import ToolAnnotations
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import RawPeer

QUICK = Settings(backoff_first=0.01, backoff_longest=0.1, stream_retry=0.02, stop_timeout=1.0)
DRAIN = 0.05  # seconds
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"


class Case(NamedTuple):
    """One row of the matrix: the transport of the client and the store of the server."""

    scheme: str
    revision: str = HANDSHAKE
    path: str = ""
    store: bool = False
    sessions: bool = True
    progress: bool = False  # the response is an event stream

    @property
    def keyed(self) -> bool:
        """Return whether the client knows that a key outlives the server process."""
        return self.store

    @property
    def annotated(self) -> bool:
        """Return whether the client knows which tools are idempotent."""
        return self.revision >= "2025-03-26"


CASES = {
    "memory": Case("memory"),
    "memory modern": Case("memory", MODERN),
    "tcp": Case("tcp"),
    "tcp modern": Case("tcp", MODERN),
    "tcp store": Case("tcp", store=True),
    "unix": Case("unix"),
    "unix modern": Case("unix", MODERN),
    "websocket": Case("ws", path="/mcp"),
    "websocket modern": Case("ws", MODERN, "/mcp"),
    "websocket store": Case("ws", path="/mcp", store=True),
    "http": Case("http", path="/mcp"),
    "http events": Case("http", path="/mcp", progress=True),
    "http 2025-03-26": Case("http", "2025-03-26", "/mcp"),
    "http store": Case("http", path="/mcp", store=True),
    "http store events": Case("http", path="/mcp", store=True, progress=True),
    "http without sessions": Case("http", path="/mcp", sessions=False),
    "http modern": Case("http", MODERN, "/mcp"),
    "http modern events": Case("http", MODERN, "/mcp", progress=True),
    "http modern store": Case("http", MODERN, "/mcp", store=True),
    "sse": Case("http", "2024-11-05", "/sse"),
}


class EffectsServer:
    """A server whose tools record their effects in a file, and block in their first run."""

    def __init__(self, case: Case, folder: Path, calls: int) -> None:
        """The server runs `calls` of one client concurrently."""
        self._way = case
        self._calls = calls
        self._folder = folder
        self.effects = folder / "effects"
        self.effects.touch()
        self.begun = asyncio.Event()
        self.hold = True
        self.port = HeldPort()
        self.server = self._make()
        self.url = "" if case.scheme == "memory" else self._address()

    def _address(self) -> str:
        if self._way.scheme == "unix":
            return f"unix://{self._folder}/socket"
        return f"{self._way.scheme}://127.0.0.1:{self.port.number}{self._way.path}"

    @property
    def target(self) -> Any:
        """The target that a client connects to."""
        return self.url or self.server

    def _make(self) -> Server:
        case = self._way
        store = SqliteStore(self._folder / "store") if case.store else None
        settings = Settings(drain_timeout=DRAIN, http_sessions=case.sessions, max_calls=self._calls)
        server = Server("shop", store=store, settings=settings)

        async def work(what: str, ctx: Context) -> str:
            with self.effects.open("a") as file:
                file.write(f"{what}\n")
            if case.progress:
                await ctx.progress(1)
            self.begun.set()
            if self.hold:
                await asyncio.Event().wait()
            return f"{what} done"

        server.add_tool(work, name="pay")
        server.add_tool(work, name="put", annotations=ToolAnnotations(idempotent_hint=True))
        server.add_tool(work, name="single", max_concurrency=1)
        return server

    async def open(self) -> None:
        """Listen; the second time with a new server, as a new process would."""
        if self.url:
            self.server = self._make()
            await self.server.listen(self.url.replace("ws://", "http://").replace("/sse", "/mcp"))

    async def restart(self) -> None:
        """Shut down gracefully, which interrupts the call, and listen again."""
        overran = await self.server.shutdown()
        assert overran == ("DrainPendingRequests",)
        await self.open()

    def done(self) -> list[str]:
        """The effects so far."""
        return self.effects.read_text().split()


@contextlib.asynccontextmanager
async def server_and_client(case: Case, folder: Path, calls: int = 2) -> AsyncIterator[tuple[EffectsServer, Client]]:
    """A server, and a client that has its list of tools."""
    effects_server = EffectsServer(case, folder, calls)
    await effects_server.open()
    try:
        async with asyncio.timeout(PATIENCE):
            async with Client(effects_server.target, revision=case.revision, settings=QUICK, observers=[]) as client:
                await client.list_tools()
                yield effects_server, client
    finally:
        await effects_server.server.aclose()
        effects_server.port.close()


async def outcome(effects_server: EffectsServer, case: Case, client: Client, name: str, key: str | None = None) -> str:
    """The outcome of a call that is interrupted in its first run."""
    told = (lambda _: None) if case.progress else None
    call = asyncio.ensure_future(client.call_tool(name, {"what": name}, idempotency_key=key, on_progress=told))
    await effects_server.begun.wait()
    effects_server.hold = False
    await effects_server.restart()
    try:
        return (await call).text
    except OutcomeUnknown:
        return "unknown"


@pytest.mark.parametrize("name", CASES)
async def test_call_interrupted_at_drain_timeout_is_not_repeated(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    async with server_and_client(case, tmp_path) as (effects_server, client):
        assert await outcome(effects_server, case, client, "pay") == "unknown"
        assert effects_server.done() == ["pay"]
        assert (await client.call_tool("pay", {"what": "next"})).text == "next done"  # the client continues


@pytest.mark.parametrize("name", CASES)
async def test_idempotent_call_interrupted_at_drain_timeout_is_repeated(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    async with server_and_client(case, tmp_path) as (effects_server, client):
        told = await outcome(effects_server, case, client, "put")
        assert (told, effects_server.done()) == (("put done", ["put"] * 2) if case.annotated else ("unknown", ["put"]))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.keyed])
@pytest.mark.parametrize(("tool", "ends", "times"), [("pay", "unknown", 1), ("put", "put done", 2)])
async def test_keyed_call_interrupted_at_drain_timeout_follows_its_key(
    name: str, tool: str, ends: str, times: int, tmp_path: Path
) -> None:
    case = CASES[name]
    async with server_and_client(case, tmp_path) as (effects_server, client):
        assert await outcome(effects_server, case, client, tool, "key") == ends
        assert effects_server.done() == [tool] * times


@pytest.mark.parametrize("name", ["tcp", "websocket", "http", "http store events", "sse"])
async def test_queued_call_at_drain_timeout_is_repeated(name: str, tmp_path: Path) -> None:
    """The connection runs one call at a time, so the second has not started when the shutdown interrupts both."""
    async with server_and_client(CASES[name], tmp_path, 1) as (effects_server, client):
        first = asyncio.ensure_future(client.call_tool("pay", {"what": "first"}))
        await effects_server.begun.wait()
        second = asyncio.ensure_future(client.call_tool("pay", {"what": "second"}))
        [connection] = [one for one in effects_server.server._runtime.connections if one.session.incoming_requests]
        while len(connection.session.incoming_requests) < 2:
            await asyncio.sleep(0.01)
        effects_server.hold = False
        await effects_server.restart()
        with pytest.raises(OutcomeUnknown):
            await first
        assert (await second).text == "second done"
        assert effects_server.done() == ["first", "second"]


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_call_waiting_for_its_tool_at_drain_timeout_is_repeated(revision: str, tmp_path: Path) -> None:
    """The tool runs one call at a time, so the handler of the second has not started."""
    case = Case("http", revision, "/mcp")
    async with server_and_client(case, tmp_path) as (effects_server, client):
        first = asyncio.ensure_future(client.call_tool("single", {"what": "first"}))
        await effects_server.begun.wait()
        second = asyncio.ensure_future(client.call_tool("single", {"what": "second"}))
        while (
            sum(
                call.queued
                for one in effects_server.server._runtime.connections
                for call in one.session.incoming_requests.values()
            )
            < 1
        ):
            await asyncio.sleep(0.01)
        effects_server.hold = False
        await effects_server.restart()
        with pytest.raises(OutcomeUnknown):
            await first
        assert (await second).text == "second done"
        assert effects_server.done() == ["first", "second"]


# --- the end of a session without a shutdown --------------------------------------------------------


@pytest.mark.parametrize("name", ["http", "http events", "http store", "http store events"])
async def test_call_of_a_deleted_session_is_not_repeated(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    async with server_and_client(case, tmp_path) as (effects_server, client), aiohttp.ClientSession() as http:
        told = (lambda _: None) if case.progress else None
        call = asyncio.ensure_future(client.call_tool("pay", {"what": "pay"}, on_progress=told))
        await effects_server.begun.wait()
        effects_server.hold = False
        channel: Any = client._runtime.supervisor.connection.channel  # type: ignore[union-attr]
        headers = {"mcp-session-id": channel._peer.session_id, "mcp-protocol-version": case.revision}
        assert (await http.delete(effects_server.url, headers=headers)).status == 204
        with pytest.raises(OutcomeUnknown):
            await call
        assert effects_server.done() == ["pay"]
        assert (await client.call_tool("pay", {"what": "next"})).text == "next done"


async def test_every_call_of_an_interrupted_batch_is_answered(tmp_path: Path) -> None:
    effects_server = EffectsServer(Case("memory"), tmp_path, 1)
    async with RawPeer(effects_server.server) as peer:
        await peer.initialize("2025-03-26")
        params = {"name": "pay", "arguments": {"what": "pay"}}
        peer.send([{"jsonrpc": "2.0", "id": ident, "method": "tools/call", "params": params} for ident in (7, 8)])
        await effects_server.begun.wait()
        await effects_server.server.shutdown()
        answers = await peer.receive()
    told = {answer["id"]: answer["error"]["data"]["kind"] for answer in answers}
    assert told == {7: "outcome_unknown", 8: "temporarily_unavailable"}  # the connection runs one call at a time
    assert effects_server.done() == ["pay"]


# --- processes --------------------------------------------------------------------------------------

STDIO = """
import asyncio, os, sys
from pathlib import Path
from trunkline import Server, Settings

effects = Path(sys.argv[1])
server = Server("shop", settings=Settings(drain_timeout=0.05))

@server.tool
async def pay() -> str:
    effects.write_text(effects.read_text() + f"{os.getpid()}\\n")
    await asyncio.Event().wait()

@server.tool(annotations={"readOnlyHint": True})
async def look() -> str:
    return str(os.getpid())

server.run()
"""


async def test_call_interrupted_by_sigterm_over_stdio_is_not_repeated(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    effects.touch()
    async with asyncio.timeout(3 * PATIENCE), Client([sys.executable, "-c", STDIO, effects], settings=QUICK) as client:
        await client.list_tools()
        call = asyncio.ensure_future(client.call_tool("pay"))
        while not (done := effects.read_text().split()):
            await asyncio.sleep(0.01)
        os.kill(int(done[0]), signal.SIGTERM)
        with pytest.raises(OutcomeUnknown):
            await call
        assert (await client.call_tool("look")).text != done[0]
        assert effects.read_text().split() == done


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_call_interrupted_by_sigterm_in_a_worker_is_not_repeated(revision: str, tmp_path: Path) -> None:
    """Each request reaches another worker, so most calls are forwarded to the worker that owns the session."""
    with held_port() as port:
        await interrupted_in_worker(revision, tmp_path / "effects", port)


async def interrupted_in_worker(revision: str, effects: Path, port: int) -> None:
    effects.mkdir()

    def start() -> RunningServer:
        return RunningServer("deployment", port, effects, options=["--workers", "2"], drain_timeout=0.05)

    served = start()
    try:
        async with asyncio.timeout(3 * PATIENCE):
            await asyncio.to_thread(served.ready)
            async with AsyncExitStack() as stack:
                callers = [
                    await stack.enter_async_context(
                        Client(served.url, auth=token_of(name), revision=revision, settings=QUICK, observers=[])
                    )
                    for name in ("c001", "c002", "c003", "c004")
                ]
                for client in callers:
                    await client.list_tools()
                calls = [
                    asyncio.ensure_future(client.call_tool("wait", {"operation": f"c00{number}.1"}))
                    for number, client in enumerate(callers, 1)
                ]
                while len(read_effects(effects)) < len(calls):
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(served.stop, PATIENCE)
                served.close()
                served = start()
                ended = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(one) for one in ended] == [OutcomeUnknown] * len(calls)
    finally:
        await asyncio.to_thread(served.stop, PATIENCE)
        served.close()
    begun = [effect.operation for effect in read_effects(effects) if effect.number == 1]
    assert sorted(begun) == ["c001.1", "c002.1", "c003.1", "c004.1"]


async def test_connection_refused_by_a_stopping_server_is_retried(tmp_path: Path) -> None:
    """A connection that is accepted during shutdown gets a response without being parsed."""
    case = CASES["http modern"]
    async with server_and_client(case, tmp_path) as (effects_server, client), aiohttp.ClientSession() as http:
        [place] = effects_server.server._runtime.listeners
        guard: Any = place._connections.guard  # type: ignore[attr-defined]
        guard.stop_admitting()
        async with http.post(effects_server.url, data=b"{}") as refused:
            told = await refused.json()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        data = told["error"]["data"]
        assert (data["kind"], data["retryAfterMs"]) == ("temporarily_unavailable", 1000)
        effects_server.hold = False
        call = asyncio.ensure_future(client.call_tool("pay", {"what": "pay"}))
        await effects_server.server.shutdown()
        await effects_server.open()
        assert (await call).text == "pay done"
        assert effects_server.done() == ["pay"]
