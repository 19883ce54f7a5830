"""The identity of a store: which deployment its processes form, and the secret that they share.

Processes on one store agree on it (`shared.py`). Processes on another store have another identity, though they use the
same prefix in another database of the same Redis, or a new file in the place of a deleted one. The bus is named by the
identity, and its frames are signed with a key that is derived from it.
"""

import hmac

from msgspec import Struct

__all__ = ["StoreIdentity"]


class StoreIdentity(Struct, frozen=True):
    """What tells one deployment from another."""

    id: str  # public: it is part of the names of channels and folders
    secret: bytes  # uniformly random
    created: float  # on the store's clock

    def key(self, purpose: str) -> bytes:
        """Derive the key for one purpose: one block of HKDF-Expand (RFC 5869, 2.3). The extract step is not needed,
        since the secret is uniformly random."""
        return hmac.digest(self.secret, f"trunkline {purpose} {self.id}".encode() + b"\x01", "sha256")
