"""The client of Strands Agents, which runs on its own thread, without a model."""

from client_script import ADA, ADDENDS, ARGUMENTS, COMMAND, PATIENCE, STATIC, URL, found
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from strands.tools.mcp import MCPClient


def opened():
    """The transport."""
    if URL:
        return streamable_http_client(URL)
    return stdio_client(StdioServerParameters(command=COMMAND, args=ARGUMENTS))


with MCPClient(opened, startup_timeout=int(PATIENCE)) as client:
    tools = client.list_tools_sync()
    called = client.call_tool_sync("1", "add", ADDENDS)
    read = client.read_resource_sync(STATIC)
    prompt = client.get_prompt_sync("greet", ADA)
    found(
        [tool.tool_name for tool in tools],
        called["content"][0]["text"],
        resource=read.contents[0].text,
        prompt=prompt.messages[0].content.text,
    )
