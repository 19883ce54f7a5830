"""Tables of legal methods in both directions, for one state of a session. Sessions in the same state share tables."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from trunkline.config import Settings
from trunkline.protocol import lifecycle
from trunkline.protocol.capabilities import Capabilities, is_declarable, is_declared
from trunkline.protocol.lifecycle import Phase, Signal
from trunkline.protocol.methods import METHODS, Method, Side, TimeLimit, methods_for
from trunkline.protocol.revisions import Revision

if TYPE_CHECKING:
    from trunkline.protocol.profiles import Profile

__all__ = ["Receivable", "Sendable", "legal_methods", "may_receive", "required_capabilities"]

Receivable = Mapping[str, Method]
"""Methods that the peer may send."""
Sendable = Mapping[str, tuple[Method, float | None, float | None]]
"""Methods that this side may send, with the time limits of their responses: since the last progress, and in total."""

_NEEDS: Final = frozenset(row.capability for row in METHODS if row.capability is not None)
_KEPT: Final = 512  # states; invented capabilities of a peer do not count, only those that methods need


def required_capabilities(capabilities: Capabilities) -> frozenset[str]:
    """Return the declared capabilities that some method needs."""
    return frozenset(path for path in _NEEDS if is_declared(capabilities, path))


def may_receive(side: Side, phase: Phase, signal: Signal, profile: "Profile | None") -> bool:
    """Return whether a side may receive a message now, by its lifecycle signal. Under a profile a server may refuse
    requests until the client has sent `initialized`."""
    waits = profile is not None and profile.waits_for_initialized and side is Side.SERVER
    if waits and phase is Phase.INITIALIZING and signal is Signal.RECV_CALL:
        return False
    return lifecycle.allows(phase, signal)


@lru_cache(_KEPT)
def legal_methods(
    side: Side,
    phase: Phase,
    revision: Revision,
    *,
    ours: frozenset[str],
    theirs: frozenset[str],
    settings: Settings,
    profile: "Profile | None" = None,
) -> tuple[Receivable, Sendable]:
    """Return the receivable and sendable methods for the capabilities of both sides."""
    name = None if profile is None else profile.name

    def may_come(row: Method) -> bool:
        if not may_receive(side, phase, row.receive_signal, profile):
            return False
        if row.capability is None or (side is Side.CLIENT and not row.is_request):
            return True  # a client accepts notifications of undeclared features: they do no harm
        return row.capability in (ours if row.is_request else theirs)

    def may_go(row: Method) -> bool:
        if not lifecycle.allows(phase, row.send_signal):
            return False
        if row.capability is None or (row.is_request and not is_declarable(row.capability, revision)):
            return True
        return row.capability in (theirs if row.is_request else ours)

    receivable = {row.name: row for row in methods_for(revision, side, name) if may_come(row)}
    sendable = {
        row.name: (
            row,
            row.time_limit.seconds(settings),
            None if row.time_limit is TimeLimit.ENDLESS else settings.longest_call,
        )
        for row in methods_for(revision, side.other, name)
        if may_go(row)
    }
    return receivable, sendable
