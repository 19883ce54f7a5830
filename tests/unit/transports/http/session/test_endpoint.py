"""Streamable HTTP, the server's side: requests in, answers and streams out."""

import asyncio
from typing import Any

import pytest
from tests.unit.transports.http.asgi import Host, call, hosted, request

from trunkline import Context, Server, Settings
from trunkline.errors import MisuseError
from trunkline.testing import ManualClock
from trunkline.transports.origin_policy import ANY_IP_ADDRESS, HostOriginPolicy


class Scene:
    """A server with tools that wait for us."""

    def __init__(self, **settings: Any) -> None:
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.server = Server("scene", settings=Settings(**settings))
        self.server.add_resource("a:1", lambda: "one")

        @self.server.tool
        async def echo(text: str) -> str:
            return text

        @self.server.tool
        async def wait() -> str:
            self.began.set()
            await self.go.wait()
            return "waited"

        @self.server.tool
        async def steps(ctx: Context) -> str:
            ctx.progress(1, 2)
            await self.go.wait()
            ctx.progress(2, 2)
            return "done"

        @self.server.tool
        async def sample(ctx: Context) -> str:
            return str((await ctx.sample("hi")).model)

        @self.server.tool
        async def release(ctx: Context) -> str:
            ctx.progress(1)
            ctx.close_stream()
            await self.go.wait()
            return "later"


# --- POST --------------------------------------------------------------------------------------------


@pytest.mark.row("W04")
async def test_call_is_answered_with_plain_json() -> None:
    async with hosted(Scene().server) as host:
        ident = await host.session()
        answer = await host.ask("POST", call("echo", text="hi"), mcp_session_id=ident)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["result"]["structuredContent"] == {"result": "hi"}


@pytest.mark.row("W04")
async def test_message_before_the_reply_makes_the_response_a_stream() -> None:
    scene = Scene()
    async with hosted(scene.server) as host:
        ident = await host.session()
        answer = host.begin("POST", call("steps", token="t"), mcp_session_id=ident, mcp_protocol_version="2025-11-25")
        first = await answer.event()
        assert (first.data, first.id) == (b"", "1-0")  # where to read on, before anything else
        assert (await answer.message())["params"]["progress"] == 1
        scene.go.set()
        assert (await answer.message())["params"]["progress"] == 2
        assert (await answer.message())["result"]["structuredContent"] == {"result": "done"}
        await answer.finished()
    assert answer.ended
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-accel-buffering"] == "no"
    assert b"retry: 1000\n" in answer.body


async def test_stream_of_older_revision_has_no_priming_event() -> None:
    scene = Scene()
    scene.go.set()
    async with hosted(scene.server) as host:
        ident = await host.session("2025-06-18")
        headers = {"mcp_session_id": ident, "mcp_protocol_version": "2025-06-18"}
        answer = await host.ask("POST", call("steps", token="t"), **headers)
    assert answer.body.startswith(b"event: message\nid: 1-1\n")


@pytest.mark.row("W20", "X26")
async def test_notification_is_answered_202_without_body() -> None:
    async with hosted(Scene().server) as host:
        await host.session()  # which says so


async def test_long_call_becomes_a_stream_with_keepalive() -> None:
    scene = Scene(stream_keepalive=0.01)
    async with hosted(scene.server) as host:
        ident = await host.session()
        answer = host.begin("POST", call("wait"), mcp_session_id=ident)
        await answer.event()
        while b"\n:\n\n" not in answer.body:
            await asyncio.sleep(0)
        scene.go.set()
        assert (await answer.message())["result"]["structuredContent"] == {"result": "waited"}


async def test_request_to_client_is_sent_on_the_stream_of_its_call() -> None:
    scene = Scene()
    async with hosted(scene.server) as host:
        ident = await host.session(capabilities={"sampling": {}})
        answer = host.begin("POST", call("sample"), mcp_session_id=ident)
        asked = await answer.message()
        assert asked["method"] == "sampling/createMessage"
        reply = {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m-1"}
        told = await host.ask("POST", {"jsonrpc": "2.0", "id": asked["id"], "result": reply}, mcp_session_id=ident)
        assert told.status == 202
        assert (await answer.message())["result"]["structuredContent"] == {"result": "m-1"}


async def test_equal_ids_in_two_sessions_do_not_collide() -> None:
    scene = Scene()
    async with hosted(scene.server) as host:
        one, other = await host.session(), await host.session()
        answers = [
            await host.ask("POST", call("echo", id=7, text=text), mcp_session_id=ident)
            for ident, text in ((one, "one"), (other, "other"))
        ]
    assert [answer.json["result"]["structuredContent"]["result"] for answer in answers] == ["one", "other"]


async def test_duplicate_id_is_refused_and_first_call_is_answered() -> None:
    scene = Scene()
    async with hosted(scene.server) as host:
        ident = await host.session()
        first = host.begin("POST", call("wait", id=5), mcp_session_id=ident)
        await scene.began.wait()
        second = await host.ask("POST", call("echo", id=5, text="x"), mcp_session_id=ident)
        assert second.json["error"]["data"]["kind"] == "request_id_conflict"
        scene.go.set()
        assert (await first.finished()).json["result"]["structuredContent"] == {"result": "waited"}


async def test_batch_is_answered_in_revisions_with_batches() -> None:
    async with hosted(Scene().server) as host:
        ident = await host.session("2025-03-26")
        batch = [call("echo", id=1, text="a"), call("echo", id=2, text="b")]
        answer = await host.ask("POST", batch, mcp_session_id=ident)
        newer = await host.session()
        refused = await host.ask("POST", batch, mcp_session_id=newer)
    assert [one["id"] for one in answer.json] == [1, 2]
    assert (refused.status, refused.json["error"]["code"]) == (200, -32600)


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_type": None}, 415),
        ({"accept": "application/json"}, 406),
        ({"accept": "text/html"}, 406),
        ({"accept": "*/*"}, 200),
        ({"accept": "application/*, text/*"}, 200),
        ({"accept": "Application/JSON, Text/Event-Stream"}, 200),
        ({"accept": "application/json, text/event-stream;q=0"}, 406),
        ({"accept": "*/*, application/json;q=0"}, 406),
        ({"accept": None}, 406),
        ({"accept": ("application/json", "text/event-stream")}, 200),
        ({"content_type": "Application/JSON; charset=UTF-8"}, 200),
        ({"content_type": "application/json; charset=utf-16"}, 415),
        ({"mcp_protocol_version": "1999-01-01"}, 400),
        ({"mcp_protocol_version": "2025-06-18"}, 200),
        ({"mcp_session_id": None}, 400),
        ({"mcp_session_id": "nobody's"}, 404),
        ({"host": "evil.example.com"}, 403),
        ({"host": None}, 403),
        ({"host": "127.0.0.1:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"origin": "http://evil.example.com"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
    ],
)
async def test_invalid_headers_are_refused(headers: dict[str, Any], status: int) -> None:
    async with hosted(Scene().server) as host:
        ident = await host.session()
        answer = await host.ask("POST", call("echo", text="x"), **({"mcp_session_id": ident} | headers))
    assert answer.status == status
    if status == 403:
        assert "allowed_" in answer.json["error"]["message"]  # the setting that would let it in


@pytest.mark.row("P07")
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'"text"', b"[]"])
async def test_malformed_message_is_refused_with_an_error(body: bytes) -> None:
    async with hosted(Scene().server) as host:
        without = await host.ask("POST", body)
        ident = await host.session()
        within = await host.ask("POST", body, mcp_session_id=ident)
    for answer in (without, within):
        assert answer.status == 400
        assert answer.json["error"]["code"] in {-32700, -32600}


@pytest.mark.row("W16", "W18")
async def test_oversized_body_is_refused_before_it_is_read() -> None:
    async with hosted(Scene(http_body_size_limit=1024).server) as host:
        told = await host.ask("POST", b"x", content_length="1025")
        found = await host.ask("POST", pieces=[b"x" * 1000, b"x" * 25])
    for answer in (told, found):
        assert answer.status == 413
        assert answer.json["error"]["data"]["kind"] == "message_size_exceeds_maximum"


async def test_slow_body_is_refused_after_body_timeout() -> None:
    clock = ManualClock()
    async with hosted(Scene(body_timeout=30.0).server, clock=clock) as host:
        slow = host.begin("POST", pieces=[b"{"])
        await asyncio.sleep(0)
        clock.advance(29)
        await asyncio.sleep(0)
        assert not slow.status
        clock.advance(1)
        assert (await slow.finished()).status == 408


async def test_disconnect_during_the_body_gets_no_response() -> None:
    async with hosted(Scene().server) as host:
        slow = host.begin("POST", pieces=[b"{"])
        slow.gone.set()
        await slow.finished()
    assert slow.status == 0


async def test_unknown_method_is_405_and_unknown_path_is_404() -> None:
    async with hosted(Scene().server, path="/mcp") as host:
        assert (await host.ask("PUT", path="/mcp")).status == 405
        assert (await host.ask("POST", path="/elsewhere")).status == 404
        assert (await host.ask("POST", b"{", path="/mcp/")).status == 400


async def test_duplicate_header_is_refused() -> None:
    async with hosted(Scene().server) as host:
        answer = host.begin("POST")
        answer.task.cancel()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "headers": [(b"host", b"localhost"), (b"mcp-session-id", b"a"), (b"mcp-session-id", b"b")],
        }
        await host.app(scope, lambda: asyncio.sleep(0), answer.send)
    assert answer.status == 400


# --- GET and DELETE ----------------------------------------------------------------------------------


@pytest.mark.row("W06")
async def test_standalone_stream_carries_unrelated_messages() -> None:
    scene = Scene()
    async with hosted(scene.server) as host:
        ident = await host.session()
        stream = host.begin("GET", mcp_session_id=ident)
        await stream.event()
        scene.server.add_tool(lambda: 1, name="new")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        await host.ask("POST", request("resources/subscribe", {"uri": "a:1"}), mcp_session_id=ident)
        scene.server.notify_updated("a:1")
        assert (await stream.message())["params"] == {"uri": "a:1"}
        assert (await host.ask("DELETE", mcp_session_id=ident)).status == 204
        await stream.finished()
        assert stream.ended
        assert (await host.ask("DELETE", mcp_session_id=ident)).status == 404


@pytest.mark.row("W06")
async def test_broken_stream_is_resumed_without_loss() -> None:
    scene = Scene()
    async with hosted(scene.server) as host:
        ident = await host.session()
        first = host.begin("POST", call("steps", token="t"), mcp_session_id=ident)
        await first.event()
        last = await first.event()
        first.gone.set()
        await first.finished()
        scene.go.set()
        again = await host.ask("GET", mcp_session_id=ident, last_event_id=last.id)
        assert [(await again.message()).get("id") for _ in range(2)] == [None, 1]
        assert again.body.startswith(b"event: message\nid: 1-2\n")  # nothing but what was missed
        whole = await host.ask("GET", mcp_session_id=ident, last_event_id="1-0")
        assert [(await whole.message())["jsonrpc"] for _ in range(3)] == ["2.0"] * 3


@pytest.mark.row("W06")
async def test_close_stream_lets_the_client_resume_later() -> None:
    scene = Scene()
    async with hosted(scene.server) as host:
        ident = await host.session()
        answer = await host.ask("POST", call("release", token="t"), mcp_session_id=ident)
        assert answer.ended
        scene.go.set()
        again = await host.ask("GET", mcp_session_id=ident, last_event_id="1-0")
        assert (await again.message())["params"]["progress"] == 1
        assert (await again.message())["result"]["structuredContent"] == {"result": "later"}


async def test_events_without_reader_are_delivered_later_and_once() -> None:
    scene = Scene()
    async with hosted(scene.server) as host:
        ident = await host.session()
        scene.server.add_tool(lambda: 1, name="new")
        stream = host.begin("GET", mcp_session_id=ident)
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        other = host.begin("GET", mcp_session_id=ident)
        await other.event()
        await stream.finished()  # the last who comes reads
        other.gone.set()
        await other.finished()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"accept": "application/json"}, 406),
        ({"accept": "text/event-stream;q=0, */*"}, 406),
        ({"mcp_session_id": None}, 400),
        ({"mcp_session_id": "x"}, 404),
        ({"last_event_id": "x"}, 400),
        ({"last_event_id": "77-1"}, 400),
    ],
)
async def test_invalid_get_is_refused(headers: dict[str, Any], status: int) -> None:
    async with hosted(Scene().server) as host:
        ident = await host.session()
        assert (await host.ask("GET", **({"mcp_session_id": ident} | headers))).status == status


# --- sessions ----------------------------------------------------------------------------------------


@pytest.mark.row("D17")
async def test_session_of_another_principal_is_not_found() -> None:
    async with hosted(Scene().server) as host:
        host.principal = "ada"
        ident = await host.session()
        host.principal = "eve"
        answers = [
            await host.ask("POST", call("echo", text="x"), mcp_session_id=ident),
            await host.ask("GET", mcp_session_id=ident),
            await host.ask("DELETE", mcp_session_id=ident),
        ]
        assert [answer.status for answer in answers] == [404, 404, 404]


@pytest.mark.row("D06")
async def test_idle_session_expires() -> None:
    clock = ManualClock()
    async with hosted(Scene().server, clock=clock) as host:
        ident = await host.session()
        clock.advance(3000)
        assert (await host.ask("POST", request("ping"), mcp_session_id=ident)).status == 200
        clock.advance(3000)
        assert (await host.ask("POST", request("ping"), mcp_session_id=ident)).status == 200
        clock.advance(3700)
        assert (await host.ask("POST", request("ping"), mcp_session_id=ident)).status == 404
        assert host.server.connections == []


@pytest.mark.row("D06")
async def test_session_with_open_stream_does_not_expire() -> None:
    clock = ManualClock()
    async with hosted(Scene().server, clock=clock) as host:
        ident = await host.session()
        stream = host.begin("GET", mcp_session_id=ident)
        await stream.event()
        clock.advance(9000)
        assert (await host.ask("POST", request("ping"), mcp_session_id=ident)).status == 200


@pytest.mark.row("Q08")
async def test_session_limit_refuses_and_never_evicts_used_sessions() -> None:
    async with hosted(Scene(max_sessions=3, max_sessions_per_principal=2).server) as host:
        host.principal = "ada"
        idents = [await host.session() for _ in range(2)]
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        third = await host.ask("POST", request("initialize", params))
        host.principal = "bob"
        await host.session()
        fourth = await host.ask("POST", request("initialize", params))
        assert (third.status, fourth.status) == (503, 503)
        assert "retry-after" in fourth.headers
        host.principal = "ada"
        for ident in idents:
            assert (await host.ask("POST", request("ping"), mcp_session_id=ident)).status == 200


async def test_failed_handshake_leaves_no_session() -> None:
    async with hosted(Scene().server) as host:
        answer = await host.ask("POST", request("initialize", {"protocolVersion": 5}))
        assert answer.json["error"]["code"] == -32602
        assert "mcp-session-id" not in answer.headers
        assert host.endpoint is not None
        assert len(host.endpoint.sessions) == 0


async def test_aclose_ends_every_stream() -> None:
    scene = Scene(drain_timeout=5.0)
    host = Host(scene.server)
    ident = await host.session()
    stream = host.begin("GET", mcp_session_id=ident)
    running = host.begin("POST", call("wait"), mcp_session_id=ident)
    await stream.event()
    await scene.began.wait()
    ending = asyncio.create_task(host.app.aclose())
    scene.go.set()
    await ending
    await stream.finished()
    await running.finished()
    assert stream.ended
    assert running.json["result"]["structuredContent"] == {"result": "waited"}


# --- pages -------------------------------------------------------------------------------------------


async def test_allowed_origin_gets_cors_headers() -> None:
    async with hosted(Scene(allowed_origins=("https://app.example.org",)).server) as host:
        asked = await host.ask("OPTIONS", origin="https://app.example.org")
        assert asked.status == 204
        assert "mcp-session-id" in asked.headers["access-control-allow-headers"]
        refused = await host.ask("OPTIONS", origin="https://other.example.org")
        assert refused.status == 403
        ident = await host.session()
        answer = await host.ask("POST", request("ping"), mcp_session_id=ident, origin="https://app.example.org")
    assert answer.headers["access-control-allow-origin"] == "https://app.example.org"
    assert "mcp-session-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("hosts", "name", "let_in"),
    [
        (["example.org"], "example.org", True),
        (["example.org"], "EXAMPLE.org:443", True),
        (["example.org:443"], "example.org:443", True),
        (["example.org:443"], "example.org:80", False),
        (["*.example.org"], "a.example.org", True),
        (["*.example.org"], "example.org", False),
        (["*.example.org"], "evilexample.org", False),
        (["*"], "anything", True),
        (["example.org"], "example.org.evil.com", False),
        ([ANY_IP_ADDRESS], "10.0.0.7:8000", True),
        ([ANY_IP_ADDRESS], "[fe80::1]:8000", True),
        ([ANY_IP_ADDRESS], "ten.example.org", False),
        ([ANY_IP_ADDRESS], "10.0.0.7.example.org", False),
    ],
)
def test_only_allowed_hosts_are_served(hosts: list[str], name: str, let_in: bool) -> None:
    door = HostOriginPolicy(hosts)
    for _ in range(2):  # decided once, and kept
        assert (door.refusal_reason(name.encode(), None) is None) is let_in


async def test_lifespan_starts_and_ends_the_application() -> None:
    scene = Scene()
    host = Host(scene.server)
    steps: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    said: asyncio.Queue[str] = asyncio.Queue()

    async def send(message: dict[str, Any]) -> None:
        await said.put(message["type"])

    living = asyncio.create_task(host.app({"type": "lifespan"}, steps.get, send))
    await steps.put({"type": "lifespan.startup"})
    assert await said.get() == "lifespan.startup.complete"
    ident = await host.session()
    assert ident
    await steps.put({"type": "lifespan.shutdown"})
    assert await said.get() == "lifespan.shutdown.complete"
    await living
    assert scene.server.connections == []


async def test_lifespan_reports_a_failed_start() -> None:
    async def broken(_: Any) -> Any:
        raise RuntimeError("no database")
        yield

    host = Host(Server("broken", lifespan=broken))
    said: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    async def startup() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    await host.app({"type": "lifespan"}, startup, send)
    assert said == [{"type": "lifespan.startup.failed", "message": "no database"}]


async def test_unknown_asgi_scope_raises() -> None:
    with pytest.raises(NotImplementedError):
        await Host(Scene().server).app({"type": "telegraph"}, None, None)


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/jsonx", False),
        ("text/plain; application/json", False),
    ],
)
async def test_post_must_be_json(kind: str, taken: bool) -> None:
    async with hosted(Scene().server) as host:
        ident = await host.session()
        answer = await host.ask("POST", request("ping"), mcp_session_id=ident, content_type=kind)
    assert answer.status == (200 if taken else 415)


async def test_principal_must_be_hashable() -> None:
    async with hosted(Scene().server) as host:
        host.principal = {"name": "somebody"}
        with pytest.raises(MisuseError, match="identify= must return a hashable principal, such as a name, not dict"):
            await host.session()
        host.principal = None
