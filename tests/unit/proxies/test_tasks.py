"""Tasks through proxies, mounted proxies and gateways, in all pairs of eras."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.modern import enveloped
from tests.unit.gateway.gateways import make_gateway
from tests.unit.proxies.test_eras import HANDSHAKE, MODERN, PAIRS, Pair, Teapot

from trunkline import Call, Client, Context, Next, Server, Settings, TaskPolicy, proxy
from trunkline.client.tasks.handle import Task
from trunkline.errors import PeerError, TaskCancelled, ToolFailed
from trunkline.protocol.types import ProgressParams
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import RawPeer, ScriptedServer

QUICK = Settings(task_poll_interval=0.05, stop_timeout=2.0)
EXTENSION = "io.modelcontextprotocol/tasks"
SUPPORT = "trunkline/task-support"


class Behind:
    """A server with tools that run as tasks, and what has happened to them."""

    def __init__(self) -> None:
        self.server = Server("behind", settings=QUICK)
        self.released = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.runs = 0
        tool = self.server.tool

        @tool(task=TaskPolicy("optional", poll_interval=0.05))
        async def work(ctx: Context) -> str:
            self.runs += 1
            ctx.progress(1, 2, "half")
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "worked"

        @tool(task=TaskPolicy("required", poll_interval=0.05))
        async def must() -> str:
            return "done"

        @tool(task=TaskPolicy("optional", poll_interval=0.05))
        async def ask(ctx: Context) -> str:
            answer = await ctx.elicit("How many?", int)
            return f"{answer.action} {answer.data}"

        @tool(task=TaskPolicy("optional", poll_interval=0.05))
        async def fail(teapot: bool = True) -> str:
            if teapot:
                raise Teapot("short and stout", data={"handle": 1})
            raise ValueError("no")

        @tool
        async def quick() -> str:
            return "at once"

        del work, must, ask, fail, quick


def make_front(way: str, target: Any, behind: str, folder: Path) -> tuple[Server, str]:
    """Put something in front of a server; return it, and the prefix of its tools."""
    if way == "gateway":
        return make_gateway(folder, {"far": target}, settings=QUICK).server, "far__"
    front = proxy(target, name="proxy", revision=behind, settings=QUICK)
    if way == "proxy":
        return front, ""
    parent = Server("parent", settings=QUICK)
    parent.mount(front, prefix="far")
    return parent, "far__"


ROUTES = [(way, pair) for way in ("proxy", "mounted") for pair in PAIRS] + [
    ("gateway", (front, MODERN)) for front in (HANDSHAKE, MODERN)
]


@pytest.fixture(params=ROUTES, ids=lambda route: f"{route[0]}-{route[1][0]}-to-{route[1][1]}")
def route(request: pytest.FixtureRequest) -> tuple[str, Pair]:
    return request.param


def patient(task: "Task[Any]") -> Any:
    return task.result(timeout=PATIENCE)


async def test_task_passes_with_its_progress_and_result(route: tuple[str, Pair], tmp_path: Path) -> None:
    (way, (era, behind)), target, progress = route, Behind(), asyncio.Queue[ProgressParams]()
    front, prefix = make_front(way, target.server, behind, tmp_path)
    async with asyncio.timeout(PATIENCE), Client(front, revision=era) as client:
        task = await client.start_tool(f"{prefix}work", on_progress=progress.put_nowait)
        assert task.id
        polling = asyncio.create_task(patient(task))
        seen = await progress.get()
        assert (seen.progress, seen.total, seen.message) == (1, 2, "half")
        assert await client.task(task.id).refresh() == "working"
        target.released.set()
        assert (await polling).text == "worked"
        assert (await patient(await client.start_tool(f"{prefix}must"))).text == "done"
        assert (await client.call_tool(f"{prefix}quick")).text == "at once"
    assert target.runs == 1


async def test_questions_of_a_task_reach_the_client(route: tuple[str, Pair], tmp_path: Path) -> None:
    way, (era, behind) = route
    front, prefix = make_front(way, Behind().server, behind, tmp_path)
    async with Client(front, revision=era, elicitation=lambda _: {"value": 7}) as client:
        assert (await patient(await client.start_tool(f"{prefix}ask"))).text == "accept 7"


async def test_cancelled_task_is_cancelled_behind(route: tuple[str, Pair], tmp_path: Path) -> None:
    (way, (era, behind)), target = route, Behind()
    front, prefix = make_front(way, target.server, behind, tmp_path)
    async with asyncio.timeout(PATIENCE), Client(front, revision=era) as client:
        task = await client.start_tool(f"{prefix}work")
        while not target.runs:
            await task.refresh()
        await task.cancel()
        assert task.status == "cancelled"
        await target.cancelled.wait()


async def test_errors_of_a_task_keep_their_codes_and_data(route: tuple[str, Pair], tmp_path: Path) -> None:
    (way, (era, behind)), target = route, Behind()
    front, prefix = make_front(way, target.server, behind, tmp_path)
    async with Client(front, revision=era) as client, Client(target.server, revision=behind) as direct:
        errors: list[PeerError] = []
        for called, name in ((client, f"{prefix}fail"), (direct, "fail")):
            with pytest.raises(PeerError) as raised:
                await patient(await called.start_tool(name))
            errors.append(raised.value)
        through, at_once = ((one.code, one.message, one.data) for one in errors)
        assert through == at_once
        assert errors[0].code == 418
        with pytest.raises(ToolFailed, match="no"):
            await patient(await client.start_tool(f"{prefix}fail", {"teapot": False}))


async def test_task_support_is_listed_in_the_terms_of_each_era(route: tuple[str, Pair], tmp_path: Path) -> None:
    way, (era, behind) = route
    front, prefix = make_front(way, Behind().server, behind, tmp_path)
    async with Client(front, revision=era) as client:
        await client.list_tools()
        tools = {tool.name.removeprefix(prefix): tool for tool in (await client.list_tools()).tools}
        capabilities = client.capabilities
    other = None if behind == HANDSHAKE else "optional"  # in the modern era a tool does not say that it is no task
    wanted = {"work": "optional", "must": "required", "quick": other}
    if era == HANDSHAKE:
        listed = {name: tools[name].execution and tools[name].execution.task_support for name in wanted}
        assert capabilities["tasks"]["requests"] == {"tools": {"call": {}}}
    else:
        listed = {name: (tools[name].meta or {}).get(SUPPORT) for name in wanted}
        assert EXTENSION in capabilities["extensions"]
        assert all(tool.execution is None for tool in tools.values())
    assert listed == wanted


async def test_proxy_of_a_server_without_tasks_declares_none() -> None:
    server = Server("behind")

    @server.tool
    async def quick() -> str:
        return "at once"

    async with Client(proxy(server), revision=HANDSHAKE) as client:
        assert "tasks" not in client.capabilities
        assert (await client.list_tools()).tools[0].execution is None
    async with Client(proxy(server)) as client:
        assert EXTENSION not in client.capabilities.get("extensions", {})


@pytest.mark.parametrize("behind", [HANDSHAKE, MODERN])
async def test_tool_that_requires_a_task_is_refused_without(behind: str) -> None:
    front = proxy(Behind().server, revision=behind)
    async with RawPeer(front, patience=PATIENCE) as peer:
        await peer.initialize(revision=HANDSHAKE)
        error = await peer.error("tools/call", {"name": "must", "arguments": {}})
        assert (error["code"], error["data"]["taskSupport"]) == (-32601, "required")
        if behind == HANDSHAKE:
            error = await peer.error("tools/call", {"name": "quick", "arguments": {}, "task": {}})
            assert (error["code"], error["data"]["taskSupport"]) == (-32601, "forbidden")
        assert (await peer.result("tools/call", {"name": "quick", "arguments": {}}))["content"][0]["text"] == "at once"
    await front.aclose()


async def test_task_outlives_the_session_of_its_client() -> None:
    target = Behind()
    front = proxy(target.server, revision=HANDSHAKE, settings=QUICK)
    await front.start()
    async with asyncio.timeout(PATIENCE):
        async with Client(front, revision=HANDSHAKE) as client:
            task = await client.start_tool("work")
            while not target.runs:
                await task.refresh()
        async with Client(front, revision=HANDSHAKE) as other:
            target.released.set()
            assert (await patient(other.task(task.id))).text == "worked"
        await front.aclose()
    assert target.runs == 1


@pytest.mark.parametrize("behind", [HANDSHAKE, MODERN])
async def test_task_goes_on_after_a_restart_of_the_server_in_front(behind: str, tmp_path: Path) -> None:
    target = Behind()
    async with asyncio.timeout(PATIENCE), Client(target.server):  # which keeps it running

        def make_parent() -> Server:
            parent = Server("parent", store=SqliteStore(tmp_path / "store"), settings=QUICK)
            parent.mount(proxy(target.server, revision=behind, settings=QUICK), prefix="far")
            return parent

        first = make_parent()
        await first.start()
        async with Client(first) as client:
            task = await client.start_tool("far__work")
            while (await _message(client, task.id)) != "half":
                pass
        await first.shutdown()
        assert not target.cancelled.is_set()
        target.released.set()
        second = make_parent()
        async with Client(second) as client:
            assert (await patient(client.task(task.id))).text == "worked"
        await second.shutdown()
    assert target.runs == 1


async def _message(client: Client, ident: str) -> str | None:
    task = client.task(ident)
    await task.refresh()
    return task.message


async def test_task_is_cancelled_behind_when_its_server_in_front_ends() -> None:
    target = Behind()
    async with asyncio.timeout(PATIENCE), Client(target.server):
        front = proxy(target.server, settings=Settings(task_poll_interval=0.05, drain_timeout=0.1))
        await front.start()
        client = await Client(front).open()
        await client.start_tool("work")
        while not target.runs:
            await asyncio.sleep(0.001)
        await client.close()
        await front.shutdown()
        await target.cancelled.wait()


@pytest.mark.parametrize("era", [HANDSHAKE, MODERN])
async def test_middleware_of_a_mounted_proxy_wraps_its_tasks(era: str) -> None:
    target, parent, seen = Behind(), Server("parent", settings=QUICK), list[str | None]()
    front = proxy(target.server, revision=HANDSHAKE, settings=QUICK)
    parent.mount(front, prefix="far")

    @front.middleware
    async def watch(call: Call, next: Next) -> Any:
        seen.append(call.name)
        return await next(call)

    async with Client(parent, revision=era) as client:
        assert (await patient(await client.start_tool("far__must"))).text == "done"
    assert seen == ["must"]


@pytest.mark.parametrize("era", [HANDSHAKE, MODERN])
async def test_arguments_and_metadata_of_a_task_pass(era: str) -> None:
    server, seen = Server("behind", settings=QUICK), list[Any]()

    @server.tool(task="required")
    async def work(text: str, ctx: Context) -> str:
        seen.append((text, ctx.principal))
        return text.upper()

    @server.middleware
    async def watch(call: Call, next: Next) -> Any:
        seen.append((call.params.meta or {}).get("example/key"))
        return await next(call)

    async with Client(proxy(server, settings=QUICK), revision=era) as client:
        task = await client.start_tool("work", {"text": "abc"}, meta={"example/key": 5})
        assert (await patient(task)).text == "ABC"
    assert seen == [5, ("abc", None)]


async def test_tasks_of_a_proxy_are_listed_to_their_owner() -> None:
    front = proxy(Behind().server, settings=QUICK)
    async with (
        RawPeer(front, principal="alice", patience=PATIENCE) as alice,
        RawPeer(front, principal="bob", patience=PATIENCE) as bob,
    ):
        await alice.initialize()
        await bob.initialize()
        task = (await alice.result("tools/call", {"name": "work", "arguments": {}, "task": {"ttl": 5000}}))["task"]
        assert task["ttl"] == 5000
        assert [one["taskId"] for one in (await alice.result("tasks/list"))["tasks"]] == [task["taskId"]]
        assert (await bob.result("tasks/list"))["tasks"] == []
        refused = await bob.error("tasks/cancel", {"taskId": task["taskId"]})
        assert refused["data"]["kind"] == "task_not_found"
        assert (await alice.result("tasks/cancel", {"taskId": task["taskId"]}))["status"] == "cancelled"
    await front.aclose()


async def test_limit_of_tasks_in_front_cancels_the_task_behind() -> None:
    target = Behind()
    parent = Server("parent", settings=Settings(max_tasks=1, task_poll_interval=0.05))
    parent.mount(proxy(target.server, settings=QUICK), prefix="far")
    async with asyncio.timeout(PATIENCE), Client(parent) as client:
        await client.start_tool("far__work")
        with pytest.raises(PeerError, match="limit of 1 concurrent tasks"):
            await client.start_tool("far__work")
        await target.cancelled.wait()


async def test_removed_backend_of_a_gateway_finishes_its_tasks(tmp_path: Path) -> None:
    target = Behind()
    gateway = make_gateway(tmp_path, {"far": target.server}, settings=QUICK)
    async with asyncio.timeout(PATIENCE), Client(gateway.server) as client:
        task = await client.start_tool("far__work")
        while not target.runs:
            await task.refresh()
        reloading = asyncio.create_task(gateway.reload({}))
        while (await client.list_tools()).tools:
            await asyncio.sleep(0.001)
        assert not reloading.done()
        target.released.set()
        assert (await patient(task)).text == "worked"
        await reloading


# --- other servers ---------------------------------------------------------------------------------------

TASKS = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
TOOL = {"name": "work", "inputSchema": {"type": "object"}}
CREATED = {
    "taskId": "theirs",
    "status": "working",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
}


def modern_task(**members: Any) -> dict[str, Any]:
    return {"resultType": "complete", **CREATED, "ttlMs": 60_000, "pollIntervalMs": 50, **members}


UNKNOWN = {"content": [{"type": "hologram", "size": 3}], "extra": True}


def scripted(*, modern: bool) -> ScriptedServer:
    """Make a server that is not one of ours: in the modern era it does not say which tools run as tasks."""
    if modern:
        capabilities: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
        return ScriptedServer(modern=True, tools=[TOOL], capabilities=capabilities, patience=PATIENCE)
    tool, capabilities = {**TOOL, "execution": {"taskSupport": "optional"}}, {"tools": {}, "tasks": TASKS}
    return ScriptedServer(tools=[tool], capabilities=capabilities, revision=HANDSHAKE, patience=PATIENCE)


async def start_raw(peer: RawPeer) -> str:
    """Start the tool of a scripted server as a task; return the id of the task."""
    await peer.initialize(revision=HANDSHAKE)
    return (await peer.result("tools/call", {"name": "work", "arguments": {"a": 1}, "task": {}}))["task"]["taskId"]


async def test_task_of_another_modern_server_is_followed() -> None:
    behind = scripted(modern=True)
    async with asyncio.timeout(PATIENCE), Client(proxy(behind, settings=QUICK)) as client:
        line = behind.line
        starting = asyncio.create_task(client.start_tool("work"))
        line.reply(await line.request("tools/call"), {**modern_task(), "resultType": "task"})
        task = await starting
        assert task.id != "theirs"
        polled = await line.request("tasks/get")
        assert polled["params"]["taskId"] == "theirs"
        assert EXTENSION in polled["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"]
        line.reply(polled, modern_task(statusMessage="thinking"))
        while task.message != "thinking":
            await task.refresh()
        line.reply(await line.request("tasks/get"), modern_task(status="cancelled"))
        with pytest.raises(TaskCancelled):
            await patient(task)


async def test_modern_server_behind_need_not_make_a_task() -> None:
    behind = scripted(modern=True)
    async with asyncio.timeout(PATIENCE), RawPeer(proxy(behind, settings=QUICK), patience=PATIENCE) as peer:
        task_id = await start_raw(peer)
        assert (await peer.result("tasks/get", {"taskId": task_id}))["status"] == "working"
        call = await behind.line.request("tools/call")
        assert call["params"]["arguments"] == {"a": 1}
        assert "task" not in call["params"]
        behind.line.reply(call, {"resultType": "complete", **UNKNOWN})
        result = await peer.result("tasks/result", {"taskId": task_id})
        assert {name: result[name] for name in UNKNOWN} == UNKNOWN
        assert result["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task_id}


async def test_result_and_messages_of_an_older_server_pass() -> None:
    behind = scripted(modern=False)
    async with asyncio.timeout(PATIENCE), RawPeer(proxy(behind, settings=QUICK), patience=PATIENCE) as peer:
        task_id = await start_raw(peer)
        line = await behind.connected(2)
        call = await line.request("tools/call")
        assert 0 < call["params"]["task"]["ttl"] <= QUICK.task_ttl * 1000
        task = {**CREATED, "ttl": 60_000}
        line.reply(call, {"task": task})
        waited = await line.request("tasks/result")
        line.notify("notifications/tasks/status", {**task, "statusMessage": "thinking"})
        line.notify("notifications/tasks/status", {**task, "taskId": "another", "statusMessage": "elsewhere"})
        while (await peer.result("tasks/get", {"taskId": task_id})).get("statusMessage") != "thinking":
            pass
        related = {"io.modelcontextprotocol/related-task": {"taskId": "theirs"}}
        line.reply(waited, {**UNKNOWN, "_meta": related})
        result = await peer.result("tasks/result", {"taskId": task_id})
        assert {name: result[name] for name in UNKNOWN} == UNKNOWN
        assert result["_meta"] == {"io.modelcontextprotocol/related-task": {"taskId": task_id}}


async def test_result_of_an_older_server_names_no_task_to_a_modern_client() -> None:
    behind = scripted(modern=False)
    extensions = {"extensions": {EXTENSION: {}}}
    async with asyncio.timeout(PATIENCE), RawPeer(proxy(behind, settings=QUICK), patience=PATIENCE) as peer:
        created = await peer.result("tools/call", enveloped(extensions, name="work", arguments={}))
        line = behind.line
        line.reply(await line.request("tools/call"), {"task": {**CREATED, "ttl": 60_000}})
        meta = {"io.modelcontextprotocol/related-task": {"taskId": "theirs"}, "example/key": 1}
        line.reply(await line.request("tasks/result"), {**UNKNOWN, "_meta": meta})
        polling = enveloped(extensions, taskId=created["taskId"])
        while (task := await peer.result("tasks/get", polling))["status"] == "working":
            await asyncio.sleep(0.001)
        assert task["result"] == {"resultType": "complete", **UNKNOWN, "_meta": {"example/key": 1}}


async def test_connection_of_a_session_stays_open_until_its_task_ends() -> None:
    behind = scripted(modern=False)
    front = proxy(behind, settings=QUICK)
    await front.start()
    async with asyncio.timeout(PATIENCE):
        async with RawPeer(front, patience=PATIENCE) as peer:
            task_id = await start_raw(peer)
            line = await behind.connected(2)
            line.reply(await line.request("tools/call"), {"task": {**CREATED, "ttl": 60_000}})
            waited = await line.request("tasks/result")
        async with RawPeer(front, patience=PATIENCE) as other:
            await other.initialize(revision=HANDSHAKE)
            assert (await other.result("tasks/get", {"taskId": task_id}))["status"] == "working"
            assert line.closed is None
            line.reply(waited, UNKNOWN)
            assert (await other.result("tasks/result", {"taskId": task_id}))["extra"] is True
            while line.closed is None:
                await asyncio.sleep(0.001)
        await front.aclose()


async def test_question_names_the_task_of_its_client() -> None:
    behind = scripted(modern=False)
    async with asyncio.timeout(PATIENCE), RawPeer(proxy(behind, settings=QUICK), patience=PATIENCE) as peer:
        await peer.initialize(revision=HANDSHAKE, capabilities={"elicitation": {}})
        given = {"name": "work", "arguments": {}, "task": {}}
        task_id = (await peer.result("tools/call", given))["task"]["taskId"]
        line = await behind.connected(2)
        line.reply(await line.request("tools/call"), {"task": {**CREATED, "ttl": 60_000}})
        await line.request("tasks/result")
        peer.call("tasks/result", {"taskId": task_id})
        params = {
            "message": "How many?",
            "requestedSchema": {"type": "object", "properties": {}},
            "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "theirs"}},
        }
        asking = asyncio.create_task(line.call("elicitation/create", params))
        while (question := await peer.receive()).get("method") != "elicitation/create":
            pass
        assert question["params"]["_meta"] == {"io.modelcontextprotocol/related-task": {"taskId": task_id}}
        peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
        assert (await asking)["result"] == {"action": "decline"}


@pytest.mark.parametrize("modern", [False, True])
async def test_task_that_is_cancelled_while_it_starts_is_cancelled_behind(modern: bool) -> None:
    behind = scripted(modern=modern)
    async with asyncio.timeout(PATIENCE), RawPeer(proxy(behind, settings=QUICK), patience=PATIENCE) as peer:
        task_id = await start_raw(peer)
        line = behind.line if modern else await behind.connected(2)
        call = await line.request("tools/call")
        assert (await peer.result("tasks/cancel", {"taskId": task_id}))["status"] == "cancelled"
        line.reply(call, {**modern_task(), "resultType": "task"} if modern else {"task": {**CREATED, "ttl": 60_000}})
        cancelled = await line.request("tasks/cancel")
        assert cancelled["params"]["taskId"] == "theirs"
        line.reply(cancelled, modern_task(status="cancelled") if modern else {**CREATED, "ttl": 60_000})


async def test_interrupted_start_is_not_repeated(tmp_path: Path) -> None:
    behind = scripted(modern=True)

    def make_parent() -> Server:
        parent = Server("parent", store=SqliteStore(tmp_path / "store"), settings=QUICK)
        parent.mount(proxy(behind, settings=QUICK), prefix="far")
        return parent

    async with asyncio.timeout(PATIENCE):
        parent = make_parent()
        async with RawPeer(parent, patience=PATIENCE) as peer:
            await peer.initialize(revision=HANDSHAKE)
            given = {"name": "far__work", "arguments": {}, "task": {}}
            task_id = (await peer.result("tools/call", given))["task"]["taskId"]
            await behind.line.request("tools/call")  # it may have been executed
        await parent.shutdown()
        parent = make_parent()
        async with RawPeer(parent, patience=PATIENCE) as peer:
            await peer.initialize(revision=HANDSHAKE)
            error = await peer.error("tasks/result", {"taskId": task_id})
            assert error["data"]["kind"] == "outcome_unknown"
        await parent.shutdown()
    assert not [one for one in behind.line.waiting() if one.get("method") == "tools/call"]
