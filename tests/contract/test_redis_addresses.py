"""Locations of a store on Redis: addresses, secrets, TLS, sentinels."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.contract.connections import client_tls, server_tls, until
from tests.contract.valkey import sentinel, started, valkey

from trunkline.errors import ConfigError, StoreUnavailable, StoreUnusable
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.redis.url import RedisAddress, RedisEndpoint, parse_url
from trunkline.stores.store import Put

KEY = "session/1/state"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("redis://", RedisAddress((RedisEndpoint("localhost", 6379),))),
        ("redis://example.com", RedisAddress((RedisEndpoint("example.com", 6379),))),
        ("redis://:se%40cret@[::1]:7000/3", RedisAddress((RedisEndpoint("::1", 7000),), password="se@cret", db=3)),
        ("rediss://me:secret@h:1", RedisAddress((RedisEndpoint("h", 1),), tls=True, user="me", password="secret")),
        ("unix:///run/redis.sock?db=2", RedisAddress((RedisEndpoint(path="/run/redis.sock"),), db=2)),
        ("unix://me:secret@/run/a%20b", RedisAddress((RedisEndpoint(path="/run/a b"),), user="me", password="secret")),
        ("redis+sentinel://a,b:7/main", RedisAddress((RedisEndpoint("a", 26379), RedisEndpoint("b", 7)), "main")),
        (
            "rediss+sentinel://:x@a/main/4",
            RedisAddress((RedisEndpoint("a", 26379),), "main", tls=True, password="x", db=4),
        ),
    ],
)
def test_url_is_parsed(text: str, address: RedisAddress) -> None:
    assert parse_url(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "http://h", "redis:h", "redis://h/x", "redis://a,b", "redis+sentinel://a", "redis://h:port", "unix:///s?db=x"],
)
def test_invalid_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        RedisStore(text)


def test_invalid_settings_are_refused_without_secrets() -> None:
    for settings in ({"patience": 0}, {"patience": 60}, {"prefix": "a{b"}, {"prefix": "ä"}, {"tls": client_tls()}):
        with pytest.raises(ConfigError):
            RedisStore("redis://h", **settings)  # type: ignore[arg-type]
    assert str(parse_url("redis://me:secret@h/1")) == "h:6379"
    assert str(parse_url("redis+sentinel://:secret@a,b/main")) == "main at a:26379,b:26379"


async def use(store: RedisStore) -> None:
    """Write to a store, and close it."""
    await store.open()
    await store.commit([Put(KEY, b"x")])
    assert [item.value for item in await store.scan("session/")] == [b"x"]
    await store.close()


async def test_credentials_and_database_are_used(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    server = started(tmp_path, requirepass="secret", unixsocket=str(socket))
    host = f"127.0.0.1:{server.port}"
    await use(RedisStore(f"redis://:secret@{host}/1"))
    await use(RedisStore(f"redis://default:secret@{host}/2"))
    await use(RedisStore(f"unix://:secret@{quote(str(socket))}?db=3"))
    with server.client(password="secret") as client:
        assert list(client.info("keyspace")) == ["db1", "db2", "db3"]
    for wrong in (f"redis://{host}", f"redis://:wrong@{host}", f"redis://:secret@{host}/9999"):
        with pytest.raises(StoreUnusable, match="denies access"):
            await RedisStore(wrong).open()
    server.kill()


async def test_cluster_is_refused(tmp_path: Path) -> None:
    server = started(tmp_path, **{"cluster-enabled": "yes"})
    with pytest.raises(StoreUnusable, match="Redis Cluster"):
        await RedisStore(server.url).open()
    server.kill()


@asynccontextmanager
async def encrypted(port: int) -> AsyncIterator[int]:
    """A TLS port in front of another one."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)

    async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=server_tls()) as listening:
        yield listening.sockets[0].getsockname()[1]


async def test_tls_requires_a_trusted_certificate(tmp_path: Path) -> None:
    async with encrypted(valkey().port) as port:
        where, prefix = f"rediss://localhost:{port}", f"{quote(str(tmp_path))}:"
        await use(RedisStore(where, prefix=prefix, tls=client_tls()))
        with pytest.raises(StoreUnavailable, match="certificate"):
            await RedisStore(where, prefix=prefix, patience=3.0).open()


async def test_sentinels_name_the_current_master(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "sentinel")]
    one, two = started(folders[0]), started(folders[1])
    watcher = sentinel(folders[2], "main", one.port)
    store = RedisStore(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{watcher.port}/main")
    await store.open()
    await store.commit([Put(KEY, b"one")])
    with watcher.client() as client, one.client() as old:
        client.execute_command("SENTINEL", "REMOVE", "main")
        client.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", two.port, 1)
        old.execute_command("REPLICAOF", "127.0.0.1", two.port)
    with pytest.raises(StoreUnavailable):
        await store.commit([Put(KEY, b"refused")])
    await until(lambda: store._client is not None and store._client.connected)
    await store.commit([Put(KEY, b"two")])
    with two.client() as client:
        assert client.hget("trunkline:{session/1}:v", "/state") == b"two"
    await store.close()
    for server in (watcher, one, two):
        server.kill()


async def test_server_that_is_not_master_yet_is_not_used(tmp_path: Path) -> None:
    replica = started(tmp_path / "replica", replicaof=f"127.0.0.1 {valkey().port}")
    watcher = sentinel(tmp_path / "sentinel", "main", replica.port)
    with pytest.raises(StoreUnavailable, match=f"{replica.port} is not the master of main yet"):
        await RedisStore(f"redis+sentinel://127.0.0.1:{watcher.port}/main", patience=3.0).open()
    for server in (watcher, replica):
        server.kill()


async def test_silent_sentinel_leaves_time_for_the_next(tmp_path: Path) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        writer.close()

    watcher = sentinel(tmp_path, "main", valkey().port)
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        where = f"redis+sentinel://127.0.0.1:{port},127.0.0.1:{watcher.port}/main"
        await use(RedisStore(where, prefix=f"{quote(str(tmp_path))}:", patience=6.0))
    watcher.kill()


async def test_unknown_service_is_reported(tmp_path: Path) -> None:
    watcher = sentinel(tmp_path, "main", valkey().port)
    with pytest.raises(StoreUnavailable, match="does not know other"):
        await RedisStore(f"redis+sentinel://127.0.0.1:{watcher.port}/other", patience=3.0).open()
    with pytest.raises(StoreUnavailable, match="no sentinel names a master"):
        await RedisStore("redis+sentinel://127.0.0.1:1/main", patience=3.0).open()
    watcher.kill()
