"""Remote crash: a malformed request must harm no client, including its sender."""

import json
import logging
from typing import Any

import pytest
from tests.attacks import websocket_frames
from tests.attacks.attacked_server import AttackedServer, listening
from tests.attacks.raw import Caller, ask, begin, call, initialize, request, text_of, tool, until

DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES: list[bytes] = [  # none of which is a message
    b"",
    b" ",
    b"\x00",
    b"null",
    b"true",
    b"0",
    b'""',
    b"{}",
    b"[]",
    b"[[]]",
    b"[null, 1, {}]",
    b"{",
    b'{"jsonrpc":"2.0"',
    b"\xff\xfe{\x00}\x00",
    b"\xef\xbb\xbf{}",
    b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
    b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":%b}' % DEEP,
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":%b}}' % DEEP,
    b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
    b'{"jsonrpc":"2.0","id":[1],"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":true,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":7}',
    b'{"jsonrpc":"2.0","id":1,"method":null}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}',
    b'{"jsonrpc":"2.0","id":1}',
    b"1e999999999",
    b"-",
    b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}',
]
LIKE_ANSWERS: list[bytes] = [  # for which the server responds without an id
    b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"both"}}',
    b'{"jsonrpc":"2.0","id":1,"error":"text"}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":1}}',
]
ANSWERED: list[Any] = [  # unusual messages, which get a response or are ignored
    call("no/such/method"),
    call("tools/call"),
    call("tools/call", {"name": None}),
    call("tools/call", {"name": "effect", "arguments": []}),
    call("tools/call", {"name": "effect", "arguments": {"what": {"deep": [[[[]]]]}}}),
    call("tools/call", {"name": "x" * 100_000, "arguments": {}}),
    call("tools/list", {"cursor": "\x00"}),
    call("tools/list", {"cursor": 7}),
    call("resources/read", {"uri": "file:///../../etc/passwd"}),
    call("resources/subscribe", {"uri": ""}),
    call("logging/setLevel", {"level": "loudest"}),
    call("completion/complete", {"ref": {"type": "x"}, "argument": {}}),
    call(
        "initialize",
        {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "again", "version": "1"}},
    ),
    call("ping", {"_meta": {"progressToken": {"no": "token"}}}),
    call("ping", ident=10**60),
    call("ping", ident="\u2028\x00"),
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {}}},
    {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": [], "progress": "x"}},
    {"jsonrpc": "2.0", "method": "notifications/no/such"},
    {"jsonrpc": "2.0", "id": 99999, "result": {}},
    {"jsonrpc": "2.0", "id": "unasked", "error": {"code": 1, "message": "unasked"}},
]
REQUESTS: list[bytes] = [  # malformed HTTP
    b"\x00" * 100,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 64,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n",
    b"GET  /mcp  HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    request("BREW", "/mcp", {}),
    request("GET", "/mcp\xff".encode("latin-1").decode("latin-1"), None),
    request("GET", "/%ff%00%2e%2e", None),
    request("GET", "//evil/mcp", None),
    request("GET", "/mcp", None, last_event_id="\xb2-1", mcp_session_id="\xff\xfe"),
    request("POST", "/mcp", {}, content_length="-1"),
    request("POST", "/mcp", {}, content_length="9" * 5000),
    request("POST", "/mcp", {}, content_type="application/json; charset=\xff"),
    request("POST", "/mcp", {}, content_type="text/plain"),
    request("POST", "/mcp", {}, accept=""),
    request("POST", "/mcp", {}, mcp_protocol_version="\xff\x01".strip()),
    request("POST", "/messages?session_id=%ff&session_id=a&=&&", {}),
    request("POST", "/mcp", b"{}", connection="Upgrade", upgrade="websocket"),
    request("POST", "/mcp", b"{}", connection="Upgrade", upgrade="h2c"),
    websocket_frames.upgrade("/mcp", *((f"x-{number}", "x") for number in range(300))),
    websocket_frames.upgrade("/mcp", ("x-long", "x" * 70_000)),
    websocket_frames.upgrade(sec_websocket_key="short"),
    websocket_frames.upgrade(sec_websocket_version="1"),
    websocket_frames.upgrade("/other"),
]


@pytest.fixture(autouse=True)
def no_error_is_logged(caplog: pytest.LogCaptureFixture):
    yield
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not errors, [record.getMessage() for record in errors]


async def still_answers(place: AttackedServer, session: str) -> None:
    """Check that existing and new connections get responses."""
    assert (await ask(place.port, "POST", "/mcp", call("ping"), mcp_session_id=session)).json["result"] == {}
    assert (
        text_of((await ask(place.port, "POST", "/mcp", tool("effect", what="x"), mcp_session_id=session)).json) == "x"
    )
    assert "result" in (await ask(place.port, "POST", "/mcp", initialize())).json


async def test_invalid_bodies_do_not_end_session_or_server() -> None:
    async with listening() as place:
        session = await begin(place.port)
        for body in BODIES:
            for known in ({"mcp_session_id": session}, {}):
                answer = await ask(place.port, "POST", "/mcp", body, **known)
                assert answer.status in {200, 400}, (body[:100], answer.status)
                assert answer.status == 400 or "error" in answer.json or isinstance(answer.json, list), body[:100]
        for body in LIKE_ANSWERS:
            refused = await ask(place.port, "POST", "/mcp", body, mcp_session_id=session)
            assert (refused.status, "id" in refused.json) == (400, False), body
        await still_answers(place, session)


async def test_invalid_messages_do_not_end_session_or_server() -> None:
    async with listening() as place:
        session = await begin(place.port)
        for message in ANSWERED:
            answer = await ask(place.port, "POST", "/mcp", message, mcp_session_id=session)
            expected = {200} if "method" in message and "id" in message else {202}
            assert answer.status in expected, (message, answer.status)
        await still_answers(place, session)


async def test_malformed_message_does_not_end_call_of_same_id() -> None:
    async with listening() as place, Caller(place.port) as caller:
        session = await begin(place.port)
        caller.say(request("POST", "/mcp", tool("wait", who="me", ident=7), mcp_session_id=session))
        await until(lambda: place.started, "the call")
        for body in (
            b'{"jsonrpc":"1.0","id":7,"method":"ping"}',
            b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}',
        ):
            bad = await ask(place.port, "POST", "/mcp", body, mcp_session_id=session)
            assert (bad.status, bad.json.get("id"), "error" in bad.json) == (400, 7, True)
        place.gate.set()
        assert text_of((await caller.answer()).json) == "me"


async def test_invalid_http_is_refused_or_disconnected() -> None:
    async with listening() as place:
        session = await begin(place.port)
        for data in REQUESTS:
            async with Caller(place.port) as caller:
                caller.say(data)
                answer = await caller.head()
                assert 400 <= answer.status < 500 or answer.status in {501, 505}, (data[:100], answer.status)
        await still_answers(place, session)


async def test_stream_transport_survives_malformed_message() -> None:
    async with listening("tcp://127.0.0.1:0") as place, Caller(place.port) as caller:
        caller.say(json.dumps(initialize()).encode() + b"\n")
        await caller.line()
        for body in (*BODIES, *LIKE_ANSWERS):
            if body.strip() and b"\n" not in body:
                caller.say(body + b"\n" + json.dumps(call("ping", ident="still there")).encode() + b"\n")
                while (answer := await caller.line()) != {"jsonrpc": "2.0", "id": "still there", "result": {}}:
                    for one in answer if isinstance(answer, list) else [answer]:
                        assert "error" in one, (body[:100], answer)


async def test_websocket_survives_malformed_message() -> None:
    async with listening() as place, Caller(place.port) as caller:
        await websocket_frames.shake_hands(caller)
        for body in (*BODIES, *LIKE_ANSWERS):
            if body.strip() and is_text(body):
                caller.say(websocket_frames.frame(body))
                websocket_frames.say(caller, call("ping", ident="still there"))
                while (answer := await websocket_frames.message(caller)) != {
                    "jsonrpc": "2.0",
                    "id": "still there",
                    "result": {},
                }:
                    for one in answer if isinstance(answer, list) else [answer]:
                        assert "error" in one, (body[:100], answer)


def is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


async def test_invalid_websocket_frames_close_only_that_connection() -> None:
    broken = [
        websocket_frames.frame(b"\xff", websocket_frames.TEXT),  # not UTF-8
        websocket_frames.frame(b"{}", 0x3),  # an unknown opcode
        websocket_frames.frame(b"x" * 126, websocket_frames.PING),  # too long for its opcode
        websocket_frames.frame(b"", websocket_frames.CONTINUED),  # a continuation without a start
        b"\x81\x02{}",  # without a mask
        b"\xf1\x80" + bytes(4),  # reserved bits
        websocket_frames.frame(b"", 0x2),  # not text
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    async with listening() as place:
        session = await begin(place.port)
        for data in broken:
            async with Caller(place.port) as caller:
                await websocket_frames.shake_hands(caller)
                caller.say(data)
                assert await websocket_frames.closed_with(caller) in {1002, 1003, 1007}, data[:40]
        await still_answers(place, session)
