"""Ping."""

from trunkline import Server
from trunkline.testing import RawPeer


async def test_k01_ping_is_answered_with_an_empty_object() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize()
        assert await peer.result("ping") == {}


async def test_k02_x20_ping_is_answered_before_initialize() -> None:
    async with RawPeer(Server("t")) as peer:
        assert await peer.result("ping") == {}
