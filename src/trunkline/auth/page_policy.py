"""Pages that a peer wants a person to be sent to: a login, or a form of its own.

They are judged by the same policy as addresses that we go to ourselves, and after their names were looked up: a browser
on this machine reaches this machine and its network as well. A name that cannot be found from here is not judged any
further, since the browser may be elsewhere or behind a proxy; and a browser looks names up again, so an attacker who
changes a name's address in that moment is not kept out by this.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from trunkline.auth.ssrf import EgressDenied, EgressPolicy, Target, parse_target
from trunkline.config import proxy_for

__all__ = ["check_page_addresses", "check_page_addresses_blocking", "parse_page_url"]

_MAX_URL_CHARS: Final = 8192  # characters: what some systems take as one argument at most
_LOOKUP_TIMEOUT: Final = 5.0  # seconds to look up a name

Resolver = Callable[[str], Awaitable[Iterable[str]]]


def parse_page_url(url: str, policy: EgressPolicy) -> Target:
    """The address of a page, as far as it can be judged without looking up its name. Raises `Refused`."""
    if len(url) > _MAX_URL_CHARS:
        raise EgressDenied(f"an address of {len(url)} characters is too long; {_MAX_URL_CHARS} is the most")
    there = parse_target(url)
    policy.check(there)
    return there


async def check_page_addresses(target: Target, policy: EgressPolicy, resolve: Resolver | None = None) -> None:
    """Look up the name of a page, and judge each address that it has. Raises `Refused`."""
    if _needs_no_lookup(target):
        return
    try:
        async with asyncio.timeout(_LOOKUP_TIMEOUT):
            found = await (resolve or _look_up_in_executor)(target.host)
    except (OSError, UnicodeError, TimeoutError):
        return
    _check_addresses(target, policy, found)


def check_page_addresses_blocking(target: Target, policy: EgressPolicy) -> None:
    """The same on a thread of its own, which it may keep waiting."""
    if _needs_no_lookup(target):
        return
    try:
        found = _look_up(target.host)
    except (OSError, UnicodeError):
        return
    _check_addresses(target, policy, found)


def _needs_no_lookup(target: Target) -> bool:
    """Whether there is no name to look up, or a proxy looks it up."""
    return target.literal_ip is not None or (not target.is_local and proxy_for(target.url) is not None)


def _check_addresses(target: Target, policy: EgressPolicy, addresses: Iterable[str]) -> None:
    for address in addresses:
        if (why := policy.denial_reason(target, address)) is not None:
            raise EgressDenied(why)


def _look_up(host: str) -> list[str]:
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


async def _look_up_in_executor(host: str) -> list[str]:
    return await asyncio.get_running_loop().run_in_executor(None, _look_up, host)
