"""Access rules: one rule for tools, prompts, resources and templates, in both eras."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from tests.limits import PATIENCE
from tests.modern import enveloped
from tests.unit.transports.http.asgi import Host, call, hosted, request

from trunkline import Call, Context, Server, Settings
from trunkline.auth.principal import Principal
from trunkline.auth.server.resource_server import ResourceServer
from trunkline.auth.server.static_tokens import StaticTokens
from trunkline.errors import ConfigError, MisuseError, ResourceNotFound
from trunkline.facts import HandlerFailed
from trunkline.testing import RawPeer, RecordingObserver

WITHOUT_SCOPES = Principal("ann")
READER = Principal("ann", scopes=("notes:read",))
WRITER = Principal("ann", scopes=("notes:read", "notes:write", "mail"))

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])


def is_bob(ctx: Context) -> bool:
    return getattr(ctx.principal, "subject", ctx.principal) == "bob"


async def is_bob_after_a_while(ctx: Context) -> bool:
    await asyncio.sleep(0)
    return is_bob(ctx)


class Peer:
    """A client of either era."""

    def __init__(self, raw: RawPeer, era: str) -> None:
        self.raw = raw
        self.modern = era == "modern"

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.raw.request(method, enveloped(**params) if self.modern else params)

    async def result(self, method: str, **params: Any) -> Any:
        answer = await self.ask(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, **params: Any) -> Any:
        answer = await self.ask(method, **params)
        assert "error" in answer, answer
        return answer["error"]


@asynccontextmanager
async def talking(server: Server, principal: object, era: str) -> AsyncIterator[Peer]:
    async with RawPeer(server, principal=principal) as raw:
        if era == "handshake":
            await raw.initialize()
        yield Peer(raw, era)


def offering(**options: Any) -> Server:
    """A server with one entry of each kind under these rules, and an unrestricted one beside it."""
    server = Server("s", observers=[])

    @server.tool(**options)
    async def tool(number: int = 0, *, ctx: Context) -> str:
        return f"tool {number} for {ctx.principal}"

    @server.prompt(**options)
    async def prompt(name: str = "x") -> str:
        return f"prompt {name}"

    @server.resource("x:one", **options)
    async def resource() -> str:
        return "resource"

    @server.resource("y:{name}", list=lambda: ["y:1", "y:2"], **options)
    async def template(name: str) -> str:
        return f"template {name}"

    server.add_completion(["red", "blue"], argument="name", prompt="prompt")
    server.add_completion(["red", "blue"], argument="name", resource="y:{name}")
    server.add_completion(["1", "2"], argument="number", tool="tool")
    server.add_tool(lambda: "open", name="open_tool", thread=False)
    server.add_prompt("open", name="open_prompt")
    server.add_resource("open:one", "open")
    server.add_resource("open:{name}", lambda name: name, list=lambda: ["open:2"], thread=False)
    return server


LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
ALL = {
    "tools/list": ["tool", "open_tool"],
    "prompts/list": ["prompt", "open_prompt"],
    "resources/list": ["x:one", "open:one", "y:1", "y:2", "open:2"],
    "resources/templates/list": ["y:{name}", "open:{name}"],
}
OPEN = {method: [name for name in names if name.startswith("open")] for method, names in ALL.items()}
USES: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "tool"}),
    ("prompts/get", {"name": "prompt"}),
    ("resources/read", {"uri": "x:one"}),
    ("resources/read", {"uri": "y:1"}),
]


async def listed(peer: Peer) -> dict[str, list[str]]:
    found = {}
    for method, (member, key) in LISTS.items():
        found[method] = [entry[key] for entry in (await peer.result(method))[member]]
    return found


# --- scopes -------------------------------------------------------------------------------------------


@pytest.mark.row("AUT-20")
@ERAS
@pytest.mark.parametrize(
    ("principal", "may"), [(WRITER, True), (READER, False), (WITHOUT_SCOPES, False), ("ann", False), (None, True)]
)
async def test_entries_with_scopes_are_visible_only_to_holders(era: str, principal: object, may: bool) -> None:
    async with talking(offering(scopes=["notes:write", "mail"]), principal, era) as peer:
        assert await listed(peer) == (ALL if may else OPEN)
        for method, params in USES:
            answer = await peer.ask(method, **params)
            assert ("result" in answer) is may, answer


@pytest.mark.row("AUT-20")
@ERAS
async def test_missing_scopes_error_names_all_scopes(
    era: str,
) -> None:
    server, ran = offering(scopes=["notes:read", "notes:write"]), []
    server.middleware(_noting(ran))
    async with talking(server, READER, era) as peer:
        for method, params in [
            ("tools/call", {"name": "tool", "arguments": {"number": "no number"}, "requestState": "made up"}),
            ("prompts/get", {"name": "prompt", "arguments": {"nothing": "x"}, "requestState": "made up"}),
            ("resources/read", {"uri": "x:one", "requestState": "made up"}),
            ("resources/read", {"uri": "y:1"}),
        ]:
            error = await peer.error(method, **params)
            assert (error["code"], error["data"]["kind"]) == (-32600, "authorization_failed")
            assert error["data"]["scopes"] == ["notes:read", "notes:write"]
    assert ran == []


def _noting(ran: list[str]) -> Any:
    async def note(call: Any, following: Any) -> Any:
        ran.append(call.name)
        return await following(call)

    return note


@pytest.mark.row("AUT-20")
async def test_subscribe_needs_the_scopes() -> None:
    async with talking(offering(scopes=["notes:write"]), READER, "handshake") as peer:
        for uri in ("x:one", "y:1"):
            error = await peer.error("resources/subscribe", uri=uri)
            assert (error["data"]["kind"], error["data"]["scopes"]) == ("authorization_failed", ["notes:write"])
        assert len(peer.raw.server._runtime.subscription_hooks.subscriptions) == 0
        await peer.result("resources/subscribe", uri="open:one")


@ERAS
async def test_completion_of_hidden_entry_is_not_found(era: str) -> None:
    refs = [
        ({"type": "ref/prompt", "name": "prompt"}, "name"),
        ({"type": "ref/resource", "uri": "y:{name}"}, "name"),
        ({"type": "ref/resource", "uri": "x:one"}, "name"),
        ({"type": "ref/tool", "name": "tool"}, "number"),
    ]
    for options in ({"scopes": ["notes:write"]}, {"allow": is_bob}, {"allow": is_bob_after_a_while}):
        for surrounded in (False, True):
            server = offering(**options)
            if surrounded:
                server.middleware(_noting([]))
            async with talking(server, READER, era) as peer:
                for ref, name in refs:
                    argument = {"name": name, "value": ""}
                    hidden = await peer.error("completion/complete", ref=ref, argument=argument)
                    unknown = {key: value + "?" if key != "type" else value for key, value in ref.items()}
                    absent = await peer.error("completion/complete", ref=unknown, argument=argument)
                    assert _without_name(hidden) == _without_name(absent)
    async with talking(offering(scopes=["notes:write"]), WRITER, era) as peer:
        found = await peer.result("completion/complete", ref=refs[0][0], argument={"name": "name", "value": "r"})
        assert found["completion"]["values"] == ["red"]


def _without_name(error: Mapping[str, Any]) -> tuple[Any, ...]:
    return error["code"], error["data"]["kind"], sorted(error["data"])


@pytest.mark.row("SEC-02")
async def test_scopes_are_those_of_the_request_not_the_session() -> None:
    async with hosted(offering(scopes=["notes:write"])) as host:
        host.principal = WRITER
        session = await host.session()
        for principal, may in ((WRITER, True), (READER, False), (WRITER, True)):
            host.principal = principal
            answer = await host.ask("POST", call("tool"), mcp_session_id=session)
            assert ("result" in answer.json) is may, answer.body


async def test_anonymous_remote_caller_has_no_scopes() -> None:
    async with hosted(offering(scopes=["notes:write"])) as host:
        session = await host.session()
        answer = await host.ask("POST", call("tool"), mcp_session_id=session)
        assert answer.json["error"]["data"]["kind"] == "authorization_failed"
        answer = await host.ask("POST", request("tools/list"), mcp_session_id=session)
        assert [tool["name"] for tool in answer.json["result"]["tools"]] == ["open_tool"]


class Member(NamedTuple):
    """A custom principal type."""

    scopes: Any


@pytest.mark.parametrize(
    ("principal", "may"),
    [
        (Member(("notes:write",)), True),
        (Member("notes:read notes:write"), True),
        (Member("mail"), False),
        ("me", False),
    ],
)
async def test_custom_principal_has_its_own_scopes(principal: object, may: bool) -> None:
    async with talking(offering(scopes=["notes:write"]), principal, "handshake") as peer:
        assert await listed(peer) == (ALL if may else OPEN)


async def test_files_and_folders_have_access_rules(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    server = Server("s", observers=[])
    server.add_file("file:///a", tmp_path / "a.txt", scopes=["files"])
    server.add_directory("dir:///{+path}", tmp_path, allow=is_bob)
    async with talking(server, READER, "handshake") as peer:
        assert (await peer.result("resources/list"))["resources"] == []
        assert (await peer.result("resources/templates/list"))["resourceTemplates"] == []
        kinds = [(await peer.error("resources/read", uri=u))["data"]["kind"] for u in ("file:///a", "dir:///a.txt")]
        assert kinds == ["authorization_failed", "insufficient_permissions"]
    async with talking(server, Principal("bob", scopes=("files",)), "handshake") as peer:
        shown = [entry["uri"] for entry in (await peer.result("resources/list"))["resources"]]
        assert shown == ["file:///a", "dir:///a.txt"]
        for uri in shown:
            assert (await peer.result("resources/read", uri=uri))["contents"][0]["text"] == "a"


# --- predicates ---------------------------------------------------------------------------------------


@ERAS
@pytest.mark.parametrize("allow", [is_bob, is_bob_after_a_while])
@pytest.mark.parametrize("principal", ["bob", "ann", None])
async def test_predicate_controls_listing_and_calls(era: str, allow: Any, principal: str | None) -> None:
    may = principal == "bob"
    async with talking(offering(allow=allow), principal, era) as peer:
        assert await listed(peer) == (ALL if may else OPEN)
        answers = [await peer.ask(method, **params) for method, params in USES]
    tool, *others = answers
    assert tool["result"].get("isError", False) is not may
    if not may:
        assert tool["result"]["_meta"]["trunkline/error"]["kind"] == "tool_not_allowed"
        assert {answer["error"]["data"]["kind"] for answer in others} == {"insufficient_permissions"}
        assert {answer["error"]["code"] for answer in others} == {-32600}
    else:
        assert all("result" in answer for answer in others)


async def test_predicate_is_skipped_without_the_scopes() -> None:
    asked: list[str] = []

    def allow(ctx: Context) -> bool:
        asked.append(ctx.principal.subject)
        return True

    server = offering(scopes=["notes:write"], allow=allow)
    async with talking(server, READER, "handshake") as peer:
        assert await listed(peer) == OPEN
        for method, params in USES:
            await peer.error(method, **params)
        assert asked == []
    async with talking(server, WRITER, "handshake") as peer:
        assert await listed(peer) == ALL
        assert len(asked) == len(LISTS)  # once for each list, though a list of resources consists of two kinds


async def test_predicate_controls_subscriptions() -> None:
    server = offering(allow=is_bob_after_a_while)
    async with talking(server, "ann", "handshake") as peer:
        error = await peer.error("resources/subscribe", uri="y:1")
        assert error["data"]["kind"] == "insufficient_permissions"
        assert len(server._runtime.subscription_hooks.subscriptions) == 0
    async with talking(server, "bob", "handshake") as peer:
        await peer.result("resources/subscribe", uri="y:1")
        server.notify_updated("y:1")
        assert (await peer.raw.receive())["params"] == {"uri": "y:1"}


async def test_predicate_may_raise_its_own_denial() -> None:
    observer = RecordingObserver()
    server = Server("s", observers=[observer])

    def allow(ctx: Context) -> bool:
        raise ResourceNotFound("x:secret")

    server.add_resource("x:secret", "secret", allow=allow)
    async with talking(server, "ann", "handshake") as peer:
        assert (await peer.result("resources/list"))["resources"] == []
        assert (await peer.error("resources/read", uri="x:secret"))["data"]["kind"] == "resource_not_found"
    assert observer.of(HandlerFailed) == []


async def test_first_matching_template_decides_access() -> None:
    server = Server("s", observers=[])
    server.add_resource("x:secret/{name}", lambda name: name, scopes=["secrets"], thread=False)
    server.add_resource("x:{+path}", lambda path: path, thread=False, list=lambda: ["x:secret/a", "x:b"])
    async with talking(server, READER, "handshake") as peer:
        assert [entry["uri"] for entry in (await peer.result("resources/list"))["resources"]] == ["x:b"]
        error = await peer.error("resources/read", uri="x:secret/a")
        assert error["data"]["kind"] == "authorization_failed"
        assert (await peer.result("resources/read", uri="x:b"))["contents"][0]["text"] == "b"


async def test_lister_of_hidden_template_is_not_called() -> None:
    server, looked = Server("s", observers=[]), []
    server.add_resource("x:{a}", lambda a: a, list=lambda: looked.append(1) or [], scopes=["notes:write"], thread=False)
    for principal, times in ((READER, 0), (WRITER, 1)):
        async with talking(server, principal, "handshake") as peer:
            assert (await peer.result("resources/list"))["resources"] == []
            assert len(looked) == times


async def test_empty_scopes_allow_everyone() -> None:
    async with talking(offering(scopes=()), "ann", "modern") as peer:
        assert await listed(peer) == ALL
        for method, params in USES:
            await peer.result(method, **params)
        for method in LISTS:
            scope = "private" if method == "resources/list" else "public"  # for which templates make a list
            assert (await peer.result(method))["cacheScope"] == scope


# --- middleware ----------------------------------------------------------------------------------------


async def test_middleware_cache_does_not_bypass_access() -> None:
    server, kept = offering(allow=is_bob), {}

    @server.middleware
    async def keep(call: Call, following: Any) -> Any:
        if (call.method, call.name) not in kept:
            kept[call.method, call.name] = await following(call)
        return kept[call.method, call.name]

    async with talking(server, "bob", "handshake") as peer:
        for method, params in USES:
            await peer.result(method, **params)
    assert len(kept) == len(USES)
    async with talking(server, "ann", "handshake") as peer:
        assert (await peer.result("tools/call", name="tool"))["isError"]
        for method, params in USES[1:]:
            assert (await peer.error(method, **params))["data"]["kind"] == "insufficient_permissions"


async def test_predicate_runs_once_with_middleware() -> None:
    asked, seen = [], []

    def allow(ctx: Context) -> bool:
        asked.append(ctx.principal)
        return True

    server = offering(allow=allow)

    @server.middleware
    async def see(call: Call, following: Any) -> Any:
        seen.append(call.context.principal)
        return await following(call)

    async with talking(server, "ann", "handshake") as peer:
        for method, params in USES:
            await peer.result(method, **params)
    assert asked == seen == ["ann"] * len(USES)


async def test_middleware_redirect_obeys_the_rules_of_its_target() -> None:
    server = offering(scopes=["notes:write"])

    @server.middleware
    async def divert(call: Call, following: Any) -> Any:
        return await following(replace(call, params=replace(call.params, name="tool")))

    async with talking(server, READER, "handshake") as peer:
        error = await peer.error("tools/call", name="open_tool")
        assert error["data"]["kind"] == "authorization_failed"


async def test_access_to_one_entry_does_not_admit_to_another() -> None:
    server = offering(scopes=["notes:write"])
    server.add_tool(lambda: "read", name="read", scopes=["notes:read"], thread=False)

    @server.middleware
    async def divert(call: Call, following: Any) -> Any:
        return await following(replace(call, params=replace(call.params, name="tool")))

    async with talking(server, READER, "handshake") as peer:
        error = await peer.error("tools/call", name="read")
        assert error["data"]["scopes"] == ["notes:write"]


# --- from within a handler -----------------------------------------------------------------------------


@pytest.mark.row("AUT-20")
@ERAS
async def test_handler_can_require_scopes_by_arguments(era: str) -> None:
    server = Server("s", observers=[])

    @server.tool(scopes=["notes:read"])
    def write(folder: str, ctx: Context) -> str:
        if folder != "inbox":
            ctx.require("notes:write", "notes:read")
        return "written"

    @server.tool
    async def anything(scope: str, ctx: Context) -> str:
        ctx.require(scope)
        return "done"

    async with talking(server, READER, era) as peer:
        assert not (await peer.result("tools/call", name="write", arguments={"folder": "inbox"})).get("isError")
        error = await peer.error("tools/call", name="write", arguments={"folder": "archive"})
        assert (error["data"]["kind"], error["data"]["refusal"]["code"]) == ("authorization_failed", 1014)
        assert error["data"]["scopes"] == ["notes:read", "notes:write"]
        error = await peer.error("tools/call", name="anything", arguments={"scope": "mail"})
        assert (error["data"]["kind"], error["data"]["scopes"]) == ("authorization_failed", ["mail"])
        for strange in ('a"b', "a b", "", "ä", "a\r\nb"):  # it would go into a header
            assert (await peer.result("tools/call", name="anything", arguments={"scope": strange}))["isError"]
    async with talking(server, None, era) as peer:  # the user who started the process
        assert not (await peer.result("tools/call", name="anything", arguments={"scope": "mail"})).get("isError")


# --- notifications -------------------------------------------------------------------------------------


async def updates(peer: RawPeer) -> list[str]:
    return [message["params"]["uri"] for message in await peer.quiet() if message.get("method", "").endswith("updated")]


@pytest.mark.parametrize("rule", ["scopes", "allow"])
async def test_updates_stop_after_access_is_lost(rule: str) -> None:
    allowed = {"ann"}
    options: dict[str, Any] = (
        {"scopes": ["notes:write"]} if rule == "scopes" else {"allow": lambda ctx: ctx.principal.subject in allowed}
    )
    server = offering(**options)
    async with hosted(server) as host:
        host.principal = WRITER
        session = await host.session()
        stream = host.begin("GET", mcp_session_id=session)

        async def ask(method: str, params: Any = None) -> None:
            answer = await host.ask("POST", request(method, params), mcp_session_id=session)
            assert "result" in answer.json, answer.body

        for uri in ("x:one", "y:1", "open:one"):
            await ask("resources/subscribe", {"uri": uri})
        await expect_updates(server, stream, "x:one", "y:1", "open:one")
        host.principal = READER
        allowed.clear()
        await ask("ping")
        await expect_updates(server, stream, "open:one")
        host.principal = WRITER
        allowed.add("ann")
        await ask("ping")
        await expect_updates(server, stream, "x:one", "y:1", "open:one")
        stream.gone.set()


async def expect_updates(server: Server, stream: Any, *uris: str) -> None:
    """The notifications after three changes: these, and then one that every client may receive."""
    for uri in ("x:one", "y:1", "open:one"):
        server.notify_updated(uri)
        await settle()
    assert [(await stream.message())["params"]["uri"] for _ in uris] == list(uris)


async def settle() -> None:
    """Run the loop for enough turns to evaluate a predicate that does not wait."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.row("SUB-03")
@pytest.mark.parametrize("options", [{"scopes": ["notes:write"]}, {"allow": is_bob}, {"allow": is_bob_after_a_while}])
async def test_listen_stream_gets_only_readable_updates(options: Any) -> None:
    server, wanted = offering(**options), ["x:one", "y:1", "open:one"]
    for principal, may in ((Principal("bob", scopes=("notes:write",)), True), (READER, False)):
        async with RawPeer(server, principal=principal) as peer:
            peer.call("subscriptions/listen", enveloped(notifications={"resourceSubscriptions": wanted}))
            acknowledged = (await peer.receive())["params"]["notifications"]
            assert acknowledged == {"resourceSubscriptions": wanted if may else ["open:one"]}
            for uri in wanted:
                server.notify_updated(uri)
                await settle()
            heard = [(await peer.receive())["params"]["uri"] for _ in (wanted if may else ["open:one"])]
            assert heard == acknowledged["resourceSubscriptions"]


@pytest.mark.row("SUB-03")
async def test_listen_stream_stops_when_predicate_denies() -> None:
    allowed = {"ann"}
    server = offering(allow=lambda ctx: ctx.principal in allowed)
    async with RawPeer(server, principal="ann") as peer:
        peer.call("subscriptions/listen", enveloped(notifications={"resourceSubscriptions": ["x:one", "open:one"]}))
        assert len((await peer.receive())["params"]["notifications"]["resourceSubscriptions"]) == 2
        allowed.clear()
        for uri in ("x:one", "open:one"):
            server.notify_updated(uri)
            await settle()
        assert (await peer.receive())["params"]["uri"] == "open:one"


async def test_unsubscribe_during_a_predicate_drops_the_update() -> None:
    asked, answer = asyncio.Event(), asyncio.get_running_loop().create_future()
    first = True

    async def allow(ctx: Context) -> bool:
        nonlocal first
        if first:
            first = False
            return True
        asked.set()
        return await answer

    server = Server("s", observers=[])
    server.add_resource("x:one", "text", allow=allow)
    async with talking(server, "ann", "handshake") as peer:
        await peer.result("resources/subscribe", uri="x:one")
        server.notify_updated("x:one")
        await asked.wait()
        await peer.result("resources/unsubscribe", uri="x:one")
        answer.set_result(True)
        await settle()
        assert await updates(peer.raw) == []


async def test_pending_predicate_ends_with_the_server() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()
    answers = iter([True])

    async def allow(ctx: Context) -> bool:
        for answer in answers:
            return answer
        asked.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    server = Server("s", observers=[])
    server.add_resource("x:one", "text", allow=allow)
    async with talking(server, "ann", "handshake") as peer:
        await peer.result("resources/subscribe", uri="x:one")
        server.notify_updated("x:one")
        await asked.wait()
        await server.aclose()
    async with asyncio.timeout(PATIENCE):
        await ended.wait()


async def test_later_rule_applies_to_existing_subscribers() -> None:
    server = Server("s", observers=[], settings=Settings(on_duplicate="replace"))
    server.add_resource("x:one", "text")
    async with talking(server, READER, "handshake") as peer:
        await peer.result("resources/subscribe", uri="x:one")
        server.notify_updated("x:one")
        assert await updates(peer.raw) == ["x:one"]
        server.add_resource("x:one", "text", scopes=["notes:write"])
        server.notify_updated("x:one")
        assert await updates(peer.raw) == []


# --- lists: caching and pages ----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"scopes": ["notes:write"]}, {"allow": is_bob}])
async def test_restricted_results_have_private_cache_scope(options: Any) -> None:
    async with talking(offering(**options), Principal("bob", scopes=("notes:write",)), "modern") as peer:
        for method in LISTS:
            assert (await peer.result(method))["cacheScope"] == "private"
        for uri in ("x:one", "y:1"):
            assert (await peer.result("resources/read", uri=uri))["cacheScope"] == "private"
        assert (await peer.result("resources/read", uri="open:one"))["cacheScope"] == "public"


@pytest.mark.row("Y04")
async def test_cursor_of_restricted_list_is_bound_to_its_principal() -> None:
    server = Server("s", observers=[], settings=Settings(page_size=1))
    for number in range(3):
        server.add_prompt("text", name=f"prompt{number}", scopes=["notes:read"] if number == 1 else None)
        server.add_resource(f"x:{number}", "text", scopes=["notes:read"] if number == 1 else None)
    for method, member in (("prompts/list", "prompts"), ("resources/list", "resources")):
        async with talking(server, READER, "handshake") as peer:
            page = await peer.result(method)
            assert len((await peer.result(method, cursor=page["nextCursor"]))[member]) == 1
        async with talking(server, Principal("bob", scopes=("notes:read",)), "handshake") as peer:
            error = await peer.error(method, cursor=page["nextCursor"])
            assert error["data"]["kind"] == "invalid_cursor"


async def test_single_page_list_is_shared_by_equal_viewers() -> None:
    server = offering(scopes=["notes:write"])
    for subject in ("ann", "bob", "carol"):
        for scopes in (("notes:write",), ("notes:write", "mail"), ("mail",), ()):
            async with talking(server, Principal(subject, scopes=scopes), "handshake") as peer:
                await peer.result("tools/list")
    assert len(server._catalog._page_cache) == 2


# --- public addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["http://127.0.0.1:0/mcp", "tcp://127.0.0.1:0", "unix://{}/socket"])
async def test_scoped_server_refuses_unauthenticated_listener(address: str, tmp_path: Path) -> None:
    server = offering(scopes=["notes:write"])
    with pytest.raises(ConfigError, match=r"tool 'tool', as 3 more, needs scopes.*auth=ResourceServer.*identify="):
        await server.listen(address.format(tmp_path))
    await server.aclose()
    open_to_all = offering(allow=is_bob)
    assert (await open_to_all.listen(address.format(tmp_path))).address
    await open_to_all.aclose()


async def test_scoped_application_starts_with_authentication() -> None:
    for identify in (None, lambda scope: WRITER):
        host = Host(offering(scopes=["notes:write"]))
        host.app = host.server.asgi(identify=identify)
        said = await lifespan(host.app)
        assert said["type"] == ("lifespan.startup.failed" if identify is None else "lifespan.startup.complete")
        assert ("needs scopes" in said.get("message", "")) is (identify is None)


async def lifespan(app: Any) -> Any:
    """The lifespan messages of an application at startup; it is stopped again."""
    said: asyncio.Queue[Any] = asyncio.Queue()
    events = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Any:
        return {"type": next(events)}

    await app({"type": "lifespan"}, receive, said.put)
    return said.get_nowait()


@pytest.mark.row("P12")
async def test_strict_server_needs_a_rule_for_every_entry() -> None:
    auth = ResourceServer(StaticTokens({"a-token-that-is-long-enough-for-anybody": Principal("ann")}), strict=True)
    server = Server("s", observers=[], auth=auth)
    server.add_tool(lambda: None, name="open", scopes=())
    server.add_tool(lambda: None, name="hers", allow=is_bob)
    server.add_prompt("text", name="careless")
    assert server.undeclared() == ["prompt 'careless'"]
    with pytest.raises(MisuseError, match="prompt 'careless'"):
        await server.start()
    server.remove_prompt("careless")
    await server.start()
    await server.aclose()
