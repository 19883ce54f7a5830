"""Who was lost sight of: nothing should be sent to those before they were heard of again, or are known to be gone."""

import asyncio
from collections.abc import Iterable

from trunkline.clock import Clock

__all__ = ["Doubts"]


class Doubts:
    """Those of whom it is in doubt whether they hear anything."""

    def __init__(self) -> None:
        self._settled: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._settled

    def about(self, names: Iterable[str]) -> None:
        """What those were sent may not have arrived."""
        for name in names:
            if name not in self._settled:
                self._settled[name] = asyncio.get_running_loop().create_future()

    def settle(self, name: str) -> None:
        """That one was heard of, or is gone."""
        if (settled := self._settled.pop(name, None)) is not None and not settled.done():
            settled.set_result(None)

    def settle_all(self) -> None:
        """Nobody waits any more."""
        for name in list(self._settled):
            self.settle(name)

    async def wait(self, name: str, clock: Clock, until: float) -> None:
        """Waits until that is settled, at most until then."""
        if (settled := self._settled.get(name)) is None:
            return
        due = asyncio.Event()
        timer, waiting = clock.call_at(until, due.set), asyncio.ensure_future(due.wait())
        try:
            await asyncio.wait([settled, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waiting.cancel()
