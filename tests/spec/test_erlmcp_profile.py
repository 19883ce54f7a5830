"""Servers under the profile `compat="erlmcp"`: messages as the founding documents print them.

Each test has the row of the settled contradiction with an `e`: the half that the profile has.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.founding import FEATURES, REQUESTED
from tests.modern import enveloped
from tests.unit.transports.http.asgi import hosted, request

from trunkline import Context, Refusal, Server, Settings, ToolError
from trunkline.errors import StoreUnusable
from trunkline.protocol.error_kinds import KINDS
from trunkline.protocol.types import Annotations, PromptMessage, ResourceLink, TextContent
from trunkline.server.sessions.record import RecordedCapabilities, SessionMetadata, SessionRecord, read_record
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import ManualClock, RawPeer
from trunkline.wire.codec import to_json

pytestmark = pytest.mark.off_the_record  # no official schema has these shapes

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
ISO, MILLISECONDS = "2022-01-01T00:00:00Z", 1640995200000


def make_server(**options: Any) -> Server:
    server = Server("documents", observers=[], expose_errors=True, **options)

    @server.tool(version="1.0.0", deprecated=False, experimental={"cache": True}, metadata={"team": "data"})
    async def sql_query(query: str, limit: int = 100) -> str:
        """Execute SQL queries against the database"""
        return f"{query} {limit}"

    @server.tool(meta={"own": 1})
    async def fails(how: str) -> Any:
        if how == "tool error":
            raise ToolError("SQL syntax error")
        if how == "refusal":
            raise Refusal(1001, "not here")
        if how == "result":
            return ResourceLink(uri="doc://readme", name="README")
        raise ValueError("oops")

    @server.tool(timeout=0.01)
    async def hangs() -> None:
        await asyncio.Event().wait()

    @server.tool(enabled=False)
    async def disabled() -> None:
        """Cannot be called."""

    @server.prompt
    async def code_review(language: str, style: str = "default") -> list[Any]:
        """Review code for quality issues"""
        return [
            {"role": "system", "content": f"You review {language}"},
            PromptMessage("system", TextContent(style)),  # pyright: ignore[reportArgumentType]
            "Please review my code",
        ]

    @server.completion(prompt="code_review", argument="language")
    async def languages(value: str) -> list[str]:
        return ["erlang", "python"]

    server.add_resource(
        "doc://readme",
        "Content here...",
        name="README",
        mime_type="text/markdown",
        meta={"author": "Ann"},
        annotations=Annotations(last_modified=ISO, priority=0.5),
    )
    server.add_resource("doc://logo", b"png", name="logo", mime_type="image/png")
    server.add_resource("doc://archive", b"zip", name="archive", mime_type="application/zip")
    return server


@pytest.fixture
async def peer() -> AsyncIterator[RawPeer]:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        await peer.initialize(capabilities=FEATURES)
        yield peer


# --- the handshake ------------------------------------------------------------------------------


@pytest.mark.row("X04e", "L08", "L25")
async def test_answer_is_the_intersection_of_capabilities() -> None:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        answer = await peer.initialize(capabilities={"resources": True, "roots": {}, "unknown": {}})
        assert answer["capabilities"] == {"resources": {"subscribe": True, "listChanged": True}, "roots": {}}
        error = await peer.error("tools/list")
        assert (error["code"], error["data"]["capability"]) == (-32004, "tools")


@pytest.mark.row("X04e", "L14e", "R14e", "L22e")
async def test_client_can_switch_off_a_flag_of_a_feature() -> None:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        answer = await peer.initialize(capabilities={"resources": {"subscribe": False}, "tools": False})
        assert answer["capabilities"] == {"resources": {"listChanged": True}}
        assert (await peer.error("resources/subscribe", {"uri": "doc://readme"}))["code"] == -32004


@pytest.mark.row("X04e", "L20")
async def test_experimental_capabilities_are_intersected_by_name() -> None:
    async with RawPeer(make_server(compat="erlmcp", experimental={"a": {}, "b": {"on": 1}})) as peer:
        answer = await peer.initialize(capabilities={"experimental": {"b": {}, "c": {}}})
        assert answer["capabilities"] == {"experimental": {"b": {"on": 1}}}


@pytest.mark.row("X35e", "L12e")
async def test_server_declares_sampling_and_roots_if_the_client_does() -> None:
    server = make_server(compat="erlmcp")
    async with RawPeer(server) as peer, RawPeer(server) as without:
        declared = {"sampling": {"modelPreferences": {}}, "roots": {"listChanged": True}}
        assert (await peer.initialize(capabilities=declared))["capabilities"] == {"sampling": {}, "roots": {}}
        assert "sampling" not in (await without.initialize(capabilities=FEATURES))["capabilities"]


@pytest.mark.row("X04e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_client_requests_the_profile_in_every_handshake_revision(revision: str) -> None:
    server = make_server()
    async with RawPeer(server) as peer, RawPeer(server) as usual:
        answer = await peer.initialize(revision, REQUESTED)
        assert answer["protocolVersion"] == revision
        assert answer["capabilities"]["experimental"] == {"trunkline/erlmcp": {}}
        assert "completions" in answer["capabilities"]
        assert (await peer.error("tools/call", {"name": "unknown_tool"}))["code"] == -32002
        await usual.initialize(revision)
        assert (await usual.error("tools/call", {"name": "unknown_tool"}))["code"] == -32602


@pytest.mark.parametrize("declared", [False, None])
async def test_profile_that_is_declared_as_off_is_not_used(declared: Any) -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize(capabilities={"experimental": {"trunkline/erlmcp": declared, "other": {}}})
        assert (await peer.error("tools/call", {"name": "unknown_tool"}))["code"] == -32602


@pytest.mark.row("X10e")
async def test_requests_of_the_modern_era_have_no_profile(peer: RawPeer) -> None:
    assert (await peer.error("tools/call", enveloped(name="unknown_tool")))["code"] == -32602
    result = await peer.result("tools/call", enveloped(name="fails", arguments={"how": "tool error"}))
    assert result["isError"] is True
    assert "cursor" not in await peer.result("tools/list", enveloped())
    error = await peer.error("prompts/get", enveloped(name="code_review", arguments={"language": "x"}))
    assert error["code"] == -32603


@pytest.mark.row("L02e")
async def test_request_before_the_handshake_has_the_founding_code() -> None:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        error = await peer.error("tools/list")
        assert (error["code"], error["data"]["kind"]) == (-32005, "server_not_initialized")
        assert await peer.result("ping") == {}


@pytest.mark.row("L05e")
@pytest.mark.parametrize("name", ["notifications/initialized", "initialized"])
async def test_requests_wait_for_initialized(name: str) -> None:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        await peer.initialize(capabilities=FEATURES, confirm=False)
        assert (await peer.error("tools/list"))["code"] == -32005
        assert (await peer.error("nothing"))["code"] == -32005
        assert await peer.result("ping") == {}
        peer.notify(name)
        assert (await peer.result("tools/list"))["tools"]


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.row("X08e", "T21e")
async def test_unknown_tool_has_its_founding_code(peer: RawPeer) -> None:
    error = await peer.error("tools/call", {"name": "unknown_tool"})
    assert (error["code"], error["data"]["toolId"]) == (-32002, "unknown_tool")
    assert error["data"]["kind"] == "tool_not_found"


@pytest.mark.row("X09e", "T21e")
async def test_invalid_arguments_are_an_error_with_the_faults(peer: RawPeer) -> None:
    error = await peer.error("tools/call", {"name": "sql_query", "arguments": {"limit": "many"}})
    assert (error["code"], error["data"]["kind"]) == (-32034, "invalid_tool_arguments")
    assert {fault["path"] for fault in error["data"]["errors"]} == {"$", "$.limit"}


@pytest.mark.row("X11e", "T21e")
@pytest.mark.parametrize(("how", "message"), [("tool error", "SQL syntax error"), ("exception", "ValueError: oops")])
async def test_exception_of_a_tool_is_an_error(peer: RawPeer, how: str, message: str) -> None:
    error = await peer.error("tools/call", {"name": "fails", "arguments": {"how": how}})
    assert (error["code"], error["message"]) == (-32031, message)
    assert error["data"]["kind"] == "tool_execution_failed"


async def test_refusal_of_a_tool_is_a_result(peer: RawPeer) -> None:
    result = await peer.result("tools/call", {"name": "fails", "arguments": {"how": "refusal"}})
    assert (result["isError"], result["_meta"]["trunkline/refusal"]["code"]) == (True, 1001)


OTHERS = {
    -32001: ("resources/read", {"uri": "doc://nope"}),
    -32003: ("prompts/get", {"name": "nope"}),
    -32022: ("resources/read", {"uri": "::::"}),
    -32024: ("resources/read", {"uri": "doc://" + "x" * 3000}),
    -32032: ("tools/call", {"name": "hangs"}),
    -32035: ("tools/call", {"name": "disabled"}),
    -32043: ("prompts/get", {"name": "code_review"}),
    -32071: ("tools/list", {"cursor": "optional-cursor"}),
    -32074: ("tools/list", {"limit": 1_000_000}),
    -32075: ("tools/list", {"limit": 0}),
    -32110: ("completion/complete", {"ref": {"type": "prompt", "name": "x"}, "argument": {"name": "a", "value": ""}}),
    -32111: ("completion/complete", {"ref": {"type": "foo", "name": "x"}, "argument": {"name": "a", "value": ""}}),
    -32112: (
        "completion/complete",
        {"ref": {"type": "prompt", "name": "code_review"}, "argument": {"name": "a", "value": ""}},
    ),
    -32601: ("method/name", {}),
    -32602: ("resources/read", {}),
}


@pytest.mark.row("X10e", "M03e", "M11e", "R15e")
@pytest.mark.parametrize("code", OTHERS)
async def test_kind_has_its_founding_code(peer: RawPeer, code: int) -> None:
    error = await peer.error(*OTHERS[code])
    assert error["code"] == code
    assert next(kind.founding_code for kind in KINDS if kind.name == error["data"]["kind"]) == code


async def test_malformed_messages_keep_the_codes_of_json_rpc(peer: RawPeer) -> None:
    peer.send("{oops")
    assert (await peer.receive())["error"]["code"] == -32700
    peer.send({"id": 1, "method": "ping"})
    assert (await peer.receive())["error"]["code"] == -32600


# --- lists --------------------------------------------------------------------------------------


@pytest.mark.row("X14e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_cursor_has_both_names(revision: str) -> None:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        await peer.initialize(revision, FEATURES)
        for method in ("tools/list", "resources/list"):
            page = await peer.result(method, {"limit": 1})
            assert page["cursor"] == page["nextCursor"]
            last = await peer.result(method, {"cursor": page["cursor"], "limit": 100})
            assert "cursor" not in last


@pytest.mark.row("T02e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_tool_has_the_members_of_the_documents(revision: str) -> None:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        await peer.initialize(revision, FEATURES)
        tool, other, *_ = (await peer.result("tools/list"))["tools"]
        found = {name: tool[name] for name in ("version", "deprecated", "experimental", "metadata")}
        assert found == {
            "version": "1.0.0",
            "deprecated": False,
            "experimental": {"cache": True},
            "metadata": {"team": "data"},
        }
        assert "_meta" not in tool
        assert other.get("_meta") == ({"own": 1} if revision >= "2025-06-18" else None)


@pytest.mark.row("T02")
async def test_members_of_tools_are_metadata_by_default() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        tool = (await peer.result("tools/list"))["tools"][0]
        assert tool["_meta"] == {
            "trunkline/version": "1.0.0",
            "trunkline/deprecated": False,
            "trunkline/experimental": {"cache": True},
            "trunkline/metadata": {"team": "data"},
        }
        assert not {"version", "deprecated", "experimental", "metadata"} & tool.keys()


@pytest.mark.row("R03e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_resource_has_metadata_and_the_time_of_its_change(revision: str) -> None:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        await peer.initialize(revision, FEATURES)
        readme, logo, _ = (await peer.result("resources/list"))["resources"]
        assert readme == {
            "uri": "doc://readme",
            "name": "README",
            "mimeType": "text/markdown",
            "metadata": {"author": "Ann"},
            "lastModified": MILLISECONDS,
            "annotations": {"priority": 0.5},
        }
        assert (logo["metadata"], "lastModified" in logo) == ({}, False)


@pytest.mark.row("X14e")
async def test_listed_resources_of_templates_have_the_same_shape() -> None:
    server = make_server(compat="erlmcp")

    @server.resource("user://{name}", list=lambda: ["user://ann", "user://ben"])
    async def user(name: str) -> str:
        return name

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FEATURES)
        page = await peer.result("resources/list", {"limit": 4})
        assert page["cursor"] == page["nextCursor"]
        assert page["resources"][3]["metadata"] == {}
        assert (await peer.result("resources/templates/list"))["resourceTemplates"][0]["name"] == "user"


@pytest.mark.row("X14e")
async def test_arguments_of_prompts_say_whether_they_are_required(peer: RawPeer) -> None:
    (prompt,) = (await peer.result("prompts/list"))["prompts"]
    assert prompt["arguments"] == [{"name": "language", "required": True}, {"name": "style", "required": False}]


# --- contents -----------------------------------------------------------------------------------


@pytest.mark.row("X22e", "X37e")
async def test_contents_have_a_type_and_no_uri(peer: RawPeer) -> None:
    read = [(await peer.result("resources/read", {"uri": f"doc://{name}"}))["contents"] for name in ("readme", "logo")]
    assert read == [
        [{"type": "text", "text": "Content here...", "mimeType": "text/markdown"}],
        [{"type": "image", "data": "cG5n", "mimeType": "image/png"}],
    ]
    (archive,) = (await peer.result("resources/read", {"uri": "doc://archive"}))["contents"]
    assert archive == {"uri": "doc://archive", "mimeType": "application/zip", "blob": "emlw"}


@pytest.mark.row("X22e")
async def test_links_have_the_type_of_the_documents(peer: RawPeer) -> None:
    result = await peer.result("tools/call", {"name": "fails", "arguments": {"how": "result"}})
    assert result["content"][0]["type"] == "resource/link"


@pytest.mark.row("X21e", "M06e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_prompt_may_have_the_role_system(revision: str) -> None:
    server = make_server(compat="erlmcp")
    async with RawPeer(server) as peer:
        await peer.initialize(revision, FEATURES)
        result = await peer.result("prompts/get", {"name": "code_review", "arguments": {"language": "erlang"}})
        assert result["messages"] == [
            {"role": "system", "content": {"type": "text", "text": "You review erlang"}},
            {"role": "system", "content": {"type": "text", "text": "default"}},
            {"role": "user", "content": {"type": "text", "text": "Please review my code"}},
        ]


@pytest.mark.row("X35")
async def test_server_declares_no_features_of_clients_by_default() -> None:
    async with RawPeer(make_server()) as peer:
        answer = await peer.initialize(capabilities={"sampling": {}, "roots": {}})
        assert not {"sampling", "roots"} & answer["capabilities"].keys()


@pytest.mark.row("X21")
async def test_role_system_is_an_error_by_default() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize()
        error = await peer.error("prompts/get", {"name": "code_review", "arguments": {"language": "erlang"}})
        assert (error["code"], error["data"]["kind"]) == (-32603, "prompt_render_failed")


@pytest.mark.row("X15e")
async def test_completion_has_the_shape_of_the_reference(peer: RawPeer) -> None:
    argument = {"name": "language", "value": ""}
    labelled = {"ref": {"type": "prompt", "name": "code_review"}, "argument": argument}
    assert await peer.result("completion/complete", labelled) == {
        "completions": [{"value": "erlang", "label": "erlang"}, {"value": "python", "label": "python"}],
        "hasMore": False,
        "total": 2,
    }
    specified = {"ref": {"type": "ref/prompt", "name": "code_review"}, "argument": argument}
    assert (await peer.result("completion/complete", specified))["completion"]["values"] == ["erlang", "python"]


@pytest.mark.row("X16e", "X37e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_sampling_request_has_its_options_among_the_preferences(revision: str) -> None:
    server = make_server(compat="erlmcp")

    @server.tool
    async def ask(ctx: Context) -> str:
        options = {"temperature": 0.7, "stop_sequences": ["Human:"], "include_context": "thisServer"}
        return (await ctx.sample("What should I do?", max_tokens=1024, **options)).text

    async with RawPeer(server) as peer:
        await peer.initialize(revision, {**FEATURES, "sampling": {"context": {}}})
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        assert asked["params"] == {
            "messages": [{"role": "user", "content": {"type": "text", "text": "What should I do?"}}],
            "modelPreferences": {"maxTokens": 1024, "temperature": 0.7, "stopSequences": ["Human:"]},
            "includedContext": "this_request",
        }
        content = [{"type": "text", "text": "Here's what I recommend..."}]
        peer.reply(asked, {"model": "claude", "stopReason": "end_turn", "content": content})
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "Here's what I recommend..."


# --- notifications, batches, time limits ----------------------------------------------------------


@pytest.mark.row("X02e", "N01e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_notifications_have_bare_names(revision: str) -> None:
    server = make_server(compat="erlmcp")
    async with RawPeer(server) as peer:
        await peer.initialize(revision, FEATURES)
        await peer.result("resources/subscribe", {"uri": "doc://readme"})
        for what in ("tools", "resources", "prompts"):
            server.notify_list_changed(what)
            assert await peer.receive() == {"jsonrpc": "2.0", "method": f"{what}/list_changed", "params": {}}
        server.notify_updated("doc://readme", meta={"updated_at": MILLISECONDS, "version": "2024-01-01"})
        assert (await peer.receive())["params"] == {
            "uri": "doc://readme",
            "metadata": {"updated_at": MILLISECONDS, "version": "2024-01-01"},
        }
        server.notify_updated("doc://readme")
        assert await peer.receive() == {
            "jsonrpc": "2.0",
            "method": "resources/updated",
            "params": {"uri": "doc://readme"},
        }


@pytest.mark.row("X02e")
async def test_other_notifications_keep_their_prefix() -> None:
    server = make_server(compat="erlmcp")

    @server.tool
    async def work(ctx: Context) -> None:
        ctx.progress(45.5, 100.0)
        await ctx.info("Operation completed")

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FEATURES)
        call = peer.call("tools/call", {"name": "work", "_meta": {"progressToken": "progress-123"}})
        await peer.answer_to(call)
        assert [said["method"] for said in peer.waiting()] == ["notifications/progress", "notifications/message"]


@pytest.mark.row("X25e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_batches_are_accepted(revision: str) -> None:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        await peer.initialize(revision, FEATURES)
        peer.send([{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in (1, 2)])
        assert [reply["id"] for reply in await peer.receive()] == [1, 2]


def profiled(clock: ManualClock, **options: Any) -> Server:
    server = make_server(compat="erlmcp", clock=clock, **options)

    @server.tool
    async def waits() -> None:
        await asyncio.Event().wait()

    return server


@pytest.mark.row("X07e", "K14e")
@pytest.mark.parametrize(("settings", "limit"), [(None, 5.0), (Settings(work_timeout=20.0), 20.0)])
async def test_request_has_five_seconds_unless_the_settings_say_otherwise(
    settings: Settings | None, limit: float
) -> None:
    clock = ManualClock()
    async with RawPeer(profiled(clock, settings=settings)) as peer:
        await peer.initialize(capabilities=FEATURES)
        call = peer.call("tools/call", {"name": "waits"})
        await peer.quiet()
        clock.advance(limit - 0.1)
        assert await peer.quiet() == []
        clock.advance(0.2)
        assert (await peer.answer_to(call))["error"]["code"] == -32032


@pytest.mark.row("X07e")
async def test_requested_profile_has_its_time_limits() -> None:
    clock = ManualClock()
    server = make_server(clock=clock)

    @server.tool
    async def waits() -> None:
        await asyncio.Event().wait()

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=REQUESTED)
        call = peer.call("tools/call", {"name": "waits"})
        await peer.quiet()
        clock.advance(5.1)
        assert (await peer.answer_to(call))["error"]["code"] == -32032


# --- cancellation by the server --------------------------------------------------------------------


@pytest.mark.row("X19e", "N16e")
async def test_server_announces_that_it_cancels_a_late_call() -> None:
    clock = ManualClock()
    async with RawPeer(profiled(clock)) as peer:
        await peer.initialize(capabilities=FEATURES)
        call = peer.call("tools/call", {"name": "waits"})
        await peer.quiet()
        clock.advance(5.1)
        cancelled, answer = await peer.receive(), await peer.receive()
    assert cancelled == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": call, "reason": "timeout"},
    }
    assert (answer["id"], answer["error"]["code"]) == (call, -32032)


@pytest.mark.row("X19e")
async def test_server_announces_that_a_handler_has_cancelled_its_call() -> None:
    server = make_server(compat="erlmcp")

    @server.tool
    async def gives_up() -> None:
        raise asyncio.CancelledError

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FEATURES)
        call = peer.call("tools/call", {"name": "gives_up"})
        cancelled, answer = await peer.receive(), await peer.receive()
    assert cancelled["params"] == {"requestId": call, "reason": "cancelled"}
    assert (answer["id"], answer["error"]["code"]) == (call, -32033)


@pytest.mark.row("X19e")
async def test_other_failures_are_not_announced_as_cancellations() -> None:
    clock = ManualClock()
    server = profiled(clock)

    @server.tool
    async def asks(ctx: Context) -> None:
        await ctx.roots(timeout=1)

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={**FEATURES, "roots": {}})
        call = peer.call("tools/call", {"name": "asks"})
        asked = await peer.receive()  # roots/list, which is not answered in time
        clock.advance(1.1)
        messages = [await peer.receive(), await peer.receive()]
        failed = await peer.request("tools/call", {"name": "fails", "arguments": {"how": "exception"}})
        assert await peer.quiet() == []
    cancelled = [message for message in messages if message.get("method") == "notifications/cancelled"]
    assert [message["params"]["requestId"] for message in cancelled] == [asked["id"]]  # of the server's own request
    assert next(message for message in messages if "id" in message)["id"] == call
    assert failed["error"]["code"] == -32031


@pytest.mark.row("X19", "N16")
async def test_server_does_not_announce_cancellations_by_default() -> None:
    clock = ManualClock()
    server = make_server(clock=clock)

    @server.tool(timeout=1)
    async def waits() -> None:
        await asyncio.Event().wait()

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "waits"})
        await peer.quiet()
        clock.advance(1.1)
        assert (await peer.receive())["id"] == call
        assert await peer.quiet() == []


# --- rates ------------------------------------------------------------------------------------------


@pytest.mark.row("E32010e", "Q02")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "sql_query", "arguments": {"query": "SELECT 1"}}),
        ("prompts/get", {"name": "code_review", "arguments": {"language": "python"}}),
    ],
)
async def test_request_above_a_rate_has_the_founding_number(method: str, params: Any) -> None:
    settings = Settings(session_rate="1/min")
    async with RawPeer(make_server(compat="erlmcp", clock=ManualClock(), settings=settings)) as peer:
        await peer.initialize(capabilities=FEATURES)
        await peer.result(method, params)
        error = await peer.error(method, params)
    assert (error["code"], error["data"]["kind"]) == (-32010, "rate_limit_exceeded")
    assert error["data"]["retryAfterMs"] > 0
    assert error["data"]["refusal"]["code"] == 1003


async def test_refusal_with_the_name_of_a_kind_keeps_its_number() -> None:
    server = make_server(compat="erlmcp")

    @server.prompt
    async def gone() -> str:
        raise Refusal(1048)

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FEATURES)
        error = await peer.error("prompts/get", {"name": "gone"})
    assert (error["code"], error["data"]["kind"]) == (1048, "tool_not_found")


@pytest.mark.row("X06e", "K15")
def test_connection_has_ten_seconds_for_initialize() -> None:
    assert Server("s", compat="erlmcp").settings.initialize_timeout == 10.0
    assert Server("s", compat="erlmcp", settings=Settings(initialize_timeout=3.0)).settings.initialize_timeout == 3.0
    assert Server("s").settings.initialize_timeout == 30.0


@pytest.mark.row("X31e")
async def test_client_that_requests_the_profile_may_send_shutdown() -> None:
    async with RawPeer(make_server()) as peer:
        await peer.initialize(capabilities=REQUESTED)
        assert await peer.result("shutdown") == {}


@pytest.mark.row("X17e")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_client_that_requests_the_profile_may_create_tasks(revision: str) -> None:
    server = make_server()

    @server.tool(task=True)
    async def operation_name(key: str) -> str:
        return key

    async with RawPeer(server) as peer:
        await peer.initialize(revision, REQUESTED)
        action = {"type": "operation_name", "parameters": {"key": "value"}}
        task = (await peer.result("tasks/create", {"action": action}))["taskId"]
        assert (await peer.result("tasks/get", {"taskId": task}))["task"]["action"] == action
        assert (await peer.error("tasks/get", {"taskId": "none"}))["code"] == -32081


@pytest.mark.row("X17e", "L22e")
async def test_task_method_without_its_capability_has_the_founding_code() -> None:
    async with RawPeer(make_server(compat="erlmcp")) as peer:
        await peer.initialize(capabilities={"tools": {}})
        assert (await peer.error("tasks/create", {"action": {"type": "x"}}))["code"] == -32004


# --- the session keeps its profile ----------------------------------------------------------------


class FailingClock(ManualClock):
    """A clock that raises when a test says so."""

    fails = False

    def now(self) -> float:
        if self.fails:
            self.fails = False
            raise RuntimeError("the clock has stopped")
        return super().now()


async def test_session_that_replaces_a_failed_one_keeps_its_profile() -> None:
    clock = FailingClock()
    async with RawPeer(make_server(clock=clock)) as peer:
        await peer.initialize(capabilities=REQUESTED)
        await peer.quiet()
        session = peer.connection.session
        clock.fails = True
        assert (await peer.error("tools/list"))["code"] == -32603
        assert peer.connection.session is not session
        assert (await peer.error("tools/call", {"name": "unknown_tool"}))["code"] == -32002


@pytest.mark.row("X04e", "D08")
async def test_process_that_takes_over_a_session_keeps_its_profile(tmp_path: Path) -> None:
    first = make_server(store=SqliteStore(tmp_path / "store"))
    async with hosted(first) as host:
        host.app = first.asgi()
        session = await host.session(capabilities=REQUESTED)
    await first.aclose()
    second = make_server(store=SqliteStore(tmp_path / "store"))
    async with hosted(second) as host:
        host.app = second.asgi()
        answer = await host.ask("POST", request("tools/call", {"name": "unknown_tool"}), mcp_session_id=session)
        assert answer.json["error"]["code"] == -32002
    await second.aclose()


def test_stored_session_of_an_unknown_profile_is_unusable() -> None:
    record = SessionRecord(
        id="x",
        created_at=1,
        last_accessed=1,
        timeout_ms=None,
        metadata=SessionMetadata(revision="2025-11-25", profile="another"),
        capabilities=RecordedCapabilities({}, {}),
    )
    with pytest.raises(StoreUnusable, match="another"):
        read_record(to_json(record))
