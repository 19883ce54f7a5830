"""Metrics of a server, as Prometheus reads them at `/metrics`."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.limits import PATIENCE

from trunkline import Client, Context, Directory, MemoryStore, Server, Settings, SqliteStore, ToolError
from trunkline.auth import Principal, ResourceServer, StaticTokens
from trunkline.errors import MisuseError, PeerError, RegistrationError, TransportError
from trunkline.facts import CallEnded, CallStep, Fact
from trunkline.testing import FaultyStore, RawPeer

ON = Settings(metrics=True)
TOKEN = "scraper-token-of-the-tests"

Values = dict[str, dict[tuple[str, ...], float]]


def parse(text: str) -> Values:
    """Return the values by name and values of labels, sorted by the names of the labels."""
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name.removeprefix("trunkline_"), {})[labels] = sample.value
    return found


class Site:
    """A server that listens over HTTP."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self._http = http

    async def get(self, path: str = "/metrics", **headers: str) -> tuple[int, Any, str]:
        async with self._http.get(self.url.removesuffix("/mcp") + path, headers=headers) as response:
            return response.status, response.headers, await response.text()

    async def scrape(self, **headers: str) -> Values:
        status, _, text = await self.get(**headers)
        assert status == 200, text
        return parse(text)


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[Site]:
    place = await server.listen("http://127.0.0.1:0/mcp")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as http:
        yield Site(place.address, http)
    await server.aclose()


def make_server(**options: Any) -> Server:
    server = Server("measured", **{"settings": ON, "observers": [], **options})

    @server.tool(scopes=())
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool(scopes=())
    async def fail() -> None:
        raise ToolError("no")

    @server.tool(scopes=(), thread=False)
    def crash() -> None:
        raise RuntimeError("a bug")

    return server


# --- the route ---------------------------------------------------------------------------------------------


async def test_metrics_are_off_by_default() -> None:
    async with listening(make_server(settings=None)) as site:
        assert (await site.get())[0] == 404


def test_server_without_metrics_loads_none_of_their_modules() -> None:
    program = "import sys, trunkline; trunkline.Server('plain').asgi(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "trunkline.server.routes" in loaded
    assert [name for name in loaded if "metrics" in name or name == "trunkline.stores.observed"] == []


@pytest.mark.row("V01")
async def test_scrape_after_three_calls_has_method_transport_and_outcome() -> None:
    async with listening(make_server()) as site:
        async with Client(site.url) as client:
            for b in range(3):
                await client.call_tool("add", {"a": 1, "b": b})
        status, headers, text = await site.get()
    found = parse(text)
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert found["calls_total"]["tools/call", "ok", "http"] == 3
    assert found["call_duration_seconds_count"]["tools/call", "ok", "http"] == 3
    assert found["call_duration_seconds_sum"]["tools/call", "ok", "http"] > 0
    assert found["tool_calls_total"] == {("ok", "add"): 3}
    assert found["calls_in_progress"]["tools/call", "http"] == 0
    assert found["handler_failures_total"] == found["unreadable_messages_total"] == {(): 0}


async def test_metrics_route_checks_host_and_method() -> None:
    async with listening(make_server()) as site:
        assert (await site.get(host="rebound.example"))[0] == 403
        assert (await site.get(origin="https://page.example"))[0] == 403
        async with aiohttp.ClientSession() as http:
            base = site.url.removesuffix("/mcp")
            async with http.post(f"{base}/metrics") as response:
                assert response.status == 405
            async with http.head(f"{base}/metrics") as response:
                assert (response.status, await response.read()) == (200, b"")


async def test_metrics_need_the_token_of_the_endpoint() -> None:
    auth = ResourceServer(StaticTokens({"ada": Principal("ada")}), strict=True)
    async with listening(make_server(auth=auth)) as site:
        assert (await site.get())[0] == 401
        assert "info" in await site.scrape(authorization="Bearer ada")


async def test_metrics_token_replaces_that_of_the_endpoint() -> None:
    auth = ResourceServer(StaticTokens({"ada": Principal("ada")}))
    settings = Settings(metrics=True, metrics_token=TOKEN)
    async with listening(make_server(auth=auth, settings=settings)) as site:
        for wrong in ("", "Bearer ada", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer", "Bearer \xe4"):
            status, headers, text = await site.get(**({"authorization": wrong} if wrong else {}))
            assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="metrics"')
            assert TOKEN not in text
        assert "info" in await site.scrape(authorization=f"bearer {TOKEN}")


async def test_routes_of_the_program_cannot_take_the_path() -> None:
    with pytest.raises(RegistrationError, match="/metrics"):
        make_server().add_route("/metrics", lambda _: "")
    async with listening(make_server(settings=None)) as site:  # without metrics it is free
        assert (await site.get())[0] == 404


@pytest.mark.parametrize("mounted", ["", "/tools"])
async def test_asgi_application_serves_metrics_behind_the_same_checks(mounted: str) -> None:
    server = make_server(settings=Settings(metrics=True, metrics_token=TOKEN, allowed_hosts=("localhost",)))
    app = server.asgi()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def get(**headers: str) -> tuple[int, str]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        path, given = f"{mounted}/metrics", [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        await app({**scope, "headers": given, "scheme": "http", "root_path": mounted}, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()

    status, text = await get(host="localhost", authorization=f"Bearer {TOKEN}")
    assert (status, "info" in parse(text)) == (200, True)
    assert (await get(host="localhost"))[0] == 401
    assert (await get(host="rebound.example", authorization=f"Bearer {TOKEN}"))[0] == 403
    await server.aclose()


async def test_servers_of_one_listener_have_metrics_of_their_own() -> None:
    auth, closed = ResourceServer(StaticTokens({"ada": Principal("ada")})), Settings(metrics=True, metrics_token=TOKEN)
    servers = {
        "open": make_server(),
        "guarded": make_server(auth=auth),
        "closed": make_server(settings=closed),
        "off": make_server(settings=None),
    }
    directory = Directory()
    for name, server in servers.items():
        directory.register(name, server)
    async with (
        await directory.listen("http://127.0.0.1:0/") as listener,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as http,
    ):

        async def get(name: str, **headers: str) -> tuple[int, str]:
            async with http.get(listener.metrics_url_of(name), headers=headers) as response:
                return response.status, await response.text()

        async with Client(listener.url_of("open")) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
        assert listener.metrics_url_of("open").endswith("/open/metrics")
        assert parse((await get("open"))[1])["tool_calls_total"] == {("ok", "add"): 1}
        assert [(await get(name))[0] for name in servers] == [200, 401, 401, 404]
        assert (await get("open", host="rebound.example"))[0] == 403
        assert (await get("guarded", authorization="Bearer ada"))[0] == 200
        assert (await get("closed", authorization="Bearer ada"))[0] == 401
        status, text = await get("closed", authorization=f"Bearer {TOKEN}")
        assert (status, "tool_calls_total" in parse(text)) == (200, False)  # the call was one of another server
        async with http.get(listener.url_of("open").replace("/open/mcp", "/metrics")) as response:
            assert response.status == 404  # it would be that of no server
        await servers["open"].aclose()
        assert (await get("open"))[0] == 404
        assert (await get("closed", authorization=f"Bearer {TOKEN}"))[0] == 200
    for server in servers.values():
        await server.aclose()


async def test_metrics_of_a_server_without_http() -> None:
    server = make_server()
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    assert parse(server.metrics_text())["tool_calls_total"] == {("ok", "add"): 1}
    with pytest.raises(MisuseError, match="metrics=True"):
        make_server(settings=None).metrics_text()


# --- exactness ---------------------------------------------------------------------------------------------


@pytest.mark.no_cover  # other tests measure the same calls
async def test_values_agree_with_the_driver_after_ten_thousand_mixed_calls() -> None:
    server, expected, tools = make_server(), Counter[tuple[str, str, str]](), Counter[tuple[str, str]]()

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    @server.prompt
    async def hello() -> str:
        return "hello"

    async def drive(target: Any, transport: str, calls: int) -> None:
        async with Client(target, revision="2025-11-25") as client:
            expected["initialize", "ok", transport] += 1
            expected["tools/list", "ok", transport] += 1  # once, to validate results of tools
            for number in range(calls):
                method, params, outcome, tool = MIXED[number % len(MIXED)]
                expected[method, outcome, transport] += 1
                if tool is not None:
                    tools[outcome, tool] += 1
                if tool == "unknown":
                    params = {"name": f"invented {number}"}
                with contextlib.suppress(PeerError):
                    await client.request(f"invented/{number}" if method == "unknown" else method, params)

    async with listening(server) as site:
        tcp = await server.listen("tcp://127.0.0.1:0")
        await asyncio.gather(
            drive(server, "memory", 8000), drive(site.url, "http", 1000), drive(tcp.address, "tcp", 1000)
        )
        found = await site.scrape()
    assert found["calls_total"] == found["call_duration_seconds_count"] == expected
    assert sum(found["calls_total"].values()) == 10_006
    assert found["tool_calls_total"] == tools
    assert set(found["calls_in_progress"].values()) == {0}
    assert found["handler_failures_total"] == {(): tools["failed", "crash"]}


MIXED: list[tuple[str, Any, str, str | None]] = [
    ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, "ok", "add"),
    ("tools/call", {"name": "add", "arguments": {"a": "x"}}, "failed", "add"),
    ("tools/call", {"name": "fail"}, "failed", "fail"),
    ("tools/call", {"name": "crash"}, "failed", "crash"),
    ("tools/call", {}, "error", "unknown"),
    ("resources/read", {"uri": "note://a"}, "ok", None),
    ("resources/read", {"uri": "other://a"}, "error", None),
    ("prompts/get", {"name": "hello"}, "ok", None),
    ("ping", None, "ok", None),
    ("tools/list", None, "ok", None),
    ("unknown", None, "refused", None),
]  # method, params, outcome, label of the tool


# --- gauges ------------------------------------------------------------------------------------------------


async def test_gauges_show_what_the_server_holds() -> None:
    server, entered, leave = make_server(store=MemoryStore()), asyncio.Event(), asyncio.Event()
    breaker = server.breaker("database")

    @server.tool
    async def wait() -> None:
        entered.set()
        await leave.wait()

    @server.tool
    def block() -> None:
        asyncio.run_coroutine_threadsafe(leave.wait(), loop).result(PATIENCE)

    @server.tool(task="required")
    async def long(ctx: Context) -> str:
        await leave.wait()
        return "done"

    loop = asyncio.get_running_loop()
    async with listening(server) as site:
        tcp = await server.listen("tcp://127.0.0.1:0")
        async with Client(tcp.address) as client:
            await client.ping()
            assert (await site.scrape())["connections"] == {("tcp",): 1}
        async with asyncio.timeout(PATIENCE):
            while (await site.scrape())["connections"]["tcp",]:
                pass
        breaker.open()
        async with Client(site.url, revision="2025-11-25") as client:
            calls = [asyncio.create_task(client.call_tool(name)) for name in ("wait", "block")]
            task = await client.start_tool("long")
            await asyncio.wait_for(entered.wait(), PATIENCE)
            async with asyncio.timeout(PATIENCE):
                while not (found := await site.scrape())["threads_busy"][()]:
                    pass
            leave.set()
            await asyncio.gather(*calls)
            assert (await task.result()).data == "done"
            after = await site.scrape()
        closed = await site.scrape()
    assert found["sessions"] == {(): 1}
    assert found["streams"][()] >= 1
    assert found["calls_in_progress"]["tools/call", "http"] == 2
    assert found["tasks"] == {("working",): 1, ("pending",): 0, ("input_required",): 0}
    assert found["breaker_state"] == {
        ("database", "open", "0"): 1,
        ("database", "closed", "0"): 0,
        ("database", "half_open", "0"): 0,
    }
    assert found["breaker_changes_total"] == {("database", "open"): 1}
    assert found["resident_memory_bytes"][("0",)] > 1_000_000
    assert found["event_loop_lag_seconds"][("0",)] >= 0
    assert after["tasks"]["working",] == after["calls_in_progress"]["tools/call", "http"] == 0
    assert after["tasks_ended_total"] == {("completed",): 1}
    assert after["threads_busy"] == after["queued_jobs"] == after["queued_calls"] == {(): 0}
    assert closed["sessions"] == closed["streams"] == {(): 0}
    assert closed["cpu_seconds_total"][("0",)] >= found["cpu_seconds_total"][("0",)] > 0


async def test_store_calls_and_leases_are_measured(tmp_path: Any) -> None:
    store = FaultyStore(SqliteStore(tmp_path / "store"))
    server = make_server(store=store)
    async with listening(server) as site:
        assert (await site.get("/readyz"))[0] == 200  # probes the store
        before = await site.scrape()
        async with Client(site.url, revision="2025-11-25") as client:
            await client.call_tool("add", {"a": 1, "b": 2})
            found = await site.scrape()
            fault = store.fail("acquire", key="session")
            with contextlib.suppress(TransportError, PeerError):
                async with Client(site.url, revision="2025-11-25", settings=Settings(auto_reconnect=False)):
                    pass
            failed = await site.scrape()
            fault.lift()
    assert before["store_up"] == {("0",): 1}
    counts = found["store_call_seconds_count"]
    assert counts["get", "ok"] >= 1
    assert counts["acquire", "ok"] > before["store_call_seconds_count"]["acquire", "ok"] >= 1
    assert ("acquire", "unavailable") not in counts
    assert failed["store_call_seconds_count"]["acquire", "unavailable"] >= 1
    assert found["leases"] == {("process",): 1, ("session",): 1, ("task",): 0}
    assert found["cluster_peers"] == {("0",): 0}
    assert found["cluster_changes_total"]["Join",] == 1


async def test_refused_http_requests_are_counted_by_status_and_kind() -> None:
    async with listening(make_server()) as site:
        for number in range(3):
            await site.get(f"/invented-{number}")
        assert (await site.scrape())["http_refused_total"] == {("not_found", "404"): 3}


# --- observers ---------------------------------------------------------------------------------------------


class Faulty:
    """Raises, hangs, blocks the thread of the loop, or is flooded, depending on its kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.immediate = kind == "blocks"
        self.release = threading.Event()
        self.blocked = False

    def on(self, fact: Fact) -> None:
        if self.kind == "raises":
            raise RuntimeError("no disk space left")
        if self.kind in {"hangs", "floods"}:
            self.release.wait(PATIENCE)
        elif isinstance(fact, CallEnded) and not self.blocked:
            self.blocked = True
            time.sleep(0.15)


@pytest.mark.row("V06")
@pytest.mark.parametrize("kind", ["raises", "hangs", "blocks", "floods"])
async def test_faulty_observer_fails_no_call_and_shows_in_metrics(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "floods":
        monkeypatch.setattr("trunkline.fact_queue.MAX_QUEUED", 50)
    faulty = Faulty(kind)
    server = make_server(observers=[faulty])
    async with listening(server) as site:
        try:
            async with RawPeer(server) as peer:
                await peer.initialize()
                for b in range(100):
                    result = await peer.result("tools/call", {"name": "add", "arguments": {"a": 1, "b": b}})
                    assert result["structuredContent"] == {"result": 1 + b}
            found = await site.scrape()
            if kind == "raises":
                await server.observers.drain(PATIENCE)
                found = await site.scrape()
        finally:
            faulty.release.set()
    assert found["calls_total"]["tools/call", "ok", "memory"] == 100
    assert (found["observer_failures_total"][()] > 100) is (kind == "raises")
    assert found["observer_blocked_total"][()] >= (kind == "blocks")
    assert (found["facts_dropped_total"][()] > 100) is (kind == "floods")
    assert (found["queued_facts"][()] > 40) is (kind in {"hangs", "floods"})


class Relentless:
    """Raises, hangs, blocks the thread of the loop, computes or is flooded, for as long as there are facts."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.immediate = kind == "blocks"
        self.release = threading.Event()
        self._calls = 0
        if kind == "floods":
            self.wants = (CallEnded, CallStep)

    def on(self, fact: Fact) -> None:
        self._calls += isinstance(fact, CallEnded)
        match self.kind:
            case "raises":
                raise RuntimeError("no disk space left")
            case "hangs":
                self.release.wait()
            case "blocks" if self._calls % 500 == 250:
                self._calls += 1
                time.sleep(0.15)
            case "computes":
                sum(range(20_000))
            case "floods":
                time.sleep(0.001)
            case _:
                pass


@pytest.mark.long
@pytest.mark.row("V06", "U03")
async def test_faulty_observers_fail_no_call_of_several_clients() -> None:
    for kind in ("none", "raises", "hangs", "blocks", "computes", "floods"):
        faulty, seconds = Relentless(kind), list[float]()
        server = make_server(observers=[] if kind == "none" else [faulty])

        async def drive(target: str, seconds: list[float] = seconds) -> None:
            async with Client(target) as client:
                for b in range(1000):
                    started = time.perf_counter()
                    assert (await client.call_tool("add", {"a": 1, "b": b})).data == 1 + b
                    seconds.append(time.perf_counter() - started)

        async with listening(server) as site:
            try:
                await asyncio.gather(*(drive(site.url) for _ in range(4)))
                found = await site.scrape()
            finally:
                faulty.release.set()
        assert found["calls_total"]["tools/call", "ok", "http"] == len(seconds) == 4000
        assert (found["observer_failures_total"][()] > 0) is (kind == "raises")
        assert found["observer_blocked_total"][()] >= (7 if kind == "blocks" else 0)
        if kind != "computes":  # how much it misses depends on the machine
            assert (found["facts_dropped_total"][()] > 0) is (kind in {"hangs", "floods"})
        seconds.sort()
        shown = ", ".join(
            f"p{share:g} {1000 * seconds[int(len(seconds) * share / 100)]:.2f} ms" for share in (50, 99, 99.9)
        )
        print(f"observer {kind:<10} {shown}, longest {1000 * seconds[-1]:.1f} ms")
