"""Who listens at a bus, told with care: one who fails is reported and does not end a line, and none is told anything
once the bus is closed."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from trunkline.stores.bus import Ears
from trunkline.stores.signed_frames import Rejection

__all__ = ["Hearing"]

_LOG_EVERY: Final = 60.0  # seconds

_log: Final = logging.getLogger("trunkline")


class Hearing:
    """Ears, from when they are open until they are closed."""

    def __init__(self) -> None:
        self._ears: Ears | None = None
        self._rejected = 0  # frames, since that was logged
        self._logged = float("-inf")

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

    def rejected(self, why: Rejection, where: str) -> None:
        """Report a frame that failed verification. Whoever writes such frames can write many, so the log has one line
        in a minute."""
        if self._ears is None:
            return
        self._rejected += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged >= _LOG_EVERY:
            told = "dropped %d frames on the bus at %s that failed verification, the last because %s"
            _log.warning(told, self._rejected, where, why.value)
            self._rejected, self._logged = 0, now
        _tell(self._ears.rejected, why.value)


def _tell(listener: Callable[..., None], *what: str | bytes | None) -> None:
    try:
        listener(*what)
    except Exception as error:  # noqa: BLE001 - the others are not to blame
        context = {"message": "who listens at a bus failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
