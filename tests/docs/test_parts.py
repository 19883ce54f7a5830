"""The parts that the manual calls exchangeable can be exchanged, from outside and without patching."""

from collections.abc import Sequence

import pytest

from trunkline import CallToolResult, Server, TextContent
from trunkline.facts import CallEnded
from trunkline.rpc.dispatch import Feature
from trunkline.server.features import lifecycle
from trunkline.testing import ManualClock, RawPeer, RecordingObserver
from trunkline.transports.channel import ChannelInfo, MessageOrigin
from trunkline.wire.messages import Message, Request, Response


@pytest.mark.row("A20")
async def test_feature_clock_and_observer_are_replaceable() -> None:
    def fake_call(connection, call, params) -> CallToolResult:
        clock.advance(7)
        return CallToolResult([TextContent(f"faked {params.name}")])

    clock, observer = ManualClock(), RecordingObserver()
    fake = Feature("tools", {"tools/call": fake_call})
    server = Server("parts", features=[lifecycle.FEATURE, fake], clock=clock, observers=[observer], tools=True)
    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tools/call", {"name": "anything"})
        missing = await peer.error("tools/list")
    assert result["content"][0]["text"] == "faked anything"
    assert missing["code"] == -32601
    assert [fact.seconds for fact in observer.of(CallEnded) if fact.method == "tools/call"] == [7]


class FakeChannel:
    """A minimal transport."""

    info = ChannelInfo("fake")

    def __init__(self) -> None:
        self.sent: list[Message | Sequence[Message]] = []

    def send(self, message, *, about=None) -> None:
        self.sent.append(message)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    async def drain(self) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.row("A20", "W08")
async def test_custom_channel_is_served() -> None:
    channel, server = FakeChannel(), Server("parts", clock=ManualClock())
    receiver = server.connect(channel)
    receiver.received([Request(1, "ping")], MessageOrigin())
    assert [(message.id, type(message)) for message in channel.sent] == [(1, Response)]
