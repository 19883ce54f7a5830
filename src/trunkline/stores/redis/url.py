"""Redis URLs.

    redis://[user:password@]host[:6379][/0]      rediss:// for TLS
    unix://[user:password@]/path[?db=0]
    redis+sentinel://[user:password@]host[:26379],host[:26379].../service[/0]      rediss+sentinel:// for TLS

The sentinels are queried for each connection, so a new connection goes to the current master.
"""

import re
from typing import Final
from urllib.parse import parse_qs, unquote

from msgspec import Struct

from trunkline.errors import ConfigError

__all__ = ["RedisAddress", "RedisEndpoint", "parse_url"]

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_ADDRESS: Final = re.compile(
    r"(?P<scheme>rediss?|unix|rediss?\+sentinel)://(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?"
    r"(?P<hosts>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?"
)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?")


class RedisEndpoint(Struct, frozen=True):
    """A host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""


class RedisAddress(Struct, frozen=True):
    """A parsed Redis URL."""

    endpoints: tuple[RedisEndpoint, ...]  # of the Redis server, or of its sentinels
    service: str = ""  # service name of the sentinels
    tls: bool = False
    user: str = ""
    password: str = ""
    db: int = 0

    def __str__(self) -> str:
        """Return the address without credentials."""
        where = ",".join(endpoint.path or f"{endpoint.host}:{endpoint.port}" for endpoint in self.endpoints)
        return f"{self.service} at {where}" if self.service else where


def parse_url(url: str) -> RedisAddress:
    """Parse a Redis URL. Raises `ConfigError`."""
    found = _ADDRESS.fullmatch(url)
    if found is None:
        raise ConfigError(
            "a Redis URL starts with redis://, rediss://, unix:// or redis+sentinel://, followed by a host or path"
        )
    scheme, path = found["scheme"], unquote(found["path"])
    query = parse_qs(found["query"] or "")
    user, password = unquote(found["user"] or ""), unquote(found["password"] or "")
    if scheme == "unix":
        return RedisAddress(
            (RedisEndpoint(path=path),), user=user, password=password, db=_db((query.get("db") or ["0"])[0])
        )
    service, db = "", path.strip("/")
    if scheme.endswith("sentinel"):
        service, _, db = db.partition("/")
        if not service:
            raise ConfigError("a sentinel URL needs a service name: redis+sentinel://host:26379/service")
    port = _SENTINEL_PORT if service else _PORT
    doors = tuple(_parse_endpoint(host, port) for host in (found["hosts"] or "localhost").split(","))
    if len(doors) > 1 and not service:
        raise ConfigError("a Redis URL has one host; use redis+sentinel:// for several sentinels")
    return RedisAddress(doors, service, scheme.startswith("rediss"), user, password, _db(db or "0"))


def _parse_endpoint(text: str, port: int) -> RedisEndpoint:
    found = _HOST.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is not a host")
    return RedisEndpoint(found[1].strip("[]"), int(found[2] or port))


def _db(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text):
        raise ConfigError(f"{text!r} is not a database number")
    return int(text)
