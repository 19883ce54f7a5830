"""Rules for all listening transports: none exists without limits, and each enforces them."""

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from tests.attacks import websocket_frames
from tests.attacks.attacked_server import AttackedServer, listening, while_time_passes
from tests.attacks.raw import Caller, call, initialize, request

import trunkline.transports
from trunkline.server.run import process
from trunkline.transports.listener_limits import ListenerGuard

LISTENING = {"listen_http", "listen_tcp", "listen_unix"}
TAKING_PEERS = {
    "HttpApp",
    "HttpConnections",
    "HttpSseEndpoint",
    "ModernEndpoint",
    "NoSessionEndpoint",
    "SessionEndpoint",
    "WebSocketEndpoint",
}


def found(prefix: str = "") -> dict[str, Any]:
    """All definitions of the transports, by name."""
    modules = pkgutil.walk_packages(trunkline.transports.__path__, "trunkline.transports.")
    members = [vars(importlib.import_module(module.name)) | {"": module.name} for module in modules]
    return {
        name: member
        for known in members
        for name, member in known.items()
        if name.startswith(prefix) and getattr(member, "__module__", None) == known[""]
    }


def test_every_listen_function_requires_a_guard() -> None:
    functions = found("listen_")
    assert set(functions) == {*LISTENING, "listen_router"}
    for function in functions.values():
        first = next(iter(inspect.signature(function).parameters.values()))
        assert get_type_hints(function)[first.name] is ListenerGuard
        assert first.default is inspect.Parameter.empty


def test_every_peer_acceptor_requires_a_guard() -> None:
    everything = found()
    for name in TAKING_PEERS:
        parameters = list(inspect.signature(everything[name]).parameters.values())
        assert get_type_hints(everything[name].__init__)[parameters[0].name] is ListenerGuard, name
        assert parameters[0].default is inspect.Parameter.empty


def test_only_known_modules_open_listening_sockets() -> None:
    calls = ("create_server(", "create_unix_server(", "start_server(", "start_unix_server(", ".listen(_BACKLOG)")
    source = Path(trunkline.transports.__path__[0]).parent
    serving = {path.name for path in source.rglob("*.py") if any(name in path.read_text() for name in calls)}
    among_ourselves = {"bus.py", "control_socket.py"}  # processes of one user, to which only that user has access
    for_one_person = {"loopback.py"}  # on one page
    assert serving == {"listening.py"} | among_ourselves | for_one_person


def test_server_uses_only_guarded_listen_functions() -> None:
    assert set(re.findall(r"\blisten_\w+", inspect.getsource(process.open_listener))) == LISTENING


# --- one peer for each transport -----------------------------------------------------------------------

Speak = Callable[[Caller], Awaitable[None]]


async def on_a_line(caller: Caller) -> None:
    """Get a response over TCP or a Unix socket."""
    caller.say(json.dumps(initialize()).encode() + b"\n")
    assert "result" in await caller.line()


async def over_http(caller: Caller) -> None:
    """Get a response over Streamable HTTP."""
    caller.say(request("POST", "/mcp", initialize()))
    assert "result" in (await caller.answer()).json


async def over_websocket(caller: Caller) -> None:
    """Get a response over a WebSocket."""
    await websocket_frames.shake_hands(caller)
    websocket_frames.say(caller, call("ping"))
    assert "result" in await websocket_frames.message(caller)


async def over_sse(caller: Caller) -> None:
    """Open a stream."""
    caller.say(request("GET", "/sse"))
    assert (await caller.head()).status == 200


async def upgraded(caller: Caller) -> None:
    """Open a WebSocket and send nothing."""
    caller.say(websocket_frames.upgrade())
    assert (await caller.head()).status == 101


async def quiet(caller: Caller) -> None:
    """Send nothing at all."""


async def half_a_message(caller: Caller) -> None:
    """Send half of a message."""
    caller.say(b'{"jsonrpc":')


async def half_a_request(caller: Caller) -> None:
    """Send half of a request."""
    caller.say(b"POST /mcp HTTP/1.1\r\nhost: lo")


TRANSPORTS: dict[str, tuple[str, Speak]] = {
    "tcp": ("tcp://127.0.0.1:0", on_a_line),
    "unix": ("unix://{folder}/socket", on_a_line),
    "http": ("http://127.0.0.1:0/mcp", over_http),
    "sse": ("http://127.0.0.1:0/mcp", over_sse),
    "websocket": ("http://127.0.0.1:0/mcp", over_websocket),
}
SILENCE: dict[str, tuple[str, Speak]] = {
    "tcp": ("tcp", quiet),
    "tcp, half a message": ("tcp", half_a_message),
    "unix": ("unix", quiet),
    "http": ("http", quiet),
    "http, half a request": ("http", half_a_request),
    "sse": ("sse", over_sse),
    "websocket": ("websocket", upgraded),
}


async def end_of_stream(caller: Caller) -> None:
    """The stream ends, though not the connection."""
    assert [piece async for piece in caller.pieces()]


async def end_of_websocket(caller: Caller) -> None:
    """The WebSocket is closed."""
    assert await websocket_frames.closed_with(caller) == 1008


ENDS: dict[str, Callable[[Caller], Awaitable[Any]]] = {"sse": end_of_stream, "websocket": end_of_websocket}


@asynccontextmanager
async def served(name: str, folder: Path, **settings: Any) -> AsyncIterator[tuple[AttackedServer, int | str]]:
    address = TRANSPORTS[name][0].format(folder=folder)
    async with listening(address, **settings) as place:
        yield place, place.port or str(folder / "socket")


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_connection_above_the_limit_is_refused(name: str, tmp_path: Path) -> None:
    speak = TRANSPORTS[name][1]
    async with served(name, tmp_path, max_connections=2) as (_, where), Caller(where) as one, Caller(where) as two:
        await speak(one)
        await speak(two)
        async with Caller(where) as three:
            assert b"200" not in (await three.rest())[:20]


@pytest.mark.parametrize("case", SILENCE)
async def test_peer_without_a_complete_message_is_disconnected(case: str, tmp_path: Path) -> None:
    name, beginning = SILENCE[case]
    limits = {"initialize_timeout": 30.0, "header_timeout": 10.0}
    async with served(name, tmp_path, **limits) as (place, where), Caller(where) as caller:
        await beginning(caller)
        await while_time_passes(place, ENDS.get(case, Caller.rest)(caller), 30.0)
