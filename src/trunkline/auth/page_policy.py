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

from trunkline.auth.ssrf import Reach, Refused, Target, target
from trunkline.config import proxy_for

__all__ = ["judge", "judge_now", "page"]

_LONGEST: Final = 8192  # characters: what some systems take as one argument at most
_PATIENCE: Final = 5.0  # seconds to look up a name

Resolve = Callable[[str], Awaitable[Iterable[str]]]


def page(url: str, reach: Reach) -> Target:
    """The address of a page, as far as it can be judged without looking up its name. Raises `Refused`."""
    if len(url) > _LONGEST:
        raise Refused(f"an address of {len(url)} characters is too long; {_LONGEST} is the most")
    there = target(url)
    reach.check(there)
    return there


async def judge(there: Target, reach: Reach, resolve: Resolve | None = None) -> None:
    """Look up the name of a page, and judge each address that it has. Raises `Refused`."""
    if _is_judged(there):
        return
    try:
        async with asyncio.timeout(_PATIENCE):
            found = await (resolve or _by_the_system)(there.host)
    except (OSError, UnicodeError, TimeoutError):
        return
    _vet(there, reach, found)


def judge_now(there: Target, reach: Reach) -> None:
    """The same on a thread of its own, which it may keep waiting."""
    if _is_judged(there):
        return
    try:
        found = _addresses(there.host)
    except (OSError, UnicodeError):
        return
    _vet(there, reach, found)


def _is_judged(there: Target) -> bool:
    """Whether there is no name to look up, or a proxy looks it up."""
    return there.literal is not None or (not there.local and proxy_for(there.url) is not None)


def _vet(there: Target, reach: Reach, addresses: Iterable[str]) -> None:
    for address in addresses:
        if (why := reach.vet(there, address)) is not None:
            raise Refused(why)


def _addresses(host: str) -> list[str]:
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


async def _by_the_system(host: str) -> list[str]:
    return await asyncio.get_running_loop().run_in_executor(None, _addresses, host)
