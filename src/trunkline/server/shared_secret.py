"""Secrets that all processes on one store share; the first process that needs one creates it."""

import os
from typing import Final

from trunkline.stores.shared_values import get_or_create
from trunkline.stores.store import Store, key_of

__all__ = ["get_shared_secret"]

_SECRET_BYTES: Final = 32  # bytes


async def get_shared_secret(store: Store, server: str, purpose: str) -> bytes:
    """Return the secret of a server for a purpose. Raises `StoreError`."""
    return await get_or_create(store, key_of("server", server, f"{purpose}-secret"), os.urandom(_SECRET_BYTES))
