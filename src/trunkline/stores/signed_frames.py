"""Signed frames: what processes send each other over a bus, whichever way the bus takes.

A bus is a place where strangers may write: any client of a Redis can publish to any channel, whatever database it uses.
So every frame is signed with a key that lives in the store (HMAC-SHA256), and says by whom and for whom it is:

    version (1)  receiver (16)  sender (16)  number (8)  payload  signature (32)

Names are padded with zeros; a frame for all has an empty receiver. The signature covers everything before it.

Replays. A sender's numbers only grow, and a bus delivers in order, at most once. So a receiver accepts a number if it
is greater than the last one of that sender, and needs no window. A name is used for one opening of a bus and never
again, so no sender starts over under its name, and a frame for one process can be replayed to no other. A frame for all
could be replayed to a process that joined later: it counts only if its sender has sent this receiver a frame of its own
before.

Memory. Numbers are nanoseconds of the sender's clock, or one more than the last. If a receiver knows too many senders,
it forgets the one with the smallest number, which has been silent for longest, and accepts nothing from unknown senders
that is not greater. So what was forgotten cannot be replayed, and clocks have to agree only by the time in which
thousands of processes come and go.
"""

import hmac
import struct
import time
from enum import Enum
from typing import Final

from msgspec import Struct

from trunkline.stores.bus import MAX_NAME_CHARACTERS
from trunkline.stores.identity import StoreIdentity

__all__ = ["ALL", "MAX_SENDERS", "OVERHEAD", "VERSION", "Frame", "FrameSigner", "Rejection"]

VERSION: Final = 1
ALL: Final = ""
MAX_SENDERS: Final = 4096
_HEAD: Final = struct.Struct(f">B{MAX_NAME_CHARACTERS}s{MAX_NAME_CHARACTERS}sQ")
_SIGNATURE: Final = 32  # bytes
OVERHEAD: Final = _HEAD.size + _SIGNATURE


def _pad(name: str) -> bytes:
    return name.encode().ljust(MAX_NAME_CHARACTERS, b"\0")


_VERSION_BYTE: Final = bytes([VERSION])
_ALL_PADDED: Final = _pad(ALL)


class Rejection(Enum):
    """Why a frame is dropped."""

    MALFORMED = "it is not a frame of a bus"
    VERSION = "another version of Trunkline has written it"
    FORGED = "its signature is wrong"
    MISDIRECTED = "it is for another process"
    REPLAYED = "it came before, or after a later one"


class Frame(Struct, frozen=True):
    """A frame whose signature is right."""

    sender: str
    payload: bytes
    for_all: bool
    fresh: bool  # False: from a sender that has sent nothing to this process alone, so it may be a replay


class FrameSigner:
    """Sign the frames of one process, and verify those that it receives. One signer serves one opening of a bus."""

    def __init__(self, identity: StoreIdentity, name: str) -> None:
        self._hmac = hmac.new(identity.key("bus frames"), digestmod="sha256")  # to copy it is cheaper than to make one
        self._padded_name = _pad(name)
        self._number = 0
        self._last_numbers: dict[str, int] = {}  # numbers of the senders that this process has had frames from
        self._floor = 0  # unknown senders need a greater number

    def sign(self, to: str, *parts: bytes) -> bytes:
        """Return the frame with this payload, for one process or for `ALL`."""
        self._number = max(self._number + 1, time.time_ns())
        head = _HEAD.pack(VERSION, to.encode(), self._padded_name, self._number)
        signed = b"".join((head, *parts))
        return signed + self._signature(signed)

    def verify(self, data: bytes) -> Frame | Rejection:
        """Return the frame, or the reason why it must be dropped."""
        if data[:1] != _VERSION_BYTE:
            return Rejection.VERSION if len(data) >= OVERHEAD else Rejection.MALFORMED
        if len(data) < OVERHEAD:
            return Rejection.MALFORMED
        whole = memoryview(data)
        if not hmac.compare_digest(self._signature(whole[:-_SIGNATURE]), whole[-_SIGNATURE:]):
            return Rejection.FORGED
        _, receiver, padded, number = _HEAD.unpack_from(data)
        for_all = receiver == _ALL_PADDED
        if not for_all and receiver != self._padded_name:
            return Rejection.MISDIRECTED
        sender = padded.rstrip(b"\0").decode("ascii")
        last = self._last_numbers.get(sender)
        fresh = last is not None or not for_all
        if fresh:
            if number <= (self._floor if last is None else last):
                return Rejection.REPLAYED
            self._remember(sender, number)
        return Frame(sender, data[_HEAD.size : -_SIGNATURE], for_all, fresh)

    def _signature(self, signed: bytes | memoryview) -> bytes:
        mac = self._hmac.copy()
        mac.update(signed)
        return mac.digest()

    def _remember(self, sender: str, number: int) -> None:
        self._last_numbers[sender] = number
        if len(self._last_numbers) > MAX_SENDERS:
            silent = min(self._last_numbers, key=self._last_numbers.__getitem__)
            self._floor = max(self._floor, self._last_numbers.pop(silent))
