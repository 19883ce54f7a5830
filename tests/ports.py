"""Ports of the loopback interface that stay reserved for a test."""

import os
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager


class HeldPort:
    """A free port, reserved until it is closed or collected.

    A socket is bound to the port and does not listen: connections are refused, and the system gives the port to no other
    program that asks for a free one. A server that sets SO_REUSEADDR, as asyncio, the ASGI servers and Valkey do, can
    bind it all the same, and again after it was killed.
    """

    def __init__(self) -> None:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        self.number: int = bound.getsockname()[1]
        self.close = weakref.finalize(self, os.close, bound.detach())


@contextmanager
def held_port() -> Iterator[int]:
    """Reserve a port inside of a `with` block."""
    port = HeldPort()
    try:
        yield port.number
    finally:
        port.close()
