"""Health of components as pure logic: the state of each from its results, and that of the whole."""

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final

from msgspec import Struct

__all__ = ["HISTORY_LIMIT", "ComponentHealth", "HealthState", "HealthTransition", "overall_state"]

HISTORY_LIMIT: Final = 20  # transitions of a component that are kept


class HealthState(Enum):
    """States of a component, and of a server."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"  # it works in part, or has failed fewer times than count
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"  # there is no result yet


class HealthTransition(Struct, frozen=True):
    """A change of a component's state."""

    at: float
    before: HealthState
    after: HealthState
    reason: str


class ComponentHealth:
    """The health of one component. Without `critical`, its failure degrades the server only."""

    def __init__(self, *, critical: bool = True, failures: int = 1) -> None:
        """`failures` is the number of consecutive failures with which the component is unhealthy."""
        self.critical = critical
        self.state = HealthState.UNKNOWN
        self.reason = ""
        self.history: deque[HealthTransition] = deque(maxlen=HISTORY_LIMIT)
        self._needed = failures
        self._failures = 0

    def record(self, passed: bool, reason: str, now: float) -> HealthTransition | None:
        """Record the result of a check; return the transition, if it is one."""
        self._failures = 0 if passed else self._failures + 1
        if passed:
            return self.change(HealthState.HEALTHY, "", now)
        unhealthy = self._failures >= self._needed
        return self.change(HealthState.UNHEALTHY if unhealthy else HealthState.DEGRADED, reason, now)

    def change(self, state: HealthState, reason: str, now: float) -> HealthTransition | None:
        """Set the state; return the transition, if it is one."""
        before, self.state, self.reason = self.state, state, reason
        if before is state:
            return None
        transition = HealthTransition(now, before, state, reason)
        self.history.append(transition)
        return transition

    @property
    def usable(self) -> bool:
        """Whether the component does not keep the server from being ready."""
        return not self.critical or self.state in {HealthState.HEALTHY, HealthState.DEGRADED}


def overall_state(components: Iterable[ComponentHealth]) -> HealthState:
    """Return the state of the whole: that of its worst critical component, and degraded if another one is not
    healthy."""
    states = {(component.critical, component.state) for component in components}
    for state in (HealthState.UNHEALTHY, HealthState.UNKNOWN):
        if (True, state) in states:
            return state
    return HealthState.HEALTHY if all(state is HealthState.HEALTHY for _, state in states) else HealthState.DEGRADED
