"""chuk-mcp: a client that is built without the official SDK."""

import anyio
from chuk_mcp.protocol.messages import (
    send_initialize,
    send_prompts_get,
    send_resources_read,
    send_tools_call,
    send_tools_list,
)
from chuk_mcp.transports.http import StreamableHTTPParameters, http_client
from chuk_mcp.transports.stdio import StdioParameters, stdio_client
from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, STATIC, URL, found


def opened():
    """The transport, which gives two streams."""
    if URL:
        return http_client(StreamableHTTPParameters(url=URL))
    return stdio_client(StdioParameters(command=COMMAND, args=ARGUMENTS))


async def main() -> None:
    async with opened() as streams:
        await send_initialize(*streams)
        listed = await send_tools_list(*streams)
        called = await send_tools_call(*streams, "add", ADDENDS)
        read = await send_resources_read(*streams, STATIC)
        prompt = await send_prompts_get(*streams, "greet", ADA)
        found(
            [tool.name for tool in listed.tools],
            called.content[0]["text"],
            resource=read.contents[0].text,
            prompt=prompt.messages[0].content["text"],
        )


anyio.run(main)
