"""Calls that carry an idempotency key: done once, however often they are made."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.modern import begin, enveloped
from tests.processes import StdioPeer
from tests.unit.transports.http.asgi import hosted

import trunkline
from trunkline import Client, Context, Server, Settings, ToolError
from trunkline.errors import OutcomeUnknown, StoreUnavailable
from trunkline.protocol.types import ToolAnnotations
from trunkline.stores.memory import MemoryStore
from trunkline.stores.sqlite import SqliteStore
from trunkline.testing import ManualClock, RawPeer

KEY = "trunkline/idempotency-key"
Params = dict[str, Any]


def call(name: str, key: str, **arguments: Any) -> Params:
    return {"name": name, "arguments": arguments, "_meta": {KEY: key}}


class Bank:
    """A server whose tools count how often they ran."""

    def __init__(self, **options: Any) -> None:
        self.runs: list[int] = []
        self.go = asyncio.Event()
        self.go.set()
        self.begun = asyncio.Event()
        self.stopped = asyncio.Event()
        self.server = Server("bank", observers=[], **options)

        async def work(amount: int) -> int:
            self.runs.append(amount)
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.stopped.set()
                raise
            if amount < 0:
                raise ToolError("a negative amount")
            return len(self.runs)

        self.server.tool(work, name="pay")
        self.server.tool(work, name="put", annotations=ToolAnnotations(idempotent_hint=True))

        @self.server.tool
        def plain(amount: int) -> int:
            self.runs.append(amount)
            return len(self.runs)


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    made = Bank()
    yield made
    made.go.set()
    await made.server.aclose()


async def paid(peer: RawPeer, key: str, amount: int, name: str = "pay") -> Any:
    return (await peer.result("tools/call", call(name, key, amount=amount)))["structuredContent"]["result"]


# --- once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pay", "plain"])
async def test_the_same_key_runs_once_and_gets_the_first_result(bank: Bank, name: str) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        assert [await paid(peer, "k1", 5, name), await paid(peer, "k1", 5, name)] == [1, 1]
        assert await paid(peer, "k2", 5, name) == 2
    assert bank.runs == [5, 5]


async def test_the_order_of_arguments_does_not_matter(bank: Bank) -> None:
    @bank.server.tool
    async def pair(a: int, b: int) -> int:
        bank.runs.append(a + b)
        return len(bank.runs)

    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await peer.result("tools/call", call("pair", "k", a=1, b=2))
        assert await peer.result("tools/call", call("pair", "k", b=2, a=1)) == first
    assert bank.runs == [3]


async def test_a_second_call_waits_for_the_first(bank: Bank) -> None:
    bank.go.clear()
    async with RawPeer(bank.server) as one, RawPeer(bank.server) as two:
        await one.initialize()
        await two.initialize()
        calls = [asyncio.create_task(paid(peer, "k", 5)) for peer in (one, two)]
        await bank.begun.wait()
        bank.go.set()
        assert await asyncio.gather(*calls) == [1, 1]
    assert bank.runs == [5]


@pytest.mark.parametrize(("name", "arguments"), [("pay", {"amount": 6}), ("put", {"amount": 5})])
async def test_other_arguments_or_another_tool_with_the_same_key_are_refused(
    bank: Bank, name: str, arguments: Params
) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        await paid(peer, "k", 5)
        error = await peer.error("tools/call", call(name, "k", **arguments))
    assert (error["code"], error["data"]["kind"]) == (-32602, "idempotency_key_reused")
    assert bank.runs == [5]


async def test_the_key_of_another_principal_is_another_key(bank: Bank) -> None:
    async with RawPeer(bank.server, principal="alice") as alice, RawPeer(bank.server, principal="bob") as bob:
        await alice.initialize()
        await bob.initialize()
        assert await paid(alice, "k", 5) == 1
        assert await paid(bob, "k", 6) == 2
        assert await paid(alice, "k", 5) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, 5, None])
async def test_a_key_that_is_none_is_refused(bank: Bank, key: Any) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        error = await peer.error("tools/call", call("pay", key, amount=5))
    assert (error["code"], error["data"]["kind"]) == (-32602, "invalid_idempotency_key")
    assert bank.runs == []


async def test_what_came_of_a_key_is_forgotten_in_time() -> None:
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


async def test_a_result_that_says_that_the_tool_failed_is_kept(bank: Bank) -> None:
    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await peer.result("tools/call", call("pay", "k", amount=-1))
        assert first["isError"]
        assert await peer.result("tools/call", call("pay", "k", amount=-1)) == first
    assert bank.runs == [-1]


async def test_an_error_that_a_tool_raised_is_kept_with_its_reference(bank: Bank) -> None:
    @bank.server.tool
    async def breaks() -> str:
        bank.runs.append(0)
        raise ZeroDivisionError

    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        first = await peer.result("tools/call", call("breaks", "k"))
        assert await peer.result("tools/call", call("breaks", "k")) == first
        assert first["_meta"]["trunkline/error"]["reference"]
    assert bank.runs == [0]


async def test_a_call_that_never_began_leaves_its_key_free(bank: Bank) -> None:
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


async def test_a_result_that_cannot_be_kept_is_not_given_out() -> None:
    store = MemoryStore()
    bank = Bank(store=store)
    await bank.server.start()

    @bank.server.tool
    async def loses() -> str:
        await store.close()
        return "done"

    async with RawPeer(bank.server) as peer:
        await peer.initialize()
        error = await peer.error("tools/call", call("loses", "k"))
    assert error["data"]["kind"] == "outcome_unknown"
    with pytest.raises(StoreUnavailable):
        await store.get("a/b")
    await bank.server.aclose()


# --- lost lines and lost runs -------------------------------------------------------------------


async def test_a_run_goes_on_when_its_line_is_lost_and_its_client_comes_back_for_the_result(bank: Bank) -> None:
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


async def test_a_run_goes_on_when_its_client_hangs_up_where_each_call_has_a_line_of_its_own(bank: Bank) -> None:
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


async def test_a_run_without_a_line_ends_when_its_time_is_up() -> None:
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
async def test_a_cancelled_run_is_made_again_only_if_its_tool_is_idempotent(bank: Bank, name: str, again: bool) -> None:
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


async def test_a_call_that_was_answered_with_a_question_leaves_its_key_free(bank: Bank) -> None:
    @bank.server.tool
    async def asks(ctx: Context) -> str:
        answer = await ctx.elicit("how much?", {"amount": int})
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


async def test_a_run_that_is_cut_off_when_its_server_ends_is_known_to_be_lost_at_once(tmp_path: Path) -> None:
    """The next server does not have to wait until nobody can be at it any more."""
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


# --- several servers, one store -----------------------------------------------------------------


class Pair:
    """Two servers, as two processes would be, with one store."""

    def __init__(self, *, frozen: bool = False) -> None:
        self.clock = ManualClock()
        store = MemoryStore(clock=self.clock)
        self.clock_of_one = ManualClock() if frozen else self.clock
        self.one = Bank(store=store, clock=self.clock_of_one)
        self.two = Bank(store=store, clock=self.clock)
        self.one.go.clear()

    async def __aenter__(self) -> tuple[RawPeer, RawPeer]:
        self.peers = RawPeer(self.one.server), RawPeer(self.two.server)
        for peer in self.peers:
            await peer.__aenter__()
            await peer.initialize()
        return self.peers

    async def __aexit__(self, *_: object) -> None:
        self.one.go.set()
        for peer in self.peers:
            await peer.close()
        for bank in (self.one, self.two):
            await bank.server.aclose()


async def test_a_call_elsewhere_waits_for_the_run_as_long_as_somebody_is_at_it() -> None:
    async with (pair := Pair()) as (one, two):
        first = asyncio.create_task(paid(one, "k", 5))
        await pair.one.begun.wait()
        second = two.call("tools/call", call("pay", "k", amount=5))
        for _ in range(20):  # twice the time of the lease, which is renewed meanwhile
            pair.clock.advance(1)
            assert await two.quiet() == []
        pair.one.go.set()
        assert await first == 1
        assert (await two.answer_to(second))["result"]["structuredContent"]["result"] == 1
    assert (pair.one.runs, pair.two.runs) == ([5], [])


async def test_what_is_taken_over_from_somebody_thought_dead_has_one_result() -> None:
    async with (pair := Pair(frozen=True)) as (one, two):
        first = asyncio.create_task(paid(one, "k", 5, "put"))
        await pair.one.begun.wait()
        pair.one.runs += [0, 0]  # so that its own result would be another
        pair.clock.advance(11)
        assert await paid(two, "k", 5, "put") == 1
        pair.one.go.set()
        assert await first == 1
    assert pair.two.runs == [5]


async def test_a_run_that_was_taken_over_is_stopped_when_that_is_found_out() -> None:
    async with (pair := Pair(frozen=True)) as (one, two):
        first = asyncio.create_task(paid(one, "k", 5, "put"))
        await pair.one.begun.wait()
        pair.clock.advance(11)
        assert await paid(two, "k", 5, "put") == 1
        pair.clock_of_one.advance(4)  # time to say that it is still at it
        await pair.one.stopped.wait()
        assert await first == 1


# --- processes ----------------------------------------------------------------------------------

SCRIPT = """
import os, sys
from trunkline import Server, Settings
from trunkline.protocol.types import ToolAnnotations
from trunkline.stores.sqlite import SqliteStore

folder, dies = sys.argv[1:]
server = Server("bank", store=SqliteStore(folder + "/store"), settings=Settings(idempotency_lease=0.5))

def work(amount: int) -> str:
    with open(folder + "/runs", "a") as file:
        file.write("x")
    if dies == "inside":
        os._exit(9)
    return f"{amount} by {os.getpid()}"

server.tool(work, name="pay")
server.tool(work, name="put", annotations=ToolAnnotations(idempotent_hint=True))

if dies == "after":
    @server.middleware
    async def lose(call, next):
        await next(call)
        os._exit(9)

server.run()
"""


def ask(folder: Path, dies: str, name: str, key: str = "k") -> Any:
    """The answer of a process to a call; None if it dies before it gives one."""
    with StdioPeer(SCRIPT, str(folder), dies) as peer:
        peer.initialize()
        ident = peer.call("tools/call", call(name, key, amount=5))
        if dies == "never":
            return peer.answer_to(ident)
        assert peer.exit_code() == 9
        return None


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


def test_a_result_whose_answer_was_lost_with_its_process_is_given_by_the_next(tmp_path: Path) -> None:
    ask(tmp_path, "after", "pay")
    first = ask(tmp_path, "never", "pay")["result"]["content"][0]["text"]
    assert first.startswith("5 by ")
    assert ask(tmp_path, "never", "pay")["result"]["content"][0]["text"] == first
    assert runs(tmp_path) == 1


def test_a_run_that_died_with_its_process_is_not_made_again(tmp_path: Path) -> None:
    ask(tmp_path, "inside", "pay")
    for _ in range(2):
        assert ask(tmp_path, "never", "pay")["error"]["data"]["kind"] == "outcome_unknown"
    assert runs(tmp_path) == 1


def test_a_run_that_died_with_its_process_is_made_again_if_its_tool_is_idempotent(tmp_path: Path) -> None:
    ask(tmp_path, "inside", "put")
    assert not ask(tmp_path, "never", "put")["result"]["isError"]
    assert runs(tmp_path) == 2


# --- clients ------------------------------------------------------------------------------------


def script(folder: Path, dies: str, program: str = SCRIPT) -> str:
    """A server that dies the first time that it is called; or each time, if it is never to learn from that."""
    ran = folder / "runs"
    file = folder / "server.py"
    source = Path(trunkline.__file__).parents[1]  # a client passes on little of its environment
    file.write_text(f"""
import os, sys
sys.path.insert(0, {str(source)!r})
sys.argv[1:] = [{str(folder)!r}, "never" if os.path.exists({str(ran)!r}) else {dies!r}]
{program}""")
    return str(file)


async def test_a_client_repeats_a_call_with_a_key_by_itself_when_the_server_died(tmp_path: Path) -> None:
    """The first process loses its answer; the second gives it."""
    async with Client(script(tmp_path, "after")) as client:
        result = await client.call_tool("pay", {"amount": 5}, idempotency_key="k")
        assert result.data.startswith("5 by ")
    assert runs(tmp_path) == 1


async def test_a_client_says_that_the_outcome_is_unknown_if_the_server_does_not_know(tmp_path: Path) -> None:
    async with Client(script(tmp_path, "inside")) as client:
        with pytest.raises(OutcomeUnknown, match="may or may not have been done"):
            await client.call_tool("pay", {"amount": 5}, idempotency_key="k")
        await client.ping()
    assert runs(tmp_path) == 1


async def test_a_client_does_not_repeat_a_call_with_a_key_that_the_server_would_not_mind(tmp_path: Path) -> None:
    """A server of somebody else's: it does not say that it minds keys, and would do it again."""
    unaware = f"""
import trunkline.server.features.tools as tools, trunkline.server.server as server
tools.IDEMPOTENCY_KEY = server.IDEMPOTENCY = "unknown"
{SCRIPT}"""
    async with Client(script(tmp_path, "inside", unaware)) as client:
        with pytest.raises(OutcomeUnknown, match="was not answered"):
            await client.call_tool("pay", {"amount": 5}, idempotency_key="k")
    assert runs(tmp_path) == 1
