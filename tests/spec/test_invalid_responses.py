"""Invalid responses: the request fails at once, with the reason, and the connection goes on."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.raw import Caller, ask, begin, request, text_of, tool
from tests.limits import PATIENCE
from tests.unit.transports.http.client.web import Visit, Web, event, web
from websockets.asyncio.server import ServerConnection, serve

from trunkline import Client, Context, Server, Settings
from trunkline.errors import BadAnswer, ConnectionClosed, HandshakeFailed, MisuseError, PeerError, ToolFailed
from trunkline.facts import HandlerFailed
from trunkline.testing import RawPeer, RecordingObserver
from trunkline.transports.stdio.client import Command

# Without a time limit, so that only a failed request ends.
PATIENT = Settings(
    work_timeout=None,
    longest_call=None,
    stdio_message_size_limit=1024,
    tcp_message_size_limit=1024,
    ws_message_size_limit=1024,
    sse_event_size_limit=1024,
    http_body_size_limit=1024,
)
LARGE = b"x" * 3000

# The response that is sent; ID stands for the id of the request.
ANSWERS = {
    "cut off": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[',
    "no JSON": rb'{"result":{"content":[{"type":"text","text":"\x"}]},"jsonrpc":"2.0","id":ID}',
    "lone surrogate": rb'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\ud800"}]}}',
    "empty error": b'{"jsonrpc":"2.0","id":ID,"error":{}}',
    "no outcome": b'{"jsonrpc":"2.0","id":ID}',
    "result and error": b'{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":"no"}}',
    "id as a string": b'{"jsonrpc":"2.0","id":"ID","result":{"content":[]}}',
    "id as a float": b'{"jsonrpc":"2.0","id":ID.0,"result":{"content":[]}}',
    "version 1": b'{"jsonrpc":"1.0","id":ID,"result":{"content":[]}}',
}
NOT_UTF8 = {"not UTF-8": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\xff"}]}}'}
TOO_LARGE = {
    "too large": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"%b"}]}}' % LARGE,
    "too large, with the id last": b'{"result":{"_meta":{"x":"%b"},"content":[]},"jsonrpc":"2.0","id":ID}' % LARGE,
}
DUPLICATES = {"duplicate members": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"content":[]}}'}

INFO = {"name": "s", "version": "1"}
USUAL = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "prompts": {}}, "serverInfo": INFO},
    "tools/list": {"tools": []},
    "ping": {},
}
SCRIPT = """
import json, sys
usual, answer = json.loads(sys.argv[1]), bytes.fromhex(sys.argv[2])
for line in sys.stdin.buffer:
    message = json.loads(line)
    if "id" in message:
        told = usual.get(message["method"])
        frame = answer if told is None else json.dumps({"jsonrpc": "2.0", "id": "I" + "D", "result": told}).encode()
        ident = str(message["id"]).encode()
        frame = frame.replace(b'"I' + b'D"', ident) if told is not None else frame.replace(b"I" + b"D", ident)
        sys.stdout.buffer.write(frame + b"\\n")
        sys.stdout.buffer.flush()
"""


def answer_to(message: Any, unusable: bytes) -> bytes | None:
    """The server's reaction to a message: normal during the handshake, an invalid response to any other request."""
    if "id" not in message:
        return None
    if message["method"] in USUAL:
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": USUAL[message["method"]]}).encode()
    return unusable.replace(b"ID", str(message["id"]).encode())


def line_server(unusable: bytes, *, headers: bool = False) -> Callable[..., Any]:
    """A server on a socket."""

    def framed(frame: bytes) -> bytes:
        return b"Content-Length: %d\r\n\r\n%b" % (len(frame), frame) if headers else frame + b"\n"

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if answer := answer_to(json.loads(line), unusable):
                writer.write(framed(answer))
        writer.close()

    return serve_one


@asynccontextmanager
async def answering(transport: str, unusable: bytes, folder: Path) -> AsyncIterator[Any]:
    """A server that answers each tool call with an invalid response; return the target of a client."""
    match transport:
        case "stdio":
            yield Command([sys.executable, "-c", SCRIPT, json.dumps(USUAL), unusable.hex()], settings=PATIENT)
        case "tcp" | "tcp with headers":
            handler = line_server(unusable, headers=transport != "tcp")
            async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
                yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        case "unix":
            async with await asyncio.start_unix_server(line_server(unusable), folder / "socket"):
                yield f"unix://{folder / 'socket'}"
        case "websocket":

            async def talk(socket: ServerConnection) -> None:
                async for message in socket:
                    if answer := answer_to(json.loads(message), unusable):
                        await socket.send(answer, text=True)

            async with serve(talk, "127.0.0.1", 0, ping_interval=None) as server:
                yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/mcp"
        case _:
            async with web() as server:
                if transport == "sse":
                    OlderServer(server, unusable)
                else:
                    server.on("tools/call", lambda visit: over_http(transport, visit, unusable))
                yield server.url


class OlderServer:
    """A server of 2024-11-05, with one stream for all answers."""

    def __init__(self, server: Web, unusable: bytes) -> None:
        self.unusable = unusable
        self.stream: Visit | None = None
        server.on("GET", self.get)
        for method in ("initialize", "POST"):
            server.on(method, self.post)

    async def get(self, visit: Visit) -> None:
        self.stream = visit
        visit.stream(event(b"/messages", kind="endpoint"))
        await visit.left()

    def post(self, visit: Visit) -> None:
        visit.respond(405 if visit.path == "/mcp" else 202)
        if self.stream is not None and (answer := answer_to(visit.message, self.unusable)):
            self.stream.write(event(answer))


def over_http(transport: str, visit: Visit, unusable: bytes) -> None:
    answer = answer_to(visit.message, unusable) or b""
    match transport:
        case "http":
            visit.respond(200, answer)
        case "http, events that can be read on":
            visit.stream(event(answer, id="1"))
            visit.hang_up()
        case _:
            visit.stream(event(answer))
            visit.hang_up()


def cases() -> list[Any]:
    streams = ("stdio", "tcp", "tcp with headers", "unix")
    http = ("http", "http, events", "http, events that can be read on")
    found: list[Any] = []
    for transport in (*streams, "websocket", *http, "sse"):
        answers = ANSWERS | NOT_UTF8
        if transport != "websocket":  # which ends the connection
            answers |= TOO_LARGE
        if transport != "stdio":
            answers |= DUPLICATES
        found += [pytest.param(transport, answer, id=f"{transport}-{name}") for name, answer in answers.items()]
    return found


@pytest.mark.row("P12")
@pytest.mark.parametrize(("transport", "unusable"), cases())
async def test_unusable_response_fails_its_request_at_once(transport: str, unusable: bytes, tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        answering(transport, unusable, tmp_path) as target,
        Client(target, settings=PATIENT, revision="2025-11-25") as client,
    ):
        with pytest.raises(PeerError):
            await client.call_tool("act")
        await client.ping()
        assert client.losses == 0


@pytest.mark.row("W17")
@pytest.mark.parametrize("unusable", TOO_LARGE.values(), ids=TOO_LARGE)
async def test_response_that_closes_a_websocket_is_not_requested_again(unusable: bytes, tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        answering("websocket", unusable, tmp_path) as target,
        Client(target, settings=PATIENT, revision="2025-11-25") as client,
    ):
        with pytest.raises(ConnectionClosed, match=r"limit of 1024 bytes \(ws_message_size_limit\)"):
            await client.list_prompts()  # which the client repeats if a connection is lost for another reason
        await client.ping()
        assert client.losses == 1


@pytest.mark.row("W16")
async def test_response_above_the_limit_names_limit_and_setting(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        answering("tcp", TOO_LARGE["too large"], tmp_path) as target,
        Client(target, settings=PATIENT, revision="2025-11-25") as client,
    ):
        with pytest.raises(BadAnswer, match=r"limit of 1024 bytes \(tcp_message_size_limit\)"):
            await client.call_tool("act")


@pytest.mark.row("P12")
async def test_unusable_initialize_response_fails_the_handshake_at_once(tmp_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"jsonrpc":"2.0","id":1,"result":{"cut\n')
        await reader.read()
        writer.close()

    path = tmp_path / "socket"
    async with asyncio.timeout(PATIENCE), await asyncio.start_unix_server(refuse, path):
        settings = Settings(initialize_timeout=None)
        with pytest.raises(HandshakeFailed, match="answer to initialize is malformed"):
            await Client(f"unix://{path}", settings=settings, revision="2025-11-25").open()


# --- the other direction ---------------------------------------------------------------------------------


def asking() -> Server:
    server = Server("asking", settings=PATIENT, observers=[])

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            return str((await ctx.sample("hello")).content)
        except BadAnswer as error:
            return f"bad answer: {error}"

    return server


@pytest.mark.row("P12")
@pytest.mark.parametrize("unusable", [*ANSWERS.values(), *NOT_UTF8.values()], ids=[*ANSWERS, *NOT_UTF8])
async def test_unusable_client_response_fails_the_request_at_once(unusable: bytes) -> None:
    async with asyncio.timeout(PATIENCE), RawPeer(asking()) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        call = peer.call("tools/call", {"name": "ask"})
        question = await peer.receive()
        peer.send(unusable.replace(b"ID", str(question["id"]).encode()))
        answer = await peer.answer_to(call)
        assert answer["result"]["content"][0]["text"].startswith("bad answer: ")


async def first(messages: AsyncIterator[Any], member: str) -> Any:
    """The next message that has a member."""
    async for message in messages:
        if isinstance(message, dict) and member in message:
            return message
    raise AssertionError(f"no message with {member!r}")


@pytest.mark.row("P12")
@pytest.mark.parametrize("unusable", [*ANSWERS.values(), *NOT_UTF8.values()], ids=[*ANSWERS, *NOT_UTF8])
async def test_unusable_posted_response_fails_the_request_at_once(unusable: bytes) -> None:
    server = asking()
    listener = await server.listen("http://127.0.0.1:0/mcp")
    port = int(listener.address.partition("//")[2].partition("/")[0].rpartition(":")[2])
    async with asyncio.timeout(PATIENCE), Caller(port) as caller:
        session = await begin(port, capabilities={"sampling": {}})
        caller.say(request("POST", "/mcp", tool("ask"), mcp_session_id=session))
        assert (await caller.head()).status == 200
        messages = caller.messages()
        question = await first(messages, "method")
        posted = unusable.replace(b"ID", str(question["id"]).encode())
        taken = await ask(port, "POST", "/mcp", posted, mcp_session_id=session)
        assert taken.status == (202 if b'"id":"' in posted else 400)  # a good message, for a request that is not known
        answer = await first(messages, "result")
        assert text_of(answer).startswith("bad answer: ")
    await server.aclose()


# --- responses that we do not send -----------------------------------------------------------------------


def large_server(**options: Any) -> Server:
    server = Server("large", settings=PATIENT, **{"observers": []} | options)

    @server.tool
    async def large() -> str:
        return "x" * 600  # and once more as structured content

    @server.tool
    async def small(text: str) -> int:
        return len(text)

    @server.tool
    async def chatty(ctx: Context) -> str:
        await ctx.info("x" * 2000)
        await ctx.info("short")
        return "done"

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            return str((await ctx.sample("hello")).content)
        except PeerError as error:
            return f"{error.code}"

    server.add_resource("note://large", "x" * 2000)
    return server


@asynccontextmanager
async def listening(transport: str, folder: Path, **options: Any) -> AsyncIterator[str]:
    server = large_server(**options)
    address = {"tcp": "tcp://127.0.0.1:0", "unix": f"unix://{folder / 'socket'}"}.get(transport, "http://127.0.0.1:0")
    listener = await server.listen(address)
    yield listener.address.replace("http", "ws") if transport == "websocket" else listener.address
    await server.aclose()


@pytest.mark.row("W16")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("transport", ["tcp", "unix", "websocket"])
async def test_response_above_the_server_limit_becomes_an_error(transport: str, revision: str, tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        listening(transport, tmp_path) as address,
        Client(address, settings=PATIENT, revision=revision) as client,
    ):
        with pytest.raises(ToolFailed, match=r"above the limit of 1024 \((tcp|ws)_message_size_limit\)"):
            await client.call_tool("large")
        with pytest.raises(PeerError) as raised:
            await client.read_resource("note://large")
        assert (raised.value.code, raised.value.data["kind"]) == (-32602, "content_too_large")
        assert client.losses == 0


@pytest.mark.row("W16")
async def test_notification_above_the_limit_is_reported_and_not_sent(tmp_path: Path) -> None:
    heard: list[Any] = []
    observer = RecordingObserver()
    async with (
        asyncio.timeout(PATIENCE),
        listening("tcp", tmp_path, observers=[observer]) as address,
        Client(address, settings=PATIENT, revision="2025-11-25") as client,
    ):
        client.on("notifications/message", lambda params: heard.append(params.data))
        assert (await client.call_tool("chatty")).data == "done"
    assert heard == ["short"]
    assert "tcp_message_size_limit" in str(observer.of(HandlerFailed)[0].error)


@pytest.mark.row("W16")
@pytest.mark.parametrize("transport", ["tcp", "unix", "websocket", "http"])
async def test_request_above_the_client_limit_is_not_sent(transport: str, tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        listening(transport, tmp_path) as address,
        Client(address, settings=PATIENT) as client,
    ):
        with pytest.raises(MisuseError, match=r"the limit is 1024 bytes \((tcp|ws|http)_.*_size_limit\)") as raised:
            await client.call_tool("small", {"text": "x" * 2000})
        assert raised.value.kind == "message_size_exceeds_maximum"
        assert (await client.call_tool("small", {"text": "x"})).data == 1


@pytest.mark.row("W16")
@pytest.mark.parametrize("transport", ["tcp", "unix", "websocket", "http"])
async def test_response_above_the_client_limit_becomes_an_error(transport: str, tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE), listening(transport, tmp_path) as address:
        options: dict[str, Any] = {"revision": "2025-11-25", "sampling": lambda _: "x" * 2000}
        async with Client(address, settings=PATIENT, **options) as client:
            assert (await client.call_tool("ask")).data == "-32602"


@pytest.mark.row("W16")
async def test_request_above_the_server_limit_fails_at_once(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        listening("tcp", tmp_path) as address,
        Client(address, settings=Settings(work_timeout=None)) as client,
    ):
        with pytest.raises(PeerError, match="larger than the limit of 1024 bytes"):
            await client.call_tool("small", {"text": "x" * 2000})


@pytest.mark.row("W16")
async def test_batch_responses_above_the_limit_become_errors(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE), listening("tcp", tmp_path) as address:
        port = int(address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        hello = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": INFO}
        calls = [{"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": "large"}} for n in (2, 3)]
        for message in ({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, calls):
            writer.write(json.dumps(message).encode() + b"\n")
        await reader.readline()
        answers = json.loads(await reader.readline())
        assert [(one["id"], one["error"]["data"]["kind"]) for one in answers] == [
            (2, "content_too_large"),
            (3, "content_too_large"),
        ]
        writer.close()


# --- responses that match no request ---------------------------------------------------------------------


async def test_invalid_line_is_logged_once_with_its_beginning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"{ Server is ready\n" + b'{"result":{\n' * 20)
        while line := await reader.readline():
            if answer := answer_to(json.loads(line), b""):
                writer.write(answer + b"\n")
        writer.close()

    path = tmp_path / "socket"
    with caplog.at_level(logging.WARNING, "trunkline"):
        async with (
            asyncio.timeout(PATIENCE),
            await asyncio.start_unix_server(chatter, path),
            Client(f"unix://{path}", revision="2025-11-25") as client,
        ):
            await client.ping()
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "began with b'{ Server is ready'" in warning.getMessage()
