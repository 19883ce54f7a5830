"""States of a member of a group, as one table. Pure."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from msgspec import Struct

from trunkline.errors import TrunklineError

__all__ = ["MEMBER_STATES", "MemberEvent", "MemberSignal", "MemberState"]


class MemberState(Enum):
    """States of a member."""

    NOT_STARTED = auto()  # the group is not open, or the member is lazy and was not used
    CONNECTING = auto()  # never connected since the start
    READY = auto()
    RECONNECTING = auto()  # the connection was lost; calls wait for another one
    FAILED = auto()  # calls fail; another attempt may follow
    CLOSED = auto()


class MemberSignal(Enum):
    """Events of a member."""

    START = auto()  # an attempt to connect begins
    CONNECT = auto()
    LOSE = auto()
    FAIL = auto()  # an attempt failed, or the client has given up reconnecting
    CLOSE = auto()
    RESET = auto()  # the group is opened again


T, S = MemberState, MemberSignal
MEMBER_STATES: Final[Mapping[MemberState, Mapping[MemberSignal, MemberState]]] = {
    T.NOT_STARTED: {S.START: T.CONNECTING, S.CLOSE: T.CLOSED},
    T.CONNECTING: {S.CONNECT: T.READY, S.FAIL: T.FAILED, S.CLOSE: T.CLOSED},
    T.READY: {S.CONNECT: T.READY, S.LOSE: T.RECONNECTING, S.FAIL: T.FAILED, S.CLOSE: T.CLOSED},
    T.RECONNECTING: {S.LOSE: T.RECONNECTING, S.CONNECT: T.READY, S.FAIL: T.FAILED, S.CLOSE: T.CLOSED},
    T.FAILED: {S.START: T.CONNECTING, S.CLOSE: T.CLOSED},
    T.CLOSED: {S.CLOSE: T.CLOSED, S.RESET: T.NOT_STARTED},
}


class MemberEvent(Struct, frozen=True):
    """A member has entered a state; `error` is the reason of a failure."""

    member: str
    state: MemberState
    error: TrunklineError | None = None
