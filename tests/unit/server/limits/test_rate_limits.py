"""Rate limits of a server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from trunkline import Client, MemoryStore, Server, Settings, SqliteStore
from trunkline.auth.principal import Principal
from trunkline.errors import ConfigError, PeerError, RegistrationError, ToolFailed
from trunkline.facts import RateExceeded
from trunkline.protocol.meta import IDEMPOTENCY_KEY
from trunkline.server.limits.rate_limits import UNDECIDED, RateLimits, SharedBucket
from trunkline.testing import FaultyStore, ManualClock, RawPeer, RecordingObserver
from trunkline.token_bucket import parse_rate


def make_server(clock: ManualClock | None = None, *, rate: str | None = None, **settings: Any) -> Server:
    server = Server("limited", clock=clock or ManualClock(), settings=Settings(**settings), observers=[])

    @server.tool(rate=rate)
    async def work() -> str:
        return "done"

    @server.prompt(rate=rate)
    async def prompt() -> str:
        return "hello"

    @server.resource("note://one", rate=rate)
    async def note() -> str:
        return "text"

    @server.resource("note://{name}/more", rate=rate)
    async def more(name: str) -> str:
        return name

    return server


async def call(peer: RawPeer, meta: Any = None) -> dict[str, Any] | None:
    """Call the tool; return the refusal, or None."""
    params = {"name": "work", **({} if meta is None else {"_meta": meta})}
    result = await peer.result("tools/call", params)
    return result["_meta"]["trunkline/refusal"] if result["isError"] else None


@pytest.mark.row("E1003", "Q02")
async def test_burst_is_refused_with_1003() -> None:
    clock = ManualClock()
    async with RawPeer(make_server(clock, principal_rate="2/s")) as peer:
        await peer.initialize()
        assert [await call(peer) for _ in range(2)] == [None, None]
        refusal = await call(peer)
        assert refusal is not None
        assert (refusal["code"], refusal["name"], refusal["retryAfterMs"]) == (1003, "rate_limit_exceeded", 500)
        assert (refusal["limit"], refusal["scope"]) == ("2/s", "each principal of an address")
        assert "principal: 2/s" in refusal["hint"]
        error = await peer.error("prompts/get", {"name": "prompt"})
        assert (error["code"], error["data"]["kind"]) == (1003, "rate_limit_exceeded")
        await peer.result("ping")
        clock.advance(0.5)
        assert await call(peer) is None
        assert await call(peer) is not None


@pytest.mark.row("Q05")
async def test_limited_caller_does_not_affect_others() -> None:
    clock = ManualClock()
    server = make_server(clock, principal_rate="10/s", server_rate="20/s")
    ann, bob = (RawPeer(server, principal=Principal(name)) for name in ("ann", "bob"))
    refused: dict[str, int] = {"ann": 0, "bob": 0}
    async with ann, bob:
        await ann.initialize()
        await bob.initialize()
        for tick in range(200):  # ten seconds: ann sends 100 in each, bob 5
            clock.advance(0.05)
            for _ in range(5):
                refused["ann"] += await call(ann) is not None
            if tick % 4 == 0:
                refused["bob"] += await call(bob) is not None
    assert refused["bob"] == 0
    assert 1000 - refused["ann"] == pytest.approx(10 + 100, abs=1)


@pytest.mark.parametrize("setting", ["session_rate", "server_rate", "tool_rate"])
async def test_each_limit_counts_its_own_requests(setting: str) -> None:
    server = make_server(**{setting: "1/s"})
    async with RawPeer(server) as one, RawPeer(server) as other:
        await one.initialize()
        await other.initialize()
        assert await call(one) is None
        assert await call(one) is not None
        elsewhere = await call(other)
        prompt = await one.request("prompts/get", {"name": "prompt"})
    assert (elsewhere is None) == (setting == "session_rate")
    assert ("result" in prompt) == (setting == "tool_rate")


async def test_two_connections_of_a_principal_share_its_limit() -> None:
    server = make_server(principal_rate="1/s")
    async with RawPeer(server, principal=Principal("ann")) as one, RawPeer(server, principal=Principal("ann")) as other:
        await one.initialize()
        await other.initialize()
        assert await call(one) is None
        assert await call(other) is not None


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "prompt"}),
        ("resources/read", {"uri": "note://one"}),
        ("resources/read", {"uri": "note://x/more"}),
    ],
)
async def test_entries_have_rates_of_their_own(method: str, params: Any) -> None:
    async with RawPeer(make_server(rate="1/min")) as peer:
        await peer.initialize()
        assert await call(peer) is None
        await peer.result(method, params)
        error = await peer.error(method, params)
        assert (error["code"], error["data"]["retryAfterMs"]) == (1003, 60_000)
        refusal = await call(peer)
    assert refusal is not None
    assert refusal["scope"] == "tool 'work'"


async def test_refused_call_does_not_use_up_its_idempotency_key() -> None:
    clock = ManualClock()
    async with RawPeer(make_server(clock, rate="1/s")) as peer:
        await peer.initialize()
        assert await call(peer) is None
        assert await call(peer, {IDEMPOTENCY_KEY: "k"}) is not None
        clock.advance(1)
        assert await call(peer, {IDEMPOTENCY_KEY: "k"}) is None


async def test_access_is_checked_before_the_rate() -> None:
    server = Server("t", clock=ManualClock(), observers=[])

    @server.tool(scopes=["work"], rate="1/s")
    async def work() -> str:
        return "done"

    stranger, user = (
        RawPeer(server, principal=Principal("x")),
        RawPeer(server, principal=Principal("y", scopes=("work",))),
    )
    async with stranger, user:
        await stranger.initialize()
        await user.initialize()
        await stranger.error("tools/call", {"name": "work"})
        assert await call(user) is None


def test_invalid_rates_are_refused() -> None:
    with pytest.raises(RegistrationError, match="tool 'work': a rate is"):
        make_server(rate="often")
    with pytest.raises(ConfigError, match=r'principal_rate must be a text such as "10/s"'):
        Settings(principal_rate="often")
    assert Settings.load(environ={"TRUNKLINE_SERVER_RATE": "5/s", "TRUNKLINE_RETRY_RATE": "off"}).retry_rate is None


async def test_observers_hear_of_refusals() -> None:
    seen = RecordingObserver()
    server = Server("t", clock=ManualClock(), settings=Settings(server_rate="1/s"), observers=[seen], tools=True)
    async with RawPeer(server) as peer:
        await peer.initialize()
        for _ in range(2):
            await peer.request("tools/list")
    assert [(fact.scope, fact.limit) for fact in seen.of(RateExceeded)] == [("the server", "1/s")]


async def test_buckets_of_idle_callers_are_dropped() -> None:
    clock = ManualClock()
    limits = RateLimits(
        Settings(http_rate="1/s"), "t", clock=clock, wall_clock=clock, store=None, observers=Server("t").observers
    )
    for number in range(5000):
        clock.advance(0.1)
        assert limits.check_http(Principal(str(number)), "") is None
    assert len(limits._callers) < 2100
    assert limits.check_http(Principal("4999"), "") is not None
    assert limits.check_http({"unhashable": 1}, "") is None
    assert limits.check_http({"unhashable": 1}, "") is not None
    assert limits.check_http(None, "2001:db8::1") is None
    assert limits.check_http(None, "2001:db8::2") is not None
    assert limits.check_http(None, "127.0.0.1") is None


# --- clients ---------------------------------------------------------------------------------------


async def test_client_waits_and_repeats() -> None:
    clock = ManualClock()
    server = make_server(clock, rate="1/s")
    async with Client(server, clock=clock) as client:
        for _ in range(3):
            calling = asyncio.ensure_future(client.call_tool("work"))
            while not calling.done():
                clock.advance(1)
                await asyncio.sleep(0)
            assert (await calling).data == "done"
        await client.get_prompt("prompt")
        reading = asyncio.ensure_future(client.get_prompt("prompt"))
        while not reading.done():
            clock.advance(0.5)
            await asyncio.sleep(0)
        assert (await reading).messages


async def test_retries_of_a_client_are_limited() -> None:
    clock = ManualClock()
    settings = Settings(server_rate="1/h burst 3", retry_rate="1/h burst 4")
    server, tries = make_server(clock, server_rate="1/s burst 3"), 0

    async def use(client: Client) -> str:
        try:
            return (await client.call_tool("work")).data
        except ToolFailed as error:
            return error.result.meta["trunkline/refusal"]["name"] if error.result.meta else ""

    async with Client(server, clock=clock, settings=settings) as client:
        calls = [asyncio.ensure_future(use(client)) for _ in range(20)]
        while not all(one.done() for one in calls):
            tries += 1
            clock.advance(0.25)
            await asyncio.sleep(0)
        answers = [await one for one in calls]
    assert answers.count("rate_limit_exceeded") >= 13  # three passed at once, and at most four retries succeeded
    assert answers.count("done") >= 3


async def test_long_delay_is_the_callers_business() -> None:
    clock = ManualClock()
    async with Client(make_server(clock, rate="1/h"), clock=clock) as client:
        await client.call_tool("work")
        with pytest.raises(ToolFailed, match="too many requests"):
            await client.call_tool("work")
        await client.get_prompt("prompt")
        with pytest.raises(PeerError, match="too many requests") as refused:
            await client.get_prompt("prompt")
    assert refused.value.code == 1003


# --- shared by processes ---------------------------------------------------------------------------


async def start_servers(path: Path, clock: ManualClock, count: int, **settings: Any) -> list[Server]:
    servers: list[Server] = []
    for _ in range(count):
        server = Server(
            "shared", clock=clock, store=SqliteStore(path, clock=clock), settings=Settings(**settings), observers=[]
        )

        @server.tool
        async def work() -> str:
            return "done"

        await server.start()
        servers.append(server)
    return servers


@pytest.mark.row("Q02")
@pytest.mark.parametrize("setting", ["principal_rate", "tool_rate", "server_rate"])
async def test_processes_share_a_limit(tmp_path: Path, setting: str) -> None:
    clock = ManualClock()
    servers = await start_servers(tmp_path / "s", clock, 3, **{setting: "40/s burst 40"})
    peers = [RawPeer(server, principal=Principal("ann")) for server in servers]
    for peer in peers:
        await peer.__aenter__()
        await peer.initialize()

    async def flood_one(peer: RawPeer) -> int:
        idents = [peer.call("tools/call", {"name": "work"}) for _ in range(30)]
        answers = [await peer.receive() for _ in idents]
        return sum(not answer["result"]["isError"] for answer in answers)

    async def flood() -> int:
        return sum(await asyncio.gather(*map(flood_one, peers)))

    granted = await flood()
    assert 40 - 4 <= granted <= 40  # tokens of a batch may be left
    clock.advance(0.5)
    more = await flood()
    assert granted + more <= 40 + 20 + 4
    assert more >= 20 - 3 * 4
    for peer, server in zip(peers, servers, strict=True):
        await peer.close()
        await server.aclose()


async def test_shared_bucket_takes_batches_under_load(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyStore(SqliteStore(tmp_path / "s", clock=clock))
    await store.open()
    bucket, commits = SharedBucket(parse_rate("1000/s"), store, "rate/t", clock.now), 0
    for _ in range(500):
        if bucket.take() == UNDECIDED:
            commits += 1
            assert await bucket.take_from_store() == 0
    assert commits < 20
    await store.close()


async def test_unused_tokens_of_a_batch_expire() -> None:
    clock = ManualClock()
    bucket = SharedBucket(parse_rate("40/s"), MemoryStore.ready(clock), "rate/t", clock.now)  # batches of 1, 2, 4
    for _ in range(4):
        assert await take(bucket)
    clock.advance(0.099)
    assert bucket.take() == 0
    clock.advance(0.001)  # the bucket regains a batch in that time
    assert bucket.take() == UNDECIDED


async def take(bucket: SharedBucket) -> bool:
    wait = bucket.take()
    return not (await bucket.take_from_store() if wait == UNDECIDED else wait)


@pytest.mark.row("Q02")
@pytest.mark.parametrize(("seconds", "granted"), [(0.05, 40), (0.1, 40), (0.2, 36), (0.5, 24), (10, 1)])
async def test_tokens_of_a_slow_store_expire_as_the_bucket_regains_them(seconds: float, granted: int) -> None:
    clock = ManualClock()
    memory = MemoryStore.ready(clock)
    slow = FaultyStore(memory)
    one, other = (SharedBucket(parse_rate("40/s"), store, "rate/t", clock.now) for store in (slow, memory))
    held = slow.hold("commit")
    taking = asyncio.gather(*(take(one) for _ in range(40)))
    await held.reached.wait()
    clock.advance(seconds)
    again = slow.hold("get")  # one batch is enough
    held.lift()
    await (taking if granted == 40 else again.reached.wait())
    assert len(one._waiters) == 40 - granted
    assert granted + sum([await take(other) for _ in range(40)]) <= 40 + 4 + 1
    again.lift()
    await taking


async def test_clock_that_is_set_back_does_not_lock_processes_out(tmp_path: Path) -> None:
    time = [1e6]
    store = SqliteStore(tmp_path / "s", clock=ManualClock(1e6))
    await store.open()
    bucket = SharedBucket(parse_rate("1/s"), store, "rate/t", lambda: time[0])
    assert await bucket.take_from_store() == 0
    assert await bucket.take_from_store() > 0
    time[0] = 1000.0
    assert 0 < await bucket.take_from_store() <= 1
    time[0] = 1001.0
    assert await bucket.take_from_store() == 0
    await store.close()


async def test_limit_holds_in_each_process_while_the_store_is_unavailable(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyStore(SqliteStore(tmp_path / "s", clock=clock))
    server = Server("t", clock=clock, store=store, settings=Settings(server_rate="2/s"), observers=[], tools=True)
    await server.start()
    fault = store.fail("get", "commit", key="rate/")
    async with RawPeer(server) as peer:
        await peer.initialize()
        answers = [await peer.request("tools/list") for _ in range(3)]
        assert ["result" in answer for answer in answers] == [True, True, False]
        fault.lift()
        clock.advance(2)
        answers = [await peer.request("tools/list") for _ in range(3)]
        assert ["result" in answer for answer in answers] == [True, True, False]
    await server.aclose()


async def test_cancelled_call_does_not_wait_for_its_token(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyStore(SqliteStore(tmp_path / "s", clock=clock))
    server = Server("t", clock=clock, store=store, settings=Settings(server_rate="5/s"), observers=[], tools=True)
    await server.start()
    held = store.hold("get", key="rate/")
    async with RawPeer(server) as peer:
        await peer.initialize()
        cancelled, kept = peer.call("tools/list"), peer.call("tools/list")
        peer.notify("notifications/cancelled", {"requestId": cancelled})
        assert await peer.quiet() == []
        held.lift()
        assert "result" in await peer.answer_to(kept)
        assert await peer.quiet() == []
        late = store.hold("get", key="rate/")
        clock.advance(10)
        ident = peer.call("tools/list")
        await peer.quiet()
        clock.advance(5)
        assert (await peer.answer_to(ident))["error"]["data"]["kind"] == "request_timeout"
        late.lift()
    await server.aclose()
