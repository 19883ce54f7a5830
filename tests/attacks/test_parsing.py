"""Parser differentials: what somebody on the way reads, a policy or a proxy, and what the server reads, is the same."""

import asyncio
import json
from typing import Any

import pytest
from tests.attacks import websocket_frames
from tests.attacks.attacked_server import AttackedServer, listening
from tests.attacks.raw import Answer, Caller, ask, begin, call, initialize, request, text_of, tool

HIDDEN = request("POST", "/mcp", tool("effect", what="smuggled"), mcp_session_id="{session}")


def chunked(body: bytes, trailers: bytes = b"", size: bytes | None = None, end: bytes = b"\r\n") -> bytes:
    size = b"%x" % len(body) if size is None else size
    return size + end + body + b"\r\n0\r\n" + trailers + b"\r\n"


def ambiguous(session: str) -> dict[str, bytes]:
    """Requests whose end, or whose headers, two parsers may see in different places."""
    body = json.dumps(tool("effect", what="ambiguous")).encode()
    size = str(len(body))
    known = {"mcp_session_id": session}
    streamed = {"content_length": None, "transfer_encoding": "chunked", **known}
    plain = request("POST", "/mcp", body, **known)

    def made(*headers: Any, **common: Any) -> bytes:
        return request("POST", "/mcp", body, *headers, **(known | common))

    def in_chunks(data: bytes, *headers: Any, **common: Any) -> bytes:
        return request("POST", "/mcp", b"", *headers, **(streamed | common)) + data

    return {
        "both lengths": made(transfer_encoding="chunked"),
        "both lengths, the other way": in_chunks(chunked(body), content_length=size),
        "two lengths": made(("content-length", "5")),
        "the same length twice": made(("content-length", size)),
        "a list of lengths": made(content_length=f"{size}, {size}"),
        "a signed length": made(content_length=f"+{size}"),
        "a length in hexadecimal": made(content_length=f"0x{len(body):x}"),
        "a length with a space": made(content_length=f"{size} 1"),
        "an unknown coding": in_chunks(chunked(body), transfer_encoding="xchunked"),
        "chunked, and not last": in_chunks(chunked(body), transfer_encoding="chunked, identity"),
        "chunked twice": in_chunks(chunked(body), ("transfer-encoding", "chunked")),
        "a folded header": made(("x-folded", "a\r\n b")),
        "a folded length": made(content_length=f"\r\n {size}"),
        "line ends without CR": plain.replace(b"\r\n", b"\n"),
        "one line end without CR": plain.replace(b"\r\n", b"\n", 1),
        "one line end without LF": made(("x-bare", "a\rx-b: c")),
        "a chunk size without CR": in_chunks(chunked(body, end=b"\n")),
        "a chunk size with a sign": in_chunks(chunked(body, size=b"+%x" % len(body))),
        "a chunk size with a prefix": in_chunks(chunked(body, size=b"0x%x" % len(body))),
        "a chunk that is longer than it says": in_chunks(chunked(body, size=b"%x" % (len(body) - 1))),
        "a space before the colon": made(("x-space ", "a")),
        "no name": made(("", "a")),
        "a name that is no token": made(("x(y)", "a")),
        "NUL in a value": made(("x-nul", "a\x00b")),
        "a session id twice": made(("mcp-session-id", "other")),
        "a version twice": made(("mcp-protocol-version", "2025-11-25"), mcp_protocol_version="2025-06-18"),
        "a content type twice": made(("content-type", "text/plain")),
        "another version of HTTP": plain.replace(b"HTTP/1.1", b"HTTP/9.9"),
        "a method in small letters": plain.replace(b"POST", b"post"),
        "an upgrade with a body": made(connection="Upgrade", upgrade="h2c"),
    }


OTHER_STATUSES = {"another version of HTTP": 505, "a method in small letters": 501}


async def test_ambiguous_request_is_refused() -> None:
    async with listening() as place:
        session = await begin(place.port)
        for name, data in ambiguous(session).items():
            async with Caller(place.port) as caller:
                caller.say(data)
                answer = await caller.answer()
                assert answer.status == OTHER_STATUSES.get(name, 400), name
        assert place.done == []


def unlike_http_1(session: str) -> dict[str, tuple[int, bytes]]:
    """Requests that are no HTTP/1.x, though a lenient parser finds one in them, and how each is refused (RFC 9112)."""
    message = json.dumps(tool("effect", what="lenient")).encode()
    plain = request("POST", "/mcp", message, mcp_session_id=session)
    rest = plain.partition(b"\r\n")[2]
    coded = {"content_length": None, "mcp_session_id": session}

    def begun(with_line: bytes) -> bytes:
        return with_line + b"\r\n" + rest

    def in_chunks(*headers: Any, **common: Any) -> bytes:
        return request("POST", "/mcp", b"", *headers, **(coded | common)) + chunked(message)

    return {
        "two spaces before the target": (400, begun(b"POST  /mcp HTTP/1.1")),
        "two spaces behind the target": (400, begun(b"POST /mcp  HTTP/1.1")),
        "many spaces": (400, begun(b"POST   /mcp    HTTP/1.1")),
        "two spaces behind an empty line": (400, b"\r\n" + begun(b"POST /mcp  HTTP/1.1")),
        "no version": (400, begun(b"POST /mcp")),
        "HTTP/0.9": (505, begun(b"POST /mcp HTTP/0.9")),
        "HTTP/2.0": (505, begun(b"POST /mcp HTTP/2.0")),
        "a fragment": (400, begun(b"POST /mcp#here HTTP/1.1")),
        "another scheme": (400, begun(b"POST ftp://localhost/mcp HTTP/1.1")),
        "no path": (400, begun(b"POST * HTTP/1.1")),
        "a tunnel": (501, begun(b"CONNECT localhost:80 HTTP/1.1")),
        "a coding before chunked": (501, in_chunks(transfer_encoding="gzip, chunked")),
        "a coding before chunked, in capitals": (501, in_chunks(transfer_encoding="GZip , Chunked")),
        "a coding in a header of its own": (501, in_chunks(("transfer-encoding", "chunked"), transfer_encoding="gzip")),
        "chunked in HTTP/1.0": (400, in_chunks(transfer_encoding="chunked").replace(b"HTTP/1.1", b"HTTP/1.0", 1)),
        "an upgrade with two spaces": (400, websocket_frames.upgrade("/mcp").replace(b"GET /mcp", b"GET  /mcp", 1)),
    }


async def test_lenient_http_is_refused_and_connection_closed() -> None:
    async with listening() as place:
        session = await begin(place.port)
        for name, (status, data) in unlike_http_1(session).items():
            for packets in ([data], [data[:6], data[6:]], [data[:14], data[14:]]):
                async with Caller(place.port) as caller:
                    for packet in packets:
                        caller.say(packet)
                        await caller.all_said()
                        await asyncio.sleep(0)
                    answer = await caller.answer()
                    assert answer.status == status, name
                    assert answer.headers["connection"] == "close", name
                    assert await caller.rest() == b"", name
        assert place.done == []


@pytest.mark.parametrize("body", ["length", "chunks", "none"])
async def test_lenient_pipelined_request_line_is_refused(body: str) -> None:
    async with listening() as place, Caller(place.port) as caller:
        session = await begin(place.port)
        known = {"mcp_session_id": session}
        effect = json.dumps(tool("effect", what="first")).encode()
        first = {
            "length": request("POST", "/mcp", effect, **known),
            "chunks": request("POST", "/mcp", b"", content_length=None, transfer_encoding="chunked", **known)
            + chunked(effect),
            "none": request("GET", "/livez"),
        }[body]
        second = request("POST", "/mcp", tool("effect", what="second"), **known)
        caller.say(first + second.replace(b"POST /mcp ", b"POST  /mcp ", 1))
        await caller.rest()
        assert "second" not in place.done


async def test_absolute_target_replaces_host_header() -> None:
    message = tool("effect", what="absolute")
    async with listening() as place:
        session = await begin(place.port)
        known = {"mcp_session_id": session}

        async def status(target: str, **headers: str) -> int:
            return (await ask(place.port, "POST", target, message, **known, **headers)).status

        assert await status("http://evil.example/mcp") == 403
        assert await status("https://evil.example:443/mcp?x=1") == 403
        assert await status("http://localhost@evil.example/mcp") == 400
        assert await status("http://localhost.evil.example/mcp") == 403
        assert await status("http:///mcp") == 400
        assert await status("http://evil.example?/mcp") == 403
        assert await status("http://localhost?/mcp") == 404
        assert place.done == []
        assert await status("http://localhost/mcp", host="evil.example") == 200
        assert await status(f"HTTP://127.0.0.1:{place.port}/mcp") == 200
        assert place.done == ["absolute"] * 2


async def test_absolute_target_replaces_host_for_websockets() -> None:
    async with listening() as place:
        for target, status in (("http://evil.example/mcp", 403), ("http://localhost/mcp", 101)):
            async with Caller(place.port) as caller:
                caller.say(websocket_frames.upgrade(target))
                assert (await caller.head()).status == status


async def test_body_is_never_parsed_as_next_request() -> None:
    async with listening() as place:
        session = await begin(place.port)
        hidden = HIDDEN.replace(b"{session}", session.encode())
        carriers = [
            request("POST", "/mcp", b"", content_length=str(len(hidden)), connection="Upgrade", upgrade="h2c"),
            request("POST", "/mcp", b"", content_length=str(len(hidden)), content_type="text/plain"),
            request("POST", "/other", b"", content_length=str(len(hidden))),
            request("GET", "/mcp", b"", content_length=str(len(hidden))),
            request("POST", "/mcp", b"", content_length=str(len(hidden)), host="evil.example"),
        ]
        for carrier in carriers:
            async with Caller(place.port) as caller:
                caller.say(carrier)  # the body comes when the head has been answered
                assert (await caller.answer()).status >= 400
                caller.say(hidden)
                caller.say(request("GET", "/other", None, connection="close"))
                await caller.rest()
        assert place.done == []


async def test_trailers_are_not_headers() -> None:
    body = json.dumps(call("ping")).encode()
    head = request("POST", "/mcp", b"", content_length=None, transfer_encoding="chunked")
    async with listening() as place:
        session = await begin(place.port)
        async with Caller(place.port) as caller:
            caller.say(head + chunked(body, b"mcp-session-id: %b\r\n" % session.encode()))
            assert (await caller.answer()).status == 400


async def posted(place: AttackedServer, session: str, body: bytes) -> Answer:
    return await ask(place.port, "POST", "/mcp", body, mcp_session_id=session)


async def test_json_keys_match_exactly() -> None:
    hostile = json.dumps(tool("effect", what="in disguise"))
    disguised = [  # each is a key that is nearly the right one, beside or in place of it
        hostile.replace('"method"', '"Method"'),
        hostile.replace('"method"', '"METHOD"'),
        hostile.replace('"method"', '"method\\u0000"'),
        hostile.replace('"method"', '"\\u0000method"'),
        hostile.replace('"method"', '"method "'),
        hostile.replace('"method"', '"method\\u200b"'),
        hostile.replace('"method"', '"\\uff4dethod"'),
        hostile.replace('"params"', '"Params"'),
        hostile.replace('"name"', '"Name"'),
        hostile.replace('"name"', '"name\\u0000x"'),
        hostile.replace('"arguments"', '"ARGUMENTS"'),
        hostile.replace('"what"', '"What"'),
        hostile.replace('"what"', '"what\\u0000"'),
        hostile.replace('"effect"', '"Effect"'),
        hostile.replace('"effect"', '"effect\\u0000"'),
        hostile.replace("tools/call", "Tools/Call"),
        hostile.replace("tools/call", "tools/call\\u0000"),
        hostile.replace("tools/call", "tools/call/"),
        hostile.replace('"jsonrpc"', '"JsonRpc"'),
    ]
    async with listening() as place:
        session = await begin(place.port)
        for body in disguised:
            answer = await posted(place, session, body.encode())
            assert "error" in answer.json or answer.json["result"].get("isError"), body
        assert place.done == []


async def test_similar_json_keys_are_ignored() -> None:
    shown = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
    beside = {
        "Method": "tools/call",
        "method\x00": "tools/call",
        "METHOD": "tools/call",
        "Id": 2,
        "PARAMS": {"name": "effect"},
    }
    async with listening() as place:
        session = await begin(place.port)
        for keys in (shown | beside, beside | shown):
            answer = await posted(place, session, json.dumps(keys).encode())
            assert answer.json == {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert place.done == []


def with_duplicates() -> list[bytes]:
    """Calls with a member twice, at every level, of every spelling."""
    last = json.dumps(tool("effect", what="last"))
    twice = [
        last.replace('"method"', '"method": "ping", "method"'),
        last.replace('"params"', '"params": {"name": "much", "arguments": {"size": 1}}, "params"'),
        last.replace('"name"', '"name": "much", "name"'),
        last.replace('"what"', '"what": "first", "what"'),
        last.replace('"what"', '"what" : "first", "what"'),
        last.replace('"what"', '"what": "a\\u003ab:", "what"'),
        last.replace('"id"', '"id": "first", "id"'),
        last.replace('"method"', '"method": "ping", "\\u006dethod"'),
    ]
    long = " " * 40_000  # the codec reads long messages in another way
    return [body.replace("{", "{" + padding, 1).encode() for padding in ("", long) for body in twice]


async def test_duplicate_members_are_refused_over_http() -> None:
    async with listening() as place:
        session = await begin(place.port)
        for body in with_duplicates():
            answer = await posted(place, session, body)
            assert answer.status == 400, body
            assert is_duplicate_error(answer.json), body
        assert place.done == []


def is_duplicate_error(answer: Any) -> bool:
    error = answer.get("error", {"code": None, "message": ""})
    return error["code"] == -32600 and "duplicate member" in error["message"]


async def test_duplicate_members_are_refused_over_websocket() -> None:
    async with listening() as place, Caller(place.port) as caller:
        await websocket_frames.shake_hands(caller)
        for body in with_duplicates():
            caller.say(websocket_frames.frame(body))
            assert is_duplicate_error(await websocket_frames.message(caller)), body
        assert place.done == []


async def test_duplicate_members_are_refused_over_tcp() -> None:
    async with listening("tcp://127.0.0.1:0") as place, Caller(place.port) as caller:
        caller.say(json.dumps(initialize()).encode() + b"\n")
        await caller.line()
        for body in with_duplicates():
            caller.say(body + b"\n")
            assert is_duplicate_error(await caller.line()), body
        assert place.done == []


async def test_unescaped_control_characters_are_refused() -> None:
    async with listening() as place:
        session = await begin(place.port)
        for control in (b"\x00", b"\x01", b"\x1f", b"\n", b"\t"):
            body = json.dumps(tool("effect", what="@")).encode()
            for raw in (body.replace(b"@", control), body.replace(b'"method"', b'"method%b"' % control)):
                assert (await posted(place, session, raw)).status == 400, raw
        assert place.done == []


async def test_path_must_match_exactly() -> None:
    async with listening() as place:
        for path in (
            "/mcp/..",
            "/MCP",
            "/mcp;a",
            "/mcp%00",
            "/x/../mcp",
            "//mcp",
            "/mcp/extra",
            "/.%2e/mcp",
            "/mcp%2f..",
        ):
            answer = await ask(place.port, "POST", path, initialize())
            assert answer.status == 404, path
        assert "result" in (await ask(place.port, "POST", "/mcp?a=b", initialize())).json


async def test_only_utf_8_is_accepted() -> None:
    async with listening() as place:
        session = await begin(place.port)
        body = json.dumps(tool("effect", what="ü"), ensure_ascii=False)
        for coding in ("latin-1", "utf-16", "utf-32", "utf-8-sig"):
            assert (await posted(place, session, body.encode(coding))).status == 400, coding
        assert place.done == []
        assert text_of((await posted(place, session, body.encode())).json) == "ü"
