"""Who listens at a bus, told with care: one who fails is reported and does not end a line, and none is told anything
once the bus is closed."""

import asyncio
from collections.abc import Callable

from trunkline.stores.bus import Ears

__all__ = ["Hearing"]


class Hearing:
    """Ears, from when they are open until they are closed."""

    def __init__(self) -> None:
        self._ears: Ears | None = None

    def open(self, ears: Ears) -> None:
        """Hears from now on."""
        self._ears = ears

    def close(self) -> None:
        """Hears nothing any more."""
        self._ears = None

    def heard(self, sender: str, message: bytes) -> None:
        """A message from another process."""
        if self._ears is not None:
            _tell(self._ears.heard, sender, message)

    def met(self, name: str) -> None:
        """Another process is there."""
        if self._ears is not None:
            _tell(self._ears.met, name)

    def lost(self, name: str | None) -> None:
        """Something may not have arrived."""
        if self._ears is not None:
            _tell(self._ears.lost, name)


def _tell(listener: Callable[..., None], *what: str | bytes | None) -> None:
    try:
        listener(*what)
    except Exception as error:  # noqa: BLE001 - the others are not to blame
        context = {"message": "who listens at a bus failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
