"""The lines of a bus on Unix sockets. A process sends over lines that it has dialled itself, and hears over those that
it was dialled by; so there are two between any two, and each has one direction.

Who dials says hello, a signed frame that says at most whether something was lost before. What follows are messages,
each a signed frame. One that fails verification is dropped, and what comes next is read; a line whose hello fails is
closed. The other side answers with a welcome, once it has met the caller, and says nothing else; both see it when the
line ends. Hello, welcome and messages each follow their length, of four bytes.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from trunkline.stores.bus import MAX_MESSAGE_BYTES
from trunkline.stores.signed_frames import OVERHEAD, Frame

__all__ = ["FrameDecoder", "IncomingLink", "OutgoingLink", "add_length_prefix"]

HIGH_WATER_BYTES: Final = 1 << 20  # bytes that have not left: who can wait should
MAX_UNSENT_BYTES: Final = 64 << 20  # bytes at which a line is broken off
STALL_TIMEOUT: Final = 2.0  # seconds in which none of much has left; the line is broken off then
_LENGTH_BYTES: Final = 4  # bytes


def add_length_prefix(message: bytes) -> bytes:
    """A message as it goes out."""
    return len(message).to_bytes(_LENGTH_BYTES) + message


class FrameDecoder:
    """Cuts what comes into messages. Pieces of one that is not whole yet are joined when it is."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = _LENGTH_BYTES

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now."""
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
        """Whether what comes is nothing of ours: no message is that long."""
        return self._needed > _LENGTH_BYTES + OVERHEAD + MAX_MESSAGE_BYTES

    @staticmethod
    def _frame_end(whole: bytes, at: int) -> int:
        """Where the message ends that begins there; if that is not known yet, where it will be."""
        start = at + _LENGTH_BYTES
        return start if len(whole) < start else start + int.from_bytes(whole[at:start])


class _Link(asyncio.Protocol):
    """What lines of both directions have in common."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line stands."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it came
        """The line has ended."""
        self._transport = None
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Ends the line when what is left has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends the line at once."""
        if self._transport is not None:
            self._transport.abort()


class OutgoingLink(_Link):
    """A line over which this process sends. What is added goes out with the next `flush`, in one piece."""

    def __init__(
        self, to: str, hello: bytes, *, on_welcome: Callable[[str], None], on_lost: Callable[["OutgoingLink"], None]
    ) -> None:
        super().__init__()
        self.to = to
        self.welcomed = False
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # or ended
        self._on_welcome = on_welcome
        self._on_lost = on_lost
        self._pending = [add_length_prefix(hello)]
        self._pending_bytes = len(hello)  # bytes that were gathered
        self._written_bytes = 0  # bytes, ever
        self._broken = False
        self._drained: asyncio.Future[None] | None = None  # while much has not left
        self._timer: asyncio.TimerHandle | None = None

    def add(self, frame: bytes) -> None:
        """One more message; none if the line is about to end."""
        if self._broken:
            return
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        if self._pending_bytes + self._buffered_bytes() > MAX_UNSENT_BYTES + len(frame):
            self.drop()

    def fail_later(self, seconds: float) -> None:
        """There can be no line for now. It ends so much later: who is told may try again at once."""
        self._broken = True
        self._timer = asyncio.get_running_loop().call_later(seconds, self.connection_lost, None)

    def close(self) -> None:
        """Ends the line when what is left has been sent; at once if there is none."""
        if self._transport is None and not self.ended.done():
            self.connection_lost(None)
        super().close()

    def drop(self) -> None:
        """Gives up what has not left, and the line."""
        self._broken = True
        self._pending.clear()
        self._pending_bytes = 0
        self.abort()

    def flush(self) -> None:
        """Writes what was gathered."""
        if self._transport is not None and self._pending:
            gathered, self._pending = self._pending, []
            self._written_bytes += self._pending_bytes
            self._pending_bytes = 0
            self._transport.write(b"".join(gathered))

    @property
    def drained(self) -> asyncio.Future[None] | None:
        """Is done when less is left than much, or the line has ended; None if that is so now."""
        return self._drained

    def _buffered_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Says hello, and all that was to be said since."""
        super().connection_made(transport)
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if self._broken:
            self.abort()
        self.flush()

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - there is one thing to say
        """We are welcome."""
        if not self.welcomed:
            self.welcomed = True
            self._on_welcome(self.to)
            self._set_answered()

    def pause_writing(self) -> None:
        """Much has not left."""
        loop = asyncio.get_running_loop()
        self._drained = loop.create_future()
        self._timer = loop.call_later(STALL_TIMEOUT, self._check_stalled, self._written_bytes - self._buffered_bytes())

    def resume_writing(self) -> None:
        """Little is left."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None
        if self._timer is not None:
            self._timer.cancel()

    def _check_stalled(self, before: int) -> None:
        """Breaks the line off if nothing has left since."""
        now = self._written_bytes - self._buffered_bytes()
        if now == before:
            self.drop()
        else:
            self._timer = asyncio.get_running_loop().call_later(STALL_TIMEOUT, self._check_stalled, now)

    def connection_lost(self, exc: Exception | None) -> None:
        """What has not left is lost, and some that has may be."""
        super().connection_lost(exc)
        self._broken = True
        self.resume_writing()
        self._set_answered()
        self._on_lost(self)

    def _set_answered(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)


class IncomingLink(_Link):
    """A line over which another process sends. `verify` is given the sender, or "" before the hello, and a frame; it
    returns None for one that is to be dropped. `greeted` is told of the hello, when the sender is known."""

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
        """Tells the caller that it was met."""
        if self._transport is not None:
            self._transport.write(add_length_prefix(b""))

    def data_received(self, data: bytes) -> None:
        """Hands on what is whole."""
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
        """What was on the way is lost."""
        super().connection_lost(exc)
        self._on_lost(self)

    def close(self) -> None:
        """Hears nothing any more."""
        self._ignoring = True
        super().close()

    def abort(self) -> None:
        """Hears nothing any more."""
        self._ignoring = True
        super().abort()
