"""The number of sessions of a principal, over all processes that share a store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.server.server_runs import TTL, ServerRun
from tests.unit.transports.http.asgi import Answer, request

from trunkline import Settings
from trunkline.server.limits.shared_semaphore import scan_all
from trunkline.testing import ManualClock

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
Begin = Callable[..., ServerRun]


@pytest.fixture
async def run(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Begin]:
    made: list[ServerRun] = []

    def begin(principal: str | None = "anna", most: int | None = 2, at: ManualClock = clock) -> ServerRun:
        settings = Settings(max_sessions_per_principal=most)
        made.append(ServerRun(tmp_path / "shared.db", at, settings=settings))
        made[-1].host.principal = principal
        return made[-1]

    yield begin
    for one in made:
        await one.host.app.aclose()


async def opened(at: ServerRun, params: Any = INITIALIZE) -> Answer:
    return await at.host.ask("POST", request("initialize", params))


async def is_full(at: ServerRun) -> bool:
    answer = await opened(at)
    assert answer.status in {200, 503}
    return answer.status == 503


async def renewed(at: ServerRun, clock: ManualClock) -> None:
    """Wait until the entries of used sessions have the lifetime of sessions."""
    async with asyncio.timeout(20):
        while any((item.expires or 0) < clock.now() + TTL for item in await at.store.scan("owner/")):
            await asyncio.sleep(0.001)


@pytest.mark.row("Q06")
async def test_quota_counts_sessions_of_all_processes(run: Begin) -> None:
    one, other = run(), run()
    first, second = await one.host.session(), await other.host.session()
    for each in (one, other):
        refused = await opened(each)
        assert (refused.status, refused.json["error"]["data"]["kind"]) == (503, "too_many_sessions")
        assert "has 2 sessions, which is the limit" in refused.json["error"]["message"]
    other.host.principal = "bob"
    assert not await is_full(other)
    other.host.principal = "anna"
    assert (await other.host.ask("DELETE", mcp_session_id=second)).status == 204
    assert not await is_full(one)
    assert await is_full(other)
    assert "result" in (await one.request(first, "ping")).json


@pytest.mark.row("Q06")
async def test_concurrent_sessions_never_exceed_the_quota(run: Begin) -> None:
    servers = [run(), run()]
    answers = await asyncio.gather(*(opened(servers[number % 2]) for number in range(8)))
    opened_now = sum(answer.status == 200 for answer in answers)
    assert len(await scan_all(servers[0].store, "owner/")) <= min(
        2, opened_now
    )  # a new session may replace an unused one


@pytest.mark.row("Q06")
async def test_sessions_of_a_dead_process_count_until_they_expire(run: Begin) -> None:
    still = ManualClock(start=1_000_000.0)
    dead, other = run(at=still), run()
    for _ in range(2):
        await dead.host.session()
    await renewed(dead, still)
    assert await is_full(other)
    clock = other.server._runtime.get_services().wall_clock
    assert isinstance(clock, ManualClock)
    clock.advance(TTL)
    assert await is_full(other)
    clock.advance(TTL * 0.1 + 120)
    assert not await is_full(other)


@pytest.mark.row("Q06")
async def test_used_session_keeps_counting(run: Begin, clock: ManualClock) -> None:
    one = run()
    session = await one.host.session()
    for _ in range(8):
        await renewed(one, clock)
        clock.advance(TTL * 0.4)
        assert "result" in (await one.request(session, "ping")).json
        assert len(await scan_all(one.store, "owner/")) == 1


@pytest.mark.row("Q06")
async def test_taken_over_session_counts_once(run: Begin) -> None:
    one, other = run(), run()
    session = await one.host.session()
    await one.host.app.aclose()
    assert "result" in (await other.request(session, "ping")).json
    assert not await is_full(other)
    assert await is_full(other)
    assert (await other.host.ask("DELETE", mcp_session_id=session)).status == 204
    assert not await is_full(other)


@pytest.mark.row("Q06")
async def test_failed_handshake_does_not_count(run: Begin) -> None:
    one = run(most=1)
    assert "error" in (await opened(one, {})).json
    assert await scan_all(one.store, "owner/") == []
    assert not await is_full(one)


@pytest.mark.parametrize(("principal", "most"), [(None, 1), ("anna", None)])
async def test_no_entry_is_written_without_a_quota(run: Begin, principal: str | None, most: int | None) -> None:
    one = run(principal=principal, most=most)
    for _ in range(2):
        await one.host.session()
    assert await scan_all(one.store, "owner/") == []


async def test_unavailable_quota_answers_503(run: Begin) -> None:
    one = run()
    await one.host.session()
    await one.store.close()
    answer = await opened(one)
    assert (answer.status, answer.json["error"]["data"]["kind"]) == (503, "temporarily_unavailable")
