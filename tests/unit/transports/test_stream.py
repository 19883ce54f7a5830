"""Messages over bytes: framing, flow control and close; the test has both ends of the stream."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.connections import Recorder, turns
from tests.limits import PATIENCE

from trunkline import Settings
from trunkline.transports.channel import ChannelClosed, ChannelInfo, MessageOrigin, Oversized
from trunkline.transports.stream import MAX_BATCH, StreamChannel
from trunkline.wire.codec import decode_request, decode_requests
from trunkline.wire.messages import Encoded, Malformed, Notification, Request, Response

SETTINGS = Settings(unsent_high=1000, unsent_limit=5000)
LINE = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{}}\n'
LONG_LINE = b'{"jsonrpc":"2.0","id":8,"method":"m","params":{"text":"%b"}}\n' % (b"x" * 200)


def line(number: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"m"}\n' % number


class Ends:
    """Both ends of a stream without I/O: output stays unsent until the test reads it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.keeps = False  # the output
        self.unsent = 0
        self.reading: bool | None = None
        self.closed = False
        self.finished = asyncio.Event()
        self.finished.set()

    def write(self, data: bytes | bytearray) -> None:
        self.written.append(bytes(data))
        if self.keeps:
            self.unsent += len(data)

    async def finish(self) -> None:
        await self.finished.wait()

    def pause(self) -> None:
        self.reading = False

    def resume(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None: ...


class Echo(Recorder):
    """A receiver that answers every request synchronously."""

    def __init__(self, channel: StreamChannel, answer: Any) -> None:
        super().__init__()
        self.channel = channel
        self.answer = answer

    def received(self, messages: Any, origin: MessageOrigin) -> None:
        super().received(messages, origin)
        for message in messages:
            if isinstance(message, Request):
                self.channel.send(Response(message.id, self.answer))


def make(max_frame: int = 1 << 16, settings: Settings = SETTINGS) -> tuple[StreamChannel, Recorder, Ends]:
    channel = StreamChannel(ChannelInfo("test"), max_frame=max_frame, settings=settings)
    recorder, ends = Recorder(), Ends()
    channel.open(recorder, ends, ends)
    return channel, recorder, ends


@pytest.mark.row("W11", "W12")
async def test_messages_of_one_read_are_delivered_together() -> None:
    channel, recorder, _ = make()
    channel.feed(line(1) + line(2) + line(3)[:5])
    assert [message.id for message in recorder.messages] == [1, 2]  # type: ignore[union-attr]
    assert len(recorder.origins) == 1
    channel.feed(line(3)[5:])
    assert [message.id for message in recorder.messages] == [1, 2, 3]  # type: ignore[union-attr]


@pytest.mark.row("W11")
@given(cuts=st.lists(st.integers(1, 40)), headed=st.booleans())
def test_messages_are_independent_of_chunking(cuts: list[int], *, headed: bool) -> None:
    async def run() -> list[Any]:
        channel, recorder, _ = make()
        frames = [line(number).strip() for number in range(5)]
        stream = b"".join(b"Content-Length: %d\r\n\r\n%b" % (len(f), f) if headed else f + b"\n" for f in frames)
        for size in [*cuts, len(stream)]:
            if stream[:size]:
                channel.feed(stream[:size])
            stream = stream[size:]
        return [message.id for message in recorder.messages]  # type: ignore[union-attr]

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


@pytest.mark.row("W11")
@given(
    sizes=st.lists(st.integers(0, 400), max_size=4),
    lines=st.lists(st.sampled_from([LINE, LINE, LINE, line(1), b"\n", b"{}\n", LONG_LINE, b" " + LINE]), max_size=9),
)
def test_messages_are_independent_of_decoding_lines_at_once(sizes: list[int], lines: list[bytes]) -> None:
    async def run(**decoders: Any) -> list[Any]:
        channel = StreamChannel(
            ChannelInfo("test"), max_frame=200, settings=SETTINGS, decode=decode_request, **decoders
        )
        recorder, ends, stream = Recorder(), Ends(), b"".join(lines)
        channel.open(recorder, ends, ends)
        for size in [*sizes, len(stream)]:
            channel.feed(stream[:size])
            stream = stream[size:]
        return recorder.messages

    assert asyncio.run(run(decode_lines=decode_requests)) == asyncio.run(run())


async def test_lines_after_an_unfinished_one_are_not_decoded_at_once() -> None:
    channel = StreamChannel(
        ChannelInfo("test"), max_frame=200, settings=SETTINGS, decode=decode_request, decode_lines=decode_requests
    )
    recorder, ends = Recorder(), Ends()
    channel.open(recorder, ends, ends)
    for data in (LINE + b"x", LINE + LINE):
        channel.feed(data)
    assert [type(message) for message in recorder.messages] == [Request, Malformed, Request]


async def test_replies_during_delivery_leave_in_one_write() -> None:
    channel, _, ends = make()
    channel.open(Echo(channel, {}), ends, ends)
    channel.feed(line(1) + line(2))
    assert len(ends.written) == 1  # no turn of the loop has passed
    assert ends.written[0].count(b"\n") == 2


async def test_messages_of_one_turn_leave_in_one_write() -> None:
    channel, _, ends = make()
    channel.send(Notification("a"))
    channel.send(Encoded(b'{"jsonrpc":"2.0","method":"b"}'))
    assert ends.written == []
    await turns(1)
    assert ends.written == [b'{"jsonrpc":"2.0","method":"a"}\n{"jsonrpc":"2.0","method":"b"}\n']


@pytest.mark.parametrize(
    ("unsendable", "error"),
    [(Response(2, {"long": "x" * 200, "other": object()}), TypeError), (Response(2, "x" * 300), Oversized)],
)
async def test_message_that_cannot_be_sent_leaves_nothing_behind(unsendable: Response, error: type[Exception]) -> None:
    channel, _, ends = make(max_frame=200)
    channel.send(Response(1, "before"))
    with pytest.raises(error):
        channel.send(unsendable)
    channel.send(Response(3, "after"))
    await turns(2)
    assert ends.written == [b'{"jsonrpc":"2.0","id":1,"result":"before"}\n{"jsonrpc":"2.0","id":3,"result":"after"}\n']


@pytest.mark.row("X24")
@pytest.mark.parametrize("message", [Notification("a"), Encoded(b'{"jsonrpc":"2.0","method":"a"}')])
async def test_channel_adopts_the_peers_framing(message: Any) -> None:
    channel, _, ends = make()
    body = b'{"jsonrpc":"2.0","method":"a"}'
    channel.feed(b"\r\n")  # shows nothing yet
    channel.feed(b"Content-Length: %d\r\n\r\n%b" % (len(line(1)), line(1)))
    channel.send(message)
    await turns(1)
    assert ends.written == [b"Content-Length: %d\r\n\r\n%b" % (len(body), body)]


@pytest.mark.row("W16")
async def test_oversized_frame_is_malformed_and_next_is_delivered() -> None:
    channel, recorder, _ = make(max_frame=100)
    channel.feed(b"x" * 101 + b"\n" + line(1))
    fault, message = recorder.messages
    assert isinstance(fault, Malformed)
    assert fault.limit == 100
    assert isinstance(message, Request)


@pytest.mark.row("N14")
async def test_reading_stops_at_high_water_and_resumes_at_half() -> None:
    channel, _, ends = make()
    ends.keeps = True
    channel.send(Notification("n", {"pad": "x" * 1000}))
    await turns(1)
    assert ends.reading is False
    waiting = asyncio.ensure_future(channel.drain())
    await turns(1)
    ends.unsent = 600
    channel.update_flow()
    assert (ends.reading, waiting.done()) == (False, False)
    ends.unsent = 500
    channel.update_flow()
    assert ends.reading is True
    await asyncio.wait_for(waiting, PATIENCE)


@pytest.mark.row("N14")
async def test_cancelled_drain_does_not_affect_other_waiters() -> None:
    channel, _, ends = make()
    ends.keeps = True
    channel.send(Notification("n", {"pad": "x" * 1000}))
    await turns(1)
    first, second = (asyncio.ensure_future(channel.drain()) for _ in range(2))
    await turns(1)
    first.cancel()
    await turns(1)
    ends.unsent = 0
    channel.update_flow()
    await asyncio.wait_for(second, PATIENCE)


@pytest.mark.row("N14")
async def test_received_messages_wait_while_writes_are_blocked() -> None:
    channel, _, ends = make()
    echo = Echo(channel, {"pad": "x" * 30})
    channel.open(echo, ends, ends)
    ends.keeps = True
    channel.feed(b"".join(map(line, range(MAX_BATCH * 3))))
    assert len(echo.messages) == MAX_BATCH  # the responses to those exceed the output limit
    assert ends.unsent <= SETTINGS.unsent_limit
    for read in (2, 3):
        ends.unsent = 0
        channel.update_flow()
        assert len(echo.messages) == MAX_BATCH * read
    assert [message.id for message in echo.messages] == list(range(MAX_BATCH * 3))
    assert ends.reading is False
    ends.unsent = 0
    channel.update_flow()
    assert ends.reading is True


@pytest.mark.row("N14")
async def test_peer_that_never_reads_is_disconnected() -> None:
    channel, _, ends = make()
    echo = Echo(channel, {"pad": "x" * 900})
    channel.open(echo, ends, ends)
    ends.keeps = True
    waiting = asyncio.ensure_future(channel.drain())
    channel.feed(b"".join(map(line, range(MAX_BATCH))))
    assert SETTINGS.unsent_limit < ends.unsent < SETTINGS.unsent_limit + 2000  # and not the responses to all of them
    assert ends.closed
    assert [closed.reason for closed in echo.ends] == [f"the peer left {ends.unsent} bytes unread"]
    await asyncio.wait_for(waiting, PATIENCE)
    channel.update_flow()
    channel.feed(line(1000))
    assert len(echo.messages) == MAX_BATCH


@pytest.mark.row("W01")
async def test_paused_receiver_gets_no_messages() -> None:
    channel, recorder, ends = make()
    channel.pause()
    assert ends.reading is False
    channel.feed(line(1))  # was in flight already
    assert recorder.messages == []
    channel.resume()
    assert len(recorder.messages) == 1
    assert ends.reading is True


async def test_pause_during_delivery_takes_effect_at_once() -> None:
    channel, _, ends = make()

    class Cautious(Recorder):
        def received(self, messages: Any, origin: MessageOrigin) -> None:
            super().received(messages, origin)
            channel.pause()

    cautious = Cautious()
    channel.open(cautious, ends, ends)
    channel.feed(b"".join(map(line, range(MAX_BATCH + 1))))
    assert len(cautious.messages) == MAX_BATCH
    channel.resume()
    assert len(cautious.messages) == MAX_BATCH + 1


async def test_resume_does_not_override_flow_control() -> None:
    channel, _, ends = make()
    ends.keeps = True
    channel.send(Notification("n", {"pad": "x" * 1000}))
    await turns(1)
    channel.pause()
    channel.resume()
    assert ends.reading is False


async def test_close_flushes_and_waits() -> None:
    channel, recorder, ends = make()
    ends.finished.clear()
    channel.send(Notification("last"))
    closing = asyncio.ensure_future(channel.close())
    await turns()
    assert len(ends.written) == 1
    assert recorder.ends == []
    ends.finished.set()
    await asyncio.wait_for(closing, PATIENCE)
    assert recorder.ends == [ChannelClosed("closed")]
    assert ends.closed


async def test_cancelled_close_still_closes() -> None:
    channel, recorder, ends = make()
    ends.finished.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await channel.close()
    assert recorder.ends == [ChannelClosed("closed")]


async def test_broken_stream_is_reported_once() -> None:
    channel, recorder, ends = make()
    broken = ChannelClosed("broken", OSError("no"))
    channel.abort(broken)
    channel.abort(ChannelClosed("again"))
    await channel.close()
    channel.send(Notification("n"))
    await turns()
    assert recorder.ends == [broken]
    assert ends.written == []


async def test_unopened_channel_can_be_closed() -> None:
    channel = StreamChannel(ChannelInfo("test"), max_frame=100, settings=SETTINGS)
    channel.pause()
    channel.send(Notification("n"))
    channel.feed(line(1))
    channel.update_flow()
    await channel.close()
    channel.resume()
    await turns()


# --- detection of the framing ------------------------------------------------------------------------------


def strict() -> tuple[StreamChannel, Recorder, Ends]:
    channel = StreamChannel(ChannelInfo("test"), max_frame=1000, settings=SETTINGS, strict=True)
    recorder, ends = Recorder(), Ends()
    channel.open(recorder, ends, ends)
    return channel, recorder, ends


@pytest.mark.parametrize("chunks", [[b"POST / HTTP/1.1\r\n\r\n" + line(1)], [b"\r\nC", b"on", b"nect\n" + line(1)]])
async def test_strict_channel_closes_on_foreign_bytes(chunks: list[bytes]) -> None:
    channel, recorder, ends = strict()
    for chunk in chunks:
        channel.feed(chunk)
    channel.feed(line(2))
    assert recorder.messages == []
    (closed,) = recorder.ends
    assert closed.reason.startswith("the peer speaks something else: it began with")
    assert ends.closed
    assert ends.written == []


async def test_lenient_channel_treats_foreign_bytes_as_malformed() -> None:
    channel, recorder, _ = make()
    channel.feed(b"oops\n" + line(1))
    bad, good = recorder.messages
    assert isinstance(bad, Malformed)
    assert good.id == 1  # type: ignore[union-attr]


async def test_framing_is_detected_byte_by_byte() -> None:
    channel, recorder, ends = strict()
    body = line(1).strip()
    for byte in b" \r\n\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body):
        channel.feed(bytes([byte]))
    assert recorder.ids == [1]
    channel.send(Notification("n"))
    await turns(1)
    assert ends.written[0].startswith(b"Content-Length: ")


@pytest.mark.parametrize(("framing", "start"), [("lines", b"{"), ("headers", b"Content-Length: ")])
async def test_explicit_framing_overrides_the_peers(framing: Any, start: bytes) -> None:
    channel = StreamChannel(ChannelInfo("test"), max_frame=1000, settings=SETTINGS, framing=framing)
    recorder, ends = Recorder(), Ends()
    channel.open(recorder, ends, ends)
    for heard in (b"", line(1) if framing == "headers" else b"Content-Length: 2\r\n\r\n{}"):
        channel.feed(heard)
        channel.send(Notification("n"))
        await turns(1)
    assert [written[: len(start)] for written in ends.written] == [start, start]
    assert len(recorder.messages) == 1


# --- reading after a half-close -----------------------------------------------------------------------------


@pytest.mark.row("N14")
@pytest.mark.parametrize("reads_on", [False, True])
async def test_client_reads_while_its_writes_are_blocked(*, reads_on: bool) -> None:
    channel = StreamChannel(ChannelInfo("test"), max_frame=1 << 16, settings=SETTINGS, read_while_blocked=reads_on)
    recorder, ends = Recorder(), Ends()
    channel.open(recorder, ends, ends)
    ends.keeps = True
    channel.send(Notification("n", {"x": "x" * 2000}))
    await turns(1)
    channel.feed(line(1))
    assert ends.reading is reads_on
    assert recorder.ids == ([1] if reads_on else [])
    draining = asyncio.ensure_future(channel.drain())
    await turns()
    assert not draining.done()
    ends.unsent = 0
    channel.update_flow()
    await draining
    assert (ends.reading, recorder.ids) == (True, [1])


# --- end of input ---------------------------------------------------------------------------------------------


async def test_eof_delivers_messages_to_a_paused_receiver() -> None:
    channel, recorder, _ = make()
    channel.pause()
    channel.feed(b"".join(line(number) for number in range(MAX_BATCH + 5)))
    assert recorder.messages == []
    channel.receive_eof(ChannelClosed("over"))
    channel.receive_eof(ChannelClosed("again"))
    assert recorder.ids == list(range(MAX_BATCH + 5))
    assert [end.reason for end in recorder.ends] == ["over"]


async def test_unwritten_output_is_discarded_after_a_break() -> None:
    channel, _, ends = make()
    channel.send(Notification("n"))
    channel.abort(ChannelClosed("broke"))
    await turns()
    assert ends.written == []


async def test_close_does_not_wait_for_a_peer_that_does_not_read() -> None:
    channel, recorder, ends = make(settings=Settings(drain_timeout=0.01))
    ends.finished.clear()
    async with asyncio.timeout(PATIENCE):
        await channel.close()
    assert [end.reason for end in recorder.ends] == ["closed"]


async def test_first_message_after_a_delivery_is_written_at_once_and_others_together() -> None:
    channel = StreamChannel(ChannelInfo("test"), max_frame=1 << 16, settings=SETTINGS, write_first=True)
    ends = Ends()
    channel.open(Recorder(), ends, ends)
    for _ in range(2):
        for number in range(3):
            channel.send(Notification(f"n{number}"))
        assert [data.count(b"\n") for data in ends.written] == [1]
        await turns(1)
        assert [data.count(b"\n") for data in ends.written] == [1, 2]
        ends.written.clear()
        channel.feed(b'{"jsonrpc":"2.0","method":"n"}\n')
