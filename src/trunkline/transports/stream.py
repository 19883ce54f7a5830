"""Messages over a stream of bytes: what pipes and sockets have in common.

`StreamChannel` knows framing and flow, and nothing of where bytes come from. A shell feeds it what it has read and
gives it a `Sink` to write to. It stops reading while too much is unsent, and cuts a peer off that never reads.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from trunkline.config import Settings
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, Oversized, Receiver, limit_setting
from trunkline.wire.codec import decode, decode_strict, encode, to_lines
from trunkline.wire.framing import ForeignProtocol, Framing, LengthFramer, LineFramer, detect
from trunkline.wire.messages import Encoded, ErrorResponse, Incoming, Message, RequestId

__all__ = ["FramingName", "Sink", "Source", "StreamChannel"]

MAX_BATCH: Final = 64  # messages; their answers are written before more are handed up

FramingName = Literal["lines", "headers"]
"""How messages are framed: each on a line of its own, or each after a header with its length."""


class Sink(Protocol):
    """Where bytes go. `write` takes all of them and never waits; `unsent` says how many still lie here, and `finish`
    waits until none do."""

    @property
    def unsent(self) -> int: ...

    def write(self, data: bytes) -> None: ...

    async def finish(self) -> None: ...


class Source(Protocol):
    """Where bytes come from; it can be asked to be quiet. `close` begins the end of the whole stream, both ways, and
    `gone` waits until nothing of it is left."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class StreamChannel:
    """A channel over a byte stream."""

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
        unique_members: bool = True,
    ) -> None:
        """`framing` is how messages go out; by default as the peer's do, on lines until that is known. A `Framing` is
        also how they come in. `strict` ends the line when the peer's first bytes belong to no message; else they are
        taken for a bad one. `reads_on` goes on reading while too much is unsent: a client has to, or both could wait
        for the other to read for ever. `unique_members` rejects messages with duplicate members in an object; it is for
        streams that an intermediary may read, too."""
        self._info = info
        self._settings = settings
        self._unsent_high = settings.unsent_high
        self._origin = origin or MessageOrigin()
        self._decode = decode_strict if unique_members else decode
        self._max_frame = max_frame
        self._max_line = max_frame + 1  # with its end
        ready = None if isinstance(framing, str) else framing
        self._framing = ready  # of what comes in, once the first bytes have shown it
        self._undetected = b""  # bytes that did not show it yet
        self._strict = strict
        out = LengthFramer(max_frame) if framing == "headers" else ready
        self._wrap = None if out is None else out.wrap  # what goes out; None for lines
        self._adopt_peer_framing = framing is None
        self._loop = asyncio.get_running_loop()
        self._received: list[Incoming] = []  # and not handed up yet
        self._outgoing: list[bytes] = []  # framed, and not written yet
        self._outgoing_size = 0  # bytes in it
        self._delivering = False  # what is sent meanwhile goes out at the end of it
        self._flush_scheduled = False
        self._paused = False  # by the receiver
        self._read_while_blocked = read_while_blocked
        self._write_blocked = False  # by a peer that does not read
        self._reading_stopped = False  # reading, for that reason
        self._drained: asyncio.Future[None] | None = None
        self._closed: ChannelClosed | None = None
        self._receiver: Receiver | None = None
        self._source: Source | None = None
        self._sink: Sink | None = None
        self.on_error: Callable[[Exception], None] | None = None
        """Told of an error of our own when something is written that was gathered; else it is the loop's to report."""

    @property
    def info(self) -> ChannelInfo:
        """What kind of line this is."""
        return self._info

    def open(self, receiver: Receiver, source: Source, sink: Sink) -> None:
        """Joins the channel to its receiver and to both ends of the stream."""
        self._receiver, self._source, self._sink = receiver, source, sink

    def replace_receiver(self, receiver: Receiver) -> None:
        """Report to another receiver from now on."""
        self._receiver = receiver

    # --- in ------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Takes what a read brought and hands up the messages in it: not too many at once, and none that is not wanted
        now or whose answer the peer would not read; those wait until this is called again, with nothing if need be."""
        if self._framing is None:
            known = self._detect(data)
            if known is None or self._framing is None:
                return
            data = known
        self._received += [self._decode(frame) for frame in self._framing.feed(data)]
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
            if self._outgoing:
                self._flush()

    def _detect(self, data: bytes) -> bytes | None:
        """Looks at the first bytes; gives them all once they have shown how they are framed."""
        start = self._undetected + data
        found = detect(start, self._max_frame)
        if isinstance(found, ForeignProtocol) and self._strict:
            self.abort(ChannelClosed(found.why))
            return None
        if found is None:
            self._undetected = start.lstrip()  # some bytes of a name at most
            return None
        self._framing = LineFramer(self._max_frame) if isinstance(found, ForeignProtocol) else found
        self._undetected = b""
        if self._adopt_peer_framing and isinstance(found, LengthFramer):
            self._wrap = found.wrap
        return start

    def pause(self) -> None:
        """Reads no more for now."""
        self._paused = True
        self._apply_flow_control()

    def resume(self) -> None:
        """Reads again."""
        self._paused = False
        self._apply_flow_control()

    def _apply_flow_control(self) -> None:
        if self._source is None:
            return
        self.feed(b"")  # what was held back comes first
        if self._paused or self._reading_stopped:
            self._source.pause()
        else:
            self._source.resume()

    # --- out -----------------------------------------------------------------------------------

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> None:  # noqa: ARG002
        """Takes a message; it leaves with others, at the end of this hand-over or turn of the loop."""
        if self._closed is not None:
            return
        if self._wrap is None:
            frame = message.frame + b"\n" if type(message) is Encoded else to_lines((message,))
            if len(frame) > self._max_line:
                self._check_size(message, len(frame) - 1)
        else:
            frame = encode(message)
            if len(frame) > self._max_frame:
                self._check_size(message, len(frame))
            frame = self._wrap(frame)
        self._outgoing.append(frame)
        self._outgoing_size += len(frame)
        if self._outgoing_size > self._unsent_high:
            self._flush()  # too much to gather: what the peer does not read counts from now on
        elif not self._delivering and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled_batch)

    def _check_size(self, message: Message | Encoded | Sequence[Message], size: int) -> None:
        """Raise `Oversized` for a message that the peer would not take, if its settings are like ours. Errors are never
        in the way: they are short, unless the peer itself has sent something that long."""
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
            out, self._outgoing = self._outgoing, []
            self._outgoing_size = 0
            self._sink.write(out[0] if len(out) == 1 else b"".join(out))
            if self._sink.unsent:
                self.update_flow()

    def update_flow(self) -> None:
        """Looks at how much is unsent; the shell calls it whenever that has become less."""
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
        """Waits while too much is unsent."""
        if self._write_blocked and self._closed is None:
            self._drained = self._drained or self._loop.create_future()
            await asyncio.shield(self._drained)

    # --- the end -------------------------------------------------------------------------------

    def receive_eof(self, closed: ChannelClosed) -> None:
        """The peer has ended the stream: what it said before is handed up, even to a receiver that has paused."""
        while self._received and not self._delivering and self._closed is None:
            self._paused = self._reading_stopped = False
            self.feed(b"")
        self.abort(closed)

    def abort(self, closed: ChannelClosed) -> None:
        """The stream broke, or is given up: nothing more comes or goes."""
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
        """Sends what is unsent, unless the peer takes too long to read it, and ends."""
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
