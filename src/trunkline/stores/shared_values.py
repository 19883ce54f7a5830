"""Values that all processes on one store agree on. The first process that needs one creates it with a compare-and-set.

One of them is the identity of the store. A store that has lost its data has lost its identity, and possibly its record
of evictions. So before a process trusts a lease that it had to acquire again, it compares the identity with the one
under which it joined.
"""

from secrets import token_bytes, token_hex
from typing import Final

from trunkline.errors import Conflict, StoreUnusable
from trunkline.stores.identity import StoreIdentity
from trunkline.stores.store import ABSENT, Put, Store
from trunkline.wire import codec

__all__ = ["IDENTITY", "get_or_create", "load_identity", "read_identity"]

IDENTITY: Final = "store/identity"
_SECRET_BYTES: Final = 32

_decode_record: Final = codec.json_decoder(StoreIdentity)


async def get_or_create(store: Store, key: str, value: bytes) -> bytes:
    """Return the value under a key; if there is none, put this one there. Raises `StoreError`."""
    while (item := await store.get(key)) is None:
        try:
            await store.commit([Put(key, value, version=ABSENT)])
        except Conflict:
            continue  # another process was faster
        return value
    return item.value


async def read_identity(store: Store) -> StoreIdentity | None:
    """Return the identity of a store, or None if it has none. Raises `StoreError`."""
    item = await store.get(IDENTITY)
    return None if item is None else _decode_identity(item.value)


async def load_identity(store: Store, now: float) -> StoreIdentity:
    """Return the identity of a store; create it if there is none. `now` is the time on the store's clock. Raises
    `StoreError`."""
    identity = StoreIdentity(token_hex(8), token_bytes(_SECRET_BYTES), now)
    return _decode_identity(await get_or_create(store, IDENTITY, codec.to_json(identity)))


def _decode_identity(value: bytes) -> StoreIdentity:
    try:
        return _decode_record(value)
    except codec.DecodeError as error:
        raise StoreUnusable(
            f"the record {IDENTITY!r} of the store cannot be read: {error}; stop all processes on it and "
            "delete the record"
        ) from error
