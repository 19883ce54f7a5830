"""stdio transport, server side: messages on standard input and output, and nothing else.

The process's standard output is redirected to standard error and its standard input to /dev/null; the transport keeps
private copies of both. So anything a handler, a library or a child process prints cannot reach the peer, not even what
a library buffers until the process exits or an abandoned thread prints.

The peer ends the connection by closing our input. Requests in flight may finish within a time limit, and the process
exits; the same happens when the parent process has died.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from trunkline.config import Settings
from trunkline.transports.channel import Accept, ChannelClosed, ChannelInfo
from trunkline.transports.stdio.fd_stream import open_reader, open_writer
from trunkline.transports.stream import StreamChannel
from trunkline.wire import codec

__all__ = ["END_OF_INPUT", "claim_stdio", "serve_stdio"]

END_OF_INPUT: Final = "end of input"
PARENT_CHECK: Final = 1.0  # seconds; a dead parent is noticed within two


@contextlib.contextmanager
def claim_stdio() -> Generator[tuple[int, int]]:
    """Reserve standard input and output for the transport, for good; yield private descriptors and close them at the
    end."""
    sys.stdout.flush()
    wire_in, wire_out = os.dup(0), os.dup(1)
    blocking = os.get_blocking(wire_in), os.get_blocking(wire_out)  # a terminal shares one setting for both
    devnull = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(devnull, 0)
        os.dup2(2, 1)
        with contextlib.suppress(AttributeError, ValueError):
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        yield wire_in, wire_out
    finally:
        os.set_blocking(wire_in, blocking[0])
        os.set_blocking(wire_out, blocking[1])
        for descriptor in (wire_in, wire_out, devnull):
            os.close(descriptor)


async def serve_stdio(accept: Accept, settings: Settings, wire_in: int, wire_out: int) -> str:
    """Serve the peer at two descriptors; return the reason of the end.

    The channel is still open then, so that requests in flight can be answered; the caller closes it.
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
        decode=codec.decode_request,
        decode_lines=codec.decode_requests,
    )

    def broke(error: OSError) -> None:
        """The peer has closed our output: responses are impossible, so the channel closes."""
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
    """Call `end` when the parent process has died, even if another process still holds our input open."""
    parent = os.getppid()
    timer: asyncio.TimerHandle | None = None

    def check() -> None:
        nonlocal timer
        if os.getppid() != parent:
            end("the parent process died")
        else:
            timer = loop.call_later(PARENT_CHECK, check)

    if parent > 1:  # 1 is init, or a container's first process; it does not die before us
        check()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
