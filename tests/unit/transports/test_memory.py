"""Two channels in one process."""

import asyncio
from typing import Any

import pytest
from tests.contract.connections import Recorder, turns

from trunkline.transports.channel import ChannelClosed
from trunkline.transports.memory import MemoryChannel, memory_pair
from trunkline.wire.messages import Notification


@pytest.mark.row("W08")
async def test_frames_before_open_are_delivered_later() -> None:
    ours, theirs = memory_pair()
    ours.send(Notification("early"))
    await turns()
    recorder = Recorder()
    theirs.open(recorder)
    await turns()
    assert [message.method for message in recorder.messages] == ["early"]  # type: ignore[union-attr]


async def test_frames_of_one_turn_are_delivered_together() -> None:
    ours, theirs = memory_pair()
    recorder = Recorder()
    theirs.open(recorder)
    for _ in range(3):
        ours.send(Notification("n"))
    await turns()
    assert len(recorder.messages) == 3
    assert len(recorder.origins) == 1


async def test_end_without_receiver_closes_silently() -> None:
    ours, theirs = memory_pair()
    ours.send(Notification("n"))
    await ours.close()
    recorder = Recorder()
    theirs.open(recorder)
    await turns()
    assert recorder.messages == []


async def test_unconnected_channel_discards_messages() -> None:
    channel, recorder = MemoryChannel("nobody"), Recorder()
    channel.open(recorder)
    channel.send(Notification("n"))
    await channel.close()
    assert recorder.ends == [ChannelClosed("closed")]


async def test_paused_frames_are_delivered_before_closed() -> None:
    ours, theirs = memory_pair()
    recorder = Recorder()
    theirs.open(recorder)
    theirs.pause()
    ours.send(Notification("held back"))
    await ours.close()
    assert len(recorder.messages) == 1
    assert recorder.ends == [ChannelClosed("the other end closed")]
    await asyncio.sleep(0)  # the scheduled delivery finds nothing to do
    assert len(recorder.messages) == 1


async def test_pause_before_delivery_prevents_it() -> None:
    ours, theirs = memory_pair()
    recorder = Recorder()
    theirs.open(recorder)
    ours.send(Notification("n"))
    theirs.pause()
    await turns()
    assert recorder.messages == []


async def test_replies_arrive_in_the_turn_of_the_delivery_that_they_answer() -> None:
    ours, theirs = memory_pair()
    recorder, echoed = Recorder(), list[int]()

    class Echo(Recorder):
        def received(self, messages: Any, origin: Any) -> None:
            super().received(messages, origin)
            theirs.send(Notification("reply"))
            echoed.append(len(recorder.messages))

    ours.open(recorder)
    theirs.open(Echo())
    ours.send(Notification("n"))
    assert recorder.messages == []
    await asyncio.sleep(0)
    assert echoed == [0]  # never inside `send`
    assert [message.method for message in recorder.messages] == ["reply"]  # type: ignore[union-attr]


async def test_two_busy_ends_do_not_block_the_loop() -> None:
    ours, theirs = memory_pair()
    received = 0

    class Echo(Recorder):
        def __init__(self, channel: MemoryChannel) -> None:
            super().__init__()
            self._channel = channel

        def received(self, messages: Any, origin: Any) -> None:
            nonlocal received
            super().received(messages, origin)
            received += 1
            self._channel.send(Notification("again"))

    ours.open(Echo(ours))
    theirs.open(Echo(theirs))
    ours.send(Notification("first"))
    await asyncio.sleep(0)
    assert received == 2
