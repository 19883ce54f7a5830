"""Test doubles: manual clock, raw clients, scripted servers, faulty connections and stores, a recording observer."""

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
