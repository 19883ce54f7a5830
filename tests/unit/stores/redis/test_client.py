"""The Redis client's connections: when one counts as open, and how often it tries."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from trunkline.errors import StoreUnavailable
from trunkline.stores.redis.client import RedisClient
from trunkline.stores.redis.url import RedisAddress, RedisEndpoint

pytest.importorskip("hiredis")
TIMEOUT = 0.2  # seconds, for which the client tries


class Gateway:
    """A gateway without a server behind it: it accepts connections and closes them at once."""

    def __init__(self) -> None:
        self.accepted = 0
        self.port = 0

    def accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        writer.transport.abort()


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[Gateway]:
    made = Gateway()
    async with await asyncio.start_server(made.accept, "127.0.0.1", 0) as listening:
        made.port = listening.sockets[0].getsockname()[1]
        yield made


async def test_connection_without_a_server_behind_it_does_not_count_as_open(gateway: Gateway) -> None:
    """It would be opened again at once, without end; and all that use it would be told each time."""
    connected: list[None] = []
    address = RedisAddress((RedisEndpoint("127.0.0.1", gateway.port),))
    client = RedisClient(address, None, TIMEOUT, on_connected=lambda: connected.append(None))
    with pytest.raises(StoreUnavailable, match="does not respond"):
        await client.open()
    await client.close()
    assert connected == []
    assert gateway.accepted < 20  # with growing pauses from 10 ms on
