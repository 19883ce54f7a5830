"""stdio, the server's side: messages on standard input and output, and nothing but messages.

From then on the process's own standard output points at standard error, and its standard input at nothing; the wire
keeps private copies of both. So whatever a handler, a library or a child process prints cannot reach the peer: not
even what lies in a library's buffer until the process ends, or what a thread prints that was given up.

The peer ends it by closing our input. What is in flight may finish, within a time, and the process ends; so it does
when the process that started us has died without saying so.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Final

from trunkline.config import Settings
from trunkline.transports.channel import ChannelClosed, ChannelInfo
from trunkline.transports.stdio.fd_stream import open_reader, open_writer
from trunkline.transports.stream import StreamChannel

if TYPE_CHECKING:
    from trunkline.transports.channel import Accept

__all__ = ["END_OF_INPUT", "claim_stdio", "serve_stdio"]

END_OF_INPUT: Final = "end of input"
PARENT_CHECK: Final = 1.0  # seconds; a parent that died is noticed within two


@contextlib.contextmanager
def claim_stdio() -> Generator[tuple[int, int]]:
    """Takes standard input and output for the wire, for good; gives descriptors for it, and closes them at the end."""
    sys.stdout.flush()
    wire_in, wire_out = os.dup(0), os.dup(1)
    blocking = os.get_blocking(wire_in), os.get_blocking(wire_out)  # of a terminal both are the same
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        with contextlib.suppress(AttributeError, ValueError):
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        yield wire_in, wire_out
    finally:
        os.set_blocking(wire_in, blocking[0])
        os.set_blocking(wire_out, blocking[1])
        for descriptor in (wire_in, wire_out, nothing):
            os.close(descriptor)


async def serve_stdio(accept: "Accept", settings: Settings, wire_in: int, wire_out: int) -> str:
    """Serves the peer at the other end of two descriptors; gives the reason why it ended.

    The channel is still open then, so that what is in flight can be answered; closing it is left to the caller.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()

    def end(reason: str) -> None:
        if not ended.done():
            ended.set_result(reason)

    channel = StreamChannel(
        ChannelInfo("stdio", local=True, sole_peer=True),
        max_frame=settings.stdio_message_size_limit,
        settings=settings,
        unique_members=False,
    )

    def broke(error: OSError) -> None:
        """Nobody reads any more: there is no way to answer, so there is no reason to go on."""
        channel.abort(ChannelClosed(f"output broke: {error.strerror}", error))
        end("output broke")

    source = open_reader(loop, wire_in, channel.feed, partial(end, END_OF_INPUT))
    sink = open_writer(loop, wire_out, channel.update_flow, broke)
    channel.open(accept(channel), source, sink)
    with _watch_parent(loop, end):
        source.resume()
        return await ended


@contextlib.contextmanager
def _watch_parent(loop: asyncio.AbstractEventLoop, end: Callable[[str], None]) -> Generator[None]:
    """Ends when the process that started us is gone, even if somebody else still holds our input open."""
    parent = os.getppid()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        if os.getppid() != parent:
            end("the parent process died")
        else:
            timer = loop.call_later(PARENT_CHECK, look)

    if parent > 1:  # 1 is the system's first process, or a container's: it does not die before us
        look()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
