"""Frames that processes exchange about forwarded requests, and their encoding.

The ingress is the process that a client is connected to; the holder is the process that holds the client's session. The
ingress numbers the requests it forwards and never reuses a number.
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

INGRESS_KIND: Final = b"V"  # kind of a message from an ingress
HOLDER_KIND: Final = b"A"  # kind of a message from a holder
CHUNK_SIZE: Final = 256 * 1024  # bytes of data in a frame: larger frames would delay other messages on the bus


class _Frame(msgspec.Struct, array_like=True):
    number: int


class RequestFrame(_Frame, tag=0):
    """A forwarded request."""

    method: str
    target_id: str  # session id, or token of an HTTP+SSE stream
    is_sse_post: bool  # for an HTTP+SSE stream
    headers: Headers  # those that the holder reads, without credentials
    peer: str
    owner_id: str  # identifies the sender
    principal: bytes | None  # the sender in full; None if it cannot be encoded
    expires_in: float | None  # seconds until the credentials expire
    window: int  # bytes that may be in transit to the ingress
    body_size: int  # of the body
    body: bytes  # or its first chunk


class ChunkFrame(_Frame, tag=1):
    """More of a body, or of a stream."""

    data: bytes


class CreditFrame(_Frame, tag=2):
    """Bytes that the ingress has written to the client: as many more may be sent."""

    size: int


class DisconnectFrame(_Frame, tag=3):
    """The client has disconnected, or the ingress no longer waits for a response."""


class ResponseFrame(_Frame, tag=4):
    """A whole response."""

    status: int
    headers: Headers
    body_size: int  # of the body
    body: bytes  # or its first chunk


class StreamStartFrame(_Frame, tag=5):
    """The start of a stream."""

    status: int
    headers: Headers


class StreamEndFrame(_Frame, tag=6):
    """The end of a stream."""


class NotHeldFrame(_Frame, tag=7):
    """The process does not hold the session or stream of the request; nothing was done."""


class PendingFrame(msgspec.Struct, array_like=True, tag=8):
    """All requests for which an ingress awaits responses from one holder. Sent after every other frame about them."""

    numbers: list[int]


class UnknownFrame(msgspec.Struct, array_like=True, tag=9):
    """Those of the pending requests that the holder has answered or never received: frames about them were lost."""

    numbers: list[int]


IngressFrame = RequestFrame | ChunkFrame | CreditFrame | DisconnectFrame | PendingFrame
HolderFrame = ResponseFrame | StreamStartFrame | ChunkFrame | StreamEndFrame | NotHeldFrame | UnknownFrame

encode_frame: Final[Callable[[IngressFrame | HolderFrame], bytes]] = msgspec.msgpack.Encoder().encode
decode_ingress_frame: Final[Callable[[bytes], IngressFrame]] = msgspec.msgpack.Decoder(IngressFrame).decode
decode_holder_frame: Final[Callable[[bytes], HolderFrame]] = msgspec.msgpack.Decoder(HolderFrame).decode
