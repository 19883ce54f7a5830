"""Secrets that all processes of a server know, because they share its store. The first who needs one makes it."""

import os
from typing import Final

from trunkline.errors import Conflict
from trunkline.stores.store import ABSENT, Put, Store, key_of

__all__ = ["common_secret"]

_SIZE: Final = 32  # bytes


async def common_secret(store: Store, server: str, purpose: str) -> bytes:
    """The secret of a server for a purpose. Raises `StoreError`."""
    key = key_of("server", server, f"{purpose}-secret")
    while (item := await store.get(key)) is None:
        try:
            made = os.urandom(_SIZE)
            await store.commit([Put(key, made, version=ABSENT)])
        except Conflict:
            continue  # another was faster
        return made
    return item.value
