"""Store on Redis or Valkey, which any number of processes on any number of machines may share.

Each call is one call of `script.lua`. The script uses the clock of Redis, so one clock decides about expiry and leases,
whatever the clocks of the callers show. (A clock that tests pass replaces it.)

A scan within one home reads that home. A scan across homes needs an index of homes, which lies in another slot, so no
commit can change both atomically. Therefore a home is registered before it is written to, and again every few seconds
while writes continue. A sweep removes an empty home from the index at the earliest a minute after its last
registration, and only if it was not registered again meanwhile.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from trunkline.clock import Clock, Timer, WallClock
from trunkline.errors import (
    ConfigError,
    Conflict,
    Fenced,
    MisuseError,
    NotExecuted,
    StoreError,
    StoreUnusable,
    TrunklineError,
)
from trunkline.stores import validation
from trunkline.stores.bus import Bus
from trunkline.stores.futures import failed_future
from trunkline.stores.redis import scan
from trunkline.stores.redis.bus import RedisBus
from trunkline.stores.redis.client import RedisClient
from trunkline.stores.redis.connection import encode_command, reply_parser
from trunkline.stores.redis.url import parse_url
from trunkline.stores.redis.watches import ChannelSubscriptions
from trunkline.stores.store import Changed, Held, Item, Lease, Put, Watch, Write, home
from trunkline.stores.watches import Watchers

__all__ = ["SWEEP_INTERVAL", "RedisStore"]

SWEEP_INTERVAL: Final = 60.0  # seconds
SCHEMA: Final = 1
MAX_PATIENCE: Final = 20.0  # seconds; together with the age of registrations less than the script's minute
_REGISTRATION_AGE: Final = 10.0  # seconds; entries live for one or two periods
_HOMES_PER_SWEEP: Final = 100
_ITEMS_PER_SWEEP: Final = 500  # per home
_SCRIPT: Final = (Path(__file__).parent / "script.lua").read_text("utf-8")
_SHA: Final = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
_WORD: Final = b"$%d\r\n%b\r\n"
_CALL: Final = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n" + _SHA.encode() + b"\r\n$1\r\n1\r\n" + 3 * _WORD
_MAX_CLOCK_SKEW: Final = 2.0  # seconds
_DURABILITY_SETTINGS: Final = {
    "appendonly": ("yes", "data is lost when Redis stops; set it to 'yes'"),
    "appendfsync": ("always", "the last commits may be lost when its machine fails; set it to 'always'"),
    "maxmemory-policy": ("noeviction", "data may be evicted when memory is full; set it to 'noeviction'"),
}

_log: Final = logging.getLogger("trunkline")
_encode: Final = msgspec.msgpack.Encoder().encode


class RedisStore:
    """Store on Redis or Valkey: `redis://host`, `rediss://`, `unix://`, or `redis+sentinel://host,host/service`.
    Servers with the same `prefix` share their data. `patience` is the timeout of a command, in seconds. With
    `replicas`, a write counts once that many replicas have confirmed it: a failover to one of them does not lose it."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "trunkline:",
        patience: float = 5.0,
        replicas: int = 0,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not 0 < patience <= MAX_PATIENCE or not re.fullmatch(r"[\x21-\x7a|~]*", prefix):
            raise ConfigError(
                f"patience must be above 0 and at most {MAX_PATIENCE:g} s; prefix must be ASCII without braces"
            )
        if replicas < 0:
            raise ConfigError(f"replicas must be 0 or more, not {replicas}")
        reply_parser()  # fails early if hiredis is not installed
        self._address = parse_url(url)
        if tls is not None and not self._address.tls:
            raise ConfigError("tls is for rediss:// and rediss+sentinel://")
        self._tls = (tls or ssl.create_default_context()) if self._address.tls else None
        self._prefix = prefix
        self._patience = patience
        self._replicas = replicas
        self._clock_override = clock  # None: use the clock of Redis
        self._clock: Clock = WallClock() if clock is None else clock
        self._closed = False
        self._client: RedisClient | None = None
        self._sender = uuid4().hex
        # Those registered in this period, and in the one before.
        self._registered_homes: tuple[set[str], set[str]] = (set(), set())
        self._registered_since = 0.0
        self._watchers = Watchers()
        self._subscriptions: ChannelSubscriptions
        self._sweep_timer: Timer | None = None
        self._sweep_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<RedisStore {str(self._address)!r}>"

    # --- lifecycle ---------------------------------------------------------------------------------

    @property
    def lasting(self) -> bool:
        """True: the data outlives this process."""
        return True

    def bus(self) -> Bus:
        """Return a bus on channels of the same Redis, under the same prefix."""
        return RedisBus(self._address, self._tls, prefix=self._prefix, patience=self._patience)

    async def open(self) -> None:
        """Connect. Raises `StoreUnusable` if Redis denies access, or if a newer Trunkline has written the data."""
        if self._closed or self._client is not None:
            self._require_open()
            return
        create_client = partial(RedisClient, self._address, self._tls, self._patience)
        client = create_client(
            script=_SCRIPT,
            replicas=self._replicas,
            on_lost=self._forget_registrations,
            on_changed=self._watchers.notify,
        )
        self._subscriptions = ChannelSubscriptions(
            self._prefix,
            self._watchers,
            create_client=create_client,
            main_client=client,
            is_own=lambda sender: sender == self._sender,
            ping_interval=self._patience,
        )
        self._client = client
        try:
            await client.open()
            await self._subscriptions.open()
            await self._check_server(client)
        except BaseException:
            await self.close()
            raise
        self._schedule_sweep()

    async def _check_server(self, client: RedisClient) -> None:
        """Check the schema version, and warn about settings that risk data loss."""
        schema = int(await self._call(client, "homes", b"hello", SCHEMA))
        if schema > SCHEMA:
            raise StoreUnusable(
                f"the store {self._address} was written by a newer Trunkline: its schema is {schema}, and this one "
                f"knows {SCHEMA}; use that version, or another prefix"
            )
        try:
            found = [await client.submit(encode_command("CONFIG", "GET", name)) for name in _DURABILITY_SETTINGS]
        except StoreError:  # CONFIG may be forbidden
            found = []
        values = [reply[1].decode() if reply else "" for reply in found]
        for (name, (best, risk)), value in zip(_DURABILITY_SETTINGS.items(), values, strict=False):
            if value not in {best, ""}:
                _log.warning("the store %s has %s %s: %s", self._address, name, value, risk)
        seconds, _ = await client.submit(encode_command("TIME"))
        if self._clock_override is None and abs(int(seconds) - self._clock.now()) > _MAX_CLOCK_SKEW:
            _log.warning("the clocks of the store %s and of this machine differ by more than 2 s", self._address)

    def _forget_registrations(self) -> None:
        """Forget known registrations: the next connection may be to another Redis."""
        self._sender = uuid4().hex
        self._registered_homes = (set(), set())

    async def close(self) -> None:
        """Wait for pending commands, and disconnect."""
        self._closed = True
        self._watchers.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if self._sweep_task is not None:
            self._sweep_task.cancel()
            await asyncio.wait([self._sweep_task])
        if self._client is not None:
            await self._subscriptions.close()
            await self._client.close()

    def _require_open(self) -> RedisClient:
        if self._closed:
            raise NotExecuted(f"the store {self._address} is closed")
        if self._client is None:
            raise MisuseError(f"the store {self._address} is not open yet")
        return self._client

    # --- items -------------------------------------------------------------------------------------

    async def get(self, key: str) -> Item | None:
        """Return the item of a key, or None."""
        client = self._require_open()
        validation.check_key(key)
        at = home(key)
        found = await self._call(client, at, b"get", key[len(at) :])
        return None if found is None else _item(key, *found)

    async def scan(self, prefix: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        """Return a page of items in key order."""
        client = self._require_open()
        validation.check_page(prefix, after, limit)
        at = home(prefix)

        async def read(asked: Sequence[tuple[str, scan.Bounds]]) -> Sequence[Sequence[Item]]:
            calls = [self._call(client, at, b"page", *bounds, limit) for at, bounds in asked]
            return [_items(at, found) for (at, _), found in zip(asked, await asyncio.gather(*calls), strict=True)]

        async def places(bounds: scan.Bounds, most: int) -> Sequence[str]:
            ranged = encode_command("ZRANGEBYLEX", f"{self._prefix}{{homes}}:all", *bounds, "LIMIT", 0, most)
            return [place.decode() for place in await client.submit(ranged)]

        if at == prefix:
            return await scan.scan_homes(prefix, after, limit, read_index=places, read_homes=read)
        bounds = scan.bounds_within_home(at, prefix, after)
        return [] if bounds is None else (await read([(at, bounds)]))[0]

    def commit(
        self, writes: Sequence[Write], *, fence: Lease | None = None, release: bool = False
    ) -> "asyncio.Future[int]":
        """Apply all writes or none; they are as durable as Redis is configured to be."""
        try:
            client = self._require_open()
            validation.check_writes(writes, None if fence is None else fence.name)
        except TrunklineError as error:
            return failed_future(error)
        at = home(writes[0].key)
        packed = self._encode_call(
            at,
            b"commit",
            self._sender,
            None if fence is None else fence.name[len(at) :],
            None if fence is None else fence.token,
            _encode_writes(writes, len(at)),
            release,
            values=_values(writes),
        )
        return self._write(client, at, packed, [write.key for write in writes], partial(_decode_commit, writes, fence))

    # --- leases ------------------------------------------------------------------------------------

    def acquire(
        self, name: str, holder: str, ttl: float, *, over: int | None = None, writes: Sequence[Write] = ()
    ) -> "asyncio.Future[Lease | Held]":
        """Grant the lease if it is free, expired or held under the token `over`; apply `writes` with it."""
        try:
            client = self._require_open()
            validation.check_lease(name, holder, ttl, writes)
        except TrunklineError as error:
            return failed_future(error)
        at = home(name)
        arguments = (name[len(at) :], holder, ttl, over, self._sender, _encode_writes(writes, len(at)))
        packed = self._encode_call(at, b"acquire", *arguments, values=_values(writes))
        decode = partial(_decode_acquisition, name, holder, writes)
        return self._write(client, at, packed, [write.key for write in writes], decode)

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend the lease to `ttl` seconds from now."""
        client = self._require_open()
        validation.check_lease(lease.name, lease.holder, ttl)
        at = home(lease.name)
        packed = self._encode_call(at, b"renew", lease.name[len(at) :], lease.token, lease.holder, ttl)
        ends = await client.submit(packed, writes=True)
        if ends is None:
            raise Fenced(lease.name, lease.token)
        return replace(lease, expires=float(ends))

    async def release(self, lease: Lease) -> None:
        """Release the lease."""
        at = home(lease.name)
        await self._call(self._require_open(), at, b"release", lease.name[len(at) :], lease.token)

    # --- watches -----------------------------------------------------------------------------------

    def watch(self, prefix: str, callback: Changed) -> Watch:
        """Call back when keys with this prefix change."""
        self._require_open()
        return self._subscriptions.watch(prefix, callback)

    # --- script calls ------------------------------------------------------------------------------

    def _encode_call(self, at: str, what: bytes, *asked: Any, values: Sequence[bytes] = ()) -> bytes:
        """Encode a call of the script for a home."""
        place = f"{self._prefix}{{{at}}}".encode()
        packed = _encode((None if self._clock_override is None else self._clock_override.now(), *asked))
        call = _CALL % (6 + len(values), len(place), place, len(what), what, len(packed), packed)
        return b"".join([call, *[_WORD % (len(value), value) for value in values]]) if values else call

    def _call(self, client: RedisClient, at: str, what: bytes, *asked: Any) -> asyncio.Future[Any]:
        return client.submit(self._encode_call(at, what, *asked))

    def _write(
        self, client: RedisClient, at: str, packed: bytes, keys: Sequence[str], decode: Callable[[Any], Any]
    ) -> asyncio.Future[Any]:
        """Send a call that writes to a home; register the home first if it may not be in the index."""
        now = self._clock.now()
        if not 0 <= now - self._registered_since < _REGISTRATION_AGE:
            aged = (
                self._registered_homes[0] if 0 <= now - self._registered_since < 2 * _REGISTRATION_AGE else set[str]()
            )
            self._registered_homes, self._registered_since = (set(), aged), now
        if at in self._registered_homes[0] or at in self._registered_homes[1]:
            return client.submit(packed, keys, writes=True, decode=decode)
        register = self._encode_call("homes", b"register", at)
        registered, done = client.submit_all([register, packed], keys, writes=True, decode=decode)
        registered.add_done_callback(partial(self._home_registered, at, self._registered_homes[0]))
        return done

    @staticmethod
    def _home_registered(at: str, known: set[str], done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None:
            known.add(at)  # an obsolete set if the connection was lost meanwhile

    def _schedule_sweep(self) -> None:
        self._sweep_timer = self._clock.call_at(self._clock.now() + SWEEP_INTERVAL, self._start_sweep)

    def _start_sweep(self) -> None:
        if self._sweep_task is None or self._sweep_task.done():
            self._sweep_task = asyncio.ensure_future(self._sweep_homes())
        self._schedule_sweep()

    async def _sweep_homes(self) -> None:
        """Delete expired items in homes that no process has swept for a while."""
        with contextlib.suppress(StoreError):  # the next sweep retries
            while await self._sweep_some_homes(self._require_open()):
                pass

    async def _sweep_some_homes(self, client: RedisClient) -> bool:
        claim, names = await self._call(client, "homes", b"claim", _HOMES_PER_SWEEP)
        homes = [name.decode() for name in names]
        again = await asyncio.gather(*(self._call(client, at, b"sweep", _ITEMS_PER_SWEEP) for at in homes))
        settled = zip(homes, again, strict=True)
        await asyncio.gather(
            *(self._call(client, "homes", b"settle", at, claim.decode(), till.decode()) for at, till in settled)
        )
        return bool(homes)


def _encode_writes(writes: Sequence[Write], skip: int) -> list[tuple[Any, ...]]:
    """Return writes as the script expects them, with keys relative to their home."""
    places = count(3)  # index of the values among the script's arguments
    return [
        (write.key[skip:], write.version, write.expires, next(places))
        if isinstance(write, Put)
        else (write.key[skip:], write.version)
        for write in writes
    ]


def _values(writes: Sequence[Write]) -> list[bytes]:
    return [write.value for write in writes if isinstance(write, Put)]


def _decode_commit(writes: Sequence[Write], fence: Lease | None, done: int | list[int]) -> int:
    """Return the version of a commit. Raises `Conflict` or `Fenced`."""
    if isinstance(done, list):
        raise _conflict(writes, *done)
    if fence is not None and not done:
        raise Fenced(fence.name, fence.token)
    return done


def _decode_acquisition(name: str, holder: str, writes: Sequence[Write], reply: list[Any]) -> Lease | Held:
    """Return the lease, or its holder. Raises `Conflict`."""
    token, ends, *other = reply
    if token > 0:
        return Lease(name, holder, token, float(ends))
    if token < 0:
        raise _conflict(writes, token, ends)
    return Held(other[0].decode(), float(ends), other[1])


def _conflict(writes: Sequence[Write], which: int, found: int) -> Conflict:
    """Return the conflict that the script reports: minus the number of the write, and the version that was found."""
    write = writes[-which - 1]
    return Conflict(write.key, write.version or 0, found)


def _item(key: str, version: int, ends: bytes | None, value: bytes) -> Item:
    return Item(key, value, version, None if ends is None else float(ends))


def _items(at: str, found: list[Any]) -> list[Item]:
    return [_item(at + found[n].decode(), *found[n + 1 : n + 4]) for n in range(0, len(found), 4)]
