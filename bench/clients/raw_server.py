"""Answers an echo on stdin and stdout, or on a port whose number it prints; the minimum for a client.

The port speaks the protocol's lines over TCP, or Streamable HTTP with a session and without a stream of its own.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable

SCHEMA = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
TOOL = {"name": "echo", "inputSchema": {"type": "object"}, "outputSchema": SCHEMA}
RESULTS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "raw", "version": "0"},
    },
    "tools/list": {"tools": [TOOL]},
}


def answer(line: bytes) -> bytes:
    """The response line, empty for a notification."""
    message = json.loads(line)
    if "id" not in message:
        return b""
    if message["method"] == "tools/call":
        text = message["params"]["arguments"]["text"]
        result = {"content": [{"type": "text", "text": text}], "structuredContent": {"result": text}}
    else:
        result = RESULTS.get(message["method"], {})
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n"


def serve(read: Callable[[], bytes], write: Callable[[bytes], object]) -> None:
    """Serve until the peer closes its output."""
    rest = b""
    while data := read():
        *lines, rest = (rest + data).split(b"\n")
        if out := b"".join(map(answer, lines)):
            write(out)


class HttpAnswers(asyncio.Protocol):
    """Answers one POST after another on a connection, without a library, so that it favours no client."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport, self.rest = transport, b""

    def data_received(self, data: bytes) -> None:
        self.rest += data
        while (end := self.rest.find(b"\r\n\r\n")) >= 0:
            head = self.rest[:end].lower()
            at = head.find(b"content-length:")
            whole = end + 4 + (int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0)
            if len(self.rest) < whole:
                return
            body, self.rest = self.rest[end + 4 : whole], self.rest[whole:]
            self.transport.write(http_answer(head[:4], body))


def http_answer(verb: bytes, body: bytes) -> bytes:
    """Return the whole response to a request."""
    if verb != b"post":
        return b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n"
    said = answer(body)
    if not said:
        return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
    session = b"mcp-session-id: 0123456789abcdef\r\n" if b'"initialize"' in body else b""
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s" % (
        session,
        len(said),
        said,
    )


async def serve_http() -> None:
    server = await asyncio.get_running_loop().create_server(HttpAnswers, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve one client."""
    if sys.argv[1:] == ["http"]:
        asyncio.run(serve_http())
    if sys.argv[1:] != ["tcp"]:
        serve(lambda: os.read(0, 1 << 16), lambda data: os.write(1, data))
        return
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        line, _ = listening.accept()
        with line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serve(lambda: line.recv(1 << 16), line.sendall)


if __name__ == "__main__":
    main()
