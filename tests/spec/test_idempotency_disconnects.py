"""Calls with an idempotency key whose connection is lost, which are cancelled, or whose server shuts down."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.modern import begin, enveloped
from tests.spec.bank import Bank, Params, call, paid
from tests.unit.transports.http.asgi import hosted

from trunkline import Context, Settings
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import ManualClock, RawPeer

# --- lost connections and lost runs -------------------------------------------------------------


async def test_run_survives_a_lost_connection(bank: Bank) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        peer.call("tools/call", call("pay", "k", amount=5))
        await bank.begun.wait()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        waiting = asyncio.create_task(paid(peer, "k", 5))
        await asyncio.sleep(0)
        bank.go.set()
        assert await waiting == 1
    assert bank.runs == [5]


async def test_run_survives_a_closed_http_request(bank: Bank) -> None:
    bank.go.clear()
    async with hosted(bank.server) as host:
        params = enveloped(**call("pay", "k", amount=5))
        lost = begin(host, "tools/call", params)
        await bank.begun.wait()
        lost.gone.set()
        await lost.finished()
        again = begin(host, "tools/call", params)
        bank.go.set()
        assert (await again.finished()).json["result"]["structuredContent"] == 1
    assert bank.runs == [5]


async def test_disconnected_run_ends_at_its_deadline() -> None:
    clock = ManualClock()
    bank = Bank(clock=clock, settings=Settings(work_timeout=30.0))
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        peer.call("tools/call", call("pay", "k", amount=5))
        await bank.begun.wait()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        clock.advance(31)
        await bank.stopped.wait()
        error = await peer.error("tools/call", call("pay", "k", amount=5))
    assert error["data"]["kind"] == "outcome_unknown"
    await bank.server.aclose()


@pytest.mark.parametrize(("name", "again"), [("pay", False), ("put", True)])
async def test_waiter_of_cancelled_run_reruns_or_gets_unknown(bank: Bank, name: str, again: bool) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as one, RawPeer(bank.server) as two:
        await one.initialize()
        await two.initialize()
        first = one.call("tools/call", call(name, "k", amount=5))
        await bank.begun.wait()
        second = two.call("tools/call", call(name, "k", amount=5))
        await two.quiet()
        one.notify("notifications/cancelled", {"requestId": first})
        await bank.stopped.wait()
        bank.go.set()
        answer = await two.answer_to(second)
    assert ("result" in answer) is again
    assert bank.runs == ([5, 5] if again else [5])


async def test_cancelled_waiter_does_not_stop_the_run(bank: Bank) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as one, RawPeer(bank.server) as two:
        await one.initialize()
        await two.initialize()
        first = one.call("tools/call", call("pay", "k", amount=5))
        await bank.begun.wait()
        second = two.call("tools/call", call("pay", "k", amount=5))
        await two.quiet()
        two.notify("notifications/cancelled", {"requestId": second})
        await two.quiet()
        bank.go.set()
        assert (await one.answer_to(first))["result"]["structuredContent"] == {"result": 1}
    assert (bank.runs, bank.stopped.is_set()) == ([5], False)


async def test_run_stops_at_the_deadline_of_its_call() -> None:
    clock = ManualClock()
    bank = Bank(clock=clock, settings=Settings(work_timeout=30.0))
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        late = peer.call("tools/call", call("pay", "k", amount=5))
        await bank.begun.wait()
        clock.advance(31)
        await bank.stopped.wait()
        told = (await peer.answer_to(late))["result"]["_meta"]["trunkline/error"]
        assert told["kind"] == "tool_execution_timeout"
        error = await peer.error("tools/call", call("pay", "k", amount=5))
    assert error["data"]["kind"] == "outcome_unknown"
    await bank.server.aclose()


@pytest.mark.parametrize("asked", [False, True])
async def test_progress_and_questions_of_a_disconnected_run(bank: Bank, asked: bool) -> None:
    """Progress is dropped. A request to the client fails, and the tool's outcome is stored like any other."""

    @bank.server.tool
    async def asks(ctx: Context) -> str:
        bank.begun.set()
        await bank.go.wait()
        ctx.progress(1)
        bank.runs.append(0)
        return (await ctx.elicit("pay it?", None)).action

    params = call("asks", "k")
    if not asked:
        bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        peer.call("tools/call", {**params, "_meta": {**params["_meta"], "progressToken": 1}})
        await bank.begun.wait()
        await peer.quiet()
    bank.go.set()
    async with RawPeer(bank.server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        first = await peer.result("tools/call", params)
        assert (first["isError"], first["_meta"]["trunkline/error"]["kind"]) == (True, "tool_execution_failed")
        assert await peer.result("tools/call", params) == first
    assert bank.runs == [0]


async def test_paused_server_continues_runs_and_keeps_keys(bank: Bank) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = peer.call("tools/call", call("pay", "k", amount=5))
        await bank.begun.wait()
        bank.server.pause()
        assert "error" in await peer.request("tools/call", call("pay", "k", amount=5))
        assert "error" in await peer.request("tools/call", call("pay", "other", amount=5))
        bank.go.set()
        assert (await peer.answer_to(first))["result"]["structuredContent"] == {"result": 1}
        bank.server.resume()
        assert await paid(peer, "k", 5) == 1
        assert await paid(peer, "other", 5) == 2


async def test_shutdown_waits_for_disconnected_run(tmp_path: Path) -> None:
    first, second = (Bank(store=SqliteStore(tmp_path / "store")) for _ in range(2))
    first.go.clear()
    async with RawPeer(first.server) as peer:
        await peer.initialize()
        peer.call("tools/call", call("pay", "k", amount=5))
        await first.begun.wait()
    ending = asyncio.create_task(first.server.shutdown())
    await asyncio.sleep(0)
    first.go.set()
    assert await ending == ()
    async with RawPeer(second.server) as peer:
        await peer.initialize()
        assert await paid(peer, "k", 5) == 1
    await second.server.aclose()
    assert (first.runs, second.runs) == ([5], [])


@pytest.mark.parametrize(("name", "again"), [("pay", False), ("put", True)])
async def test_cancelled_run_is_repeated_only_if_idempotent(bank: Bank, name: str, again: bool) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        ident = peer.call("tools/call", call(name, "k", amount=5))
        await bank.begun.wait()
        peer.notify("notifications/cancelled", {"requestId": ident})
        await bank.stopped.wait()
        bank.go.set()
        answer = await peer.request("tools/call", call(name, "k", amount=5))
    assert ("result" in answer) is again
    if not again:
        assert answer["error"]["data"]["kind"] == "outcome_unknown"
    assert bank.runs == ([5, 5] if again else [5])


async def test_call_answered_with_a_question_leaves_the_key_free(bank: Bank) -> None:
    @bank.server.tool
    async def asks(ctx: Context) -> str:
        answer = await ctx.elicit("pay it?", None)
        bank.runs.append(0)
        return answer.action

    def round_(**more: Any) -> Params:
        return enveloped({"elicitation": {"form": {}}}, **call("asks", "k"), **more)

    async with RawPeer(bank.server) as peer:
        asked = await peer.result("tools/call", round_())
        assert asked["resultType"] == "input_required"
        [question] = asked["inputRequests"]
        answers = {question: {"action": "decline"}}
        for _ in range(2):
            told = round_(inputResponses=answers, requestState=asked["requestState"])
            assert (await peer.result("tools/call", told))["content"][0]["text"] == "decline"
    assert bank.runs == [0]


async def test_run_cut_off_by_shutdown_is_unknown_at_once(tmp_path: Path) -> None:
    """The next server does not have to wait for the lease to expire."""
    clock = ManualClock()
    settings = Settings(drain_timeout=0.05)
    first, second = (
        Bank(store=SqliteStore(tmp_path / "store", clock=clock), clock=clock, settings=settings) for _ in range(2)
    )
    first.go.clear()
    async with RawPeer(first.server) as peer:
        await peer.initialize()
        peer.call("tools/call", call("pay", "k", amount=5))
        await first.begun.wait()
    assert await first.server.shutdown() == ("DrainPendingRequests",)
    async with RawPeer(second.server) as peer:
        await peer.initialize()
        error = await peer.error("tools/call", call("pay", "k", amount=5))
    assert error["data"]["kind"] == "outcome_unknown"
    await second.server.aclose()
