"""The health monitor of a server, and the pages that show it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.spec.test_http_routes import own_connections

from trunkline import Server, Settings, SqliteStore
from trunkline.errors import RegistrationError
from trunkline.facts import HealthChanged
from trunkline.server.resilience.health_states import HealthState
from trunkline.testing import FaultyStore, ManualClock, RawPeer, RecordingObserver


async def states(server: Server) -> dict[str, str]:
    report = await server.check_health()
    return {"": report.state.value, **{name: one.state.value for name, one in report.components.items()}}


@pytest.mark.row("Q03")
async def test_third_failure_flips_and_recovery_flips_back() -> None:
    clock, seen, works = ManualClock(), RecordingObserver(), True
    server = Server("t", clock=clock, observers=[seen])

    @server.health("database", failures=3)
    async def database() -> bool:
        return works

    assert (await states(server))["database"] == "healthy"
    works, found = False, []
    for _ in range(3):
        clock.advance(1)
        found.append((await states(server))["database"])
    assert found == ["degraded", "degraded", "unhealthy"]
    assert (await states(server))[""] == "unhealthy"
    works = True
    clock.advance(1)
    assert await states(server) == {"": "healthy", "database": "healthy", "store": "healthy", "workers": "healthy"}
    changes = [(fact.name, fact.before, fact.after) for fact in seen.of(HealthChanged)]
    assert changes == [
        ("database", "healthy", "degraded"),
        ("database", "degraded", "unhealthy"),
        ("database", "unhealthy", "healthy"),
    ]
    history = (await server.check_health()).components["database"].history
    assert history[0].after is HealthState.HEALTHY
    assert len(history) == 4
    await server.aclose()


@pytest.mark.row("Q03")
async def test_hung_check_does_not_delay_others() -> None:
    clock = ManualClock()
    server = Server("t", clock=clock, observers=[])
    server.health("hung", timeout=5)(asyncio.Event().wait)  # type: ignore[arg-type]
    server.health("quick")(lambda: True)
    asked = asyncio.ensure_future(states(server))
    while clock.waiting < 2:  # the timers of the probe and of the hung check
        await asyncio.sleep(0)
    clock.advance(0.8)  # a probe waits no longer
    assert await asked == {
        "": "unknown",
        "hung": "unknown",
        "quick": "healthy",
        "store": "healthy",
        "workers": "healthy",
    }
    clock.advance(4.2)
    asked = asyncio.ensure_future(states(server))
    while not clock.waiting:
        await asyncio.sleep(0)
    clock.advance(0.8)
    found = await asked
    assert (found["hung"], found["quick"], found[""]) == ("unhealthy", "healthy", "unhealthy")
    assert server._runtime.health_monitor()._components["hung"].reason == "no result within 5 s"
    await server.aclose()


@pytest.mark.row("Q03")
async def test_failure_that_is_not_critical_degrades_the_server() -> None:
    server = Server("t", clock=ManualClock(), observers=[])

    @server.health("cache", critical=False)
    def cache() -> bool:
        raise OSError("no")

    assert (await states(server))[""] == "degraded"
    async with own_connections(server) as site:
        assert (await site.get("/readyz")).status == 200
        assert ((await site.get("/healthz")).status, (await site.get("/healthz")).json) == (200, {"status": "degraded"})


async def test_result_is_reused_for_the_interval() -> None:
    clock, runs = ManualClock(), 0
    server = Server("t", clock=clock, observers=[])

    @server.health("slow", interval=30)
    async def slow() -> bool:
        nonlocal runs
        runs += 1
        return True

    for seconds in (0, 29, 1, 10):
        clock.advance(seconds)
        await states(server)
    assert runs == 2
    await server.aclose()


async def turn() -> None:
    """Let started checks end."""
    for _ in range(5):
        await asyncio.sleep(0)


class Component:
    """A component of an application, and the runs of its check."""

    def __init__(self) -> None:
        self.works = True
        self.runs = 0
        self.go = asyncio.Event()
        self.go.set()

    async def check(self) -> bool:
        self.runs += 1
        await self.go.wait()
        return self.works


@pytest.mark.row("Q03", "V05")
async def test_check_with_an_interval_runs_on_it_while_the_server_serves() -> None:
    clock, seen, database, other = ManualClock(), RecordingObserver(), Component(), Component()
    server = Server("t", clock=clock, observers=[seen])
    server.health("database", interval=0.5)(database.check)
    server.health("other")(other.check)
    assert (database.runs, clock.waiting) == (0, 0)
    await server.start()
    await turn()
    assert (database.runs, other.runs) == (1, 0)
    for works in (True, False, False, True):
        database.works = works
        clock.advance(0.5)
        await turn()
    assert (database.runs, other.runs) == (5, 0)
    changes = [(fact.before, fact.after, fact.at) for fact in seen.of(HealthChanged)]
    assert changes == [("healthy", "unhealthy", 1001.0), ("unhealthy", "healthy", 1002.0)]  # without a probe
    await server.aclose()
    assert clock.waiting == 0
    clock.advance(10)
    await turn()
    assert database.runs == 5


@pytest.mark.row("Q03")
async def test_check_can_be_added_and_replaced_while_the_server_serves() -> None:
    clock, first, second = ManualClock(), Component(), Component()
    server = Server("t", clock=clock, observers=[])
    await server.start()
    assert clock.waiting == 0  # nothing runs without such a check
    server.health("database", interval=1)(first.check)
    await turn()
    assert first.runs == 1
    second.works = False
    server.health("database", interval=2)(second.check)
    clock.advance(1)
    await turn()
    assert (first.runs, second.runs) == (1, 1)
    database = (await server.check_health()).components["database"]
    assert [(step.before.value, step.after.value) for step in database.history] == [("unknown", "unhealthy")]
    server.health("database")(first.check)
    clock.advance(2)
    await turn()
    assert (first.runs, second.runs) == (1, 1)
    await server.aclose()


@pytest.mark.row("Q03")
async def test_probe_does_not_wait_for_a_check_with_a_fresh_result() -> None:
    clock, database = ManualClock(), Component()
    server = Server("t", clock=clock, observers=[])
    server.health("database", interval=2, timeout=5)(database.check)
    await server.start()
    clock.advance(1)
    await turn()
    database.go.clear()
    clock.advance(1)
    await turn()
    assert database.runs == 2
    assert (await states(server))["database"] == "healthy"  # at once: its result is a second old
    clock.advance(1)
    late = asyncio.ensure_future(states(server))
    await turn()
    assert not late.done()  # older than the interval: the page waits for the running check
    database.works = False
    database.go.set()
    assert (await late)["database"] == "unhealthy"
    await server.aclose()


@pytest.mark.row("Q03")
async def test_running_check_is_not_started_again_and_does_not_count_once_replaced() -> None:
    clock, first, second = ManualClock(), Component(), Component()
    server = Server("t", clock=clock, observers=[])
    server.health("database", interval=1, timeout=60)(first.check)
    first.works = False
    first.go.clear()
    await server.start()
    await turn()
    for _ in range(3):
        clock.advance(1)
        await turn()
    assert first.runs == 1
    server.health("database", interval=1)(second.check)
    clock.advance(1)
    await turn()
    assert second.runs == 1  # it does not wait for the former
    first.go.set()
    await turn()
    database = (await server.check_health()).components["database"]
    assert [step.after.value for step in database.history] == ["healthy"]
    await server.aclose()


@pytest.mark.row("V05")
async def test_six_pages_show_every_state() -> None:
    clock, database, cache = ManualClock(), Component(), Component()
    server = Server("t", clock=clock, settings=Settings(health_details="all"), observers=[])
    server.health("database", interval=0.5, failures=2, timeout=60)(database.check)
    server.health("cache", interval=0.5, critical=False)(cache.check)
    database.go.clear()
    found: dict[str, list[int]] = {}

    async def see(site: Any, state: str) -> None:
        pages = [await site.get(f"/{page}{z}") for page in ("live", "ready", "health") for z in ("", "z")]
        found[state] = [page.status for page in pages]
        for page in pages[4:]:
            assert page.json["status"] == state
        assert pages[2].json["checks"] == {
            "database": state not in {"unknown", "unhealthy"} and database.works,
            "cache": cache.works,
        }
        assert pages[0].json == pages[1].json == {"ok": True, "workers": {"0": "ready"}}

    async def run_checks() -> None:
        clock.advance(0.5)
        await turn()

    async with own_connections(server) as site:
        runner = asyncio.ensure_future(see(site, "unknown"))  # no result yet: each page waits for the first
        while not runner.done():
            clock.advance(0.4)
            await asyncio.sleep(0.001)
        await runner
        database.go.set()
        await turn()
        await see(site, "healthy")
        cache.works = False
        await run_checks()
        await see(site, "degraded")
        cache.works, database.works = True, False
        await run_checks()
        await see(site, "degraded")  # one failure of two
        await run_checks()
        await see(site, "unhealthy")
        database.works = True
        await run_checks()
        await see(site, "healthy")
        history = (await site.get("/health")).json["components"]["database"]["history"]
        assert [step["to"] for step in history] == ["healthy", "degraded", "unhealthy", "healthy"]
    assert found == {
        "unknown": [200, 200, 503, 503, 503, 503],
        "healthy": [200] * 6,
        "degraded": [200] * 6,
        "unhealthy": [200, 200, 503, 503, 503, 503],
    }


async def test_breakers_store_and_cluster_report(tmp_path: Path) -> None:
    store = FaultyStore(SqliteStore(tmp_path / "s"))
    server = Server("t", store=store, observers=[])
    breaker = server.breaker("db", open_seconds=30)
    server.health("store")(lambda: True)
    await server.start()
    assert await states(server) == {
        "": "healthy",
        **dict.fromkeys(["check store", "store", "workers", "breaker db", "cluster"], "healthy"),
    }
    breaker.open()
    found = await states(server)
    assert (found["breaker db"], found[""]) == ("unhealthy", "degraded")
    server.pause()
    found = await states(server)
    assert (found["workers"], found[""]) == ("unhealthy", "unhealthy")
    await server.aclose()


@pytest.mark.row("V05")
@pytest.mark.parametrize("suffix", ["", "z"])
async def test_each_page_shows_each_state(suffix: str) -> None:
    works = {"database": True, "cache": True}
    server = Server("t", clock=(clock := ManualClock()), observers=[])
    server.health("database")(lambda: works["database"])
    server.health("cache", critical=False)(lambda: works["cache"])

    async def pages() -> dict[str, Any]:
        clock.advance(1)  # after which the checks run again
        found = {page: await site.get(f"/{page}{suffix}") for page in ("live", "ready", "health")}
        return {page: answer.status for page, answer in found.items()} | {"": found["health"].json["status"]}

    async with own_connections(server) as site:
        assert await pages() == {"live": 200, "ready": 200, "health": 200, "": "healthy"}
        works["cache"] = False
        assert await pages() == {"live": 200, "ready": 200, "health": 200, "": "degraded"}
        works["database"] = False
        assert await pages() == {"live": 200, "ready": 503, "health": 503, "": "unhealthy"}
        works.update(database=True, cache=True)
        assert await pages() == {"live": 200, "ready": 200, "health": 200, "": "healthy"}
        server.pause()
        assert await pages() == {"live": 200, "ready": 503, "health": 503, "": "unhealthy"}


@pytest.mark.row("V05")
async def test_health_can_be_offered_as_a_resource() -> None:
    server = Server("t", observers=[])
    server.health("cache", critical=False)(lambda: False)

    @server.resource("health://server", mime_type="application/json")
    async def health() -> dict[str, Any]:
        report = await server.check_health()
        return {"status": report.state.value, "components": report.details()}

    async with RawPeer(server) as peer:
        await peer.initialize()
        [contents] = (await peer.result("resources/read", {"uri": "health://server"}))["contents"]
    shown = json.loads(contents["text"])
    assert (shown["status"], shown["components"]["cache"]["status"]) == ("degraded", "unhealthy")


@pytest.mark.row("Q03")
async def test_three_pages_have_two_names_each() -> None:
    works = True
    server = Server("t", clock=(clock := ManualClock()), observers=[])
    server.health("database")(lambda: works)
    async with own_connections(server) as site:
        for page in ("live", "ready", "health", "livez", "readyz", "healthz"):
            assert (await site.get(f"/{page}")).status == 200
        works = False
        clock.advance(1)
        statuses = {page: (await site.get(f"/{page}")).status for page in ("live", "ready", "health")}
        assert statuses == {"live": 200, "ready": 503, "health": 503}
        works = True
        clock.advance(1)
        server.pause()
        statuses = {page: (await site.get(f"/{page}z")).status for page in ("live", "ready", "health")}
        assert statuses == {"live": 200, "ready": 503, "health": 503}


@pytest.mark.parametrize(
    ("details", "headers", "shown"),
    [
        ("off", {}, False),
        ("local", {}, True),
        ("local", {"x-forwarded-for": "203.0.113.1"}, False),
        ("all", {"x-forwarded-for": "203.0.113.1"}, True),
    ],
)
async def test_details_are_for_callers_that_may_see_them(details: Any, headers: Any, shown: bool) -> None:
    server = Server("t", settings=Settings(health_details=details), observers=[])

    @server.health("database")
    def database() -> bool:
        raise OSError("password hunter2 was refused")

    async with own_connections(server) as site:
        page = await site.ask("GET", "/healthz", headers=headers)
    assert (page.status, page.json["status"]) == (503, "unhealthy")
    assert ("components" in page.json) is shown
    assert (b"hunter2" in page.body) is shown
    if shown:
        assert page.json["components"]["database"]["history"][0]["to"] == "unhealthy"


async def test_custom_route_precedes_the_short_names() -> None:
    server = Server("t", observers=[])
    server.add_route("/health", lambda _: "mine", public=True)
    async with own_connections(server) as site:
        assert (await site.get("/health")).body == b"mine"
        assert (await site.get("/healthz")).json == {"status": "healthy"}


@pytest.mark.parametrize("options", [{"interval": 0}, {"timeout": None}, {"failures": True}])
def test_invalid_checks_are_refused(options: Any) -> None:
    with pytest.raises(RegistrationError, match=next(iter(options))):
        Server("t").health("database", **options)(lambda: True)
