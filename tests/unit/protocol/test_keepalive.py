"""Liveness checks of a silent peer."""

import pytest

from trunkline.protocol.keepalive import Keepalive, KeepaliveAction, KeepaliveDecision

WAIT, PING, DEAD = KeepaliveAction.WAIT, KeepaliveAction.PING, KeepaliveAction.DEAD


@pytest.mark.row("K05")
def test_silent_peer_is_pinged_once() -> None:
    keepalive = Keepalive(30, 10)
    assert keepalive.check(last_received=100, now=129.9) == KeepaliveDecision(WAIT, 130)
    assert keepalive.check(last_received=100, now=130) == KeepaliveDecision(PING, 140)
    assert keepalive.check(last_received=100, now=135) == KeepaliveDecision(WAIT, 140)


@pytest.mark.row("K06")
@pytest.mark.parametrize("heard", [130, 130.1, 139])
def test_any_message_after_ping_restarts_interval(heard: float) -> None:
    keepalive = Keepalive(30, 10)
    keepalive.check(last_received=100, now=130)
    assert keepalive.check(last_received=heard, now=140) == KeepaliveDecision(WAIT, heard + 30)
    assert keepalive.check(last_received=heard, now=heard + 30) == KeepaliveDecision(PING, heard + 40)


@pytest.mark.row("K06")
def test_active_peer_is_never_pinged() -> None:
    keepalive = Keepalive(30, 10)
    assert [keepalive.check(last_received=now - 1, now=now).action for now in range(0, 300, 10)] == [WAIT] * 30


@pytest.mark.row("K07")
@pytest.mark.parametrize("now", [140, 141, 500])
def test_peer_silent_after_ping_is_dead(now: float) -> None:
    keepalive = Keepalive(30, 10)
    keepalive.check(last_received=100, now=130)
    assert keepalive.check(last_received=100, now=now).action is DEAD
