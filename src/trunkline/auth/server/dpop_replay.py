"""Replay memory of DPoP proofs (RFC 9449, section 11.1), bounded so that no key can exhaust it for other keys.

The memory groups proofs by the whole second of their `iat`, until they are too old to be accepted anyway. Two limits
apply. Each key may use a number of proofs within the window; beyond it, that key alone is refused. All keys together
may have a number of remembered proofs; beyond it, the key with the most proofs drops its oldest second and accepts no
proof from that second or before, so a dropped proof cannot be replayed. Its newer proofs, and those of all other keys,
are still accepted.

The cost is amortised O(1) per proof: there are few seconds, proofs expire by whole seconds, and keys are indexed by the
magnitude of their number of proofs. The number of keys is not limited here, because only tokens that an issuer bound to
a key reach this code.
"""

from hashlib import sha256
from typing import Final

__all__ = ["ReplayMemory", "Replayed", "TooManyProofs"]

MAX_PER_KEY: Final = 100_000  # in a window of five and a half minutes: 300 requests a second
MAX_TOTAL: Final = 400_000  # about 45 MB
_DIGEST: Final = 16  # bytes: ids of different proofs do not collide by chance


class Replayed(Exception):
    """The proof was used before."""


class TooManyProofs(Exception):
    """The key has used too many proofs within the window. `wait` is in whole seconds."""

    def __init__(self, limit: int, wait: int) -> None:
        super().__init__(f"its key has used {limit} proofs in a short time; try again in {wait} s")
        self.wait = wait


class _KeyProofs:
    """Remembered proofs of one key."""

    __slots__ = ("count", "floor", "seconds")

    def __init__(self) -> None:
        self.seconds: dict[int, set[bytes]] = {}
        self.count = 0  # of proofs in all seconds
        self.floor: int | None = None  # proofs of this second or before are refused


class ReplayMemory:
    """Accepts each proof of a key once."""

    def __init__(self, window: int, *, max_per_key: int = MAX_PER_KEY, max_total: int = MAX_TOTAL) -> None:
        """`window` is the number of seconds after its creation for which a proof is accepted."""
        self._window = window
        self._max_per_key = max_per_key
        self._max_total = max_total
        self._keys: dict[str, _KeyProofs] = {}
        self._by_second: dict[int, set[str]] = {}  # keys with proofs of a second, now or earlier
        self._by_size: dict[int, dict[str, None]] = {}  # keys by the bit length of their number of proofs
        self._count = 0
        self._expired_through = 0  # the last second that has expired

    def __len__(self) -> int:
        return self._count

    def use(self, key: str, jti: str, made: float, now: float) -> None:
        """Record a proof by key, `jti` and creation time. Raises `Replayed` if it was used or may have been, and
        `TooManyProofs`."""
        self._expire(int(now) - self._window - 1)
        second, digest = int(made), sha256(jti.encode()).digest()[:_DIGEST]
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = _KeyProofs()
        if digest in known.seconds.get(second, ()):
            raise Replayed("it was used before")
        if known.floor is not None and second <= known.floor:
            raise Replayed("it may have been used before; make another one")
        if known.count >= self._max_per_key:
            raise TooManyProofs(self._max_per_key, min(known.seconds) + self._window + 1 - int(now))
        known.seconds.setdefault(second, set()).add(digest)
        self._by_second.setdefault(second, set()).add(key)
        self._resize(key, known, known.count + 1)
        if self._count > self._max_total:
            self._forget_oldest_of_largest()

    def _resize(self, key: str, known: _KeyProofs, count: int) -> None:
        before, after = known.count.bit_length(), count.bit_length()
        self._count += count - known.count
        known.count = count
        if before == after:
            return
        if before:
            same = self._by_size[before]
            del same[key]
            if not same:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[key] = None

    def _expire(self, last: int) -> None:
        """Drop all seconds up to the last expired one; at most once per second."""
        if last == self._expired_through:
            return
        self._expired_through = last
        for second in [one for one in self._by_second if one <= last]:
            for key in self._by_second.pop(second):
                self._drop(key, second)

    def _drop(self, key: str, second: int) -> None:
        known = self._keys.get(key)
        if known is None:
            return
        self._resize(key, known, known.count - len(known.seconds.pop(second, ())))
        if not known.seconds and (known.floor is None or known.floor <= self._expired_through):
            del self._keys[key]

    def _forget_oldest_of_largest(self) -> None:
        """Make room at the expense of the key with the most proofs, within a factor of two."""
        largest = next(iter(self._by_size[max(self._by_size)]))
        known = self._keys[largest]
        known.floor = min(known.seconds)
        self._drop(largest, known.floor)
