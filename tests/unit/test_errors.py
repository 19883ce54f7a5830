"""Exceptions: those that are also built-in exceptions."""

import asyncio
import pickle
import socket

import pytest
from tests.limits import PATIENCE

from trunkline import Client, Context, Server
from trunkline.errors import (
    AuthorizationFailed,
    ConfigError,
    ConnectionClosed,
    ConnectionTimeout,
    Degraded,
    HandshakeFailed,
    NotRegistered,
    OutcomeUnknown,
    RegistrationError,
    RequestTimeout,
    RetriesExhausted,
    TaskCancelled,
    TimeoutReconnecting,
    TransportError,
    TrunklineError,
    again,
)
from trunkline.testing import ManualClock, RawPeer, ScriptedServer

BUILT_IN: list[tuple[TrunklineError, type[Exception]]] = [
    (RequestTimeout("tools/call", 1.5), TimeoutError),
    (ConnectionTimeout("tools/call", 1.5), TimeoutError),
    (TimeoutReconnecting("tools/call", 1.5), TimeoutError),
    (TransportError("gone"), ConnectionError),
    (HandshakeFailed("gone"), ConnectionError),
    (ConnectionClosed("gone", status=1, last_words="bye", reached=False), ConnectionError),
    (OutcomeUnknown("gone"), ConnectionError),
    (RetriesExhausted("gone"), ConnectionError),
    (Degraded("gone"), ConnectionError),
    (AuthorizationFailed("no", hop="retry"), PermissionError),
    (NotRegistered("tool", "act"), KeyError),
    (RegistrationError("no"), ValueError),
    (ConfigError("no"), ValueError),
]


@pytest.mark.parametrize(("error", "kind"), BUILT_IN, ids=lambda part: getattr(part, "__name__", type(part).__name__))
def test_errors_inherit_from_builtin_counterparts(error: TrunklineError, kind: type[Exception]) -> None:
    assert isinstance(error, kind)
    assert isinstance(error, TrunklineError)


@pytest.mark.parametrize("error", [error for error, _ in BUILT_IN], ids=lambda error: type(error).__name__)
def test_copied_error_keeps_all_attributes(error: TrunklineError) -> None:
    copy = again(error)
    assert type(copy) is type(error)
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))


def test_error_keeps_its_text_and_attributes() -> None:
    late = RequestTimeout("tools/call", 1.5)
    assert str(late) == "tools/call was not done after 1.5 s"
    assert (late.code, late.data["kind"], late.errno) == (-32603, "request_timeout", None)
    lost = ConnectionClosed("gone", status=1, last_words="bye")
    assert str(lost) == "gone\nThe end of its standard error:\nbye"
    assert (lost.status, lost.last_words, lost.reached) == (1, "bye", True)
    assert str(pickle.loads(pickle.dumps(TransportError("gone")))) == "gone"


def test_task_cancelled_is_no_cancelled_error() -> None:
    assert not isinstance(TaskCancelled("1"), asyncio.CancelledError)


async def test_slow_request_raises_timeout_error() -> None:
    clock, server = ManualClock(), ScriptedServer()
    async with Client(server, clock=clock) as client:
        reading = asyncio.create_task(client.read_resource("memo://1", timeout=1))
        await server.line.request("resources/read")
        clock.advance(1)
        with pytest.raises(TimeoutError):
            await reading


async def test_slow_client_request_raises_timeout_in_handler() -> None:
    clock = ManualClock()
    server = Server("t", clock=clock)

    @server.tool
    async def sample(ctx: Context) -> str:
        try:
            await ctx.sample("hello", timeout=1)
        except TimeoutError:
            return "too late"
        return "in time"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        call = peer.call("tools/call", {"name": "sample"})
        await peer.receive()
        clock.advance(1)
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "too late"


async def test_unreachable_server_raises_connection_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ConnectionError, match="no server is listening there"):
                await Client(f"tcp://127.0.0.1:{port}").open()


async def test_lost_connection_raises_connection_error() -> None:
    server = ScriptedServer()
    async with Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.line.request("tools/call")
        server.line.die()
        with pytest.raises(ConnectionError):
            await calling
