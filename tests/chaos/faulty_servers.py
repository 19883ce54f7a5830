"""Defective servers. A campaign with one of them has to fail."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.chaos.plan import Fault

from trunkline.rpc import connection
from trunkline.server.cluster.membership import Membership
from trunkline.stores.signed_frames import FrameSigner

__all__ = ["plant"]

_SIGNATURE: Final = 32  # bytes at the end of a frame


def plant(fault: Fault | None) -> None:
    """Make this process, and those that it forks, defective; unless the fault is one of its store."""
    if fault in _PLANTS:
        _PLANTS[fault]()


def _deny_begun() -> None:
    """Report every interrupted call as never started."""
    connection._was_started = lambda _: False


def _trust_frames() -> None:
    """Believe every frame on the bus, whoever has signed it."""
    verify = FrameSigner.verify

    def believe(self: FrameSigner, data: bytes) -> Any:
        signed = data[:-_SIGNATURE]
        return verify(self, signed + self._signature(signed))

    FrameSigner.verify = believe


def _keep_name() -> None:
    """Continue under the same name after an eviction."""

    async def ignore(self: Membership) -> None:
        self.lease.valid_until = self._clock.now() + self._lease_ttl

    Membership._handle_eviction = ignore


_PLANTS: Final[Mapping[Fault | None, Callable[[], None]]] = {
    "denying": _deny_begun,
    "trusting": _trust_frames,
    "stale": _keep_name,
}
