"""Signed frames: the format of messages on every bus.

Other programs may write to a bus: any client of a Redis can publish to any channel, from any database. So every frame
is signed with a key from the store (HMAC-SHA256), and names its sender and receiver:

    version (1)  receiver (16)  sender (16)  number (8)  payload  signature (32)

Names are padded with zeros; a broadcast has an empty receiver. The signature covers everything before it.

Replays. A sender's numbers increase, and a bus delivers in order, at most once. So a receiver accepts a number if it is
greater than the sender's last one, and needs no window. A name is used for one opening of a bus and never again, so no
sender restarts its numbers, and a frame for one process cannot be replayed to another. A broadcast could be replayed to
a process that joined later: it counts only if its sender has sent this receiver a direct frame before.

Memory. Numbers are nanoseconds of the sender's clock, or one more than the last number. A receiver that knows too many
senders drops the one with the smallest number, the longest silent one, and from then on accepts from unknown senders
only greater numbers. So frames of a dropped sender cannot be replayed, and clocks need to agree only within the time in
which thousands of processes come and go.
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
    """Reasons to drop a frame."""

    MALFORMED = "it is not a bus frame"
    VERSION = "another version of Trunkline has written it"
    FORGED = "its signature is wrong"
    MISDIRECTED = "it is for another process"
    REPLAYED = "it is a replay or out of order"


class Frame(Struct, frozen=True):
    """A frame with a valid signature."""

    sender: str
    payload: bytes
    for_all: bool
    fresh: bool  # False: the sender has sent no direct frame yet, so this may be a replay


class FrameSigner:
    """Sign the frames of one process, and verify those that it receives. One signer serves one opening of a bus."""

    def __init__(self, identity: StoreIdentity, name: str) -> None:
        self._hmac = hmac.new(identity.key("bus frames"), digestmod="sha256")  # copying it is cheaper than creating one
        self._padded_name = _pad(name)
        self._number = 0
        self._last_numbers: dict[str, int] = {}  # last number of each known sender
        self._floor = 0  # unknown senders must exceed it

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
