"""Shared directory: addresses of servers by name, in all processes that share a store.

Each name is an item in the store. It belongs to the process that published it: the process holds the lease of the name
under its own name in the cluster (`server/cluster`). So a name has one owner, and it is gone at the moment in which its
owner leaves or is evicted: each look-up checks the owner, and peers remove the items of an owner that has died.

A process that was evicted although it lives has lost its names, and a store that lost its data has lost all of them.
The maintenance task of each process publishes its names again then. It is a permanent child of a supervisor.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Self

from msgspec import Struct

from trunkline.clock import LoopClock, WallClock
from trunkline.config import Settings
from trunkline.errors import ConfigError, Conflict, DuplicateEntry, Fenced, MisuseError, StoreError
from trunkline.facts import Observers
from trunkline.names.table import check_name, unroutable
from trunkline.server.cluster.cluster import Cluster
from trunkline.stores.store import Delete, Held, Item, Lease, Put, Store, key_of, scan_all
from trunkline.supervision.restart_policy import RestartPolicy
from trunkline.supervision.supervisor import Supervisor
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.supervision.supervisor import ChildStatus

__all__ = ["AddressChange", "Publication", "SharedDirectory", "compare_addresses"]

_PREFIX: Final = "name/"
_OWNERSHIP_TTL: Final = 10 * 365 * 24 * 3600.0  # seconds: a name lasts as long as its owner
_RETRY_DELAY: Final = 1.0  # seconds between two attempts of the maintenance task while the store is unavailable

_log: Final = logging.getLogger("trunkline")


class _NameRecord(Struct, frozen=True):
    """A name in the store."""

    name: str
    address: str
    process: str  # its owner


_decode_record: Final = codec.json_decoder(_NameRecord)


class AddressChange(Struct, frozen=True):
    """A name that was added or removed. A changed address is the removal of the old one and the addition of the new."""

    change: Literal["added", "removed"]
    name: str
    address: str


def compare_addresses(before: Mapping[str, str], after: Mapping[str, str]) -> list[AddressChange]:
    """Return the changes that lead from one state of a directory to another, removals first."""
    gone = [AddressChange("removed", *each) for each in before.items() if after.get(each[0]) != each[1]]
    new = [AddressChange("added", *each) for each in after.items() if before.get(each[0]) != each[1]]
    return gone + new


class Publication:
    """A published name. Also an async context manager, which withdraws it."""

    def __init__(self, name: str, address: str, withdraw: Callable[["Publication"], Awaitable[None]]) -> None:
        self.name = name
        self.address = address
        self.lost = asyncio.Event()
        """Set if another process has the name: this one was cut off for so long that it was evicted."""
        self._withdraw = withdraw

    async def close(self) -> None:
        """Withdraw the name; do nothing if it is withdrawn already. Raises `StoreUnavailable`."""
        await self._withdraw(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SharedDirectory:
    """Addresses of servers by name: `async with SharedDirectory(SqliteStore("names.db")) as directory`.

    All processes on one store, on one machine or several, see the same names. A name is gone when it is withdrawn, when
    the directory is closed, and when its process dies. All methods belong to the event loop.
    """

    def __init__(self, store: Store, *, settings: Settings | None = None) -> None:
        """`store` is opened and closed by the directory. `settings.process_lease` is the time for which a process on
        another machine may be silent."""
        self._store = store
        self._settings = settings or Settings()
        self._cluster: Cluster | None = None  # while it is open
        self._published: dict[str, Publication] = {}
        self._leases: dict[str, Lease] = {}
        self._hints: set[asyncio.Event] = set()  # set when names may have changed
        self._supervisor = Supervisor("names", policy=RestartPolicy.for_children(self._settings))
        self._supervisor.add("maintenance", self._maintain)

    # --- opening and closing -----------------------------------------------------------------------

    async def open(self) -> Self:
        """Open the store and join the processes that share it. Raises `ConfigError` for a store that none can share."""
        await self._store.open()
        try:
            bus = self._store.bus()
            if bus is None:
                raise ConfigError("a shared directory needs a store that processes share: SqliteStore or RedisStore")
            clock = LoopClock(asyncio.get_running_loop())
            lease_ttl, observers = self._settings.process_lease, Observers()
            cluster = Cluster(self._store, bus, lease_ttl=lease_ttl, clock=clock, wall=WallClock(), observers=observers)
            cluster.on_lost(lambda _: self._hint())
            for register in (cluster.on_evicted, cluster.on_store_reset, cluster.on_missed):
                register(self._hint)
            await cluster.join()
        except BaseException:
            await self._store.close()
            raise
        self._cluster = cluster
        self._supervisor.start()
        return self

    async def close(self) -> None:
        """Withdraw all names of this process, and leave. Idempotent."""
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        await self._supervisor.stop()
        for publication in list(self._published.values()):
            with suppress(StoreError):  # the names go with the process in any case
                await self._withdraw(publication)
        await cluster.leave()
        await self._store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _require_open(self) -> Cluster:
        if self._cluster is None:
            raise MisuseError("the shared directory is not open: use `async with`, or `await directory.open()`")
        return self._cluster

    def describe(self) -> "ChildStatus":
        """Return the status of the maintenance task, below that of its supervisor."""
        return self._supervisor.describe()

    # --- names of this process ---------------------------------------------------------------------

    async def publish(self, name: str, address: str) -> Publication:
        """Give an address a name in all processes. Raises `DuplicateEntry` if the name is taken, and `StoreUnavailable`
        if the store does not respond."""
        check_name(name)
        self._require_open()
        if name in self._published:
            raise DuplicateEntry("server", name)
        publication = self._published[name] = Publication(name, address, self._withdraw)
        try:
            await self._claim(publication)
        except BaseException:
            self._published.pop(name, None)
            raise
        return publication

    async def _claim(self, publication: Publication) -> None:
        """Write a name under its lease, as the property of this process."""
        cluster, key = self._require_open(), _key(publication.name)
        while True:
            lease = await cluster.acquire(key, _OWNERSHIP_TTL)
            if isinstance(lease, Held):
                raise DuplicateEntry("server", publication.name)
            record = _NameRecord(publication.name, publication.address, lease.holder)
            with suppress(Fenced):  # this process was evicted meanwhile
                await self._store.commit([Put(key, codec.to_json(record))], fence=lease)
                self._leases[publication.name] = lease
                return

    async def _withdraw(self, publication: Publication) -> None:
        if self._published.get(publication.name) is not publication:
            return
        del self._published[publication.name]
        lease = self._leases.pop(publication.name, None)
        if lease is not None:
            with suppress(Fenced):  # the name is gone already
                await self._store.commit([Delete(_key(publication.name))], fence=lease, release=True)

    # --- look-up -------------------------------------------------------------------------------------

    async def find(self, name: str) -> str | None:
        """Return the address of a name; None if there is none. Raises `StoreUnavailable`."""
        self._require_open()
        item = await self._store.get(_key(name))
        record = None if item is None else _decode_record(item.value)
        return record.address if record is not None and await self._is_alive(record) else None

    async def locate(self, name: str) -> str:
        """Return the address of a name; refuse the request with code 1078 if there is none."""
        address = await self.find(name)
        if address is None:
            raise unroutable(name, await self.addresses())
        return address

    async def addresses(self) -> dict[str, str]:
        """Return the addresses of all names, in the order of the names."""
        self._require_open()
        records = [record for _, record in await self._scan()]
        return {record.name: record.address for record in records if await self._is_alive(record)}

    async def watch(self) -> AsyncGenerator[AddressChange]:
        """Yield each name that is there already as added, then each change. Changes that follow each other quickly may
        be seen as one."""
        self._require_open()
        hint, known = asyncio.Event(), dict[str, str]()
        self._hints.add(hint)
        watched = self._store.watch(_PREFIX, lambda _: hint.set())
        try:
            while True:
                hint.clear()
                present = await self.addresses()
                for change in compare_addresses(known, present):
                    yield change
                known = present
                await hint.wait()
        finally:
            watched.close()
            self._hints.discard(hint)

    async def _scan(self) -> list[tuple[Item, _NameRecord]]:
        """Return all items with their records, also those of dead processes."""
        return [(item, _decode_record(item.value)) for item in await scan_all(self._store, _PREFIX)]

    async def _is_alive(self, record: _NameRecord) -> bool:
        cluster = self._require_open()
        return cluster.is_own_name(record.process) or not await cluster.evict_if_dead(record.process)

    # --- maintenance ---------------------------------------------------------------------------------

    def _hint(self) -> None:
        for hint in self._hints:
            hint.set()

    async def _maintain(self) -> None:
        """Publish names again that were lost, and remove those of dead processes, whenever processes come and go."""
        hint = asyncio.Event()
        self._hints.add(hint)
        try:
            while True:
                hint.clear()
                try:
                    await self._publish_again()
                    await self._remove_dead()
                except StoreError as error:
                    _log.debug("the names in the store cannot be maintained now: %s", error)
                    asyncio.get_running_loop().call_later(_RETRY_DELAY, hint.set)
                await hint.wait()
        finally:
            self._hints.discard(hint)

    async def _publish_again(self) -> None:
        cluster = self._require_open()
        for publication in list(self._published.values()):
            lease = self._leases.get(publication.name)
            if lease is None:  # it is being published for the first time
                continue
            item = await self._store.get(_key(publication.name))
            if item is not None and cluster.is_own_name(_decode_record(item.value).process):
                continue
            try:
                await self._claim(publication)
            except DuplicateEntry:
                _log.warning("another process has the name %r now", publication.name)
                self._published.pop(publication.name, None)
                self._leases.pop(publication.name, None)
                publication.lost.set()

    async def _remove_dead(self) -> None:
        for item, record in await self._scan():
            if await self._is_alive(record):
                continue
            lease = await self._require_open().acquire(item.key, _OWNERSHIP_TTL)
            if isinstance(lease, Lease):
                with suppress(Conflict, Fenced):  # another process was quicker
                    await self._store.commit([Delete(item.key, version=item.version)], fence=lease, release=True)


_key: Final = partial(key_of, _PREFIX.rstrip("/"))
