"""A store that loses its data while processes serve: sessions are gone, and no session has two owners."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.contract.valkey import Valkey, started
from tests.faults.processes import RunningServer, served
from tests.limits import PATIENCE

LEASE = 2.0  # seconds
STEADY = 8  # responses in a row


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        yield session


class ServerPair:
    """Two processes on one Valkey without persistence."""

    def __init__(self, folder: Path, http: aiohttp.ClientSession, stack: ExitStack) -> None:
        self.valkey: Valkey = started(folder / "valkey")
        stack.callback(self.valkey.kill)
        os.environ["SHOP_STORE"] = self.valkey.url
        stack.callback(os.environ.pop, "SHOP_STORE")
        self.one, self.two = [stack.enter_context(served(folder / "effects", process_lease=LEASE)) for _ in range(2)]
        self._http = http

    async def _post(
        self, at: RunningServer, session: str | None, message: dict[str, Any]
    ) -> tuple[int, Any, str | None]:
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
        if session is not None:
            headers["mcp-session-id"] = session
        async with self._http.post(at.url, json={"jsonrpc": "2.0", **message}, headers=headers) as answer:
            body = await answer.json(content_type=None) if answer.content_type == "application/json" else None
            return answer.status, body, answer.headers.get("mcp-session-id")

    async def open(self, at: RunningServer) -> str:
        """Open a session, as soon as the server can."""
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        while True:
            status, _, session = await self._post(at, None, {"id": 1, "method": "initialize", "params": hello})
            if status == 200 and session is not None:
                await self._post(at, session, {"method": "notifications/initialized"})
                return session
            await asyncio.sleep(0.05)

    async def answers(self, at: RunningServer, session: str) -> int:
        """Call a read-only tool; return the process that has answered, the status of a rejection, or 0 if the
        outcome is unknown.
        """
        call = {"id": 2, "method": "tools/call", "params": {"name": "look", "arguments": {"what": "x"}}}
        status, body, _ = await self._post(at, session, call)
        if status != 200:
            return -status
        return int(body["result"]["content"][0]["text"].rpartition(" ")[2]) if "result" in body else 0

    async def steady(self, session: str) -> int:
        """Call both in turn until both have returned the same value for a while; return that."""
        said: list[int] = []
        while len(said) < STEADY or len(set(said[-STEADY:])) > 1:
            for at in (self.one, self.two):
                said.append(await self.answers(at, session))
            await asyncio.sleep(0.05)
        return said[-1]


async def test_no_session_has_two_holders_after_store_loss(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ExitStack() as stack:
        servers = ServerPair(tmp_path, http, stack)
        by_pid = {shop.process.pid: shop for shop in (servers.one, servers.two)}
        async with asyncio.timeout(PATIENCE):
            old = await servers.open(servers.one)
            paused = by_pid.pop(await servers.steady(old))
            [(pid, other)] = by_pid.items()
            paused.process.send_signal(signal.SIGSTOP)
            while await servers.answers(other, old) != pid:  # it evicts the other, and takes over the session
                await asyncio.sleep(0.05)
            servers.valkey.kill()
            servers.valkey.start()
            paused.process.send_signal(signal.SIGCONT)
            new = await servers.open(paused)
            assert await servers.steady(new) in {pid, paused.process.pid}
            assert await servers.steady(old) == -404
            assert await servers.steady(await servers.open(other)) in {pid, paused.process.pid}
