"""A yardstick: asyncio and msgspec answering an echo, with nothing of a protocol in between. Not an MCP server.

It runs on uvloop where that is installed, as `Server.run` does.
"""

import asyncio
import sys
from typing import Any

import msgspec


class Params(msgspec.Struct):
    """Of `tools/call`, as far as an echo needs them."""

    arguments: dict[str, Any] = {}


class Request(msgspec.Struct):
    """A request, or a notification when it has no id."""

    method: str
    id: int | None = None
    params: Params = msgspec.field(default_factory=Params)


decode = msgspec.json.Decoder(Request).decode
encode = msgspec.json.Encoder().encode


def answer(line: bytes) -> bytes:
    """The response line, empty for a notification."""
    request = decode(line)
    if request.id is None:
        return b""
    if request.method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "bare"}}
    else:
        result = {"content": [{"type": "text", "text": request.params.arguments["text"]}]}
    return encode({"jsonrpc": "2.0", "id": request.id, "result": result}) + b"\n"


class Echo(asyncio.Protocol):
    """Splits lines and answers all requests of one read in one write."""

    def __init__(self, out: asyncio.WriteTransport, ended: asyncio.Event) -> None:
        self._out, self._ended = out, ended
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._out.write(b"".join(map(answer, lines)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


async def main() -> None:
    """Serve stdin and stdout until stdin ends."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
    await loop.connect_read_pipe(lambda: Echo(out, ended), sys.stdin)
    await ended.wait()


try:
    import uvloop
except ImportError:
    loop_factory = None
else:
    loop_factory = uvloop.new_event_loop
with asyncio.Runner(loop_factory=loop_factory) as runner:
    runner.run(main())
