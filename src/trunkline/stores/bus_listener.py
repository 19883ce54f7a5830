"""Guard around a bus listener: reports exceptions of callbacks without breaking the connection, and stops callbacks
after close."""

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
    """Forwards callbacks to a bus listener between `open` and `close`."""

    def __init__(self) -> None:
        self._listener: BusListener | None = None
        self._rejected = 0  # frames since the last log line
        self._logged_at = float("-inf")

    def open(self, listener: BusListener) -> None:
        """Start forwarding."""
        self._listener = listener

    def close(self) -> None:
        """Stop forwarding."""
        self._listener = None

    def heard(self, sender: str, message: bytes) -> None:
        """Forward a message from another process."""
        if self._listener is not None:
            _call_listener(self._listener.heard, sender, message)

    def met(self, name: str) -> None:
        """Report a connected peer."""
        if self._listener is not None:
            _call_listener(self._listener.met, name)

    def lost(self, name: str | None) -> None:
        """Report a possible loss of messages."""
        if self._listener is not None:
            _call_listener(self._listener.lost, name)

    def rejected(self, why: Rejection, where: str) -> None:
        """Report a frame that failed verification. An attacker can send many, so the log gets at most one line per
        minute."""
        if self._listener is None:
            return
        self._rejected += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= _LOG_INTERVAL:
            message = "dropped %d frames on the bus at %s that failed verification, the last because %s"
            _log.warning(message, self._rejected, where, why.value)
            self._rejected, self._logged_at = 0, now
        _call_listener(self._listener.rejected, why.value)


def _call_listener(listener: Callable[..., None], *what: str | bytes | None) -> None:
    try:
        listener(*what)
    except Exception as error:  # noqa: BLE001 - a faulty listener must not break the bus
        context = {"message": "a bus listener raised an exception", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
