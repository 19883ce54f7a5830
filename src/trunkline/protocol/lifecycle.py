"""The phases of a handshake conversation, as one table for both sides.

    NEW -> CONNECTING -> INITIALIZING -> READY <-> PAUSED
    READY -> RECONNECTING -> CONNECTING ... | FAILED          READY -> DRAINING -> CLOSED
    any   -> FAILED -> CLOSED

The table is read by people, run by the program, drawn for the manual and enumerated by a test. Sending and
receiving are different signals, so each direction has its own law: a client's requests are served as soon as
`initialize` is answered, while requests of the server wait for `initialized` (lifecycle, "Initialization").
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from trunkline.errors import WrongPhase

__all__ = ["FOUNDING", "LIFECYCLE", "FoundingNames", "Phase", "Signal", "allows", "next_phase"]


class Phase(Enum):
    """Where a conversation stands."""

    NEW = auto()  # no line yet
    CONNECTING = auto()  # the line is there or being made, nothing agreed
    INITIALIZING = auto()  # initialize was said, `initialized` still to come
    READY = auto()
    PAUSED = auto()  # what runs goes on, nothing new is taken
    RECONNECTING = auto()  # the line was lost and is being made again
    DRAINING = auto()  # ending: what runs may finish
    FAILED = auto()  # the line or the handshake failed
    CLOSED = auto()


class Signal(Enum):
    """What can happen to a conversation."""

    CONNECT = auto()  # a line is opened or accepted
    RECV_INITIALIZE = auto()
    SEND_INITIALIZE = auto()  # or whatever a client begins with instead
    RECV_INITIALIZED = auto()
    SEND_INITIALIZED = auto()  # or know that there is no need to
    RECV_PING = auto()
    SEND_PING = auto()
    RECV_CALL = auto()  # any other request
    SEND_CALL = auto()
    RECV_NOTICE = auto()  # any other notification
    SEND_NOTICE = auto()
    PAUSE = auto()
    RESUME = auto()
    LOSE = auto()  # the line broke and will be made again
    DRAIN = auto()  # end in good order
    FAIL = auto()  # the line or the handshake failed for good
    CLOSE = auto()


P, S = Phase, Signal
LIFECYCLE: Final[Mapping[Phase, Mapping[Signal, Phase]]] = {
    P.NEW: {S.CONNECT: P.CONNECTING, S.FAIL: P.FAILED, S.CLOSE: P.CLOSED},
    P.CONNECTING: {
        S.RECV_INITIALIZE: P.INITIALIZING,
        S.SEND_INITIALIZE: P.INITIALIZING,
        S.RECV_PING: P.CONNECTING,
        S.SEND_PING: P.CONNECTING,
        S.LOSE: P.RECONNECTING,
        S.DRAIN: P.DRAINING,
        S.FAIL: P.FAILED,
        S.CLOSE: P.CLOSED,
    },
    P.INITIALIZING: {
        S.RECV_INITIALIZED: P.READY,
        S.SEND_INITIALIZED: P.READY,
        S.RECV_PING: P.INITIALIZING,
        S.SEND_PING: P.INITIALIZING,
        S.RECV_CALL: P.INITIALIZING,
        S.RECV_NOTICE: P.INITIALIZING,
        S.SEND_NOTICE: P.INITIALIZING,  # a server may log before the handshake is complete
        S.LOSE: P.RECONNECTING,
        S.DRAIN: P.DRAINING,
        S.FAIL: P.FAILED,
        S.CLOSE: P.CLOSED,
    },
    P.READY: {
        S.RECV_INITIALIZED: P.READY,  # said twice is said once
        S.RECV_PING: P.READY,
        S.SEND_PING: P.READY,
        S.RECV_CALL: P.READY,
        S.SEND_CALL: P.READY,
        S.RECV_NOTICE: P.READY,
        S.SEND_NOTICE: P.READY,
        S.PAUSE: P.PAUSED,
        S.LOSE: P.RECONNECTING,
        S.DRAIN: P.DRAINING,
        S.FAIL: P.FAILED,
        S.CLOSE: P.CLOSED,
    },
    P.PAUSED: {
        S.RECV_PING: P.PAUSED,
        S.SEND_PING: P.PAUSED,
        S.SEND_CALL: P.PAUSED,  # what runs may still ask, tell and be cancelled
        S.RECV_NOTICE: P.PAUSED,
        S.SEND_NOTICE: P.PAUSED,
        S.RESUME: P.READY,
        S.LOSE: P.RECONNECTING,
        S.DRAIN: P.DRAINING,
        S.FAIL: P.FAILED,
        S.CLOSE: P.CLOSED,
    },
    P.RECONNECTING: {S.CONNECT: P.CONNECTING, S.FAIL: P.FAILED, S.CLOSE: P.CLOSED},
    P.DRAINING: {
        S.RECV_PING: P.DRAINING,
        S.SEND_PING: P.DRAINING,
        S.SEND_CALL: P.DRAINING,  # what runs may still ask, tell and be cancelled
        S.RECV_NOTICE: P.DRAINING,
        S.SEND_NOTICE: P.DRAINING,
        S.FAIL: P.FAILED,
        S.CLOSE: P.CLOSED,
    },
    P.FAILED: {S.CONNECT: P.CONNECTING, S.FAIL: P.FAILED, S.CLOSE: P.CLOSED},  # the line goes after the handshake did
    P.CLOSED: {S.CLOSE: P.CLOSED},
}


def allows(phase: Phase, signal: Signal) -> bool:
    """Whether a signal is legal in a phase."""
    return signal in LIFECYCLE[phase]


def next_phase(phase: Phase, signal: Signal) -> Phase:
    """The next phase; a pair without a row is illegal, and there is no other branch."""
    try:
        return LIFECYCLE[phase][signal]
    except KeyError:
        raise WrongPhase(signal.name.lower(), phase.name.lower(), kind="illegal_transition") from None


class FoundingNames(NamedTuple):
    """What the three founding papers call a phase."""

    phase: str  # the five phases of the implementation plan
    state: str  # the four states of the architecture paper
    diagram: str  # the states of the diagram


FOUNDING: Final[Mapping[Phase, FoundingNames]] = {
    P.NEW: FoundingNames("pre_initialization", "disconnected", ""),
    P.CONNECTING: FoundingNames("pre_initialization", "connecting", "Initializing"),
    P.INITIALIZING: FoundingNames("initializing", "connected", "Initializing"),
    P.READY: FoundingNames("initialized", "ready", "Connected"),
    P.PAUSED: FoundingNames("initialized", "ready", "Paused"),
    P.RECONNECTING: FoundingNames("error", "disconnected", "Reconnecting"),
    P.DRAINING: FoundingNames("closed", "ready", "GracefulShutdown"),
    P.FAILED: FoundingNames("error", "disconnected", "Failed"),
    P.CLOSED: FoundingNames("closed", "disconnected", ""),
}
