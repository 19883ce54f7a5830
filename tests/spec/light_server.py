"""A server that starts in no time: it knows the standard library only, and just enough of the protocol.

    python -I -S light_server.py EFFECTS

Every effect is a line in the file EFFECTS. The tool `look` is read-only; `pay` is not, and may die of it; `echo` gives
its text back; `wait` is never answered. With `stay` the server neither answers nor ends any more, whatever it is told;
with `mute` it closes its output, too.
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
    """Leaves a trace that a kill cannot take back."""
    os.write(EFFECTS, f"{line}\n".encode())


EFFECTS = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

for line in sys.stdin.buffer:
    message = json.loads(line)
    if "id" in message and message.get("params", {}).get("name") != "wait":
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": answer(message["method"], message.get("params", {}))}
        os.write(1, json.dumps(reply).encode() + b"\n")
