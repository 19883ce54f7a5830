"""The table of a member's states."""

from trunkline.client.group.states import MEMBER_STATES, MemberSignal, MemberState


def test_table_has_every_state_and_every_state_can_be_left() -> None:
    assert MEMBER_STATES.keys() == {*MemberState}
    assert {state for row in MEMBER_STATES.values() for state in row.values()} == {*MemberState}


def test_every_state_can_be_closed() -> None:
    assert {row[MemberSignal.CLOSE] for row in MEMBER_STATES.values()} == {MemberState.CLOSED}


def test_only_an_attempt_leads_to_ready() -> None:
    sources = {state for state, row in MEMBER_STATES.items() if MemberState.READY in row.values()}
    assert sources == {MemberState.CONNECTING, MemberState.RECONNECTING, MemberState.READY}
