"""Two channels in one process."""

import asyncio

import pytest
from tests.contract.lines import Recorder, turns

from trunkline.transports.channel import ChannelClosed
from trunkline.transports.memory import MemoryChannel, memory_pair
from trunkline.wire.messages import Notification


@pytest.mark.row("W08")
async def test_what_comes_before_anybody_listens_is_kept() -> None:
    ours, theirs = memory_pair()
    ours.send(Notification("early"))
    await turns()
    recorder = Recorder()
    theirs.open(recorder)
    await turns()
    assert [message.method for message in recorder.messages] == ["early"]  # type: ignore[union-attr]


async def test_what_one_read_would_bring_is_handed_up_together() -> None:
    ours, theirs = memory_pair()
    recorder = Recorder()
    theirs.open(recorder)
    for _ in range(3):
        ours.send(Notification("n"))
    await turns()
    assert len(recorder.messages) == 3
    assert len(recorder.origins) == 1


async def test_an_end_that_nobody_listens_at_closes_without_a_word() -> None:
    ours, theirs = memory_pair()
    ours.send(Notification("n"))
    await ours.close()
    recorder = Recorder()
    theirs.open(recorder)
    await turns()
    assert recorder.messages == []


async def test_a_channel_without_another_end_swallows_what_it_is_given() -> None:
    channel, recorder = MemoryChannel("nobody"), Recorder()
    channel.open(recorder)
    channel.send(Notification("n"))
    await channel.close()
    assert recorder.ends == [ChannelClosed("closed")]


async def test_what_was_held_back_is_handed_up_before_the_end() -> None:
    ours, theirs = memory_pair()
    recorder = Recorder()
    theirs.open(recorder)
    theirs.pause()
    ours.send(Notification("held back"))
    await ours.close()
    assert len(recorder.messages) == 1
    assert recorder.ends == [ChannelClosed("the other end closed")]
    await asyncio.sleep(0)  # the hand-over that was scheduled finds nothing to do
    assert len(recorder.messages) == 1


async def test_pausing_before_the_hand_over_stops_it() -> None:
    ours, theirs = memory_pair()
    recorder = Recorder()
    theirs.open(recorder)
    ours.send(Notification("n"))
    theirs.pause()
    await turns()
    assert recorder.messages == []
