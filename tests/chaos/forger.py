"""A program that writes to the bus of a deployment on Valkey without its key.

It sees every message, as any client of that Valkey may, and sends each once more with the next number, which the
signature does not cover then. A process that believed it would do twice what it was asked once.
"""

import ast
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.contract.valkey import Valkey
from tests.limits import PATIENCE

__all__ = ["forged_messages"]

_PUBLISH = re.compile(r'"PUBLISH" "([^"]*)" "(.*)"\r?\n', re.IGNORECASE)
_NUMBER = struct.Struct(">Q")
_NUMBER_AT = 33  # bytes: the version, and the names of the receiver and the sender


@contextmanager
def forged_messages(valkey: Valkey) -> Iterator[set[bytes]]:
    """Forge messages while the block runs; yields the set of all of them."""
    forged: set[bytes] = set()
    over = threading.Event()
    with socket.create_connection(("127.0.0.1", valkey.port), PATIENCE) as line:
        line.sendall(b"MONITOR\r\n")
        thread = threading.Thread(target=_forge, args=(valkey, line, forged, over), daemon=True)
        thread.start()
        try:
            yield forged
        finally:
            over.set()
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            thread.join()


def _forge(valkey: Valkey, line: socket.socket, forged: set[bytes], over: threading.Event) -> None:
    with valkey.client() as client, line.makefile("r", encoding="ascii", newline="\n") as seen, suppress(OSError):
        for command in seen:
            if over.is_set():
                break
            if (published := _PUBLISH.search(command)) is None:
                continue
            channel, message = (ast.literal_eval(f'b"{part}"') for part in published.groups())
            if message not in forged and len(message) > _NUMBER_AT + _NUMBER.size:
                other = _with_next_number(message)
                forged.add(other)
                client.publish(channel, other)


def _with_next_number(frame: bytes) -> bytes:
    [number] = _NUMBER.unpack_from(frame, _NUMBER_AT)
    return frame[:_NUMBER_AT] + _NUMBER.pack(number + 1) + frame[_NUMBER_AT + _NUMBER.size :]
