"""What Trunkline's own tests use, for yours: a clock moved by hand, a client and a server played by hand, lines on
which things go wrong, a store whose calls fail, an observer that records."""

from trunkline.testing.clock import ManualClock
from trunkline.testing.faults import Faults
from trunkline.testing.faulty_store import FaultyStore
from trunkline.testing.observer import RecordingObserver
from trunkline.testing.peer import RawPeer, Transcript
from trunkline.testing.scripted import ScriptedLine, ScriptedServer

__all__ = [
    "Faults",
    "FaultyStore",
    "ManualClock",
    "RawPeer",
    "RecordingObserver",
    "ScriptedLine",
    "ScriptedServer",
    "Transcript",
]
