"""One connection to a Redis: commands go out in one piece, replies come in their order.

Redis' own client for Python is not used, since it waits for each reply by itself. It costs twice as much for each, and
could not send from a place that does not wait; its parser, hiredis, is used.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline.errors import ConfigError, StoreUnavailable, StoreUnusable
from trunkline.stores.redis.url import Address, Door

if TYPE_CHECKING:
    import hiredis

__all__ = ["Job", "Link", "ReplyError", "ask", "command", "connect", "refusal", "reply_parser"]

_NOT_YET: Final = object()
_ASIDE: Final = {b"message", b"pmessage"}
_NOT_ALLOWED: Final = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH", "ERR ACL", "ERR invalid DB", "ERR DB index")


class ReplyError(Exception):
    """An error reply of Redis."""


class _InvalidReply(Exception):
    """Bytes that are no reply of Redis."""


def reply_parser() -> "hiredis.Reader":
    """Return a new parser of replies. Raises `ConfigError` if hiredis, an optional dependency, is not installed."""
    try:
        import hiredis
    except ImportError as error:
        raise ConfigError("a store on Redis needs the package hiredis: pip install 'trunkline[redis]'") from error
    return hiredis.Reader(protocolError=_InvalidReply, replyError=ReplyError, notEnoughData=_NOT_YET)


class Job:
    """A command, and who waits for the reply."""

    __slots__ = ("again", "done", "due", "keys", "packed", "turn")

    def __init__(self, packed: bytes, due: float, keys: Sequence[str] = ()) -> None:
        self.packed = packed
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.due = due
        self.keys = keys  # that it changes
        self.turn = 0  # of the loop, in which it was asked for
        self.again = False  # it was sent before, and not done

    def settle(self, outcome: Any) -> None:
        """Tells whoever waits, unless they were cancelled."""
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


class Link(asyncio.Protocol):
    """A connection. `replied` is told of each reply with its job, `aside` of what no job has asked for, `lost` of the
    end."""

    def __init__(
        self,
        replied: Callable[[Job, Any], None],
        aside: Callable[[list[Any]], None] | None,
        lost: Callable[["Link"], None],
    ) -> None:
        self.waiting: deque[Job] = deque()
        self.ended = asyncio.get_running_loop().create_future()
        self._replied = replied
        self._aside = aside
        self._lost = lost
        self._reader = reply_parser()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line stands."""
        self._transport = cast("asyncio.Transport", transport)
        bound: socket.socket | None = transport.get_extra_info("socket")
        if bound is not None and bound.family != getattr(socket, "AF_UNIX", None):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, jobs: Sequence[Job]) -> None:
        """Sends jobs, in one piece."""
        self.waiting.extend(jobs)
        if self._transport is not None:
            self._transport.write(b"".join([job.packed for job in jobs]))

    def data_received(self, data: bytes) -> None:
        """Hands out the replies that are complete."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NOT_YET:
                self._hand_out(reply)
        except _InvalidReply:  # the peer is no Redis
            self.abort()

    def _hand_out(self, reply: Any) -> None:
        if self._aside is not None and isinstance(reply, list) and reply[0] in _ASIDE:
            self._aside(cast("list[Any]", reply))
        elif self.waiting:
            self._replied(self.waiting.popleft(), reply)
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it came
        """The line has ended."""
        if not self.ended.done():
            self.ended.set_result(None)
        self._lost(self)

    def abort(self) -> None:
        """Ends the line at once; whatever is still to be sent is not."""
        if self._transport is not None:
            self._transport.abort()


def command(*words: str | bytes | int) -> bytes:
    """A command as it is sent."""
    texts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(texts) + b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


# --- connecting --------------------------------------------------------------------------------------


async def connect(
    address: Address, tls: ssl.SSLContext | None, patience: float, made: Callable[[], Link], *first: bytes
) -> Link:
    """A connection that knows who we are, to the master that sentinels name, if there are any. It begins with some
    commands."""
    each = patience / (len(address.doors) + 1)  # so that one that is silent leaves time for the others
    door = await _master(address, tls, each) if address.service else address.doors[0]
    link = await _enter(door, tls, made)
    try:
        await ask(link, *_greeting(address), *first)
        if address.service:
            [role] = await ask(link, command("ROLE"))
            if role[0] != b"master":
                raise StoreUnavailable(f"{door.host}:{door.port} is not the master of {address.service} yet")
    except BaseException:
        link.abort()
        raise
    return link


def _greeting(address: Address) -> list[bytes]:
    secret = [address.user, address.password] if address.user else [address.password]
    login = [command("AUTH", *secret)] if address.password else []
    return [*login, *([command("SELECT", address.db)] if address.db else [])]


async def ask(link: Link, *packed: bytes) -> list[Any]:
    """Replies to commands. Raises what they raise."""
    jobs = [Job(one, 0.0) for one in packed]
    link.send(jobs)
    return await asyncio.gather(*(job.done for job in jobs))


def refusal(said: str) -> StoreUnavailable | StoreUnusable:
    """What an answer means that says why not."""
    if said.startswith(("MOVED ", "ASK ", "CROSSSLOT", "CLUSTERDOWN")):
        return StoreUnusable("the store is on a Redis Cluster, which is not supported; one Redis is, or sentinels")
    if said.startswith(_NOT_ALLOWED):
        return StoreUnusable(f"the store does not let us in: {said}")
    return StoreUnavailable(f"the store did not do it: {said}")


async def _master(address: Address, tls: ssl.SSLContext | None, patience: float) -> Door:
    """Where the master is: the first sentinel that knows says so."""
    failed: list[str] = []
    for door in address.doors:
        try:
            async with asyncio.timeout(patience):
                found = await _named(door, tls, address.service)
        except (OSError, StoreUnavailable) as error:
            failed.append(str(error) or f"{door.host}:{door.port} does not answer")
            continue
        if found is not None:
            return Door(found[0].decode(), int(found[1]))
        failed.append(f"{door.host}:{door.port} does not know {address.service}")
    raise StoreUnavailable(f"no sentinel names a master: {'; '.join(failed)}")


async def _named(door: Door, tls: ssl.SSLContext | None, service: str) -> list[bytes] | None:
    link = await _enter(door, tls, lambda: Link(_answered, None, _end_all))
    try:
        [found] = await ask(link, command("SENTINEL", "get-master-addr-by-name", service))
        return found
    finally:
        link.abort()


def _answered(job: Job, reply: Any) -> None:
    job.settle(refusal(str(reply)) if isinstance(reply, ReplyError) else reply)


def _end_all(link: Link) -> None:
    while link.waiting:
        link.waiting.popleft().settle(StoreUnavailable("the line has ended"))


async def _enter(door: Door, tls: ssl.SSLContext | None, made: Callable[[], Link]) -> Link:
    link = made()
    await door.enter(lambda: link, tls)
    return link
