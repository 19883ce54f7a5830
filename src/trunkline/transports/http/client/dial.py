"""Open TCP sockets to servers whose names may have several addresses.

All addresses are tried, each `_STAGGER` seconds after the one before, alternating between IPv6 and IPv4 (RFC 8305). The
addresses that are checked are those that are connected to: a name is resolved once.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple

from trunkline.transports.http.client.http_backend import AddressForbidden, Resolve, Vet

__all__ = ["dial"]

_STAGGER: Final = 0.25  # seconds (RFC 8305, section 5)
_KEEPALIVE_OPTIONS: Final = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 4,
}  # seconds; set where the system supports them


class _SocketAddress(NamedTuple):
    """An address to connect to."""

    family: int
    sockaddr: "tuple[Any, ...]"

    @property
    def host(self) -> str:
        return str(self.sockaddr[0])


async def dial(host: str, port: int, *, resolve: Resolve | None = None, vet: Vet | None = None) -> socket.socket:
    """Connect to a host. `resolve` replaces the system's name resolution. `vet` checks all addresses of the host: one
    that is forbidden makes all of them so. Raise `AddressForbidden` or OSError."""
    addresses = await _find_addresses(host, port, resolve)
    for address in addresses:
        _check_address(address, vet)
    return await _connect_first(_alternate_families(addresses), vet)


async def _find_addresses(host: str, port: int, resolve: Resolve | None) -> list[_SocketAddress]:
    with contextlib.suppress(socket.gaierror):  # not a literal address
        return _parse_literal(host, port)
    if resolve is None:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return _unique(found)
    names = dict.fromkeys(await resolve(host))
    if not names:
        raise OSError(None, f"{host} has no address")
    return [address for name in names for address in _parse_literal(name, port)]


def _parse_literal(address: str, port: int) -> list[_SocketAddress]:
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return _unique(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags))


def _unique(found: "Sequence[tuple[Any, ...]]") -> list[_SocketAddress]:
    return list(dict.fromkeys(_SocketAddress(family, sockaddr) for family, _, _, _, sockaddr in found))


def _alternate_families(addresses: list[_SocketAddress]) -> list[_SocketAddress]:
    """Alternate between the families, beginning with that of the first address."""
    first = [address for address in addresses if address.family == addresses[0].family]
    others = [address for address in addresses if address.family != addresses[0].family]
    return [address for address in chain.from_iterable(zip_longest(first, others)) if address is not None]


def _check_address(address: _SocketAddress, vet: Vet | None) -> None:
    if vet is not None and (why := vet(address.host)) is not None:
        raise AddressForbidden(why)


async def _connect_first(addresses: list[_SocketAddress], vet: Vet | None) -> socket.socket:
    """Return the first socket that connects; raise the error of the first address if none does."""
    if len(addresses) == 1:
        return await _connect(addresses[0], vet)
    waiting, attempts, errors = deque(addresses), list[asyncio.Task[socket.socket]](), list[BaseException]()
    try:
        while waiting or attempts:
            if waiting:
                attempts.append(asyncio.ensure_future(_connect(waiting.popleft(), vet)))
            await asyncio.wait(attempts, timeout=_STAGGER if waiting else None, return_when=asyncio.FIRST_COMPLETED)
            for attempt in [attempt for attempt in attempts if attempt.done()]:
                attempts.remove(attempt)
                if (error := attempt.exception()) is None:
                    return attempt.result()
                errors.append(error)
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_discard)
    raise errors[0]


def _discard(attempt: "asyncio.Task[socket.socket]") -> None:
    """Close the socket of an attempt that was not needed."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


async def _connect(address: _SocketAddress, vet: Vet | None) -> socket.socket:
    _check_address(address, vet)  # again, next to its use
    opened = _open_keepalive_socket(address.family)
    try:
        await asyncio.get_running_loop().sock_connect(opened, address.sockaddr)
    except BaseException:
        opened.close()
        raise
    return opened


def _open_keepalive_socket(family: int) -> socket.socket:
    """Open a socket with TCP keepalive, so that a dead peer is detected."""
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE_OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened
