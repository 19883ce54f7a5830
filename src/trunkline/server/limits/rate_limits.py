"""Rate limits of a server: token buckets for callers, sessions, entries and the server as a whole.

Without a shared store a bucket belongs to this process, and taking a token takes no await. With one, the bucket is in
the store, and each process takes tokens out of it in batches, with one commit for all calls that wait. The tokens of a
batch that are not used at once expire in the time that the bucket needs to gain as many. So in any period, all
processes together grant at most the tokens of the bucket plus one batch; and one token more for each process in which
the store takes longer to answer than a batch lives. A batch is at most a tenth of the burst; a process whose tokens
expire takes fewer, and one that uses them up takes more. While the store is unavailable, each process has buckets of
its own.

A caller is checked before the server, so a caller above its limit uses up nothing that others need.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from trunkline.auth.principal import Principal
from trunkline.client_address import address_group
from trunkline.clock import Clock
from trunkline.config import Settings
from trunkline.errors import Conflict, Refusal, RefusalCode, StoreError
from trunkline.facts import Observers, RateExceeded
from trunkline.protocol.inflight import IncomingRequest
from trunkline.rpc.run_handler import Work, run_work
from trunkline.server.access.owner_id import owner_of
from trunkline.stores.store import ABSENT, Put, key_of
from trunkline.token_bucket import Rate, TokenBucket, count_tokens, parse_rate, slack_at, take_tokens

if TYPE_CHECKING:
    from trunkline.server.call_peer import ConnectedPeer
    from trunkline.stores.store import Store

__all__ = ["UNDECIDED", "CallerLimits", "Limiter", "RateLimited", "RateLimits", "SharedBucket"]

UNDECIDED: Final = -1.0  # returned by `take`: only the store can decide

_BATCHES_PER_BURST: Final = 10
_LOCAL_PERIOD: Final = 1.0  # seconds for which a process uses its own bucket after the store has failed
_SWEEP_SIZE: Final = 1024  # buckets of callers, from which full ones are dropped
_KEPT_FULL: Final = 60.0  # seconds that the store keeps a full bucket, since clocks of processes differ a little


class RateLimited(Refusal):
    """A request above a rate limit. It was not executed."""

    def __init__(self, scope: str, rate: Rate, wait: float) -> None:
        message = f"too many requests: the limit of {scope} is {rate}; try again in {wait:.3g} s"
        details = {"scope": scope, "limit": rate.text}
        super().__init__(RefusalCode.RATE_LIMIT_EXCEEDED, message, details=details, retry_after=max(wait, 0.001))


class Bucket(Protocol):
    """A token bucket, local or shared."""

    rate: Rate

    def take(self) -> float:
        """Take a token and return 0. If there is none, return the seconds until there is one, or `UNDECIDED`."""
        ...

    async def take_from_store(self) -> float:
        """Take a token after `UNDECIDED`; return 0, or the seconds until there is one."""
        ...

    def is_full(self) -> bool:
        """Return whether the bucket is the same as a new one."""
        ...


FindOut = Callable[[], Awaitable[RateLimited | None]]
"""Finds out with the help of the store whether a request is above its rate."""


class Limiter(NamedTuple):
    """A bucket, and a description of its requests for messages."""

    scope: str
    bucket: Bucket


class LocalBucket:
    """A bucket of this process."""

    __slots__ = ("_bucket", "_now", "rate")

    def __init__(self, rate: Rate, now: Callable[[], float]) -> None:
        self.rate = rate
        self._bucket = TokenBucket(rate)
        self._now = now

    def take(self) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        return self._bucket.take(self._now())

    async def take_from_store(self) -> float:
        """Take a token: there is no store."""
        return self.take()

    def is_full(self) -> bool:
        """Return whether the bucket is the same as a new one."""
        return self._bucket.is_full(self._now())


class SharedBucket:
    """A bucket in a store that processes share, and the tokens that this process has taken out of it."""

    def __init__(self, rate: Rate, store: "Store", key: str, now: Callable[[], float]) -> None:
        self.rate = rate
        self._store = store
        self._key = key
        self._now = now
        self._largest_batch = max(1, rate.burst // _BATCHES_PER_BURST)
        self._batch = 1
        self._tokens = 0  # of the last batch
        self._taken_at = float("-inf")
        self._empty_until = float("-inf")
        self._waiters: deque[asyncio.Future[float]] = deque()
        self._fetch: asyncio.Task[None] | None = None
        self._local = TokenBucket(rate)  # while the store is unavailable
        self._local_until = float("-inf")

    @property
    def _lifetime(self) -> float:
        """Seconds in which the unused tokens of a batch expire."""
        return self._largest_batch * self.rate.interval

    def take(self) -> float:
        """Take a token of the last batch and return 0, or return the seconds until there may be one."""
        now = self._now()
        if self._tokens and 0 <= now - self._taken_at < self._lifetime:
            self._tokens -= 1
            return 0.0
        if now < self._local_until:
            return self._local.take(now)
        if self._empty_until > now and not self._waiters:
            return min(self._empty_until - now, self.rate.interval)  # longer only if the clock was set back
        return UNDECIDED

    async def take_from_store(self) -> float:
        """Wait for a token of the next batch; return 0, or the seconds until there may be one."""
        if len(self._waiters) >= self.rate.burst:
            return self.rate.interval  # the bucket never has so many
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[float] = loop.create_future()
        self._waiters.append(waiter)
        if self._fetch is None:
            self._fetch = loop.create_task(self._serve_waiters())
        return await waiter

    def is_full(self) -> bool:
        """Return whether the bucket is the same as a new one, as far as this process is concerned."""
        now = self._now()
        return self._fetch is None and now >= self._taken_at + self._lifetime and now >= self._empty_until

    async def _serve_waiters(self) -> None:
        try:
            while self._waiters:
                self._choose_batch()
                taken, wait = await self._take_batch(min(len(self._waiters) - 1 + self._batch, self.rate.burst))
                self._grant(taken, wait)
        except StoreError:
            self._local_until = self._now() + _LOCAL_PERIOD
            while self._waiters:
                _resolve(self._waiters.popleft(), self._local.take(self._now()))
        finally:
            self._fetch = None

    def _choose_batch(self) -> None:
        """Take more if the last batch was used up while it was valid, and fewer if some of its tokens expired."""
        if self._tokens:
            self._batch = max(1, self._batch - self._tokens)
        elif 0 <= self._now() - self._taken_at < self._lifetime:
            self._batch = min(2 * self._batch, self._largest_batch)
        self._tokens = 0

    async def _take_batch(self, wanted: int) -> tuple[int, float]:
        """Take up to `wanted` tokens out of the stored bucket; return their number, and the seconds until there is one
        more if there were too few. Raises `StoreError`."""
        rate = self.rate
        while True:
            item = await self._store.get(self._key)
            full_at, now = float("-inf") if item is None else float(item.value), self._now()
            count = min(wanted, count_tokens(rate, full_at, now))
            after, wait = take_tokens(rate, full_at, now, count or 1)
            if not count and after > full_at - rate.interval:
                return 0, wait
            # Without a token, the clock was set back: the store must learn of it, or the bucket would stay empty.
            version = ABSENT if item is None else item.version
            try:
                await self._store.commit([Put(self._key, repr(after).encode(), after + _KEPT_FULL, version)])
            except Conflict:
                continue  # another process was faster
            if not count:
                return 0, wait
            self._taken_at, answered_at = now, self._now()
            wait = take_tokens(rate, after, answered_at)[1] if count < wanted else 0.0
            return self._count_valid(count, after, answered_at), wait

    def _count_valid(self, count: int, full_at: float, now: float) -> int:
        """Return how many tokens of a batch are valid once the store has answered. If that took longer than a batch
        lives, the bucket may have regained some of them, which other processes use. One is always valid, or there would
        be none on a slow store."""
        late = (now - self._lifetime - full_at) / self.rate.interval + count
        slack = slack_at(self.rate, now)
        return count if late <= slack else max(1, count - ceil(late - slack))

    def _grant(self, tokens: int, wait: float) -> None:
        """Give tokens to waiting calls; refuse the remaining calls if the bucket is empty."""
        while tokens and self._waiters:
            tokens -= _resolve(self._waiters.popleft(), 0.0)
        self._tokens = tokens
        if wait > 0:
            self._empty_until = self._now() + wait
            while self._waiters:
                _resolve(self._waiters.popleft(), wait)


def _resolve(waiter: "asyncio.Future[float]", wait: float) -> bool:
    """Answer a waiting call; return False if it was cancelled."""
    if waiter.done():
        return False
    waiter.set_result(wait)
    return True


class CallerLimits(NamedTuple):
    """The limiters of one caller on one connection."""

    sweep: int  # of the buckets, after which the limiters are looked up again
    principal: Any
    limiters: Sequence[Limiter]


class RateLimits:
    """The rate limits of a server."""

    def __init__(
        self,
        settings: Settings,
        server: str,
        *,
        clock: Clock,
        wall_clock: Clock,
        store: "Store | None",
        observers: Observers,
    ) -> None:
        """`store` is None if processes do not share one."""
        self._server = server
        self._clock = clock
        self._wall_clock = wall_clock
        self._store = store
        self._observers = observers
        self._session_rate = _optional_rate(settings.session_rate)
        self._principal_rate = _optional_rate(settings.principal_rate)
        self._http_rate = _optional_rate(settings.http_rate)
        server_rate = _optional_rate(settings.server_rate)
        self._of_server = () if server_rate is None else (Limiter("the server", self._make(server_rate, "server")),)
        self._callers: dict[Hashable, Limiter] = {}
        self._entries: dict[tuple[str, str], Limiter] = {}
        self._sweeps = 0
        self._sweep_size = _SWEEP_SIZE

    # --- callers ---------------------------------------------------------------------------------

    def limits_of(self, peer: "ConnectedPeer", call: IncomingRequest, last: CallerLimits | None) -> CallerLimits:
        """Return the limiters of the sender of a call; `last` are those of the last call of its connection."""
        principal, shared = call.origin.principal, peer.session_id is None
        if last is not None and last.sweep == self._sweeps and last.principal is principal and not shared:
            return last
        session: tuple[Limiter, ...] = ()
        if self._session_rate is not None and not shared:
            kept = () if last is None else [one for one in last.limiters if one.scope == _SESSION]
            session = tuple(kept) or (Limiter(_SESSION, LocalBucket(self._session_rate, self._clock.now)),)
        caller = ()
        if self._principal_rate is not None:
            host = peer.channel.info.peer if call.origin.request is None else call.origin.request.client_host
            caller = (self._caller_limiter("principal", principal, host, self._principal_rate),)
        return CallerLimits(self._sweeps, principal, (*session, *caller, *self._of_server))

    def check(self, limiters: Sequence[Limiter]) -> "RateLimited | FindOut | None":
        """Take a token of each limiter; return the refusal if one has none, or a function that finds out."""
        for position, (scope, bucket) in enumerate(limiters):
            wait = bucket.take()
            if wait:
                if wait < 0:
                    return partial(self._check_with_store, limiters[position:])
                return self._refusal(scope, bucket.rate, wait)
        return None

    async def _check_with_store(self, limiters: Sequence[Limiter]) -> RateLimited | None:
        for scope, bucket in limiters:
            if (wait := bucket.take()) < 0:
                wait = await bucket.take_from_store()
            if wait:
                return self._refusal(scope, bucket.rate, wait)
        return None

    def check_http(self, principal: Any, host: str) -> "RateLimited | FindOut | None":
        """Take a token for an HTTP request, before its message is read; return the refusal, or a function that
        finds out."""
        if self._http_rate is None:
            return None
        return self.check((self._caller_limiter("HTTP request", principal, host, self._http_rate),))

    def _caller_limiter(self, what: str, principal: Any, host: str, rate: Rate) -> Limiter:
        if principal is None:
            caller: Hashable = host
        else:
            # The object of an application may be equal to itself only.
            caller = principal if type(principal) is Principal or type(principal) is str else owner_of(principal)
        key = (what, principal is None, caller)
        limiter = self._callers.get(key)
        if limiter is None:
            if len(self._callers) >= self._sweep_size:
                self._sweep()
            name = owner_of(principal) if principal is not None else f"address {_host_of(host)}"
            scope = f"each {what}" if principal is not None else f"each {what} of an address"
            limiter = self._callers.get((what, name)) or Limiter(scope, self._make(rate, what, name))
            self._callers[key] = self._callers[what, name] = limiter
        return limiter

    def _sweep(self) -> None:
        """Drop full buckets: they are the same as new ones."""
        self._callers = {key: limiter for key, limiter in self._callers.items() if not limiter.bucket.is_full()}
        self._sweep_size = max(_SWEEP_SIZE, 2 * len(self._callers))
        self._sweeps += 1

    # --- entries ---------------------------------------------------------------------------------

    def take(self, kind: str, name: str, rate: Rate) -> Limiter | None:
        """Take a token for a call of an entry with a rate. Return None, or raise `RateLimited`; return the limiter if
        only the store can decide, which `run_when_admitted` asks."""
        limiter = self._entries.get((kind, name))
        if limiter is None or (limiter.bucket.rate is not rate and limiter.bucket.rate != rate):
            limiter = self._entries[kind, name] = Limiter(f"{kind} {name!r}", self._make(rate, kind, name))
        wait = limiter.bucket.take()
        if not wait:
            return None
        if wait > 0:
            raise self._refusal(limiter.scope, rate, wait)
        return limiter

    def run_within(self, kind: str, name: str, rate: Rate, start: Callable[[], Work], threads: Any) -> Work:
        """Start the work of a call of an entry with a rate. Raises `RateLimited`, at once or in the work."""
        undecided = self.take(kind, name, rate)
        return start() if undecided is None else self.run_when_admitted(undecided, start, threads)

    async def run_when_admitted(self, limiter: Limiter, start: Callable[[], Work], threads: Any) -> Any:
        """Run a call once the store has decided that it is within its rate. Raises `RateLimited`."""
        wait = await limiter.bucket.take_from_store()
        if wait:
            raise self._refusal(limiter.scope, limiter.bucket.rate, wait)
        return await run_work(start(), threads)

    # --- buckets ---------------------------------------------------------------------------------

    def _make(self, rate: Rate, *name: str) -> Bucket:
        if self._store is None:
            return LocalBucket(rate, self._clock.now)
        return SharedBucket(rate, self._store, key_of("rate", key_of(self._server, *name)), self._wall_clock.now)

    def _refusal(self, scope: str, rate: Rate, wait: float) -> RateLimited:
        if self._observers:
            self._observers.on(RateExceeded(connection=0, at=self._clock.now(), scope=scope, limit=rate.text))
        return RateLimited(scope, rate, wait)


_SESSION: Final = "each session"


def _optional_rate(text: str | None) -> Rate | None:
    return None if text is None else parse_rate(text)


def _host_of(peer: str) -> str:
    """Return the host of a peer such as `127.0.0.1:4000`, as far as it identifies a client."""
    host, colon, port = peer.rpartition(":")
    return address_group(host.strip("[]") if colon and port.isdecimal() and host.count(":") != 1 else peer)
