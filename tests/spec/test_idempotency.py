"""Calls with an idempotency key run once, however often they are made."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.modern import begin, enveloped
from tests.spec.bank import Bank, Params, call, paid
from tests.unit.transports.http.asgi import hosted

from trunkline import Context, Settings
from trunkline.errors import ProtocolError, StoreUnavailable, UrlElicitationRequired
from trunkline.facts import HandlerFailed
from trunkline.protocol.types import CallToolResult, TextContent
from trunkline.stores.memory import MemoryStore
from trunkline.stores.store import Lease, Write
from trunkline.stores.validation import MAX_VALUE_BYTES
from trunkline.testing import FaultyStore, ManualClock, RawPeer

# --- once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pay", "plain"])
async def test_same_key_runs_once_and_returns_first_result(bank: Bank, name: str) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        assert [await paid(peer, "k1", 5, name), await paid(peer, "k1", 5, name)] == [1, 1]
        assert await paid(peer, "k2", 5, name) == 2
    assert bank.runs == [5, 5]


async def test_order_of_arguments_does_not_matter(bank: Bank) -> None:
    @bank.server.tool
    async def pair(a: int, b: int) -> int:
        bank.runs.append(a + b)
        return len(bank.runs)

    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await peer.result("tools/call", call("pair", "k", a=1, b=2))
        assert await peer.result("tools/call", call("pair", "k", b=2, a=1)) == first
    assert bank.runs == [3]


async def test_second_call_waits_for_the_first(bank: Bank) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as one, RawPeer(bank.server) as two:
        await one.initialize()
        await two.initialize()
        calls = [asyncio.create_task(paid(peer, "k", 5)) for peer in (one, two)]
        await bank.begun.wait()
        bank.go.set()
        assert await asyncio.gather(*calls) == [1, 1]
    assert bank.runs == [5]


async def test_concurrent_calls_run_once_and_mismatch_is_rejected(
    bank: Bank,
) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        asked = [peer.call("tools/call", call("pay", "k", amount=amount)) for amount in (5, 5, 6)]
        first, same, other = [await peer.answer_to(ident) for ident in asked]
        assert first["result"]["structuredContent"] == same["result"]["structuredContent"] == {"result": 1}
        assert other["error"]["data"]["kind"] == "idempotency_key_reused"
    assert bank.runs == [5]


async def test_only_the_first_call_gets_progress(bank: Bank) -> None:
    @bank.server.tool
    async def far(ctx: Context) -> None:
        bank.begun.set()
        await bank.go.wait()
        ctx.progress(1, 2)

    def asked(token: str) -> Params:
        return {"name": "far", "_meta": {**call("far", "k")["_meta"], "progressToken": token}}

    bank.go.clear()
    async with RawPeer(bank.server) as one, RawPeer(bank.server) as two:
        await one.initialize()
        await two.initialize()
        first = one.call("tools/call", asked("first"))
        await bank.begun.wait()
        second = two.call("tools/call", asked("second"))
        await two.quiet()
        bank.go.set()
        assert (await one.receive())["params"] == {"progressToken": "first", "progress": 1, "total": 2}
        assert "result" in await one.answer_to(first)
        assert (await two.receive())["id"] == second


@pytest.mark.parametrize(("name", "arguments"), [("pay", {"amount": 6}), ("put", {"amount": 5})])
async def test_reused_key_with_other_call_is_rejected(bank: Bank, name: str, arguments: Params) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        await paid(peer, "k", 5)
        error = await peer.error("tools/call", call(name, "k", **arguments))
    assert (error["code"], error["data"]["kind"]) == (-32602, "idempotency_key_reused")
    assert bank.runs == [5]


async def test_keys_are_separate_per_principal(bank: Bank) -> None:
    async with RawPeer(bank.server, principal="alice") as alice, RawPeer(bank.server, principal="bob") as bob:
        await alice.initialize()
        await bob.initialize()
        assert await paid(alice, "k", 5) == 1
        assert await paid(bob, "k", 6) == 2
        assert await paid(alice, "k", 5) == 1


async def test_anonymous_clients_share_keys(bank: Bank) -> None:
    """Only the key distinguishes a returning client from another one, so it has to be unguessable."""
    async with (
        RawPeer(bank.server) as one,
        RawPeer(bank.server) as two,
        RawPeer(bank.server, principal="nobody") as who,
    ):
        for peer in (one, two, who):
            await peer.initialize()
        assert [await paid(peer, "k", 5) for peer in (one, two, who)] == [1, 1, 2]


async def test_key_is_shared_across_eras_and_transports(bank: Bank) -> None:
    async with RawPeer(bank.server) as peer, hosted(bank.server) as host:
        await peer.initialize()
        assert await paid(peer, "k", 5) == 1
        params = enveloped(**call("pay", "k", amount=5))
        assert (await peer.result("tools/call", params))["structuredContent"] == 1
        assert (await begin(host, "tools/call", params).finished()).json["result"]["structuredContent"] == 1
    assert bank.runs == [5]


@pytest.mark.parametrize("key", ["x", "x" * 255, "a/b{c}%", "\x00"])
async def test_any_text_is_a_valid_key(bank: Bank, key: str) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        assert [await paid(peer, key, 5), await paid(peer, key, 5), await paid(peer, "other", 5)] == [1, 1, 2]


@pytest.mark.parametrize("key", ["", "x" * 256, 5, None])
async def test_invalid_key_is_rejected(bank: Bank, key: Any) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        error = await peer.error("tools/call", call("pay", key, amount=5))
    assert (error["code"], error["data"]["kind"]) == (-32602, "invalid_idempotency_key")
    assert bank.runs == []


async def test_outcome_expires() -> None:
    clock = ManualClock()
    bank = Bank(clock=clock, settings=Settings(idempotency_ttl=100.0))
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        assert await paid(peer, "k", 5) == 1
        clock.advance(99)
        assert await paid(peer, "k", 5) == 1
        clock.advance(2)
        assert await paid(peer, "k", 5) == 2
    await bank.server.aclose()


# --- failures -----------------------------------------------------------------------------------


async def test_failed_result_is_stored(bank: Bank) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await peer.result("tools/call", call("pay", "k", amount=-1))
        assert first["isError"]
        assert await peer.result("tools/call", call("pay", "k", amount=-1)) == first
    assert bank.runs == [-1]


async def test_raised_error_is_stored_with_its_reference(bank: Bank) -> None:
    @bank.server.tool
    async def breaks() -> str:
        bank.runs.append(0)
        raise ZeroDivisionError

    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await peer.result("tools/call", call("breaks", "k"))
        assert await peer.result("tools/call", call("breaks", "k")) == first
        reference = first["_meta"]["trunkline/error"]["reference"]
    assert [failed.reference for failed in bank.told.of(HandlerFailed)] == [reference]
    assert bank.runs == [0]


async def test_missing_capability_error_is_stored(bank: Bank) -> None:
    @bank.server.tool
    async def asks(ctx: Context) -> str:
        bank.runs.append(0)
        return (await ctx.elicit("pay it?", None)).action

    async with RawPeer(bank.server) as peer:
        for _ in range(2):
            assert (await peer.error("tools/call", enveloped(**call("asks", "k"))))["code"] == -32021
    assert bank.runs == [0]


async def test_protocol_error_of_a_tool_is_stored(bank: Bank) -> None:
    @bank.server.tool
    async def refuses() -> None:
        bank.runs.append(0)
        raise ProtocolError("not today", code=-31000, data={"until": "tomorrow"})

    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await peer.error("tools/call", call("refuses", "k"))
        assert (first["code"], first["message"], first["data"]["until"]) == (-31000, "not today", "tomorrow")
        assert await peer.error("tools/call", call("refuses", "k")) == first
    assert bank.runs == [0]


@pytest.mark.parametrize("modern", [False, True])
async def test_url_elicitation_leaves_the_key_free(bank: Bank, modern: bool) -> None:
    @bank.server.tool
    async def needs() -> int:
        bank.runs.append(0)
        if len(bank.runs) == 1:
            raise UrlElicitationRequired.of(("log in", "https://example.com/"))
        return len(bank.runs)

    async with RawPeer(bank.server) as peer:
        await peer.initialize(capabilities={"elicitation": {"url": {}}})
        params = call("needs", "k")
        if modern:
            params = enveloped({"elicitation": {"url": {}}}, **params)
        answers = [await peer.request("tools/call", params) for _ in range(3)]
        assert (
            answers[1]["result"]["structuredContent"]
            == answers[2]["result"]["structuredContent"]
            == (2 if modern else {"result": 2})
        )
    assert bank.runs == [0, 0]


async def test_call_that_never_started_leaves_the_key_free(bank: Bank) -> None:
    well: list[bool] = []

    @bank.server.tool(requires=[lambda: bool(well)])
    async def needs() -> int:
        bank.runs.append(0)
        return len(bank.runs)

    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        assert (await peer.result("tools/call", call("needs", "k")))["isError"]
        well.append(True)
        assert not (await peer.result("tools/call", call("needs", "k")))["isError"]
    assert bank.runs == [0]


@pytest.mark.parametrize("confirmed", [True, False])
async def test_response_waits_until_the_result_is_stored(confirmed: bool) -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        asked = peer.call("tools/call", call("pay", "k", amount=5))
        await bank.begun.wait()
        fault = store.fail(done=not confirmed)
        bank.go.set()
        await fault.reached.wait()
        assert [message for message in await peer.quiet() if message.get("id") == asked] == []
        fault.lift()
        assert (await peer.answer_to(asked))["result"]["structuredContent"] == {"result": 1}
        assert await paid(peer, "k", 5) == 1
    await bank.server.aclose()


async def test_shutdown_without_store_does_not_report_unknown_outcome() -> None:
    """The outcome is unknown: the store may hold the entry, or another process does."""
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    bank.go.clear()
    async with RawPeer(bank.server) as peer, asyncio.timeout(PATIENCE):
        await peer.initialize()
        asked = peer.call("tools/call", call("pay", "k", amount=5))
        await bank.begun.wait()
        fault = store.fail()
        bank.go.set()
        await fault.reached.wait()
        await peer.connection.shared.get_ledger().close()
        assert (await peer.answer_to(asked))["error"]["data"]["kind"] == "temporarily_unavailable"
    await bank.server.aclose()


async def test_call_rejected_without_store_may_start_later() -> None:
    """The store holds the entry without having confirmed it, and the server could not correct it."""
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock=clock))
    bank = Bank(store=store, clock=clock)
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        store.fail("commit", done=True, times=1)
        fault = store.fail("commit")
        error = await peer.error("tools/call", call("pay", "k", amount=5))
        assert error["data"]["kind"] == "temporarily_unavailable"
        await fault.reached.wait()
        fault.lift()
        assert await paid(peer, "k", 5) == 1
    await bank.server.aclose()
    assert bank.runs == [5]


async def test_result_too_large_to_store_is_not_sent() -> None:
    bank = Bank()

    @bank.server.tool
    async def large() -> CallToolResult:
        bank.runs.append(0)
        return CallToolResult([TextContent("x" * MAX_VALUE_BYTES)])

    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        async with asyncio.timeout(PATIENCE):
            for _ in range(2):
                error = await peer.error("tools/call", call("large", "k"))
                assert error["data"]["kind"] == "outcome_unknown"
    assert bank.runs == [0]
    await bank.server.aclose()


class UnreliableStore(MemoryStore):
    """A store that fails while it is unavailable, confirms writes late, or does not confirm them at all."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock=clock or ManualClock())
        self.unavailable = self.silent = False
        self.go, self.asked = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def commit(self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False) -> int:
        if self.unavailable:
            raise StoreUnavailable("away")
        version = await super().commit(writes, fence=fence, release=release)
        self.asked.set()
        await self.go.wait()
        if self.silent:
            raise StoreUnavailable("kept, and nobody is told")
        return version


async def test_no_run_starts_while_store_is_unavailable() -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        fault = store.fail()
        for params in (call("pay", "k", amount=5), {**call("order", "o", amount=5), "task": {}}):
            told = await peer.error("tools/call", params)
            assert (told["code"], told["data"]["kind"]) == (1008, "temporarily_unavailable")
            assert told["data"]["retryAfterMs"] == 1000
        assert bank.runs == []
        fault.lift()
        assert [await paid(peer, "k", 5), await paid(peer, "o", 6, "order")] == [1, 2]
    await bank.server.aclose()


async def test_stored_outcome_is_returned_while_the_store_refuses_writes() -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        assert await paid(peer, "k", 5) == 1
        store.fail()
        assert await paid(peer, "k", 5) == 1
        reused = await peer.error("tools/call", call("pay", "k", amount=6))
        assert reused["data"]["kind"] == "idempotency_key_reused"
    await bank.server.aclose()
    assert bank.runs == [5]


async def test_run_longer_than_the_lifetime_of_outcomes_keeps_its_key() -> None:
    clock = ManualClock()
    bank = Bank(clock=clock, settings=Settings(idempotency_ttl=10.0, work_timeout=None))
    bank.go.clear()
    async with RawPeer(bank.server) as one, RawPeer(bank.server) as two:
        await one.initialize()
        await two.initialize()
        first = asyncio.create_task(paid(one, "k", 5))
        await bank.begun.wait()
        clock.advance(30)
        second = asyncio.create_task(paid(two, "k", 5))
        assert await two.quiet() == []
        bank.go.set()
        assert await first == await second == 1
    await bank.server.aclose()
    assert bank.runs == [5]


@pytest.mark.parametrize(("name", "again"), [("pay", False), ("put", True)])
async def test_key_of_cancelled_run_is_released_after_a_store_outage(name: str, again: bool) -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        ident = peer.call("tools/call", call(name, "k", amount=5))
        await bank.begun.wait()
        fault = store.fail("commit")
        peer.notify("notifications/cancelled", {"requestId": ident})
        await fault.reached.wait()
        bank.go.set()
        asked = peer.call("tools/call", call(name, "k", amount=5))
        assert await peer.quiet() == []
        fault.lift()
        answer = await peer.answer_to(asked)
        assert answer["result"]["structuredContent"] == {"result": 2} if again else "error" in answer
    await bank.server.aclose()
    assert bank.runs == ([5, 5] if again else [5])


async def test_run_adopts_its_own_unconfirmed_write() -> None:
    """After a store error the server does not know whether its write succeeded, and must not take it for another
    process's.
    """
    clock = ManualClock()
    store = UnreliableStore(clock)
    bank = Bank(store=store, clock=clock)
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        store.silent = True
        await peer.request("tools/call", call("pay", "never begun", amount=5))
        store.silent = False
        assert await paid(peer, "never begun", 6) == 1
        bank.go.clear()
        bank.begun.clear()
        first = peer.call("tools/call", call("pay", "k", amount=5))
        await bank.begun.wait()
        bank.go.set()
        assert (await peer.answer_to(first))["result"]["structuredContent"] == {"result": 2}
        assert await paid(peer, "k", 5) == 2
    await bank.server.aclose()
    assert bank.runs == [6, 5]


async def test_call_cancelled_before_start_leaves_the_key_free() -> None:
    store = UnreliableStore()
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        store.go.clear()
        store.asked.clear()
        ident = peer.call("tools/call", call("pay", "k", amount=5))
        await store.asked.wait()
        peer.notify("notifications/cancelled", {"requestId": ident})
        await peer.quiet()
        store.go.set()
        assert await paid(peer, "k", 6) == 1
    assert bank.runs == [6]
    await bank.server.aclose()
