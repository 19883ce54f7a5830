"""Limits of requests to an issuer about unknown tokens.

A caller can send any number of invented tokens that only the issuer can judge. These limits keep the server from
passing such a flood on: concurrent requests with one token share one request to the issuer, the number of concurrent
requests is bounded, rejected tokens are cached for a short time, and each client address has a budget of rejected
tokens.

Recently verified tokens are cached and never reach this code, so their callers are not affected by a flood.
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
_MAX_ADDRESSES: Final = 10_000  # with a budget; the least recently used one is dropped first
_ROUNDING: Final = 1e-6  # seconds of floating-point error

VerifyCall = Callable[[], Awaitable[Verified]]
Key = tuple[bytes, frozenset[str]]


class TooManyRejected(Exception):
    """A client address has sent too many rejected tokens. `wait` is in whole seconds."""

    def __init__(self, wait: int) -> None:
        super().__init__(f"too many unknown tokens came from this address; try again in {wait} s")
        self.wait = wait


class IssuerRequests:
    """Verifies unknown tokens of one verifier within its limits."""

    def __init__(self, limits: IssuerLimits) -> None:
        self._limits = limits
        self._rejected: OrderedDict[Key, tuple[BadToken, float]] = OrderedDict()  # with its expiry
        self._budgets = None if limits.rejected_per_minute is None else _RejectionBudgets(limits.rejected_per_minute)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight: dict[Key, asyncio.Task[Verified]] = {}
        self._semaphore = asyncio.Semaphore(limits.max_requests)

    async def verify(
        self, token: str, audiences: frozenset[str], ask: VerifyCall, *, address: str | None, now: float
    ) -> Verified:
        """Verify a token with `ask`; concurrent calls with one token share one call of it.

        Raises `BadToken`, `Unavailable` or `TooManyRejected`; `address` is the caller's, if known.
        """
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
            raise BadToken(bad.why, bad.kind) from None  # each waiting caller raises an exception of its own

    def _start(self, key: Key, ask: VerifyCall, address: str | None, now: float) -> "asyncio.Task[Verified]":
        if len(self._in_flight) >= self._limits.max_requests + self._limits.max_waiting:
            raise Unavailable(f"{len(self._in_flight)} tokens wait to be verified by their issuer")
        if self._budgets is not None and address is not None and (wait := self._budgets.take(address, now)):
            raise TooManyRejected(ceil(wait))
        flight = asyncio.ensure_future(self._ask(key, ask, address, now))
        flight.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # all callers may have been cancelled
        self._in_flight[key] = flight
        return flight

    async def _ask(self, key: Key, ask: VerifyCall, address: str | None, now: float) -> Verified:
        """Make one request, and refund the caller's budget unless the token is rejected."""
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
        """Drop the requests of a closed loop: a verifier may outlive the loop of its first use."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._in_flight = {}
            self._semaphore = asyncio.Semaphore(self._limits.max_requests)


class _RejectionBudgets:
    """Rejected tokens that each address may still send: one token bucket per address, refilled over a minute."""

    def __init__(self, per_minute: int) -> None:
        self._interval = _MINUTE / per_minute
        self._full_at: OrderedDict[str, float] = OrderedDict()  # time at which the bucket of an address is full again

    def take(self, address: str, now: float) -> float:
        """Take one unit; return 0, or the seconds until one is available."""
        network = _network(address)
        full_at = min(max(self._full_at.get(network, now), now), now + _MINUTE)  # the wall clock may go backwards
        wait = full_at + self._interval - now - _MINUTE
        if wait <= _ROUNDING:
            full_at, wait = full_at + self._interval, 0
        self._full_at[network] = full_at
        self._full_at.move_to_end(network)
        if len(self._full_at) > _MAX_ADDRESSES:
            self._full_at.popitem(last=False)
        return wait

    def refund(self, address: str) -> None:
        """Return one unit."""
        if (full_at := self._full_at.get(network := _network(address))) is not None:
            self._full_at[network] = full_at - self._interval


def _network(address: str) -> str:
    """Return the unit of a budget: an IPv4 address, or the /64 from which an IPv6 host chooses its addresses."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped is not None:  # noqa: PLR2004 - IPv4
        return str(getattr(found, "ipv4_mapped", None) or found)
    return str(ipaddress.ip_network((int(found), 64), strict=False))
