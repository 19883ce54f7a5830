"""The server's own stream is open before anything is asked: what is said there is lost by some if nobody reads."""

from tests.limits import PATIENCE
from tests.unit.transports.http.client.web import Visit, event, web

from trunkline import Client

QUESTION = b'{"jsonrpc": "2.0", "id": "q", "method": "ping"}'
DONE = {"content": [{"type": "text", "text": "done"}]}


async def test_server_request_arrives_during_the_first_call() -> None:
    async with web() as server:
        listeners: list[Visit] = []
        calls: list[Visit] = []

        def listen(visit: Visit) -> None:
            visit.stream()
            listeners.append(visit)

        def call(visit: Visit) -> None:
            calls.append(visit)
            for listener in listeners:  # if there is none, nobody is asked
                listener.write(event(QUESTION))
                server.transcript.frames.append(("server", QUESTION))

        def answered(visit: Visit) -> None:
            visit.respond(202)
            calls[0].reply(DONE)

        server.on("GET", listen)
        server.on("tools/call", call)
        server.on("POST", lambda visit: answered(visit) if visit.message.get("id") == "q" else server.usual(visit))
        async with Client(server.url) as client:
            assert (await client.call_tool("act", timeout=PATIENCE)).text == "done"


async def test_unopened_stream_delays_calls_only_briefly() -> None:
    async with web() as server:
        server.on("GET", lambda visit: visit.left())
        async with Client(server.url) as client:
            assert (await client.call_tool("act", timeout=PATIENCE)).text == "act"
