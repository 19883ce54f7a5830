"""Tools for tests of servers and clients: test clients, fakes, snapshots, cassettes, faults and a manual clock."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trunkline.testing.background import serve_http
    from trunkline.testing.cassettes import Cassette, CassetteDrift
    from trunkline.testing.clock import ManualClock
    from trunkline.testing.fakes import FakeModel, FakeUser
    from trunkline.testing.faults import Faults
    from trunkline.testing.faulty_store import FaultyStore
    from trunkline.testing.fuzz import fuzz_tools
    from trunkline.testing.in_process import connect
    from trunkline.testing.observer import RecordingObserver
    from trunkline.testing.peer import RawPeer, Transcript
    from trunkline.testing.scripted import ScriptedLine, ScriptedServer
    from trunkline.testing.snapshots import assert_catalog_unchanged

__all__ = [
    "Cassette",
    "CassetteDrift",
    "FakeModel",
    "FakeUser",
    "Faults",
    "FaultyStore",
    "ManualClock",
    "RawPeer",
    "RecordingObserver",
    "ScriptedLine",
    "ScriptedServer",
    "Transcript",
    "assert_catalog_unchanged",
    "connect",
    "fuzz_tools",
    "serve_http",
]

_EXPORTS: Final = {
    "background": ("serve_http",),
    "cassettes": ("Cassette", "CassetteDrift"),
    "clock": ("ManualClock",),
    "fakes": ("FakeModel", "FakeUser"),
    "faults": ("Faults",),
    "faulty_store": ("FaultyStore",),
    "fuzz": ("fuzz_tools",),
    "in_process": ("connect",),
    "observer": ("RecordingObserver",),
    "peer": ("RawPeer", "Transcript"),
    "scripted": ("ScriptedLine", "ScriptedServer"),
    "snapshots": ("assert_catalog_unchanged",),
}
_MODULE_BY_NAME: Final = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name on first use: a test of a server does not load every tool."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
    return value
