"""HTTP+SSE of revision 2024-11-05: a stream from us, and an address to post to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.contract.connections import listener_limits
from tests.unit.transports.http.asgi import Answer, call, request

from trunkline import Server, Settings
from trunkline.transports.channel import ChannelClosed
from trunkline.transports.http.asgi import AsgiExchange, make_request
from trunkline.transports.http.http_sse import HttpSseChannel, HttpSseEndpoint
from trunkline.transports.http.request import Handling, HttpRequest
from trunkline.wire.messages import Notification


class Host:
    """Both addresses of a server."""

    def __init__(self, **settings: Any) -> None:
        self.server = Server("legacy", settings=Settings(**settings))

        @self.server.tool
        async def echo(text: str) -> str:
            return text

        self.endpoint = HttpSseEndpoint(listener_limits(self.server.connect, self.server.settings), "/messages")
        self.principal: Any = None

    def visit(self, handle: Callable[[HttpRequest], Handling], body: bytes | None = None, query: str = "") -> Answer:
        answer = Answer()
        waiting = [] if body is None else [body]

        async def receive() -> dict[str, Any]:
            if waiting:
                return {"type": "http.request", "body": waiting.pop(), "more_body": False}
            await answer.gone.wait()
            return {"type": "http.disconnect"}

        scope: dict[str, Any] = {
            "method": "POST" if handle == self.endpoint.handle_post else "GET",
            "path": "/app",
            "headers": [(b"content-type", b"application/json")],
            "root_path": "/app",
            "query_string": query.encode(),
        }
        exchange = AsgiExchange(receive, answer.send)
        request = make_request(exchange, scope, method=scope["method"])
        request.principal = self.principal
        answer.task = asyncio.get_running_loop().create_task(exchange.serve(request, handle(request)))
        return answer

    async def opened(self) -> tuple[Answer, str]:
        stream = self.visit(self.endpoint.handle_stream)
        event = await stream.event()
        assert event.kind == "endpoint"
        path, _, query = event.data.decode().partition("?")
        assert path == "/app/messages"
        return stream, query

    async def post(self, query: str, message: Any) -> Answer:
        return await self.visit(self.endpoint.handle_post, json.dumps(message).encode(), query).finished()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    one = Host()
    yield one
    one.endpoint.close("over")
    await one.server.aclose()


@pytest.mark.row("W06")
async def test_post_is_answered_on_the_stream(host: Host) -> None:
    stream, query = await host.opened()
    params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    assert (await host.post(query, request("initialize", params, id=0))).status == 202
    assert (await stream.message())["result"]["protocolVersion"] == "2024-11-05"
    await host.post(query, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    await host.post(query, call("echo", text="hi"))
    assert (await stream.message())["result"]["content"][0]["text"] == "hi"
    host.server.add_tool(lambda: 1, name="new")
    assert (await stream.message())["method"] == "notifications/tools/list_changed"
    stream.gone.set()
    await stream.finished()
    assert len(host.endpoint) == 0
    assert host.server.connections == []


async def test_stream_of_another_principal_is_not_found(host: Host) -> None:
    host.principal = "ada"
    _, query = await host.opened()
    host.principal = "eve"
    assert (await host.post(query, request("ping"))).status == 404
    assert (await host.post("session_id=guess", request("ping"))).status == 404
    assert (await host.post("", request("ping"))).status == 404


async def test_close_ends_every_stream(host: Host) -> None:
    stream, _ = await host.opened()
    host.endpoint.close("over")
    await stream.finished()
    assert stream.ended


async def test_stream_limit_and_oversized_message_are_refused() -> None:
    host = Host(max_connections=1, http_body_size_limit=1024)
    stream, query = await host.opened()
    assert (await host.visit(host.endpoint.handle_stream).finished()).status == 503
    assert (await host.post(query, "x" * 2000)).status == 413
    gone = host.visit(host.endpoint.handle_post, None, query)
    gone.gone.set()
    assert (await gone.finished()).status == 0
    stream.gone.set()
    await stream.finished()


async def test_idle_stream_gets_keepalive_comments() -> None:
    host = Host(stream_keepalive=0.01)
    stream, _ = await host.opened()
    while b"\n:\n\n" not in stream.body:
        await asyncio.sleep(0)
    stream.gone.set()
    await stream.finished()


@pytest.mark.row("N14")
async def test_client_that_does_not_read_is_disconnected() -> None:
    told: list[ChannelClosed] = []

    class Told:
        def received(self, messages: Any, origin: Any) -> None:
            raise AssertionError

        def closed(self, closed: ChannelClosed) -> None:
            told.append(closed)

    channel = HttpSseChannel("", Settings(unsent_high=1024, unsent_limit=2048))
    channel.open(Told())
    for _ in range(3):
        channel.send(Notification("notifications/message", "x" * 1500))
    assert channel.closed
    assert "unread" in told[0].reason
