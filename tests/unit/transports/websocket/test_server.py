"""The server's side of a WebSocket, with a simulated ASGI server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.contract.connections import Recorder, turns, until, ws
from tests.limits import PATIENCE

from trunkline import Settings
from trunkline.clock import LoopClock
from trunkline.transports.channel import Channel, MessageOrigin
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.websocket.close_codes import CloseCode, describe_close, truncate_reason
from trunkline.transports.websocket.server import WebSocketEndpoint
from trunkline.wire.messages import Encoded, Incoming, Notification

NOTE = '{"jsonrpc":"2.0","method":"n"}'


class Asgi:
    """One connection, as an ASGI server has it."""

    def __init__(self, receiver: Recorder | None = None, *, settings: Settings | None = None, **scope: Any) -> None:
        self.recorder = receiver or Recorder()
        self.channels: list[Channel] = []
        self.sent: list[dict[str, Any]] = []
        self.taking = asyncio.Event()  # sent messages
        self.taking.set()
        self.error: Exception | None = None
        self.scope = {"type": "websocket", "headers": [], "client": None, **scope}
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.events.put_nowait({"type": "websocket.connect"})
        used = settings or Settings()
        guard = ListenerGuard(self._accept, used, LoopClock(asyncio.get_running_loop()))
        self.endpoint = WebSocketEndpoint(guard, used)
        self.running = asyncio.ensure_future(self.endpoint.handle(self.scope, self.events.get, self.send))

    def _accept(self, channel: Channel) -> Recorder:
        self.channels.append(channel)
        return self.recorder

    async def send(self, event: dict[str, Any]) -> None:
        await self.taking.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(event)

    def say(self, **event: Any) -> None:
        self.events.put_nowait({"type": "websocket.receive", **event})

    def leave(self, **event: Any) -> None:
        self.events.put_nowait({"type": "websocket.disconnect", **event})

    @property
    def texts(self) -> list[str]:
        return [event["text"] for event in self.sent if event["type"] == "websocket.send"]

    async def open(self) -> Channel:
        await until(lambda: self.channels and self.sent)
        return self.channels[0]


def test_truncate_reason_keeps_whole_characters() -> None:
    assert truncate_reason("é" * 100) == "é" * 61
    assert truncate_reason("fine") == "fine"


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (1000, "", "the peer closed the connection: 1000"),
        (4000, "why", "the peer closed the connection: 4000 why"),
        (CloseCode.NO_STATUS, "", "the peer closed the connection"),
        (CloseCode.ABNORMAL, "", "the connection broke"),
    ],
)
def test_describe_close_names_code_and_reason(code: int, reason: str, words: str) -> None:
    assert describe_close(code, reason) == words


async def test_refusal_without_asgi_extension_sends_close() -> None:
    asgi = Asgi(subprotocols=["other"])
    await asgi.running
    why = "none of the subprotocols is 'mcp'; offer that, or none"
    assert asgi.sent == [{"type": "websocket.close", "code": 1008, "reason": why}]


async def test_messages_have_the_handshake_headers() -> None:
    async with ws(Settings()) as line:
        line.ours.send(Notification("n"))
        await until(lambda: line.at_theirs.messages)
        headers = line.at_theirs.origins[0].headers
        assert headers is not None
        assert headers["Sec-WebSocket-Protocol"] == "mcp"
        await line.ours.close()


async def test_multi_line_or_invalid_text_is_one_frame() -> None:
    asgi = Asgi()
    channel = await asgi.open()
    channel.send(Encoded(b'{"a":\n1}'))
    channel.send(Encoded(b'{"a":"\xff"}'))
    await until(lambda: len(asgi.texts) == 2)
    assert asgi.texts == ['{"a": 1}', '{"a":"�"}']
    asgi.leave(code=1000)
    await asgi.running


async def test_empty_frame_is_ignored() -> None:
    asgi = Asgi()
    await asgi.open()
    asgi.say(text="")
    asgi.say(text=NOTE)
    asgi.leave()
    await asgi.running
    assert asgi.recorder.methods == ["n"]
    assert asgi.recorder.ends[0].reason == "the peer closed the connection"


async def test_messages_before_close_are_delivered_while_paused() -> None:
    asgi = Asgi()
    channel = await asgi.open()
    channel.pause()
    asgi.say(text=NOTE)
    asgi.say(text=NOTE)
    asgi.leave(code=1001, reason="bye")
    asgi.error = OSError("gone")
    channel.send(Notification("n"))  # which shows that the peer has gone
    await asgi.running
    assert asgi.recorder.methods == ["n", "n"]
    assert asgi.recorder.ends[0].reason == "the peer closed the connection: 1001 bye"


async def test_paused_connection_does_not_receive_from_asgi() -> None:
    asgi = Asgi()
    channel = await asgi.open()
    channel.pause()
    for _ in range(5):
        asgi.say(text=NOTE)
    await turns()
    assert asgi.events.qsize() == 4  # a reader was waiting
    assert asgi.recorder.messages == []
    channel.resume()
    await until(lambda: len(asgi.recorder.messages) == 5)
    asgi.leave()
    await asgi.running


async def test_disconnect_before_accept_leaves_nothing_behind() -> None:
    asgi = Asgi()
    asgi.error = OSError("gone")
    asgi.leave(code=1006)
    await asgi.running
    assert [end.reason for end in asgi.recorder.ends] == ["the connection broke"]
    assert len(asgi.endpoint) == 0


async def test_close_waits_only_briefly_for_a_stuck_peer() -> None:
    asgi = Asgi(settings=Settings(drain_timeout=0.01))
    channel = await asgi.open()
    asgi.taking.clear()
    channel.send(Notification("n"))
    async with asyncio.timeout(PATIENCE):
        await channel.close()
        await asgi.running
    assert len(asgi.recorder.ends) == 1
    assert asgi.texts == []
    assert len(asgi.endpoint) == 0


async def test_cancelled_asgi_task_closes_the_connection() -> None:
    asgi = Asgi()
    channel = await asgi.open()
    asgi.running.cancel()
    await asyncio.wait([asgi.running])
    assert asgi.running.cancelled()
    assert asgi.recorder.ends[0].reason == "the connection was given up"
    await channel.close()


async def test_internal_error_is_raised_to_the_asgi_server() -> None:
    class Broken(Recorder):
        def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
            raise RuntimeError("broken")

    asgi = Asgi(Broken())
    await asgi.open()
    asgi.say(text=NOTE)
    with pytest.raises(RuntimeError, match="broken"):
        await asgi.running
    assert len(asgi.recorder.ends) == 1
    assert len(asgi.endpoint) == 0


async def test_messages_of_one_turn_are_written_by_one_task() -> None:
    asgi = Asgi()
    channel = await asgi.open()
    before = asyncio.all_tasks()
    for _ in range(100):
        channel.send(Notification("n"))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    await until(lambda: len(asgi.texts) == 100)
    asgi.leave()
    await asgi.running
