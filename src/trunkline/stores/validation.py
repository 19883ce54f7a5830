"""Rules that all stores share, as pure functions: valid arguments and lease decisions.

The Redis store decides in a Lua script, which implements the same rules.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, cast

from trunkline.config import KIB, MIB
from trunkline.errors import Fenced, MisuseError
from trunkline.stores.store import Held, Lease, Put, Write, home

__all__ = [
    "AFTER_ALL",
    "MAX_KEY_CHARACTERS",
    "MAX_PAGE_ITEMS",
    "MAX_VALUE_BYTES",
    "MAX_WRITES",
    "check_key",
    "check_lease",
    "check_lease_held",
    "check_page",
    "check_writes",
    "decide_lease",
]

MAX_KEY_CHARACTERS: Final = KIB // 2
MAX_VALUE_BYTES: Final = 64 * MIB  # larger than any message; larger values belong in files
MAX_WRITES: Final = 1000  # per commit: a commit blocks all other writers
MAX_PAGE_ITEMS: Final = 1000
_MAX_EXACT_NUMBER: Final = 2**53  # doubles represent smaller integers exactly

AFTER_ALL: Final = "\U0010ffff"  # no key contains it, so it sorts after all keys with a prefix
_FORBIDDEN_CHARACTERS: Final = rf"{{}}\x00-\x1f\x7f\ud800-\udfff{AFTER_ALL}"
_PART: Final = rf"[^/{_FORBIDDEN_CHARACTERS}]+"
_KEY: Final = re.compile(rf"{_PART}(?:/{_PART})+")
_TEXT: Final = re.compile(rf"[^{_FORBIDDEN_CHARACTERS}]*")


# --- arguments -------------------------------------------------------------------------------------


def check_key(key: str) -> None:
    """Raise `MisuseError` for an invalid key."""
    if len(key) > MAX_KEY_CHARACTERS or not _KEY.fullmatch(key):
        raise MisuseError(
            f"{key[:80]!r} is not a valid key: it needs two or more non-empty parts separated by '/', no braces "
            f"and no control characters, and at most {MAX_KEY_CHARACTERS} characters; key_of() builds one"
        )


def check_writes(writes: Sequence[Write], lease: str | None) -> None:
    """Raise `MisuseError` for writes that cannot be one commit, or not one with a lease of that name."""
    if not 1 <= len(writes) <= MAX_WRITES:
        raise MisuseError(f"a commit has 1 to {MAX_WRITES} writes, not {len(writes)}")
    if len(writes) > 1 or lease is not None:
        _check_one_home(writes, lease)
    for write in writes:
        check_key(write.key)
        if write.version is not None and not 0 <= write.version < _MAX_EXACT_NUMBER:
            raise MisuseError(f"{write.version!r} is not a valid version")
        if isinstance(write, Put):
            _check_value(write)


def _check_one_home(writes: Sequence[Write], lease: str | None) -> None:
    keys = [write.key for write in writes]
    first = home(keys[0] if lease is None else lease)
    inside = f"{first}/"
    for key in keys:
        if not key.startswith(inside) and key != first:
            homes = ", ".join(sorted({first, home(key)}))
            raise MisuseError(f"a commit and its lease belong to one home: {homes} are several")
    if len(keys) > 1 and len(set(keys)) < len(keys):
        raise MisuseError("a commit writes each key once")


def _check_value(write: Put) -> None:
    if not isinstance(cast("Any", write.value), bytes):
        raise MisuseError(f"the value of {write.key!r} must be bytes, not {type(write.value).__name__}")
    if len(write.value) > MAX_VALUE_BYTES:
        raise MisuseError(f"the value of {write.key!r} is larger than {MAX_VALUE_BYTES} bytes")
    if write.expires is not None and not -_MAX_EXACT_NUMBER < write.expires < _MAX_EXACT_NUMBER:
        raise MisuseError(f"{write.expires!r} is not a time; use None for no expiry")


def check_page(prefix: str, after: str, limit: int) -> None:
    """Raise `MisuseError` for invalid arguments of a scan."""
    if not (_TEXT.fullmatch(prefix) and _TEXT.fullmatch(after)):
        raise MisuseError(f"no key starts with {prefix[:80]!r} or is {after[:80]!r}")
    if not 1 <= limit <= MAX_PAGE_ITEMS:
        raise MisuseError(f"a page has 1 to {MAX_PAGE_ITEMS} items, not {limit}")


def check_lease(name: str, holder: str, ttl: float, writes: Sequence[Write] = ()) -> None:
    """Raise `MisuseError` for an invalid lease, or for writes that cannot be committed with it."""
    check_key(name)
    if not (holder and _TEXT.fullmatch(holder)):
        raise MisuseError(
            f"{holder[:80]!r} cannot hold a lease: its name has braces or control characters, or is empty"
        )
    if not 0 < ttl < _MAX_EXACT_NUMBER:
        raise MisuseError(f"a lease needs some time and has an end, unlike {ttl!r} s")
    if writes:
        check_writes(writes, name)


# --- decisions -------------------------------------------------------------------------------------


def decide_lease(current: Lease | None, requested: Lease, now: float, over: int | None = None) -> Lease | Held:
    """Return the requested lease if it can be granted: the current one is absent, expired, of the same holder, or
    has the token `over`. Otherwise return `Held`."""
    if current is None or current.expires <= now or current.holder == requested.holder or current.token == over:
        return requested
    return Held(current.holder, current.expires, current.token)


def check_lease_held(current: Lease | None, lease: Lease, now: float) -> None:
    """Raise `Fenced` if a lease is lost."""
    if current is None or current.token != lease.token or current.expires <= now:
        raise Fenced(lease.name, lease.token)
