"""Egress policy for pages that a peer wants a user to open: a login page, or a form.

The pages obey the same policy as requests of this process, after DNS resolution, since a browser on this machine also
reaches this machine and its network. A name that does not resolve here is allowed, because the browser may run
elsewhere or behind a proxy. The browser resolves the name again, so this check does not stop an attacker who changes
the DNS record in between.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from trunkline.auth.ssrf import EgressDenied, EgressPolicy, Target, parse_target
from trunkline.config import proxy_for

__all__ = ["check_page_addresses", "check_page_addresses_blocking", "parse_page_url"]

_MAX_URL_CHARS: Final = 8192  # some systems limit one argument to this length
_LOOKUP_TIMEOUT: Final = 5.0  # seconds

Resolver = Callable[[str], Awaitable[Iterable[str]]]


def parse_page_url(url: str, policy: EgressPolicy) -> Target:
    """Parse a page's URL and apply the checks that need no DNS lookup. Raises `EgressDenied`."""
    if len(url) > _MAX_URL_CHARS:
        raise EgressDenied(f"the URL has {len(url)} characters; the limit is {_MAX_URL_CHARS}")
    target = parse_target(url)
    policy.check(target)
    return target


async def check_page_addresses(target: Target, policy: EgressPolicy, resolve: Resolver | None = None) -> None:
    """Resolve the page's host and check each address. Raises `EgressDenied`."""
    if _needs_no_lookup(target):
        return
    try:
        async with asyncio.timeout(_LOOKUP_TIMEOUT):
            found = await (resolve or _look_up_in_executor)(target.host)
    except (OSError, UnicodeError, TimeoutError):
        return
    _check_addresses(target, policy, found)


def check_page_addresses_blocking(target: Target, policy: EgressPolicy) -> None:
    """Like `check_page_addresses`, for a thread that may block."""
    if _needs_no_lookup(target):
        return
    try:
        found = _look_up(target.host)
    except (OSError, UnicodeError):
        return
    _check_addresses(target, policy, found)


def _needs_no_lookup(target: Target) -> bool:
    """Return whether the host is an IP address, or a proxy resolves it."""
    return target.literal_ip is not None or (not target.is_local and proxy_for(target.url) is not None)


def _check_addresses(target: Target, policy: EgressPolicy, addresses: Iterable[str]) -> None:
    for address in addresses:
        if (why := policy.denial_reason(target, address)) is not None:
            raise EgressDenied(why)


def _look_up(host: str) -> list[str]:
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


async def _look_up_in_executor(host: str) -> list[str]:
    return await asyncio.get_running_loop().run_in_executor(None, _look_up, host)
