"""A yardstick: uvicorn and msgspec answering an echo, with nothing of a protocol in between. Not an MCP server."""

import sys
from typing import Any

import msgspec
import uvicorn


class Arguments(msgspec.Struct):
    """Of the echo tool."""

    text: str = ""


class Params(msgspec.Struct):
    """Of `tools/call`, as far as an echo needs them."""

    name: str = ""
    arguments: Arguments = msgspec.field(default_factory=Arguments)


class Request(msgspec.Struct):
    """A request, or a notification when it has no id."""

    method: str
    id: int | None = None
    params: Params = msgspec.field(default_factory=Params)


class Text(msgspec.Struct, tag="text"):
    """One block of content."""

    text: str


class Result(msgspec.Struct):
    """Of `tools/call`, as a typed tool returns it."""

    content: list[Text]
    structuredContent: dict[str, str]  # noqa: N815  its name on the wire


class Response(msgspec.Struct):
    """The response to a request."""

    id: int
    result: Any
    jsonrpc: str = "2.0"


HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "bare"}}
decode = msgspec.json.Decoder(Request).decode
encode = msgspec.json.Encoder().encode


async def app(scope, receive, send) -> None:
    """Answer one POST."""
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    request = decode(body)
    if request.id is None:
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        return
    text = request.params.arguments.text
    result = HANDSHAKE if request.method == "initialize" else Result([Text(text)], {"result": text})
    answer = encode(Response(request.id, result))
    headers = [
        (b"content-type", b"application/json"),
        (b"mcp-session-id", b"none"),
        (b"content-length", b"%d" % len(answer)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


uvicorn.run(
    app,
    port=int(sys.argv[2]),
    http="httptools",
    loop="uvloop",
    lifespan="off",
    ws="none",
    log_level="warning",
    access_log=False,
    server_header=False,
    date_header=False,
)
