"""Requests of ASGI servers: their headers, and their memory."""

import gc
import json
from typing import Any

import pytest

from trunkline import Server
from trunkline.transports.http.asgi import make_request
from trunkline.transports.http.request import HttpRequest

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
HEADERS = [
    (b"host", b"127.0.0.1"),
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
]


def scope_of(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/", "headers": headers}


def test_repeated_headers_are_joined_and_named() -> None:
    repeated = make_request(None, scope_of([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]), method="POST")
    plain = make_request(None, scope_of([(b"a", b"1"), (b"b", b"2")]), method="POST")

    assert (repeated.headers, list(repeated.repeated)) == ({b"a": b"1, 3", b"b": b"2"}, [b"a"])
    assert (plain.headers, list(plain.repeated)) == ({b"a": b"1", b"b": b"2"}, [])


@pytest.mark.parametrize("tracked", [False, True], ids=["", "calls tracked"])
async def test_answered_request_is_freed_without_garbage_collection(tracked: bool) -> None:
    server, sent = Server("test"), list[dict[str, Any]]()
    if tracked:
        server.track_calls()
    app = server.asgi()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(INITIALIZE).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    gc.collect()
    gc.disable()
    try:
        before = requests_in_memory()
        await app(scope_of(HEADERS), receive, send)
        after = requests_in_memory()
    finally:
        gc.enable()
        await app.aclose()

    assert sent[0]["status"] == 200
    assert after == before


def requests_in_memory() -> int:
    return sum(type(one) is HttpRequest for one in gc.get_objects())
