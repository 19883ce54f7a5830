"""Runs a server as a process: the loop, the streams, and an orderly end."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline.transports.stdio import END_OF_INPUT, private_streams, serve_stdio

if TYPE_CHECKING:
    from trunkline.server.server import Server

__all__ = ["run_stdio"]


def run_stdio(server: "Server") -> None:
    """Serves on standard input and output until the other side goes, or Ctrl+C."""
    if sys.stdin is not None and sys.stdin.isatty():
        _introduce(server)
    _keep_large_blocks()
    with private_streams() as (wire_in, wire_out), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(server, wire_in, wire_out))


async def _serve(server: "Server", wire_in: int, wire_out: int) -> None:
    try:
        await server.start()
        if await serve_stdio(server.connect, server.settings, wire_in, wire_out) == END_OF_INPUT:
            for connection in server.connections:
                connection.deafen(END_OF_INPUT)
    finally:
        await server.aclose()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Any = uvloop.new_event_loop
    return factory


def _keep_large_blocks() -> None:
    """Frees one large block: from then on glibc keeps blocks of that size, instead of mapping each one anew."""
    bytes(31 << 20)


def _introduce(server: "Server") -> None:
    """Says to a person at a terminal what this is, since nothing would happen otherwise."""
    program = Path(sys.argv[0]).name or "server.py"
    print(  # noqa: T201 - the one place where a person is spoken to
        f"{server.name} is an MCP server: it speaks JSON-RPC on standard input and output, for a program to talk to.\n"
        f"To try it, paste this line:\n"
        f'  {{"jsonrpc":"2.0","id":1,"method":"ping"}}\n'
        f"To use it, let an MCP client start it:  python {program}\n"
        f"Ctrl+C or Ctrl+D ends it.",
        file=sys.stderr,
    )
