"""A pair of connected channels within one process.

Messages are encoded and decoded on the way, so that only valid messages pass and the two sides share no objects. They
arrive on the next turn of the loop, never inside `send`; replies that an end sends while it processes a delivery arrive
at the end of that delivery, in the same turn. A paused end applies back pressure to the other one and is
disconnected at `unsent_limit`, like any peer that does not read.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from trunkline.config import Settings
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, Receiver
from trunkline.wire import codec
from trunkline.wire.messages import Encoded, Incoming, Message, RequestId

__all__ = ["FrameEnd", "MemoryChannel", "memory_pair"]


class FrameEnd(Protocol):
    """The remote end of a memory channel: another channel, or a test that simulates a peer."""

    def put(self, frame: bytes) -> None:
        """Receive a frame."""
        ...

    @property
    def untaken(self) -> int:
        """Bytes received and not processed yet."""
        ...

    async def eased(self) -> None:
        """Wait until some of them are processed, or this end has closed."""
        ...

    def end(self, closed: ChannelClosed) -> None:
        """Close: no more frames will arrive."""
        ...


class MemoryChannel:
    """One end of an in-process connection."""

    def __init__(
        self,
        peer: str,
        origin: MessageOrigin | None = None,
        settings: Settings | None = None,
        *,
        same_process: bool = False,
    ) -> None:
        """`same_process` is False if a test simulates a remote peer."""
        settings = settings or Settings()
        self._info = ChannelInfo("memory", peer, local=True, same_process=same_process)
        self._unsent_high, self._unsent_limit = settings.unsent_high, settings.unsent_limit
        self._origin = origin or MessageOrigin()
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._remote: FrameEnd | None = None
        self._inbox: list[bytes] = []
        self.untaken = 0  # bytes in the inbox
        self._inbox_emptied: asyncio.Future[None] | None = None
        self._scheduled = False
        self._held = False  # the other end processes a delivery; frames from it wait until it has done so
        self._paused = False
        self._closed = False

    @property
    def info(self) -> ChannelInfo:
        """The kind of this channel."""
        return self._info

    def connect_to(self, other: FrameEnd) -> None:
        """Connect this end to the other one."""
        self._remote = other

    def open(self, receiver: Receiver) -> None:
        """Set the receiver and deliver the frames that arrived before."""
        self._receiver = receiver
        self._schedule()

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> int | None:  # noqa: ARG002
        """Send a message to the other end."""
        frame = message.frame if isinstance(message, Encoded) else codec.to_json(message)
        if not self._closed and self._remote is not None:
            self._remote.put(frame)
            if self._remote.untaken > self._unsent_limit:
                self._abort(ChannelClosed(f"the peer left {self._remote.untaken} bytes unread"))
        return len(frame)

    def put(self, frame: bytes) -> None:
        """Receive a frame from the other end."""
        if not self._closed:
            self._inbox.append(frame)
            self.untaken += len(frame)
            self._schedule()

    def _schedule(self) -> None:
        if (
            self._inbox
            and self._receiver is not None
            and not (self._scheduled or self._held or self._paused or self._closed)
        ):
            self._scheduled = True
            self._loop.call_soon(self._deliver_scheduled)

    def _deliver_scheduled(self) -> None:
        """Deliver the pending frames here, then the replies to them at the other end.

        Replies to these replies take another turn of the loop, so that two busy ends do not block it.
        """
        self._scheduled = False
        other = self._remote
        if not isinstance(other, MemoryChannel) or other._scheduled:
            self._deliver()
            return
        other._held = True
        try:
            self._deliver()
        finally:
            other._held = False
            other._deliver()

    def _deliver(self) -> None:
        if not self._inbox or self._paused or self._receiver is None or self._closed:
            return
        frames, self._inbox, self.untaken = self._inbox, [], 0
        self._notify_emptied()
        messages: list[Incoming] = [codec.decode(frame) for frame in frames]
        self._receiver.received(messages, self._origin)

    def pause(self) -> None:
        """Stop delivering messages."""
        self._paused = True

    def resume(self) -> None:
        """Deliver messages again."""
        self._paused = False
        self._schedule()

    async def drain(self) -> None:
        """Wait while the other end has more than `unsent_high` bytes to process."""
        while self._remote is not None and self._remote.untaken > self._unsent_high and not self._closed:
            await self._remote.eased()

    async def eased(self) -> None:
        """Wait until the inbox is empty, or this end has closed."""
        if self._inbox_emptied is None:
            self._inbox_emptied = self._loop.create_future()
        await asyncio.shield(self._inbox_emptied)

    def _notify_emptied(self) -> None:
        waiting, self._inbox_emptied = self._inbox_emptied, None
        if waiting is not None:
            waiting.set_result(None)

    async def close(self) -> None:
        """Close both ends."""
        self.end(ChannelClosed("closed"))
        if self._remote is not None:
            self._remote.end(ChannelClosed("the other end closed"))

    def _abort(self, closed: ChannelClosed) -> None:
        """Close both ends at once because the other end does not read."""
        self.end(closed)
        if self._remote is not None:
            self._loop.call_soon(self._remote.end, ChannelClosed("the other end closed: too much was left unread"))

    def end(self, closed: ChannelClosed) -> None:
        """Close this end, after delivering the pending frames."""
        if self._closed:
            return
        if self._inbox and self._receiver is not None:
            self._paused = False
            self._deliver()
        self._closed = True
        self.untaken = 0
        self._notify_emptied()
        if self._receiver is not None:
            self._receiver.closed(closed)


def memory_pair(principal: object = None, settings: Settings | None = None) -> tuple[MemoryChannel, MemoryChannel]:
    """Return the client's and the server's end of a new connection."""
    client = MemoryChannel("server", settings=settings, same_process=True)
    server = MemoryChannel("client", MessageOrigin(principal=principal), settings, same_process=True)
    client.connect_to(server)
    server.connect_to(client)
    return client, server
