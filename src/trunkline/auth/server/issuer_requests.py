"""Requests to an issuer about tokens that are not known yet.

A caller can send any number of made-up tokens, each of which only the issuer can judge. These limits keep the server
from passing such a flood on: concurrent requests with one token share one request to the issuer, only so many are under
way at once, a rejected token is remembered for a short while, and an address whose tokens are rejected has a budget.

Tokens that were verified a short while ago never come here, so their callers notice nothing of a flood.
"""

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from math import ceil
from typing import Final

from trunkline.auth.server.verifiers import BadToken, IssuerLimits, Unavailable, Verified

__all__ = ["IssuerRequests", "TooManyRejected"]

_MINUTE: Final = 60.0
_MAX_ADDRESSES: Final = 10_000  # whose budget is remembered; the one that was used least lately goes first
_ROUNDING: Final = 1e-6  # seconds that adding up floats may be wrong by

VerifyCall = Callable[[], Awaitable[Verified]]
Key = tuple[bytes, frozenset[str]]


class TooManyRejected(Exception):
    """An address has sent too many tokens that the issuer rejected. `wait` is in whole seconds."""

    def __init__(self, wait: int) -> None:
        super().__init__(f"too many unknown tokens came from this address; try again in {wait} s")
        self.wait = wait


class IssuerRequests:
    """Verifies unknown tokens of one verifier within its limits."""

    def __init__(self, limits: IssuerLimits) -> None:
        self._limits = limits
        self._rejected: OrderedDict[Key, tuple[BadToken, float]] = OrderedDict()  # with the time until it holds
        self._budgets = None if limits.rejected_per_minute is None else _RejectionBudgets(limits.rejected_per_minute)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight: dict[Key, asyncio.Task[Verified]] = {}
        self._semaphore = asyncio.Semaphore(limits.max_requests)

    async def verify(
        self, token: str, audiences: frozenset[str], ask: VerifyCall, *, address: str | None, now: float
    ) -> Verified:
        """Verify a token by `ask`, which is called at most once for all who come with that token meanwhile.

        Raises `BadToken`, `Unavailable` or `TooManyRejected`; `address` is that of the caller, if it is known."""
        key = (sha256(token.encode()).digest(), audiences)
        if (bad := self._find_rejection(key, now)) is not None:
            raise bad
        self._use_running_loop()
        flight = self._in_flight.get(key)
        if flight is None:
            flight = self._start(key, ask, address, now)
        try:
            return await asyncio.shield(flight)
        except BadToken as bad:
            raise BadToken(bad.why, bad.kind) from None  # others wait for the same, and raise their own

    def _start(self, key: Key, ask: VerifyCall, address: str | None, now: float) -> "asyncio.Task[Verified]":
        if len(self._in_flight) >= self._limits.max_requests + self._limits.max_waiting:
            raise Unavailable(f"{len(self._in_flight)} tokens wait to be verified by their issuer")
        if self._budgets is not None and address is not None and (wait := self._budgets.take(address, now)):
            raise TooManyRejected(ceil(wait))
        flight = asyncio.ensure_future(self._ask(key, ask, address, now))
        flight.add_done_callback(lambda done: done.cancelled() or done.exception())  # for callers that have all gone
        self._in_flight[key] = flight
        return flight

    async def _ask(self, key: Key, ask: VerifyCall, address: str | None, now: float) -> Verified:
        """Make one request. The caller's budget gets back what it took, unless the token is rejected."""
        rejected = False
        try:
            async with self._semaphore:
                return await ask()
        except BadToken as bad:
            rejected = True
            self._record_rejection(key, bad, now)
            raise
        finally:
            self._in_flight.pop(key, None)
            if self._budgets is not None and address is not None and not rejected:
                self._budgets.refund(address)

    def _find_rejection(self, key: Key, now: float) -> BadToken | None:
        found = self._rejected.get(key)
        if found is None:
            return None
        bad, until = found
        if not until - self._limits.rejected_ttl <= now < until:
            del self._rejected[key]
            return None
        self._rejected.move_to_end(key)
        return BadToken(bad.why, bad.kind)

    def _record_rejection(self, key: Key, bad: BadToken, now: float) -> None:
        if self._limits.rejected_ttl:
            self._rejected[key] = (bad, now + self._limits.rejected_ttl)
            if len(self._rejected) > self._limits.max_rejected:
                self._rejected.popitem(last=False)

    def _use_running_loop(self) -> None:
        """Forget the requests of a loop that has ended: a verifier may outlive the loop that it was first used on."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._in_flight = {}
            self._semaphore = asyncio.Semaphore(self._limits.max_requests)


class _RejectionBudgets:
    """How many more tokens of each address may be rejected: a token bucket for each, refilled over a minute."""

    def __init__(self, per_minute: int) -> None:
        self._interval = _MINUTE / per_minute
        self._full_at: OrderedDict[str, float] = OrderedDict()  # when the bucket of an address will be full again

    def take(self, address: str, now: float) -> float:
        """Take one; 0 if there was one, otherwise the seconds until there is."""
        place = _network(address)
        full_at = min(max(self._full_at.get(place, now), now), now + _MINUTE)  # the wall clock may have been set back
        wait = full_at + self._interval - now - _MINUTE
        if wait <= _ROUNDING:
            full_at, wait = full_at + self._interval, 0
        self._full_at[place] = full_at
        self._full_at.move_to_end(place)
        if len(self._full_at) > _MAX_ADDRESSES:
            self._full_at.popitem(last=False)
        return wait

    def refund(self, address: str) -> None:
        """Put back what was taken."""
        if (full_at := self._full_at.get(place := _network(address))) is not None:
            self._full_at[place] = full_at - self._interval


def _network(address: str) -> str:
    """The unit that a budget is for: an IPv4 address, or the /64 that one IPv6 host can choose its addresses from."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped is not None:  # noqa: PLR2004 - IPv4
        return str(getattr(found, "ipv4_mapped", None) or found)
    return str(ipaddress.ip_network((int(found), 64), strict=False))
