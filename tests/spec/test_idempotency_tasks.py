"""Calls with an idempotency key that become tasks: the key identifies the task."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.founding import FEATURES
from tests.limits import PATIENCE
from tests.modern import enveloped
from tests.spec.bank import KEY, Bank, Params, call, paid

from trunkline import Client, Context, Settings, TaskPolicy
from trunkline.protocol.types import ToolAnnotations
from trunkline.stores.memory import MemoryStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import FaultyStore, ManualClock, RawPeer

EXTENSION = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
ASKS = {**EXTENSION, "elicitation": {"form": {}}}


def wanted(name: str, key: str, **arguments: Any) -> Params:
    """A call of 2025-11-25 that requests a task."""
    return {**call(name, key, **arguments), "task": {}}


def known(name: str, key: str, **arguments: Any) -> Params:
    """A call of a client with the extension."""
    return enveloped(EXTENSION, **call(name, key, **arguments))


def created(name: str, key: str, **arguments: Any) -> Params:
    """The task request of the founding documents."""
    return {"action": {"type": name, "parameters": arguments}, "_meta": {KEY: key}}


@pytest.fixture
async def founding(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bank]:
    """A bank in the dialect of the founding documents, for which no official schema exists."""
    monkeypatch.setattr(RawPeer, "taps", [])
    made = Bank(compat="erlmcp")
    yield made
    made.go.set()
    await made.server.aclose()


async def augmented(peer: RawPeer, name: str = "order", key: str = "k", amount: int = 5) -> Any:
    return (await peer.result("tools/call", wanted(name, key, amount=amount)))["task"]


async def extended(peer: RawPeer, name: str = "order", key: str = "k", amount: int = 5) -> Any:
    return await peer.result("tools/call", known(name, key, amount=amount))


async def founded(peer: RawPeer, name: str = "order", key: str = "k", amount: int = 5) -> Any:
    return await peer.result("tasks/create", created(name, key, amount=amount))


Ask = Callable[..., Any]


# --- the same task --------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [augmented, extended])
async def test_same_key_returns_the_same_task(bank: Bank, ask: Ask) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as one, RawPeer(bank.server) as two:
        await one.initialize()
        await two.initialize()
        first = await ask(one)
        await bank.begun.wait()
        assert await ask(two) == first
        bank.go.set()
        assert await paid(two, "k", 5, "order") == 1
        ended = await ask(two)
        assert (ended["taskId"], ended["status"]) == (first["taskId"], "completed")
        assert (await ask(one, key="other"))["taskId"] != first["taskId"]
    assert bank.runs == [5, 5]


async def test_same_key_returns_the_same_founding_task(
    founding: Bank,
) -> None:
    async with RawPeer(founding.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        first = await founded(peer)
        assert await founded(peer) == first
        error = await peer.error("tasks/create", created("order", "k", amount=6))
        assert error["data"]["kind"] == "idempotency_key_reused"
    assert founding.runs == [5]


async def test_concurrent_calls_with_one_key_create_one_task() -> None:
    store = MemoryStore()
    bank = Bank(store=store)
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        asked = [peer.call("tools/call", wanted("order", "k", amount=5)) for _ in range(3)]
        names = {(await peer.answer_to(ident))["result"]["task"]["taskId"] for ident in asked}
        assert [task["taskId"] for task in (await peer.result("tasks/list"))["tasks"]] == [*names]
        assert await paid(peer, "k", 5, "order") == 1
        await peer.quiet()
        assert [item.key for item in await store.scan("working/")] == []  # recovery does not look for the others
    await bank.server.aclose()
    assert bank.runs == [5]


@pytest.mark.parametrize("ask", [wanted, known])
async def test_reused_key_is_rejected_for_tasks(bank: Bank, ask: Callable[..., Params]) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        await peer.result("tools/call", ask("order", "k", amount=5))
        for other in (ask("order", "k", amount=6), ask("book", "k", amount=5), call("pay", "k", amount=5)):
            error = await peer.error("tools/call", other)
            assert (error["code"], error["data"]["kind"]) == (-32602, "idempotency_key_reused")


async def test_task_keys_are_separate_per_principal(bank: Bank) -> None:
    async with RawPeer(bank.server, principal="alice") as alice, RawPeer(bank.server, principal="bob") as bob:
        await alice.initialize()
        await bob.initialize()
        mine, other = await augmented(alice), await augmented(bob, amount=6)
        assert mine["taskId"] != other["taskId"]
        assert (await augmented(alice))["taskId"] == mine["taskId"]
        assert await paid(bob, "k", 6, "order") == 2
        assert await paid(alice, "k", 5, "order") in {1, 2}
    assert sorted(bank.runs) == [5, 6]


async def test_client_awaits_required_task_once(bank: Bank) -> None:
    async with Client(bank.server) as client:
        for _ in range(2):
            assert (await client.call_tool("book", {"amount": 5}, idempotency_key="k")).data == 1
    assert bank.runs == [5]


async def test_ordinary_call_of_task_tool_leaves_the_key_free(bank: Bank) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        for params, code in ((call("book", "k", amount=5), -32601), (enveloped(**call("book", "k", amount=5)), -32021)):
            assert (await peer.error("tools/call", params))["code"] == code
        assert (await augmented(peer, "book", amount=6))["status"] == "working"


async def test_invalid_key_is_rejected_for_tasks(bank: Bank) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        error = await peer.error("tools/call", wanted("order", "", amount=5))
        assert error["data"]["kind"] == "invalid_idempotency_key"
        assert (await peer.result("tasks/list"))["tasks"] == []


# --- calls that do not become tasks -----------------------------------------------------------------


@pytest.mark.parametrize("ask", [augmented, extended])
async def test_ordinary_call_waits_for_the_task_result(bank: Bank, ask: Ask) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        await ask(peer)
        waiting = peer.call("tools/call", call("order", "k", amount=5))
        modern = peer.call("tools/call", enveloped(**call("order", "k", amount=5)))
        await bank.begun.wait()
        assert await peer.quiet() == []
        bank.go.set()
        assert (await peer.answer_to(waiting))["result"]["structuredContent"] == {"result": 1}
        assert (await peer.answer_to(modern))["result"]["structuredContent"] == 1
    assert bank.runs == [5]


async def test_ordinary_call_gets_the_questions_of_the_task(bank: Bank) -> None:
    @bank.server.tool(task=True)
    async def asks(ctx: Context) -> str:
        bank.runs.append(0)
        return (await ctx.elicit("pay it?", None)).action

    async with RawPeer(bank.server) as peer:
        await peer.initialize(capabilities={"elicitation": {}})
        await peer.result("tools/call", wanted("asks", "k"))
        waiting = peer.call("tools/call", call("asks", "k"))
        while (question := await peer.receive()).get("method") != "elicitation/create":
            pass
        peer.reply(question, {"action": "decline"})
        assert (await peer.answer_to(waiting))["result"]["content"][0]["text"] == "decline"
    assert bank.runs == [0]


async def test_ordinary_call_gets_the_error_of_the_task(bank: Bank) -> None:
    @bank.server.tool(task=TaskPolicy(timeout=0.01))
    async def late() -> None:
        bank.runs.append(0)
        await asyncio.Event().wait()

    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        await peer.result("tools/call", wanted("late", "k"))
        for _ in range(2):
            error = await peer.error("tools/call", call("late", "k"))
            assert error["data"]["kind"] == "task_timeout"
        failed = await augmented(peer, key="f", amount=-1)
        assert (await peer.result("tools/call", call("order", "f", amount=-1)))["isError"]
        assert (await augmented(peer, key="f", amount=-1)) == {**failed, "status": "failed"} | {
            name: (await peer.result("tasks/get", {"taskId": failed["taskId"]}))[name]
            for name in ("statusMessage", "lastUpdatedAt")
        }
        await extended(peer, key="m", amount=-2)
        assert (await peer.result("tools/call", call("order", "m", amount=-2)))["isError"]
    assert bank.runs == [0, -1, -2]


async def test_outcome_of_cancelled_task_is_unknown(bank: Bank) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        task = await augmented(peer, "book")
        await bank.begun.wait()
        await peer.result("tasks/cancel", {"taskId": task["taskId"]})
        assert (await augmented(peer, "book"))["status"] == "cancelled"
        await augmented(peer, "order", "o")
        waiting = peer.call("tools/call", call("order", "o", amount=5))
        await peer.result("tasks/cancel", {"taskId": (await augmented(peer, "order", "o"))["taskId"]})
        error = (await peer.answer_to(waiting))["error"]
    assert error["data"]["kind"] == "outcome_unknown"
    assert bank.runs == [5, 5]


async def test_2025_11_25_client_gets_finished_task_for_a_call(bank: Bank) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = peer.call("tools/call", call("order", "k", amount=5))
        await bank.begun.wait()
        asked = peer.call("tools/call", wanted("order", "k", amount=5))
        assert await peer.quiet() == []
        bank.go.set()
        await peer.answer_to(first)
        task = (await peer.answer_to(asked))["result"]["task"]
        assert task["status"] == "working"
        assert (await peer.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "completed"
        result = await peer.result("tasks/result", {"taskId": task["taskId"]})
        assert result["structuredContent"] == {"result": 1}
    assert bank.runs == [5]


async def test_extension_client_gets_result_of_ordinary_call(bank: Bank) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        assert await paid(peer, "k", 5, "order") == 1
        answer = await extended(peer)
        assert (answer["resultType"], answer["structuredContent"]) == ("complete", 1)
    assert bank.runs == [5]


async def test_founding_client_gets_a_task_for_a_call(founding: Bank) -> None:
    async with RawPeer(founding.server) as peer:
        await peer.initialize(capabilities=FEATURES)
        failed = await peer.error("tools/call", call("order", "k", amount=-1))
        assert await peer.error("tools/call", call("order", "k", amount=-1)) == failed
        assert failed["code"] == -32031
        task = (await founded(peer, amount=-1))["taskId"]
        found = (await peer.result("tasks/get", {"taskId": task}))["task"]
        content = [{"type": "text", "text": failed["message"]}]
        assert (found["status"], found["result"]["content"]) == ("failed", content)
    assert founding.runs == [-1]


# --- input before the task --------------------------------------------------------------------------


async def test_key_names_the_task_of_a_call_that_asks_first(bank: Bank) -> None:
    @bank.server.tool(task=TaskPolicy(asks_first=True))
    async def asks(ctx: Context) -> str:
        answer = await ctx.elicit("pay it?", None, key="q")
        await ctx.begin_task()
        bank.runs.append(0)
        await bank.go.wait()
        return answer.action

    def round_(asked: Any = None) -> Params:
        told = {} if asked is None else {"inputResponses": {"q": {"action": "decline"}}}
        return enveloped(ASKS, **call("asks", "k"), **told, **({} if asked is None else {"requestState": asked}))

    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        asked = await peer.result("tools/call", round_())
        assert asked["resultType"] == "input_required"
        state = asked["requestState"]
        first = await peer.result("tools/call", round_(state))
        assert first["resultType"] == "task"
        for params in (round_(state), round_()):
            assert (await peer.result("tools/call", params))["taskId"] == first["taskId"]
        plain = peer.call("tools/call", enveloped({"elicitation": {"form": {}}}, **call("asks", "k")))
        bank.go.set()
        assert (await peer.answer_to(plain))["result"]["structuredContent"] == "decline"
    assert bank.runs == [0]


async def test_waiter_gets_the_task_that_the_call_becomes(bank: Bank) -> None:
    prepared = asyncio.Event()

    @bank.server.tool(task=TaskPolicy(asks_first=True))
    async def prepares(ctx: Context) -> int:
        await ctx.once("prepared", prepared.wait)
        await ctx.begin_task()
        bank.runs.append(0)
        return len(bank.runs)

    async with RawPeer(bank.server) as one, RawPeer(bank.server) as two:
        await two.initialize()
        asked = [peer.call("tools/call", known("prepares", "k")) for peer in (one, two)]
        plain = two.call("tools/call", enveloped(**call("prepares", "k")))
        assert await two.quiet() == []
        prepared.set()
        first, second = [await peer.answer_to(ident) for peer, ident in zip((one, two), asked, strict=True)]
        assert first["result"]["taskId"] == second["result"]["taskId"]
        assert (await two.answer_to(plain))["result"]["structuredContent"] == 1
    assert bank.runs == [0]


async def test_superseded_call_does_not_become_a_task(tmp_path: Path) -> None:
    """A runner that was presumed dead reaches the point of creating the task while another runs it."""
    one, two = (Bank(store=SqliteStore(tmp_path / "store")) for _ in range(2))
    one.go.clear()

    def add_tool(bank: Bank) -> None:
        @bank.server.tool(task=TaskPolicy(asks_first=True), annotations=ToolAnnotations(idempotent_hint=True))
        async def prepares(ctx: Context) -> int:
            bank.begun.set()
            await bank.go.wait()
            await ctx.begin_task()
            bank.runs.append(0)
            return 7

    for bank in (one, two):
        add_tool(bank)
    async with RawPeer(one.server) as first, RawPeer(two.server) as second:
        late = first.call("tools/call", known("prepares", "k"))
        await one.begun.wait()
        cluster = first.connection.shared.cluster
        assert cluster is not None
        await cluster.close()  # without leaving: it looks dead
        task = await second.result("tools/call", known("prepares", "k"))
        one.go.set()
        assert (await first.answer_to(late))["result"]["taskId"] == task["taskId"]
    for bank in (one, two):
        await bank.server.aclose()
    assert (one.runs, two.runs) == ([], [0])


@pytest.mark.parametrize("confirmed", [True, False])
async def test_call_that_cannot_become_a_task_leaves_the_key_free(confirmed: bool) -> None:
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)

    @bank.server.tool(task=TaskPolicy(asks_first=True))
    async def prepares(ctx: Context) -> int:
        await ctx.begin_task()
        bank.runs.append(0)
        return 7

    async with RawPeer(bank.server) as peer, asyncio.timeout(PATIENCE):
        fault = store.fail("acquire", done=not confirmed)
        error = await peer.error("tools/call", known("prepares", "k"))
        assert error["data"]["kind"] == "temporarily_unavailable"
        fault.lift()
        assert (await peer.result("tools/call", known("prepares", "k")))["resultType"] == "task"
        assert (await peer.result("tools/call", enveloped(**call("prepares", "k"))))["structuredContent"] == 7
    await bank.server.aclose()
    assert bank.runs == [0]


async def test_call_above_the_task_limit_leaves_the_key_free() -> None:
    bank = Bank(settings=Settings(max_tasks=1))
    bank.go.clear()
    prepared = asyncio.Event()

    @bank.server.tool(task=TaskPolicy(asks_first=True))
    async def prepares(ctx: Context) -> int:
        await prepared.wait()
        await ctx.begin_task()
        return 7

    async with RawPeer(bank.server) as peer:
        asked = peer.call("tools/call", known("prepares", "k"))
        await peer.result("tools/call", known("book", "other", amount=5))
        prepared.set()
        refused = await peer.answer_to(asked)
        assert refused["error"]["data"]["kind"] == "maximum_concurrent_tasks_exceeded"
        bank.go.set()
        async with asyncio.timeout(PATIENCE):  # until the other task has ended
            while "error" in (answer := await peer.request("tools/call", known("prepares", "k"))):
                await asyncio.sleep(0)
        assert answer["result"]["resultType"] == "task"
    await bank.server.aclose()


# --- limits and expiry ------------------------------------------------------------------------------


@pytest.mark.parametrize("asks_first", [False, True])
async def test_task_limit_keeps_keys_free_and_tasks_findable(asks_first: bool) -> None:
    bank = Bank(settings=Settings(max_tasks=1))

    @bank.server.tool(name="later", task=TaskPolicy(asks_first=asks_first))
    async def later(ctx: Context, amount: int) -> None:
        await ctx.begin_task()
        bank.runs.append(amount)
        await bank.go.wait()

    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await extended(peer, "later", "k")
        assert (await extended(peer, "later", "k"))["taskId"] == first["taskId"]
        error = await peer.error("tools/call", known("later", "other", amount=5))
        assert error["data"]["kind"] == "maximum_concurrent_tasks_exceeded"
        bank.go.set()
        await peer.result("tools/call", enveloped(**call("later", "k", amount=5)))
        await peer.quiet()
        assert (await extended(peer, "later", "other", 6))["resultType"] == "task"
    await bank.server.aclose()
    assert bank.runs == [5, 6]


async def test_key_lives_as_long_as_its_task() -> None:
    clock = ManualClock()
    bank = Bank(clock=clock, settings=Settings(idempotency_ttl=10.0, task_ttl=100.0))
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await augmented(peer)
        assert await paid(peer, "k", 5, "order") == 1
        clock.advance(90)
        assert (await augmented(peer))["taskId"] == first["taskId"]
    await bank.server.aclose()
    assert bank.runs == [5]


@pytest.mark.parametrize(("name", "again"), [("order", False), ("book", True)])
async def test_expired_task_is_recreated_only_if_idempotent(name: str, again: bool) -> None:
    clock = ManualClock()
    bank = Bank(clock=clock, settings=Settings(task_ttl=10.0))
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await augmented(peer, name)
        await bank.begun.wait()
        clock.advance(11)
        answers = await asyncio.gather(*(peer.request("tools/call", wanted(name, "k", amount=5)) for _ in range(2)))
        if again:
            [made] = {answer["result"]["task"]["taskId"] for answer in answers}
            assert made != first["taskId"]
        else:
            assert [answer["error"]["data"]["kind"] for answer in answers] == ["outcome_unknown"] * 2
        await peer.quiet()
    await bank.server.aclose()
    assert bank.runs == ([5, 5] if again else [5])


async def test_waiter_of_expired_task_gets_outcome_unknown() -> None:
    clock = ManualClock()
    bank = Bank(clock=clock, settings=Settings(task_ttl=10.0))
    bank.go.clear()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        await augmented(peer)
        waiting = peer.call("tools/call", call("order", "k", amount=5))
        await peer.quiet()
        clock.advance(11)
        await bank.stopped.wait()
        error = (await peer.answer_to(waiting))["error"]
    assert error["data"]["kind"] == "outcome_unknown"
    await bank.server.aclose()


# --- lost connections -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lost", "cancelled"])
async def test_task_of_lost_caller_is_found_by_its_key(how: str) -> None:
    """If the caller has cancelled it instead, so is the task."""
    store = FaultyStore(MemoryStore())
    bank = Bank(store=store)
    bank.go.clear()
    held = store.hold("acquire", key="/tasks/")
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        ident = peer.call("tools/call", wanted("order", "k", amount=5))
        await held.reached.wait()
        if how == "cancelled":
            peer.notify("notifications/cancelled", {"requestId": ident})
            await peer.quiet()
    held.lift()
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        if how == "lost":
            await bank.begun.wait()
            assert (await augmented(peer))["status"] == "working"
        async with asyncio.timeout(PATIENCE):
            while how == "cancelled" and (await augmented(peer))["status"] != "cancelled":
                pass
    bank.go.set()
    await bank.server.aclose()
