"""Connections of the Unix socket bus. A process sends over connections that it opened, and receives over those that it
accepted, so there are two between any two processes, one per direction.

The connecting side sends a hello, a signed frame that may announce an earlier loss, and then messages, each a signed
frame. The receiver drops a frame that fails verification and reads on; it closes a connection whose hello fails. It
answers the hello with a welcome once it has registered the peer, and sends nothing else. Both sides notice the end of
the connection. Hello, welcome and messages are each preceded by their length in four bytes.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from trunkline.stores.bus import MAX_MESSAGE_BYTES
from trunkline.stores.signed_frames import OVERHEAD, Frame

__all__ = ["FrameDecoder", "IncomingLink", "OutgoingLink", "add_length_prefix"]

HIGH_WATER_BYTES: Final = 1 << 20  # unsent bytes above which senders should wait
MAX_UNSENT_BYTES: Final = 64 << 20  # unsent bytes at which the connection is dropped
STALL_TIMEOUT: Final = 2.0  # seconds without progress above the high-water mark, then the connection is dropped
_LENGTH_BYTES: Final = 4  # bytes


def add_length_prefix(message: bytes) -> bytes:
    """Return the message with its length prefix."""
    return len(message).to_bytes(_LENGTH_BYTES) + message


class FrameDecoder:
    """Splits a byte stream into messages. Pieces of an incomplete message are joined when it is complete."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = _LENGTH_BYTES

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are now complete."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return []
        whole = b"".join(self._pieces)
        messages: list[bytes] = []
        at, end = 0, self._frame_end(whole, 0)
        while end <= len(whole):
            messages.append(whole[at + _LENGTH_BYTES : end])
            at, end = end, self._frame_end(whole, end)
        self._pieces, self._size, self._needed = [whole[at:]], len(whole) - at, end - at
        return messages

    @property
    def is_oversized(self) -> bool:
        """Whether the next length exceeds that of any valid message."""
        return self._needed > _LENGTH_BYTES + OVERHEAD + MAX_MESSAGE_BYTES

    @staticmethod
    def _frame_end(whole: bytes, at: int) -> int:
        """Return the end of the message at an offset, or of its length prefix if that is incomplete."""
        start = at + _LENGTH_BYTES
        return start if len(whole) < start else start + int.from_bytes(whole[at:start])


class _Link(asyncio.Protocol):
    """Common part of both directions."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        """Mark the connection as ended."""
        self._transport = None
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Close the connection after sending what is buffered."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class OutgoingLink(_Link):
    """Connection over which this process sends. Added messages are written together by the next `flush`."""

    def __init__(
        self, to: str, hello: bytes, *, on_welcome: Callable[[str], None], on_lost: Callable[["OutgoingLink"], None]
    ) -> None:
        super().__init__()
        self.to = to
        self.welcomed = False
        # Also set when the connection ends.
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_welcome = on_welcome
        self._on_lost = on_lost
        self._pending = [add_length_prefix(hello)]
        self._pending_bytes = len(hello)  # bytes in _pending
        self._written_bytes = 0  # total bytes
        self._broken = False
        # Above the high-water mark: done when the buffer is below it again, or the connection ends.
        self.drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, frame: bytes) -> None:
        """Queue a message; ignore it if the connection is about to end."""
        if self._broken:
            return
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        if self._pending_bytes + self._buffered_bytes() > MAX_UNSENT_BYTES + len(frame):
            self.drop()

    def fail_later(self, seconds: float) -> None:
        """Report the connection as lost after a delay, because the listener may retry at once."""
        self._broken = True
        self._timer = asyncio.get_running_loop().call_later(seconds, self.connection_lost, None)

    def close(self) -> None:
        """Close the connection after sending what is buffered; at once if it is not established."""
        if self._transport is None and not self.ended.done():
            self.connection_lost(None)
        super().close()

    def drop(self) -> None:
        """Discard unsent messages and abort the connection."""
        self._broken = True
        self._pending.clear()
        self._pending_bytes = 0
        self.abort()

    def flush(self) -> None:
        """Write the queued messages."""
        if self._transport is not None and self._pending:
            gathered, self._pending = self._pending, []
            self._written_bytes += self._pending_bytes
            self._pending_bytes = 0
            self._transport.write(b"".join(gathered))

    def _buffered_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the hello and all messages that were queued since."""
        super().connection_made(transport)
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if self._broken:
            self.abort()
        self.flush()

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - only a welcome can arrive
        """Handle the welcome."""
        if not self.welcomed:
            self.welcomed = True
            self._on_welcome(self.to)
            self._set_answered()

    def pause_writing(self) -> None:
        """Start the stall timer above the high-water mark."""
        loop = asyncio.get_running_loop()
        self.drained = loop.create_future()
        self._timer = loop.call_later(STALL_TIMEOUT, self._check_stalled, self._written_bytes - self._buffered_bytes())

    def resume_writing(self) -> None:
        """Wake up waiting senders and stop the timer."""
        if self.drained is not None:
            self.drained.set_result(None)
            self.drained = None
        if self._timer is not None:
            self._timer.cancel()

    def _check_stalled(self, before: int) -> None:
        """Drop the connection if no byte was sent since the last check."""
        now = self._written_bytes - self._buffered_bytes()
        if now == before:
            self.drop()
        else:
            self._timer = asyncio.get_running_loop().call_later(STALL_TIMEOUT, self._check_stalled, now)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss: unsent messages are lost, and sent ones may be."""
        super().connection_lost(exc)
        self._broken = True
        self.resume_writing()
        self._set_answered()
        self._on_lost(self)

    def _set_answered(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)


class IncomingLink(_Link):
    """Connection over which a peer sends. `verify` receives the sender, or "" before the hello, and a frame; it
    returns None for a frame to drop. `on_hello` is called once the sender is known."""

    def __init__(
        self,
        *,
        verify: Callable[[str, bytes], Frame | None],
        on_hello: Callable[["IncomingLink", bytes], None],
        on_message: Callable[[str, bytes], None],
        on_lost: Callable[["IncomingLink"], None],
    ) -> None:
        super().__init__()
        self.sender = ""
        self._verify = verify
        self._on_hello = on_hello
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = FrameDecoder()
        self._ignoring = False

    def welcome(self) -> None:
        """Tell the peer that it is registered."""
        if self._transport is not None:
            self._transport.write(add_length_prefix(b""))

    def data_received(self, data: bytes) -> None:
        """Dispatch complete messages."""
        for message in self._decoder.feed(data):
            if self._ignoring:
                return
            frame = self._verify(self.sender, message)
            if self.sender and frame is not None:
                self._on_message(self.sender, frame.payload)
            elif not self.sender:
                self._receive_hello(frame)
        if self._decoder.is_oversized:
            self.abort()

    def _receive_hello(self, hello: Frame | None) -> None:
        if hello is None:
            self.abort()
        else:
            self.sender = hello.sender
            self._on_hello(self, hello.payload)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss of messages in transit."""
        super().connection_lost(exc)
        self._on_lost(self)

    def close(self) -> None:
        """Ignore further messages and close the connection."""
        self._ignoring = True
        super().close()

    def abort(self) -> None:
        """Ignore further messages and abort the connection."""
        self._ignoring = True
        super().abort()
