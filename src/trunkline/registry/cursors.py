"""Cursors: positions in a list that only the server who gave them can read.

A position is sealed with a keyed hash, which also hides it: the tag is a hash of position and list, and what is
added to the position is a hash of the tag. So a cursor tells nothing, cannot be altered, and fits one list only.
Where cursors expire, the moment at which one was given is sealed along.
"""

import os
from typing import Final

from trunkline.errors import CursorExpired, InvalidCursor

__all__ = ["Cursors"]

_SIZE: Final = 8  # bytes of position, tag and moment: 2**64 guesses for one forged cursor
_LONGEST: Final = _SIZE + 64  # bytes of a cursor: more than a hash has cannot be hidden by one
_PER_SECOND: Final = 1000  # moments


class Cursors:
    """Gives cursors and reads them back, for `lifetime` seconds if they expire. Those who share a key read each
    other's."""

    def __init__(self, key: bytes | None = None, lifetime: float | None = None) -> None:
        self._key = key or os.urandom(32)
        self.lifetime = lifetime

    def use_key(self, key: bytes) -> None:
        """From now on gives and reads cursors with a key that others have, too."""
        self._key = key

    def seal(self, kind: str, position: int, now: float = 0.0, owner: str = "") -> str:
        """A cursor for a position in the list of that kind; in one that not everybody sees alike, of who sees it."""
        return self.seal_name(kind, position.to_bytes(_SIZE, "big"), now, owner)

    def seal_name(self, kind: str, name: bytes, now: float = 0.0, owner: str = "") -> str:
        """A cursor for what comes after something, in a list whose positions have names, of 50 bytes at most."""
        plain = name if self.lifetime is None else int(now * _PER_SECOND).to_bytes(_SIZE, "big") + name
        return self._sealed(kind, plain, owner)

    def _sealed(self, kind: str, plain: bytes, owner: str) -> str:
        shape = bytes([self.lifetime is not None, len(plain)])
        tag = self._hash(kind.encode(), shape + plain + owner.encode(), _SIZE)
        import base64  # most servers have one page

        return base64.urlsafe_b64encode(tag + _xor(plain, self._hash(b"hide", tag, len(plain)))).decode().rstrip("=")

    def open(self, kind: str, cursor: str, now: float = 0.0, owner: str = "") -> int:
        """The position in a cursor. Raises `InvalidCursor` for anything that `seal` did not give for the same, and
        `CursorExpired` for what it gave too long ago."""
        return int.from_bytes(self.open_name(kind, cursor, now, owner), "big")

    def open_name(self, kind: str, cursor: str, now: float = 0.0, owner: str = "") -> bytes:
        """The name in a cursor. Raises as `open` does."""
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
        # The text itself: base64 has several spellings.
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
