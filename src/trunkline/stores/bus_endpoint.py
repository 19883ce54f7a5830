"""This process's end of a bus on any transport: its name, the signer of its frames, and its listener."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from trunkline.errors import MisuseError, StoreUnavailable
from trunkline.stores.bus import MAX_MESSAGE_BYTES, MAX_NAME_CHARACTERS, BusListener, is_process_name
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.signed_frames import FrameSigner, Rejection

__all__ = ["BusEndpoint", "check_process_name"]

_LOG_INTERVAL: Final = 60.0  # seconds

_log: Final = logging.getLogger("trunkline")


class BusEndpoint:
    """Name, signer and listener of one opening of a bus. The listener is called until `close`; an exception that it
    raises is reported and does not break the connection."""

    def __init__(self, bus: str) -> None:
        """`bus` is the bus in messages, such as "the bus at localhost:6379"."""
        self.name = ""  # until it is open
        self.closed = False
        self.signer: FrameSigner
        self._bus = bus
        self._listener: BusListener | None = None
        self._rejected = 0  # frames since the last log line
        self._logged_at = float("-inf")

    def open(self, name: str, listener: BusListener, identity: StoreIdentity) -> None:
        """Take a name. Raises `MisuseError`, or `StoreUnavailable` after `close`."""
        check_process_name(name)
        if self.closed:
            raise StoreUnavailable(f"{self._bus} is closed")
        if self.name:
            raise MisuseError(f"{self._bus} is open already")
        self.name, self.signer, self._listener = name, FrameSigner(identity, name), listener

    def close(self) -> None:
        """Stop the callbacks."""
        self.closed, self._listener = True, None

    def check_message(self, message: bytes) -> None:
        """Raise `MisuseError` for a message that cannot be sent."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise MisuseError(f"a message on a bus has at most {MAX_MESSAGE_BYTES} bytes; send it in pieces")
        if not self.name:
            raise MisuseError(f"{self._bus} is not open yet")

    def deliver(self, sender: str, message: bytes) -> None:
        """Forward a message from another process."""
        if self._listener is not None:
            _call_listener(self._listener.heard, sender, message)

    def report_met(self, name: str) -> None:
        """Report a connected peer."""
        if self._listener is not None:
            _call_listener(self._listener.met, name)

    def report_lost(self, name: str | None) -> None:
        """Report a possible loss of messages."""
        if self._listener is not None:
            _call_listener(self._listener.lost, name)

    def report_rejected(self, why: Rejection, where: str) -> None:
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


def check_process_name(name: str) -> None:
    """Raise `MisuseError` for an invalid process name."""
    if not is_process_name(name):
        raise MisuseError(
            f"{name[:80]!r} is not a process name: use 1 to {MAX_NAME_CHARACTERS} letters, digits and dashes"
        )


def _call_listener(listener: Callable[..., None], *what: str | bytes | None) -> None:
    try:
        listener(*what)
    except Exception as error:  # noqa: BLE001 - a faulty listener must not break the bus
        context = {"message": "a bus listener raised an exception", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
