"""Stores that can only be read: what needs no write is served, the rest is refused at once, and it heals by itself."""

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.contract.valkey import started
from tests.faults.processes import RunningServer, served
from tests.limits import PATIENCE
from tests.modern import REVISION, meta
from tests.processes import eventually

from trunkline.protocol.meta import IDEMPOTENCY_KEY

LOOK = {"name": "look", "arguments": {"what": "x"}}
TASK = {"name": "mend", "arguments": {}, "task": {"ttl": 600_000}}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
REFUSED = "temporarily_unavailable"


class ReadOnlyStore:
    """A store with a server, and the means to stop and allow writes to it."""

    def __init__(
        self, server: RunningServer, stop: Callable[[], object], allow: Callable[[], object], why: str
    ) -> None:
        self.server = server
        self.stop = stop
        self.allow = allow
        self.why = why  # in the log


@contextmanager
def on_a_full_disk(folder: Path) -> Iterator[ReadOnlyStore]:
    os.environ["SHOP_STORE"] = str(folder / "state.db")
    with served(folder / "effects", process_lease=PATIENCE) as server:
        limit = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)

        def set_limit(size: int) -> None:
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, limit[1]))

        # the log is a file, too: it has nothing about the time in between
        yield ReadOnlyStore(server, lambda: set_limit(0), lambda: set_limit(limit[0]), "accepts writes again")


@contextmanager
def on_redis(folder: Path, refusal: str) -> Iterator[ReadOnlyStore]:
    with ExitStack() as stack:
        redis = started(folder / "redis")
        stack.callback(redis.kill)
        client = redis.client()
        stack.callback(client.close)
        os.environ["SHOP_STORE"] = redis.url
        server = stack.enter_context(served(folder / "effects", process_lease=PATIENCE))
        dump = folder / "redis" / "dump.rdb"

        def break_saving() -> None:
            dump.unlink(missing_ok=True)
            dump.mkdir()
            client.config_set("save", "3600 1")
            client.bgsave()
            eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")

        def repair_saving() -> None:
            dump.rmdir()
            client.bgsave()

        means: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "OOM": (lambda: client.config_set("maxmemory", 1), lambda: client.config_set("maxmemory", 0)),
            "READONLY": (lambda: client.replicaof("127.0.0.1", "1"), lambda: client.replicaof("NO", "ONE")),
            "MISCONF": (break_saving, repair_saving),
        }
        yield ReadOnlyStore(server, *means[refusal], refusal)


@pytest.fixture(params=["full disk", "OOM", "READONLY", "MISCONF"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReadOnlyStore]:
    made = on_a_full_disk(tmp_path) if request.param == "full disk" else on_redis(tmp_path, request.param)
    try:
        with made as place:
            yield place
    finally:
        os.environ.pop("SHOP_STORE", None)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        yield session


class Caller:
    """Posts requests to a server: in a session, or without one in the modern era."""

    def __init__(self, http: aiohttp.ClientSession, server: RunningServer) -> None:
        self._http = http
        self._server = server
        self._session: dict[str, str] = {}

    async def _post(self, headers: dict[str, str], **message: Any) -> tuple[dict[str, Any], str]:
        accepted = {"accept": "application/json, text/event-stream", **headers}
        async with self._http.post(self._server.url, json={"jsonrpc": "2.0", **message}, headers=accepted) as answer:
            body = await answer.json() if answer.content_type == "application/json" else {}
            return body, answer.headers.get("mcp-session-id", "")

    async def open(self) -> dict[str, Any]:
        """Open a session; return the response."""
        body, session = await self._post({}, id=1, method="initialize", params=HELLO)
        if "result" in body:
            self._session = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
            await self._post(self._session, method="notifications/initialized")
        return body

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request in the session; return the response."""
        return (await self._post(self._session, id=2, method=method, params=params))[0]

    async def call(self, **more: str) -> dict[str, Any]:
        """Call a tool without a session; return the response."""
        headers = {"mcp-protocol-version": REVISION, "mcp-method": "tools/call", "mcp-name": "look"}
        params = {**LOOK, "_meta": {**meta(), **more}}
        return (await self._post(headers, id=3, method="tools/call", params=params))[0]

    async def readiness(self, status: int) -> dict[str, Any]:
        """Wait until `/readyz` has a status; return what it says."""
        async with asyncio.timeout(PATIENCE):
            while True:
                async with self._http.get(self._server.url.replace("/mcp", "/readyz")) as answer:
                    if answer.status == status:
                        return await answer.json()
                await asyncio.sleep(0.02)


def kind_of(response: dict[str, Any]) -> str | None:
    return response["error"]["data"]["kind"] if "error" in response else None


@pytest.mark.row("D02", "D03")
async def test_store_without_writes_serves_reads_and_heals(place: ReadOnlyStore, http: aiohttp.ClientSession) -> None:
    caller = Caller(http, place.server)
    await caller.open()
    created = await caller.ask("tools/call", TASK)
    task = {"taskId": created["result"]["task"]["taskId"]}
    assert kind_of(await caller.call(**{IDEMPOTENCY_KEY: "before"})) is None
    await asyncio.to_thread(place.stop)

    assert (await caller.readiness(503))["store"] is False
    assert kind_of(await caller.call()) is None
    assert kind_of(await caller.ask("tools/call", LOOK)) is None
    assert kind_of(await caller.ask("tools/list", {})) is None
    assert kind_of(await caller.ask("tasks/get", task)) is None
    assert kind_of(await caller.call(**{IDEMPOTENCY_KEY: "before"})) is None  # its outcome is stored
    assert kind_of(await caller.call(**{IDEMPOTENCY_KEY: "after"})) == REFUSED
    assert kind_of(await caller.ask("tools/call", TASK)) == REFUSED
    assert kind_of(await caller.ask("resources/subscribe", {"uri": "shop://price"})) == REFUSED
    assert kind_of(await Caller(http, place.server).open()) == REFUSED

    await asyncio.to_thread(place.allow)
    assert (await caller.readiness(200))["store"] is True
    assert kind_of(await caller.call(**{IDEMPOTENCY_KEY: "after"})) is None
    assert kind_of(await caller.ask("tools/call", TASK)) is None
    assert kind_of(await Caller(http, place.server).open()) is None
    eventually(lambda: place.why in place.server.said())
