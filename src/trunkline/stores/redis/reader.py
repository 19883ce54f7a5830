"""Reader of a store on Redis or Valkey. It sends only commands that read, so a replica will do."""

import re
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from trunkline.errors import StoreUnusable
from trunkline.stores.redis.client import RedisClient
from trunkline.stores.redis.connection import encode_command, reply_parser
from trunkline.stores.redis.store import SCHEMA
from trunkline.stores.redis.url import parse_url
from trunkline.stores.store import Item, Lease

__all__ = ["RedisReader"]

_PAGE: Final = 500  # homes
_VALUES: Final = 100  # values per command
_META: Final = re.compile(r"(\d+) ?(.*)")
_LEASE: Final = re.compile(r"(\d+) (\S+) (.*)", re.DOTALL)


class RedisReader:
    """Reads the homes of a prefix one after another; `script.lua` describes the layout. Implements `StoreReader`."""

    stop_first = False

    def __init__(self, url: str, *, prefix: str = "trunkline:", timeout: float = 20.0) -> None:
        reply_parser()  # fails early if hiredis is not installed
        self.schema = 0
        self.pending: list[str] = []  # there is only one schema so far
        self.now = 0.0
        self._address = parse_url(url)
        self._prefix = prefix
        tls = ssl.create_default_context() if self._address.tls else None
        self._client = RedisClient(self._address, tls, timeout)

    def __str__(self) -> str:
        return f"{self._address}, prefix {self._prefix!r}"

    async def _ask(self, *words: str | bytes | int) -> Any:
        return await self._client.submit(encode_command(*words))

    async def open(self) -> None:
        """Connect, and read the version of the schema. An unreachable store is reported at once: a person waits."""
        await self._client.open(retry=False)
        seconds, microseconds = await self._ask("TIME")
        self.now = int(seconds) + int(microseconds) / 1_000_000
        self.schema = int(await self._ask("GET", f"{self._prefix}{{homes}}:schema") or 0)
        if self.schema > SCHEMA:
            raise StoreUnusable(
                f"the store {self} was written by a newer Trunkline: its schema is {self.schema}, and this one knows "
                f"{SCHEMA}; use that version"
            )

    async def verify(self) -> list[str]:
        """Return the homes whose tables do not agree."""
        problems: list[str] = []
        async for home in self._homes():
            place = f"{self._prefix}{{{home}}}"
            versions = set(await self._ask("HKEYS", f"{place}:m"))
            for table, found in (
                ("values", await self._ask("HKEYS", f"{place}:v")),
                ("index", await self._ask("ZRANGE", f"{place}:i", 0, -1)),
            ):
                if set(found) != versions:
                    problems.append(f"the {table} of one home of kind {home.partition('/')[0]!r} do not match its keys")
        return problems

    async def items(self) -> AsyncIterator[Item]:
        """Return all items, home by home."""
        async for home in self._homes():
            place = f"{self._prefix}{{{home}}}"
            found: Sequence[bytes] = await self._ask("HGETALL", f"{place}:m")
            rests = sorted(zip(found[::2], found[1::2], strict=True))
            for start in range(0, len(rests), _VALUES):
                page = rests[start : start + _VALUES]
                values = await self._ask("HMGET", f"{place}:v", *(rest for rest, _ in page))
                for (rest, meta), value in zip(page, values, strict=True):
                    if value is not None and (read := _META.fullmatch(meta.decode())) is not None:
                        expires = float(read[2]) if read[2] else None
                        yield Item(home + rest.decode(), value, int(read[1]), expires)

    async def leases(self) -> AsyncIterator[Lease]:
        """Return all leases, home by home."""
        async for home in self._homes():
            found: Sequence[bytes] = await self._ask("HGETALL", f"{self._prefix}{{{home}}}:l")
            for rest, text in zip(found[::2], found[1::2], strict=True):
                if (read := _LEASE.fullmatch(text.decode())) is not None:
                    yield Lease(home + rest.decode(), read[3], int(read[1]), float(read[2]))

    async def _homes(self) -> AsyncIterator[str]:
        start = "-"
        while page := await self._ask("ZRANGEBYLEX", f"{self._prefix}{{homes}}:all", start, "+", "LIMIT", 0, _PAGE):
            for entry in page:
                if not entry.endswith(b"/"):
                    yield entry.decode()
            start = b"(" + page[-1]

    async def size(self) -> None:
        """Return None: Redis does not know how much of its memory belongs to a prefix."""

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()
