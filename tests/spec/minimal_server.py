"""A server that starts fast: it imports the standard library only, and knows just enough of the protocol.

    python -I -S minimal_server.py EFFECTS

Each effect is a line in the file EFFECTS. The tool `look` is read-only; `pay` is not, and may crash the server;
`echo` returns its text; `wait` never returns. With `stay` the server stops responding and ignores requests to end;
with `mute` it also closes its output.
"""

import json
import os
import signal
import sys
import time
from typing import Any

TOOLS = [
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    *({"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "pay", "wait", "stay", "mute")),
]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "light", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return {"content": [{"type": "text", "text": call(params["name"], params.get("arguments", {}))}]}
        case _:
            return {}


def call(name: str, arguments: dict[str, Any]) -> str:
    if name in {"stay", "mute"}:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        effect(str(os.getpid()))
        if name == "mute":
            os.close(1)
        while True:
            time.sleep(60)
    if name == "pay":
        effect(arguments["text"])
        if arguments.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
    return str(arguments.get("text", os.getpid()))


def effect(line: str) -> None:
    """Record an effect that survives a kill."""
    os.write(EFFECTS, f"{line}\n".encode())


EFFECTS = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

for line in sys.stdin.buffer:
    message = json.loads(line)
    if "id" in message and message.get("params", {}).get("name") != "wait":
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": answer(message["method"], message.get("params", {}))}
        os.write(1, json.dumps(reply).encode() + b"\n")
