"""What processes say to each other about requests that one carries to another, and how it is written.

The process that a client has come to is the front, the one that holds the client's session is the holder. The front
numbers what it carries; a number is never used again.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from trunkline.transports.http.request import Headers

__all__ = [
    "CHUNK_SIZE",
    "HOLDER_KIND",
    "INGRESS_KIND",
    "ChunkFrame",
    "CreditFrame",
    "DisconnectFrame",
    "HolderFrame",
    "IngressFrame",
    "NotHeldFrame",
    "PendingFrame",
    "RequestFrame",
    "ResponseFrame",
    "StreamEndFrame",
    "StreamStartFrame",
    "UnknownFrame",
    "decode_holder_frame",
    "decode_ingress_frame",
    "encode_frame",
]

INGRESS_KIND: Final = b"V"  # what a front says
HOLDER_KIND: Final = b"A"  # what a holder says
CHUNK_SIZE: Final = (
    256 * 1024
)  # bytes in one frame at most; what is longer goes in parts, for others want to be heard, too


class _Frame(msgspec.Struct, array_like=True):
    number: int


class RequestFrame(_Frame, tag=0):
    """A request."""

    method: str
    target_id: str  # of the session; the token of a stream of HTTP+SSE
    is_sse_post: bool  # whether it is for such a stream
    headers: Headers  # those that the holder reads; credentials are not among them
    peer: str
    owner_id: str  # who sent it
    principal: bytes | None  # the same in full; None if that cannot be written
    expires_in: float | None  # seconds until what proves that runs out
    window: int  # bytes that may be on their way to the front
    body_size: int  # of the body
    body: bytes  # or the first part of it


class ChunkFrame(_Frame, tag=1):
    """More of a body, or of a stream."""

    data: bytes


class CreditFrame(_Frame, tag=2):
    """Bytes that have been passed on to the client: so many more may be sent."""

    size: int


class DisconnectFrame(_Frame, tag=3):
    """The client has gone, or the front waits for nothing more."""


class ResponseFrame(_Frame, tag=4):
    """A whole answer."""

    status: int
    headers: Headers
    body_size: int  # of the body
    body: bytes  # or the first part of it


class StreamStartFrame(_Frame, tag=5):
    """The beginning of a stream."""

    status: int
    headers: Headers


class StreamEndFrame(_Frame, tag=6):
    """The end of a stream."""


class NotHeldFrame(_Frame, tag=7):
    """What the request is for is not held here."""


class PendingFrame(msgspec.Struct, array_like=True, tag=8):
    """The requests whose answers a front waits for, of one holder. All that was said of them was said before."""

    numbers: list[int]


class UnknownFrame(msgspec.Struct, array_like=True, tag=9):
    """Those of them that the holder has answered, or has never heard of: what is missing was lost on the way."""

    numbers: list[int]


IngressFrame = RequestFrame | ChunkFrame | CreditFrame | DisconnectFrame | PendingFrame
HolderFrame = ResponseFrame | StreamStartFrame | ChunkFrame | StreamEndFrame | NotHeldFrame | UnknownFrame

encode_frame: Final[Callable[[IngressFrame | HolderFrame], bytes]] = msgspec.msgpack.Encoder().encode
decode_ingress_frame: Final[Callable[[bytes], IngressFrame]] = msgspec.msgpack.Decoder(IngressFrame).decode
decode_holder_frame: Final[Callable[[bytes], HolderFrame]] = msgspec.msgpack.Decoder(HolderFrame).decode
