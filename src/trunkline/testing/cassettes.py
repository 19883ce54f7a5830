"""Cassettes: recorded conversations of a client and a server, to be replayed to either side.

    cassette = Cassette("forecast.jsonl")
    async with Client(cassette.record("https://example.org/mcp")) as client: ...  # once
    with cassette:
        async with Client(cassette.replay()) as client: ...  # a test of the client
    await cassette.play_to(server)  # a test of the server

A cassette is a text file of JSON lines. The first describes it, `{"connection": 1}` begins a connection, and every
other line is one message: `{"client": {…}}` or `{"server": {…}}`. `{"closed": "…"}` says that the connection was lost.
Secrets are redacted before they are written.

A message of a client plays the first unplayed message of its kind and content; a message of the server follows when all
messages before it have been played. So concurrent requests may arrive in another order than they were recorded in.
Request ids, progress tokens and the names and versions of the programs need not be the same.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import InternalError, MisuseError
from trunkline.protocol.meta import CLIENT_INFO, SERVER_INFO, SUBSCRIPTION_ID
from trunkline.server.server import Server
from trunkline.testing.wrapped_connector import WrappedConnector
from trunkline.transports.channel import (
    Accept,
    Channel,
    ChannelClosed,
    ChannelInfo,
    Connector,
    MessageOrigin,
)
from trunkline.transports.memory import MemoryChannel
from trunkline.wire import codec
from trunkline.wire.messages import Batch, Encoded, Incoming, Malformed, Message, RequestId

__all__ = ["Cassette", "CassetteDrift"]

Side = Literal["client", "server"]

REDACTED: Final = "[redacted]"
_VERSION: Final = 1
_SECRET_NAMES: Final = frozenset(
    {
        *("authorization", "proxyauthorization", "cookie", "setcookie", "apikey", "xapikey", "password", "secret"),
        *("token", "accesstoken", "refreshtoken", "idtoken", "clientsecret", "privatekey", "credentials"),
    }
)  # of members, in lower case and without separators
_SECRET_TEXTS: Final = (
    re.compile(r"(?<=Bearer )[\w.~+/-]+=*", re.IGNORECASE),
    re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"),  # a JSON web token
)
_FREE: Final = frozenset({"clientInfo", "serverInfo", CLIENT_INFO, SERVER_INFO, "progressToken"})
"""Members that may differ from the recorded ones."""

_CHOSEN_BY_SERVER: Final = frozenset(
    {"reference", "requestState", "taskId", "nextCursor", "createdAt", "lastUpdatedAt", "elicitationId"}
)
"""Members whose values a server makes up. A client sends back the new value in place of the recorded one."""

_read: Callable[[bytes], Any] = codec.decoder(cast("type[Any]", object))


class CassetteDrift(AssertionError):
    """A conversation differs from its cassette."""


class _Line(Struct):
    """One recorded message, or the loss of the connection."""

    number: int  # in the file
    side: Side
    message: dict[str, Any]
    closed: str | None = None
    played: bool = False


class Cassette:
    """A recorded conversation in a file. As a context manager, it raises `CassetteDrift` at the end of the block if a
    client that it was replayed to has sent something else, or less."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        redact: Iterable[str | re.Pattern[str]] = (),
        ignore: Iterable[str] = (),
        patience: float = 10.0,
    ) -> None:
        """`redact` adds names of members, and patterns of texts, to those that are always redacted. `ignore` names
        members that may differ. `patience` is the number of seconds that `play_to` waits for a message."""
        self.path = Path(path)
        rules = tuple(redact)
        self._secret_names = _SECRET_NAMES | {_plain_name(rule) for rule in rules if isinstance(rule, str)}
        self._secret_texts = (*_SECRET_TEXTS, *(rule for rule in rules if isinstance(rule, re.Pattern)))
        self._free = _FREE | frozenset(ignore)
        self._patience = patience
        self._recorded: list[dict[str, Any]] = []
        self._replayed: list[list[_Line]] = []  # the connections that were replayed to a client
        self.drifts: list[str] = []

    def __repr__(self) -> str:
        return f"<Cassette {str(self.path)!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        if raised is None:
            self.assert_played()

    # --- recording -----------------------------------------------------------------------------

    def record(self, target: Any) -> Connector:
        """Return a connector to any client target that records all messages, in a new file."""
        from trunkline.client.targets import make_connector

        connector = make_connector(target, Settings())
        self._recorded = [{"cassette": _VERSION, "target": self.redacted(connector.name)}]
        return WrappedConnector(connector, lambda channel, accept: _RecordingChannel(channel, accept, self))

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line to the recording and write the file."""
        self._recorded.append(self.redacted(line))
        self.path.write_bytes(b"".join(codec.to_json(one) + b"\n" for one in self._recorded))

    @property
    def next_connection(self) -> int:
        """The number of the next connection of a recording."""
        return sum("connection" in line for line in self._recorded) + 1

    def redacted(self, value: Any) -> Any:
        """Return a copy of a value without secrets."""
        if isinstance(value, Mapping):
            members = cast("Mapping[str, Any]", value)
            return {
                name: REDACTED
                if _plain_name(name) in self._secret_names and isinstance(inner, str | int)
                else self.redacted(inner)
                for name, inner in members.items()
            }
        if isinstance(value, list):
            return [self.redacted(item) for item in cast("list[Any]", value)]
        if isinstance(value, str):
            for pattern in self._secret_texts:
                value = pattern.sub(REDACTED, value)
        return value

    # --- replaying to a client -----------------------------------------------------------------

    def replay(self) -> Connector:
        """Return a connector to a server that says what it said in the recording. It answers a request that was not
        recorded with an error that shows the difference."""
        self._replayed.clear()
        self.drifts.clear()
        return _ReplayConnector(self, self._load())

    def began(self, connection: list[_Line]) -> None:
        """Remember a connection that a client has opened."""
        self._replayed.append(connection)

    def assert_played(self) -> None:
        """Raise `CassetteDrift` unless the client has sent what was recorded, and nothing else."""
        left = [
            f"line {line.number}: the client did not send\n    {_show(line.message)}"
            for connection in self._replayed
            for line in connection
            if line.side == "client" and not line.played
        ]
        if told := [*self.drifts, *left]:
            raise CassetteDrift(self._explain(told))

    def _explain(self, told: Iterable[str]) -> str:
        return "\n  ".join([f"differences from {self.path.name}; record it again if they are intended:", *told])

    def _load(self) -> list[list[_Line]]:
        """Read the connections of the file."""
        connections: list[list[_Line]] = []
        for number, text in enumerate(self.path.read_bytes().splitlines(), 1):
            line: dict[str, Any] = _read(text)
            if number == 1 and line.get("cassette") != _VERSION:
                raise MisuseError(f"{self.path} is not a cassette of version {_VERSION}; record it again")
            if "connection" in line:
                connections.append([])
            if "closed" in line:
                connections[-1].append(_Line(number, "server", {}, line["closed"]))
            for side in ("client", "server"):
                if isinstance(line.get(side), dict):
                    connections[-1].append(_Line(number, side, line[side]))
        return connections

    # --- replaying to a server -----------------------------------------------------------------

    async def play_to(self, server: Server) -> None:
        """Send the client's recorded messages to a server and compare its messages with the recorded ones. Raise
        `CassetteDrift` with the differences."""
        for lines in self._load():
            await server.attach(self)
            try:
                drifts = await _ClientReplay(self, server).play(lines, self._patience)
            finally:
                await server.detach(self)
            if drifts:
                raise CassetteDrift(self._explain(drifts))

    # --- comparing -----------------------------------------------------------------------------

    def differences(self, expected: Any, actual: Any, *, free: frozenset[str] = frozenset()) -> list[str]:
        """Return the places where a message differs from the recorded one."""
        return list(_differences("", expected, self.redacted(actual), self._free | free))


def _plain_name(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def _differences(where: str, expected: Any, actual: Any, free: frozenset[str]) -> Iterable[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        old, new = cast("dict[str, Any]", expected), cast("dict[str, Any]", actual)
        for name in dict.fromkeys([*old, *new]):
            if name not in free:
                inner = f"{where}.{name}" if where else name
                if name not in new:
                    yield f"{inner}: expected {_brief(old[name])}, is missing"
                elif name not in old:
                    yield f"{inner}: not expected, is {_brief(new[name])}"
                else:
                    yield from _differences(inner, old[name], new[name], free)
    elif isinstance(expected, list) and isinstance(actual, list):
        olds, news = cast("list[Any]", expected), cast("list[Any]", actual)
        if len(olds) != len(news):
            yield f"{where}: expected {len(olds)} items, are {len(news)}"
        for index, (one, other) in enumerate(zip(olds, news, strict=False)):
            yield from _differences(f"{where}[{index}]", one, other, free)
    elif expected != actual or isinstance(expected, bool) is not isinstance(actual, bool):
        yield f"{where}: expected {_brief(expected)}, is {_brief(actual)}"


def _brief(value: Any, limit: int = 200) -> str:
    text = codec.to_json(value).decode()
    return text if len(text) <= limit else f"{text[:limit]}…"


def _show(message: Mapping[str, Any]) -> str:
    """Return a message as one line for people."""
    if "method" in message:
        return f"{message['method']} {_brief(message.get('params', {}), 500)}"
    return f"response {_brief({name: message[name] for name in message if name not in {'jsonrpc', 'id'}}, 500)}"


def _kind(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what two messages must share to be compared: their method, or that they are responses."""
    return (message.get("method"), "id" in message)


# --- recording -------------------------------------------------------------------------------------


class _RecordingChannel:
    """A channel, and its receiver, between a channel and a client."""

    def __init__(self, inner: Channel, accept: Accept, cassette: Cassette) -> None:
        self._inner = inner
        self._cassette = cassette
        self._number = cassette.next_connection
        cassette.add({"connection": self._number})
        self._closing = False
        self._receiver = accept(self)

    @property
    def info(self) -> ChannelInfo:
        """The description of the recorded channel."""
        return self._inner.info

    def send(self, message: Message | Encoded | Sequence[Message], *, about: RequestId | None = None) -> int | None:
        """Send and record a message."""
        size = self._inner.send(message, about=about)
        self._record("client", message.frame if isinstance(message, Encoded) else codec.to_json(message))
        return size

    def received(self, messages: Sequence[Incoming], origin: MessageOrigin) -> None:
        """Record and deliver messages."""
        for message in messages:
            if isinstance(message, Malformed):
                self._cassette.add({"server": None, "malformed": message.why})
            else:
                self._record("server", codec.to_json(message.messages if isinstance(message, Batch) else message))
        self._receiver.received(messages, origin)

    def _record(self, side: Side, frame: bytes) -> None:
        value = _read(frame)
        for message in cast("list[Any]", value) if isinstance(value, list) else [value]:
            self._cassette.add({side: message})

    def pause(self) -> None:
        """Pause reading."""
        self._inner.pause()

    def resume(self) -> None:
        """Resume reading."""
        self._inner.resume()

    async def drain(self) -> None:
        """Wait until the recorded channel has drained."""
        await self._inner.drain()

    async def close(self) -> None:
        """Close the connection."""
        self._closing = True
        await self._inner.close()

    def unanswered(self, request: RequestId, closed: ChannelClosed) -> None:
        """Report that the recorded channel stays open without a response."""
        self._receiver.unanswered(request, closed)

    def authorizing(self, request: RequestId, *, begun: bool) -> None:
        """Report that the recorded channel waits for a person, or has stopped waiting."""
        self._receiver.authorizing(request, begun=begun)

    def closed(self, closed: ChannelClosed) -> None:
        """Report that the recorded channel has closed."""
        if not self._closing:
            self._cassette.add({"closed": closed.reason})
        self._receiver.closed(closed)


# --- replaying to a client ---------------------------------------------------------------------------


class _ReplayConnector:
    """Opens the recorded connections, one after the other; the last one again if there are more."""

    def __init__(self, cassette: Cassette, connections: list[list[_Line]]) -> None:
        self.name = f"cassette {cassette.path.name}"
        self._cassette = cassette
        self._connections = connections

    async def connect(self, accept: Accept) -> Channel:
        """Open the next connection."""
        lines = self._connections.pop(0) if self._connections else []
        self._cassette.began(lines)
        channel = MemoryChannel(self.name, same_process=True)
        channel.connect_to(_ServerReplay(self._cassette, lines, channel))
        channel.open(accept(channel))
        return channel


class _FrameEnd:
    """The end of a memory channel that reads each frame at once."""

    def put(self, frame: bytes) -> None:
        """Receive a frame."""
        value = _read(frame)
        for message in cast("list[Any]", value) if isinstance(value, list) else [value]:
            self.receive(message)

    def receive(self, message: dict[str, Any]) -> None:
        """Receive a message."""
        raise NotImplementedError

    @property
    def untaken(self) -> int:
        """Always 0: each frame is read immediately."""
        return 0

    async def eased(self) -> None:
        """Return at once, since nothing is left."""

    def end(self, closed: ChannelClosed) -> None:
        """Accept that the other end has closed."""


class _ServerReplay(_FrameEnd):
    """The server of one recorded connection."""

    def __init__(self, cassette: Cassette, lines: list[_Line], channel: MemoryChannel) -> None:
        self._cassette = cassette
        self._lines = lines
        self._channel = channel
        self._next = 0  # the first line that was not played
        self._ids: dict[Any, Any] = {}  # the ids and progress tokens of the client by the recorded ones
        self._unanswered: set[Any] = set()  # ids of requests of the client

    def receive(self, message: dict[str, Any]) -> None:
        """Play the recorded message that this one corresponds to, and the server's messages that follow."""
        if "method" in message and "id" in message:
            self._unanswered.add(message["id"])
        waiting = [one for one in self._lines if one.side == "client" and not one.played]
        same_kind = [one for one in waiting if _kind(one.message) == _kind(message)]
        for line in same_kind:
            if not self._differences(line, message):
                self._play(line, message)
                return
        if message.get("method") == "ping":
            self._send({"jsonrpc": "2.0", "id": message["id"], "result": {}})
            return
        told = self._drift(message, same_kind or waiting)
        self._cassette.drifts.append(told)
        error = {"code": InternalError.code, "message": told, "data": {"kind": "cassette_drift"}}
        for ident in list(self._unanswered):  # those that wait would wait for ever
            self._send({"jsonrpc": "2.0", "id": ident, "error": error})

    def _differences(self, line: _Line, message: dict[str, Any]) -> list[str]:
        expected = dict(line.message)
        params: Any = expected.get("params")
        if isinstance(params, dict) and "requestId" in params:
            known = cast("dict[str, Any]", params)
            expected["params"] = {**known, "requestId": self._ids.get(known["requestId"], known["requestId"])}
        if "method" in expected and "id" in message:  # the client chooses the ids of its requests
            expected["id"] = message["id"]
        return self._cassette.differences(expected, message)

    def _play(self, line: _Line, message: dict[str, Any]) -> None:
        line.played = True
        if "method" in message and "id" in message:
            self._ids[line.message["id"]] = message["id"]
            recorded, actual = _progress_token(line.message), _progress_token(message)
            if recorded is not None:
                self._ids[recorded] = actual
        for following in self._lines[self._next :]:
            if following.closed is not None:
                self._channel.end(ChannelClosed(following.closed))
            elif following.side == "server":
                following.played = True
                self._send(self._translate(following.message))
            elif not following.played:
                break
            self._next += 1

    def _translate(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message of the server with the ids that the client uses."""
        if "method" not in message:
            return {**message, "id": self._ids.get(message.get("id"), message.get("id"))}
        params: Any = message.get("params")
        if isinstance(params, dict):
            known = dict(cast("dict[str, Any]", params))
            if "progressToken" in known:
                known["progressToken"] = self._ids.get(known["progressToken"], known["progressToken"])
            meta: dict[str, Any] = known.get("_meta") or {}
            if (listen := meta.get(SUBSCRIPTION_ID)) is not None:
                known["_meta"] = {**meta, SUBSCRIPTION_ID: self._ids.get(listen, listen)}
            return {**message, "params": known}
        return message

    def _send(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            self._unanswered.discard(message.get("id"))
        self._channel.put(codec.to_json(message))

    def _drift(self, message: dict[str, Any], candidates: list[_Line]) -> str:
        if not candidates:
            return f"the client sent more than was recorded:\n    {_show(message)}"
        line = candidates[0]
        told = [
            f"line {line.number}: the client sent another message",
            f"expected: {_show(line.message)}",
            f"actual:   {_show(self._cassette.redacted(message))}",
        ]
        if _kind(line.message) == _kind(message):
            told += self._differences(line, message)
        return "\n    ".join(told)


def _progress_token(message: Mapping[str, Any]) -> Any:
    params: Any = message.get("params")
    meta: Any = cast("dict[str, Any]", params).get("_meta") if isinstance(params, dict) else None
    return cast("dict[str, Any]", meta).get("progressToken") if isinstance(meta, dict) else None


# --- replaying to a server ---------------------------------------------------------------------------


class _ClientReplay(_FrameEnd):
    """The client of one recorded connection."""

    def __init__(self, cassette: Cassette, server: Server) -> None:
        self._cassette = cassette
        self._server = server
        self._inbox: list[dict[str, Any]] = []
        self._arrived = asyncio.Event()
        self._values: dict[str, Any] = {}  # values that the server made up, by the recorded ones

    def receive(self, message: dict[str, Any]) -> None:
        """Keep a message of the server until its turn."""
        self._inbox.append(message)
        self._arrived.set()

    async def play(self, lines: list[_Line], patience: float) -> list[str]:
        """Play a connection; return the first difference, or nothing."""
        channel = MemoryChannel("cassette", same_process=True)
        channel.connect_to(self)
        channel.open(self._server.connect(channel))
        try:
            for line in lines:
                if line.closed is not None:
                    break
                if line.side == "client":
                    channel.put(codec.to_json(self._current(line.message)))
                elif (actual := await self._take(line.message, patience)) is None:
                    more = "".join(f"\n    it sent {_show(self._cassette.redacted(other))}" for other in self._inbox)
                    return [f"line {line.number}: the server did not send\n    {_show(line.message)}{more}"]
                elif told := self._compare(line, actual):
                    return [told]
        finally:
            await channel.close()
        return [f"the server sent more than was recorded:\n    {_show(message)}" for message in self._inbox]

    async def _take(self, expected: Mapping[str, Any], patience: float) -> dict[str, Any] | None:
        """Wait for the message that corresponds to a recorded one: the response to the same request, or the next one of
        the same method."""

        def corresponds(message: Mapping[str, Any]) -> bool:
            if _kind(message) != _kind(expected):
                return False
            return "method" in message or message.get("id") == expected.get("id")

        try:
            async with asyncio.timeout(patience):
                while (found := next(filter(corresponds, self._inbox), None)) is None:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return None
        self._inbox.remove(found)
        return found

    def _compare(self, line: _Line, actual: dict[str, Any]) -> str | None:
        for recorded, current in _made_up(line.message, actual):
            self._values[recorded] = current
        free = _CHOSEN_BY_SERVER | {"id"} if "method" in actual else _CHOSEN_BY_SERVER
        if not (told := self._cassette.differences(line.message, actual, free=free)):
            return None
        shown = (f"expected: {_show(line.message)}", f"actual:   {_show(self._cassette.redacted(actual))}")
        return "\n    ".join([f"line {line.number}: the server sent another message", *shown, *told])

    def _current(self, value: Any) -> Any:
        """Return a recorded message of the client with the values that the server has made up since."""
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {name: self._current(inner) for name, inner in members.items()}
        if isinstance(value, list):
            return [self._current(item) for item in cast("list[Any]", value)]
        return self._values.get(value, value) if isinstance(value, str) else value


def _made_up(recorded: Any, actual: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """Yield pairs of a recorded and a current value that a server chooses, and ids of its requests."""
    if isinstance(recorded, dict) and isinstance(actual, dict):
        old, new = cast("dict[str, Any]", recorded), cast("dict[str, Any]", actual)
        if "method" in old and isinstance(old.get("id"), str):
            yield old["id"], new.get("id")
        for key in old.keys() & new.keys():
            yield from _made_up(old[key], new[key], key)
    elif isinstance(recorded, list) and isinstance(actual, list):
        for one, other in zip(cast("list[Any]", recorded), cast("list[Any]", actual), strict=False):
            yield from _made_up(one, other)
    elif name in _CHOSEN_BY_SERVER and isinstance(recorded, str):
        yield recorded, actual
