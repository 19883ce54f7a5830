"""Resources: listing, reading and subscriptions."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.processes import StdioPeer

from trunkline import Annotations, Icon, ProtocolError, ResourceContents, ResourceNotFound, Server, Settings
from trunkline.errors import DuplicateEntry
from trunkline.facts import HandlerFailed, SubscriptionStep
from trunkline.protocol.types import ReadResourceResult
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
EXAMPLES = Path(__file__).parents[2] / "examples"
every_revision = pytest.mark.parametrize("revision", REVISIONS)


async def read(peer: RawPeer, uri: str) -> Any:
    return (await peer.result("resources/read", {"uri": uri}))["contents"]


# --- listing -------------------------------------------------------------------------------------

ANNOTATIONS = Annotations(audience=["user", "assistant"], priority=0.8, last_modified="2025-01-02T03:04:05Z")
SHARED = {
    "title": "Read me",
    "mime_type": "text/markdown",
    "annotations": ANNOTATIONS,
    "icons": [Icon("https://example.com/doc.svg", sizes=["any"])],
    "meta": {"owner": "docs"},
}


def documents() -> Server:
    server = Server("t")
    server.add_resource("doc://readme", "# Hi", name="readme", description="Start here.", size=4, **SHARED)

    @server.resource("doc://{chapter}/{page}", **SHARED)
    async def page(chapter: str, page: int) -> str:
        """Any page."""
        return f"{chapter}, {page}"

    server.add_resource("doc://bare", "bare")
    return server


def expected_listing(revision: str, own: dict[str, Any]) -> dict[str, Any]:
    """The listing of a resource with all members that a revision has."""
    found: dict[str, Any] = {**own, "mimeType": "text/markdown"}
    found["annotations"] = {"audience": ["user", "assistant"], "priority": 0.8}
    if revision >= "2025-06-18":
        found |= {"title": "Read me", "_meta": {"owner": "docs"}}
        found["annotations"]["lastModified"] = "2025-01-02T03:04:05Z"
    if revision >= "2025-11-25":
        found["icons"] = [{"src": "https://example.com/doc.svg", "sizes": ["any"]}]
    return found


@pytest.mark.row("RES-02", "R01", "R03", "R04")
@every_revision
async def test_resource_fields_depend_on_the_revision(revision: str) -> None:
    async with RawPeer(documents()) as peer:
        await peer.initialize(revision)
        listed = await peer.result("resources/list")
    own = {"uri": "doc://readme", "name": "readme", "description": "Start here.", "size": 4}
    assert listed == {"resources": [expected_listing(revision, own), {"uri": "doc://bare", "name": "doc://bare"}]}


@pytest.mark.row("R07")
@every_revision
async def test_template_fields_depend_on_the_revision(revision: str) -> None:
    async with RawPeer(documents()) as peer:
        await peer.initialize(revision)
        listed = await peer.result("resources/templates/list")
    own = {"uriTemplate": "doc://{chapter}/{page}", "name": "page", "description": "Any page."}
    assert listed == {"resourceTemplates": [expected_listing(revision, own)]}


@pytest.mark.row("RES-01")
async def test_resource_methods_need_a_resource() -> None:
    async with RawPeer(Server("t")) as peer:
        assert "resources" not in (await peer.initialize())["capabilities"]
        for method in ("resources/list", "resources/templates/list", "resources/read", "resources/subscribe"):
            error = await peer.error(method, {"uri": "doc://readme"})
            assert (error["code"], error["data"]["kind"]) == (-32601, "capability_not_supported")


@pytest.mark.row("R20")
async def test_functions_and_decorators_register_alike() -> None:
    def readme() -> str:
        """Start here."""
        return "# Hi"

    def page(number: int) -> str:
        """Any page."""
        return f"page {number}"

    by_function, by_decorator = Server("t"), Server("t")
    by_function.add_resource("doc://readme", readme)
    by_function.add_resource("doc://{number}/page", page)
    assert by_decorator.resource("doc://readme")(readme) is readme
    assert by_decorator.resource("doc://{number}/page")(page) is page

    seen = []
    for server in (by_function, by_decorator):
        async with RawPeer(server) as peer:
            await peer.initialize()
            lists = [await peer.result(method) for method in ("resources/list", "resources/templates/list")]
            seen.append([*lists, await read(peer, "doc://readme"), await read(peer, "doc://5/page")])
    assert seen[0] == seen[1]
    assert seen[0][0] == {"resources": [{"uri": "doc://readme", "name": "readme", "description": "Start here."}]}
    assert seen[0][3] == [{"uri": "doc://5/page", "mimeType": "text/plain", "text": "page 5"}]


@pytest.mark.row("R21")
@pytest.mark.parametrize("uri", ["doc://readme", "doc://{page}"])
@pytest.mark.parametrize("on_duplicate", ["error", "replace", "warn"])
async def test_duplicate_uri_is_rejected_or_replaces(on_duplicate: Any, uri: str) -> None:
    server = Server("t", settings=Settings(on_duplicate=on_duplicate))
    server.add_resource(uri, lambda page="": "first")
    if on_duplicate == "error":
        with pytest.raises(DuplicateEntry, match="is already registered"):
            server.add_resource(uri, lambda page="": "second")
    elif on_duplicate == "warn":
        with pytest.warns(UserWarning, match="was registered before and is replaced"):
            server.add_resource(uri, lambda page="": "second")
    else:
        server.add_resource(uri, lambda page="": "second")
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await read(peer, "doc://readme"))[0]["text"] == ("first" if on_duplicate == "error" else "second")


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.row("RES-03", "R05", "R10", "PH21")
@pytest.mark.parametrize(
    ("value", "contents"),
    [
        ("text", {"mimeType": "text/plain", "text": "text"}),
        (b"\0\1\2", {"mimeType": "application/octet-stream", "blob": "AAEC"}),
        ({"a": [1]}, {"mimeType": "application/json", "text": '{"a":[1]}'}),
    ],
)
@every_revision
async def test_contents_are_text_base64_or_json(revision: str, value: Any, contents: Any) -> None:
    server = Server("t")
    server.add_resource("doc://value", value)
    server.add_resource("doc://function", lambda: value)
    server.add_resource("doc://function/{n}", lambda n: value)

    @server.resource("doc://async")
    async def later() -> Any:
        return value

    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        for uri in ("doc://value", "doc://function", "doc://function/1", "doc://async"):
            assert await read(peer, uri) == [{"uri": uri, **contents}]


@pytest.mark.row("R06", "X22")
@pytest.mark.parametrize(
    ("value", "mime_type", "contents"),
    [
        ("# Hi", "text/markdown", {"mimeType": "text/markdown", "text": "# Hi"}),
        (b"\x89PNG", "image/png", {"mimeType": "image/png", "blob": "iVBORw=="}),
        (b"RIFF", "audio/wav", {"mimeType": "audio/wav", "blob": "UklGRg=="}),
    ],
)
async def test_contents_have_their_mime_type(value: Any, mime_type: str, contents: Any) -> None:
    server = Server("t")
    server.add_resource("doc://it", value, mime_type=mime_type)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert await read(peer, "doc://it") == [{"uri": "doc://it", **contents}]


@pytest.mark.row("R06")
@every_revision
async def test_resource_may_contain_resource_links(revision: str) -> None:
    server = Server("t")

    @server.resource("dir://all")
    async def everything() -> list[ResourceContents]:
        return [ResourceContents("doc://a", "text/plain", text="a"), ResourceContents("doc://b", blob="AAEC")]

    @server.resource("dir://whole")
    async def whole() -> ReadResourceResult:
        return ReadResourceResult([ResourceContents("doc://a", text="a")])

    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        assert await read(peer, "dir://all") == [
            {"uri": "doc://a", "mimeType": "text/plain", "text": "a"},
            {"uri": "doc://b", "blob": "AAEC"},
        ]
        assert await read(peer, "dir://whole") == [{"uri": "doc://a", "text": "a"}]


@pytest.mark.row("R08")
async def test_template_values_are_passed_by_name() -> None:
    server, seen = Server("t"), []

    @server.resource("user://{username}/profile")
    async def profile(*, username: str) -> str:
        seen.append({"username": username})
        return "it"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await read(peer, "user://alice/profile")
    assert seen == [{"username": "alice"}]


@pytest.mark.row("RES-08", "R09")
async def test_last_variable_matches_slashes_but_not_dot_dot() -> None:
    server, seen = Server("t"), []

    @server.resource("file:///{path}")
    async def file(path: str) -> str:
        seen.append(path)
        return "it"

    async with RawPeer(server) as peer:
        await peer.initialize()
        await read(peer, "file:///app/config.json")
        for climbing in ("file:///../etc/passwd", "file:///app/..%2f..%2fetc/passwd", "file:////etc/passwd"):
            error = await peer.error("resources/read", {"uri": climbing})
            assert (error["code"], error["data"]["kind"]) == (-32602, "resource_access_denied")
    assert seen == ["app/config.json"]


@pytest.mark.row("A09")
async def test_template_escapes_special_characters() -> None:
    server = Server("t")
    server.add_resource("a.b://{x}", lambda x: x)
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await read(peer, "a.b://1"))[0]["text"] == "1"
        assert (await peer.error("resources/read", {"uri": "aXb://1"}))["data"]["kind"] == "resource_not_found"


@pytest.mark.row("R22")
async def test_static_resource_precedes_templates_in_order() -> None:
    server = Server("t")
    server.add_resource("doc://{page}", lambda page: "first template")
    server.add_resource("doc://{other}/{page}", lambda other, page: "second template")
    server.add_resource("doc://a", "static")
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await read(peer, "doc://a"))[0]["text"] == "static"
        assert (await read(peer, "doc://b/c"))[0]["text"] == "first template"
        server.templates.disable("doc://{page}")
        assert (await read(peer, "doc://b/c"))[0]["text"] == "second template"
        server.templates.enable("doc://{page}")
        assert (await read(peer, "doc://b/c"))[0]["text"] == "first template"
        server.resources.disable("doc://a")
        assert (await read(peer, "doc://a"))[0]["text"] == "first template"


@pytest.mark.no_cover
@pytest.mark.row("A08")
async def test_read_one_of_100_000_resources() -> None:
    server = Server("t")
    for number in range(100_000):
        server.add_resource(f"doc://{number}", str(number))
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await read(peer, "doc://77777"))[0]["text"] == "77777"


# --- failed reads --------------------------------------------------------------------------------


@pytest.mark.row("RES-06", "X10")
@every_revision
async def test_missing_resource_has_its_own_error_code(revision: str) -> None:
    server = documents()

    @server.resource("user://{name}")
    async def user(name: str) -> str:
        raise ResourceNotFound(f"user://{name}")

    async with RawPeer(server) as peer:
        await peer.initialize(revision)
        for uri in ("nope://x", "user://nobody"):
            error = await peer.error("resources/read", {"uri": uri})
            assert error["code"] == -32002
            assert error["data"] == {"kind": "resource_not_found", "uri": uri}


@pytest.mark.row("R15", "Y11")
@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("::::", "invalid_uri"),
        ("", "invalid_uri"),
        ("doc://a b", "uri_syntax_error"),
        ("doc://" + "x" * 2048, "uri_too_long"),
        (5, "invalid_params"),
        ("doc://chapter/notanumber", "invalid_params"),
    ],
)
async def test_invalid_uri_is_invalid_params(uri: Any, kind: str) -> None:
    async with RawPeer(documents()) as peer:
        await peer.initialize()
        error = await peer.error("resources/read", {"uri": uri})
        assert (error["code"], error["data"]["kind"]) == (-32602, kind)


@pytest.mark.row("R15")
@pytest.mark.parametrize("uri", ["::::", "doc://a b"])
async def test_subscribing_to_invalid_uri_is_rejected(uri: str) -> None:
    async with RawPeer(documents()) as peer:
        await peer.initialize()
        assert (await peer.error("resources/subscribe", {"uri": uri}))["code"] == -32602


def failing(**options: Any) -> Server:
    server = Server("t", **options)

    @server.resource("doc://secret")
    def secret() -> str:
        raise ValueError("password: hunter2")

    @server.resource("doc://unsendable/{n}")
    async def unsendable(n: str) -> ResourceContents:
        return ResourceContents("doc://hunter2")

    @server.resource("doc://declined")
    async def declined() -> str:
        raise ProtocolError("not for you")

    return server


@pytest.mark.row("R16")
@pytest.mark.parametrize(
    ("uri", "kind"), [("doc://secret", "internal_error"), ("doc://unsendable/1", "invalid_content")]
)
@every_revision
async def test_failing_handler_hides_its_reason(revision: str, uri: str, kind: str) -> None:
    observer = RecordingObserver()
    async with RawPeer(failing(observers=[observer])) as peer:
        await peer.initialize(revision)
        error = await peer.error("resources/read", {"uri": uri})
        assert not any(b"hunter2" in frame for _, frame in peer.transcript.frames)
    (failed,) = observer.of(HandlerFailed)
    assert error["code"] == -32603
    assert error["data"] == {"kind": kind, "reference": failed.reference}
    assert error["message"] == f"resources/read failed; the log has the details under {failed.reference}"
    assert str(failed.error) in {"password: hunter2", "the contents of a resource are either text or a blob"}


@pytest.mark.row("R16")
async def test_traceback_is_logged_and_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "trunkline"):
        async with RawPeer(failing()) as peer:
            await peer.initialize()
            error = await peer.error("resources/read", {"uri": "doc://secret"})
            assert (await peer.error("resources/read", {"uri": "doc://declined"}))["message"] == "not for you"
    (record,) = caplog.records
    assert error["data"]["reference"] in record.getMessage()
    assert "Traceback" in caplog.text
    assert "ValueError: password: hunter2" in caplog.text


# --- subscriptions -------------------------------------------------------------------------------


def updated(uri: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}


@pytest.mark.row("RES-04", "R11", "R12", "R13", "X12", "PH22")
@every_revision
async def test_subscribe_is_idempotent_and_unsubscribe_ends_it(revision: str) -> None:
    server = documents()
    async with RawPeer(server) as peer:
        capabilities = (await peer.initialize(revision))["capabilities"]
        assert capabilities["resources"] == {"subscribe": True, "listChanged": True}
        assert await peer.result("resources/subscribe", {"uri": "doc://readme"}) == {}
        assert await peer.result("resources/subscribe", {"uri": "doc://readme"}) == {}
        server.notify_updated("doc://readme")
        server.notify_updated("doc://bare")
        assert await peer.quiet() == [updated("doc://readme")]
        assert await peer.result("resources/unsubscribe", {"uri": "doc://readme"}) == {}
        assert await peer.result("resources/unsubscribe", {"uri": "doc://readme"}) == {}
        assert await peer.result("resources/unsubscribe", {"uri": "doc://unknown"}) == {}
        server.notify_updated("doc://readme")
        assert await peer.quiet() == []


@pytest.mark.row("B15")
async def test_client_may_subscribe_before_the_resource_exists() -> None:
    server = documents()
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert await peer.result("resources/subscribe", {"uri": "doc://later"}) == {}
        server.add_resource("doc://later", "now it is here")
        assert [message["method"] for message in await peer.quiet()] == ["notifications/resources/list_changed"]
        server.notify_updated("doc://later")
        assert await peer.quiet() == [updated("doc://later")]


@pytest.mark.row("R17", "A10", "PH23")
async def test_update_reaches_only_its_subscribers() -> None:
    server = documents()
    async with RawPeer(server) as a, RawPeer(server) as b, RawPeer(server) as c:
        for peer in (a, b, c):
            await peer.initialize()
        for peer in (a, b):
            await peer.result("resources/subscribe", {"uri": "doc://readme"})
        await c.result("resources/subscribe", {"uri": "doc://bare"})
        server.notify_updated("doc://readme")
        assert [await peer.quiet() for peer in (a, b, c)] == [[updated("doc://readme")], [updated("doc://readme")], []]


@pytest.mark.row("R14", "PH22")
async def test_subscribe_needs_the_capability() -> None:
    server, watched = Server("t", subscribe=False), []
    server.add_resource("doc://readme", "# Hi")
    server.on_first_subscriber(watched.append)
    async with RawPeer(server) as peer:
        assert (await peer.initialize())["capabilities"]["resources"] == {"listChanged": True}
        for method in ("resources/subscribe", "resources/unsubscribe"):
            error = await peer.error(method, {"uri": "doc://readme"})
            assert (error["code"], error["data"]["kind"]) == (-32601, "capability_not_supported")
        server.notify_updated("doc://readme")
        assert await peer.quiet() == []
    assert watched == []


@pytest.mark.row("R23", "A11", "AD006", "PH25")
async def test_subscriptions_end_with_the_connection() -> None:
    server, ended = documents(), []
    server.on_last_unsubscribed(ended.append)
    async with RawPeer(server) as staying:
        await staying.initialize()
        async with RawPeer(server) as going:
            await going.initialize()
            for uri in ("doc://readme", "doc://bare"):
                await going.result("resources/subscribe", {"uri": uri})
            await staying.result("resources/subscribe", {"uri": "doc://bare"})
            assert len(server.connections) == 2
        await staying.quiet()
        assert server.connections == [staying.connection]
        assert ended == ["doc://readme"]
        server.notify_updated("doc://readme")
        server.notify_updated("doc://bare")
        assert await staying.quiet() == [updated("doc://bare")]


@pytest.mark.row("R23")
async def test_hook_failing_after_disconnect_is_reported() -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])
    server.add_resource("doc://readme", "# Hi")

    @server.on_last_unsubscribed
    async def unwatch(uri: str) -> None:
        raise OSError("still there")

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "doc://readme"})
    await server.aclose()
    (failed,) = observer.of(HandlerFailed)
    assert (failed.method, str(failed.error)) == ("resources/unsubscribe", "still there")


@pytest.mark.row("R11")
async def test_subscription_is_confirmed_after_its_hook() -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])
    server.add_resource("doc://readme", "# Hi")
    server.add_resource("doc://bad", "# Hi")

    @server.on_first_subscriber
    async def watch(uri: str) -> None:
        if uri == "doc://bad":
            raise OSError("password: hunter2")

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.result("resources/subscribe", {"uri": "doc://readme"})
        steps = [step.step for step in observer.of(SubscriptionStep)]
        assert steps == ["RegisterSubscription", "SetupWatcher", "ConfirmSubscription"]
        error = await peer.error("resources/subscribe", {"uri": "doc://bad"})
        assert (error["code"], error["data"]["kind"]) == (-32603, "subscription_failed")
        assert "hunter2" not in error["message"]
        server.notify_updated("doc://bad")
        assert await peer.quiet() == []


# --- changes -------------------------------------------------------------------------------------


@pytest.mark.row("RES-05", "R19", "PH24")
@pytest.mark.parametrize("uri", ["doc://new", "doc://new/{page}"])
async def test_adding_and_removing_are_announced_separately(uri: str) -> None:
    clock = ManualClock()
    server = Server("t", resources=True, clock=clock)
    async with RawPeer(server) as peer:
        await peer.initialize()
        server.add_resource(uri, lambda page="": page)
        assert [message["method"] for message in await peer.quiet()] == ["notifications/resources/list_changed"]
        clock.advance(0.2)
        server.remove_resource(uri)
        assert [message["method"] for message in await peer.quiet()] == ["notifications/resources/list_changed"]


@pytest.mark.row("R19")
async def test_undeclared_changes_are_not_announced() -> None:
    server = Server("t", resources=True, list_changed=False)
    async with RawPeer(server) as peer:
        assert (await peer.initialize())["capabilities"]["resources"] == {"subscribe": True}
        server.add_resource("doc://new", "text")
        server.remove_resource("doc://new")
        assert await peer.quiet() == []


# --- the example ---------------------------------------------------------------------------------


@pytest.mark.row("R24")
def test_documents_example_is_read_and_watched() -> None:
    with StdioPeer((EXAMPLES / "documents.py").read_text()) as peer:
        peer.initialize()
        (readme,) = peer.result("resources/read", {"uri": "doc://readme"})["contents"]
        assert readme["mimeType"] == "text/markdown"
        assert readme["text"].startswith("# Read me")
        assert peer.result("resources/read", {"uri": "weather://city"})["contents"] == [
            {"uri": "weather://city", "mimeType": "application/json", "text": '{"Berlin":21,"Oslo":14}'}
        ]
        (city,) = peer.result("resources/read", {"uri": "weather://city/Oslo"})["contents"]
        assert city["text"].startswith("14 degrees in Oslo at ")
        assert peer.request("resources/read", {"uri": "weather://city/Atlantis"})["error"]["code"] == -32002
        peer.result("resources/subscribe", {"uri": "weather://city"})
        peer.tool("measure", city="Oslo", degrees=15)
        assert peer.receive() == updated("weather://city")
