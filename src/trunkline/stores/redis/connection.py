"""One connection to a Redis server: commands are written in batches, replies arrive in order.

The official Python client is not used: it waits for each reply separately, costs twice as much per command, and cannot
send from synchronous code. Its parser, hiredis, is used.
"""

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline.errors import ConfigError, NotExecuted, StoreError, StoreUnavailable, StoreUnusable
from trunkline.stores.redis.url import RedisAddress, RedisEndpoint

if TYPE_CHECKING:
    import hiredis

__all__ = [
    "NO_REPLY",
    "PendingCommand",
    "RedisConnection",
    "ReplyError",
    "connect",
    "encode_command",
    "execute",
    "reply_parser",
]

NO_REPLY: Final = object()
_INCOMPLETE: Final = object()
_PUSH_KINDS: Final = {b"message", b"pmessage"}
_ACCESS_ERRORS: Final = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH", "ERR ACL", "ERR invalid DB", "ERR DB index")
_ADVICE: Final = {
    "OOM": "raise its maxmemory, or delete other data",
    "MISCONF": "it cannot save to its disk: its log has the reason",
    "READONLY": "it is a replica: use the address of the master, or those of the sentinels",
    "NOREPLICAS": "fewer replicas than min-replicas-to-write are connected: restore them",
    "LOADING": "it is starting: wait until it has read its data",
}
_REFUSAL: Final = re.compile(rf"\b({'|'.join(_ADVICE)})\b")


class ReplyError(Exception):
    """An error reply of Redis."""


class _InvalidReply(Exception):
    """Bytes that are not a Redis reply."""


def reply_parser() -> "hiredis.Reader":
    """Return a new parser of replies. Raises `ConfigError` if hiredis, an optional dependency, is not installed."""
    try:
        import hiredis
    except ImportError as error:
        raise ConfigError("a store on Redis needs the package hiredis: pip install 'trunkline[redis]'") from error
    return hiredis.Reader(protocolError=_InvalidReply, replyError=ReplyError, notEnoughData=_INCOMPLETE)


class PendingCommand:
    """A command and the future of its reply, or of what `decode` makes of it."""

    __slots__ = ("batch", "deadline", "decode", "encoded", "future", "keys", "reply", "resent", "writes")

    def __init__(
        self,
        encoded: bytes,
        deadline: float,
        keys: Sequence[str] = (),
        *,
        writes: bool = False,
        decode: Callable[[Any], Any] | None = None,
    ) -> None:
        self.encoded = encoded
        self.decode = decode  # raises a `StoreError` for a refusal
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.deadline = deadline
        self.keys = keys  # keys that the command changes
        self.writes = writes  # replicas have to confirm it
        self.reply: Any = NO_REPLY  # received, and not confirmed yet
        self.batch = 0  # number of the loop iteration that submitted it
        self.resent = False  # sent before, but not executed

    def settle(self, outcome: Any) -> None:
        """Set the result or exception, which may be an error reply, unless the waiter was cancelled."""
        if self.future.done():
            return
        if self.decode is not None and not isinstance(outcome, Exception):
            try:
                outcome = self.decode(outcome)
            except StoreError as refused:
                outcome = refused
        if isinstance(outcome, Exception):
            self.future.set_exception(_error_from_reply(outcome) if isinstance(outcome, ReplyError) else outcome)
        else:
            self.future.set_result(outcome)


class RedisConnection(asyncio.Protocol):
    """A connection. `on_reply` receives each reply with its command, `on_push` receives published messages, and
    `on_lost` the end of the connection."""

    def __init__(
        self,
        on_reply: Callable[[PendingCommand, Any], None],
        on_push: Callable[[list[Any]], None] | None,
        on_lost: Callable[["RedisConnection"], None],
    ) -> None:
        self.pending: deque[PendingCommand] = deque()
        self.ended = asyncio.get_running_loop().create_future()
        self._on_reply = on_reply
        self._on_push = on_push
        self._on_lost = on_lost
        self._parser = reply_parser()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport and enable TCP keepalive."""
        self._transport = cast("asyncio.Transport", transport)
        bound: socket.socket | None = transport.get_extra_info("socket")
        if bound is not None and bound.family != getattr(socket, "AF_UNIX", None):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, commands: Sequence[PendingCommand]) -> None:
        """Send commands in one write."""
        self.pending.extend(commands)
        self._transport.write(b"".join([job.encoded for job in commands]))

    def data_received(self, data: bytes) -> None:
        """Dispatch complete replies."""
        self._parser.feed(data)
        try:
            while (reply := self._parser.gets()) is not _INCOMPLETE:
                self._dispatch(reply)
        except _InvalidReply:  # the peer is not a Redis server
            self.abort()

    def _dispatch(self, reply: Any) -> None:
        if self._on_push is not None and isinstance(reply, list) and reply[0] in _PUSH_KINDS:
            self._on_push(cast("list[Any]", reply))
        elif self.pending:
            self._on_reply(self.pending.popleft(), reply)
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        """Report the end of the connection."""
        if not self.ended.done():
            self.ended.set_result(None)
        self._on_lost(self)

    def abort(self) -> None:
        """Close the connection at once, without sending what is buffered."""
        self._transport.abort()


def encode_command(*words: str | bytes | int) -> bytes:
    """Encode a command for the wire."""
    texts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(texts) + b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


# --- connecting ------------------------------------------------------------------------------------


async def connect(
    address: RedisAddress,
    tls: ssl.SSLContext | None,
    timeout: float,
    factory: Callable[[], RedisConnection],
    *commands: bytes,
) -> RedisConnection:
    """Open an authenticated connection, to the master that the sentinels name if there are any, and execute the
    initial commands. Without any, execute PING: a gateway may accept connections while no server responds behind it."""
    each = timeout / (len(address.endpoints) + 1)  # an unresponsive sentinel leaves time for the others
    endpoint = await _find_master(address, tls, each) if address.service else address.endpoints[0]
    connection = await _open(endpoint, tls, factory)
    try:
        await execute(connection, *_login_commands(address), *(commands or (encode_command("PING"),)))
        if address.service:
            [role] = await execute(connection, encode_command("ROLE"))
            if role[0] != b"master":
                raise StoreUnavailable(f"{endpoint.host}:{endpoint.port} is not the master of {address.service} yet")
    except BaseException:
        connection.abort()
        raise
    return connection


def _login_commands(address: RedisAddress) -> list[bytes]:
    secret = [address.user, address.password] if address.user else [address.password]
    login = [encode_command("AUTH", *secret)] if address.password else []
    return [*login, *([encode_command("SELECT", address.db)] if address.db else [])]


async def execute(connection: RedisConnection, *packed: bytes) -> list[Any]:
    """Execute commands and return their replies. Raises their errors."""
    jobs = [PendingCommand(one, 0.0) for one in packed]
    connection.send(jobs)
    return await asyncio.gather(*(job.future for job in jobs))


def _error_from_reply(reply: ReplyError) -> NotExecuted | StoreUnusable:
    """Return the exception for an error reply."""
    message = str(reply)
    if message.startswith(("MOVED ", "ASK ", "CROSSSLOT", "CLUSTERDOWN")):
        return StoreUnusable("the store is on a Redis Cluster, which is not supported; one Redis is, or sentinels")
    if message.startswith(_ACCESS_ERRORS):
        return StoreUnusable(f"Redis denies access: {message}")
    found = _REFUSAL.search(message)
    advice = f"; {_ADVICE[found[0]]}" if found is not None else ""
    return NotExecuted(f"Redis refused the command: {message.rstrip(' .')}{advice}")


async def _find_master(address: RedisAddress, tls: ssl.SSLContext | None, timeout: float) -> RedisEndpoint:
    """Return the master's endpoint from the first sentinel that knows it."""
    failed: list[str] = []
    for endpoint in address.endpoints:
        try:
            async with asyncio.timeout(timeout):
                found = await _ask_sentinel(endpoint, tls, address.service)
        except (OSError, StoreUnavailable) as error:
            failed.append(str(error) or f"{endpoint.host}:{endpoint.port} does not answer")
            continue
        if found is not None:
            return RedisEndpoint(found[0].decode(), int(found[1]))
        failed.append(f"{endpoint.host}:{endpoint.port} does not know {address.service}")
    raise StoreUnavailable(f"no sentinel names a master: {'; '.join(failed)}")


async def _ask_sentinel(endpoint: RedisEndpoint, tls: ssl.SSLContext | None, service: str) -> list[bytes] | None:
    connection = await _open(endpoint, tls, lambda: RedisConnection(PendingCommand.settle, None, _fail_pending))
    try:
        [found] = await execute(connection, encode_command("SENTINEL", "get-master-addr-by-name", service))
        return found
    finally:
        connection.abort()


def _fail_pending(connection: RedisConnection) -> None:
    while connection.pending:
        connection.pending.popleft().settle(StoreUnavailable("the connection was closed"))


async def _open(
    endpoint: RedisEndpoint, tls: ssl.SSLContext | None, factory: Callable[[], RedisConnection]
) -> RedisConnection:
    loop = asyncio.get_running_loop()
    if endpoint.path:
        _, connection = await loop.create_unix_connection(factory, endpoint.path)
    else:
        _, connection = await loop.create_connection(factory, endpoint.host, endpoint.port, ssl=tls)
    return connection
