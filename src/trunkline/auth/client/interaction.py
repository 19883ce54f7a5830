"""The seam to how a person gets to a login page and back."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

from trunkline.auth.client.browser import check_login_url
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed

__all__ = ["Interaction", "Redirected", "Waiting", "print_to_user", "wait_for_user"]

T = TypeVar("T")


class Waiting(Protocol):
    """Ready for the person to come back."""

    @property
    def redirect_uri(self) -> str:
        """Where the person is to be sent back to."""
        ...

    async def visit(self, url: str) -> str:
        """Shows the page to the person; gives the whole URL that the person was sent back to. Raises
        `AuthorizationFailed` with the hop `authorization`."""
        ...


class Interaction(Protocol):
    """How a person gets to a page and back."""

    def waiting(self, prefer: str | None = None) -> AbstractAsyncContextManager[Waiting]:
        """Gets ready. `prefer` is the redirect URI of last time, which may be registered; another may be given."""
        ...


class Redirected:
    """For programs that show pages themselves: `function(url)` gives the whole URL that the person was sent back to."""

    def __init__(
        self, redirect_uri: str, function: Callable[[str], Awaitable[str]], *, settings: Settings | None = None
    ) -> None:
        self.redirect_uri = redirect_uri
        self._function = function
        self._timeout = (settings or Settings()).person_timeout

    @asynccontextmanager
    async def waiting(self, prefer: str | None = None) -> AsyncGenerator[Waiting]:  # noqa: ARG002 - the seam's
        """There is one redirect URI, whatever it was last time."""
        yield self

    async def visit(self, url: str) -> str:
        """What the function gives."""
        return await wait_for_user(self._function(check_login_url(url)), self._timeout)


async def wait_for_user(visit: Awaitable[T], limit: float | None) -> T:
    """What a person does, if it is done in time. Raises `AuthorizationFailed`."""
    waited = asyncio.timeout(limit)
    try:
        async with waited:
            return await visit
    except TimeoutError:
        if not waited.expired():  # somebody else's
            raise
        raise AuthorizationFailed(
            f"nobody came back from the login page within {limit:g} s", hop="authorization"
        ) from None


def print_to_user(text: str) -> None:
    """Tells the person something, where it is in nobody's way: standard output may be the line to a peer."""
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - a program without a console has none
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
