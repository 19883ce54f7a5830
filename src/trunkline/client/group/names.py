"""Names of the entries of a group: the prefix of the member, two underscores, and the name within the member. Pure.

Providers of language models accept names of letters, digits, `_` and `-`, up to 64 characters. A name that does not fit
is altered: other characters become `_`, the end is cut off, and `-` with eight hexadecimal digits of its SHA-256 digest
follows. A name that already ends like that is altered too, so an altered name is never equal to another name as it is.

Two members never share a name: prefixes are unique, contain no `__` and do not end in `_`, so the first `__` of a name
ends its prefix. Within a member, two names of which the digests begin alike are possible in theory; the group then
leaves the second one out.
"""

import re
from hashlib import sha256
from typing import Final

__all__ = ["MAX_NAME", "alter_name", "is_altered", "join_name", "join_uri", "make_prefix", "split_name", "split_uri"]

MAX_NAME: Final = 64
_MAX_PREFIX: Final = 24
_DIGITS: Final = 8
_VALID: Final = re.compile(r"[A-Za-z0-9_-]+")
_VALID_PREFIX: Final = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_ALTERED: Final = re.compile(rf".*-[0-9a-f]{{{_DIGITS}}}", re.DOTALL)


def make_prefix(member: str) -> str:
    """Return the prefix of a member: its name, altered if that is longer than 24 characters, has other characters than
    letters, digits, `-` and single `_`, or begins or ends with `_`."""
    if _VALID_PREFIX.fullmatch(member) and len(member) <= _MAX_PREFIX and not is_altered(member):
        return member
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", member).strip("-")
    return f"{cleaned[: _MAX_PREFIX - _DIGITS - 1]}-{_digest(member)}"


def alter_name(name: str, limit: int = MAX_NAME) -> str:
    """Return a name that providers accept: the same, or an altered one of at most `limit` characters."""
    if _VALID.fullmatch(name) and len(name) <= limit and not is_altered(name):
        return name
    cleaned = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return f"{cleaned[: limit - _DIGITS - 1]}-{_digest(name)}"


def is_altered(name: str) -> bool:
    """Return whether a name ends like an altered one, so that only the list of names tells its original."""
    return _ALTERED.fullmatch(name) is not None


def join_name(prefix: str, name: str) -> str:
    """Return the name of a tool or prompt in the group."""
    return f"{prefix}__{alter_name(name, MAX_NAME - len(prefix) - 2)}"


def split_name(name: str) -> tuple[str, str]:
    """Return the prefix and the rest of a name; an empty prefix if it has none."""
    prefix, separator, rest = name.partition("__")
    return (prefix, rest) if separator else ("", name)


def join_uri(prefix: str, uri: str) -> str:
    """Return the URI of a resource in the group, with the prefix as a part of its scheme: `weather+file:///today`.
    Schemes have no underscores and do not distinguish cases."""
    return f"{prefix.replace('_', '.').lower()}+{uri}"


def split_uri(uri: str) -> tuple[str, str]:
    """Return the prefix and the rest of a URI; an empty prefix if it has none."""
    prefix, separator, rest = uri.partition("+")
    return (prefix.lower().replace(".", "_"), rest) if separator else ("", uri)


def _digest(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
