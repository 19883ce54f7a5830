"""Successive servers on one SQLite file, for tests of durable state."""

import asyncio
from pathlib import Path
from typing import Any

from tests.unit.transports.http.asgi import Answer, Host, call

from trunkline import Context, Server
from trunkline.errors import StoreUnavailable
from trunkline.server.sessions.record import SessionRecord, read_record
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import FaultyStore, ManualClock, RecordingObserver

TTL = 3600.0


class ServerRun:
    """One server on a file; the next one continues where it ends."""

    def __init__(self, path: Path, clock: ManualClock, **options: Any) -> None:
        self.path = path
        self.store = SqliteStore(path, clock=clock)
        self.faults = FaultyStore(self.store)
        self.seen = RecordingObserver()
        self.server = Server("kept", store=self.faults, clock=clock, observers=[self.seen], **options)
        self.watched: list[str] = []
        self.trusted = {"anna"}

        @self.server.tool
        async def change() -> None:
            self.server.notify_updated("note://a")

        @self.server.tool
        async def steps(ctx: Context) -> None:
            await ctx.progress(1)

        @self.server.tool
        def change_on_thread() -> None:
            self.server.notify_updated("note://a")

        @self.server.resource("note://{name}")
        def note(name: str) -> str:
            return name

        @self.server.resource("secret://{name}", allow=lambda ctx: ctx.principal in self.trusted)
        def secret(name: str) -> str:
            return name

        @self.server.on_first_subscriber
        def begin(uri: str) -> None:
            if uri == "note://broken":
                raise RuntimeError("cannot be watched")
            self.watched.append(uri)

        self.host = Host(self.server, clock=clock)
        self.host.app = self.server.asgi(identify=lambda _: self.host.principal)

    async def request(self, session: str, method: str, params: Any = None) -> Answer:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return await self.host.ask("POST", body, mcp_session_id=session)

    async def call(self, session: str, tool: str, ident: int = 1) -> Answer:
        return await self.host.ask("POST", call(tool, id=ident), mcp_session_id=session)

    async def subscribe(self, session: str, uri: str) -> None:
        assert "result" in (await self.request(session, "resources/subscribe", {"uri": uri})).json

    async def record(self, session: str) -> SessionRecord:
        for one in self.host.endpoint.sessions:
            if one.stored is not None and (unsettled := one.stored.pending_writes) is not None:
                await asyncio.wait([unsettled])
        item = await self.store.get(f"session/{session}/record")
        assert item is not None
        return read_record(item.value)


class ServerRuns:
    """Successive runs of a server."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self._path = path
        self._clock = clock
        self.now: ServerRun | None = None

    async def begin(self, **options: Any) -> ServerRun:
        """Start the next one."""
        await self.end()
        self.now = ServerRun(self._path, self._clock, **options)
        return self.now

    async def end(self) -> None:
        if self.now is not None:
            await self.now.host.app.aclose()
            self.now = None


class SlowStore:
    """A store whose commits wait for the test, in some homes."""

    def __init__(self, store: SqliteStore, held: str) -> None:
        self._commit = store.commit
        self._held = held
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.failures = 0
        store.commit = self.commit  # type: ignore[method-assign, assignment]

    async def commit(self, writes: Any, **options: Any) -> int:
        if self._held in writes[0].key:
            self.asked.set()
            await self.go_on.wait()
            if self.failures:
                self.failures -= 1
                raise StoreUnavailable("not now")
        return await self._commit(writes, **options)
