"""The seam to an HTTP library: send a request, read its body in chunks, close."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from trunkline.errors import TransportError
from trunkline.wire.media_types import essence

__all__ = [
    "AddressForbidden",
    "Cancel",
    "HttpBackend",
    "OnOutcome",
    "Reply",
    "ReplyTooLarge",
    "RequestNotSent",
    "Resolve",
    "Vet",
    "media_type_of",
    "read_body",
]

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name. Raises `OSError` if there are none."""

Vet = Callable[[str], str | None]
"""Returns the reason why an address is forbidden; None if it is allowed."""


class RequestNotSent(TransportError):
    """The connection failed before any part of the request was sent."""


class AddressForbidden(RequestNotSent):
    """The address is forbidden by `Vet`."""


class ReplyTooLarge(TransportError):
    """A response body over the limit."""


class Reply(Protocol):
    """HTTP response: status and headers at once, the body in chunks as it arrives."""

    @property
    def status(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are case-insensitive."""
        ...

    @property
    def content(self) -> bytes | None:
        """The whole body if it has arrived and was not read yet; None otherwise."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body. Raises `TransportError` if it breaks off."""
        ...

    def close(self) -> None:
        """Release the response, including an unread body."""
        ...


OnOutcome = Callable[[Reply | TransportError], None]
"""Called once: with the response when its headers have arrived, or with an error if the request may have been sent."""

Cancel = Callable[[], object]
"""Cancels a request; its outcome is not reported any more."""


class HttpBackend(Protocol):
    """Sends HTTP requests."""

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
        """Send a request. Raise `RequestNotSent` if nothing was sent, and `TransportError` if some of it may have
        been."""
        ...

    def start(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, on_outcome: OnOutcome
    ) -> Cancel | None:
        """Send a request at once if that takes no waiting, and return a function that cancels it; None if it takes
        some. Raise `RequestNotSent` if the request is invalid."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def media_type_of(reply: Reply) -> str:
    """Return the media type of a response, without parameters."""
    return essence(reply.headers.get("Content-Type", ""))


async def read_body(reply: Reply, limit: int) -> bytes:
    """Read the whole body. Raise `ReplyTooLarge` at the limit, and `TransportError` if it breaks off."""
    length = reply.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) > limit:
        raise ReplyTooLarge(f"the response is larger than the limit of {limit} bytes (http_body_size_limit)")
    body = bytearray()
    async for data in reply.chunks():
        body += data
        if len(body) > limit:
            raise ReplyTooLarge(f"the response is larger than the limit of {limit} bytes (http_body_size_limit)")
    return bytes(body)
