"""A listener as the child of a supervisor: a socket that dies is opened again, and connections stay open."""

import asyncio
from collections.abc import Callable

from trunkline.transports.channel import Listener

__all__ = ["SupervisedListener"]


class SupervisedListener:
    """Child that watches an open listener. Its restart opens the lost sockets; stopping it closes the listener."""

    kind = "listener"

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def run(self, started: Callable[[], None], /) -> None:
        """Watch the listener until it is closed, which is an end in good order."""
        self._listener.reopen()
        started()
        try:
            await self._listener.wait_lost()
        except asyncio.CancelledError:
            await self._listener.close()
            raise
