"""Identity of a store: names the deployment that its processes form, and holds their shared secret.

All processes on one store agree on it (`shared_values.py`). Another store has another identity, even if it uses the
same prefix in another database of one Redis, or a new file in place of a deleted one. The bus is named after the
identity, and its frames are signed with a key derived from it.
"""

import hmac

from msgspec import Struct

__all__ = ["StoreIdentity"]


class StoreIdentity(Struct, frozen=True):
    """Identifies a deployment."""

    id: str  # public: part of the names of channels and folders
    secret: bytes  # uniformly random
    created: float  # by the store's clock

    def key(self, purpose: str) -> bytes:
        """Derive the key for one purpose: one block of HKDF-Expand (RFC 5869, 2.3). The extract step is not needed,
        since the secret is uniformly random."""
        return hmac.digest(self.secret, f"trunkline {purpose} {self.id}".encode() + b"\x01", "sha256")
