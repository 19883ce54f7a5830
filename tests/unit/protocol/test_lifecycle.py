"""The phases of a session: the table, enumerated, against the diagram below."""

import pytest

from trunkline.errors import WrongPhase
from trunkline.protocol.lifecycle import FOUNDING, LIFECYCLE, Phase, Signal, allows, next_phase

PICTURE = """
                  NEW         CONNECTING    INITIALIZING  READY         PAUSED        RECONNECTING  DRAINING  FAILED      CLOSED
CONNECT           CONNECTING  -             -             -             -             CONNECTING    -         CONNECTING  -
RECV_INITIALIZE   -           INITIALIZING  -             -             -             -             -         -           -
SEND_INITIALIZE   -           INITIALIZING  -             -             -             -             -         -           -
RECV_INITIALIZED  -           -             READY         READY         -             -             -         -           -
SEND_INITIALIZED  -           -             READY         -             -             -             -         -           -
RECV_PING         -           CONNECTING    INITIALIZING  READY         PAUSED        -             DRAINING  -           -
SEND_PING         -           CONNECTING    INITIALIZING  READY         PAUSED        -             DRAINING  -           -
RECV_CALL         -           -             INITIALIZING  READY         -             -             -         -           -
SEND_CALL         -           -             -             READY         PAUSED        -             DRAINING  -           -
RECV_NOTICE       -           -             INITIALIZING  READY         PAUSED        -             DRAINING  -           -
SEND_NOTICE       -           -             INITIALIZING  READY         PAUSED        -             DRAINING  -           -
PAUSE             -           -             -             PAUSED        -             -             -         -           -
RESUME            -           -             -             -             READY         -             -         -           -
LOSE              -           RECONNECTING  RECONNECTING  RECONNECTING  RECONNECTING  -             -         -           -
DRAIN             -           DRAINING      DRAINING      DRAINING      DRAINING      -             -         -           -
FAIL              FAILED      FAILED        FAILED        FAILED        FAILED        FAILED        FAILED    FAILED      -
CLOSE             CLOSED      CLOSED        CLOSED        CLOSED        CLOSED        CLOSED        CLOSED    CLOSED      CLOSED
"""
HEAD, *ROWS = [line.split() for line in PICTURE.strip().splitlines()]
CELLS = {
    (Phase[phase], Signal[name]): None if cell == "-" else Phase[cell]
    for name, *cells in ROWS
    for phase, cell in zip(HEAD, cells, strict=True)
}
EDGES = {
    ("NEW", "CONNECTING FAILED CLOSED"),
    ("CONNECTING", "INITIALIZING RECONNECTING DRAINING FAILED CLOSED"),
    ("INITIALIZING", "READY RECONNECTING DRAINING FAILED CLOSED"),
    ("READY", "PAUSED RECONNECTING DRAINING FAILED CLOSED"),
    ("PAUSED", "READY RECONNECTING DRAINING FAILED CLOSED"),
    ("RECONNECTING", "CONNECTING FAILED CLOSED"),
    ("DRAINING", "FAILED CLOSED"),
    ("FAILED", "CONNECTING CLOSED"),
    ("CLOSED", ""),
}


@pytest.mark.row("F29", "AD001")
def test_diagram_covers_every_phase_and_signal() -> None:
    assert CELLS.keys() == {(phase, signal) for phase in Phase for signal in Signal}


@pytest.mark.row("F29", "AD001")
@pytest.mark.parametrize(("phase", "signal"), CELLS)
def test_table_equals_the_diagram(phase: Phase, signal: Signal) -> None:
    expected = CELLS[phase, signal]
    assert LIFECYCLE[phase].get(signal) is expected
    assert allows(phase, signal) is (expected is not None)


@pytest.mark.row("F29", "PH15")
@pytest.mark.parametrize(("phase", "signal"), [pair for pair, cell in CELLS.items() if cell is not None])
def test_transition_leads_to_listed_phase(phase: Phase, signal: Signal) -> None:
    assert next_phase(phase, signal) is CELLS[phase, signal]


@pytest.mark.row("F16", "F29", "PH15", "PH63")
@pytest.mark.parametrize(("phase", "signal"), [pair for pair, cell in CELLS.items() if cell is None])
def test_missing_transition_raises_wrong_phase(phase: Phase, signal: Signal) -> None:
    with pytest.raises(WrongPhase, match=f"{signal.name.lower()} .* {phase.name.lower()}") as caught:
        next_phase(phase, signal)
    assert caught.value.data == {"kind": "illegal_transition", "phase": phase.name.lower()}


@pytest.mark.row("F29")
@pytest.mark.parametrize("before", Phase)
@pytest.mark.parametrize("after", Phase)
def test_phase_changes_follow_drawn_edges(before: Phase, after: Phase) -> None:
    drawn = after.name in dict(EDGES)[before.name].split()
    assert (after in set(LIFECYCLE[before].values()) - {before}) is drawn


@pytest.mark.row("F06")
def test_closed_phase_allows_close_only() -> None:
    assert LIFECYCLE[Phase.CLOSED] == {Signal.CLOSE: Phase.CLOSED}


@pytest.mark.row("F05")
def test_failed_phase_allows_no_messages() -> None:
    assert LIFECYCLE[Phase.FAILED].keys() == {Signal.CONNECT, Signal.FAIL, Signal.CLOSE}


@pytest.mark.row("F01", "F17", "X05")
@pytest.mark.parametrize(
    ("phase", "names"),
    [
        (Phase.NEW, ("pre_initialization", "disconnected")),
        (Phase.CONNECTING, ("pre_initialization", "connecting")),
        (Phase.INITIALIZING, ("initializing", "connected")),
        (Phase.READY, ("initialized", "ready")),
        (Phase.PAUSED, ("initialized", "ready")),
        (Phase.RECONNECTING, ("error", "disconnected")),
        (Phase.DRAINING, ("closed", "ready")),
        (Phase.FAILED, ("error", "disconnected")),
        (Phase.CLOSED, ("closed", "disconnected")),
    ],
)
def test_every_phase_has_its_founding_names(phase: Phase, names: tuple[str, str]) -> None:
    assert (FOUNDING[phase].phase, FOUNDING[phase].state) == names


@pytest.mark.row("X05")
def test_founding_diagram_names_match() -> None:
    assert {FOUNDING[phase].diagram for phase in Phase} == {
        "",
        "Initializing",
        "Connected",
        "Paused",
        "Reconnecting",
        "GracefulShutdown",
        "Failed",
    }
