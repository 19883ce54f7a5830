"""A request of the server's that is given up: the client hears of it where it was asked."""

import asyncio

from tests.unit.transports.http.asgi import call, hosted

from trunkline import Context, Server
from trunkline.errors import RequestTimeout

CANCELLED = "notifications/cancelled"


def asker(timeout: float | None) -> Server:
    server = Server("asker")

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await ctx.sample("?", max_tokens=1, timeout=timeout)
        except RequestTimeout:
            return "gave up"
        return "answered"

    return server


async def test_cancellation_is_sent_on_the_stream_of_its_call() -> None:
    """So that one without a stream of its own hears of it, too."""
    async with hosted(asker(0.01)) as host:
        ident = await host.session(capabilities={"sampling": {}})
        answer = host.begin("POST", call("ask"), mcp_session_id=ident)
        asked, told, result = [await answer.message() for _ in range(3)]
    assert (asked["method"], told["method"]) == ("sampling/createMessage", CANCELLED)
    assert told["params"]["requestId"] == asked["id"]
    assert result["result"]["content"][0]["text"] == "gave up"


async def test_cancellation_after_cancelled_call_uses_standalone_stream() -> None:
    """It may well have left the stream of the call."""
    async with hosted(asker(None)) as host:
        ident = await host.session(capabilities={"sampling": {}})
        own = host.begin("GET", mcp_session_id=ident)
        answer = host.begin("POST", call("ask"), mcp_session_id=ident)
        asked = await answer.message()
        stop = {"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": 1}}
        await host.ask("POST", stop, mcp_session_id=ident)
        told = await own.message()
        answer.gone.set()
        own.gone.set()
        await asyncio.gather(answer.finished(), own.finished())
    assert (told["method"], told["params"]["requestId"]) == (CANCELLED, asked["id"])
