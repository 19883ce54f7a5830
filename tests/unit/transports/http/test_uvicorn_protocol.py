"""Connections with more than one request: pipelined requests are answered in order and read no faster than that."""

import asyncio
import json

from tests.attacks import websocket_frames
from tests.attacks.attacked_server import listening
from tests.attacks.raw import Caller, begin, call, request, text_of, tool, until
from tests.attacks.test_parsing import chunked


async def test_pipelined_requests_and_empty_lines_are_handled() -> None:
    async with listening() as place, Caller(place.port) as caller:
        session = await begin(place.port)
        known = {"mcp_session_id": session}
        effect = json.dumps(tool("effect", what="in chunks")).encode()
        streamed = request("POST", "/mcp", b"", content_length=None, transfer_encoding="chunked", **known)
        plain = request("POST", "/mcp", tool("effect", what="plain"), **known)
        data = plain + b"\r\n" + streamed + chunked(effect, b"x-trailer: 1\r\n") + plain + plain + b"\r\n\r\n" + plain
        for cut in range(0, len(data), 7):
            caller.say(data[:cut])
            await caller.all_said()
            await asyncio.sleep(0)
            caller.say(data[cut:])
            for _ in range(5):
                answer = await caller.answer()
                assert answer.status == 200, (cut, answer.body)


async def test_request_is_answered_before_the_next_is_complete() -> None:
    async with listening() as place, Caller(place.port) as caller:
        session = await begin(place.port)
        known = {"mcp_session_id": session}
        waiting = request("POST", "/mcp", tool("wait", who="first"), **known)
        caller.say(waiting + request("POST", "/mcp", tool("effect", what="second"), **known) + b"POST /m")
        await until(lambda: place.started, "the call")
        place.gate.set()
        assert [text_of((await caller.answer()).json) for _ in range(2)] == ["first", "second"]


async def test_reading_pauses_while_requests_are_queued() -> None:
    async with listening() as place, Caller(place.port) as caller:
        session = await begin(place.port)
        count, queued = 4000, []
        asked = request("POST", "/mcp", tool("effect", what="x"), mcp_session_id=session)
        connections = place.listener._connections.state.connections  # type: ignore[union-attr]

        async def reading() -> None:
            for _ in range(count):
                assert (await caller.answer()).status == 200
                queued.append(max(len(connection.pipeline) for connection in connections))

        answered = asyncio.create_task(reading())
        caller.say(asked * count)
        await answered
        assert max(queued) <= 2 * (1 << 18) // len(asked)


async def test_websocket_on_reused_connection_has_no_header_timeout() -> None:
    async with listening(header_timeout=10.0) as place, Caller(place.port) as caller:
        caller.say(request("GET", "/other"))
        assert (await caller.answer()).status == 404
        await websocket_frames.shake_hands(caller)
        place.clock.advance(20.0)
        await asyncio.sleep(0)
        websocket_frames.say(caller, call("ping", ident=7))
        assert (await websocket_frames.message(caller))["id"] == 7
