"""Interaction protocol: how a user opens the login page and how the callback URL is received."""

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
    """An interaction that is ready to receive the callback."""

    @property
    def redirect_uri(self) -> str:
        """The redirect URI of this login."""
        ...

    async def visit(self, url: str) -> str:
        """Show the page to the user and return the whole callback URL. Raises `AuthorizationFailed` with the hop
        `authorization`."""
        ...


class Interaction(Protocol):
    """A way to show a login page and to receive its callback."""

    def waiting(self, prefer: str | None = None) -> AbstractAsyncContextManager[Waiting]:
        """Get ready for a login. `prefer` is the redirect URI of the last login, which may be registered; the
        interaction may choose another."""
        ...


class Redirected:
    """For programs that show pages themselves: `function(url)` returns the whole callback URL."""

    def __init__(
        self, redirect_uri: str, function: Callable[[str], Awaitable[str]], *, settings: Settings | None = None
    ) -> None:
        self.redirect_uri = redirect_uri
        self._function = function
        self._timeout = (settings or Settings()).person_timeout

    @asynccontextmanager
    async def waiting(self, prefer: str | None = None) -> AsyncGenerator[Waiting]:  # noqa: ARG002 - the seam's
        """Use the only redirect URI; `prefer` is ignored."""
        yield self

    async def visit(self, url: str) -> str:
        """Call the function."""
        return await wait_for_user(self._function(check_login_url(url)), self._timeout)


async def wait_for_user(visit: Awaitable[T], limit: float | None) -> T:
    """Wait for the user, up to a time limit. Raises `AuthorizationFailed`."""
    waited = asyncio.timeout(limit)
    try:
        async with waited:
            return await visit
    except TimeoutError:
        if not waited.expired():  # a TimeoutError of the awaited function
            raise
        raise AuthorizationFailed(f"the login was not completed within {limit:g} s", hop="authorization") from None


def print_to_user(text: str) -> None:
    """Print to standard error: standard output may be the connection to a peer."""
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - a program without a console has none
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
