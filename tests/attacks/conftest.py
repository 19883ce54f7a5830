"""Fixtures of all attacks: no connection leaves this machine."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.attacks.fake_internet import Internet, here


@pytest.fixture(autouse=True)
def internet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Internet]:
    """Redirect all connections to this machine: to a site that the test has registered, or to none."""
    known = Internet()
    real = asyncio.SelectorEventLoop.sock_connect

    async def connect(loop: asyncio.AbstractEventLoop, sock: socket.socket, address: Any) -> None:
        if not isinstance(address, str):  # the path of a Unix socket
            known.connected.append(address[0])
            if address[0] in known.sites:
                address = ("127.0.0.1", known.sites[address[0]].port)
            if not here(address[0]):
                raise ConnectionRefusedError
        await real(loop, sock, address)

    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", connect)
    yield known
    assert known.unexpected_targets == []
