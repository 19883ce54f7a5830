"""Lifecycle of a session of the handshake era, as one state table for both sides.

    NEW -> CONNECTING -> INITIALIZING -> READY <-> PAUSED
    READY -> RECONNECTING -> CONNECTING ... | FAILED          READY -> DRAINING -> CLOSED
    any   -> FAILED -> CLOSED

The program runs the table, a script draws it for the manual, and a test enumerates it. Sending and
receiving are different signals, so each direction has its own rules: a client's requests are served as soon as
`initialize` is answered, while requests of the server wait for `initialized` (lifecycle, "Initialization").
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from msgspec import Struct

from trunkline.errors import WrongPhase

__all__ = ["FOUNDING", "LIFECYCLE", "FoundingNames", "Phase", "Signal", "allows", "next_phase"]


class Phase(Enum):
    """Phases of a session."""

    NEW = auto()  # no connection yet
    CONNECTING = auto()  # connecting or connected, before `initialize`
    INITIALIZING = auto()  # after `initialize`, before `initialized`
    READY = auto()
    PAUSED = auto()  # running requests continue, new ones are refused
    RECONNECTING = auto()  # the connection was lost, and the client reconnects
    DRAINING = auto()  # shutting down: running requests may finish
    FAILED = auto()  # the connection or the handshake failed
    CLOSED = auto()

    __hash__ = object.__hash__  # that of Enum is written in Python, and each message looks a phase up


class Signal(Enum):
    """Events of a session's lifecycle."""

    CONNECT = auto()  # a connection is opened or accepted
    RECV_INITIALIZE = auto()
    SEND_INITIALIZE = auto()  # or the era probe
    RECV_INITIALIZED = auto()
    SEND_INITIALIZED = auto()  # or the end of discovery
    RECV_PING = auto()
    SEND_PING = auto()
    RECV_CALL = auto()  # any other request
    SEND_CALL = auto()
    RECV_NOTICE = auto()  # any other notification
    SEND_NOTICE = auto()
    PAUSE = auto()
    RESUME = auto()
    LOSE = auto()  # the connection was lost, and the client reconnects
    DRAIN = auto()  # graceful shutdown
    FAIL = auto()  # the connection or the handshake failed permanently
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
        S.RECV_INITIALIZED: P.READY,  # a duplicate is harmless
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
    P.FAILED: {S.CONNECT: P.CONNECTING, S.FAIL: P.FAILED, S.CLOSE: P.CLOSED},  # closes after a failed handshake
    P.CLOSED: {S.CLOSE: P.CLOSED},
}


def allows(phase: Phase, signal: Signal) -> bool:
    """Return whether a signal is legal in a phase."""
    return signal in LIFECYCLE[phase]


def next_phase(phase: Phase, signal: Signal) -> Phase:
    """Return the next phase; raise `WrongPhase` if the table has no such transition."""
    try:
        return LIFECYCLE[phase][signal]
    except KeyError:
        raise WrongPhase(signal.name.lower(), phase.name.lower(), kind="illegal_transition") from None


class FoundingNames(Struct, frozen=True):
    """The names of a phase in the three founding documents."""

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
