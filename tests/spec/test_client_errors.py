"""Each method of a client, against servers that crash, stay silent or send garbage.

Whatever the server does, the caller gets one of our errors with a message, in time; and the next call works.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from trunkline import Client, Settings
from trunkline.errors import (
    BadAnswer,
    ConnectionClosed,
    Degraded,
    HandshakeFailed,
    MisuseError,
    OutcomeUnknown,
    PeerError,
    RequestTimeout,
    TimeoutReconnecting,
    TransportError,
    TrunklineError,
)
from trunkline.testing import ManualClock, ScriptedServer

pytestmark = pytest.mark.off_the_record  # in messages of such servers

Ask = Callable[[Client], Awaitable[Any]]


def walked(walk: Callable[[Client], AsyncIterator[Any]]) -> Ask:
    async def all_of(client: Client) -> list[Any]:
        return [one async for one in walk(client)]

    return all_of


ASKED: dict[str, tuple[str, Ask]] = {
    "ping": ("ping", lambda client: client.ping()),
    "request": ("prompts/list", lambda client: client.request("prompts/list")),
    "set_log_level": ("logging/setLevel", lambda client: client.set_log_level("error")),
    "list_tools": ("tools/list", lambda client: client.list_tools()),
    "iterate_tools": ("tools/list", walked(lambda client: client.tools())),
    "call_tool": ("tools/call", lambda client: client.call_tool("any")),
    "start_tool": ("tools/call", lambda client: client.start_tool("any")),
    "list_resources": ("resources/list", lambda client: client.list_resources()),
    "resources": ("resources/list", walked(lambda client: client.resources())),
    "list_resource_templates": ("resources/templates/list", lambda client: client.list_resource_templates()),
    "resource_templates": ("resources/templates/list", walked(lambda client: client.resource_templates())),
    "read_resource": ("resources/read", lambda client: client.read_resource("a:1")),
    "subscribe": ("resources/subscribe", lambda client: client.subscribe("a:1")),
    "unsubscribe": ("resources/unsubscribe", lambda client: client.unsubscribe("a:1")),
    "list_prompts": ("prompts/list", lambda client: client.list_prompts()),
    "prompts": ("prompts/list", walked(lambda client: client.prompts())),
    "get_prompt": ("prompts/get", lambda client: client.get_prompt("p")),
    "complete": ("completion/complete", lambda client: client.complete("prompt", "p", "a")),
}
"""The methods of a client, by the name of the coroutine: the protocol method, and a call of it."""
NOT_ASKED = {"open", "close", "notify", "set_roots"}
EMPTY = {"ping", "set_log_level", "subscribe", "unsubscribe"}  # whose results have no member that could be wrong


def test_table_lists_every_coroutine_of_a_client() -> None:
    public = {name: member for name, member in inspect.getmembers(Client) if not name.startswith("_")}
    asking = {
        name
        for name, member in public.items()
        if inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
    }
    assert asking == ASKED.keys() | NOT_ASKED


# --- servers -----------------------------------------------------------------------------------------


class MisbehavingServer(ScriptedServer):
    """A server that misbehaves on one method, and answers all others."""

    def __init__(self, method: str, do: Callable[[Any, Any], None]) -> None:
        super().__init__(answered={"initialize", "ping", "tools/list", "resources/subscribe"} - {method})
        self.method = method
        self.do = do
        self.wicked = True

    async def connect(self, accept: Any) -> Any:
        channel = await super().connect(accept)
        usual = self.line.put

        def put(frame: bytes) -> None:
            usual(frame)
            for message in self.line.waiting():
                if message.get("method") == self.method and self.wicked:
                    self.do(self.lines[-1], message)

        self.line.put = put
        return channel

    def behave(self) -> None:
        self.wicked = False
        self.answered.add(self.method)


def dies(line: Any, _: Any) -> None:
    line.die("the server process was killed by SIGKILL", status=-9, last_words="Segmentation fault")


def says(**answer: Any) -> Callable[[Any, Any], None]:
    return lambda line, request: line.send({"jsonrpc": "2.0", "id": request["id"], **answer})


def frame(text: bytes) -> Callable[[Any, Any], None]:
    return lambda line, request: line.send(text.replace(b"ID", str(request["id"]).encode()))


MEMBERS = ("tools", "resources", "resourceTemplates", "contents", "content", "prompts", "messages", "completion")
NONSENSE: dict[str, Callable[[Any, Any], None]] = {
    "null": says(result=None),
    "a number": says(result=5),
    "a text": says(result="x"),
    "a list": says(result=[]),
    "members of wrong types": says(result=dict.fromkeys(MEMBERS, 5)),
    "lists of nulls": says(result={name: [None] for name in MEMBERS}),
    "an error without an object": says(error="no"),
    "an error without a code": says(error={"message": "no"}),
    "an error with a code of text": says(error={"code": "x", "message": "no"}),
    "a result and an error": says(result={}, error={"code": 1, "message": "no"}),
    "neither": says(),
    "no JSON": frame(b'{"jsonrpc":"2.0","id":ID,"result":'),
    "no text": frame(b'\xff\xfe{"id":ID}'),
    "a result without end": frame(b'{"jsonrpc":"2.0","id":ID,"result":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "another version": frame(b'{"jsonrpc":"1.0","id":ID,"result":{}}'),
    "an id of text": frame(b'{"jsonrpc":"2.0","id":"ID","result":{}}'),
    "no id": frame(b'{"jsonrpc":"2.0","result":{}}'),
    "a batch": frame(b'[{"jsonrpc":"2.0","id":ID,"result":{}}]'),
    "a request of its own under our id": frame(b'{"jsonrpc":"2.0","id":ID,"method":"no/such"}'),
}


# --- outcomes ----------------------------------------------------------------------------------------


async def settle() -> None:
    for _ in range(15):
        await asyncio.sleep(0)


async def outcome(asked: Awaitable[Any], clock: ManualClock) -> BaseException | None:
    """Return the error that a caller gets; None for a result. Time passes meanwhile."""
    task = asyncio.ensure_future(asked)
    for _ in range(100):
        await settle()
        if task.done():
            assert not task.cancelled(), "a cancellation that nobody asked for"
            return task.exception()
        clock.advance(1)
    raise AssertionError("the caller waits for ever")


async def ask_misbehaving(name: str, do: Callable[[Any, Any], None]) -> BaseException | None:
    """Send a request to a misbehaving server, and check that the next call works once it behaves."""
    method, ask = ASKED[name]
    server, clock = MisbehavingServer(method, do), ManualClock()
    client = Client(server, clock=clock, settings=Settings(backoff_jitter=0))
    await client.open()
    error = await outcome(ask(client), clock)
    if error is not None:
        assert isinstance(error, TrunklineError), f"{name}: {error!r}"
        assert not isinstance(error, BaseExceptionGroup)
        assert " " in str(error), f"{name}: {error!r} says nothing"
    server.behave()
    if isinstance(error, Degraded):
        await client.open()
    assert await outcome(client.ping(), clock) is None, f"after {name} and {error!r} nothing works"
    assert client.pending() == []
    await client.close()
    return error


@pytest.mark.parametrize("name", ASKED)
async def test_repeatedly_exiting_server_raises_a_typed_error(name: str) -> None:
    error = await ask_misbehaving(name, dies)
    if name in {"call_tool", "start_tool", "request"}:
        assert type(error) is OutcomeUnknown
        assert (error.status, error.last_words) == (-9, "Segmentation fault")
    else:
        assert type(error) is Degraded
        assert isinstance(error.__cause__, ConnectionClosed)
        assert error.__cause__.status == -9
    assert "Segmentation fault" in str(error)


@pytest.mark.parametrize("name", ASKED)
async def test_silent_server_raises_a_timeout(name: str) -> None:
    error = await ask_misbehaving(name, lambda line, request: None)
    assert type(error) is RequestTimeout


@pytest.mark.parametrize("name", sorted(ASKED.keys() - {"ping"}))
async def test_server_without_ping_response_is_reconnected(name: str) -> None:
    def falls_silent(line: Any, _: Any) -> None:
        line.put = lambda _: None

    assert type(await ask_misbehaving(name, falls_silent)) is TimeoutReconnecting


@pytest.mark.parametrize("what", NONSENSE)
async def test_malformed_responses_raise_a_typed_error(what: str) -> None:
    for name in ASKED:
        error = await ask_misbehaving(name, NONSENSE[what])
        if error is None:
            assert name in EMPTY, f"{name} took {what} for an answer"
        else:
            assert isinstance(error, BadAnswer | PeerError | RequestTimeout), f"{name}: {error!r}"


@pytest.mark.parametrize("what", ["death", "silence", *NONSENSE])
async def test_failed_handshake_can_be_opened_later(what: str) -> None:
    do = {"death": dies, "silence": lambda line, request: None, **NONSENSE}[what]
    server, clock = MisbehavingServer("initialize", do), ManualClock()
    client = Client(server, clock=clock)
    error = await outcome(client.open(), clock)
    assert isinstance(error, HandshakeFailed | ConnectionClosed), repr(error)
    assert isinstance(error, TransportError)
    assert error.step == "WaitForInitialized"
    server.behave()
    await client.open()
    await client.ping()
    await client.close()


async def test_params_without_json_raise_misuse_and_are_not_sent() -> None:
    server = ScriptedServer()
    async with Client(server) as client:
        for asked in (
            client.call_tool("any", {"a": object()}),
            client.call_tool("any", meta={"a": object()}),
            client.request("tools/call", {"name": object()}),
        ):
            with pytest.raises(MisuseError, match="object"):
                await asked
        await client.ping()
        assert client.pending() == []
        assert "tools/call" not in [message.get("method") for message in server.line.transcript.said_by("client")]


async def test_set_roots_works_in_every_connection_state() -> None:
    server = ScriptedServer()
    client = Client(server, roots=[])
    await client.set_roots(["file:///a"])
    async with client:
        await client.set_roots(["file:///b"])
        await server.line.request("notifications/roots/list_changed")
        server.refusals = [TransportError("down")]
        server.line.die()
        await settle()
        await client.set_roots(["file:///c"])
    assert [root.uri for root in client.roots] == ["file:///c"]
