"""Who listens at a bus, told with care: one who fails is reported and does not end a line, and none is told anything
once the bus is closed."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from trunkline.stores.bus import BusListener
from trunkline.stores.signed_frames import Rejection

__all__ = ["GuardedListener"]

_LOG_INTERVAL: Final = 60.0  # seconds

_log: Final = logging.getLogger("trunkline")


class GuardedListener:
    """Ears, from when they are open until they are closed."""

    def __init__(self) -> None:
        self._listener: BusListener | None = None
        self._rejected = 0  # frames, since that was logged
        self._logged_at = float("-inf")

    def open(self, listener: BusListener) -> None:
        """Hears from now on."""
        self._listener = listener

    def close(self) -> None:
        """Hears nothing any more."""
        self._listener = None

    def heard(self, sender: str, message: bytes) -> None:
        """A message from another process."""
        if self._listener is not None:
            _call_listener(self._listener.heard, sender, message)

    def met(self, name: str) -> None:
        """Another process is there."""
        if self._listener is not None:
            _call_listener(self._listener.met, name)

    def lost(self, name: str | None) -> None:
        """Something may not have arrived."""
        if self._listener is not None:
            _call_listener(self._listener.lost, name)

    def rejected(self, why: Rejection, where: str) -> None:
        """Report a frame that failed verification. Whoever writes such frames can write many, so the log has one line
        in a minute."""
        if self._listener is None:
            return
        self._rejected += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= _LOG_INTERVAL:
            told = "dropped %d frames on the bus at %s that failed verification, the last because %s"
            _log.warning(told, self._rejected, where, why.value)
            self._rejected, self._logged_at = 0, now
        _call_listener(self._listener.rejected, why.value)


def _call_listener(listener: Callable[..., None], *what: str | bytes | None) -> None:
    try:
        listener(*what)
    except Exception as error:  # noqa: BLE001 - the others are not to blame
        context = {"message": "who listens at a bus failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
