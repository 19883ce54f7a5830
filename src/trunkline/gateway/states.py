"""States of the backends of a gateway, derived from those of their supervisor. Pure."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from trunkline.supervision.child_table import ChildState

__all__ = ["BackendState", "BackendStatus", "state_of"]


class BackendState(Enum):
    """States of a backend."""

    IDLE = "idle"  # lazy, and not used yet
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # its connection was lost; requests wait for the next one
    FAILING = "failing"  # the last attempt failed; the next one follows after a delay
    DEGRADED = "degraded"  # failed too often; it is tried again after a pause
    REFUSED = "refused"  # its configuration cannot be used, or the launch policy forbids its command
    STOPPED = "stopped"

    @property
    def may_become_ready(self) -> bool:
        """Whether a request should wait for the backend."""
        return self in _SOON


_SOON: Final = frozenset({BackendState.IDLE, BackendState.STARTING, BackendState.RESTARTING})
_BY_CHILD: Final[Mapping[ChildState, BackendState]] = {
    ChildState.STOPPED: BackendState.STOPPED,
    ChildState.STARTING: BackendState.STARTING,
    ChildState.RUNNING: BackendState.READY,
    ChildState.BACKOFF: BackendState.FAILING,
    ChildState.STOPPING: BackendState.STOPPED,
    ChildState.DEGRADED: BackendState.DEGRADED,
    ChildState.ENDED: BackendState.STOPPED,
}


def state_of(child: ChildState, before: BackendState) -> BackendState:
    """Return the state of a backend whose child of the supervisor has entered a state."""
    found = _BY_CHILD[child]
    lost = before in {BackendState.READY, BackendState.RESTARTING}
    return BackendState.RESTARTING if found is BackendState.STARTING and lost else found


class BackendStatus(Struct, frozen=True, kw_only=True):
    """A backend of a gateway."""

    state: BackendState
    reason: str = ""  # why it is not ready; for operators, since it may name commands and addresses
    blocked: tuple[str, ...] = ()  # tools that wait for approval
    restarts: int = 0

    @property
    def usable(self) -> bool:
        """Whether the backend answers, or would start with the first request, and no tool is blocked."""
        return self.state in {BackendState.READY, BackendState.IDLE} and not self.blocked

    def describe(self) -> dict[str, Any]:
        """Describe the backend for clients: neither reasons nor names, which a backend could have chosen."""
        return {"state": self.state.value, **({"blockedTools": len(self.blocked)} if self.blocked else {})}
