"""Messages that clients receive when a server shuts down, on each transport and in both eras."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.attacks.raw import INITIALIZED, Answer, Caller, begin, call, initialize, request, tool
from tests.modern import enveloped, headers_of
from tests.spec.test_shutdown import RunningServer
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from trunkline.testing import RawPeer

pytestmark = pytest.mark.off_the_record  # bytes of ours
LISTEN = enveloped(notifications={"toolsListChanged": True})


class LineClient:
    """A client on a socket, with one message per line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def say(self, message: Any) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def asked(self, message: Any) -> Any:
        self.say(message)
        return json.loads(await self._reader.readline())


class EndingServer:
    """A server on HTTP and TCP that shuts down on request, but not before `go`."""

    def __init__(self, stack: AsyncExitStack, **settings: Any) -> None:
        self.subject = RunningServer(**settings)
        self.port = self.tcp = 0
        self._stack = stack
        self._ending: asyncio.Task[tuple[str, ...]] | None = None

    async def listen(self) -> "EndingServer":
        places = [await self.subject.server.listen(place) for place in ("http://127.0.0.1:0/mcp", "tcp://127.0.0.1:0")]
        self.port, self.tcp = (int(place.address.rpartition(":")[2].partition("/")[0]) for place in places)
        await self.caller_at(self.port, call("tools/call", {"name": "waits"}), await begin(self.port))
        await self.subject.begun.wait()
        return self

    async def caller(self, port: int) -> Caller:
        """A connection that exists before the shutdown begins."""
        return await self._stack.enter_async_context(Caller(port))

    async def caller_at(self, port: int, message: Any, session: str | None = None, **headers: Any) -> Caller:
        caller = await self.caller(port)
        caller.say(request("POST", "/mcp", message, mcp_session_id=session, **headers))
        return caller

    async def begins(self) -> None:
        self._ending = asyncio.create_task(self.subject.server.shutdown())
        await self.subject.observer.draining.wait()

    async def ends(self) -> tuple[str, ...]:
        self.subject.go.set()
        assert self._ending is not None
        return await self._ending


@asynccontextmanager
async def ending(**settings: Any) -> AsyncIterator[EndingServer]:
    async with AsyncExitStack() as stack:
        made = EndingServer(stack, **settings)
        try:
            yield await made.listen()
        finally:
            made.subject.go.set()
            await made.subject.server.aclose()


async def asked(caller: Caller, message: Any, **headers: Any) -> Answer:
    """Return the response on an open connection."""
    caller.say(request("POST", "/mcp", message, **headers))
    return await caller.answer()


@pytest.mark.row("D11", "Q08")
async def test_http_shutdown_refuses_new_clients_and_known_sessions() -> None:
    async with ending() as server:
        session = await begin(server.port)
        lines = [await server.caller(server.port) for _ in range(6)]
        await server.begins()
        new = await asked(lines[0], initialize())
        modern = await asked(
            lines[1], call("tools/call", enveloped(name="quick")), **headers_of("tools/call", {"name": "quick"})
        )
        lines[2].say(request("GET", "/mcp", None, mcp_session_id=session))
        lines[3].say(request("GET", "/sse", None))
        for answer in (new, modern, await lines[2].answer(), await lines[3].answer()):
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.refusal["data"]["kind"] == "temporarily_unavailable"
        refused = await asked(lines[4], call("tools/call", {"name": "quick"}), mcp_session_id=session)
        assert (refused.status, refused.refusal["code"]) == (200, 1008)
        assert (await asked(lines[5], call("ping"), mcp_session_id=session)).json["result"] == {}
        assert await server.ends() == ()


@pytest.mark.row("D11")
async def test_http_shutdown_ends_streams_with_a_retry_time() -> None:
    async with ending(stream_retry=0.25) as server:
        stream, older = await server.caller(server.port), await server.caller(server.port)
        stream.say(request("GET", "/mcp", None, mcp_session_id=await begin(server.port)))
        older.say(request("GET", "/sse", None))
        for caller in (stream, older):
            assert (await caller.head()).status == 200
        await server.begins()
        assert b"retry: 250" in b"".join([piece async for piece in stream.pieces()])
        assert b"event: endpoint" in b"".join([piece async for piece in older.pieces()])
        assert await server.ends() == ()


@pytest.mark.row("D11")
async def test_shutdown_answers_open_listen_requests() -> None:
    async with ending() as server:
        over_http = await server.caller_at(
            server.port,
            call("subscriptions/listen", LISTEN, ident="mine"),
            **headers_of("subscriptions/listen", LISTEN),
        )
        assert (await over_http.head()).status == 200
        heard = over_http.messages()
        assert (await anext(heard))["method"] == "notifications/subscriptions/acknowledged"
        async with RawPeer(server.subject.server) as peer:
            ident = peer.call("subscriptions/listen", LISTEN)
            assert (await peer.receive())["method"] == "notifications/subscriptions/acknowledged"
            await server.begins()
            assert [message["id"] async for message in heard] == ["mine"]
            assert "result" in await peer.answer_to(ident)
            told = await peer.receive()
            assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", ident)
            assert await server.ends() == ()


@pytest.mark.row("D11")
async def test_shutdown_closes_websockets_with_going_away() -> None:
    async with ending() as server:
        url = f"ws://127.0.0.1:{server.port}/mcp"
        line = await server.caller(server.port)
        async with connect(url, subprotocols=[Subprotocol("mcp")]) as socket:
            await server.begins()
            headers = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
            line.say(request("GET", "/mcp", None, sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==", **headers))
            assert (await line.head()).status == 503
            assert await server.ends() == ()
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001


@pytest.mark.row("D12")
async def test_websocket_call_is_answered_before_the_close() -> None:
    async with ending() as server:
        url = f"ws://127.0.0.1:{server.port}/mcp"
        async with connect(url, subprotocols=[Subprotocol("mcp")]) as socket:
            for message in (initialize(), INITIALIZED, call("tools/call", {"name": "waits"}, ident="mine")):
                await socket.send(json.dumps(message))
            assert "result" in json.loads(await socket.recv())
            await socket.send(json.dumps(call("ping")))
            assert "result" in json.loads(await socket.recv())
            await server.begins()
            await socket.send(json.dumps(tool("quick")))
            assert json.loads(await socket.recv())["error"]["code"] == 1008
            ends = asyncio.create_task(server.ends())
            assert json.loads(await socket.recv())["id"] == "mine"
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            assert await ends == ()


@pytest.mark.row("D11")
async def test_socket_shutdown_refuses_requests_then_closes() -> None:
    async with ending() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.tcp)
        peer = LineClient(reader, writer)
        assert "result" in await peer.asked(initialize())
        peer.say(INITIALIZED)
        assert (await peer.asked(call("ping")))["result"] == {}
        await server.begins()
        assert (await peer.asked(tool("quick")))["error"]["code"] == 1008
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", server.tcp)
        assert await server.ends() == ()
        assert await reader.read() == b""
        writer.close()
