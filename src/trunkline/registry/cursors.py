"""Cursors: positions in a list that only the server who gave them can read.

A position is sealed with a keyed hash, which also hides it: the tag is a hash of position and list, and what is
added to the position is a hash of the tag. So a cursor tells nothing, cannot be altered, and fits one list only.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

from trunkline.errors import InvalidCursor

__all__ = ["Cursors"]

_SIZE: Final = 8  # bytes of position and of tag: 2**64 guesses for one forged cursor


class Cursors:
    """Gives cursors and reads them back. Those who share a key read each other's."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def seal(self, kind: str, position: int) -> str:
        """A cursor for a position in the list of that kind."""
        plain = position.to_bytes(_SIZE, "big")
        tag = self._hash(kind.encode(), plain)
        return base64.urlsafe_b64encode(tag + _xor(plain, self._hash(b"hide", tag))).decode().rstrip("=")

    def open(self, kind: str, cursor: str) -> int:
        """The position in a cursor; raises `InvalidCursor` for anything that `seal` did not give for that kind."""
        try:
            sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidCursor from None
        if len(sealed) != 2 * _SIZE:
            raise InvalidCursor
        tag, hidden = sealed[:_SIZE], sealed[_SIZE:]
        position = int.from_bytes(_xor(hidden, self._hash(b"hide", tag)), "big")
        if not hmac.compare_digest(cursor, self.seal(kind, position)):  # the text itself: base64 has several spellings
            raise InvalidCursor
        return position

    def _hash(self, purpose: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=_SIZE, key=self._key, person=purpose[:16].ljust(16, b"\0")).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
