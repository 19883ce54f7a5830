"""Stores by their location on a command line: the path of a SQLite file, a Redis URL, or `env:NAME` for the variable
that holds one, which keeps a password off the command line."""

import os
import re
from typing import TYPE_CHECKING, Final

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from trunkline.stores.store import Store

__all__ = ["DEFAULT_PREFIX", "is_redis_url", "make_store", "resolve_location"]

DEFAULT_PREFIX: Final = "trunkline:"
"""Prefix of the keys of a store on Redis."""

_REDIS_URL: Final = re.compile(r"(rediss?|unix|rediss?\+sentinel)://")


def resolve_location(text: str) -> str:
    """Return a location, from the environment if the text says so. Raises `ConfigError` if the variable is not set."""
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    found = os.environ.get(name, "")
    if not found:
        raise ConfigError(f"the environment variable {name!r} is not set, or is empty")
    return found


def is_redis_url(location: str) -> bool:
    """Return whether a location is on Redis. Raises `ConfigError` for a URL of another kind."""
    if _REDIS_URL.match(location):
        return True
    if "://" in location:
        scheme = location.partition("://")[0]
        raise ConfigError(f"no store has URLs that begin with {scheme}://; give a path, or a redis:// URL")
    return False


def make_store(text: str, prefix: str = DEFAULT_PREFIX) -> "Store":
    """Return the store at a location."""
    location = resolve_location(text)
    if is_redis_url(location):
        from trunkline.stores.redis.store import RedisStore

        return RedisStore(location, prefix=prefix)
    from trunkline.stores.sqlite.store import SqliteStore

    return SqliteStore(location)
