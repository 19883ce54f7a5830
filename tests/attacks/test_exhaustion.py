"""Resource exhaustion: bytes, headers, nesting, time, connections, sessions and frames of a peer are all limited."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.attacks import websocket_frames
from tests.attacks.attacked_server import AttackedServer, behind_uvicorn, listening, user, while_time_passes
from tests.attacks.raw import INITIALIZED, Answer, Caller, ask, begin, call, initialize, request, text_of, tool, until

KIB = 1024
READ = 512 * KIB  # more than one read brings
MUCH = 20_000_000  # bytes; more than sockets buffer
SMALL = {"http_body_size_limit": 4 * KIB, "ws_message_size_limit": 4 * KIB, "max_header_bytes": 4 * KIB}


async def answer_to(port: int, *pieces: bytes) -> Answer:
    """The response to bytes that are sent in pieces until the server stops reading."""
    async with Caller(port) as caller:
        for piece in pieces:
            caller.say(piece)
            await caller.all_said()
        return await caller.answer()


# --- bytes -------------------------------------------------------------------------------------------


async def test_oversized_content_length_is_refused() -> None:
    async with listening(**SMALL) as place:
        answer = await answer_to(place.port, request("POST", "/mcp", b"", content_length=str(4 * KIB + 1)))
        assert answer.status == 413


async def test_oversized_chunked_body_is_refused_early() -> None:
    head = request("POST", "/mcp", b"", content_length=None, transfer_encoding="chunked")
    async with listening(**SMALL) as place:
        answer = await answer_to(place.port, head, *[b"400\r\n" + b" " * KIB + b"\r\n"] * 5)
        assert answer.status == 413


async def test_oversized_headers_are_refused_in_any_split() -> None:
    long = request("GET", "/mcp", None, x_long="x" * 4 * KIB)
    many = request("GET", "/mcp", None, *((f"x-{number}", "1") for number in range(1000)))
    line = request("GET", f"/{'x' * 5 * KIB}", None)
    async with listening(**SMALL) as place:
        for data, status in ((long, 431), (many, 431), (line, 414)):
            assert (await answer_to(place.port, data)).status == status
            assert (await answer_to(place.port, data[:3000], data[3000:4500])).status == status
        assert (await ask(place.port, "GET", "/other", None, x_long="x" * 3 * KIB)).status == 404


async def test_trailers_are_limited_like_headers() -> None:
    head = request("POST", "/mcp", b"", content_length=None, transfer_encoding="chunked")
    async with listening(**SMALL) as place:
        for trailers in ((b"x-long: ", b"x" * READ), (b"x: y\r\n" * READ,)):
            assert (await answer_to(place.port, head, b"0\r\n", *trailers)).status == 431


async def test_deeply_nested_json_is_refused() -> None:
    async with listening() as place:
        session = await begin(place.port)
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            deep = opening * 50_000 + b"1" + closing * 50_000
            body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"effect","arguments":%b}}' % deep
            answer = await ask(place.port, "POST", "/mcp", body, mcp_session_id=session)
            assert "error" in answer.json or answer.json["result"]["isError"]
        assert place.done == []


async def test_oversized_websocket_message_is_refused() -> None:
    whole = [websocket_frames.frame(b" " * (4 * KIB + 1))]
    parts = [
        websocket_frames.frame(b" " * KIB, last=False),
        *[websocket_frames.frame(b" " * KIB, websocket_frames.CONTINUED, last=False)] * 4,
    ]
    claimed = [b"\x81\xff" + (1 << 40).to_bytes(8, "big")]  # a frame with a large length and no payload
    async with listening(**SMALL) as place:
        for said in (whole, parts, claimed):
            async with Caller(place.port) as caller:
                await websocket_frames.shake_hands(caller)
                for data in said:
                    caller.say(data)
                assert await websocket_frames.closed_with(caller) == 1009


async def test_websocket_message_of_many_frames_is_refused() -> None:
    async with listening(**SMALL) as place, Caller(place.port) as caller:
        await websocket_frames.shake_hands(caller)
        caller.say(websocket_frames.frame(b"", last=False))
        caller.say(websocket_frames.frame(b"", websocket_frames.CONTINUED, last=False) * 10_000)
        assert await websocket_frames.closed_with(caller) == 1009


# --- time --------------------------------------------------------------------------------------------


async def test_slow_headers_time_out() -> None:
    async with listening(header_timeout=10.0) as place, Caller(place.port) as slow, Caller(place.port) as silent:
        for byte in b"GET /mcp HTT":
            slow.say(bytes([byte]))
            place.clock.advance(0.5)
            await asyncio.sleep(0)
        assert await status_within(place, slow, 10.0) == b"408"
        assert await status_within(place, silent, 10.0) == b"408"


async def status_within(place: AttackedServer, caller: Caller, seconds: float) -> bytes:
    """The status that a connection ends with while time passes."""
    return (await while_time_passes(place, caller.rest(), seconds))[9:12]


async def test_bytes_between_requests_do_not_hold_a_connection() -> None:
    async with listening(header_timeout=10.0) as place, Caller(place.port) as caller:
        caller.say(request("GET", "/other"))
        assert (await caller.answer()).status == 404
        caller.say(b"\r\n")
        assert await status_within(place, caller, 10.0) == b"408"


async def test_unread_body_does_not_hold_a_connection() -> None:
    async with listening(header_timeout=10.0) as place, Caller(place.port) as caller:
        caller.say(request("POST", "/other", b"", content_length="1000000"))
        assert (await caller.answer()).status == 404
        caller.say(b"x")
        assert await status_within(place, caller, 10.0) == b"408"


async def test_slow_body_times_out() -> None:
    async with listening(body_timeout=30.0) as place, Caller(place.port) as caller:
        caller.say(request("POST", "/mcp", b"{", content_length="100"))
        for _ in range(20):
            caller.say(b" ")
            place.clock.advance(0.5)
            await asyncio.sleep(0)
        assert await status_within(place, caller, 30.0) == b"408"


async def test_failed_upgrade_does_not_hold_a_connection() -> None:
    async with listening() as place:
        for data in (request("POST", "/mcp", b"{}", connection="Upgrade", upgrade="websocket"), too_many_headers()):
            async with Caller(place.port) as caller:
                caller.say(data)
                assert (await caller.rest())[9:12] in {b"400", b"405", b"431"}


def too_many_headers() -> bytes:
    return websocket_frames.upgrade("/mcp", *((f"x-{number}", "x") for number in range(300)))


# --- peers that do not read --------------------------------------------------------------------------


async def test_peer_that_reads_no_response_is_disconnected() -> None:
    async with listening(write_timeout=30.0, work_timeout=None) as place, Caller(place.port) as caller:
        session = await begin(place.port)
        caller.writer.transport.pause_reading()
        caller.say(request("POST", "/mcp", tool("much", size=MUCH), mcp_session_id=session))
        for _ in range(200):
            await asyncio.sleep(0.002)  # the response has begun, and then stalls
            place.clock.advance(3)
        caller.writer.transport.resume_reading()
        assert len(await caller.rest()) < MUCH


async def test_unread_stream_is_buffered_up_to_the_limit() -> None:
    async with listening(unsent_high=50_000, unsent_limit=200_000) as place:
        for path in ("/mcp", "/sse"):
            async with Caller(place.port) as caller:
                await flooded(place, caller, path)
                assert len(await caller.rest()) < 10_000_000


async def flooded(place: AttackedServer, caller: Caller, path: str) -> None:
    """Call the flooding tool over HTTP, and read nothing until it has ended."""
    flood = tool("flood", size=4000, times=5000)
    if path == "/mcp":
        session = await begin(place.port)
        caller.say(request("POST", path, flood, mcp_session_id=session))
        assert (await caller.head()).status == 200
    else:
        caller.say(request("GET", path))
        assert (await caller.head()).status == 200
        post = await anext(caller.messages())
        for message in (initialize(), INITIALIZED, flood):
            assert (await ask(place.port, "POST", post, message)).status == 202
    caller.writer.transport.pause_reading()
    await until(
        lambda: not any(one.session.incoming_requests for one in place.server.connections), "the end of the flood"
    )
    place.clock.advance(100)
    caller.writer.transport.resume_reading()


async def test_unread_websocket_is_buffered_up_to_the_limit() -> None:
    async with listening(unsent_high=50_000, unsent_limit=200_000) as place, Caller(place.port) as caller:
        await websocket_frames.shake_hands(caller)
        caller.writer.transport.pause_reading()
        websocket_frames.say(caller, tool("flood", size=4000, times=5000))
        await until(lambda: not place.server.connections, "the end of the connection")


async def test_pings_without_reading_pongs_are_disconnected() -> None:
    pings = websocket_frames.frame(b"x" * 125, websocket_frames.PING) * 1000
    async with listening() as place, Caller(place.port) as caller:
        await websocket_frames.shake_hands(caller)
        caller.writer.transport.pause_reading()
        caller.writer.transport.set_write_buffer_limits(high=len(pings))
        sent = 0
        while sent < MUCH and not caller.writer.transport.is_closing():
            caller.say(pings)
            sent += len(pings)
            await caller.all_said()
            await asyncio.sleep(0)
        assert sent < MUCH


# --- counts ------------------------------------------------------------------------------------------


async def test_connection_over_the_limit_is_refused() -> None:
    async with listening(max_connections=3) as place:
        session = await begin(place.port)
        await until(lambda: place.server.connections, "a session")
        async with Caller(place.port) as one, Caller(place.port) as two, Caller(place.port) as three:
            for caller in (one, two, three):
                caller.say(request("POST", "/mcp", call("ping"), mcp_session_id=session))
                assert (await caller.answer()).status == 200
            async with Caller(place.port) as four:
                assert (await four.rest())[9:12] == b"503"
            one.say(request("POST", "/mcp", call("ping"), mcp_session_id=session))
            assert (await one.answer()).status == 200


async def test_session_over_the_limit_is_refused_and_none_ends() -> None:
    limits = {"max_sessions": 5, "max_sessions_per_principal": 3}
    async with behind_uvicorn(user, **limits) as place:
        greedy = [await begin(place.port, x_user="greedy") for _ in range(3)]
        refused = await ask(place.port, "POST", "/mcp", initialize(), x_user="greedy")
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        modest = [await begin(place.port, x_user="modest") for _ in range(2)]
        for who in ("greedy", "modest", "late"):
            assert (await ask(place.port, "POST", "/mcp", initialize(), x_user=who)).status == 503
        for who, session in [*(("greedy", one) for one in greedy), *(("modest", one) for one in modest)]:
            alive = await ask(place.port, "POST", "/mcp", call("ping"), mcp_session_id=session, x_user=who)
            assert alive.json["result"] == {}
        assert (await ask(place.port, "DELETE", mcp_session_id=greedy[0], x_user="greedy")).status == 204
        assert (await ask(place.port, "POST", "/mcp", initialize(), x_user="late")).status == 200


async def test_idle_session_expires() -> None:
    async with listening(max_sessions=50, session_ttl=100.0, session_sweep=10.0) as place:
        for _ in range(50):
            await begin(place.port)
        assert (await ask(place.port, "POST", "/mcp", initialize())).status == 503
        place.clock.advance(111)
        assert len(place.server.connections) == 0
        assert (await ask(place.port, "POST", "/mcp", initialize())).status == 200


async def test_http_sse_streams_are_limited_and_silent_ones_end() -> None:
    async with behind_uvicorn(user, max_connections=3, initialize_timeout=30.0) as place, AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(Caller(place.port)) for _ in range(3)]
        for caller in callers:
            caller.say(request("GET", "/sse"))
            assert (await caller.head()).status == 200
        assert (await ask(place.port, "GET", "/sse")).status == 503
        place.clock.advance(30)
        for caller in callers:
            assert len([piece async for piece in caller.pieces()]) == 1


async def test_ended_streams_are_retained_within_limits() -> None:
    async with listening(replay_streams=4, replay_bytes=10_000) as place:
        session = await begin(place.port)
        for _ in range(20):
            flooded = await ask(place.port, "POST", "/mcp", tool("flood", size=500, times=100), mcp_session_id=session)
            assert b"done" in flooded.body
        kept = [number for number in range(1, 21) if await is_resumable(place, session, f"{number}-101")]
        assert kept == list(range(21 - len(kept), 21))
        assert 4 <= len(kept) <= 5
        assert not await is_resumable(place, session, "20-1")


async def is_resumable(place: AttackedServer, session: str, position: str) -> bool:
    """Return whether a stream can be resumed after an event."""
    answer = await ask(place.port, "GET", "/mcp", None, mcp_session_id=session, last_event_id=position)
    assert answer.status in {200, 400}
    return answer.status == 200


async def test_concurrent_calls_of_a_session_are_limited() -> None:
    async with listening(max_calls=3, max_waiting=3) as place:
        session = await begin(place.port)
        async with waiting_calls(place, session, 10) as callers:
            await until(lambda: len(place.started) == 3, "three calls")
            alive = await ask(place.port, "POST", "/mcp", initialize())
            assert (alive.status, len(place.started)) == (200, 3)
            place.gate.set()
            assert [text_of((await caller.answer()).json) for caller in callers] == [str(n) for n in range(10)]


@asynccontextmanager
async def waiting_calls(place: AttackedServer, session: str, many: int) -> AsyncIterator[list[Caller]]:
    """That many blocked calls, each on its own connection."""
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(Caller(place.port)) for _ in range(many)]
        for number, caller in enumerate(callers):
            caller.say(request("POST", "/mcp", tool("wait", who=str(number)), mcp_session_id=session))
        yield callers


async def test_cancelled_call_leaves_nothing_behind() -> None:
    async with listening(replay_streams=4) as place:
        session = await begin(place.port)
        for number in range(20):
            async with Caller(place.port) as caller:
                name, size = ("wait", {"who": "x"}) if number % 2 else ("begin", {})
                message = call(
                    "tools/call", {"name": name, "arguments": size, "_meta": {"progressToken": 1}}, ident=number
                )
                place.started.clear()
                caller.say(request("POST", "/mcp", message, mcp_session_id=session))
                await until(lambda: place.started, "the call")
                cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
                assert (await ask(place.port, "POST", "/mcp", cancel, mcp_session_id=session)).status == 202
                answer = await caller.answer()
                assert (answer.status, b"result" in answer.body) == (202 if number % 2 else 200, False)
        kept = [number for number in range(1, 11) if await is_resumable(place, session, f"{number}-1")]
        assert len(kept) <= 5


async def test_batch_size_is_limited() -> None:
    async with listening() as place:
        opened = await ask(place.port, "POST", "/mcp", initialize("2025-03-26"))
        batch = json.dumps([call("ping") for _ in range(1001)]).encode()
        answer = await ask(place.port, "POST", "/mcp", batch, mcp_session_id=opened.session)
        assert answer.status == 400
        assert "1000" in answer.json["error"]["message"]
