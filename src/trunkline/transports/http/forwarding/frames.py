"""What processes say to each other about requests that one carries to another, and how it is written.

The process that a client has come to is the front, the one that holds the client's session is the holder. The front
numbers what it carries; a number is never used again.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from trunkline.transports.http.request import Headers

__all__ = [
    "ANSWERED",
    "ASKED",
    "PART",
    "Answer",
    "Ask",
    "Credit",
    "End",
    "FromFront",
    "FromHolder",
    "Head",
    "HungUp",
    "NotHere",
    "Part",
    "Pending",
    "Unknown",
    "read_answered",
    "read_asked",
    "write",
]

ASKED: Final = b"V"  # what a front says
ANSWERED: Final = b"A"  # what a holder says
PART: Final = 256 * 1024  # bytes in one frame at most; what is longer goes in parts, for others want to be heard, too


class _Frame(msgspec.Struct, array_like=True):
    visit: int


class Ask(_Frame, tag=0):
    """A request."""

    method: str
    ident: str  # of the session; the token of a stream of HTTP+SSE
    messages: bool  # whether it is for such a stream
    headers: Headers  # those that the holder reads; credentials are not among them
    peer: str
    letters: str  # who sent it
    principal: bytes | None  # the same in full; None if that cannot be written
    lasts: float | None  # seconds until what proves that runs out
    window: int  # bytes that may be on their way to the front
    size: int  # of the body
    body: bytes  # or the first part of it


class Part(_Frame, tag=1):
    """More of a body, or of a stream."""

    data: bytes


class Credit(_Frame, tag=2):
    """Bytes that have been passed on to the client: so many more may be sent."""

    size: int


class HungUp(_Frame, tag=3):
    """The client has gone, or the front waits for nothing more."""


class Answer(_Frame, tag=4):
    """A whole answer."""

    status: int
    headers: Headers
    size: int  # of the body
    body: bytes  # or the first part of it


class Head(_Frame, tag=5):
    """The beginning of a stream."""

    status: int
    headers: Headers


class End(_Frame, tag=6):
    """The end of a stream."""


class NotHere(_Frame, tag=7):
    """What the request is for is not held here."""


class Pending(msgspec.Struct, array_like=True, tag=8):
    """The requests whose answers a front waits for, of one holder. All that was said of them was said before."""

    visits: list[int]


class Unknown(msgspec.Struct, array_like=True, tag=9):
    """Those of them that the holder has answered, or has never heard of: what is missing was lost on the way."""

    visits: list[int]


FromFront = Ask | Part | Credit | HungUp | Pending
FromHolder = Answer | Head | Part | End | NotHere | Unknown

write: Final[Callable[[FromFront | FromHolder], bytes]] = msgspec.msgpack.Encoder().encode
read_asked: Final[Callable[[bytes], FromFront]] = msgspec.msgpack.Decoder(FromFront).decode
read_answered: Final[Callable[[bytes], FromHolder]] = msgspec.msgpack.Decoder(FromHolder).decode
