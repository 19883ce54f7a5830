"""The limits that all network transports apply to peers."""

import pytest
from tests.contract.connections import Recorder

from trunkline import Settings
from trunkline.testing import ManualClock
from trunkline.transports.channel import Channel, ChannelClosed, MessageOrigin
from trunkline.transports.listener_limits import ListenerGuard
from trunkline.transports.memory import MemoryChannel
from trunkline.wire.messages import Batch, Incoming, Malformed, Notification, Response

BAD = Malformed(-32700, "not JSON")


class AdmittedPeer:
    """The limits, and a peer that has passed them."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.clock, self.recorder, self.cut = ManualClock(), Recorder(), list[ChannelClosed]()
        self.guard = ListenerGuard(self.accept, settings or Settings(), self.clock)
        self.receiver = self.guard.admit(MemoryChannel("peer"), self.cut.append)

    def accept(self, channel: Channel) -> Recorder:
        assert channel.info.peer == "peer"
        return self.recorder


@pytest.mark.row("K15")
async def test_silent_peer_is_disconnected_at_the_deadline() -> None:
    guarded = AdmittedPeer()
    guarded.clock.advance(29.9)
    assert guarded.cut == []
    guarded.clock.advance(0.1)
    assert [closed.reason for closed in guarded.cut] == ["the peer sent no valid message within 30 s"]


@pytest.mark.row("K15")
async def test_malformed_message_does_not_stop_the_timer() -> None:
    guarded = AdmittedPeer()
    guarded.receiver.received([BAD], MessageOrigin())
    assert guarded.recorder.messages == [BAD]
    guarded.clock.advance(30)
    assert len(guarded.cut) == 1


@pytest.mark.row("K15", "K17")
@pytest.mark.parametrize("valid", [Notification("n"), Response(1, {}), Batch((BAD,))], ids=lambda m: type(m).__name__)
async def test_first_valid_message_stops_the_timer(valid: Incoming) -> None:
    guarded = AdmittedPeer()
    guarded.clock.advance(29)
    guarded.receiver.received([BAD, valid], MessageOrigin(principal="p"))
    assert (guarded.recorder.messages, guarded.recorder.origins) == ([BAD, valid], [MessageOrigin(principal="p")])
    guarded.receiver.received([valid], MessageOrigin())
    guarded.clock.advance(60)
    assert guarded.cut == []
    assert guarded.clock.waiting == 0


@pytest.mark.row("K15")
async def test_first_message_timeout_can_be_disabled() -> None:
    guarded = AdmittedPeer(Settings(initialize_timeout=None))
    assert guarded.clock.waiting == 0
    guarded.receiver.received([Notification("n")], MessageOrigin())
    guarded.receiver.closed(ChannelClosed("over"))


async def test_closed_peer_stops_the_timer() -> None:
    guarded = AdmittedPeer()
    guarded.receiver.closed(ChannelClosed("over"))
    assert guarded.clock.waiting == 0
    assert [closed.reason for closed in guarded.recorder.ends] == ["over"]


async def test_guard_is_full_until_a_peer_leaves() -> None:
    guarded = AdmittedPeer(Settings(max_connections=2))
    assert not guarded.guard.full
    guarded.guard.admit(MemoryChannel("peer"), guarded.cut.append)
    assert guarded.guard.full
    guarded.receiver.closed(ChannelClosed("over"))
    assert not guarded.guard.full


async def test_failed_accept_does_not_count_as_a_peer() -> None:
    def refuse(_: Channel) -> Recorder:
        raise RuntimeError("not now")

    guard = ListenerGuard(refuse, Settings(), clock := ManualClock())
    with pytest.raises(RuntimeError, match="not now"):
        guard.admit(MemoryChannel("peer"), lambda _: None)
    assert (guard.peer_count, clock.waiting) == (0, 0)
