"""Cross-client responses: two clients use the same ids concurrently, and each must get its own responses."""

import asyncio
from typing import Any

from tests.attacks import websocket_frames
from tests.attacks.attacked_server import AttackedServer, listening
from tests.attacks.raw import INITIALIZED, Caller, ask, begin, initialize, request, text_of, tool, until

ID = 7
ROOTS = {"roots": {}}


async def test_sessions_with_equal_ids_get_their_own_responses() -> None:
    async with listening() as place:
        names = [f"client {number}" for number in range(10)]
        sessions = [await begin(place.port) for _ in names]

        async def call(session: str, who: str) -> str:
            answer = await ask(place.port, "POST", "/mcp", tool("wait", who=who, ident=ID), mcp_session_id=session)
            assert answer.json["id"] == ID
            return text_of(answer.json)

        calls = [asyncio.create_task(call(session, who)) for session, who in zip(sessions, names, strict=True)]
        await until(lambda: len(place.started) == len(names), "every call")
        place.gate.set()
        assert await asyncio.gather(*calls) == names


class StreamClient:
    """A client on a stream connection: TCP, or a WebSocket."""

    def __init__(self, caller: Caller, transport: str) -> None:
        self.caller = caller
        self.transport = transport

    async def open(self) -> "StreamClient":
        if self.transport == "websocket":
            self.caller.say(websocket_frames.upgrade())
            assert (await self.caller.head()).status == 101
        self.say(initialize(**ROOTS))
        await self.hear()
        self.say(INITIALIZED)
        return self

    def say(self, message: Any) -> None:
        if self.transport == "websocket":
            websocket_frames.say(self.caller, message)
        else:
            self.caller.say(json_line(message))

    async def hear(self) -> Any:
        return await (websocket_frames.message(self.caller) if self.transport == "websocket" else self.caller.line())


def json_line(message: Any) -> bytes:
    return request("POST", "/", message).partition(b"\r\n\r\n")[2] + b"\n"


async def collide_on_streams(place: AttackedServer, transport: str) -> None:
    async with Caller(place.port) as first, Caller(place.port) as second:
        clients = [await StreamClient(caller, transport).open() for caller in (first, second)]
        for number, client in enumerate(clients):
            client.say(tool("where", who=f"client {number}", ident=ID))
        questions = [await client.hear() for client in clients]
        assert {question["method"] for question in questions} == {"roots/list"}
        clients[0].say(roots_at(questions[1]["id"] + 1, "file:///nowhere"))  # matches no request
        for number, client in enumerate(clients):
            client.say(roots_at(questions[number]["id"], f"file:///{number}"))
        answers = [await client.hear() for client in clients]
        assert [answer["id"] for answer in answers] == [ID, ID]
        assert [text_of(answer) for answer in answers] == ["client 0 at file:///0", "client 1 at file:///1"]


def roots_at(ident: Any, uri: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ident, "result": {"roots": [{"uri": uri}]}}


async def test_tcp_clients_with_equal_ids_get_their_own_messages() -> None:
    async with listening("tcp://127.0.0.1:0") as place:
        await collide_on_streams(place, "tcp")


async def test_websocket_clients_with_equal_ids_get_their_own_messages() -> None:
    async with listening() as place:
        await collide_on_streams(place, "websocket")


async def test_http_sse_clients_with_equal_ids_get_their_own_responses() -> None:
    async with listening() as place, Caller(place.port) as first, Caller(place.port) as second:
        opened: list[tuple[str, Any]] = []
        for caller in (first, second):
            caller.say(request("GET", "/sse"))
            assert (await caller.head()).status == 200
            messages = caller.messages()
            path = await anext(messages)
            opened.append((path, messages))
            await ask(place.port, "POST", path, initialize())
            assert "result" in await anext(messages)
            await ask(place.port, "POST", path, INITIALIZED)
        for number, (path, _) in enumerate(opened):
            await ask(place.port, "POST", path, tool("wait", who=f"client {number}", ident=ID))
        place.gate.set()
        assert [text_of(await anext(messages)) for _, messages in opened] == ["client 0", "client 1"]


async def test_response_to_request_of_another_session_is_ignored() -> None:
    async with listening() as place, Caller(place.port) as victim, Caller(place.port) as other:
        sessions = [await begin(place.port, capabilities=ROOTS) for _ in range(2)]
        for caller, session, who in zip((victim, other), sessions, ("victim", "other"), strict=True):
            caller.say(request("POST", "/mcp", tool("where", who=who, ident=ID), mcp_session_id=session))
            assert (await caller.head()).status == 200
        streams = [victim.messages(), other.messages()]
        questions = [await anext(stream) for stream in streams]
        idle = await begin(place.port, capabilities=ROOTS)
        for thief in (idle, sessions[1]):  # a client without requests, and one with the same request
            stolen = await ask(
                place.port, "POST", "/mcp", roots_at(questions[0]["id"], "file:///stolen"), mcp_session_id=thief
            )
            assert stolen.status == 202
        own = await ask(
            place.port, "POST", "/mcp", roots_at(questions[0]["id"], "file:///own"), mcp_session_id=sessions[0]
        )
        assert own.status == 202
        assert text_of(await anext(streams[0])) == "victim at file:///own"


async def test_cancellation_of_another_sessions_request_is_ignored() -> None:
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": ID}}
    async with listening() as place, Caller(place.port) as victim:
        session, thief = await begin(place.port), await begin(place.port)
        victim.say(request("POST", "/mcp", tool("wait", who="victim", ident=ID), mcp_session_id=session))
        await until(lambda: place.started, "the call")
        assert (await ask(place.port, "POST", "/mcp", cancel, mcp_session_id=thief)).status == 202
        place.gate.set()
        assert text_of((await victim.answer()).json) == "victim"
