"""Messages over a byte stream, shared by pipes and sockets.

`StreamChannel` implements framing and flow control, and performs no I/O. A shell feeds it the bytes it has read and
provides a `Sink` for output. The channel stops reading while too much output is unsent, and disconnects a peer that
does not read.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from trunkline.config import Settings
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, Oversized, Receiver, limit_setting
from trunkline.wire.codec import decode_strict, encode, encode_into
from trunkline.wire.framing import ForeignProtocol, Frame, Framing, LengthFramer, LineFramer, detect
from trunkline.wire.messages import Encoded, ErrorResponse, Incoming, Message, RequestId

__all__ = ["DrainSignal", "FramingName", "Sink", "Source", "StreamChannel"]

MAX_BATCH: Final = 64  # messages per delivery; their responses are written before the next delivery

FramingName = Literal["lines", "headers"]
"""Message framing: one message per line, or a `Content-Length` header before each message."""


class Sink(Protocol):
    """Destination of bytes. `write` never waits, `unsent` is the number of buffered bytes, and `finish` waits until
    there are none."""

    @property
    def unsent(self) -> int: ...

    def write(self, data: bytes | bytearray) -> None: ...

    async def finish(self) -> None: ...


class Source(Protocol):
    """Origin of bytes. `close` begins to close both directions of the stream, and `wait_closed` waits until they are
    closed."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class DrainSignal:
    """Wakes the tasks that wait in `Sink.finish`."""

    def __init__(self) -> None:
        self._drained: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait for the next `notify`."""
        if self._drained is None or self._drained.done():
            self._drained = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._drained)

    def notify(self) -> None:
        """Wake all waiting tasks: everything is written, or the stream is lost."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


_NEWLINE: Final = ord("\n")


class StreamChannel:
    """Channel over a byte stream."""

    __slots__ = (
        *("_adopt_peer_framing", "_closed", "_decode", "_decode_lines", "_delivering", "_drained", "_flush_scheduled"),
        *("_framing", "_info", "_loop", "_max_frame", "_may_write", "_origin", "_outgoing", "_paused"),
        *("_read_while_blocked", "_reading_stopped", "_received", "_receiver", "_settings", "_sink", "_source"),
        *("_strict", "_undetected", "_unsent_high", "_wrap", "_write_blocked", "_write_first", "on_error"),
    )

    def __init__(
        self,
        info: ChannelInfo,
        *,
        max_frame: int,
        settings: Settings,
        origin: MessageOrigin | None = None,
        framing: FramingName | Framing | None = None,
        strict: bool = False,
        read_while_blocked: bool = False,
        write_first: bool = False,
        decode: Callable[[Frame], Incoming] = decode_strict,
        decode_lines: Callable[[bytes], Sequence[Incoming] | None] | None = None,
    ) -> None:
        """`framing` is the framing of outgoing messages; by default that of the peer, and lines until it is known. A
        `Framing` object also applies to incoming messages. `strict` closes the channel if the peer's first bytes are
        not a message; otherwise they count as an invalid message. `read_while_blocked` continues to read while too
        much is unsent: a client needs that, or both sides could wait for each other to read. `write_first` writes the
        first message after a delivery at once instead of in the next turn of the loop, which suits a client: it often
        sends no other. `decode` decodes a frame; the default rejects messages with duplicate members in an object, for
        the sake of intermediaries that may parse the stream as well. `decode_lines` decodes all lines of a read at
        once, with the same result, or returns None to leave that to `decode`."""
        self._info = info
        self._settings = settings
        self._unsent_high = settings.unsent_high
        self._origin = origin or MessageOrigin()
        self._decode = decode
        self._decode_lines = decode_lines
        self._max_frame = max_frame
        custom = None if isinstance(framing, str) else framing
        self._framing = custom  # of incoming messages, once the first bytes have shown it
        self._undetected = b""  # first bytes, while the framing is unknown
        self._strict = strict
        outgoing = LengthFramer(max_frame) if framing == "headers" else custom
        self._wrap = None if outgoing is None else outgoing.wrap  # frames outgoing messages; None for lines
        self._adopt_peer_framing = framing is None
        self._loop = asyncio.get_running_loop()
        self._received: list[Incoming] = []  # decoded, and not delivered yet
        self._outgoing = bytearray()  # frames that are not written yet
        self._delivering = False  # messages sent meanwhile are flushed at its end
        self._flush_scheduled = False
        self._write_first = write_first
        self._may_write = write_first  # no message was sent since the last delivery
        self._paused = False  # by the receiver
        self._read_while_blocked = read_while_blocked
        self._write_blocked = False  # the peer does not read
        self._reading_stopped = False  # because _write_blocked is set
        self._drained: asyncio.Future[None] | None = None
        self._closed: ChannelClosed | None = None
        self._receiver: Receiver | None = None
        self._source: Source | None = None
        self._sink: Sink | None = None
        self.on_error: Callable[[Exception], None] | None = None
        """Called with an internal error of a deferred write; without it the error goes to the loop's exception
        handler."""

    @property
    def info(self) -> ChannelInfo:
        """The kind of this channel."""
        return self._info

    def open(self, receiver: Receiver, source: Source, sink: Sink) -> None:
        """Connect the channel to its receiver and to both ends of the stream."""
        self._receiver, self._source, self._sink = receiver, source, sink

    def replace_receiver(self, receiver: Receiver) -> None:
        """Report to another receiver from now on."""
        self._receiver = receiver

    # --- in ------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Decode bytes and deliver the messages, at most `MAX_BATCH` at a time.

        Messages stay queued while the receiver has paused or the peer does not read; the next call, with empty data if
        need be, delivers them.
        """
        if self._framing is None:
            detected = self._detect(data)
            if detected is None or self._framing is None:
                return
            data = detected
        framing, decode, decode_lines = self._framing, self._decode, self._decode_lines
        messages: Sequence[Incoming] | None = None
        if decode_lines is not None and type(framing) is LineFramer and framing.accepts_lines(data):
            messages = decode_lines(data)
        self._received += [decode(frame) for frame in framing.feed(data)] if messages is None else messages
        while self._received and not (
            self._paused or self._reading_stopped or self._delivering or self._closed is not None
        ):
            messages, self._received = self._received, []
            if len(messages) > MAX_BATCH:
                messages, self._received = messages[:MAX_BATCH], messages[MAX_BATCH:]
            self._delivering = True
            try:
                if self._receiver is not None:
                    self._receiver.received(messages, self._origin)
            finally:
                self._delivering = False
                self._may_write = self._write_first
            if self._outgoing:
                self._flush()

    def _detect(self, data: bytes) -> bytes | None:
        """Detect the framing from the first bytes; return all bytes so far once it is known."""
        first_bytes = self._undetected + data
        found = detect(first_bytes, self._max_frame)
        if isinstance(found, ForeignProtocol) and self._strict:
            self.abort(ChannelClosed(found.why))
            return None
        if found is None:
            self._undetected = first_bytes.lstrip()  # at most part of a header name
            return None
        self._framing = LineFramer(self._max_frame) if isinstance(found, ForeignProtocol) else found
        self._undetected = b""
        if self._adopt_peer_framing and isinstance(found, LengthFramer):
            self._wrap = found.wrap
        return first_bytes

    def pause(self) -> None:
        """Stop reading."""
        self._paused = True
        self._apply_flow_control()

    def resume(self) -> None:
        """Read again."""
        self._paused = False
        self._apply_flow_control()

    def _apply_flow_control(self) -> None:
        if self._source is None:
            return
        self.feed(b"")  # deliver queued messages first
        if self._paused or self._reading_stopped:
            self._source.pause()
        else:
            self._source.resume()

    # --- out -----------------------------------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> int | None:  # noqa: ARG002
        """Queue a message. It is written with others at the end of this delivery or turn of the loop."""
        if self._closed is not None:
            return None
        outgoing = self._outgoing
        if self._wrap is None:
            start = len(outgoing)
            try:  # encode behind other messages, without a copy
                if type(message) is Encoded:
                    outgoing += message.frame
                else:
                    encode_into(message, outgoing, start)
                end = len(outgoing)
                size = end - start
                if size > self._max_frame:
                    self._check_size(message, size)
            except BaseException:
                del outgoing[start:]
                raise
            outgoing.append(_NEWLINE)  # half the cost of `+=`
        else:
            frame = encode(message)
            size = len(frame)
            if size > self._max_frame:
                self._check_size(message, size)
            outgoing += self._wrap(frame)
            end = len(outgoing)
        if end >= self._unsent_high:
            self._flush()  # too large to batch; unread bytes count from now on
        elif self._delivering or self._flush_scheduled:
            return size
        elif self._may_write and self._sink is not None:
            self._may_write = False
            self._outgoing = bytearray()
            self._sink.write(outgoing)
            if self._sink.unsent:
                self.update_flow()
        else:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled_batch)
        return size

    def _check_size(self, message: Message | Encoded | Sequence[Message], size: int) -> None:
        """Raise `Oversized` for a message that a peer with our settings would reject. Error responses pass: they are
        short unless they quote a long message of the peer."""
        parts = message if isinstance(message, Sequence) else (message,)
        if not all(isinstance(part, ErrorResponse) for part in parts):
            raise Oversized(size, self._max_frame, limit_setting(self._info) or "max_frame")

    def _flush_scheduled_batch(self) -> None:
        try:
            self._flush()
        except Exception as error:
            if self.on_error is None:
                raise
            self.on_error(error)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._outgoing and self._sink is not None:
            outgoing, self._outgoing = self._outgoing, bytearray()
            self._sink.write(outgoing)
            if self._sink.unsent:
                self.update_flow()

    def update_flow(self) -> None:
        """Compare the unsent bytes with the limits. The shell calls this whenever their number has decreased."""
        if self._sink is None or self._closed is not None:
            return
        unsent = self._sink.unsent
        if unsent > self._settings.unsent_limit:
            self.abort(ChannelClosed(f"the peer left {unsent} bytes unread"))
        elif unsent > self._settings.unsent_high and not self._write_blocked:
            self._write_blocked, self._reading_stopped = True, not self._read_while_blocked
            self._apply_flow_control()
        elif self._write_blocked and unsent <= self._settings.unsent_high // 2:
            self._write_blocked = self._reading_stopped = False
            self._apply_flow_control()
            self._wake_drainers()

    def _wake_drainers(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    async def drain(self) -> None:
        """Wait while too much is unsent."""
        if self._write_blocked and self._closed is None:
            self._drained = self._drained or self._loop.create_future()
            await asyncio.shield(self._drained)

    # --- the end -------------------------------------------------------------------------------

    def receive_eof(self, closed: ChannelClosed) -> None:
        """The peer has closed the stream: deliver the remaining messages, even if the receiver has paused, and
        close."""
        while self._received and not self._delivering and self._closed is None:
            self._paused = self._reading_stopped = False
            self.feed(b"")
        self.abort(closed)

    def abort(self, closed: ChannelClosed) -> None:
        """Close at once: the stream has broken, or the channel gives it up."""
        if self._closed is not None:
            return
        self._closed = closed
        self._outgoing.clear()
        self._wake_drainers()
        if self._source is not None:
            self._source.close()
        if self._receiver is not None:
            self._receiver.closed(closed)

    async def close(self) -> None:
        """Send the pending messages within `drain_timeout`, and close."""
        if self._closed is None:
            self._flush()
        try:
            if self._sink is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.drain_timeout):
                        await self._sink.finish()
        finally:
            self.abort(ChannelClosed("closed"))
        if self._source is not None:
            await self._source.wait_closed()
