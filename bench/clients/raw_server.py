"""Answers an echo on stdin and stdout, or on a TCP port whose number it prints; the minimum for a client."""

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


def main() -> None:
    """Serve one client."""
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
