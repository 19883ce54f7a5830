"""An attacker with a plain socket: every byte of a request is in a test's hands, and every wait has an end.

    async with Caller(port) as caller:
        caller.say(request("GET", "/mcp", host="evil.example"))
        assert (await caller.answer()).status == 403

Whatever does not come in time is a failed assertion, never an error of another kind: a test that is run without its
control has to fail in that way.
"""

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any, Self, TypeVar

from tests import limits

T = TypeVar("T")

PATIENCE = float(
    os.environ.get("ATTACK_PATIENCE", limits.PATIENCE)
)  # seconds; less where it is known that nothing will come
ACCEPT = "application/json, text/event-stream"
Header = tuple[str, str | bytes]


async def within(awaitable: Awaitable[T], what: str, seconds: float = PATIENCE) -> T:
    """What is waited for, or a failed assertion."""
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError:
        raise AssertionError(f"{what} did not come within {seconds:g} s") from None


async def until(truth: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    """Lets the loop turn until something is true of the server."""

    async def looking() -> None:
        while not truth():
            await asyncio.sleep(0.001)

    await within(looking(), what, seconds)


class Answer:
    """What a server answered to one request."""

    def __init__(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status = status
        self.headers = dict(headers)
        self.body = b""

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise AssertionError(f"{self.status} with no JSON: {self.body[:200]!r}") from None

    @property
    def refusal(self) -> Any:
        """The error in it."""
        assert "error" in self.json, f"{self.status}, and no error: {self.json}"
        return self.json["error"]

    @property
    def session(self) -> str:
        assert "mcp-session-id" in self.headers, f"{self.status}, and no session: {self.body[:200]!r}"
        return self.headers["mcp-session-id"]


class Caller:
    """One connection, over TCP, or over a Unix socket if the place is a path."""

    def __init__(self, place: int | str, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._place = place
        self._host = host
        self._tls = tls
        self._reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        if isinstance(self._place, str):
            opened = asyncio.open_unix_connection(self._place)
        else:
            opened = asyncio.open_connection(self._host, self._place, ssl=self._tls)
        self._reader, self.writer = await within(opened, "a connection")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def say(self, data: bytes) -> None:
        """Sends bytes."""
        self.writer.write(data)

    async def all_said(self) -> None:
        """Waits until they have left."""
        with contextlib.suppress(OSError):
            await within(self.writer.drain(), "a server that reads")

    # --- HTTP ----------------------------------------------------------------------------------

    async def head(self) -> Answer:
        """The beginning of an answer."""
        try:
            head = await within(self._reader.readuntil(b"\r\n\r\n"), "an answer")
        except (asyncio.IncompleteReadError, OSError) as error:
            raise AssertionError(f"the connection ended instead of an answer: {error!r}") from None
        first, *rest = head.decode("latin-1").split("\r\n")[:-2]
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in rest)]
        return Answer(int(first.split()[1]), headers)

    async def answer(self, asked: str = "POST") -> Answer:
        """A whole answer; one that breaks off fails."""
        answer = await self.head()
        if answer.headers.get("transfer-encoding") == "chunked":
            answer.body = b"".join([piece async for piece in self.pieces()])
        elif asked != "HEAD" and answer.status not in {101, 204}:
            size = int(answer.headers.get("content-length", "0"))
            answer.body = await self.exactly(size)
        return answer

    async def exactly(self, size: int) -> bytes:
        """So many bytes."""
        try:
            return await within(self._reader.readexactly(size), f"{size} bytes")
        except (asyncio.IncompleteReadError, OSError) as error:
            raise AssertionError(f"the connection broke off: {error!r}") from None

    async def pieces(self) -> AsyncIterator[bytes]:
        """The chunks of an answer, up to the last one, which is empty."""
        while True:
            try:
                line = await within(self._reader.readuntil(b"\r\n"), "a chunk")
            except (asyncio.IncompleteReadError, OSError) as error:
                raise AssertionError(f"a stream broke off without its last chunk: {error!r}") from None
            piece = await self.exactly(int(line, 16) + 2)
            if piece == b"\r\n":
                return
            yield piece[:-2]

    async def messages(self) -> AsyncIterator[Any]:
        """The messages of a stream of events, as they come."""
        text = b""
        async for piece in self.pieces():
            text += piece
            while b"\n\n" in text:
                event, _, text = text.partition(b"\n\n")
                if data := b"\n".join(line[6:] for line in event.split(b"\n") if line.startswith(b"data: ")):
                    yield json.loads(data) if data.startswith((b"{", b"[")) else data.decode()

    async def line(self) -> Any:
        """A message that stands on a line."""
        try:
            return json.loads(await within(self._reader.readuntil(b"\n"), "a message"))
        except (asyncio.IncompleteReadError, OSError, ValueError) as error:
            raise AssertionError(f"no message came: {error!r}") from None

    async def rest(self, seconds: float = PATIENCE) -> bytes:
        """All that comes until the server ends the connection, in whichever way."""
        found: list[bytes] = []

        async def reading() -> None:
            with contextlib.suppress(OSError):
                while data := await self._reader.read(1 << 16):
                    found.append(data)

        await within(reading(), "the end of the connection", seconds)
        return b"".join(found)


def request(method: str, path: str = "/mcp", body: bytes | Any = None, *headers: Header, **common: str | None) -> bytes:
    """The bytes of a request. `common` are headers by their names; one that is None is left out."""
    given: dict[str, str | bytes | None] = {"host": "localhost", "accept": ACCEPT}
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    if body is not None:
        given |= {"content-type": "application/json", "content-length": str(len(data))}
    given |= {name.replace("_", "-"): value for name, value in common.items()}
    lines = [(name, value) for name, value in (*given.items(), *headers) if value is not None]
    head = b"".join(b"%b: %b\r\n" % (name.encode(), _bytes(value)) for name, value in lines)
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode(), path.encode(), head, data)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


_ids = count(1)


def call(method: str, params: Any = None, *, ident: Any = None) -> dict[str, Any]:
    """A message that asks for something."""
    ident = next(_ids) if ident is None else ident
    return {"jsonrpc": "2.0", "id": ident, "method": method} | ({} if params is None else {"params": params})


def tool(name: str, *, ident: Any = None, **arguments: Any) -> dict[str, Any]:
    """A message that calls a tool."""
    return call("tools/call", {"name": name, "arguments": arguments}, ident=ident)


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def initialize(revision: str = "2025-11-25", **capabilities: Any) -> dict[str, Any]:
    """A message that begins a conversation."""
    info = {"name": "attacker", "version": "1"}
    return call("initialize", {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": info})


async def ask(port: int, method: str, path: str = "/mcp", body: Any = None, *headers: Header, **common: Any) -> Answer:
    """One request on a connection of its own, and its whole answer."""
    async with Caller(port) as caller:
        caller.say(request(method, path, body, *headers, **common))
        return await caller.answer(method)


async def begin(port: int, *, capabilities: Any = None, **headers: Any) -> str:
    """The id of a new session, which is in use."""
    opened = await ask(port, "POST", "/mcp", initialize(**(capabilities or {})), **headers)
    await ask(port, "POST", "/mcp", INITIALIZED, mcp_session_id=opened.session, **headers)
    await ask(port, "POST", "/mcp", call("ping"), mcp_session_id=opened.session, **headers)
    return opened.session


def text_of(message: Any) -> str:
    """What a tool has answered."""
    assert "content" in message.get("result", ()), message
    return message["result"]["content"][0]["text"]
