"""An authorization server for all tests of a worker, reset before each of them."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.authorization.notes_server import notes, serving
from tests.authorization.provider import BrowserUser, Provider

from trunkline.auth import Jwt


@pytest.fixture(scope="session")
def running_provider() -> Iterator[Provider]:
    """The process, which takes half a second to start."""
    with Provider() as provider:
        yield provider


@pytest.fixture
def provider(running_provider: Provider) -> Provider:
    """A provider with default settings and an empty record of requests."""
    running_provider.set()
    running_provider.take_requests()
    return running_provider


@pytest.fixture
async def user() -> BrowserUser:
    """A user without any logins."""
    return BrowserUser()


@pytest.fixture
async def url(provider: Provider) -> AsyncIterator[str]:
    """The address of our server, which verifies signed tokens."""
    async with serving(notes(Jwt(provider.issuer))) as address:
        yield address
