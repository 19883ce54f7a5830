"""A gateway with backends in this process."""

import asyncio
import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.limits import PATIENCE
from tests.unit.gateway.gateways import QUICK, Switchable, make_gateway, make_server, tool_names, until, until_state

from trunkline import BackendOptions, BackendState, Client, Context, PeerError, Server
from trunkline.auth import Principal, ResourceServer, StaticTokens
from trunkline.errors import ConfigError, MisuseError, NotRegistered, TrunklineError
from trunkline.testing import ScriptedServer, serve_http

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_backends_are_served_under_their_prefixes(tmp_path: Path, revision: str) -> None:
    servers = {"weather": make_server(), "climate": make_server("other")}
    gateway = make_gateway(tmp_path, servers, options={"climate": {"prefix": "c"}})
    async with Client(gateway.server, revision=revision) as client:
        assert await tool_names(client) == ["c__forecast", "weather__forecast"]
        assert (await client.call_tool("c__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
        assert {one.name for one in (await client.list_prompts()).prompts} == {"weather__advise", "c__advise"}
        found = {one.uri for one in (await client.list_resources()).resources}
        assert found == {"weather://weather/today", "weather://c/today"}
        assert (await client.read_resource("weather://c/today"))[0].text == "sunny"


async def test_failing_backend_is_marked_until_it_is_restarted(tmp_path: Path) -> None:
    broken = Switchable(make_server(), on=False)
    gateway = make_gateway(tmp_path, {"good": make_server(), "broken": broken})
    async with Client(gateway.server) as client:
        await until_state(gateway, "broken", BackendState.DEGRADED)
        assert broken.attempts == 6
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["good__forecast"]
        states = {"good": {"state": "ready"}, "broken": {"state": "degraded"}}
        assert (listed.meta or {})["trunkline/backends"] == states
        components = (await gateway.server.check_health()).components
        assert components["backend good"].usable
        assert components["backend broken"].state.value == "unhealthy"
        assert not components["backend broken"].critical
        assert "server/backends/broken is degraded" in components["supervision"].reason
        broken.on = True
        gateway.restart("broken")
        await until_state(gateway, "broken", BackendState.READY)
        assert await tool_names(client) == ["broken__forecast", "good__forecast"]
        assert gateway.backends["broken"].reason == ""


async def test_backend_that_starts_late_appears_with_a_notification(tmp_path: Path) -> None:
    late, changed = Switchable(make_server(), on=False), asyncio.Event()
    gateway = make_gateway(tmp_path, {"late": late}, settings=replace(QUICK, restart_intensity=1000))
    async with Client(gateway.server) as client:
        client.on("notifications/tools/list_changed", lambda _: changed.set())
        assert await tool_names(client) == []
        late.on = True
        async with asyncio.timeout(PATIENCE):
            await changed.wait()
        assert await tool_names(client) == ["late__forecast"]


async def test_lost_connections_count_and_degrade_the_backend(tmp_path: Path) -> None:
    unsteady = Switchable(make_server())
    gateway = make_gateway(tmp_path, {"unsteady": unsteady})
    async with Client(gateway.server) as client:
        for restarts in range(1, 6):
            await until_state(gateway, "unsteady", BackendState.READY)
            await unsteady.cut()
            await until(lambda restarts=restarts: gateway.backends["unsteady"].restarts == restarts)
        await until_state(gateway, "unsteady", BackendState.READY)
        await unsteady.cut()
        await until_state(gateway, "unsteady", BackendState.DEGRADED)
        with pytest.raises(PeerError) as refused:
            await client.call_tool("unsteady__forecast", {"city": "Bonn"}, timeout=2)
        assert refused.value.data["kind"] == "temporarily_unavailable"


async def test_clients_do_not_learn_the_reasons_of_failures(tmp_path: Path) -> None:
    broken = Switchable(make_server())
    gateway = make_gateway(tmp_path, {"broken": broken})
    async with Client(gateway.server) as client:
        broken.on = False
        await broken.cut()
        await until(lambda: "secret" in gateway.backends["broken"].reason)
        with pytest.raises(PeerError) as refused:
            await client.call_tool("broken__forecast", {"city": "Bonn"}, timeout=1)
        assert "secret" not in str(refused.value) + str((await client.list_tools()).meta)


async def test_hung_backend_delays_only_the_first_lists_and_not_for_long(tmp_path: Path) -> None:
    hung = ScriptedServer()
    gateway = make_gateway(tmp_path, {"hung": hung, "good": make_server()}, list_wait=0.2)
    async with Client(gateway.server) as client:
        assert await tool_names(client) == ["good__forecast"]
        assert gateway.backends["hung"].state is BackendState.STARTING
        assert (await client.call_tool("good__forecast", {"city": "Bonn"})).data == "Sun in Bonn."


async def test_hung_backend_fails_after_its_start_timeout(tmp_path: Path) -> None:
    options = {"hung": BackendOptions(start_timeout=0.05)}
    gateway = make_gateway(tmp_path, {"hung": ScriptedServer()}, options=options)
    async with Client(gateway.server):
        await until_state(gateway, "hung", BackendState.FAILING, BackendState.DEGRADED)
        assert "0.05 s" in gateway.backends["hung"].reason


async def test_restart_replaces_a_connection_that_works(tmp_path: Path) -> None:
    target = Switchable(make_server())
    gateway = make_gateway(tmp_path, {"weather": target, "bad": {"command": "${SURELY_NOT_SET}"}})
    async with Client(gateway.server) as client:
        await tool_names(client)
        gateway.restart("weather")
        await until(lambda: target.attempts == 2)
        assert (await client.call_tool("weather__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
        with pytest.raises(MisuseError, match="refused"):
            gateway.restart("bad")
        with pytest.raises(NotRegistered):
            gateway.restart("unknown")


async def test_backend_that_answers_with_status_500_is_marked(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    gateway = make_gateway(tmp_path, {"bad": f"http://127.0.0.1:{port}/mcp", "good": make_server()})
    async with listening, Client(gateway.server) as client:
        await until_state(gateway, "bad", BackendState.FAILING, BackendState.DEGRADED)
        assert "500" in gateway.backends["bad"].reason
        assert await tool_names(client) == ["good__forecast"]


async def test_entry_that_cannot_be_offered_does_not_take_the_others_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("fine", "not a name", "x" * 128)]
    odd = ScriptedServer(capabilities={"tools": {}, "resources": {}}, tools=tools, patience=PATIENCE)
    gateway = make_gateway(tmp_path, {"odd": odd})
    async with Client(gateway.server) as client:
        listing = asyncio.create_task(tool_names(client))
        line = await odd.connected(1)
        resources = [{"uri": "today", "name": "no scheme"}, {"uri": "note://a", "name": "a"}]
        line.reply(await line.request("resources/list"), {"resources": resources})
        templates = [{"uriTemplate": "note://{a}{b}", "name": "ambiguous"}, {"uriTemplate": "note://{a}", "name": "a"}]
        line.reply(await line.request("resources/templates/list"), {"resourceTemplates": templates})
        assert await listing == ["odd__fine"]
        await until_state(gateway, "odd", BackendState.READY)
        assert [one.uri for one in (await client.list_resources()).resources] == ["note://odd/a"]
        found = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in found] == ["note://odd/{a}"]
    assert any("names cannot be offered: not a name" in record.getMessage() for record in caplog.records)


# --- options -----------------------------------------------------------------------------------


async def test_filters_choose_entries_by_name_and_tag(tmp_path: Path) -> None:
    server = Server("tools")
    for name, tags in (("read_file", ["read"]), ("read_mail", ["read", "private"]), ("write_file", [])):
        server.add_tool(lambda: "done", name=name, tags=tags)
    options = {"one": {"include": ["tag:read"], "exclude": ["*_mail"]}, "two": {"exclude": ["tag:read"]}}
    gateway = make_gateway(tmp_path, {"one": server, "two": server}, options=options)
    async with Client(gateway.server) as client:
        assert await tool_names(client) == ["one__read_file", "two__write_file"]
        with pytest.raises(PeerError):
            await client.call_tool("one__write_file")


async def test_bulkhead_refuses_requests_beyond_its_queue(tmp_path: Path) -> None:
    server, running, end = Server("slow"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def work() -> str:
        running.set()
        await end.wait()
        return "done"

    options = {"slow": {"max_concurrency": 1, "max_queue": 1}}
    gateway = make_gateway(tmp_path, {"slow": server, "good": make_server()}, options=options)
    async with Client(gateway.server) as client:
        first = asyncio.create_task(client.call_tool("slow__work"))
        await until(running.is_set)
        second = asyncio.create_task(client.call_tool("slow__work"))
        await asyncio.sleep(0)
        with pytest.raises(PeerError, match="backend 'slow' is busy"):
            await client.call_tool("slow__work", timeout=2)
        assert (await client.call_tool("good__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
        end.set()
        assert [(await one).data for one in (first, second)] == ["done", "done"]


async def test_deadline_of_a_backend_cancels_the_call_there_and_opens_its_breaker(tmp_path: Path) -> None:
    server, cancelled = Server("slow"), asyncio.Event()

    @server.tool
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    options = {"slow": {"timeout": 0.05, "breaker": {"failures": 2, "window": 100}}}
    gateway = make_gateway(tmp_path, {"slow": server}, options=options)
    async with Client(gateway.server) as client:
        for _ in range(2):
            assert (await client.call_tool("slow__work", raise_on_error=False)).is_error
        async with asyncio.timeout(PATIENCE):
            await cancelled.wait()
        refused = await client.call_tool("slow__work", raise_on_error=False)
        assert "circuit breaker is open" in refused.text
        components = (await gateway.server.check_health()).components
        assert components["backend slow"].state.value == "unhealthy"


async def test_lazy_backend_starts_with_its_first_call_once_its_lists_are_known(tmp_path: Path) -> None:
    target = Switchable(make_server())
    for attempts in (1, 1):
        gateway = make_gateway(tmp_path, {"lazy": target}, options={"lazy": {"lazy": True}})
        async with Client(gateway.server) as client:
            assert await tool_names(client) == ["lazy__forecast"]
            assert target.attempts == attempts
    assert gateway.backends["lazy"].state is BackendState.STOPPED
    gateway = make_gateway(tmp_path, {"lazy": target}, options={"lazy": {"lazy": True}})
    async with Client(gateway.server) as client:
        assert gateway.backends["lazy"].state is BackendState.IDLE
        assert (await client.call_tool("lazy__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
        assert gateway.backends["lazy"].state is BackendState.READY
        assert target.attempts == 2


async def test_lists_come_from_the_cache_while_a_backend_starts(tmp_path: Path) -> None:
    target = Switchable(make_server())
    async with Client(make_gateway(tmp_path, {"slow": target}).server) as client:
        assert await tool_names(client) == ["slow__forecast"]
    target.on = False
    gateway = make_gateway(tmp_path, {"slow": target})
    async with Client(gateway.server) as client:
        assert await tool_names(client) == ["slow__forecast"]
        assert [one.name for one in (await client.list_prompts()).prompts] == ["slow__advise"]
        target.on = True
        gateway.restart("slow")
        assert (await client.call_tool("slow__forecast", {"city": "Bonn"})).data == "Sun in Bonn."


@pytest.mark.parametrize(
    ("servers", "options", "message"),
    [
        ({"a": {"command": "x", "trunkline": {"timeuot": 1}}}, {}, "no option 'timeuot'.*timeout"),
        ({"a": {"command": "x", "trunkline": {"timeout": "soon"}}}, {}, "backend 'a'.*timeout"),
        ({"a": {"command": "x", "trunkline": {"max_concurrency": 0}}}, {}, "1 or more, not 0"),
        ({"a": {"command": "x", "trunkline": 5}}, {}, "not a JSON object"),
        ({"a": {"command": "x"}, "b": {"command": "x", "trunkline": {"prefix": "A"}}}, {}, "same prefix"),
        ({"a": {"command": "x", "trunkline": {"prefix": "a b"}}}, {}, "backend 'a'"),
        ({"a": {"command": "x"}}, {"options": {"b": {}}}, "backend 'b' is not registered"),
        (5, {}, "a gateway takes a file"),
    ],
)
def test_unusable_configuration_is_refused_at_once(tmp_path: Path, servers: Any, options: Any, message: str) -> None:
    with pytest.raises((ConfigError, NotRegistered, MisuseError), match=message):
        make_gateway(tmp_path, servers, **options)


async def test_backend_with_a_missing_variable_is_refused_and_the_others_are_served(tmp_path: Path) -> None:
    servers = {"good": make_server(), "bad": {"command": "x", "args": ["${SURELY_NOT_SET}"]}}
    gateway = make_gateway(tmp_path, servers)
    async with Client(gateway.server) as client:
        assert await tool_names(client) == ["good__forecast"]
        assert gateway.backends["bad"].state is BackendState.REFUSED
        assert "SURELY_NOT_SET" in gateway.backends["bad"].reason


# --- principals --------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_principals_have_connections_of_their_own_to_a_backend(tmp_path: Path, revision: str) -> None:
    seen: dict[str, set[str]] = {"ann-token": set(), "bob-token": set()}
    auth = ResourceServer(StaticTokens({"ann-token": Principal("ann"), "bob-token": Principal("bob")}))
    server, users = Server("notes"), dict[str, list[str]]()

    @server.tool
    async def note(text: str, ctx: Context) -> list[str]:
        own = users.setdefault(str(ctx.session_id or id(ctx.request)), [])
        own.append(text)
        return own

    del note
    target = Switchable(server)
    gateway = make_gateway(tmp_path, {"notes": target}, auth=auth)
    with serve_http(gateway.server) as url:
        for token, own in seen.items():
            async with Client(url, auth=token, revision=revision) as client:
                for number in range(2):
                    own.update((await client.call_tool("notes__note", {"text": f"{token} {number}"})).data)
    assert all(text.startswith(token) for token, texts in seen.items() for text in texts)
    assert target.attempts == 3  # the catalog, and one for each principal


async def test_file_names_the_variables_with_the_tokens_of_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANN_TOKEN", "token-of-ann")
    config = {"mcpServers": {}, "trunkline": {"auth": {"tokens": {"ann": "ANN_TOKEN"}}}}
    with serve_http(make_gateway(tmp_path, config).server) as url:
        with pytest.raises(TrunklineError):
            async with Client(url, auth="another-token"):
                pass
        async with Client(url, auth="token-of-ann") as client:
            assert await tool_names(client) == []


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        ({}, "needs an `issuer`"),
        ({"tokens": {"ann": "SURELY_NOT_SET"}}, "SURELY_NOT_SET, which is not set"),
        ({"tokens": {"ann": "PATH", "bob": "PATH"}}, "have the same token"),
        ({"issuer": "http://example.org"}, "issuer"),
        ({"isuser": "x"}, "isuser"),
    ],
)
def test_unusable_authentication_is_refused_at_once(tmp_path: Path, auth: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_gateway(tmp_path, {"mcpServers": {}, "trunkline": {"auth": auth}})


async def test_shared_backend_has_one_connection_for_all_principals(tmp_path: Path) -> None:
    auth = ResourceServer(StaticTokens({"ann-token": Principal("ann"), "bob-token": Principal("bob")}))
    target = Switchable(make_server())
    gateway = make_gateway(tmp_path, {"one": target}, auth=auth, options={"one": {"shared": True}})
    with serve_http(gateway.server) as url:
        for token in ("ann-token", "bob-token"):
            async with Client(url, auth=token) as client:
                assert (await client.call_tool("one__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
    assert target.attempts == 1


async def test_token_of_a_client_does_not_reach_a_backend(tmp_path: Path) -> None:
    behind, headers = Server("behind"), list[Any]()

    @behind.tool
    async def look(ctx: Context) -> None:
        headers.append(dict(ctx.request.headers) if ctx.request is not None else {})

    del look
    auth = ResourceServer(StaticTokens({"front-token": Principal("ann")}))
    with serve_http(behind) as address:
        servers = {"a": {"url": address, "headers": {"x-key": "for a"}}, "b": {"url": address}}
        gateway = make_gateway(tmp_path, servers, auth=auth)
        with serve_http(gateway.server) as url:
            async with Client(url, auth="front-token") as client:
                await client.call_tool("a__look")
                await client.call_tool("b__look")
    assert [one.get("x-key") for one in headers] == ["for a", None]
    assert "front-token" not in str(headers)


# --- reloading ---------------------------------------------------------------------------------


async def test_reload_keeps_unchanged_backends_connected(tmp_path: Path) -> None:
    same, changed, removed, added = (Switchable(make_server()) for _ in range(4))
    gateway = make_gateway(tmp_path, {"same": same, "changed": changed, "removed": removed})
    async with Client(gateway.server) as client:
        await client.list_tools()
        await gateway.reload({"same": same, "changed": {"command": "no-such-program"}, "added": added})
        await until_state(gateway, "added", BackendState.READY)
        assert await tool_names(client) == ["added__forecast", "same__forecast"]
        assert (await client.call_tool("same__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
        assert [one.attempts for one in (same, changed, removed, added)] == [1, 1, 1, 1]
        assert [*gateway.backends] == ["same", "changed", "added"]
        with pytest.raises(ConfigError):
            await gateway.reload({"same": {"command": 5}})
        assert await tool_names(client) == ["added__forecast", "same__forecast"]


async def test_call_to_a_removed_backend_finishes(tmp_path: Path) -> None:
    server, running, end = Server("slow"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def work() -> str:
        running.set()
        await end.wait()
        return "done"

    del work
    gateway = make_gateway(tmp_path, {"slow": server})
    async with Client(gateway.server) as client:
        calling = asyncio.create_task(client.call_tool("slow__work"))
        await until(running.is_set)
        reloading = asyncio.create_task(gateway.reload({}))
        await until(lambda: not gateway.backends)
        end.set()
        assert (await calling).data == "done"
        await reloading
        assert await tool_names(client) == []


async def test_reload_refuses_a_backend_whose_command_is_no_longer_allowed(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-c", "pass"]}
    gateway = make_gateway(tmp_path, {"mcpServers": {"one": entry}})
    async with Client(gateway.server):
        assert gateway.backends["one"].state is not BackendState.REFUSED
        await gateway.reload({"mcpServers": {"one": entry}, "trunkline": {"commands": ["uvx"]}})
        assert gateway.backends["one"].state is BackendState.REFUSED
        await gateway.reload({"mcpServers": {"one": entry}})
        assert gateway.backends["one"].state is not BackendState.REFUSED


async def test_gateway_can_be_started_again(tmp_path: Path) -> None:
    gateway = make_gateway(tmp_path, {"weather": make_server()})
    for _ in range(2):
        async with Client(gateway.server) as client:
            assert await tool_names(client) == ["weather__forecast"]
            assert (await client.call_tool("weather__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
    before = asyncio.all_tasks()
    await gateway.server.start()
    await gateway.wait_settled()
    await gateway.server.aclose()
    assert asyncio.all_tasks() == before


async def test_shutdown_lets_running_calls_finish(tmp_path: Path) -> None:
    server, running, end = Server("slow"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def work() -> str:
        running.set()
        await end.wait()
        return "done"

    del work
    gateway, stopping = make_gateway(tmp_path, {"slow": server}), asyncio.Event()
    await gateway.server.start()
    gateway.server.on_stopping(stopping.set)
    async with Client(gateway.server) as client:
        calling = asyncio.create_task(client.call_tool("slow__work"))
        await until(running.is_set)
        ending = asyncio.create_task(gateway.server.shutdown())
        await until(lambda: stopping.is_set() and gateway.backends["slow"].state is not BackendState.READY)
        end.set()
        assert (await calling).data == "done"
        assert await ending == ()


async def test_backend_whose_configuration_breaks_before_the_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_PROGRAM", "some-program")
    servers = {"good": make_server(), "bad": {"command": "${GATEWAY_PROGRAM}"}}
    gateway = make_gateway(tmp_path, servers, options={"bad": {"timeout": 5}})
    monkeypatch.delenv("GATEWAY_PROGRAM")
    async with Client(gateway.server) as client:
        assert await tool_names(client) == ["good__forecast"]
        assert gateway.backends["bad"].state is BackendState.REFUSED
        await gateway.reload({"good": make_server()})  # options of a backend that is gone do not matter
        assert [*gateway.backends] == ["good"]


async def test_reload_keeps_nothing_of_removed_backends(tmp_path: Path) -> None:
    gateway = make_gateway(tmp_path, {})
    async with Client(gateway.server) as client:
        removed: list[weakref.ref[Switchable]] = []
        for _ in range(3):
            target = Switchable(make_server())
            removed.append(weakref.ref(target))
            await gateway.reload({"one": target})
            await until_state(gateway, "one", BackendState.READY)
            assert (await client.call_tool("one__forecast", {"city": "Bonn"})).data == "Sun in Bonn."
        del target
        await gateway.reload({})
        gc.collect()
        assert sum(one() is not None for one in removed) <= 1  # the last one, until the next reload
