"""Output of handlers waits for the peer on every transport, also before the peer begins to read.

Each peer here calls a tool that sends far more than the server may buffer for it, and reads nothing until the server
has answered a second client. The number of messages sent by then shows how much the server has accepted.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.attacks import websocket_frames
from tests.attacks.raw import INITIALIZED, Caller, ask, begin, initialize, request, tool, until
from tests.modern import headers_of, meta
from tests.ports import HeldPort
from tests.unit.transports.http.asgi import hosted

from trunkline import Context, Server, Settings
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.testing import RawPeer
from trunkline.transports.addresses import parse_address
from trunkline.transports.channel import ChannelClosed
from trunkline.transports.memory import memory_pair
from trunkline.transports.stdio.server import serve_stdio
from trunkline.wire.messages import Notification

KIB = 1024
SIZE = 16 * KIB  # of a message
TIMES = 2000  # 31 MiB of them
HIGH = 256 * KIB
KERNEL = 12 << 20  # bytes that a pair of sockets on this machine may hold: tcp_wmem and tcp_rmem at most
MOST = (KERNEL + 4 * HIGH) // SIZE  # messages
SETTINGS = Settings(unsent_high=HIGH, unsent_limit=2 << 20, work_timeout=None, drain_timeout=0.2)


class Flooding:
    """A server whose tools send much, and the count of messages that they have sent."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.said = 0
        self.port = 0

        @server.tool
        async def log(ctx: Context) -> str:
            """Send log messages without other waits."""
            for _ in range(TIMES):
                await ctx.info("x" * SIZE)
                self.said += 1
            return "done"

        @server.tool
        async def report(ctx: Context) -> str:
            """Report progress without other waits."""
            for number in range(TIMES):
                await ctx.progress(number + 1, message="x" * SIZE)
                self.said += 1
            return "done"

        @server.tool(task=True)
        async def task(ctx: Context) -> str:
            """Report progress as a task."""
            return await report(ctx)

        @server.tool
        def log_on_thread(ctx: Context) -> str:
            """Send log messages from a thread."""
            for _ in range(TIMES):
                ctx.info("x" * SIZE)
                self.said += 1
            return "done"

    async def stuck(self) -> None:
        """Wait until the tool has begun and sends nothing more."""
        await until(lambda: self.said, "the first message", 60)
        before = -1
        while self.said != before:
            before = self.said
            for _ in range(100):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def flooding(address: str = "http://127.0.0.1:0/mcp", **options: Any) -> AsyncIterator[Flooding]:
    made = Flooding(Server("flooding", **{"settings": SETTINGS, **options}))
    listener = await made.server.listen(address)
    made.port = parse_address(listener.address).port
    try:
        yield made
    finally:
        await made.server.aclose()


def call_of(name: str) -> dict[str, Any]:
    asked = tool(name, ident="flood")
    asked["params"]["_meta"] = {"progressToken": "t"}
    return asked


def is_answer(message: Any) -> bool:
    return isinstance(message, dict) and message.get("id") == "flood"  # pyright: ignore[reportUnknownMemberType]


class Reader:
    """A peer that has called a flooding tool and can read its output."""

    def __init__(self, caller: Caller, message: Callable[[], Any]) -> None:
        self.caller = caller
        self._message = message

    async def counted(self) -> int:
        """The number of messages before the answer."""
        self.caller.writer.transport.resume_reading()
        number = 0
        while not is_answer(message := await self._message()):
            number += "method" in message
        assert message["result"]["content"][0]["text"] == "done"
        return number


async def over_tcp(place: Flooding, caller: Caller, name: str) -> Reader:
    for message in (initialize(), INITIALIZED):
        caller.say(json.dumps(message).encode() + b"\n")
    await caller.line()
    caller.writer.transport.pause_reading()
    caller.say(json.dumps(call_of(name)).encode() + b"\n")
    return Reader(caller, caller.line)


async def over_websocket(place: Flooding, caller: Caller, name: str) -> Reader:
    await websocket_frames.shake_hands(caller)
    caller.writer.transport.pause_reading()
    websocket_frames.say(caller, call_of(name))
    return Reader(caller, lambda: websocket_frames.message(caller))


def events_of(caller: Caller) -> Reader:
    messages: AsyncIterator[Any] | None = None

    async def message() -> Any:
        nonlocal messages
        if messages is None:
            assert (await caller.head()).status == 200
            messages = caller.messages()
        return await anext(messages)

    return Reader(caller, message)


async def over_http(place: Flooding, caller: Caller, name: str) -> Reader:
    session = await begin(place.port)
    caller.writer.transport.pause_reading()
    caller.say(request("POST", "/mcp", call_of(name), mcp_session_id=session))
    return events_of(caller)


async def over_http_without_sessions(place: Flooding, caller: Caller, name: str) -> Reader:
    caller.writer.transport.pause_reading()
    caller.say(request("POST", "/mcp", call_of(name), mcp_protocol_version="2025-06-18"))
    return events_of(caller)


async def over_modern_http(place: Flooding, caller: Caller, name: str) -> Reader:
    asked = call_of(name)
    level = {"io.modelcontextprotocol/logLevel": "debug"}
    asked["params"]["_meta"] = meta(**{"progressToken": "t", **level})
    caller.writer.transport.pause_reading()
    caller.say(request("POST", "/mcp", asked, **headers_of("tools/call", asked["params"])))
    return events_of(caller)


async def over_sse(place: Flooding, caller: Caller, name: str) -> Reader:
    caller.say(request("GET", "/sse"))
    assert (await caller.head()).status == 200
    messages = caller.messages()
    post = await anext(messages)
    for message in (initialize(), INITIALIZED):
        assert (await ask(place.port, "POST", post, message)).status == 202
    assert "result" in await anext(messages)
    caller.writer.transport.pause_reading()
    assert (await ask(place.port, "POST", post, call_of(name))).status == 202
    return Reader(caller, lambda: anext(messages))


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tcp": (over_tcp, {"address": "tcp://127.0.0.1:0"}),
    "websocket": (over_websocket, {}),
    "http": (over_http, {}),
    "http, kept sessions": (over_http, {"store": True}),
    "http, no sessions": (over_http_without_sessions, {"settings": {"http_sessions": False}}),
    "http, modern": (over_modern_http, {}),
    "sse": (over_sse, {}),
}


def options_of(way: str, folder: Path) -> dict[str, Any]:
    options = dict(WAYS[way][1])
    if options.pop("store", False):
        options["store"] = SqliteStore(folder / "kept.sqlite", synchronous="NORMAL")
    if "settings" in options:
        kept = {name: getattr(SETTINGS, name) for name in ("unsent_high", "unsent_limit", "work_timeout")}
        options["settings"] = Settings(**kept, **options["settings"])
    return options


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.no_cover) for name in ("log", "log_on_thread")), "report"]
)
@pytest.mark.parametrize("way", WAYS)
async def test_handler_waits_for_a_slow_peer_without_loss(way: str, name: str, tmp_path: Path) -> None:
    async with flooding(**options_of(way, tmp_path)) as place, Caller(place.port) as caller:
        reader = await WAYS[way][0](place, caller, name)
        await place.stuck()
        assert 0 < place.said < MOST
        assert await reader.counted() == TIMES


class Dropping:
    """A receiver that counts the messages it gets."""

    def __init__(self) -> None:
        self.heard = 0
        self.ends: list[ChannelClosed] = []

    def received(self, messages: Any, origin: Any) -> None:
        self.heard += sum(isinstance(message, Notification) for message in messages)

    def closed(self, closed: ChannelClosed) -> None:
        self.ends.append(closed)

    unanswered = asking = closed


def batch_of(name: str) -> list[Any]:
    return [call_of(name), tool(name, ident="beside")]


def task_of(name: str) -> dict[str, Any]:
    asked = call_of(name)
    asked["params"]["task"] = {}
    return asked


@pytest.mark.parametrize(
    ("asked", "revision"),
    [
        (call_of("log"), "2025-11-25"),
        (call_of("report"), "2025-11-25"),
        (call_of("log_on_thread"), "2025-11-25"),
        (batch_of("log"), "2025-03-26"),
        (task_of("task"), "2025-11-25"),
    ],
    ids=["log", "report", "thread", "batch", "task"],
)
async def test_handler_waits_for_a_peer_in_the_same_process(asked: Any, revision: str) -> None:
    place = Flooding(Server("flooding", settings=SETTINGS))
    await place.server.start()
    ours, theirs = memory_pair(settings=SETTINGS)
    client = Dropping()
    ours.open(client)  # type: ignore[arg-type]
    theirs.open(place.server.connect(theirs))
    for message in (initialize(revision), INITIALIZED):
        theirs.put(json.dumps(message).encode())
    ours.pause()
    theirs.put(json.dumps(asked).encode())
    await place.stuck()
    assert 0 < place.said < 4 * HIGH // SIZE
    ours.resume()
    await until(lambda: client.heard >= place.said >= TIMES, "all messages", 60)
    await place.server.aclose()


async def test_handler_on_stdio_waits_for_the_pipe() -> None:
    place = Flooding(Server("flooding", settings=SETTINGS))
    await place.server.start()
    (into, say), (hear, out) = os.pipe(), os.pipe()
    serving = asyncio.ensure_future(serve_stdio(place.server.connect, SETTINGS, into, out))
    for message in (initialize(), INITIALIZED, call_of("log_on_thread")):
        os.write(say, json.dumps(message).encode() + b"\n")
    await place.stuck()
    assert 0 < place.said < ((1 << 20) + 4 * HIGH) // SIZE  # of which a pipe holds one MiB
    heard = asyncio.create_task(asyncio.to_thread(_lines_until_answer, hear))
    assert await heard == TIMES
    os.close(say)
    assert await serving == "end of input"
    await place.server.aclose()
    for descriptor in (into, hear, out):
        os.close(descriptor)


def _lines_until_answer(descriptor: int) -> int:
    with open(descriptor, "rb", closefd=False) as lines:
        number = 0
        while not is_answer(message := json.loads(lines.readline())):
            number += "method" in message
        return number


async def test_handler_continues_after_its_post_was_cancelled() -> None:
    """A client that never reads the stream of its POST does not block the handler: the event log stores the output."""
    place = Flooding(Server("flooding", settings=SETTINGS))
    begun, go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @place.server.tool
    async def later(ctx: Context) -> str:
        """Send much, once the test allows it."""
        begun.set()
        await go.wait()
        for _ in range(200):
            await ctx.info("x" * SIZE)
        ended.set()
        return "done"

    async with hosted(place.server) as host:
        session = await host.session()
        posting = host.begin("POST", tool("later"), mcp_session_id=session)
        await begun.wait()
        assert posting.task is not None
        posting.task.cancel()
        await asyncio.wait([posting.task])
        go.set()
        await asyncio.wait_for(ended.wait(), 20)


async def test_in_process_peer_is_disconnected_at_the_limit() -> None:
    settings = Settings(unsent_high=1000, unsent_limit=5000)
    ours, theirs = memory_pair(settings=settings)
    mine, other = Dropping(), Dropping()
    ours.open(mine)  # type: ignore[arg-type]
    theirs.open(other)  # type: ignore[arg-type]
    ours.pause()
    for _ in range(3):
        theirs.send(Notification("notifications/message", "x" * 2000))
    await until(lambda: mine.ends, "the end")
    [closed] = other.ends
    assert closed.reason.endswith("bytes unread")
    await theirs.drain()  # of a closed channel, returns at once


async def test_flooding_handler_does_not_block_other_calls() -> None:
    server = Server("fair", settings=SETTINGS)
    order: list[str] = []

    @server.tool
    async def chatter(ctx: Context) -> None:
        """Send many messages that the peer reads at once."""
        for _ in range(1000):
            await ctx.info("x")
        order.append("chatter")

    @server.tool
    async def quick() -> None:
        """Wait for one turn of the loop."""
        await asyncio.sleep(0)
        order.append("quick")

    async with RawPeer(server) as peer:
        await peer.initialize()
        for name in ("chatter", "quick"):
            peer.send(tool(name))
        await until(lambda: len(order) == 2, "both answers")
    assert order == ["quick", "chatter"]


async def test_unwanted_messages_also_yield_to_the_loop() -> None:
    server = Server("fair", settings=SETTINGS)
    ended = asyncio.Event()

    @server.tool
    async def mutter(ctx: Context) -> None:
        """Send messages below the log level of the peer until another call stops it."""
        while not ended.is_set():
            await ctx.debug("x")

    async with RawPeer(server) as peer:
        await peer.initialize()
        peer.send(tool("mutter"))
        asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(ended.set))
        assert "result" in await peer.receive()


@pytest.mark.long
def test_memory_is_bounded_while_the_peer_does_not_read(tmp_path: Path) -> None:
    """A handler sends 625 MiB to a slow reader; the process buffers little of it."""
    import subprocess

    script = tmp_path / "server.py"
    script.write_text(
        """
import sys
from pathlib import Path
from trunkline import Context, Server
server = Server("t")
@server.tool
async def flood(ctx: Context) -> int:
    "Sends 625 MiB."
    for _ in range(10_000):
        await ctx.info("x" * 65536)
    status = Path("/proc/self/status").read_text()  # getrusage would include the peak of the process that started this one
    return int(status.split("VmHWM:")[1].split()[0])
server.run("http", port=int(sys.argv[1]))
""",
        "utf-8",
    )
    held_port = HeldPort()
    port = held_port.number
    serving = subprocess.Popen([sys.executable, str(script), str(port)])

    async def read_all() -> int:
        async with asyncio.timeout(60):
            while True:
                try:
                    session = await begin(port)
                except (OSError, AssertionError):
                    await asyncio.sleep(0.05)
                else:
                    break
        async with Caller(port) as caller:
            caller.say(request("POST", "/mcp", tool("flood", ident="flood"), mcp_session_id=session))
            assert (await caller.head()).status == 200
            async for message in caller.messages():
                if is_answer(message):
                    return int(message["result"]["content"][0]["text"])
        raise AssertionError

    try:
        kilobytes = asyncio.run(read_all())
    finally:
        serving.terminate()
        serving.wait(20)
    assert kilobytes < 250_000, f"{kilobytes} KiB at most"
