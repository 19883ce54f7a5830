"""Capabilities: declaration, negotiation, and methods that need one."""

from typing import Any

import pytest

from trunkline import Context, Server
from trunkline.protocol.methods import METHODS, Side
from trunkline.protocol.revisions import HANDSHAKE
from trunkline.testing import RawPeer

# The first line that the official Python client sends.
OFFICIAL = (
    '{"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    '"clientInfo":{"name":"mcp","version":"0.1.0"}},"jsonrpc":"2.0","id":0}'
)


def offering(*kinds: str, **options: Any) -> Server:
    """A server with one entry of each of these kinds."""
    server = Server("t", **options)
    if "tools" in kinds:
        server.add_tool(lambda: "hello", name="greet")
    if "resources" in kinds:
        server.add_resource("note://a", "text")
    if "prompts" in kinds:
        server.add_prompt("Greet {whom}.", name="hello")
    if "completions" in kinds:
        server.completion(prompt="hello", argument="whom")(lambda value: [value])
    return server


# --- declaration by the server -------------------------------------------------------------------


@pytest.mark.row("L10", "L21")
@pytest.mark.parametrize(
    ("kinds", "options", "declared"),
    [
        ([], {}, {"logging": {}}),
        ([], {"logging": False}, {}),
        (["tools"], {}, {"tools": {"listChanged": True}, "logging": {}}),
        (["resources"], {}, {"resources": {"subscribe": True, "listChanged": True}, "logging": {}}),
        (["prompts", "completions"], {}, {"prompts": {"listChanged": True}, "completions": {}, "logging": {}}),
        (
            [],
            {"tools": True, "prompts": True},
            {"tools": {"listChanged": True}, "prompts": {"listChanged": True}, "logging": {}},
        ),
        (["tools", "prompts"], {"tools": False}, {"prompts": {"listChanged": True}, "logging": {}}),
        (
            ["tools", "resources"],
            {"list_changed": False, "subscribe": False},
            {"tools": {}, "resources": {}, "logging": {}},
        ),
        ([], {"experimental": {"trunkline/x": {"a": 1}}}, {"logging": {}, "experimental": {"trunkline/x": {"a": 1}}}),
    ],
)
async def test_capability_is_declared_if_used_or_requested(
    kinds: list[str], options: dict[str, Any], declared: dict[str, Any]
) -> None:
    async with RawPeer(offering(*kinds, **options)) as peer:
        assert (await peer.initialize())["capabilities"] == declared


@pytest.mark.row("L27")
async def test_server_with_tools_only_works() -> None:
    async with RawPeer(offering("tools", logging=False)) as peer:
        assert (await peer.initialize())["capabilities"] == {"tools": {"listChanged": True}}
        assert (await peer.result("tools/call", {"name": "greet"}))["content"] == [{"type": "text", "text": "hello"}]


@pytest.mark.row("X04")
@pytest.mark.parametrize(("revision", "named"), [("2024-11-05", False), ("2025-03-26", True)])
async def test_completions_work_in_all_revisions(revision: str, named: bool) -> None:
    params = {"ref": {"type": "ref/prompt", "name": "hello"}, "argument": {"name": "whom", "value": "x"}}
    async with RawPeer(offering("prompts", "completions")) as peer:
        assert ("completions" in (await peer.initialize(revision))["capabilities"]) is named
        assert (await peer.result("completion/complete", params))["completion"]["values"] == ["x"]


# --- negotiation ---------------------------------------------------------------------------------


@pytest.mark.row("L08", "L25", "AD004", "PH11")
async def test_founding_example_is_negotiated() -> None:
    server = offering("resources", logging=False, list_changed=False, subscribe=False)
    async with RawPeer(server) as peer:
        result = await peer.initialize(capabilities={"resources": {}, "tools": {}})
        assert result["capabilities"] == {"resources": {}}


@pytest.mark.row("L09", "AD004", "X04")
async def test_client_without_capabilities_gets_all_features() -> None:
    async with RawPeer(offering("tools")) as peer:
        peer.send(OFFICIAL)
        assert (await peer.receive())["result"]["capabilities"]["tools"] == {"listChanged": True}
        peer.notify("notifications/initialized")
        assert len((await peer.result("tools/list"))["tools"]) == 1


@pytest.mark.row("L25", "X04")
async def test_feature_disabled_by_client_is_off() -> None:
    async with RawPeer(offering("tools", "prompts", "resources", logging=False)) as peer:
        result = await peer.initialize(capabilities={"tools": False, "resources": {"subscribe": False}})
        assert result["capabilities"] == {"resources": {"listChanged": True}, "prompts": {"listChanged": True}}
        assert (await peer.error("tools/list"))["data"]["capability"] == "tools"
        error = await peer.error("resources/subscribe", {"uri": "note://a"})
        assert error["data"]["capability"] == "resources.subscribe"
        assert len((await peer.result("resources/list"))["resources"]) == 1


@pytest.mark.row("L07", "L19", "L20")
async def test_session_keeps_negotiated_capabilities() -> None:
    declared = {
        "roots": {"listChanged": True},
        "sampling": {"modelPreferences": {"x": 1}},
        "extra": {"kept": [1]},
        "experimental": {"b": {}, "c": {}},
    }
    async with RawPeer(offering("tools", experimental={"a": {}, "b": {}})) as peer:
        await peer.initialize(capabilities=declared)
        negotiated = peer.connection.session.negotiated
        assert negotiated is not None
        assert negotiated.client == declared
        assert negotiated.experimental == {"b"}
        with pytest.raises(AttributeError):
            negotiated.client = {}  # type: ignore[misc]
        for frozen in (negotiated.client, negotiated.client["sampling"], negotiated.server, negotiated.server["tools"]):
            with pytest.raises(TypeError):
                frozen["sampling"] = {}  # type: ignore[index]


@pytest.mark.row("L24")
@pytest.mark.parametrize(
    "declared",
    [
        [],
        "tools",
        5,
        None,
        {"sampling": []},
        {"roots": {"listChanged": 1}},
        {"elicitation": True},
        {"experimental": []},
    ],
)
async def test_malformed_capabilities_are_refused(declared: object) -> None:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": declared,
        "clientInfo": {"name": "raw peer", "version": "1"},
    }
    async with RawPeer(Server("t")) as peer:
        assert (await peer.error("initialize", params))["code"] == -32602
        assert (await peer.error("tools/list"))["data"]["kind"] == "server_not_initialized"


# --- every method checks its capability ----------------------------------------------------------

GATED = [
    row
    for row in METHODS
    if row.is_request and row.capability is not None and row.is_received_by(Side.SERVER) and row.profile is None
]


@pytest.mark.row("L14", "L16", "L17", "L18", "L22", "AD002")
@pytest.mark.parametrize("revision", [revision.value for revision in HANDSHAKE])
@pytest.mark.parametrize("method", GATED, ids=lambda row: row.name)
async def test_method_without_its_capability_is_not_found(method: Any, revision: str) -> None:
    subscribing = method.capability == "resources.subscribe"
    server = offering("resources", subscribe=False) if subscribing else Server("t", logging=False)
    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        error = await peer.error(method.name, {})
        assert error["code"] == -32601
        if method.since <= revision:
            assert error["data"]["kind"] == "capability_not_supported"
            assert error["data"]["capability"] == method.capability
        else:
            assert error["data"]["kind"] == "method_not_found"


@pytest.mark.row("L18")
@pytest.mark.parametrize("method", ["tasks/create", "tasks/get", "tasks/result", "tasks/list", "tasks/cancel"])
async def test_task_methods_need_the_tasks_capability(method: str) -> None:
    async with RawPeer(offering("tools")) as peer:
        result = await peer.initialize()
        assert "tasks" not in result["capabilities"]
        assert (await peer.error(method, {"taskId": "x"}))["code"] == -32601


@pytest.mark.row("L16")
async def test_logging_capability_enables_set_level() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize()
        assert await peer.result("logging/setLevel", {"level": "debug"}) == {}


@pytest.mark.row("L15")
async def test_no_list_changed_without_flag() -> None:
    for list_changed in (True, False):
        server = offering("tools", list_changed=list_changed)
        async with RawPeer(server) as peer:
            await peer.initialize()
            await peer.quiet()
            server.add_tool(lambda: "", name="another")
            said = [message["method"] for message in await peer.quiet()]
            assert said == (["notifications/tools/list_changed"] if list_changed else [])


# --- client capabilities -------------------------------------------------------------------------


@pytest.mark.row("L12", "L29")
@pytest.mark.parametrize(
    ("question", "capability"), [("sample", "sampling"), ("roots", "roots"), ("elicit", "elicitation")]
)
async def test_server_does_not_use_undeclared_client_features(question: str, capability: str) -> None:
    server = Server("t")

    @server.tool
    async def ask(ctx: Context) -> str:
        match question:
            case "sample":
                await ctx.sample("hello")
            case "roots":
                await ctx.roots()
            case _:
                await ctx.elicit("your name?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return "asked"

    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tools/call", {"name": "ask"})
        assert result["isError"]
        assert result["content"][0]["text"].startswith(f"the client does not support {capability}")
        assert not any("method" in message for message in peer.transcript.said_by("server"))


@pytest.mark.row("L11")
@pytest.mark.parametrize("level", ["debug", "info"])
async def test_logging_has_default_level(level: Any) -> None:
    server = Server("t")

    @server.tool
    async def speak(ctx: Context) -> str:
        await ctx.log(level, "hello")
        return "spoken"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "speak"})
        said = [message["params"]["level"] for message in peer.waiting()]
        assert said == ([] if level == "debug" else ["info"])


@pytest.mark.row("L13")
@pytest.mark.parametrize("meta", [None, {"progressToken": "t"}])
async def test_progress_needs_token(meta: dict[str, str] | None) -> None:
    server = Server("t")

    @server.tool
    async def work(ctx: Context) -> str:
        await ctx.progress(1, total=2)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("tools/call", {"name": "work", **({} if meta is None else {"_meta": meta})})
        told = [message["params"] for message in peer.waiting()]
        assert told == ([] if meta is None else [{"progressToken": "t", "progress": 1, "total": 2}])
