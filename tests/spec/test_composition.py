"""Servers mounted in other servers: one catalog, live, in both eras."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec.structs import replace
from tests.limits import PATIENCE

from trunkline import (
    Call,
    CallToolResult,
    Client,
    Context,
    Depends,
    EmbeddedResource,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    Server,
    Settings,
    SqliteStore,
    TextContent,
)
from trunkline.client.notifications import NotificationReader
from trunkline.errors import (
    MisuseError,
    NameClash,
    PeerError,
    RegistrationError,
)
from trunkline.facts import HandlerFailed
from trunkline.protocol.types import ReadResourceResult
from trunkline.testing import RecordingObserver

both_eras = pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
QUICK = Settings(list_changed_interval=0.001)


def make(name: str = "main", **options: Any) -> Server:
    return Server(name, **{"observers": [], "settings": QUICK, **options})


def weather_server(**options: Any) -> Server:
    server = make("weather", **options)

    @server.tool
    async def forecast(city: str, days: int = 1) -> str:
        """Tell the weather."""
        return f"{city} {days}"

    @server.resource("notes://today")
    async def today() -> str:
        return "sunny"

    @server.resource("notes://day/{number}", list=lambda: ["notes://day/1"])
    async def day(number: int) -> str:
        return f"day {number}"

    @server.prompt
    async def report(city: str) -> str:
        return f"How is {city}?"

    server.add_completion(["Rome", "Paris"], argument="city", prompt="report")
    server.add_completion(["1", "2"], argument="number", resource="notes://day/{number}")
    server.add_completion(["Oslo"], argument="city", tool="forecast")
    return server


@asynccontextmanager
async def reading(client: Client, name: str) -> AsyncIterator[NotificationReader]:
    reader = client.notifications(name)
    yield reader
    reader.close()


async def names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


async def text(client: Client, name: str, arguments: Any = None, **options: Any) -> str:
    (block,) = (await client.call_tool(name, arguments, **options)).content
    assert isinstance(block, TextContent)
    return block.text


# --- one catalog ---------------------------------------------------------------------------------


@both_eras
async def test_mounted_entries_have_the_prefix(revision: str) -> None:
    main = make()
    main.mount(weather_server(), prefix="sky")

    async with Client(main, revision=revision) as client:
        assert await names(client) == ["sky__forecast"]
        assert await text(client, "sky__forecast", {"city": "Rome"}) == "Rome 1"
        listed = (await client.list_resources()).resources
        assert [resource.uri for resource in listed] == ["notes://sky/today", "notes://sky/day/1"]
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "notes://sky/day/{number}"
        for uri, expected in [("notes://sky/today", "sunny"), ("notes://sky/day/7", "day 7")]:
            (contents,) = await client.read_resource(uri)
            assert (contents.uri, contents.text) == (uri, expected)
        (prompt,) = (await client.list_prompts()).prompts
        assert prompt.name == "sky__report"
        (message,) = (await client.get_prompt("sky__report", {"city": "Rome"})).messages
        assert message.content == TextContent("How is Rome?")
        assert (await client.complete("prompt", "sky__report", "city", "p")).values == ["Paris"]
        assert (await client.complete("resource", "notes://sky/day/{number}", "number")).values == ["1", "2"]
        with pytest.raises(PeerError, match="'forecast'"):
            await client.call_tool("forecast", {"city": "Rome"})


@both_eras
async def test_without_a_prefix_entries_are_merged_as_they_are(revision: str) -> None:
    main = make()
    main.add_tool(lambda: "own", name="own")
    main.mount(weather_server())

    async with Client(main, revision=revision) as client:
        assert await names(client) == ["own", "forecast"]
        assert await text(client, "forecast", {"city": "Rome"}) == "Rome 1"
        (contents,) = await client.read_resource("notes://today")
        assert contents.uri == "notes://today"
        (contents,) = await client.read_resource("notes://day/2")
        assert (contents.uri, contents.text) == ("notes://day/2", "day 2")


async def test_invalid_arguments_are_explained_under_the_name_of_the_parent() -> None:
    main = make()
    main.mount(weather_server(), prefix="sky")

    async with Client(main) as client:
        result = await client.call_tool("sky__forecast", {"days": "x"}, raise_on_error=False)

    assert result.is_error
    assert "invalid arguments for tool 'sky__forecast'" in result.text


@both_eras
async def test_mounts_nest(revision: str) -> None:
    main, middle = make(), make("middle")
    middle.mount(weather_server(), prefix="sky")
    main.mount(middle, prefix="all")

    async with Client(main, revision=revision) as client:
        assert await text(client, "all__sky__forecast", {"city": "Rome"}) == "Rome 1"
        listed = (await client.list_resources()).resources
        assert [resource.uri for resource in listed] == ["notes://all/sky/today", "notes://all/sky/day/1"]
        (contents,) = await client.read_resource("notes://all/sky/day/3")
        assert (contents.uri, contents.text) == ("notes://all/sky/day/3", "day 3")
        assert (await client.complete("prompt", "all__sky__report", "city", "r")).values == ["Rome", "Paris"]


@both_eras
async def test_one_server_can_be_mounted_under_two_prefixes(revision: str) -> None:
    main, weather = make(), weather_server()
    main.mount(weather, prefix="a")
    main.mount(weather, prefix="b")

    async with Client(main, revision=revision) as client:
        assert await names(client) == ["a__forecast", "b__forecast"]
        main.unmount(weather, prefix="a")
        assert await names(client) == ["b__forecast"]
        assert await text(client, "b__forecast", {"city": "Rome"}) == "Rome 1"


async def test_mounted_entries_cannot_be_removed_from_the_parent() -> None:
    main = make()
    main.mount(weather_server(), prefix="sky")

    with pytest.raises(MisuseError, match="comes from server 'weather', mounted as 'sky'"):
        main.remove_tool("sky__forecast")


# --- live ------------------------------------------------------------------------------------------


@both_eras
async def test_later_changes_appear_in_the_parent_and_are_announced(revision: str) -> None:
    main, middle, weather = make(prompts=True), make("middle"), weather_server()
    middle.mount(weather, prefix="sky")
    main.mount(middle)

    async with Client(main, revision=revision) as client:
        async with reading(client, "notifications/tools/list_changed") as changes:
            weather.add_tool(lambda: "wet", name="rain")
            await asyncio.wait_for(anext(changes), PATIENCE)
            assert await names(client) == ["sky__forecast", "sky__rain"]
            assert await text(client, "sky__rain") == "wet"
            weather.remove_tool("forecast")
            await asyncio.wait_for(anext(changes), PATIENCE)
            assert await names(client) == ["sky__rain"]
        async with reading(client, "notifications/prompts/list_changed") as changes:
            weather.remove_prompt("report")
            await asyncio.wait_for(anext(changes), PATIENCE)
            assert (await client.list_prompts()).prompts == []


async def test_disabled_entry_of_a_mounted_server_is_disabled_in_the_parent() -> None:
    main, weather = make(), weather_server()
    main.mount(weather, prefix="sky")

    weather.tools.disable("forecast")
    assert "sky__forecast" in main.tools
    assert not main.tools.enabled("sky__forecast")

    main.tools.disable("sky__forecast")
    weather.tools.enable("forecast")
    assert not main.tools.enabled("sky__forecast")

    main.tools.enable("sky__forecast")
    assert main.tools.enabled("sky__forecast")


async def test_changes_on_threads_are_all_followed() -> None:
    main, weather = make(), make("weather")
    main.mount(weather, prefix="sky")

    def add(start: int) -> None:
        for number in range(start, start + 50):
            weather.add_tool(lambda: "x", name=f"tool{number}")

    threads = [threading.Thread(target=add, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert {entry.key for entry in main.tools} == {f"sky__{entry.key}" for entry in weather.tools}
    assert len(main.tools) == 150


async def test_replaced_entries_appear_in_the_parent() -> None:
    main, weather, other = make(), weather_server(), make("other")
    other.add_tool(lambda: "x", name="fresh")
    main.mount(weather, prefix="sky")

    weather.replace_entries(other)

    assert [entry.key for entry in main.tools] == ["sky__fresh"]
    assert len(main.resources) == len(main.templates) == len(main.prompts) == len(main.completions) == 0


async def test_replaced_entries_include_those_of_mounted_servers() -> None:
    async def life(_: Server) -> AsyncIterator[str]:
        yield "kept"

    def program(*, reloaded: bool) -> Server:
        main, weather, maps, notes = make(), make("weather", lifespan=life), make("maps"), make("notes")

        @weather.tool("new" if reloaded else "old")
        async def value(ctx: Context) -> str:
            return ctx.lifespan

        maps.add_tool(lambda: "x", name="route")
        notes.add_tool(lambda: "x", name="note")
        main.mount(weather, prefix="sky", where=lambda entry: entry.key != "hidden")
        main.mount(notes if reloaded else maps, prefix="more")
        return main

    main = program(reloaded=False)
    async with Client(main) as client:
        assert await names(client) == ["sky__old", "more__route"]
        main.replace_entries(program(reloaded=True))
        assert await names(client) == ["sky__new", "more__note"]
        assert await text(client, "sky__new") == "kept"


async def test_list_change_without_a_changed_entry_reaches_the_parents_clients() -> None:
    main, weather = make(), weather_server()
    main.mount(weather, prefix="sky")

    async with Client(main) as client, reading(client, "notifications/resources/list_changed") as changes:
        weather.notify_list_changed("resources")
        await asyncio.wait_for(anext(changes), PATIENCE)


# --- refusals --------------------------------------------------------------------------------------


async def test_cycle_is_refused() -> None:
    a, b, c = make("a"), make("b"), make("c")
    a.mount(b, prefix="b")
    b.mount(c, prefix="c")

    with pytest.raises(MisuseError, match="server 'a' cannot be mounted in 'c': 'c' -> 'a' -> 'b' -> 'c' is a cycle"):
        c.mount(a, prefix="a")
    with pytest.raises(MisuseError, match="cannot be mounted in 'a': 'a' -> 'a' is a cycle"):
        a.mount(a, prefix="x")


async def test_clash_is_refused_at_mount_time_and_changes_nothing() -> None:
    main = make()
    main.add_tool(lambda: "own", name="forecast")

    with pytest.raises(
        NameClash,
        match="tool 'forecast' of server 'weather', mounted without a prefix clashes with that of this server",
    ):
        main.mount(weather_server())

    assert len(main.resources) == len(main.prompts) == 0
    main.mount(weather_server(), prefix="sky")


async def test_clash_is_refused_when_an_entry_is_added_on_either_side() -> None:
    main, weather, other = make(), make("weather"), make("other")
    top = make("top")
    top.add_tool(lambda: "top", name="all__high")
    top.mount(main, prefix="all")
    main.mount(weather)
    main.mount(other)
    weather.add_tool(lambda: "x", name="rain")

    with pytest.raises(NameClash, match="tool 'rain' of a new one clashes with that of server 'weather'"):
        main.add_tool(lambda: "y", name="rain")
    with pytest.raises(NameClash, match=r"tool 'rain' of server 'other', .* clashes with that of server 'weather'"):
        other.add_tool(lambda: "z", name="rain")
    with pytest.raises(NameClash, match="tool 'all__high' of server 'main', mounted as 'all' clashes"):
        weather.add_tool(lambda: "z", name="high")

    assert "rain" not in other.tools
    assert "high" not in weather.tools
    replacement = make("new")
    replacement.add_tool(lambda: "z", name="rain")
    with pytest.raises(NameClash):
        main.replace_entries(replacement)
    with pytest.raises(NameClash):
        other.replace_entries(replacement)


async def test_invalid_mounts_are_refused() -> None:
    main, weather = make(), weather_server()
    main.mount(weather, prefix="sky")

    with pytest.raises(MisuseError, match="server 'weather' is mounted in 'main' with the prefix 'sky' already"):
        main.mount(weather, prefix="sky")
    with pytest.raises(MisuseError, match="server 'weather' is not mounted in 'main' without a prefix"):
        main.unmount(weather)
    with pytest.raises(MisuseError, match="mount\\(\\) needs a Server, not 'x'"):
        main.mount("x")  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="prefix= consists of letters, digits"):
        main.mount(weather, prefix="a__b")
    with pytest.raises(RegistrationError, match="must be 1 to 128"):
        main.mount(weather, prefix="x" * 120)


# --- the mounted server's own state ------------------------------------------------------------------


@both_eras
async def test_lifespans_are_entered_with_the_parents(revision: str) -> None:
    steps: list[str] = []

    def lifespan(name: str) -> Any:
        async def life(server: Server) -> AsyncIterator[str]:
            assert server.name == name
            steps.append(f"+{name}")
            yield f"value of {name}"
            steps.append(f"-{name}")

        return life

    main, middle, weather = (make(name, lifespan=lifespan(name)) for name in ("main", "middle", "weather"))

    @weather.tool
    @middle.tool("inner")
    @main.tool("outer")
    async def value(ctx: Context) -> str:
        return ctx.lifespan

    middle.mount(weather, prefix="sky")
    main.mount(middle, prefix="mid")
    async with Client(main, revision=revision) as client:
        assert steps == ["+main", "+middle", "+weather"]
        assert await text(client, "outer") == "value of main"
        assert await text(client, "mid__inner") == "value of middle"
        assert await text(client, "mid__sky__value") == "value of weather"
        async with Client(main, revision=revision), Client(weather, revision=revision) as direct:
            assert await text(direct, "value") == "value of weather"
        assert len(steps) == 3
    assert steps[3:] == ["-weather", "-middle", "-main"]


async def test_shutdown_of_the_parent_shuts_down_unused_mounted_servers() -> None:
    steps: list[str] = []

    async def life(_: Server) -> AsyncIterator[None]:
        steps.append("+")
        yield None
        steps.append("-")

    main, other, weather = make(), make("other"), make("weather", lifespan=life)
    weather.on_shutdown(lambda: steps.append("shutdown"))
    main.mount(weather, prefix="a")
    main.mount(weather, prefix="b")
    other.mount(weather)

    await main.start()
    await other.start()
    await main.shutdown()
    assert steps == ["+"]
    await other.shutdown()
    assert steps == ["+", "shutdown", "-"]


async def test_lifespan_lasts_as_long_as_one_parent_uses_it() -> None:
    steps: list[str] = []

    async def life(_: Server) -> AsyncIterator[None]:
        steps.append("+")
        yield None
        steps.append("-")

    first, second, weather = make("first"), make("second"), make("weather", lifespan=life)
    first.mount(weather)
    second.mount(weather)

    async with Client(first):
        async with Client(second):
            pass
        assert steps == ["+"]
    assert steps == ["+", "-"]


async def test_server_with_a_lifespan_is_started_before_it_is_mounted_in_a_running_one() -> None:
    async def life(_: Server) -> AsyncIterator[str]:
        yield "here"

    main, weather = make(tools=True), make("weather", lifespan=life)

    @weather.tool
    async def value(ctx: Context) -> str:
        return ctx.lifespan

    async with Client(main) as client:
        with pytest.raises(MisuseError, match="server 'weather' has a lifespan, and its parent serves"):
            main.mount(weather, prefix="sky")
        assert len(main.tools) == 0
        await weather.start()
        main.mount(weather, prefix="sky")
        assert await text(client, "sky__value") == "here"
        main.unmount(weather, prefix="sky")
    await main.shutdown()
    await weather.shutdown()


async def test_failed_start_of_a_mounted_server_fails_the_parent() -> None:
    async def life(_: Server) -> AsyncIterator[str]:
        raise OSError("no database")
        yield ""

    main = make()
    main.mount(make("weather", lifespan=life), prefix="sky")

    with pytest.raises(OSError, match="no database"):
        await main.start()
    with pytest.raises(OSError, match="no database"):
        async with Client(main):
            pass


@both_eras
async def test_middleware_of_both_runs_the_parents_outside(revision: str) -> None:
    main, middle, weather = make(), make("middle"), weather_server()
    middle.mount(weather, prefix="sky")
    main.mount(middle, prefix="mid")
    seen: list[tuple[str, str, str]] = []

    def record(who: str) -> Any:
        async def middleware(call: Call, next: Any) -> Any:
            seen.append((who, call.method, call.name))
            return await next(call)

        return middleware

    async with Client(main, revision=revision) as client:
        weather.middleware(record("weather"))
        middle.middleware(record("middle"))
        main.middleware(record("main"))

        assert await text(client, "mid__sky__forecast", {"city": "Rome", "days": 2}) == "Rome 2"
        (contents,) = await client.read_resource("notes://mid/sky/day/3")
        assert (contents.uri, contents.text) == ("notes://mid/sky/day/3", "day 3")
        (message,) = (await client.get_prompt("mid__sky__report", {"city": "Rome"})).messages
        assert message.content == TextContent("How is Rome?")
        assert (await client.complete("prompt", "mid__sky__report", "city", "p")).values == ["Paris"]
        assert (await client.complete("resource", "notes://mid/sky/day/{number}", "number")).values == ["1", "2"]
        invalid = await client.call_tool("mid__sky__forecast", {}, raise_on_error=False)
        assert "city" in invalid.text

    assert [who for who, *_ in seen] == ["main", "middle", "weather"] * 6
    assert [(method, name) for who, method, name in seen if who == "weather"] == [
        ("tools/call", "forecast"),
        ("resources/read", "notes://day/3"),
        ("prompts/get", "report"),
        ("completion/complete", "report"),
        ("completion/complete", "notes://day/{number}"),
        ("tools/call", "forecast"),
    ]


async def test_middleware_of_a_mounted_server_may_change_arguments_and_results() -> None:
    main, weather = make(), weather_server()

    @weather.middleware
    async def change(call: Call, next: Any) -> Any:
        if call.method == "prompts/get":
            return await next(replace(call, params=replace(call.params, arguments={"city": "Oslo"})))
        if call.arguments.get("city") == "other":
            return await next(replace(call, params=replace(call.params, name="other")))
        if call.arguments:
            return CallToolResult([TextContent("replaced")], {"result": "replaced"})
        with_city = b'{"city": "Rome", "days": 3}'
        return await next(replace(call, params=replace(call.params, arguments=with_city)))

    main.mount(weather, prefix="sky")
    async with Client(main) as client:
        assert await text(client, "sky__forecast") == "Rome 3"
        assert await text(client, "sky__forecast", {"city": "x"}) == "replaced"
        (message,) = (await client.get_prompt("sky__report", {"city": "Rome"})).messages
        assert message.content == TextContent("How is Oslo?")
        failed = await client.call_tool("sky__forecast", {"city": "other"}, raise_on_error=False)
        assert "has replaced 'forecast' by 'other': it may change the arguments only" in failed.text


async def test_dependencies_and_overrides_belong_to_each_server() -> None:
    def database(ctx: Context) -> str:
        return f"database of {ctx.lifespan}"

    def lifespan(name: str) -> Any:
        async def life(_: Server) -> AsyncIterator[str]:
            yield name

        return life

    main, weather = make(lifespan=lifespan("main")), make("weather", lifespan=lifespan("weather"))

    @main.tool
    @weather.tool
    async def query(db: Annotated[str, Depends(database)]) -> str:
        return db

    main.mount(weather, prefix="sky")
    async with Client(main) as client:
        assert await text(client, "query") == "database of main"
        assert await text(client, "sky__query") == "database of weather"
        with weather.override({database: lambda: "fake"}):
            assert await text(client, "query") == "database of main"
            assert await text(client, "sky__query") == "fake"


async def test_limits_health_checks_and_breakers_are_those_of_the_mounted_server() -> None:
    main, weather = make(), make("weather")
    healthy = True

    @weather.health("database")
    def database() -> bool:
        return healthy

    @weather.tool(requires=["database"], max_concurrency=1, max_result_bytes=1000)
    async def query(ctx: Context) -> str:
        async with ctx.breaker("database"):
            return "found"

    breaker = weather.breaker("database", failures=1)
    main.mount(weather, prefix="sky")
    async with Client(main) as client:
        assert await text(client, "sky__query") == "found"
        healthy = False
        refused = await client.call_tool("sky__query", raise_on_error=False)
        assert "tool 'sky__query' cannot run now: 'database' is not available" in refused.text
    assert breaker.name == "database"


async def test_access_rules_see_the_mounted_server() -> None:
    async def life(_: Server) -> AsyncIterator[set[str]]:
        yield {"open"}

    main, weather = make(), make("weather", lifespan=life)

    @weather.tool("open", allow=lambda ctx: "open" in ctx.lifespan)
    @weather.tool("closed", allow=lambda ctx: "closed" in ctx.lifespan)
    async def query() -> str:
        return "x"

    main.mount(weather, prefix="sky")
    async with Client(main) as client:
        assert await names(client) == ["sky__open"]
        assert await text(client, "sky__open") == "x"
        assert (await client.call_tool("sky__closed", raise_on_error=False)).is_error


# --- results -----------------------------------------------------------------------------------------


@both_eras
async def test_links_in_results_have_the_uris_of_the_parent(revision: str) -> None:
    main, weather = make(), weather_server()
    links = [ResourceLink("notes://today", "today"), ResourceLink("https://example.com/", "page")]

    @weather.tool(thread=False)
    def plain() -> Any:
        return [*links, EmbeddedResource(ResourceContents("notes://day/1", text="x")), TextContent("t")]

    @weather.tool
    def on_thread() -> Any:
        return plain()

    @weather.tool
    async def planned(found: Annotated[Any, Depends(plain)]) -> Any:
        return found

    @weather.prompt
    def linked() -> Any:
        return [PromptMessage("user", links[0]), PromptMessage("user", TextContent("t"))]

    @weather.resource("notes://all")
    def everything() -> Any:
        return ReadResourceResult(
            [ResourceContents(uri, text="x") for uri in ("notes://all", "notes://today", "x://y")]
        )

    main.mount(weather, prefix="sky")
    async with Client(main, revision=revision) as client:
        for name in ("plain", "on_thread", "planned"):
            blocks: list[Any] = (await client.call_tool(f"sky__{name}")).content
            assert [block.uri for block in blocks[:2]] == ["notes://sky/today", "https://example.com/"]
            assert blocks[2].resource.uri == "notes://sky/day/1"
            assert blocks[3] == TextContent("t")
        first: Any = (await client.get_prompt("sky__linked")).messages[0].content
        assert first.uri == "notes://sky/today"
        contents = await client.read_resource("notes://sky/all")
        assert [each.uri for each in contents] == ["notes://sky/all", "notes://sky/today", "x://y"]


# --- subscriptions -------------------------------------------------------------------------------------


@both_eras
async def test_subscriptions_reach_the_mounted_server_and_updates_come_back(revision: str) -> None:
    main, middle, weather = make(), make("middle"), weather_server()
    middle.mount(weather, prefix="sky")
    main.mount(middle, prefix="mid")
    watched: list[str] = []
    weather.on_first_subscriber(lambda uri: watched.append(f"+{uri}"))
    weather.on_last_unsubscribed(lambda uri: watched.append(f"-{uri}"))

    async with Client(main, revision=revision) as client:
        async with reading(client, "notifications/resources/updated") as updates:
            await client.subscribe("notes://mid/sky/today")
            assert watched == ["+notes://today"]
            weather.notify_updated("notes://other")
            weather.notify_updated("notes://today", meta={"version": 2})
            update: Any = await asyncio.wait_for(anext(updates), PATIENCE)
            assert update.params.uri == "notes://mid/sky/today"
            assert update.params.meta["version"] == 2
            await asyncio.to_thread(weather.notify_updated, "notes://today")
            update = await asyncio.wait_for(anext(updates), PATIENCE)
            assert update.params.uri == "notes://mid/sky/today"
        await client.unsubscribe("notes://mid/sky/today")
        await client.ping()
    assert watched == ["+notes://today", "-notes://today"]


async def test_update_of_a_resource_that_is_left_out_is_not_passed_on() -> None:
    main, weather = make(), weather_server()
    weather.add_resource("notes://secret", "x", tags={"secret"})
    main.mount(weather, prefix="sky", where=lambda entry: "secret" not in entry.tags)

    async with Client(main) as client, reading(client, "notifications/resources/updated") as updates:
        await client.subscribe("notes://sky/secret")
        await client.subscribe("notes://sky/today")
        weather.notify_updated("notes://secret")
        weather.notify_updated("no uri")
        weather.notify_updated("notes://today")
        update: Any = await asyncio.wait_for(anext(updates), PATIENCE)
        assert update.params.uri == "notes://sky/today"


@both_eras
async def test_earlier_subscriptions_reach_a_server_that_is_mounted_later(revision: str) -> None:
    main, weather, watched = make(resources=True), weather_server(), asyncio.Queue[str]()
    weather.on_first_subscriber(lambda uri: watched.put_nowait(f"+{uri}"))
    weather.on_last_unsubscribed(lambda uri: watched.put_nowait(f"-{uri}"))

    async with Client(main, revision=revision) as client, reading(client, "notifications/resources/updated") as updates:
        for uri in ("notes://sky/today", "notes://sea/today"):
            await client.subscribe(uri)
        main.mount(weather, prefix="sky")
        assert await asyncio.wait_for(watched.get(), PATIENCE) == "+notes://today"
        weather.notify_updated("notes://today")
        update: Any = await asyncio.wait_for(anext(updates), PATIENCE)
        assert update.params.uri == "notes://sky/today"
        main.unmount(weather, prefix="sky")
        assert await asyncio.wait_for(watched.get(), PATIENCE) == "-notes://today"


async def test_failed_subscription_to_a_later_mount_is_reported() -> None:
    facts = RecordingObserver()
    main, weather, tried = make(resources=True, observers=[facts]), weather_server(), asyncio.Event()

    @weather.on_first_subscriber
    async def fail(_: str) -> None:
        tried.set()
        raise OSError("cannot watch")

    async with Client(main) as client:
        await client.subscribe("notes://today")
        main.mount(weather)
        await asyncio.wait_for(tried.wait(), PATIENCE)
    await main.shutdown()
    (failure,) = facts.of(HandlerFailed)
    assert (failure.method, str(failure.error)) == ("the subscriptions to a mounted server", "cannot watch")


async def test_subscriptions_end_with_the_mount() -> None:
    main, weather = make(), weather_server()
    main.mount(weather, prefix="sky")

    async with Client(main) as client, reading(client, "notifications/resources/updated") as updates:
        await client.subscribe("notes://sky/today")
        main.unmount(weather, prefix="sky")
        weather.notify_updated("notes://today")
        main.notify_updated("notes://sky/today", meta={"last": True})
        update: Any = await asyncio.wait_for(anext(updates), PATIENCE)
        assert update.params.meta["last"]


async def test_files_of_a_mounted_server_are_read_and_listed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    main, weather = make(), make("weather")
    weather.add_directory("files://{+path}", tmp_path)
    weather.add_file("file://a", tmp_path / "a.txt")
    main.mount(weather, prefix="sky")

    async with Client(main) as client:
        listed = (await client.list_resources()).resources
        assert [resource.uri for resource in listed] == ["file://sky/a", "files://sky/a.txt"]
        for uri in ("file://sky/a", "files://sky/a.txt"):
            (contents,) = await client.read_resource(uri)
            assert (contents.uri, contents.text) == (uri, "alpha")
        with pytest.raises(PeerError):
            await client.read_resource("files://sky/../a.txt")
    await main.shutdown()


async def test_changed_file_of_a_mounted_server_reaches_the_parents_subscribers(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("alpha")
    main, weather = make(), make("weather", settings=Settings(file_poll_interval=0.01))
    weather.add_file("file://a", file)
    main.mount(weather, prefix="sky")

    async with Client(main) as client, reading(client, "notifications/resources/updated") as updates:
        await client.subscribe("file://sky/a")
        file.write_text("another text")
        update: Any = await asyncio.wait_for(anext(updates), PATIENCE)
        assert update.params.uri == "file://sky/a"
    await main.shutdown()


async def test_roots_change_reaches_the_mounted_server() -> None:
    async def life(_: Server) -> AsyncIterator[str]:
        yield "weather"

    main, weather, heard = make(), make("weather", lifespan=life), asyncio.Queue[Any]()

    @weather.on_roots_changed
    async def changed(ctx: Context) -> None:
        heard.put_nowait(ctx.lifespan)

    main.mount(weather, prefix="sky")
    async with Client(main, revision="2025-11-25", roots=["file:///a"]) as client:
        await client.set_roots(["file:///b"])
        assert await asyncio.wait_for(heard.get(), PATIENCE) == "weather"


# --- tasks -------------------------------------------------------------------------------------------


@both_eras
async def test_mounted_tool_runs_as_a_task(revision: str) -> None:
    async def life(_: Server) -> AsyncIterator[str]:
        yield "weather"

    main, weather = make(), make("weather", lifespan=life)
    seen: list[str] = []

    @weather.tool(task=True)
    async def long(number: int, ctx: Context) -> str:
        await ctx.progress(1)
        return f"{number} in {ctx.lifespan}"

    @weather.middleware
    async def record(call: Call, next: Any) -> Any:
        seen.append(call.name)
        return await next(call)

    main.mount(weather, prefix="sky")
    async with Client(main, revision=revision) as client:
        task = await client.start_tool("sky__long", {"number": 3})
        assert (await asyncio.wait_for(task.result(), PATIENCE)).text == "3 in weather"
    assert seen == ["long"]


async def test_task_of_a_mounted_tool_uses_the_parents_store(tmp_path: Path) -> None:
    main, weather = make(store=SqliteStore(tmp_path / "store")), make("weather")

    @weather.tool(task=True)
    async def long(number: int) -> int:
        return number + 1

    main.mount(weather, prefix="sky")
    async with Client(main) as client:
        task = await client.start_tool("sky__long", {"number": 3})
        assert (await asyncio.wait_for(task.result(), PATIENCE)).data == 4
    await main.shutdown()


# --- tags and filters --------------------------------------------------------------------------------


@both_eras
async def test_entries_are_enabled_and_disabled_by_tag_and_name(revision: str) -> None:
    server = make()
    server.add_tool(lambda: "x", name="wipe", tags={"admin"})
    server.add_tool(lambda: "x", name="look")
    server.add_resource("x://secret", "x", tags=["admin"])
    server.add_resource("x://{name}", lambda name: name, tags={"admin"})
    server.add_prompt("hello", name="hello", tags={"admin", "b"})
    server.disable(tags={"admin"})

    async with Client(server, revision=revision) as client:
        assert await names(client) == ["look"]
        assert (await client.list_resources()).resources == []
        assert (await client.list_resource_templates()).resource_templates == []
        assert (await client.list_prompts()).prompts == []
        async with reading(client, "notifications/tools/list_changed") as changes:
            server.enable(tags={"admin"})
            await asyncio.wait_for(anext(changes), PATIENCE)
            assert await names(client) == ["wipe", "look"]
            server.disable(names={"look", "x://secret"})
            await asyncio.wait_for(anext(changes), PATIENCE)
            assert await names(client) == ["wipe"]
        assert (await client.list_resources()).resources == []
        (tool,) = (await client.list_tools()).tools
        assert tool.meta == {"trunkline/tags": ["admin"]}
        (prompt,) = (await client.list_prompts()).prompts
        assert prompt.meta == {"trunkline/tags": ["admin", "b"]}


async def test_switches_apply_to_entries_that_are_added_later() -> None:
    main, weather = make(), make("weather")
    main.mount(weather, prefix="sky")
    main.disable(tags={"admin"})
    main.disable(names={"sky__named"})

    weather.add_tool(lambda: "x", name="wipe", tags={"admin"})
    weather.add_tool(lambda: "x", name="named")
    weather.add_tool(lambda: "x", name="look")
    main.add_tool(lambda: "x", name="own", tags={"admin"})
    assert [entry.key for entry in main.tools] == ["sky__look"]
    assert len(weather.tools.live) == 3

    main.enable(tags={"admin"})
    main.add_tool(lambda: "x", name="later", tags={"admin"})
    main.add_tool(lambda: "x", name="off", tags={"admin"}, enabled=False)
    assert [entry.key for entry in main.tools] == ["sky__wipe", "sky__look", "own", "later"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"disable\(\) needs tags= or names="),
        ({"tags": "admin"}, "tags= is a set of texts; write tags={'admin'}"),
        ({"names": "wipe"}, "names= is a set of texts; write names={'wipe'}"),
    ],
)
def test_invalid_switch_is_refused(options: Any, message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        make().disable(**options)


@pytest.mark.parametrize("tags", ["admin", [1], [""]])
def test_invalid_tags_are_refused(tags: Any) -> None:
    with pytest.raises(RegistrationError, match=r"tags must be a set of texts|a tag is a text"):
        make().add_tool(lambda: "x", name="x", tags=tags)


async def test_filter_selects_the_entries_of_a_mount() -> None:
    main, weather = make(), weather_server()
    main.mount(weather, prefix="sky", where=lambda entry: "public" in entry.tags)
    assert len(main.tools) == len(main.completions) == 0

    weather.add_tool(lambda: "x", name="open", tags={"public"})
    weather.add_tool(lambda: "x", name="closed")

    assert [entry.key for entry in main.tools.all()] == ["sky__open"]


async def test_completer_follows_its_target() -> None:
    main, weather = make(), make("weather")
    main.mount(weather, prefix="sky", where=lambda entry: "hidden" not in entry.tags)
    weather.add_completion(["x"], argument="a", tool="later")
    assert [entry.key for entry in main.completions] == ["tool sky__later a"]

    weather.add_tool(lambda a: a, name="later", tags={"hidden"})

    assert len(main.completions) == 0


# --- versions ----------------------------------------------------------------------------------------


@both_eras
async def test_highest_version_is_listed_and_called_and_others_are_reachable(revision: str) -> None:
    main, weather = make(), make("weather")

    for version in ("1.9", "1.10", "1.2", "2.0-rc1"):
        weather.add_tool(lambda version=version: version, name="forecast", version=version)
    main.mount(weather, prefix="sky")

    async with Client(main, revision=revision) as client:
        assert await names(client) == ["sky__forecast"]
        assert await text(client, "sky__forecast") == "2.0-rc1"
        assert await text(client, "sky__forecast.v1.9") == "1.9"
        assert await text(client, "sky__forecast.v2.0-rc1") == "2.0-rc1"
        weather.add_tool(lambda: "2.0", name="forecast", version="2.0")
        assert await text(client, "sky__forecast") == "2.0"
        assert await text(client, "sky__forecast.v2.0-rc1") == "2.0-rc1"
        weather.tools.disable("forecast")
        assert (await client.call_tool("sky__forecast", raise_on_error=False)).is_error
        with pytest.raises(PeerError, match="there is no tool named"):
            await client.call_tool("sky__forecast.v1.9")
