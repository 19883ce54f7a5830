"""The seam to HTTP itself: three verbs, behind which any library can stand."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from trunkline.errors import TransportError
from trunkline.wire.media_types import essence

__all__ = [
    "AddressForbidden",
    "HttpBackend",
    "Reply",
    "ReplyTooLarge",
    "RequestNotSent",
    "Resolve",
    "Vet",
    "media_type_of",
    "read_body",
]

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a host, by its name. Raises `OSError` if it has none."""

Vet = Callable[[str], str | None]
"""Why an address may not be gone to; None if it may."""


class RequestNotSent(TransportError):
    """Nobody was there: nothing of the request has been sent."""


class AddressForbidden(RequestNotSent):
    """Somebody may be there, at an address that may not be gone to."""


class ReplyTooLarge(TransportError):
    """A body over the limit."""


class Reply(Protocol):
    """What a server answers: the head at once, the body as it comes."""

    @property
    def status(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By names in any case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body. Raises `TransportError` if it breaks off."""
        ...

    def close(self) -> None:
        """Lets go of it; of what was not read, too."""
        ...


class HttpBackend(Protocol):
    """What sends requests."""

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
        """Raises `NotReached` if nothing was sent, and `TransportError` if something may have been."""
        ...

    async def close(self) -> None:
        """Ends all that is under way."""
        ...


def media_type_of(reply: Reply) -> str:
    """What the body of an answer is, without parameters."""
    return essence(reply.headers.get("Content-Type", ""))


async def read_body(reply: Reply, limit: int) -> bytes:
    """All of a body. Raises `TooMuch` as soon as it is, and `TransportError` if it breaks off."""
    length = reply.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) > limit:
        raise ReplyTooLarge(f"the answer is larger than the limit of {limit} bytes (http_body_size_limit)")
    body = bytearray()
    async for data in reply.chunks():
        body += data
        if len(body) > limit:
            raise ReplyTooLarge(f"the answer is larger than the limit of {limit} bytes (http_body_size_limit)")
    return bytes(body)
