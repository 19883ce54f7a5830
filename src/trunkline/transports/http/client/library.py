"""The seam to HTTP itself: three verbs, behind which any library can stand."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from trunkline.errors import TransportError

__all__ = ["Library", "NotReached", "Reply"]


class NotReached(TransportError):
    """Nobody was there: nothing of the request has been sent."""


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


class Library(Protocol):
    """What sends requests."""

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
        """Raises `NotReached` if nothing was sent, and `TransportError` if something may have been."""
        ...

    async def close(self) -> None:
        """Ends all that is under way."""
        ...
