"""Pagination cursors: encrypted positions in a list that only the issuing server can decode.

A keyed hash authenticates and hides the position: the tag is a hash of position and list, and the position is XORed
with a hash of the tag. So a cursor is opaque, cannot be altered, and is valid for one list only. If cursors expire, the
time of issue is included.
"""

import os
from typing import Final

from trunkline.errors import CursorExpired, InvalidCursor

__all__ = ["Cursors"]

_SIZE: Final = 8  # bytes of position, tag and time: 2**64 guesses for one forged cursor
_LONGEST: Final = _SIZE + 64  # bytes of a cursor: a hash can hide only as many bytes as it has
_PER_SECOND: Final = 1000  # resolution of the time of issue


class Cursors:
    """Encodes and decodes cursors, which expire after `lifetime` seconds unless it is None. Processes with the same key
    decode each other's cursors."""

    def __init__(self, key: bytes | None = None, lifetime: float | None = None) -> None:
        self._key = key or os.urandom(32)
        self.lifetime = lifetime

    def use_key(self, key: bytes) -> None:
        """Use a key that other processes share."""
        self._key = key

    def seal(self, kind: str, position: int, now: float = 0.0, owner: str = "") -> str:
        """Return a cursor for a position in a list; `owner` identifies the viewer of a list that differs between
        viewers."""
        return self.seal_name(kind, position.to_bytes(_SIZE, "big"), now, owner)

    def seal_name(self, kind: str, name: bytes, now: float = 0.0, owner: str = "") -> str:
        """Return a cursor for the position after a name of at most 50 bytes."""
        plain = name if self.lifetime is None else int(now * _PER_SECOND).to_bytes(_SIZE, "big") + name
        return self._sealed(kind, plain, owner)

    def _sealed(self, kind: str, plain: bytes, owner: str) -> str:
        shape = bytes([self.lifetime is not None, len(plain)])
        tag = self._hash(kind.encode(), shape + plain + owner.encode(), _SIZE)
        import base64  # imported on use: most servers have one page

        return base64.urlsafe_b64encode(tag + _xor(plain, self._hash(b"hide", tag, len(plain)))).decode().rstrip("=")

    def open(self, kind: str, cursor: str, now: float = 0.0, owner: str = "") -> int:
        """Return the position in a cursor. Raise `InvalidCursor` if `seal` did not issue it for the same list and
        owner, and `CursorExpired` if it is too old."""
        return int.from_bytes(self.open_name(kind, cursor, now, owner), "big")

    def open_name(self, kind: str, cursor: str, now: float = 0.0, owner: str = "") -> bytes:
        """Return the name in a cursor. Raise as `open` does."""
        import base64
        import binascii
        import hmac

        try:
            sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidCursor from None
        if not _SIZE < len(sealed) <= _LONGEST:
            raise InvalidCursor
        tag, hidden = sealed[:_SIZE], sealed[_SIZE:]
        plain = _xor(hidden, self._hash(b"hide", tag, len(hidden)))
        # Compare the text, since base64 has several encodings of the same bytes.
        if not hmac.compare_digest(cursor, self._sealed(kind, plain, owner)):
            raise InvalidCursor
        if self.lifetime is None:
            return plain
        if now - int.from_bytes(plain[:_SIZE], "big") / _PER_SECOND > self.lifetime:
            raise CursorExpired(self.lifetime)
        return plain[_SIZE:]

    def _hash(self, purpose: bytes, data: bytes, size: int) -> bytes:
        import hashlib

        return hashlib.blake2b(data, digest_size=size, key=self._key, person=purpose[:16].ljust(16, b"\0")).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
