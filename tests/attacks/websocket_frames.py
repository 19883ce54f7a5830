"""A raw WebSocket client for attacks, which builds its own frames."""

import json
import struct
from typing import Any

from tests.attacks.raw import INITIALIZED, Caller, initialize, request

UPGRADE = {
    "accept": None,
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec_websocket_version": "13",
    "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
    "sec_websocket_protocol": "mcp",
}
TEXT, CONTINUED, PING, CLOSE = 0x1, 0x0, 0x9, 0x8


def upgrade(path: str = "/mcp", *headers: tuple[str, str], **common: Any) -> bytes:
    """The request that opens a WebSocket."""
    return request("GET", path, None, *headers, **(UPGRADE | common))


def frame(data: bytes, kind: int = TEXT, *, last: bool = True) -> bytes:
    """One client frame; its mask is zero, which is valid."""
    first = kind | (0x80 if last else 0)
    size = len(data)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + bytes(4) + data


async def heard(caller: Caller) -> tuple[int, bytes]:
    """The next frame of the server: its opcode and payload."""
    first, size = await caller.exactly(2)
    if size == 126:
        (size,) = struct.unpack("!H", await caller.exactly(2))
    elif size == 127:
        (size,) = struct.unpack("!Q", await caller.exactly(8))
    return first & 0x0F, await caller.exactly(size)


async def closed_with(caller: Caller) -> int:
    """The code of the server's close frame; earlier frames are skipped."""
    while True:
        kind, data = await heard(caller)
        if kind == CLOSE:
            return struct.unpack("!H", data[:2])[0]


async def message(caller: Caller) -> Any:
    """The next message."""
    kind, data = await heard(caller)
    assert kind == TEXT, f"a frame of kind {kind} came: {data!r}"
    return json.loads(data)


def say(caller: Caller, what: Any) -> None:
    """Send a message."""
    caller.say(frame(json.dumps(what).encode()))


async def shake_hands(caller: Caller, **capabilities: Any) -> None:
    """Open a WebSocket, and perform the handshake on it."""
    caller.say(upgrade())
    assert (await caller.head()).status == 101
    say(caller, initialize(**capabilities))
    await message(caller)
    say(caller, INITIALIZED)
