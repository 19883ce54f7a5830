"""What counts against a backend."""

import pytest

from trunkline import Server
from trunkline.gateway.guard import BackendGuard
from trunkline.gateway.options import BackendOptions, BreakerOptions
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import find_method
from trunkline.server.resilience.breaker_states import BreakerState
from trunkline.testing import ManualClock


async def never_wait() -> None:
    """Wait for a backend that is ready."""


@pytest.mark.parametrize(("took", "state"), [(0.9, BreakerState.CLOSED), (1.1, BreakerState.OPEN)])
def test_result_after_the_deadline_counts_against_the_backend(took: float, state: BreakerState) -> None:
    clock = ManualClock()
    guard = BackendGuard("slow", BackendOptions(), lambda: True, lambda: None, never_wait)
    guard.add_breaker(Server("gateway", clock=clock), BreakerOptions(failures=1))
    method, permit = find_method("tools/call"), guard.try_admit()
    assert method is not None
    assert permit is not None
    call = IncomingRequest(1, method, clock.now(), deadline=clock.now() + 1)
    clock.advance(took)
    guard.leave(permit, call, None)
    assert guard.breaker is not None
    assert guard.breaker.state is state
